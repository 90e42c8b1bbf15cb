"""Capped weights: is the cap one, and are the weights p~ / q?

A proposal is a table E_c > 0 for each clique c of a bucket tree, own variable last. Variables are
drawn in reverse elimination order, q(v | context) = prod_r E_r(v) / S over the cliques r of the
variable's bucket, S the sum over v; the weight of a state is claimed to be U prod S.

The cap: let R_c be the largest sum over v of E_c^(1 / w_c), w_c > 0 the cliques' weights with sum 1
in each bucket. By Hoelder's inequality S <= prod_r R_r^w_r for every context, so that
log W <= log U + sum_c w_c log R_c. Every entry of every table is looked at here.

The weights: for given states q is formed anew from the tables, and W must be p~ / q with p~ by the
model itself. That is a spot check: it catches a maker whose tables belong to another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import RefutedError, log_summation
from tightz.models.factor_graph import FactorGraph

_BLOCK = 1 << 18


def cap_excess(
    cardinalities: NDArray[np.int64],
    table_ptr: NDArray[np.int64],
    bucket_ptr: NDArray[np.int64],
    tables: NDArray[np.float32],
    weights: NDArray[np.float64],
) -> float:
    """sum_c w_c log R_c, rounded up: nats by which a weight may exceed U. cardinalities: (C,)."""
    total = 0.0
    for low, high in pairwise(bucket_ptr.tolist()):
        if not (weights[low:high] > 0.0).all():
            raise RefutedError("a clique's weight is not positive: its bucket proves no cap")
        scale = float(weights[low:high].sum())
        # Shares of a bucket that sum to less than 1 would prove nothing.
        if abs(scale - 1.0) > 1e-9:
            raise RefutedError(f"the weights of a bucket sum to {scale!r}, not to 1")
        for c in range(low, high):
            rows = tables[table_ptr[c] : table_ptr[c + 1]].reshape(-1, int(cardinalities[c]))
            w = float(weights[c]) / scale
            largest = max(
                (
                    float((rows[k : k + _BLOCK].astype(np.float64) ** (1.0 / w)).sum(axis=1).max())
                    for k in range(0, len(rows), _BLOCK)
                ),
                default=0.0,
            )
            if not np.isfinite(largest):
                raise RefutedError("a table of the proposal is not finite")
            # pow rounds as exp does, and 1 / w moves it by u |log x| x^(1/w) / w: 0.4 u at most
            total += w * max(0.0, float(np.log(max(largest, 1e-300))))
            total += log_summation(int(cardinalities[c]), w)
    return total


def check_weights(
    model: FactorGraph,
    scopes: Sequence[tuple[int, ...]],
    table_ptr: NDArray[np.int64],
    bucket_ptr: NDArray[np.int64],
    tables: NDArray[np.float32],
    states: NDArray[np.int64],
    log_weights: NDArray[np.float64],
    tolerance: float,
) -> None:
    """RefutedError unless log_weights are log p~(x) - log q(x) of the given states (rows)."""
    log_q = np.zeros(len(states))
    at = np.arange(len(states))
    with np.errstate(divide="ignore", invalid="ignore"):
        for low, high in reversed(list(pairwise(bucket_ptr.tolist()))):
            own = scopes[low][-1]
            mass = np.ones((len(states), int(model.cardinalities[own])))
            for c in range(low, high):
                shape = tuple(int(model.cardinalities[v]) for v in scopes[c])
                table = tables[table_ptr[c] : table_ptr[c + 1]].reshape(shape)
                mass = mass * table[tuple(states[:, v] for v in scopes[c][:-1])]
            log_q += np.log(mass[at, states[:, own]]) - np.log(mass.sum(axis=1))
    alive = log_weights > -np.inf
    found = model.log_weight(states)[alive] - log_q[alive]
    off = np.abs(found - log_weights[alive])
    if not (off <= tolerance).all():
        raise RefutedError(
            f"draws under a cap: a weight differs from p~ / q by {off.max():.3g} nats"
        )
