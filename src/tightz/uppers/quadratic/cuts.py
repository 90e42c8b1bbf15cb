"""Inequalities among three spins that a quadratic relaxation breaks, added to the log weight.

For spins s and signs a, b, c of +-1,

    1 + a b s_i s_j + a c s_i s_k + b c s_j s_k = ((a s_i + b s_j + c s_k)^2 - 1) / 2 >= 0,

since a sum of three odd numbers is odd. So a multiple w >= 0 of the left side may be added to the
log weight: it changes couplings and the constant, and Z can only grow. It lowers the bound where
the moments E[s_i s_j] of the model that the elimination stands for break the inequality. A spin
that is always 1, here number n, makes fields couplings and (1 + a s_i)(1 + b s_j) >= 0 one of these
inequalities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import kernel

Array = NDArray[np.float64]

BROKEN = 1e-2
"""An inequality counts as broken below minus this."""

MOST_PAIRS = 400_000
MOST_TRIPLES = 3000
"""Added at a time, the most broken first."""

TRIPLES = 600
"""Spins up to which all triples are looked at."""

_SIGNS = np.array([[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]], dtype=np.int8)


@dataclass(frozen=True, eq=False)
class Cuts:
    """spins (T, 3), the fixed one being number n, and signs (T, 3)."""

    n: int
    spins: NDArray[np.int64]
    signs: NDArray[np.int8]

    @classmethod
    def none(cls, n: int) -> Cuts:
        return cls(n, np.zeros((0, 3), np.int64), np.zeros((0, 3), np.int8))

    @property
    def size(self) -> int:
        return len(self.spins)

    @property
    def keys(self) -> NDArray[np.int64]:
        """One number for each inequality; spins of a row rise, and signs count up to a flip."""
        base = self.n + 1
        code = ((self.signs * self.signs[:, :1])[:, 1:] > 0) @ np.array([1, 2])
        i, j, k = self.spins.T
        return ((i * base + j) * base + k) * 4 + code

    def chosen(self, which: NDArray) -> Cuts:
        return Cuts(self.n, self.spins[which], self.signs[which])

    def joined(self, other: Cuts) -> Cuts:
        """These, then those of `other` that are not among them."""
        more = other.chosen(~np.isin(other.keys, self.keys))
        return Cuts(
            self.n,
            np.concatenate([self.spins, more.spins]),
            np.concatenate([self.signs, more.signs]),
        )


class Added:
    """What multiples of cuts add to a model, and how fast a bound changes with them."""

    def __init__(self, cuts: Cuts) -> None:
        self.spins = np.ascontiguousarray(cuts.spins)
        self.signs = np.ascontiguousarray(cuts.signs, dtype=np.int8)

    def to(self, couplings: Array, fields: Array, weights: Array) -> tuple[Array, Array, float]:
        """(J, h, constant) with the cuts in."""
        if not weights.size:
            return couplings, fields, 0.0
        j, h = couplings.copy(), fields.copy()
        spread(self.spins, self.signs, weights, j, h)
        return j, h, float(weights.sum())

    def slopes(self, means: Array, pairs: Array) -> Array:
        """The left sides of the inequalities in expectation: d bound / d weights."""
        slopes = np.empty(len(self.spins))
        if slopes.size:
            left_sides(self.spins, self.signs, means, pairs, slopes)
        return slopes


@kernel
def spread(spins, signs, weights, couplings, fields):  # type: ignore[no-untyped-def]
    """Add w (a b s_i s_j + a c s_i s_k + b c s_j s_k); a third spin may be the fixed one, n."""
    n = fields.size
    for t in range(weights.size):
        w = weights[t]
        if w == 0.0:
            continue
        i, j, k = spins[t, 0], spins[t, 1], spins[t, 2]
        a, b, c = w * signs[t, 0], w * signs[t, 1], signs[t, 2]
        couplings[i, j] += a * signs[t, 1]
        couplings[j, i] += a * signs[t, 1]
        if k == n:
            fields[i] += a * c
            fields[j] += b * c
        else:
            couplings[i, k] += a * c
            couplings[k, i] += a * c
            couplings[j, k] += b * c
            couplings[k, j] += b * c


@kernel
def left_sides(spins, signs, means, pairs, out):  # type: ignore[no-untyped-def]
    """1 + a b E[s_i s_j] + a c E[s_i s_k] + b c E[s_j s_k] of each inequality."""
    n = means.size
    for t in range(out.size):
        i, j, k = spins[t, 0], spins[t, 1], spins[t, 2]
        a, b, c = signs[t, 0], signs[t, 1], signs[t, 2]
        one, two = (means[i], means[j]) if k == n else (pairs[i, k], pairs[j, k])
        out[t] = 1.0 + a * b * pairs[i, j] + a * c * one + b * c * two


def broken(means: Array, pairs: Array, first: int) -> Cuts:
    """The inequalities that moments break most, none with two of the first `first` spins.

    Those have no couplings among each other, which makes their elimination fast.
    """
    cuts = _broken_pairs(means, pairs, first)
    # Triples gain less than pairs and take longer to find: their turn comes when pairs are few.
    if cuts.size < MOST_TRIPLES and means.size - first <= TRIPLES:
        cuts = cuts.joined(_broken_triples(pairs, first))
    return cuts


def _broken_pairs(means: Array, pairs: Array, first: int) -> Cuts:
    n = means.size
    i, j = np.nonzero(np.triu(np.ones((n, n), dtype=bool), 1)[:, first:])
    j = j + first
    found = []
    for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        left = 1.0 + a * means[i] + b * means[j] + a * b * pairs[i, j]
        low = np.flatnonzero(left < -BROKEN)
        found.append((left[low], i[low], j[low], np.full(low.size, a), np.full(low.size, b)))
    values, one, two, sign, other = (np.concatenate(part) for part in zip(*found, strict=True))
    kept = np.argsort(values, kind="stable")[:MOST_PAIRS]
    spins = np.stack([one, two, np.full(one.size, n)], axis=1)
    signs = np.stack([sign, other, np.ones_like(sign)], axis=1).astype(np.int8)
    return Cuts(n, spins, signs).chosen(kept)


def _broken_triples(pairs: Array, first: int) -> Cuts:
    """The most broken of all triples, kept within bounds by a limit that falls on the way."""
    n = len(pairs)
    limit, found = -BROKEN, np.zeros((0, 5))
    for i in range(first, n - 2):
        one, rest = pairs[i, i + 1 :], pairs[i + 1 :, i + 1 :]
        fresh = []
        for code, (a, b, c) in enumerate(_SIGNS.tolist()):
            left = b * c * rest
            left += 1.0 + a * b * one[:, None]
            left += a * c * one
            j, k = np.nonzero(left < limit)
            j, k = j[j < k], k[j < k]
            where = np.full(j.size, i), i + 1 + j, i + 1 + k, np.full(j.size, code)
            fresh.append(np.stack([left[j, k], *where], axis=1))
        found = np.concatenate([found, *fresh])
        if len(found) > 2 * MOST_TRIPLES:
            found = found[np.argpartition(found[:, 0], MOST_TRIPLES)[:MOST_TRIPLES]]
            limit = float(found[:, 0].max())
    found = found[np.argsort(found[:, 0], kind="stable")[:MOST_TRIPLES]]
    whole = found[:, 1:].astype(np.int64)
    return Cuts(n, whole[:, :3], _SIGNS[whole[:, 3]])
