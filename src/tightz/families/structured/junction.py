"""A forest of buckets: the shape of a distribution of bounded treewidth over binary spins.

A structure graph and an elimination order give each spin k a separator S_k (the neighbours of k
that are eliminated after it, fill-in included; Lauritzen and Spiegelhalter, 1988). Distributions
that are Markov with respect to the filled graph are exactly the products

    q(y) = prod_k q(y_k | y_{S_k}),

one conditional table per spin, each of any shape: zeros are allowed, so the family is closed and
holds every point mass. Two spins are independent under q when they lie in different trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.elimination.buckets import bucket_tree
from tightz.elimination.graph import scopes_from
from tightz.errors import ResourceError
from tightz.runtime.memory import format_bytes

MAX_BYTES = 2**32
"""Tables of a forest beyond this are refused: the width is too large for the model."""


class Forest(NamedTuple):
    """Spins in post-order of their elimination trees ("nodes"), so a parent follows its children.

    spin_of, node_of   (n,) node -> spin and back
    parent             (n,) the first member of the separator; -1 at a root
    tree, tree_ptr     (n,) tree of each node; nodes of tree t are tree_ptr[t]:tree_ptr[t + 1]
    child_ptr, child   children of each node, ascending
    sep_ptr, sep       separator of each node, ascending; all of them are ancestors
    msg_ptr            (n + 1,) offsets of tables over separators: member j is bit j of the index
    tab_ptr            (n + 1,) offsets of tables over {k} + separator: k is bit 0. Bit 1 is spin -1
    proj_ptr, proj     for node k with parent p: index into k's separator of each entry of p's table
    """

    spin_of: NDArray[np.int64]
    node_of: NDArray[np.int64]
    parent: NDArray[np.int64]
    tree: NDArray[np.int64]
    tree_ptr: NDArray[np.int64]
    child_ptr: NDArray[np.int64]
    child: NDArray[np.int64]
    sep_ptr: NDArray[np.int64]
    sep: NDArray[np.int64]
    msg_ptr: NDArray[np.int64]
    tab_ptr: NDArray[np.int64]
    proj_ptr: NDArray[np.int64]
    proj: NDArray[np.int32]

    @property
    def n(self) -> int:
        return int(self.parent.size)

    @property
    def width(self) -> int:
        """The largest separator: the treewidth that the elimination order attains."""
        return int(np.diff(self.sep_ptr).max(initial=0))

    @property
    def n_trees(self) -> int:
        return int(self.tree_ptr.size - 1)


def build_forest(n: int, order: Sequence[int], scopes: Sequence[Sequence[int] | NDArray]) -> Forest:
    """Forest of the elimination `order` of all n spins; the graph joins the spins of each scope."""
    sets = scopes_from(n, scopes)
    given = np.asarray(order, dtype=np.int64)
    spin_of = given[bucket_tree(sets, given).post_order()]
    tree = bucket_tree(sets, spin_of)
    node_of = np.empty(n, dtype=np.int64)
    node_of[spin_of] = np.arange(n)
    parent = tree.parent
    # A clique lists its own spin and then the others as they are eliminated: ascending nodes.
    sizes = np.diff(tree.scope_ptr) - 1
    sep = np.delete(node_of[tree.scope], tree.scope_ptr[:-1])
    total = 24.0 * float(np.exp2(sizes.astype(np.float64) + 1).sum())
    if total > MAX_BYTES:
        raise ResourceError(
            f"structured mean field with separators of up to {sizes.max()} spins needs "
            f"{format_bytes(int(total))} for its tables; lower `width` (each step halves them)"
        )
    is_root = parent < 0
    tree_of = np.concatenate([[0], np.cumsum(is_root)[:-1]]) if n else np.zeros(0)
    parents = parent[~is_root]
    entries = np.zeros(n, dtype=np.int64)
    entries[~is_root] = 2 ** (sizes[parents] + 1)
    forest = Forest(
        spin_of=spin_of,
        node_of=node_of,
        parent=parent,
        tree=tree_of.astype(np.int64),
        tree_ptr=np.concatenate([[0], np.flatnonzero(is_root) + 1]),
        child_ptr=offsets(np.bincount(parents, minlength=n)),
        child=np.flatnonzero(~is_root)[np.argsort(parents, kind="stable")],
        sep_ptr=offsets(sizes),
        sep=sep,
        msg_ptr=offsets(2**sizes),
        tab_ptr=offsets(2 ** (sizes + 1)),
        proj_ptr=offsets(entries),
        proj=np.zeros(int(entries.sum()), dtype=np.int32),
    )
    _project(forest)
    return forest


def offsets(counts: NDArray) -> NDArray[np.int64]:
    """0 and the running totals of `counts`: pointers of a CSR layout."""
    out = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=out[1:])
    return out


@njit(cache=True, nogil=True)
def _project(f):  # type: ignore[no-untyped-def]
    """proj[k, x]: the bits of the parent's table index x that belong to k's separator, packed."""
    bit = np.empty(64, dtype=np.int64)
    for k in range(f.parent.size):
        p = f.parent[k]
        if p < 0:
            continue
        count = f.sep_ptr[k + 1] - f.sep_ptr[k]
        for j in range(count):
            bit[j] = 0  # the parent itself
            for i in range(f.sep_ptr[p], f.sep_ptr[p + 1]):
                if f.sep[i] == f.sep[f.sep_ptr[k] + j]:
                    bit[j] = i - f.sep_ptr[p] + 1
        for x in range(f.tab_ptr[p + 1] - f.tab_ptr[p]):
            index = 0
            for j in range(count):
                index |= ((x >> bit[j]) & 1) << j
            f.proj[f.proj_ptr[k] + x] = index
