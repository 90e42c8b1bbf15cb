"""Runs one peer on one model, in the peers' own interpreter: `python _peers.py PEER MODEL.npz`.

Peers: "cotengra greedy", "cotengra annealed", "pyagrum", and "cotengra plan" for planning alone. It
needs numpy and the peer, not tightz. The last line printed is a JSON object: log_z and seconds (the
file is read and the peer's own model is made before the clock starts), or failure. With
"available" it names the versions of the peers that are there.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any, NamedTuple

import numpy as np

MOST_ENTRIES = 2.0**28
"""Of one table of cotengra's (2 GiB); above it the tree is sliced."""

MOST_FLOPS = 2.0**38
"""Of a whole contraction: numpy does not do more within a minute."""

PROBABILITIES = 1e-5
"""A table whose sums over one variable are this close is its conditional probability."""


class Model(NamedTuple):
    """Tables with largest entry 1, the sum of the logs taken out, and evidence."""

    cards: list[int]
    scopes: list[tuple[int, ...]]
    tables: list[np.ndarray]
    log_scale: float
    evidence: dict[int, int]


def load(path: str) -> Model:
    with np.load(path) as file:
        cards, ends, members = (file[k].tolist() for k in ("cards", "scope_ptr", "scope_vars"))
        starts, logs, evidence = file["table_ptr"].tolist(), file["log_tables"], file["evidence"]
    scopes, tables, tops = [], [], []
    for f in range(len(ends) - 1):
        scope = tuple(members[ends[f] : ends[f + 1]])
        log = logs[starts[f] : starts[f + 1]].reshape([cards[v] for v in scope])
        top = float(log.max())
        tops.append(top if math.isfinite(top) else 0.0)
        scopes.append(scope)
        tables.append(np.exp(log - tops[-1]))
    return Model(cards, scopes, tables, math.fsum(tops), dict(evidence.tolist()))


def conditionals(model: Model, tolerance: float = PROBABILITIES) -> dict[int, int]:
    """Variable -> the factor that is its conditional probability; acyclic, none for some.

    Files list a table's own variable last, or first: whichever explains more tables.
    """
    ways = [_conditionals(model, tolerance, step) for step in (-1, 1)]
    return max(ways, key=len)


def _conditionals(model: Model, tolerance: float, step: int) -> dict[int, int]:
    found: dict[int, int] = {}
    parents: dict[int, set[int]] = {}

    def above(v: int) -> set[int]:
        seen, stack = {v}, [v]
        while stack:
            for u in parents.get(stack.pop(), ()):
                if u not in seen:
                    seen.add(u)
                    stack.append(u)
        return seen

    for f, (scope, table) in enumerate(zip(model.scopes, model.tables, strict=True)):
        for k in range(len(scope))[::step]:
            sums, v = table.sum(axis=k), scope[k]
            if v in found or sums.max() - sums.min() > tolerance * sums.max():
                continue
            others = set(scope) - {v}
            if not any(v in above(u) for u in others):
                found[v], parents[v] = f, others
                break
    return found


def pyagrum(model: Model) -> dict[str, Any]:
    """log P(evidence) by lazy propagation.

    A table that is no conditional probability becomes a variable of two states below its scope,
    seen in state 1; a variable without a conditional probability is uniform.
    """
    import pyagrum as gum

    net, scale = gum.BayesNet(), model.log_scale
    for v, c in enumerate(model.cards):
        net.add(gum.RangeVariable(f"x{v}", "", 0, c - 1))
    own = conditionals(model)
    for v, f in own.items():
        for u in model.scopes[f]:
            if u != v:
                net.addArc(u, v)
    for v, c in enumerate(model.cards):
        table = np.full(c, 1.0 / c)
        if v in own:
            scope = model.scopes[own[v]]
            table = model.tables[own[v]]
            total = float(table.sum(axis=scope.index(v)).max())
            table = _as_listed(net, v, scope, table / total)
            scale += math.log(total)
        else:
            scale += math.log(c)
        net.cpt(v).fillWith(table.ravel().tolist())
    seen = {f"x{v}": s for v, s in model.evidence.items()}
    for f in sorted(set(range(len(model.scopes))) - set(own.values())):
        if not model.scopes[f]:
            continue  # its one entry is in log_scale
        new = net.add(gum.RangeVariable(f"f{f}", "", 0, 1))
        for u in model.scopes[f]:
            net.addArc(u, new)
        both = np.stack([1.0 - model.tables[f], model.tables[f]], axis=-1)
        listed = _as_listed(net, new, (*model.scopes[f], new), both)
        net.cpt(new).fillWith(listed.ravel().tolist())
        seen[f"f{f}"] = 1
    begin = time.perf_counter()
    engine = gum.LazyPropagation(net)
    engine.setEvidence(seen)
    share = float(engine.evidenceProbability())
    seconds = time.perf_counter() - begin
    if not share > 0.0:
        return {"failure": f"P(evidence) = {share}", "seconds": seconds}
    return {"log_z": math.log(share) + scale, "seconds": seconds}


