"""The ways to sum a model exactly, what each would take, and which to go.

A way is planned before anything is allocated: it has a name, predicted `seconds` and `bytes`, and
`run` sums the model that it was made for (no observed variables, none of one state).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.choice import Spread, choose_plan
from tightz.elimination.exact.planning import PRODUCT, EliminationPlan
from tightz.elimination.exact.run import Elimination
from tightz.elimination.exact.slices import (
    MAX_SECONDS,
    SLICE_SECONDS,
    Sliced,
    run_slices,
    slice_plan,
)
from tightz.elimination.exact.tables import StoppedError
from tightz.elimination.graph import interaction_graph, scopes_of
from tightz.elimination.refused import Refused
from tightz.errors import ResourceError
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.backends import Backend, on_device
from tightz.runtime.memory import format_bytes

if TYPE_CHECKING:
    from tightz.elimination.clauses import CountingPlan
    from tightz.elimination.gpu import GpuPlan
    from tightz.elimination.planar import PlanarPlan

QUICK = 0.5
"""Seconds up to which elimination runs and nothing else is looked at."""

COUNT_FIRST = 5.0
"""Seconds from which on a model of clauses is counted before anything else is tried."""

LOGICAL = 0.5
"""Share of tables of zeros and one other number from which on counting is tried."""

LOOK = 0.1
"""Part of the time that the search for a plan, or a test of planarity, may take."""

LOGS = 12.0
"""Times as long as plain sums (12x12 triangular torus, J = -20 and -1: 19.6 and 1.6 s)."""

MARGINALS = 6.0
"""Marginals take up to this many times as long as log Z."""

_MAX_WIDTH = 60
_MAX_LOG2_COST = 100.0
_BETTER = 8.0  # log2 of what contraction trees may gain over the best order
INSTEAD = (
    "tz.log_partition(model) gives an interval on log Z and tz.mean_field(model) a lower bound "
    "within any memory"
)


class Summed(NamedTuple):
    """log Z within `rounding`; where known, marginals per variable, and per factor, flat.

    `bounded`: whether the rounding of either kind follows from that of log Z, as it does where all
    of them are sums of products of positive numbers.
    """

    log_z: float
    rounding: float
    singles: list[NDArray[np.float64]] | None = None
    tables: NDArray[np.float64] | None = None
    bounded: tuple[bool, bool] = (True, True)


class Way(Protocol):
    """A plan for an exact sum. `why` completes "every state summed, by ..."."""

    @property
    def name(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def bytes(self) -> int: ...
    def describe(self) -> str: ...
    def run(self, *, marginals: bool, time_limit: float, stop: Callable[[], bool]) -> Summed: ...


@dataclass(frozen=True, eq=False)
class ByElimination:
    """Bucket by bucket on the CPU; `sliced` variables are looped over."""

    model: FactorGraph
    max_memory: int
    slices: Sliced

    name = "elimination"

    @property
    def plan(self) -> EliminationPlan:
        return self.slices.plan

    @property
    def sliced(self) -> tuple[int, ...]:
        return self.slices.variables

    @property
    def why(self) -> str:
        return f"variable elimination of width {self.plan.width}, in float64"

    @property
    def seconds(self) -> float:
        return self.slices.slices * (self.plan.seconds + SLICE_SECONDS * bool(self.sliced))

    @property
    def bytes(self) -> int:
        return self.plan.log_z_bytes

    def describe(self) -> str:
        plan, count = self.plan, self.slices.slices
        loops = f", {count} slices over {len(self.sliced)} variables" if self.sliced else ""
        return (
            f"elimination of width {plan.width} ({plan.heuristic}), {count * plan.flops:.2g} "
            f"operations, {format_bytes(self.bytes)}{loops}, about {self.seconds:.2g} s"
        )

    def run(self, *, marginals: bool, time_limit: float, stop: Callable[[], bool]) -> Summed:
        steps = self.plan.marginal_schedule(self.max_memory) if marginals else None
        if self.sliced and (steps is not None or not marginals):
            found = run_slices(
                self.model, self.slices, self.max_memory, marginals=marginals, stop=stop
            )
            return Summed(*(found if marginals else found[:2]))
        if marginals and steps is None:  # only log Z fits as it is: marginals in (more) slices
            whole = choose_plan(self.model) if self.sliced else self.plan
            again = None
            if whole is not None:
                again = slice_plan(
                    self.model, whole, self.max_memory, marginals=True,
                    most_seconds=time_limit / MARGINALS,
                )  # fmt: skip
            if again is None:
                return self.run(marginals=False, time_limit=time_limit, stop=stop)
            return ByElimination(self.model, self.max_memory, again).run(
                marginals=True, time_limit=time_limit, stop=stop
            )
        run = Elimination(self.model, self.plan if steps is not None else self.plan.in_place)
        run.run(steps if steps is not None else self.plan.log_z_schedule(), stop)
        if steps is None:
            return Summed(run.log_z, run.rounding)
        return Summed(run.log_z, run.rounding, run.marginals, run.factor_marginals)


@dataclass(frozen=True, eq=False)
class OnDevice:
    """The same on a GPU; where its tables leave float64's range, on the CPU after all."""

    model: FactorGraph
    planned: EliminationPlan
    gpu: GpuPlan
    otherwise: ByElimination | None

    name = "elimination on a GPU"

    @property
    def plan(self) -> EliminationPlan:
        return self.gpu.plan

    @property
    def sliced(self) -> tuple[int, ...]:
        return self.gpu.sliced

    @property
    def why(self) -> str:
        return f"variable elimination of width {self.plan.width} on a GPU, in float64"

    @property
    def seconds(self) -> float:
        return self.gpu.seconds

    @property
    def bytes(self) -> int:
        return self.gpu.bytes

    def describe(self) -> str:
        return f"elimination on a GPU: {self.gpu.describe()}"

    def run(self, *, marginals: bool, time_limit: float, stop: Callable[[], bool]) -> Summed:
        from tightz.elimination.gpu import OutOfRangeError, device_bytes, gpu_plan

        planned: GpuPlan | Refused = self.gpu
        if marginals:
            planned = gpu_plan(
                self.model, self.planned, max_bytes=device_bytes(), marginals=True,
                most_seconds=time_limit, stop=stop,
            )  # fmt: skip
        if isinstance(planned, Refused):
            late = self.otherwise is not None and MARGINALS * self.otherwise.seconds > time_limit
            if self.otherwise is None or late:
                raise ResourceError(f"marginals on the GPU: {planned.reason}")
        else:
            try:
                found = planned.solve(stop=stop)
                return Summed(found.log_z, found.rounding, found.marginals, found.factor_marginals)
            except OutOfRangeError:
                if self.otherwise is None:
                    raise
        assert self.otherwise is not None
        return self.otherwise.run(marginals=marginals, time_limit=time_limit, stop=stop)


