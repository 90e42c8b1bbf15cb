"""Whether elimination can run on a device, and how much memory that has."""

from __future__ import annotations

from functools import cache

from tightz.runtime.gpu import why_no_device

_KEPT_FREE = 1 << 30  # bytes; contexts and other programs need some


@cache
def why_no_elimination(simulator: bool = False) -> str:
    """Empty where it can, else the reason with its remedy.

    For `runtime.backends.on_device`. The kernels are CUDA C++: numba's simulator cannot run them.
    """
    reason = why_no_device(False)
    if reason:
        return reason
    try:
        from cuda.bindings import driver, nvrtc
    except ImportError as error:
        return f"{error}; pip install 'tightz[gpu]'"
    status, *_ = nvrtc.nvrtcVersion()
    return "" if driver is not None and int(status) == 0 else f"NVRTC answered {status}"


def device_bytes() -> int:
    """Device memory that an elimination may take now."""
    from tightz.elimination.gpu.cuda import free_bytes

    return max(free_bytes() - _KEPT_FREE, 0)
