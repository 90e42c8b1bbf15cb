"""A deadline that can be brought forward: time limits and Ctrl-C in one place."""

from __future__ import annotations

import math
import threading
import time


class Clock:
    """Seconds since the start and until the deadline; `stop()` ends it for every thread.

    A clock made by `child` never outlives its parent: stopping a run stops all its parts. While it
    is held the deadline moves along; `elapsed` goes on. `since`: when the work began, by
    `time.perf_counter`, if that was not now.
    """

    def __init__(
        self,
        time_limit: float = math.inf,
        parent: Clock | None = None,
        *,
        since: float | None = None,
    ) -> None:
        self._start = time.perf_counter() if since is None else since
        self.limit = time_limit
        self._parent = parent
        self._from = 0.0 if parent is None else parent.spent
        # seconds that did not count, and since when it is held: replaced as one, threads read it
        self._held: tuple[float, float | None] = (0.0, None)
        self._stopped = threading.Event()

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
        own = 0.0 if self._stopped.is_set() else max(0.0, self.limit - self.spent)
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
