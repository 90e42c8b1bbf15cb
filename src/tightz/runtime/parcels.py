"""Parcels: how a function reaches workers in other processes once, not with every task.

A parcel is the function's pickled bytes, named by their digest; a worker keeps the parcels that it
opened. A task names its parcel. A worker that does not have it answers NO_PARCEL, and the task is
sent again together with the parcel.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import platform
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tightz.errors import ParameterError, TightzError
from tightz.runtime.provenance import versions

KEPT = 4
"""Parcels that a worker keeps open."""


class ExecutorError(TightzError, RuntimeError):
    """Workers that cannot be reached, do not match this process, or keep dying."""


@dataclass(frozen=True)
class Parcel:
    """A function with all its data, ready to travel."""

    digest: bytes
    content: bytes

    @classmethod
    def pack(cls, function: Callable[[Any], Any]) -> Parcel:
        """By cloudpickle where installed (it also takes what a script defines), else by pickle."""
        try:
            pickler: Any = importlib.import_module("cloudpickle")
        except ImportError:
            pickler = pickle
        try:
            content = pickler.dumps(function, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ParameterError(
                f"the work cannot travel to another process: {error}; define families and hashings "
                "at the top of a module, or run on threads"
            ) from error
        return cls(hashlib.sha256(content).digest(), content)


class Answer(Enum):
    """What a worker says instead of a result."""

    NO_PARCEL = "send the task again, with its parcel"


_opened: OrderedDict[bytes, Callable[[Any], Any]] = OrderedDict()
"""This worker's functions, the least recently used first: all that stays between two tasks."""


def run_parcel(sent_by: dict[str, str], digest: bytes, content: bytes | None, task: Any) -> Any:
    """On a worker: the task through the function of the parcel `digest`, or an Answer.

    `sent_by` are the sender's versions; others than this worker's are refused.
    """
    if sent_by != versions():
        raise ExecutorError(
            f"worker process {os.getpid()} on {platform.node()} has {_words(versions())}; this run "
            f"was started with {_words(sent_by)}. Install the same versions on both, since numbers "
            "depend on them"
        )
    function = _opened.get(digest)
    if function is None:
        if content is None:
            return Answer.NO_PARCEL
        function = pickle.loads(content)
    # Least recently used go first: a worker serves a few plans, not all that it ever saw.
    _opened[digest] = function
    _opened.move_to_end(digest)
    while len(_opened) > KEPT:
        _opened.popitem(last=False)
    return function(task)


def _words(numbers: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items())
