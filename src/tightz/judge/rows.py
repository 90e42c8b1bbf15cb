"""log Z at many rows of observations at once, by elimination as the judge does it.

The model stays and the observations change from row to row, so every table has slices: one for each
combination of the observations that it depends on and that occurs, and each row reads one of them.
A table that depends on no observation has one slice, made once for all rows; a message over two
observed variables of three states has nine slices at most, however many rows there are.

Every slice is kept as logs with its largest entry taken out, so that all entries are <= 0, and its
error is at most a + r |entry| nats, as in `elimination`, where the steps are proven. What was taken
out is added up as pairs of floats, rounding known exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.claims import total_scale
from tightz.judge.verdict import UNIT, RefutedError, log_summation, summation
from tightz.models.factor_graph import FactorGraph

SECOND_ORDER = 1.0 + 2.0**-10
"""Products of two errors, for sums of fewer than 2^40 terms."""


class RowLogs(NamedTuple):
    """values and errors, of one shape, a row for each row: the true log lies within the error.

    -inf is exact: its error is 0.
    """

    values: NDArray[np.float64]
    errors: NDArray[np.float64]

    @property
    def low(self) -> NDArray[np.float64]:
        """What the logs are at least."""
        return _minus(self.values, self.errors)

    @property
    def high(self) -> NDArray[np.float64]:
        """What the logs are at most."""
        return -_minus(-self.values, self.errors)


def _minus(values: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """values - errors, rounded down; values where there is no error."""
    return np.where(errors > 0.0, np.nextafter(values - errors, -np.inf), values)


def added(logs: RowLogs, starts: NDArray[np.int64]) -> RowLogs:
    """log of the sums of exp over runs of rows, which begin at `starts`; none is empty.

    As `log_summation` says, and one rounding of the result.
    """
    counts = np.diff(np.append(starts, len(logs.values)))
    top = np.maximum.reduceat(logs.values, starts)
    safe = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        terms = np.exp(logs.values - np.repeat(safe, counts))
        values = safe + np.log(np.add.reduceat(terms, starts))
    dead = np.isneginf(values)
    size = np.where(dead, 0.0, np.abs(values))
    errors = np.maximum.reduceat(logs.errors, starts) + log_summation(counts) + summation(2, size)
    return RowLogs(values, np.where(dead, 0.0, SECOND_ORDER * errors))


def within_doubles(model: FactorGraph) -> bool:
    """Whether no sum of the model's finite log potentials comes near what doubles hold."""
    with np.errstate(over="ignore"):
        return total_scale(model) < 1e300


class _Table(NamedTuple):
    """logs (slice, *shape) over `axes`; high + low was taken out of each slice.

    absolute and relative are a and r of the module's text; slices (rows,) are those of the
    rows, None where there is one for all.
    """

    axes: tuple[int, ...]
    logs: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    absolute: NDArray[np.float64]
    relative: float
    slices: NDArray[np.int64] | None = None


