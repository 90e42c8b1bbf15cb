"""A cutset sum as evidence: assignments of held variables, the others eliminated by the judge.

Different assignments are disjoint parts of the space, and all of them together are the whole. Every
assignment is eliminated afresh, in full and in plain numpy, many side by side: they differ only in
where the tables are read. An assignment once judged keeps its two ends.

Rounding, u = 2^-53: a sum of t tables at one entry is moved outward by 2 (t + 1) u of the sizes
that meet there, so the size of one entry costs nothing at another; where that is little for the
largest, all entries move by that. What log sum exp costs says `log_summation`; adding the top again
costs u of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.judge.claims import log_sum
from tightz.judge.verdict import RefutedError, Verdict, log_summation, summation
from tightz.models.factor_graph import FactorGraph

MAX_ENTRIES = 1 << 21
"""Entries of one table, over all assignments that are judged side by side."""

SMALL = 1e-12
"""Nats by which all entries of a table may be moved alike."""

_Table = tuple[tuple[int, ...], NDArray[np.float64]]
"""Variables by falling rank, and logs of shape (assignments or 1, their states)."""


@dataclass(eq=False)
class Conditioned:
    """`held` variables, the `order` in which the others are summed out, and what was judged."""

    held: NDArray[np.int64]
    order: NDArray[np.int64]
    model: FactorGraph | None = None
    lowers: dict[bytes, float] = field(default_factory=dict)
    uppers: dict[bytes, float] = field(default_factory=dict)

    def ends(self, model: FactorGraph, rows: NDArray[np.int64], side: float) -> list[float]:
        """A bound on log Z of each row's part, from below for side -1 and from above for +1."""
        if self.model is not model:
            self._open(model)
        known = self.lowers if side < 0 else self.uppers
        keys = [row.tobytes() for row in rows]
        # Only assignments not judged before; the memory is bounded by cutting them into groups.
        new = np.array([k for k, key in enumerate(keys) if key not in known], dtype=np.int64)
        step = max(1, MAX_ENTRIES // max(self._largest, 1))
        for low in range(0, new.size, step):
            some = new[low : low + step]
            with np.errstate(divide="ignore"):
                found = self._eliminate(model, rows[some], side)
            known.update((keys[k], float(value)) for k, value in zip(some, found, strict=True))
        return [known[key] for key in keys]

    def _open(self, model: FactorGraph) -> None:
        """RefutedError unless every variable is held or summed out, once."""
        both = np.concatenate([self.held, self.order])
        if model.evidence or not np.array_equal(np.sort(both), np.arange(model.n_variables)):
            raise RefutedError("held and summed out variables are not all variables, each once")
        self.lowers, self.uppers, self.model = {}, {}, model
        self._rank = {v: r for r, v in enumerate(self.order.tolist())}
        self._column = {v: c for c, v in enumerate(self.held.tolist())}
        cards = model.cardinalities.tolist()
        # The scopes that elimination will meet, from the factors alone: what each step leaves
        # joins the bucket of the first of its variables. The maker's plan is not asked.
        meets: list[set[int]] = [{r} for r in range(self.order.size)]
        for scope, _ in model.factors:
            ranks = {self._rank[v] for v in scope if v in self._rank}
            if ranks:
                meets[min(ranks)] |= ranks
        names = self.order.tolist()
        self._scopes: list[tuple[int, ...]] = []
        for r, ranks in enumerate(meets):
            rest = ranks - {r}
            if rest:
                meets[min(rest)] |= rest
            self._scopes.append(tuple(names[k] for k in sorted(rest, reverse=True)))
        sizes = (math.prod(cards[v] for v in (names[r], *s)) for r, s in enumerate(self._scopes))
        self._largest = max(sizes, default=1)

    def _eliminate(
        self, model: FactorGraph, rows: NDArray[np.int64], side: float
    ) -> NDArray[np.float64]:
        """The ends (K,) of these rows."""
        waiting: list[list[_Table]] = [[] for _ in self._scopes]
        parts = []
        for scope, table in model.factors:
            variables, logs = self._conditioned(scope, table, rows)
            if variables:
                waiting[self._rank[variables[-1]]].append((variables, logs))
            else:
                parts.append(logs)
        for r, scope in enumerate(self._scopes):
            tables, waiting[r] = waiting[r], []
            sent = _summed_out(int(self.order[r]), scope, tables, model.cardinalities, side)
            if scope:
                waiting[self._rank[scope[-1]]].append((scope, sent))
            else:
                parts.append(sent)
        # Everything was moved outward on the way; the final sum is moved by its own rounding too.
        total, size = np.zeros(len(rows)), np.zeros(len(rows))
        for part in parts:
            total = total + part
            size = size + np.abs(np.where(np.isneginf(part), 0.0, part))
        return total + side * summation(len(parts) + 1, size)

    def _conditioned(
        self, scope: tuple[int, ...], table: NDArray[np.float64], rows: NDArray[np.int64]
    ) -> _Table:
        """A factor's table at the rows' held states."""
        held = [a for a, v in enumerate(scope) if v in self._column]
        free = [a for a, v in enumerate(scope) if v in self._rank]
        free.sort(key=lambda a: -self._rank[scope[a]])
        # Held axes first, so that one fancy index reads the tables of all assignments at once.
        moved = table.transpose(held + free)
        at = tuple(rows[:, self._column[scope[a]]] for a in held)
        return tuple(scope[a] for a in free), moved[at] if held else moved[None]


def _summed_out(
    variable: int,
    scope: tuple[int, ...],
    tables: list[_Table],
    cards: NDArray[np.int32],
    side: float,
) -> NDArray[np.float64]:
    """log sum over `variable`, the last axis of all tables, of the exp of their sum, outward."""
    states = int(cards[variable])
    terms = []
    for variables, logs in tables:
        shape = [int(cards[v]) if v in variables else 1 for v in scope]
        terms.append(logs.reshape(len(logs), *shape, states))
    share = side * summation(len(terms) + 1, 1.0)
    sizes = [np.abs(np.where(np.isneginf(term), 0.0, term)) for term in terms]
    # Either every entry moves by the largest charge (cheap), or, where that would cost more than
    # SMALL, each by its own.
    shift = share * sum(float(size.max()) for size in sizes)
    entrywise = abs(shift) > SMALL
    columns = []
    for x in range(states):
        column = np.zeros((1,) * (len(scope) + 1))
        for term in terms:
            column = column + term[..., x]
        for size in sizes if entrywise else ():
            column = column + share * size[..., x]
        columns.append(column)
    top = np.maximum.reduce(columns)
    # A column of zeros: any finite shift gives log 0 = -inf again, without inf - inf.
    safe = np.where(np.isneginf(top), 0.0, top)
    total = np.zeros_like(safe)
    for column in columns:
        total = total + np.exp(column - safe)
    out: NDArray[np.float64] = safe + np.log(total)
    size = np.where(np.isneginf(out), 0.0, np.abs(out))
    pad = log_summation(states) + summation(2, size)
    return out + side * pad + (0.0 if entrywise else shift)


@dataclass(frozen=True, eq=False)
class CutsetEvidence:
    """rows (K, held): the states of the held variables in each assignment; repeats count once."""

    conditioned: Conditioned
    rows: Sequence[NDArray[np.int64]]

    def verdict(self, model: FactorGraph) -> Verdict:
        """The sum of the rows' parts; from above as well where no assignment is missing."""
        court = self.conditioned
        # A repeated assignment would count its part of Z twice: repeats are merged before anything
        # else.
        distinct = {row.tobytes(): row for row in map(np.ascontiguousarray, self.rows)}
        rows = np.array(list(distinct.values()), dtype=np.int64)
        if rows.shape != (len(distinct), court.held.size):
            raise RefutedError("an assignment does not give one state to each held variable")
        cards = model.cardinalities[court.held].astype(np.int64)
        if not ((rows >= 0) & (rows < cards)).all():
            raise RefutedError("a held variable is given a state that it does not have")
        lowers = court.ends(model, rows, -1.0)
        lower, down = log_sum(lowers)
        # Some assignments are missing: their parts are unknown, so only the lower end stands.
        if len(rows) < math.prod(cards.tolist()):
            return Verdict(lower=lower - down, rounding=down)
        uppers = court.ends(model, rows, 1.0)
        upper, up = log_sum(uppers)
        if upper == -math.inf:
            return Verdict(-math.inf, -math.inf)
        return Verdict(lower - down, upper + up, (upper + up - lower + down) / 2.0)
