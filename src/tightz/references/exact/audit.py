"""A second look at an elimination while it runs: sampled sums done again, without its kernels.

Messages are recomputed from the tables they were made of by the judge, in extended precision, with
index arithmetic of this module's own; so a wrong or stale kernel, layout or schedule is caught.
Inputs are copied when a message is made and checked all together at the end, which is cheap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.messages import check_messages
from tightz.judge.rounding import LIBRARY, UNIT
from tightz.judge.verdict import RefutedError
from tightz.judge.weights import log_weight
from tightz.models.factor_graph import FactorGraph
from tightz.references.exact.planning import EliminationPlan
from tightz.references.exact.precision import Error
from tightz.references.exact.tables import Table, TableSpace

CONTEXTS = 16
"""Contexts at which a message is checked, beside a large entry; a smaller table is checked whole."""

_STATES = 4
_SCAN = 1 << 14  # entries; in longer tables the largest of this many is looked for


class _Taken(NamedTuple):
    """One message's inputs (tables, rows, states) and entries (rows,), as they were."""

    place: str
    inputs: NDArray[np.float64]
    entries: NDArray[np.float64]
    error: Error
    high: float


class Audit:
    """Collects while an elimination runs; `finish` raises RefutedError where a sum is wrong."""

    def __init__(self, model: FactorGraph, plan: EliminationPlan, space: TableSpace) -> None:
        self._model, self._plan, self._space = model, plan, space
        self._cards: list[int] = plan.cardinalities.tolist()
        # Positions in the order by rows; a column is a state of the whole model.
        self._digits = np.random.default_rng(0).integers(
            plan.cardinalities[:, None], size=(len(self._cards), CONTEXTS)
        )
        self._taken: dict[tuple[int, int, bool], list[_Taken]] = {}
        self._seen: set[int] = set()
        self._weights = np.zeros(_STATES)
        self._doubt = np.zeros(_STATES)
        self._scales: list[float] = []

    def groups(self, b: int, tables: Sequence[Table]) -> None:
        """The bucket's own factors, as logs: over all buckets they must add up to the model."""
        if b in self._seen:
            return
        self._seen.add(b)
        for table in tables:
            at = self._offsets(table.axes) @ self._digits[list(table.axes), :_STATES]
            values = self._space.arena[table.start + at]
            self._weights += values
            self._doubt += table.error.absolute + (table.error.relative + UNIT) * np.abs(values)
            self._scales += table.scale

    def message(self, b: int, out: Table, inputs: Sequence[Table]) -> None:
        """Copy what message b was made of, and what came out, at some contexts."""
        digits = self._contexts(out)
        row = {a: k for k, a in enumerate(out.axes)}
        states = np.arange(self._cards[b])
        arena = self._space.arena
        taken = np.empty((len(inputs), digits.shape[1], states.size))
        for k, table in enumerate(inputs):
            offsets = self._offsets(table.axes)
            own = bool(table.axes) and table.axes[0] == b  # b comes before all it meets
            rest = [row[a] for a in table.axes[own:]]
            at = table.start + offsets[own:] @ digits[rest]
            taken[k] = arena[at[:, None] + (offsets[0] * states if own else 0 * states)]
        entries = arena[out.start + self._offsets(out.axes) @ digits]
        name = f"exact: bucket {b} (variable {self._plan.order[b]})"
        self._take(_Taken(name, taken, entries, out.own_error, out.high), out.is_log)

    def product(self, tables: Sequence[Table], onto: Table) -> _Taken:
        """Before `tables` are multiplied into `onto`: what they hold at some contexts."""
        digits = self._contexts(onto)
        row = {a: k for k, a in enumerate(onto.axes)}
        taken = np.empty((len(tables), digits.shape[1], 1))
        for k, table in enumerate(tables):
            at = self._offsets(table.axes) @ digits[[row[a] for a in table.axes]]
            taken[k, :, 0] = self._space.arena[table.start + at]
        place = self._offsets(onto.axes) @ digits
        return _Taken("exact: a product of messages", taken, place, Error(), 0.0)

    def merged(self, onto: Table, before: _Taken) -> None:
        entries = self._space.arena[onto.start + before.entries.astype(np.int64)]
        after = before._replace(entries=entries, error=onto.own_error, high=onto.high)
        self._take(after, onto.is_log)

    def finish(self) -> None:
        """Check everything collected."""
        for (_, _, is_log), taken in self._taken.items():
            try:
                _check(taken, is_log)
            except RefutedError:
                for one in taken:  # say which
                    _check([one], is_log)
                raise
        if len(self._seen) == len(self._cards):
            self._check_weights()

    def _check_weights(self) -> None:
        model = self._model
        constants = model.log_tables[model.table_ptr[:-1][model.arities == 0]].tolist()
        if -math.inf in constants:
            return
        scale = math.fsum([*self._scales, *constants])
        states = np.empty((model.n_variables, _STATES), dtype=np.int64)
        states[self._plan.order] = self._digits[:, :_STATES]
        for state, found, doubt in zip(states.T, self._weights, self._doubt, strict=True):
            expected, rounding = log_weight(model, state)
            allowed = 2.0 * (doubt + rounding + UNIT * (abs(scale) + len(self._seen) * abs(found)))
            if expected != found + scale and not abs(expected - found - scale) <= allowed:
                raise RefutedError(
                    f"exact: the tables of all buckets give a state the log weight "
                    f"{found + scale!r}; the model gives it {expected!r}"
                )

    def _take(self, taken: _Taken, is_log: bool) -> None:
        key = (taken.inputs.shape[0], taken.inputs.shape[2], is_log)
        self._taken.setdefault(key, []).append(taken)

    def _offsets(self, axes: tuple[int, ...]) -> NDArray[np.int64]:
        """Strides of a table in C order."""
        out = np.empty(len(axes), dtype=np.int64)
        step = 1
        for k in range(len(axes) - 1, -1, -1):
            out[k] = step
            step *= self._cards[axes[k]]
        return out

    def _contexts(self, out: Table) -> NDArray[np.int64]:
        """(axes, rows) the digits of the contexts to check: all of a small table."""
        shape = tuple(self._cards[a] for a in out.axes)
        if out.size <= CONTEXTS:
            return _all_digits(shape)
        values = self._space.values(out)
        stride = -(-out.size // _SCAN)
        largest = int(np.argmax(values[::stride])) * stride
        found = np.unravel_index(largest, shape)
        return np.concatenate(
            [self._digits[list(out.axes)], np.array(found, dtype=np.int64)[:, None]], axis=1
        )


@lru_cache(maxsize=1024)
def _all_digits(shape: tuple[int, ...]) -> NDArray[np.int64]:
    size = math.prod(shape)
    return np.indices(shape, dtype=np.int64).reshape(len(shape), size)


def _check(taken: Sequence[_Taken], is_log: bool) -> None:
    """All messages of one form at once: log sum of the product of their inputs."""
    inputs = np.concatenate([t.inputs for t in taken], axis=1).astype(np.longdouble)
    entries = np.concatenate([t.entries for t in taken]).astype(np.longdouble)
    rows = [t.entries.size for t in taken]
    absolute = np.repeat([t.error.absolute for t in taken], rows)
    relative = np.repeat([t.error.relative for t in taken], rows)
    high = np.repeat([t.high for t in taken], rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        summed = inputs.sum(axis=0) if is_log else np.log(inputs.prod(axis=0))
        logs = entries if is_log else np.log(entries)
        depth = np.where(np.isfinite(logs), np.abs(high - logs), 0.0).astype(np.float64)
        # The judge's own sums: extended precision where the platform has it, else float64.
        own = LIBRARY * (2.0 + math.log(inputs.shape[2])) + (len(inputs) + 2) * UNIT * (
            depth + np.abs(high)
        )
        allowed = 2.0 * (absolute + relative * depth + own)
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
            good = gap <= 4.0 * worst + math.prod(shape) * LIBRARY
            if not good.all():
                f = int(np.argmin(good))
                raise RefutedError(
                    f"exact: factor {factors[f]} gives variable {scopes[f, k]} a marginal that "
                    f"differs from its own by {gap[f]:.3g}"
                )
