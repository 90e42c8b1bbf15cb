"""Which variables become the constrained ones. The coset is the same set whatever the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ParameterError


class PivotPolicy(Protocol):
    """Orders the variables; elimination takes the first independent ones as pivots."""

    def order(self, n: int) -> NDArray[np.int64]:
        """A permutation of range(n), most wanted pivots first."""


@dataclass(frozen=True)
class FirstColumns:
    """The paper's choice: the leading variables are constrained."""

    def order(self, n: int) -> NDArray[np.int64]:
        """0, 1, ..., n - 1."""
        return np.arange(n)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Constrain the least reliable variables first (ordered-statistics decoding).

    `reliability` is any score per variable, such as the local field's magnitude in the best state
    known, or |E s_i|: the variables with the smallest scores are cheapest to flip, so satisfying
    the parities costs least when they carry the constraints.
    """

    reliability: ArrayLike

    def order(self, n: int) -> NDArray[np.int64]:
        """Variables by ascending reliability, ties by number."""
        scores = np.asarray(self.reliability, dtype=np.float64)
        if scores.shape != (n,) or np.isnan(scores).any():
            raise ParameterError(
                f"reliability has shape {scores.shape}; expected {n} scores without NaN"
            )
        return np.argsort(scores, kind="stable")
