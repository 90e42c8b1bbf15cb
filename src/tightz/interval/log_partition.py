"""The main job: an interval on log Z that narrows while you watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Any

from tightz.bounds import Bound
from tightz.errors import require_probability, require_seconds
from tightz.interval import portfolio
from tightz.interval.board import Board, judged
from tightz.interval.interval import LogPartition
from tightz.interval.race import race
from tightz.interval.stored_interval import IntervalSession
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_model
from tightz.models.scale import scale_warnings
from tightz.paper.stored import Store, opened
from tightz.runtime.clock import Clock
from tightz.runtime.memory import parse_memory
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.workspace.job import Job, Method


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
                 of a `Job` that yields `Bound` or `Finding` records about `job.working` and watches
                 `job.clock`. A bound that holds always must carry evidence: the judge evaluates it
                 afresh, and what it cannot confirm is set aside in `quarantined`
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
    require_seconds("time_limit", time_limit)
    require_probability("delta", delta)
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
        board = Board(clock, on_bound, notes=scale_warnings(model))
        if session is not None:
            board.keep, board.before = session.writer.append_bound, session.before
        interrupted = False
        try:
            if session is not None:
                session.prepare(job, board)
            for bound in portfolio.trivial(model):
                board.take(judged(bound, model))
            if not board.closed or (session is not None and session.lacks_marginals):
                race(job, board, [portfolio.exact_first] if methods is None else methods)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            clock.stop()
        certified = board.certified if session is None else session.together(board.certified)
        result = _result(job, board, certified, interrupted=interrupted, record=record)
        if session is not None:
            session.conclude(result, board.marginals)
    return result


def _result(
    job: Job, board: Board, certified: Bound, *, interrupted: bool, record: dict[str, Any]
) -> LogPartition:
    point = board.point_estimate()
    return LogPartition(
        lower_proof=board.lower,
        upper_proof=board.upper,
        certified=certified,
        estimate=point.log_z,
        estimate_error=point.error,
        estimate_source=point.source,
        marginals=None if board.marginals is None else board.marginals.vectors,
        marginal_source="" if board.marginals is None else board.marginals.source,
        marginal_status=None if board.marginals is None else board.marginals.mixing,
        bounds=board.bounds,
        notes=board.notes + board.failures,
        quarantined=board.quarantined,
        failures=board.failures,
        interrupted=interrupted,
        seconds=board.seconds,
        model=job.model,
        sampler=board.sampler,
        provenance=record,
    )
