"""Model counting beside elimination: circuits with references, reduced UAI models, random 3-SAT.

Every row has the reduced model's size, the elimination plan's log2 cost, and the seconds of each
engine on it; "-" where the plan is above 2^32 entries or the limit passed. Environment: TIGHTZ_DATA
(folder with uai2014 and uai2014_more), TIGHTZ_CLAUSES_SECONDS (60) for each count.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import numpy as np

import tightz as tz
from tightz.elimination.clauses import Refused, counting_plan
from tightz.elimination.exact import exact, plan
from tightz.errors import ResourceError
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.preparation import prepare

CIRCUITS = ("uai2014_more/2bitcomp_5.cnf", "uai2014_more/log-1.cnf", "uai2014/ra.cnf",
            "uai2014/c432.isc.cnf", "uai2014/2bitadd_11.cnf")  # fmt: skip
FAMILIES = ("Promedus", "Pedigree", "CSP", "DBN", "linkage")
MOST_ENTRIES = 32.0


def main() -> None:
    limit = float(os.environ.get("TIGHTZ_CLAUSES_SECONDS", "60"))
    counted(random_sat(10, 2.0, 0), 60.0)  # compile
    exact(random_sat(10, 2.0, 0))
    print(
        f"{'model':24s}   n     aux  clauses  0/1 | count s  decisions  width | elimination: log2 "
        "cost       s |  log Z (count) - other"
    )
    root = Path(os.environ["TIGHTZ_DATA"])
    for name in CIRCUITS:
        row(
            name.split("/")[1],
            read(root / f"{name}.uai"),
            limit,
            reference(root / f"{name}.uai.PR"),
        )
    for path in sorted((root / "uai2014").glob("*.uai")):
        if path.stem.split("_")[0] in FAMILIES:
            row(path.stem, read(path), limit)
    for n in (50, 75, 100):
        for density in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0):
            row(f"3-SAT n = {n}, {density:g} n", random_sat(n, density, 1), limit)


def read(path: Path) -> FactorGraph:
    """The model with its evidence, where there is any."""
    seen = path.with_name(path.name + ".evid")
    some = seen.exists() and len(seen.read_text().split()) > 1
    return tz.read(path, evidence=seen if some else None)


def reference(path: Path) -> float | None:
    return float(path.read_text().split()[-1]) * math.log(10.0) if path.exists() else None


def random_sat(n: int, density: float, seed: int) -> FactorGraph:
    """Random 3-SAT with `density` n clauses and a weight between 0.1 and 1 on every variable."""
    rng = np.random.default_rng((n, seed))
    factors = [((v,), [0.0, float(np.log(rng.uniform(0.1, 1.0)))]) for v in range(n)]
    for _ in range(int(density * n)):
        table = np.zeros(8)
        table[rng.integers(8)] = -np.inf
        factors.append((tuple(rng.choice(n, 3, replace=False).tolist()), table))
    return FactorGraph([2] * n, factors)


def counted(model: FactorGraph, limit: float):  # type: ignore[no-untyped-def]
    """(plan or refusal, count, seconds)."""
    begin = time.perf_counter()
    found = counting_plan(model)
    if isinstance(found, Refused):
        return found, None, math.nan
    count = found.start(max_memory="2GB")
    done = count.advance(limit)
    return found, count, time.perf_counter() - begin if done else math.inf


def row(name: str, model: FactorGraph, limit: float, known: float | None = None) -> None:
    reduced = prepare(model).reduced
    found, count, seconds = counted(reduced, limit)
    if isinstance(found, Refused):
        print(f"{name:24s} {reduced.n_variables:5d}  {found.reason}", flush=True)
        return
    try:
        order = plan(reduced)
        cost = math.log2(max(order.flops, 1.0))
    except ResourceError:
        order, cost = None, math.inf
    other, taken = None, math.inf
    if cost < MOST_ENTRIES:
        begin = time.perf_counter()
        other = exact(reduced, plan=order, marginals=False)
        taken = time.perf_counter() - begin
    truth = known if other is None or known is not None else other.log_z
    gap = f"{count.log_z - truth:.1e}" if count.finished and truth is not None else "-"
    print(
        f"{name:24s} {reduced.n_variables:5d} {found.n_auxiliaries:5d} {found.n_clauses:7d} "
        f"{found.share:5.2f} | {_shown(seconds)} {count.decisions:10d} {count.width:6.0f} | "
        f"{cost:17.1f} {_shown(taken)}          | {gap}",
        flush=True,
    )


def _shown(seconds: float) -> str:
    return f"{seconds:7.2f}" if math.isfinite(seconds) else "      -"
