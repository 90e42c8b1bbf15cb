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

from tightz.runtime.kernels import store
from tightz.runtime.kernels.registry import Kernel, needed
from tightz.runtime.kernels.signatures import from_text
from tightz.runtime.kernels.worker import dispatcher_of

log = logging.getLogger("tightz")

Told = Callable[[int, int], None]
"""Called with kernels done and wanted, whenever one is done."""

MOST = 16
"""Processes at most: each takes 200 MB, and the longest kernel bounds what more could save."""


def missing(wanted: Iterable[Kernel]) -> list[Kernel]:
    """Those that are not kept on this machine yet."""
    return [each for each in wanted if not store.has(each.file)]


class Farm:
    """Processes that compile `wanted` in its order. `with Farm(...)`: closed at the end."""

    def __init__(
        self, wanted: Sequence[Kernel], *, processes: int | None = None, told: Told | None = None
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
        cores = processes or _cores()
        if told is not None and wanted:
            told(0, len(self.wanted))
        for _ in range(min(cores, MOST, len(self.wanted))):
            self._start()
        if not self._workers:
            self._give_up()

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
            self._queue.clear()
        for worker in self._workers:
            with contextlib.suppress(OSError):
                if worker.stdin is not None:
                    worker.stdin.close()

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if not sys.executable:
            return
        package = str(Path(__file__).resolve().parents[3])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *filter(None, sys.path)])}
        try:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tightz.runtime.kernels.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env=env, start_new_session=True,
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
            self._finish(job, answer)
            if not answer["kept"] and "error" not in answer:  # the disk takes nothing
                self._give_up()
        with contextlib.suppress(OSError):
            if worker.stdin is not None:
                worker.stdin.close()
        self._workers.remove(worker)
        if not self._workers:
            self._give_up()

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
            done = self.done
        if self._told is not None:
            self._told(done, len(self.wanted))

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
        answer: dict[str, Any] | None = json.loads(line) if line else None
    except (OSError, ValueError):
        return None
    return answer


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
    """A farm for those of `wanted` that are missing; it has nothing to do where none is.

    Where nothing can be kept other processes are no help: then all is compiled here, now.
    """
    if store.writable():
        return Farm(missing(wanted), told=_show)
    _compile_here(wanted)
    return Farm([])


def _compile_here(wanted: Sequence[Kernel]) -> None:
    todo = [each for each in wanted if from_text(each.signature) not in _overloads(each)]
    for done, each in enumerate(todo):
        _show(done, len(todo))
        dispatcher_of(each.function).compile(from_text(each.signature))
    if todo:
        _show(len(todo), len(todo))


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
