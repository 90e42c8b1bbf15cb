"""A deadline that can be brought forward: time limits and Ctrl-C in one place.

What takes long between two looks at a clock, deep inside a method, calls `leave_if_over()`: it
raises in threads that work for a run which is over.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from tightz.runtime.interrupts import Stop


class Clock:
    """Seconds since the start and until the deadline; `stop()` ends it for every thread.

    A clock made by `child` never outlives its parent: stopping a run stops all its parts. While it
    is held the deadline moves along; `elapsed` goes on. It ends as well once `stop` is set.
    `since`: when the work began, by `time.perf_counter`, if that was not now.
    """

    def __init__(
        self,
        time_limit: float = math.inf,
        parent: Clock | None = None,
        *,
        stop: Stop | None = None,
        since: float | None = None,
    ) -> None:
        self._start = time.perf_counter() if since is None else since
        self.limit = time_limit
        self._parent = parent
        self._from = 0.0 if parent is None else parent.spent
        # seconds that did not count, and since when it is held: replaced as one, threads read it
        self._held: tuple[float, float | None] = (0.0, None)
        self._stopped = threading.Event()
        self._asked = stop

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    @property
    def spent(self) -> float:
        """Seconds that count against the limit: those it was not held."""
        if self._parent is not None:
            return self._parent.spent - self._from
        free, since = self._held
        return (time.perf_counter() if since is None else since) - self._start - free

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 when it has passed or the clock was stopped."""
        # Recursion up the parents: a child asked for an hour still ends with its run.
        asked = self._asked is not None and self._asked.is_set()
        own = 0.0 if asked or self._stopped.is_set() else max(0.0, self.limit - self.spent)
        return own if self._parent is None else min(own, self._parent.left)

    @property
    def expired(self) -> bool:
        return self.left <= 0.0

    def child(self, time_limit: float) -> Clock:
        """A clock for a part of the work: ends after `time_limit` seconds or with this one."""
        return Clock(time_limit, self)

    @property
    def held(self) -> bool:
        """Whether the deadline moves along just now."""
        return self._held[1] is not None

    def hold(self) -> None:
        """From now until `release` nothing counts against the limit."""
        free, since = self._held
        self._held = (free, time.perf_counter() if since is None else since)

    def release(self) -> None:
        """Let the seconds count again."""
        free, since = self._held
        if since is not None:
            self._held = (free + time.perf_counter() - since, None)

    def stop(self) -> None:
        """Ask everything that watches this clock to end."""
        self._stopped.set()

    def __reduce__(self) -> tuple[type[Clock], tuple[float]]:
        """In another process: a clock with the time that was left here."""
        return Clock, (self.left,)


class OverError(BaseException):
    """Raised in a thread whose run is over: nobody waits for what it would find."""


_mine = threading.local()


def my_clock() -> Clock | None:
    """The clock of the run that this thread works for; None where it works for none."""
    clock: Clock | None = getattr(_mine, "clock", None)
    return clock


def work_for(clock: Clock | None) -> None:
    """From now on this thread's `leave_if_over` looks at `clock`."""
    _mine.clock = clock


def leave_if_over() -> None:
    """`OverError` where the run that this thread works for is over."""
    clock = my_clock()
    if clock is not None and clock.expired:
        raise OverError


LEAVING = 1.0
"""Seconds at most for which a result waits until the last thread of its run has ended. No kernel
should run for more than a fifth of that."""


def wait_for(threads: Sequence[threading.Thread]) -> None:
    """Until these threads have ended, LEAVING seconds at most."""
    until = time.perf_counter() + LEAVING
    for thread in threads:
        thread.join(max(0.0, until - time.perf_counter()))
