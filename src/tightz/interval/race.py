"""Streams side by side: a few workers advance them step by step, the caller's thread merges.

A step is what a stream does between two findings. A free worker takes the stream that has narrowed
the answer fastest, by what was measured in this run: how much of the proven interval, of the
confident one and of the estimate's error its recent steps took away, per second. Every stream
starts with some credit, so all are tried, and keeps a small share of the time, since some pay late
(a search before the tree that it guides).
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tightz.bounds import Bound, Proof, Side
from tightz.interval.board import Board, Ends, judged
from tightz.interval.opening import opening, reached
from tightz.judge import RefutedError
from tightz.runtime.kernels.farm import Farm
from tightz.runtime.kernels.registry import Kernel, kernels_of, needed
from tightz.workspace.findings import Finding, Mixing
from tightz.workspace.working import Launch, Method, Working, name_of

log = logging.getLogger("tightz")
log.addHandler(logging.NullHandler())

LEAST_SHARE = 0.15
"""Every stream gets at least this part of an equal share of the time."""

MEMORY = 0.15
"""Part of the time limit over which a stream's gains are remembered."""

CREDIT = 0.3
"""Share of the interval's width that a stream is believed to take away before it is measured."""


PATIENCE = 6
"""Upper bounds that a stream has given before it may be called beaten."""

EARLY = 5.0
"""Seconds that streams may take together while the clock is held for compilation."""

FINE = 0.005
"""Nats of confident width down to which streams get the time that they were promised; those that
prove what holds always (`proves`) get it to the end."""


class _Refused(NamedTuple):
    bound: Bound
    reason: str


class _Failed(NamedTuple):
    error: BaseException
    text: str


class _Ended(NamedTuple):
    pass


@dataclass(eq=False)
class Lane:
    """One stream: its generator, the time it took, and what it earned."""

    method: Method
    steps: Iterator[Any]
    credit: float
    hope: float = CREDIT
    gain: float = 0.0
    recent: float = 0.0
    seconds: float = 0.0
    running: bool = False
    ended: bool = False  # no more steps to take
    kernels: tuple[Kernel, ...] = ()  # what it waits for before its first step
    merged: bool = False  # and all it found is merged
    trail: list[tuple[float, float]] = field(default_factory=list)  # seconds, its upper bounds

    @property
    def name(self) -> str:
        return name_of(self.method)

    @property
    def share(self) -> float:
        """Part of all workers' time that it was promised."""
        return float(getattr(self.method, "share", 0.0))

    @property
    def rate(self) -> float:
        """Gain per second, recent steps counting most; credit stands for what is not yet known."""
        return (self.gain + self.hope) / (self.recent + self.credit)

    def beaten(self, bound: Bound, ends: Ends, left: float) -> bool:
        """Whether its upper bounds, falling on as fast as of late, end above what is known.

        A descent slows down, so this gives it more than it will get. A stream that has more to give
        than bounds says so by `beatable`.
        """
        if bound.side is not Side.UPPER or bound.proof is not Proof.DETERMINISTIC:
            return False
        if not getattr(self.method, "beatable", True):
            return False
        self.trail.append((self.seconds, bound.log_z))
        late = [(s, value) for s, value in self.trail if s >= 0.5 * self.seconds]
        if len(self.trail) < PATIENCE or len(late) < 2 or bound.log_z <= ends.upper:
            return False
        (begun, high), (now, low) = late[0], late[-1]
        falling = max(0.0, high - low) / max(now - begun, 1e-9)
        return bound.log_z - falling * left > ends.upper

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
            running = [lane.method for lane in self.lanes]
            for method in methods:
                if any(method is other for other in running):  # equality may be of arrays
                    continue
                steps = iter(method(self.working, self.working.clock))
                lane = Lane(method, steps, CREDIT * self.memory)
                lane.kernels = kernels_of(lane.name, self.working.kind)
                self.lanes.append(lane)
            kind = self.working.kind
            self.farm.want(needed(reached(methods, kind), kind))
            self.changed.notify_all()

    def take(self) -> Lane | None:
        """The stream to advance now; waits while all are busy; None when there is nothing left."""
        with self.changed:
            while not self.working.clock.expired:
                ready = [
                    lane
                    for lane in self.lanes
                    if not (lane.running or lane.ended) and self.farm.ready(lane.kernels)
                ]
                if self.working.clock.held:
                    ready = [lane for lane in ready if self._early(lane)]
                if ready:
                    chosen = self._best(ready)
                    chosen.running = True
                    return chosen
                if all(lane.ended for lane in self.lanes):
                    return None
                self.changed.wait(0.05)
        return None

    def _early(self, lane: Lane) -> bool:
        """Whether to run it before the clock does: the exact sum, and a first look by the others.

        They would take the processors from the compilation that all wait for.
        """
        if lane.name == opening.__name__ or not lane.kernels:
            return True
        compiled = [each for each in self.lanes if each.kernels]
        busy = any(each.running for each in compiled)
        return not busy and sum(each.seconds for each in compiled) < EARLY

    def _best(self, ready: list[Lane]) -> Lane:
        live = [lane for lane in self.lanes if not lane.ended]
        spent = sum(lane.seconds for lane in self.lanes)
        promised = [lane for lane in ready if lane.seconds < lane.share * spent]
        if self.confident < FINE:  # narrow enough: from here on by what is measured
            promised = [lane for lane in promised if getattr(lane.method, "proves", False)]
        if promised:
            # the largest promise first: steps of others may hold the other workers for long
            return min(promised, key=lambda lane: (-lane.share, lane.seconds))
        # Starvation guard: rates are estimates from the past, and a stream that needs a long step
        # before its first finding would never be tried again.
        fair = LEAST_SHARE * sum(lane.seconds for lane in live) / len(live)
        starved = [lane for lane in ready if lane.seconds < fair]
        if starved:
            return min(starved, key=lambda lane: lane.seconds)
        # where nothing gains any more, the one that had least
        return max(ready, key=lambda lane: (round(lane.rate, 6), -lane.seconds))

    def give_back(self, lane: Lane, seconds: float, *, ended: bool) -> None:
        with self.changed:
            lane.running, lane.ended = False, ended
            lane.spend(seconds, self.memory)
            self.changed.notify_all()

    def reward(self, lane: Lane, gain: float) -> None:
        with self.changed:
            lane.gain += gain

    @property
    def finished(self) -> bool:
        with self.changed:
            return all(lane.ended for lane in self.lanes)


