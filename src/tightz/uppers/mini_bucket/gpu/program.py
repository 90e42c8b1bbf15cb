"""A partition as a program for the device: where every table lies, and what is launched when.

All tables lie in one array of float32: factors, shifts, messages (on the way down r takes their
place), and room for the beliefs of the buckets at work. Cliques whose children are done go up
together, buckets whose parents are done go down together. Records are what the kernels say they
are; runs say how an index moves in a smaller table (`kernels._offset`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.uppers.mini_bucket.gpu.factors import factor_tables, runs_of, strides_of
from tightz.uppers.mini_bucket.partition import Partition

ROOM = 1 << 26
"""Entries for the beliefs of buckets at work together, or one bucket where that needs more."""

FEW, LONG = 1 << 17, 32
"""Fewer sums than this, each longer than that, are taken in two steps."""

LISTED = 256
"""Entries of a sum up to which the offsets of all are listed."""


class Kernel(enum.IntEnum):
    FORWARD, BELIEFS, GATHER, MATCH, FOLLOW, WEIGH = range(6)


class Launch(NamedTuple):
    kernel: Kernel
    blocks: int
    at: int


class Span(NamedTuple):
    low: int
    high: int


class Term(NamedTuple):
    """A table in `pool` that is added to a clique's, times `sign`; a message less its level."""

    place: int
    sign: int
    child: int
    scope: tuple[int, ...]


class Program(NamedTuple):
    """`plan` and the launches of both passes; spans of `pool`; places in `reals`.

    terms: per clique; message_at: where its message lies; blur: nats by which the factors in
    float32 may differ from the model.
    """

    plan: NDArray[np.int64]
    forward: list[Launch]
    backward: list[Launch]
    factors: NDArray[np.float32]
    shifts: Span
    messages: Span
    entries: int
    weights: Span
    levels: Span
    sums: Span
    steps: Span
    reals: int
    terms: list[list[Term]]
    message_at: list[int]
    blur: float


def predicted_bytes(parts: Partition) -> float:
    """Device memory of a descent and of its judgement, which has messages of its own."""
    sizes = parts.table_sizes
    if not sizes.size:
        return 0.0
    rows = sizes / parts.cardinalities[parts.tree.scope[parts.tree.scope_ptr[:-1]]]
    bucket = float(np.add.reduceat(sizes, parts.bucket_ptr[:-1]).max())
    room = max(min(ROOM, float(sizes.sum())), 2.0 * bucket)
    descent = 4.0 * (float(rows.sum()) + 2.0 * parts.shift_entries + room)
    return descent + 8.0 * 1.5 * _waiting(parts, rows) + 2000.0 * sizes.size


def _waiting(parts: Partition, rows: NDArray[np.float64]) -> float:
    """Entries of the messages that wait for their parents, at most; gaps between them not."""
    freed = np.zeros(rows.size)
    held = parts.parents >= 0
    np.add.at(freed, parts.parents[held], rows[held])
    # a message is there before those that it was made of are let go
    return float((np.cumsum(rows) - np.concatenate([[0.0], np.cumsum(freed)[:-1]])).max())


def program(parts: Partition, items: int) -> Program:
    """The program of a partition; `items`: entries of a block."""
    return _Builder(parts, items).build()


