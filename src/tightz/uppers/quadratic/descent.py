"""Limited-memory BFGS (Nocedal 1980) with backtracking and floors, one iterate at a time.

The function is smooth but steep: a tangent point a little too near to zero can blow couplings up
step by step, to infinity. So steps are limited, and a trial may be anything. Coordinates that rest
on their floor and would go below stay there for the step (Bertsekas 1982).
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
_SHORTEST = 1e-7


def descend(function: Function, x: Array, floor: Array) -> Iterator[tuple[float, Array]]:
    """Ever lower values and where they are, x >= floor; ends where no step lowers the value."""
    value, gradient_at = function(x)
    yield value, x
    if not np.isfinite(value):
        return
    gradient = gradient_at()
    pairs: deque[tuple[Array, Array]] = deque(maxlen=MEMORY)
    while np.isfinite(gradient).all():
        held = (x <= floor) & (gradient > 0.0)
        step = _direction(np.where(held, 0.0, gradient), pairs)
        step[held] = 0.0
        found = _search(function, x, value, step, gradient, floor)
        if found is None:
            if not pairs:
                return
            pairs.clear()  # curvature from too far away: start again from the gradient
            continue
        new, value, gradient_at = found
        taken, before = new - x, gradient
        x, gradient = new, gradient_at()
        change = gradient - before
        if taken @ change > 1e-10 * np.linalg.norm(taken) * np.linalg.norm(change):
            pairs.append((taken, change))
        yield value, x


def _direction(gradient: Array, pairs: deque[tuple[Array, Array]]) -> Array:
    d, steps = -gradient, []
    for s, y in reversed(pairs):
        a = (s @ d) / (s @ y)
        d -= a * y
        steps.append(a)
    if pairs:
        s, y = pairs[-1]
        d *= (s @ y) / (y @ y)
    for (s, y), a in zip(pairs, reversed(steps), strict=True):
        d += (a - (y @ d) / (s @ y)) * s
    largest = float(np.abs(d).max(initial=0.0))
    limit = LONGEST if pairs else LONGEST / 2.0
    if largest > limit or (not pairs and largest > 0.0):
        d *= limit / largest
    return d


def _search(
    function: Function, x: Array, value: float, step: Array, gradient: Array, floor: Array
) -> tuple[Array, float, Callable[[], Array]] | None:
    length = 1.0
    while length > _SHORTEST:
        new = np.maximum(x + length * step, floor)
        slope = float(gradient @ (new - x))
        if slope < 0.0:
            found, gradient_at = function(new)
            if found <= value + _SUFFICIENT * slope:
                return new, found, gradient_at
            length *= 0.5 if found < value + 10.0 * abs(slope) else 0.2
        else:
            length *= 0.2
    return None
