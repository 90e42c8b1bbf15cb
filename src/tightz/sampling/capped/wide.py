"""Mini-buckets in a device's memory, wider than a core can sum: upper ends, and draws under them.

A device sums large tables two hundred times as fast as a core, and small ones no faster: every
launch has its price. So tables begin at the size at which they cost as much as their launches.
Where buckets are cut matters as much as how large tables are (50x50 grid, w = 10: gaps of 0.7 to 7
nats by the order at one size), so several orders are tried for a few iterations, and what falls
behind the best so far at equal work is left. Then tables grow, as long as the time allows it.

Draws are those of `tightz.sampling.capped.stream`, from tables that stay on the device. They take
the track of those over: from then on the cores draw for a track of their own.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Side
from tightz.elimination.order import Orders
from tightz.errors import ResourceError
from tightz.runtime.clock import Clock
from tightz.sampling.capped.forecast import HORIZON, Outlook
from tightz.sampling.capped.lanes import Capped
from tightz.sampling.capped.stream import STEP, CappedDraws
from tightz.uppers.mini_bucket.partition import Partition, partition
from tightz.uppers.mini_bucket.places import (
    A_CLIQUE,
    AN_ENTRY,
    JUDGED,
    MOST_ENTRIES,
    seconds_on_device,
)
from tightz.uppers.mini_bucket.run import (
    MAX_IBOUND,
    SCOUT_ITERATIONS,
    MiniBucket,
    Run,
    Tried,
    cutting,
)
from tightz.workspace.findings import Draws, Finding
from tightz.workspace.working import Handout, Launch, Planned, Working

KEY = 2**31 + 11
"""Key of the stream's random numbers."""

FIRST = 20
"""The ibound whose tables tell how large others will be."""

WIDER = 2
"""Steps of the ibound."""

SEARCH, MOST, AT_A_TIME = 0.12, 16, 4
"""Part of the time left for comparing orders at one ibound, the most orders, and how many are laid
out side by side."""

ITERATIONS = 40
"""Of a descent, about."""

LONGEST = 0.3
"""Part of the time left that a descent may be expected to take."""

SLIGHT, LITTLE = 0.01, 1e-3
"""Share of the gap, and nats, that eight iterations must gain for a descent to go on."""

DIM, WAITING = 1.0, 0.5
"""Nats of forecast width beyond which draws wait for better tables, and the part of the time after
which they wait no longer."""

PATIENCE = 4
"""Times that no order could be tried before the stream ends."""

BETTER = 0.7
"""Draws move to new tables that promise an interval this much narrower."""

COUNTED = 4096
"""Draws of a batch whose states are counted: a core counts slower than a device draws."""


def wide_tables(working: Working, clock: Clock) -> Iterator[Launch]:
    """Upper ends that hold always from tables on a device, and both ends with confidence."""
    if working.uses_device:
        yield Launch((WideDraws(working, clock),))


class Trial(NamedTuple):
    """An order to lay out, unless its descent would take more than `most` seconds."""

    ibound: int
    number: int
    most: float


class Layout(NamedTuple):
    """An order and where its tables lie on a device; no program where it would take too long."""

    tried: Tried
    program: Any


@dataclass(frozen=True, eq=False)
class Planner:
    """Lays orders out, which is plain Python and takes a second: here or in other processes."""

    orders: Orders
    items: int

    def __call__(self, trial: Trial) -> Layout:
        from tightz.uppers.mini_bucket.gpu.program import program

        (tried,) = cutting(self.orders, trial.ibound, [trial.number])
        parts = partition(self.orders.model, tried.order, trial.ibound)
        late = descent_seconds(parts) > trial.most or parts.table_sizes.max() >= MOST_ENTRIES
        return Layout(tried, None if late else program(parts, self.items))


def descent_seconds(parts: Partition, step: int = 0) -> float:
    """Of a descent and its judgement, at an ibound larger by `step`."""
    return (ITERATIONS + JUDGED) * seconds_on_device(parts, step)


