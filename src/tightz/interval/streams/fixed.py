"""Ends of log Z with each variable fixed, for marginals that hold always: mini-buckets, both sides.

A fixed state costs its way up the clique tree, all of them a hundred passes or more: far more than
the descent that makes a bound. So this stream has tables of its own, as large as its part of the
time allows for the ways, and not those of the bounds on log Z, which are larger.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Side
from tightz.errors import ResourceError
from tightz.judge.clamps import ClampedCliques
from tightz.runtime.clock import Clock
from tightz.sampling.capped.forecast import HORIZON
from tightz.sampling.capped.tightening import DENSE, MANY
from tightz.uppers.mini_bucket.partition import Partition, partition
from tightz.uppers.mini_bucket.run import MAX_IBOUND, MiniBucket, Run, Tried, cutting, wider
from tightz.workspace.findings import Clamped, Finding
from tightz.workspace.working import Handout, Working

SHARE = 0.2
"""Part of the workers' time that all of it may take."""

ROUGH, SET = 0.03, 0.12
"""Parts of that for a set of ends: the first of each side, and every further one. Several sets from
different orders are worth more than one from larger tables, since each is loose where it was cut
(20x20 grid, w = 1, mean width: 0.030 from three of ibound 11, 0.040 from one of ibound 15 in four
times as long); but not many from small ones (see `ORDERS`)."""

LEAST = 3.0
"""Times what visits alone take that each of the first sets may take even where its part is less: a
set from small tables is far better than none, and what comes later is less for it."""

LOOK = 0.25
"""Part of all its time that looking for the orders of one set may take."""

LOOKING = 2e-5
"""Seconds a factor until one order is found and its cost is known."""

FIRST = 6
"""The ibound from which on tables that are as large as the time allows are looked for."""

ORDERS = 8
"""Elimination orders that are compared: where cuts fall matters as much as how large tables are.
20x20 grids, w = 1 and 3, mean widths after some 10 s of work: 0.024 and 0.028; with 16 orders and
half the time for a set, 0.033 and 0.034; with 4 and half the time, 0.032 and 0.045."""

DESCENT = 0.5
"""Part of a stage for the descent, at most; the ways up have the rest."""

BESIDE = 0.4
"""Part of the workers' time until the deadline that may be expected for one set of ends."""

PACE, VISIT = 2e-8, 1e4
"""Seconds for each entry of a table on a way up, until it is measured; and how many of them a
clique's visit takes besides."""


class Lot(NamedTuple):
    """Variables to fix; the judge is told apart, so that it is one object for all of them."""

    judge: ClampedCliques
    variables: list[int]


