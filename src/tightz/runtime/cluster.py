"""A dask cluster as an executor, and what --workers and --cluster ask for.

Retries and the restart of workers are dask's; a plan is a task, which dask computes again where the
worker that held it is gone.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tightz.errors import MissingExtraError, ParameterError
from tightz.runtime.local_workers import local_workers
from tightz.runtime.parcels import ExecutorError

if TYPE_CHECKING:
    from tightz.runtime.executors import Submits


PATIENCE = 10.0
"""Seconds to wait for a scheduler, and then for its first worker."""

RECOUNT = 5.0
"""Seconds after which a dask cluster's workers are counted again: they come and go."""

DESERTED = 120.0
"""Seconds without any worker after which a cluster is given up: dask's tasks wait for ever. Five
times as many where a nanny says that it is starting one."""

ENDED = ("closed", "closing", "failed")
"""Statuses of a nanny that starts no worker any more."""

EMPTIED = 10.0
"""Seconds that a cluster may take to forget its ended nannies."""


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
        self._manned = time.monotonic()  # when there was a worker

    @property
    def workers(self) -> int:
        """Threads of all the cluster's workers, asked for every RECOUNT seconds."""
        if time.monotonic() > self._counted + RECOUNT and self._there:
            with suppress(OSError):  # a scheduler that went away is noticed by what is sent
                self._count = sum(self.client.nthreads().values())
            self._counted = time.monotonic()
            if self._count:
                self._manned = self._counted
        return self._count

    def why_deserted(self) -> str:
        """That nobody has been there for long, or nothing."""
        if self.workers:
            return ""
        patience = DESERTED * (5.0 if self._restaff() else 1.0)
        if time.monotonic() < self._manned + patience:
            return ""
        return (
            f"the dask cluster has had no worker for {DESERTED:g} s; see why its workers ended, "
            "and start some"
        )

    def _restaff(self) -> bool:
        """Start workers anew where the cluster is this process's and all its nannies have ended.

        A nanny whose worker dies while it starts ends with it, and dask leaves it at that. Returns
        whether workers are on their way.
        """
        cluster = self.client.cluster
        count = len(getattr(cluster, "worker_spec", ()))  # of a cluster that this process started
        if not count:
            return False
        if any(each.status.name not in ENDED for each in cluster.workers.values()):
            return True
        if cluster.workers:  # ended and not yet forgotten
            cluster.scale(0)
        until = time.monotonic() + EMPTIED
        while cluster.workers and time.monotonic() < until:
            time.sleep(0.05)
        cluster.scale(count)
        return True

    @property
    def _there(self) -> bool:
        """Whether the scheduler is: a client that looks for it takes tasks and says nothing."""
        return bool(self.client.status == "running")

    def share(self, parcel: bytes) -> Any:
        """The parcel as the result of a task: workers fetch it from each other.

        Scattered data is gone with its worker, and scattering fails while none is alive; a task's
        result is made again by whichever worker comes next.
        """
        # pure=False: equal bytes of two runs must not share a task that one of them cancels.
        return self.submit(bytes, parcel)

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """As Executor.submit; an argument may be what `share` returned."""
        if not self._there:
            raise ExecutorError(
                "the dask cluster stopped answering; see whether its scheduler and workers run "
                f"(its client is {self.client.status})"
            )
        return self.client.submit(fn, *args, **self.options)


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise MissingExtraError(
            "a dask cluster needs dask.distributed; pip install 'tightz[cluster]'"
        ) from None