@dataclass(frozen=True, eq=False)
class ByPfaffians:
    """Planar spin models without fields."""

    planar: PlanarPlan

    name = "Pfaffians"

    @property
    def why(self) -> str:
        torus = len(self.planar.terms) > 1
        return "four Pfaffians of a torus" if torus else "a Pfaffian of the planar graph"

    @property
    def seconds(self) -> float:
        return self.planar.seconds

    @property
    def bytes(self) -> int:
        return self.planar.bytes

    def describe(self) -> str:
        return self.planar.describe()

    def run(self, *, marginals: bool, time_limit: float, stop: Callable[[], bool]) -> Summed:
        found = self.planar.solve(marginals=marginals, time_limit=time_limit, stop=stop)
        singles, tables = found.marginals, found.factor_marginals
        if singles is None or tables is None or any(np.isnan(p).any() for p in singles):
            return Summed(found.log_z, found.rounding)
        # Entries of an inverse: nothing bounds what is left of a rare state. Without fields a spin
        # is even by symmetry.
        bounded = not self.planar.graph.ghost, False
        return Summed(found.log_z, found.rounding, singles, tables, bounded)


@dataclass(frozen=True, eq=False)
class ByCounting:
    """Clauses and weights; how long the search takes is not known before.

    `otherwise` is the way to go once it has taken as long as that would.
    """

    counting: CountingPlan
    max_memory: int
    otherwise: Way | None = None

    name = "model counting"
    why = "counting the solutions of its clauses by search"
    seconds = math.nan

    @property
    def bytes(self) -> int:
        return self.max_memory

    def describe(self) -> str:
        return self.counting.describe()

    def run(self, *, marginals: bool, time_limit: float, stop: Callable[[], bool]) -> Summed:
        count = self.counting.start(max_memory=self.max_memory)
        limit = time_limit if self.otherwise is None else min(self.otherwise.seconds, time_limit)
        until = time.perf_counter() + limit
        while not count.advance(min(0.2, max(until - time.perf_counter(), 0.0))):
            if stop():
                raise StoppedError("the count was stopped before its end")
            if time.perf_counter() > until:
                if self.otherwise is not None:
                    return self.otherwise.run(
                        marginals=marginals, time_limit=time_limit - limit, stop=stop
                    )
                raise ResourceError(
                    f"{self.describe()}: not finished within time_limit={time_limit:g} s. {INSTEAD}"
                )
        singles = count.marginals() if marginals else None
        return Summed(count.log_z, count.rounding, singles)


