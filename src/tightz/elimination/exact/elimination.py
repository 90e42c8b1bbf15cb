"""Exact log Z and marginals of any discrete factor graph, by variable elimination."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.exact.choice import choose_plan
from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.run import Elimination
from tightz.elimination.exact.slices import MAX_WORK, Sliced, run_slices, slice_plan
from tightz.elimination.graph import interaction_graph, scopes_of
from tightz.errors import ModelError, ParameterError, ResourceError, UnsupportedModelError
from tightz.judge.claims import Audited, total_scale
from tightz.judge.verdict import UNIT
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_model
from tightz.models.observed import observe
from tightz.results import OneBound
from tightz.runtime.memory import format_bytes, parse_memory

NO_DIGITS = 0.01
"""Rounding of log Z, in nats, above which marginals are refused: states differ by less."""

_MAX_WIDTH = 60
_MAX_LOG2_COST = 100.0
_MAX_WEIGHT = 1e300  # nats; sums of tables must not overflow
_INSTEAD = (
    "tz.log_partition(model) gives an interval on log Z and tz.mean_field(model) a lower bound "
    "within any memory"
)


@dataclass(frozen=True, repr=False, eq=False)
class ExactResult(OneBound):
    """Exact log Z, and marginals that are computed on first use unless they were asked for.

    log Z of the tables as given lies within `rounding` nats of `log_z`: a proven bound on what the
    float64 sums can have lost (see `precision`). `plan` is the elimination that ran (of the model
    without observed and one-state variables); `sliced` are the variables whose states were looped
    over to save memory.
    """

    model: FactorGraph
    log_z: float
    rounding: float
    width: int
    seconds: float
    plan: EliminationPlan
    sliced: tuple[int, ...]
    max_memory: int
    _beliefs: Beliefs | None = field(default=None)

    @cached_property
    def _tables(self) -> Beliefs:
        # What writing log Z itself as one float costs says nothing about shares of Z.
        if self.rounding - UNIT * abs(self.log_z) > NO_DIGITS:
            raise ModelError(_no_digits(self.model, self.rounding))
        found = self._beliefs
        if found is None:
            known = None if self.sliced else self.plan
            found = exact(self.model, max_memory=self.max_memory, plan=known)._beliefs
        assert found is not None
        if self.log_z > -math.inf and any(np.isnan(p).any() for p in found.variables):
            raise ModelError(_no_digits(self.model, 16.0 * UNIT * total_scale(self.model)))
        return found

    @property
    def marginals(self) -> list[NDArray[np.float64]]:
        """One probability vector per variable, observed ones included; NaN where Z = 0."""
        return self._tables.variables

    def factor_marginal(self, f: int) -> NDArray[np.float64]:
        """Joint probabilities of factor `f`'s scope, shaped like its table."""
        if not 0 <= f < self.model.n_factors:
            raise ParameterError(
                f"factor {f} does not exist; the model has {self.model.n_factors} factors"
            )
        first, last = self.model.table_ptr[f : f + 2]
        return self._tables.factors[first:last].reshape(self.model.factor(f).log_table.shape)

    def pairwise(self, i: int, j: int) -> NDArray[np.float64]:
        """p(x_i, x_j), for two variables that share a factor or of which one is observed."""
        n = self.model.n_variables
        if not (0 <= i < n and 0 <= j < n and i != j):
            raise ParameterError(
                f"pair ({i}, {j}): expected two different variables of 0 to {n - 1}"
            )
        f = self._factor_of_pair.get((min(i, j), max(i, j)))
        if f is None:
            fixed = self.model.cardinalities == 1
            fixed[list(self.model.evidence)] = True
            if not (fixed[i] or fixed[j]):
                raise ParameterError(
                    f"no factor joins variables {i} and {j}; add one with a table of zeros (logs) "
                    "to the model to have their joint marginal"
                )
            return np.outer(self.marginals[i], self.marginals[j])
        scope = self.model.factor(f).scope
        drop = tuple(k for k, v in enumerate(scope) if v not in (i, j))
        joint = self.factor_marginal(f).sum(axis=drop)
        return joint if scope.index(i) < scope.index(j) else joint.T

    @cached_property
    def _factor_of_pair(self) -> dict[tuple[int, int], int]:
        """The smallest factor over each pair."""
        found: dict[tuple[int, int], int] = {}
        model = self.model
        for f in np.argsort(-np.diff(model.table_ptr), kind="stable").tolist():
            scope = sorted(model.scope_vars[model.scope_ptr[f] : model.scope_ptr[f + 1]].tolist())
            for k, a in enumerate(scope):
                for b in scope[k + 1 :]:
                    found[a, b] = f
        return found

    @property
    def bound(self) -> Bound:
        """This result as both ends of an interval."""
        return Bound(
            Side.BOTH,
            self.log_z,
            Proof.DETERMINISTIC,
            "exact",
            self.seconds,
            1.0,
            f"every state summed by variable elimination of width {self.width}, in float64",
            rounding=self.rounding,
            evidence=Audited(self.log_z, self.rounding),
        )

    @property
    def provenance(self) -> dict[str, Any]:
        """What ran: versions, parameters, the model's digest and the plan."""
        return {
            "method": "exact",
            "versions": {name: version(name) for name in ("tightz", "numpy", "numba")},
            "model": self.model.digest,
            "max_memory": self.max_memory,
            "heuristic": self.plan.heuristic,
            "order": self.plan.order.tolist(),
            "width": self.width,
            "sliced": self.sliced,
            "flops": self.plan.flops,
        }

    def __repr__(self) -> str:
        slices = f", {len(self.sliced)} variables sliced" if self.sliced else ""
        return (
            f"ExactResult(log_z={self.log_z:.10g}, width={self.width}, "
            f"seconds={self.seconds:.3g}{slices})"
        )


