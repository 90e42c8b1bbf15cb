"""log Z by enumeration in decimal arithmetic, and models made to break floating point.

A bound is tested against it without any tolerance: its error is below 1e-40 nats plus 1e-80 of the
largest number, far less than one unit in the last place of the bounds.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import numpy as np

from tests import naive
from tightz.models.factor_graph import FactorGraph

_DIGITS = 120
_NEGLIGIBLE = -300


def precise_log_z(model: FactorGraph) -> Decimal:
    with localcontext(Context(prec=_DIGITS, Emin=-(10**9), Emax=10**9)):
        weights = [w for w in map(Decimal.normalize, _weights(model)) if w.is_finite()]
        if not weights:
            return Decimal("-Infinity")
        top = max(weights)
        return top + sum((w - top).exp() for w in weights if w - top > _NEGLIGIBLE).ln()


def _weights(model: FactorGraph):
    factors = [(scope, table, {}) for scope, table in model.factors]
    for x in naive.all_states(model.cardinalities):
        if any(x[v] != s for v, s in model.evidence.items()):
            continue
        total = Decimal(0)
        for scope, table, known in factors:
            at = tuple(int(x[v]) for v in scope)
            if at not in known:
                known[at] = Decimal(float(table[at]))
            total += known[at]
        yield total


def hostile_model(rng: np.random.Generator, *, arity: int = 5, states: int = 6) -> FactorGraph:
    """Few variables, wild numbers: scales to 1e9, zeros, near zeros to -1e30, cancelling twins."""
    n = int(rng.integers(1, 9))
    arity = int(rng.integers(2, arity + 1))
    states = int(rng.integers(2, states + 1))
    cards = rng.integers(1, states + 1, size=n)
    while np.prod(cards) > 300:
        cards[np.argmax(cards)] -= 1
    scale = rng.choice([0.3, 5.0, 100.0, 1e5, 1e9])
    zeros = rng.choice([0.0, 0.0, 0.1, 0.4])
    near = rng.choice([0.0, 0.0, 0.2])
    factors = []
    for _ in range(rng.integers(0, 4 * n)):
        scope = tuple(rng.choice(n, size=rng.integers(0, min(arity, n) + 1), replace=False))
        table = scale * rng.normal(size=tuple(cards[list(scope)]))
        pseudo = -(10.0 ** rng.uniform(3, 30, size=table.shape))
        table = np.where(rng.random(table.shape) < near, pseudo, table)
        table = np.where(rng.random(table.shape) < zeros, -np.inf, table)
        factors.append((scope, table))
        if rng.random() < 0.1:
            factors.append((scope, np.where(np.isneginf(table), 0.0, -table)))
    seen = {int(v): int(rng.integers(cards[v])) for v in range(n) if rng.random() < 0.1}
    return FactorGraph(cards, factors, evidence=seen)
