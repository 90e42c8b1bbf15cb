"""The backward pass where two tables met: each gets the other times what came from above, summed.

With r = p / message over the axes of a bucket's result (p its marginal), a table A that met B there
has p_A / A = sum over the axes that A lacks of r B. If A is the larger, that is a pass like those
of the forward direction, walking over r; for the smaller table it is a sum over most axes, done
here by products of rows: G(v, t) = sum along the tile of A(v) r(t).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.passes import BLOCK_ENTRIES, MOST_ROWS, MOST_TILE
from tightz.elimination.exact.schedule import Placed, joint_offsets, strides_of
from tightz.runtime.kernels import inner, kernel


class _Walk(NamedTuple):
    """base + outer . digits + row + tile."""

    base: int
    outer: NDArray[np.int64]
    row: NDArray[np.int64]
    tile: NDArray[np.int64]


class MeetLayout(NamedTuple):
    """How two large tables are multiplied and summed onto a small one."""

    dims: NDArray[np.int64]
    one: _Walk
    two: _Walk
    outer: NDArray[np.int64]
    onto: NDArray[np.int64]  # (rows of one, rows of two)

    @property
    def n_outer(self) -> int:
        return int(np.prod(self.dims))


def meet_layout(
    one: Placed, two: Placed, onto: tuple[int, ...], cards: Sequence[int]
) -> MeetLayout | None:
    """Rows are the axes of `onto` that only one of the tables has; None where they are too many."""
    both = [a for a in one.axes if a in two.axes]
    rows = [tuple(a for a in t.axes if a not in both) for t in (one, two)]
    counts = [math.prod(cards[a] for a in r) for r in rows]
    if max(counts) > MOST_ROWS or not set(rows[0]) | set(rows[1]) <= set(onto):
        return None
    # Along the tile lie axes that are summed: fastest first, as far as the block allows.
    most = min(MOST_TILE, BLOCK_ENTRIES // max(counts))
    tile: list[int] = []
    size = 1
    for a in reversed(both):
        if a not in onto and size * cards[a] <= most:
            tile.insert(0, a)
            size *= cards[a]
    outer = [a for a in both if a not in tile]
    target = strides_of(onto, cards)

    def walk(table: Placed, local: tuple[int, ...]) -> _Walk:
        step = strides_of(table.axes, cards)
        return _Walk(
            table.start,
            np.array([step[a] for a in outer], dtype=np.int64),
            _offsets(local, step, cards),
            _offsets(tuple(tile), step, cards),
        )

    return MeetLayout(
        np.array([cards[a] for a in outer], dtype=np.int64),
        walk(one, rows[0]),
        walk(two, rows[1]),
        np.array([target.get(a, 0) for a in outer], dtype=np.int64),
        _offsets(rows[0], target, cards)[:, None] + _offsets(rows[1], target, cards),
    )


def _offsets(
    axes: tuple[int, ...], step: dict[int, int], cards: Sequence[int]
) -> NDArray[np.int64]:
    return joint_offsets(tuple(cards[a] for a in axes), tuple(step[a] for a in axes))


@inner(fastmath={"reassoc"})
def _dots(x, y, u, v, size):  # type: ignore[no-untyped-def]
    """Four sums of products: rows x and x + size of u with rows y and y + size of v."""
    a = b = c = d = 0.0
    for i in range(size):
        t, s = np.uint64(i), np.uint64(i + size)
        a += u[x + t] * v[y + t]
        b += u[x + t] * v[y + s]
        c += u[x + s] * v[y + t]
        d += u[x + s] * v[y + s]
    return a, b, c, d


@kernel
def run_meet(arena, layout, onto, low, high):  # type: ignore[no-untyped-def]
    """Add blocks low <= o < high onto the array `onto`."""
    dims, one, two, outer, target = layout
    size = one.tile.size
    # An odd row at the end is paired with a row of zeros, whose sums are dropped.
    left = np.zeros((one.row.size + one.row.size % 2) * size)
    right = np.zeros((two.row.size + two.row.size % 2) * size)
    digits = np.empty(dims.size, np.int64)
    for o in range(low, high):
        number = o
        here, there, to = one.base, two.base, 0
        for a in range(dims.size - 1, -1, -1):
            digits[a] = number % dims[a]
            number //= dims[a]
            here += one.outer[a] * digits[a]
            there += two.outer[a] * digits[a]
            to += outer[a] * digits[a]
        for j in range(one.row.size):
            part = arena[here + one.row[j] :]
            for t in range(size):
                left[j * size + t] = part[one.tile[t]]
        for j in range(two.row.size):
            part = arena[there + two.row[j] :]
            for t in range(size):
                right[j * size + t] = part[two.tile[t]]
        for j in range(0, one.row.size, 2):
            for k in range(0, two.row.size, 2):
                a, b, c, d = _dots(np.uint64(j * size), np.uint64(k * size), left, right, size)
                onto[to + target[j, k]] += a
                if k + 1 < two.row.size:
                    onto[to + target[j, k + 1]] += b
                if j + 1 < one.row.size:
                    onto[to + target[j + 1, k]] += c
                    if k + 1 < two.row.size:
                        onto[to + target[j + 1, k + 1]] += d
