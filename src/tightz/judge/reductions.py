"""Reductions leave the same Z with less to do; held here against the model at sampled states.

A substitution (evidence, forced and tied variables) must give each state the weight of the state it
stands for, and states it leaves out must weigh nothing. A sum (leaves, solved components) must
give each state of the kept variables the sum over all others, found by a second route. Barren
variables must each sum their one remaining table to a constant, all of them looked at.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.judge.claims import sum_rounding
from tightz.judge.elimination import second_log_z
from tightz.judge.verdict import RefutedError, entries_at, log_weight
from tightz.models.factor_graph import FactorGraph

_FEW, _MANY = 500, 5000
"""Up to _FEW variables are checked at several states, up to _MANY at one, larger models not."""

_MAX_ENTRIES = 1 << 20


def check_substitution(
    model: FactorGraph,
    reduced: FactorGraph,
    source: NDArray[np.int64],
    maps: list[NDArray[np.int64]],
    fixed: NDArray[np.int64],
) -> None:
    """RefutedError unless `reduced` weighs what `model` does and what is left out weighs nothing.

    Variable v of the model is in state fixed[v], or, where that is -1, in maps[v][x] when
    variable source[v] of `reduced` is in state x.
    """
    if model.n_variables > _MANY:
        return
    rng = np.random.default_rng(1)
    slack = sum_rounding(model) + sum_rounding(reduced)
    free = np.flatnonzero(fixed < 0).tolist()
    places: list[dict[int, int]] = [{} for _ in maps]
    for v in free:
        for place, x in enumerate(maps[v].tolist()):
            places[v].setdefault(x, place)
    for row in _states(reduced, rng):
        lifted = fixed.copy()
        for v in free:
            lifted[v] = maps[v][row[source[v]]]
        _compare(log_weight(reduced, row)[0], log_weight(model, lifted)[0], slack, "substitution")
        # States next to a represented one that nothing represents: they must weigh nothing, or Z
        # would have lost them.
        for v in rng.permutation(model.n_variables)[:8].tolist():
            near = lifted.copy()
            near[v] = (near[v] + 1) % int(model.cardinalities[v])
            if v not in model.evidence and not _stands(near, source, places, fixed):
                _compare(-math.inf, log_weight(model, near)[0], 0.0, "substitution")


def _stands(
    state: NDArray[np.int64],
    source: NDArray[np.int64],
    places: list[dict[int, int]],
    fixed: NDArray[np.int64],
) -> bool:
    """Whether some state of the reduced model stands for `state`.

    `places`: per variable where the map of its source's states has each of its own first.
    """
    found: dict[int, int] = {}
    for v, (x, held, of) in enumerate(
        zip(state.tolist(), fixed.tolist(), source.tolist(), strict=True)
    ):
        if held >= 0:
            if held != x:
                return False
            continue
        at = places[v].get(x)
        if at is None or found.setdefault(of, at) != at:
            return False
    return True


def check_sum(
    model: FactorGraph, reduced: FactorGraph, kept: NDArray[np.int64], rounding: float
) -> None:
    """RefutedError unless `reduced` at a state is the sum of `model` over all but `kept`."""
    if model.n_variables == kept.size or model.n_variables > _MANY:
        return
    rng = np.random.default_rng(2)
    for row in _states(reduced, rng):
        held = dict(zip(kept.tolist(), row.tolist(), strict=True))
        found = second_log_z(model.with_evidence(held), _MAX_ENTRIES)
        if found is None:
            return
        value, error = found
        slack = error + rounding + sum_rounding(reduced)
        _compare(log_weight(reduced, row)[0], value, slack, "sum")


def check_barren(
    model: FactorGraph, reduced: FactorGraph, gone: list[tuple[int, int]], rounding: float
) -> None:
    """RefutedError unless each (variable, factor) of `gone` could go in its turn; -1: no variable.

    At its turn no other factor that is left may name the variable, and its factor must sum over it
    to one constant. The interval that all these sums span must lie within `rounding` of what
    `reduced` has instead of them; `reduced` must be the other factors.
    """
    # Only factors that name a variable of `gone` need a look of their own.
    uses: dict[int, set[int]] = {v: set() for v, _ in gone if v >= 0}
    leaves = np.zeros(model.n_variables, dtype=bool)
    leaves[list(uses)] = True
    owner = np.repeat(np.arange(model.n_factors), np.diff(model.scope_ptr))
    at = np.flatnonzero(leaves[model.scope_vars])
    for f, v in zip(owner[at].tolist(), model.scope_vars[at].tolist(), strict=True):
        uses[v].add(f)
    left = np.ones(model.n_factors, dtype=bool)
    left[[f for _, f in gone]] = False
    low, high = [], []
    for v, f in gone:
        # In its turn: factors of variables that went before are gone. Only a variable that a
        # single remaining factor names can be summed out of that factor alone.
        if v >= 0 and uses[v] != {f}:
            raise RefutedError(f"variable {v} is no barren one: factors {sorted(uses[v])} name it")
        scope, table = model.factor(f)
        sums = table
        if v >= 0:
            # The sum over the variable must be the same for all states of the others, up to the
            # rounding that was declared: a Bayesian network's table sums to 1.
            top = float(np.max(table))
            with np.errstate(divide="ignore"):
                sums = top + np.log(np.exp(table - top).sum(axis=scope.index(v)))
        low.append(float(np.min(sums)))
        high.append(float(np.max(sums)))
        for u in scope:
            if u in uses:
                uses[u].discard(f)
    kept = np.setdiff1d(np.arange(model.n_variables), [v for v, _ in gone])
    if reduced.n_variables != kept.size or any(uses[v] for v, _ in gone if v >= 0):
        raise RefutedError("barren variables were taken out of a model that still names them")
    rng = np.random.default_rng(3)
    row = rng.integers(0, reduced.cardinalities.astype(np.int64))
    state = np.zeros(model.n_variables, dtype=np.int64)
    state[kept] = row
    others = entries_at(model, state)[left].tolist()
    slack = rounding + sum_rounding(model) + sum_rounding(reduced)
    found = log_weight(reduced, row)[0]
    for sums_ in (low, high):
        _compare(found, math.fsum([*others, *sums_]), slack, "sum over barren variables")


def _states(model: FactorGraph, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    count = 4 if model.n_variables <= _FEW else 1
    return [rng.integers(0, model.cardinalities.astype(np.int64)) for _ in range(count)]


def _compare(reduced: float, model: float, slack: float, kind: str) -> None:
    if reduced == model or abs(reduced - model) <= slack:
        return
    raise RefutedError(
        f"a {kind} before the run changed the model: a state weighs {reduced!r} after it, "
        f"{model!r} before"
    )
