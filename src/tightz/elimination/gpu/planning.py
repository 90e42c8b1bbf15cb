"""What exact elimination on a GPU would take, decided before anything is allocated there."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tightz.elimination.exact.planning import EliminationPlan, build_plan
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.machine import Machine
from tightz.elimination.gpu.passes import Join, Passes, passes
from tightz.elimination.gpu.solve import Solve, Solved, total_entries
from tightz.judge.verdict import LIBRARY, UNIT
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import observe
from tightz.runtime.memory import format_bytes

BYTES_A_SECOND = 2.0e12
"""What fused passes reach on an H200, roughly; other devices are slower in proportion."""

_SECONDS_A_PASS = 3e-4
_MAX_SLICES = 1 << 12


@dataclass(frozen=True)
class Refused:
    """Why a model cannot be eliminated on the device."""

    reason: str


class GpuResult(NamedTuple):
    """log Z of the tables as given lies within `rounding` of `log_z`."""

    log_z: float
    rounding: float
    seconds: float


@dataclass(frozen=True, repr=False, eq=False)
class GpuPlan:
    """Passes over tables in device memory, for each state of the variables in `sliced`.

    `plan` is of `model` without observed variables and with those of `sliced` fixed, which are
    numbers of the model without observed ones.
    """

    model: FactorGraph
    plan: EliminationPlan
    passes: Passes
    sliced: tuple[int, ...]
    slices: int

    @property
    def entries(self) -> int:
        return total_entries(self.passes, self.plan)

    @property
    def bytes(self) -> int:
        """Device memory."""
        return 8 * self.entries

    @property
    def bytes_moved(self) -> float:
        """Through device memory, over all slices."""
        return self.slices * sum(one.bytes_moved for one in self.passes.steps)

    @property
    def seconds(self) -> float:
        """Predicted for an H200."""
        passes = self.slices * len(self.passes.steps)
        return self.bytes_moved / BYTES_A_SECOND + _SECONDS_A_PASS * passes

    def describe(self) -> str:
        steps = self.passes.steps
        fused = sum(len(one.chain) for one in steps if not isinstance(one.work, Join))
        slices = f", {self.slices} slices over {len(self.sliced)} variables" if self.sliced else ""
        return (
            f"{len(steps)} passes for {len(self.plan.buckets)} variables ({fused} fused), width "
            f"{self.plan.width}, {format_bytes(self.bytes)} of device memory, "
            f"{format_bytes(self.bytes_moved)} moved{slices}; about {self.seconds:.2g} s on an H200"
        )

    def solve(self, machine: Callable[[int], Machine] | None = None) -> GpuResult:
        """log Z and its rounding. `machine`: made for a number of entries; the GPU by default.

        Raises `OutOfRangeError` where a table spans more than float64 does.
        """
        start = time.perf_counter()
        if machine is None:
            from tightz.elimination.gpu.cuda import CudaMachine

            machine = CudaMachine
        runs = machine(self.entries)
        try:
            found = [
                Solve(self.plan, self.passes, Factors(one, self.plan), runs).run()
                for one in self._slices()
            ]
        finally:
            runs.close()
        log_z, rounding = _log_sum(found)
        return GpuResult(log_z, rounding, time.perf_counter() - start)

    def _slices(self) -> Iterator[FactorGraph]:
        reduced = observe(self.model).reduced
        states = [range(int(reduced.cardinalities[v])) for v in self.sliced]
        for assignment in itertools.product(*states):
            evidence = dict(zip(self.sliced, assignment, strict=True))
            yield reduced.with_evidence(evidence).condition() if evidence else reduced

    def __repr__(self) -> str:
        return f"GpuPlan({self.describe()})"


def gpu_plan(
    model: FactorGraph,
    plan: EliminationPlan,
    *,
    max_bytes: int,
    most_seconds: float = math.inf,
    fuse: bool = True,
) -> GpuPlan | Refused:
    """How `plan` (of `model`) runs in `max_bytes` of device memory, sliced where it must be.

    Variables are fixed one by one, each time the one in most of the largest tables. `fuse=False`
    treats each bucket alone.
    """
    reduced = observe(model).reduced
    current, sliced, names, count = reduced, (), np.arange(reduced.n_variables), 1
    while True:
        steps = passes(plan, _lows(current, plan), fuse=fuse)
        found = GpuPlan(model, plan, steps, sliced, count)
        if found.seconds > most_seconds:
            return Refused(f"about {found.seconds:.2g} s on an H200; allowed are {most_seconds:g}")
        if found.bytes <= max_bytes:
            return found
        if count >= _MAX_SLICES:
            return Refused(
                f"{format_bytes(found.bytes)} of device memory even in {count} slices; there are "
                f"{format_bytes(max_bytes)}"
            )
        v = _heaviest(plan, steps)
        count *= int(current.cardinalities[v])
        sliced = (*sliced, int(names[v]))
        order = plan.order[plan.order != v]
        current = current.with_evidence({v: 0}).condition()
        names = np.delete(names, v)
        plan = build_plan(current, order - (order > v), plan.heuristic)


def _lows(model: FactorGraph, plan: EliminationPlan) -> list[float]:
    factors = Factors(model, plan)
    return [
        sum(factors.merged(b, g).low for g in range(len(bucket.groups)))
        for b, bucket in enumerate(plan.buckets)
    ]


def _heaviest(plan: EliminationPlan, steps: Passes) -> int:
    """The variable whose absence frees most of the largest messages in memory."""
    saved = np.zeros(len(plan.order))
    for one in steps.steps:
        axes = list(one.out.strides)
        cards = plan.cardinalities[axes].astype(np.float64)
        saved[axes] += float(one.out.size) ** 2 * (1 - 1 / cards)
    return int(plan.order[int(np.argmax(saved))])


def _log_sum(found: list[Solved]) -> tuple[float, float]:
    """(log sum exp of the slices, its rounding): every slice up, or down, by its own at most."""
    top = max(x.scale for x in found)
    if top.high == -math.inf:
        return -math.inf, 0.0
    if len(found) == 1:
        return top.high, found[0].rounding
    depths = [(x.scale.high - top.high) + (x.scale.low - top.low) for x in found]
    spread = math.log(math.fsum(math.exp(d) for d in depths))
    log_z = math.fsum([*top, spread])
    worst = max(x.rounding for x in found)
    own = UNIT * abs(log_z) + 4.0 * (LIBRARY + UNIT) * (1.0 + math.log(len(found)))
    return log_z, worst + own
