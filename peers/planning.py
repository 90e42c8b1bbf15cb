"""Plans of contraction beside cotengra's, from the same start: `python -m peers planning`.

Of the linkage models in TIGHTZ_DATA: reconfiguration and annealing by cotengra, rotations by ours.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import tightz as tz
from peers import runner
from peers.settings import INTERPRETER, MEMORY
from tightz.elimination.exact.choice import ROTATIONS
from tightz.elimination.graph import scopes_of
from tightz.elimination.order import choose_order
from tightz.elimination.trees import ContractionTree, tree_by_order
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.preparation import prepare

ROUNDS = (1, 4)
SECONDS = 300.0


def main() -> None:
    print("log2 of products, log2 of the largest table, CPU seconds")
    print(
        f"{'model':14s} {'start':>12s} {'cotengra':>19s}   ours after {ROUNDS} rounds of annealing"
    )
    for file in sorted((Path(os.environ["TIGHTZ_DATA"]) / "uai2014").glob("linkage*.uai")):
        print(f"{file.stem:14s} {compared(tz.read(file, evidence=f'{file}.evid'))}", flush=True)


def compared(model: FactorGraph) -> str:
    """One line: the start, cotengra's plan and ours."""
    reduced = prepare(model).reduced
    cards = reduced.cardinalities.tolist()
    start = tree_by_order(scopes_of(reduced), reduced.cardinalities, choose_order(reduced).order)
    scopes = start.leaves.scopes
    cells = [_pair(_cost(scopes, cards, _path(start)))]
    with tempfile.TemporaryDirectory() as folder:
        ends = np.cumsum([0, *map(len, scopes)])
        members = np.array([v for scope in scopes for v in scope])
        np.savez(
            Path(folder) / "start.npz", ends=ends, members=members, cards=cards, path=_path(start)
        )
        theirs = runner.run(
            INTERPRETER, "peers.engines.contraction:plan", Path(folder), seconds=SECONDS,
            memory=MEMORY,
        )  # fmt: skip
    if "path" in theirs:
        cells += [_pair(_cost(scopes, cards, theirs["path"])), f"{theirs['seconds']:6.2f}  "]
    else:
        cells.append(f"{theirs['failure']:>19s}  ")
    start.annealed(1, 0)  # compile
    for rounds in ROUNDS:
        begin = time.process_time()
        trees = [start.annealed(ROTATIONS // len(scopes), seed) for seed in range(rounds)]
        best = min(trees, key=lambda tree: tree.log2_cost)
        seconds = time.process_time() - begin
        cells += [_pair(_cost(scopes, cards, _path(best))), f"{seconds:6.2f}  "]
    return " ".join(cells)


def _path(tree: ContractionTree) -> list[tuple[int, int]]:
    """The tree's products as pairs, children first; leaf k is k, the j-th product L + j."""
    count = len(tree.leaves.scopes)
    name = {k: k for k in range(count)}
    path: list[tuple[int, int]] = []
    stack = [(2 * count - 2, False)]
    while stack:
        x, done = stack.pop()
        if x < count:
            continue
        a, b = int(tree.left[x]), int(tree.right[x])
        if done:
            name[x] = count + len(path)
            path.append((name[a], name[b]))
        else:
            stack += [(x, True), (a, False), (b, False)]
    return path


def _cost(
    scopes: list[tuple[int, ...]], cards: list[int], path: list[tuple[int, int]]
) -> tuple[float, float]:
    """log2 of the products of a path, and of its largest result."""
    uses = np.bincount([v for s in scopes for v in s], minlength=len(cards)).tolist()
    terms: dict[int, dict[int, int]] = {k: dict.fromkeys(s, 1) for k, s in enumerate(scopes)}
    products, largest = 0.0, 0.0
    for new, pair in enumerate(path, start=len(scopes)):
        held: dict[int, int] = {}
        for k in pair:
            for v, count in terms.pop(k).items():
                held[v] = held.get(v, 0) + count
        products += math.prod(float(cards[v]) for v in held)
        terms[new] = {v: count for v, count in held.items() if count < uses[v]}
        size = math.prod(float(cards[v]) for v in terms[new])
        largest = max(largest, size)
    return math.log2(products), math.log2(largest)


def _pair(cost: tuple[float, float]) -> str:
    return f"{cost[0]:6.1f} {cost[1]:5.1f}"
