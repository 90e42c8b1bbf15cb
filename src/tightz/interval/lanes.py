"""Which stream a free worker advances next.

A step is what a stream does between two findings. A free worker takes the stream that has narrowed
the answer fastest, by what was measured in this run: how much of the proven interval, of the
confident one and of the estimate's error its recent steps took away, per second. Every stream
starts with some credit, so all are tried, and keeps a small share of the time, since some pay late
(a search before the tree that it guides).

Between two steps a stream may hand out pieces of work. They go to the executor's workers, or to the
threads here where there is none; the stream's next step has their results.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tightz.bounds import Bound, Proof, Side
from tightz.interval.board import Ends
from tightz.interval.opening import opening, reached
from tightz.runtime.kernels.farm import Farm
from tightz.runtime.kernels.registry import Kernel, kernels_of, needed
from tightz.workspace.working import Handout, Method, Working, bare, name_of

LEAST_SHARE = 0.15
"""Every stream gets at least this part of an equal share of the time."""

LEAST_AWAY = 0.1
"""Share of the executor's workers that counts as promised to a stream without a promise."""

MEMORY = 0.15
"""Part of the time limit over which a stream's gains are remembered."""

CREDIT = 0.3
"""Share of the interval's width that a stream is believed to take away before it is measured."""


PATIENCE = {Side.UPPER: 6, Side.LOWER: 3}
"""Bounds that a stream has given before it may be called beaten."""

EARLY = 5.0
"""Seconds that streams may take together while the clock is held for compilation."""

UNMERGED = 4
"""Findings of a stream that may wait for the driver before it takes another step: what lies there
at the deadline was found in vain."""

FINE = 0.005
"""Nats of confident width down to which streams get the time that they were promised; those that
prove what holds always (`proves`) get it to the end."""


class Ended(NamedTuple):
    """A stream has no more steps to take."""


class Piece(NamedTuple):
    """A task that was handed out, and its number among all that its stream handed out."""

    number: int
    function: Callable[[Any], Any]
    task: Any
    near: bool
    among: Pieces


class Pieces:
    """What a stream has handed out: whose turn each piece is, and what came back, in order."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._untaken: deque[Piece] = deque()
        self._results: dict[int, Any] = {}
        self._made = self._given = self._due = 0  # numbers: pieces made, given back, asked for

    def add(self, handout: Handout) -> None:
        """Pieces for others, and what its stream waits for."""
        for task in handout.tasks:
            self._untaken.append(Piece(self._made, handout.function, task, handout.near, self))
            self._made += 1
        self._due = max(self._given, self._made - handout.keep)

    @property
    def waiting(self) -> bool:
        """Whether there is a piece that nobody has taken."""
        return bool(self._untaken) and self.error is None

    @property
    def near(self) -> bool:
        """Whether the next one is for threads."""
        return self._untaken[0].near

    @property
    def done(self) -> bool:
        """Whether all that the stream waits for is there."""
        there = all(number in self._results for number in range(self._given, self._due))
        return there or self.error is not None

    def take(self) -> Piece:
        return self._untaken.popleft()

    def give_up(self, piece: Piece) -> None:
        """Whoever took it cannot do it: somebody else may."""
        self._untaken.appendleft(piece)

    def put(self, piece: Piece, result: Any, error: BaseException | None) -> None:
        self._results[piece.number] = result
        self.error = self.error or error

    def collect(self) -> list[Any]:
        """The results that the stream waits for."""
        found = [self._results.pop(number) for number in range(self._given, self._due)]
        self._given = self._due
        return found


class Job(NamedTuple):
    """What a worker does next: a stream's next step, or one piece of what it handed out."""

    lane: Lane
    piece: Piece | None = None


