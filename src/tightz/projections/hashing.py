"""How the random parities A x = b (mod 2) are drawn, and which variables they constrain.

For every family b is uniform and independent of A, so each state survives with probability
exactly 2^-m and E[2^m Z(A, b)] = Z. The families differ in the variance of Z(A, b), that is in
what holds with high probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ParameterError


class Parities(NamedTuple):
    """A system A x = b (mod 2): matrix (m, n) and rhs (m,), entries 0/1 as uint8."""

    matrix: NDArray[np.uint8]
    rhs: NDArray[np.uint8]


class HashFamily(Protocol):
    """Anything that draws m parities over n variables."""

    @property
    def strongly_universal(self) -> bool:
        """Whether states survive pairwise independently, as Theorems 1 and 2 need."""

    def draw(self, m: int, n: int, rng: np.random.Generator) -> Parities:
        """Draw (A, b). Never redraws: an infeasible system is Z(A, b) = 0 and counts."""


@dataclass(frozen=True)
class DenseParity:
    """The paper's family: every entry of A and b an independent fair coin.

    Strongly universal: states survive pairwise independently with probability 2^-m, so
    Var[Z(A, b)] = 2^-m (1 - 2^-m) sum_x p~(x)^2, and Theorems 1 and 2 apply as printed.
    """

    @property
    def strongly_universal(self) -> bool:
        return True

    def draw(self, m: int, n: int, rng: np.random.Generator) -> Parities:
        """Draw A in {0,1}^(m x n) and b in {0,1}^m."""
        coins = rng.integers(0, 2, size=(m, n + 1), dtype=np.uint8)
        return Parities(coins[:, :n], coins[:, n].copy())


@dataclass(frozen=True)
class SparseParity:
    """Every entry of A is 1 with probability `density`; b is fair and independent of A.

    Keeps E[2^m Z(A, b)] = Z, hence every lower bound in expectation and every certificate built
    on it. Not pairwise independent below density 1/2: nearby states survive together more often,
    the variance grows, and the upper half of Theorem 1 and Theorem 2 no longer follow.
    """

    density: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.density <= 0.5:
            raise ParameterError(f"density is {self.density}; expected more than 0 and at most 0.5")

    @property
    def strongly_universal(self) -> bool:
        return self.density == 0.5

    def draw(self, m: int, n: int, rng: np.random.Generator) -> Parities:
        """Draw A with Bernoulli(density) entries and b with fair coins."""
        matrix = (rng.random((m, n)) < self.density).astype(np.uint8)
        return Parities(matrix, rng.integers(0, 2, size=m, dtype=np.uint8))


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
