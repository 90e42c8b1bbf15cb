"""One seam for parallelism: a crew takes tasks to threads, processes, dask or MPI, and back.

An executor replaces its dead workers itself; what they had is sent again from here, and only here.
"""

from __future__ import annotations

import reprlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from tightz.errors import ParameterError, TightzError
from tightz.runtime.clock import my_clock, work_for
from tightz.runtime.cores import usable_cores
from tightz.runtime.local_workers import LocalWorkers
from tightz.runtime.parcels import KEPT, Done, ExecutorError, pack, run_parcel, run_timed
from tightz.runtime.provenance import versions

Task = TypeVar("Task")
Result = TypeVar("Result")

IN_FLIGHT = 4
"""Tasks submitted and not yet handed back, per worker: enough that none waits for this process."""

LIVES = 8
"""Times a task may lose its worker and be sent again. Killers are rare, unlucky tasks are not: with
workers killed every two seconds, one task of a third of a second in 2,500 dies four times."""

WAITING = 4096
"""Threads at most that wait for an executor, one for each task that it has."""

LOOK = 2.0
"""Seconds after which it is asked again whether anybody is left to wait for."""

CLOSED = "CommClosedError"
"""dask's word for a connection that ended, to a worker or to its scheduler."""

LOST = ("KilledWorker", "CancelledError", "FutureCancelledError", "FuturesCancelledError", CLOSED)
"""Exceptions, dask's among them, by which an executor says that the worker is gone."""


class GivenUpError(ExecutorError):
    """A task that loses every worker."""


class Submits(Protocol):
    """What an executor must offer: concurrent.futures.Executor, a dask client, an MPI pool."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Run fn(*args) somewhere; a future with `result`, `cancel` and `add_done_callback`."""


def require_executor(executor: Any) -> None:
    """Refuse what takes no tasks; None stands for threads."""
    if executor is not None and (not hasattr(executor, "submit") or isinstance(executor, type)):
        raise ParameterError(
            f"executor is {executor!r}; expected a concurrent.futures.Executor, a dask client or "
            "another object with `submit`"
        )


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
    crew = Crew(executor, threads)
    pending: deque[Future[Done]] = deque()
    try:
        for task in tasks:
            pending.append(crew.send(function, task))
            # A bounded window: memory stays small, and Ctrl-C loses little.
            if len(pending) >= IN_FLIGHT * crew.size:
                yield pending.popleft().result().value
        while pending:
            yield pending.popleft().result().value
    finally:
        crew.dismiss()


