"""In which sequence messages are computed and forgotten, and how tables meet inside a bucket."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
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

ALIGN = 8  # entries; tables start on cache lines
FORWARD, BACKWARD, FREE, MERGE = 0, 1, 2, 3


class Bucket(NamedTuple):
    """One step: a product of tables, from which `summed` are summed out together (none or more).

    Variables are numbered by their position in the order, so that those of a bucket come right
    after one another and before all that its message has. `scope` are the axes of its message as
    they lie (ascending, or see `EliminationPlan.in_place`); `groups` are its own factors, merged:
    (axes, factor numbers).
    """

    summed: tuple[int, ...]
    scope: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    children: tuple[int, ...]
    parent: int

    @property
    def axes(self) -> tuple[int, ...]:
        """Of the product, before anything is summed."""
        return (*self.summed, *self.scope)


class Step(NamedTuple):
    """FORWARD computes a bucket's message, BACKWARD its belief, FREE forgets its message.

    MERGE multiplies the message onto that of `into`, a bucket with the same parent whose message
    has all its axes, and forgets it. FORWARD with a `chain` does those buckets, each the child of
    the next and the last the child of `bucket`, in the same pass: their messages are never stored.
    """

    kind: int
    bucket: int
    into: int = -1
    chain: tuple[int, ...] = ()


class Arena:
    """First-fit allocation inside one flat array: the same offsets when planned and when run."""

    def __init__(self, reserved: int = 0) -> None:
        self.peak = reserved
        self._holes: list[tuple[int, int]] = [(reserved, 1 << 200)]  # (start, size), sorted

    def take(self, size: int) -> int:
        size = -(-size // ALIGN) * ALIGN
        for k, (start, room) in enumerate(self._holes):
            if room >= size:
                if room == size:
                    del self._holes[k]
                else:
                    self._holes[k] = (start + size, room - size)
                self.peak = max(self.peak, start + size)
                return start
        raise ArithmeticError("the arena has no endless hole: this is a bug")

    def give_back(self, start: int, size: int) -> None:
        size = -(-size // ALIGN) * ALIGN
        k = bisect.bisect_left(self._holes, (start, 0))
        if k < len(self._holes) and start + size == self._holes[k][0]:
            size += self._holes.pop(k)[1]
        if k > 0 and sum(self._holes[k - 1]) == start:
            start, before = self._holes[k - 1]
            self._holes[k - 1] = (start, before + size)
        else:
            self._holes.insert(k, (start, size))


CUTS: list[tuple[int, ...]] = [
    (),
    *((k,) for k in (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 50, 100)),
    *((k, k) for k in (3, 4, 5, 6, 8, 10, 12, 16)),
    *((k, k, k) for k in (3, 4, 5, 6, 8)),
]


def forward_steps(
    buckets: Sequence[Bucket], chains: Mapping[int, tuple[int, ...]]
) -> Iterator[Step]:
    """All messages in order; those that wait for one bucket are multiplied as they come.

    `chains`: last bucket of a pass -> those before it.
    """
    waiting: dict[int, list[int]] = {}
    inside = {c for chain in chains.values() for c in chain}
    for b, bucket in enumerate(buckets):
        if b in inside:
            continue
        chain = chains.get(b, ())
        yield Step(FORWARD, b, chain=chain)
        for done in (*chain, b):
            for c in waiting.pop(done, []):
                yield Step(FREE, c)
        if not bucket.scope:
            continue
        siblings = waiting.setdefault(bucket.parent, [])
        few = len(buckets[bucket.parent].children) <= 2
        for k, c in enumerate([] if few else siblings):
            if set(bucket.scope) <= set(buckets[c].scope):
                yield Step(MERGE, b, c)
                break
            if set(buckets[c].scope) <= set(bucket.scope):
                yield Step(MERGE, c, b)
                siblings[k] = b
                break
        else:
            siblings.append(b)


def checkpointed_steps(
    buckets: Sequence[Bucket], sizes: Sequence[int], cuts: tuple[int, ...]
) -> Iterator[Step]:
    """Forward and backward over all buckets; `cuts[l]` parts at level l of recomputation."""
    weight = np.concatenate([[0.0], np.cumsum(np.array(sizes, dtype=np.float64))])
    held: set[int] = set()

    def run(first: int, last: int, level: int) -> Iterator[Step]:
        parts = cuts[level] if level < len(cuts) else 1
        marks = np.linspace(weight[first], weight[last], parts + 1)[1:-1]
        inner = np.searchsorted(weight, marks)
        edges = sorted({first, last, *(int(min(max(i, first), last)) for i in inner)})
        for low, high in itertools.pairwise(edges[:-1]):
            for b in range(low, high):
                if b not in held:
                    held.add(b)
                    yield Step(FORWARD, b)
                for c in buckets[b].children:
                    if c >= low and c in held:  # not alive at a cut: computed again later
                        held.remove(c)
                        yield Step(FREE, c)
        spans = list(itertools.pairwise(edges))
        for low, high in reversed(spans):
            if level + 1 < len(cuts) and high - low > 1:
                yield from run(low, high, level + 1)
                continue
            for b in range(low, high):
                if b not in held:
                    held.add(b)
                    yield Step(FORWARD, b)
            for b in range(high - 1, low - 1, -1):
                held.remove(b)
                yield Step(BACKWARD, b)

    if buckets:
        yield from run(0, len(buckets), 0)


_NO_INDEX = np.zeros((1, 1), dtype=np.int64)


class Placed(NamedTuple):
    """A table in an arena: where it starts, and its axes (ascending, C order)."""

    start: int
    axes: tuple[int, ...]


def bucket_layout(
    summed: tuple[int, ...],
    scope: tuple[int, ...],
    n_tile: int,
    cards: Sequence[int],
    tables: Sequence[Sequence[Placed]],
    disjoint: int = -1,
) -> BucketLayout:
    """Lay out lists of tables over the axes (*summed, *scope), the last `n_tile` as the tile.

    `disjoint` names the list whose tables are written: `grain` keeps them apart.
    """
    split = len(scope) - n_tile
    outer, inner = scope[:split], scope[split:]
    inner_dims = tuple(cards[a] for a in inner)
    joint = tuple(cards[a] for a in summed)
    every = [strides_of(t.axes, cards) for placed in tables for t in placed]
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
                np.array(
                    [joint_offsets(joint, tuple(s.get(a, 0) for a in summed)) for s in strides],
                    dtype=np.int64,
                ).reshape(len(placed), math.prod(joint)),
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
    if any(a not in every[j] for j in written for a in summed):
        grain = math.prod(dims) * math.prod(joint)  # states meet in one entry: no two workers
    return BucketLayout(np.array(dims, dtype=np.int64), tile, tuple(operands), grain)


def strides_of(axes: tuple[int, ...], cards: Sequence[int]) -> dict[int, int]:
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
    index = joint_offsets(dims, strides)
    repeat = int(np.argmax(index != 0))
    if index[repeat] == 1 and np.array_equal(index, np.arange(index.size) // repeat):
        return (CONTIGUOUS if repeat == 1 else REPEAT), repeat, none
    return GATHER, 1, index


@lru_cache(maxsize=4096)
def joint_offsets(dims: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    """Where the joint states of axes lie, in C order."""
    index = np.zeros(1, dtype=np.int64)
    for d, s in zip(dims, strides, strict=True):
        index = (index[:, None] + s * np.arange(d)).ravel()
    index.flags.writeable = False
    return index
