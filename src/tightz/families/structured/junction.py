"""A forest of buckets over binary spins, and the bound of a q given by conditional tables on it.

A structure graph and an elimination order give each spin k a separator S_k (the neighbours of k
that are eliminated after it, fill-in included; Lauritzen and Spiegelhalter, 1988). Distributions
that are Markov with respect to the filled graph are exactly the products

    q(y) = prod_k q(y_k | y_{S_k}),

one conditional table per spin, each of any shape: zeros are allowed, so the family is closed and
holds every point mass. Two spins are independent under q when they lie in different trees.

Written apart from the optimiser and from the layout of terms that it runs on: the energy starts
from the model's own terms and the coset's supports, expectations are sign-weighted eliminations
(E[prod_{k in u} y_k] is a sum-product in which every member of u carries its spin's sign, so the
treewidth does not grow), and the entropy is summed conditional by conditional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import bucket_tree
from tightz.elimination.graph import scopes_from
from tightz.errors import ResourceError
from tightz.projections.coset import Coset
from tightz.runtime.kernels import inner, kernel
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
    links = forest.parent, forest.sep_ptr, forest.sep, forest.tab_ptr
    _project(*links, forest.proj_ptr, forest.proj, np.empty(64, dtype=np.int64))
    return forest


def offsets(counts: NDArray) -> NDArray[np.int64]:
    """0 and the running totals of `counts`: pointers of a CSR layout."""
    out = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=out[1:])
    return out


@kernel
def _project(parent, sep_ptr, sep, tab_ptr, proj_ptr, proj, bit):  # type: ignore[no-untyped-def]
    """proj[k, x]: the bits of the parent's table index x that belong to k's separator, packed."""
    for k in range(parent.size):
        p = parent[k]
        if p < 0:
            continue
        count = sep_ptr[k + 1] - sep_ptr[k]
        for j in range(count):
            bit[j] = 0  # the parent itself
            for i in range(sep_ptr[p], sep_ptr[p + 1]):
                if sep[i] == sep[sep_ptr[k] + j]:
                    bit[j] = i - sep_ptr[p] + 1
        for x in range(tab_ptr[p + 1] - tab_ptr[p]):
            index = 0
            for j in range(count):
                index |= ((x >> bit[j]) & 1) << j
            proj[proj_ptr[k] + x] = index


def images(
    coset: Coset, ptr: NDArray, spins: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]:
    """Each product of model spins (CSR) as a signed product of free spins: (ptr, free, signs)."""
    words, signs = coset.images(ptr, spins)
    image_ptr = np.zeros(len(ptr), dtype=np.int64)
    image_ptr[1:] = np.cumsum(np.bitwise_count(words).sum(axis=1, dtype=np.int64))
    members = np.empty(image_ptr[-1], dtype=np.int32)
    _unpack(words, members)
    return image_ptr, members, signs


def expectations(
    forest: Forest, tables: NDArray[np.float64], ptr: NDArray, free: NDArray
) -> NDArray[np.float64]:
    """E_q[prod of the free spins listed] for each row of a CSR list."""
    above = separator_marginals(forest, tables)
    out = np.ones(len(ptr) - 1)
    rows = np.asarray(ptr, np.int64)
    nodes = sorted_rows(rows, forest.node_of[np.asarray(free, np.int64)], forest.n)
    product, pending = np.empty(tables.size), np.empty(forest.n + 1, dtype=np.int64)
    _expectations(links_of(forest), tables, above, rows, nodes, product, pending, out)
    return out


def sorted_rows(ptr: NDArray, values: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Each row of a CSR list of numbers below n, ascending: one sort by (row, number)."""
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    return np.sort(owner * max(n, 1) + values) % max(n, 1)


def separator_marginals(forest: Forest, tables: NDArray[np.float64]) -> NDArray[np.float64]:
    """q(y_{S_k}) for every node, laid out by `forest.msg_ptr`."""
    above = np.empty(int(forest.msg_ptr[-1]))
    marginals(links_of(forest), 0, forest.n, tables, above)
    return above


def links_of(forest: Forest) -> tuple[NDArray, ...]:
    """What most kernels need of a forest: a plain tuple of few arrays is soon compiled and read."""
    f = forest
    return f.parent, f.tree, f.sep_ptr, f.sep, f.msg_ptr, f.tab_ptr, f.proj_ptr, f.proj


def structured_bound(coset: Coset, forest: Forest, tables: NDArray[np.float64]) -> float:
    """theta . E_q[chi] + sum_k E[H(q(y_k | y_S_k))] for the q with these conditional tables.

    tables is laid out by `forest.tab_ptr`; each pair of entries (spin +1, spin -1) sums to 1.
    """
    poly = coset.polynomial
    if not coset.feasible or poly.constant == -np.inf:
        return -np.inf
    pairs = tables.reshape(-1, 2)
    if not (np.abs(pairs.sum(axis=1) - 1.0) < 1e-12).all() or (pairs < 0.0).any():
        raise ArithmeticError("a conditional table is not normalised: this is a bug")
    ptr, free, signs = images(coset, poly.ptr, poly.spins)
    chi = signs * expectations(forest, tables, ptr, free)
    with np.errstate(divide="ignore", invalid="ignore"):
        h = -np.where(pairs > 0.0, pairs * np.log(pairs), 0.0).sum(axis=1)
    return float(poly.constant + poly.theta @ chi + separator_marginals(forest, tables) @ h)


