"""Marginals by the actions of `backward`: every bucket's joint sums to Z, or something is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.precision import add_scales
from tightz.elimination.gpu.backward import Action, Backward
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.machine import Machine, Range
from tightz.elimination.gpu.program import MESSAGE, Source
from tightz.elimination.gpu.runner import Known, OutOfRangeError, Runner, measured
from tightz.elimination.gpu.solve import NO_STATE, Solved
from tightz.judge.verdict import UNIT, RefutedError
from tightz.models.factor_graph import FactorGraph

_DEEP = -550.0  # nats; below it, what underflowed on the way might count
_LOST = (
    "gpu: the belief of bucket {} is too small a part of the tables it comes from; float64 on the "
    "ordinary scale has lost some of it"
)


class Marginals(NamedTuple):
    """Per variable, and per factor flat in the layout of model.log_tables."""

    solved: Solved
    variables: list[NDArray[np.float64]]
    factors: NDArray[np.float64]


def marginals(
    model: FactorGraph,
    plan: EliminationPlan,
    found: Backward,
    machine: Machine,
    stop: Callable[[], bool] = bool,
) -> Marginals:
    """log Z and all marginals of a model without observed variables; `stop` as of `solve`."""
    return _Run(model, plan, found, machine).run(stop)


class _Run:
    def __init__(
        self, model: FactorGraph, plan: EliminationPlan, found: Backward, machine: Machine
    ) -> None:
        self._model, self._plan, self._found, self._machine = model, plan, found, machine
        self._factors = Factors(model, plan)
        self._place: list[int] = np.argsort(plan.order).tolist()
        self._cards: list[int] = plan.cardinalities.tolist()
        self._known: dict[Source, Known] = {}
        self._roots: dict[int, Known] = {}
        self._singles = [np.full(int(c), np.nan) for c in model.cardinalities]
        self._tables = np.full(model.log_tables.size, np.nan)

    def run(self, stop: Callable[[], bool]) -> Marginals:
        constants = self._factors.constants
        if -math.inf in constants:
            return Marginals(NO_STATE, self._singles, self._tables)
        runner = Runner(
            self._plan, self._factors, self._machine,
            [one.work for one in self._found.actions], self._found.peak, stop,
        )  # fmt: skip
        for k, one in enumerate(self._found.actions):
            out = runner.run(k, self._known, keep=not one.record)
            if out is None and one.makes.group == MESSAGE:
                return Marginals(NO_STATE, self._singles, self._tables)
            if out is None:
                raise OutOfRangeError(_LOST.format(one.makes.bucket))
            if one.record or one.partial:
                out = self._summed(one, out)
            if not one.record:
                self._known[one.makes] = out
            if one.makes.is_message and not self._plan.buckets[one.makes.bucket].scope:
                self._roots[one.makes.bucket] = out
        self._tables[self._model.table_ptr[:-1][self._model.arities == 0]] = 1.0
        terms = [*constants, *(x for t in self._roots.values() for x in t.top_terms())]
        scale = add_scales(terms)
        rounding = math.fsum(t.top_rounding for t in self._roots.values())
        solved = Solved(scale, rounding + UNIT * abs(scale.high))
        return Marginals(solved, self._singles, self._tables)

    def _summed(self, one: Action, known: Known) -> Known:
        """Add up the part of a sum that was left to the host; record it, or put it back."""
        table = one.work.out
        shape = [self._cards[a] for a in table.strides]
        values = self._machine.read(table.start, table.size).reshape(shape)
        kept = len(shape) - len(one.partial)
        values = values.sum(axis=tuple(range(kept, len(shape))))
        count = self._plan.entries(one.partial)
        bound = Known(
            known.tops,
            known.exponent,
            known.low,
            known.high + math.log(count) + 1e-9,
            known.error.plus(count * UNIT),
        )
        large = float(values.sum() if one.record else values.max())
        if math.log(large) < _DEEP:
            raise OutOfRangeError(_LOST.format(one.makes.bucket))
        if one.record:
            total = bound.error.plus(values.size * UNIT)
            sure = Known(bound.tops, bound.exponent, 0.0, bound.high, total)
            self._record(one, values, measured(sure, Range(large, large)))
            return bound
        assert one.target is not None
        self._machine.write(one.target.start, values.ravel())
        return measured(bound, Range(float(values[values > 0.0].min()), large))

    def _record(self, one: Action, values: NDArray[np.float64], total: Known) -> None:
        """The joint of a bucket's merged factors, whose sum must be Z of its component."""
        b, g = one.makes
        self._check(b, total)
        axes, members = self._plan.buckets[b].groups[g]
        joint = values / values.sum()
        if axes[0] == b:
            single = joint.reshape(self._cards[b], -1).sum(axis=1)
            self._singles[int(self._plan.order[b])] = single
        for f in members:
            scope = self._model.factor(f).scope
            places = [self._place[v] for v in scope]
            drop = tuple(k for k, a in enumerate(axes) if a not in places)
            own = joint.sum(axis=drop).transpose(np.argsort(np.argsort(places)))
            first = self._model.table_ptr[f]
            self._tables[first : first + own.size] = own.ravel()

    def _check(self, b: int, total: Known) -> None:
        root = b
        while self._plan.buckets[root].scope:
            root = self._plan.buckets[root].parent
        ours, whole = total.top_terms(), self._roots[root]
        off = math.fsum([*ours, *(-x for x in whole.top_terms())])
        allowed = total.top_rounding + whole.top_rounding
        if not abs(off) <= 2.0 * allowed + 1e-12:
            raise RefutedError(
                f"gpu: the belief of bucket {b} sums to exp({off:.3g}) of Z; rounding explains "
                f"{allowed:.1g} nats"
            )
