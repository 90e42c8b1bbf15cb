"""The device and its compiler: imported only by code that is about to run on it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

if not hasattr(np, "row_stack"):  # gone from numpy 2.5, still asked for by numba.cuda
    np.row_stack = np.vstack  # noqa: NPY201

from numba import cuda as numba_cuda
from numba.core import config, types
from numba.np.numpy_support import as_dtype

from tightz.runtime.gpu.turns import alone

cuda: Any = numba_cuda
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # type: ignore[attr-defined]  # a run of few trials is no mistake

SIMULATED = bool(config.ENABLE_CUDASIM)  # type: ignore[attr-defined]
"""Whether NUMBA_ENABLE_CUDASIM runs the kernels as Python threads: small cases only."""


def _shared_array(self: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:
    """The simulator's `cuda.shared.array`: one array for a line of the source, for all threads.

    Its own looks an array up and makes it in two steps: threads that come at the same time then
    share nothing, and sums over a block lose the parts of some.
    """
    caller = sys._getframe(1)
    place = caller.f_code.co_filename, caller.f_lineno
    dtype = as_dtype(dtype) if isinstance(dtype, types.Type) else dtype
    return self._allocations.setdefault(place, np.empty(shape, dtype))


if SIMULATED:
    sys.setswitchinterval(1e-5)  # its scheduler polls: ten times faster so
    import_module(f"{cuda.__name__}.simulator.kernelapi").FakeCUDAShared.array = _shared_array

_OWN_SETTINGS = not SIMULATED and find_spec(f"{cuda.__name__}.core.config") is not None

THREADS = 2 if SIMULATED else 128
"""Threads of the blocks that treat one projection each."""

WIDTH = 2 if SIMULATED else 32
"""Lanes that share one ascent. A power of two, at most a warp."""

GROUPS = 1 if SIMULATED else 4
"""Ascents per block; they do not talk to each other."""


def device_kernel(function: Any = None, **options: Any) -> Any:
    """`cuda.jit`, kept in this version's folder: numba's own place may hold another version's."""
    from tightz.runtime.kernels import store

    if function is None:
        return lambda given: device_kernel(given, **options)
    if SIMULATED:  # it knows no options
        return cuda.jit(function)
    folder = next((place for place in store.places() if store.takes_files(place)), None)
    if folder is None:
        return cuda.jit(**options)(function)
    # read when the kernel is declared, and not meant for kernels of others
    settings: Any = import_module(f"{cuda.__name__}.core.config") if _OWN_SETTINGS else config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)
    try:
        return cuda.jit(cache=True, **options)(function)
    finally:
        settings.CACHE_DIR = before


@alone
def free_bytes() -> int:
    """Device memory that is free now."""
    if SIMULATED:
        return 2**28
    context = cuda.current_context()
    context.deallocations.clear()  # numba lets go of arrays late
    return int(context.get_memory_info()[0])


@alone
def arrays_to_device(record: Any) -> Any:
    """The same NamedTuple with its arrays on the device."""
    return type(record)(
        *(
            cuda.to_device(np.ascontiguousarray(one)) if isinstance(one, np.ndarray) else one
            for one in record
        )
    )


__all__ = [
    "GROUPS",
    "SIMULATED",
    "THREADS",
    "WIDTH",
    "arrays_to_device",
    "cuda",
    "device_kernel",
    "free_bytes",
]
