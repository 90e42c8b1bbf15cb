"""How tables with different axes meet inside one bucket: strides, tiles and index maps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.kernels import (
    CONSTANT,
    CONTIGUOUS,
    GATHER,
    REPEAT,
    BucketLayout,
    Operands,
)

_NO_INDEX = np.zeros((1, 1), dtype=np.int64)


class Placed(NamedTuple):
    """A table in an arena: where it starts, and its axes (ascending, C order)."""

    start: int
    axes: tuple[int, ...]


def bucket_layout(
    variable: int,
    scope: tuple[int, ...],
    n_tile: int,
    cards: Sequence[int],
    tables: Sequence[Sequence[Placed]],
    disjoint: int = -1,
) -> BucketLayout:
    """Lay out lists of tables over the axes (variable, *scope), the last `n_tile` as the tile.

    `disjoint` names the list whose tables are written: `grain` keeps them apart.
    """
    split = len(scope) - n_tile
    outer, inner = scope[:split], scope[split:]
    inner_dims = tuple(cards[a] for a in inner)
    every = [_strides(t.axes, cards) for placed in tables for t in placed]
    columns = [[s.get(a, 0) for s in every] for a in outer]
    dims, merged = _merge_axes([cards[a] for a in outer], columns)
    tile = 1
    for d in inner_dims:
        tile *= d
    operands = []
    at = 0
    written: list[int] = []
    for k, placed in enumerate(tables):
        strides = every[at : at + len(placed)]
        if k == disjoint:
            written = list(range(at, at + len(placed)))
        maps = [_tile_map(inner_dims, tuple(s.get(a, 0) for a in inner)) for s in strides]
        index = _NO_INDEX
        if any(m[0] == GATHER for m in maps):
            index = np.stack(
                [m[2] if m[2].size == tile else np.zeros(tile, np.int64) for m in maps]
            )
        operands.append(
            Operands(
                np.array([t.start for t in placed], dtype=np.int64),
                np.array([s.get(variable, 0) for s in strides], dtype=np.int64),
                np.array(
                    [[column[at + j] for column in merged] for j in range(len(placed))],
                    dtype=np.int64,
                ).reshape(len(placed), len(dims)),
                np.array([m[0] for m in maps], dtype=np.int64),
                np.array([m[1] for m in maps], dtype=np.int64),
                index,
            )
        )
        at += len(placed)
    grain = 1
    for d in dims:
        grain *= d
    for d, column in zip(dims, merged, strict=True):
        if any(column[j] == 0 for j in written):
            break
        grain //= d
    return BucketLayout(np.array(dims, dtype=np.int64), tile, tuple(operands), grain)


def _strides(axes: tuple[int, ...], cards: Sequence[int]) -> dict[int, int]:
    out = {}
    step = 1
    for a in reversed(axes):
        out[a] = step
        step *= cards[a]
    return out


def _merge_axes(dims: list[int], columns: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Join neighbouring axes that every table walks through in step."""
    new_dims: list[int] = []
    new_columns: list[list[int]] = []
    for d, column in zip(dims, columns, strict=True):
        if new_dims and all(p == c * d for p, c in zip(new_columns[-1], column, strict=True)):
            new_dims[-1] *= d
            new_columns[-1] = column
        else:
            new_dims.append(d)
            new_columns.append(column)
    return new_dims, new_columns


@lru_cache(maxsize=4096)
def _tile_map(
    dims: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[int, int, NDArray[np.int64]]:
    """(mode, repeat, index) of a table along a tile."""
    none = np.zeros(0, dtype=np.int64)
    if not any(strides):
        return CONSTANT, 1, none
    index = np.zeros(1, dtype=np.int64)
    for d, s in zip(dims, strides, strict=True):
        index = (index[:, None] + s * np.arange(d)).ravel()
    repeat = int(np.argmax(index != 0))
    if index[repeat] == 1 and np.array_equal(index, np.arange(index.size) // repeat):
        return (CONTIGUOUS if repeat == 1 else REPEAT), repeat, none
    index.flags.writeable = False
    return GATHER, 1, index
