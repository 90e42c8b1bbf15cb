"""pygms (pyGMs): junction tree, weighted mini-bucket, naive mean field and loopy propagation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from peers.given import Budget, Case, Model

IBOUND = 10
STEPS = (0.5, 0.1)
"""Its own default steps of tables and weights."""


def exact(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    graph, scale = _graph(case.model())

    def call() -> dict[str, Any]:
        return {"value": float(_tree(graph, "sum+").msgForward()) + scale}

    return call


def marginals(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import pygms as gm

    model = case.model()
    graph, _ = _graph(model)

    def call() -> dict[str, Any]:
        tree = _tree(graph, "sum+")
        scopes = {v: gm.VarSet([graph.X[v]]) for v in _free(model)}
        found = tree.beliefs(list(scopes.values()))
        rows = {v: np.atleast_1d(found[scope].table).tolist() for v, scope in scopes.items()}
        for v, s in model.evidence.items():
            rows[v] = [float(k == s) for k in range(model.cards[v])]
        return {"marginals": [rows[v] for v in range(len(model.cards))]}

    return call


def heaviest(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    model = case.model()
    graph, _ = _graph(model)

    def call() -> dict[str, Any]:
        found = _tree(graph, "max+").argmax()
        state = {int(v): int(s) for v, s in found.items()} | model.evidence
        return {"state": [state.get(v, 0) for v in range(len(model.cards))]}

    return call


def mean_field(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from pygms.messagepass import NMF

    graph, scale = _graph(case.model())

    def call() -> dict[str, Any]:
        value, _ = NMF(graph, maxIter=30)
        return {"value": float(value) + scale}

    return call


def propagation(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    from pygms.messagepass import LBP

    graph, scale = _graph(case.model())

    def call() -> dict[str, Any]:
        value, _ = LBP(graph, maxIter=30)
        return {"value": float(value) + scale}

    return call


def upper(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    graph, scale = _graph(case.model())
    return lambda: {"value": min(_bounds(graph, "sum+", budget)) + scale}


def lower(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    graph, scale = _graph(case.model())
    return lambda: {"value": max(_bounds(graph, "sum-", budget)) + scale}


def sampling(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    """Half of the time goes to the mini-bucket bound, half to draws from its proposal."""
    from pygms.wmb import WMB

    graph, scale = _graph(case.model())

    def call() -> dict[str, Any]:
        begin = time.process_time()
        buckets = WMB(graph, elimOrder="minfill", iBound=IBOUND, weights="sum+")
        while time.process_time() - begin < budget.cpu / 2:
            buckets.msgForward(*STEPS)
            buckets.msgBackward()
        buckets.msgForward(0.0, 0.0)
        logs = []
        while time.process_time() - begin < budget.cpu:
            state, log_q = buckets.sample()
            logs.append(graph.logValue(state) - log_q)
        top = max(logs)
        mean = math.log(math.fsum(math.exp(x - top) for x in logs) / len(logs))
        return {"value": float(top) + mean + scale, "note": f"{len(logs)} draws"}

    return call


def reading(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import pygms as gm

    path = case.file("uai")
    return lambda: {"tables": [f.table.ravel().tolist() for f in gm.readUai(path)]}


def _bounds(graph: Any, weights: str, budget: Budget) -> Iterator[float]:
    """Every pass of message passing is a bound."""
    from pygms.wmb import WMB

    begin = time.process_time()
    buckets = WMB(graph, elimOrder="minfill", iBound=IBOUND, weights=weights)
    yield float(buckets.msgForward(0.0, 0.0))
    while time.process_time() - begin < budget.cpu:
        buckets.msgBackward()
        yield float(buckets.msgForward(*STEPS))


def _tree(graph: Any, weights: str) -> Any:
    from pygms.wmb import JTree

    return JTree(graph, elimOrder="minfill", weights=weights)


def _graph(model: Model) -> tuple[Any, float]:
    import pygms as gm

    scopes, tables, scale = model.conditioned()
    names = [gm.Var(v, c) for v, c in enumerate(model.cards)]
    factors = [
        gm.Factor([names[v] for v in scope], table)
        for scope, table in zip(scopes, tables, strict=True)
    ]
    return gm.GraphModel(factors), scale


def _free(model: Model) -> list[int]:
    return [v for v in range(len(model.cards)) if v not in model.evidence]
