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
        order, seen = np.empty(self.n, dtype=np.int64), np.full(self.n, -1, dtype=np.int64)
        by_degree = np.argsort(self.degrees, kind="stable")
        rows = _in_turn(self.ptr, self.neighbours, by_degree)
        _breadth_first(self.ptr, rows, order, seen)
        return order

    def degeneracy(self) -> int:
        """The largest minimum degree of any subgraph: no elimination order has less width."""
        n, filed = self.n, self.n + self.neighbours.size
        head, follow = np.full(n + 1, -1, dtype=np.int64), np.empty(filed, dtype=np.int64)
        gone, item = np.zeros(n, dtype=np.bool_), np.empty(filed, dtype=np.int64)
        return int(_degeneracy(self.ptr, self.neighbours, self.degrees, gone, head, follow, item))


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
    n, sizes = scopes.n, np.diff(scopes.ptr)
    first = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(scopes.members, minlength=n), out=first[1:])
    scope_of = np.empty(scopes.members.size, dtype=np.int64)
    ptr = np.zeros(n + 1, dtype=np.int64)
    met = np.empty(int((sizes * (sizes - 1)).sum()), dtype=np.int64)
    cursor, mark = first[:-1].copy(), np.full(n, -1, dtype=np.int64)
    _meet(scopes.ptr, scopes.members, first, cursor, scope_of, mark, ptr, met)
    return Graph(ptr, _in_turn(ptr, met[: ptr[-1]], np.arange(n)))


def _in_turn(
    ptr: NDArray[np.int64], rows: NDArray[np.int64], turn: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The rows of a graph with the members of each as they come in `turn`, a permutation."""
    out = np.empty(rows.size, dtype=np.int64)
    _turn_rows(ptr, rows, turn, ptr[:-1].copy(), out)
    return out


@kernel
def _meet(ptr, members, first, cursor, scope_of, mark, out_ptr, out):  # type: ignore[no-untyped-def]
    """All that share a scope with v, each once, as they are met: out[out_ptr[v]:out_ptr[v+1]]."""
    # The scopes of each variable: the sets turned round, by counting.
    for f in range(ptr.size - 1):
        for at in range(ptr[f], ptr[f + 1]):
            v = members[at]
            scope_of[cursor[v]] = f
            cursor[v] += 1
    used = 0
    for v in range(first.size - 1):
        mark[v] = v
        for k in range(first[v], first[v + 1]):
            f = scope_of[k]
            for at in range(ptr[f], ptr[f + 1]):
                u = members[at]
                if mark[u] != v:
                    mark[u] = v
                    out[used] = u
                    used += 1
        out_ptr[v + 1] = used


@kernel
def _turn_rows(ptr, rows, turn, cursor, out):  # type: ignore[no-untyped-def]
    """Neighbours know each other, so writing u to all of its rows sorts the rows: no comparison."""
    for k in range(turn.size):
        u = turn[k]
        for at in range(ptr[u], ptr[u + 1]):
            v = rows[at]
            out[cursor[v]] = u
            cursor[v] += 1


@kernel
def _breadth_first(ptr, neighbours, order, seen):  # type: ignore[no-untyped-def]
    """`order`; neighbours that are met together follow as they stand in their row."""
    done, search = 0, 0
    for root in range(order.size):
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
                for at in range(ptr[v], ptr[v + 1]):
                    u = neighbours[at]
                    # A component is searched by itself: marks of earlier ones cannot be met.
                    if seen[u] != search:
                        seen[u] = search
                        order[tail] = u
                        tail += 1
            start = order[tail - 1]
        done = tail


@kernel
def _degeneracy(ptr, neighbours, degree, gone, head, follow, item):  # type: ignore[no-untyped-def]
    """Take away a vertex of least degree, and again; the largest degree met (Matula, Beck 1983)."""
    # Vertices are filed by degree in linked lists; one whose degree fell is filed a second time and
    # its old entry is passed over when it comes up.
    used = 0
    for v in range(degree.size):
        item[used] = v
        follow[used] = head[degree[v]]
        head[degree[v]] = used
        used += 1
    best, level, left = 0, 0, degree.size
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
