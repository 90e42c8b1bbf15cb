"""What a proposal under a cap offers, wherever its tables lie: draws, many at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket.partition import Partition

LANES = 1024
"""States drawn together: enough to fill vectors, few enough for their states to stay in cache."""


@dataclass(frozen=True, eq=False)
class Capped(ABC):
    """q(x) with p~(x) / q(x) = U X(x), X in [0, 1] with mean Z / U under q.

    Variables are those of `model`, on which the descent ran. `log_cap` is the judge's: log U and
    what rounding may add to it. `rounding`: nats by which a computed log U + log X may be off.
    """

    model: FactorGraph
    parts: Partition
    log_u: float
    log_cap: float
    rounding: float

    @property
    def cardinalities(self) -> NDArray[np.int64]:
        return self.parts.cardinalities

    @property
    def log_lost(self) -> float:
        """log of the mass that may never be drawn: entries below e^-85, and 2^-63 of a step.

        A state has weight at most U, whatever is left out of a step has at most that share of U.
        """
        each = float(self.cardinalities.max(initial=1)) * math.exp(-85.0) + 2.0**-62
        return self.log_cap + math.log(max(1, self.parts.parents.size) * each)

    @property
    def lanes(self) -> int:
        """States to draw together."""
        return LANES

    @abstractmethod
    def drawing(self, words: NDArray[np.uint64]) -> Lanes:
        """A stream of draws from its own random numbers, one word per lane."""

    @abstractmethod
    def check(self, drawing: Lanes, count: int = 32) -> None:
        """Have the judge weigh some of the last draws anew; RefutedError where they differ."""


class Lanes(ABC):
    """Draws batch by batch; `states` (variables, lanes) and `log_x` are those of the last batch."""

    states: NDArray[np.unsignedinteger]
    log_x: NDArray[np.float64]

    @abstractmethod
    def batch(self) -> NDArray[np.float64]:
        """log X of the next draws, one per lane."""
