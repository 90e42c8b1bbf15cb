"""Where annealing starts: products and forests, drawn exactly, their log Z known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.sampling.ais.kernels import Forest, Terms

LEAST = 1e-6
"""Smallest probability of a pair's states, and the least information that a pair is given."""


def product_base(terms: Terms, fields: NDArray[np.float64]) -> Forest:
    """Independent spins in `fields`."""
    n = fields.size
    none = np.full(n, -1, dtype=np.int64)
    return Forest(
        fields, np.zeros(terms.theta.size), np.arange(n), none, np.zeros(n), fields.copy()
    )


def base_log_z(base: Forest) -> float:
    """log Z of the base: along the forest each spin is summed out given its parent."""
    # Summing s out of exp((h + J t) s) leaves a + b t with a the mean of the two logs; the pulls
    # already hold the b of all children.
    up, down = base.pull + base.link, base.pull - base.link
    return float((np.logaddexp(up, -up) + np.logaddexp(down, -down)).sum() / 2.0)


def forest_base(
    terms: Terms, fields: NDArray[np.float64], couplings: NDArray[np.float64]
) -> Forest:
    """The base with `fields` and, at pair terms, `couplings` (T,) that close no cycle."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    n = fields.size
    chosen = np.flatnonzero(couplings)
    pairs = terms.spins[terms.ptr[chosen][:, None] + np.arange(2)]
    rows, columns = np.concatenate([pairs, pairs[:, ::-1]]).T
    graph = coo_array((np.ones(rows.size), (rows, columns)), shape=(n, n)).tocsr()
    _, component = connected_components(graph, directed=False)
    parent, link = np.full(n, -1, dtype=np.int64), np.zeros(n)
    order = []
    for root in np.unique(component, return_index=True)[1]:
        nodes, above = breadth_first_order(graph, root, directed=False)
        order.append(nodes)
        parent[nodes[1:]] = above[nodes[1:]]
    joined = np.concatenate(order).astype(np.int64)
    first, second = pairs.T
    link[np.where(parent[first] == second, first, second)] = couplings[chosen]
    pull = fields.copy()
    for i in joined[::-1]:
        if parent[i] >= 0:
            up, down = pull[i] + link[i], pull[i] - link[i]
            pull[parent[i]] += (np.logaddexp(up, -up) - np.logaddexp(down, -down)) / 2.0
    return Forest(fields, couplings, joined, parent, link, pull)


def pairs_of(terms: Terms) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(numbers of the terms of two spins, their spins (P, 2))."""
    which = np.flatnonzero(np.diff(terms.ptr) == 2)
    return which, terms.spins[terms.ptr[which][:, None] + np.arange(2)]


def likely_forest(
    terms: Terms, means: NDArray[np.float64], products: NDArray[np.float64]
) -> Forest:
    """The forest of pair terms closest to a law with these E s_i and E s_i s_j (Chow, Liu 1968).

    All must be short of +-1 and consistent: then no state is ruled out.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    which, ends = pairs_of(terms)
    first, second = means[ends.T]
    # (2, 2, P) P(s_i = a, s_j = b), a and b in the order +1, -1.
    sign = np.array([1.0, -1.0])
    cells = 1.0 + sign[:, None, None] * first + sign[None, :, None] * second
    cells = (cells + np.outer(sign, sign)[:, :, None] * products) / 4.0
    cells = np.maximum(cells, LEAST)
    cells /= cells.sum(axis=(0, 1))
    logs = np.log(cells)
    margins = np.log(cells.sum(axis=1)), np.log(cells.sum(axis=0))
    information = (cells * (logs - margins[0][:, None] - margins[1][None])).sum(axis=(0, 1))
    graph = coo_array(
        (-np.maximum(information, LEAST), ends.T), shape=(means.size, means.size)
    ).tocsr()
    tree = minimum_spanning_tree(graph).tocoo()
    used = np.isin(ends @ (means.size, 1), tree.row.astype(np.int64) * means.size + tree.col)
    couplings, fields = np.zeros(terms.theta.size), np.arctanh(means)
    logs = logs[:, :, used]
    couplings[which[used]] = np.einsum("a,b,abp->p", sign, sign, logs) / 4.0
    # q = prod_i q_i prod_ij q_ij / (q_i q_j): each pair adds its fields beyond the margins' own.
    for side, margin in enumerate(margins):
        field = np.einsum("a,abp->p" if side == 0 else "b,abp->p", sign, logs) / 4.0
        own = (margin[0] - margin[1])[used] / 2.0
        np.add.at(fields, ends[used, side], field - own)
    return forest_base(terms, fields, couplings)
