"""The bound of a structured q, from its conditional tables alone.

Written apart from the optimiser and from the layout of terms that it runs on: the energy starts
from the model's own terms and the coset's supports, expectations are sign-weighted eliminations
(E[prod_{k in u} y_k] is a sum-product in which every member of u carries its spin's sign, so the
treewidth does not grow), and the entropy is summed conditional by conditional.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.families.structured.junction import Forest
from tightz.projections.coset import Coset


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
    nodes = forest.node_of[np.asarray(free, np.int64)]
    _expectations(forest, tables, above, np.asarray(ptr, np.int64), nodes, out)
    return out


def separator_marginals(forest: Forest, tables: NDArray[np.float64]) -> NDArray[np.float64]:
    """q(y_{S_k}) for every node, laid out by `forest.msg_ptr`."""
    above = np.zeros(int(forest.msg_ptr[-1]))
    _separator_marginals(forest, tables, above)
    return above


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


@njit(cache=True, nogil=True)
def _unpack(words, members):  # type: ignore[no-untyped-def]
    """Positions of the set bits, row after row."""
    at = 0
    for a in range(words.shape[0]):
        for w in range(words.shape[1]):
            for b in range(64):
                if (words[a, w] >> np.uint64(b)) & np.uint64(1):
                    members[at] = (w << 6) + b
                    at += 1


@njit(cache=True, nogil=True)
def _separator_marginals(f, tables, above):  # type: ignore[no-untyped-def]
    """above[k, j] = q(y_{S_k} = j), parents first: sums of the parent's q(y_p, y_{S_p})."""
    for k in range(f.parent.size - 1, -1, -1):
        p = f.parent[k]
        if p < 0:
            above[f.msg_ptr[k]] = 1.0
            continue
        for x in range(f.tab_ptr[p + 1] - f.tab_ptr[p]):
            to = f.msg_ptr[k] + f.proj[f.proj_ptr[k] + x]
            above[to] += above[f.msg_ptr[p] + (x >> 1)] * tables[f.tab_ptr[p] + x]


@njit(cache=True, nogil=True)
def _in_one_bucket(f, tables, above, nodes):  # type: ignore[no-untyped-def]
    """E[prod of `nodes` (ascending)] if the first one's bucket holds them all, else NaN."""
    k = nodes[0]
    mask = 1
    for i in nodes[1:]:
        at = np.searchsorted(f.sep[f.sep_ptr[k] : f.sep_ptr[k + 1]], i)
        if at == f.sep_ptr[k + 1] - f.sep_ptr[k] or f.sep[f.sep_ptr[k] + at] != i:
            return np.nan
        mask |= 2 << at
    total = 0.0
    for x in range(f.tab_ptr[k + 1] - f.tab_ptr[k]):
        weight = above[f.msg_ptr[k] + (x >> 1)] * tables[f.tab_ptr[k] + x]
        bits = x & mask
        while bits:
            weight = -weight
            bits &= bits - 1
        total += weight
    return total


@njit(cache=True, nogil=True)
def _expectations(f, tables, above, ptr, nodes, out):  # type: ignore[no-untyped-def]
    """out[a] = E_q[prod of nodes[ptr[a]:ptr[a+1]]], one tree after the other."""
    n = f.parent.size
    product = np.empty(f.tab_ptr[n])
    pending = np.empty(n + 1, dtype=np.int64)
    for a in range(ptr.size - 1):
        row = np.sort(nodes[ptr[a] : ptr[a + 1]])
        first = 0
        while first < row.size and out[a] != 0.0:
            last = first + 1
            while last < row.size and f.tree[row[last]] == f.tree[row[first]]:
                last += 1
            value = _in_one_bucket(f, tables, above, row[first:last])
            if np.isnan(value):
                value = _in_one_tree(f, tables, above, row[first:last], product, pending)
            out[a] *= value
            first = last


@njit(cache=True, nogil=True)
def _in_one_tree(f, tables, above, members, product, pending):  # type: ignore[no-untyped-def]
    """E[prod of members (ascending)]: signed messages from them up to their common ancestor.

    Pending nodes are kept in ascending order, so children come before parents. `product` holds
    what the children of a pending node have sent, signed if the node is a member, over the node's
    table. When nothing else is pending, all members lie at or below the node and the sum ends.
    """
    count = members.size
    for i in range(count):
        pending[i] = members[i]
        table = product[f.tab_ptr[members[i]] : f.tab_ptr[members[i] + 1]]
        table[0::2] = 1.0
        table[1::2] = -1.0
    at = 0
    while True:
        k = pending[at]
        at += 1
        base, low = f.tab_ptr[k], f.msg_ptr[k]
        if at == count:
            total = 0.0
            for j in range(f.msg_ptr[k + 1] - low):
                x = base + 2 * j
                below = tables[x] * product[x] + tables[x + 1] * product[x + 1]
                total += above[low + j] * below
            return total
        p = f.parent[k]
        place = at
        while place < count and pending[place] < p:
            place += 1
        if place == count or pending[place] != p:
            for i in range(count, place, -1):
                pending[i] = pending[i - 1]
            pending[place] = p
            count += 1
            product[f.tab_ptr[p] : f.tab_ptr[p + 1]] = 1.0
        for y in range(f.tab_ptr[p + 1] - f.tab_ptr[p]):
            x = base + 2 * f.proj[f.proj_ptr[k] + y]
            below = tables[x] * product[x] + tables[x + 1] * product[x + 1]
            product[f.tab_ptr[p] + y] *= below
