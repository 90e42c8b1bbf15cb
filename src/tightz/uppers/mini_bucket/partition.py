"""The skeleton of a mini-bucket bound: which tables exist, whom they send to, what they share.

The cliques are those of a bucket tree whose buckets were cut (see `tightz.elimination.buckets`).
Clique c sums out the last variable of its scope and sends a message over the rest to the clique
`parents[c]` in the bucket of the variable summed out next (Dechter and Rish 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import BucketTree, bucket_tree, padded
from tightz.elimination.graph import scopes_of
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.kernels import kernel
from tightz.uppers.mini_bucket.kernels import fill_offsets, part


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


@dataclass(frozen=True, eq=False)
class Partition:
    """Scopes and sources of every clique, known before any table is allocated."""

    tree: BucketTree
    cardinalities: NDArray[np.int64]

    @property
    def order(self) -> NDArray[np.int64]:
        return self.tree.order

    @property
    def bucket_ptr(self) -> NDArray[np.int64]:
        return self.tree.bucket_ptr

    @property
    def parents(self) -> NDArray[np.int64]:
        return self.tree.parent

    @property
    def exact(self) -> bool:
        """Whether no bucket was cut, so that the bound is log Z itself."""
        return not self.tree.cut

    @cached_property
    def cliques(self) -> tuple[tuple[int, ...], ...]:
        """The scope of each clique, summed out last first; its own variable is the last."""
        return tuple(tuple(scope[::-1]) for scope in self.tree.scopes)

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """The factors placed in each clique."""
        return tuple(map(tuple, self.tree.sources))

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
        if not self.tree.parent.size:
            return np.zeros(0)
        states = self.cardinalities[self.tree.scope].astype(np.float64)
        sizes: NDArray[np.float64] = np.multiply.reduceat(states, self.tree.scope_ptr[:-1])
        return sizes

    @property
    def peak_bytes(self) -> float:
        """Bytes of all arrays of kernels and judge: tables, messages, shifts, scratch."""
        sizes = self.table_sizes
        if not sizes.size:
            return 0.0
        own = self.cardinalities[self.tree.scope[self.tree.scope_ptr[:-1]]]
        per_bucket = np.add.reduceat(sizes, self.bucket_ptr[:-1])
        scratch = 8 * per_bucket.max() + (4 + 8 + 4 * 8 + 3 * 8) * sizes.max()
        messages = float((sizes / own).sum())
        return float(8 * sizes.sum() + 24 * messages + 8 * self.shift_entries + scratch)


def partition(model: FactorGraph, order: NDArray[np.int64], ibound: int) -> Partition:
    """The buckets of `order`, cut where a table would hold more than 2^(ibound + 1) entries.

    That is ibound + 1 binary variables. A factor that is larger by itself is kept whole. Where a
    mini-bucket has room left it shares more with its siblings, see `padded`.
    """
    bits = np.log2(model.cardinalities.astype(np.float64))
    tree = bucket_tree(scopes_of(model), order, log2_card=bits, log2_table=ibound + 1)
    tree = padded(tree, log2_card=bits, log2_table=ibound + 1)
    return Partition(tree, model.cardinalities.astype(np.int64))


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
    source_ptr = _pointers([len(s) for s in parts.sources])
    sources = np.array([f for s in parts.sources for f in s], dtype=np.int64)
    members = np.array([v for s in parts.cliques for v in s], dtype=np.int64)
    place = np.full(parts.cardinalities.size, -1, dtype=np.int64)
    offsets = np.empty(int(np.diff(skel.table_ptr).max(initial=1)), dtype=np.int32)
    _add_factors(
        skel, source_ptr, sources, members, place, np.empty_like(skel.dims), offsets, theta,
        model.scope_ptr.astype(np.int64), model.scope_vars.astype(np.int64),
        model.table_ptr.astype(np.int64), model.log_tables,
    )  # fmt: skip
    return theta


@kernel
def _add_factors(  # type: ignore[no-untyped-def]
    skel, source_ptr, sources, members, place, axes, offsets, theta,
    scope_ptr, scopes, table_ptr, logs,
):  # fmt: skip
    """Add every factor's log table to that of its clique, over whose axes it is spread.

    place (variables,), axes (as `skel.dims`) and offsets (largest table) are scratch.
    """
    for c in range(source_ptr.size - 1):
        low, high = skel.axis_ptr[c], skel.axis_ptr[c + 1]
        dims, strides = part(skel.dims, skel.axis_ptr, c), part(axes, skel.axis_ptr, c)
        for a in range(low, high):
            place[members[a]] = a - low
        table = part(theta, skel.table_ptr, c)
        for e in range(source_ptr[c], source_ptr[c + 1]):
            f = sources[e]
            strides[:] = 0
            stride = 1
            for a in range(scope_ptr[f + 1] - 1, scope_ptr[f] - 1, -1):
                at = place[scopes[a]]
                strides[at] = stride
                stride *= dims[at]
            fill_offsets(dims, strides, offsets)
            entries = part(logs, table_ptr, f)
            for k in range(table.size):
                table[k] += entries[offsets[k]]
