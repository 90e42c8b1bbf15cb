"""tightz, one thread, through the same door as the peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tightz as tz
from peers.given import Budget, Case, Refused
from peers.settings import CHAINS, TEMPERATURES
from tightz.models.factor_graph import FactorGraph

KEYS = ("cards", "scope_ptr", "scope_vars", "table_ptr", "log_tables")
EXACT = 60.0
"""Seconds on the wall clock for exact sums; the limit of CPU time ends them before."""


def graph(case: Case) -> FactorGraph:
    with np.load(case.folder / "model.npz") as file:
        seen = {int(v): int(s) for v, s in file["evidence"]}
        return FactorGraph.from_arrays(*(file[k] for k in KEYS), evidence=seen)


def exact(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = graph(case)

    def call() -> dict[str, Any]:
        r = tz.log_partition(model, time_limit=EXACT, marginals=False, threads=1, seed=0)
        return {"value": _exactly(r).estimate}

    return call


def marginals(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = graph(case)

    def call() -> dict[str, Any]:
        r = _exactly(tz.log_partition(model, time_limit=EXACT, threads=1, seed=0))
        return {"value": r.estimate, "marginals": [row.tolist() for row in r.marginals]}

    return call


def _exactly(result: Any) -> Any:
    if not result.is_exact:
        raise Refused(f"no exact way in time: [{result.lower:.6g}, {result.upper:.6g}]")
    return result


def _interval(case: Case, budget: Budget) -> Callable[[], Any]:
    model = graph(case)
    return lambda: tz.log_partition(
        model, time_limit=budget.wall, exact=False, marginals=False, threads=1, seed=0
    )


def lower(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    run = _interval(case, budget)
    return lambda: {"value": run().lower}


def upper(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    run = _interval(case, budget)
    return lambda: {"value": run().upper}


def estimate(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    run = _interval(case, budget)

    def call() -> dict[str, Any]:
        r = run()
        return {"value": r.estimate, "note": f"+- {r.estimate_error:.2g}"}

    return call


def mean_field(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = graph(case)
    return lambda: {"value": tz.mean_field(model, seed=0).lower}


def buckets_below(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    return _buckets(case, budget, tz.Side.LOWER)


def buckets_above(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    return _buckets(case, budget, tz.Side.UPPER)


def _buckets(case: Case, budget: Budget, side: Any) -> Callable[[], dict[str, Any]]:
    model = graph(case)
    method = tz.MiniBucket(ibound=10, side=side, time_limit=budget.wall)

    return lambda: {"value": tz.upper_bound(model, method=method).log_z}


def reweighted(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = graph(case)
    return lambda: {"value": tz.upper_bound(model, method=tz.TreeReweighted()).upper}


def bethe(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = graph(case)

    def call() -> dict[str, Any]:
        r = tz.bethe(model, starts=1)
        return {"value": r.log_z, "note": r.status.name.lower().replace("_", " ")}

    return call


def annealed(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = graph(case)

    def call() -> dict[str, Any]:
        r = tz.ais(model, chains=CHAINS, temperatures=TEMPERATURES, threads=1, seed=0)
        return {"value": r.log_z, "note": f"+- {r.standard_error:.2g}"}

    return call


def heaviest(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = graph(case)

    def call() -> dict[str, Any]:
        r = tz.ground_state(model, time_limit=budget.wall, threads=1, seed=0)
        return {"state": r.state.tolist(), "note": "proven" if r.gap <= 1e-9 else r.status.name}

    return call


def counted(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = tz.read(case.file("cnf"))

    def call() -> dict[str, Any]:
        r = tz.log_partition(model, time_limit=EXACT, marginals=False, threads=1, seed=0)
        return {"value": _exactly(r).estimate}

    return call


def reading(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    (path,) = (p for p in sorted(case.folder.iterdir()) if p.suffix in (".uai", ".bif", ".cnf"))

    def call() -> dict[str, Any]:
        model = tz.read(path)
        tables = np.split(np.exp(model.log_tables), model.table_ptr[1:-1])
        return {"tables": [table.tolist() for table in tables]}

    return call
