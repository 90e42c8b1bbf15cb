"""Subgraphs of bounded width that keep the heaviest terms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import bucket_tree
from tightz.elimination.game import FILL, SIZE, Rules, play, widen
from tightz.elimination.graph import Graph, Scopes, interaction_graph, scopes_from

MAX_TRIALS = 4000
"""Most terms that are tried one by one when a cluster has to be thinned."""


def best_order(scopes: Scopes, width: int) -> NDArray[np.int64] | None:
    """The first order within `width`: as numbered, minimum degree, minimum fill; None if no one is.

    The numbering comes first: callers know strips of a lattice.
    """
    given = np.arange(scopes.n)
    # No table passes 2^(width + 1), so all together stay below this: a wide order is left early.
    cap = width + 1.0 + np.log2(max(scopes.n, 1))
    tree = bucket_tree(scopes, given, log2_total=cap)
    if tree.complete and tree.width <= width:
        return given
    graph = interaction_graph(scopes)
    for cost in (SIZE, FILL):  # spins have two states: the smallest table has least degree
        played = play(graph, Rules(cost, neighbours=width))
        if played.finished:
            return played.order
    return None


def is_within(adjacency: NDArray[np.bool_], width: int) -> bool:
    """Whether elimination by minimum degree of this graph (n, n) stays within `width`."""
    ptr = np.concatenate([[0], np.cumsum(adjacency.sum(axis=1))])
    return _is_within(Graph(ptr, np.nonzero(adjacency)[1]), width)


def _is_within(graph: Graph, width: int) -> bool:
    return play(graph, Rules(SIZE, neighbours=width)).finished


def thin(
    size: int, members: Sequence[NDArray], weights: NDArray[np.float64], width: int
) -> tuple[NDArray[np.int64], list[NDArray]]:
    """(order, terms) of a graph of at most `width` that keeps the heaviest terms.

    members[a] lists the spins (0..size-1) of term a; a term is kept as a clique. All terms are
    tried at once, then one by one in falling weight (for width 1: Kruskal's maximum spanning
    forest; in general the greedy thin junction trees of Bach and Jordan, 2001).
    """
    fits = [a for a in range(len(members)) if 1 < len(members[a]) <= width + 1]
    rows = [members[a] for a in fits]
    order = best_order(scopes_from(size, rows), width)
    if order is None:
        fits.sort(key=lambda a: -weights[a])
        rows = [members[a] for a in fits]
        kept = widen(scopes_from(size, rows), width, MAX_TRIALS)
        rows = [rows[a] for a in kept.tolist()]
        order = best_order(scopes_from(size, rows), width)
        assert order is not None, "the kept graph was within the width when it was built"
    return order, rows
