"""Ctrl-C while a call has an answer to give: the first asks it to end, the second raises.

Nothing is raised at the first, so no moment of a call (modules that load, a result that is made, a
row that is written) can lose what is known.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import ClassVar, ParamSpec, Protocol, TypeVar

from tightz.errors import ParameterError

P = ParamSpec("P")
R = TypeVar("R")

SAME = 1.0
"""Seconds in which a further Ctrl-C counts as the same one: keys bounce, and groups of processes
are told twice."""

AGAIN = 30.0
"""Seconds after a call was ended by Ctrl-C in which the next one raises: it is meant for the loop
that makes the calls."""


class Stop(Protocol):
    """What ends a run from outside: a `threading.Event`."""

    def is_set(self) -> bool: ...


def require_stop(stop: Stop | None) -> None:
    """Refuse what cannot be asked whether it is set."""
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise ParameterError(f"stop is {stop!r}; expected a threading.Event")


class Interrupts:
    """Whether a call was asked to end, by Ctrl-C or by one of `stops`; asked as an event is."""

    active: ClassVar[Interrupts | None] = None
    """Of the outermost block that the main thread is in."""

    _ended: ClassVar[float] = -math.inf  # when a call was last ended by Ctrl-C
    _early: ClassVar[bool] = False  # whether it came while modules of the next call were loaded

    def __init__(self, *stops: Stop | None) -> None:
        self._stops = [stop for stop in stops if stop is not None]
        self._asked: float | None = None
        self._insisted = False

    def is_set(self) -> bool:
        return self._asked is not None or any(stop.is_set() for stop in self._stops)

    @property
    def insisted(self) -> bool:
        """Whether a second Ctrl-C has raised KeyboardInterrupt."""
        return self._insisted or any(getattr(stop, "insisted", False) for stop in self._stops)

    def hear(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signal."""
        now = time.monotonic()
        first = self._asked
        since, least = (Interrupts._ended, 0.0) if first is None else (first, SAME)
        if least <= now - since < AGAIN:
            self._insisted = True
            signal.default_int_handler(number, frame)
        self._asked = self._asked or now


@contextmanager
def loading(*, answers: bool) -> Iterator[None]:
    """While modules are loaded: none is left half loaded by Ctrl-C, which is for the call that
    follows where that has an answer to give (`answers`), and is raised afterwards where not."""
    inside = Interrupts.active is not None
    with interruptible() as asked:
        yield
    if asked.is_set() and not inside:
        if not answers:
            raise KeyboardInterrupt
        Interrupts._early = True


def as_one(function: Callable[P, R]) -> Callable[P, R]:
    """For functions with an answer to give: from their first line on, and for all runs that they
    make, Ctrl-C is a question."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        with interruptible():
            return function(*args, **options)

    return call


@contextmanager
def interruptible(stop: Stop | None = None) -> Iterator[Interrupts]:
    """Whether the block was asked to end. A block within another one is asked with it.

    Other threads than the main one hear no signals, and an application that handles Ctrl-C itself
    goes on doing so: there `stop` is the way.
    """
    asked = Interrupts(stop, Interrupts.active)
    main = threading.current_thread() is threading.main_thread()
    if not main or Interrupts.active is not None:
        yield asked
        return
    known = signal.getsignal(signal.SIGINT)
    if known is signal.default_int_handler:
        signal.signal(signal.SIGINT, asked.hear)
    Interrupts.active = asked
    if Interrupts._early:
        Interrupts._early, asked._asked = False, time.monotonic()
    try:
        yield asked
    finally:
        Interrupts.active = None
        if known is signal.default_int_handler:
            signal.signal(signal.SIGINT, known)
        if asked._asked is not None:
            Interrupts._ended = time.monotonic()
