"""One thread for numpy's matrix products, where a job makes many of middling size.

OpenBLAS takes every core for a product of a few hundred rows, and its threads wait for each other
busily: beside other streams, or other processes, such a product takes five times as long as on one
thread. The setting is one for the process, so it is counted and given back.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

_lock = threading.Lock()
_inside = 0
_before = 1

_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Products within take one thread; no more than a hint where numpy has another library."""
    global _inside, _before
    calls = _calls()
    if calls is None:
        yield
        return
    get, set_ = calls
    with _lock:
        if not _inside:
            _before = get()
            set_(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                set_(_before)


@cache
def _calls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How the OpenBLAS in numpy's wheel is asked for its number of threads, and told one."""
    root = Path(np.__file__).parent
    for folder in (root.parent / "numpy.libs", root / ".libs", root / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                continue
            for name in _NAMES:
                if hasattr(library, name.format("set")):
                    return getattr(library, name.format("get")), getattr(
                        library, name.format("set")
                    )
    return None
