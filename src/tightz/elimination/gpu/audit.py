"""A second look at passes: a few entries summed again on the host from what the pass read.

Addresses come from the tables' strides, sums run bucket by bucket over the model's own factors:
nothing of registers, matrices or lowered words is shared, so a defect there shows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.precision import Error
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.machine import Machine
from tightz.elimination.gpu.passes import Join, Pass
from tightz.elimination.gpu.placement import Placed
from tightz.elimination.gpu.program import Source
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError

CONTEXTS = 4
_MOST_ENTRIES = 1 << 12  # of a message's entries that are looked at


class _Sample(NamedTuple):
    places: NDArray[np.int64]
    expected: NDArray[np.float64]


class Audit:
    """`before` a pass copies what it will read at sampled contexts, `after` compares."""

    def __init__(self, plan: EliminationPlan, factors: Factors, machine: Machine) -> None:
        self._plan, self._factors, self._machine = plan, factors, machine
        self._cards: list[int] = plan.cardinalities.tolist()
        drawn = np.random.default_rng(0).random((len(self._cards), CONTEXTS))
        self._digits = (drawn * plan.cardinalities[:, None]).astype(np.int64)

    def before(self, one: Pass, scale: float) -> _Sample | None:
        free = self._free_axes(one)
        if free is None:
            return None
        total: NDArray[np.float64] = np.full(CONTEXTS, scale)
        axes: list[int] = []
        for sources, gone in self._steps(one):
            parts = [(total, axes)]
            for source in sources:
                if source.is_message:
                    table = one.inputs[source]
                    values = self._machine.gather(self._places(table, free))
                    parts.append((values, _in(tuple(table.strides), free)))
                else:
                    merged = self._factors.merged(*source)
                    values = self._at(merged.values, merged.axes, free)
                    parts.append((values, _in(merged.axes, free)))
            total, axes = _summed(parts, gone)
        order = [axes.index(a) + 1 for a in one.out.strides if a in free]
        return _Sample(self._places(one.out, free), total.transpose(0, *order))

    def _steps(self, one: Pass) -> list[tuple[list[Source], tuple[int, ...]]]:
        """What is multiplied and then summed over what, in sequence."""
        if isinstance(one.work, Join):
            return [(list(one.work.sources), one.work.summed)]
        steps: list[tuple[list[Source], tuple[int, ...]]] = []
        for b in one.chain:
            bucket = self._plan.buckets[b]
            messages = [Source(c) for c in bucket.children if Source(c) in one.inputs]
            groups = [Source(b, g) for g in range(len(bucket.groups))]
            steps.append(([*messages, *groups], (b,)))
        return steps

    def after(self, one: Pass, sample: _Sample | None, own: Error) -> None:
        if sample is None:
            return
        found = self._machine.gather(sample.places)
        steps = len(one.inputs) + len(one.factors(self._plan)) + len(one.summed)
        steps += math.prod(self._cards[b] for b in one.summed)
        allowed = 2.0 * (own.absolute + (steps + 2) * UNIT + LIBRARY) * sample.expected
        if not (np.abs(found - sample.expected) <= allowed).all():
            worst = float(np.max(np.abs(found - sample.expected) - allowed))
            raise RefutedError(
                f"gpu: the pass over buckets {one.chain[0]} to {one.chain[-1]} left entries that "
                f"are not the sums of what it read (off by {worst:.3g})"
            )

    def _free_axes(self, one: Pass) -> set[int] | None:
        """Axes that run over all states: those summed, and those that came with the chain.

        None where that is too much to look at.
        """
        if isinstance(one.work, Join) and self._plan.entries(one.summed) > _MOST_ENTRIES:
            return None
        read = {a for t in one.inputs.values() for a in t.strides}
        free = set(one.summed)
        size = CONTEXTS
        for a in one.out.strides:
            if a not in read:
                size *= self._cards[a]
                if size <= _MOST_ENTRIES:
                    free.add(a)
        return free

    def _places(self, table: Placed, free: set[int]) -> NDArray[np.int64]:
        """(CONTEXTS, *states of the free axes), in the order of the table's strides."""
        at = np.full(CONTEXTS, table.start, np.int64)
        for a, stride in table.strides.items():
            if a not in free:
                at = at + stride * self._digits[a]
        for a, stride in table.strides.items():
            if a in free:
                at = at[..., None] + stride * np.arange(self._cards[a])
        return at

    def _at(
        self, values: NDArray[np.float64], axes: tuple[int, ...], free: set[int]
    ) -> NDArray[np.float64]:
        strides = {a: s // values.itemsize for a, s in zip(axes, values.strides, strict=True)}
        places = self._places(Placed(0, values.size, strides), free)
        return values.ravel()[places]


def _in(axes: tuple[int, ...], free: set[int]) -> list[int]:
    return [a for a in axes if a in free]


def _summed(
    parts: list[tuple[NDArray[np.float64], list[int]]], gone: tuple[int, ...]
) -> tuple[NDArray[np.float64], list[int]]:
    """The product of arrays over (context, named axes), summed over `gone`."""
    names = sorted({a for _, axes in parts for a in axes})

    def labels(axes: list[int]) -> list[int]:
        return [0, *(names.index(a) + 1 for a in axes)]

    kept = [a for a in names if a not in gone]
    total, own = parts[0]
    for k, (values, axes) in enumerate(parts[1:]):
        last = k == len(parts) - 2
        out = kept if last else sorted({*own, *axes})
        arrays: list[Any] = [total, labels(own), values, labels(axes), labels(out)]
        total = np.einsum(*arrays)
        own = out
    return total, own
