"""A deadline that can be brought forward: time limits and Ctrl-C in one place."""

from __future__ import annotations

import math
import threading
import time


class Clock:
    """Seconds since the start and until the deadline; `stop()` ends it for every thread."""

    def __init__(self, time_limit: float = math.inf) -> None:
        self._start = time.perf_counter()
        self._limit = time_limit
        self._stopped = threading.Event()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 when it has passed or the clock was stopped."""
        return 0.0 if self._stopped.is_set() else max(0.0, self._limit - self.elapsed)

    @property
    def expired(self) -> bool:
        return self.left <= 0.0

    def stop(self) -> None:
        """Ask everything that watches this clock to end."""
        self._stopped.set()
