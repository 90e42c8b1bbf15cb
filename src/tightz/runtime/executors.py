"""One seam for parallelism: anything with `submit` runs the work; results come back in order."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from tightz.errors import ParameterError
from tightz.runtime.cluster import Answer, ExecutorError, Parcel, run_parcel
from tightz.runtime.cores import usable_cores
from tightz.runtime.provenance import versions

Task = TypeVar("Task")
Result = TypeVar("Result")

IN_FLIGHT = 4
"""Tasks submitted and not yet handed back, per worker: enough that none waits for this process."""

LIVES = 3
"""Times a task may lose its worker and be sent again."""


class Submits(Protocol):
    """What an executor must offer: concurrent.futures.Executor, a dask client, an MPI pool."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Run fn(*args) somewhere; a future with `result`, `done` and `cancel`."""


def map_ordered(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    executor: Submits | None = None,
    threads: int | None = None,
) -> Iterator[Result]:
    """function(task) for each task, in the order of the tasks, a bounded number in flight.

    With no executor a thread pool of `threads` (default: all cores) is used; the kernels release
    the interpreter lock. `threads=1` runs in the calling thread. On an executor a task whose worker
    died is run again, at most LIVES times; an exception raised by the function itself is not
    retried.
    """
    if executor is None and threads == 1:
        yield from map(function, tasks)
        return
    own = ThreadPoolExecutor(threads or usable_cores()) if executor is None else None
    crew = _Crew(function, own if executor is None else executor)
    pending: deque[_Errand[Task]] = deque()
    finished = False
    try:
        for task in tasks:
            pending.append(crew.send(task))
            # A bounded window: results come back in order, memory stays small, and Ctrl-C loses
            # little.
            if len(pending) >= IN_FLIGHT * crew.size:
                yield crew.finish(pending.popleft(), pending)
        while pending:
            yield crew.finish(pending.popleft(), pending)
        finished = True
    finally:
        with suppress(Exception):  # a cluster that is gone has nothing to cancel
            for errand in pending:
                errand.future.cancel()
        crew.dismiss()
        if own is not None:
            own.shutdown(wait=finished, cancel_futures=not finished)  # Ctrl-C: leave at once


class _Errand(Generic[Task]):
    """A task, the future of its latest submission and the pool that this went to."""

    def __init__(self, task: Task, pool: Any, future: Any) -> None:
        self.task, self.pool, self.future = task, pool, future

    @cached_property
    def outcome(self) -> tuple[Any, Exception | None]:
        """The result, or what went wrong; waits for it, fetches it once."""
        try:
            return self.future.result(), None
        except Exception as error:
            return None, error

    @property
    def unanswered(self) -> bool:
        """Done without a result, but not by its own fault."""
        result, error = self.outcome
        return result is Answer.NO_PARCEL if error is None else _is_loss(error)


class _Crew(Generic[Task, Result]):
    """An executor's workers and the function they share; a broken process pool is replaced."""

    def __init__(self, function: Callable[[Task], Result], executor: Any) -> None:
        self.function = function
        self.pool = _pool(executor)
        self.replacement: ProcessPoolExecutor | None = None
        threaded = isinstance(self.pool, ThreadPoolExecutor)
        self.parcel = None if threaded else Parcel.pack(function)
        self._introduce()

    @property
    def size(self) -> int:
        """Workers, as far as the executor says; a dask cluster's number may change."""
        for name in ("workers", "_max_workers", "num_workers"):
            if isinstance(count := getattr(self.pool, name, None), int):
                return max(count, 1)
        return usable_cores()

    def _introduce(self) -> None:
        """Share the parcel with all workers where the pool can; else the first tasks carry it."""
        self.shared: Any = None
        self.carriers = self.size
        if self.parcel is not None and hasattr(self.pool, "share"):
            self.shared = self.pool.share(self.parcel.content)

    def send(self, task: Task, *, carry: bool = False) -> _Errand[Task]:
        """Submit the task, with the parcel if it is to carry it or is among the first."""
        try:
            if self.parcel is None:
                future = self.pool.submit(self.function, task)
            else:
                content = self.shared
                if content is None and (carry or self.carriers > 0):
                    content, self.carriers = self.parcel.content, self.carriers - 1
                parts = versions(), self.parcel.digest, content, task
                future = self.pool.submit(run_parcel, *parts)
        except (BrokenExecutor, CancelledError) as error:
            future = Future()
            future.set_exception(error)
        return _Errand(task, self.pool, future)

    def finish(self, errand: _Errand[Task], others: deque[_Errand[Task]]) -> Result:
        """The errand's result, whatever happens to workers; the others are sent again as needed.

        After a loss the errand runs alone, so that a task that kills its worker is the one named.
        """
        losses = 0
        # A worker without the parcel answers so and costs no life; a lost worker does. The
        # function's own exception is an answer and is raised below.
        while errand.unanswered:
            if (error := errand.outcome[1]) is not None:
                losses += 1
                if losses > LIVES:
                    raise ExecutorError(
                        f"task {reprlib.repr(errand.task)} lost its worker {losses} times and was "
                        "given up: the worker is killed, runs out of memory, or cannot start (a "
                        "script that starts processes needs `if __name__ == '__main__':`)"
                    ) from error
                if errand.pool is self.pool:
                    self._repair(error)
            errand = self.send(errand.task, carry=True)
        # A broken pool takes all its futures with it: those are sent again, without losing a life,
        # since nobody knows whose task broke it.
        for i, other in enumerate(others):
            if other.future.done() and other.unanswered:
                others[i] = self.send(other.task, carry=True)
        result, error = errand.outcome
        if error is not None:
            raise error
        return result

    def _repair(self, error: BaseException) -> None:
        """Replace a broken process pool by one like it; dask replaces its workers itself."""
        if isinstance(self.pool, ProcessPoolExecutor):
            # The pool belongs to the caller and cannot be mended: one like it serves the rest of
            # the run.
            broken: Any = self.pool
            self.dismiss()
            self.pool = self.replacement = ProcessPoolExecutor(
                broken._max_workers,
                mp_context=broken._mp_context,
                initializer=broken._initializer,
                initargs=broken._initargs,
            )
        elif isinstance(error, BrokenExecutor):
            raise ExecutorError(f"{type(self.pool).__name__} broke: {error}") from error
        self._introduce()

    def dismiss(self) -> None:
        """End the workers that this crew started itself."""
        if self.replacement is not None:
            self.replacement.shutdown(wait=True, cancel_futures=True)


def _pool(executor: Any) -> Any:
    client = getattr(executor, "_client", executor)
    if hasattr(client, "get_executor"):
        from tightz.runtime.cluster import DaskPool

        return DaskPool(client, getattr(executor, "_kwargs", {}))
    if hasattr(executor, "submit"):
        return executor
    raise ParameterError(
        f"executor is {executor!r}; expected a concurrent.futures.Executor, a dask client or "
        "another object with `submit`"
    )


def _is_loss(error: BaseException) -> bool:
    """Whether the worker is to blame and not the task; dask's KilledWorker is known by name."""
    return (
        isinstance(error, BrokenExecutor | CancelledError) or type(error).__name__ == "KilledWorker"
    )
