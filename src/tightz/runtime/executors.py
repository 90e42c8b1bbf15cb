"""One seam for parallelism: a crew takes tasks to threads, processes, dask or MPI, and back."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
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
from tightz.runtime.local_workers import LIVES, LocalWorkers, given_up
from tightz.runtime.parcels import KEPT, Done, ExecutorError, Parcel, run_parcel, run_timed
from tightz.runtime.provenance import versions

Task = TypeVar("Task")
Result = TypeVar("Result")

IN_FLIGHT = 4
"""Tasks submitted and not yet handed back, per worker: enough that none waits for this process."""


LOOK = 2.0
"""Seconds after which it is asked again whether anybody is left to wait for."""

CLOSED = "CommClosedError"
"""dask's word for a connection that ended, to a worker or to its scheduler."""


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

    `send` returns a future that ends with the result, whatever happens to workers on the way: local
    workers and dask replace their dead, and a process pool that the caller brought and that broke
    is replaced by local workers.
    """

    def __init__(self, executor: Submits | None = None, threads: int | None = None) -> None:
        self._stack = ExitStack()  # what this crew started or wrote itself
        self._pool: Any = None if executor is None else _pool(executor)
        if executor is None:
            self._adopt(ThreadPoolExecutor(threads or usable_cores()))
        self._parcels: OrderedDict[int, _Shared] = OrderedDict()
        self._flying: dict[Future[Done], Any] = {}
        self._last: deque[_Errand] = deque()  # on their last lives; the first of them is out
        self._lock = threading.RLock()
        self._dismissed = threading.Event()
        if hasattr(self._pool, "why_deserted"):  # its tasks wait for ever where nobody comes
            threading.Thread(target=self._watch, name="tightz crew", daemon=True).start()

    @property
    def size(self) -> int:
        """Workers, as far as the executor says; a dask cluster's number may change."""
        for name in ("workers", "_max_workers", "num_workers"):
            if isinstance(count := getattr(self._pool, name, None), int):
                return max(count, 1)
        return usable_cores()

    def send(self, function: Callable[[Any], Any], task: Any) -> Future[Done]:
        """function(task) by whoever is free; one function object travels once."""
        promise: Future[Done] = Future()
        self._submit(_Errand(function, task, promise))
        return promise

    def _watch(self) -> None:
        """Fail what is under way where nobody is left to do it."""
        while not self._dismissed.wait(LOOK):
            if not (why := self._pool.why_deserted()):
                continue
            with self._lock:
                flying, self._flying = self._flying, {}
            for promise, future in flying.items():
                _end(promise.set_exception, ExecutorError(why))
                with suppress(Exception):
                    future.cancel()

    def wake(self, answered: Callable[[BaseException | None], None]) -> None:
        """Have the workers started; `answered` is called once, when the first of them is there."""
        calls = iter([answered])

        def first(promise: Future[Done]) -> None:
            call = None if promise.cancelled() else next(calls, None)
            if call is not None:
                call(promise.exception())

        for number in range(self.size):
            self.send(abs, number).add_done_callback(first)

    def _submit(self, errand: _Errand) -> None:
        pool = self._pool
        call: tuple[Any, ...] = run_timed, errand.function, errand.task
        try:
            if not isinstance(pool, ThreadPoolExecutor):
                shared = self._shared(errand.function, pool)
                call = run_parcel, versions(), shared.digest, shared.content, errand.task
            future = pool.submit(*call)
        except Exception as error:
            # The promise must hear of it: this may be another task's callback, which nobody hears.
            self._ended(errand, pool, error if _is_loss(error) else _refusal(pool, error))
            return
        with self._lock:
            self._flying[errand.promise] = future
        future.add_done_callback(partial(self._heard, errand, pool))

    def _shared(self, function: Callable[[Any], Any], pool: Any) -> _Shared:
        """The function's parcel, packed at its first task and put where the workers find it."""
        with self._lock:
            known = self._parcels.get(id(function))
            if known is None or known.function is not function or known.pool is not pool:
                parcel, content = Parcel.pack(function), None
                if hasattr(pool, "share"):  # dask: the result of a task, which it can make again
                    content = pool.share(parcel.content)
                elif isinstance(pool, LocalWorkers | ProcessPoolExecutor):
                    with suppress(OSError):  # no room: then it goes with every task
                        content = self._stack.enter_context(parcel.on_disk())
                known = _Shared(function, pool, parcel.digest, content or parcel.content)
                self._parcels[id(function)] = known
            self._parcels.move_to_end(id(function))
            while len(self._parcels) > KEPT:
                self._parcels.popitem(last=False)
            return known

    def _heard(self, errand: _Errand, pool: Any, future: Any) -> None:
        """A task came back."""
        try:
            outcome = future.result()  # dask fetches it now, and may have to make it again
        except BaseException as error:  # SystemExit too: who waits must hear of it
            outcome = error
        self._ended(errand, pool, outcome)

    def _ended(self, errand: _Errand, pool: Any, outcome: Any) -> None:
        """With a result, an exception of its own, or without its worker."""
        self._landed(errand)
        if isinstance(outcome, Done):
            _end(errand.promise.set_result, outcome)
        elif not isinstance(outcome, BaseException):  # who waits would wait for ever
            name, what = type(pool).__name__, type(outcome).__name__
            wrong = ExecutorError(f"{name} gave {what} for what a task returned")
            _end(errand.promise.set_exception, wrong)
        elif _is_loss(outcome):
            self._lost(errand, pool, outcome)
        else:
            _end(errand.promise.set_exception, outcome)

    def _landed(self, errand: _Errand) -> None:
        """It is no longer out; whose last life waited for that goes next."""
        with self._lock:
            self._flying.pop(errand.promise, None)
            if not self._last or self._last[0].promise is not errand.promise:
                return
            self._last.popleft()
            following = self._last[0] if self._last and not self._dismissed.is_set() else None
        if following is not None:
            self._submit(following)

    def _again(self, errand: _Errand) -> None:
        """Send what was lost; last lives one at a time, so that none dies of its neighbour's fault.

        A worker holds several tasks, and results not yet fetched: one of them kills it, all are
        lost, and who was to blame shows only where it is sent without the others.
        """
        if errand.losses == LIVES:
            with self._lock:
                self._last.append(errand)
                if len(self._last) > 1:
                    return
        self._submit(errand)

    def _lost(self, errand: _Errand, pool: Any, error: BaseException) -> None:
        """Send it again; who takes it is the executor's business, unless that is broken."""
        if errand.promise.done():  # cancelled, or ended because nobody was left
            return
        try:
            if isinstance(error, BrokenExecutor):
                self._replace(pool, error)  # all its tasks are lost, and nobody knows by whom
            elif errand.losses == LIVES:
                if type(error).__name__ == CLOSED:  # not the task's doing: nobody is there
                    raise ExecutorError(f"the cluster stopped answering: {error}") from error
                raise given_up(errand.task) from error
            else:
                errand = errand._replace(losses=errand.losses + 1)
            self._again(errand)
        except Exception as trouble:  # a promise that never ends would stop the run
            _end(errand.promise.set_exception, trouble)

    def _replace(self, broken: Any, error: BaseException) -> None:
        with self._lock:
            if broken is not self._pool:  # another task found it first
                return
            if not isinstance(broken, ProcessPoolExecutor):
                raise ExecutorError(f"{type(broken).__name__} broke: {error}") from error
            pool: Any = broken  # it belongs to the caller and cannot be mended
            self._adopt(
                LocalWorkers(pool._max_workers, pool._mp_context, pool._initializer, pool._initargs)
            )

    def _adopt(self, pool: Executor) -> None:
        self._pool = pool
        # Ctrl-C: leave at once; threads are not waited for
        self._stack.callback(pool.shutdown, wait=False, cancel_futures=True)

    def dismiss(self) -> None:
        """Cancel what is under way, and end the workers that this crew started itself."""
        self._dismissed.set()
        with self._lock:
            flying, self._flying = self._flying, {}
        for promise, future in flying.items():
            promise.cancel()
            with suppress(Exception):  # a cluster that is gone has nothing to cancel
                future.cancel()
        self._stack.close()


class _Shared(NamedTuple):
    """A function's parcel at one pool: what goes with each of its tasks."""

    function: Callable[[Any], Any]
    pool: Any
    digest: bytes
    content: Any


def _end(settle: Callable[[Any], None], outcome: Any) -> None:
    with suppress(InvalidStateError):  # cancelled: nobody waits any more
        settle(outcome)


def _refusal(pool: Any, error: Exception) -> Exception:
    """Why a task was not taken; other libraries' errors in our words: not the task's doing."""
    if isinstance(error, TightzError):
        return error
    name = type(pool).__name__
    refusal = ExecutorError(f"{name} takes no tasks: {type(error).__name__}: {error}")
    refusal.__cause__ = error
    return refusal


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
    """Whether the worker is to blame and not the task; dask's are known by name."""
    names = ("KilledWorker", "FutureCancelledError", "FuturesCancelledError", CLOSED)
    return isinstance(error, BrokenExecutor | CancelledError) or type(error).__name__ in names
