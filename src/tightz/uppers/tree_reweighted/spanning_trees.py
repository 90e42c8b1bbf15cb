"""Distributions over spanning trees, seen through the probability that each edge appears."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.judge.spanning import MOST_VERTICES
from tightz.runtime.clock import leave_if_over
from tightz.runtime.kernels import kernel

INSIDE = 1.0 - 1e-8
"""Probabilities of edges on cycles are shrunk by this, which outweighs every rounding error.

Edge probabilities of random forests are closed under shrinking (each forest may lose an edge),
so a shrunk vector is certainly attainable; bridges are in every tree and stay at exactly 1.
"""

_WORK_LIMIT = 2e9
"""Operations that the inverse of the Laplacian may take."""


def starting_forests(
    n: int, first: NDArray[np.int64], second: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Edge probabilities (E,) and what attains them: (T, E) equally likely trees, or None.

    None stands for the uniform spanning forest, taken while the judge can verify it.
    """
    rank = np.argsort(order)
    width = int(np.abs(rank[first] - rank[second]).max(initial=0))
    touched = np.unique(np.concatenate([first, second])).size
    if touched <= MOST_VERTICES and float(n) * width * width <= _WORK_LIMIT:
        return edge_probabilities(n, first, second, order), None
    # Too large for the inverse or for the judge: a finite set of trees that covers every edge. Its
    # edge frequencies are attained by construction.
    trees = _covering_trees(n, first, second)
    frequency = trees.mean(axis=0)
    return np.where(trees.all(axis=0), 1.0, INSIDE * frequency), trees


def edge_probabilities(
    n: int, first: NDArray[np.int64], second: NDArray[np.int64], order: NDArray[np.int64]
) -> NDArray[np.float64]:
    """P(edge in T), T uniform over the maximal spanning forests of the graph; shape (E,).

    By the matrix-tree theorem (Kirchhoff 1847) this is the effective resistance of the edge in a
    network of unit resistors. `order` is a `visiting_order`, which keeps the Laplacian banded.
    """
    if not first.size:
        return np.zeros(0)
    rank = np.argsort(order)
    low, high = np.minimum(rank[first], rank[second]), np.maximum(rank[first], rank[second])
    width = int((high - low).max())
    resistance = np.empty(first.size)
    # [i, k] is entry (i, i - k)
    band, inverse = np.zeros((n, width + 1)), np.zeros((n, width + 1))
    _resistances(low, high, band, inverse, np.zeros(n, dtype=np.bool_), resistance)
    # An edge on a cycle of a graph with n vertices has resistance at most 1 - 1/n.
    bridge = resistance > 1.0 - 0.5 / n
    return np.where(bridge, 1.0, INSIDE * np.clip(resistance, 0.0, 1.0))


