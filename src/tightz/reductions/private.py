"""Variables that one table alone names, summed out of it: the table shrinks, nothing else moves.

Relational models are full of them: a fact about two things, tied to both by one rule. Without it a
rule over three variables is a coupling of two, for which there are methods of their own. Marginals
of what is gone need the joint ones of its table (`Barren` says how they are had), so this is done
only where it takes away most of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import UNIT, log_summation
from tightz.models.factor_graph import FactorGraph
from tightz.models.selection import selected
from tightz.reductions.barren import Barren, BarrenVariable

MOST, FEWEST = 0.5, 100
"""Part of the variables, and number of them, that must go for it to be done."""


@dataclass(frozen=True, eq=False, repr=False)
class Private(Barren):
    """`reduced` is `model` over `kept`, the variables in `gone` summed out of their tables."""

    def __repr__(self) -> str:
        return f"Private({self.reduced!r}, {len(self.gone)} variables summed out)"


def sum_out_private(model: FactorGraph, fewest: int = FEWEST) -> Private:
    """Sum out variables of one table over three or more, one of each table, if most are such."""
    arity = np.repeat(model.arities, model.arities)
    joint = arity > 1
    shared = np.bincount(model.scope_vars[joint], minlength=model.n_variables)
    owner = np.repeat(np.arange(model.n_factors), model.arities)
    alone = joint & (arity > 2) & (shared[model.scope_vars] == 1)
    homes, first = np.unique(owner[alone], return_index=True)
    if homes.size < max(fewest, MOST * model.n_variables):
        return Private(model, model, np.arange(model.n_variables), [])
    going = model.scope_vars[alone][first].astype(np.int64)
    gone_now = np.zeros(model.n_variables, dtype=bool)
    gone_now[going] = True
    left = np.ones(model.n_factors, dtype=bool)
    left[homes] = False
    own: dict[int, list[NDArray[np.float64]]] = {}
    lone = np.flatnonzero(model.arities == 1)
    for f in lone[gone_now[model.scope_vars[model.scope_ptr[lone]]]].tolist():
        scope, table = model.factor(f)
        own.setdefault(scope[0], []).append(table)
        left[f] = False
    gone, added, errors = [], [], []
    for f, v in zip(homes.tolist(), going.tolist(), strict=True):
        scope, table = model.factor(f)
        axis = scope.index(v)
        others = tuple(u for u in scope if u != v)
        sums, error, conditional = _summed(np.moveaxis(table, axis, 0), own.get(v, []))
        gone.append(BarrenVariable(v, others, f, conditional))
        added.append((others, sums))
        errors.append(error)
    kept = np.flatnonzero(~gone_now)
    rounding = (1.0 + 2.0**-10) * math.fsum(errors)
    return Private(model, selected(model, kept, left, added), kept, gone, rounding)


def _summed(
    logs: NDArray[np.float64], own: list[NDArray[np.float64]]
) -> tuple[NDArray[np.float64], float, NDArray[np.float64]]:
    """(log of the sums over the first axis, their largest error, p(first axis | others))."""
    size = _largest(logs)
    for table in own:
        logs = logs + table.reshape(-1, *(1,) * (logs.ndim - 1))
        size += _largest(table)
    states = len(logs)
    top = logs.max(axis=0)
    safe = np.where(np.isneginf(top), 0.0, top)
    share = np.exp(logs - safe)
    total = share.sum(axis=0)
    with np.errstate(divide="ignore"):
        sums = np.where(np.isneginf(top), -np.inf, safe + np.log(np.maximum(total, 1e-300)))
    # log sum exp; additions of the own tables and two more, each rounded
    error = log_summation(states) + (len(own) + 4.0) * UNIT * (size + math.log(states))
    conditional = np.where(total > 0.0, share / np.where(total > 0.0, total, 1.0), 1.0 / states)
    return sums, error, conditional


def _largest(logs: NDArray[np.float64]) -> float:
    """The largest finite magnitude."""
    return float(np.abs(np.where(np.isneginf(logs), 0.0, logs)).max(initial=0.0))
