"""Which variables to decide on first: those near the middle of a tree decomposition.

Deciding on the bag in the middle of a decomposition cuts the formula in two, so the search inherits
the decomposition's width (Korhonen and Jarvisalo, "Integrating Tree Decompositions into Decision
Heuristics of Propositional Model Counters", CP 2021).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import BucketTree, bucket_tree
from tightz.elimination.game import FILL, Rules, play
from tightz.elimination.graph import interaction_graph, scopes_from

STRENGTH = 100.0
"""What the middle is worth, in open clauses."""

_MOST_WORK = 2e8
_MOST_PAIRS = 1e8  # of variables in one clause: a graph of more takes gigabytes


def priorities(
    n: int, clauses: Sequence[Sequence[int]], *, seed: int = 0
) -> tuple[NDArray[np.float64], float]:
    """((n,) scores from 0 to STRENGTH, the width of the decomposition; nan where none was found).

    Least fill, ties broken by `seed`.
    """
    if sum(len(c) ** 2 for c in clauses) > _MOST_PAIRS:
        return np.zeros(n), np.nan
    scopes = scopes_from(n, [[x >> 1 for x in c] for c in clauses])
    noise = np.random.default_rng(seed).uniform(0.0, 0.5, n) if seed else 0.0
    played = play(interaction_graph(scopes), Rules(FILL, work=_MOST_WORK), noise=noise)
    if not played.finished or n == 0:
        return np.zeros(n), np.nan
    depth = _depths(n, bucket_tree(scopes, played.order))
    return STRENGTH * (1.0 - depth / max(1.0, depth.max())), played.log2_largest - 1.0


def _depths(n: int, tree: BucketTree) -> NDArray[np.float64]:
    """(n,) steps from the middle of each variable's component to its nearest bag."""
    parent = tree.parent.tolist()
    beside: list[list[int]] = [[] for _ in parent]
    below = [1] * len(parent)
    for c, p in enumerate(parent):  # messages go to later buckets
        if p >= 0:
            beside[p].append(c)
            below[p] += below[c]
    depth = np.full(n, np.inf)
    steps = [-1] * len(parent)
    for root in (c for c, p in enumerate(parent) if p < 0):
        middle = root
        while heavy := [k for k in beside[middle] if 2 * below[k] > below[root]]:
            middle = heavy[0]
        steps[middle] = 0
        queue = [middle]
        for c in queue:
            bag = tree.scope[tree.scope_ptr[c] : tree.scope_ptr[c + 1]]
            depth[bag] = np.minimum(depth[bag], steps[c])
            for k in [*beside[c], *([parent[c]] if parent[c] >= 0 else [])]:
                if steps[k] < 0:
                    steps[k] = steps[c] + 1
                    queue.append(k)
    return np.where(np.isfinite(depth), depth, 0.0)
