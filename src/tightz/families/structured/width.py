"""Elimination orders, and subgraphs of bounded width that keep the heaviest terms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

MAX_TRIALS = 4000
"""Most terms that are tried one by one when a cluster has to be thinned."""

GIVEN, MIN_DEGREE, MIN_FILL = 0, 1, 2


def best_order(
    adjacency: NDArray[np.bool_], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """(order, widths) of the first rule within `limit`: as given, minimum degree, minimum fill.

    widths[k] is the number of neighbours that order[k] has left when it is eliminated. None when
    every rule exceeds the limit. The given order comes first: callers know strips of a lattice.
    """
    n = len(adjacency)
    order, widths = np.arange(n), np.zeros(n, dtype=np.int64)
    for rule in (GIVEN, MIN_DEGREE, MIN_FILL):
        if eliminate(adjacency.copy(), rule, limit, order, widths):
            return order, widths
    return None


def separators(adjacency: NDArray[np.bool_], order: NDArray[np.int64]) -> list[set[int]]:
    """S_k of each spin in elimination order: its neighbours, fill-in included, still to come."""
    near = [set(np.flatnonzero(row).tolist()) for row in adjacency]
    found: list[set[int]] = []
    for k in order.tolist():
        rest = near[k]
        for i in rest:
            near[i] |= rest
            near[i] -= {i, k}
        found.append(rest)
    return found


def thin(
    size: int, members: Sequence[NDArray], weights: NDArray[np.float64], width: int
) -> tuple[NDArray[np.int64], list[set[int]]]:
    """(order, separators) of a graph of at most `width` that keeps the heaviest terms.

    members[a] lists the spins (0..size-1) of term a; a term is kept as a clique. All terms are
    tried at once, then one by one in falling weight (for width 1: Kruskal's maximum spanning
    forest; in general the greedy thin junction trees of Bach and Jordan, 2001).
    """
    fits = [a for a in range(len(members)) if 1 < len(members[a]) <= width + 1]
    adjacency = np.zeros((size, size), dtype=bool)
    for a in fits:
        _join(adjacency, members[a])
    best = best_order(adjacency, width)
    if best is None:
        adjacency[:] = False
        fits.sort(key=lambda a: -weights[a])
        adjacency = _insert(adjacency, [np.asarray(members[a]) for a in fits], width)
        best = best_order(adjacency, width)
        assert best is not None, "the kept graph was within the width when it was built"
    return best[0], separators(adjacency, best[0])


def _insert(adjacency: NDArray[np.bool_], rows: Sequence[NDArray], width: int) -> NDArray[np.bool_]:
    """Add the terms that keep elimination by minimum degree within `width`, first come first.

    Blocks of terms are tried together; a block grows when it fits and is halved when it does not.
    """
    size = len(adjacency)
    order, widths = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    at, block, trials = 0, size, 0
    while at < len(rows) and trials < MAX_TRIALS:
        trial = adjacency.copy()
        for row in rows[at : at + block]:
            _join(trial, row)
        trials += 1
        if eliminate(trial.copy(), MIN_DEGREE, width, order, widths):
            adjacency = trial
            at += block
            block *= 2
        elif block > 1:
            block //= 2
        else:
            at += 1
    return adjacency


def _join(adjacency: NDArray[np.bool_], row: NDArray) -> None:
    adjacency[np.ix_(row, row)] = True
    adjacency[row, row] = False


@njit(cache=True, nogil=True)
def eliminate(adjacency, rule, limit, order, widths):  # type: ignore[no-untyped-def]
    """Eliminate by `rule`, adding fill; False as soon as a node has more than `limit` neighbours.

    adjacency (n, n) bool is used up; order (n,) is read for the rule GIVEN, else filled.
    """
    n = order.size
    degree = np.zeros(n, dtype=np.int64)
    for i in range(n):
        for j in range(n):
            degree[i] += adjacency[i, j]
    fill = np.full(n, -1, dtype=np.int64)
    gone = np.zeros(n, dtype=np.bool_)
    near = np.empty(n, dtype=np.int64)
    for step in range(n):
        best = -1
        if rule == GIVEN:
            best = order[step]
        else:
            for i in range(n):
                if gone[i]:
                    continue
                if rule == MIN_FILL and fill[i] < 0:
                    fill[i] = _fill(adjacency, i)
                key = degree[i] if rule == MIN_DEGREE else fill[i]
                if best < 0 or key < (degree[best] if rule == MIN_DEGREE else fill[best]):
                    best = i
        count = 0
        for j in range(n):
            if adjacency[best, j]:
                near[count] = j
                count += 1
        if count > limit:
            return False
        order[step] = best
        widths[step] = count
        gone[best] = True
        for a in range(count):
            i = near[a]
            adjacency[i, best] = False
            degree[i] -= 1
            fill[i] = -1
            for b in range(a):
                j = near[b]
                if not adjacency[i, j]:
                    adjacency[i, j] = True
                    adjacency[j, i] = True
                    degree[i] += 1
                    degree[j] += 1
        if rule == MIN_FILL:
            for a in range(count):
                for j in range(n):
                    if adjacency[near[a], j]:
                        fill[j] = -1
    return True


@njit(cache=True, nogil=True)
def _fill(adjacency, i):  # type: ignore[no-untyped-def]
    """Edges that eliminating i would add."""
    near = np.flatnonzero(adjacency[i])
    missing = 0
    for a in range(near.size):
        for b in range(a):
            missing += not adjacency[near[a], near[b]]
    return missing
