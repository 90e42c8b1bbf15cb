"""Few long clauses over many small blocks: which of the long clauses a block satisfies is all.

Without its long clauses a formula may fall into blocks that share nothing (a cover by so many terms
is of this kind, a two-level circuit with so many gates, a colouring with a clause per colour). A
block is then summed up by one number per set T of long clauses that its states satisfy, and blocks
are joined one after the other:

    F'(U or T) += F(U) w(T),

2^k sets for k long clauses, whatever the number of blocks; the count is F(all). The search for
components finds none here until almost everything is decided, and its cache holds as many sets as
this table, at a thousand times the price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.clauses.formula import Clause
from tightz.elimination.clauses.search import add_values
from tightz.elimination.clauses.setup import Weights
from tightz.elimination.graph import interaction_graph, scopes_from
from tightz.runtime.kernels import kernel

SHORT = 6
"""Literals of the longest clause that stays inside a block."""

MOST_LONG = 24
_MOST_STATES = 20_000  # of a block, while it is summed up
_MOST_JOINS = 2.0**34
_MOST_RANGE = 900.0  # log2 of the largest over the least number in the table
_ROWS = 1 << 18

Value = tuple[float, int, float]


@dataclass(frozen=True)
class Block:
    """w(T) of one block: sets T as bits, numbers relative to 2^exponent, error in units."""

    sets: NDArray[np.int64]
    numbers: NDArray[np.float64]
    exponent: int
    error: float


@dataclass(eq=False)
class BlockSum:
    """The joining of blocks under way; `advance` joins some rows of the table."""

    blocks: list[Block]
    n_long: int
    exponent: int = 0
    error: float = 0.0
    _next: int = 0
    _row: int = 0
    _table: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _new: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def advance(self) -> bool:
        """A few milliseconds of work; whether all blocks are joined."""
        if not self._table.size:
            self._table = np.zeros(1 << self.n_long)
            self._table[0] = 1.0
        if self._next == len(self.blocks):
            return True
        block = self.blocks[self._next]
        if self._row == 0:
            self._new = np.zeros_like(self._table)
        high = min(self._row + _ROWS, self._table.size)
        _join(self._table, self._new, self._row, high, block.sets, block.numbers)
        self._row = high
        if high == self._table.size:
            self._next, self._row = self._next + 1, 0
            self._rescale(block)
        return self._next == len(self.blocks)

    def _rescale(self, block: Block) -> None:
        """By a power of two, which is exact. A number is a sum of sum_T 2^|T| products at most."""
        _, shift = math.frexp(float(self._new.max()))
        self._table = self._new * math.ldexp(1.0, -shift)
        self.exponent += block.exponent + shift
        terms = sum(2.0 ** int(t).bit_count() for t in block.sets.tolist())
        self.error += block.error + 1.0 + terms

    @property
    def progress(self) -> float:
        rows = self._next + self._row / max(1, self._table.size)
        return rows / max(1, len(self.blocks))

    @property
    def value(self) -> Value:
        m, shift = math.frexp(float(self._table[-1]))
        return m, self.exponent + shift, self.error


@kernel
def _join(table, out, low, high, sets, numbers):  # type: ignore[no-untyped-def]
    for u in range(low, high):
        f = table[u]
        if f != 0.0:
            for t in range(sets.size):
                out[u | sets[t]] += f * numbers[t]


def block_sum(
    n: int, clauses: Sequence[Clause], weights: Weights, max_bytes: int
) -> BlockSum | None:
    """A sum by blocks where the formula falls into small ones; None where it does not."""
    long = [c for c in clauses if len(c) > SHORT]
    short = [c for c in clauses if len(c) <= SHORT]
    if not 1 <= len(long) <= MOST_LONG or 24 << len(long) > max_bytes:  # three tables of floats
        return None
    graph = interaction_graph(scopes_from(n, [[x >> 1 for x in c] for c in short]))
    sweep = graph.cuthill_mckee().tolist()  # component by component
    home: dict[int, list[Clause]] = {}
    for c in short:
        for x in c:
            home.setdefault(x >> 1, []).append(c)
    sets = [0] * (2 * n)
    for k, c in enumerate(long):
        for x in c:
            sets[x] |= 1 << k
    blocks = []
    for members in _components(graph.ptr, graph.neighbours, sweep):
        found = _summed_up(members, home, sets, weights)
        if found is None:
            return None
        blocks.append(found)
    blocks.sort(key=lambda b: b.sets.size)
    joins = sum(2.0 ** min(len(long), 2 * i) * b.sets.size for i, b in enumerate(blocks))
    spread = sum(
        math.log2(b.numbers.max() / b.numbers.min()) + b.sets.size.bit_length() for b in blocks
    )
    if joins > _MOST_JOINS or spread > _MOST_RANGE or sum(b.sets.size > 1 for b in blocks) < 2:
        return None
    return BlockSum(blocks, len(long))


def _components(ptr: NDArray, neighbours: NDArray, sweep: list[int]) -> list[list[int]]:
    """The sweep cut where a component ends."""
    out: list[list[int]] = []
    seen: set[int] = set()
    for v in sweep:
        if v not in seen:
            out.append([])
            seen.add(v)
        out[-1].append(v)
        seen.update(neighbours[ptr[v] : ptr[v + 1]].tolist())
    return out


def _summed_up(
    members: list[int], home: dict[int, list[Clause]], sets: list[int], weights: Weights
) -> Block | None:
    """Variable by variable; a state is the values still needed and the long clauses satisfied."""
    place = {v: i for i, v in enumerate(members)}
    checks: list[list[Clause]] = [[] for _ in members]
    last = list(range(len(members)))
    for c in {c for v in members for c in home.get(v, [])}:
        end = max(place[x >> 1] for x in c)
        checks[end].append(c)
        for x in c:
            last[place[x >> 1]] = max(last[place[x >> 1]], end)
    states: dict[tuple[int, int], Value] = {(0, 0): (0.5, 1, 0.0)}
    for i, v in enumerate(members):
        gone = sum(1 << j for j in range(i + 1) if last[j] <= i)
        after: dict[tuple[int, int], Value] = {}
        for (values, done), amount in states.items():
            for s in (0, 1):
                now = values | s << i
                if not all(any(now >> place[x >> 1] & 1 == x & 1 for x in c) for c in checks[i]):
                    continue
                x = 2 * v + s
                key = now & ~gone, done | sets[x]
                m, shift = math.frexp(amount[0] * float(weights.mantissa[x]))
                new = (
                    m, amount[1] + int(weights.exponent[x]) + shift,
                    amount[2] + float(weights.error[x]) + 1.0,
                )  # fmt: skip
                after[key] = add_values(after[key], new) if key in after else new
        states = after
        if not 0 < len(states) <= _MOST_STATES:
            return None
    top = max(value[1] for value in states.values())
    if top - min(value[1] for value in states.values()) > _MOST_RANGE:
        return None
    return Block(
        np.array([done for _, done in states], dtype=np.int64),
        np.array([math.ldexp(m, e - top) for m, e, _ in states.values()]),
        top,
        max(error for _, _, error in states.values()),
    )
