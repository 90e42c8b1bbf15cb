"""Putting slices together: Z is the sum over the states of the variables that were fixed."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.precision import Scale
from tightz.elimination.gpu.marginals import Marginals
from tightz.elimination.gpu.solve import Solved
from tightz.judge.verdict import LIBRARY, UNIT
from tightz.models.factor_graph import FactorGraph


def log_sum(found: list[Solved]) -> tuple[float, float]:
    """(log sum exp of the slices, its rounding): every slice up, or down, by its own at most."""
    top = max(x.scale for x in found)
    if top.high == -math.inf:
        return -math.inf, 0.0
    if len(found) == 1:
        return top.high, found[0].rounding
    spread = math.log(math.fsum(math.exp(_above(x.scale, top)) for x in found))
    log_z = math.fsum([*top, spread])
    worst = max(x.rounding for x in found)
    own = UNIT * abs(log_z) + 4.0 * (LIBRARY + UNIT) * (1.0 + math.log(len(found)))
    return log_z, worst + own


class Shares:
    """Marginals of a model as the mean of its slices', each weighted by its Z."""

    def __init__(self, model: FactorGraph, sliced: tuple[int, ...]) -> None:
        self._free = np.delete(np.arange(model.n_variables), sliced).tolist()
        self._singles = [np.zeros(int(c)) for c in model.cardinalities]
        self._tables = np.zeros(model.log_tables.size)
        self._numbered = FactorGraph.from_arrays(
            model.cardinalities,
            model.scope_ptr,
            model.scope_vars,
            model.table_ptr,
            np.arange(model.log_tables.size, dtype=np.float64),
        )
        self._top = Scale(-math.inf)
        self._mass = 0.0

    def add(self, evidence: dict[int, int], part: Marginals) -> None:
        scale = part.solved.scale
        if scale.high == -math.inf:
            return
        if scale > self._top:
            factor = math.exp(_above(self._top, scale))
            self._mass *= factor
            for total in (*self._singles, self._tables):
                total *= factor
            self._top = scale
        weight = math.exp(_above(scale, self._top))
        self._mass += weight
        for v, state in evidence.items():
            self._singles[v][state] += weight
        for v, single in zip(self._free, part.variables, strict=True):
            self._singles[v] += weight * single
        at = self._numbered.with_evidence(evidence).condition() if evidence else self._numbered
        self._tables[at.log_tables.astype(np.int64)] += weight * part.factors

    def normalised(self) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """NaN where no slice had weight."""
        with np.errstate(invalid="ignore"):
            return [x / self._mass for x in self._singles], self._tables / self._mass


def _above(x: Scale, y: Scale) -> float:
    """x - y without losing what the large parts have in common."""
    return (x.high - y.high) + (x.low - y.low)
