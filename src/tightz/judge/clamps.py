"""Mini-buckets with one variable fixed: bounds on log Z of every x_i = s, from one clique tree.

Fixing x_i = s takes one sum away: the cliques whose own variable is i hand on F_c(rest, s) instead
of their power sum over i. Cliques below them have x_i as an axis of their messages at most, and
that is read at s; so only the messages from those cliques to the roots change. Hoelder's inequality
holds for all other variables as before, on the same side, with the same weights and shifts. No
weights are needed for i itself: a product of single values is one.

Many fixed states go up together, as a first axis of messages and tables. Variables that are
neighbours in the tree share most of their way; a lot of them is as large as memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.cliques import CliquesEvidence, CliqueTree, power_sum
from tightz.judge.verdict import UNIT
from tightz.models.factor_graph import FactorGraph

HELD = 1 << 20
"""Entries of changed messages that a lot may hold at a time, roughly."""

TABLE = 1 << 17
"""Entries of a clique's tables, for several fixed states, that are summed at a time."""


class _Changed(NamedTuple):
    """Messages of one clique that fixed states change: (k,) the states' numbers, (k, rows)."""

    which: NDArray[np.int64]
    messages: NDArray[np.float64]

    def of(self, which: NDArray[np.int64], usual: NDArray[np.float64]) -> NDArray[np.float64]:
        """The messages under the states `which`; those that are not changed are the usual one."""
        rows = np.searchsorted(self.which, which)
        rows[rows == self.which.size] = 0
        here = self.which[rows] == which
        return np.where(here[:, None], self.messages[rows], usual)


class ClampedCliques:
    """What a clique tree proves of log Z with one variable fixed.

    side    +1: its bounds are upper ones, -1: lower
    value   the bound with nothing fixed
    lots    the free variables in groups that are bounded together
    """

    def __init__(self, evidence: CliquesEvidence, model: FactorGraph) -> None:
        self.tree = tree = CliqueTree(evidence, model)
        self.side = 1.0 if tree.all_positive else -1.0
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._usual = tree.messages(self.side, np.array(tree.weights))
        self.value = tree.total(self.side, tree.roots(self._usual))
        self._own: dict[int, list[int]] = {v: [] for v in tree.rank}
        for c in tree.visits:
            self._own[tree.scopes[c][-1]].append(c)

    def unsaid(self) -> NDArray[np.float64]:
        """(entries,) an end for each state of each variable, before any lot: of observed ones."""
        cards, seen = self.tree.model.cardinalities.tolist(), self.tree.model.evidence
        ends = np.full(sum(cards), self.side * math.inf)
        for v, state in seen.items():
            ends[self.places([v])] = -math.inf
            ends[self.places([v])[state]] = self.value
        return ends

    def places(self, variables: Sequence[int]) -> NDArray[np.int64]:
        """Which entries belong to these variables, one after the other."""
        cards = self.tree.model.cardinalities.astype(np.int64)
        first = np.cumsum(cards) - cards
        return np.concatenate([np.arange(first[v], first[v] + cards[v]) for v in variables])

    @cached_property
    def lots(self) -> list[list[int]]:
        tree, lots, held = self.tree, list[list[int]](), math.inf
        for v in self._by_neighbourhood():
            states = int(tree.model.cardinalities[v])
            rows = states * max(self._usual[c].size for c in self._above(self._own[v]))
            if held + rows > HELD:
                lots.append([])
                held = 0
            lots[-1].append(v)
            held += rows
        return lots

    def _by_neighbourhood(self) -> list[int]:
        """The variables as a walk down the trees meets them, each tree's parts one after the other:
        what follows each other shares most of its way up.
        """
        tree = self.tree
        waiting = [c for c in tree.visits if tree.parents[c] < 0]
        met: dict[int, None] = {}
        while waiting:
            c = waiting.pop()
            met[tree.scopes[c][-1]] = None
            waiting += tree.children[c]
        return list(met)

    def _above(self, cliques: Sequence[int]) -> list[int]:
        """These cliques and all that their messages reach, in order."""
        met = set[int]()
        for start in cliques:
            c = start
            while c >= 0 and c not in met:
                met.add(c)
                c = self.tree.parents[c]
        return sorted(met, key=self._visit.__getitem__)

    @cached_property
    def _visit(self) -> dict[int, int]:
        return {c: k for k, c in enumerate(self.tree.visits)}

    def ends(self, variables: Sequence[int]) -> NDArray[np.float64]:
        """Bounds on log Z for each state of these free variables, one variable after the other."""
        tree, side = self.tree, self.side
        cards = tree.model.cardinalities.astype(np.int64)
        states = cards[list(variables)]
        ends = np.full(int(states.sum()), self.value)
        if not math.isfinite(self.value):
            return ends
        first = dict(zip(variables, (np.cumsum(states) - states).tolist(), strict=True))
        changed: dict[int, _Changed] = {}
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for c in self._above([c for v in variables for c in self._own[v]]):
                below = {k: changed.pop(k) for k in tree.children[c] if k in changed}
                found = self._passed_on(c, below)
                own = tree.scopes[c][-1]
                if own in first:
                    found += self._fixed(c, first[own])
                changed[c] = _joined(found)
            for c, (which, messages) in changed.items():  # those of roots are left
                now, usual = messages[:, 0], float(self._usual[c][0])
                now[now == np.inf] = np.nan  # overflow: nothing is said on either side
                ends[which] += now - usual
                padding = 4.0 * UNIT * (np.abs(now) + abs(usual) + np.abs(ends[which]))
                ends[which] += side * np.where(np.isfinite(padding), padding, 0.0)
        ends[np.isnan(ends)] = side * math.inf
        return ends

    def _fixed(self, c: int, first: int) -> list[_Changed]:
        """F_c at each state of its own variable; they have the numbers from `first` on."""
        tree = self.tree
        table, shift = tree.summed(c, tree.terms(c, self._usual), self.side)
        rows = np.moveaxis(table, -1, 0).reshape(table.shape[-1], -1) + shift
        rows += self.side * 2.0 * UNIT * np.abs(np.where(np.isneginf(rows), 0.0, rows))
        return [_Changed(first + np.arange(len(rows)), rows)]

    def _passed_on(self, c: int, below: dict[int, _Changed]) -> list[_Changed]:
        """Messages of c where those of some of its children are changed."""
        if not below:
            return []
        tree = self.tree
        which = np.unique(np.concatenate([part.which for part in below.values()]))
        steady = [*tree.own_terms(c)]
        for child in tree.children[c]:
            if child not in below:
                steady.append(self._usual[child].reshape(tree.shared_shape(c, child)))
        step = max(1, TABLE // math.prod(tree.shapes[c]))
        found = []
        for k in range(0, which.size, step):
            some = which[k : k + step]
            moving = [
                part.of(some, self._usual[child]).reshape(-1, *tree.shared_shape(c, child))
                for child, part in below.items()
            ]
            table, shift = tree.summed(c, [*steady, *moving], self.side)
            sent = power_sum(table, shift, tree.weights[c], self.side)
            found.append(_Changed(some, sent.reshape(some.size, -1)))
        return found


def _joined(parts: list[_Changed]) -> _Changed:
    which = np.concatenate([part.which for part in parts])
    order = np.argsort(which)
    return _Changed(which[order], np.concatenate([part.messages for part in parts])[order])