def _as_listed(net: Any, v: int, scope: tuple[int, ...], table: np.ndarray) -> np.ndarray:
    """`table` over `scope` with its axes as pyAgrum lists them: its first name is the fastest."""
    names = [net.idFromName(name) for name in net.cpt(v).names]
    return table.transpose([scope.index(u) for u in reversed(names)])


def network(model: Model) -> tuple[list[tuple[str, ...]], dict[str, int], list[np.ndarray], float]:
    """cotengra's inputs, sizes and arrays with the evidence applied, and the log of the rest."""
    from cotengra import get_symbol

    inputs, arrays, scale = [], [], model.log_scale
    for scope, table in zip(model.scopes, model.tables, strict=True):
        part = table[tuple(model.evidence.get(v, slice(None)) for v in scope)]
        if part.ndim == 0:
            scale += math.log(part) if part > 0.0 else -math.inf
            continue
        inputs.append(tuple(get_symbol(v) for v in scope if v not in model.evidence))
        arrays.append(np.ascontiguousarray(part))
    held = {v for scope in inputs for v in scope}
    for v, c in enumerate(model.cards):
        if get_symbol(v) not in held and v not in model.evidence:
            scale += math.log(c)
    sizes = {get_symbol(v): c for v, c in enumerate(model.cards)}
    return inputs, {v: c for v, c in sizes.items() if v in held}, arrays, scale


def annealed(tree: Any) -> None:
    """Reconfiguration and annealing, in place."""
    tree.subtree_reconfigure_(subtree_size=10, seed=0)
    tree.simulated_anneal_(tsteps=40, numiter=20, seed=0)
    tree.subtree_reconfigure_(subtree_size=10, seed=0)


def cotengra(model: Model, how: str) -> dict[str, Any]:
    """Pairwise contraction by numpy along a greedy path, or along an annealed tree."""
    import cotengra as ctg

    inputs, sizes, arrays, scale = network(model)
    if not inputs:
        return {"log_z": scale, "seconds": 0.0}
    begin = time.perf_counter()
    if how == "greedy":
        path = ctg.GreedyOptimizer(simplify=_simplify(inputs)).ssa_path(inputs, (), sizes)
    else:
        path = _start(inputs, sizes)
    tree = ctg.ContractionTree.from_path(inputs, (), sizes, ssa_path=path)
    if how == "annealed":
        annealed(tree)
    if tree.max_size() > MOST_ENTRIES and tree.total_flops() < MOST_FLOPS:
        tree.slice_and_reconfigure_(MOST_ENTRIES)
    flops = float(tree.total_flops())
    if flops > MOST_FLOPS:
        reason = f"{math.log2(flops):.0f} bits of flops, tables of {tree.contraction_width():.0f}"
        return {"failure": reason, "seconds": time.perf_counter() - begin}
    mantissa, exponent = tree.contract(arrays, strip_exponent=True, check_zero=True)
    seconds = time.perf_counter() - begin
    value = float(mantissa)
    log_z = math.log(value) + float(exponent) * math.log(10.0) if value > 0.0 else -math.inf
    return {"log_z": log_z + scale, "seconds": seconds}


def _simplify(inputs: list[tuple[str, ...]]) -> bool:
    """Whether cotengrust's node numbers, of 8 or 16 bits, last for its simplification.

    Where they wrap it panics or hands out a path that is none.
    """
    return 4 * len(inputs) < (1 << 8 if len(inputs) < 128 else 1 << 16)


def _start(inputs: list[tuple[str, ...]], sizes: dict[str, int]) -> Any:
    """The best of four random-greedy paths."""
    import cotengra as ctg

    found = []
    for seed in range(4):
        search = ctg.RandomGreedyOptimizer(
            max_repeats=8, seed=seed, parallel=False, simplify=_simplify(inputs)
        )
        path = search.ssa_path(inputs, (), sizes)
        found.append((search.best_flops, seed, path))
    return min(found)[2]


def cotengra_plan(path: str) -> dict[str, Any]:
    """The recipe's reconfiguration and annealing from a given start: seconds, and the new path."""
    import cotengra as ctg

    with open(path) as file:
        given = json.load(file)
    inputs = [tuple(ctg.get_symbol(v) for v in s) for s in given["scopes"]]
    sizes = {ctg.get_symbol(v): c for v, c in enumerate(given["cards"])}
    tree = ctg.ContractionTree.from_path(inputs, (), sizes, ssa_path=given["path"])
    begin = time.perf_counter()
    annealed(tree)
    seconds = time.perf_counter() - begin
    return {"path": [list(map(int, pair)) for pair in tree.get_ssa_path()], "seconds": seconds}


def available() -> dict[str, str]:
    """Versions of the peers that this interpreter has."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("cotengra", "cotengrust", "pyagrum"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(peer: str, path: str) -> None:
    if peer == "available":
        answer: dict[str, Any] = dict(available())
    elif peer == "cotengra plan":
        answer = cotengra_plan(path)
    else:
        model = load(path)
        try:
            if peer == "pyagrum":
                answer = pyagrum(model)
            else:
                answer = cotengra(model, peer.removeprefix("cotengra "))
        except MemoryError:
            answer = {"failure": "out of memory"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
