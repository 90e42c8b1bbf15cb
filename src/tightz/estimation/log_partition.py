"""The main job: an interval on log Z that narrows while you watch."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError, require_range
from tightz.estimation import portfolio
from tightz.estimation.interval import LogPartition
from tightz.estimation.portfolio import Job, Method
from tightz.models.factor_graph import FactorGraph
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
) -> LogPartition:
    """An interval on log Z within `time_limit` seconds, each end with its proof.

    delta        confidence of the probabilistic end is 1 - delta
    exact        False forbids eliminating the whole model: nothing wider than 10 is eliminated
    methods      streams to run side by side instead of the default portfolio; each is a function
                 of a `Job` that yields `Bound` records and watches `job.clock`
    executor     anything with `submit`: runs the trials of the certificate
    on_bound     called in this thread with every record as it arrives

    Policy: a trivial interval at once; exact elimination alone where it fits in memory and time;
    otherwise lower and upper streams side by side until the clock ends. Ctrl-C returns what is
    known (`interrupted`). With a time limit the result depends on the machine's speed; every end
    is valid all the same.
    """
    if not time_limit > 0:
        raise ParameterError(f"time_limit is {time_limit}; expected a positive number of seconds")
    if not 0.0 < delta < 1.0:
        raise ParameterError(f"delta is {delta}; expected a probability strictly between 0 and 1")
    memory = parse_memory(max_memory)
    require_range("max_memory", memory, 1)
    root = seed_sequence(seed)
    clock = Clock(time_limit)
    job = Job(model, clock, time_limit, delta, root, exact, memory, executor)
    board = _Board(clock, on_bound)
    interrupted = False
    try:
        for bound in portfolio.trivial(job):
            board.take(bound)
        if not board.closed:
            _race(job, board, methods)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        clock.stop()
    estimate, error, source = board.point_estimate(job)
    record = provenance(
        root, model.digest, time_limit=time_limit, delta=delta, exact=exact, max_memory=memory
    )
    return LogPartition(
        lower_proof=board.lower,
        upper_proof=board.upper,
        certified=board.certified,
        estimate=estimate,
        estimate_error=error,
        estimate_source=source,
        marginals=job.marginals,
        marginal_source=job.marginal_source,
        bounds=board.bounds,
        notes=list(job.notes),
        interrupted=interrupted,
        seconds=clock.elapsed,
        model=model,
        sampler=job.sampler,
        provenance=record,
    )


class _Board:
    """The best of each side so far."""

    def __init__(self, clock: Clock, on_bound: Callable[[Bound], None] | None) -> None:
        self.clock, self.on_bound = clock, on_bound
        self.bounds: list[Bound] = []
        self.projected = -math.inf
        self.lower, self.upper, self.certified = UNKNOWN_LOWER, UNKNOWN_UPPER, UNKNOWN_LOWER

    @property
    def closed(self) -> bool:
        return self.lower.side is Side.BOTH

    def take(self, bound: Bound) -> None:
        """Record a bound if it says anything new."""
        bound = portfolio.stamped(bound, self.clock.elapsed)
        value = bound.log_z
        if math.isnan(value):
            raise ArithmeticError(f"{bound.method} produced NaN: this is a bug")
        news = False
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
