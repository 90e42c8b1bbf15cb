"""The heaviest state that can be put together from given ones.

Where two states differ, the spins that do fall into clusters that no term joins. What a cluster
adds to log p~ does not depend on the others, so each is taken from the heavier side (partition
crossover: Tinos, Whitley and Chicano, 2015; the clusters are Houdayer's, 2001). In a large sparse
model states are wrong here and there: of many that are each wrong somewhere, one that is right
nearly everywhere can be put together. 100x100 grid, w = 10: the heaviest of 1024 draws under a
mini-bucket cap has log weight 79,136, eleven of them put together 79,226, tempering's best 78,684.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.models.spin_polynomial import SpinPolynomial
from tightz.runtime.kernels import inner, kernel

WORK = 3e7
"""Incidences that are looked at in all, a quarter of a second: of large models fewer states."""

FLIPS = 200
"""Single spins that are flipped at the end, at most."""


def recombined(polynomial: SpinPolynomial, states: NDArray[np.int8]) -> NDArray[np.int8]:
    """(n,) a state at least as heavy as each of `states` (S, n), of which there is at least one.

    The heaviest is joined with the others in turn, heaviest first, and after that flipped where a
    single spin gains: between clusters of different states there may be some.
    """
    states = np.asarray(states, dtype=np.int8)
    order = np.argsort(-polynomial.log_weight(states), kind="stable")
    most = max(2, int(WORK / max(1, 2 * polynomial.spins.size)))
    best: NDArray[np.int8] = states[order[0]].copy()
    rows = np.ascontiguousarray(states[order[1:most]])
    work = np.empty(polynomial.n, dtype=np.int64), np.empty(polynomial.n)
    _recombine((polynomial.ptr, polynomial.spins, polynomial.theta), rows, *work, best)
    for _ in range(FLIPS):
        costs = polynomial.flip_costs(best)
        if not (costs < 0.0).any():
            break
        best[costs.argmin()] *= -1
    return best


@inner
def _cluster(root, i):  # type: ignore[no-untyped-def]
    """The spin that stands for i's cluster."""
    while root[i] != i:
        root[i] = root[root[i]]
        i = root[i]
    return i


@kernel
def _recombine(terms, rows, root, gain, best):  # type: ignore[no-untyped-def]
    """best (n,) takes from each of the rows (S, n) in turn the clusters that gain.

    terms: ptr, spins, theta; root, gain (n,): the cluster of each spin, and what it gains.
    """
    ptr, spins, theta = terms
    for s in range(rows.shape[0]):
        other = rows[s]
        for i in range(best.size):
            root[i], gain[i] = i, 0.0
        for a in range(theta.size):
            first = -1
            for p in range(ptr[a], ptr[a + 1]):
                if best[spins[p]] != other[spins[p]]:
                    k = _cluster(root, spins[p])
                    first = k if first < 0 else first
                    root[k] = first
        for a in range(theta.size):
            here, there, one = theta[a], theta[a], -1
            for p in range(ptr[a], ptr[a + 1]):
                i = spins[p]
                here *= best[i]
                there *= other[i]
                one = i if best[i] != other[i] else one
            if one >= 0:
                gain[_cluster(root, one)] += there - here
        for i in range(best.size):
            if best[i] != other[i] and gain[_cluster(root, i)] > 0.0:
                best[i] = other[i]
