"""The skeleton of a mini-bucket bound: which tables exist, whom they send to, what they share.

Variables are summed out in a given order. A bucket gathers everything that mentions its variable;
where one table over all of it would be too large, the bucket is cut into mini-buckets (cliques).
Clique c sums out `variables[c]` and sends a message over the rest of its scope to the clique
`parents[c]` in the bucket of the variable summed out next (Dechter and Rish 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph


class Skeleton(NamedTuple):
    """Cliques in elimination order as flat arrays, ready for the kernels.

    Clique c has axes `axis_ptr[c]:axis_ptr[c+1]` with sizes `dims`; its own variable is the last
    axis (stride 1), so its message has the same axes without the last one. `parent_strides` and the
    pair strides say where an entry of a clique table falls in a smaller table over part of its
    axes. Bucket b holds cliques `bucket_ptr[b]:bucket_ptr[b+1]` and pairs
    `pair_ptr[b]:pair_ptr[b+1]` of cliques that may shift costs over what they share; pair p has the
    entries `shift_ptr[p]:shift_ptr[p+1]` of the shifts.
    """

    bucket_ptr: NDArray[np.int64]
    axis_ptr: NDArray[np.int64]
    dims: NDArray[np.int64]
    table_ptr: NDArray[np.int64]
    message_ptr: NDArray[np.int64]
    parents: NDArray[np.int64]
    child_ptr: NDArray[np.int64]
    children: NDArray[np.int64]
    stride_ptr: NDArray[np.int64]
    parent_strides: NDArray[np.int64]
    pair_ptr: NDArray[np.int64]
    pairs: NDArray[np.int64]
    shift_ptr: NDArray[np.int64]
    pair_stride_ptr: NDArray[np.int64]
    pair_strides: NDArray[np.int64]


@dataclass
class _Clique:
    scope: int
    log2_size: float
    factors: list[int]


@dataclass(frozen=True)
class Partition:
    """Scopes and sources of every clique, known before any table is allocated."""

    order: NDArray[np.int64]
    cliques: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[int, ...], ...]
    bucket_ptr: NDArray[np.int64]
    parents: NDArray[np.int64]
    cardinalities: NDArray[np.int64]

    @property
    def exact(self) -> bool:
        """Whether no bucket was cut, so that the bound is log Z itself."""
        return len(self.cliques) == len(self.order)

    @cached_property
    def pairs(self) -> list[list[tuple[int, int, tuple[int, ...]]]]:
        """Per bucket the pairs of cliques that may shift costs, and the variables they share."""
        scopes = [frozenset(s) for s in self.cliques]
        return [
            [
                (i, j, tuple(v for v in self.cliques[i] if v in scopes[j]))
                for i, j in _matching_pairs(scopes, low, high)
            ]
            for low, high in pairwise(self.bucket_ptr.tolist())
        ]

    @property
    def shift_entries(self) -> float:
        """Entries of all shifts, as a float like `table_sizes`."""
        cards = self.cardinalities.astype(np.float64)
        shared = (s for bucket in self.pairs for _, _, s in bucket)
        return float(sum(np.prod(cards[list(s)]) for s in shared))

    @cached_property
    def table_sizes(self) -> NDArray[np.float64]:
        """Entries of each clique's table, as floats: they may exceed any integer."""
        return np.array(
            [np.prod(self.cardinalities[list(s)].astype(np.float64)) for s in self.cliques]
        )

    @property
    def peak_bytes(self) -> float:
        """Bytes of all arrays of kernels and judge: tables, messages, shifts, scratch."""
        sizes = self.table_sizes
        if not sizes.size:
            return 0.0
        last = np.array([float(self.cardinalities[s[-1]]) for s in self.cliques])
        per_bucket = np.add.reduceat(sizes, self.bucket_ptr[:-1])
        scratch = 8 * per_bucket.max() + (4 + 8 + 4 * 8 + 3 * 8) * sizes.max()
        messages = float((sizes / last).sum())
        return float(8 * sizes.sum() + 24 * messages + 8 * self.shift_entries + scratch)


