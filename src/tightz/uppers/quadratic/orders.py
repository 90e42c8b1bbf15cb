"""In which order spins are summed out: the weakest first, layers as a whole."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.uppers.quadratic.touching import first_point, touching

Array = NDArray[np.float64]

LARGEST = 600
"""Coupled spins up to which the order follows the couplings as they change."""


def candidates(couplings: Array, fields: Array, tail: int) -> list[NDArray[np.int64]]:
    """Orders worth a comparison, the likeliest first; the last `tail` spins are summed exactly."""
    n = fields.size
    found = []
    layers = two_layers(couplings)
    if layers is not None:
        sides = (np.flatnonzero(layers == 0), np.flatnonzero(layers == 1))
        for layer, rest in sorted((sides, sides[::-1]), key=lambda pair: -pair[0].size):
            if rest.size >= tail:  # else spins of this layer would be in the tail
                found.append(_layer_first(couplings, fields, layer, rest, tail))
    if n <= LARGEST or not found:
        found.append(weakest_first(couplings, fields, tail))
    return found


def two_layers(couplings: Array) -> NDArray[np.int64] | None:
    """0 or 1 for each spin so that couplings go between layers only; None where that cannot be."""
    linked = couplings != 0.0
    side = np.full(len(couplings), -1)
    for root in range(len(couplings)):
        if side[root] >= 0:
            continue
        side[root], front, colour = 0, np.array([root]), 0
        while front.size:
            reached = linked[front].any(axis=0)
            if (side[reached] == colour).any():
                return None
            front = np.flatnonzero(reached & (side < 0))
            colour = 1 - colour
            side[front] = colour
    return side


def _layer_first(
    couplings: Array, fields: Array, layer: NDArray[np.int64], rest: NDArray[np.int64], tail: int
) -> NDArray[np.int64]:
    j, h = couplings[np.ix_(rest, rest)].copy(), fields[rest].copy()
    rows = couplings[np.ix_(layer, rest)]
    sizes = (rows * rows).sum(axis=1)
    _take(j, h, rows, fields[layer])
    return np.concatenate([layer[np.argsort(sizes)], rest[weakest_first(j, h, tail)]])


def weakest_first(couplings: Array, fields: Array, tail: int) -> NDArray[np.int64]:
    """Next is always the spin with the smallest sum of squared couplings as they are then.

    Spins with one neighbour or none come first: their sums are exact.
    """
    n = fields.size
    if n > LARGEST:
        return np.argsort((couplings * couplings).sum(axis=1))
    j, h, left = couplings.copy(), fields.copy(), np.arange(n)
    order = []
    with np.errstate(all="ignore"):
        while left.size > tail:
            sizes = np.nan_to_num((j * j).sum(axis=1), nan=np.inf)
            sizes[np.count_nonzero(j, axis=1) <= 1] = -1.0
            at = int(np.argmin(sizes))
            order.append(left[at])
            row, field = np.delete(j[at], at), h[at]
            keep = np.delete(np.arange(left.size), at)
            j, h, left = j[np.ix_(keep, keep)], h[keep], left[keep]
            _take(j, h, row[None, :], np.array([field]))
    return np.concatenate([np.array(order, dtype=np.int64), left])


def _take(j: Array, h: Array, rows: Array, fields: Array) -> None:
    """Sum out spins with these rows of couplings, at their first tangent points, in place."""
    reach, sizes = np.abs(rows).sum(axis=1), (rows * rows).sum(axis=1)
    mu, v = np.zeros(fields.size), np.zeros(fields.size)
    for k, (f, r, size) in enumerate(zip(fields, reach, sizes, strict=True)):
        if math.isfinite(f + r):
            q = touching(float(f), float(r), first_point(float(f), float(size)))
            mu[k], v[k] = q.mu, q.v
    h += (mu + v * fields) @ rows
    j += (rows.T * v) @ rows
    np.fill_diagonal(j, 0.0)
