"""Sparse models of any size, made by arrays: a graph of degree 3, factors of three, clauses."""

from __future__ import annotations

import numpy as np

from tightz.models.factor_graph import FactorGraph


def regular(n: int, seed: int = 0) -> FactorGraph:
    """A random graph of degree 3 (less where edges meet), couplings and fields."""
    rng = np.random.default_rng((n, seed))
    ends = np.sort(rng.permutation(np.repeat(np.arange(n), 3))[: 3 * n // 2 * 2].reshape(-1, 2))
    ends = np.unique(ends[ends[:, 0] < ends[:, 1]], axis=0)
    spin = np.array([1.0, -1.0])
    pairs = rng.uniform(-1, 1, len(ends))[:, None] * np.outer(spin, spin).ravel()
    fields = rng.uniform(-1, 1, n)[:, None] * spin
    return FactorGraph.from_arrays(
        np.full(n, 2),
        np.concatenate([np.arange(n + 1), n + 2 * np.arange(1, len(ends) + 1)]),
        np.concatenate([np.arange(n), ends.ravel()]),
        np.concatenate([2 * np.arange(n + 1), 2 * n + 4 * np.arange(1, len(ends) + 1)]),
        np.concatenate([fields.ravel(), pairs.ravel()]),
    )


def _threes(n: int, count: int, rng: np.random.Generator) -> np.ndarray:
    rows = np.sort(rng.integers(0, n, (count, 3)), axis=1)
    return rows[(np.diff(rows, axis=1) > 0).all(axis=1)]


def triples(n: int, seed: int = 0) -> FactorGraph:
    """Factors of three variables of 2 to 4 states."""
    rng = np.random.default_rng((n, seed))
    cards = rng.integers(2, 5, n)
    scopes = _threes(n, n, rng)
    sizes = cards[scopes].prod(axis=1)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    logs = rng.normal(0.0, 1.0, ends[-1])
    return FactorGraph.from_arrays(
        cards, 3 * np.arange(len(scopes) + 1), scopes.ravel(), ends, logs
    )


def clauses(n: int, seed: int = 0) -> FactorGraph:
    """Clauses of three literals, 3 a variable."""
    rng = np.random.default_rng((n, seed))
    scopes = _threes(n, 3 * n, rng)
    logs = np.zeros((len(scopes), 8))
    logs[np.arange(len(scopes)), rng.integers(0, 8, len(scopes))] = -np.inf
    ends = np.arange(len(scopes) + 1)
    return FactorGraph.from_arrays(np.full(n, 2), 3 * ends, scopes.ravel(), 8 * ends, logs.ravel())


MODELS = {"regular": regular, "triples": triples, "clauses": clauses}
