"""Elimination orders: min-fill, min-degree, breadth-first and as numbered.

Mini-bucket bounds hold for every order, so several are worth a try: min-fill keeps the exact width
small, while sweeping orders (as numbered, breadth-first) cut a wide model into strips that share
few variables, which is often tighter once tables are too small for exact elimination.
"""

from __future__ import annotations

import enum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph

_FILL_WORK = 2_000_000_000
"""Above this many word operations (estimated) min-fill falls back to min-degree."""


class Order(enum.Enum):
    """How to choose the order in which variables are summed out."""

    AUTO = "try several, keep the tightest"
    MIN_FILL = "fewest new edges first"
    MIN_DEGREE = "fewest neighbours first"
    BREADTH_FIRST = "level by level from a variable at the rim"
    AS_NUMBERED = "as the model numbers its variables"


def elimination_order(model: FactorGraph, kind: Order) -> NDArray[np.int64]:
    """The variables of `model` in the order `kind` sums them out."""
    n = model.n_variables
    if kind is Order.AS_NUMBERED or n == 0:
        return np.arange(n, dtype=np.int64)
    adjacency = primal_graph(model)
    if kind is Order.BREADTH_FIRST:
        return _breadth_first(adjacency, n)
    log2_cards = np.log2(model.cardinalities.astype(np.float64))
    degrees = _popcount_rows(adjacency)
    work = float((degrees.astype(np.float64) ** 3).sum()) * adjacency.shape[1]
    by_fill = kind is Order.MIN_FILL and work <= _FILL_WORK
    return _greedy_order(adjacency, log2_cards, by_fill)


def primal_graph(model: FactorGraph) -> NDArray[np.uint64]:
    """Adjacency as bit rows (n, ceil(n / 64)): two variables are joined when a factor has both."""
    n = model.n_variables
    rows = np.zeros((n, (n + 63) // 64), dtype=np.uint64)
    _join_scopes(model.scope_ptr, model.scope_vars, rows)
    return rows


@njit(cache=True, nogil=True)
def _join_scopes(scope_ptr, scope_vars, rows):  # type: ignore[no-untyped-def]
    one = np.uint64(1)
    for f in range(scope_ptr.size - 1):
        for a in range(scope_ptr[f], scope_ptr[f + 1]):
            for b in range(scope_ptr[f], scope_ptr[f + 1]):
                if a != b:
                    u, v = scope_vars[a], scope_vars[b]
                    rows[u, v >> 6] |= one << np.uint64(v & 63)


@njit(cache=True, nogil=True)
def _popcount(word):  # type: ignore[no-untyped-def]
    w = np.uint64(word)
    w = w - ((w >> np.uint64(1)) & np.uint64(0x5555555555555555))
    w = (w & np.uint64(0x3333333333333333)) + ((w >> np.uint64(2)) & np.uint64(0x3333333333333333))
    w = (w + (w >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((w * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True, nogil=True)
def _popcount_rows(rows):  # type: ignore[no-untyped-def]
    out = np.zeros(rows.shape[0], dtype=np.int64)
    for v in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            out[v] += _popcount(rows[v, k])
    return out


@njit(cache=True, nogil=True)
def _neighbours(rows, v, out):  # type: ignore[no-untyped-def]
    """Write the neighbours of `v` to `out`; return how many."""
    count = 0
    for k in range(rows.shape[1]):
        word = rows[v, k]
        while word:
            low = word & (~word + np.uint64(1))
            out[count] = 64 * k + _popcount(low - np.uint64(1))
            count += 1
            word ^= low
    return count


@njit(cache=True, nogil=True)
def _fill_in(rows, v, around):  # type: ignore[no-untyped-def]
    """How many edges summing out `v` would add among its neighbours."""
    count = _neighbours(rows, v, around)
    missing = 0
    for a in range(count):
        u = around[a]
        for k in range(rows.shape[1]):
            missing += _popcount(rows[v, k] & ~rows[u, k])
        missing -= 1  # u itself
    return missing // 2


@njit(cache=True, nogil=True)
def _greedy_order(adjacency, log2_cards, by_fill):  # type: ignore[no-untyped-def]
    """Least (fill-in, log2 table size) first; only variables near the last one are rescored."""
    n = adjacency.shape[0]
    rows = adjacency.copy()
    order = np.empty(n, dtype=np.int64)
    left = np.ones(n, dtype=np.bool_)
    stale = np.ones(n, dtype=np.bool_)
    fill = np.zeros(n, dtype=np.int64)
    size = np.zeros(n)
    near = np.empty(n, dtype=np.int64)
    around = np.empty(n, dtype=np.int64)
    one = np.uint64(1)
    for step in range(n):
        best = -1
        for v in range(n):
            if not left[v]:
                continue
            if stale[v]:
                count = _neighbours(rows, v, around)
                size[v] = log2_cards[v]
                for a in range(count):
                    size[v] += log2_cards[around[a]]
                fill[v] = _fill_in(rows, v, around) if by_fill else 0
                stale[v] = False
            if best < 0 or fill[v] < fill[best] or (fill[v] == fill[best] and size[v] < size[best]):
                best = v
        order[step] = best
        left[best] = False
        count = _neighbours(rows, best, near)
        for a in range(count):
            u = near[a]
            for k in range(rows.shape[1]):
                rows[u, k] |= rows[best, k]
            rows[u, u >> 6] &= ~(one << np.uint64(u & 63))
            rows[u, best >> 6] &= ~(one << np.uint64(best & 63))
        for a in range(count):
            u = near[a]
            stale[u] = True
            if by_fill:
                for b in range(_neighbours(rows, u, around)):
                    stale[around[b]] = True
    return order


@njit(cache=True, nogil=True)
def _breadth_first(rows, n):  # type: ignore[no-untyped-def]
    """Cuthill and McKee (1969): levels from a far end of each component, low degrees first."""
    order = np.empty(n, dtype=np.int64)
    around = np.empty(n, dtype=np.int64)
    degrees = _popcount_rows(rows)
    placed = np.zeros(n, dtype=np.bool_)
    done = 0
    for root in range(n):
        if placed[root]:
            continue
        start = root
        for attempt in range(3):  # the last variable of a search is far from its start
            seen = placed.copy()
            head, tail = done, done + 1
            order[head] = start
            seen[start] = True
            while head < tail:
                count = _neighbours(rows, order[head], around)
                head += 1
                new = 0
                for a in range(count):
                    if not seen[around[a]]:
                        seen[around[a]] = True
                        around[new] = around[a]
                        new += 1
                ranked = around[:new][np.argsort(degrees[around[:new]], kind="mergesort")]
                for a in range(new):
                    order[tail] = ranked[a]
                    tail += 1
            if attempt < 2:
                start = order[tail - 1]
        for k in range(done, tail):
            placed[order[k]] = True
        done = tail
    return order
