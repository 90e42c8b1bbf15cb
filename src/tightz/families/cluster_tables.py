"""One cluster's best q as conditional tables, by elimination in plain numpy.

Eliminating v from the sum F(v, S) of the tables that meet in its bucket leaves m(S) = log sum_v
exp F; exp(F - m) is the exact q(v | S) of the cluster. In reverse order these tables are a network
that the judge can evaluate with no knowledge of how they came about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Table = tuple[tuple[int, ...], NDArray[np.float64]]
"""(axes, ascending positions in the order; log entries)."""


class ClusterTables:
    """The elimination of one cluster, laid out once and run for every new set of fields.

    order     the cluster's variables, first eliminated first
    scopes    for each position the later positions that its conditional depends on
    """

    def __init__(
        self,
        order: NDArray[np.int64],
        cards: Sequence[int],
        factors: Sequence[tuple[Sequence[int], NDArray[np.float64]]],
    ) -> None:
        """`factors` over the cluster's variables; cards[b] are the states of order[b]."""
        self.order, self.cards = order, list(cards)
        place = {int(v): b for b, v in enumerate(order)}
        self.own: list[list[Table]] = [[] for _ in order]
        joined: list[set[int]] = [{b} for b in range(len(order))]
        for scope, table in factors:
            places = [place[int(v)] for v in scope]
            axes = sorted(range(len(places)), key=places.__getitem__)
            ordered = tuple(sorted(places))
            self.own[ordered[0]].append((ordered, np.asarray(table).transpose(axes)))
            joined[ordered[0]].update(ordered)
        self.scopes: list[tuple[int, ...]] = []
        for b in range(len(order)):
            scope = tuple(sorted(joined[b] - {b}))
            self.scopes.append(scope)
            if scope:
                joined[scope[0]].update(scope)

    @property
    def entries(self) -> int:
        """Entries of all conditional tables."""
        return sum(
            math.prod(self.cards[a] for a in (b, *scope)) for b, scope in enumerate(self.scopes)
        )

    def conditionals(self, fields: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float32]]:
        """q(v | S) for every position, fields[b] added to the log weights of order[b].

        Single precision is enough to say which q is meant: the judge normalises and evaluates it.
        """
        waiting: list[list[Table]] = [[] for _ in self.scopes]
        out = []
        for b, scope in enumerate(self.scopes):
            axes = (b, *scope)
            total = np.zeros([self.cards[a] for a in axes])
            for held, table in [((b,), fields[b]), *self.own[b], *waiting[b]]:
                total += table.reshape([self.cards[a] if a in held else 1 for a in axes])
            waiting[b] = []
            top = total.max(axis=0)
            weights = np.exp(total - top)
            sums = weights.sum(axis=0)
            if scope:
                waiting[scope[0]].append((scope, top + np.log(sums)))
            out.append((weights / sums).astype(np.float32))
        return out

    def marginals(self, tables: list[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
        """q(v) of every position, from the last to the first."""
        above: dict[int, NDArray[np.float64]] = {}
        out: list[NDArray[np.float64]] = [np.zeros(0)] * len(tables)
        below: list[list[int]] = [[] for _ in tables]
        for b, scope in enumerate(self.scopes):
            if scope:
                below[scope[0]].append(b)
        for b in range(len(tables) - 1, -1, -1):
            axes = (b, *self.scopes[b])
            joint = tables[b] * above.pop(b, np.ones(()))
            single = joint.reshape(self.cards[b], -1).sum(axis=1)
            out[b] = single / single.sum()
            for child in below[b]:
                drop = tuple(j for j, a in enumerate(axes) if a not in self.scopes[child])
                above[child] = joint.sum(axis=drop)
        return out
