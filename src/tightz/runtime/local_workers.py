"""Local processes, each replaced when it dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import get_context, parent_process, resource_tracker, spawn
from typing import Any

from tightz.errors import require_range

STARTS = 9
"""Processes that a thread starts one after the other until one of them lives."""

_starting = threading.Lock()
"""One process is started at a time: a fork in another thread would inherit the pipe by which the
end of this one is noticed, keep it open, and nobody would hear of a death."""


class KilledWorker(RuntimeError):
    """The process that had a task is gone."""


class LocalWorkers(Executor):
    """n processes, each with a thread here that waits for it and replaces it when it dies.

    So a death is the loss of one known task; whether that is sent again is the sender's business.
    `with_main`: whether they load the script that this process runs, for functions that it defines;
    a script without `if __name__ == "__main__":` would run again in each of them.
    """

    def __init__(
        self,
        n: int,
        context: Any = None,
        initializer: Callable[..., None] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        with_main: bool = True,
    ) -> None:
        require_range("workers", n, 1)
        self._preparing = nullcontext if with_main else _without_main
        self.size = n
        self._context = context or get_context("spawn")  # a fork copies numba's locks, not threads
        self._initializer = partial(_settle, initializer, *initargs)
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="tightz process")
        self._processes: dict[int, ProcessPoolExecutor] = {}  # by the thread that waits for it
        self._abandoned = False

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [pid for pool in list(self._processes.values()) for pid in pool._processes or ()]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As Executor.submit, but KilledWorker is raised where the process that had it died."""
        return self._threads.submit(self._serve, partial(fn, *args, **kwargs))

    def _serve(self, call: partial[Any]) -> Any:
        me = threading.get_ident()
        try:
            process = self._processes.get(me) or self._start()
            return process.submit(call).result()
        except BrokenExecutor as error:
            self._processes.pop(me, None)
            raise KilledWorker(str(error)) from error

    def _start(self) -> ProcessPoolExecutor:
        """A process for this thread; a death before its first answer costs the task nothing."""
        for _ in range(STARTS):
            with _starting, self._preparing(), _undisturbed():
                if self._abandoned:
                    break
                process = ProcessPoolExecutor(
                    1, mp_context=self._context, initializer=self._initializer
                )
                awake = process.submit(_wake)
                # Only the process may write there: with two writers half an answer has no end.
                answers: Any = process._result_queue
                answers._writer.close()
                self._processes[threading.get_ident()] = process
            with suppress(BrokenExecutor):
                awake.result()
                return process
        raise BrokenExecutor("it dies while it starts")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As Executor.shutdown; processes end after the task they are at."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        for process in list(self._processes.values()):
            process.shutdown(wait=wait, cancel_futures=cancel_futures)

    def abandon(self) -> None:
        """End the processes at once, whatever they are at: nobody waits for it.

        An interpreter that exits would wait for their tasks. A Ctrl-C in that wait closes the
        queues before the processes were told to end, and it waits for ever.
        """
        with _starting:
            self._abandoned = True
            pools = list(self._processes.values())
            processes = [one for pool in pools for one in dict(pool._processes or {}).values()]
        self.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with suppress(Exception):  # it may be gone
                process.terminate()


def local_workers(n: int) -> LocalWorkers:
    """A pool of n local processes, started as they are needed; use it in a `with` statement.

    They leave Ctrl-C to this process and end when it is killed.
    """
    return LocalWorkers(n)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Processes that this thread starts hear no Ctrl-C, not even before they know what it means."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # who starts it lets signals in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that this thread starts are not told which script runs here; one at a time."""
    whole, me = spawn.get_preparation_data, threading.get_ident()

    def data(name: str) -> dict[str, Any]:
        out: dict[str, Any] = whole(name)
        if threading.get_ident() == me:
            out = {key: value for key, value in out.items() if not key.startswith("init_main")}
        return out

    spawn.get_preparation_data = data
    try:
        yield
    finally:
        spawn.get_preparation_data = whole


def _settle(initializer: Callable[..., None] | None, *initargs: Any) -> None:
    """On a new local worker: the process that started it answers for it."""
    global _starting
    _starting = threading.Lock()  # a fork's is held by a thread that is not here
    # Ctrl-C goes to the whole process group: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _wake() -> None:
    """On a new local worker: load what takes long, so that no task is blamed for it."""
    import numba  # noqa: F401


def _end_with(parent: Any) -> None:
    parent.join()
    # The parent is gone, killed perhaps: nobody waits for this worker's result any more.
    os._exit(1)
