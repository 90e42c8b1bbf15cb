"""Kernels on one table at a time: its range, its scale, to logs and back. Work on [low, high)."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def positive_range(
    values: NDArray[np.float64], low: int, high: int, out: NDArray[np.float64]
) -> None:
    """out = (smallest non-zero, largest) of values[low:high]; (inf, 0) where all are zero."""
    small, large = np.inf, 0.0
    for t in range(low, high):
        x = values[t]
        large = max(large, x)
        if x > 0.0 and x < small:
            small = x
    out[0], out[1] = small, large


@njit(cache=True, nogil=True)
def finite_range(
    values: NDArray[np.float64], low: int, high: int, out: NDArray[np.float64]
) -> None:
    """out = (smallest above -inf, largest) of values[low:high]; (inf, -inf) where there is none."""
    small, large = np.inf, -np.inf
    for t in range(low, high):
        x = values[t]
        large = max(large, x)
        if x > -np.inf and x < small:
            small = x
    out[0], out[1] = small, large


@njit(cache=True, nogil=True)
def scale_in_place(values: NDArray[np.float64], low: int, high: int, factor: float) -> None:
    for t in range(low, high):
        values[t] *= factor


@njit(cache=True, nogil=True)
def shift_in_place(values: NDArray[np.float64], low: int, high: int, shift: float) -> None:
    for t in range(low, high):
        values[t] += shift


@njit(cache=True, nogil=True)
def log_in_place(values: NDArray[np.float64], low: int, high: int) -> None:
    for t in range(low, high):
        values[t] = np.log(values[t]) if values[t] > 0.0 else -np.inf


@njit(cache=True, nogil=True)
def exp_in_place(values: NDArray[np.float64], low: int, high: int) -> None:
    for t in range(low, high):
        values[t] = np.exp(values[t])


@njit(cache=True, nogil=True)
def negate_in_place(values: NDArray[np.float64], low: int, high: int) -> None:
    """-x, but -inf stays: where a message is zero so is every belief below it."""
    for t in range(low, high):
        if values[t] > -np.inf:
            values[t] = -values[t]


@njit(cache=True, nogil=True)
def divide_in_place(
    top: NDArray[np.float64], low: int, high: int, bottom: NDArray[np.float64], factor: float
) -> None:
    """top = top / (bottom * factor), and 0 where bottom is 0 (0/0 = 0 in belief updates)."""
    for t in range(low, high):
        top[t] = top[t] / (bottom[t] * factor) if bottom[t] > 0.0 else 0.0


@njit(cache=True, nogil=True)
def multiply_in_place(
    top: NDArray[np.float64], low: int, high: int, bottom: NDArray[np.float64]
) -> None:
    """top = top * bottom."""
    for t in range(low, high):
        top[t] *= bottom[t]


@njit(cache=True, nogil=True)
def mean_depth(
    logs: NDArray[np.float64],
    low: int,
    high: int,
    weights: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """out = (sum of weights, sum of weights * -logs) over [low, high), zeros left out."""
    total, depth = 0.0, 0.0
    for t in range(low, high):
        if weights[t] > 0.0 and logs[t] > -np.inf:
            total += weights[t]
            depth -= weights[t] * logs[t]
    out[0], out[1] = total, depth
