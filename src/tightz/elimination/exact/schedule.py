"""In which sequence an elimination's messages are computed, kept, computed again and forgotten."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

ALIGN = 8  # entries; tables start on cache lines
FORWARD, BACKWARD, FREE, MERGE = 0, 1, 2, 3


class Bucket(NamedTuple):
    """One elimination step. Variables are numbered by their position in the order.

    `scope` (ascending) are the axes of its message; `groups` are its own factors, merged:
    (axes with this variable first, factor numbers).
    """

    scope: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    children: tuple[int, ...]
    parent: int


class Step(NamedTuple):
    """FORWARD computes a bucket's message, BACKWARD its belief, FREE forgets its message.

    MERGE multiplies the message onto that of `into`, a bucket with the same parent whose message
    has all its axes, and forgets it.
    """

    kind: int
    bucket: int
    into: int = -1


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


def forward_steps(buckets: Sequence[Bucket]) -> Iterator[Step]:
    """All messages in order; those that wait for one bucket are multiplied as they come."""
    waiting: dict[int, list[int]] = {}
    for b, bucket in enumerate(buckets):
        yield Step(FORWARD, b)
        for c in waiting.pop(b, []):
            yield Step(FREE, c)
        if not bucket.scope:
            continue
        siblings = waiting.setdefault(bucket.parent, [])
        for k, c in enumerate(siblings):
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
