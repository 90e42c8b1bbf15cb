"""How kernels are declared: by who calls them.

    @kernel     Python calls it
    @inner      only kernels call it: no Python wrapper, so a call from Python would crash
    @spliced    written into its callers' code, for a line or two in an innermost loop

All release the interpreter lock. Options of numba's `njit` (fastmath, error_model) pass through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from tightz.runtime.kernels.caching import KernelCache

__all__ = ["inner", "kernel", "spliced"]


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A function that Python calls."""
    return _declared(function, {"no_cfunc_wrapper": True, **options})


def inner(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A function that only other kernels call."""
    return _declared(function, {"no_cfunc_wrapper": True, "no_cpython_wrapper": True, **options})


def spliced(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A function whose body takes the place of every call."""
    return njit(function, inline="always", **options)


def _declared(function: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
    if function is None:
        return lambda given: _declared(given, options)
    dispatcher: Any = njit(function, nogil=True, **options)
    if dispatcher is not function:  # with NUMBA_DISABLE_JIT there is none
        dispatcher._cache = KernelCache(function)
        dispatcher._cache.guard(dispatcher)
    return dispatcher
