"""The skeleton of a mini-bucket bound: which tables exist, whom they send to, what they share.

The cliques are those of a bucket tree whose buckets were cut (see `tightz.elimination.buckets`).
Clique c sums out the last variable of its scope and sends a message over the rest to the clique
`parents[c]` in the bucket of the variable summed out next (Dechter and Rish 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import BucketTree, bucket_tree, padded
from tightz.elimination.graph import scopes_of
from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket.flat import FlatCliques, flat_cliques, segment_products


@dataclass(frozen=True, eq=False)
class Partition:
    """Scopes and sources of every clique, known before any table is allocated."""

    tree: BucketTree
    model: FactorGraph
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
    def flat(self) -> FlatCliques:
        """Members, pairs and own axes as arrays: what the layout is made from."""
        return flat_cliques(self.tree, self.model)

    @cached_property
    def pairs(self) -> list[list[tuple[int, int, tuple[int, ...]]]]:
        """Per bucket the pairs of cliques that may shift costs, and the variables they share."""
        flat = self.flat
        shared = _cut(flat.shared, flat.shared_ptr)
        listed = [(i, j, v) for (i, j), v in zip(flat.pairs.tolist(), shared, strict=True)]
        return [listed[a:b] for a, b in pairwise(flat.pair_ptr.tolist())]

    @cached_property
    def own_scopes(self) -> list[tuple[int, ...]]:
        """Per clique the part of its scope that its factors and its shifts have, in its order."""
        flat = self.flat
        counts = np.concatenate([[0], np.cumsum(flat.own)])
        return _cut(flat.members[flat.own], counts[flat.ptr])

    @cached_property
    def shift_entries(self) -> float:
        """Entries of all shifts, as a float like `table_sizes`."""
        return float(segment_products(self.flat.shared, self.flat.shared_ptr, self._states).sum())

    @property
    def own_entries(self) -> float:
        """Entries of all cliques' own tables."""
        states = np.where(self.flat.own, self._states[self.flat.members], 1.0)
        return float(segment_products(np.arange(states.size), self.flat.ptr, states).sum())

    @property
    def _states(self) -> NDArray[np.float64]:
        return self.cardinalities.astype(np.float64)

    @cached_property
    def table_sizes(self) -> NDArray[np.float64]:
        """Entries of each clique's table, as floats: they may exceed any integer."""
        if not self.tree.parent.size:
            return np.zeros(0)
        states = self.cardinalities[self.tree.scope].astype(np.float64)
        sizes: NDArray[np.float64] = np.multiply.reduceat(states, self.tree.scope_ptr[:-1])
        return sizes

    @cached_property
    def entries_on_ways(self) -> float:
        """Entries of all tables from each clique to its root, for each state of its own variable:
        what fixing every variable in turn costs.
        """
        ways, parents = self.table_sizes.tolist(), self.parents.tolist()
        for c in range(len(ways) - 1, -1, -1):  # parents come later
            if parents[c] >= 0:
                ways[c] += ways[parents[c]]
        return float(np.dot(ways, self._own_states))

    @property
    def _own_states(self) -> NDArray[np.float64]:
        return self.cardinalities[self.tree.scope[self.tree.scope_ptr[:-1]]].astype(np.float64)

    @cached_property
    def peak_bytes(self) -> float:
        """Bytes of all arrays of kernels and judge: messages, conditionals, shifts, scratch."""
        sizes = self.table_sizes
        if not sizes.size:
            return 0.0
        states = self._own_states
        rows, lengths = sizes / states, np.diff(self.bucket_ptr)
        cut = np.repeat(lengths > 1, lengths)
        per_bucket = np.add.reduceat(np.where(cut, sizes, 0.0), self.bucket_ptr[:-1])
        kernels = (
            2 * 8 * rows.sum()  # messages up and down
            + 4 * np.where(states == 2, rows, sizes).sum()  # conditionals
            + 4 * rows[cut].sum()  # entropies
            + 3 * 8 * self.own_entries  # factors with shifts, the best ones, clean ones
            + 3 * 8 * self.shift_entries
            + 8 * per_bucket.max()
            + 4 * sizes.max()
        )
        judge = 8 * rows.sum() + 8 * 8 * sizes.max()
        return float(kernels + judge)


def partition(model: FactorGraph, order: NDArray[np.int64], ibound: int) -> Partition:
    """The buckets of `order`, cut where a table would hold more than 2^(ibound + 1) entries.

    That is ibound + 1 binary variables. A factor that is larger by itself is kept whole. Where a
    mini-bucket has room left it shares more with its siblings, see `padded`.
    """
    bits = np.log2(model.cardinalities.astype(np.float64))
    tree = bucket_tree(scopes_of(model), order, log2_card=bits, log2_table=ibound + 1)
    tree = padded(tree, log2_card=bits, log2_table=ibound + 1)
    return Partition(tree, model, model.cardinalities.astype(np.int64))


def _cut(flat: NDArray[np.int64], ptr: NDArray[np.int64]) -> list[tuple[int, ...]]:
    values = flat.tolist()
    return [tuple(values[a:b]) for a, b in pairwise(ptr.tolist())]
