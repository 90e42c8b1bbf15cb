"""The cliques of a partition as flat arrays, without a Python object for each of them.

Large models have 10^5 cliques and more; a set and a tuple for each took longer than iterating.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import BucketTree
from tightz.models.factor_graph import FactorGraph
from tightz.models.selection import ranges


class Index:
    """Finds a variable of a clique among the members of all cliques."""

    def __init__(self, sizes: NDArray[np.int64], members: NDArray[np.int64], n: int) -> None:
        keys = np.repeat(np.arange(sizes.size), sizes) * n + members
        self.n, self.order = n, np.argsort(keys)
        self.keys = keys[self.order]

    def find(self, clique: NDArray[np.int64], variable: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where `members` has a variable of a clique; -1 where it has not."""
        wanted = clique * self.n + variable
        if not self.keys.size:
            return np.full(wanted.size, -1)
        near = np.minimum(np.searchsorted(self.keys, wanted), self.keys.size - 1)
        return np.where(self.keys[near] == wanted, self.order[near], -1)


class FlatCliques(NamedTuple):
    """Clique c has `members[ptr[c]:ptr[c+1]]`, summed out last first; its own variable is the last.

    own        (members,) which of them its factors and its shifts have
    pair_ptr   bucket b has the pairs pair_ptr[b]:pair_ptr[b+1] of cliques that may shift costs
    pairs      (P, 2) those cliques, the lesser first
    shared     what pair p shares, shared[shared_ptr[p]:shared_ptr[p+1]] in the order of its first
    at         (shared, 2) where these stand in `members`, in either clique of the pair
    """

    ptr: NDArray[np.int64]
    members: NDArray[np.int64]
    own: NDArray[np.bool_]
    pair_ptr: NDArray[np.int64]
    pairs: NDArray[np.int64]
    shared_ptr: NDArray[np.int64]
    shared: NDArray[np.int64]
    at: NDArray[np.int64]
    places: Index

    def find(self, clique: NDArray[np.int64], variable: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where `members` has a variable of a clique; -1 where it has not."""
        return self.places.find(clique, variable)


def flat_cliques(tree: BucketTree, model: FactorGraph) -> FlatCliques:
    ptr, n = tree.scope_ptr, model.n_variables
    sizes = np.diff(ptr)
    backwards = np.repeat(ptr[:-1] + ptr[1:], sizes) - 1 - np.arange(tree.scope.size)
    members = tree.scope[backwards]
    find = (index := Index(sizes, members, n)).find
    own = np.zeros(members.size, dtype=bool)
    homes = np.repeat(tree.home, model.arities)
    own[find(homes, model.scope_vars.astype(np.int64))[homes >= 0]] = True
    pair_ptr, pairs = _matching_pairs(tree.bucket_ptr, _Scopes(ptr, members))
    first, second = pairs.T
    asked = ranges(ptr[first], sizes[first])
    found = find(np.repeat(second, sizes[first]), members[asked])
    both = found >= 0
    at = np.stack([asked[both], found[both]], axis=1)
    own[at.ravel()] = True
    counts = np.bincount(np.repeat(np.arange(len(pairs)), sizes[first])[both], minlength=len(pairs))
    shared_ptr = pointers(counts)
    return FlatCliques(ptr, members, own, pair_ptr, pairs, shared_ptr, members[at[:, 0]], at, index)


def pointers(counts: NDArray | list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))]).astype(np.int64)


def segment_products(
    members: NDArray[np.int64], ptr: NDArray[np.int64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The product of the members' values in each segment; none is empty."""
    if ptr.size < 2:
        return np.zeros(0)
    out: NDArray[np.float64] = np.multiply.reduceat(values[members], ptr[:-1])
    return out


def strides(ptr: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """What one step along each axis skips: the product of all later `sizes` of its segment."""
    out = np.ones(sizes.size, dtype=np.int64)
    lengths = np.diff(ptr)
    for back in range(1, int(lengths.max(initial=0))):
        at = ptr[1:][lengths > back] - 1 - back
        out[at] = out[at + 1] * sizes[at + 1]
    return out


class _Scopes:
    """The members of a clique as a set, made when asked for."""

    def __init__(self, ptr: NDArray[np.int64], members: NDArray[np.int64]) -> None:
        self.ptr, self.members = ptr, members

    def __getitem__(self, c: int) -> frozenset[int]:
        return frozenset(self.members[self.ptr[c] : self.ptr[c + 1]].tolist())


def _matching_pairs(
    bucket_ptr: NDArray[np.int64], scopes: _Scopes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of a small bucket; of a large one a spanning tree of largest intersections."""
    lengths = np.diff(bucket_ptr)
    ptr = pointers(np.where(lengths <= 3, lengths * (lengths - 1) // 2, lengths - 1))
    pairs = np.zeros((int(ptr[-1]), 2), dtype=np.int64)
    for length in (2, 3):
        buckets = np.flatnonzero(lengths == length)
        for k, pair in enumerate(combinations(range(length), 2)):
            pairs[ptr[buckets] + k] = bucket_ptr[buckets][:, None] + np.array(pair)
    for b in np.flatnonzero(lengths > 3).tolist():
        pairs[ptr[b] : ptr[b + 1]] = _spanning(scopes, int(bucket_ptr[b]), int(bucket_ptr[b + 1]))
    return ptr, pairs


def _spanning(cliques: _Scopes, low: int, high: int) -> list[tuple[int, int]]:
    scopes = {c: cliques[c] for c in range(low, high)}
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