@dataclass(frozen=True, eq=False)
class Beliefs:
    """Marginals per variable, and per factor flat in the layout of model.log_tables."""

    variables: list[NDArray[np.float64]]
    factors: NDArray[np.float64]


def plan(model: FactorGraph, *, most_seconds: float = math.inf) -> EliminationPlan:
    """Order, width, operations and bytes of exact elimination; nothing large is allocated.

    Observed and one-state variables are taken out first: the plan numbers the others in order.
    A model too dense for any plan to make sense is refused with `ResourceError`. The search for
    an order takes at most about `most_seconds`, and rarely more than 2.
    """
    return _plan(*_without_fixed(model), "no memory is enough", most_seconds)


def exact(
    model: FactorGraph,
    *,
    max_memory: str | int = "8GB",
    marginals: bool = True,
    plan: EliminationPlan | None = None,
) -> ExactResult:
    """log Z and marginals of `model`, exact up to float64 rounding; zeros and evidence allowed.

    `max_memory` bounds the work space (tables of messages and beliefs; the model itself and the
    returned marginals come on top). Past it, a few variables are sliced: their states are looped
    over. Where that too is out of reach, `ResourceError` says what would be needed. With
    `marginals=False` they are computed when first asked for. `plan`: what `plan(model)` found, so
    that it need not be found again.
    """
    as_model(model, "exact", only="FactorGraph")
    allowed = parse_memory(max_memory)
    start = time.perf_counter()
    reduced, free = _without_fixed(model)
    _require_finite_sums(reduced)
    if plan is not None and not plan.is_of(reduced, free):
        raise ParameterError(
            f"{plan!r} is not of {model!r}: its variables, states or scopes differ; call exact "
            "without plan, or with what plan(model) returns for this model"
        )
    chosen = plan or _plan(reduced, free, f"max_memory allows {format_bytes(allowed)}")
    steps = chosen.marginal_schedule(allowed) if marginals else None
    sliced = Sliced((), reduced, chosen)
    if (steps is None) if marginals else (chosen.log_z_bytes > allowed):
        found = slice_plan(reduced, chosen, allowed, marginals=marginals)
        if found is None:
            raise ResourceError(_refusal(model, chosen, allowed, marginals=marginals))
        sliced = found
        log_z, rounding, singles, tables = run_slices(reduced, sliced, allowed, marginals=marginals)
    else:
        run = Elimination(reduced, chosen if marginals else chosen.in_place)
        run.run(steps if steps is not None else chosen.log_z_schedule())
        log_z, rounding = run.log_z, run.rounding
        singles, tables = run.marginals, run.factor_marginals
    beliefs = _in_model(model, free, log_z, singles, tables) if marginals else None
    return ExactResult(
        model=model,
        log_z=log_z,
        rounding=rounding,
        width=sliced.plan.width,
        seconds=time.perf_counter() - start,
        plan=sliced.plan,
        sliced=tuple(int(free[v]) for v in sliced.variables),
        max_memory=allowed,
        _beliefs=beliefs,
    )


