"""The CUDA device: whether there is one, and what all its users share."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import PurePath

NO_DEVICE = (
    "no CUDA device or driver was found; `nvidia-smi` should list a GPU, and "
    "pip install 'tightz[gpu]' brings the compiler"
)


@cache
def why_no_device(simulator: bool = True) -> str:
    """Empty where a CUDA device is usable, else the reason with its remedy."""
    from numba.core import config

    # Importing numba.cuda takes half a second: not worth it to learn that there is no GPU.
    if not config.ENABLE_CUDASIM and not _has_driver():  # type: ignore[attr-defined]
        return NO_DEVICE
    try:
        from tightz.runtime.gpu.device import SIMULATED, cuda
    except ImportError as error:
        return f"{error}; pip install 'tightz[gpu]'"
    if SIMULATED:
        return "" if simulator else "NUMBA_ENABLE_CUDASIM is set: there is only a simulator"
    return "" if cuda.is_available() else NO_DEVICE


def _has_driver() -> bool:
    """Whether the driver's library loads, looked for where numba.cuda looks for it."""
    names, folders = ["libcuda.so", "libcuda.so.1"], ["/usr/lib", "/usr/lib64"]
    if sys.platform == "win32":
        names, folders = ["nvcuda.dll"], ["\\windows\\system32"]
    elif sys.platform == "darwin":
        names, folders = ["libcuda.dylib"], ["/usr/local/cuda/lib"]
    for path in [*names, *(str(PurePath(folder, name)) for folder in folders for name in names)]:
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return True
    return False