class WideDraws(CappedDraws):
    """One run of the stream: orders tried on the device, the best descended, then drawn from."""

    __name__ = "wide_tables"
    proves = True

    def __init__(self, working: Working, clock: Clock) -> None:
        super().__init__(working, clock, KEY)
        self.tables = 0  # proposals that were drawn from
        self.scouted = math.inf  # the best bound after the first iterations
        self.begun = clock.elapsed
        self.gone = False  # whether the device failed
        self._trials = itertools.count()

    @cached_property
    def _planner(self) -> Planner:
        from tightz.uppers.mini_bucket.gpu.kernels import ITEMS

        return Planner(self.working.orders, ITEMS)

    @property
    def beatable(self) -> Side | None:
        return Side.UPPER

    @property
    def left(self) -> float:
        """Seconds of drawing until the deadline: descents take turns with it."""
        return 0.5 * min(self.clock.left, HORIZON)

    @property
    def share(self) -> float:
        """A thread of its own, which mostly waits for the device."""
        return 1.0 / max(2, self.working.threads)

    def __call__(
        self, working: Working, clock: Clock
    ) -> Generator[Finding | Bound | Launch | Handout, Any, None]:
        if self.bounds.dense:
            return
        ibound, failed = (yield from self._first()), 0
        while ibound > 0 and failed < PATIENCE and not self.gone and not clock.expired:
            found = yield from self._compared(ibound)
            if found is None:  # too large, or not worth a device
                ibound, failed = ibound - WIDER, failed + 1
                continue
            run, value = found
            if value < self.scouted:
                self.scouted = value
                yield from self._descend(run)
                bound = run.judged()
                if run.note:
                    yield Finding(note=run.note)
                yield bound
                if bound.side is Side.BOTH or not run.place.device:
                    return
                yield from self._consider(run)
            ibound = self._next(ibound, run)

    def _first(self) -> Generator[Finding, None, int]:
        """The ibound at which tables cost about what their launches do; 0 where none is cut."""
        orders, ibound = self.working.orders, FIRST
        for _ in range(3):
            yield Finding()
            parts = partition(orders.model, cutting(orders, ibound, [0])[0].order, ibound)
            if parts.exact:  # narrower: the exact sum is not this stream's business
                ibound -= 2 * WIDER
                if ibound < WIDER:
                    return 0
                continue
            fair = A_CLIQUE / AN_ENTRY * parts.table_sizes.size
            step = int(math.log2(fair / float(parts.table_sizes.sum())))
            ibound = min(MAX_IBOUND, max(WIDER, ibound + step))
            if abs(step) < WIDER:
                break
        return ibound

    def _compared(
        self, ibound: int
    ) -> Generator[Finding | Handout, list[Layout], tuple[Run, float] | None]:
        """The best of some orders after their first iterations; None where none can be tried."""
        best: tuple[Run, float] | None = None
        # the very first alone: a bound, and draws from it, before the search for better ones
        known = math.isfinite(self.scouted)
        until = self.clock.elapsed + SEARCH * min(self.clock.left, HORIZON)
        tried = 0
        while tried == 0 or (known and tried < MOST and self.clock.elapsed < until):
            count = min(AT_A_TIME, max(1, self.working.hands), MOST - tried) if known else 1
            most = LONGEST * min(self.clock.left, HORIZON)
            tasks = [Trial(ibound, next(self._trials), most) for _ in range(count)]
            tried += count
            for layout in (yield Handout(self._planner, tasks)):
                run = self._run(ibound, layout)
                if run is None or (best is not None and self.clock.elapsed > until):
                    continue
                for _ in itertools.islice(run.steps, SCOUT_ITERATIONS + 1):
                    yield Finding()
                if run.note:
                    yield Finding(note=run.note)
                if not run.place.device:  # it is gone
                    self.gone = True
                    return None
                value = run.history[-1] if run.history else math.inf
                if best is None or value < best[1]:
                    best = run, value
        return best

    def _run(self, ibound: int, layout: Layout) -> Run | None:
        """One order on the device; None where it does not belong there."""
        if layout.program is None:
            return None
        config = MiniBucket(ibound, iterations=10**6, max_memory=self.working.max_memory // 4)
        try:
            run = Run(
                self.working.orders, config, time.perf_counter(), [layout.tried],
                backend="auto", layout=layout.program,
            )  # fmt: skip
        except ResourceError:
            return None
        exact = run.candidates[0][1].exact and not self.working.exact
        return run if run.place.device and not exact else None

    def _descend(self, run: Run) -> Iterator[Finding]:
        """Until little is gained any more, or the time is up."""
        end = self.clock.elapsed + LONGEST * min(self.clock.left, HORIZON)
        judging = 2.0 * JUDGED * seconds_on_device(run.candidates[0][1])
        for value in run.steps:
            gained = run.history[-9] - value if len(run.history) > 8 else math.inf
            gap = value - self.level if math.isfinite(self.level) else 0.0
            late = self.clock.elapsed > end or self.clock.left < judging
            if gained < max(LITTLE, SLIGHT * gap) or late or not run.place.device:
                return
            yield Finding()

    def _next(self, ibound: int, run: Run) -> int:
        """Wider where that is not too dear, else the same with other orders."""
        cost = descent_seconds(run.candidates[0][1], WIDER)
        affordable = cost < LONGEST * min(self.clock.left, HORIZON)
        return ibound + WIDER if affordable and ibound + WIDER <= MAX_IBOUND else ibound

    def _consider(self, run: Run) -> Iterator[Finding | Launch]:
        """Draw from these tables, where they promise something."""
        known = self.best
        self.bounds.busy = min(10.0, 0.1 * min(self.clock.left, HORIZON))
        proposal = self._proposal(run)
        if proposal is None:
            return
        yield Finding()
        outlook = self._pilot(proposal, self.bounds.busy)
        yield self._told()
        if not math.isfinite(outlook.gap):
            return
        if known is None or outlook.width(self.left) < BETTER * known[1].width(self.left):
            self.best = proposal, outlook
        drawing, self.drawing = self.drawing, self.drawing or self._worth(self.best)
        if self.drawing and not drawing:
            yield Launch((Planned(self.draws, self.share),))

    def _worth(self, best: tuple[Capped, Outlook] | None) -> bool:
        """Whether to begin drawing."""
        passed = self.clock.elapsed - self.begun
        late = passed > WAITING * (passed + min(self.clock.left, HORIZON))
        return best is not None and (late or best[1].width(self.left) < DIM)

    def draws(self, working: Working, clock: Clock) -> Iterator[Finding]:  # type: ignore[override]
        """Draw until the clock ends, from the best tables; better ones open a source of their own.

        Which tables is settled by pilots, whose draws do not count.
        """
        held: list[Draws] = []
        while not clock.expired and self.best is not None:
            proposal, outlook = self.best
            self.tables += 1
            self._prepare(proposal, outlook)
            assert self.final is not None
            tally = self.final.tally
            many = proposal.drawing(self._words(proposal.lanes))
            counted = proposal.drawing(self._words(min(COUNTED, proposal.lanes)))
            while not clock.expired and self.best[0] is proposal:
                source = self.final.current(clock)
                logs: list[NDArray[np.float64]] = []
                begun = time.perf_counter()
                while not logs or time.perf_counter() - begun < STEP:
                    logs.append(tally.weigh(many.batch()))
                    logs.append(counted.batch() + proposal.log_u)
                    tally.add(counted, self._noise)
                held.append(Draws(source, np.concatenate(logs)))
                if not working.capped.take():
                    yield Finding()
                    continue
                *earlier, found = held
                held = []
                for each in earlier:
                    yield Finding(draws=each)
                yield self._finding(found, tally) if tally.news() else Finding(draws=found)

    def _prepare(self, proposal: Capped, outlook: Outlook) -> None:
        super()._prepare(proposal, outlook)
        assert self.final is not None
        tally = self.final.tally
        tally.family, tally.name = "wide mini-bucket", f"wide {self.tables}"