class _Builder:
    def __init__(self, parts: Partition, items: int) -> None:
        self.parts, self.items = parts, items
        self.words: list[int] = [0]  # so that no record lies at 0
        self.cards: list[int] = parts.cardinalities.tolist()
        self.cliques, self.parents = parts.cliques, parts.parents.tolist()
        self.children = parts.tree.children
        self.count = count = len(self.cliques)
        self.sizes = [math.prod(self.cards[v] for v in s) for s in self.cliques]
        self.weights, self.levels = Span(0, count), Span(count, 2 * count)
        self.sums = Span(2 * count, 4 * count)
        self.steps = Span(4 * count, 4 * count + 2)
        self.entropies = Span(self.steps.high, self.steps.high + count)
        self.factors, self.placed, self.blur = factor_tables(parts)
        self.pairs = [pair for bucket in parts.pairs for pair in bucket]
        ends = np.cumsum([0, *map(len, parts.pairs)]).tolist()
        self.pairs_in = [range(low, high) for low, high in pairwise(ends)]  # by bucket
        self.pairs_of: list[list[int]] = [[] for _ in self.cliques]
        for p, (i, j, _) in enumerate(self.pairs):
            self.pairs_of[i].append(p)
            self.pairs_of[j].append(p)
        lengths = np.diff(parts.bucket_ptr)
        self.cut: list[bool] = np.repeat(lengths > 1, lengths).tolist()
        at = np.cumsum([0, *(self._entries(shared) for _, _, shared in self.pairs)])
        self.shift_at = (at + self.factors.size).tolist()
        rows = [size // self.cards[s[-1]] for size, s in zip(self.sizes, self.cliques, strict=True)]
        self.rows = rows
        self.message_at = (np.cumsum([0, *rows]) + self.shift_at[-1]).tolist()
        self.room = self.message_at[-1]
        self.peak = self.room

    def build(self) -> Program:
        self.terms = [self._terms(c) for c in range(self.count)]
        self.records = [self._clique(c) for c in range(self.count)]
        forward = self._forward()
        backward = self._backward()
        return Program(
            plan=np.array(self.words, dtype=np.int64),
            forward=forward,
            backward=backward,
            factors=self.factors,
            shifts=Span(self.factors.size, self.shift_at[-1]),
            messages=Span(self.message_at[0], self.message_at[-1]),
            entries=self.peak,
            weights=self.weights,
            levels=self.levels,
            sums=self.sums,
            steps=self.steps,
            reals=self.entropies.high,
            terms=self.terms,
            message_at=self.message_at,
            blur=self.blur,
        )

    def _entries(self, scope: Iterable[int]) -> int:
        return math.prod(self.cards[v] for v in scope)

    # Records ------------------------------------------------------------------------------

    def _record(self, words: Sequence[int]) -> int:
        at = len(self.words)
        self.words += words
        return at

    def _runs(self, axes: Sequence[int], strides: Sequence[int]) -> list[int]:
        return runs_of([self.cards[v] for v in axes], strides)

    def _strides(self, axes: Sequence[int], into: Sequence[int]) -> list[int]:
        return strides_of(axes, into, self.cards)

    def _terms(self, c: int) -> list[Term]:
        terms = [Term(base, 1, -1, own) for base, own in self.placed[c]]
        for p in self.pairs_of[c]:
            first, _, shared = self.pairs[p]
            terms.append(Term(self.shift_at[p], 1 if c == first else -1, -1, shared))
        for k in self.children[c]:
            terms.append(Term(self.message_at[k], 1, k, self.cliques[k][:-1]))
        return terms

    def _clique(self, c: int) -> int:
        """Of `kernels.forward`."""
        scope, terms = self.cliques[c], self.terms[c]
        words = [
            self.rows[c], self.cards[scope[-1]], self.message_at[c], c, len(terms),
            self.levels.low + c,
        ]  # fmt: skip
        for base, sign, child, held in terms:
            strides = self._strides(scope, held)
            runs = self._runs(scope[:-1], strides[:-1])
            level = self.levels.low + child if child >= 0 else -1
            words += [base, sign, level, strides[-1], 5 + len(runs), *runs]
        return self._record(words)

    # Launches -----------------------------------------------------------------------------

    def _launch(self, kernel: Kernel, items: Sequence[tuple[int, int]]) -> list[Launch]:
        """One launch over (record, items); none where there is nothing to do."""
        if not items:
            return []
        ends = np.cumsum([-(-count // self.items) for _, count in items]).tolist()
        at = self._record([len(items), *ends, *(record for record, _ in items)])
        return [Launch(kernel, ends[-1], at)]

    def _forward(self) -> list[Launch]:
        level = [0] * self.count
        for c, parent in enumerate(self.parents):
            if parent >= 0:
                level[parent] = max(level[parent], level[c] + 1)
        waves: list[list[int]] = [[] for _ in range(max(level, default=-1) + 1)]
        for c, number in enumerate(level):
            waves[number].append(c)
        out = []
        for wave in waves:
            out += self._launch(Kernel.FORWARD, [(self.records[c], self.rows[c]) for c in wave])
        return out

    def _backward(self) -> list[Launch]:
        ends = self.parts.bucket_ptr.tolist()
        bucket_of = np.repeat(np.arange(len(ends) - 1), np.diff(ends)).tolist()
        level = [0] * (len(ends) - 1)
        waves: dict[int, list[int]] = {}
        for b in range(len(ends) - 2, -1, -1):
            above = [self.parents[c] for c in range(ends[b], ends[b + 1]) if self.parents[c] >= 0]
            level[b] = max((level[bucket_of[p]] + 1 for p in above), default=0)
            waves.setdefault(level[b], []).append(b)
        out = []
        for number in sorted(waves):
            group: list[int] = []
            held = 0
            for b in waves[number]:
                need = sum(self.sizes[ends[b] : ends[b + 1]])
                if group and held + need > ROOM:
                    out += self._down(group)
                    group, held = [], 0
                group.append(b)
                held += need
            out += self._down(group)
        return out

    def _down(self, group: list[int]) -> list[Launch]:
        """Buckets of one level: beliefs, matching pair by pair, weights, and r of the children."""
        ends, self.top = self.parts.bucket_ptr.tolist(), self.room
        begun, held = [], {}
        for b in group:
            for c in range(ends[b], ends[b + 1]):
                if not self.cut[c] and not self.children[c]:
                    continue  # nobody asks
                held[c] = self._take(self.sizes[c])
                sums = self.sums.low + 2 * c if self.cut[c] else -1
                words = [self.records[c], held[c], int(self.parents[c] < 0), sums]
                begun.append((self._record(words), self.rows[c]))
        out = self._launch(Kernel.BELIEFS, begun)
        pairs = [self.pairs_in[b] for b in group]
        for turn in range(max(map(len, pairs), default=0)):
            out += self._matches([p[turn] for p in pairs if len(p) > turn], held)
        weigh = []
        for b in group:
            low, count = ends[b], ends[b + 1] - ends[b]
            if count > 1:
                words = [
                    1, count, low, self.sums.low + 2 * low, self.steps.low + 1,
                    self.entropies.low + low,
                ]  # fmt: skip
                weigh.append((self._record(words), 1))
        out += self._launch(Kernel.WEIGH, weigh)
        sent = [
            self._gathers(c, held[c], self.cliques[k][:-1], self.message_at[k])
            for b in group
            for c in range(ends[b], ends[b + 1])
            for k in self.children[c]
        ]
        out += self._steps(sent)
        self.peak = max(self.peak, self.top)
        return out

    def _take(self, entries: int) -> int:
        at = self.top
        self.top += entries
        return at

    def _matches(self, pairs: list[int], held: dict[int, int]) -> list[Launch]:
        """One pair of each bucket."""
        sums, matches, follows = [], [], []
        for p in pairs:
            i, j, shared = self.pairs[p]
            size = self._entries(shared)
            one, two = self._take(size), self._take(size)
            sums += [self._gathers(i, held[i], shared, one), self._gathers(j, held[j], shared, two)]
            words = [size, one, two, self.shift_at[p], i, j, self.steps.low]
            matches.append((self._record(words), size))
            for c, sign in ((i, 1), (j, -1)):
                if not self.children[c] and len(self.pairs_of[c]) == 1:
                    continue  # nobody asks
                runs = self._runs(self.cliques[c], self._strides(self.cliques[c], shared))
                words = [self.sizes[c], held[c], one, sign, c, *runs]
                follows.append((self._record(words), self.sizes[c]))
        return [
            *self._steps(sums),
            *self._launch(Kernel.MATCH, matches),
            *self._launch(Kernel.FOLLOW, follows),
        ]

    def _gathers(
        self, c: int, source: int, keep: Sequence[int], target: int
    ) -> list[tuple[int, int]]:
        """Marginals of a belief: one record, or several where few sums are very long."""
        less = self.sums.low + 2 * c if self.cut[c] else -1
        axes, kept, out = list(self.cliques[c]), set(keep), []
        while True:
            rest = [v for v in axes if v not in kept]
            step, left = set(axes), self._entries(axes)
            if self._entries(kept) >= FEW or self._entries(rest) <= LONG:
                step = set(kept)
            else:
                # the slow axes first: neighbours are then read together
                summed = 1
                for v in rest:
                    if summed >= LONG and left // self.cards[v] < FEW:
                        break
                    step.remove(v)
                    left //= self.cards[v]
                    summed *= self.cards[v]
            last = step == kept
            into = [v for v in axes if v in step]
            size = self._entries(into)
            place = target if last else self._take(size)
            out.append((self._gather(axes, into, source, place, less if last else -1), size))
            if last:
                return out
            axes, source = into, place

    def _gather(self, axes: list[int], into: list[int], source: int, target: int, less: int) -> int:
        rest = [v for v in axes if v not in into]
        strides = dict(zip(axes, self._strides(axes, axes), strict=True))
        red = self._reduced(rest, [strides[v] for v in rest])
        runs = self._runs(into, [strides[v] for v in into])
        words = [self._entries(into), source, target, self._entries(rest), red, less, *runs]
        return self._record(words)

    def _reduced(self, axes: list[int], strides: list[int]) -> int:
        """Where entries lie that are summed: offsets of each, or minus the place of runs."""
        if self._entries(axes) > LISTED:
            return -self._record(self._runs(axes, strides))
        offsets = [0]
        for v, stride in zip(axes, strides, strict=True):
            offsets = [at + digit * stride for at in offsets for digit in range(self.cards[v])]
        return self._record(offsets)

    def _steps(self, chains: list[list[tuple[int, int]]]) -> list[Launch]:
        """The first steps of all chains together, then the second ones."""
        out = []
        for number in range(max(map(len, chains), default=0)):
            turn = [chain[number] for chain in chains if len(chain) > number]
            out += self._launch(Kernel.GATHER, turn)
        return out
