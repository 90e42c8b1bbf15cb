"""One pass over a large table that sums out several variables on the way, block by block.

A plan's chain of buckets (each the only one to receive the message before) reads and writes a table
of the same size again and again, and memory is what takes the time. A pass does the whole chain on
a block that fits in the cache: for each state of the axes that the chain leaves alone it holds the
`local` states of those that it sums out or brings in, as rows, and a `tile` of other axes along
them. A step of the pass turns rows X into rows Y(j) = sum_v coefficient(j, v) X(row(j, v)), the
coefficients being entries of the small tables that the step multiplies in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.schedule import Placed, joint_offsets, strides_of
from tightz.runtime.kernels import inner, kernel

BLOCK_ENTRIES = 16384
"""Rows times tile: two such blocks stay in the first or second level of the cache."""

MOST_ROWS = 256
LEAST_TILE, MOST_TILE = 8, 512
GOOD_TILE = 32
SHORT = 16  # entries; shorter runs are walked column by column


Axes: TypeAlias = tuple[tuple[int, ...], Sequence[tuple[int, ...]]]
"""What a step sums out, and the axes of each of its side tables."""


class Turn(NamedTuple):
    """One step of a pass: the axes that it sums out, and the small tables that it multiplies in."""

    summed: tuple[int, ...]
    sides: tuple[Placed, ...]


class _Steps(NamedTuple):
    """The steps, flat: step s has rows[s] results of terms[s] products each.

    fan[s] results that follow one another are made of the same rows.

    `row` and, per side table, `offset` have one entry per (step, result, term) from first[s] on.
    Side tables of step s are side_ptr[s]:side_ptr[s+1]; `along` says whether their entries change
    along the tile, and `tile` (sides, tile) where they then lie.
    """

    rows: NDArray[np.int64]
    terms: NDArray[np.int64]
    fan: NDArray[np.int64]
    first: NDArray[np.int64]
    row: NDArray[np.int64]
    side_ptr: NDArray[np.int64]
    base: NDArray[np.int64]
    outer: NDArray[np.int64]
    along: NDArray[np.bool_]
    offset_first: NDArray[np.int64]
    offset: NDArray[np.int64]
    tile: NDArray[np.int64]


class _Ends(NamedTuple):
    """Where the pass reads or writes: base + outer . digits + row + tile.

    `run` entries of the tile at a time lie one after the other.
    """

    base: int
    outer: NDArray[np.int64]
    row: NDArray[np.int64]
    tile: NDArray[np.int64]
    run: int


class PassLayout(NamedTuple):
    """All that `run_pass` needs but the arena."""

    dims: NDArray[np.int64]
    source: _Ends
    target: _Ends
    steps: _Steps
    most_rows: int

    @property
    def n_outer(self) -> int:
        return int(np.prod(self.dims))


def local_rows(main: tuple[int, ...], turns: Sequence[Axes]) -> list[tuple[int, ...]]:
    """The local axes before the first step and after each."""
    gone = {a for summed, _ in turns for a in summed}
    rows = [tuple(a for a in main if a in gone)]
    known = set(main)
    for summed, sides in turns:
        new = sorted({a for axes in sides for a in axes} - known)
        known.update(new)
        rows.append(tuple(a for a in (*rows[-1], *new) if a not in summed))
    return rows


def repeated(main: tuple[int, ...], turns: Sequence[Axes], cards: Sequence[int]) -> tuple[int, ...]:
    """New axes that a pass of one step loops over, since as rows they would be too many."""
    if len(turns) > 1:
        return ()
    new = [a for a in local_rows(main, turns)[-1] if a not in main]
    most = MOST_ROWS
    loops: list[int] = []
    for a in reversed(new):
        if cards[a] <= most and not loops:
            most //= cards[a]
        else:
            loops.append(a)
    return tuple(reversed(loops))


def pass_layout(
    main: Placed, turns: Sequence[Turn], out: Placed, cards: Sequence[int]
) -> PassLayout | None:
    """How a pass from `main` to `out` walks; None where blocks would be too large or too thin."""
    axes = [(t.summed, [s.axes for s in t.sides]) for t in turns]
    loops = repeated(main.axes, axes, cards)
    rows = [tuple(a for a in r if a not in loops) for r in local_rows(main.axes, axes)]
    counts = [math.prod(cards[a] for a in axes) for axes in rows]
    if max(counts) > MOST_ROWS:
        return None
    gone = {a for t in turns for a in t.summed}
    tile = tile_of(main.axes, axes, cards, max(counts))
    inner = tuple(cards[a] for a in tile)
    if math.prod(inner) < LEAST_TILE:
        return None
    outer = [*(a for a in main.axes if a not in tile and a not in gone), *loops]

    def ends(table: Placed, local: tuple[int, ...]) -> _Ends:
        step = strides_of(table.axes, cards)
        along = joint_offsets(inner, tuple(step[a] for a in tile))
        return _Ends(
            table.start,
            np.array([step.get(a, 0) for a in outer], dtype=np.int64),
            joint_offsets(tuple(cards[a] for a in local), tuple(step[a] for a in local)),
            along,
            _run(along),
        )

    return PassLayout(
        np.array([cards[a] for a in outer], dtype=np.int64),
        ends(main, rows[0]),
        ends(out, rows[-1]),
        _flat_steps(turns, rows, outer, tile, cards),
        max(counts),
    )


def _run(along: NDArray[np.int64]) -> int:
    """The largest part of a tile such that all parts of that length are in step."""
    size = along.size
    while not (along.reshape(-1, size) - along[::size, None] == np.arange(size)).all():
        size = next(k for k in range(size - 1, 0, -1) if along.size % k == 0)
    return size


def tile_of(
    main: tuple[int, ...], turns: Sequence[Axes], cards: Sequence[int], rows: int
) -> tuple[int, ...]:
    """The axes that run along a row of a block of `rows` rows, as they shall lie in the result.

    The table's fastest ones as long as the pass touches none of them. Where too few of those are
    left, the ones that are summed out last (numbers go by that), and before them what is left of
    the fastest, so that the read finds whole stretches of the table.
    """
    most = min(MOST_TILE, BLOCK_ENTRIES // rows)
    gone = {a for summed, _ in turns for a in summed}
    touched = gone.union(*(axes for _, sides in turns for axes in sides))

    def fitting(axes: Iterable[int], most: int) -> list[int]:
        chosen: list[int] = []
        size = 1
        for a in axes:
            if size * cards[a] > most:
                break
            chosen.append(a)
            size *= cards[a]
        return chosen

    last = fitting(itertools.takewhile(lambda a: a not in touched, reversed(main)), most)
    if math.prod(cards[a] for a in last) < GOOD_TILE:
        free = sorted((a for a in main if a not in touched), reverse=True)
        last = fitting(free, min(2 * GOOD_TILE, most))
    more = [a for a in reversed(main) if a not in touched and a not in last]
    if not more and not last:  # side tables change along the tile: slower, but it works
        more = [a for a in reversed(main) if a not in gone]
    near = fitting(more, most // math.prod(cards[a] for a in last))
    return (*reversed(near), *reversed(last))


def _flat_steps(
    turns: Sequence[Turn],
    rows: list[tuple[int, ...]],
    outer: list[int],
    tile: tuple[int, ...],
    cards: Sequence[int],
) -> _Steps:
    inner = tuple(cards[a] for a in tile)
    row: list[NDArray[np.int64]] = []
    offset: list[NDArray[np.int64]] = []
    walks: list[NDArray[np.int64]] = []
    outers: list[list[int]] = []
    first, at, terms, fan, side_ptr = [], 0, [], [], [0]
    base, along, offset_first = [], [], []
    for turn, before, after in zip(turns, rows[:-1], rows[1:], strict=True):
        axes = (*after, *turn.summed)  # results slowest, terms fastest
        shape = tuple(cards[a] for a in axes)
        step = strides_of(before, cards)
        row.append(joint_offsets(shape, tuple(step.get(a, 0) for a in axes)))
        terms.append(math.prod(cards[a] for a in turn.summed))
        fan.append(math.prod(cards[a] for a in after if a not in before))
        first.append(at)
        for side in turn.sides:
            step = strides_of(side.axes, cards)
            base.append(side.start)
            outers.append([step.get(a, 0) for a in outer])
            along.append(any(a in side.axes for a in tile))
            offset_first.append(sum(o.size for o in offset))
            offset.append(joint_offsets(shape, tuple(step.get(a, 0) for a in axes)))
            walks.append(joint_offsets(inner, tuple(step.get(a, 0) for a in tile)))
        side_ptr.append(len(base))
        at += row[-1].size
    return _Steps(
        np.array([r.size // t for r, t in zip(row, terms, strict=True)], dtype=np.int64),
        np.array(terms, dtype=np.int64),
        np.array(fan, dtype=np.int64),
        np.array(first, dtype=np.int64),
        np.concatenate(row),
        np.array(side_ptr, dtype=np.int64),
        np.array(base, dtype=np.int64),
        np.array(outers, dtype=np.int64).reshape(len(base), len(outer)),
        np.array(along, dtype=np.bool_),
        np.array(offset_first, dtype=np.int64),
        np.concatenate([*offset, np.zeros(0, np.int64)]),
        np.array(walks, dtype=np.int64).reshape(len(base), math.prod(inner)),
    )


# Rows are walked by unsigned numbers: a slice of an array costs more than a short row (references
# are counted), and an index that might be negative keeps LLVM from vectorising.


@inner
def _set_one(out, o, flat, x, y, size, c, d):  # type: ignore[no-untyped-def]
    for i in range(size):
        t = np.uint64(i)
        out[o + t] = c * flat[x + t] + d * flat[y + t]


@inner
def _add_one(out, o, flat, x, y, size, c, d):  # type: ignore[no-untyped-def]
    for i in range(size):
        t = np.uint64(i)
        out[o + t] += c * flat[x + t] + d * flat[y + t]


@inner
def _set_two(out, o, flat, x, y, size, c, d, e, f):  # type: ignore[no-untyped-def]
    """Two results of the same rows, one after the other: each row is read once for both."""
    for i in range(size):
        t = np.uint64(i)
        p, q = flat[x + t], flat[y + t]
        out[o + t] = c * p + d * q
        out[o + np.uint64(size) + t] = e * p + f * q


@inner
def _add_two(out, o, flat, x, y, size, c, d, e, f):  # type: ignore[no-untyped-def]
    for i in range(size):
        t = np.uint64(i)
        p, q = flat[x + t], flat[y + t]
        out[o + t] += c * p + d * q
        out[o + np.uint64(size) + t] += e * p + f * q


@inner
def _add_along(out, x, f, c):  # type: ignore[no-untyped-def]
    for t in range(out.size):
        out[t] += c * f[t] * x[t]


@inner
def _place(base, strides, digits):  # type: ignore[no-untyped-def]
    at = base
    for a in range(digits.size):
        at += strides[a] * digits[a]
    return at


@inner
def _turn(arena, steps, s, digits, flat, starts, out, size, weights, factors):  # type: ignore[no-untyped-def]
    """Step s: rows of `out` from the rows of `flat` that begin at `starts`."""
    count, terms, first = steps.rows[s], steps.terms[s], steps.first[s]
    some_along = False
    weights[: count * terms] = 1.0
    for k in range(steps.side_ptr[s], steps.side_ptr[s + 1]):
        if steps.along[k]:
            some_along = True
            continue
        at = _place(steps.base[k], steps.outer[k], digits)
        offset = steps.offset[steps.offset_first[k] :]
        for i in range(count * terms):
            weights[i] *= arena[at + offset[i]]
    wide = 2 if steps.fan[s] % 2 == 0 and not some_along else 1
    for j in range(0, count, wide):
        if some_along:
            _rows_along(arena, steps, s, j, digits, flat, starts, out, size, weights, factors)
            continue
        c, r = j * terms, first + j * terms  # the first weight, the first row
        o = np.uint64(j * size)
        for v in range(0, terms, 2):
            # An odd row at the end is taken twice, the second time with weight 0.
            u = min(v + 1, terms - 1)
            second = 1.0 if u > v else 0.0
            x, y = np.uint64(starts[steps.row[r + v]]), np.uint64(starts[steps.row[r + u]])
            p, q = weights[c + v], second * weights[c + u]
            if wide == 1:
                if v == 0:
                    _set_one(out, o, flat, x, y, size, p, q)
                else:
                    _add_one(out, o, flat, x, y, size, p, q)
                continue
            e, f = weights[c + terms + v], second * weights[c + terms + u]
            if v == 0:
                _set_two(out, o, flat, x, y, size, p, q, e, f)
            else:
                _add_two(out, o, flat, x, y, size, p, q, e, f)


@inner
def _rows_along(arena, steps, s, j, digits, flat, starts, out, size, weights, factors):  # type: ignore[no-untyped-def]
    """Result j where entries of side tables change along the tile."""
    terms = steps.terms[s]
    row = steps.row[steps.first[s] + j * terms : steps.first[s] + (j + 1) * terms]
    factors[:terms] = 1.0
    for k in range(steps.side_ptr[s], steps.side_ptr[s + 1]):
        if steps.along[k]:
            at = _place(steps.base[k], steps.outer[k], digits)
            offset = steps.offset[steps.offset_first[k] + j * terms :]
            for v in range(terms):
                part, f = arena[at + offset[v] :], factors[v]
                for t in range(size):
                    f[t] *= part[steps.tile[k, t]]
    one = out[j * size : (j + 1) * size]
    one[:] = 0.0
    for v in range(terms):
        x = flat[starts[row[v]] : starts[row[v]] + size]
        _add_along(one, x, factors[v], weights[j * terms + v])


@inner
def _gather(part, source, block):  # type: ignore[no-untyped-def]
    """Read rows that do not lie in step, four columns at a time: the columns often lie together."""
    size = source.tile.size
    t = 0
    while t + 4 <= size:
        a, b = part[source.tile[t] :], part[source.tile[t + 1] :]
        c, d = part[source.tile[t + 2] :], part[source.tile[t + 3] :]
        into = block[t:]
        for j in range(source.row.size):
            at, k = source.row[j], j * size
            into[k], into[k + 1], into[k + 2], into[k + 3] = a[at], b[at], c[at], d[at]
        t += 4
    while t < size:
        a, into = part[source.tile[t] :], block[t:]
        for j in range(source.row.size):
            into[j * size] = a[source.row[j]]
        t += 1


@inner
def _scatter(into, target, block):  # type: ignore[no-untyped-def]
    """Write rows that do not lie in step: `_gather` turned round."""
    size = target.tile.size
    t = 0
    while t + 4 <= size:
        a, b = into[target.tile[t] :], into[target.tile[t + 1] :]
        c, d = into[target.tile[t + 2] :], into[target.tile[t + 3] :]
        part = block[t:]
        for j in range(target.row.size):
            at, k = target.row[j], j * size
            a[at], b[at], c[at], d[at] = part[k], part[k + 1], part[k + 2], part[k + 3]
        t += 4
    while t < size:
        a, part = into[target.tile[t] :], block[t:]
        for j in range(target.row.size):
            a[target.row[j]] = part[j * size]
        t += 1


@kernel
def run_pass(arena, layout, low, high):  # type: ignore[no-untyped-def]
    """Blocks low <= o < high of the pass."""
    dims, source, target, steps, most_rows = layout
    size = source.tile.size
    block, other = np.empty(most_rows * size), np.empty(most_rows * size)
    weights = np.empty((steps.rows * steps.terms).max())
    factors = np.empty((steps.terms.max(), size))
    digits = np.empty(dims.size, np.int64)
    starts = np.arange(most_rows) * size  # of the rows of a block
    there = np.empty(source.row.size, np.int64)  # of the rows in the table itself
    for o in range(low, high):
        number = o
        for a in range(dims.size - 1, -1, -1):
            digits[a] = number % dims[a]
            number //= dims[a]
        read = _place(source.base, source.outer, digits)
        write = _place(target.base, target.outer, digits)
        if source.run == size:
            for j in range(there.size):
                there[j] = read + source.row[j]
            _turn(arena, steps, 0, digits, arena, there, block, size, weights, factors)
        else:
            if source.run >= SHORT:
                for j in range(there.size):
                    for t in range(0, size, source.run):
                        at = read + source.row[j] + source.tile[t]
                        other[j * size + t : j * size + t + source.run] = arena[
                            at : at + source.run
                        ]
            else:
                _gather(arena[read:], source, other)
            _turn(arena, steps, 0, digits, other, starts, block, size, weights, factors)
        for s in range(1, steps.rows.size):
            _turn(arena, steps, s, digits, block, starts, other, size, weights, factors)
            block, other = other, block
        if target.run >= SHORT:
            for j in range(target.row.size):
                for t in range(0, size, target.run):
                    at = write + target.row[j] + target.tile[t]
                    arena[at : at + target.run] = block[j * size + t : j * size + t + target.run]
        else:
            _scatter(arena[write:], target, block)
