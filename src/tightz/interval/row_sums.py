"""log Z at each of many rows of observations, exactly where that is in reach.

Rows are summed by the judge itself (`judge/rows.py`, `judge/units.py`), which needs no more than an
order to sum in; nothing is left here but to choose how.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.order import choose_order
from tightz.judge.rows import RowLogs, RowSums, added, within_doubles
from tightz.judge.units import UnitSums, independent
from tightz.models.factor_graph import FactorGraph
from tightz.models.rows import Rows

TOGETHER, APART = 19.0, 20.0
"""log2 of the entries of all tables for one row, up to which rows that observe different variables
have one plan, and up to which those that observe the same have one: 20 ms each at most. A run
of `log_partition`, which knows zeros and faster kernels, takes 30 ms and more."""

ENTRIES = 1 << 21
"""Entries of a table for a block of rows."""

BLOCK = 4096
"""Rows at a time."""

COMPLETIONS = 1 << 16
"""States of what a row does not observe that are gone through one by one."""

TABLES = 100_000
"""Of a model whose rows are eliminated: each is a few steps of Python for a block of rows."""

CLOSED_FORM = "summed in closed form"
COMPLETED = "summed in closed form for each state of what is missing"
ELIMINATION = "summed by elimination"
CONTRADICTION = "excluded by the evidence"

Keep = tuple[int, ...]


class Block(NamedTuple):
    """Numbers of some rows, and their logs for each of the `keeps` asked for."""

    rows: NDArray[np.int64]
    logs: list[RowLogs]
    how: str


class _Way(NamedTuple):
    """How the rows of a group are summed, one for each of the keeps, and rows at a time."""

    sums: list[RowSums] | list[UnitSums]
    how: str
    step: int


@dataclass(frozen=True, eq=False)
class _Asked:
    """A model without evidence, columns and states of its variables, what to keep."""

    model: FactorGraph
    columns: NDArray[np.int64]
    states: NDArray[np.int32]
    keeps: Sequence[Keep]

    def __iter__(self) -> Iterator[Block]:
        """Blocks of all rows that are in reach."""
        observed = self.states >= 0
        every = np.arange(self.columns.size)
        left, units = np.arange(len(self.states)), None
        if self._alone and independent(self.model, self.columns.tolist()):
            units = UnitSums(self.model, self.columns.tolist())
            whole = observed.all(axis=1)
            yield from self._blocks(np.flatnonzero(whole), every, self._closed(units))
            left = np.flatnonzero(~whole)
        if not left.size:
            return
        way = self._way(every, np.asarray(observed[left].all(axis=0)))
        if way is not None:
            yield from self._blocks(left, every, way)
            return
        if units is not None:
            for row in left.tolist():
                yield from self._completed(row, units)
            left = left[self._log2_missing(left) > math.log2(COMPLETIONS)]
        if observed[left].all():
            return
        # A plan for each set of observed variables: narrower than one for all of them.
        patterns, which = np.unique(observed[left], axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            columns = np.flatnonzero(pattern)
            way = self._way(columns, np.ones(columns.size, dtype=bool))
            if way is not None:
                yield from self._blocks(left[which.reshape(-1) == number], columns, way)

    @property
    def _alone(self) -> bool:
        """Whether nothing is kept."""
        return not any(self.keeps)

    def _closed(self, units: UnitSums) -> _Way:
        return _Way([units] * len(self.keeps), CLOSED_FORM, BLOCK)

    def _blocks(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], way: _Way
    ) -> Iterator[Block]:
        for at in range(0, len(rows), way.step):
            some = rows[at : at + way.step]
            states = self.states[np.ix_(some, columns)]
            yield Block(some, [sums.logs(states) for sums in way.sums], way.how)

    def _way(self, columns: NDArray[np.int64], fixed: NDArray[np.bool_]) -> _Way | None:
        """Rows that observe the `fixed` ones of these columns, and maybe others; None: too much."""
        chosen = self.columns[columns].tolist()
        if self._alone and fixed.all() and independent(self.model, chosen):
            return self._closed(UnitSums(self.model, chosen))
        if self.model.n_factors > TABLES or not within_doubles(self.model):
            return None
        soft = [v for v, always in zip(chosen, fixed, strict=True) if not always]
        # What is kept stays in the tables even where every row observes it.
        soft += [v for v in chosen if v not in soft and any(v in keep for keep in self.keeps)]
        hard = [v for v in chosen if v not in soft]
        rest, kept = _without(self.model, hard)
        most = APART if fixed.all() else TOGETHER
        found = choose_order(rest, seconds=0.0, log2_cap=most)
        if found.log2_cost > most:
            return None
        order = kept[found.order].tolist()
        sums = [
            RowSums(self.model, chosen, [v for v in order if v not in keep], soft, keep)
            for keep in self.keeps
        ]
        largest = max(one.largest for one in sums)
        return _Way(sums, ELIMINATION, min(BLOCK, max(1, ENTRIES // largest)))

    def _log2_missing(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """log2 of the number of states of the columns that a row lacks."""
        cards = self.model.cardinalities[self.columns]
        return np.where(self.states[rows] < 0, np.log2(cards), 0.0).sum(axis=1)

    def _completed(self, row: int, units: UnitSums) -> Iterator[Block]:
        """A row by closed form, summed over the states of the columns that it lacks."""
        if self._log2_missing(np.array([row]))[0] > math.log2(COMPLETIONS):
            return
        missing = np.flatnonzero(self.states[row] < 0)
        shape = self.model.cardinalities[self.columns[missing]].astype(np.int64)
        every = np.indices(tuple(shape.tolist())).reshape(missing.size, -1).T
        states = np.tile(self.states[row], (len(every), 1))
        states[:, missing] = every
        found = added(units.logs(states), np.zeros(1, dtype=np.int64))
        yield Block(np.array([row]), [found] * len(self.keeps), COMPLETED)


def _without(model: FactorGraph, observed: list[int]) -> tuple[FactorGraph, NDArray[np.int64]]:
    """(a model of the same scopes without these variables, the numbers of its variables)."""
    free = np.ones(model.n_variables, dtype=bool)
    free[observed] = False
    left = free[model.scope_vars]
    scope = model.scope_vars[left]
    owner = np.repeat(np.arange(model.n_factors), model.arities)[left]
    arities = np.bincount(owner, minlength=model.n_factors)
    sizes = np.ones(model.n_factors, dtype=np.int64)
    np.multiply.at(sizes, owner, model.cardinalities[scope])
    rest = FactorGraph.from_arrays(
        model.cardinalities[free],
        np.concatenate([[0], np.cumsum(arities)]),
        (np.cumsum(free) - 1)[scope],
        np.concatenate([[0], np.cumsum(sizes)]),
        np.zeros(int(sizes.sum())),
    )
    return rest, np.flatnonzero(free)


def row_sums(model: FactorGraph, rows: Rows, keeps: Sequence[Keep] = ((),)) -> Iterator[Block]:
    """Blocks of the rows that can be summed exactly; rows in none of them are out of reach.

    keeps   for each its own sum, with an axis for each of the variables kept; they have no
            evidence. Rows that contradict the model's evidence weigh nothing
    """
    seen = np.array([model.evidence.get(v, -1) for v in rows.variables.tolist()], dtype=np.int64)
    against = ((seen >= 0) & (rows.states >= 0) & (rows.states != seen)).any(axis=1)
    barred = np.flatnonzero(against)
    if barred.size:
        cards = model.cardinalities.tolist()
        nothing = [np.full([barred.size, *(cards[v] for v in keep)], -np.inf) for keep in keeps]
        logs = [RowLogs(values, np.zeros(values.shape)) for values in nothing]
        yield Block(barred, logs, CONTRADICTION)
    left = np.flatnonzero(~against)
    if not left.size:
        return
    reduced = model.condition()
    number = np.full(model.n_variables, -1)
    number[[v for v in range(model.n_variables) if v not in model.evidence]] = np.arange(
        reduced.n_variables
    )
    free = seen < 0
    columns = number[rows.variables[free]]
    states = rows.states[np.ix_(left, np.flatnonzero(free))]
    asked = _Asked(reduced, columns, states, [tuple(int(number[v]) for v in k) for k in keeps])
    for block in asked:
        yield block._replace(rows=left[block.rows])
