"""Belief propagation and the Bethe estimate of log Z, on any factor graph and under parities.

The estimate is exact on trees and otherwise carries no guarantee, converged or not. For
attractive binary pairwise models a lower bound is proven as well: the judge evaluates the Bethe
free energy at the beliefs, whatever they are (see `tightz.judge.attractive`).
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import require_range
from tightz.judge.attractive import AttractiveEvidence
from tightz.judge.verdict import Verdict
from tightz.models.factor_graph import FactorGraph
from tightz.models.given import GraphOrPath, given_model
from tightz.models.names import Names
from tightz.models.observed import Observed, observe, per_variable
from tightz.models.prepared import prepared
from tightz.propagation.arrays import (
    BetheArrays,
    BetheState,
    Parities,
    bethe_arrays,
    checked_parities,
    largest_entry,
    message_cap,
    start_state,
    widest_scope,
)
from tightz.propagation.kernels import bethe_log_z, propagate
from tightz.results import ByVariable, OneBound
from tightz.runtime.provenance import provenance

_SAFE = 1e290
"""Log potentials below this cannot overflow to -inf in sums and so feign a contradiction."""

_STALL = 50
"""Iterations in which the residual must fall by a tenth, or messages are damped more."""


class BetheStatus(enum.Enum):
    """How belief propagation ended; the value is the advice."""

    CONVERGED = "converged: messages changed by less than tol"
    NOT_CONVERGED = "not converged: raise max_iterations or damping; the estimate may be far off"
    IMPOSSIBLE = "Z = 0: the zero potentials contradict each other"


@dataclass(frozen=True, eq=False, repr=False)
class BetheResult(ByVariable, OneBound):
    """What belief propagation says about log Z.

    `log_z` is the Bethe estimate. `lower` (and `proven`) is a proven lower bound where the theorem
    for attractive models applies, `rounding` included, else -inf. `marginals` has one vector per
    variable, `factor_marginals` one table per factor, shaped by its scope. `residual` is the
    largest message change in the last sweep, relative to its size where that exceeds one.
    """

    log_z: float
    proven: float
    status: BetheStatus
    iterations: int
    residual: float
    marginals: list[NDArray[np.float64]]
    seconds: float
    provenance: dict[str, Any]
    rounding: float
    evidence: AttractiveEvidence | None
    naming: Names
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
        lines = [f"log Z ~ {self.log_z:.6f} (Bethe estimate, {self.iterations} iterations)"]
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
) -> BetheResult:
    """Belief propagation: the Bethe estimate of log Z, and marginals.

    `parities` lists constraints (variables, b): the binary states of `variables` sum to b modulo
    2. The estimate is then of log Z(A, b), the sum over the states that satisfy all of them.
    `damping` is the least share of an old message that is kept; it rises by itself when the
    residual stops falling.
    """
    model = given_model(model, "bethe", only="FactorGraph")
    started = time.perf_counter()
    require_range("max_iterations", max_iterations, 1)
    require_range("tol", tol, 0.0)
    require_range("damping", damping, 0.0, 0.99)
    constraints = checked_parities(model, parities or ())
    observed = observe(model, single_states=False)
    free, numbers = observed.reduced, observed.kept
    constant, arrays = bethe_arrays(free, numbers, constraints)
    state = start_state(arrays)
    possible = constant > -np.inf and all(rows or not bit for rows, bit in constraints)
    if arrays.unary.size:
        possible &= bool(np.logical_or.reduceat(state.alive, arrays.var_ptr[:-1]).all())
    iterations, residual, status = 0, 0.0, BetheStatus.IMPOSSIBLE
    if possible:
        iterations, residual, status = _run(arrays, state, max_iterations, tol, damping)
    log_z = -np.inf
    flat: NDArray[np.float64] | None = None
    if status is not BetheStatus.IMPOSSIBLE:
        log_z = constant + float(bethe_log_z(arrays, state, widest_scope(arrays)))
        flat = _normalised(arrays, state)
    # The lower bound for attractive models needs no convergence: the judge evaluates the free
    # energy at whatever beliefs came out, made exactly consistent. Under parities there is no such
    # theorem.
    evidence, verdict = None, Verdict()
    if not constraints:
        evidence = AttractiveEvidence(_full_beliefs(model, numbers, arrays, state))
        verdict = evidence.verdict(model)
    proven = verdict.lower > -np.inf or verdict.upper == -np.inf
    return BetheResult(
        log_z=log_z,
        proven=verdict.lower,
        status=status,
        iterations=iterations,
        residual=residual,
        marginals=_full_marginals(observed, flat),
        seconds=time.perf_counter() - started,
        provenance=provenance(
            None, model.digest, max_iterations=max_iterations, tol=tol, damping=damping
        ),
        rounding=verdict.rounding,
        evidence=evidence if proven else None,
        naming=model.naming,
        _factor_tables=partial(_factor_tables, model, free, arrays, state, flat),
    )


def _run(
    arrays: BetheArrays, state: BetheState, max_iterations: int, tol: float, damping: float
) -> tuple[int, float, BetheStatus]:
    """Sweep forth and back until messages rest; (iterations, residual, status)."""
    widest, cap = widest_scope(arrays), message_cap(arrays)
    keep, checkpoint, residual = damping, np.inf, np.inf
    for iteration in range(1, max_iterations + 1):
        residual, contradiction = propagate(arrays, state, keep, cap, widest, iteration % 2 == 0)
        # A state dies only where sums are -inf; with entries near overflow that may be rounding,
        # and then nothing is claimed.
        if contradiction:
            certain = largest_entry(arrays) < _SAFE and cap < _SAFE
            status = BetheStatus.IMPOSSIBLE if certain else BetheStatus.NOT_CONVERGED
            return iteration, float(residual), status
        if residual <= tol * (1.0 - keep):  # a damped step understates how far there is to go
            return iteration, float(residual), BetheStatus.CONVERGED
        # Messages that cycle: damp more, for good. Damping changes the way, not the fixed points.
        if iteration % _STALL == 0:
            if residual > 0.9 * checkpoint:
                keep = max(keep, min(0.9, 0.5 + 0.5 * keep))
            checkpoint = residual
    return max_iterations, float(residual), BetheStatus.NOT_CONVERGED


def _normalised(arrays: BetheArrays, state: BetheState) -> NDArray[np.float64]:
    """Single-variable marginals, flat."""
    starts, cards = arrays.var_ptr[:-1], np.diff(arrays.var_ptr)
    if not starts.size:
        return np.zeros(0)
    top = np.maximum.reduceat(state.beliefs, starts)
    weights = np.exp(state.beliefs - np.repeat(top, cards))
    return np.asarray(weights / np.repeat(np.add.reduceat(weights, starts), cards))


def _full_beliefs(
    model: FactorGraph, numbers: NDArray, arrays: BetheArrays, state: BetheState
) -> NDArray[np.float64]:
    """Log beliefs over all states of the model; zero where evidence leaves nothing to say."""
    blocks = [np.zeros(c) for c in model.cardinalities.tolist()]
    for k, v in enumerate(numbers.tolist()):
        blocks[v] = state.beliefs[arrays.var_ptr[k] : arrays.var_ptr[k + 1]].copy()
    return np.concatenate(blocks) if blocks else np.zeros(0)


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
