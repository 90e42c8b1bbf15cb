"""States by elimination: the heaviest, the k heaviest, and independent draws.

Every clique adds up its tables and takes the maximum (or the log-sum) over its own variable. The
way back fixes the variables from the last bucket to the first: given those fixed before, a bucket's
own tables and the messages of its children say what each state of its variable is worth,
everything below being at its best. So the best state that differs at one variable, the later ones
held, is known without another pass, and the k heaviest states come one by one (Lawler, 1972;
Nilsson, 1998) at the cost of one walk back each.

Where buckets were cut the same numbers are bounds, and the walk is best-first search with
mini-bucket bounds (Kask and Dechter, 2001): good states, proven by whoever judges the cliques.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import BucketTree, bucket_tree
from tightz.elimination.graph import scopes_of
from tightz.elimination.order import choose_order
from tightz.judge.cliques import CliquesEvidence
from tightz.models.factor_graph import FactorGraph

ENTRY_SECONDS = 5e-8
"""Of a table's entry, maker and judge together: numpy goes over it about ten times."""

_BATCH = 256
"""States walked back at a time; at first one, and twice as many each time."""

_OPEN = 20_000
"""Nodes kept open where bounds are not exact."""


def uncut(
    model: FactorGraph, *, max_bytes: float, seconds: float = math.inf
) -> CliquesEvidence | None:
    """The cliques of an elimination order without cuts; None where memory or time are too short.

    The model has no evidence.
    """
    found = choose_order(model, most_seconds=seconds, log2_cap=60.0)
    if found.log2_cost == math.inf:
        return None
    entries, largest = 2.0**found.log2_cost, 2.0**found.log2_largest
    if 8.0 * (entries + 4.0 * largest) > max_bytes or ENTRY_SECONDS * entries > seconds:
        return None
    return cliques_of(bucket_tree(scopes_of(model), found.order))


def cliques_of(tree: BucketTree) -> CliquesEvidence:
    """An uncut bucket tree in the form that the judge reads; nothing is shifted."""
    return CliquesEvidence(
        order=tree.order,
        scopes=[tuple(scope[::-1]) for scope in tree.scopes],
        factors=tree.sources,
        parents=tree.parent,
        weights=np.ones(tree.parent.size),
        pairs=np.zeros((0, 2), dtype=np.int64),
        shift_ptr=np.zeros(1, dtype=np.int64),
        shifts=np.zeros(0),
        claimed=math.inf,
    )


