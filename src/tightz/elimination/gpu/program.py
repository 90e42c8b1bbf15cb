"""Chains of buckets as one program on the registers of a thread.

A message reaches the next bucket, which multiplies its own tables in, introduces a few variables
and sums one out. Done one by one, each of these moves the whole table through memory; done five at
a time, memory is read and written once. A thread takes one assignment of the axes that no bucket of
the chain touches ("rest") and holds the entries of up to `BITS` binary axes in registers, entry j
for the axes' states as the bits of j. Every step is a 2x2 matrix on one bit,

    r[w, others] = sum_v matrix[w, v](others, rest) r[v, others],

with v the state of the variable that goes and w of the one that comes: a sum has no w, a new
variable has no v, a plain product is diagonal. Bits that hold nothing are zero where they are 1.
Large tables are multiplied in from memory (`TABLE`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tightz.elimination.exact.planning import EliminationPlan

BITS = 5
"""Binary axes in registers: 2^5 doubles are 64 of a thread's 255 registers."""

MATRIX, TABLE = 0, 1
NOTHING = -1
MESSAGE, OUTSIDE = -1, -2

_MAX_ROWS = 32  # states of the rest that the matrices of one step may depend on
MAX_STEPS = 24
MAX_COEFFICIENTS = 4400  # doubles in a block's shared memory: 35 KB

Held = tuple[int, ...]


class Source(NamedTuple):
    """Where a table comes from: the message of `bucket`, or its merged factors `group`.

    OUTSIDE is what all other buckets say about the axes of the message: message times outside,
    summed, is Z.
    """

    bucket: int
    group: int = MESSAGE

    @property
    def is_message(self) -> bool:
        """Whether it was computed, of either kind; the others are factors of the model."""
        return self.group < 0


class Step(NamedTuple):
    """MATRIX: on `bit`, from variable `gone` to `born` (NOTHING: none), times `source` if given.

    TABLE: every register times an entry of `source`. `held` says which variable each bit holds
    before the step; `rest` are the axes of the source that are not in registers.
    """

    kind: int
    bit: int
    gone: int
    born: int
    source: Source | None
    held: Held
    rest: tuple[int, ...]


class Program(NamedTuple):
    """What one pass over `main` does: chain[-1]'s message out of it.

    `loaded` and `stored` say which variable each bit holds at first and at last; `rest` are the
    axes that a thread stays at one state of.
    """

    chain: tuple[int, ...]
    main: Source | None
    loaded: Held
    stored: Held
    rest: tuple[int, ...]
    steps: tuple[Step, ...]


def program(
    plan: EliminationPlan, chain: Sequence[int], axes: dict[int, tuple[int, ...]]
) -> Program | None:
    """The program of buckets that are each the parent of the one before; None if none fits.

    `axes` are those of the messages at hand (all children of the first bucket, and the children of
    the others but for the bucket before).
    """
    first = plan.buckets[chain[0]]
    children = sorted(first.children, key=lambda c: plan.entries(axes[c]))
    main = children.pop() if children else None
    start = set().union(*(axes[c] for c in first.children))
    loaded = [b for b in chain if b in start]
    if len(loaded) > BITS:
        return None
    writer = _Writer(plan, [*loaded, *[NOTHING] * (BITS - len(loaded))], start)
    for k, b in enumerate(chain):
        messages = (
            children if k == 0 else [c for c in plan.buckets[b].children if c != chain[k - 1]]
        )
        if not writer.bucket(b, [(Source(c), axes[c]) for c in messages]):
            return None
    rest = tuple(sorted(start.difference(loaded)))
    return Program(
        tuple(chain),
        None if main is None else Source(main),
        (*loaded, *[NOTHING] * (BITS - len(loaded))),
        tuple(writer.held),
        rest,
        tuple(writer.steps),
    )


class _Writer:
    """Adds the steps of one bucket after another while registers and shared memory last."""

    def __init__(self, plan: EliminationPlan, held: list[int], live: set[int]) -> None:
        self._plan = plan
        self.held = held
        self._live = set(live)
        self.steps: list[Step] = []
        self._coefficients = 0

    def bucket(self, b: int, messages: list[tuple[Source, tuple[int, ...]]]) -> bool:
        """Whether bucket b could be added."""
        plan = self._plan
        groups = [(Source(b, g), axes) for g, (axes, _) in enumerate(plan.buckets[b].groups)]
        every = [*messages, *groups]
        new = {b}.union(*(axes for _, axes in every)) - self._live
        if any(plan.cardinalities[v] != 2 for v in (b, *new)):
            return False
        small = [g for g in groups if plan.entries(self._rest(g[1], new)) <= _MAX_ROWS]
        large = [*messages, *(g for g in groups if g not in small)]
        last = self._last_born(b, new, small, large)
        for v in sorted(new - {last}):
            if NOTHING not in self.held:
                return False
            self._matrix(self.held.index(NOTHING), NOTHING, v, None, ())
        at = self.held.index(b)
        for source, axes in large:
            rest = self._rest(axes, set())
            self.steps.append(
                Step(TABLE, NOTHING, NOTHING, NOTHING, source, tuple(self.held), rest)
            )
        small.sort(key=lambda g: last in g[1])
        for source, axes in small[:-1]:
            self._matrix(at, b, b, source, self._rest(axes, new))
        final, axes = small[-1] if small else (None, ())
        self._matrix(at, b, last, final, self._rest(axes, new))
        self._live = (self._live | new) - {b}
        return len(self.steps) <= MAX_STEPS and self._coefficients <= MAX_COEFFICIENTS

    def _last_born(self, b: int, new: set[int], small: list, large: list) -> int:
        """A new variable that only the last matrix knows: it takes the register bit of b."""
        for v in sorted(new - {b}, reverse=True):
            if not any(v in axes for _, axes in large) and sum(v in axes for _, axes in small) == 1:
                return v
        return NOTHING

    def _rest(self, axes: tuple[int, ...], new: set[int]) -> tuple[int, ...]:
        return tuple(a for a in axes if a not in self.held and a not in new)

    def _matrix(
        self, bit: int, gone: int, born: int, source: Source | None, rest: tuple[int, ...]
    ) -> None:
        self.steps.append(Step(MATRIX, bit, gone, born, source, tuple(self.held), rest))
        self._coefficients += ROW * math.prod(int(self._plan.cardinalities[a]) for a in rest)
        self.held[bit] = born


ROW = (1 << (BITS + 1)) + 2
"""Doubles that the matrices of one state of the rest take: a pair keeps rows off one bank."""