def fixed_states(working: Working, clock: Clock) -> Iterator[Finding | Bound | Handout]:
    """Ends with each variable fixed: rough ones, better ones, then from further orders."""
    graph = working.graph
    if not working.marginals or not graph.n_variables:
        return
    if graph.n_factors > max(MANY, DENSE * graph.n_variables):
        return
    ways = Ways(working, clock)
    if LOOKING * graph.n_factors > LOOK * ways.whole:
        return
    sides = (Side.UPPER,) if graph.has_zeros else (Side.UPPER, Side.LOWER)
    for number in itertools.count():
        part = ROUGH if number < len(sides) else SET
        seconds = part * ways.whole
        if number < len(sides):
            visits = PACE * VISIT * graph.n_variables / (1.0 - DESCENT)
            seconds = max(LEAST * visits, seconds)
        seconds = min(seconds, ways.left)
        run = ways.largest(sides[number % len(sides)], number // len(sides), seconds)
        if run is None:
            return
        yield from ways.descent(run, DESCENT * seconds)
        if clock.expired:
            return
        yield run.judged()
        yield from ways.ends(run)


class Ways:
    """What the ways up cost, and what they may."""

    def __init__(self, working: Working, clock: Clock) -> None:
        self.working, self.clock = working, clock
        self.pace, self.spent = PACE, 0.0
        self.ibound = wider(working.graph, FIRST - 1)[0]

    @property
    def whole(self) -> float:
        """Seconds of workers that the stream may take in all."""
        time_limit = self.clock.spent + min(self.clock.left, HORIZON)
        return SHARE * self.working.threads * time_limit

    @property
    def left(self) -> float:
        """Of them, and not beyond the deadline: others are at work as well."""
        ahead = self.working.threads * min(self.clock.left, HORIZON)
        return min(self.whole - self.spent, BESIDE * ahead)

    def largest(self, side: Side, number: int, seconds: float) -> Run | None:
        """Mini-buckets with tables as large as the time allows; None where none are so small.

        number: whose orders they are; those whose ways would take too long are left out.
        """
        graph, allowed = self.working.graph, (1.0 - DESCENT) * seconds
        if allowed <= 0.0:
            return None
        begun, ibound, larger = time.thread_time(), self.ibound, self.ibound

        def over() -> bool:
            """Of a large model a single order takes seconds, and here dozens are tried."""
            return self.clock.expired or time.thread_time() - begun > LOOK * self.whole

        while larger <= MAX_IBOUND and not over():
            if self._cost(self._order(larger, 0), larger) > allowed:
                break
            ibound, larger = larger, wider(graph, larger)[0]
        self.ibound = ibound
        while ibound > 0:
            tried = []
            for k in range(ORDERS * number, ORDERS * (number + 1)):
                if over():
                    break
                order = self._order(ibound, k)
                if self._cost(order, ibound) <= allowed:
                    tried.append(order)
            run = self._run(side, ibound, tried) if tried else None
            if run is not None or over():
                return run
            ibound -= 1
        return None

    def _order(self, ibound: int, number: int) -> Tried:
        return cutting(self.working.orders, ibound, [number])[0]

    def _cost(self, tried: Tried, ibound: int) -> float:
        return self.pace * _work(partition(self.working.orders.model, tried.order, ibound))

    def _run(self, side: Side, ibound: int, tried: list[Tried]) -> Run | None:
        """None where the tables do not fit, or are exact: others do that."""
        memory = self.working.max_memory // 8
        config = MiniBucket(ibound, iterations=10**6, side=side, max_memory=memory)
        try:
            run = Run(self.working.orders, config, time.perf_counter(), tried)
        except ResourceError:
            return None
        return None if run.candidates[0][1].exact else run

    def descent(self, run: Run, seconds: float) -> Iterator[Finding]:
        """Until little is gained, or so many seconds of work are over."""
        work, on = 0.0, True
        while on and work < seconds:
            begun = time.thread_time()
            on = next(run.steps, None) is not None
            work += time.thread_time() - begun
            yield Finding()
        self.spent += work

    def ends(self, run: Run) -> Generator[Finding | Handout, Any, None]:
        """Of all variables, lot by lot, by as many threads as there are."""
        assert run.descent is not None
        judge = ClampedCliques(run.descent.evidence(run.numbers), run.source)
        below = " from below" if run.config.side is Side.LOWER else ""
        source = f"mini-buckets{below} of ibound {run.config.ibound}"
        ends, lots, spent = judge.unsaid(), judge.lots, 0.0
        nothing = np.full(ends.size, -judge.side * math.inf)
        for k in range(0, len(lots), self.working.threads):
            some = [Lot(judge, lot) for lot in lots[k : k + self.working.threads]]
            results = yield Handout(timed, some, near=True)
            for lot, (values, seconds) in zip(some, results, strict=True):
                ends[judge.places(lot.variables)] = values
                spent += seconds
            low, high = (nothing, ends) if judge.side > 0.0 else (ends, nothing)
            yield Finding(clamped=Clamped(low.copy(), high.copy(), source))
        self.spent += spent
        self.pace = spent / _work(run.descent.parts)


def _work(parts: Partition) -> float:
    return parts.entries_on_ways + VISIT * parts.parents.size


def timed(lot: Lot) -> tuple[NDArray[np.float64], float]:
    """The ends of a lot, and the seconds of work that they took."""
    begun = time.thread_time()
    return lot.judge.ends(lot.variables), time.thread_time() - begun
