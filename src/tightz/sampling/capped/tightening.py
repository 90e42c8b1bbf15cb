"""Tightening a mini-bucket bound: which order, how many iterations, how large, and when to stop.

Everything is decided by the interval that draws can be expected to give at the deadline.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from tightz.bounds import Bound
from tightz.elimination.order import Order
from tightz.errors import ResourceError
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.backends import Backend
from tightz.runtime.clock import Clock
from tightz.sampling.capped.forecast import HORIZON, Outlook
from tightz.sampling.capped.pieces import Scout, Trials
from tightz.uppers.mini_bucket import MiniBucket
from tightz.uppers.mini_bucket.places import Forecast, forecast
from tightz.uppers.mini_bucket.run import (
    MAX_IBOUND,
    SCOUT_ITERATIONS,
    Run,
    Scouted,
    Tried,
    cutting,
    wider,
)
from tightz.workspace.findings import Finding
from tightz.workspace.working import Handout, Working

FIRST = 6
"""The first ibound."""

MANY = 4000
"""Factors above which only the two best heuristics for orders are compared."""

DENSE = 40
"""Factors a variable beyond which a model is taken to be dense."""

SCOUTED = 10
"""The ibound from which the order planned for exact elimination is tried too."""

SEARCH, FEWEST, MOST = 0.1, 4, 40
"""Part of the time left that comparing orders at one ibound may take, the fewest orders, the most
for each two hands.

Where cuts fall matters as much as how large tables are: on 30x30 grids, w = 10, orders that differ
by chance leave gaps of 4, 0.8 or 0.2 nats at one ibound."""

FURTHER = 10_000
"""The number of the first order tried after a descent."""

PLANNING, PLANNED = 20.0, 1500
"""Seconds that must be left, and factors at most, for a search of elimination orders: it takes a
second or two."""

SETUP = 6e-5
"""Seconds a factor until a first bound is judged: order, tables, iterations, judgement."""

JUDGING = 1e-4
"""Seconds a clique until a bound is judged, beside another thread. Where many clauses meet there
are six cliques a variable."""

HASTE = 0.2
"""Part of the time left from which, if a judgement takes that, the first comes without a look at
what an order's few iterations give."""

ROUGH = 8
"""Iterations at a new ibound before the next decision."""

FURTHEST = 3
"""Largest step of the ibound: forecasts are extrapolated over it."""

FAR, CHEAP = 10, 0.5
"""The same where so far a step costs less than this part of what sizes say: on a device."""

SLOWER = 1.06
"""Drawing slows down by about this for each step of the ibound (caches)."""

SHARE = 0.6
"""Part of the workers' time that draws are expected to get."""

LONGEST = 0.5
"""Part of the time left that one more step of tightening may take."""

LITTLE, SLIGHT = 1e-3, 0.02
"""Nats, and share of the gap, that as many iterations as ROUGH must gain for a descent to go on."""

MOSTLY = 0.7
"""Part of the time left that a descent for the bound's own sake may be expected to take."""

JUDGEMENT = 10
"""Iterations that take as long as a judgement."""

GAIN = 0.97
"""A step must promise an interval this much narrower than without it."""


