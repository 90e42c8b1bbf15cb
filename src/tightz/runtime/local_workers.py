"""Local processes, each replaced when it dies."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from typing import IO, Any

import cloudpickle

from tightz.errors import require_range

STARTS = 9
"""Processes that are started one after the other until one of them lives."""

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""For matrix products on a worker, which has a core of its own and no more."""

serving = False
"""Whether this process is a local worker."""


class KilledWorker(RuntimeError):
    """The process that had a task is gone."""


class LocalWorkers(Executor):
    """n processes, each with a thread here that waits for it and replaces it when it dies.

    They are started as they are needed; use it in a `with` statement.
    So a death is the loss of one known task; whether that is sent again is the sender's business.
    A process is an interpreter of its own that loads no script: what a script defines travels by
    cloudpickle, and none needs `if __name__ == "__main__":`. It ends with this process, also when
    that is killed, and hears no Ctrl-C.
    """

    def __init__(self, n: int, initializer: Callable[[], Any] = int) -> None:
        require_range("workers", n, 1)
        self.size = n
        self._initializer = initializer
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="tightz process")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by the thread that waits for it
        self._over = False

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [process.pid for process in list(self._processes.values())]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As Executor.submit, but KilledWorker is raised where the process that had it died."""
        return self._threads.submit(self._serve, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As Executor.shutdown; `cancel_futures` ends what is under way as well, and at once."""
        self._over |= cancel_futures
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        if self._over:
            for process in list(self._processes.values()):
                process.kill()
        if wait or self._over:
            self._threads.shutdown()
            for thread in list(self._processes):
                self._end(thread)

    def _serve(self, call: partial[Any]) -> Any:
        task, me = cloudpickle.dumps(call), threading.get_ident()
        try:
            if me not in self._processes:
                self._start(me)
            answer = _exchange(self._processes[me], task)
        except (EOFError, OSError) as error:
            self._end(me)
            raise KilledWorker(str(error)) from error
        good, value = pickle.loads(answer)
        if good:
            return value
        raise value

    def _start(self, me: int) -> None:
        """A process for this thread; a death before its first answer costs the task nothing."""
        path = [str(folder) for folder in sys.path]
        code = f"import sys; sys.path[:] = {path}; import {__name__} as me; me.serve()"
        for left in reversed(range(STARTS)):
            process = self._processes[me] = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=ONE_THREAD | dict(os.environ), start_new_session=True,
            )  # fmt: skip
            if self._over:
                process.kill()
            try:
                _exchange(process, cloudpickle.dumps(self._initializer))
                return
            except (EOFError, OSError) as error:
                self._end(me)
                if self._over or not left:
                    raise EOFError("it dies while it starts") from error

    def _end(self, thread: int) -> None:
        if process := self._processes.pop(thread, None):
            process.kill()
            process.communicate()


def is_worker() -> bool:
    """Whether another process gives this one its work."""
    return serving or parent_process() is not None


def serve() -> None:
    """What a local worker does: answer call by call, until nobody is there to call."""
    global serving
    serving = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there are no sessions
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a task prints is no answer
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks, calls.put), daemon=True).start()
    import numba  # noqa: F401  # it takes long: no task is blamed for it

    while True:
        _put(answers, _answer(calls.get()))


def _listen(tasks: IO[bytes], take: Callable[[bytes], None]) -> None:
    """Also while a task runs: without anybody who waits for its answer it ends."""
    with suppress(EOFError):
        while True:
            take(_get(tasks))
    os._exit(1)


def _answer(call: bytes) -> bytes:
    try:
        return cloudpickle.dumps((True, pickle.loads(call)()))
    except BaseException as error:
        error.add_note(f"on a local worker:\n{traceback.format_exc()}")
        return cloudpickle.dumps((False, error))


def _exchange(process: subprocess.Popen[bytes], call: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    _put(process.stdin, call)
    return _get(process.stdout)


def _put(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(8, "little"))
    pipe.write(message)
    pipe.flush()


def _get(pipe: IO[bytes]) -> bytes:
    size = pipe.read(8)
    message = pipe.read(int.from_bytes(size, "little"))
    if len(size) < 8 or len(message) < int.from_bytes(size, "little"):
        raise EOFError("its process ended")
    return message