@dataclass(eq=False)
class Purse:
    """What a stream earned in one place, for the time that it took there."""

    credit: float
    hope: float = CREDIT
    gain: float = 0.0
    recent: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Gain per second, recent steps counting most; credit stands for what is not yet known."""
        return (self.gain + self.hope) / (self.recent + self.credit)

    def spend(self, seconds: float, memory: float) -> None:
        """Book a step: older gains, seconds and the hope of a gain fade together."""
        # An exponential window over the stream's own seconds: a stream that waits keeps its
        # record, one that works without gain loses it.
        fade = math.exp(-seconds / memory)
        self.gain *= fade
        self.hope *= fade
        self.recent = self.recent * fade + seconds
        self.seconds += seconds


@dataclass(eq=False)
class Lane:
    """One stream: its generator, what it handed out, the time it took here and elsewhere."""

    method: Method
    steps: Iterator[Any]
    here: Purse
    away: Purse  # by the executor's workers
    pieces: Pieces = field(default_factory=Pieces)
    asking: bool = False  # its next step takes what was handed out
    running: bool = False
    ended: bool = False  # no more steps to take
    kernels: tuple[Kernel, ...] = ()  # what it waits for before its first step
    merged: bool = False  # and all it found is merged
    unmerged: int = 0  # findings that wait for the driver
    trail: list[tuple[float, float]] = field(default_factory=list)  # seconds, its bounds

    @property
    def name(self) -> str:
        return name_of(self.method)

    @property
    def share(self) -> float:
        """Part of all workers' time that it was promised."""
        return float(getattr(self.method, "share", 0.0))

    def beaten(self, bound: Bound, ends: Ends, left: float) -> bool:
        """Whether its bounds, moving on as fast as of late, stay behind what is known.

        A descent slows down, so this gives it more than it will get. Its upper bounds are meant,
        unless the stream says otherwise by `beatable`; None: it has more to give than bounds.
        """
        side = getattr(self.method, "beatable", Side.UPPER)
        if bound.side is not side or bound.proof is not Proof.DETERMINISTIC:
            return False
        sign, known = (1.0, ends.upper) if side is Side.UPPER else (-1.0, -ends.lower)
        value = sign * bound.log_z
        self.trail.append((self.here.seconds, value))
        late = [(s, each) for s, each in self.trail if s >= 0.5 * self.here.seconds]
        if len(self.trail) < PATIENCE[side] or len(late) < 2 or value <= known:
            return False
        (begun, high), (now, low) = late[0], late[-1]
        falling = max(0.0, high - low) / max(now - begun, 1e-9)
        return value - falling * left > known

    @property
    def ready(self) -> bool:
        """Whether its next step can be taken."""
        idle = not (self.running or self.ended) and self.unmerged < UNMERGED
        return idle and (not self.asking or self.pieces.done)

    def advance(self) -> Any:
        """The next step, with the results of what it handed out."""
        asking, self.asking = self.asking, False
        steps: Any = self.steps
        try:
            if not asking:
                return next(steps)
            if self.pieces.error is not None:
                # What else is under way is for nobody: the stream may go on without it.
                failed, self.pieces = self.pieces, Pieces()
                return steps.throw(failed.error)
            return steps.send(self.pieces.collect())
        except StopIteration:
            return Ended()


