"""Random small models of every kind, and their log Z by plain enumeration."""

from __future__ import annotations

import numpy as np

import tightz as tz

MAX_STATES = 4096
KINDS = ("pairwise", "higher order", "many states", "zeros", "parity", "rbm", "evidence")


def random_model(rng: np.random.Generator, kind: str) -> tz.FactorGraph:
    """A model small enough to enumerate, with couplings from weak to very strong."""
    strength = float(rng.choice([0.1, 1.0, 3.0, 10.0, 40.0]))
    if kind == "rbm":
        visible, hidden = rng.integers(1, 6, size=2)
        weights = strength * rng.normal(size=(visible, hidden))
        return tz.rbm(weights, rng.normal(size=visible), strength * rng.normal(size=hidden))
    n = int(rng.integers(1, 9))
    q_ary = kind in ("many states", "zeros", "evidence") and rng.random() < 0.7
    cards = rng.integers(1, 5, size=n) if q_ary else np.full(n, 2)
    while np.prod(cards) > MAX_STATES:
        cards[np.argmax(cards)] -= 1
    largest = {"pairwise": 2, "higher order": 5}.get(kind, 3)
    factors = []
    for _ in range(int(rng.integers(0, 2 * n + 1))):
        arity = int(rng.integers(0, min(largest, n) + 1))
        scope = rng.choice(n, size=arity, replace=False)
        table = strength * rng.normal(size=tuple(cards[scope]))
        if kind == "zeros" and arity and rng.random() < 0.5:
            table = np.where(rng.random(table.shape) < 0.3, -np.inf, table)
        if kind == "parity" and arity > 1 and rng.random() < 0.4:
            even = np.indices(table.shape).sum(axis=0) % 2 == int(rng.integers(2))
            table = np.where(even, table, -np.inf)
        factors.append((scope.tolist(), table))
    evidence = {}
    if kind == "evidence":
        seen = np.flatnonzero(rng.random(n) < 0.3)
        evidence = {int(v): int(rng.integers(cards[v])) for v in seen}
    return tz.FactorGraph(cards, factors, evidence=evidence)


def enumerated_log_z(model: tz.FactorGraph) -> float:
    """log Z from the whole joint table, built by broadcasting: shares no code with the library."""
    n = model.n_variables
    joint = np.zeros(tuple(int(c) for c in model.cardinalities))
    for scope, table in model.factors:
        order = np.argsort(scope)
        shape = np.ones(n, dtype=int)
        shape[np.asarray(scope, dtype=int)[order]] = np.asarray(table).transpose(order).shape
        joint = joint + np.asarray(table).transpose(order).reshape(shape)
    for variable, state in model.evidence.items():
        joint = np.take(joint, [state], axis=variable)
    top = joint.max()
    return float(top) if top == -np.inf else float(top + np.log(np.exp(joint - top).sum()))
