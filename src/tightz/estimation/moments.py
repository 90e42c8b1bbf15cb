"""Averages of q over projections, weighted by how much of Z each accounts for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


class WeightedMoments:
    """Running mean and spread of vectors with weights exp(log_weight), one pass, no overflow."""

    def __init__(self, size: int) -> None:
        self._log_scale = -math.inf
        self._weight = 0.0
        self._sum = np.zeros(size)
        self._squares = np.zeros(size)

    def add(self, log_weight: float, values: NDArray[np.float64]) -> None:
        """Take in one vector; a weight of zero (log_weight = -inf) changes nothing."""
        if log_weight == -math.inf:
            return
        if log_weight > self._log_scale:
            shrink = math.exp(self._log_scale - log_weight)
            self._weight *= shrink
            self._sum *= shrink
            self._squares *= shrink
            self._log_scale = log_weight
        w = math.exp(log_weight - self._log_scale)
        self._weight += w
        self._sum += w * values
        self._squares += w * values * values

    @property
    def mean(self) -> NDArray[np.float64]:
        """The weighted mean; NaN before anything of positive weight came in."""
        if self._weight == 0.0:
            return np.full_like(self._sum, np.nan)
        return self._sum / self._weight

    @property
    def spread(self) -> NDArray[np.float64]:
        """The weighted standard deviation between vectors."""
        if self._weight == 0.0:
            return np.full_like(self._sum, np.nan)
        variance = self._squares / self._weight - self.mean**2
        return np.sqrt(np.maximum(variance, 0.0))
