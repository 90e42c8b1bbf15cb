"""Bounds on Z from how the heaviest state of a random coset is distributed; any number of trials.

With N(v) = #{x : p~(x) >= v}, Z is the integral of N(v) over v > 0. For M_i the maximum of p~ on a
coset of i fair-coin parities, P_i(v) = P(M_i >= v), and mu = N(v) / 2^i the expected number of
survivors at or above v, pairwise independence gives

    mu / (mu + 1 - 2^-i) <= P_i(v) <= mu      (one-sided Chebyshev; Markov),

hence 2^i P_i(v) <= N(v) <= (2^i - 1) P_i(v) / (1 - P_i(v)). The empirical distribution of T trials
is within eps = sqrt(ln(2 L / delta) / (2 T)) of P_i on each side, for all v at once and at L levels
at once, with probability 1 - delta (Dvoretzky, Kiefer and Wolfowitz 1956; Massart 1990).

The left inequality for N survives if M_i is replaced by the weight of any state found, the right
one if it is replaced by any upper bound on M_i. The left one needs no pairwise independence.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

LOG_2 = math.log(2.0)


def _epsilon(levels: NDArray[np.int64], trials: int, delta: float) -> float:
    """Half-width of the band: two sides, and every level but 0, whose maximum is not random."""
    random_levels = max(1, int((levels > 0).sum()))
    return math.sqrt(math.log(2.0 * random_levels / delta) / (2.0 * trials))


def _integral(log_values: NDArray[np.float64], log_counts: NDArray[np.float64]) -> float:
    """log of the integral of a count that is exp(log_counts[k]) on (v_k+1, v_k], v descending."""
    if not log_values.size:
        return -math.inf
    following = np.append(log_values[1:], -np.inf)
    with np.errstate(divide="ignore"):
        pieces = log_counts + log_values + np.log(-np.expm1(following - log_values))
    return float(logsumexp(pieces)) if pieces.max() > -np.inf else -math.inf


def _shares(values: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fraction of `row` at or above each of `values`."""
    return 1.0 - np.searchsorted(np.sort(row), values, side="left") / row.size


def band_lower(
    levels: NDArray[np.int64], log_maxima: NDArray[np.float64], delta: float
) -> float:  # fmt: skip
    """log of the integral of max_i 2^i (share_i(v) - eps) <= N(v), from states found."""
    values = np.unique(log_maxima[log_maxima > -np.inf])[::-1]
    epsilon = _epsilon(levels, log_maxima.shape[1], delta)
    counts = np.zeros(values.size)  # N(v) >= 1 up to the heaviest state seen
    for level, row in zip(levels.tolist(), log_maxima, strict=True):
        if level:
            with np.errstate(divide="ignore"):
                share = np.log(np.maximum(0.0, _shares(values, row) - epsilon))
            counts = np.maximum(counts, level * LOG_2 + share)
    return _integral(values, counts)


def band_upper(
    levels: NDArray[np.int64],
    log_uppers: NDArray[np.float64],
    n: int,
    log_ceiling: float,
    delta: float,
) -> float:
    """log of the integral of min_i (2^i - 1) p / (1 - p) >= N(v), p = share_i(v) + eps < 1."""
    values = np.unique(np.minimum(np.append(log_uppers, log_ceiling), log_ceiling))[::-1]
    values = values[values > -np.inf]
    epsilon = _epsilon(levels, log_uppers.shape[1], delta)
    counts = np.full(values.size, n * LOG_2)
    for level, row in zip(levels.tolist(), log_uppers, strict=True):
        if level:
            share = np.minimum(1.0, _shares(values, row) + epsilon)
            with np.errstate(divide="ignore"):
                odds = np.log(share) - np.log1p(-share)
            counts = np.minimum(counts, level * LOG_2 + math.log1p(-(2.0**-level)) + odds)
    return _integral(values, counts)
