"""How a command ends: its exit codes, and the signals that end it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import ParamSpec

from tightz.errors import (
    FullDiskError,
    LostStoreError,
    MissingExtraError,
    ResourceError,
    TightzError,
    is_full,
)
from tightz.runtime.interrupts import Interrupts, interruptible

P = ParamSpec("P")

CODES = {
    0: "done",
    1: "the installation lacks something (doctor, compile)",
    2: "bad input: options, model, evidence, a store that holds another run",
    3: "no result: it takes more memory or time than allowed, or its workers are lost",
    4: "a bound was refused (a defect); the answer holds without it",
    5: "no state agrees with the evidence: P(evidence) = 0",
    6: "an optional part is not installed; the message says which `pip install` mends it",
    7: "the store was lost while the command ran; what is known is printed",
    8: "a disk is full; what is known is printed",
    130: "Ctrl-C; what is known is printed. 143: SIGTERM, 129: SIGHUP, likewise",
}
"""What each exit code says; the page of the command line has the same table."""

REFUSED, CONTRADICTED, MISSING, LOST, FULL = 4, 5, 6, 7, 8

_last = int(signal.SIGINT)


def code_of(error: Exception) -> int:
    """The exit code for an error that ends a command."""
    if isinstance(error, FullDiskError) or (isinstance(error, OSError) and is_full(error)):
        return FULL
    if isinstance(error, LostStoreError):
        return LOST
    if isinstance(error, MissingExtraError):
        return MISSING
    lost = isinstance(error, TightzError) and isinstance(error, RuntimeError)  # of workers
    return 3 if lost or isinstance(error, ResourceError) else 2


def interrupt_code() -> int:
    """128 + the signal that interrupted the command."""
    return 128 + _last


def answers(command: Callable[P, None]) -> Callable[P, None]:
    """For commands whose work Ctrl-C ends: they print what is known, and then their exit code says
    which signal it was."""

    @wraps(command)
    def call(*args: P.args, **options: P.kwargs) -> None:
        import click  # after signals are listened to

        with interruptible() as asked:
            command(*args, **options)
            if asked.is_set():
                click.get_current_context().exit(interrupt_code())

    return call


def leave_at_once() -> None:
    """While modules load, signals end the process: nothing is known, and nothing is open."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # whoever started this with a signal ignored (nohup, a background job) meant it
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def listen() -> None:
    """After `leave_at_once`: Ctrl-C raises KeyboardInterrupt, or asks a run to end.

    SIGTERM and SIGHUP do what Ctrl-C does just then.
    """
    for number in signal.Signals:
        if signal.getsignal(number) is _leave:
            ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if ctrl_c else _as_ctrl_c)


def _leave(number: int, _: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    global _last
    _last = number
    if Interrupts.active is None:
        raise KeyboardInterrupt
    Interrupts.active.hear(number, frame)
