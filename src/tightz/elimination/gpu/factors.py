"""A bucket's own factors as one table on the ordinary scale, with what is known about it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.precision import Error
from tightz.judge.verdict import LIBRARY, UNIT
from tightz.models.factor_graph import FactorGraph


class Merged(NamedTuple):
    """exp(sum of `tops`) * `values` is the product of some factors; the largest value is 1.

    `low` is the log of the smallest value that is not zero; `error` as in `exact.precision`.
    """

    axes: tuple[int, ...]
    values: NDArray[np.float64]
    tops: tuple[float, ...]
    low: float
    error: Error


class Factors:
    """The merged factors of every bucket of a plan, made when asked for."""

    def __init__(self, model: FactorGraph, plan: EliminationPlan) -> None:
        self._model, self._plan = model, plan
        self._cards: list[int] = plan.cardinalities.tolist()
        self._place: list[int] = np.argsort(plan.order).tolist()
        self._known: dict[tuple[int, int], Merged] = {}

    @property
    def constants(self) -> list[float]:
        """Log tables without a variable."""
        empty = np.flatnonzero(self._model.arities == 0)
        found: list[float] = self._model.log_tables[self._model.table_ptr[empty]].tolist()
        return found

    def merged(self, bucket: int, group: int) -> Merged:
        key = bucket, group
        if key not in self._known:
            self._known[key] = self._merge(*self._plan.buckets[bucket].groups[group])
        return self._known[key]

    def _merge(self, axes: tuple[int, ...], members: tuple[int, ...]) -> Merged:
        """Each factor less its largest entry, added up: errors stay in proportion to depth."""
        total = np.zeros([self._cards[a] for a in axes])
        tops = []
        for f in members:
            scope, table = self._model.factor(f)
            places = [self._place[v] for v in scope]
            top = float(table.max())
            if top > -math.inf:
                tops.append(top)
                table = table - top
            order = sorted(range(len(scope)), key=places.__getitem__)
            shape = [self._cards[a] if a in places else 1 for a in axes]
            total = total + table.transpose(order).reshape(shape)
        error = Error(LIBRARY, len(members) * UNIT)
        top = float(total.max())
        if -math.inf < top < 0.0:
            total = total - top
            tops.append(top)
            error = error.lowered(-top).plus(0.0, UNIT)
        finite = total[total > -np.inf]
        low = float(finite.min()) if finite.size else 0.0
        return Merged(axes, np.ascontiguousarray(np.exp(total)), tuple(tops), low, error)
