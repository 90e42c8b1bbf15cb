"""Logarithms of sums of disjoint parts, with what the adding itself may round."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tightz.judge.rounding import LIBRARY, UNIT


def log_add(x: float, y: float) -> tuple[float, float]:
    """(log(e^x + e^y), its rounding and that of moving it by as much)."""
    top, low = max(x, y), min(x, y)
    if low == -math.inf or top == math.inf:
        return top, 0.0
    value = top + math.log1p(math.exp(low - top))
    return value, 3.0 * UNIT * abs(value) + 2.0 * LIBRARY


def log_sum(values: Iterable[float]) -> tuple[float, float]:
    """(log of the sum of the exponentials, its rounding and that of moving it by as much).

    x - top rounds by u |x - top|, which moves its exponential by less than u, exp itself by
    LIBRARY relatively; fsum rounds once. The sum is at least 1, so the logarithm is off by no more
    than all of that together, LIBRARY of itself, and u of the result.
    """
    terms = list(values)
    # Relative to the largest, so that nothing overflows; the rounding of the sum is returned with
    # it.
    top = max(terms, default=-math.inf)
    if top in (-math.inf, math.inf):
        return top, 0.0
    total = math.fsum(math.exp(x - top) for x in terms)
    value = top + math.log(total)
    rounding = LIBRARY * (2.0 + math.log(total)) + UNIT * (2.0 + len(terms) / total)
    return value, 2.0 * rounding + 3.0 * UNIT * abs(value)
