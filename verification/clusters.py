"""A dask cluster on this machine that ends quietly, whatever was done to its workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

QUIET: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 60}
"""One thread a worker, no fixed port, no words about workers that we kill."""

RETURN, CLOSING = 60.0, (TimeoutError, AssertionError)
"""Seconds for killed workers to be back, and what dask's closing raises all the same: it gives a
worker five seconds, at any load, and joins processes that a nanny has not yet started."""


@contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    """Told to end while a nanny brings a worker back dask fails: so all are waited for first."""
    import distributed

    cluster = distributed.LocalCluster(n_workers=workers, **QUIET)
    try:
        yield cluster
    finally:
        with suppress(TimeoutError):
            cluster.wait_for_workers(workers, timeout=RETURN)
        with suppress(*CLOSING):
            cluster.close()
