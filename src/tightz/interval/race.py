"""Streams side by side: a few workers advance them step by step, the caller's thread merges."""

from __future__ import annotations

import gc
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from tightz.bounds import Bound
from tightz.interval.board import Board, judged
from tightz.interval.lanes import MEMORY, Ended, Job, Lane, Schedule
from tightz.judge import RefutedError
from tightz.runtime.blas_threads import one_blas_thread
from tightz.runtime.clock import OverError, leave_if_over, wait_for, work_for
from tightz.runtime.executors import Crew, GivenUpError
from tightz.runtime.gpu import why_no_device
from tightz.runtime.kernels.farm import Farm
from tightz.runtime.parcels import Done, ExecutorError, run_timed
from tightz.runtime.switching import switching
from tightz.workspace.findings import Finding, Mixing
from tightz.workspace.working import Handout, Launch, Method, Working

log = logging.getLogger("tightz")
log.addHandler(logging.NullHandler())

LATE = 0.5
"""Seconds at most after the deadline in which what was found before it is merged."""

SWITCHING = 5e-4
"""Seconds that a thread may keep the interpreter: the driver pays them for each of its short steps
where a dozen workers are busy."""

WAITING = 2
"""Threads beside those of the cores where there is a device: they mostly wait for it."""

AHEAD = 4
"""Workers of the executor for each piece beyond one that they have: it is on its way when the first
of them is free. What waits there waits behind others', however short it is itself."""


PATIENCE = 2.0
"""Seconds in which the executor's first worker should answer. Rounds are made for the threads here
after that, until it does: a queue of jobs may take minutes."""


class _Refused(NamedTuple):
    bound: Bound
    reason: str


class _Failed(NamedTuple):
    error: BaseException
    text: str


class _Alone(NamedTuple):
    """The executor is gone."""

    error: BaseException


