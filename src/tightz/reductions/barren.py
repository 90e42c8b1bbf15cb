"""Variables that say nothing about the rest: their one table sums over them to a constant.

A conditional probability table p(v | parents) whose v nobody observes and no other table names sums
to 1 for every state of the parents, so it leaves Z and all other marginals as they are. Taking it
away may leave a parent in the same position: a Bayesian network without evidence vanishes, one
with evidence shrinks to the ancestors of what is observed (Shachter, 1986).

Tables here need not be conditional probabilities, and need not sum to exactly the same number:
sums that lie within `SPREAD` of each other count as one, and half of their spread goes into the
rounding of log Z, because a factor between e^(c - r) and e^(c + r) moves log Z by c +- r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import UNIT, log_summation
from tightz.models.ends import Ends, around, through
from tightz.models.factor_graph import FactorGraph
from tightz.models.selection import factors_of_each, selected
from tightz.reductions.reduction import Vectors

SPREAD = 1e-13
"""Nats between a table's largest and smallest sum: rounding of probabilities, nothing more."""

DRAWS = 20_000
"""States from which the marginal of a variable with several parents is counted."""


@dataclass(frozen=True, eq=False)
class BarrenVariable:
    """One variable taken out with its table: p(variable | others), its own axis first.

    A table that is a constant by itself goes the same way, with `variable` -1.
    """

    variable: int
    others: tuple[int, ...]
    factor: int
    conditional: NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Barren:
    """`reduced` is `model` over `kept`, without the tables of the variables in `gone`."""

    model: FactorGraph
    reduced: FactorGraph
    kept: NDArray[np.int64]
    gone: list[BarrenVariable]
    rounding: float = 0.0

    @property
    def lifts_exactly(self) -> bool:
        """Whether exact marginals stay exact: at most one parent each."""
        return all(len(b.others) <= 1 for b in self.gone if b.variable >= 0)

    def lift_marginals(self, marginals: Sequence[NDArray[np.float64]]) -> Vectors:
        """p(v) = sum over the parents of p(v | parents) p(parents).

        Several parents are rarely independent: where a variable has them, states are drawn from
        the product of the marginals given, completed by the conditionals, and counted. With
        nothing kept (a Bayesian network without evidence) these are exact samples.
        """
        out: Vectors = [np.ones(1)] * self.model.n_variables
        for v, marginal in zip(self.kept.tolist(), marginals, strict=True):
            out[v] = np.asarray(marginal)
        counted = None if self.lifts_exactly else self._counted(out)
        for b in self._drawn:
            known = [out[u] for u in b.others]
            if len(known) > 1:
                assert counted is not None
                out[b.variable] = counted[b.variable]
            else:
                out[b.variable] = b.conditional @ known[0] if known else b.conditional
        return out

    def lift_ends(self, ends: Ends) -> Ends:
        """Of several parents one is kept, and the others may do what they like."""
        out: Ends = [np.ones((1, 2))] * self.model.n_variables
        for v, found in zip(self.kept.tolist(), ends, strict=True):
            out[v] = found
        for b in self._drawn:
            table = around(b.conditional, 8.0 * self.rounding)
            if not b.others:
                out[b.variable] = table
                continue
            best = np.tile([0.0, 1.0], (len(table), 1))
            for axis, u in enumerate(b.others, start=1):
                free = tuple(a for a in range(1, table.ndim - 1) if a != axis)
                rows = np.stack([table[..., 0].min(axis=free), table[..., 1].max(axis=free)], -1)
                found = through(rows, out[u])
                best[:, 0] = np.maximum(best[:, 0], found[:, 0])
                best[:, 1] = np.minimum(best[:, 1], found[:, 1])
            out[b.variable] = best
        return out

    @property
    def _drawn(self) -> list[BarrenVariable]:
        """Variables in the order in which they come back: parents first."""
        return [b for b in reversed(self.gone) if b.variable >= 0]

    def _counted(self, known: Vectors) -> Vectors:
        rng = np.random.default_rng(0)
        states = np.zeros((DRAWS, self.kept.size), dtype=np.int64)
        for k, v in enumerate(self.kept.tolist()):
            states[:, k] = rng.choice(len(known[v]), size=DRAWS, p=known[v] / known[v].sum())
        drawn = self.lift_states(states, rng)
        cards = self.model.cardinalities.tolist()
        return [np.bincount(x, minlength=d) / DRAWS for x, d in zip(drawn.T, cards, strict=True)]

    def lift_states(self, states: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Parents first: the reverse of the order in which variables went."""
        columns = np.zeros((self.model.n_variables, len(states)), dtype=np.int64)
        columns[self.kept] = states.T
        for b in self._drawn:
            given = b.conditional[(slice(None), *columns[list(b.others)])]
            steps = np.cumsum(given.reshape(len(given), -1), axis=0)
            drawn = (rng.random(len(states)) * steps[-1] >= steps).sum(axis=0)
            columns[b.variable] = np.minimum(drawn, len(steps) - 1)
        return columns.T

    def __repr__(self) -> str:
        return f"Barren({self.reduced!r}, {len(self.gone)} variables taken out)"


def drop_barren(model: FactorGraph) -> Barren:
    """Take out barren variables until none is left. No evidence allowed."""
    uses = np.bincount(model.scope_vars, minlength=model.n_variables)
    ptr, home = factors_of_each(model)
    left = np.ones(model.n_factors, dtype=bool)
    gone: list[BarrenVariable] = []
    constants: list[float] = []
    rounding = 0.0
    for f in _constant_factors(model).tolist():
        scope, table = model.factor(f)
        left[f] = False
        uses[list(scope)] -= 1
        constants.append(float(table.flat[0]))
        gone.append(BarrenVariable(-1, tuple(scope), f, np.ones(0)))
    # A variable in one table is a candidate; each that goes takes its table along, which may leave
    # another variable with a single table.
    waiting = _candidates(model, (uses == 1)[model.scope_vars] & np.repeat(left, model.arities))
    while waiting:
        v = waiting.pop()
        if uses[v] != 1:
            continue
        f = int(next(f for f in home[ptr[v] : ptr[v + 1]] if left[f]))
        scope, table = model.factor(f)
        summed = _sum_over(scope.index(v), table)
        if summed is None:
            continue
        constant, error, conditional = summed
        left[f] = False
        constants.append(constant)
        rounding += error
        others = tuple(u for u in scope if u != v)
        gone.append(BarrenVariable(v, others, f, conditional))
        for u in scope:
            uses[u] -= 1
            if uses[u] == 1:
                waiting.append(u)
    if not gone:
        return Barren(model, model, np.arange(model.n_variables), [])
    return _without(model, left, gone, constants, rounding)


def _constant_factors(model: FactorGraph) -> NDArray[np.int64]:
    """Factors with variables whose entries are all the same finite number."""
    if not model.n_factors:
        return np.zeros(0, dtype=np.int64)
    starts = model.table_ptr[:-1]
    top = np.maximum.reduceat(model.log_tables, starts)
    bottom = np.minimum.reduceat(model.log_tables, starts)
    return np.flatnonzero((top == bottom) & np.isfinite(top) & (model.arities > 0))


def _candidates(model: FactorGraph, lone: NDArray[np.bool_]) -> list[int]:
    """Variables whose sums may agree, of those marked in `lone` (one entry per scope member).

    Most models have none among thousands of marked ones, so a rough look at all tables of one
    shape comes before the exact one at each; who fails it never passes that later.
    """
    found: list[NDArray[np.int32]] = []
    for fs, scopes, tables in model.batches():
        for axis in range(scopes.shape[1]):
            asked = lone[model.scope_ptr[fs] + axis]
            if not asked.any():
                continue
            logs = np.moveaxis(tables[asked], axis + 1, 1)
            with np.errstate(invalid="ignore", divide="ignore"):  # a column of zeros is no number
                top = logs.max(axis=1, keepdims=True)
                sums = (top[:, 0] + np.log(np.exp(logs - top).sum(axis=1))).reshape(len(logs), -1)
                scale = np.abs(sums).max(axis=1) + np.abs(top).max(axis=(*range(1, top.ndim),))
                even = np.ptp(sums, axis=1) <= 1e-9 * (1.0 + scale)
            found.append(scopes[asked, axis][even])
    return np.sort(np.concatenate(found)).tolist() if found else []


def _sum_over(
    axis: int, table: NDArray[np.float64]
) -> tuple[float, float, NDArray[np.float64]] | None:
    """(constant, error, conditional with `axis` first) where the sums over `axis` agree."""
    logs = np.moveaxis(table, axis, 0)
    top = logs.max(axis=0)
    if not np.isfinite(top).all():
        return None
    share = np.exp(logs - top)
    total = share.sum(axis=0)
    sums = top + np.log(total)
    low, high = float(sums.min()), float(sums.max())
    states = len(logs)
    # log sum exp and two additions, each rounded: what the computed sums may be off
    own = log_summation(states) + 2.0 * UNIT * float(np.abs(sums).max() + np.abs(top).max())
    if high - low > SPREAD + 2.0 * own:
        return None
    middle = low + (high - low) / 2.0
    return middle, (high - low) / 2.0 + own + UNIT * abs(middle), share / total


def _without(
    model: FactorGraph,
    left: NDArray[np.bool_],
    gone: list[BarrenVariable],
    constants: list[float],
    rounding: float,
) -> Barren:
    keep = np.ones(model.n_variables, dtype=bool)
    keep[[b.variable for b in gone if b.variable >= 0]] = False
    constant = math.fsum(constants)
    kept = np.flatnonzero(keep)
    reduced = selected(model, kept, left, [((), np.array(constant))])
    rounding = (1.0 + 2.0**-10) * (rounding + UNIT * abs(constant))
    return Barren(model, reduced, kept, gone, rounding)
