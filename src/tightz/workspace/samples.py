"""States drawn for the model, with what they are worth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.workspace.findings import Mixing


@dataclass(frozen=True, eq=False)
class Samples:
    """states (k, variables) and log_weights (k,) = log p~(x) - log q(x), q what they came from.

    The mean of exp(log_weights) is Z in expectation where q covers the whole space, and averages
    weighted by exp(log_weights) are averages under the model. `status` says whether the draws can
    stand for the model; `most` bounds their effective number where they repeat a smaller set.
    """

    states: NDArray[np.int64]
    log_weights: NDArray[np.float64]
    status: Mixing = Mixing.VARIATIONAL
    most: float = math.inf

    def __iter__(self) -> Iterator[NDArray]:
        """states, log_weights = result.sample(k)"""
        return iter((self.states, self.log_weights))

    @property
    def effective_size(self) -> float:
        """How many draws of equal weight would say as much (Kish): (sum w)^2 / sum w^2.

        Large weights that were never drawn do not show in it.
        """
        if not self.log_weights.size or self.log_weights.max() == -np.inf:
            return 0.0
        ratios = np.exp(self.log_weights - self.log_weights.max())
        return min(self.most, float(ratios.sum() ** 2 / (ratios * ratios).sum()))

    def __repr__(self) -> str:
        return (
            f"Samples({len(self.states)} states, worth {self.effective_size:.0f} independent ones; "
            f"{self.status.value})"
        )
