"""pyAgrum: lazy propagation in a Bayesian network.

A table that is no conditional probability becomes a variable of two states below its scope, seen in
state 1; a variable without a conditional probability is uniform.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from peers.given import Budget, Case, Model, conditionals

MOST_ENTRIES = 2**22
"""Of a clique of its junction tree, where all posteriors of a file are asked for."""


def exact(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import pyagrum as gum

    model = case.model()
    net, seen, scale = network(model)

    def call() -> dict[str, Any]:
        engine = gum.LazyPropagation(net)
        engine.eraseAllTargets()
        engine.setEvidence(seen)
        share = float(engine.evidenceProbability())
        if share == 0.0:
            return {"value": -math.inf, "note": "P(evidence) underflows to 0"}
        return {"value": math.log(share) + scale}

    return call


def marginals(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import pyagrum as gum

    model = case.model()
    net, seen, _ = network(model)

    def call() -> dict[str, Any]:
        engine = gum.LazyPropagation(net)
        engine.setTargets({f"x{v}" for v in range(len(model.cards))})
        engine.setEvidence(seen)
        engine.makeInference()
        found = [engine.posterior(f"x{v}")[:].tolist() for v in range(len(model.cards))]
        return {"marginals": found}

    return call


def reading(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    import pyagrum as gum

    markov = (case.folder / "model.uai").exists()
    path = case.file("uai" if markov else "bif")

    def call() -> dict[str, Any]:
        if markov:
            field = gum.loadMRF(path)
            found = [field.factor(scope) for scope in field.factors()]
        else:
            net = gum.loadBN(path)
            found = [net.cpt(v) for v in net.nodes()]
        return {"tables": [np.asarray(table.toarray()).ravel().tolist() for table in found]}

    return call


def posteriors(case: Case, budget: Budget) -> Callable[[], dict[str, Any]]:
    """P(evidence) and every posterior, by names, for each evidence that asked.json lists."""
    import pyagrum as gum

    asked = json.loads((case.folder / "asked.json").read_text())
    net, note = _named(gum, case.model(), asked)

    def call() -> dict[str, Any]:
        found, least = [], len(asked["names"])
        for seen in asked["evidence"]:
            named = {asked["names"][v]: asked["states"][v][s] for v, s in seen}
            found.append(_posterior(gum, net, named))
            least = min(least, len(found[-1]["posterior"]))
        left = f", {least} variables" if least < len(asked["names"]) else ""
        return {"found": found, "note": f"{note}{left}", "value": 0.0}

    return call


def _posterior(gum: Any, net: Any, seen: dict[str, str]) -> dict[str, Any]:
    """All variables by one junction tree; where that is too large, one by one."""
    names = sorted(net.names())

    def engine(*targets: str) -> Any:
        made = gum.LazyPropagation(net)
        made.eraseAllTargets()
        for name in targets:
            made.addTarget(name)
        made.setEvidence(seen)
        return made

    def of(made: Any, name: str) -> dict[str, float]:
        return dict(zip(net.variable(name).labels(), made.posterior(name)[:].tolist(), strict=True))

    plain, whole = engine(), engine(*names)
    log_p = math.log(plain.evidenceProbability()) if _fits(net, plain) else None
    if _fits(net, whole):
        return {"log_p": log_p, "posterior": {name: of(whole, name) for name in names}}
    single = ((name, engine(name)) for name in names)
    return {"log_p": log_p, "posterior": {n: of(e, n) for n, e in single if _fits(net, e)}}


def _fits(net: Any, engine: Any) -> bool:
    """Whether its cliques are small, so that the peer does not take all memory."""
    tree = engine.junctionTree()
    cliques = [tree.clique(c) for c in tree.nodes()]
    return all(math.prod(net.variable(v).domainSize() for v in c) <= MOST_ENTRIES for c in cliques)


def _named(gum: Any, model: Model, asked: dict[str, Any]) -> tuple[Any, str]:
    """The network as pyAgrum reads the file; from our tables where it cannot."""
    try:
        # A .uai file has no names, and pyAgrum takes XMLBIF by another ending.
        if asked["source"].endswith(".bif"):
            net = gum.loadBN(asked["source"])
            if set(net.names()) == set(asked["names"]):
                return net, ""
    except Exception:
        pass
    net = gum.BayesNet()
    for name, labels in zip(asked["names"], asked["states"], strict=True):
        net.add(gum.LabelizedVariable(name, name, labels))
    own = conditionals(model, 0.05)
    for v, f in own.items():
        for u in model.scopes[f]:
            if u != v:
                net.addArc(u, v)
    for v, f in own.items():
        scope, table = model.scopes[f], model.tables[f]
        shares = table / table.sum(axis=scope.index(v), keepdims=True)
        net.cpt(v).fillWith(_as_listed(net, v, scope, shares).ravel().tolist())
    return net, " (our tables)"


def network(model: Model) -> tuple[Any, dict[str, int], float]:
    """The network, its evidence, and the log of Z over P(evidence)."""
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
    return net, seen, scale


def _as_listed(net: Any, v: int, scope: tuple[int, ...], table: np.ndarray) -> np.ndarray:
    """`table` over `scope` with its axes as pyAgrum lists them: its first name is the fastest."""
    names = [net.idFromName(name) for name in net.cpt(v).names]
    return table.transpose([scope.index(u) for u in reversed(names)])
