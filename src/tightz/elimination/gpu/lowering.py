"""A pass as the numbers that kernels read: one array of integers and one of coefficients.

The axes that a thread stays at one state of are split in two: the fast ones form a tile, whose
addresses are listed (`inner`), the others are counted through by blocks (`outer`). Every table has
a row of addresses: base + outer strides * digits + inner[thread] + what registers or sums add. So
any mixture of cardinalities costs a thread no division.

Where registers hold axes of the smallest strides, neighbouring threads are far apart in memory.
Such a bit changes places with a bit of the thread's number while entries are read or written, and
back in between, by shuffles inside a warp (`lanes_read`, `lanes_written`).

Words of a pass: `Header`, the outer radices, per row (base, outer strides), per row of a table in
memory its strides by bit (or, in a join, `states` offsets), the steps, and per row the tile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.passes import Join, Pass
from tightz.elimination.gpu.placement import Placed
from tightz.elimination.gpu.program import (
    BITS,
    MATRIX,
    NOTHING,
    ROW,
    TABLE,
    Program,
    Source,
    Step,
)

TILE = 512
"""Entries of a tile, or more: at least twice a block's threads."""

FUSED, JOINED = 0, 1
_LANE_BITS = 5
_WARP = 1 << _LANE_BITS


class Header(NamedTuple):
    """The first words of a pass, in the order that the kernels know (`kernels.cu`)."""

    outer: int
    tile: int
    axes: int
    rows: int
    steps: int
    loaded: int
    stored: int
    coefficients: int
    n_coefficients: int
    states: int
    radices: int
    bases: int
    locals: int
    program: int
    inner: int
    small: int
    lanes_read: int
    lanes_written: int


class Lowered(NamedTuple):
    """A pass for a kernel. `coefficients` lie at `coefficients_at` of the flat array."""

    kind: int
    words: NDArray[np.int64]
    coefficients: NDArray[np.float64]
    coefficients_at: int


class _Row(NamedTuple):
    base: int
    strides: dict[int, int]


def lower(step: Pass, plan: EliminationPlan, factors: Factors, at: int) -> Lowered:
    """`at`: where in the flat array the coefficients of this pass will lie."""
    if isinstance(step.work, Join):
        return _lower_join(step, step.work, plan, factors, at)
    return _lower_program(step, step.work, plan, factors, at)


def coefficient_count(step: Pass, plan: EliminationPlan) -> int:
    """Entries that the coefficients of a pass take, known before the factors are."""
    work = step.work
    if isinstance(work, Join):
        found = [s for s in work.sources if not s.is_message]
        return sum(plan.entries(_group_axes(plan, s)) for s in found)
    count = 0 if work.main else 1
    for one in work.steps:
        if one.kind == MATRIX:
            count += ROW * plan.entries(one.rest)
        elif one.source is not None and not one.source.is_message:
            count += plan.entries(_group_axes(plan, one.source))
    return count


def _lower_join(
    step: Pass, work: Join, plan: EliminationPlan, factors: Factors, at: int
) -> Lowered:
    rows = [_Row(step.out.start, step.out.strides)]
    parts: list[NDArray[np.float64]] = []
    for source in work.sources:
        rows.append(_table_row(source, step, factors, parts, at))
    offsets = [_flat([row.strides.get(v, 0) for v in work.summed], work.summed, plan)
               for row in rows[1:]]  # fmt: skip
    words = _words(plan, work.rest, rows, np.array(offsets, np.int64).ravel(), [], {
        "states": plan.entries(work.summed), "coefficients": at,
    })  # fmt: skip
    return Lowered(JOINED, words, _joined(parts), at)


