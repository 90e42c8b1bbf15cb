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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numba

from tightz.runtime.clock import wait_for
from tightz.runtime.cores import usable_cores
from tightz.runtime.kernels import store
from tightz.runtime.kernels.registry import Kernel, needed
from tightz.runtime.kernels.signatures import from_text
from tightz.runtime.kernels.worker import compile_kernel, dispatcher_of

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
    """Processes that compile what is wanted and missing, in the order it was asked for.

    Where no process can be started, or nothing can be kept, a thread of this one compiles instead,
    unless `here` is False.
    """

    def __init__(
        self, *, processes: int | None = None, told: Told | None = None, here: bool = True
    ) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.seconds = 0.0
        """CPU seconds that the processes have spent so far."""
        self.failed: list[str] = []
        self._most = min(processes or _fitting(), MOST)
        self._told = told or _show
        self._asked: set[Kernel] = set()
        self._queue: list[Kernel] = []
        self._pending: set[Kernel] = set()
        self._workers: list[subprocess.Popen[str]] = []
        self._feeding: list[threading.Thread] = []
        self._here = here
        self._compiling = self._closed = False
        self._busy, self._since = 0.0, 0.0
        self._heard = 0.0

    @property
    def wanted(self) -> int:
        """Kernels that were missing when they were asked for."""
        return len(self._asked)

    @property
    def done(self) -> int:
        return len(self._asked) - len(self._pending)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        if self._pending and time.perf_counter() - self._heard > STALLED:
            self._give_up()
        return not self._pending

    @property
    def elapsed(self) -> float:
        """Seconds during which something was being compiled."""
        with self.changed:
            return self._busy + (time.perf_counter() - self._since if self._pending else 0.0)

    def want(self, kernels: Iterable[Kernel]) -> None:
        """Have those compiled that are missing."""
        settings: Any = numba.config
        if settings.DISABLE_JIT:
            return
        new = [each for each in missing(kernels) if each not in self._asked]
        kept = not new or store.tried()
        if not kept:  # in memory, then
            new = [each for each in new if from_text(each.signature) not in overloads(each)]
        if not new:
            return
        with self.changed:
            if not self._pending:
                self._since = self._heard = time.perf_counter()
            self._asked.update(new)
            self._pending.update(new)
            self._queue += new
            for _ in range(min(self._most, len(self._pending)) - len(self._workers)):
                if kept and not self._compiling:
                    self._start()
            if not self._workers:
                self._begin_here()
            self.changed.notify_all()
        self._tell()

    def ready(self, kernels: Iterable[Kernel]) -> bool:
        """Whether none of them is still to be compiled here."""
        return not self._pending or self._pending.isdisjoint(kernels)

    def wait(self) -> None:
        """Until all is done. Interruptible."""
        while not self.finished:
            with self.changed:
                self.changed.wait(0.2)

    def close(self, *, finish: bool = True) -> None:
        """Take no more jobs; what is under way is finished by the workers, or they are ended."""
        with self.changed:
            self._closed = True
            self._queue.clear()
            self.changed.notify_all()
        for worker in list(self._workers):
            with contextlib.suppress(OSError):
                if worker.stdin is not None:
                    worker.stdin.close()
            if not finish:
                worker.kill()
        if not finish:
            wait_for(self._feeding)

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
        self._feeding.append(threading.Thread(target=self._feed, args=(worker,), daemon=True))
        self._feeding[-1].start()

    def _feed(self, worker: subprocess.Popen[str]) -> None:
        """Hand out one kernel after the other; ends with the farm or the worker."""
        while (job := self._take()) is not None:
            answer = ask(worker, job)
            if answer is None:  # killed: its kernel is compiled where it is called
                self._finish(job, {"error": "the compiling process was killed"})
                break
            if answer.get("kept") or "error" in answer:
                self._finish(job, answer)
                continue
            with self.changed:  # the disk takes nothing: only this process can use what it compiles
                self._queue.insert(0, job)
            break
        with contextlib.suppress(OSError, ValueError):
            # a word for the end: a forked process may hold the pipe open
            if worker.stdin is not None:
                worker.stdin.write("\n")
        for pipe in (worker.stdin, worker.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        worker.wait()
        with self.changed:
            self._workers.remove(worker)
            if not self._workers and self._queue:
                self._begin_here()

    def _begin_here(self) -> None:
        """Compile in a thread of this process."""
        if not self._here or self._closed:
            self._give_up()
        elif not self._compiling:
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
            answer: dict[str, Any] = {}
            begun = time.thread_time()
            try:
                compile_kernel(job.function, job.signature)
            except Exception as error:  # whoever calls it will meet it
                answer["error"] = f"{type(error).__name__}: {error}"
            self._finish(job, {**answer, "seconds": time.thread_time() - begun})

    def _take(self) -> Kernel | None:
        """The next job; waits for one until the farm is closed."""
        with self.changed:
            while not self._queue and not self._closed:
                self.changed.wait()
            return self._queue.pop(0) if self._queue else None

    def _finish(self, job: Kernel, answer: dict[str, Any]) -> None:
        with self.changed:
            self._heard = time.perf_counter()
            if job in self._pending and len(self._pending) == 1:
                self._busy += self._heard - self._since
            self._pending.discard(job)
            self.seconds += answer.get("seconds", 0.0)
            if "error" in answer:
                self.failed.append(f"{job.function}: {answer['error']}")
                log.info("kernel %s was not compiled beforehand: %s", job.function, answer["error"])
            self.changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        try:
            self._told(self.done, self.wanted)
        except Exception as error:  # a terminal that is gone stops no compilation
            log.info("progress could not be shown: %s", error)

    def _give_up(self) -> None:
        """Leave what is not compiled to those who call it."""
        with self.changed:
            if self._pending:
                self._busy += time.perf_counter() - self._since
            self._queue.clear()
            self._pending.clear()
            self.changed.notify_all()
        self._tell()


def ask(worker: subprocess.Popen[str], job: Kernel) -> dict[str, Any] | None:
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


def overloads(kernel: Kernel) -> Any:
    """What is compiled of it in this process."""
    return dispatcher_of(kernel.function).overloads


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
        return usable_cores()
    return max(1, min(usable_cores(), int(free / MEMORY)))


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


_checked: set[tuple[str, str]] = set()


def prepare(task: str, kind: str) -> None:
    """Have everything compiled that `task` calls on models of this kind."""
    if (task, kind) in _checked:
        return
    with Farm() as farm:
        farm.want(needed([task], kind))
        farm.wait()
    _checked.add((task, kind))
