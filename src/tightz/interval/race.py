"""Streams side by side: each judged in a thread of its own, merged in the caller's thread."""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tightz.bounds import Bound
from tightz.interval.board import Board, judged
from tightz.judge import RefutedError
from tightz.workspace.findings import Finding
from tightz.workspace.job import Job, Launch, Method

log = logging.getLogger("tightz")
log.addHandler(logging.NullHandler())


class _Refused(NamedTuple):
    bound: Bound
    reason: str


class _Failed(NamedTuple):
    error: BaseException
    text: str


class _Ended(NamedTuple):
    pass


@dataclass(eq=False)
class _Lane:
    """One stream in its thread."""

    method: Method
    ended: bool = False

    @property
    def name(self) -> str:
        return getattr(self.method, "__name__", type(self.method).__name__)


def race(job: Job, board: Board, methods: Sequence[Method]) -> None:
    """Run streams in threads (kernels release the lock) and merge findings until time is up.

    Nothing slow happens in this thread, so the deadline is kept whatever a stream is doing; a
    stream notices at its next finding that the clock has ended. The threads are not daemons: a
    process that exits waits for the kernels in flight instead of tearing them down.
    """
    inbox: queue.SimpleQueue[tuple[_Lane, Any]] = queue.SimpleQueue()
    lanes = [_Lane(method) for method in methods]
    for lane in lanes:
        _start(lane, job, board, inbox)
    closing: _Lane | None = None
    while not all(lane.ended for lane in lanes) and not job.clock.expired:
        try:
            lane, item = inbox.get(timeout=max(0.0, min(job.clock.left, 0.2)))
        except queue.Empty:
            continue
        if isinstance(item, Launch):
            for method in item:
                lanes.append(_Lane(method))
                _start(lanes[-1], job, board, inbox)
        else:
            _merge(lane, item, board)
        if board.closed and closing is None:
            closing = lane
        # The stream that closed the interval hands in its marginals after its bound.
        if closing is not None and (closing.ended or board.knows_marginals):
            return


def _merge(lane: _Lane, item: Any, board: Board) -> None:
    if isinstance(item, _Ended):
        lane.ended = True
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
    else:
        board.merge(item)


def _start(lane: _Lane, job: Job, board: Board, inbox: queue.SimpleQueue[Any]) -> None:
    threading.Thread(
        target=_run, args=(lane, job, board, inbox), name=f"tightz {lane.name}"
    ).start()


def _run(lane: _Lane, job: Job, board: Board, inbox: queue.SimpleQueue[Any]) -> None:
    try:
        for item in lane.method(job):
            if isinstance(item, Launch):
                inbox.put((lane, item))
            else:
                finding = item if isinstance(item, Finding) else Finding(bound=item)
                _judge(lane, finding, job, board, inbox)
            if job.clock.expired:
                return
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of an extension is no Exception
        inbox.put((lane, _Failed(error, traceback.format_exc())))
    finally:
        inbox.put((lane, _Ended()))


def _judge(
    lane: _Lane, finding: Finding, job: Job, board: Board, inbox: queue.SimpleQueue[Any]
) -> None:
    """Have the bound judged here, in the stream's own thread, and pass on what stands.

    The ends read here may be a moment old: then a bound is judged in vain, nothing else.
    """
    bound = finding.bound
    if bound is not None and not board.ends.improved_by(bound):
        bound = None
    if bound is not None:
        try:
            bound = judged(bound, job.working, job.prepared.rounding)
        except RefutedError as refusal:
            inbox.put((lane, _Refused(bound, str(refusal))))
            return  # what else it found rests on the same ground
    marginals = finding.marginals and job.lift_marginals(finding.marginals)
    sampler = finding.sampler and job.lift_sampler(finding.sampler)
    inbox.put((lane, replace(finding, bound=bound, marginals=marginals, sampler=sampler)))