def _no_digits(model: FactorGraph, rounding: float) -> str:
    return (
        f"marginals of {model!r} have no digits: log weights of this size round by "
        f"{rounding:.2g} nats. model.scale_warnings() names the entries; finite entries that stand "
        "for zeros become zeros by model.with_zeros()"
    )


def _require_finite_sums(model: FactorGraph) -> None:
    """Refuse tables whose sums could leave float64: a state would be lost without a trace."""
    logs = np.abs(model.log_tables)
    largest = float(logs[np.isfinite(logs)].max(initial=0.0))
    if largest * max(model.n_factors, 1) > _MAX_WEIGHT:
        raise UnsupportedModelError(
            f"a log table holds {largest:.3g} in absolute value; exact sums need entries below "
            f"{_MAX_WEIGHT:.0e} over all {model.n_factors} tables together (-inf is a zero)"
        )


def _without_fixed(model: FactorGraph) -> tuple[FactorGraph, NDArray[np.int64]]:
    """The model over variables that are neither observed nor of one state, and their numbers."""
    observed = observe(model)
    return observed.reduced, observed.kept


def _plan(
    reduced: FactorGraph,
    free: NDArray[np.int64],
    allowance: str,
    most_seconds: float = math.inf,
) -> EliminationPlan:
    """A plan, or a refusal where even the lower bound on its width is out of reach."""
    width = interaction_graph(scopes_of(reduced)).degeneracy()
    if width <= _MAX_WIDTH:
        found = choose_plan(reduced, free, most_seconds=most_seconds, log2_cap=_MAX_LOG2_COST)
        if found is not None:
            return found
        most = _MAX_LOG2_COST * math.log10(2.0)
        reason = f"visits more than 10^{most:.0f} table entries by every order tried"
    else:
        needed = format_bytes(8 * 2.0 ** min(width, 1000))
        reason = f"needs tables over {width} variables at once by any order, {needed} or more"
    raise ResourceError(f"exact elimination of {reduced!r} {reason}; {allowance}. {_INSTEAD}")


def _refusal(model: FactorGraph, chosen: EliminationPlan, allowed: int, *, marginals: bool) -> str:
    what, needed = "log Z", chosen.log_z_bytes
    if marginals and chosen.fits(allowed):
        what, needed = "marginals", chosen.marginal_bytes
    alone = "; log Z alone fits: marginals=False" if what == "marginals" else ""
    return (
        f"exact {what} of {model!r} needs {format_bytes(needed)} (width {chosen.width}, "
        f"{chosen.flops:.1e} operations, order by {chosen.heuristic}); max_memory allows "
        f"{format_bytes(allowed)}, and looping over slices would take more than "
        f"{MAX_WORK:.0e} operations{alone}. {_INSTEAD}"
    )


def _in_model(
    model: FactorGraph,
    free: NDArray[np.int64],
    log_z: float,
    singles: list[NDArray[np.float64]],
    tables: NDArray[np.float64],
) -> Beliefs:
    """Marginals of the reduced model put back into the original's numbering."""
    if log_z == -math.inf:
        singles = [np.full(model.cardinalities[v], np.nan) for v in free.tolist()]
    variables = observe(model).lift_marginals(singles)
    factors = np.zeros(model.log_tables.size)
    factors[table_positions(model)] = tables if log_z > -math.inf else np.nan
    return Beliefs(variables, factors)


def table_positions(model: FactorGraph) -> NDArray[np.int64]:
    """Where each table entry of the reduced model lies in model.log_tables."""
    numbered = FactorGraph.from_arrays(
        model.cardinalities,
        model.scope_ptr,
        model.scope_vars,
        model.table_ptr,
        np.arange(model.log_tables.size, dtype=np.float64),
        evidence=model.evidence,
    )
    return _without_fixed(numbered)[0].log_tables.astype(np.int64)
