"""Plain-numpy twins of kernels and methods, written independently of the library.

Nothing here imports from tightz: a twin takes arrays and returns arrays.
"""

from __future__ import annotations

import itertools

import numpy as np


def all_states(cardinalities) -> np.ndarray:
    """Every joint state, last variable fastest: (prod(cardinalities), n)."""
    ranges = [range(int(c)) for c in cardinalities]
    return np.array(list(itertools.product(*ranges)), dtype=np.int64).reshape(-1, len(ranges))


def log_sum_exp(values) -> float:
    values = np.asarray(values, dtype=np.float64).ravel()
    top = values.max(initial=-np.inf)
    return -np.inf if top == -np.inf else float(top + np.log(np.exp(values - top).sum()))


def log_weights(cardinalities, factors, states) -> np.ndarray:
    """log p~ of each row of `states`, factor by factor and state by state."""
    out = np.zeros(len(states))
    for scope, log_table in factors:
        table = np.asarray(log_table).reshape([int(cardinalities[v]) for v in scope])
        for s, x in enumerate(states):
            out[s] += table[tuple(x[v] for v in scope)]
    return out


def enumerate_model(cardinalities, factors, evidence=None):
    """(log Z, list of marginals) by summing over every joint state."""
    states = all_states(cardinalities)
    logs = log_weights(cardinalities, factors, states)
    for v, state in (evidence or {}).items():
        logs[states[:, v] != state] = -np.inf
    log_z = log_sum_exp(logs)
    weights = np.exp(logs - log_z) if log_z > -np.inf else np.full(len(logs), np.nan)
    marginals = [
        np.array([weights[states[:, v] == k].sum() for k in range(int(c))])
        for v, c in enumerate(cardinalities)
    ]
    return log_z, marginals
