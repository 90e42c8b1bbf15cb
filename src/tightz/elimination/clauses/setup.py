"""Work space for a count: every array, sized from the clauses and from the memory allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.clauses import arrays as a
from tightz.elimination.clauses.search import (
    FOLLOW,
    NEED_LEARNED,
    NEED_PARTS,
    add_values,
)

_LEARNED = 20_000  # clauses; half of them are dropped when they are too many
_KEY_WORDS = 24  # words of cache that an entry is expected to take


class Weights(NamedTuple):
    """Weights of literals 2 v + s as mantissa * 2^exponent, mantissas in [1/2, 1), or all zero.

    error: bounds on their relative errors, in units of 2^-53.
    """

    mantissa: NDArray[np.float64]
    exponent: NDArray[np.int64]
    error: NDArray[np.float64]

    @classmethod
    def ones(cls, n: int) -> Weights:
        return cls(np.full(2 * n, 0.5), np.ones(2 * n, np.int64), np.zeros(2 * n))

    def sums(self) -> Weights:
        """(n,) the sum of each variable's two weights."""
        rows = [
            add_values(*((self.mantissa[x], self.exponent[x], self.error[x]) for x in (v, v + 1)))
            for v in range(0, self.mantissa.size, 2)
        ]
        table = np.array(rows, dtype=np.float64).reshape(-1, 3)
        return Weights(table[:, 0].copy(), table[:, 1].astype(np.int64), table[:, 2].copy())


