"""Limited-memory BFGS (Nocedal 1980) with backtracking and floors, one iterate at a time.

The function is smooth but steep: a tangent point a little too near to zero can blow couplings up
step by step, to infinity. So steps are limited, and a trial may be anything. Coordinates that rest
on their floor and would go below stay there for the step (Bertsekas 1982).

The product with the inverse Hessian is compiled: some hundred short operations would ask for the
interpreter each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import kernel
from tightz.uppers.quadratic.panels import SUMS

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
    memory = Memory(x.size)
    while np.isfinite(gradient).all():
        held = (x <= floor) & (gradient > 0.0)
        step = memory.direction(np.where(held, 0.0, gradient))
        step[held] = 0.0
        found = _search(function, x, value, step, gradient, floor)
        if found is None:
            if not memory.count:
                return
            memory.count = 0  # curvature from too far away: start again from the gradient
            continue
        new, value, gradient_at = found
        taken, before = new - x, gradient
        x, gradient = new, gradient_at()
        change = gradient - before
        memory.add(taken, change)
        yield value, x


class Memory:
    """The last steps and the changes of the gradient along them, MEMORY of them at most."""

    def __init__(self, size: int) -> None:
        self.count, self._last = 0, -1
        self._steps, self._changes = np.empty((MEMORY, size)), np.empty((MEMORY, size))
        self._products = np.empty((MEMORY, 2))

    def add(self, step: Array, change: Array) -> None:
        """Keep a pair where the function bends upwards along it."""
        product, square = float(step @ change), float(change @ change)
        if square == 0.0 or product <= 1e-10 * np.linalg.norm(step) * np.sqrt(square):
            return  # squares of changes below 1e-162 are 0
        self._last = (self._last + 1) % MEMORY
        self.count = min(self.count + 1, MEMORY)
        self._steps[self._last], self._changes[self._last] = step, change
        self._products[self._last] = product, square

    def direction(self, gradient: Array) -> Array:
        """Downhill, no coordinate by more than a step may change it."""
        d = -gradient
        curved(d, self._steps, self._changes, self._products, self._last, self.count)
        largest = float(np.abs(d).max(initial=0.0))
        limit = LONGEST if self.count else LONGEST / 2.0
        if largest > limit or (not self.count and largest > 0.0):
            d *= limit / largest
        return d


@kernel(fastmath=SUMS)
def curved(d, steps, changes, products, last, count):  # type: ignore[no-untyped-def]
    """d times the inverse Hessian of `count` pairs, the last one in row `last`; in place.

    `products` (rows, 2): step times change, change times change.
    """
    kept, size = steps.shape
    shares = np.empty(count)
    for back in range(count):
        row = (last - back) % kept
        total = 0.0
        for j in range(size):
            total += steps[row, j] * d[j]
        shares[back] = total / products[row, 0]
        for j in range(size):
            d[j] -= shares[back] * changes[row, j]
    if count > 0:
        for j in range(size):
            d[j] *= products[last, 0] / products[last, 1]
    for back in range(count - 1, -1, -1):
        row = (last - back) % kept
        total = 0.0
        for j in range(size):
            total += changes[row, j] * d[j]
        share = shares[back] - total / products[row, 0]
        for j in range(size):
            d[j] += share * steps[row, j]


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
