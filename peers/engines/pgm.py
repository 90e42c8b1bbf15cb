"""pgmpy: variable elimination."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from peers.given import Budget, Case, Model

warnings.simplefilter("ignore")


def elimination(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from pgmpy.inference import VariableElimination

    network, scale = _network(case.model())
    first = next(iter(network.nodes()))

    def call() -> dict[str, Any]:
        table = VariableElimination(network).query([first], show_progress=False)
        return _log(float(table.values.sum()), scale)

    return call


def marginals(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = case.model()
    network, _ = _network(model)
    return lambda: {"marginals": _marginals(model, network)}


def posteriors(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    """Every posterior, by names, for each evidence that asked.json lists; from our tables."""
    asked = json.loads((case.folder / "asked.json").read_text())
    model = case.model()

    def call() -> dict[str, Any]:
        found = []
        for seen in asked["evidence"]:
            under = model._replace(evidence=dict(seen))
            rows = _marginals(under, _network(under)[0])
            named = zip(asked["names"], asked["states"], rows, strict=True)
            posterior = {name: dict(zip(s, row, strict=True)) for name, s, row in named}
            found.append({"log_p": None, "posterior": posterior})
        return {"found": found, "note": " (our tables)", "value": 0.0}

    return call


def _marginals(model: Model, network: Any) -> list[list[float]]:
    """Variable elimination for one variable after the other, as pgmpy's guide does."""
    from pgmpy.inference import VariableElimination

    engine = VariableElimination(network)
    rows = []
    for v, c in enumerate(model.cards):
        if v in model.evidence:
            rows.append([float(k == model.evidence[v]) for k in range(c)])
            continue
        table = engine.query([f"x{v}"], show_progress=False)
        rows.append((table.values / table.values.sum()).tolist())  # Markov networks are left as is
    return rows


def reading_uai(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from pgmpy.readwrite import UAIReader

    path = case.file("uai")

    def call() -> dict[str, Any]:
        factors = UAIReader(path).get_model().factors
        return {"tables": [np.asarray(f.values).ravel().tolist() for f in factors]}

    return call


def reading_bif(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from pgmpy.readwrite import BIFReader

    path = case.file("bif")

    def call() -> dict[str, Any]:
        tables = BIFReader(path).get_model().get_cpds()
        return {"tables": [np.asarray(t.get_values()).ravel().tolist() for t in tables]}

    return call


def _log(total: float, scale: float) -> dict[str, Any]:
    if math.isfinite(total) and total > 0.0:
        return {"value": math.log(total) + scale}
    return {"value": -math.inf if total == 0.0 else total}


def _network(model: Model) -> tuple[Any, float]:
    """Tables with largest entry 1: what a careful user hands over, as pgmpy multiplies numbers."""
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.models import DiscreteMarkovNetwork

    network = DiscreteMarkovNetwork()
    scopes, tables, scale = model.conditioned()
    for scope, table in zip(scopes, tables, strict=True):
        names = [f"x{v}" for v in scope]
        network.add_nodes_from(names)
        pairs = ((a, b) for k, a in enumerate(names) for b in names[:k])
        network.add_edges_from(pairs)
        network.add_factors(DiscreteFactor(names, [model.cards[v] for v in scope], table))
    return network, scale
