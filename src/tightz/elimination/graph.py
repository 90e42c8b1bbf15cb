"""Which variables meet: the scopes of a model's tables or terms, and the graph that they draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.runtime.kernels import kernel


class Scopes(NamedTuple):
    """Sets of variables 0..n-1: set f is members[ptr[f]:ptr[f+1]], no variable twice in one."""

    n: int
    ptr: NDArray[np.int64]
    members: NDArray[np.int64]

    def without(self, held: NDArray[np.bool_]) -> Scopes:
        """The same sets less the variables marked in `held` (n,)."""
        stays = ~held[self.members]
        kept = np.concatenate([[0], np.cumsum(stays)])
        return Scopes(self.n, kept[self.ptr], self.members[stays])


class Graph(NamedTuple):
    """Neighbours of v, ascending: neighbours[ptr[v]:ptr[v+1]]."""

    ptr: NDArray[np.int64]
    neighbours: NDArray[np.int64]

    @property
    def n(self) -> int:
        return self.ptr.size - 1

    @property
    def degrees(self) -> NDArray[np.int64]:
        degrees: NDArray[np.int64] = np.diff(self.ptr)
        return degrees

    def cuthill_mckee(self) -> NDArray[np.int64]:
        """Level by level from a far end of each component, low degrees first (1969).

        Sweeps the graph from one end to the other: good on strips and lattices.
        """
        return _breadth_first(self.ptr, self.neighbours)

    def degeneracy(self) -> int:
        """The largest minimum degree of any subgraph: no elimination order has less width."""
        return int(_degeneracy(self.ptr, self.neighbours))


def scopes_of(model: FactorGraph | SpinPolynomial) -> Scopes:
    """What each table of a model, or each term of a polynomial, is a function of."""
    if isinstance(model, SpinPolynomial):
        return Scopes(model.n, model.ptr.astype(np.int64), model.spins.astype(np.int64))
    return Scopes(
        model.n_variables, model.scope_ptr.astype(np.int64), model.scope_vars.astype(np.int64)
    )


def joined(scopes: Scopes) -> NDArray[np.int64]:
    """(n,) which variables hang together: components numbered by their least variables."""
    # scipy.sparse.csgraph does the same, but its import takes longer than all reductions
    sizes = np.diff(scopes.ptr)
    first = np.repeat(scopes.members[scopes.ptr[:-1][sizes > 0]], sizes[sizes > 0])
    other = scopes.members
    root = np.arange(scopes.n)
    while first.size:
        # Of two trees that a scope joins, the one with the greater root hangs itself under the
        # other; then every path is made short, and what lies in one tree is done with.
        a, b = root[first], root[other]
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while (root[root] != root).any():
            root = root[root]
        apart = root[first] != root[other]
        first, other = first[apart], other[apart]
    return np.unique(root, return_inverse=True)[1]


def scopes_from(n: int, rows: Sequence[Sequence[int] | NDArray]) -> Scopes:
    """Sets of variables 0..n-1 as listed."""
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    parts = [np.zeros(0, dtype=np.int64), *(np.asarray(row, dtype=np.int64) for row in rows)]
    return Scopes(n, ptr, np.concatenate(parts))


def interaction_graph(scopes: Scopes) -> Graph:
    """Two variables are neighbours when a scope has both."""
    return Graph(*_neighbours(scopes.n, scopes.ptr, scopes.members))


@kernel
def _neighbours(n, ptr, members):  # type: ignore[no-untyped-def]
    """(ptr, neighbours) of the graph, rows ascending."""
    # The scopes of each variable: the sets turned round, by counting.
    first = np.zeros(n + 1, np.int64)
    for v in members:
        first[v + 1] += 1
    first = np.cumsum(first)
    scope_of = np.empty(members.size, np.int64)
    at = first[:-1].copy()
    most = np.zeros(n, np.int64)
    for f in range(ptr.size - 1):
        for v in members[ptr[f] : ptr[f + 1]]:
            scope_of[at[v]] = f
            at[v] += 1
            most[v] += ptr[f + 1] - ptr[f] - 1
    # All that share a scope with v, each once: marked when it is met first.
    out = np.empty(most.sum(), np.int64)
    out_ptr = np.zeros(n + 1, np.int64)
    mark = np.full(n, -1, np.int64)
    used = 0
    for v in range(n):
        mark[v] = v
        for f in scope_of[first[v] : first[v + 1]]:
            for u in members[ptr[f] : ptr[f + 1]]:
                if mark[u] != v:
                    mark[u] = v
                    out[used] = u
                    used += 1
        out[out_ptr[v] : used].sort()
        out_ptr[v + 1] = used
    return out_ptr, out[:used].copy()


@kernel
def _breadth_first(ptr, neighbours):  # type: ignore[no-untyped-def]
    n = ptr.size - 1
    order = np.empty(n, np.int64)
    fresh = np.empty(n, np.int64)
    seen = np.full(n, -1, np.int64)
    done, search = 0, 0
    for root in range(n):
        if seen[root] >= 0:
            continue
        start = root
        # The last variable of a search is far from its start: the third search starts at a rim.
        for _ in range(3):
            search += 1
            head, tail = done, done + 1
            order[head] = start
            seen[start] = search
            while head < tail:
                v = order[head]
                head += 1
                new = 0
                for at in range(ptr[v], ptr[v + 1]):
                    u = neighbours[at]
                    # A component is searched by itself: marks of earlier ones cannot be met.
                    if seen[u] != search:
                        seen[u] = search
                        fresh[new] = u
                        new += 1
                degrees = ptr[fresh[:new] + 1] - ptr[fresh[:new]]
                ranked = fresh[:new][np.argsort(degrees, kind="mergesort")]
                order[tail : tail + new] = ranked
                tail += new
            start = order[tail - 1]
        done = tail
    return order


@kernel
def _degeneracy(ptr, neighbours):  # type: ignore[no-untyped-def]
    """Take away a vertex of least degree, and again; the largest degree met (Matula, Beck 1983)."""
    n = ptr.size - 1
    degree = ptr[1:] - ptr[:-1]
    gone = np.zeros(n, np.bool_)
    # Vertices are filed by degree in linked lists; one whose degree fell is filed a second time and
    # its old entry is passed over when it comes up.
    head = np.full(n + 1, -1, np.int64)
    follow = np.full(n + neighbours.size, -1, np.int64)
    item = np.empty(n + neighbours.size, np.int64)
    used = 0
    for v in range(n):
        item[used] = v
        follow[used] = head[degree[v]]
        head[degree[v]] = used
        used += 1
    best, level, left = 0, 0, n
    while left > 0:
        while head[level] < 0:
            level += 1
        entry = head[level]
        head[level] = follow[entry]
        v = item[entry]
        if gone[v] or degree[v] != level:
            continue
        gone[v] = True
        left -= 1
        best = max(best, level)
        for at in range(ptr[v], ptr[v + 1]):
            u = neighbours[at]
            if not gone[u]:
                degree[u] -= 1
                item[used] = u
                follow[used] = head[degree[u]]
                head[degree[u]] = used
                used += 1
        level = max(level - 1, 0)  # a neighbour's degree fell by one
    return best
