"""Inner kernels called from tests: they have no Python wrapper, so one is made here."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit


@cache
def called(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that does nothing but call `inner`."""

    @njit
    def outer(*args):  # type: ignore[no-untyped-def]
        return inner(*args)

    return outer  # type: ignore[no-any-return]