class RowSums:
    """Sums over the variables of `order`, in this order, at rows of states of `columns`.

    columns   observed variables; those in `soft` are unobserved where a row has -1, the others are
              observed in every row
    order     the variables to sum out: with `keep` all that are not observed in every row
    keep      variables that stay: the logs then have an axis for each

    `largest` is the number of entries of the largest table met, for one row.
    """

    def __init__(
        self,
        model: FactorGraph,
        columns: Sequence[int],
        order: Sequence[int],
        soft: Iterable[int] = (),
        keep: Sequence[int] = (),
    ) -> None:
        self.columns, self.order, self.keep = list(columns), list(order), tuple(keep)
        self.soft = sorted(set(soft))
        self.fixed = [v for v in self.columns if v not in set(self.soft)]
        named = [*self.order, *self.keep, *self.fixed]
        if model.evidence or sorted(named) != list(range(model.n_variables)):
            raise RefutedError("rows: every variable is summed, kept or observed, and only once")
        if not set(self.soft) <= set(self.columns):
            raise RefutedError("rows: a variable that some rows observe has no column")
        if not within_doubles(model):
            raise RefutedError("rows: the model's log potentials add up to more than doubles hold")
        self.cards: list[int] = model.cardinalities.tolist()
        self._rank = {v: k for k, v in enumerate(self.order)}
        self._place = {v: k for k, v in enumerate(self.columns)}
        self._factors = [self._factor(scope, table) for scope, table in model.factors]
        self._static: dict[int, _Table] = {}
        self.largest = self._largest()

    def _factor(
        self, scope: tuple[int, ...], table: NDArray[np.float64]
    ) -> tuple[tuple[int, ...], _Table]:
        """(its variables observed in every row, the table with a slice for each state of them)."""
        fixed = set(self.fixed)
        seen = [k for k, v in enumerate(scope) if v in fixed]
        free = [k for k, v in enumerate(scope) if v not in fixed]
        shape = [table.shape[k] for k in free]
        logs = table.transpose(seen + free).reshape([-1, *shape])
        none = np.zeros(len(logs))
        axes = tuple(scope[k] for k in free)
        made = _topped(_Table(axes, logs, none, none, none, UNIT))
        return tuple(scope[k] for k in seen), made

    def _largest(self) -> int:
        """Entries of the largest table, from the scopes alone."""
        waiting: list[list[set[int]]] = [[] for _ in self.order]

        def put(scope: set[int]) -> None:
            ranks = [self._rank[u] for u in scope if u in self._rank]
            if ranks:
                waiting[min(ranks)].append(scope)

        for _, table in self._factors:
            put(set(table.axes))
        largest = math.prod(self.cards[v] for v in self.keep)
        for v, scopes in zip(self.order, waiting, strict=True):
            clique = set().union({v}, *scopes)
            largest = max(largest, math.prod(self.cards[u] for u in clique))
            put(clique - {v})
        return largest

    def logs(self, states: NDArray[np.integer]) -> RowLogs:
        """log of the sum at each row of states (rows, columns); a further axis for each of keep."""
        self._check(states)
        waiting: list[list[_Table]] = [[] for _ in self.order]
        rest: list[_Table] = []

        def put(table: _Table) -> None:
            ranks = [self._rank[u] for u in table.axes if u in self._rank]
            (waiting[min(ranks)] if ranks else rest).append(table)

        indices = {seen: self._index(seen, states) for seen in {seen for seen, _ in self._factors}}
        for seen, table in self._factors:
            put(table._replace(slices=indices[seen]) if seen else table)
        for v in self.soft:
            put(_indicator(v, self.cards[v], states[:, self._place[v]]))
        for k, v in enumerate(self.order):
            tables, waiting[k] = waiting[k], []
            message = self._static.get(v)
            if message is None:
                message = self._message(v, tables)
            if message.slices is None:  # no observation below: the same for all rows to come
                self._static[v] = message
            put(message)
        return self._result(rest, len(states))

    def _check(self, states: NDArray[np.integer]) -> None:
        """RefutedError unless these are states of the columns."""
        cards = np.array([self.cards[v] for v in self.columns], dtype=np.int64)
        least = np.array([-1 if v in self.soft else 0 for v in self.columns], dtype=np.int64)
        fits = states.ndim == 2 and states.shape[1] == len(self.columns)
        if not fits or (states < least).any() or (states >= cards).any():
            raise RefutedError("rows: a state is none of its variable's")

    def _index(self, seen: tuple[int, ...], states: NDArray[np.integer]) -> NDArray[np.int64]:
        """Which slice of a factor each row reads: the last variable runs fastest."""
        index = np.zeros(len(states), dtype=np.int64)
        for v in seen:
            index = index * self.cards[v] + states[:, self._place[v]]
        return index

    def _message(self, v: int, tables: list[_Table]) -> _Table:
        """log sum over v of exp of the tables that hold it; as in `judge/elimination.py`."""
        scope = tuple(sorted({u for t in tables for u in t.axes} - {v}))
        states = self.cards[v]
        whole = self._joined(tables, (v, *scope))
        top = whole.logs.max(axis=1)
        safe = np.where(np.isneginf(top), 0.0, top)
        with np.errstate(divide="ignore"):
            logs = safe + np.log(np.exp(whole.logs - safe[:, None]).sum(axis=1))
        count, steps = math.log(states), len(tables) + 2
        own = log_summation(states) + steps * UNIT * count
        relative = whole.relative + 2.0 * UNIT
        made = whole._replace(axes=scope, logs=logs, relative=relative)
        return _topped(made._replace(absolute=whole.absolute + own), count)

    def _joined(self, tables: list[_Table], axes: tuple[int, ...]) -> _Table:
        """The sum of the tables over `axes`, with a slice for each combination that occurs.

        Entries are <= 0, so sums do not cancel: an addition adds UNIT to the relative error.
        """
        index, taken = _slices(tables)
        total = np.zeros([1] * (1 + len(axes)))
        high = low = absolute = np.zeros(1)
        for table, rows in zip(tables, taken, strict=True):
            order = sorted(range(len(table.axes)), key=lambda k: axes.index(table.axes[k]))
            shape = [self.cards[a] if a in table.axes else 1 for a in axes]
            logs = table.logs[rows].transpose([0, *(k + 1 for k in order)])
            total = total + logs.reshape([-1, *shape])
            high, low, lost = _added(high, low, table.high[rows], table.low[rows])
            absolute = absolute + table.absolute[rows] + lost
        total = np.broadcast_to(total, [len(total), *(self.cards[a] for a in axes)])
        relative = max((t.relative for t in tables), default=0.0) + len(tables) * UNIT
        return _Table(axes, total, high, low, absolute, relative, index)

    def _result(self, tables: list[_Table], rows: int) -> RowLogs:
        whole = self._joined(tables, self.keep)
        shape = [-1] + [1] * len(self.keep)
        high, low, absolute = (
            part.reshape(shape) for part in (whole.high, whole.low, whole.absolute)
        )
        values = high + (whole.logs + low)
        depth = np.where(np.isneginf(values), 0.0, -whole.logs)
        size = np.where(np.isneginf(values), 0.0, np.abs(values))
        errors = absolute + whole.relative * depth + 2.0 * UNIT * (depth + np.abs(low) + size)
        errors = np.where(np.isneginf(values), 0.0, SECOND_ORDER * errors)
        index = np.zeros(rows, dtype=np.int64) if whole.slices is None else whole.slices
        return RowLogs(values[index], errors[index])


