"""Nested dissection: a graph cut in two by few edges, again and again, without coordinates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import inner, kernel

CELL = 12
"""Vertices of a region that is not cut further."""


class Regions(NamedTuple):
    """A binary tree of vertex sets: region k holds order[low[k]:high[k]].

    Children come before their parents, roots (one) last; left[k] = -1: not cut.
    """

    order: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]


def dissect(ptr: NDArray[np.int64], neighbours: NDArray[np.int64]) -> Regions:
    """Cut by sweeps: with three vertices far from each other, sort by distance from one less
    distance from another, and take the cheapest cut between 3/8 and 5/8 of the best sweep.

    On a lattice the three are corners, and the cut is a straight line.
    """
    n = ptr.size - 1
    order = np.arange(n)
    stack = [(0, n, -1, 0)]
    found: list[tuple[int, int, int, int]] = []
    where = np.full(n, -1, dtype=np.int64)
    while stack:
        low, high, parent, side = stack.pop()
        found.append((low, high, parent, side))
        if high - low > CELL:
            middle = low + _bisect(ptr, neighbours, order, low, high, where)
            me = len(found) - 1
            stack.append((low, middle, me, 0))
            stack.append((middle, high, me, 1))
    count = len(found)
    table = np.array(found, dtype=np.int64).reshape(-1, 4)[::-1]
    children = np.full((2, count), -1, dtype=np.int64)
    for k, (_, _, parent, side) in enumerate(table.tolist()):
        if parent >= 0:
            children[side, count - 1 - parent] = k
    return Regions(order, table[:, 0].copy(), table[:, 1].copy(), children[0], children[1])


@inner
def _search(ptr, neighbours, where, start, label, distance, queue):  # type: ignore[no-untyped-def]
    """Breadth first from `start` among vertices with where >= 0; -> vertices reached."""
    filled = 1
    queue[0] = start
    distance[where[start]] = 0
    at = 0
    while at < filled:
        v = queue[at]
        at += 1
        for k in range(ptr[v], ptr[v + 1]):
            w = where[neighbours[k]]
            if w >= 0 and distance[w] < 0 and label[w] == label[where[start]]:
                distance[w] = distance[where[v]] + 1
                queue[filled] = neighbours[k]
                filled += 1
    return filled


@inner
def _sweep(ptr, neighbours, members, where, key, rank):  # type: ignore[no-untyped-def]
    """-> (order by key, cheapest prefix, edges it cuts)."""
    size = members.size
    order = np.argsort(key, kind="mergesort")
    for k in range(size):
        rank[order[k]] = k
    best, best_cut, cut = size // 2, 1 << 60, 0
    low, high = max(1, 3 * size // 8), min(size - 1, 5 * size // 8)
    for k in range(high):
        v = members[order[k]]
        for j in range(ptr[v], ptr[v + 1]):
            w = where[neighbours[j]]
            if w >= 0:
                cut += 1 if rank[w] > k else -1
        closer = abs(k + 1 - size // 2) < abs(best - size // 2)
        if k + 1 >= low and (cut < best_cut or (cut == best_cut and closer)):
            best, best_cut = k + 1, cut
    return order, best, best_cut


@kernel
def _bisect(ptr, neighbours, order, low, high, where):  # type: ignore[no-untyped-def]
    """Reorder order[low:high] into two sides; -> size of the first."""
    members = order[low:high].copy()
    size = members.size
    for k in range(size):
        where[members[k]] = k
    queue = np.empty(size, dtype=np.int64)
    label = np.zeros(size, dtype=np.int64)
    reached = np.full(size, -1, dtype=np.int64)
    pieces, sizes = 0, np.zeros(size, dtype=np.int64)
    piece = np.empty(size, dtype=np.int64)
    for k in range(size):
        if reached[k] < 0:
            filled = _search(ptr, neighbours, where, members[k], label, reached, queue)
            for j in range(filled):
                piece[where[queue[j]]] = pieces
            sizes[pieces] = filled
            pieces += 1
    if pieces > 1:  # whole pieces to either side, the large ones first: nothing is cut
        side = np.zeros(pieces, dtype=np.int64)
        load = np.zeros(2, dtype=np.int64)
        for p in np.argsort(-sizes[:pieces], kind="mergesort"):
            side[p] = 0 if load[0] <= load[1] else 1
            load[side[p]] += sizes[p]
        first = 0
        for s in range(2):
            for k in range(size):
                if side[piece[k]] == s:
                    order[low + first] = members[k]
                    first += 1
        for k in range(size):
            where[members[k]] = -1
        return load[0]
    last = queue[size - 1]
    distance = np.full((3, size), -1, dtype=np.int64)
    _search(ptr, neighbours, where, last, label, distance[0], queue)
    far = queue[size - 1]
    _search(ptr, neighbours, where, far, label, distance[1], queue)
    away = np.argmax(np.minimum(distance[0], distance[1]))
    _search(ptr, neighbours, where, members[away], label, distance[2], queue)
    rank = np.empty(size, dtype=np.int64)
    best, best_cut, best_order = size // 2, 1 << 60, members
    for a, b in ((0, 1), (0, 2), (1, 2)):
        key = distance[a] - distance[b]
        found, prefix, cut = _sweep(ptr, neighbours, members, where, key, rank)
        if cut < best_cut:
            best, best_cut = prefix, cut
            best_order = members[found]
    order[low:high] = best_order
    for k in range(size):
        where[members[k]] = -1
    return best
