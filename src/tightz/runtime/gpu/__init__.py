"""The CUDA device: whether there is one, and what all its users share."""

from __future__ import annotations

from functools import cache


@cache
def why_no_device(simulator: bool = True) -> str:
    """Empty where a CUDA device is usable, else the reason with its remedy."""
    try:
        from tightz.runtime.gpu.device import SIMULATED, cuda
    except ImportError as error:
        return f"{error}; pip install 'tightz[gpu]'"
    if SIMULATED:
        return "" if simulator else "NUMBA_ENABLE_CUDASIM is set: there is only a simulator"
    if not cuda.is_available():
        return (
            "no CUDA device or driver was found; `nvidia-smi` should list a GPU, and "
            "pip install 'tightz[gpu]' brings the compiler"
        )
    return ""