def _indicator(v: int, states: int, seen: NDArray[np.integer]) -> _Table:
    """1 where v is in the state seen, everywhere where nothing was."""
    logs = np.where(np.eye(states + 1, states, dtype=bool), 0.0, -np.inf)
    logs[states] = 0.0
    none = np.zeros(states + 1)
    return _Table((v,), logs, none, none, none, 0.0, np.where(seen < 0, states, seen))


def _topped(table: _Table, above: float | None = None) -> _Table:
    """The largest entry of each slice taken out; `above` bounds the entries as they are.

    What was relative to an entry's depth below `above` becomes absolute for the part of it that
    the new top is below; without `above` the entries are a model's own, which have no error. A
    slice of zeros stays one.
    """
    logs = table.logs
    top = logs.reshape(len(logs), -1).max(axis=1)
    safe = np.where(np.isneginf(top), 0.0, top)
    logs = logs - safe.reshape([-1] + [1] * (logs.ndim - 1))
    high, low, lost = _added(table.high, table.low, safe, np.zeros(len(safe)))
    moved = 0.0 if above is None else table.relative * (above - np.minimum(safe, above))
    return table._replace(logs=logs, high=high, low=low, absolute=table.absolute + moved + lost)


def _added(
    high: NDArray[np.float64], low: NDArray[np.float64], more: NDArray[np.float64],
    rest: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """(high + low) + (more + rest) as a pair, and what its low part may have lost.

    The first sum's rounding is a float and known (Knuth's two-sum).
    """
    total = high + more
    part = total - high
    error = (high - (total - part)) + (more - part)
    lost = 3.0 * UNIT * (np.abs(low) + np.abs(rest) + np.abs(error))
    return total, low + (rest + error), lost


def _slices(
    tables: list[_Table],
) -> tuple[NDArray[np.int64] | None, list[slice | NDArray[np.int64]]]:
    """(the slice of a join that each row reads, and for each table its slices, in that order)."""
    moving = [t for t in tables if t.slices is not None]
    everything: slice | NDArray[np.int64] = slice(None)
    if not moving:
        return None, [everything] * len(tables)
    indices = {id(t.slices): (t.slices, len(t.high)) for t in moving}
    if len(indices) == 1:
        return moving[0].slices, [everything] * len(tables)
    code, count = np.zeros_like(moving[0].slices), 1
    for index, slices in indices.values():
        code, count = _renumbered(code * slices + index, count * slices)
    first = np.zeros(count, dtype=np.int64)
    first[code] = np.arange(len(code))
    return code, [everything if t.slices is None else t.slices[first] for t in tables]


def _renumbered(code: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], int]:
    """Codes below `count` as numbers of those that occur, and how many these are."""
    if count > 4 * len(code) + 1024:
        found, numbers = np.unique(code, return_inverse=True)
        return numbers.reshape(-1), len(found)
    present = np.zeros(count, dtype=bool)
    present[code] = True
    number = np.cumsum(present) - 1
    return number[code], int(number[-1]) + 1
