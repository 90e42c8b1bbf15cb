"""The exact answer, by whatever way reaches it in the memory and time that there is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace

from tightz.bounds import Bound
from tightz.elimination.exact import plan
from tightz.elimination.exact.elimination import ExactResult, solve
from tightz.elimination.exact.tables import StoppedError
from tightz.elimination.exact.ways import (
    MARGINALS,
    ByCounting,
    ByElimination,
    Way,
    by_elimination,
)
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.models.observed import observe
from tightz.runtime.clock import Clock
from tightz.workspace.findings import Finding, Marginals, Mixing, exact_marginals
from tightz.workspace.working import PLAN_SHARE, Working

LONG, SHARE = 2.0, 0.35
"""Seconds, and part of the time left, beyond which other streams start beside an exact sum."""

HALF = 0.5
"""Part of the time left after which they start in any case."""

MOST = 0.7
"""Part of the time left that an exact sum may be predicted to take."""

_STEP = 0.5  # seconds of counting between two looks at the race

LATE = "log Z is exact; the sums for exact marginals do not fit into the time or memory left"

SAYING = 0.03
"""Part of the time left that an exact log Z keeps to say that its marginals were given up."""

COUNTING = 0.5
"""Part of all workers' time for counting, whose only gain comes at its end."""


def exactly(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """log Z exactly if that is predicted to take most of the time left at most, then marginals."""
    way = working.way if working.exact else None
    if isinstance(way, ByCounting):
        way = way.otherwise  # the count is a stream of its own
    shared = working.shared
    if way is None or shared.predicted(way) > MOST * clock.left:
        return
    start = clock.elapsed
    try:
        result = _solve(working, way, clock)
    except StoppedError:
        shared.gave_up(way, clock.elapsed - start)
        return
    except (ResourceError, UnsupportedModelError) as error:
        # weights beyond what exact sums can carry, or a device that lacks memory after all
        shared.gave_up(way, clock.elapsed - start)
        yield Finding(note=str(error))
        return
    shared.took(way, result.seconds)
    yield result.bound
    if result.log_z == -math.inf or not working.marginals:
        return
    known = late = False
    # than predicted, and so it will be again; a second may have gone into loading kernels
    slower = max(1.0, result.seconds / max(1.0, way.seconds))
    try:
        late = MARGINALS * result.seconds > clock.left
        whole = None if late else _solve(working, way, clock, marginals=True, slower=slower)
    except (StoppedError, ResourceError):
        whole, late = None, True
    if whole is not None and whole.has_marginals:
        for found in exact_marginals(whole):
            known = known or found.marginals is not None
            yield found
    if known:
        yield from barren_marginals(working, clock)
        return
    if late:
        yield Finding(note=LATE)
    yield from _other_marginals(working, way, clock)


def _solve(
    working: Working, way: Way, clock: Clock, *, marginals: bool = False, slower: float = 1.0
) -> ExactResult:
    """Marginals are given up in time to say so."""
    least = SAYING * clock.left if marginals else 0.0
    return solve(
        working.graph, way, max_memory=working.max_memory, marginals=marginals,
        time_limit=clock.left / slower, stop=lambda: clock.left <= least,
    )  # fmt: skip


def alone(clock: Clock) -> float:
    """Seconds that an exact sum may take before the other streams start beside it."""
    return min(HALF * clock.left, max(LONG, SHARE * clock.left))


def takes_long(working: Working, clock: Clock) -> bool:
    """Whether the other streams should not wait for the exact sum, or there is none."""
    way = working.way if working.exact else None
    return way is None or not working.shared.predicted(way) <= alone(clock)


def counting(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """Model counting, where no other way is within reach."""
    # Tables without zeros are never counted; the way to sum them may take seconds to choose.
    way = working.way if working.exact and working.graph.has_zeros else None
    if not isinstance(way, ByCounting):
        return
    count = way.counting.start(max_memory=working.max_memory // 4)
    while not count.advance(min(_STEP, clock.left)):
        if clock.expired:
            return
        yield Finding()
    result = ExactResult(
        working.graph, count.log_z, count.rounding, clock.elapsed, way, working.max_memory
    )
    yield result.bound
    wanted = working.marginals and count.log_z > -math.inf
    singles = count.marginals() if wanted else None
    if singles is not None:
        rounding = 8.0 * count.rounding
        yield Finding(marginals=Marginals(singles, "exact", math.inf, Mixing.EXACT, rounding))


def _other_marginals(working: Working, known: Way, clock: Clock) -> Iterator[Finding | Bound]:
    """Where the way that gave log Z gives no marginals: elimination's, or those of mean field."""
    plan = working.plan
    if plan is not None and not isinstance(known, ByElimination):
        fits = plan.fits(working.max_memory, marginals=True)
        if fits and MARGINALS * plan.seconds < MOST * clock.left:
            reduced = observe(working.graph).reduced
            way = by_elimination(reduced, plan, working.max_memory, marginals=True)
            memory = working.max_memory
            with contextlib.suppress(StoppedError):
                result = solve(working.graph, way, max_memory=memory, stop=lambda: clock.expired)
                yield from exact_marginals(result)
            return
    from tightz.interval.streams.spins import plain_mean_field

    yield from plain_mean_field(working, clock)


def barren_marginals(working: Working, clock: Clock) -> Iterator[Finding]:
    """Exact marginals of barren variables with several parents need the model with them in it."""
    wanted = working.exact and working.marginals and not working.reduction.contradiction
    full = working.with_barren if wanted else None
    if full is None:
        return
    try:
        seconds = PLAN_SHARE * clock.left
        planned = plan(full.reduced, most_seconds=seconds)
        way = by_elimination(full.reduced, planned, working.max_memory, marginals=True)
    except ResourceError:
        return
    if MARGINALS * way.seconds < MOST * clock.left:
        try:
            result = solve(
                full.reduced, way, max_memory=working.max_memory, stop=lambda: clock.expired
            )
        except StoppedError:
            return
        for found in exact_marginals(result):
            if found.marginals is not None:
                vectors = full.lift_marginals(found.marginals.vectors)
                lifted = replace(found.marginals, vectors=vectors)
                yield Finding(marginals=lifted.rounded(8.0 * full.rounding), of_model=True)
