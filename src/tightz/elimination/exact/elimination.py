"""Exact log Z and marginals of any discrete factor graph, by the way that takes least time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.exact.choice import Spread
from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.tables import StoppedError
from tightz.elimination.exact.ways import (
    INSTEAD,
    Summed,
    Way,
    by_elimination,
    choose_way,
    elimination_plan,
)
from tightz.errors import ModelError, ParameterError, ResourceError, UnsupportedModelError
from tightz.judge.claims import Audited, total_scale
from tightz.judge.verdict import UNIT
from tightz.models.ends import DIGITS, Ends, around, joint, unknown
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.evidence import Evidence, given
from tightz.models.given import GraphOrPath, given_model
from tightz.models.names import Names
from tightz.models.observed import observe
from tightz.models.pair_marginals import PairMarginal
from tightz.models.prepared import prepared
from tightz.results import ByVariable, OneBound
from tightz.runtime.backends import Backend
from tightz.runtime.clock import Clock
from tightz.runtime.memory import MAX_MEMORY, parse_memory
from tightz.shown import ASIDE, Members

NO_DIGITS = 0.01
"""Rounding of log Z, in nats, above which marginals are refused: states differ by less."""


@dataclass(frozen=True, repr=False, eq=False)
class ExactResult(ByVariable, OneBound):
    """Exact log Z, and marginals that are computed on first use unless they were asked for.

    log Z of the tables as given lies within `rounding` nats of `log_z`: a proven bound on what the
    float64 sums can have lost. `method` says how it was summed, `way.describe()` at what cost.
    """

    model: FactorGraph = field(metadata=ASIDE)
    log_z: float
    rounding: float
    seconds: float
    way: Way = field(metadata=ASIDE)
    max_memory: int
    _beliefs: Beliefs | None = field(default=None)

    @property
    def naming(self) -> Names:
        return self.model.naming

    def members(self) -> Members:
        told = super().members()
        known = "_tables" in vars(self)
        if self._beliefs is not None:
            try:
                known = self._tables is not None
            except ModelError:  # no digits
                known = False
        told["marginals"] = self.naming.by_variable(self.marginals) if known else None
        told["marginal_bounds"] = self.naming.by_variable(self.marginal_bounds) if known else None
        return Members({**told, "method": self.method, "how": self.way.describe()})

    @property
    def method(self) -> str:
        """ "elimination", "elimination on a GPU", "Pfaffians" or "model counting"."""
        return self.way.name

    @property
    def plan(self) -> EliminationPlan | None:
        """The elimination that ran; None where another method did."""
        return getattr(self.way, "plan", None)

    @property
    def width(self) -> int | None:
        """Of that elimination: one less than the most variables that met in one product."""
        return None if self.plan is None else self.plan.width

    @property
    def sliced(self) -> tuple[int, ...]:
        """Variables whose states were looped over to save memory."""
        return getattr(self.way, "sliced", ())

    @cached_property
    def _tables(self) -> Beliefs:
        return self._summed(Clock())

    def _ready(self, clock: Clock) -> None:
        """Have the marginals before the clock expires; `ResourceError` where that fails."""
        if "_tables" in vars(self):
            return
        try:
            vars(self)["_tables"] = self._summed(clock)
        except StoppedError:
            raise ResourceError(_unfinished(self.model, self.way, clock.limit)) from None

    def _summed(self, clock: Clock) -> Beliefs:
        # What writing log Z itself as one float costs says nothing about shares of Z.
        if self.rounding - UNIT * abs(self.log_z) > NO_DIGITS:
            raise ModelError(_no_digits(self.model, self.rounding))
        found = self._beliefs
        if found is None:
            found = solve(
                self.model, self.way, max_memory=self.max_memory, time_limit=clock.left,
                stop=lambda: clock.expired,
            )._beliefs  # fmt: skip
        if found is None:
            raise UnsupportedModelError(
                f"{self.method} gave log Z of {self.model!r} but not its marginals; "
                "tz.log_partition(model) estimates them"
            )
        if self.log_z > -math.inf and any(np.isnan(p).any() for p in found.variables):
            raise ModelError(_no_digits(self.model, 16.0 * UNIT * total_scale(self.model)))
        return found

    @property
    def has_marginals(self) -> bool:
        """Whether they are there; else they are computed when first asked for."""
        return self._beliefs is not None

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
        tables = self._tables.factors
        if tables is None:
            raise UnsupportedModelError(
                f"{self.method} gives marginals of single variables only, not of factor {f}"
            )
        return tables[first:last].reshape(self.model.factor(f).log_table.shape)

    def mean_of(self, tables: NDArray[np.float64]) -> float:
        """The mean of a sum of one entry from each factor's table, laid out as model.log_tables.

        Entries of probability 0 do not count, so that they may be infinite.
        """
        shares = self._tables.factors
        if shares is None:
            raise UnsupportedModelError(
                f"{self.method} gives marginals of single variables only, not of factors"
            )
        some = shares > 0.0
        return math.fsum((shares[some] * tables[some]).tolist())

    @property
    def marginal_rounding(self) -> float:
        """Nats by which a marginal may be off.

        Sums and products of positive numbers, forward and back: each of the two passes loses no
        more than the sum itself may, and beliefs are products of both. inf where marginals were
        found in another way.
        """
        return 8.0 * self.rounding if self._tables.bounded[0] else math.inf

    @property
    def marginal_bounds(self) -> list[NDArray[np.float64]]:
        """One (states, 2) array per variable: ends that hold always, apart by rounding only."""
        if self.log_z == -math.inf:
            return unknown(self.model.cardinalities)
        return [around(p, self.marginal_rounding) for p in self.marginals]

    def _marginal_ends(self) -> tuple[Ends, Ends]:
        ends = self.marginal_bounds
        return ends, ends

    def _pair(self, i: int, j: int, *, time_limit: float = math.inf) -> PairMarginal:
        """From a factor over both where there is one; else from sums with i or j fixed.

        What is summed for one variable serves all its pairs. `ResourceError` where all this is
        predicted, or turns out, to take longer than `time_limit` seconds.
        """
        clock = Clock(time_limit)
        cards = self.model.cardinalities
        if self.log_z == -math.inf:
            table = np.full((int(cards[i]), int(cards[j])), np.nan)
            return self._told(i, j, table, np.tile([0.0, 1.0], (*table.shape, 1)))
        near = (min(i, j), max(i, j)) in self._factor_of_pair
        if i == j or self._fixed[i] or self._fixed[j] or near:
            self._ready(clock)
        if i == j:
            table, rounding = np.diag(self.marginals[i]), self.marginal_rounding
        elif self._fixed[i] or self._fixed[j]:
            table = np.outer(self.marginals[i], self.marginals[j])
            rounding = 2.0 * self.marginal_rounding
        elif (f := self._factor_of(i, j)) is not None:
            scope = self.model.factor(f).scope
            drop = tuple(k for k, v in enumerate(scope) if v not in (i, j))
            table = self.factor_marginal(f).sum(axis=drop)
            table = table if scope.index(i) < scope.index(j) else table.T
            if not self._tables.bounded[1]:
                return self._told(i, j, table, self._ends_of_pair(i, j, clock))
            rounding = self.marginal_rounding
        elif i in self._given or (j not in self._given and cards[i] <= cards[j]):
            table, rounding = self._clamped(i, j, clock)
        else:
            table, rounding = self._clamped(j, i, clock)
            table = table.T
        return self._told(i, j, table, around(table, rounding))

    def _told(
        self, i: int, j: int, table: NDArray[np.float64], ends: NDArray[np.float64]
    ) -> PairMarginal:
        return PairMarginal.within(
            (i, j), table, ends, ends, effective=math.inf, source="exact", naming=self.naming
        )

    def _ends_of_pair(self, i: int, j: int, clock: Clock) -> NDArray[np.float64]:
        """From sums with both fixed, whose rounding is known; from both marginals if that is long.

        For beliefs without a rounding of their own. Next to each other, both leave a planar graph
        with fields around one face.
        """
        states = [(s, t) for s in range(int(self.model.cardinalities[i]))
                  for t in range(int(self.model.cardinalities[j]))]  # fmt: skip
        try:
            parts = [
                exact(
                    self.model.with_evidence({i: s, j: t}), marginals=False,
                    max_memory=self.max_memory, time_limit=clock.left / (len(states) - k),
                )
                for k, (s, t) in enumerate(states)
            ]  # fmt: skip
        except (ResourceError, UnsupportedModelError):
            ends = self.marginal_bounds
            return joint(ends[i], ends[j])
        logs = np.array([part.log_z for part in parts]).reshape(self.model.cardinalities[[i, j]])
        shares = np.exp(logs - logs.max())
        rounding = 2.0 * max(part.rounding for part in parts if part.log_z > -math.inf)
        return around(shares / shares.sum(), rounding + 2.0 * DIGITS)

    def _factor_of(self, i: int, j: int) -> int | None:
        """The smallest factor over a pair, where its belief is known."""
        f = self._factor_of_pair.get((min(i, j), max(i, j)))
        return None if f is None or self._tables.factors is None else f

    def _clamped(self, i: int, j: int, clock: Clock) -> tuple[NDArray[np.float64], float]:
        """p(x_i, x_j) and its rounding: p(x_j | x_i = s) times the part of Z with x_i = s."""
        if i not in self._given:
            count = int(self.model.cardinalities[i])
            self._given[i] = [
                exact(
                    self.model.with_evidence({i: s}),
                    max_memory=self.max_memory,
                    time_limit=clock.left / (count - s),
                )
                for s in range(count)
            ]
        parts = self._given[i]
        logs = np.array([part.log_z for part in parts])
        shares = np.exp(logs - logs.max())
        rows = [
            share * part.marginals[j] if share > 0.0 else np.zeros(self.model.cardinalities[j])
            for share, part in zip(shares / shares.sum(), parts, strict=True)
        ]
        alive = [part for part in parts if part.log_z > -math.inf]
        # of the conditional, of its own sum and of that of all
        rounding = max(part.marginal_rounding + 2.0 * part.rounding for part in alive)
        return np.stack(rows), rounding + 2.0 * DIGITS

    @cached_property
    def _given(self) -> dict[int, list[ExactResult]]:
        """The model with a variable in each of its states, where that was asked for."""
        return {}

    @cached_property
    def _fixed(self) -> NDArray[np.bool_]:
        fixed: NDArray[np.bool_] = self.model.cardinalities == 1
        fixed[list(self.model.evidence)] = True
        return fixed

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
            f"every state summed, by {self.way.why}",
            rounding=self.rounding,
            evidence=Audited(self.log_z, self.rounding),
        )

    @property
    def provenance(self) -> dict[str, Any]:
        """What ran: versions, parameters, the model's digest and the plan."""
        return {
            "method": f"exact, {self.method}",
            "versions": {name: version(name) for name in ("tightz", "numpy", "numba")},
            "model": self.model.digest,
            "max_memory": self.max_memory,
            "how": self.way.describe(),
            "order": None if self.plan is None else self.plan.order.tolist(),
            "width": self.width,
            "sliced": self.sliced,
        }

    def __repr__(self) -> str:
        width = "" if self.width is None else f" of width {self.width}"
        slices = f", {len(self.sliced)} variables sliced" if self.sliced else ""
        return (
            f"ExactResult(log_z={self.log_z:.10g}, by {self.method}{width}, "
            f"seconds={self.seconds:.3g}{slices})"
        )


