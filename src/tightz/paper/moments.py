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
        # Everything so far is expressed relative to the largest weight seen: exp never overflows,
        # and a new maximum shrinks what was there.
        if log_weight > self._log_scale:
            self._rescale(log_weight)
        w = math.exp(log_weight - self._log_scale)
        self._weight += w
        self._sum += w * values
        self._squares += w * values * values

    def merge(self, other: WeightedMoments) -> None:
        """Take in all that `other` has seen."""
        if other._log_scale > self._log_scale:
            self._rescale(other._log_scale)
        if other._log_scale > -math.inf:
            w = math.exp(other._log_scale - self._log_scale)
            self._weight += w * other._weight
            self._sum += w * other._sum
            self._squares += w * other._squares

    def to_array(self) -> NDArray[np.float64]:
        """Everything in one vector [log scale, weight, sums, squares], for files and cables."""
        return np.concatenate([[self._log_scale, self._weight], self._sum, self._squares])

    @classmethod
    def from_array(cls, packed: NDArray[np.float64]) -> WeightedMoments:
        """The inverse of `to_array`."""
        size = (packed.size - 2) // 2
        moments = cls(size)
        moments._log_scale, moments._weight = float(packed[0]), float(packed[1])
        moments._sum, moments._squares = packed[2 : 2 + size].copy(), packed[2 + size :].copy()
        return moments

    def _rescale(self, log_scale: float) -> None:
        shrink = math.exp(self._log_scale - log_scale)
        self._weight *= shrink
        self._sum *= shrink
        self._squares *= shrink
        self._log_scale = log_scale

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
