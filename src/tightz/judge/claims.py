"""Evidence that leaves no q behind: states, and statements about the whole model.

The largest entries bound Z from above by themselves. Elimination, propagation and complete
searches leave nothing that could be evaluated again; they audit themselves step by step
(`judge/elimination.py`) and their value is held here against the weights of states: no state may
weigh more than Z, and where Z is said to be 0 every state must weigh nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import (
    LIBRARY,
    UNIT,
    RefutedError,
    Verdict,
    allowed,
    log_summation,
    log_weight,
    summation,
)
from tightz.models.factor_graph import FactorGraph


def log_add(x: float, y: float) -> tuple[float, float]:
    """(log(e^x + e^y), its rounding and that of moving it by as much)."""
    top, low = max(x, y), min(x, y)
    if low == -math.inf or top == math.inf:
        return top, 0.0
    value = top + math.log1p(math.exp(low - top))
    return value, log_summation(2) + summation(2, abs(value))


def log_sum(values: Iterable[float]) -> tuple[float, float]:
    """(log of the sum of the exponentials, its rounding and that of moving it by as much).

    As `log_summation` says; the result rounds once more when it is moved.
    """
    terms = list(values)
    # Relative to the largest, so that nothing overflows; the rounding of the sum is returned with
    # it.
    top = max(terms, default=-math.inf)
    if top in (-math.inf, math.inf):
        return top, 0.0
    total = math.fsum(math.exp(x - top) for x in terms)
    value = top + math.log(total)
    return value, log_summation(len(terms)) + summation(2, abs(value))


@dataclass(frozen=True, eq=False)
class StatesEvidence:
    """states (k, variables) of the model; repeated rows count once."""

    states: NDArray[np.int64]

    def verdict(self, model: FactorGraph) -> Verdict:
        given = np.atleast_2d(np.asarray(self.states, dtype=np.int64))
        rows = list({row.tobytes(): row for row in given}.values())  # numpy's takes 10 us a column
        if not all(allowed(model, row) for row in rows):
            raise RefutedError("a state handed in as evidence is not a state of the model")
        weights = [log_weight(model, row) for row in rows]
        top = max(value for value, _ in weights)
        if top == -math.inf:
            return Verdict()
        spread = math.log(math.fsum(math.exp(value - top) for value, _ in weights))
        value = top + spread
        rounding = max(error for _, error in weights)
        rounding += log_summation(len(weights)) + summation(2, abs(value))
        return Verdict(lower=value - rounding, rounding=rounding)


_SAMPLES = 16

_FEW_FACTORS = 20_000
"""Above this the greedy state, a loop over factors, is left out."""


@dataclass(frozen=True)
class LargestEntries:
    """Every state weighs at most the product of the tables' largest entries."""

    def verdict(self, model: FactorGraph) -> Verdict:
        free = np.ones(model.n_variables, dtype=bool)
        free[list(model.evidence)] = False
        logs = np.log(model.cardinalities[free].astype(np.float64)).tolist()
        starts = model.table_ptr[:-1]
        tops = np.maximum.reduceat(model.log_tables, starts).tolist() if starts.size else []
        if -math.inf in tops:
            return Verdict(-math.inf, -math.inf, 0.0)  # a table of zeros: no state has weight
        value = math.fsum(tops + logs)
        rounding = UNIT * abs(value) + LIBRARY * math.fsum(logs)
        return Verdict(upper=value + rounding, rounding=rounding)


@dataclass(frozen=True)
class Audited:
    """log Z = log_z up to `rounding`, by a method that audited its own steps."""

    log_z: float
    rounding: float = 0.0

    def verdict(self, model: FactorGraph) -> Verdict:
        if math.isnan(self.log_z) or self.log_z == math.inf or not self.rounding >= 0.0:
            raise RefutedError(f"log Z is said to be {self.log_z} +- {self.rounding}")
        low, high = self.log_z - self.rounding, self.log_z + self.rounding
        # Necessary conditions only, and cheap: they catch a number that belongs to another model
        # or scale. What makes the value trustworthy is the audit of each step while it was
        # computed.
        ceiling = LargestEntries().verdict(model).upper
        if low > ceiling:
            raise RefutedError(f"log Z is said to be {self.log_z}, above all states: {ceiling}")
        heaviest, slack = _heaviest_sampled(model)
        if heaviest - slack > high:
            raise RefutedError(f"log Z is said to be {self.log_z}; one state weighs {heaviest}")
        return Verdict(low, high, self.rounding)


def _heaviest_sampled(model: FactorGraph) -> tuple[float, float]:
    """(log weight, rounding) of the heaviest of some random states and a greedy one."""
    rng = np.random.default_rng(0)
    cards = model.cardinalities.astype(np.int64)
    rows = [rng.integers(0, cards) for _ in range(_SAMPLES)]
    if model.n_factors <= _FEW_FACTORS:
        rows.append(_greedy(model))
    best = (-math.inf, 0.0)
    for row in rows:
        for v, state in model.evidence.items():
            row[v] = state
        best = max(best, log_weight(model, row))
    return best


def _greedy(model: FactorGraph) -> np.ndarray:
    """The state that each variable's own tables, averaged over the others, like best."""
    scores = [np.zeros(int(d)) for d in model.cardinalities]
    for scope, table in model.factors:
        floor = np.where(np.isneginf(table), -1e9, table)
        for axis, v in enumerate(scope):
            others = tuple(a for a in range(table.ndim) if a != axis)
            scores[v] += floor.max(axis=others) if others else floor
    return np.array([int(s.argmax()) for s in scores], dtype=np.int64)


def total_scale(model: FactorGraph) -> float:
    """Sum over tables of the largest finite magnitude: what log weights are summed from."""
    finite = np.where(np.isfinite(model.log_tables), np.abs(model.log_tables), 0.0)
    starts = model.table_ptr[:-1]
    return float(np.maximum.reduceat(finite, starts).sum()) if starts.size else 0.0


def sum_rounding(model: FactorGraph) -> float:
    """Error of adding up one entry of every table, in any order."""
    return summation(model.n_factors, total_scale(model))
