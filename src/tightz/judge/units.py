"""log Z at many rows of observations at once, where what is not observed is independent.

Given the rows every unit u that is not observed has a log potential for each of its states that is
a sum of one entry of each of its tables, so that

    log p~(row) = sum of observed tables + sum_u log sum_t exp a_u,t(row).

The visible units of an RBM make its hidden ones such, and the whole is -F(v), its free energy. All
a_u,t of all rows are one matrix product of rows that are 0 or 1. A sum of n terms is off by at most
2 n u times the sum of their sizes in any order (`verdict.summation`); terms 0 are added without
rounding, so n is the number of a unit's tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.rows import SECOND_ORDER, RowLogs, within_doubles
from tightz.judge.verdict import UNIT, RefutedError, log_summation
from tightz.models.factor_graph import FactorBatch, FactorGraph

ENTRIES = 1 << 22
"""Numbers of one array that a block of rows needs at most."""

MATRIX = 1 << 27
"""Entries of the matrix at most."""


class _Pairs(NamedTuple):
    """Entries of tables that join an observed and a free variable: one per pair of their states."""

    rows: NDArray[np.int64]
    cols: NDArray[np.int64]
    logs: NDArray[np.float64]


class UnitSums:
    """Sums over all variables but `columns`, none of which may meet another in a table."""

    def __init__(self, model: FactorGraph, columns: Sequence[int]) -> None:
        if not independent(model, columns):
            raise RefutedError("rows: variables that are not observed are not independent")
        self.columns = np.asarray(columns, dtype=np.int64)
        self.cards = model.cardinalities.astype(np.int64)
        free = np.ones(model.n_variables, dtype=bool)
        free[self.columns] = False
        self._units = np.flatnonzero(free)
        self._place = np.full(model.n_variables, -1)
        self._place[self.columns] = np.arange(self.columns.size)
        # where the states of a variable begin, among those of observed ones or of units
        self._start = np.zeros(model.n_variables, dtype=np.int64)
        for group in (self.columns, self._units):
            self._start[group] = np.cumsum(self.cards[group]) - self.cards[group]
        self._seen: list[FactorBatch] = []
        pairs, singles = [], []
        for batch in model.batches():
            inside = free[batch.scopes].sum(axis=1)
            if (inside == 0).any():
                self._seen.append(FactorBatch(*(part[inside == 0] for part in batch)))
            rest = FactorBatch(*(part[inside == 1] for part in batch))
            if rest.scopes.shape[1] == 1:
                singles.append(self._single(rest))
            elif rest.scopes.shape[1] == 2:
                pairs.append(self._pair(rest, free))
        self._layout(pairs, singles)

    def _single(self, batch: FactorBatch) -> _Pairs:
        scope = batch.scopes[:, 0].astype(np.int64)
        cols = self._start[scope][:, None] + np.arange(batch.log_tables.shape[1])
        return _Pairs(np.zeros(cols.size, dtype=np.int64), cols.ravel(), batch.log_tables.ravel())

    def _pair(self, batch: FactorBatch, free: NDArray[np.bool_]) -> _Pairs:
        scopes, logs = batch.scopes.astype(np.int64), batch.log_tables
        parts = []
        for first, tables in ((0, logs), (1, logs.transpose(0, 2, 1))):
            which = free[scopes[:, 1 - first]]
            seen, unit = scopes[which, first], scopes[which, 1 - first]
            rows = self._start[seen][:, None, None] + np.arange(tables.shape[1])[:, None]
            cols = self._start[unit][:, None, None] + np.arange(tables.shape[2])
            both = np.broadcast_arrays(rows, cols)
            parts.append((both[0].ravel(), both[1].ravel(), tables[which].ravel()))
        return _Pairs(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _layout(self, pairs: list[_Pairs], singles: list[_Pairs]) -> None:
        """The matrix without rows and columns of zeros alone, what is beside it, and its error."""
        height = int(self.cards[self.columns].sum())
        width = int(self.cards[self._units].sum())
        matrix, dead, size = _dense(pairs, height, width)
        base, gone, own = (part[0] for part in _dense(singles, 1, width))
        self._base, self._gone = base, gone > 0.0
        owner = np.repeat(np.arange(self.columns.size), self.cards[self.columns])
        state = np.arange(height) - self._start[self.columns][owner]
        used = np.flatnonzero((matrix != 0.0).any(axis=1) | (dead > 0.0).any(axis=1))
        self._used_cols = np.flatnonzero((matrix != 0.0).any(axis=0))
        self._owner, self._state = owner[used], state[used]
        self._matrix = np.ascontiguousarray(matrix[np.ix_(used, self._used_cols)])
        self._dead = np.ascontiguousarray(dead[used]) if dead.any() else None
        # a row takes one state of each observed variable: the largest of each bounds the sum
        if self.columns.size:
            own = own + np.maximum.reduceat(size, self._start[self.columns], axis=0).sum(axis=0)
        # each table has one entry in a column for every state of its observed variable
        counted = [e.cols for e in singles] + [e.cols[state[e.rows] == 0] for e in pairs]
        count = np.bincount(np.concatenate([np.zeros(0, np.int64), *counted]), minlength=width)
        self._error = 0.0
        for d, places in self._by_states():
            terms = 2.0 * UNIT * count[places] * own[places]
            self._error += float(terms.max(axis=1).sum()) + log_summation(d) * len(places)

    def _by_states(self) -> list[tuple[int, NDArray[np.int64]]]:
        """(d, (units, d) where their states stand) for each number of states."""
        counts = self.cards[self._units]
        return [
            (d, self._start[self._units[counts == d]][:, None] + np.arange(d))
            for d in np.unique(counts).tolist()
        ]

    def logs(self, states: NDArray[np.integer]) -> RowLogs:
        """log of the sum at each row of states (rows, columns)."""
        cards = self.cards[self.columns]
        fits = states.ndim == 2 and states.shape[1] == self.columns.size
        if not fits or (states < 0).any() or (states >= cards).any():
            raise RefutedError("rows: a state is none of its variable's")
        largest = max([1, self._owner.size, self._base.size, *(len(b.scopes) for b in self._seen)])
        step = max(1, ENTRIES // largest)
        parts = [self._block(states[at : at + step]) for at in range(0, len(states), step)]
        if not parts:
            return RowLogs(np.zeros(0), np.zeros(0))
        return RowLogs(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _block(self, states: NDArray[np.integer]) -> RowLogs:
        total, size = np.zeros(len(states)), np.zeros(len(states))
        terms = 1
        for entries in (*self._observed(states), *self._summed(states)):
            total += entries.sum(axis=1)
            size += np.abs(entries).sum(axis=1)
            terms += entries.shape[1]
        dead = np.isneginf(total)
        size[dead] = 0.0
        # `size` holds the units' own values too, so that rounding each of them is in it
        errors = SECOND_ORDER * (self._error + 2.0 * UNIT * (terms + 1) * size)
        return RowLogs(total, np.where(dead, 0.0, errors))

    def _observed(self, states: NDArray[np.integer]) -> list[NDArray[np.float64]]:
        """(rows, tables) the entries of tables all of whose variables are observed."""
        found = []
        for batch in self._seen:
            at = self._place[batch.scopes]
            index = tuple(states[:, at[:, j]] for j in range(at.shape[1]))
            some = (np.arange(len(at))[None, :], *index)
            found.append(np.broadcast_to(batch.log_tables[some], (len(states), len(at))))
        return found

    def _summed(self, states: NDArray[np.integer]) -> list[NDArray[np.float64]]:
        """(rows, units) the log sums over the states of each unit."""
        on = (states[:, self._place[self.columns[self._owner]]] == self._state).astype(np.float64)
        logits = np.tile(self._base, (len(states), 1))
        logits[:, self._used_cols] += on @ self._matrix
        logits[:, self._gone] = -np.inf
        if self._dead is not None:
            logits[on @ self._dead > 0.5] = -np.inf
        found = []
        for _, places in self._by_states():
            each = logits[:, places]
            top = each.max(axis=2)
            safe = np.where(np.isneginf(top), 0.0, top)
            with np.errstate(divide="ignore"):
                found.append(safe + np.log(np.exp(each - safe[:, :, None]).sum(axis=2)))
        return found


def independent(model: FactorGraph, columns: Sequence[int]) -> bool:
    """Whether `UnitSums` can sum the model over all variables but `columns`."""
    free = np.ones(model.n_variables, dtype=bool)
    free[list(columns)] = False
    owner = np.repeat(np.arange(model.n_factors), model.arities)
    inside = np.bincount(owner, free[model.scope_vars], minlength=model.n_factors)
    cards = model.cardinalities.astype(np.float64)
    small = cards[~free].sum() * cards[free].sum() <= MATRIX
    apart = bool(((inside == 0) | ((inside == 1) & (model.arities <= 2))).all())
    return bool(not model.evidence and small and apart and within_doubles(model))


def _dense(
    entries: list[_Pairs], height: int, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(height, width): sums of finite entries, numbers of zeros, and sums of sizes."""
    rows, cols, logs = (
        np.concatenate([np.zeros(0, dtype=kind), *part])
        for kind, part in zip(
            (np.int64, np.int64, np.float64),
            zip(*entries, strict=True) if entries else ((), (), ()),
            strict=True,
        )
    )
    place = rows * width + cols
    zero = np.isneginf(logs)
    finite = np.where(zero, 0.0, logs)
    sums = [
        np.bincount(place, weights, height * width).astype(np.float64).reshape(height, width)
        for weights in (finite, zero.astype(np.float64), np.abs(finite))
    ]
    return sums[0], sums[1], sums[2]
