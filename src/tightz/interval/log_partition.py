"""The main job: an interval on log Z that narrows while you watch."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal

from tightz.bounds import Bound
from tightz.errors import require_choice, require_probability, require_range, require_seconds
from tightz.interval.board import Board, judged
from tightz.interval.interval import Confident, LogPartition
from tightz.interval.marginal_bounds import MarginalBounds, marginal_bounds
from tightz.interval.opening import (
    load_streams,
    opening,
    side_by_side,
    trivial,
)
from tightz.interval.race import leave, race
from tightz.models.formats.evidence import Evidence, given
from tightz.models.given import GraphOrPath, given_model
from tightz.models.scale import scale_warnings
from tightz.runtime.backends import Backend, on_device
from tightz.runtime.blas_later import blas_later
from tightz.runtime.clock import Clock
from tightz.runtime.cores import usable_cores
from tightz.runtime.gpu import why_no_device
from tightz.runtime.interrupts import Stop, as_one, interruptible, require_stop
from tightz.runtime.kernels.farm import Farm, missing
from tightz.runtime.kernels.registry import kernels_of
from tightz.runtime.memory import MAX_MEMORY, parse_memory
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.sampling.ledger import Ledger
from tightz.workspace.shared import Shared
from tightz.workspace.working import Method, Working, bare

if TYPE_CHECKING:
    from tightz.paper.stored import Store
    from tightz.runtime.executors import Submits
    from tightz.runtime.local_workers import LocalWorkers


@as_one
def log_partition(
    model: GraphOrPath,
    *,
    evidence: Evidence | None = None,
    time_limit: float = 60.0,
    delta: float = 0.05,
    seed: Seed = None,
    exact: bool = True,
    marginals: bool = True,
    max_memory: str | int = MAX_MEMORY,
    methods: Sequence[Method] = (),
    only: Sequence[Method] | None = None,
    threads: int | None = None,
    executor: Submits | None = None,
    backend: Backend = "auto",
    compile: Literal["before", "beside"] = "before",
    on_bound: Callable[[Bound], None] | None = None,
    stop: Stop | None = None,
    store: Store | None = None,
    resume: bool = False,
    shared: Shared | None = None,
) -> LogPartition:
    """An interval on log Z within `time_limit` seconds, each end with its proof.

    evidence     {variable: state} by name or number, or a file, beside what the model has observed
    delta        `confident` holds with confidence 1 - delta, both ends together
    exact        False forbids eliminating the whole model, and nothing else
    marginals    False ends the run with an exact log Z: its marginals take longer than itself. It
                 ends so too, and a note says it, where they would not fit into the time left
    methods      streams to run beside the portfolio: functions (working, clock) that yield
                 `Bound` or `Finding` records about `working.graph` and watches the clock. A bound
                 that holds always must carry evidence: the judge evaluates it afresh, and what it
                 cannot confirm is set aside in `quarantined`
    only         streams to run instead of the portfolio
    threads      streams that are advanced at a time; None: as many as there are cores, less those
                 of local workers, and at least 2
    executor     anything with `submit` (processes, a dask client, MPI): does what streams hand out
                 (draws, trials, leaves of the tree, searches); threads here do the rest. None, with
                 `threads` None as well: local processes on six cores or more, in runs of 20 s or
                 more without streams of the caller's; else threads
    backend      "cuda" or "cpu" for what has both; "auto" takes a GPU where there is one
    compile      what to do where kernels are not compiled yet, on the first run of a machine:
                 "before" does not count the time that takes, "beside" does, and keeps the wall
                 clock, and what is under way at the end is finished for the next run. Either way
                 other processes compile, and streams start as theirs are ready
    on_bound     called in this thread with every record as it arrives
    stop         a threading.Event: the run ends within a fifth of a second or so once it is set,
                 by `on_bound`, another thread or a handler of a signal, and returns what is known
                 (`interrupted`)
    store        a path (or RunStore) that keeps every record, and the draws behind the confident
                 interval, before it is shown. Where it takes no more (a full disk, another process
                 that resumed it) the run ends with what is known, and `store_error` says why
    resume       take up the run that `store` holds: its bounds are valid for the same model and
                 count on, the certificate goes on with its draws at the same delta, `time_limit`
                 more seconds are spent, `seconds` is the whole run's. Searches and trees start
                 anew; on_bound sees the old records first
    shared       what runs on models of the same factors hand on, `free_energy` from one
                 temperature to the next: plans, elimination orders, heavy states; never a bound

    Policy: a trivial interval at once; exact elimination alone where it fits in memory and time;
    otherwise all streams side by side until the clock ends, the time going to those that narrow
    the answer fastest. Ctrl-C returns what is known (`interrupted`); a second one within half a
    minute raises KeyboardInterrupt, also in the next call, so that a loop of calls can be left.
    Nothing of the run goes on after it: its threads and processes have ended, and device memory is
    free. With a time limit the result depends on the machine's speed; every end is valid all the
    same.
    """
    begun = time.perf_counter()
    model = given_model(model, "log_partition", only="FactorGraph")
    model = given(model, evidence)
    require_seconds("time_limit", time_limit)
    require_probability("delta", delta)
    require_range("threads", 1 if threads is None else threads, 1)
    require_choice("compile", compile, ("before", "beside"))
    require_stop(stop)
    on_device(backend, why_no_device, worthwhile=False)  # "cuda" insists, "auto" is asked later
    blas_later()
    memory = parse_memory(max_memory)
    if executor is not None:
        from tightz.runtime.executors import require_executor

        require_executor(executor)
    if store is None:
        kept, root = None, seed_sequence(seed)
    else:
        from tightz.interval.stored_interval import IntervalSession
        from tightz.paper.stored import opened

        kept, root = opened(store, seed, resume)
    record = provenance(
        root, model.digest, time_limit=time_limit, delta=delta, exact=exact, max_memory=memory
    )
    with ExitStack() as stack:
        asked = stack.enter_context(interruptible(stop))
        workers: list[threading.Thread] = []
        stack.callback(leave, workers)  # the last but one: by then nobody keeps them waiting
        own = None if methods or only is not None else _own_workers(executor, threads, time_limit)
        if own is not None:
            executor = own
            stack.callback(own.shutdown, wait=False, cancel_futures=True)
        session = None
        if kept is not None:
            session = IntervalSession.open(
                kept, model, root, resume=resume, delta=delta, exact=exact,
                methods=[*methods, *(only or ())],
                time_limit=time_limit, max_memory=memory,
            )  # fmt: skip
            stack.enter_context(session.writer)
            root = session.seed(root)
        if not exact and only is None:
            load_streams()
        clock = Clock(time_limit, stop=asked, since=begun)
        working = Working(
            model, clock, delta, root, exact, memory, marginals=marginals,
            threads=threads or _free_cores(executor), executor=executor,
            own_workers=own is not None, backend=backend, shared=shared or Shared(),
        )  # fmt: skip
        if executor is not None:
            stack.callback(working.crew.dismiss)
        board = Board(clock, on_bound, notes=scale_warnings(model), ledger=Ledger(delta))
        board.slack = lambda: working.reduction.rounding
        if session is not None:
            board.keep, board.before = session.writer.append_bound, session.before
            board.ledger, board.keep_ledger = session.ledger, session.keep_ledger
            board.session = session.writer.session
        interrupted, farm = False, Farm()
        stack.callback(farm.close, finish=compile == "beside")
        try:
            if session is not None:
                session.prepare(board)
            for bound in trivial(model):
                board.take(judged(bound, model))
            if not board.closed or (session is not None and session.lacks_marginals):
                chosen = [*((opening,) if only is None else only), *methods]
                # A stream listed twice would make the same draws twice, and they would count twice.
                chosen = [
                    one for k, one in enumerate(chosen) if bare(one) not in map(bare, chosen[:k])
                ]
                _run(working, board, chosen, farm, workers, before=compile == "before")
        except KeyboardInterrupt:  # of on_bound
            if asked.insisted:
                raise
            interrupted = True
        finally:
            clock.stop()
        with suppress(KeyboardInterrupt):  # a second one of on_bound
            board.read()
        if board.lost is not None:
            board.failures.append(f"the run ended early, its store is lost: {board.lost}")
        working.leave_states()
        if board.marginals is not None:
            board.marginals = board.marginals.lifted()
        ends = marginal_bounds(working, board) if marginals or not board.closed else None
        result = _result(
            working, board, ends, interrupted=interrupted or asked.is_set(), record=record,
            compiling=farm.elapsed,
        )  # fmt: skip
        if session is not None:
            result = session.conclude(result, board.marginals, board.point_estimate().family)
    return result


MANY_CORES, LONG = 6, 20.0
"""Cores and seconds from which a run has processes of its own for what is handed out: threads of
one interpreter wait for each other (50x50 grid, w = 10, 8 cores and a GPU, 40 s: 3.2 nats always by
threads, 0.8 with five processes)."""

AT_HOME = 2
"""Cores that these leave to the threads of this process. What runs there is Python beside its
kernels, and waits for the interpreter: five threads used two cores, and what decides the answer
came later (100x100 grid, w = 10, 30 s, 14 cores: 64 nats always with five threads, 38 with two)."""


def _own_workers(
    executor: Submits | None, threads: int | None, time_limit: float | None
) -> LocalWorkers | None:
    """Local processes, not started yet; none where the caller said who works, or is a worker."""
    cores, seconds = usable_cores(), math.inf if time_limit is None else time_limit
    asked = executor is not None or threads is not None
    if asked or cores < MANY_CORES or seconds < LONG:
        return None
    from tightz.runtime.local_workers import LocalWorkers, can_start, is_worker

    alone = is_worker() or not can_start()
    return None if alone else LocalWorkers(cores - AT_HOME)


def _free_cores(executor: Submits | None) -> int:
    """Cores that local processes leave, at least 2: some streams do all their work here."""
    if executor is None:
        return usable_cores()
    from tightz.runtime.local_workers import LocalWorkers

    taken = executor.size if isinstance(executor, LocalWorkers) else 0
    return max(2, usable_cores() - taken)


def _run(
    working: Working,
    board: Board,
    methods: list[Method],
    farm: Farm,
    workers: list[threading.Thread],
    *,
    before: bool,
) -> None:
    """The race, with what it needs compiled by the way."""
    if opening in methods and missing(kernels_of(opening.__name__, working.kind)):
        # Nobody waits for an exact sum whose kernels are not there yet: others compile sooner.
        if before:
            working.clock.hold()
        methods = [*methods, *side_by_side()]
    race(working, board, methods, farm, workers, hold=before)


def _result(
    working: Working,
    board: Board,
    ends: MarginalBounds | None,
    *,
    interrupted: bool,
    record: dict[str, Any],
    compiling: float,
) -> LogPartition:
    point = board.point_estimate()
    vectors = None if board.marginals is None else board.marginals.vectors
    if vectors is not None and ends is not None:
        vectors = ends.nearest(vectors)
    return LogPartition(
        lower_proof=board.lower,
        upper_proof=board.upper,
        confident=Confident(
            board.confident_lower,
            board.confident_upper,
            board.confidence,
            None if ends is None else ends.confident,
        ),
        estimate=point.log_z,
        estimate_error=point.error,
        estimate_source=point.source,
        marginals=vectors,
        marginal_bounds=None if ends is None else ends.always,
        marginal_source="" if board.marginals is None else board.marginals.source,
        marginal_status=None if board.marginals is None else board.marginals.mixing,
        bounds=board.bounds,
        notes=board.notes + board.failures,
        quarantined=board.quarantined,
        failures=board.failures,
        interrupted=interrupted,
        seconds=board.seconds,
        compile_seconds=compiling,
        model=working.model,
        sampler=board.sampler,
        ledger=board.ledger,
        provenance=record,
        store_error=board.lost,
    )
