"""Where work runs: one rule for "auto", "cpu" and "cuda"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tightz.errors import ParameterError

Backend = Literal["auto", "cpu", "cuda"]


def on_device(backend: Backend, why_not: Callable[[bool], str], *, worthwhile: bool = True) -> bool:
    """Whether to use the GPU. `why_not` gives the reason and remedy where it cannot be, else "";
    its argument says whether numba's CUDA simulator counts as a device (only if asked for).

    "auto" takes it where it can be used and is `worthwhile`; "cuda" insists.
    """
    if backend not in ("auto", "cpu", "cuda"):
        raise ParameterError(f"backend is {backend!r}; expected 'auto', 'cpu' or 'cuda'")
    if backend == "cpu" or (backend == "auto" and not worthwhile):
        return False
    reason = why_not(backend == "cuda")
    if reason and backend == "cuda":
        raise ParameterError(f"backend='cuda' cannot be used: {reason}")
    return not reason