@dataclass(frozen=True, eq=False)
class Beliefs:
    """Marginals per variable and, where known, per factor, flat like model.log_tables.

    `bounded`: of either kind, as in `Summed`.
    """

    variables: list[NDArray[np.float64]]
    factors: NDArray[np.float64] | None
    bounded: tuple[bool, bool] = (True, True)


def plan(
    model: FactorGraph, *, most_seconds: float = math.inf, spread: Spread | None = None
) -> EliminationPlan:
    """Order or tree, width, operations and bytes of exact elimination; nothing large is allocated.

    Observed and one-state variables are taken out first: the plan numbers the others in order.
    A model too dense for any plan to make sense is refused with `ResourceError`. The search for
    a plan takes at most about `most_seconds`, and a small part of what the sum itself would;
    `spread` does parts of it at the same time.
    """
    return elimination_plan(*_without_fixed(model), "no memory is enough", most_seconds, spread)


@prepared("exact")
def exact(
    model: GraphOrPath,
    *,
    evidence: Evidence | None = None,
    max_memory: str | int = MAX_MEMORY,
    marginals: bool = True,
    backend: Backend = "auto",
    time_limit: float = math.inf,
    plan: EliminationPlan | None = None,
) -> ExactResult:
    """log Z and marginals of `model`, exact up to float64 rounding; zeros and evidence allowed.

    The way is chosen by predicted time: elimination by an order or a contraction tree, on the CPU
    or (`backend`) a GPU, sliced over a few variables where memory is short; Pfaffians for planar
    spin models without fields; model counting where zeros make elimination unnecessary and tables
    would be too large. `max_memory` bounds the work space (the model itself and the returned
    marginals come on top). `evidence` ({variable: state} by name or number, or a file) is beside
    what the model has observed. Where every way is out of reach, `ResourceError` says what would be
    needed; also where all are predicted, or turn out, to take longer than `time_limit` seconds.
    With `marginals=False` they are computed when first asked for. `plan`: what `plan(model)` found,
    so that it need not be found again: elimination on the CPU then.
    """
    clock = Clock(time_limit)
    model = given_model(model, "exact", only="FactorGraph")
    model = given(model, evidence)
    allowed = parse_memory(max_memory)
    if plan is not None:
        reduced, free = _without_fixed(model)
        if not plan.is_of(reduced, free):
            raise ParameterError(
                f"{plan!r} is not of {model!r}: its variables, states or scopes differ; call exact "
                "without plan, or with what plan(model) returns for this model"
            )
        way: Way = by_elimination(reduced, plan, allowed, marginals=marginals, asked=model)
    else:
        way = exact_way(
            model, max_memory=allowed, marginals=marginals, backend=backend, time_limit=time_limit
        )
    try:
        result = solve(
            model, way, max_memory=allowed, marginals=marginals, time_limit=clock.left,
            stop=lambda: clock.expired,
        )  # fmt: skip
    except StoppedError:
        raise ResourceError(_unfinished(model, way, time_limit)) from None
    return replace(result, seconds=clock.elapsed)