class Tightening:
    """The state of the decisions: orders and gaps seen, the pace, what steps really cost."""

    def __init__(self, working: Working, clock: Clock) -> None:
        self.working, self.clock = working, clock
        self.widest = MAX_IBOUND
        self._made: dict[Backend, Scout] = {}
        # A device has a stream of its own; here only where it is asked for by name. Which tables
        # are worth it is then for each run to say.
        self.backend: Backend = "auto" if working.backend == "cuda" else "cpu"
        self.gaps: list[tuple[int, float]] = []  # ibound, log U - log Z after its first iterations
        self.ranking: list[Scouted] = []  # orders by their bounds at equal work, best first
        self.pace = 0.0  # seconds of an iteration
        self.setup = 0.0  # seconds until a new order can iterate
        self.judgement = 0.0  # seconds of one
        self.kept = 0.0  # seconds that are kept for draws
        self.busy = 0.0  # seconds spent on the bound at hand
        self.settled = False  # whether iterating on is of no use
        self.drag = 1.0  # wall clock over forecast cost: waiting, judging, glances
        self.promise = (0.0, 0.0)  # when the last step began, and what it was to cost

    @property
    def graph(self) -> FactorGraph:
        return self.working.graph

    @property
    def dense(self) -> bool:
        """So many couplings that no tables of a size that fits are any good."""
        return self.graph.n_factors > max(MANY, DENSE * self.graph.n_variables)

    def drawing(self, left: float) -> float:
        """Seconds of drawing, over all workers, in so many seconds of the clock."""
        return SHARE * max(2, self.working.hands) * left

    def _scout(self, backend: Backend) -> Scout:
        """One object for each, so that it travels once."""
        if backend not in self._made:
            memory = self.working.max_memory // 2
            self._made[backend] = Scout(self.working.orders, memory, backend)
        return self._made[backend]

    def scout(self) -> Generator[Finding, None, Run | None]:
        """Which elimination order, by bounds at about equal work: the best and its run."""
        if SETUP * self.graph.n_factors > LONGEST * self.clock.left:
            return None
        orders = self.working.orders
        kinds = [kind for kind in orders.kinds if kind is not Order.CUTS]
        if self.graph.n_factors > MANY:  # setting up tables takes as long as iterating
            kinds = []
        tried = cutting(orders, FIRST, [0])
        tried += [Tried(kind, orders[kind]) for kind in kinds]
        tried = list({one.order.tobytes(): one for one in reversed(tried)}.values())[::-1]
        runs = [(one, run) for one in tried if (run := self._run(FIRST, [one]))]
        exact = [run for _, run in runs if run.candidates[0][1].exact]
        if runs and all(_judging(run) > self.clock.left for _, run in runs):
            return None
        if len(runs) == 1 and _judging(runs[0][1]) > HASTE * self.clock.left:
            self.ranking = [Scouted(math.inf, runs[0][0])]
            return runs[0][1]
        if exact or not runs:
            return exact[0] if exact else self._run(2, tried)
        least = min(run.entries for _, run in runs)
        found: list[tuple[Scouted, Run]] = []
        for one, run in runs:
            # an order with larger tables gets a smaller ibound
            fair = FIRST - int(math.log2(run.entries / least))
            even = run if fair == FIRST else self._run(max(1, fair), [one])
            if even is None or self.clock.expired:
                continue
            yield from self.iterate(even)
            assert even.descent is not None
            found.append((Scouted(even.descent.best, one), run))
        if not found:
            return None
        found.sort(key=lambda item: item[0].value)
        self.ranking = [scouted for scouted, _ in found]
        return found[0][1]

    def larger(self, run: Run, step: int) -> Generator[Handout | Finding, Any, Run | None]:
        """The run at a larger ibound: the best orders so far are compared there again.

        How well buckets are cut changes from ibound to ibound: on a 50x50 grid, w = 10, one order
        is 7 nats behind the other at ibound 10 and 11 nats ahead at 14.
        """
        ibound = run.config.ibound + step
        hands = self._hands(run, step)
        cost = self.drag * self._scouting(run, step)
        fair = SEARCH * min(self.clock.left, HORIZON)
        # Nothing was measured where the run before had settled at once.
        most = MOST * max(1, hands // 2)
        there = self._forecast(run, step).device
        fewest = FEWEST if there else max(FEWEST, hands * fair / max(cost, 1e-6))
        count = int(min(most, fewest))
        given = [scouted.tried for scouted in self.ranking[:2]]
        if ibound >= SCOUTED > run.config.ibound:
            given += self._planned()
        numbers = range(max(1, count - len(given)))
        found = yield from self._compare(ibound, given, numbers, hands, there)
        if not found:
            return self._run(ibound, given)
        self.ranking = found
        return self._run(ibound, [found[0].tried])

    def _hands(self, run: Run, step: int = 0) -> int:
        """How many orders can be tried at a time: by those who can, and the memory here."""
        if self._forecast(run, step).device:  # one at a time there
            return 1
        if self.working.executor is not None:
            return self.working.hands
        each = max(1.0, run.peak_bytes * 2.0**step)
        return max(1, min(self.working.hands, int(self.working.max_memory / (2.0 * each))))

    def _compare(
        self,
        ibound: int,
        given: Sequence[Tried],
        numbers: Sequence[int],
        hands: int,
        on_device: bool,
    ) -> Generator[Handout | Finding, Any, list[Scouted]]:
        """What orders come to in a few iterations, best first; each once."""
        if ibound > self.widest:
            return []
        seconds = SEARCH * min(self.clock.left, HORIZON)
        lots = [Trials(ibound, given[k::hands], numbers[k::hands], seconds) for k in range(hands)]
        lots = [lot for lot in lots if lot.given or lot.numbers]
        scout = self._scout(self.backend if on_device else "cpu")
        attempts = [one for part in (yield Handout(scout, lots, near=on_device)) for one in part]
        if not attempts:
            return []
        for one in attempts:
            yield from self._noted(one.note)
        self.setup = sum(one.setup for one in attempts) / len(attempts)
        return sorted((one.scouted for one in attempts), key=lambda scouted: scouted.value)

    def _planned(self) -> list[Tried]:
        """The order of least exact cost, which a run without exact answers has not looked for."""
        if not self._may_plan() or self.working.plan is None:
            return []
        self.working.orders.adopt(self.working.plan.variables)
        return [Tried(Order.PLANNED, self.working.orders[Order.PLANNED])]

    def _may_plan(self) -> bool:
        return self.graph.n_factors <= PLANNED and self.clock.left > PLANNING

    def _run(self, ibound: int, tried: list[Tried]) -> Run | None:
        """Mini-buckets of this size; None where memory or `exact=False` forbids them."""
        if ibound > self.widest:
            return None
        memory = self.working.max_memory // 2
        config = MiniBucket(ibound, iterations=10**6, max_memory=memory)
        try:
            run = Run(self.working.orders, config, time.perf_counter(), tried, backend=self.backend)
        except ResourceError:
            run = None
        if run is None or (run.candidates[0][1].exact and not self.working.exact):
            self.widest = min(self.widest, ibound - 1)
            return None
        return run

    def iterate(self, run: Run) -> Generator[Finding, None, None]:
        """ROUGH iterations more, after all orders had theirs; measures seconds an iteration."""
        self.busy = 0.0
        scouts = 0 if run.history else len(run.candidates)
        spent, before = 0.0, run.passes
        for done in range(1, ROUGH + scouts + 1):
            begun = time.perf_counter()
            self.settled = next(run.steps, None) is None
            took = time.perf_counter() - begun  # the stream waits between its steps
            self.busy += took
            spent += took
            if self.settled or self.clock.left < _judging(run):
                break
            if done == scouts:  # setting up tables is no iteration
                spent, before = 0.0, run.passes
            yield Finding()
        yield from self._noted(run.note)
        if run.passes > before:
            self.pace = spent / (run.passes - before)
        if len(run.scouted) > 1:
            self.ranking = sorted(run.scouted, key=lambda scouted: scouted.value)

    def next_step(self, run: Run, outlook: Outlook, known: Outlook | None) -> int | None:
        """What to do: None draw, 0 iterate on, otherwise add this to the ibound."""
        pace, ibound, left = self.pace, run.config.ibound, min(self.clock.left, HORIZON)
        if known is None:
            # No draws to go by: the largest tables that a fair part of the time allows.
            step = max(2, self._steps(run)[0])
            fits = ibound + step <= self.widest
            if fits and 2.0 * ROUGH * self._pace(run, step) < LONGEST * left:
                return step
            return None if self.settled else 0
        if math.isfinite(outlook.gap) and (not self.gaps or self.gaps[-1][0] != ibound):
            self.gaps.append((ibound, outlook.gap))
        began, cost = self.promise
        if cost > 0.0:
            taken = (self.clock.elapsed - began) / cost
            self.drag = 0.5 * (self.drag + min(10.0, max(1.0, taken)))
        best, width, promised = None, known.width(self.drawing(left)), 0.0
        # As many iterations again bring about half of what the last ones brought.
        cost = self.drag * (ROUGH * pace + self.judgement)
        history = run.history
        gained = history[-min(ROUGH + 1, len(history))] - history[-1]
        more = outlook.tightened(outlook.gap - 0.5 * gained)
        if self.settled or math.isinf(outlook.gap):
            cost = math.inf
        if cost < LONGEST * left and more.width(self.drawing(left - cost)) < GAIN * width:
            best, width, promised = 0, more.width(self.drawing(left - cost)), cost
        for step in self._steps(run):
            scouting = FEWEST * self._scouting(run, step)
            cost = self.drag * (scouting + ROUGH * self._pace(run, step) + self.judgement)
            if ibound + step > self.widest or cost > LONGEST * left:
                break
            larger = known.tightened(known.gap * self._shrink() ** step, SLOWER**step)
            if larger.width(self.drawing(left - cost)) < GAIN * width:
                best, width, promised = step, larger.width(self.drawing(left - cost)), cost
        self.promise = self.clock.elapsed, promised / self.drag
        return best

    def onwards(
        self, run: Run, level: float, kept: float = 0.0
    ) -> Generator[Finding | Bound | Handout, Any, Run]:
        """Tighten for the bound's own sake until so many seconds are left; the last run.

        The largest tables that the time allows, in one long descent each; then other orders.
        `level`: about where log Z is.
        """
        steps, begun, work = self._onwards(run, level, kept), self.clock.elapsed, 0.0
        self.drag = 2.0
        results: Any = None
        while True:
            start = time.perf_counter()
            try:
                found = next(steps) if results is None else steps.send(results)
            except StopIteration as end:
                last: Run = end.value
                return last
            work += time.perf_counter() - start
            start = time.perf_counter()
            results = yield found
            if results is not None:  # others were at work for it
                work += time.perf_counter() - start
            # the stream waits between its steps: the clock runs faster than its work
            self.drag = min(5.0, max(1.0, (self.clock.elapsed - begun) / work))

    def _onwards(
        self, run: Run, level: float, kept: float
    ) -> Generator[Finding | Bound | Handout, Any, Run]:
        self.kept = kept
        numbers = itertools.count(FURTHER)
        while self._seconds > 0.0:
            yield from self._descend(run, level)
            yield run.judged()
            self.judgement = run.judgement
            if run.exact:
                return run
            par = run.history[min(SCOUT_ITERATIONS + len(run.scouted), len(run.history)) - 1]
            more = None
            if step := self._affordable(run):
                more = yield from self.larger(run, step)
            elif step := self._affordable(run, orders=0):  # one order is better than no step
                ibound = run.config.ibound + step
                more = self._run(ibound, cutting(self.working.orders, ibound, [0]))
            hands = self._hands(run)
            while more is None and self._seconds > 0.0:
                if not self._time_for(3 * SCOUT_ITERATIONS):
                    return run
                trials = list(itertools.islice(numbers, hands))
                there = run.place.device
                found = yield from self._compare(run.config.ibound, (), trials, hands, there)
                if not found:
                    return run
                if found[0].value < par:
                    more = self._run(run.config.ibound, [found[0].tried])
            run = more or run
        return run

    @property
    def _seconds(self) -> float:
        """Until the deadline, or until the time kept for draws."""
        return min(self.clock.left, HORIZON) - self.kept

    def _descend(self, run: Run, level: float) -> Generator[Finding, None, None]:
        """Iterate until little is gained any more, or the time is just enough to judge it."""
        if not run.history:
            yield from self.iterate(run)
        for value in run.steps:
            gap = value - level if math.isfinite(level) else 0.0
            recent = run.history[-ROUGH - 1] - value if len(run.history) > ROUGH else math.inf
            yield from self._noted(run.note)
            if recent < max(LITTLE, SLIGHT * gap) or not self._time_for(JUDGEMENT):
                return
            yield Finding()

    def _noted(self, note: str) -> Iterator[Finding]:
        """A device that failed once is not asked again."""
        if note and self.backend != "cpu":
            self.backend = "cpu"
            yield Finding(note=note)

    def _forecast(self, run: Run, step: int) -> Forecast:
        parts = run.descent.parts if run.descent else run.candidates[0][1]
        return forecast(self.backend, run.place, parts, self.pace, step)

    def _pace(self, run: Run, step: int) -> float:
        """Seconds of an iteration at an ibound larger by `step`."""
        return self._forecast(run, step).pace

    def _scouting(self, run: Run, step: int) -> float:
        """Seconds that it takes there to set an order up and to try it."""
        expected = self._forecast(run, step)
        return self.setup + expected.setup + SCOUT_ITERATIONS * expected.pace

    def _steps(self, run: Run) -> list[int]:
        """Steps that may be taken at once, each to tables of a variable more; further where larger
        tables go to a device.
        """
        cheap = self._pace(run, FAR) < CHEAP * self.pace * 2.0**FAR
        furthest, ibound = FAR if cheap else FURTHEST, run.config.ibound
        steps = [larger - ibound for larger in wider(run.model, ibound, FAR)]
        return steps[:1] + [step for step in steps[1:] if step <= furthest]

    def _time_for(self, iterations: float, expected: Forecast | None = None) -> bool:
        """Whether so many iterations and a judgement end before the clock, by the last run."""
        ahead = expected or Forecast(self.pace, 0.0)
        cost = max(FEWEST * (self.setup + ahead.setup), self.judgement) + iterations * ahead.pace
        return self.drag * cost < self._seconds

    def _affordable(self, run: Run, orders: int = FEWEST) -> int:
        """The largest step of the ibound whose descent ends in most of the time left; 0: none.

        orders: how many are compared there first.
        """
        iterations = orders * SCOUT_ITERATIONS + ROUGH + JUDGEMENT
        steps = (
            step
            for step in self._steps(run)
            if run.config.ibound + step <= self.widest
            and self._time_for(iterations / MOSTLY, self._forecast(run, step))
        )
        return max(steps, default=0)

    def _shrink(self) -> float:
        """The factor by which the gap falls for each step of the ibound, by the last two seen."""
        if len(self.gaps) < 2:
            return 0.88
        (a, gap_a), (b, gap_b) = self.gaps[-2:]
        return min(0.97, max(0.7, (gap_b / gap_a) ** (1.0 / max(1, b - a))))


def _judging(run: Run) -> float:
    """Seconds that a judgement of the run may take."""
    return JUDGING * run.candidates[0][1].table_sizes.size
