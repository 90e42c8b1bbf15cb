"""Clusters of spins, strips of a lattice or grown, and the heaviest terms of bounded width.

A cluster keeps the terms inside it exactly, up to the width; what it cuts is left to mean field.
The weight of a coupling theta is log cosh theta, about what mean field loses on it: theta^2 / 2 if
weak, |theta| - log 2 if strong.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import bucket_tree
from tightz.elimination.game import FILL, SIZE, Rules, play
from tightz.elimination.graph import Graph, Scopes, interaction_graph, scopes_from
from tightz.errors import require_range
from tightz.families.structured.thinning import keep_heaviest


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
    graph = Graph(ptr, np.nonzero(adjacency)[1])
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
        order, kept = keep_heaviest(scopes_from(size, rows), width)
        rows = [rows[a] for a in kept.tolist()]
    return order, rows


Partition = tuple[tuple[int, ...], ...]

MAX_CLUSTER = 600
"""Largest cluster that growth makes: it bounds the work of checking its width."""


def strips(
    rows: int, cols: int, height: int, *, offset: int = 0, vertical: bool = False
) -> Partition:
    """Full-length strips of a lattice (variables row by row): each has treewidth `height`.

    The first strip has `offset` lines (if not 0), the next ones `height`. `vertical=True` cuts
    between columns.
    """
    require_range("height", height, 1)
    require_range("offset", offset, 0, height)
    lines = cols if vertical else rows
    cuts = list(range(offset, lines, height))
    return _strips_at(rows, cols, [0, *[c for c in cuts if c > 0], lines], vertical)


def _strips_at(rows: int, cols: int, cuts: list[int], vertical: bool) -> Partition:
    """Strips between consecutive cuts; spins listed across the strip: a good elimination order."""
    site = np.arange(rows * cols).reshape(rows, cols)
    site = site.T if vertical else site
    return tuple(tuple(site[a:b].T.ravel().tolist()) for a, b in itertools.pairwise(cuts))


def log_cosh(theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """log cosh, without overflow."""
    size = np.abs(theta)
    return size + np.log1p(np.exp(-2.0 * size)) - np.log(2.0)


def lattice_shape(n: int, pairs: NDArray[np.int64]) -> tuple[int, int] | None:
    """(rows, cols) if all couplings join neighbours of a row-by-row lattice (open, connected)."""
    if len(pairs) == 0 or n < 2:
        return None
    step = np.unique(np.abs(pairs[:, 1] - pairs[:, 0]))
    if step.size != 2 or step[0] != 1 or n % step[1]:
        return None
    cols = int(step[1])
    low = np.min(pairs, axis=1)
    along = np.abs(pairs[:, 1] - pairs[:, 0]) == 1
    if (low[along] % cols == cols - 1).any():
        return None
    return n // cols, cols


def lattice_partitions(
    rows: int, cols: int, pairs: NDArray[np.int64], weights: NDArray[np.float64], width: int
) -> list[Partition]:
    """Horizontal and vertical strips of at most `width` lines, cut where the couplings are weak.

    Least cut weight by dynamic programming, for each direction; the lighter cut comes first.
    """
    low = np.min(pairs, axis=1)
    along = np.abs(pairs[:, 1] - pairs[:, 0]) == 1
    found = []
    for vertical in (False, True):
        lines = cols if vertical else rows
        crossing = along if vertical else ~along
        line = low % cols if vertical else low // cols
        cost = np.bincount(line[crossing], weights[crossing], minlength=lines)
        best, back = np.full(lines + 1, np.inf), np.zeros(lines + 1, dtype=np.int64)
        best[0] = 0.0
        for end in range(1, lines + 1):
            for start in range(max(0, end - width), end):
                value = best[start] + (cost[start - 1] if start else 0.0)
                if value < best[end]:
                    best[end], back[end] = value, start
        cuts = [lines]
        while cuts[-1] > 0:
            cuts.append(int(back[cuts[-1]]))
        found.append((best[lines], _strips_at(rows, cols, cuts[::-1], vertical)))
    return [partition for _, partition in sorted(found, key=lambda pair: pair[0])]


def grow_partition(
    n: int,
    pairs: NDArray[np.int64],
    weights: NDArray[np.float64],
    width: int,
    rng: np.random.Generator | None = None,
) -> Partition:
    """Clusters of width at most `width` on any graph, grown one spin at a time.

    A cluster starts at the unassigned spin with the least weight left (a corner; a random one with
    `rng`) and takes the spin whose arrival cuts least (weight out minus weight in), as long as its
    elimination by minimum degree stays within the width.
    """
    matrix = np.zeros((n, n))
    np.add.at(matrix, (pairs[:, 0], pairs[:, 1]), weights)
    matrix += matrix.T
    near = matrix > 0.0
    unassigned = np.ones(n, dtype=bool)
    clusters = []
    while unassigned.any():
        left = matrix[:, unassigned].sum(axis=1)
        pool = np.flatnonzero(unassigned)
        seed = int(pool[np.argmin(left[pool])] if rng is None else rng.choice(pool))
        cluster = _grow(matrix, near, left, unassigned.copy(), seed, width)
        unassigned[cluster] = False
        clusters.append(tuple(cluster))
    return tuple(clusters)


def _grow(
    matrix: NDArray[np.float64],
    near: NDArray[np.bool_],
    left: NDArray[np.float64],
    open_: NDArray[np.bool_],
    seed: int,
    width: int,
) -> list[int]:
    """One cluster from `seed`; `left` is each spin's weight to all unassigned spins."""
    cluster = [seed]
    open_[seed] = False
    inside = matrix[seed].copy()
    while len(cluster) < MAX_CLUSTER:
        candidates = np.flatnonzero(open_ & (inside > 0.0))
        if candidates.size == 0:
            break
        pick = int(candidates[np.argmin(left[candidates] - 2.0 * inside[candidates])])
        open_[pick] = False
        trial = [*cluster, pick]
        joins_several = near[pick, cluster].sum() > 1 or width == 0
        if joins_several and not is_within(near[np.ix_(trial, trial)], width):
            continue
        cluster = trial
        inside += matrix[pick]
    return cluster
