"""Models made to break exact sums, and their truth by enumeration to twice float64's precision.

Nothing here imports from tightz.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SCALES = [0.1, 1.0, 30.0, 100.0, 300.0, 1e3, 1e5, 1e9]
DEPTHS = [30.0, 300.0, 500.0, 600.0, 700.0, 745.0, 1e3, 1e5, 1e12]


class Truth(NamedTuple):
    """log Z = high + low + rest (low and rest tiny), and probabilities of all states, shaped."""

    high: float
    low: float
    rest: np.longdouble
    joint: np.ndarray

    def error(self, log_z: float) -> float:
        """|log_z - log Z|."""
        return float(abs(np.longdouble(log_z) - self.high - self.low - self.rest))

    def marginal(self, scope) -> np.ndarray:
        kept = sorted(scope)
        out = self.joint.sum(axis=tuple(v for v in range(self.joint.ndim) if v not in kept))
        return np.transpose(out, [kept.index(v) for v in scope])


def truth(cards, factors) -> Truth | None:
    """By adding every table over all joint states as pairs (sum, rest); None where Z = 0."""
    shape = [int(c) for c in cards]
    high, low = np.zeros(shape), np.zeros(shape)
    dead = np.zeros(shape, dtype=bool)
    for scope, table in factors:
        order = np.argsort(scope)
        entry = np.asarray(table).reshape([shape[v] for v in scope]).transpose(order)
        entry = np.broadcast_to(
            entry.reshape([s if v in scope else 1 for v, s in enumerate(shape)]), shape
        )
        dead |= np.isneginf(entry)
        entry = np.where(np.isneginf(entry), 0.0, entry)
        total = high + entry
        part = total - high  # two-sum: what the addition lost goes to low
        low = low + ((high - (total - part)) + (entry - part))
        high = total
    if dead.all():
        return None
    high, low = high.astype(np.longdouble), low.astype(np.longdouble)
    best = np.argmax(np.where(dead, -np.inf, high + low))
    top, rest = high.ravel()[best], low.ravel()[best]
    with np.errstate(under="ignore"):
        logs = np.where(dead, -np.inf, (high - top) + (low - rest))
        weights = np.exp(logs)
    total = weights.sum()
    return Truth(float(top), float(rest), np.log(total), (weights / total).astype(np.float64))


def model(rng):
    """(cards, factors): soft constraints, strong couplings, hard zeros, mixed scales, offsets."""
    cards: list[int] = []
    n = int(rng.integers(1, 9))
    for _ in range(n):
        cards.append(int(rng.integers(2, 9)))
        if np.prod(cards) > 1500:
            cards[-1] = 2
    mixed = rng.random() < 0.5
    kinds = rng.integers(0, 5, size=1)
    scale, depth = rng.choice(SCALES), rng.choice(DEPTHS)
    factors = []
    for _ in range(int(rng.integers(1, 2 * n + 3))):
        if mixed:
            kinds = rng.integers(0, 5, size=1)
            scale, depth = rng.choice(SCALES), rng.choice(DEPTHS)
        scope = rng.permutation(n)[: rng.integers(1, 4)].tolist()
        shape = [cards[v] for v in scope]
        factors.append((scope, _table(rng, int(kinds[0]), shape, scale, depth)))
    return cards, factors


def _table(rng, kind, shape, scale, depth):
    if kind == 0:  # couplings
        return scale * rng.normal(size=shape)
    if kind == 1:  # soft constraints, nothing else
        return np.where(rng.random(shape) < rng.choice([0.2, 0.5, 0.9]), -depth, 0.0)
    if kind == 2:  # soft constraints of many depths over weak couplings
        soft = np.where(rng.random(shape) < 0.4, -depth * rng.random(shape), 0.0)
        return soft + rng.normal(size=shape)
    if kind == 3:  # hard and soft zeros together
        hard = np.where(rng.random(shape) < 0.2, -np.inf, 0.0)
        return hard + np.where(rng.random(shape) < 0.3, -depth, rng.normal(size=shape))
    return scale * (rng.random(shape) + rng.choice([-1e3, 0.0, 1e3]))  # offsets