def partition(model: FactorGraph, order: NDArray[np.int64], ibound: int) -> Partition:
    """Greedy cut of each bucket, largest tables first, into the mini-bucket that grows least.

    A clique may hold log2(entries) <= ibound + 1: ibound + 1 binary variables. A factor that is
    larger than that by itself is kept whole.
    """
    n = model.n_variables
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    sizes = _Sizes(model.cardinalities[order])
    limit = ibound + 1 + 1e-9
    waiting: list[list[tuple[float, int, int]]] = [[] for _ in range(n)]

    def post(scope: int, source: int) -> None:
        first = (scope & -scope).bit_length() - 1
        waiting[first].append((-sizes.log2(scope), source, scope))

    places = position[model.scope_vars].tolist()
    ends = model.scope_ptr.tolist()
    for f in range(model.n_factors):
        if ends[f] < ends[f + 1]:
            post(sum(1 << p for p in places[ends[f] : ends[f + 1]]), -1 - f)
    cliques: list[_Clique] = []
    bucket_ptr = [0]
    parents: list[int] = []
    for p in range(n):
        bucket: list[_Clique] = []
        base = len(cliques)
        for negative_size, source, scope in sorted(waiting[p]) or [
            (-sizes.log2(1 << p), 0, 1 << p)
        ]:
            home, growth = _roomiest(bucket, scope, sizes, limit)
            if home < 0:
                home, growth = len(bucket), -negative_size
                bucket.append(_Clique(0, 0.0, []))
                parents.append(-1)
            bucket[home].scope |= scope
            bucket[home].log2_size += growth
            if source < 0:
                bucket[home].factors.append(-1 - source)
            elif source > 0:
                parents[source - 1] = base + home
        waiting[p] = []
        cliques += bucket
        for c, clique in enumerate(bucket):
            if clique.scope != 1 << p:
                post(clique.scope ^ (1 << p), base + c + 1)
        bucket_ptr.append(len(cliques))
    return Partition(
        order,
        tuple(tuple(order[_places(c.scope)].tolist()) for c in cliques),
        tuple(tuple(c.factors) for c in cliques),
        np.array(bucket_ptr, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        model.cardinalities.astype(np.int64),
    )


class _Sizes:
    """log2 of table sizes for scopes held as bit masks (bit p: the variable summed out p-th)."""

    def __init__(self, cardinalities: NDArray[np.int32]) -> None:
        self._groups = [
            (float(np.log2(d)), sum(1 << p for p in np.flatnonzero(cardinalities == d).tolist()))
            for d in np.unique(cardinalities).tolist()
        ]

    def log2(self, scope: int) -> float:
        return sum(bits * (scope & mask).bit_count() for bits, mask in self._groups)


def _places(scope: int) -> list[int]:
    """The set bits of a scope, highest (summed out last) first."""
    out = []
    while scope:
        out.append(scope.bit_length() - 1)
        scope ^= 1 << out[-1]
    return out


def _roomiest(bucket: list[_Clique], scope: int, sizes: _Sizes, limit: float) -> tuple[int, float]:
    """The clique of a bucket that can take `scope` and grows least, and its growth; -1 if none."""
    best, best_growth = -1, np.inf
    for c, clique in enumerate(bucket):
        extra = scope & ~clique.scope
        if not extra:
            return c, 0.0
        growth = sizes.log2(extra)
        if growth < best_growth and clique.log2_size + growth <= limit:
            best, best_growth = c, growth
    return best, best_growth


def _strides(axes: tuple[int, ...], cards: NDArray[np.int64]) -> dict[int, int]:
    out, stride = {}, 1
    for v in reversed(axes):
        out[v] = stride
        stride *= int(cards[v])
    return out


def skeleton(parts: Partition) -> Skeleton:
    """Lay a partition out as flat arrays."""
    cards, cliques, parents = parts.cardinalities, parts.cliques, parts.parents
    count = len(cliques)
    sizes = parts.table_sizes.astype(np.int64)
    messages = np.array([sizes[c] // cards[s[-1]] for c, s in enumerate(cliques)], dtype=np.int64)
    parent_strides: list[int] = []
    stride_ptr = [0]
    for c in range(count):
        if parents[c] >= 0:
            at = _strides(cliques[c][:-1], cards)
            parent_strides += [at.get(v, 0) for v in cliques[parents[c]]]
        stride_ptr.append(len(parent_strides))
    pair_ptr, pairs, pair_sizes, pair_stride_ptr, pair_strides = [0], [], [], [0], []
    for bucket in parts.pairs:
        for i, j, shared in bucket:
            at = _strides(shared, cards)
            for c in (i, j):
                pair_strides += [at.get(v, 0) for v in cliques[c]]
                pair_stride_ptr.append(len(pair_strides))
            pairs.append((i, j))
            pair_sizes.append(int(np.prod(cards[list(shared)])))
        pair_ptr.append(len(pairs))
    by_parent = np.argsort(parents, kind="stable")
    held = parents[by_parent] >= 0
    return Skeleton(
        parts.bucket_ptr,
        _pointers([len(s) for s in cliques]),
        np.array([cards[v] for s in cliques for v in s], dtype=np.int64),
        _pointers(sizes),
        _pointers(messages),
        parents,
        _pointers(np.bincount(parents[parents >= 0], minlength=count)),
        by_parent[held].astype(np.int64),
        np.array(stride_ptr, dtype=np.int64),
        np.array(parent_strides, dtype=np.int64),
        np.array(pair_ptr, dtype=np.int64),
        np.array(pairs, dtype=np.int64).reshape(-1, 2),
        _pointers(pair_sizes),
        np.array(pair_stride_ptr, dtype=np.int64),
        np.array(pair_strides, dtype=np.int64),
    )


def _pointers(counts: object) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))]).astype(np.int64)


def _matching_pairs(scopes: list[frozenset[int]], low: int, high: int) -> list[tuple[int, int]]:
    """All pairs of a small bucket; of a large one a spanning tree of largest intersections."""
    if high - low <= 3:
        return [(i, j) for i in range(low, high) for j in range(i + 1, high)]
    nearest = {c: (len(scopes[c] & scopes[low]), low) for c in range(low + 1, high)}
    tree = []
    while nearest:
        new = max(nearest, key=lambda c: nearest[c][0])
        _, old = nearest.pop(new)
        tree.append((min(old, new), max(old, new)))
        for c, (shared, _) in nearest.items():
            if len(scopes[c] & scopes[new]) > shared:
                nearest[c] = (len(scopes[c] & scopes[new]), new)
    return sorted(tree)


def clique_tables(model: FactorGraph, parts: Partition, skel: Skeleton) -> NDArray[np.float64]:
    """Each clique's own log table: the sum of the factors placed in it (flat, all cliques)."""
    theta = np.zeros(int(skel.table_ptr[-1]))
    for c, scope in enumerate(parts.cliques):
        shape = tuple(int(parts.cardinalities[v]) for v in scope)
        table = theta[skel.table_ptr[c] : skel.table_ptr[c + 1]].reshape(shape)
        for f in parts.sources[c]:
            members, log_table = model.factor(f)
            axes = np.argsort([scope.index(v) for v in members])
            widened = [int(parts.cardinalities[v]) if v in members else 1 for v in scope]
            table += log_table.transpose(axes).reshape(widened)
    return theta
