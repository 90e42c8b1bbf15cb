"""How a function reaches a worker: as pickled bytes, which each worker opens once."""

from __future__ import annotations

import os
import pickle
import platform
import time
from collections.abc import Callable
from functools import lru_cache
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


def run_timed(function: Callable[[Any], Any], task: Any) -> Done:
    """function(task), and how long it took."""
    begun = time.perf_counter()
    value = function(task)
    return Done(value, time.perf_counter() - begun)


@lru_cache(KEPT)
def opened(parcel: bytes) -> Callable[[Any], Any]:
    """On a worker: the function, read at its first task."""
    function: Callable[[Any], Any] = pickle.loads(parcel)
    return function


def run_parcel(sent_by: dict[str, str], parcel: bytes, task: Any) -> Done:
    """On a worker: the task through the parcel's function.

    `sent_by` are the sender's versions; others than this worker's are refused.
    """
    if sent_by != versions():
        mine, theirs = (", ".join(map(" ".join, v.items())) for v in (versions(), sent_by))
        raise ExecutorError(
            f"worker process {os.getpid()} on {platform.node()} has {mine}; this run was started "
            f"with {theirs}. Install the same versions on both, since numbers depend on them"
        )
    function = opened(parcel)
    try:
        return run_timed(function, task)
    except BaseException as error:
        try:
            travels = isinstance(pickle.loads(cloudpickle.dumps(error)), Exception)
        except Exception:
            travels = False
        if travels:
            raise
        # An exception that cannot be read at the other end would pass for a dead worker, one that
        # ends processes would end the sender's.
        raise TaskError(f"{type(error).__name__} on a worker: {error}") from error
