"""Parallel tempering on dense pairwise models: local fields are kept and updated on a flip.

A spin that stays costs O(1) and one that flips an axpy over its row of couplings, so at low
temperature a sweep is far cheaper than the number of terms. Arrays are indexed [spin, lane] as in
`lane_sweeps` but stored lane by lane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.projections.grouped import GroupedPolynomial
from tightz.search.moves import MAX_DESCENT, exchange, offer
from tightz.search.randomness import GOLDEN, uniform

_CERTAIN = 40.0
"""exp(-40) is below the resolution of a uniform number: such a flip never happens."""


class DenseCouplings(NamedTuple):
    """matrix (n, n) symmetric; row i is zero outside low[i] <= j < high[i]."""

    matrix: NDArray[np.float64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]


def dense_couplings(poly: GroupedPolynomial, dense_above: float) -> DenseCouplings | None:
    """The matrix of a pairwise model that couples `dense_above` of all pairs, else None."""
    n = poly.n
    small = 64 < n <= 8192  # the matrix takes at most half a gigabyte
    if poly.coef.size or not small or poly.adj_to.size < dense_above * n * (n - 1):
        return None
    owner = np.repeat(np.arange(n), np.diff(poly.adj_ptr))
    matrix = np.zeros((n, n))
    matrix[owner, poly.adj_to] = poly.adj_w
    low = np.full(n, n, dtype=np.int64)
    high = np.zeros(n, dtype=np.int64)
    np.minimum.at(low, owner, poly.adj_to)
    np.maximum.at(high, owner, poly.adj_to + 1)
    return DenseCouplings(matrix, low, high)


@njit(cache=True, nogil=True)
def flip_dense(dense, spins, fields, i):  # type: ignore[no-untyped-def]
    """Flip spin i of one lane (n,) and carry it into the local fields (n,) of its neighbours."""
    step = -2.0 * spins[i]
    row = dense.matrix[i]
    for j in range(dense.low[i], dense.high[i]):
        fields[j] += step * row[j]
    spins[i] = -spins[i]


@njit(cache=True, nogil=True)
def quench_dense(dense, spins, fields):  # type: ignore[no-untyped-def]
    """Single flips that raise the weight until none does; spins, fields (n,); returns the gain."""
    total = 0.0
    for _ in range(MAX_DESCENT):
        gain = 0.0
        for i in range(spins.size):
            pull = spins[i] * fields[i]
            if pull < 0.0:
                gain -= 2.0 * pull
                flip_dense(dense, spins, fields, i)
        if gain == 0.0:
            break
        total += gain
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_dense(dense, rep, moved):  # type: ignore[no-untyped-def]
    """One heat-bath sweep of every lane: P(flip) = 1 / (1 + exp(2 beta s_i h_i))."""
    n, lanes = rep.spins.shape
    begin = rep.clock[0]
    for r in range(lanes):
        spins, fields = rep.spins[:, r], rep.cache[:, r]
        energy, beta, key = rep.energy[r], rep.beta[r], rep.keys[r]
        moved[r] = 0
        position = begin
        for i in range(n):
            position += GOLDEN
            pull = 2.0 * beta * spins[i] * fields[i]
            if pull < _CERTAIN and uniform(key + position) * (1.0 + np.exp(pull)) < 1.0:
                energy -= 2.0 * spins[i] * fields[i]
                flip_dense(dense, spins, fields, i)
                moved[r] += 1
        rep.energy[r] = energy
    rep.clock[0] = begin + np.uint64(n) * GOLDEN


@njit(cache=True, nogil=True)
def temper_dense(dense, rep, best, tally, sweeps, first, plan):  # type: ignore[no-untyped-def]
    """As `temper_lanes`, without cluster moves: in a dense graph one cluster holds everything."""
    n, lanes = rep.spins.shape
    replicas, temperatures = rep.lane_of.shape
    moved = np.zeros(lanes, dtype=np.int64)
    x = np.empty(n, dtype=np.int8)
    fields = np.empty(n)
    for t in range(sweeps):
        number = first + t
        sweep_dense(dense, rep, moved)
        for a in range(replicas):
            for k in range(temperatures):
                tally.flips[k] += moved[rep.lane_of[a, k]]
        exchange(rep, number % 2, tally.swaps)
        for a in range(replicas):
            if number == 1 or number % plan.quench_every == 0:
                for k in range(plan.quench_from, temperatures):
                    lane = rep.lane_of[a, k]
                    x[:] = rep.spins[:, lane]
                    fields[:] = rep.cache[:, lane]
                    offer(best, x, rep.energy[lane] + quench_dense(dense, x, fields))
            for k in range(temperatures):
                tally.trace[t, a, k] = rep.energy[rep.lane_of[a, k]]
            if plan.sample_every > 0 and number % plan.sample_every == 0:
                tally.samples[tally.size[0]] = rep.spins[:, rep.lane_of[a, plan.unit]]
                tally.size[0] += 1