@kernel
def _unpack(words, members):  # type: ignore[no-untyped-def]
    """Positions of the set bits, row after row."""
    at = 0
    for a in range(words.shape[0]):
        for w in range(words.shape[1]):
            if words[a, w] == 0:
                continue
            for b in range(64):
                if (words[a, w] >> np.uint64(b)) & np.uint64(1):
                    members[at] = (w << 6) + b
                    at += 1


@kernel
def marginals(links, low, high, tables, above):  # type: ignore[no-untyped-def]
    """above[k, j] = q(y_{S_k} = j), parents first: sums of the parent's q(y_p, y_{S_p})."""
    parent, _, _, _, msg_ptr, tab_ptr, proj_ptr, proj = links
    for k in range(high - 1, low - 1, -1):
        p = parent[k]
        if p < 0:
            above[msg_ptr[k]] = 1.0
            continue
        for j in range(msg_ptr[k], msg_ptr[k + 1]):
            above[j] = 0.0
        for x in range(tab_ptr[p + 1] - tab_ptr[p]):
            to = msg_ptr[k] + proj[proj_ptr[k] + x]
            above[to] += above[msg_ptr[p] + (x >> 1)] * tables[tab_ptr[p] + x]


@inner
def bucket_mask(sep_ptr, sep, nodes, low, high):  # type: ignore[no-untyped-def]
    """nodes[low:high] (ascending) as bits of the first one's table; 0 if one is not there."""
    k = nodes[low]
    mask, at = 1, sep_ptr[k]
    for i in range(low + 1, high):
        while at < sep_ptr[k + 1] and sep[at] < nodes[i]:
            at += 1
        if at == sep_ptr[k + 1] or sep[at] != nodes[i]:
            return 0
        mask |= 2 << (at - sep_ptr[k])
    return mask


@inner
def _in_one_bucket(links, tables, above, k, mask):  # type: ignore[no-untyped-def]
    """E[prod of the nodes in `mask`, bits of the table of k]."""
    _, _, _, _, msg_ptr, tab_ptr, _, _ = links
    total = 0.0
    for x in range(tab_ptr[k + 1] - tab_ptr[k]):
        weight = above[msg_ptr[k] + (x >> 1)] * tables[tab_ptr[k] + x]
        bits = x & mask
        while bits:
            weight = -weight
            bits &= bits - 1
        total += weight
    return total


@kernel
def _expectations(links, tables, above, ptr, nodes, product, pending, out):  # type: ignore[no-untyped-def]
    """out[a] = E_q[prod of nodes[ptr[a]:ptr[a+1]]], one tree after the other; rows ascending."""
    _, tree, sep_ptr, sep, _, _, _, _ = links
    for a in range(ptr.size - 1):
        first = ptr[a]
        while first < ptr[a + 1] and out[a] != 0.0:
            last = first + 1
            while last < ptr[a + 1] and tree[nodes[last]] == tree[nodes[first]]:
                last += 1
            mask = bucket_mask(sep_ptr, sep, nodes, first, last)
            if mask:
                out[a] *= _in_one_bucket(links, tables, above, nodes[first], mask)
            else:
                for i in range(first, last):
                    pending[i - first] = nodes[i]
                out[a] *= _in_one_tree(links, tables, above, last - first, product, pending)
            first = last


@inner
def _in_one_tree(links, tables, above, count, product, pending):  # type: ignore[no-untyped-def]
    """E[prod of pending[:count] (ascending)]: signed messages up to their common ancestor.

    Pending nodes are kept in ascending order, so children come before parents. `product` holds
    what the children of a pending node have sent, signed if the node is a member, over the node's
    table. When nothing else is pending, all members lie at or below the node and the sum ends.
    """
    parent, _, _, _, msg_ptr, tab_ptr, proj_ptr, proj = links
    for i in range(count):
        for x in range(tab_ptr[pending[i]], tab_ptr[pending[i] + 1], 2):
            product[x], product[x + 1] = 1.0, -1.0
    at = 0
    while True:
        k = pending[at]
        at += 1
        base, low = tab_ptr[k], msg_ptr[k]
        if at == count:
            total = 0.0
            for j in range(msg_ptr[k + 1] - low):
                x = base + 2 * j
                below = tables[x] * product[x] + tables[x + 1] * product[x + 1]
                total += above[low + j] * below
            return total
        p = parent[k]
        place = at
        while place < count and pending[place] < p:
            place += 1
        if place == count or pending[place] != p:
            for i in range(count, place, -1):
                pending[i] = pending[i - 1]
            pending[place] = p
            count += 1
            for x in range(tab_ptr[p], tab_ptr[p + 1]):
                product[x] = 1.0
        for y in range(tab_ptr[p + 1] - tab_ptr[p]):
            x = base + 2 * proj[proj_ptr[k] + y]
            below = tables[x] * product[x] + tables[x + 1] * product[x + 1]
            product[tab_ptr[p] + y] *= below