@dataclass(eq=False)
class Away:
    """Pieces at the executor's workers: enough of them under way that nobody there waits."""

    schedule: Schedule
    crew: Crew
    inbox: queue.SimpleQueue[Any]
    _flying: int = 0
    _late: threading.Timer | None = None
    _heard: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wake(self) -> None:
        """Have the workers started, once; until they answer threads do what is handed out."""
        if self.schedule.working.clock.expired:
            return
        with self._lock:
            woken, self._late = self._late, self._late or threading.Timer(PATIENCE, self._is_late)
        if woken is None:
            for number in range(self.crew.size):
                self.crew.send(abs, number).add_done_callback(self._awake)
            self._late.daemon = True
            self._late.start()

    def close(self) -> None:
        """Nobody waits for the first of them any more."""
        if self._late is not None:
            self._late.cancel()

    def _is_late(self) -> None:
        working = self.schedule.working
        if not working.crewed.is_set():
            working.alone.set()

    def _awake(self, promise: Future[Done]) -> None:
        """The first worker is there, or none will be."""
        with self._lock:
            if self._heard or promise.cancelled():
                return
            self._heard = True
        if (error := promise.exception()) is not None:
            self.schedule.working.alone.set()
            self.inbox.put((None, _Alone(error)))
            return
        self.schedule.working.crewed.set()
        self.schedule.working.alone.clear()
        self.fill()

    def fill(self) -> None:
        """Send pieces while there are some and workers for them."""
        while True:
            size = self.crew.size
            most = size + max(1, size // AHEAD)
            with self._lock:
                if self._flying >= most or (job := self.schedule.take_away()) is None:
                    return
                self._flying += 1
            assert job.piece is not None
            try:
                promise = self.crew.send(job.piece.function, job.piece.task)
            except Exception as error:
                promise = Future()
                promise.set_exception(error)
            promise.add_done_callback(partial(self._back, job))

    def _back(self, job: Job, promise: Future[Done]) -> None:
        with self._lock:
            self._flying -= 1
        if promise.cancelled():
            return
        error = promise.exception()
        if isinstance(error, ExecutorError) and not isinstance(error, GivenUpError):
            self.schedule.return_piece(job)
            self.inbox.put((None, _Alone(error)))
            return
        done = Done(None, 0.0) if error is not None else promise.result()
        self.schedule.deliver(job, done.value, done.seconds, error=error, away=True)
        self.fill()


def race(
    working: Working,
    board: Board,
    methods: Sequence[Method],
    farm: Farm,
    workers: list[threading.Thread],
    *,
    hold: bool = True,
) -> None:
    """Advance streams on `working.threads` workers and merge their findings until time is up.

    Kernels are compiled by `farm`, and a stream starts when its own are there. hold: meanwhile
    the clock stands.

    Nothing slow happens in this thread, so the deadline is kept whatever a stream is doing; a
    worker notices after its step that the clock has ended, or within it (`leave_if_over`). The
    threads, which come into `workers`, are not daemons: a process that exits waits for the kernels
    in flight instead of tearing them down.
    """
    clock = working.clock
    # The memory follows the time limit, so that a run of a second and one of an hour behave alike.
    schedule = Schedule(working, max(0.05, MEMORY * min(clock.left, 600.0)), farm)
    inbox: queue.SimpleQueue[tuple[Lane | None, Any]] = queue.SimpleQueue()
    away = Away(schedule, working.crew, inbox) if working.executor is not None else None
    if away is not None and not working.own_workers:
        away.wake()
    schedule.add(methods)
    for number in range(max(2, working.threads) + (WAITING if working.uses_device else 0)):
        worker = threading.Thread(
            target=_work, args=(schedule, board, inbox, away), name=f"tightz worker {number}"
        )
        workers.append(worker)
        worker.start()
    with ExitStack() as stack:
        stack.enter_context(switching(SWITCHING))
        if away is not None:
            stack.callback(away.close)
        stack.callback(schedule.end)
        _drive(schedule, board, inbox, stack, hold=hold)


def leave(workers: Sequence[threading.Thread]) -> None:
    """Wait until the run's threads have ended, and have a device let go of what they held."""
    wait_for(workers)
    device = sys.modules.get("tightz.runtime.gpu.device")
    if device is None or why_no_device(False) or any(worker.is_alive() for worker in workers):
        return
    gc.collect()  # generators that know each other
    device.free_bytes()


def _drive(
    schedule: Schedule,
    board: Board,
    inbox: queue.SimpleQueue[Any],
    stack: ExitStack,
    *,
    hold: bool,
) -> None:
    """Merge what workers find until time is up, nothing is left to do, or the answer is exact."""
    clock, farm = schedule.working.clock, schedule.farm
    closing: Lane | None = None
    held, among_others = hold, False
    while not clock.expired and board.lost is None:
        if not among_others and len(schedule.lanes) > 1:  # an exact sum alone may have all cores
            among_others = True
            stack.enter_context(one_blas_thread())
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
        if lane is None:
            _alone(item, board)
            continue
        _merge(lane, item, schedule, board)
        if board.closed and closing is None:
            closing = lane
        # The stream that closed the interval hands in its marginals after its bound.
        if closing is not None and (closing.merged or board.knows_marginals):
            return
        if closing is None and board.settled:
            return
    until = time.perf_counter() + LATE
    while time.perf_counter() < until and not inbox.empty():
        lane, item = inbox.get()
        if lane is not None:
            _merge(lane, item, schedule, board)


def _alone(item: _Alone, board: Board) -> None:
    note = f"the run went on without its executor: {item.error}"
    if note not in board.failures:
        board.failures.append(note)


def _merge(lane: Lane, item: Any, schedule: Schedule, board: Board) -> None:
    """Take what a stream said, and pay it for what the merged answer gained: two streams that find
    the same bound are not both paid.
    """
    before = board.doubt
    _enter(lane, item, board)
    after = board.doubt
    schedule.confident = after.confident[1] - after.confident[0]
    said = isinstance(item, Finding | _Refused)
    schedule.reward(lane, before.narrowed_to(after), findings=int(said))


def _enter(lane: Lane, item: Any, board: Board) -> None:
    if isinstance(item, Ended):
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


def _work(
    schedule: Schedule, board: Board, inbox: queue.SimpleQueue[Any], away: Away | None
) -> None:
    """Do one job after the other until nothing is left or the clock ends."""
    work_for(schedule.working.clock)
    while (job := schedule.take()) is not None:
        if job.piece is None:
            _step(job.lane, schedule, board, inbox, away)
            continue
        try:
            done, error = run_timed(job.piece.function, job.piece.task), None
        except BaseException as trouble:  # as in _step; a piece that never ends stops its stream
            done, error = Done(None, 0.0), trouble
        schedule.deliver(job, done.value, done.seconds, error=error)
        if away is not None:  # behind a piece for threads there may be some for others
            away.fill()


def _step(
    lane: Lane,
    schedule: Schedule,
    board: Board,
    inbox: queue.SimpleQueue[Any],
    away: Away | None,
) -> None:
    """One step of a stream; what it says goes to the inbox."""
    begun = time.perf_counter()
    ended, findings = True, 0
    try:
        item: Any = lane.advance()
        ended = isinstance(item, Ended)
        if isinstance(item, Launch):
            schedule.add(item)
        elif isinstance(item, Handout):
            schedule.hand_out(lane, item)
            if away is not None and not item.near:
                away.wake()
        elif not ended:
            finding = item if isinstance(item, Finding) else Finding(bound=item)
            if finding.bound is not None:
                ended = lane.beaten(finding.bound, board.ends, schedule.working.clock.left)
            inbox.put((lane, _judged(finding, schedule.working, board)))
            findings = 1
    except OverError:
        ended = True
    except BaseException as error:  # a panic of an extension is no Exception
        ended = True
        inbox.put((lane, _Failed(error, traceback.format_exc())))
    finally:
        schedule.give_back(lane, time.perf_counter() - begun, ended=ended, findings=findings)
        if ended:
            inbox.put((lane, Ended()))
    if away is not None:
        away.fill()


def _judged(finding: Finding, working: Working, board: Board) -> Finding | _Refused:
    """Have the bound judged here, in the stream's own time, and lift what stands to the model.

    The ends read here may be a moment old: then a bound is judged in vain, nothing else.
    """
    bound = finding.bound
    # Judging costs time: what would not move an end is not judged, hence not recorded either.
    if bound is not None and not board.ends.improved_by(bound):
        bound = None
    if bound is not None:
        leave_if_over()
        try:
            if finding.of_model:  # it may be there before the model is reduced
                bound = judged(bound, working.model)
            else:
                bound = judged(bound, working.graph, working.reduction.rounding)
        except RefutedError as refusal:
            return _Refused(bound, str(refusal))  # what else it found rests on the same ground
    if finding.states is not None:
        working.sampled.states = finding.states
    marginals, sampler = finding.marginals, finding.sampler
    if not finding.of_model:
        if marginals is not None and marginals.mixing is Mixing.MIXED:
            working.sampled.marginals = marginals
        # Exact ones end the run; others are replaced many times, and only the last need lifting.
        if marginals is not None and marginals.mixing is Mixing.EXACT:
            marginals = working.lift_marginals(marginals)
        elif marginals is not None:
            marginals = replace(marginals, lift=working.lift_marginals)
        sampler = sampler and working.lift_sampler(sampler)
    return replace(finding, bound=bound, marginals=marginals, sampler=sampler)
