"""The last few spins, summed exactly: log sum, means and pair moments."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@lru_cache(maxsize=32)
def states(n: int) -> Array:
    """(2^n, n) all states of n spins."""
    bits = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    return np.array(1.0 - 2.0 * bits, dtype=np.float64)


def summed(couplings: Array, fields: Array) -> tuple[float, Array, Array]:
    """(log sum_s exp(h's + s'Js / 2), E[s], E[s s'] with zero diagonal).

    Two halves of the spins make the rows and columns of a table, so that all is matrix products.
    """
    half = fields.size // 2
    one, two = states(half), states(fields.size - half)
    across = couplings[:half, half:]
    table = _energies(one, couplings[:half, :half], fields[:half])[:, None] + one @ across @ two.T
    table += _energies(two, couplings[half:, half:], fields[half:])
    top = float(table.max())
    weights = np.exp(table - top, out=table)
    total = float(weights.sum())
    weights /= total
    rows, columns = weights.sum(axis=1), weights.sum(axis=0)
    pairs = np.empty(couplings.shape)
    pairs[:half, :half] = one.T @ (rows[:, None] * one)
    pairs[half:, half:] = two.T @ (columns[:, None] * two)
    pairs[:half, half:] = one.T @ weights @ two
    pairs[half:, :half] = pairs[:half, half:].T
    np.fill_diagonal(pairs, 0.0)
    log_sum = top + math.log(total) if total > 0.0 else math.nan
    return log_sum, np.concatenate([rows @ one, columns @ two]), pairs


def _energies(spins: Array, couplings: Array, fields: Array) -> Array:
    energies: Array = spins @ fields + 0.5 * ((spins @ couplings) * spins).sum(axis=1)
    return energies
