"""cotengra: pairwise contraction by numpy along a greedy path, or along an annealed tree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from peers.given import Budget, Case, Refused

MOST_ENTRIES = 2.0**26
"""Of one table (512 MiB); above it the tree is sliced."""

MOST_FLOPS = 2.0**38
"""Of a whole contraction: numpy does not do more within a minute."""


def greedy(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import cotengra as ctg

    return _exact(case, lambda inputs, sizes: _greedy(ctg, inputs, sizes))


def annealed(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import cotengra as ctg

    return _exact(case, lambda inputs, sizes: _annealed(ctg, inputs, sizes))


def _exact(case: Case, plan: Callable[[Any, Any], Any]) -> Callable[[], dict[str, Any]]:
    from cotengra import get_symbol

    model = case.model()
    scopes, arrays, scale = model.conditioned()
    inputs = [tuple(get_symbol(v) for v in scope) for scope in scopes]
    held = {v for scope in scopes for v in scope}
    sizes = {get_symbol(v): model.cards[v] for v in held}

    def call() -> dict[str, Any]:
        tree = plan(inputs, sizes)
        if tree.max_size() > MOST_ENTRIES and tree.total_flops() < MOST_FLOPS:
            tree.slice_and_reconfigure_(MOST_ENTRIES)
        flops = float(tree.total_flops())
        if flops > MOST_FLOPS:
            raise Refused(f"2^{math.log2(flops):.0f} products planned")
        mantissa, exponent = tree.contract(arrays, strip_exponent=True, check_zero=True)
        value = float(mantissa)
        log = math.log(value) + float(exponent) * math.log(10.0) if value > 0.0 else -math.inf
        return {"value": log + scale}

    return call


def _greedy(ctg: Any, inputs: Any, sizes: Any) -> Any:
    path = ctg.GreedyOptimizer(simplify=_simplify(inputs)).ssa_path(inputs, (), sizes)
    return ctg.ContractionTree.from_path(inputs, (), sizes, ssa_path=path)


def _annealed(ctg: Any, inputs: Any, sizes: Any) -> Any:
    """The best of four random-greedy paths, reconfigured and annealed."""
    found = []
    for seed in range(4):
        search = ctg.RandomGreedyOptimizer(
            max_repeats=8, seed=seed, parallel=False, simplify=_simplify(inputs)
        )
        path = search.ssa_path(inputs, (), sizes)
        found.append((search.best_flops, seed, path))
    tree = ctg.ContractionTree.from_path(inputs, (), sizes, ssa_path=min(found)[2])
    anneal(tree)
    return tree


def anneal(tree: Any) -> None:
    """Reconfiguration and annealing, in place."""
    tree.subtree_reconfigure_(subtree_size=10, seed=0)
    tree.simulated_anneal_(tsteps=40, numiter=20, seed=0)
    tree.subtree_reconfigure_(subtree_size=10, seed=0)


def _simplify(inputs: list[tuple[str, ...]]) -> bool:
    """Whether cotengrust's node numbers, of 8 or 16 bits, last for its simplification.

    Where they wrap it panics or hands out a path that is none.
    """
    return 4 * len(inputs) < (1 << 8 if len(inputs) < 128 else 1 << 16)


def plan(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    """Reconfiguration and annealing alone, from the start that start.npz holds."""
    import cotengra as ctg

    with np.load(case.folder / "start.npz") as file:
        ends, members, path = file["ends"].tolist(), file["members"].tolist(), file["path"]
        cards = file["cards"].tolist()
    scopes = [members[a:b] for a, b in itertools.pairwise(ends)]
    inputs = [tuple(ctg.get_symbol(v) for v in scope) for scope in scopes]
    sizes = {ctg.get_symbol(v): c for v, c in enumerate(cards)}
    tree = ctg.ContractionTree.from_path(inputs, (), sizes, ssa_path=path.tolist())

    def call() -> dict[str, Any]:
        anneal(tree)
        return {"path": [list(map(int, pair)) for pair in tree.get_ssa_path()], "value": 0.0}

    return call