@dataclass(eq=False)
class Schedule:
    """Which stream a free worker advances next; shared by workers and driver under one lock."""

    working: Working
    memory: float
    farm: Farm
    confident: float = math.inf  # width of the confident interval
    lanes: list[Lane] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, methods: Sequence[Method]) -> None:
        """Start streams, but not again those that began while kernels were compiled."""
        with self.changed:
            # The first streams prepare the model themselves, in their own time.
            kind = self.working.inner_kind if self.lanes else self.working.kind
            running = [bare(lane.method) for lane in self.lanes]
            for method in methods:
                if any(bare(method) is other for other in running):  # equality may be of arrays
                    continue
                steps = iter(method(self.working, self.working.clock))
                credit = CREDIT * self.memory
                lane = Lane(method, steps, Purse(credit), Purse(credit))
                lane.kernels = kernels_of(lane.name, kind)
                self.lanes.append(lane)
            self.farm.want(needed(reached(methods, kind), kind))
            self.changed.notify_all()

    def take(self) -> Job | None:
        """What to do now; waits while all are busy; None when there is nothing left."""
        with self.changed:
            while not self.working.clock.expired:
                ready = [
                    lane
                    for lane in self.lanes
                    if (lane.ready or self._for_threads(lane)) and self.farm.ready(lane.kernels)
                ]
                if self.working.clock.held:
                    ready = [lane for lane in ready if self._early(lane)]
                if ready:
                    return self._job(self._best(ready))
                if all(lane.ended for lane in self.lanes):
                    return None
                self.changed.wait(0.05)
        return None

    def take_away(self) -> Job | None:
        """A piece for a worker of the executor; None where there is none now."""
        with self.changed:
            ready = [lane for lane in self.lanes if _waiting(lane) and not self._for_threads(lane)]
            if not ready or self.working.clock.expired:
                return None
            # who had least of the time there, in proportion to what they were promised
            lane = min(ready, key=lambda lane: lane.away.seconds / max(lane.share, LEAST_AWAY))
            return Job(lane, lane.pieces.take())

    def _for_threads(self, lane: Lane) -> bool:
        """Whether it has pieces that nobody has taken and that are done here."""
        return _waiting(lane) and (not self.working.crewed.is_set() or lane.pieces.near)

    def _job(self, lane: Lane) -> Job:
        if not lane.ready:
            return Job(lane, lane.pieces.take())
        lane.running = True
        return Job(lane)

    def _early(self, lane: Lane) -> bool:
        """Whether to run it before the clock does: the exact sum, and a first look by the others.

        They would take the processors from the compilation that all wait for.
        """
        if lane.name == opening.__name__ or not lane.kernels:
            return True
        compiled = [each for each in self.lanes if each.kernels]
        busy = any(each.running for each in compiled)
        return not busy and sum(each.here.seconds for each in compiled) < EARLY

    def _best(self, ready: list[Lane]) -> Lane:
        for lane in ready:
            if lane.asking and lane.pieces.done:  # short, and workers may wait for it
                return lane
        live = [lane for lane in self.lanes if not lane.ended]
        spent = sum(lane.here.seconds for lane in self.lanes)
        promised = [lane for lane in ready if lane.here.seconds < lane.share * spent]
        if self.confident < FINE:  # narrow enough: from here on by what is measured
            promised = [lane for lane in promised if getattr(lane.method, "proves", False)]
        if promised:
            # Promises may come to more than there is: then all get less in proportion. The largest
            # comes first, since steps of others may hold the workers for long.
            return min(promised, key=lambda lane: (lane.here.seconds / lane.share, -lane.share))
        # Starvation guard: rates are estimates from the past, and a stream that needs a long step
        # before its first finding would never be tried again.
        fair = LEAST_SHARE * sum(lane.here.seconds for lane in live) / len(live)
        starved = [lane for lane in ready if lane.here.seconds < fair]
        if starved:
            return min(starved, key=lambda lane: lane.here.seconds)
        # where nothing gains any more, the one that had least
        return max(ready, key=lambda lane: (round(lane.here.rate, 6), -lane.here.seconds))

    def hand_out(self, lane: Lane, handout: Handout) -> None:
        """Others may now take the lane's pieces; its own next step waits for what is due."""
        with self.changed:
            lane.pieces.add(handout)
            lane.asking = True
            self.changed.notify(len(handout.tasks))

    def give_back(
        self, lane: Lane, seconds: float, *, ended: bool = False, findings: int = 0
    ) -> None:
        """A step is over, and so many findings are on their way to the driver."""
        with self.changed:
            lane.running, lane.ended = False, ended
            lane.unmerged += findings
            lane.here.spend(seconds, self.memory)
            # one more stream to take: waking all costs all of them the lock
            self.changed.notify(len(self.lanes) if ended else 1)

    def deliver(
        self,
        job: Job,
        result: Any,
        seconds: float,
        *,
        error: BaseException | None = None,
        away: bool = False,
    ) -> None:
        """A piece is over."""
        assert job.piece is not None
        with self.changed:
            job.piece.among.put(job.piece, result, error)
            (job.lane.away if away else job.lane.here).spend(seconds, self.memory)
            self.changed.notify()

    def return_piece(self, job: Job) -> None:
        """The executor is gone: the threads here do what it had."""
        assert job.piece is not None
        with self.changed:
            self.working.crewed.clear()
            self.working.alone.set()
            job.piece.among.give_up(job.piece)
            self.changed.notify_all()

    def reward(self, lane: Lane, gain: float, *, findings: int = 0) -> None:
        """So many findings of a stream were merged; together they gained this."""
        with self.changed:
            lane.here.gain += gain
            lane.away.gain += gain
            lane.unmerged -= findings
            if findings and lane.unmerged == UNMERGED - 1:
                self.changed.notify()

    def end(self) -> None:
        """The run is over: whoever waits for a job ends."""
        self.working.clock.stop()
        with self.changed:
            self.changed.notify_all()

    @property
    def finished(self) -> bool:
        with self.changed:
            return all(lane.ended for lane in self.lanes)


def _waiting(lane: Lane) -> bool:
    return lane.pieces.waiting and not lane.ended
