"""Which plan to follow: the best elimination order, or a contraction tree where searching pays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

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

ROUND = 0.2
SHARE = 0.25
"""A round is worth it while all rounds together take less than this part of what is left to do."""

WORTH = 1.0
"""log2 of what the first round must gain over the order, or there is no second."""

_MOST_ROUNDS = 16


class Spread(Protocol):
    """Does pieces of work at the same time, `hands` of them."""

    @property
    def hands(self) -> int: ...

    def __call__(self, function: Callable[[Any], Any], tasks: list[Any], /) -> list[Any]:
        """function(task) for each, in the order of the tasks."""


_MOST_LEAVES = 20_000


def choose_plan(
    model: FactorGraph,
    numbers: NDArray[np.int64] | None = None,
    *,
    most_seconds: float = math.inf,
    log2_cap: float = 100.0,
    spread: Spread | None = None,
) -> EliminationPlan | None:
    """The plan of least predicted time; None where every order visits over 2^log2_cap entries.

    Rounds are counted by predictions, not by a clock: the same model always has the same plan,
    unless `most_seconds` cuts the search short. `spread` does some rounds of it at a time.
    """
    until = time.perf_counter() + most_seconds
    choice = choose_order(model, most_seconds=most_seconds, log2_cap=log2_cap)
    if choice.log2_cost == math.inf:
        return None
    ordered = build_plan(model, choice.order, choice.heuristic, numbers)
    if SHARE * ordered.table_seconds < ROUND or model.n_factors > _MOST_LEAVES:
        return ordered
    tree = _anneal(model, choice.order, ordered.table_seconds, until, spread)
    if tree is None:
        return ordered
    drawn = build_plan(model, Skeleton.of(tree), "annealed tree", numbers)
    return drawn if drawn.seconds < ordered.seconds else ordered


def _anneal(
    model: FactorGraph,
    order: NDArray[np.int64],
    seconds: float,
    until: float,
    spread: Spread | None,
) -> ContractionTree | None:
    """The best tree of a few rounds that start at `order`, which would take `seconds`."""
    start = tree_by_order(scopes_of(model), model.cardinalities, order)
    sweeps = max(1, ROTATIONS // max(1, len(start.leaves.scopes)))
    anneal = partial(start.annealed, sweeps)
    before = start.log2_cost
    best: ContractionTree | None = None
    ahead: list[ContractionTree] = []
    for k in range(_MOST_ROUNDS):
        left = seconds * 2.0 ** min(0.0, (best.log2_cost if best else before) - before)
        if (k + 1) * ROUND > SHARE * left or (k and time.perf_counter() > until):
            break
        if not ahead:
            # Rounds ahead of their turn cost nobody's time, and are dropped where none was due:
            # the plan does not depend on how many are made at once.
            due = min(_MOST_ROUNDS, max(k + 1, int(SHARE * left / ROUND)))
            if spread is None or k == 0:
                ahead = [anneal(k)]
            else:
                ahead = spread(anneal, list(range(k, min(due, k + spread.hands))))
        found = ahead.pop(0)
        if best is None or found.log2_cost < best.log2_cost:
            best = found
        if best.log2_cost > before - WORTH:
            break
    return best
