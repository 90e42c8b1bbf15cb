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
from uuid import uuid4

import cloudpickle

from tightz.errors import require_range
from tightz.runtime.cores import usable_cores
from tightz.runtime.parcels import KEPT, ExecutorError, pack

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

GONE = (EOFError, OSError, pickle.UnpicklingError)
"""What reading from a process, or writing to it, raises where it has died."""


class KilledWorker(RuntimeError):
    """The process that had a task is gone."""


class Shared:
    """Bytes that go to a process once: after that it is asked by their name."""

    def __init__(self, content: bytes) -> None:
        self.name, self.content = uuid4().hex, content

    def __reduce__(self) -> tuple[Callable[[str], bytes], tuple[str]]:
        return _held, (self.name,)


_kept: dict[str, bytes] = {}
"""In a worker: what is shared, the last KEPT that came; its other end counts along."""


def _held(name: str) -> bytes:
    return _kept[name]


def _keep(name: str, content: bytes) -> None:
    _kept[name] = content
    for old in list(_kept)[:-KEPT]:
        del _kept[old]


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
        self._processes: dict[int, _Process] = {}  # by the thread that waits for it
        self._over = False
        # Where nobody has shut it down. Not at exit: then pipes close and processes end by that,
        # and a fork that exits would end its parent's.
        weakref.finalize(self, _end, self._processes).atexit = False

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
                process.kill()
        self._threads.shutdown()
        _end(self._processes)

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)  # Ctrl-C: nobody wants the rest

    def share(self, content: bytes) -> Shared:
        """An argument of `submit` that goes to each process once."""
        return Shared(content)

    def _serve(self, call: partial[Any]) -> Any:
        task, me = cloudpickle.dumps(call), threading.get_ident()
        try:
            process = self._processes.get(me)
            if process is None or process.poll() is not None:  # it died while nobody needed it
                process = self._start(me)
            for one in call.args:
                if isinstance(one, Shared) and one.name not in process.kept:
                    process.ask(pickle.dumps(partial(_keep, one.name, one.content)))
                    process.kept = [*process.kept, one.name][-KEPT:]
            answer = process.ask(task)
        except BaseException as error:  # what is left in its pipes is nobody's answer
            _end(self._processes, me)
            if isinstance(error, GONE):
                raise KilledWorker(str(error)) from error
            raise
        good, value = pickle.loads(answer)
        if good:
            return value
        raise value

    def _start(self, me: int) -> _Process:
        """A process for this thread; a death before its first answer costs the task nothing."""
        for left in reversed(range(STARTS)):
            _end(self._processes, me)
            process = self._processes[me] = _Process()
            if self._over:
                process.kill()
            try:
                good, value = pickle.loads(process.ask(self._prepare, first=True))
                break
            except GONE as error:
                if self._over or not left:
                    raise EOFError("it dies while it starts") from error
        if not good:
            raise ExecutorError(f"the initializer of local workers raised {value!r}") from value
        return process


class _Process(subprocess.Popen[bytes]):
    """An interpreter that serves."""

    def __init__(self) -> None:
        path = [str(folder) for folder in sys.path]
        code = f"import sys; sys.path[:] = {path}; import {__name__} as me; me.serve()"
        super().__init__(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=ONE_THREAD | dict(os.environ) | {WORKER: "1"}, start_new_session=True,
        )  # fmt: skip
        self.kept: list[str] = []

    def ask(self, call: bytes, *, first: bool = False) -> bytes:
        """What it answers; one of GONE where it died."""
        assert self.stdin is not None
        assert self.stdout is not None
        _put(self.stdin, call)
        said = b"" if first else READY
        while not said.endswith(READY):
            if not (more := self.stdout.read(1)):
                raise EOFError
            said += more
        answer: bytes = pickle.load(self.stdout)
        return answer

    def kill(self) -> None:
        """With what its tasks have started: a session of its own is a group of its own."""
        if hasattr(os, "killpg") and self.returncode is None:  # then nobody else has its number
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        super().kill()


def _end(processes: dict[int, _Process], *threads: int) -> None:
    for thread in threads or list(processes):
        if process := processes.pop(thread, None):
            process.kill()
            with suppress(OSError), process:  # closes its pipes and waits
                pass


def _put(pipe: IO[bytes], message: bytes) -> None:
    pickle.dump(message, pipe)  # for its length
    pipe.flush()


def can_start() -> bool:
    """Whether the interpreter is a program of its own."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def is_worker() -> bool:
    """Whether another process gives this one its work."""
    return WORKER in os.environ or parent_process() is not None


def serve() -> None:
    """What a local worker does: answer call by call, until nobody is there to call."""
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
    with suppress(BrokenPipeError):  # whoever asked is gone
        while True:
            _put(answers, _answer(calls.get()))


def _listen(tasks: IO[bytes], take: Callable[[bytes], None]) -> None:
    """Also while a task runs: without anybody who waits for its answer it ends."""
    try:
        while True:
            take(pickle.load(tasks))
    finally:
        os._exit(1)


def _answer(call: bytes) -> bytes:
    try:
        return cloudpickle.dumps((True, pickle.loads(call)()))
    except BaseException as error:
        error.add_note(f"on a local worker:\n{traceback.format_exc()}")
        return cloudpickle.dumps((False, error))