def _covering_trees(
    n: int, first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(T, E): trees that cover all edges, each made of the least used edges."""
    used = np.zeros(first.size)
    trees: list[NDArray[np.bool_]] = []
    # Each tree takes the least used edges first, so every edge is reached after about E / n trees.
    while len(trees) < 20 or (used == 0.0).any():
        leave_if_over()
        trees.append(maximum_spanning_tree(n, first, second, -used) == 1.0)
        used += trees[-1]
    return np.array(trees)


def maximum_spanning_tree(
    n: int, first: NDArray[np.int64], second: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Indicator (E,) of a spanning forest of largest total weight (Kruskal 1956)."""
    chosen = np.zeros(first.size)
    _kruskal(np.arange(n), first, second, np.argsort(-weights, kind="stable"), chosen)
    return chosen


def visiting_order(
    n: int, incident_ptr: NDArray, incident: NDArray, first: NDArray, second: NDArray
) -> NDArray[np.int64]:
    """Breadth-first order, component by component, each started far from its centre.

    On a forest every variable but a root has exactly one neighbour before it.
    """
    order = np.zeros(n, dtype=np.int64)
    seen = np.zeros(n, dtype=np.int64)
    _breadth_first(seen, incident_ptr, incident, first, second, order)
    return order


@kernel
def _resistances(
    low: NDArray, high: NDArray, band: NDArray, inverse: NDArray, grounded: NDArray, out: NDArray
) -> None:
    """Effective resistances from the entries of the inverse grounded Laplacian on its band.

    Vertices are numbered in visiting order, low < high; those without a lower neighbour are
    grounded. L D L' factors first, then inverse entries from the last column back (Takahashi,
    Fagan, Chin 1973). All sums are of one sign, so they are accurate. band, inverse (n, width + 1)
    are zero at the start.
    """
    n, width = band.shape[0], band.shape[1] - 1
    for e in range(low.size):
        band[high[e], 0] += 1.0
        band[high[e], high[e] - low[e]] -= 1.0
    # One vertex per component is grounded (voltage 0): the rest of the Laplacian is positive
    # definite.
    for i in range(n):
        grounded[i] = band[i, 0] == 0.0
    for e in range(low.size):
        if grounded[low[e]]:
            band[high[e], high[e] - low[e]] = 0.0
        else:
            band[low[e], 0] += 1.0
    for i in range(n):
        if grounded[i]:
            band[i, 0] = 1.0
        for k in range(min(width, i), 0, -1):
            j = i - k
            value = band[i, k]
            for m in range(max(0, i - width), j):
                value -= band[i, i - m] * band[j, j - m] * band[m, 0]
            band[i, k] = value / band[j, 0]
        for m in range(max(0, i - width), i):
            band[i, 0] -= band[i, i - m] * band[i, i - m] * band[m, 0]
    # Only inverse entries on the band are needed, and the recursion from the last column back uses
    # only such entries: n * width^2 work instead of n^3.
    for j in range(n - 1, -1, -1):
        end = min(n, j + width + 1)
        for i in range(end - 1, j, -1):
            value = 0.0
            for m in range(j + 1, end):
                value -= band[m, m - j] * inverse[max(i, m), abs(i - m)]
            inverse[i, i - j] = value
        inverse[j, 0] = 1.0 / band[j, 0]
        for m in range(j + 1, end):
            inverse[j, 0] -= band[m, m - j] * inverse[m, m - j]
    for i in range(n):
        if grounded[i]:
            inverse[i, 0] = 0.0
    for e in range(low.size):
        # Resistance between i and j: the voltage difference when one unit of current goes in at i
        # and out at j.
        i, j = high[e], low[e]
        out[e] = inverse[i, 0] + inverse[j, 0] - 2.0 * inverse[i, i - j]


@kernel
def _kruskal(
    parent: NDArray, first: NDArray, second: NDArray, order: NDArray, chosen: NDArray
) -> None:
    for e in order:
        i, j = first[e], second[e]
        # Union-find with path halving; an edge joins the forest if its ends are in different
        # trees.
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        while parent[j] != j:
            parent[j] = parent[parent[j]]
            j = parent[j]
        if i != j:
            parent[i] = j
            chosen[e] = 1.0


@kernel
def _breadth_first(
    seen: NDArray,
    incident_ptr: NDArray,
    incident: NDArray,
    first: NDArray,
    second: NDArray,
    order: NDArray,
) -> None:
    filled = 0
    for start in range(seen.size):
        if seen[start] == 2:
            continue
        root = start
        for mark in range(1, 3):  # the first pass only finds a far end of the component
            head = filled
            tail = filled + 1
            order[head] = root
            seen[root] = mark
            while head < tail:
                s = order[head]
                head += 1
                for k in range(incident_ptr[s], incident_ptr[s + 1]):
                    e = incident[k]
                    t = second[e] if first[e] == s else first[e]
                    if seen[t] != mark:
                        seen[t] = mark
                        order[tail] = t
                        tail += 1
            root = order[tail - 1]
        filled = tail
