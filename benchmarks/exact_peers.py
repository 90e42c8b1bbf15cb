"""Exact log Z beside the peers, in one run: cotengra alone, and pyAgrum's lazy propagation.

Every engine gets every model as the file gives it, with its evidence, in a process of its own with
a time and a memory limit; reading files is nobody's time. cotengra applies the evidence to the
tables and contracts them in pairs by numpy, once along a greedy path and once along an annealed
tree: the faster of the two counts. pyAgrum has the Bayesian network that the tables make, or are
evidence of. Ours is `prepare` and then `exact` without marginals, planning included, in a process
that has loaded its compiled kernels on two small models. Models: UAI-2014, and the bnlearn networks
with a fifth of the variables observed, from a forward sample. A second table is of planning alone,
from the same start.

Environment: TIGHTZ_DATA; TIGHTZ_PEERS, an interpreter that has numpy, cotengra, cotengrust and
pyagrum (what it lacks is skipped); TIGHTZ_PEERS_SECONDS (60) for each run; TIGHTZ_PEERS_MODELS name
prefixes, comma-separated; TIGHTZ_PEERS_OUT, a file for the same figures as JSON.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tightz as tz
from benchmarks import _peers
from benchmarks.clauses import random_sat, read
from tightz.elimination.exact import exact
from tightz.elimination.exact.choice import ROTATIONS
from tightz.elimination.graph import scopes_of
from tightz.elimination.order import choose_order
from tightz.elimination.trees import WRITE, ContractionTree, tree_by_order
from tightz.errors import ResourceError
from tightz.models.builders import ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.preparation import prepare

MEMORY = 12 << 30
COUNTS_FROM = 0.1
"""Seconds that the slower of two must take for their ratio to count in the mean."""

PEERS = ("cotengra", "pyagrum")
ROUNDS = (1, 4)


def main() -> None:
    root = Path(os.environ["TIGHTZ_DATA"])
    python = os.environ.get("TIGHTZ_PEERS", "")
    found = _run([python, _peers.__file__, "available", ""]) if python else {}
    print(f"peers: {found or 'none (set TIGHTZ_PEERS to an interpreter that has them)'}")
    prefixes = tuple(os.environ.get("TIGHTZ_PEERS_MODELS", "").split(","))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        rows = []
        _run([sys.executable, "-m", "benchmarks.exact_peers", _saved(_small(), path)], 600.0)
        print(f"{'model':20s} {'ours s':>8s} {'cotengra s':>11s} {'pyAgrum s':>10s}  ratios  log Z")
        for name, model in _models(root, prefixes):
            rows.append({"model": name, **_compared(_saved(model, path), python, found)})
            print(_line(rows[-1]), flush=True)
        means = {peer: _mean(rows, peer) for peer in PEERS}
        for peer, (mean, count) in means.items():
            print(f"geometric mean of ours / {peer}: {mean:.2f} over {count} models")
        plans = []
        if "cotengra" in found:
            plans = list(_plans(root, prefixes, python, Path(folder) / "start.json"))
    out = os.environ.get("TIGHTZ_PEERS_OUT")
    if out:
        answer = {"peers": found, "models": rows, "means": means, "planning": plans}
        Path(out).write_text(json.dumps(answer, indent=1) + "\n")


def ours(path: str) -> dict[str, Any]:
    """log Z and the seconds of `prepare`, of planning and of all of it."""
    with np.load(path) as file:
        arrays = [file[k] for k in ("cards", "scope_ptr", "scope_vars", "table_ptr", "log_tables")]
        seen = {int(v): int(s) for v, s in file["evidence"]}
    model = FactorGraph.from_arrays(*arrays, evidence=seen)
    for small in (_small(), random_sat(20, 2.0, 0)):
        reduced = prepare(small, log2_size=0.0).reduced
        exact(reduced, marginals=False)
        order = choose_order(reduced).order
        tree_by_order(scopes_of(reduced), reduced.cardinalities, order).annealed(1, 0)
    begin = time.perf_counter()
    reduced = prepare(model).reduced
    prepared = time.perf_counter() - begin
    try:
        result = exact(reduced, marginals=False, max_memory="8GB")
    except ResourceError as error:
        return {"failure": str(error), "seconds": time.perf_counter() - begin}
    seconds = time.perf_counter() - begin
    return {"log_z": result.log_z, "seconds": seconds, "prepare": prepared}


def _small() -> FactorGraph:
    """A grid with couplings that leave the ordinary scale, large enough for passes."""
    return ising_grid(14, coupling=(-60.0, 60.0), seed=0)


def _run(command: list[str], seconds: float = math.inf) -> dict[str, Any]:
    """The last line that the command prints, which is JSON; or why there is none."""
    limit = None if seconds == math.inf else seconds
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, preexec_fn=_limited, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"over {seconds:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    if done.returncode < 0 or "MemoryError" in done.stderr or "bad_alloc" in done.stderr:
        return {"failure": "out of memory"}
    return {"failure": (done.stderr.strip().splitlines() or ["no answer"])[-1]}


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _saved(model: FactorGraph, path: Path) -> str:
    np.savez(
        path, cards=model.cardinalities, scope_ptr=model.scope_ptr, scope_vars=model.scope_vars,
        table_ptr=model.table_ptr, log_tables=model.log_tables,
        evidence=np.array(list(model.evidence.items()), dtype=np.int64).reshape(-1, 2),
    )  # fmt: skip
    return str(path)


def _models(root: Path, prefixes: tuple[str, ...]) -> Iterator[tuple[str, FactorGraph]]:
    for folder in ("uai2014", "uai2014_more"):
        for path in sorted((root / folder).glob("*.uai")):
            if path.stem.startswith(prefixes):
                yield path.stem, read(path)
    for path in sorted((root / "bnlearn").glob("*.bif")):
        if path.stem.startswith(prefixes):
            yield path.stem, _observed(tz.read(path))


def _observed(model: FactorGraph) -> FactorGraph:
    """A Bayesian network with a fifth of its variables as in a forward sample."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        given = _peers.load(_saved(model, Path(folder) / "network.npz"))
    tables = _peers.conditionals(given, 0.05)
    assert len(tables) == model.n_variables, "every variable has its conditional probability"
    state: dict[int, int] = {}
    while len(state) < model.n_variables:
        for v, f in tables.items():
            scope = given.scopes[f]
            if v in state or any(u != v and u not in state for u in scope):
                continue
            share = given.tables[f][tuple(slice(None) if u == v else state[u] for u in scope)]
            state[v] = int(rng.choice(share.size, p=share / share.sum()))
    chosen = rng.permutation(model.n_variables)[: model.n_variables // 5].tolist()
    return model.with_evidence({v: state[v] for v in chosen})


def _compared(path: str, python: str, found: dict[str, Any]) -> dict[str, Any]:
    """What each engine answers on one model."""
    limit = float(os.environ.get("TIGHTZ_PEERS_SECONDS", "60"))
    row = {"ours": _run([sys.executable, "-m", "benchmarks.exact_peers", path], limit)}
    if "cotengra" in found:
        both = [
            _run([python, _peers.__file__, f"cotengra {how}", path], limit)
            for how in ("greedy", "annealed")
        ]
        done = [answer for answer in both if "log_z" in answer]
        row["cotengra"] = min(done, key=lambda a: a["seconds"]) if done else both[-1]
    if "pyagrum" in found:
        row["pyagrum"] = _run([python, _peers.__file__, "pyagrum", path], limit)
    return row


def _line(row: dict[str, Any]) -> str:
    cells, notes = [f"{row['model']:20s}"], []
    for who, width in zip(("ours", *PEERS), (8, 11, 10), strict=True):
        answer = row.get(who, {"failure": "not there"})
        shown = f"{answer['seconds']:.3f}" if "log_z" in answer else "-"
        cells.append(f"{shown:>{width}s}")
        if "failure" in answer:
            notes.append(f"{who}: {answer['failure'][:60]}")
    for peer in PEERS:
        ratio = _ratio(row, peer)
        cells.append(f"{ratio:6.2f}" if ratio else "     -")
    values = [row[who]["log_z"] for who in ("ours", *PEERS) if "log_z" in row.get(who, {})]
    spread = f"{max(values) - min(values):.0e}" if len(values) > 1 else "-"
    cells.append(f" {values[0]:.6f} +- {spread}" if values else " -")
    return " ".join(cells) + ("  " + "; ".join(notes) if notes else "")


def _ratio(row: dict[str, Any], peer: str) -> float | None:
    """Our seconds over the peer's, where both have a value."""
    a, b = row["ours"], row.get(peer, {})
    if "log_z" not in a or "log_z" not in b:
        return None
    return float(a["seconds"] / max(b["seconds"], 1e-6))


def _mean(rows: list[dict[str, Any]], peer: str) -> tuple[float, int]:
    """Geometric mean of the ratios over models that take either of the two long enough."""
    logs = [
        math.log(ratio)
        for row in rows
        if (ratio := _ratio(row, peer)) is not None
        and max(row["ours"]["seconds"], row[peer]["seconds"]) > COUNTS_FROM
    ]
    return (math.exp(float(np.mean(logs))) if logs else math.nan), len(logs)


def _plans(
    root: Path, prefixes: tuple[str, ...], python: str, path: Path
) -> Iterator[dict[str, Any]]:
    """Annealing of the linkage models' trees from the same start, ours and cotengra's."""
    print(
        f"\nplanning alone; log2 of products, log2 of the largest table\n{'model':14s} "
        f"{'start':>12s} {'cotengra':>12s} {'s':>6s}   ours after {ROUNDS} rounds of annealing"
    )
    for file in sorted((root / "uai2014").glob("linkage*.uai")):
        if not file.stem.startswith(prefixes):
            continue
        model = prepare(read(file)).reduced
        order = choose_order(model).order
        start = tree_by_order(scopes_of(model), model.cardinalities, order)
        cards = model.cardinalities.tolist()
        given = {"scopes": start.leaves.scopes, "cards": cards, "path": _path(start)}
        path.write_text(json.dumps(given))
        theirs = _run([python, _peers.__file__, "cotengra plan", str(path)], 300.0)
        row: dict[str, Any] = {
            "model": file.stem,
            "start": _cost(start.leaves.scopes, cards, _path(start)),
        }
        cells = [f"{file.stem:14s}", _pair(row["start"])]
        if "path" in theirs:
            cost = _cost(start.leaves.scopes, cards, theirs["path"])
            row["cotengra"] = {"seconds": theirs["seconds"], "cost": cost}
            cells += [_pair(cost), f"{theirs['seconds']:6.2f}  "]
        else:
            cells.append(theirs["failure"])
        start.annealed(1, 0)  # compile
        for rounds in ROUNDS:
            begin = time.perf_counter()
            sweeps = ROTATIONS // len(start.leaves.scopes)
            trees = [start.annealed(sweeps, seed) for seed in range(rounds)]
            best = min(trees, key=lambda tree: tree.log2_cost)
            seconds = time.perf_counter() - begin
            cost = _cost(start.leaves.scopes, cards, _path(best))
            row[f"ours {rounds}"] = {"seconds": seconds, "cost": cost}
            cells += [_pair(cost), f"{seconds:6.2f}  "]
        print(" ".join(cells), flush=True)
        yield row


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
) -> tuple[float, float, float]:
    """log2 of the products of a path, of its largest result, and of what `trees` minimises."""
    uses = np.bincount([v for s in scopes for v in s], minlength=len(cards)).tolist()
    terms: dict[int, dict[int, int]] = {k: dict.fromkeys(s, 1) for k, s in enumerate(scopes)}
    products, results, largest = 0.0, 0.0, 0.0
    for new, pair in enumerate(path, start=len(scopes)):
        held: dict[int, int] = {}
        for k in pair:
            for v, count in terms.pop(k).items():
                held[v] = held.get(v, 0) + count
        products += math.prod(float(cards[v]) for v in held)
        terms[new] = {v: count for v, count in held.items() if count < uses[v]}
        size = math.prod(float(cards[v]) for v in terms[new])
        results += size
        largest = max(largest, size)
    return math.log2(products), math.log2(largest), math.log2(products + WRITE * results)


def _pair(cost: tuple[float, float, float]) -> str:
    return f"{cost[0]:6.1f} {cost[1]:5.1f}"


if __name__ == "__main__":
    print(json.dumps(ours(sys.argv[1])))
