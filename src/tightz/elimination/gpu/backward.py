"""The sequence of passes that gives marginals: messages forward, outside messages backward.

The outside message of a bucket is what all others say about its axes: the outside message of its
parent times everything else the parent holds, summed over the axes that it lacks. Message, outside
message and factors of a bucket together give the joint marginals of its factors. Messages are kept
at cuts only and computed again between them, as on the CPU (`exact.schedule`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.schedule import (
    BACKWARD,
    CUTS,
    FORWARD,
    FREE,
    Step,
    checkpointed_steps,
)
from tightz.elimination.exact.tables import go_on_unless
from tightz.elimination.gpu.passes import Join, Pass, ascending, join, settled
from tightz.elimination.gpu.placement import Placed, TwoEnds
from tightz.elimination.gpu.program import OUTSIDE, Source
from tightz.elimination.gpu.runner import entries_with_coefficients

_PARTIAL = 1 << 19
"""Entries that a sum over a large table is left with for the host: threads enough for a device."""

_SUMMED = 64  # states that a thread may sum while others wait


class Action(NamedTuple):
    """`work` makes the table `makes`; or, where it is summed on the host, a part of that.

    `record`: the group of the bucket whose joint marginal comes out. `target` is where the host
    puts the sum over the axes in `partial` back.
    """

    work: Pass
    makes: Source
    record: bool = False
    partial: tuple[int, ...] = ()
    target: Placed | None = None


@dataclass(frozen=True)
class Backward:
    """All actions; `peak` entries of tables, `entries` with the coefficients behind them."""

    actions: tuple[Action, ...]
    peak: int
    entries: int

    @property
    def bytes_moved(self) -> float:
        return sum(one.work.bytes_moved for one in self.actions)


def backward(
    plan: EliminationPlan, max_bytes: int, stop: Callable[[], bool] = bool
) -> Backward | None:
    """With the least recomputation that fits, or None; `StoppedError` once `stop()` says so."""
    for cuts in CUTS:
        if max(cuts, default=1) > max(1, len(plan.buckets)):
            continue
        writer = _Writer(plan)
        for step in checkpointed_steps(plan.buckets, plan.sizes(), cuts):
            go_on_unless(stop)
            writer.step(step)
            if 8 * writer.space.peak > max_bytes:
                break
        else:
            peak = writer.space.peak
            actions = tuple(_settled(one, peak) for one in writer.actions)
            entries = entries_with_coefficients(peak, [one.work for one in actions], plan)
            if 8 * entries <= max_bytes:
                return Backward(actions, peak, entries)
    return None


class _Writer:
    """Places tables and lists actions as the steps of a schedule come."""

    def __init__(self, plan: EliminationPlan) -> None:
        self._plan = plan
        self.space = TwoEnds()
        self.actions: list[Action] = []
        self._held: dict[Source, Placed] = {}

    def step(self, step: Step) -> None:
        if step.kind == FORWARD:
            work = join(self._plan, step.bucket)
            self._add(work, Source(step.bucket), self._take(work.rest))
        elif step.kind == FREE:
            self._release(Source(step.bucket))
        elif step.kind == BACKWARD:
            self._backward(step.bucket)

    def _backward(self, b: int) -> None:
        plan, bucket = self._plan, self._plan.buckets[b]
        outside = [Source(b, OUTSIDE)] if bucket.scope else []
        every = [*outside, *join(plan, b).sources]
        for g, (axes, _) in enumerate(bucket.groups):
            self._sum(b, every, axes, Source(b, g), record=True)
        for c in bucket.children:
            if plan.buckets[c].scope:
                others = [s for s in every if s != Source(c)]
                self._sum(b, others, plan.buckets[c].scope, Source(c, OUTSIDE))
        for source in [*outside, Source(b), *(Source(c) for c in bucket.children)]:
            self._release(source)

    def _sum(
        self, b: int, sources: list[Source], axes: tuple[int, ...], makes: Source, *,
        record: bool = False,
    ) -> None:  # fmt: skip
        """The product of `sources` summed down to `axes`, in part by the host if they are few."""
        left = sorted({a for s in sources for a in self._axes(s)}.difference(axes))
        partial: list[int] = []
        size = self._plan.entries(axes)
        by_host = record or self._plan.entries(left) > _SUMMED
        while by_host and left and size < _PARTIAL:
            partial.insert(0, left.pop())
            size *= int(self._plan.cardinalities[partial[0]])
        rest = (*axes, *partial)
        work = Join(b, tuple(sources), rest, tuple(left))
        target = None
        if not record:
            target = self._take(axes)
        out = self._take(rest) if record or partial else target
        assert out is not None
        self._add(work, makes, out, record, tuple(partial), target)
        if out is not target:
            self.space.give_back(out)

    def _add(
        self, work: Join, makes: Source, out: Placed, record: bool = False,
        partial: tuple[int, ...] = (), target: Placed | None = None,
    ) -> None:  # fmt: skip
        inputs = {s: self._held[s] for s in work.sources if s.is_message}
        self.actions.append(Action(Pass(work, inputs, out, False), makes, record, partial, target))
        if not record:
            self._held[makes] = target or out

    def _axes(self, source: Source) -> tuple[int, ...]:
        bucket = self._plan.buckets[source.bucket]
        return bucket.scope if source.is_message else bucket.groups[source.group][0]

    def _take(self, axes: tuple[int, ...]) -> Placed:
        out = ascending(self._plan, axes, 0)
        return out._replace(start=self.space.take(out.size))

    def _release(self, source: Source) -> None:
        table = self._held.pop(source, None)
        if table is not None:
            self.space.give_back(table)


def _settled(one: Action, length: int) -> Action:
    target = one.target
    if target is not None:
        target = target._replace(start=target.start % length)
    return one._replace(work=settled(one.work, length), target=target)