class Crew:
    """An executor's workers, or threads of this process where there is none.

    `send` returns a future that ends with the result, whatever happens to workers on the way: a
    thread of this process waits for each task, and sends it again where its worker was lost.
    """

    def __init__(self, executor: Submits | None = None, threads: int | None = None) -> None:
        self._stack = ExitStack()  # what this crew started itself
        self._pool: Any = None if executor is None else self._engage(executor)
        waiting = threads or usable_cores() if executor is None else WAITING
        self._threads = ThreadPoolExecutor(
            waiting, thread_name_prefix="tightz crew", initializer=work_for, initargs=(my_clock(),)
        )
        self._parcels: dict[int, tuple[Callable[[Any], Any], Any]] = {}
        self._flying: dict[threading.Event, Any] = {}  # what a thread waits for: its future
        self._over: Exception | None = None  # why nobody waits any more
        self._packing = threading.Lock()
        self._last = threading.Lock()  # held by the task that is on its last life
        # Ctrl-C: leave at once; threads are not waited for
        self._stack.callback(self._threads.shutdown, wait=False, cancel_futures=True)
        if hasattr(self._pool, "why_deserted"):  # its tasks wait for ever where nobody comes
            halted = threading.Event()
            self._stack.callback(halted.set)
            threading.Thread(target=self._watch, args=(halted,), daemon=True).start()

    @property
    def size(self) -> int:
        """Workers, as far as the executor says; a dask cluster's number may change."""
        pool = self._threads if self._pool is None else self._pool
        for name in ("size", "_max_workers", "num_workers"):
            if isinstance(count := getattr(pool, name, None), int):
                return max(count, 1)
        return usable_cores()

    def send(self, function: Callable[[Any], Any], task: Any) -> Future[Done]:
        """function(task) by whoever is free; one function object travels to each worker once."""
        run = run_timed if self._pool is None else self._see_through
        return self._threads.submit(run, function, task)

    def dismiss(self) -> None:
        """Cancel what is under way, and end the workers that this crew started itself."""
        self._halt(CancelledError())
        self._stack.close()

    def _engage(self, executor: Any) -> Any:
        """Who takes tasks for this executor."""
        require_executor(executor)
        client = getattr(executor, "_client", executor)
        if hasattr(client, "get_executor"):
            from tightz.runtime.cluster import DaskPool

            return DaskPool(client, **getattr(executor, "_kwargs", {}))
        if isinstance(executor, ProcessPoolExecutor):
            # It breaks with its first process, and waits for ever where that dies in the middle of
            # an answer. Ours, as many and prepared as its own would be, do neither.
            like: Any = executor
            ready = partial(like._initializer or int, *like._initargs)
            pool = LocalWorkers(like._max_workers, ready)
            self._stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            return pool
        return executor

    def _see_through(self, function: Callable[[Any], Any], task: Any) -> Done:
        """In a thread that waits for it: send it until it comes back.

        A worker holds several tasks, and results not yet fetched: one of them kills it, all are
        lost, and who was to blame shows only where it is sent without the others. So last lives are
        spent one at a time, and none dies of its neighbour's fault.
        """
        for life in range(LIVES + 1):
            with self._last if life == LIVES else nullcontext():
                try:
                    return self._sent(function, task)
                except BaseException as error:
                    if error is self._over or type(error).__name__ not in LOST:
                        raise
                    loss = error
        if type(loss).__name__ == CLOSED:  # not the task's doing: nobody is there
            raise ExecutorError(f"the cluster stopped answering: {loss}") from loss
        raise GivenUpError(
            f"task {reprlib.repr(task)} lost its worker {LIVES + 1} times and was given up: the "
            "worker is killed, runs out of memory, or cannot start"
        ) from loss

    def _sent(self, function: Callable[[Any], Any], task: Any) -> Done:
        """Its result, or why there is none this time."""
        if isinstance(self._pool, ThreadPoolExecutor):
            return self._waited(run_timed, function, task)
        done = self._waited(run_parcel, versions(), self._parcel(function), task)
        if not isinstance(done, Done):
            name, what = type(self._pool).__name__, type(done).__name__
            raise ExecutorError(f"{name} gave {what} for what a task returned")
        return done

    def _waited(self, *call: Any) -> Any:
        """What the pool makes of a call, waited for as long as anybody wants it."""
        name, ended = type(self._pool).__name__, threading.Event()
        try:
            future = self._pool.submit(*call)  # may wait for a place as long as it likes
        except Exception as error:
            if isinstance(error, TightzError) or type(error).__name__ in LOST:
                raise
            what = type(error).__name__
            raise ExecutorError(f"{name} takes no tasks: {what}: {error}") from error
        self._flying[ended] = future
        try:
            if self._over is None:
                future.add_done_callback(lambda _: ended.set())
                ended.wait()
            if self._over is not None:
                future.cancel()
                raise self._over
            return future.result()  # dask fetches it now, and may have to make it again
        except BrokenExecutor as error:
            raise ExecutorError(f"{name} broke: {error}") from error
        finally:
            del self._flying[ended]

    def _parcel(self, function: Callable[[Any], Any]) -> Any:
        """What goes with its tasks: packed at the first of them."""
        with self._packing:
            known = self._parcels.pop(id(function), None)
            if known is None:  # kept with its function: an id means nothing once that is gone
                known = function, getattr(self._pool, "share", bytes)(pack(function))
            self._parcels[id(function)] = known
            while len(self._parcels) > KEPT:
                del self._parcels[next(iter(self._parcels))]
            return known[1]

    def _watch(self, halted: threading.Event) -> None:
        """Fail what is under way where nobody is left to do it."""
        while not halted.wait(LOOK):
            if why := self._pool.why_deserted():
                self._halt(ExecutorError(why))
                return

    def _halt(self, why: Exception) -> None:
        """Nobody waits any more."""
        self._over = why
        for ended, future in list(self._flying.items()):
            ended.set()
            with suppress(Exception):  # a cluster that is gone has nothing to cancel
                future.cancel()
