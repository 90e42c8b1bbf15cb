"""Local processes, each replaced when it dies."""

from __future__ import annotations

import os
import reprlib
import signal
import threading
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Any

from tightz.errors import require_range
from tightz.runtime.parcels import ExecutorError

LIVES = 8
"""Times a task may lose its worker and be sent again. Killers are rare, unlucky tasks are not: with
workers killed every two seconds, one task of a third of a second in 2,500 dies four times."""


class GivenUpError(ExecutorError):
    """A task that loses every worker."""


def given_up(task: Any) -> GivenUpError:
    """The error that names the task."""
    return GivenUpError(
        f"task {reprlib.repr(task)} lost its worker {LIVES + 1} times and was given up: the worker "
        "is killed, runs out of memory, or cannot start (a script that starts processes needs "
        "`if __name__ == '__main__':`)"
    )


_starting = threading.Lock()
"""One process is started at a time: a fork in another thread would inherit the pipe by which the
end of this one is noticed, keep it open, and nobody would hear of a death."""


class LocalWorkers(Executor):
    """n processes, each with a thread here that waits for it and replaces it when it dies.

    So a death is the loss of one known task, which runs again, up to LIVES times.
    """

    def __init__(
        self,
        n: int,
        context: Any = None,
        initializer: Callable[..., None] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        require_range("workers", n, 1)
        self._max_workers = n
        self._context = context or get_context("spawn")  # a fork copies numba's locks, not threads
        self._initializer = partial(_settle, initializer, *initargs)
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="tightz process")
        self._mine = threading.local()
        self._started: dict[int, ProcessPoolExecutor] = {}  # by the thread that waits for it

    @property
    def size(self) -> int:
        return self._max_workers

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [pid for pool in list(self._started.values()) for pid in pool._processes or ()]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As Executor.submit; processes are started as they are needed."""
        return self._threads.submit(self._serve, partial(fn, *args, **kwargs))

    def _serve(self, call: partial[Any]) -> Any:
        cause: BaseException | None = None
        for _ in range(LIVES + 1):
            try:
                return self._process().submit(call).result()
            except BrokenExecutor as error:
                cause = error
                self._mine.pool = None
        raise given_up(call.args[-1] if call.args else call) from cause

    def _process(self) -> ProcessPoolExecutor:
        """This thread's process; a death before its first answer costs the task no life."""
        pool: ProcessPoolExecutor | None = getattr(self._mine, "pool", None)
        births = 0
        while pool is None:
            births += 1
            try:
                with _starting:
                    pool = ProcessPoolExecutor(
                        1, mp_context=self._context, initializer=self._initializer
                    )
                    awake = pool.submit(_wake)
                self._started[threading.get_ident()] = pool
                awake.result()
            except BrokenExecutor:
                if births > LIVES:
                    raise
                pool = None
        self._mine.pool = pool
        return pool

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As Executor.shutdown; processes end after the task they are at."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        for pool in list(self._started.values()):
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)


def local_workers(n: int) -> LocalWorkers:
    """A pool of n local processes, started as they are needed; use it in a `with` statement.

    They leave Ctrl-C to this process and end when it is killed.
    """
    return LocalWorkers(n)


def _settle(initializer: Callable[..., None] | None = None, *initargs: Any) -> None:
    """On a new local worker: this process answers for it."""
    global _starting
    _starting = threading.Lock()  # a fork's is held by a thread that is not here
    # Ctrl-C goes to the whole process group: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _wake() -> None:
    """On a new local worker: load what takes long, so that no task is blamed for it."""
    import numba  # noqa: F401


def _end_with(parent: Any) -> None:
    parent.join()
    # The parent is gone, killed perhaps: nobody waits for this worker's result any more.
    os._exit(1)
