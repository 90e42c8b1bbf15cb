"""A proven lower bound from Bethe pseudo-marginals, where the model is attractive.

Theorem (Ruozzi 2012): if all potentials of a binary model are log-supermodular, the largest value
of the Bethe free energy over the local polytope is at most log Z. So its value at ANY locally
consistent pseudo-marginals is a lower bound: no fixed point and no convergence is needed, only
exact consistency. We take single-variable marginals from belief propagation and give each pair
the best table with exactly those margins (Welling and Teh 2001). Relabelling the states of some
variables changes neither side, so models that become attractive by flipping spins count too.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.references.pairwise import PairwiseArrays, PairwiseModel
from tightz.references.rounding import EPSILON, add_compensated


def attractive_lower_bound(model: PairwiseModel, marginals: NDArray[np.float64]) -> float | None:
    """The Bethe free energy at consistent tables with the given margins; None if not certified.

    `marginals` is flat, laid out as `model.arrays.unary`, each block summing to one. Not
    certified: more than two states, zero pair potentials, or a cycle with an odd number of
    repulsive edges.
    """
    arrays = model.arrays
    if model.constant == -np.inf:
        return -np.inf
    if np.diff(arrays.var_ptr).max(initial=0) > 2 or (arrays.tables == -np.inf).any():
        return None
    tables = arrays.tables.reshape(-1, 2, 2)
    weights = (tables[:, 0, 0] - tables[:, 0, 1]) + (tables[:, 1, 1] - tables[:, 1, 0])
    size = np.abs(tables).max(axis=(1, 2), initial=0.0)
    # A coupling within its own rounding error has no sign; the slack below pays for it.
    signs = np.where(np.abs(weights) <= 8.0 * EPSILON * size, 0, np.sign(weights)).astype(np.int64)
    if not _balanced(arrays, signs):
        return None
    value, slack = _free_energy(arrays, weights, marginals)
    return model.constant + value - 64.0 * EPSILON * (slack + abs(model.constant))


@njit(cache=True, nogil=True)
def _balanced(model: PairwiseArrays, signs: NDArray) -> bool:
    """Whether flips of spins make every edge attractive (no frustrated cycle)."""
    n = model.var_ptr.size - 1
    side = np.zeros(n, dtype=np.int64)
    stack = np.empty(n, dtype=np.int64)
    for root in range(n):
        if side[root] != 0:
            continue
        side[root] = 1
        stack[0] = root
        depth = 1
        while depth > 0:
            depth -= 1
            s = stack[depth]
            for k in range(model.incident_ptr[s], model.incident_ptr[s + 1]):
                e = model.incident[k]
                if signs[e] == 0:
                    continue
                t = model.second[e] if model.first[e] == s else model.first[e]
                wanted = side[s] * signs[e]
                if side[t] == 0:
                    side[t] = wanted
                    stack[depth] = t
                    depth += 1
                elif side[t] != wanted:
                    return False
    return True


@njit(cache=True, nogil=True)
def _free_energy(
    model: PairwiseArrays, weights: NDArray, marginals: NDArray
) -> tuple[float, float]:
    """Bethe free energy with optimal pair tables, and the sum of magnitudes that went into it."""
    total, carry, slack = 0.0, 0.0, 0.0
    for s in range(model.var_ptr.size - 1):
        degree = model.incident_ptr[s + 1] - model.incident_ptr[s]
        for k in range(model.var_ptr[s], model.var_ptr[s + 1]):
            p = marginals[k]
            if p > 0.0:
                term = p * model.unary[k] + (degree - 1.0) * p * np.log(p)
                total, carry = add_compensated(total, carry, term)
            slack += abs(model.unary[k]) + degree + 1.0
    for e in range(model.first.size):
        i, j = model.var_ptr[model.first[e]], model.var_ptr[model.second[e]]
        start = model.edge_ptr[e]
        # A repulsive edge is an attractive one between i and the flipped j.
        flip = 1 if weights[e] < 0.0 else 0
        equal, i_only, j_only, neither = _pair_table(
            marginals[i],
            marginals[i + 1],
            marginals[j + flip],
            marginals[j + 1 - flip],
            np.exp(-abs(weights[e])),
        )
        for p, x, y in (
            (equal, 0, 0 + flip),
            (i_only, 0, 1 - flip),
            (j_only, 1, 0 + flip),
            (neither, 1, 1 - flip),
        ):
            table = model.tables[start + 2 * x + y]
            slack += abs(table) + 1.0
            if p > 0.0:
                total, carry = add_compensated(total, carry, p * table - p * np.log(p))
    return total + carry, slack


@njit(cache=True, nogil=True)
def _pair_table(
    a: float, not_a: float, b: float, not_b: float, kappa: float
) -> tuple[float, float, float, float]:
    """Best joint of two bits with P(A) = a, P(B) = b for an attraction -log(kappa) >= 0.

    Returns P(A and B), P(A only), P(B only), P(neither). With m = min(a, b), M = max(a, b), the
    small off-diagonal d solves kappa (m - d)(1 - M - d) = d (M - m + d).
    """
    low, high_rest = (a, not_b) if a <= b else (b, not_a)
    gap = abs(a - b)
    c = kappa * low * high_rest
    linear = gap + kappa * (1.0 - gap)
    d = 0.0
    if c > 0.0:
        d = 2.0 * c / (linear + np.sqrt(linear * linear + 4.0 * (1.0 - kappa) * c))
        d = min(d, low, high_rest)
    if a <= b:
        return low - d, d, gap + d, high_rest - d
    return low - d, gap + d, d, high_rest - d
