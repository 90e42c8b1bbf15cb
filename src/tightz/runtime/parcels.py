"""How a function reaches a worker: its pickled bytes, named by their digest, opened once there."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import pickle
import platform
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tightz.errors import ParameterError, TightzError
from tightz.runtime.provenance import versions

KEPT = 6
"""Parcels that a worker keeps open."""


class ExecutorError(TightzError, RuntimeError):
    """Workers that cannot be reached, do not match this process, or keep dying."""


class TaskError(TightzError, RuntimeError):
    """A task that raised what cannot be raised again in another process."""


class Done(NamedTuple):
    """What a task came to, and the seconds it took where it ran."""

    value: Any
    seconds: float


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

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """A file with the content, for workers on this machine."""
        handle, name = tempfile.mkstemp(prefix="tightz-", suffix=".parcel")
        path = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self.content)
            yield path
        finally:
            path.unlink(missing_ok=True)


_opened: OrderedDict[bytes, Callable[[Any], Any]] = OrderedDict()
"""This worker's functions, the least recently used first: all that stays between two tasks."""


def run_timed(function: Callable[[Any], Any], task: Any) -> Done:
    """function(task), and how long it took."""
    begun = time.perf_counter()
    value = function(task)
    return Done(value, time.perf_counter() - begun)


def run_parcel(sent_by: dict[str, str], digest: bytes, content: bytes | Path, task: Any) -> Done:
    """On a worker: the task through the function of the parcel `digest`.

    `content` is the parcel or where it lies; a worker reads it once. `sent_by` are the sender's
    versions; others than this worker's are refused.
    """
    if sent_by != versions():
        raise ExecutorError(
            f"worker process {os.getpid()} on {platform.node()} has {_words(versions())}; this run "
            f"was started with {_words(sent_by)}. Install the same versions on both, since numbers "
            "depend on them"
        )
    function = _opened.get(digest)
    if function is None:
        function = pickle.loads(content if isinstance(content, bytes) else content.read_bytes())
    # Least recently used go first: a worker serves a few plans, not all that it ever saw.
    _opened[digest] = function
    _opened.move_to_end(digest)
    while len(_opened) > KEPT:
        _opened.popitem(last=False)
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
        return isinstance(pickle.loads(pickle.dumps(error)), Exception)
    except Exception:
        return False


def _words(numbers: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items())


@dataclass(frozen=True, eq=False)
class Luggage:
    """Pickles things that refer to a few large objects, which stay where they are on both sides."""

    objects: tuple[Any, ...]

    def pack(self, thing: Any) -> bytes:
        numbers = {id(one): k for k, one in enumerate(self.objects)}
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = lambda one: numbers.get(id(one))  # type: ignore[method-assign]
        pickler.dump(thing)
        return out.getvalue()

    def unpack(self, packed: bytes) -> Any:
        unpickler = pickle.Unpickler(io.BytesIO(packed))
        unpickler.persistent_load = self.objects.__getitem__  # type: ignore[method-assign]
        return unpickler.load()