def race(
    working: Working, board: Board, methods: Sequence[Method], farm: Farm, *, hold: bool = True
) -> None:
    """Advance streams on `working.threads` workers and merge their findings until time is up.

    Kernels are compiled by `farm`, and a stream starts when its own are there. hold: meanwhile
    the clock stands.

    Nothing slow happens in this thread, so the deadline is kept whatever a stream is doing; a
    worker notices after its step that the clock has ended. The threads are not daemons: a process
    that exits waits for the kernels in flight instead of tearing them down.
    """
    clock = working.clock
    # The memory follows the time limit, so that a run of a second and one of an hour behave alike.
    schedule = Schedule(working, max(0.05, MEMORY * min(clock.left, 600.0)), farm)
    schedule.add(methods)
    inbox: queue.SimpleQueue[tuple[Lane, Any]] = queue.SimpleQueue()
    for number in range(max(2, working.threads)):
        threading.Thread(
            target=_work, args=(schedule, board, inbox), name=f"tightz worker {number}"
        ).start()
    closing: Lane | None = None
    held = hold
    while not clock.expired:
        if hold and not farm.finished:
            clock.hold()
            held = True
        elif held:
            clock.release()
            held = False
        try:
            lane, item = inbox.get(timeout=max(0.0, min(clock.left, 0.2)))
        except queue.Empty:
            if schedule.finished and inbox.empty():
                return
            continue
        # Credit is what the merged answer gained: two streams that find the same bound are not
        # both paid.
        before = board.doubt
        _merge(lane, item, board)
        after = board.doubt
        schedule.confident = after.confident[1] - after.confident[0]
        schedule.reward(lane, before.narrowed_to(after))
        if board.closed and closing is None:
            closing = lane
        # The stream that closed the interval hands in its marginals after its bound.
        if closing is not None and (closing.merged or board.knows_marginals):
            return


def _merge(lane: Lane, item: Any, board: Board) -> None:
    if isinstance(item, _Ended):
        lane.merged = True
    elif isinstance(item, _Failed):
        log.warning("stream %s failed\n%s", lane.name, item.text)
        last = traceback.extract_tb(item.error.__traceback__)[-1:]
        place = f" at {last[0].name}, line {last[0].lineno}" if last else ""
        board.failures.append(
            f"stream {lane.name} ended early: {type(item.error).__name__}: {item.error}{place} "
            "(TIGHTZ_LOG=WARNING shows the traceback)"
        )
    elif isinstance(item, _Refused):
        board.refuse(item.bound, item.reason)
    elif isinstance(item, Finding):
        board.merge(item)


def _work(schedule: Schedule, board: Board, inbox: queue.SimpleQueue[Any]) -> None:
    """Advance one stream after the other until nothing is left or the clock ends."""
    while (lane := schedule.take()) is not None:
        begun = time.perf_counter()
        ended = True
        try:
            item: Any = next(lane.steps, _Ended())
            ended = isinstance(item, _Ended)
            if isinstance(item, Launch):
                schedule.add(item)
            elif not ended:
                finding = item if isinstance(item, Finding) else Finding(bound=item)
                if finding.bound is not None:
                    ended = lane.beaten(finding.bound, board.ends, schedule.working.clock.left)
                inbox.put((lane, _judged(finding, schedule.working, board)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of an extension is no Exception
            ended = True
            inbox.put((lane, _Failed(error, traceback.format_exc())))
        finally:
            schedule.give_back(lane, time.perf_counter() - begun, ended=ended)
            if ended:
                inbox.put((lane, _Ended()))


def _judged(finding: Finding, working: Working, board: Board) -> Finding | _Refused:
    """Have the bound judged here, in the stream's own time, and lift what stands to the model.

    The ends read here may be a moment old: then a bound is judged in vain, nothing else.
    """
    bound = finding.bound
    # Judging costs time: what would not move an end is not judged, hence not recorded either.
    if bound is not None and not board.ends.improved_by(bound):
        bound = None
    if bound is not None:
        try:
            bound = judged(bound, working.graph, working.reduction.rounding)
        except RefutedError as refusal:
            return _Refused(bound, str(refusal))  # what else it found rests on the same ground
    marginals, sampler = finding.marginals, finding.sampler
    if not finding.of_model:
        # Exact ones end the run; others are replaced many times, and only the last need lifting.
        if marginals is not None and marginals.mixing is Mixing.EXACT:
            marginals = working.lift_marginals(marginals)
        elif marginals is not None:
            marginals = replace(marginals, lift=working.lift_marginals)
        sampler = sampler and working.lift_sampler(sampler)
    return replace(finding, bound=bound, marginals=marginals, sampler=sampler)
