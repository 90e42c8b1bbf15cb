"""Belief propagation and the Bethe estimate of log Z, on any factor graph and under parities.

The estimate is exact on trees and otherwise carries no guarantee, converged or not. For
attractive binary pairwise models a lower bound is proven as well: the judge evaluates the Bethe
free energy at the beliefs, whatever they are (see `tightz.judge.attractive`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import require_range
from tightz.judge.attractive import AttractiveEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.models.given import GraphOrPath, given_model
from tightz.models.inputs import as_count
from tightz.models.names import Names
from tightz.models.observed import Observed, observe, per_variable
from tightz.models.prepared import prepared
from tightz.propagation.arrays import (
    BetheArrays,
    BetheState,
    Parities,
    bethe_arrays,
    checked_parities,
    start_state,
)
from tightz.propagation.runs import BetheStatus, Run, Runs, is_forest
from tightz.results import ByVariable, OneBound
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence
from tightz.shown import ASIDE


@dataclass(frozen=True, eq=False, repr=False)
class BetheResult(ByVariable, OneBound):
    """What belief propagation says about log Z.

    `log_z` is the Bethe estimate. `lower` (and `proven`) is a proven lower bound where the theorem
    for attractive models applies, `rounding` included, else -inf. `marginals` has one vector per
    variable, `factor_marginals` one table per factor, shaped by its scope: those of one phase
    where the model has several. `residual` is the largest message change in the last sweep,
    relative to its size where that exceeds one.

    log_zs   the estimate from every start, in order; NaN where it did not converge
    growth   factor by which a small change of the messages grows in two damped sweeps: above 1 the
             fixed point is unstable; 0 on trees, NaN where messages did not converge
    """

    log_z: float
    proven: float
    status: BetheStatus
    iterations: int
    residual: float
    log_zs: NDArray[np.float64]
    growth: float
    marginals: list[NDArray[np.float64]]
    seconds: float
    provenance: dict[str, Any]
    rounding: float
    evidence: AttractiveEvidence | None = field(metadata=ASIDE)
    naming: Names = field(metadata=ASIDE)
    _factor_tables: Callable[[], list[NDArray[np.float64]]]

    @cached_property
    def factor_marginals(self) -> list[NDArray[np.float64]]:
        return self._factor_tables()

    @property
    def bound(self) -> Bound:
        """The proven lower bound where there is one, else the estimate, labelled as such."""
        if self.status is BetheStatus.IMPOSSIBLE:
            why = "no state survives the zero potentials"
            return Bound(
                side=Side.BOTH,
                log_z=-np.inf,
                proof=Proof.DETERMINISTIC,
                method="bethe",
                seconds=self.seconds,
                confidence=1.0,
                why=why,
                evidence=self.evidence,
            )
        if self.proven > -np.inf:
            return Bound(
                side=Side.LOWER,
                log_z=self.proven,
                proof=Proof.DETERMINISTIC,
                method="bethe",
                seconds=self.seconds,
                confidence=1.0,
                why="attractive binary pairwise model: the Bethe free energy is at most log Z",
                rounding=self.rounding,
                evidence=self.evidence,
            )
        return Bound(Side.ESTIMATE, self.log_z, Proof.NONE, "bethe", self.seconds)

    def summary(self) -> str:
        count = self.log_zs.size
        best = f", best of {count} starts" if count > 1 else ""
        lines = [f"log Z ~ {self.log_z:.6f} (Bethe estimate, {self.iterations} iterations{best})"]
        if self.lower > -np.inf:
            lines.append(f"log Z >= {self.lower:.6f} (attractive model, proven)")
        return "\n".join([*lines, self.status.value])

    def __repr__(self) -> str:
        return (
            f"BetheResult(log_z={self.log_z:.6f}, lower={self.lower:.6f}, "
            f"status={self.status.name}, iterations={self.iterations}, "
            f"residual={self.residual:.2g}, seconds={self.seconds:.3g})"
        )


@prepared("bethe")
def bethe(
    model: GraphOrPath,
    *,
    parities: Parities | None = None,
    max_iterations: int = 1000,
    tol: float = 1e-9,
    damping: float = 0.0,
    starts: int | Sequence[Any] = 4,
    seed: Seed = 0,
) -> BetheResult:
    """Belief propagation: the Bethe estimate of log Z, and marginals.

    `parities` lists constraints (variables, b): the binary states of `variables` sum to b modulo
    2. The estimate is then of log Z(A, b), the sum over the states that satisfy all of them.
    `max_iterations` is for each start. `damping` is the least share of an old message that is kept;
    it rises by itself when the residual stops falling.

    `starts` says where messages start, on graphs with cycles: a number counts uniform messages,
    then messages that settled at a low temperature, then random ones (by `seed`). A list holds
    starts of your own beside the uniform one: a state, such as `tz.ground_state(model).state`, or a
    probability vector per variable, such as `tz.mean_field(model).marginals`. Kept is the best
    proven lower bound where the model is attractive, else the largest estimate of those that
    converged. Where that one is unstable, messages start once more from beside it.
    """
    model = given_model(model, "bethe", only="FactorGraph")
    started = time.perf_counter()
    require_range("max_iterations", max_iterations, 1)
    require_range("tol", tol, 0.0)
    require_range("damping", damping, 0.0, 0.99)
    if not isinstance(starts, Iterable):
        starts = as_count(starts, "starts", 1)
    root = seed_sequence(seed)
    constraints = checked_parities(model, parities or ())
    observed = observe(model, single_states=False)
    free, numbers = observed.reduced, observed.kept
    constant, arrays = bethe_arrays(free, numbers, constraints)
    possible = constant > -np.inf and all(rows or not bit for rows, bit in constraints)
    run = Runs(model, numbers, constant, arrays, max_iterations, tol, damping, bool(constraints))
    best = run.of(start_state(arrays)) if possible else run.impossible()
    found = [best]
    if best.status is not BetheStatus.IMPOSSIBLE and not is_forest(arrays):
        rng = generator(root)
        for state in run.states(starts, rng):
            found.append(run.of(state))
            best = max(best, found[-1], key=Run.rank)
        best = run.tested(best, rng)
        if best.beside is not None:
            found.append(run.tested(run.of(best.beside), rng))
            best = max(best, found[-1], key=Run.rank)
    flat = None if best.status is BetheStatus.IMPOSSIBLE else _normalised(arrays, best.state)
    proven = best.verdict.lower > -np.inf or best.verdict.upper == -np.inf
    return BetheResult(
        log_z=best.log_z,
        proven=best.verdict.lower,
        status=best.status,
        iterations=best.iterations,
        residual=best.residual,
        log_zs=np.array([one.log_z if one.converged else math.nan for one in found]),
        growth=best.growth,
        marginals=_full_marginals(observed, flat),
        seconds=time.perf_counter() - started,
        provenance=provenance(
            root, model.digest, max_iterations=max_iterations, tol=tol, damping=damping,
            starts=len(found),
        ),
        rounding=best.verdict.rounding,
        evidence=best.evidence if proven else None,
        naming=model.naming,
        _factor_tables=partial(_factor_tables, model, free, arrays, best.state, flat),
    )  # fmt: skip


def _normalised(arrays: BetheArrays, state: BetheState) -> NDArray[np.float64]:
    """Single-variable marginals, flat."""
    starts, cards = arrays.var_ptr[:-1], np.diff(arrays.var_ptr)
    if not starts.size:
        return np.zeros(0)
    top = np.maximum.reduceat(state.beliefs, starts)
    weights = np.exp(state.beliefs - np.repeat(top, cards))
    return np.asarray(weights / np.repeat(np.add.reduceat(weights, starts), cards))


def _full_marginals(observed: Observed, flat: NDArray | None) -> list[NDArray[np.float64]]:
    """One vector per variable of the model, evidence included; uniform where Z = 0."""
    if flat is None:
        return [np.full(c, 1.0 / c) for c in observed.model.cardinalities.tolist()]
    return observed.lift_marginals(per_variable(flat, observed.reduced.cardinalities))


def _factor_tables(
    model: FactorGraph,
    free: FactorGraph,
    arrays: BetheArrays,
    state: BetheState,
    flat: NDArray | None,
) -> list[NDArray[np.float64]]:
    """Factor beliefs b_f ~ exp(table + sum of cavities), spread over the scopes of the model."""
    tables, slot = [], 0
    for (scope, full), (rest, logs) in zip(model.factors, free.factors, strict=True):
        if flat is None:
            tables.append(np.full(full.shape, 1.0 / full.size))
            continue
        belief = np.array(logs, dtype=np.float64)
        for axis, v in enumerate(rest):
            block = slice(arrays.var_ptr[v], arrays.var_ptr[v + 1])
            if len(rest) == 1:  # a unary factor is part of the prior
                belief = state.beliefs[block]
                continue
            sent = state.messages[arrays.message_ptr[slot] : arrays.message_ptr[slot + 1]]
            slot += 1
            shape = [1] * len(rest)
            shape[axis] = -1
            # The cavity of each variable: its belief without what this factor said itself.
            belief = belief + (state.beliefs[block] - sent).reshape(shape)
        belief = np.exp(belief - belief.max()) if belief.ndim else np.ones(())
        table = np.zeros(full.shape)
        table[tuple(model.evidence.get(v, slice(None)) for v in scope)] = belief / belief.sum()
        tables.append(table)
    return tables
