"""A dask cluster as an executor, and what --workers and --cluster ask for.

The restart of workers is dask's; a plan is a task, which dask computes again where the worker that
held it is gone. What dask gives up is sent again by the crew, as for any other executor.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tightz.errors import MissingExtraError, ParameterError
from tightz.runtime.local_workers import LocalWorkers
from tightz.runtime.parcels import ExecutorError

if TYPE_CHECKING:
    from tightz.runtime.executors import Submits

PATIENCE = 10.0
"""Seconds to wait for a scheduler, and then for its first worker."""

DESERTED = 120.0
"""Seconds without any worker after which a cluster is given up: dask's tasks wait for ever. Five
times as many where its nannies are this process's, which starts them again."""

ENDED = ("closed", "closing", "failed")
"""Statuses of a nanny that starts no worker any more."""


def connect(address: str, *, timeout: float = PATIENCE) -> Any:
    """A dask client of the scheduler at `address`, once at least one worker is there.

    Use it in a `with` statement; every method with an `executor` takes it.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        raise MissingExtraError(
            "a dask cluster needs dask.distributed; pip install 'tightz[cluster]'"
        ) from None
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
    """What --workers and --cluster ask for: local processes, a dask client, or None for threads.

    The processes end at once: what they still work at when a command has its answer, or is
    interrupted, nobody wants.
    """
    if workers is not None and cluster is not None:
        raise ParameterError(
            f"workers is {workers} and cluster is {cluster}; expected one of the two"
        )
    if cluster is not None:
        with connect(cluster) as client:
            yield client
    elif workers is not None:
        pool = LocalWorkers(workers)
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    else:
        yield None


class DaskPool:
    """A dask client as the seam sees it: it counts its workers and shares a parcel with all.

    `options` are those of the client's `get_executor`. Its executor itself is not used: its futures
    never end when a worker dies between a task's end and the fetching of its result.
    """

    def __init__(self, client: Any, **options: Any) -> None:
        self.client = client
        # pure=False: equal calls of two runs must not share a task that one of them cancels.
        self.options = {**options, "pure": False}
        self.size = 0  # threads of all the cluster's workers, which come and go
        self._manned = time.monotonic()  # when there was a worker
        self.why_deserted()

    def why_deserted(self) -> str:
        """Count the workers: that nobody has been there for long, or nothing."""
        if self.client.status != "running":  # what is sent next will say so
            return ""
        with suppress(OSError):
            self.size = sum(self.client.nthreads().values())
        # A cluster that this process started has its own nannies. One whose worker dies while it
        # starts ends with it, one whose worker stays away is forgotten; dask leaves it at that
        # until it is told how many there should be.
        cluster, patience = self.client.cluster, DESERTED
        if wanted := len(getattr(cluster, "worker_spec", ())):
            for name, nanny in list(cluster.workers.items()):
                if nanny.status.name in ENDED:
                    cluster.workers.pop(name, None)
            cluster.scale(wanted)
            patience *= 5.0
        if self.size:
            self._manned = time.monotonic()
        if time.monotonic() < self._manned + patience:
            return ""
        return (
            f"the dask cluster has had no worker for {DESERTED:g} s; see why its workers ended, "
            "and start some"
        )

    def share(self, parcel: bytes) -> Any:
        """The parcel as the result of a task: workers fetch it from each other.

        Scattered data is gone with its worker, and scattering fails while none is alive; a task's
        result is made again by whichever worker comes next.
        """
        return self.submit(bytes, parcel)

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """As Executor.submit; an argument may be what `share` returned."""
        if self.client.status != "running":  # while it looks for its scheduler it says nothing
            raise ExecutorError(
                "the dask cluster stopped answering; see whether its scheduler and workers run "
                f"(its client is {self.client.status})"
            )
        return self.client.submit(fn, *args, **self.options)
