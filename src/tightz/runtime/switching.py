"""How long a thread may keep the interpreter while others ask for it: the least that is asked for.

Python's own 5 ms are paid by every call that lets go of it for a moment.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LAUNCHES = 5e-5
"""Beside thousands of launches on a device: each lets go of it and waits for others to do so."""

_LOCK = threading.Lock()
_asked: list[float] = []  # the first is what Python had


@contextmanager
def switching(seconds: float) -> Iterator[None]:
    """At most so many seconds, in the whole process, until the last who asked has left."""
    with _LOCK:
        if not _asked:
            _asked.append(sys.getswitchinterval())
        _asked.append(seconds)
        _set()
    try:
        yield
    finally:
        with _LOCK:
            _asked.remove(seconds)
            _set()
            if len(_asked) == 1:
                _asked.clear()


def _set() -> None:
    # below a microsecond Python reads 0, which it does not take back
    sys.setswitchinterval(max(1e-6, min(_asked)))
