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
    Executor,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from tightz.errors import ParameterError, TightzError
from tightz.runtime.cores import usable_cores
from tightz.runtime.local_workers import LocalWorkers
from tightz.runtime.parcels import KEPT, Done, ExecutorError, on_disk, pack, run_parcel, run_timed
from tightz.runtime.provenance import versions

Task = TypeVar("Task")
Result = TypeVar("Result")

IN_FLIGHT = 4
"""Tasks submitted and not yet handed back, per worker: enough that none waits for this process."""

LIVES = 8
"""Times a task may lose its worker and be sent again. Killers are rare, unlucky tasks are not: with
workers killed every two seconds, one task of a third of a second in 2,500 dies four times."""

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
            # A bounded window: results come back in order, memory stays small, and Ctrl-C loses
            # little.
            if len(pending) >= IN_FLIGHT * crew.size:
                yield pending.popleft().result().value
        while pending:
            yield pending.popleft().result().value
    finally:
        crew.dismiss()


class _Errand(NamedTuple):
    """A task on its way: what carries it, who waits for it, and how often its worker was lost."""

    function: Callable[[Any], Any]
    task: Any
    promise: Future[Done]
    losses: int = 0


class Crew:
    """An executor's workers, or threads of this process where there is none.

    `send` returns a future that ends with the result, whatever happens to workers on the way.
    """

    def __init__(self, executor: Submits | None = None, threads: int | None = None) -> None:
        self._stack = ExitStack()  # what this crew started or wrote itself
        self._pool: Any = None if executor is None else _pool(executor)
        if executor is None:
            self._adopt(ThreadPoolExecutor(threads or usable_cores()))
        self._parcels: dict[int, tuple[Callable[[Any], Any], Any]] = {}
        self._flying: dict[Future[Done], Any] = {}
        self._last: Future[Any] = Future()  # who was on its last life most recently
        self._last.cancel()
        self._lock = threading.Lock()
        self._dismissed = threading.Event()
        if hasattr(self._pool, "why_deserted"):  # its tasks wait for ever where nobody comes
            threading.Thread(target=self._watch, name="tightz crew", daemon=True).start()

    def _adopt(self, pool: Executor) -> None:
        self._pool = pool
        # Ctrl-C: leave at once; threads are not waited for
        self._stack.callback(pool.shutdown, wait=False, cancel_futures=True)

    @property
    def size(self) -> int:
        """Workers, as far as the executor says; a dask cluster's number may change."""
        for name in ("size", "_max_workers", "num_workers"):
            if isinstance(count := getattr(self._pool, name, None), int):
                return max(count, 1)
        return usable_cores()

    def send(self, function: Callable[[Any], Any], task: Any) -> Future[Done]:
        """function(task) by whoever is free; one function object travels once."""
        promise: Future[Done] = Future()
        promise.add_done_callback(lambda _: self._flying.pop(promise, None))
        self._submit(_Errand(function, task, promise))
        return promise

    def wake(self, answered: Callable[[BaseException | None], None]) -> None:
        """Have the workers started; `answered` is called once, when the first of them is there."""
        calls = iter([answered])

        def first(promise: Future[Done]) -> None:
            call = None if promise.cancelled() else next(calls, None)
            if call is not None:
                call(promise.exception())

        for number in range(self.size):
            self.send(abs, number).add_done_callback(first)

    def dismiss(self) -> None:
        """Cancel what is under way, and end the workers that this crew started itself."""
        self._dismissed.set()
        self._drop(Future.cancel)
        self._stack.close()

    def _submit(self, errand: _Errand) -> None:
        if self._dismissed.is_set():
            errand.promise.cancel()
        if errand.promise.done():  # or ended because nobody was left
            return
        call: tuple[Any, ...] = run_timed, errand.function, errand.task
        try:
            if not isinstance(self._pool, ThreadPoolExecutor):
                call = run_parcel, versions(), self._parcel(errand.function), errand.task
            future = self._pool.submit(*call)
        except Exception as error:
            # The promise must hear of it: this may be another task's callback, which nobody hears.
            self._failed(errand, error, f"takes no tasks: {type(error).__name__}: {error}")
            return
        self._flying[errand.promise] = future
        if self._dismissed.is_set():  # in between
            self._drop(Future.cancel)
        future.add_done_callback(partial(self._back, errand))

    def _parcel(self, function: Callable[[Any], Any]) -> Any:
        """What goes with its tasks: packed at the first of them, and put where workers find it."""
        with self._lock:
            known = self._parcels.pop(id(function), None)
            if known is None:
                parcel: Any = pack(function)
                if hasattr(self._pool, "share"):
                    parcel = self._pool.share(parcel)
                elif isinstance(self._pool, LocalWorkers | ProcessPoolExecutor):
                    parcel = on_disk(parcel, self._stack)
                known = function, parcel  # an id means nothing once its function is gone
            self._parcels[id(function)] = known
            while len(self._parcels) > KEPT:
                del self._parcels[next(iter(self._parcels))]
            return known[1]

    def _back(self, errand: _Errand, future: Any) -> None:
        """A task came back."""
        try:
            done = future.result()  # dask fetches it now, and may have to make it again
        except BaseException as error:  # SystemExit too: who waits must hear of it
            self._failed(errand, error)
            return
        if isinstance(done, Done):
            _end(errand.promise.set_result, done)
        else:  # who waits would wait for ever
            name, what = type(self._pool).__name__, type(done).__name__
            self._failed(errand, ExecutorError(f"{name} gave {what} for what a task returned"))

    def _failed(self, errand: _Errand, error: BaseException, refusal: str = "") -> None:
        """Send it again if its worker was lost; tell who waits for it of anything else."""
        try:
            if isinstance(error, BrokenExecutor):
                self._replace(error)  # all its tasks are lost, and nobody knows by whom
                self._submit(errand)
            elif type(error).__name__ in LOST:
                self._again(errand._replace(losses=errand.losses + 1), error)
            elif refusal and not isinstance(error, TightzError):  # in our words
                raise ExecutorError(f"{type(self._pool).__name__} {refusal}") from error
            else:
                _end(errand.promise.set_exception, error)
        except Exception as verdict:  # a promise that never ends would stop the run
            _end(errand.promise.set_exception, verdict)

    def _replace(self, error: BrokenExecutor) -> None:
        """A process pool that broke belongs to the caller and cannot be mended: have our own."""
        with self._lock:
            pool = self._pool
            if isinstance(pool, ProcessPoolExecutor):
                like = pool._max_workers, pool._mp_context, pool._initializer, pool._initargs
                self._adopt(LocalWorkers(*like))
            elif not isinstance(pool, LocalWorkers):  # else another task found it first
                raise ExecutorError(f"{type(pool).__name__} broke: {error}") from error

    def _again(self, errand: _Errand, error: BaseException) -> None:
        """Send what was lost; last lives one at a time, so that none dies of its neighbour's fault.

        A worker holds several tasks, and results not yet fetched: one of them kills it, all are
        lost, and who was to blame shows only where it is sent without the others.
        """
        if errand.losses < LIVES:
            self._submit(errand)
        elif errand.losses == LIVES:
            with self._lock:
                before, self._last = self._last, errand.promise
            if before.done():
                self._submit(errand)
            else:  # in a thread: a row of refusals must not nest
                go = threading.Thread(target=self._submit, args=(errand,), daemon=True)
                before.add_done_callback(lambda _: go.start())
        elif type(error).__name__ == CLOSED:  # not the task's doing: nobody is there
            raise ExecutorError(f"the cluster stopped answering: {error}") from error
        else:
            raise GivenUpError(
                f"task {reprlib.repr(errand.task)} lost its worker {errand.losses} times and was "
                "given up: the worker is killed, runs out of memory, or cannot start (a script "
                "that starts processes needs `if __name__ == '__main__':`)"
            ) from error

    def _watch(self) -> None:
        """Fail what is under way where nobody is left to do it."""
        while not self._dismissed.wait(LOOK):
            if why := self._pool.why_deserted():
                self._drop(lambda promise: _end(promise.set_exception, ExecutorError(why)))

    def _drop(self, end: Callable[[Future[Done]], Any]) -> None:
        for promise, future in list(self._flying.items()):
            end(promise)
            with suppress(Exception):  # a cluster that is gone has nothing to cancel
                future.cancel()


def _end(settle: Callable[[Any], None], outcome: Any) -> None:
    with suppress(InvalidStateError):  # cancelled: nobody waits any more
        settle(outcome)


def _pool(executor: Any) -> Any:
    client = getattr(executor, "_client", executor)
    if hasattr(client, "get_executor"):
        from tightz.runtime.cluster import DaskPool

        return DaskPool(client, **getattr(executor, "_kwargs", {}))
    if hasattr(executor, "submit"):
        return executor
    raise ParameterError(
        f"executor is {executor!r}; expected a concurrent.futures.Executor, a dask client or "
        "another object with `submit`"
    )
