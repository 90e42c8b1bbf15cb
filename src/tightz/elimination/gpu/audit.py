"""A second look at passes: a few entries summed again on the host from what the pass read.

Addresses come from the tables' strides, sums run bucket by bucket over the model's own factors:
nothing of registers, matrices or lowered words is shared, so a defect there shows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.precision import Error
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.machine import Machine
from tightz.elimination.gpu.passes import Pass
from tightz.elimination.gpu.placement import Placed
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

    def before(self, one: Pass, scale: float) -> _Sample:
        free = self._free_axes(one)
        places = self._places(one.out, free)
        tables = {c: (t, tuple(t.strides)) for c, t in one.inputs.items()}
        live = {c: self._machine.gather(self._places(t, free)) for c, (t, _) in tables.items()}
        names = {c: [a for a in axes if a in free] for c, (_, axes) in tables.items()}
        total: NDArray[np.float64] = np.full(CONTEXTS, scale)
        axes: list[int] = []
        done: set[int] = set()
        for b in one.chain:
            bucket = self._plan.buckets[b]
            parts = [(total, axes)]
            parts += [(live[c], names[c]) for c in bucket.children if c in live and c not in done]
            done.update(bucket.children)
            for g in range(len(bucket.groups)):
                merged = self._factors.merged(b, g)
                parts.append((self._at(merged.values, merged.axes, free), _in(merged.axes, free)))
            total, axes = _summed(parts, b)
        order = [axes.index(a) + 1 for a in one.out.strides if a in free]
        return _Sample(places, total.transpose(0, *order))

    def after(self, one: Pass, sample: _Sample, own: Error) -> None:
        found = self._machine.gather(sample.places)
        steps = sum(len(self._plan.buckets[b].groups) + 2 for b in one.chain)
        steps += len(one.inputs) + sum(self._cards[b] for b in one.chain)
        allowed = 2.0 * (own.absolute + (steps + 2) * UNIT + LIBRARY) * sample.expected
        if not (np.abs(found - sample.expected) <= allowed).all():
            worst = float(np.max(np.abs(found - sample.expected) - allowed))
            raise RefutedError(
                f"gpu: the pass over buckets {one.chain[0]} to {one.chain[-1]} left entries that "
                f"are not the sums of what it read (off by {worst:.3g})"
            )

    def _free_axes(self, one: Pass) -> set[int]:
        """Axes that run over all states: those summed, and those that came with the chain."""
        read = {a for t in one.inputs.values() for a in t.strides}
        free = set(one.chain)
        came = [a for a in one.out.strides if a not in read]
        size = CONTEXTS
        for a in came:
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
    parts: list[tuple[NDArray[np.float64], list[int]]], gone: int
) -> tuple[NDArray[np.float64], list[int]]:
    """The product of arrays over (context, named axes), summed over `gone`."""
    names = sorted({a for _, axes in parts for a in axes})
    label = {a: k + 1 for k, a in enumerate(names)}
    kept = [a for a in names if a != gone]
    total, own = parts[0]
    for k, (values, axes) in enumerate(parts[1:]):
        last = k == len(parts) - 2
        out = kept if last else sorted({*own, *axes})
        total = np.einsum(
            total, [0, *(label[a] for a in own)], values, [0, *(label[a] for a in axes)],
            [0, *(label[a] for a in out)],
        )  # fmt: skip
        own = out
    return total, own
