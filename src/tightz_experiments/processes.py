"""Worker processes for the experiments: one piece of work each, so processor time is its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def processes(workers: int) -> ProcessPoolExecutor:
    """A pool of fresh interpreters: what they measure is not what the parent did before."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


@contextmanager
def single_threaded() -> Iterator[None]:
    """Processes started in this block use one thread for linear algebra."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
