"""Which parities are worth a try: where the pool and q disagree, and where q cannot follow.

If q gives a parity chi the mean v and the true distribution e, then KL(q || p) is at least the
divergence between the two coins (data processing), and splitting on chi with the right weights
removes that part. The pool's mean stands in for e: it guides the choice and proves nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.families.projection import IProjection
from tightz.splitting.region import Parity

PAIR_SPINS = 24
"""Spins whose pairs are looked at: those that vary most in the pool."""

ALIKE = 0.95
"""Spins that agree, or differ, in this share of the pool are one candidate."""

FEW = 4
"""With fewer pool members than this in a region the pool's means say nothing."""


class Effort(NamedTuple):
    """How many parities of each kind a look-ahead tries."""

    disagreeing: int
    cut: int
    pairs: int
    random: int


def coin_divergence(v: NDArray[np.float64], e: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL between coins of means v and e, both in (-1, 1) or at the ends where v is."""
    out = np.zeros(np.shape(v))
    for sign in (1.0, -1.0):
        p, r = (1.0 + sign * v) / 2.0, (1.0 + sign * e) / 2.0
        with np.errstate(divide="ignore", invalid="ignore"):
            out += np.where(p > 0.0, p * (np.log(p) - np.log(r)), 0.0)
    return out


def propose(
    q: IProjection,
    free: NDArray[np.int64],
    members: NDArray[np.int8],
    strength: NDArray[np.float64],
    effort: Effort,
    rng: np.random.Generator,
) -> list[Parity]:
    """Parities over `free` spins, most promising of each kind first; no repeats.

    members (S, n): pool states in the region; strength (n,): weight of the terms at each spin
    that q's shape cannot follow.
    """
    if free.size == 0:
        return []
    v = np.clip(q.expectations(np.arange(free.size + 1), free), -1.0, 1.0)
    unsure = 1.0 - v * v
    chosen: list[Parity] = []
    known = len(members) >= FEW
    if known:
        e = _shrunk(members[:, free].sum(axis=0, dtype=np.float64), len(members))
        unsure = np.maximum(unsure, 1.0 - e * e)
        score = coin_divergence(v, e)
        chosen += [(int(free[i]),) for i in _diverse(score, members[:, free], effort.disagreeing)]
    pull = unsure * strength[free]
    chosen += [(int(free[i]),) for i in _top(pull, effort.cut + (0 if known else 1))]
    if effort.pairs and known and free.size > 1:
        chosen += _pairs(q, free, members, effort.pairs)
    open_ = np.flatnonzero(unsure > 1e-3)
    pool = open_ if open_.size else np.arange(free.size)
    chosen += [(int(free[rng.choice(pool)]),) for _ in range(effort.random)]
    return list(dict.fromkeys(chosen))


def _shrunk(totals: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Means of `count` spins pulled a little towards 0, so that no coin is certain."""
    return totals / (count + 1.0)


def _top(score: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    return np.argsort(-score, kind="stable")[:count]


def _diverse(score: NDArray[np.float64], rows: NDArray[np.int8], count: int) -> list[int]:
    """The top scores without spins that move together in the pool: they would split alike."""
    chosen: list[int] = []
    for i in _top(score, 8 * count).tolist():
        if len(chosen) == count:
            break
        alike = (rows[:, chosen] == rows[:, [i]]).mean(axis=0)
        if not ((alike > ALIKE) | (alike < 1.0 - ALIKE)).any():
            chosen.append(i)
    return chosen


def _pairs(
    q: IProjection, free: NDArray[np.int64], members: NDArray[np.int8], count: int
) -> list[Parity]:
    """Pairs that flip together in the pool but not under q."""
    rows = members[:, free].astype(np.float64)
    means = rows.mean(axis=0)
    at = np.sort(_top(1.0 - means * means, PAIR_SPINS))
    low, high = np.triu_indices(at.size, 1)
    joint = rows[:, at].T @ rows[:, at]
    e = _shrunk(joint[low, high], len(rows))
    i, j = free[at[low]], free[at[high]]
    spins = np.stack([i, j], axis=1).ravel()
    vv = np.clip(q.expectations(2 * np.arange(i.size + 1), spins), -1.0, 1.0)
    merit = coin_divergence(vv, e)
    return [(int(i[k]), int(j[k])) for k in _top(merit, count)]