def elimination_plan(
    reduced: FactorGraph,
    free: NDArray[np.int64] | None,
    allowance: str,
    most_seconds: float = math.inf,
    spread: Spread | None = None,
    *,
    time_limit: float = math.inf,
) -> EliminationPlan:
    """A plan, or `ResourceError` where even the lower bound on its width is out of reach.

    `time_limit`: seconds of the sum itself beyond which no plan is wanted.
    """
    log2_cap = min(_MAX_LOG2_COST, math.log2(max(time_limit, 0.01) / PRODUCT) + _BETTER)
    width = interaction_graph(scopes_of(reduced)).degeneracy()
    if width <= _MAX_WIDTH:
        found = choose_plan(
            reduced, free, most_seconds=most_seconds, log2_cap=log2_cap, spread=spread
        )
        if found is not None:
            return found
        most = log2_cap * math.log10(2.0)
        reason = f"visits more than 10^{most:.0f} table entries by every order tried"
    else:
        needed = format_bytes(8 * 2.0 ** min(width, 1000))
        reason = f"needs tables over {width} variables at once by any order, {needed} or more"
    raise ResourceError(f"exact elimination of {reduced!r} {reason}; {allowance}. {INSTEAD}")


def by_elimination(
    reduced: FactorGraph,
    plan: EliminationPlan,
    max_memory: int,
    *,
    marginals: bool,
    time_limit: float = math.inf,
    asked: FactorGraph | None = None,
) -> ByElimination:
    """Elimination as planned, in slices where memory is short; `ResourceError` where that is long.

    `asked`: the model to name in the error.
    """
    sliced = Sliced((), reduced, plan)
    if not plan.fits(max_memory, marginals=marginals):
        found = slice_plan(reduced, plan, max_memory, marginals=marginals, most_seconds=time_limit)
        if found is None:
            raise ResourceError(_refusal(asked or reduced, plan, max_memory, marginals=marginals))
        sliced = found
    return ByElimination(reduced, max_memory, sliced)


