"""How a function reaches a worker: as pickled bytes, which each worker opens once."""

from __future__ import annotations

import os
import pickle
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from tightz.errors import ParameterError, TightzError
from tightz.runtime.provenance import versions

KEPT = 6
"""Functions that a worker keeps open: it serves a few plans, not all that it ever saw."""


class ExecutorError(TightzError, RuntimeError):
    """Workers that cannot be reached, do not match this process, or keep dying."""


class TaskError(TightzError, RuntimeError):
    """A task that raised what cannot be raised again in another process."""


class Done(NamedTuple):
    """What a task came to, and the seconds it took where it ran."""

    value: Any
    seconds: float


def pack(function: Callable[..., Any]) -> bytes:
    """Also what a script defines."""
    try:
        return bytes(cloudpickle.dumps(function))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise ParameterError(
            f"the work cannot travel to another process: {error}; leave that out of families and "
            "hashings of your own, or run on threads"
        ) from error


def on_disk(parcel: bytes, until: ExitStack) -> bytes | Path:
    """A file with the parcel for workers on this machine; the parcel itself where none has room."""
    try:
        handle, name = tempfile.mkstemp(prefix="tightz-", suffix=".parcel")
        until.callback(Path(name).unlink, missing_ok=True)
        with os.fdopen(handle, "wb") as file:
            file.write(parcel)
    except OSError:
        return parcel
    return Path(name)


_read: set[Path] = set()


@lru_cache(KEPT)
def opened(parcel: bytes | Path) -> Callable[[Any], Any]:
    """On a worker: the function, read at its first task."""
    function: Callable[[Any], Any]
    if isinstance(parcel, Path):
        _read.add(parcel)
        parcel = parcel.read_bytes()
    function = pickle.loads(parcel)
    return function


def forget() -> None:
    """On a worker whose sender was killed: remove the files that it cannot remove any more."""
    for path in list(_read):
        with suppress(OSError):
            path.unlink()


def run_timed(function: Callable[[Any], Any], task: Any) -> Done:
    """function(task), and how long it took."""
    begun = time.perf_counter()
    value = function(task)
    return Done(value, time.perf_counter() - begun)


def run_parcel(sent_by: dict[str, str], parcel: bytes | Path, task: Any) -> Done:
    """On a worker: the task through the parcel's function.

    `sent_by` are the sender's versions; others than this worker's are refused.
    """
    if sent_by != versions():
        raise ExecutorError(
            f"worker process {os.getpid()} on {platform.node()} has {_words(versions())}; this run "
            f"was started with {_words(sent_by)}. Install the same versions on both, since numbers "
            "depend on them"
        )
    function = opened(parcel)
    try:
        return run_timed(function, task)
    except BaseException as error:
        if _travels(error):
            raise
        # An exception that cannot be read at the other end would pass for a dead worker, one that
        # ends processes would end the sender's.
        raise TaskError(f"{type(error).__name__} on a worker: {error}") from error


def _travels(error: BaseException) -> bool:
    try:
        return isinstance(pickle.loads(cloudpickle.dumps(error)), Exception)
    except Exception:
        return False


def _words(numbers: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items())
