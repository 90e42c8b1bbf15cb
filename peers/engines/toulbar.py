"""pytoulbar2: the heaviest state by branch and bound over cost functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from peers.given import Budget, Case

DIGITS = 6
FORBIDDEN = 1e6
"""The cost of a zero, in nats."""


def heaviest(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import pytoulbar2

    model = case.model()
    costs = pytoulbar2.CFN(resolution=DIGITS, verbose=-1, vac=1)
    for v, c in enumerate(model.cards):
        costs.AddVariable(f"x{v}", range(c))
    scopes, tables, _ = model.conditioned()
    for scope, table in zip(scopes, tables, strict=True):
        with np.errstate(divide="ignore"):
            listed = np.minimum(-np.log(table), FORBIDDEN).ravel().tolist()
        costs.AddFunction([f"x{v}" for v in scope], listed)

    def call() -> dict[str, Any]:
        found = costs.Solve(timeLimit=max(1, int(budget.cpu)))
        if found is None:
            return {"note": "no state found", "value": float("nan")}
        state = dict(enumerate(int(s) for s in found[0])) | model.evidence
        proven = costs.GetDDualBound() >= found[1] - 10.0**-DIGITS
        note = "proven" if proven else "stopped by its time limit"
        return {"state": [state[v] for v in range(len(model.cards))], "note": note}

    return call


def reading(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import pytoulbar2

    path = case.file("uai")

    def call() -> dict[str, Any]:
        costs = pytoulbar2.CFN(resolution=DIGITS, verbose=-1)
        costs.Read(path)
        return {"value": float(costs.GetNbConstrs())}

    return call
