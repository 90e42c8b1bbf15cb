"""The sequence of passes that carries out an elimination plan, and where its tables lie.

Two kinds: a `Program` fuses a chain of buckets (binary variables, registers); a `Join` is one
bucket of any shape, one thread per entry of its message. Each pass reads messages from one flat
array and writes one; where as many axes come as go, it writes in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.gpu.placement import Placed, TwoEnds, in_place
from tightz.elimination.gpu.program import TABLE, Program, Source, program

MOST_RANGE = 250.0
"""Nats between entries of the factors of one pass: it must fit into float64 with its message."""


class Join(NamedTuple):
    """out(rest) = sum over `summed` of the product of all `sources`, which are of `bucket`."""

    bucket: int
    sources: tuple[Source, ...]
    rest: tuple[int, ...]
    summed: tuple[int, ...]


class Pass(NamedTuple):
    """`work` with its tables in place: `inputs` are those computed before, `out` the result."""

    work: Program | Join
    inputs: dict[Source, Placed]
    out: Placed
    in_place: bool

    @property
    def chain(self) -> tuple[int, ...]:
        """The buckets carried out; the last one's message comes out."""
        return self.work.chain if isinstance(self.work, Program) else (self.work.bucket,)

    @property
    def summed(self) -> tuple[int, ...]:
        return self.work.chain if isinstance(self.work, Program) else self.work.summed

    def factors(self, plan: EliminationPlan) -> list[Source]:
        """The merged factors multiplied in."""
        if isinstance(self.work, Join):
            return [s for s in self.work.sources if not s.is_message]
        return [Source(b, g) for b in self.chain for g in range(len(plan.buckets[b].groups))]

    @property
    def bytes_moved(self) -> float:
        """What memory must give and take, each table once."""
        return 8.0 * (self.out.size + sum(t.size for t in self.inputs.values()))


@dataclass(frozen=True)
class Passes:
    """All passes in sequence; `peak` entries of the flat array are in use at most."""

    steps: tuple[Pass, ...]
    peak: int


def passes(plan: EliminationPlan, lows: list[float], *, fuse: bool = True) -> Passes:
    """Chains as long as registers allow.

    `lows`: log of the smallest entry that is not zero of each bucket's factors.
    """
    space = TwoEnds()
    held: dict[int, Placed] = {}
    steps: list[Pass] = []
    b = 0
    while b < len(plan.buckets):
        work = _longest(plan, b, lows, {c: tuple(t.strides) for c, t in held.items()}, fuse)
        last = b if isinstance(work, Join) else work.chain[-1]
        inputs = {s: held.pop(s.bucket) for s in _messages(work)}
        out = _replacing(work, inputs, space)
        replaced = out is not None
        if out is None:
            out = ascending(plan, plan.buckets[last].scope, 0)
            out = out._replace(start=space.take(out.size))
        steps.append(Pass(work, inputs, out, replaced))
        for table in list(inputs.values())[int(replaced) :]:
            space.give_back(table)
        if plan.buckets[last].scope:
            held[last] = out
        else:
            space.give_back(out)
        b = last + 1
    return Passes(tuple(settled(one, space.peak) for one in steps), space.peak)


def _replacing(work: Program | Join, inputs: dict[Source, Placed], space: TwoEnds) -> Placed | None:
    """The message where the main table is, if that is possible."""
    if isinstance(work, Join) or work.main is None:
        return None
    main = inputs[work.main]
    out = in_place(work, main)
    return None if out is None else space.replace(main, out)


def settled(one: Pass, length: int) -> Pass:
    """The same pass in an array of `length` entries."""

    def placed(table: Placed) -> Placed:
        return table._replace(start=table.start % length if length else 0)

    inputs = {c: placed(t) for c, t in one.inputs.items()}
    return one._replace(inputs=inputs, out=placed(one.out))


def ascending(plan: EliminationPlan, axes: tuple[int, ...], start: int) -> Placed:
    """C order: what is eliminated last is fastest, and stays out of registers longest."""
    strides = {}
    step = 1
    for a in reversed(axes):
        strides[a] = step
        step *= int(plan.cardinalities[a])
    return Placed(start, step, {a: strides[a] for a in axes})


def join(plan: EliminationPlan, b: int) -> Join:
    """Bucket b alone."""
    bucket = plan.buckets[b]
    messages = [Source(c) for c in bucket.children]
    groups = [Source(b, g) for g in range(len(bucket.groups))]
    return Join(b, (*messages, *groups), bucket.scope, (b,))


def _longest(
    plan: EliminationPlan,
    b: int,
    lows: list[float],
    axes: dict[int, tuple[int, ...]],
    fuse: bool,
) -> Program | Join:
    chain, best = [b], None
    while fuse:
        found = program(plan, chain, axes)
        if found is None or (best is not None and sum(lows[c] for c in chain) < -MOST_RANGE):
            break
        best = found
        if plan.buckets[chain[-1]].parent != chain[-1] + 1:
            break
        chain = [*chain, chain[-1] + 1]
    return best or join(plan, b)


def _messages(work: Program | Join) -> list[Source]:
    """The messages that are read, the main one first."""
    if isinstance(work, Join):
        return [s for s in work.sources if s.is_message]
    tables = [s.source for s in work.steps if s.kind == TABLE]
    sources = [work.main, *tables]
    return [s for s in sources if s is not None and s.is_message]
