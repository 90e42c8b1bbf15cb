"""Kernels compiled in other processes, before or beside the work that needs them.

What is missing on this machine is known before a call starts (`registry`); a few processes compile
it into the store, the most wanted first. A process that ends leaves its workers to finish what they
are compiling, so the next one finds it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numba

from tightz.runtime.kernels import store
from tightz.runtime.kernels.registry import Kernel, needed
from tightz.runtime.kernels.signatures import from_text
from tightz.runtime.kernels.worker import dispatcher_of

log = logging.getLogger("tightz")

Told = Callable[[int, int], None]
"""Called with kernels done and wanted, whenever one is done."""

MOST = 16
"""Processes at most: the longest kernel bounds what more could save."""

MEMORY = 400e6
"""Bytes that a process may take; where less is free there are fewer of them."""

INSIDE = "TIGHTZ_COMPILING"
"""Set in processes that compile: where the interpreter is an application of its own (frozen,
embedded) starting it runs that application, which must not start further ones."""


def missing(wanted: Iterable[Kernel]) -> list[Kernel]:
    """Those that are not kept on this machine yet."""
    return [each for each in wanted if not store.has(each.file)]


class Farm:
    """Processes that compile `wanted` in its order. `with Farm(...)`: closed at the end.

    here: compile in this process where others are no help, since nothing can be kept or none can
    be started.
    """

    def __init__(
        self,
        wanted: Sequence[Kernel],
        *,
        processes: int | None = None,
        told: Told | None = None,
        here: bool = True,
    ) -> None:
        self.wanted = list(wanted)
        self.changed = threading.Condition()
        self.seconds = 0.0
        """CPU seconds that the processes have spent so far."""
        self.failed: list[str] = []
        self._queue = list(wanted)
        self._pending = set(wanted)
        self._told = told
        self._begun = self._heard = time.perf_counter()
        self._ended = self._begun if not wanted else None
        self._workers: list[subprocess.Popen[str]] = []
        self._here = here
        self._compiling = self._closed = False
        self._tell()
        if wanted and store.writable():
            for _ in range(min(processes or _fitting(), MOST, len(self.wanted))):
                self._start()
        if wanted and not self._workers:
            self._begin_here()

    @property
    def done(self) -> int:
        return len(self.wanted) - len(self._pending)

    @property
    def finished(self) -> bool:
        """Whether nothing is left that this farm could do."""
        if self._pending and time.perf_counter() - self._heard > STALLED:
            self._give_up()
        return not self._pending

    @property
    def elapsed(self) -> float:
        """Seconds from the start until all was done, or until now."""
        return (self._ended or time.perf_counter()) - self._begun

    def ready(self, kernels: Iterable[Kernel]) -> bool:
        """Whether none of them is still to be compiled here."""
        return not self._pending or self._pending.isdisjoint(kernels)

    def wait(self) -> None:
        """Until all is done. Interruptible."""
        while not self.finished:
            with self.changed:
                self.changed.wait(0.2)

    def close(self) -> None:
        """Take no more jobs; what is under way is finished by the workers themselves."""
        with self.changed:
            self._closed = True
            self._queue.clear()
        for worker in list(self._workers):
            with contextlib.suppress(OSError):
                if worker.stdin is not None:
                    worker.stdin.close()

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False) or INSIDE in os.environ:
            return
        try:
            # -P: the working folder may hold a json.py of its own
            worker = subprocess.Popen(
                [sys.executable, "-P", "-m", "tightz.runtime.kernels.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env=_environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            log.info("no process to compile kernels in: %s", error)
            return
        self._workers.append(worker)
        threading.Thread(target=self._feed, args=(worker,), daemon=True).start()

    def _feed(self, worker: subprocess.Popen[str]) -> None:
        """Hand out one kernel after the other; ends with the queue or the worker."""
        while (job := self._take()) is not None:
            answer = _ask(worker, job)
            if answer is None:  # killed: its kernel is compiled where it is called
                self._finish(job, {"kept": False, "error": "the compiling process was killed"})
                break
            if not answer.get("kept") and "error" not in answer:  # the disk takes nothing
                self._begin_here(job)
                break
            self._finish(job, answer)
        with contextlib.suppress(OSError, ValueError):
            # a word for the end: a forked process may hold the pipe open
            if worker.stdin is not None:
                worker.stdin.write("\n")
        for pipe in (worker.stdin, worker.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        worker.wait()
        self._workers.remove(worker)
        if not self._workers and not self._compiling:
            if self._queue:
                self._begin_here()
            else:
                self._give_up()

    def _begin_here(self, *again: Kernel) -> None:
        """Compile in a thread of this process, what nobody could keep `again`."""
        with self.changed:
            if not self._here or self._closed:
                self._give_up()
                return
            self._queue[:0] = again
            if self._compiling:
                return
            self._compiling = True
        # no daemon: a process that exits waits for the kernel in flight
        threading.Thread(target=self._compile_here, name="tightz compiling").start()

    def _compile_here(self) -> None:
        while True:
            with self.changed:
                if not self._queue:
                    self._compiling = False
                    return
                job = self._queue.pop(0)
            begun = time.thread_time()
            answer: dict[str, Any] = {}
            try:
                dispatcher_of(job.function).compile(from_text(job.signature))
            except Exception as error:  # whoever calls it will meet it
                answer["error"] = f"{type(error).__name__}: {error}"
            self._finish(job, {**answer, "seconds": time.thread_time() - begun})

    def _take(self) -> Kernel | None:
        with self.changed:
            return self._queue.pop(0) if self._queue else None

    def _finish(self, job: Kernel, answer: dict[str, Any]) -> None:
        with self.changed:
            self._pending.discard(job)
            self._heard = time.perf_counter()
            self.seconds += answer.get("seconds", 0.0)
            if "error" in answer:
                self.failed.append(f"{job.function}: {answer['error']}")
                log.info("kernel %s was not compiled beforehand: %s", job.function, answer["error"])
            if not self._pending:
                self._ended = time.perf_counter()
            self.changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        if self._told is not None and self.wanted:
            try:
                self._told(self.done, len(self.wanted))
            except Exception as error:  # a terminal that is gone stops no compilation
                log.info("progress could not be shown: %s", error)

    def _give_up(self) -> None:
        """Leave what is not compiled to the process that calls it."""
        with self.changed:
            self._queue.clear()
            self._pending.clear()
            self._ended = self._ended or time.perf_counter()
            self.changed.notify_all()


def _ask(worker: subprocess.Popen[str], job: Kernel) -> dict[str, Any] | None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(
            json.dumps({"function": job.function, "signature": job.signature}) + "\n"
        )
        worker.stdin.flush()
        line = worker.stdout.readline()
        answer = json.loads(line) if line else None
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _environment() -> dict[str, str]:
    """What a worker needs to import what this process imported, and to keep it where this looks."""
    package = str(Path(__file__).resolve().parents[3])
    path = [entry for entry in sys.path if isinstance(entry, str) and entry]
    env = {**os.environ, INSIDE: "1", "PYTHONPATH": os.pathsep.join([package, *path])}
    if os.environ.get(store.CHOSEN) and store.places():  # relative to where this process began
        env[store.CHOSEN] = str(store.places()[0].parent.parent)
    return env


def _fitting() -> int:
    """As many processes as there are cores, and memory for."""
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _cores()
    return max(1, min(_cores(), int(free / MEMORY)))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


STALLED = 180.0
"""Seconds without a finished kernel after which nobody waits for the others any more."""


def _line(done: int, total: int) -> None:
    """One line that is rewritten, where somebody is looking."""
    if sys.stderr is not None and (sys.stderr.isatty() or "JPY_PARENT_PID" in os.environ):
        text = f"{said(done, total)}" if done < total else ""
        with contextlib.suppress(OSError, ValueError):
            print(f"\r{text:<70}\r{text}", end="", file=sys.stderr, flush=True)


def said(done: int, total: int) -> str:
    """Progress in words."""
    return f"compiling kernels, once on this machine: {done} of {total}"


_show: Told = _line


@contextlib.contextmanager
def shown_by(show: Told) -> Iterator[None]:
    """Have progress told to `show` instead of printed."""
    global _show
    before, _show = _show, show
    try:
        yield
    finally:
        _show = before


def farm_for(wanted: Sequence[Kernel]) -> Farm:
    """A farm for those of `wanted` that are missing; it has nothing to do where none is."""
    settings: Any = numba.config
    if settings.DISABLE_JIT:
        return Farm([])
    todo = missing(wanted)
    if todo and not store.tried():
        todo = [each for each in todo if from_text(each.signature) not in _overloads(each)]
    return Farm(todo, told=_show)


def _overloads(kernel: Kernel) -> Any:
    return dispatcher_of(kernel.function).overloads


_checked: set[tuple[str, str]] = set()


def prepare(task: str, kind: str) -> None:
    """Have everything compiled that `task` calls on models of this kind."""
    if (task, kind) in _checked:
        return
    with farm_for(needed([task], kind)) as farm:
        farm.wait()
    _checked.add((task, kind))
