"""The CUDA device: whether there is one, and what all its users share."""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache
from pathlib import PurePath
from typing import Any

from tightz.runtime.gpu.turns import DEVICE, alone

NO_DEVICE = (
    "no CUDA device or driver was found; `nvidia-smi` should list a GPU, and "
    "pip install 'tightz[gpu]' brings the compiler"
)


_ASKING = threading.Lock()


def why_no_device(simulator: bool = True) -> str:
    """Empty where a CUDA device is usable, else the reason with its remedy."""
    # One at a time: while one thread starts the driver, numba tells a second one that it runs.
    with _ASKING:
        return _why_no_device(simulator)


@cache
def _why_no_device(simulator: bool) -> str:
    from numba.core import config

    # Importing numba.cuda takes half a second: not worth it to learn that there is no GPU.
    if not config.ENABLE_CUDASIM and not _has_driver():  # type: ignore[attr-defined]
        return NO_DEVICE
    try:
        from tightz.runtime.gpu.device import SIMULATED, cuda

        if SIMULATED:
            return "" if simulator else "NUMBA_ENABLE_CUDASIM is set: there is only a simulator"
        return "" if cuda.is_available() else NO_DEVICE
    except ImportError as error:
        return f"{error}; pip install 'tightz[gpu]'"
    except Exception as error:  # whatever the driver says: without it there is the CPU
        return f"{type(error).__name__}: {error}; {NO_DEVICE}"


def _has_driver() -> bool:
    """Whether the driver's library loads and counts a device, asked where numba.cuda asks.

    With CUDA_VISIBLE_DEVICES empty, or in a container without a GPU, the library is there alone.
    """
    driver = _driver()
    if driver is None or driver.cuInit(0) != 0:
        return False
    count = ctypes.c_int(0)
    return driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def _driver() -> Any:
    names, folders = ["libcuda.so", "libcuda.so.1"], ["/usr/lib", "/usr/lib64"]
    if sys.platform == "win32":
        names, folders = ["nvcuda.dll"], ["\\windows\\system32"]
    elif sys.platform == "darwin":
        names, folders = ["libcuda.dylib"], ["/usr/local/cuda/lib"]
    for path in [*names, *(str(PurePath(folder, name)) for folder in folders for name in names)]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


__all__ = ["DEVICE", "NO_DEVICE", "alone", "why_no_device"]
