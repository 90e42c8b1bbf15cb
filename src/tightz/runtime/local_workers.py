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
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from typing import IO, Any

import cloudpickle

from tightz.errors import require_range
from tightz.runtime.cores import usable_cores
from tightz.runtime.parcels import ExecutorError, forget, pack

MOST = 256
"""Processes at most, and four a core where that is more: each takes 0.1 GB and a second."""

STARTS = 9
"""Processes that are started one after the other until one of them lives."""

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""For matrix products on a worker, which has a core of its own and no more."""

WORKER = "TIGHTZ_WORKER"
"""Set in the environment of workers: where the interpreter is part of an application, starting it
may run that application, which must not start further ones."""

READY = b"\0tightz answers\0"
"""What a worker says first: whatever starts with Python may have printed something before."""

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
        require_range("workers", n, 1, max(MOST, 4 * usable_cores()))
        if not can_start():
            raise ExecutorError(
                f"no local processes can be started by {sys.executable or 'this program'!r}, an "
                "application with an interpreter inside; leave out executor, or use threads"
            )
        self.size = n
        self._prepare = pack(initializer)
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="tightz process")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by the thread that waits for it
        self._over = False
        # where nobody has shut it down; a fork of this process ends without ending them
        weakref.finalize(self, _end_all, self._processes, os.getpid())

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [process.pid for process in list(self._processes.values())]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As Executor.submit, but KilledWorker is raised where the process that had it died."""
        return self._threads.submit(self._serve, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As Executor.shutdown; `cancel_futures` ends what is under way as well, and at once."""
        if not (wait or cancel_futures):
            threading.Thread(target=self.shutdown).start()
            return
        self._over |= cancel_futures
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        if self._over:
            for process in list(self._processes.values()):
                _kill(process)
        self._threads.shutdown()
        _end_all(self._processes)

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)  # Ctrl-C: nobody wants the rest

    def _serve(self, call: partial[Any]) -> Any:
        task, me = cloudpickle.dumps(call), threading.get_ident()
        try:
            if me in self._processes and self._processes[me].poll() is not None:
                _end(self._processes, me)  # it died while nobody needed it
            if me not in self._processes:
                self._start(me)
            answer = _exchange(self._processes[me], task)
        except BaseException as error:  # what is left in its pipes is nobody's answer
            _end(self._processes, me)
            if isinstance(error, EOFError | OSError):
                raise KilledWorker(str(error)) from error
            raise
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
                env=ONE_THREAD | dict(os.environ) | {WORKER: "1"}, start_new_session=True,
            )  # fmt: skip
            if self._over:
                _kill(process)
            try:
                said = b""
                while not said.endswith(READY):
                    said += _read(process.stdout, 1)
                good, value = pickle.loads(_exchange(process, self._prepare))
            except (EOFError, OSError) as error:
                _end(self._processes, me)
                if self._over or not left:
                    raise EOFError("it dies while it starts") from error
                continue
            if good:
                return
            raise ExecutorError(f"the initializer of local workers raised {value!r}") from value


def _end_all(processes: dict[int, subprocess.Popen[bytes]], owner: int | None = None) -> None:
    if owner in (None, os.getpid()):
        for thread in list(processes):
            _end(processes, thread)


def _end(processes: dict[int, subprocess.Popen[bytes]], thread: int) -> None:
    if process := processes.pop(thread, None):
        _kill(process)
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # what was not written yet
                pipe.close()  # type: ignore[union-attr]
        process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With what its tasks have started: a session of its own is a group of its own."""
    if hasattr(os, "killpg") and process.returncode is None:  # then nobody else has its number
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def can_start() -> bool:
    """Whether the interpreter is a program of its own."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def is_worker() -> bool:
    """Whether another process gives this one its work."""
    return serving or WORKER in os.environ or parent_process() is not None


def serve() -> None:
    """What a local worker does: answer call by call, until nobody is there to call."""
    global serving
    serving = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there are no sessions
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a task prints is no answer
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if hasattr(os, "register_at_fork"):  # a task's fork would keep the pipes open when this dies
        for pipe in (tasks, answers):
            os.register_at_fork(after_in_child=partial(os.close, pipe.fileno()))
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks, calls.put), daemon=True).start()
    import numba  # noqa: F401  # it takes long: no task is blamed for it

    answers.write(READY)
    answers.flush()
    with suppress(BrokenPipeError):  # whoever asked is gone
        while True:
            _put(answers, _answer(calls.get()))


def _listen(tasks: IO[bytes], take: Callable[[bytes], None]) -> None:
    """Also while a task runs: without anybody who waits for its answer it ends."""
    try:
        while True:
            take(_get(tasks))
    finally:
        forget()  # nobody else is left to do it where the other end was killed
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
    return _read(pipe, int.from_bytes(_read(pipe, 8), "little"))


def _read(pipe: IO[bytes] | None, size: int) -> bytes:
    assert pipe is not None
    found = pipe.read(size)
    if len(found) < size:
        raise EOFError("its process ended")
    return found