def choose_way(
    reduced: FactorGraph,
    free: NDArray[np.int64] | None,
    max_memory: int,
    *,
    marginals: bool,
    backend: Backend = "auto",
    time_limit: float = math.inf,
    asked: FactorGraph | None = None,
    plan: EliminationPlan | None = None,
    hopeless: bool = False,
    predicted: Callable[[Way], float] = lambda way: way.seconds,
) -> Way:
    """The way of least predicted time; counting where no other is within reach.

    `plan` is not looked for where it is given, or known to be `hopeless`. `predicted`: seconds of a
    way where more is known than it says itself. `ResourceError` where no way is left.
    """
    ways: list[Way] = []
    refusal = ResourceError(f"no exact way for {asked or reduced!r} is within reach. {INSTEAD}")
    try:
        if plan is None and not hopeless:
            allowance = f"max_memory allows {format_bytes(max_memory)}"
            if time_limit < math.inf:
                allowance += f", time_limit {time_limit:.3g} s"
            plan = elimination_plan(
                reduced, free, allowance, LOOK * time_limit, time_limit=time_limit
            )
        if (
            plan is not None
            and plan.seconds <= QUICK
            and backend != "cuda"
            and plan.fits(max_memory)
        ):
            quick = by_elimination(reduced, plan, max_memory, marginals=marginals, asked=asked)
            if predicted(quick) <= QUICK:
                return quick
    except ResourceError as error:
        refusal = error
    from tightz.elimination.clauses import CountingPlan, counting_plan
    from tightz.elimination.planar import PlanarPlan, planar_plan

    clauses = counting_plan(reduced)
    logical = isinstance(clauses, CountingPlan) and clauses.share >= LOGICAL
    planar = planar_plan(reduced, time_limit=LOOK * time_limit)
    if isinstance(planar, PlanarPlan) and planar.bytes <= max_memory:
        ways.append(ByPfaffians(planar))
    if plan is not None:
        cpu: ByElimination | None = None
        # A model of clauses is counted rather than sliced.
        # Where couplings are so cold that Pfaffians need balls, tables are summed by their logs.
        slow = LOGS if ways and isinstance(planar, PlanarPlan) and planar.bits else 1.0
        sooner = not ways or slow * plan.seconds < predicted(ways[0])
        if sooner and (not logical or plan.fits(max_memory)):
            try:
                cpu = by_elimination(
                    reduced, plan, max_memory, marginals=marginals, time_limit=time_limit,
                    asked=asked,
                )  # fmt: skip
                ways.append(cpu)
            except ResourceError as error:
                refusal = error
        device = _on_device(reduced, plan, backend, cpu)
        if device is not None:
            ways = [device] if backend == "cuda" else [*ways, device]
    best = min(ways, key=predicted, default=None)
    seconds = math.inf if best is None else predicted(best)
    if best is not None and seconds <= min(time_limit, COUNT_FIRST):
        return best
    if logical and isinstance(clauses, CountingPlan):
        late = seconds > time_limit
        return ByCounting(clauses, max_memory, None if late else best)
    if best is not None:
        if seconds <= time_limit:
            return best
        raise ResourceError(
            f"exact sum of {asked or reduced!r} would take longer than time_limit="
            f"{time_limit:g} s: {best.describe()}. {INSTEAD}"
        )
    raise refusal


def _on_device(
    reduced: FactorGraph, plan: EliminationPlan, backend: Backend, cpu: ByElimination | None
) -> OnDevice | None:
    """Elimination on a GPU where there is one; "cuda" insists on it."""
    from tightz.elimination.gpu import device_bytes, gpu_plan, why_no_elimination

    if not on_device(backend, why_no_elimination):
        return None
    found = gpu_plan(reduced, plan, max_bytes=device_bytes(), most_seconds=MAX_SECONDS)
    if isinstance(found, Refused):
        if backend == "cuda":
            raise ResourceError(f"elimination of {reduced!r} on the GPU: {found.reason}")
        return None
    return OnDevice(reduced, plan, found, cpu)


def _refusal(model: FactorGraph, chosen: EliminationPlan, allowed: int, *, marginals: bool) -> str:
    what, needed = "log Z", chosen.log_z_bytes
    if marginals and chosen.fits(allowed):
        what, needed = "marginals", chosen.marginal_bytes
    alone = "; log Z alone fits: marginals=False" if what == "marginals" else ""
    return (
        f"exact {what} of {model!r} needs {format_bytes(needed)} (width {chosen.width}, "
        f"{chosen.flops:.1e} operations, by {chosen.heuristic}); max_memory allows "
        f"{format_bytes(allowed)}, and looping over slices would take more than "
        f"{MAX_SECONDS:.0f} s{alone}. {INSTEAD}"
    )
