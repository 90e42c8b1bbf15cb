"""Workers beyond this process, local ones or a dask cluster's, and how a function reaches them.

A parcel is the function's pickled bytes, named by their digest; a worker keeps the parcels that it
opened. A task names its parcel. A worker that does not have it answers NO_PARCEL, and the task is
sent again together with the parcel.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import math
import os
import pickle
import platform
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from multiprocessing import get_context, parent_process
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tightz.errors import MissingExtraError, ParameterError, TightzError, require_range
from tightz.runtime.provenance import versions

if TYPE_CHECKING:
    from tightz.runtime.executors import Submits


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


PATIENCE = 10.0
"""Seconds to wait for a scheduler, and then for its first worker."""

RECOUNT = 5.0
"""Seconds after which a dask cluster's workers are counted again: they come and go."""


def local_workers(n: int) -> ProcessPoolExecutor:
    """A pool of n local processes, started as they are needed; use it in a `with` statement.

    They are spawned, not forked: a fork would copy numba's locks but not its threads. They leave
    Ctrl-C to this process and end when it is killed.
    """
    require_range("workers", n, 1)
    return ProcessPoolExecutor(n, mp_context=get_context("spawn"), initializer=_settle)


def _settle() -> None:
    """On a new local worker: this process answers for it."""
    # Ctrl-C goes to the whole process group: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    # The parent is gone, killed perhaps: nobody waits for this worker's result any more.
    os._exit(1)


def connect(address: str, *, timeout: float = PATIENCE) -> Any:
    """A dask client of the scheduler at `address`, once at least one worker is there.

    Use it in a `with` statement; every method with an `executor` takes it.
    """
    distributed = _distributed()
    # A client that failed to connect takes long to go away: knock first. In a thread of its own,
    # since a notebook's has a running event loop.
    with ThreadPoolExecutor(1) as thread:
        knock = asyncio.wait_for(_knock(distributed, address, timeout), timeout)
        error = thread.submit(asyncio.run, knock).exception()
    if error is not None:  # also MemoryError, where a server of another kind answers
        raise ExecutorError(
            f"no dask scheduler answers at {address} within {timeout:g} s; expected an address "
            f"like tcp://host:8786, as `dask scheduler` prints it ({type(error).__name__}: {error})"
        ) from error
    client = distributed.Client(address, timeout=timeout, set_as_default=False)
    try:
        client.wait_for_workers(1, timeout=timeout)
    except (OSError, TimeoutError) as error:
        client.close()
        raise ExecutorError(
            f"the scheduler at {address} has no workers after {timeout:g} s; start some with "
            f"`dask worker {address} --nthreads 1`"
        ) from error
    return client


async def _knock(distributed: Any, address: str, timeout: float) -> None:
    options = distributed.Security().get_connection_args("client")
    comm = await distributed.comm.connect(address, timeout=timeout, **options)
    await comm.close()


@contextmanager
def open_executor(
    workers: int | None = None, cluster: str | None = None
) -> Iterator[Submits | None]:
    """What --workers and --cluster ask for: local processes, a dask client, or None for threads."""
    if workers is not None and cluster is not None:
        raise ParameterError(
            f"workers is {workers} and cluster is {cluster}; expected one of the two"
        )
    if cluster is not None:
        with connect(cluster) as client:
            yield client
    elif workers is not None:
        with local_workers(workers) as pool:
            yield pool
    else:
        yield None


class DaskPool:
    """A dask client as the seam sees it: it counts its workers and shares a parcel with all.

    `options` are those of the client's `get_executor`. Its executor itself is not used: its futures
    never end when a worker dies between a task's end and the fetching of its result.
    """

    def __init__(self, client: Any, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.client = client
        self.options = {**options, "pure": False}
        self._counted, self._count = -math.inf, 0

    @property
    def workers(self) -> int:
        """Threads of all the cluster's workers, asked for every RECOUNT seconds."""
        if time.monotonic() > self._counted + RECOUNT:
            with _connected():
                self._count = sum(self.client.nthreads().values())
            self._counted = time.monotonic()
        return self._count

    def share(self, parcel: bytes) -> Any:
        """The parcel as the result of a task: workers fetch it from each other.

        Scattered data is gone with its worker, and scattering fails while none is alive; a task's
        result is made again by whichever worker comes next.
        """
        # pure=False: equal bytes of two runs must not share a task that one of them cancels.
        with _connected():
            return self.client.submit(bytes, parcel, **self.options)

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """As Executor.submit; an argument may be what `share` returned."""
        with _connected():
            return self.client.submit(fn, *args, **self.options)


@contextmanager
def _connected() -> Iterator[None]:
    """dask's words for a scheduler that went away, or has no worker left, in ours."""
    try:
        yield
    except OSError as error:  # CommClosedError and TimeoutError among them
        raise ExecutorError(
            "the dask cluster stopped answering; see whether its scheduler and workers run "
            f"({type(error).__name__}: {error})"
        ) from error


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise MissingExtraError(
            "a dask cluster needs dask.distributed; pip install 'tightz[cluster]'"
        ) from None
