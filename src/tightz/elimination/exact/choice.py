"""Which plan to follow: the best elimination order, or a contraction tree where searching pays."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan, build_plan
from tightz.elimination.exact.skeleton import Skeleton
from tightz.elimination.graph import scopes_of
from tightz.elimination.order import choose_order
from tightz.elimination.trees import ContractionTree, tree_by_order
from tightz.models.factor_graph import FactorGraph

ROTATIONS = 2_000_000
"""Of one round of annealing, which takes about ROUND seconds."""

ROUND = 0.25
SHARE = 0.15
"""A round is worth it while all rounds together take less than this part of what is left to do."""

_MOST_ROUNDS = 16
_MOST_LEAVES = 20_000


def choose_plan(
    model: FactorGraph,
    numbers: NDArray[np.int64] | None = None,
    *,
    most_seconds: float = math.inf,
    log2_cap: float = 100.0,
) -> EliminationPlan | None:
    """The plan of least predicted time; None where every order visits over 2^log2_cap entries.

    Rounds are counted by predictions, not by a clock: the same model always has the same plan,
    unless `most_seconds` cuts the search short.
    """
    choice = choose_order(model, most_seconds=most_seconds, log2_cap=log2_cap)
    if choice.log2_cost == math.inf:
        return None
    best = build_plan(model, choice.order, choice.heuristic, numbers)
    start: ContractionTree | None = None
    tree: ContractionTree | None = None
    spent = 0.0
    for k in range(_MOST_ROUNDS if model.n_factors <= _MOST_LEAVES else 0):
        spent += ROUND
        if spent > min(most_seconds, SHARE * best.table_seconds):
            break
        if start is None:
            start = tree_by_order(scopes_of(model), model.cardinalities, choice.order)
        found = start.annealed(ROTATIONS // len(start.leaves.scopes), seed=k)
        if tree is None or found.log2_cost < tree.log2_cost:
            tree = found
            drawn = build_plan(model, Skeleton.of(tree), "annealed tree", numbers)
            if drawn.seconds < best.seconds:
                best = drawn
    return best
