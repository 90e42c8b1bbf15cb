"""Conditional tables on a forest: restrict them to a half, draw from them, pin their spins.

A spin is pinned by a field on it that outweighs everything else, so all regions of a coset share
the index work of one shape; the pinned q puts no weight outside its region, and its bound is
evaluated without the field.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.families.structured.junction import Forest, sorted_rows
from tightz.families.structured.shape import Shape, visits
from tightz.families.structured.terms import Images, bucket_masks, cut_terms, merged_images
from tightz.projections.coset import Coset
from tightz.runtime.kernels import kernel


class Pinnable(NamedTuple):
    """A shape in which every free spin k has a piece of its own, piece[k], to pin it by."""

    shape: Shape
    piece: NDArray[np.int64]


def pinnable(coset: Coset, forest: Forest) -> Pinnable:
    """The coset's polynomial cut along the forest, single spins included."""
    terms = cut_terms(forest, _with_singles(merged_images(coset), coset.n_free))
    lone = np.flatnonzero(terms.piece_mask == 1)
    piece = np.empty(coset.n_free, dtype=np.int64)
    piece[forest.spin_of[terms.piece_node[lone]]] = lone
    return Pinnable(Shape(forest, terms, *visits(forest)), piece)


def _with_singles(work: Images, n: int) -> Images:
    """The same terms and, with coefficient 0, the single spins that are missing."""
    missing = np.setdiff1d(np.arange(n), work.free[work.ptr[:-1][work.lengths == 1]])
    return Images(
        work.constant,
        np.concatenate([np.arange(missing.size), work.ptr + missing.size]),
        np.concatenate([missing, work.free]),
        np.concatenate([np.zeros(missing.size), work.theta]),
    )


def outside(forest: Forest, ptr: NDArray, free: NDArray) -> NDArray[np.bool_]:
    """Which products of free spins (CSR) do not lie inside one bucket of the forest."""
    rows = np.asarray(ptr, np.int64)
    nodes = sorted_rows(rows, forest.node_of[np.asarray(free, np.int64)], forest.n)
    missed: NDArray[np.bool_] = bucket_masks(forest, rows, nodes) == 0
    return missed & (np.diff(rows) > 0)


@kernel
def pin(f, tables, nodes, signs):  # type: ignore[no-untyped-def]
    """Make the tables of pinned nodes deterministic."""
    for i in range(nodes.size):
        for x in range(f.tab_ptr[nodes[i]], f.tab_ptr[nodes[i] + 1], 2):
            tables[x] = 1.0 if signs[i] > 0 else 0.0
            tables[x + 1] = 1.0 - tables[x]


@kernel
def condition(f, tables, node, state, out):  # type: ignore[no-untyped-def]
    """out = tables of q(. | y_node = state): Bayes' rule at the node and at its ancestors.

    q(y_node = state | S_node) is a message to the parent's table, which it reweighs; the sums that
    normalise that table are the message to the next. Nodes that are no ancestors keep their tables:
    given their separators they do not depend on the node, or lie below it.
    """
    base = f.tab_ptr[node]
    message = tables[base + state : f.tab_ptr[node + 1] : 2].copy()
    out[base : f.tab_ptr[node + 1]] = 0.0
    out[base + state : f.tab_ptr[node + 1] : 2] = 1.0
    k, p = node, f.parent[node]
    while p >= 0:
        base = f.tab_ptr[p]
        size = f.tab_ptr[p + 1] - base
        proj = f.proj[f.proj_ptr[k] : f.proj_ptr[k + 1]]
        up = np.empty(size >> 1)
        for j in range(size >> 1):
            plus = tables[base + 2 * j] * message[proj[2 * j]]
            minus = tables[base + 2 * j + 1] * message[proj[2 * j + 1]]
            up[j] = plus + minus
            if up[j] > 0.0:
                out[base + 2 * j] = plus / up[j]
                out[base + 2 * j + 1] = minus / up[j]
        message = up
        k, p = p, f.parent[p]


@kernel
def draw(f, tables, uniform, y, log_q):  # type: ignore[no-untyped-def]
    """Ancestors first: y[s, k] from q(y_k | y_S_k); log_q[s] is the probability of the row."""
    for s in range(y.shape[0]):
        for k in range(f.parent.size - 1, -1, -1):
            j = 0
            for i in range(f.sep_ptr[k], f.sep_ptr[k + 1]):
                if y[s, f.sep[i]] < 0.0:
                    j |= 1 << (i - f.sep_ptr[k])
            up = tables[f.tab_ptr[k] + 2 * j]
            if uniform[s, k] < up:
                y[s, k] = 1.0
                log_q[s] += np.log(up)
            else:
                y[s, k] = -1.0
                log_q[s] += np.log(tables[f.tab_ptr[k] + 2 * j + 1])