def _by_row(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    flat = [x for row in rows for x in row]
    return ptr, np.array(flat, dtype=np.int32)


def new_work(
    n: int,
    clauses: Sequence[Sequence[int]],
    weights: Weights,
    priority: NDArray[np.float64],
    memory: int,
    *,
    learning: bool = True,
    tracing: bool = True,
) -> a.Work:
    """Work space within about `memory` bytes for `clauses`: no empty ones, no literal twice in one,
    no two of one literal that contradict each other (`ClauseModel.contradiction`)."""
    implied: list[list[int]] = [[] for _ in range(2 * n)]
    occurs: list[list[int]] = [[] for _ in range(n)]
    long = [c for c in clauses if len(c) > 2]
    units = [c[0] for c in clauses if len(c) == 1]
    for c in clauses:
        if len(c) == 2:
            implied[c[0] ^ 1].append(c[1])
            implied[c[1] ^ 1].append(c[0])
    for k, c in enumerate(long):
        for x in c:
            occurs[x >> 1].append(2 * k + (x & 1))
    either = weights.sums()
    formula = a.Formula(
        *_by_row(implied), *_by_row(occurs),
        weights.mantissa, weights.exponent, weights.error,
        either.mantissa, either.exponent, either.error,
        np.asarray(priority, dtype=np.float64),
    )  # fmt: skip
    registers = np.zeros(a.N_REGISTERS, np.int64)
    registers[a.LEARNING], registers[a.TRACING] = learning, tracing
    registers[a.MODE], registers[a.PARTS], registers[a.STAMP] = FOLLOW, 1, 1
    work = a.Work(
        registers, formula, _trail(n), _clauses(n, long), _parts(n, len(long)), _levels(n),
        _cache(memory // 2, n, len(long)), _trace(n),
    )  # fmt: skip
    registers[a.CLAUSES] = len(long)
    registers[a.POOL] = sum(map(len, long))
    watch(work)
    for x in units:
        v = x >> 1
        if work.trail.value[v] < 0:
            work.trail.value[v] = x & 1
            work.trail.literals[registers[a.TRAIL]] = x
            registers[a.TRAIL] += 1
    return work


def _trail(n: int) -> a.Trail:
    return a.Trail(
        literals=np.empty(n + 1, np.int32), value=np.full(n, -1, np.int8),
        reason=np.full(n, -1, np.int32), level=np.zeros(n, np.int32), owner=np.zeros(n, np.int32),
        seen=np.zeros(n, np.int8), met=np.empty(n + 1, np.int32),
        clause=np.empty(n + 2, np.int32), first_cut=np.empty(n + 2, np.int32),
        activity=np.zeros(n), bump=np.ones(2),
    )  # fmt: skip


def _clauses(n: int, long: Sequence[Sequence[int]]) -> a.Clauses:
    room, own = len(long) + _LEARNED, sum(map(len, long))
    pool = np.empty(own + max(1 << 20, 64 * n), np.int32)
    start, length = np.empty(room, np.int64), np.empty(room, np.int32)
    at = 0
    for k, c in enumerate(long):
        pool[at : at + len(c)] = c
        start[k], length[k] = at, len(c)
        at += len(c)
    return a.Clauses(
        pool, start, length, np.full(2 * n, -1, np.int32), np.empty(2 * room, np.int32),
        np.zeros(room), np.array([len(long)], np.int64),
    )  # fmt: skip


def _parts(n: int, n_long: int) -> a.Parts:
    parts = a.Parts(
        var_ptr=np.zeros(2 * n + 8, np.int64), clause_ptr=np.zeros(2 * n + 8, np.int64),
        variables=np.empty(8 * n + 16, np.int32), clauses=np.empty(8 * n_long + 16, np.int32),
        part_of=np.zeros(n, np.int64), clause_of=np.zeros(n_long, np.int64),
        often=np.zeros(2 * n, np.int32), queue=np.empty(n + 1, np.int32),
        sizes=np.empty(n + 2, np.int64),
    )  # fmt: skip
    parts.var_ptr[1], parts.clause_ptr[1] = n, n_long
    parts.variables[:n] = np.arange(n)
    parts.clauses[:n_long] = np.arange(n_long)
    return parts


def _levels(n: int) -> a.Levels:
    size = n + 2

    def numbers() -> NDArray[np.int64]:
        return np.zeros(size, np.int64)

    levels = a.Levels(
        literal=np.zeros(size, np.int32), branch=np.zeros(size, np.int8), part=numbers(),
        trail=numbers(), free=numbers(), kids=numbers(), serial=numbers(), uses=numbers(),
        found=numbers(), mantissa=np.zeros((size, 3)), exponent=np.zeros((size, 3), np.int64),
        error=np.zeros((size, 3)), record=np.full((size, 2), -1, np.int64),
    )  # fmt: skip
    levels.mantissa[0, 2], levels.exponent[0, 2] = 0.5, 1
    return levels


def _cache(memory: int, n: int, n_long: int) -> a.Cache:
    longest = 4 + (n + 63) // 64 + (n_long + 63) // 64
    words = min(_KEY_WORDS, longest)
    entries = max(4, memory // (2 * (8 * words + 65)))
    heads = 1 << max(2, int(entries).bit_length() - 1)
    shape = (2, entries)
    return a.Cache(
        head=np.full((2, heads), -1, np.int32), follow=np.empty(shape, np.int32),
        hash=np.empty(shape, np.uint64), at=np.empty(shape, np.int64),
        length=np.empty(shape, np.int32), mantissa=np.empty(shape),
        exponent=np.empty(shape, np.int64), error=np.empty(shape),
        node=np.empty(shape, np.int64), pure=np.empty(shape, np.int8),
        words=np.empty((2, max(entries * words, longest)), np.uint64),
        filled=np.zeros(2, np.int64), used=np.zeros(2, np.int64), base=np.zeros(2, np.int64),
        key=np.empty(longest + 8, np.uint64),
    )  # fmt: skip


def _trace(n: int) -> a.Trace:
    return a.Trace(
        records=np.empty((1024, 2), np.int64), ends=np.empty((1024, 3), np.int64),
        share=np.empty(1024), items=np.empty(4096 + 8 * n, np.int32),
        free=np.empty(n + 2, np.int32), kids=np.empty(2 * n + 8, np.int64),
    )  # fmt: skip


def watch(work: a.Work) -> None:
    """Enter the first two literals of every clause into the lists of watches."""
    clauses, count = work.clauses, int(work.registers[a.CLAUSES])
    clauses.head[:] = -1
    watched = clauses.pool[(clauses.start[:count, None] + np.arange(2)).ravel()]
    for watch, literal in enumerate(watched.tolist()):
        clauses.follow[watch] = clauses.head[literal]
        clauses.head[literal] = watch


def make_room(work: a.Work, need: int) -> a.Work:
    """The same work with more room where a kernel asked for it, or with fewer learned clauses."""
    if need == NEED_LEARNED:
        _forget(work)
        return work
    if need == NEED_PARTS:
        parts = work.parts
        return work._replace(
            parts=parts._replace(
                variables=_doubled(parts.variables), clauses=_doubled(parts.clauses)
            )
        )
    trace = work.trace
    return work._replace(
        trace=trace._replace(
            records=_doubled(trace.records), ends=_doubled(trace.ends),
            share=_doubled(trace.share), items=_doubled(trace.items),
        )
    )  # fmt: skip


def _doubled(values: NDArray) -> NDArray:
    more = np.empty((2 * values.shape[0], *values.shape[1:]), values.dtype)
    more[: values.shape[0]] = values
    return more


def _forget(work: a.Work) -> None:
    """Drop the half of the learned clauses that helped least; reasons of assignments stay."""
    clauses, trail, r = work.clauses, work.trail, work.registers
    own, count = int(clauses.own[0]), int(r[a.CLAUSES])
    variables = trail.literals[: r[a.TRAIL]] >> 1
    reasons = trail.reason[variables]
    keep = clauses.use[own:count] > np.median(clauses.use[own:count])
    keep |= clauses.length[own:count] <= 3
    keep[reasons[reasons >= own] - own] = True
    kept = own + np.flatnonzero(keep)
    number = np.full(count, -1, np.int32)
    number[:own] = np.arange(own)
    number[kept] = own + np.arange(kept.size)
    trail.reason[variables] = np.where(reasons >= 0, number[np.maximum(reasons, 0)], reasons)
    at = int(clauses.start[own]) if count > own else int(r[a.POOL])
    for new, old in enumerate(kept.tolist(), start=own):
        size, s = int(clauses.length[old]), int(clauses.start[old])
        clauses.pool[at : at + size] = clauses.pool[s : s + size].copy()
        clauses.start[new], clauses.length[new] = at, size
        clauses.use[new] = clauses.use[old]
        at += size
    r[a.CLAUSES], r[a.POOL] = own + kept.size, at
    r[a.REDUCTIONS] += 1
    watch(work)
