"""The main job: an interval on log Z that narrows while you watch."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError
from tightz.estimation import portfolio
from tightz.estimation.interval import LogPartition
from tightz.estimation.portfolio import Job, Method
from tightz.estimation.stored import Store, opened
from tightz.estimation.stored_interval import IntervalSession
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_model
from tightz.runtime.clock import Clock
from tightz.runtime.memory import parse_memory
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence

UNKNOWN_LOWER = Bound(Side.LOWER, -math.inf, Proof.DETERMINISTIC, "nothing yet", confidence=1.0)
UNKNOWN_UPPER = Bound(Side.UPPER, math.inf, Proof.DETERMINISTIC, "nothing yet", confidence=1.0)


def log_partition(
    model: FactorGraph,
    *,
    time_limit: float = 60.0,
    delta: float = 0.05,
    seed: Seed = None,
    exact: bool = True,
    max_memory: str | int = "8GB",
    methods: Sequence[Method] | None = None,
    executor: Executor | None = None,
    on_bound: Callable[[Bound], None] | None = None,
    store: Store | None = None,
    resume: bool = False,
) -> LogPartition:
    """An interval on log Z within `time_limit` seconds, each end with its proof.

    delta        confidence of the probabilistic end is 1 - delta
    exact        False forbids eliminating the whole model: nothing wider than 10 is eliminated
    methods      streams to run side by side instead of the default portfolio; each is a function
                 of a `Job` that yields `Bound` records and watches `job.clock`
    executor     anything with `submit`: runs the trials of the certificate
    on_bound     called in this thread with every record as it arrives
    store        a path (or RunStore) that keeps every record as it arrives. With a store, session
                 s certifies at 1 - delta / 2^s, so that all sessions together keep 1 - delta
    resume       take up the run that `store` holds: its bounds are valid for the same model and
                 count on, `time_limit` more seconds are spent, `seconds` is the whole run's.
                 Searches, trees and certificates start anew; on_bound sees the old records first

    Policy: a trivial interval at once; exact elimination alone where it fits in memory and time;
    otherwise lower and upper streams side by side until the clock ends. Ctrl-C returns what is
    known (`interrupted`). With a time limit the result depends on the machine's speed; every end
    is valid all the same.
    """
    as_model(model, "log_partition", only="FactorGraph")
    if not time_limit > 0:
        raise ParameterError(f"time_limit is {time_limit}; expected a positive number of seconds")
    if not 0.0 < delta < 1.0:
        raise ParameterError(f"delta is {delta}; expected a probability strictly between 0 and 1")
    memory = parse_memory(max_memory)
    kept, root = (None, seed_sequence(seed)) if store is None else opened(store, seed, resume)
    record = provenance(
        root, model.digest, time_limit=time_limit, delta=delta, exact=exact, max_memory=memory
    )
    with ExitStack() as stack:
        session = None
        if kept is not None:
            session = IntervalSession.open(
                kept, model, root, resume=resume, delta=delta, exact=exact, methods=methods,
                time_limit=time_limit, max_memory=memory,
            )  # fmt: skip
            stack.enter_context(session.writer)
            delta, root = session.delta(delta), session.seed(root)
        clock = Clock(time_limit)
        job = Job(model, clock, time_limit, delta, root, exact, memory, executor)
        board = _Board(clock, on_bound, session)
        interrupted = False
        try:
            if session is not None:
                session.prepare(job)
                board.recall(session.bounds)
            for bound in portfolio.trivial(job):
                board.take(bound)
            if not board.closed or (session is not None and session.lacks_marginals):
                _race(job, board, methods)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            clock.stop()
        estimate, error, source = board.point_estimate(job)
        result = LogPartition(
            lower_proof=board.lower,
            upper_proof=board.upper,
            certified=board.certified if session is None else session.together(board.certified),
            estimate=estimate,
            estimate_error=error,
            estimate_source=source,
            marginals=job.marginals,
            marginal_source=job.marginal_source,
            bounds=board.bounds,
            notes=list(job.notes),
            interrupted=interrupted,
            seconds=board.seconds,
            model=model,
            sampler=job.sampler,
            provenance=record,
        )
        if session is not None:
            session.conclude(result, job.marginal_quality)
    return result


class _Board:
    """The best of each side so far."""

    def __init__(
        self,
        clock: Clock,
        on_bound: Callable[[Bound], None] | None,
        session: IntervalSession | None = None,
    ) -> None:
        self.clock, self.on_bound, self.session = clock, on_bound, session
        self.bounds: list[Bound] = []
        self.projected = -math.inf
        self.lower, self.upper, self.certified = UNKNOWN_LOWER, UNKNOWN_UPPER, UNKNOWN_LOWER

    @property
    def closed(self) -> bool:
        return self.lower.side is Side.BOTH

    @property
    def seconds(self) -> float:
        """Since the start of the run, earlier sessions included."""
        return self.clock.elapsed + (0.0 if self.session is None else self.session.before)

    def recall(self, bounds: list[Bound]) -> None:
        """Take over the records of earlier sessions as they are."""
        for bound in bounds:
            self._keep(bound)

    def take(self, bound: Bound) -> None:
        """Record a bound if it says anything new."""
        bound = portfolio.stamped(bound, self.seconds)
        if self._keep(bound) and self.session is not None:
            self.session.writer.append_bound(bound)

    def _keep(self, bound: Bound) -> bool:
        value = bound.log_z
        if math.isnan(value):
            raise ArithmeticError(f"{bound.method} produced NaN: this is a bug")
        news = False
        if self.closed:
            return False
        if bound.side is Side.BOTH:
            self.lower = self.upper = self.certified = bound
            news = True
        elif bound.side is Side.UPPER and value < self.upper.log_z:
            self.upper, news = bound, True
        elif bound.side is Side.LOWER and bound.proof is Proof.DETERMINISTIC:
            if value > self.lower.log_z:
                self.lower, news = bound, True
            if value > self.certified.log_z:
                self.certified = bound
        elif bound.proof is Proof.CONFIDENCE and value > self.projected:
            self.projected, news = value, True  # kept on record though a proven end may be better
            if value > self.certified.log_z:
                self.certified = bound
        if news:
            self.bounds.append(bound)
            if self.on_bound is not None:
                self.on_bound(bound)
        return news

    def point_estimate(self, job: Job) -> tuple[float, float, str]:
        """Exact, or what a stream left as its estimate, kept inside the proven interval."""
        low, high = self.lower.log_z, self.upper.log_z
        if self.closed:
            return low, 0.0, "exact"
        if job.estimate is not None:
            value, error, source = job.estimate
            inside = min(max(value, low), high)
            return inside, error, source + ("" if inside == value else ", cut to the interval")
        return low, math.inf, "the lower end; no estimate was reached"


def _race(job: Job, board: _Board, methods: Sequence[Method] | None) -> None:
    """Run streams in threads (kernels release the lock) and take their bounds until time is up.

    Nothing slow happens in this thread, so the deadline is kept whatever a stream is doing; a
    stream notices at its next record that the clock has ended. The threads are not daemons: a
    process that exits waits for the kernels in flight instead of tearing them down.
    """
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    lanes = [portfolio.exact_first] if methods is None else methods

    def run(method: Method) -> None:
        try:
            for bound in method(job):
                inbox.put(bound)
                if job.clock.expired:
                    return
        except Exception as error:
            inbox.put(error)
        finally:
            inbox.put(None)

    def start(method: Method) -> None:
        threading.Thread(target=run, args=(method,), name=f"tightz {method.__name__}").start()

    for method in lanes:
        start(method)
    running = len(lanes)
    while running and not board.closed:
        try:
            item = inbox.get(timeout=max(0.0, min(job.clock.left, 0.2)))
        except queue.Empty:
            if job.clock.expired:
                return
            continue
        if item is None:
            running -= 1
        elif isinstance(item, portfolio.Launch):
            for method in item:
                start(method)
            running += len(item)
        elif isinstance(item, Exception):
            raise item
        else:
            board.take(item)
    if board.closed and running and job.clock.left > 0:
        _wait_for_marginals(inbox, job)


def _wait_for_marginals(inbox: queue.SimpleQueue[Any], job: Job) -> None:
    """The exact stream hands in its marginals after its bound."""
    while not job.clock.expired:
        try:
            if inbox.get(timeout=0.2) is None:
                return
        except queue.Empty:
            continue
