"""A second look at an elimination while it runs: sampled sums done again, without its kernels.

Messages are recomputed from the tables they were made of by the judge, in extended precision, with
index arithmetic of this module's own; so a wrong or stale kernel, layout or schedule is caught.
Inputs are copied when a message is made and checked all together at the end, which is cheap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.precision import Error
from tightz.elimination.exact.tables import Table, TableSpace
from tightz.judge.elimination import check_messages
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError, log_weight
from tightz.models.factor_graph import FactorGraph

CONTEXTS = 16
"""Contexts where a message is checked, beside a large entry; smaller tables are checked whole."""

_STATES = 2
_ENTRIES = 1 << 17  # summed again for one message, or one context of it
_SCAN = 1 << 13  # entries; in a longer table the largest of a few, evenly spread, is checked
_SPREAD = 256


class _Taken(NamedTuple):
    """The product of a message's `tables` inputs (rows, states) and its entries (rows,)."""

    place: str
    tables: int
    product: NDArray[np.float64]
    entries: NDArray[np.float64]
    error: Error
    high: float


class Audit:
    """Collects while an elimination runs; `finish` raises RefutedError where a sum is wrong."""

    def __init__(self, model: FactorGraph, plan: EliminationPlan, space: TableSpace) -> None:
        self._model, self._plan, self._space = model, plan, space
        self._cards: list[int] = plan.cardinalities.tolist()
        # Positions in the order by rows; a column is a state of the whole model.
        self._digits = np.zeros((len(self._cards), CONTEXTS + 1), dtype=np.int64)
        drawn = _uniforms(len(self._cards).bit_length())[: len(self._cards)]
        self._digits[:, :CONTEXTS] = drawn * plan.cardinalities[:, None]
        self._small = np.zeros((len(self._cards), CONTEXTS), dtype=np.int64)
        self._taken: dict[tuple[int, bool], list[_Taken]] = {}
        self._seen: set[int] = set()
        self._weights: list[NDArray[np.float64]] = []
        self._errors: list[Error] = []
        self._scales: list[float] = []

        members = sorted(f for b in plan.buckets for _, factors in b.groups for f in factors)
        if members != np.flatnonzero(model.arities).tolist():
            raise RefutedError("exact: the plan's buckets do not hold every factor exactly once")

    def groups(self, b: int, tables: Sequence[Table]) -> None:
        """The bucket's own factors, as logs: over all buckets they must add up to the model."""
        if b in self._seen:
            return
        self._seen.add(b)
        for table in tables:
            places = self._places(table, self._digits[:, :_STATES])
            self._weights.append(self._space.arena[places])
            self._errors.append(table.error)
            self._scales += table.scale

    def message(self, b: int, out: Table, inputs: Sequence[Table], summed: tuple[int, ...]) -> None:
        """Copy what message b was made of, and what came out, at some contexts.

        `summed`: the variables of this bucket, and of those done in the same pass.
        """
        joint = tuple(self._cards[a] for a in summed)
        # All states are summed again: with very many, at fewer contexts.
        digits = self._contexts(out)[:, -max(1, _ENTRIES // math.prod(joint)) :]
        arena = self._space.arena
        join = np.add if out.is_log else np.multiply
        product = np.zeros(()) if out.is_log else np.ones(())
        for table in inputs:
            step = dict(zip(table.axes, _strides(table.axes, self._cards), strict=True))
            others = [a for a in table.axes if a not in summed]
            at = np.array([step[a] for a in others], np.int64) @ digits[others] + table.start
            offsets = _offsets(joint, tuple(step.get(a, 0) for a in summed))
            product = join(product, arena[at[:, None] + offsets])
        entries = arena[self._places(out, digits)]
        name = f"exact: bucket {b} ({self._plan.named(b)})"
        taken = _Taken(name, len(inputs), product, entries, out.own_error, out.high)
        self._take(taken, out.is_log)

    def product(
        self, tables: Sequence[Table], onto: Table
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Before `tables` are multiplied into `onto`: what they hold at some places of it."""
        digits = self._contexts(onto)
        values = [self._space.arena[self._places(t, digits)] for t in tables]
        product = (np.add if onto.is_log else np.multiply).reduce(values)
        return product[:, None], self._places(onto, digits)

    def merged(self, onto: Table, before: tuple[NDArray[np.float64], NDArray[np.int64]]) -> None:
        product, at = before
        name = "exact: a product of messages"
        taken = _Taken(name, 2, product, self._space.arena[at], onto.own_error, onto.high)
        self._take(taken, onto.is_log)

    def finish(self) -> None:
        """Check everything collected."""
        for (_, is_log), taken in self._taken.items():
            try:
                _check(taken, is_log)
            except RefutedError:
                for one in taken:  # say which
                    _check([one], is_log)
                raise
        if len(self._seen) == len(self._plan.buckets):
            self._check_weights()

    def _check_weights(self) -> None:
        model = self._model
        constants = model.log_tables[model.table_ptr[:-1][model.arities == 0]].tolist()
        if -math.inf in constants or not self._weights:
            return
        values = np.array(self._weights)
        errors = np.array(self._errors)
        doubts = (errors[:, :1] + (errors[:, 1:] + UNIT) * np.abs(values)).sum(axis=0)
        scale = math.fsum([*self._scales, *constants])
        states = np.empty((model.n_variables, _STATES), dtype=np.int64)
        states[self._plan.order] = self._digits[:, :_STATES]
        for state, found, doubt in zip(states.T, values.sum(axis=0), doubts, strict=True):
            expected, rounding = log_weight(model, state)
            allowed = 2.0 * (doubt + rounding + UNIT * (abs(scale) + len(values) * abs(found)))
            if expected != found + scale and not abs(expected - found - scale) <= allowed:
                raise RefutedError(
                    f"exact: the tables of all buckets give a state the log weight "
                    f"{found + scale}; the model gives it {expected}"
                )

    def _take(self, taken: _Taken, is_log: bool) -> None:
        key = (taken.product.shape[1], is_log)
        self._taken.setdefault(key, []).append(taken)

    def _places(self, table: Table, digits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a table in C order has the entries of `digits`."""
        strides = np.array(_strides(table.axes, self._cards), dtype=np.int64)
        at: NDArray[np.int64] = strides @ digits[list(table.axes)]
        return at + table.start

    def _contexts(self, out: Table) -> NDArray[np.int64]:
        """(variables, rows) digits of the contexts to check, valid at the axes of `out`."""
        shape = tuple(self._cards[a] for a in out.axes)
        axes = list(out.axes)
        if out.size <= CONTEXTS:
            self._small[axes, : out.size] = _all_digits(shape)
            return self._small[:, : out.size]
        stride = 1 if out.size <= _SCAN else out.size // _SPREAD
        largest = int(self._space.values(out)[::stride].argmax()) * stride
        self._digits[axes, CONTEXTS] = np.unravel_index(largest, shape)
        return self._digits


def _strides(axes: tuple[int, ...], cards: Sequence[int]) -> list[int]:
    """Of a table in C order; written apart from the ones that the engine walks by."""
    strides = [1] * len(axes)
    for k in range(len(axes) - 1, 0, -1):
        strides[k - 1] = strides[k] * cards[axes[k]]
    return strides


@lru_cache(maxsize=32)
def _uniforms(log2_rows: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), the same for every run."""
    return np.random.default_rng(0).random((1 << log2_rows, CONTEXTS))


@lru_cache(maxsize=1024)
def _offsets(joint: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    """Where the joint states of some axes lie, in C order."""
    digits = _all_digits(joint) if joint else np.zeros((0, 1), np.int64)
    found: NDArray[np.int64] = np.array(strides, dtype=np.int64) @ digits
    return found


@lru_cache(maxsize=1024)
def _all_digits(shape: tuple[int, ...]) -> NDArray[np.int64]:
    size = math.prod(shape)
    return np.indices(shape, dtype=np.int64).reshape(len(shape), size)


def _check(taken: Sequence[_Taken], is_log: bool) -> None:
    """All messages of one form at once: log sum of the product of their inputs."""
    product = np.concatenate([t.product for t in taken]).astype(np.longdouble)
    entries = np.concatenate([t.entries for t in taken]).astype(np.longdouble)
    # The product was taken in float64 too; the judge's sums are extended where the platform is.
    terms = [(*t.error, t.high, (t.tables + 2) * UNIT) for t in taken]
    absolute, relative, high, own = np.repeat(terms, [t.entries.size for t in taken], axis=0).T
    with np.errstate(divide="ignore", invalid="ignore"):
        summed: NDArray[Any] = product if is_log else np.log(product)
        logs: NDArray[Any] = entries if is_log else np.log(entries)
        depth = np.where(np.isfinite(logs), np.abs(high - logs), 0.0).astype(np.float64)
        allowed = absolute + (relative + own) * depth + own * (1.0 + np.abs(high))
        allowed = 2.0 * (allowed + LIBRARY * (2.0 + math.log(product.shape[1])))
        check_messages(summed, logs, 1.0, allowed, taken[0].place)


def check_singles(
    model: FactorGraph,
    marginals: Sequence[NDArray[np.float64]],
    factor_marginals: NDArray[np.float64],
    slack: NDArray[np.float64],
) -> None:
    """RefutedError unless every factor's joint gives its variables the marginals they have.

    `slack` (n,) bounds the log error of what was recorded with each variable; a factor was recorded
    with one of its own.
    """
    start = np.concatenate([[0], np.cumsum(model.cardinalities)])
    flat = np.concatenate([*marginals, np.zeros(0)])
    for factors, scopes, logs in model.batches():
        shape = logs.shape[1:]
        joint = factor_marginals[model.table_ptr[factors][:, None] + np.arange(math.prod(shape))]
        joint = joint.reshape(len(factors), *shape)
        worst = slack[scopes].max(axis=1, initial=0.0)
        for k, states in enumerate(shape):
            others = tuple(j + 1 for j in range(len(shape)) if j != k)
            single = flat[start[scopes[:, k]][:, None] + np.arange(states)]
            gap = np.abs(joint.sum(axis=others) - single).max(axis=1)
            good = (gap <= 4.0 * worst + math.prod(shape) * LIBRARY) | np.isnan(gap)
            if not good.all():
                f = int(np.argmin(good))
                raise RefutedError(
                    f"exact: factor {factors[f]} gives variable {scopes[f, k]} a marginal that "
                    f"differs from its own by {gap[f]:.3g}"
                )
