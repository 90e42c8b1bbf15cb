"""Limited-memory BFGS (Nocedal 1980) with backtracking, one iterate at a time.

The function is smooth but steep: a tangent point a little too near to zero can blow couplings up
step by step, to infinity. So steps are limited, and a trial may be anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Callable[[], Array]]]
"""x -> (value, a function that gives the gradient there): a trial that fails needs none."""

MEMORY = 12
LONGEST = 1.0
"""Largest change of a coordinate in one step."""

_SUFFICIENT = 1e-4
_SHORTEST = 1e-6


def descend(function: Function, x: Array) -> Iterator[tuple[float, Array]]:
    """Ever lower values and where they are; ends where no step lowers the value."""
    value, gradient_at = function(x)
    yield value, x
    if not np.isfinite(value):
        return
    gradient = gradient_at()
    pairs: deque[tuple[Array, Array]] = deque(maxlen=MEMORY)
    while np.isfinite(gradient).all():
        step = _direction(gradient, pairs)
        slope = float(gradient @ step)
        found = _search(function, x, value, step, slope) if slope < 0.0 else None
        if found is None:
            if not pairs:
                return
            pairs.clear()  # curvature from too far away: start again from the gradient
            continue
        taken, value, gradient_at = found
        x, before = x + taken, gradient
        gradient = gradient_at()
        change = gradient - before
        if taken @ change > 1e-10 * np.linalg.norm(taken) * np.linalg.norm(change):
            pairs.append((taken, change))
        yield value, x


def _direction(gradient: Array, pairs: deque[tuple[Array, Array]]) -> Array:
    d, steps = -gradient, []
    for s, y in reversed(pairs):
        a = (s @ d) / (s @ y)
        d = d - a * y
        steps.append(a)
    if pairs:
        s, y = pairs[-1]
        d = d * ((s @ y) / (y @ y))
    for (s, y), a in zip(pairs, reversed(steps), strict=True):
        d = d + (a - (y @ d) / (s @ y)) * s
    largest = float(np.abs(d).max(initial=0.0))
    limit = LONGEST if pairs else LONGEST / 2.0
    if largest > limit or (not pairs and largest > 0.0):
        d = d * (limit / largest)
    return d


def _search(
    function: Function, x: Array, value: float, step: Array, slope: float
) -> tuple[Array, float, Callable[[], Array]] | None:
    length = 1.0
    while length > _SHORTEST:
        new, gradient_at = function(x + length * step)
        if new <= value + _SUFFICIENT * length * slope:
            return length * step, new, gradient_at
        length *= 0.5 if new < value + 10.0 * abs(slope) else 0.25
    return None
