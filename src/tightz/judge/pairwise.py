"""A model of pairs as dense tables with the rounding of their sums, made from its factors afresh.

States that cannot be (evidence, zero potentials, no live partner across some pair) get -inf; pairs
with an end that has one state left are functions of the other end and are folded into it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import UNIT, RefutedError
from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Sums:
    """Entries that are sums: their values, the sums of absolute terms, and how many terms."""

    value: NDArray[np.float64]
    size: NDArray[np.float64]
    terms: NDArray[np.int64]

    def add(self, at: NDArray[np.int64], terms: NDArray[np.float64], rounded: int = 0) -> None:
        """Add terms, each the result of `rounded` operations itself, at places that may repeat."""
        np.add.at(self.value, at, terms)
        np.add.at(self.size, at, np.where(np.isneginf(terms), 0.0, np.abs(terms)))
        np.add.at(self.terms, at, 1 + rounded)

    def error(self) -> NDArray[np.float64]:
        """How far each value can be from the sum it stands for (`judge.verdict.summation`)."""
        error: NDArray[np.float64] = 2.0 * UNIT * self.terms * self.size
        return error


def zeros(count: int) -> Sums:
    return Sums(np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Pairs:
    """edges (E, 2), first < second; edge e has entries edge_ptr[e]:edge_ptr[e + 1], row by row.

    Variable v has entries var_ptr[v]:var_ptr[v + 1] of `unary`. `constants` are added to log Z.
    `empty`: some variable has no state left, so Z = 0.
    """

    cards: NDArray[np.int64]
    var_ptr: NDArray[np.int64]
    unary: Sums
    edges: NDArray[np.int64]
    edge_ptr: NDArray[np.int64]
    tables: Sums
    constants: list[float]
    empty: bool

    def shapes(self) -> list[tuple[int, int, NDArray[np.int64]]]:
        """(rows, columns, edges of that shape) for every shape."""
        sizes = self.cards[self.edges]
        codes = sizes[:, 0] * (int(sizes.max(initial=0)) + 1) + sizes[:, 1]
        found = [np.flatnonzero(codes == code) for code in np.unique(codes)]
        first = [sizes[edges[0]].tolist() for edges in found]
        return [(r, c, edges) for (r, c), edges in zip(first, found, strict=True)]

    def entries(self, edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """(edges, entries) places of the tables of edges of one shape."""
        size = int(self.edge_ptr[edges[0] + 1] - self.edge_ptr[edges[0]])
        return self.edge_ptr[edges][:, None] + np.arange(size)


def _pointers(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def pairs_of(model: FactorGraph) -> Pairs:
    """RefutedError where a factor touches more than two variables without evidence."""
    scope_ptr, named, sizes, flat = _sliced(model)
    arities = np.diff(scope_ptr)
    if (arities > 2).any():
        raise RefutedError("evidence about pairs was handed in for a model with larger factors")
    cards = model.cardinalities.astype(np.int64)
    var_ptr, unary = _pointers(cards), zeros(int(cards.sum()))
    for v, state in model.evidence.items():
        other = np.arange(cards[v]) != state
        unary.value[var_ptr[v] : var_ptr[v + 1]][other] = -np.inf
    owner = np.repeat(np.arange(sizes.size), sizes)
    within = np.arange(owner.size) - _pointers(sizes)[owner]
    a, b = np.zeros((2, sizes.size), dtype=np.int64)  # a factor's first variable and its second
    a[arities > 0] = named[scope_ptr[:-1][arities > 0]]
    b[arities > 1] = named[scope_ptr[:-1][arities > 1] + 1]
    single = arities[owner] == 1
    unary.add(var_ptr[a[owner[single]]] + within[single], flat[single])
    double = arities[owner] == 2
    # Parallel factors on one pair become one edge: the forests of a multigraph would be other
    # forests.
    keys = (np.minimum(a, b) * cards.size + np.maximum(a, b))[arities == 2]
    distinct = np.unique(keys)
    edges = np.stack([distinct // max(1, cards.size), distinct % max(1, cards.size)], axis=1)
    edge_ptr = _pointers(cards[edges[:, 0]] * cards[edges[:, 1]])
    f = owner[double]
    x, y = within[double] // cards[b[f]], within[double] % cards[b[f]]
    # A factor may list its variables either way round; the edge's table has the smaller one first.
    x, y = np.where(a[f] < b[f], x, y), np.where(a[f] < b[f], y, x)
    slot = np.searchsorted(distinct, np.minimum(a, b)[f] * cards.size + np.maximum(a, b)[f])
    tables = zeros(int(edge_ptr[-1]))
    tables.add(edge_ptr[slot] + x * cards[edges[slot, 1]] + y, flat[double])
    constants = flat[arities[owner] == 0].tolist()
    return _reduced(Pairs(cards, var_ptr, unary, edges, edge_ptr, tables, constants, False))


def _sliced(
    model: FactorGraph,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Scopes without the observed variables (ends, members); sizes and entries of their tables."""
    if not model.evidence:
        members = model.scope_vars.astype(np.int64)
        return model.scope_ptr, members, np.diff(model.table_ptr), model.log_tables
    variables, ends = model.scope_vars.tolist(), model.scope_ptr.tolist()
    cards, places, seen = model.cardinalities.tolist(), model.table_ptr.tolist(), model.evidence
    scopes, logs = [], [np.zeros(0)]
    for f in range(model.n_factors):
        scope = tuple(variables[ends[f] : ends[f + 1]])
        table = model.log_tables[places[f] : places[f + 1]]
        if not seen.keys().isdisjoint(scope):
            table = table.reshape([cards[v] for v in scope])
            table = table[tuple(seen.get(v, slice(None)) for v in scope)].ravel()
            scope = tuple(v for v in scope if v not in seen)
        scopes.append(scope)
        logs.append(table)
    sizes = np.array([table.size for table in logs[1:]], dtype=np.int64)
    lengths = np.array([len(scope) for scope in scopes], dtype=np.int64)
    members = np.array([v for scope in scopes for v in scope], dtype=np.int64)
    return _pointers(lengths), members, sizes, np.concatenate(logs)


