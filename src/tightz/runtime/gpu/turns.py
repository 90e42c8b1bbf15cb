"""Turns on the device: one thread at a time, in the order in which they asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from tightz.runtime.clock import leave_if_over


class Turns:
    """A lock that is handed on in the order in which it was asked for; its holder may ask again.

    Python's own goes to whoever is quickest, which is the thread that has just let go of it.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._line: deque[tuple[int, threading.Lock]] = deque()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._mutex:
            if self._holder in (None, me):
                self._holder, self._depth = me, self._depth + 1
                return
            place = me, threading.Lock()
            place[1].acquire()
            self._line.append(place)
        try:
            place[1].acquire()  # opened by who leaves, and then it is ours
        except BaseException:  # Ctrl-C: nobody may wait for us
            with self._mutex:
                waiting = place in self._line
                if waiting:
                    self._line.remove(place)
            if not waiting:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._depth -= 1
            if self._depth:
                return
            self._holder = None
            if self._line:
                self._holder, gate = self._line.popleft()
                self._depth = 1
                gate.release()

    def give_way(self) -> None:
        """In the middle of something long: let all go first who have asked by now.

        `OverError` where nobody waits for it any more.
        """
        leave_if_over()
        if not self._line:
            return
        with self._mutex:
            depth, self._depth = self._depth, 1
        self.__exit__()
        self.__enter__()
        with self._mutex:
            self._depth = depth


DEVICE = Turns()

Call = TypeVar("Call", bound=Callable[..., Any])


def alone(function: Call) -> Call:
    """One thread at a time on the device: what numba keeps about it (memory to let go, modules
    loaded) is not made for several. Streams take turns by the call; what takes longer than a few
    hundredths of a second calls `DEVICE.give_way()` between its launches.
    """

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with DEVICE:
            return function(*args, **options)

    return cast(Call, call)
