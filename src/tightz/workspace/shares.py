"""Draws under a cap by weight and state: what bets on marginals need of them.

A draw between two values of X is moved to one of them at random so that its mean stays: a weight
like any other, in [0, 1] and with the same mean given the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

DEEPER = 6.0
"""Octaves below the mean weight down to which values of X are told apart."""

FINE = 2.0
"""Values of X an octave: moving draws to them adds at most 3% to the variance of weights."""

DEEPEST = 60
"""Octaves below the cap that are told apart at most."""

MOST = 1 << 21
"""Counts kept in all: models with many variables get fewer values of X."""


@dataclass(frozen=True)
class Grid:
    """Values of X that draws are moved to: 1, 2^-step, ..., `count` of them, and 0."""

    count: int
    step: float

    @classmethod
    def of(cls, gap: float, entries: int) -> Grid:
        """For weights about `gap` nats below the cap."""
        octaves = min(float(DEEPEST), DEEPER + max(0.0, gap) / math.log(2.0))
        count = int(max(2.0, min(FINE * octaves + 1.0, MOST / max(1, entries))))
        return cls(count, octaves / (count - 1))

    @cached_property
    def points(self) -> NDArray[np.float64]:
        return np.exp2(-self.step * np.arange(self.count))

    def place(self, log_x: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """The point of each draw, `count` for 0, where a bet neither wins nor loses."""
        x = np.exp(np.minimum(log_x, 0.0))
        above = np.full(x.shape, self.count - 1)
        alive = x > self.points[-1]
        above[alive] = np.floor(np.maximum(0.0, -np.log2(x[alive])) / self.step)
        above = np.minimum(above, self.count - 1)
        ladder = np.append(self.points, 0.0)
        high, low = ladder[above], ladder[above + 1]
        return above + (uniform * (high - low) >= x - low)


@dataclass(frozen=True, eq=False)
class Shares:
    """All draws of one source: how many lie at each point of its grid, in all and by state.

    counts     (entries, points) those with x_i = s; entries are the states of all variables
    pointers   (variables + 1,) where a variable's entries begin
    stake      the unit of the stakes, in units of 1 / cap: fixed before the first draw
    rounding   nats by which a computed log X may differ from the real one
    log_lost   log of the part of Z that is never drawn
    """

    track: str
    grid: Grid
    pointers: NDArray[np.int64]
    counts: NDArray[np.int64]
    stake: float
    rounding: float
    log_lost: float