def _reduced(full: Pairs) -> Pairs:
    """Impossible states out by arc consistency, pairs with a one-state end folded; in place."""
    owner = np.repeat(np.arange(len(full.edges)), np.diff(full.edge_ptr))
    within = np.arange(owner.size) - full.edge_ptr[owner]
    width = full.cards[full.edges[owner, 1]]
    places = (within // width, within % width)
    states = tuple(full.var_ptr[full.edges[owner, k]] + places[k] for k in (0, 1))
    live = full.unary.value > -np.inf
    open_entry = full.tables.value > -np.inf
    # Arc consistency to a fixed point. A state without a partner across some edge has p~ = 0 in
    # every completion, so taking it out changes no sum.
    count = -1
    while count != live.sum():
        count = live.sum()
        for k in (0, 1):
            open_entry &= live[states[0]] & live[states[1]]
            ends = full.edges[:, k]
            slots = _pointers(full.cards[ends])
            supported = np.zeros(int(slots[-1]), dtype=bool)
            supported[(slots[owner] + places[k])[open_entry]] = True
            of_slot = np.zeros(supported.size, dtype=np.int64)
            of_slot[slots[owner] + places[k]] = states[k]
            live[of_slot[~supported]] = False
    open_entry &= live[states[0]] & live[states[1]]
    full.unary.value[~live] = -np.inf
    full.tables.value[~open_entry] = -np.inf
    left = np.add.reduceat(live.astype(np.int64), full.var_ptr[:-1]) if live.size else np.zeros(0)
    empty = bool((left == 0).any()) or -math.inf in full.constants
    # An edge with one state left at an end is a function of the other end: added to its unary
    # table with its rounding, it no longer needs to be in a forest.
    single = (left == 1)[full.edges]
    fold = single.any(axis=1)
    moved = fold[owner] & open_entry
    target = np.where(single[owner, 0], states[1], states[0])[moved]
    np.add.at(full.unary.value, target, full.tables.value[moved])
    np.add.at(full.unary.size, target, full.tables.size[moved])
    np.add.at(full.unary.terms, target, full.tables.terms[moved])
    kept, tables = ~fold[owner], full.tables
    return replace(
        full,
        edges=full.edges[~fold],
        edge_ptr=_pointers(np.diff(full.edge_ptr)[~fold]),
        tables=Sums(tables.value[kept], tables.size[kept], tables.terms[kept]),
        empty=empty,
    )