def exact_way(
    model: FactorGraph,
    *,
    max_memory: str | int = MAX_MEMORY,
    marginals: bool = True,
    backend: Backend = "auto",
    time_limit: float = math.inf,
) -> Way:
    """The way that `exact` goes with the same arguments; `ResourceError` where there is none."""
    reduced, free = _without_fixed(model)
    return choose_way(
        reduced, free, parse_memory(max_memory), marginals=marginals, backend=backend,
        time_limit=time_limit, asked=model,
    )  # fmt: skip


def solve(
    model: FactorGraph,
    way: Way,
    *,
    max_memory: int,
    marginals: bool = True,
    time_limit: float = math.inf,
    stop: Callable[[], bool] = bool,
) -> ExactResult:
    """Sum `model` by a way that was chosen for it; `StoppedError` once `stop()` says so."""
    start = time.perf_counter()
    found = way.run(marginals=marginals, time_limit=time_limit, stop=stop)
    free = observe(model).kept
    beliefs = None
    if found.singles is not None:
        beliefs = _in_model(model, free, found)
    seconds = time.perf_counter() - start
    return ExactResult(model, found.log_z, found.rounding, seconds, way, max_memory, beliefs)


def _unfinished(model: FactorGraph, way: Way, time_limit: float) -> str:
    return (
        f"exact sum of {model!r} is not finished within time_limit={time_limit:g} s: "
        f"{way.describe()}. {INSTEAD}"
    )


def _no_digits(model: FactorGraph, rounding: float) -> str:
    return (
        f"marginals of {model!r} have no digits: log weights of this size round by "
        f"{rounding:.2g} nats. model.scale_warnings() names the entries; finite entries that stand "
        "for zeros become zeros by model.with_zeros()"
    )


def _without_fixed(model: FactorGraph) -> tuple[FactorGraph, NDArray[np.int64]]:
    """The model over variables that are neither observed nor of one state, and their numbers."""
    observed = observe(model)
    return observed.reduced, observed.kept


def _in_model(model: FactorGraph, free: NDArray[np.int64], found: Summed) -> Beliefs:
    """Marginals of the reduced model put back into the original's numbering."""
    assert found.singles is not None
    singles, possible = found.singles, found.log_z > -math.inf
    if not possible:
        singles = [np.full(model.cardinalities[v], np.nan) for v in free.tolist()]
    variables, factors = observe(model).lift_marginals(singles), None
    if found.tables is not None:
        factors = np.zeros(model.log_tables.size)
        factors[table_positions(model)] = found.tables if possible else np.nan
    return Beliefs(variables, factors, found.bounded)


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