class _Term(NamedTuple):
    """One table of a clique over `variables`, and how to read it at given states of the others."""

    variables: tuple[int, ...]
    table: NDArray[np.float64]
    others: NDArray[np.int64]
    strides: NDArray[np.int64]
    own: int

    @classmethod
    def of(cls, variables: Sequence[int], table: NDArray[np.float64], v: int) -> _Term:
        """A table of the clique that takes out variable v."""
        table = np.asarray(table, order="C")
        steps = dict(zip(variables, (s // 8 for s in table.strides), strict=True))
        own = steps.pop(v, 0)
        return cls(
            tuple(variables), table, np.array(list(steps), dtype=np.int64),
            np.array(list(steps.values()), dtype=np.int64), own,
        )  # fmt: skip

    def over(self, axes: Sequence[int]) -> NDArray[np.float64]:
        """The table ready to broadcast over `axes`."""
        order = sorted(range(len(self.variables)), key=lambda k: axes.index(self.variables[k]))
        table = self.table.transpose(order)
        sizes = dict(zip((self.variables[k] for k in order), table.shape, strict=True))
        return table.reshape([sizes.get(v, 1) for v in axes])

    def rows(self, states: NDArray[np.int64], count: int) -> NDArray[np.float64]:
        """(K, count): the entries at the others' states, for each state of the own variable."""
        at = states[:, self.others] @ self.strides
        return self.table.ravel()[at[:, None] + self.own * np.arange(count)]


@dataclass(frozen=True, eq=False)
class Heaviest:
    """states (found, n), heaviest first, and their log weights as the walks added them up.

    walked: all states that walks ended at, some of them perhaps of weight zero. complete: no other
    state is heavier than the last of `states`, up to rounding.
    """

    states: NDArray[np.int64]
    log_weights: NDArray[np.float64]
    walked: NDArray[np.int64]
    complete: bool


class CliqueStates:
    """Messages of all cliques, by maxima or by sums, and states read from them.

    The model has no evidence and every variable is in the order. `cut`: some bucket has more than
    one clique; sums are not offered then. `stop(entries)` is asked before each clique's table;
    where it said so the object is `stopped`, and knows no states.
    """

    def __init__(
        self,
        model: FactorGraph,
        cliques: CliquesEvidence,
        *,
        maximise: bool = True,
        stop: Callable[[float], bool] = lambda entries: False,
    ) -> None:
        self.model = model
        self.cards: list[int] = model.cardinalities.tolist()
        self.order: list[int] = cliques.order.tolist()
        place = {v: b for b, v in enumerate(self.order)}
        self.buckets: list[list[int]] = [[] for _ in self.order]
        for c, scope in enumerate(cliques.scopes):
            self.buckets[place[scope[-1]]].append(c)
        self.cut = any(len(b) > 1 for b in self.buckets)
        assert maximise or not self.cut
        self._terms = self._own_terms(cliques)
        self._sent: list[_Term | None] = [None] * len(cliques.scopes)
        placed = {f for held in cliques.factors for f in held}
        loose = [f for f in range(model.n_factors) if f not in placed]
        constants = [float(model.log_tables[model.table_ptr[f]]) for f in loose]
        self.stopped = False
        for bucket in self.buckets:
            for c in bucket:
                if stop(math.prod([float(self.cards[v]) for v in cliques.scopes[c]])):
                    self.stopped = True
                    return
                constants += self._send(c, cliques, _largest if maximise else _log_sum)
        self.value = -math.inf if -math.inf in constants else math.fsum(constants)

    def _own_terms(self, cliques: CliquesEvidence) -> list[list[_Term]]:
        """Factors and shifts; a shift of -inf says that nothing has weight there, on both sides."""
        terms: list[list[_Term]] = []
        for scope, placed in zip(cliques.scopes, cliques.factors, strict=True):
            held = map(self.model.factor, placed)
            terms.append([_Term.of(f.scope, f.log_table, scope[-1]) for f in held])
        ends = cliques.shift_ptr.tolist()
        for p, (i, j) in enumerate(cliques.pairs.tolist()):
            entries = cliques.shifts[ends[p] : ends[p + 1]]
            shared = [v for v in cliques.scopes[i] if v in set(cliques.scopes[j])]
            for c, table in ((i, entries), (j, np.where(np.isneginf(entries), entries, -entries))):
                table = table.reshape([self.cards[v] for v in shared])
                terms[c].append(_Term.of(shared, table, cliques.scopes[c][-1]))
        return terms

    def _send(
        self,
        c: int,
        cliques: CliquesEvidence,
        reduce: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    ) -> list[float]:
        """Clique c's message goes to its parent; a root's value is returned."""
        scope, parent = cliques.scopes[c], int(cliques.parents[c])
        axes = (scope[-1], *scope[:-1])  # maxima over a first axis are fast
        table = np.zeros([self.cards[v] for v in axes])
        for term in self._terms[c]:
            table += term.over(axes)
        message = reduce(table)
        self._sent[c] = _Term.of(scope[:-1], message, -1)
        if parent < 0:
            return [float(message)]
        self._terms[parent].append(_Term.of(scope[:-1], message, cliques.scopes[parent][-1]))
        return []

    def _rows(self, b: int, states: NDArray[np.int64]) -> NDArray[np.float64]:
        """(K, states of the bucket's variable): what each is worth, the later variables held."""
        count = self.cards[self.order[b]]
        rows = np.zeros((len(states), count))
        for c in self.buckets[b]:
            for term in self._terms[c]:
                rows += term.rows(states, count)
        return rows

    def _promised(
        self, b: int, states: NDArray[np.int64], rows: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """(K,) what the bucket's messages say that its variable can bring."""
        if len(self.buckets[b]) == 1:
            return rows.max(axis=1)
        sent = [term for c in self.buckets[b] if (term := self._sent[c]) is not None]
        return np.sum([term.rows(states, 1)[:, 0] for term in sent], axis=0)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(count, n) independent states from the model's distribution, after sums; Z > 0."""
        out = np.zeros((count, len(self.cards)), dtype=np.int64)
        for b in range(len(self.order) - 1, -1, -1):
            rows = self._rows(b, out)
            shares = np.cumsum(np.exp(rows - rows.max(axis=1, keepdims=True)), axis=1)
            whole = shares[:, -1]
            # below the sum itself: a state without weight is never reached
            cut = np.minimum(rng.random(count) * whole, np.nextafter(whole, 0.0))
            out[:, self.order[b]] = (shares <= cut[:, None]).sum(axis=1)
        return out

    def heaviest(
        self, k: int = 1, *, walks: int | None = None, stop: Callable[[], bool] = bool
    ) -> Heaviest:
        """The k heaviest states; without cuts exactly these.

        `walks`: how many states may be tried, as many as are needed by default; `stop` is asked
        between them.
        """
        search = _Walks(self, k)
        while search.open and not search.finished and not stop():
            left = math.inf if walks is None else walks - search.made
            if left <= 0:
                break
            search.step(left)
        return search.found()


class _Walks:
    """Walks back from the last bucket, each from an open node of largest promise.

    A node is a set of states: those that agree with `state` in the variables of the buckets from
    `bucket` on. Walking from it fixes the rest, and every state passed over on the way is a new
    node: the nodes of all walks are disjoint and with the states found cover the space.
    """

    def __init__(self, cliques: CliqueStates, k: int) -> None:
        self.cliques, self.k = cliques, k
        n = len(cliques.cards)
        self.states, self.values = np.zeros((0, n), dtype=np.int64), np.zeros(0)
        self.made, self.batch, self.dropped = 0, 1, False
        # promise, row of `self.states` (or -1), bucket, state of the bucket's variable
        whole = cliques.value > -math.inf
        self._nodes = (
            np.full(int(whole), cliques.value), np.full(int(whole), -1),
            np.full(int(whole), len(cliques.order)), np.zeros(int(whole), dtype=np.int64),
        )  # fmt: skip

    @property
    def open(self) -> int:
        return self._nodes[0].size

    @property
    def _least(self) -> float:
        """What a state must exceed to be wanted."""
        values = self.values[self.values > -math.inf]
        if values.size < self.k:
            return -math.inf
        return float(np.partition(values, values.size - self.k)[values.size - self.k])

    @property
    def finished(self) -> bool:
        return not self.open or float(self._nodes[0].max()) <= self._least

    def step(self, left: float) -> None:
        promise, row, bucket, state = self._nodes
        count = int(min(self.batch, left, self.open))
        self.batch = min(2 * self.batch, _BATCH)
        best = np.argpartition(-promise, count - 1)[:count]
        keep = np.ones(promise.size, dtype=bool)
        keep[best] = False
        new = self._walk(promise[best], row[best], bucket[best], state[best])
        nodes = [
            np.concatenate([old[keep], more]) for old, more in zip(self._nodes, new, strict=True)
        ]
        wanted = nodes[0] > self._least
        nodes = [column[wanted] for column in nodes]
        # Without cuts every node holds a state of that weight, so k of them are enough.
        room = max(self.k, _OPEN if self.cliques.cut else 0)
        if nodes[0].size > room:
            top = np.argpartition(-nodes[0], room - 1)[:room]
            self.dropped = self.cliques.cut
            nodes = [column[top] for column in nodes]
        self._nodes = tuple(nodes)  # type: ignore[assignment]

    def _walk(
        self,
        promise: NDArray[np.float64],
        row: NDArray[np.int64],
        bucket: NDArray[np.int64],
        state: NDArray[np.int64],
    ) -> list[NDArray]:
        """Fix what each node leaves open; the nodes that were passed over."""
        cliques, first = self.cliques, len(self.states)
        states = np.zeros((len(row), len(cliques.cards)), dtype=np.int64)
        old = row >= 0
        states[old] = self.states[row[old]]
        order = np.array([*cliques.order, 0], dtype=np.int64)
        states[old, order[bucket[old]]] = state[old]
        value = promise.copy()
        least = self._least
        passed: list[list[NDArray]] = [[], [], [], []]
        for b in range(int(bucket.max()) - 1, -1, -1):
            on = np.flatnonzero(bucket > b)
            here = states[on]
            rows = cliques._rows(b, here)
            # Everything else stays at what it promised, so a state is worth what its bucket loses.
            with np.errstate(invalid="ignore"):
                worth = value[on, None] - (cliques._promised(b, here, rows)[:, None] - rows)
            worth[np.isnan(worth)] = -np.inf
            chosen = worth.argmax(axis=1)
            states[on, cliques.order[b]] = chosen
            value[on] = worth[np.arange(on.size), chosen]
            worth[np.arange(on.size), chosen] = -np.inf
            which, x = np.nonzero(worth > least)
            for column, more in zip(
                passed, (worth[which, x], first + on[which], np.full(x.size, b), x), strict=True
            ):
                column.append(more)
        self.states = np.concatenate([self.states, states])
        self.values = np.concatenate([self.values, value])
        self.made += len(states)
        return [np.concatenate(column) if column else np.zeros(0, np.int64) for column in passed]

    def found(self) -> Heaviest:
        real = np.flatnonzero(self.values > -math.inf)
        top = real[np.argsort(-self.values[real], kind="stable")][: self.k]
        complete = self.finished and not self.dropped
        return Heaviest(self.states[top], self.values[top], self.states, complete)


def _largest(table: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(table.max(axis=0))


def _log_sum(table: NDArray[np.float64]) -> NDArray[np.float64]:
    top = table.max(axis=0)
    safe = np.where(np.isneginf(top), 0.0, top)
    table -= safe
    np.exp(table, out=table)
    with np.errstate(divide="ignore"):
        return np.asarray(safe + np.log(table.sum(axis=0)))