def _lower_program(
    step: Pass, work: Program, plan: EliminationPlan, factors: Factors, at: int
) -> Lowered:
    shared = [_matrices(one, plan, factors) for one in work.steps if one.kind == MATRIX]
    n_shared = sum(part.size for part in shared)
    parts = list(shared)
    if work.main is None:
        main = _Row(at + n_shared, {})
        parts.append(np.ones(1))
    else:
        main = _row(step.inputs[work.main])
    rows = [main, _row(step.out)]
    local = [_by_bit(main, work.loaded), _by_bit(rows[1], work.stored)]
    listed: list[tuple[int, int, int]] = []
    tables: list[_Row] = []
    for one in work.steps:
        if one.kind == TABLE:
            assert one.source is not None
            tables.append(_table_row(one.source, step, factors, parts, at))
            listed.append((TABLE, 0, 1 + len(tables)))
            local.append(_by_bit(tables[-1], one.held))
        else:
            listed.append((MATRIX, one.bit, 0))
    rows += tables
    start = 0
    for k, one in enumerate(work.steps):
        if one.kind == MATRIX:
            strides = _strides(one.rest, plan, ROW)
            listed[k] = (MATRIX, one.bit, len(rows))
            rows.append(_Row(start, strides))
            start += ROW * plan.entries(one.rest)
    words = _words(plan, work.rest, rows, np.array(local, np.int64).ravel(), listed, {
        "loaded": _mask(work.loaded), "stored": _mask(work.stored),
        "coefficients": at, "n_coefficients": n_shared,
    })  # fmt: skip
    return Lowered(FUSED, words, _joined(parts), at)


def _words(
    plan: EliminationPlan,
    rest: Sequence[int],
    rows: list[_Row],
    local: NDArray[np.int64],
    listed: list[tuple[int, int, int]],
    known: dict[str, int],
) -> NDArray[np.int64]:
    outer, inner = _split(rest, rows, plan)
    dims, columns = _merge_axes(outer, rows, plan)
    walked = [dict(r.strides) for r in rows]
    lanes = [0, 0]
    for k in (0, 1) if listed else ():
        lanes[k] = _exchange(walked[k], local[k * BITS : (k + 1) * BITS], inner, plan)
    tiles = np.array([_flat([w.get(a, 0) for a in inner], inner, plan) for w in walked])
    bases = np.array([[r.base, *c] for r, c in zip(rows, columns, strict=True)], np.int64)
    parts = [np.array(dims, np.int64), bases.ravel(), local, np.array(listed, np.int64).ravel()]
    edges = list(itertools.accumulate([len(Header._fields), *(p.size for p in parts)]))
    header = Header(
        outer=math.prod(dims),
        tile=tiles.shape[1],
        axes=len(dims),
        rows=len(rows),
        steps=len(listed),
        radices=edges[0],
        bases=edges[1],
        locals=edges[2],
        program=edges[3],
        inner=edges[4],
        small=edges[4],
        lanes_read=lanes[0],
        lanes_written=lanes[1],
        **{**dict.fromkeys(("loaded", "stored", "n_coefficients", "states"), 0), **known},
    )
    return np.concatenate([np.array(header, np.int64), *parts, tiles.ravel()])


def _exchange(
    strides: dict[int, int], local: NDArray[np.int64], inner: Sequence[int], plan: EliminationPlan
) -> int:
    """Give the small strides of `local` to lanes of a warp, and theirs to registers, in place.

    Returns, in 4 bits per register bit, 1 + the number of the lane's bit, or 0.
    """
    fast = list(reversed(inner[-_LANE_BITS:]))  # bit k of the thread's number is the axis fast[k]
    if len(fast) < _LANE_BITS or any(plan.cardinalities[a] != 2 for a in fast):
        return 0
    far = [k for k, a in enumerate(fast) if strides.get(a, 0) >= _WARP]
    code = 0
    for bit in np.argsort(local).tolist():
        if 0 < local[bit] < _WARP and far:
            lane = far.pop(0)
            axis = fast[lane]
            strides[axis], local[bit] = int(local[bit]), strides[axis]
            code |= (lane + 1) << (4 * bit)
    return code


def _split(
    rest: Sequence[int], rows: list[_Row], plan: EliminationPlan
) -> tuple[list[int], list[int]]:
    """(outer axes, tile axes), each from slow to fast in the table that is read most."""
    reach = 1 << 62
    by_speed = sorted(rest, key=lambda a: min(r.strides.get(a, 0) or reach for r in rows[:2]))
    inner: list[int] = []
    size = 1
    while len(inner) < len(by_speed) and size < TILE:
        inner.append(by_speed[len(inner)])
        size *= int(plan.cardinalities[inner[-1]])
    chosen = set(inner)
    order = sorted(rest, key=lambda a: -(rows[0].strides.get(a, 0) or reach))
    return [a for a in order if a not in chosen], [a for a in order if a in chosen]


def _merge_axes(
    axes: list[int], rows: list[_Row], plan: EliminationPlan
) -> tuple[list[int], list[list[int]]]:
    """Radices, and each row's strides, with axes joined that every row walks through in step."""
    dims: list[int] = []
    columns: list[list[int]] = []
    for a in axes:
        d = int(plan.cardinalities[a])
        column = [r.strides.get(a, 0) for r in rows]
        if dims and all(p == c * d for p, c in zip(columns[-1], column, strict=True)):
            dims[-1] *= d
            columns[-1] = column
        else:
            dims.append(d)
            columns.append(column)
    return dims, [[column[k] for column in columns] for k in range(len(rows))]


def _flat(strides: list[int], axes: Sequence[int], plan: EliminationPlan) -> NDArray[np.int64]:
    """Offsets of all states of `axes`, the last fastest."""
    at = np.zeros(1, np.int64)
    for a, s in zip(axes, strides, strict=True):
        at = (at[:, None] + s * np.arange(int(plan.cardinalities[a]))).ravel()
    return at


def _matrices(step: Step, plan: EliminationPlan, factors: Factors) -> NDArray[np.float64]:
    """(rows, ROW) of one MATRIX step: [others][w][v] for each state of `rest`, flat."""
    # Axes of the expanded array: rest, then bits from the highest to the lowest, then w.
    bits = {v: len(step.rest) + BITS - 1 - k for k, v in enumerate(step.held) if v != NOTHING}
    where = {**{a: k for k, a in enumerate(step.rest)}, **bits}
    shape = [int(plan.cardinalities[a]) for a in step.rest] + [2] * (BITS + 1)
    gone_at = len(step.rest) + BITS - 1 - step.bit
    values = np.ones([1] * len(shape))
    if step.source is not None:
        found = factors.merged(*step.source)
        moved = [len(shape) - 1 if a == step.born != step.gone else where[a] for a in found.axes]
        full = [1] * len(shape)
        for k in moved:
            full[k] = shape[k]
        values = found.values.transpose(np.argsort(moved)).reshape(full)
    matrix = np.broadcast_to(values, shape).copy()
    matrix = np.moveaxis(matrix, gone_at, -1)  # ..., w, v
    if step.gone == step.born:
        matrix = matrix * np.eye(2)
    if step.born == NOTHING:
        matrix[..., 1, :] = 0.0
    if step.gone == NOTHING:
        matrix[..., :, 1] = 0.0
    count = plan.entries(step.rest)
    out = np.zeros((count, ROW))
    out[:, : 1 << (BITS + 1)] = matrix.reshape(count, -1)
    return out.ravel()


def _table_row(
    source: Source, step: Pass, factors: Factors, parts: list[NDArray[np.float64]], at: int
) -> _Row:
    """A message where it lies, or merged factors, which join the coefficients."""
    if source.is_message:
        return _row(step.inputs[source])
    found = factors.merged(*source)
    base = at + sum(part.size for part in parts)
    parts.append(found.values.ravel())
    strides, size = {}, 1
    for a, d in zip(reversed(found.axes), reversed(found.values.shape), strict=True):
        strides[a] = size
        size *= d
    return _Row(base, strides)


def _group_axes(plan: EliminationPlan, source: Source) -> tuple[int, ...]:
    return plan.buckets[source.bucket].groups[source.group][0]


def _row(table: Placed) -> _Row:
    return _Row(table.start, table.strides)


def _strides(axes: tuple[int, ...], plan: EliminationPlan, step: int) -> dict[int, int]:
    out = {}
    for a in reversed(axes):
        out[a] = step
        step *= int(plan.cardinalities[a])
    return out


def _by_bit(row: _Row, held: tuple[int, ...]) -> list[int]:
    return [row.strides.get(v, 0) if v != NOTHING else 0 for v in held]


def _mask(held: tuple[int, ...]) -> int:
    return sum(1 << k for k, v in enumerate(held) if v != NOTHING)


def _joined(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.zeros(0)
