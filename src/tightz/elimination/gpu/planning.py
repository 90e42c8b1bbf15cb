"""What exact elimination on a GPU would take, decided before anything is allocated there."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan, build_plan
from tightz.elimination.gpu.backward import Backward, backward
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.machine import Machine
from tightz.elimination.gpu.marginals import marginals
from tightz.elimination.gpu.passes import Join, Passes, passes
from tightz.elimination.gpu.runner import entries_with_coefficients
from tightz.elimination.gpu.slices import Shares, log_sum
from tightz.elimination.gpu.solve import Solved, solve
from tightz.elimination.refused import Refused
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import observe
from tightz.runtime.clock import leave_if_over
from tightz.runtime.memory import format_bytes

BYTES_A_SECOND = 2.0e12
"""What fused passes reach on an H200, roughly; other devices are slower in proportion."""

JOINED_BYTES_A_SECOND = 1.0e12
"""The same for passes of one bucket, of which marginals are made."""

_SECONDS_A_PASS = 1e-3  # most of it the audit
_MAX_SLICES = 1 << 12


class GpuResult(NamedTuple):
    """log Z of the tables as given lies within `rounding` of `log_z`.

    Marginals, if asked for, are those of the model without observed variables: one vector per
    variable, and per factor flat in the layout of its `log_tables`; NaN where Z = 0.
    """

    log_z: float
    rounding: float
    seconds: float
    marginals: list[NDArray[np.float64]] | None = None
    factor_marginals: NDArray[np.float64] | None = None


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
    backward: Backward | None = None

    @property
    def entries(self) -> int:
        if self.backward is not None:
            return self.backward.entries
        return entries_with_coefficients(self.passes.peak, self.passes.steps, self.plan)

    @property
    def bytes(self) -> int:
        """Device memory."""
        return 8 * self.entries

    @property
    def bytes_moved(self) -> float:
        """Through device memory, over all slices."""
        if self.backward is not None:
            return self.slices * self.backward.bytes_moved
        return self.slices * sum(one.bytes_moved for one in self.passes.steps)

    @property
    def seconds(self) -> float:
        """Predicted for an H200."""
        if self.backward is not None:
            count = self.slices * len(self.backward.actions)
            return self.bytes_moved / JOINED_BYTES_A_SECOND + _SECONDS_A_PASS * count
        count = self.slices * len(self.passes.steps)
        return self.bytes_moved / BYTES_A_SECOND + _SECONDS_A_PASS * count

    def describe(self) -> str:
        steps = self.passes.steps
        fused = sum(len(one.chain) for one in steps if not isinstance(one.work, Join))
        slices = f", {self.slices} slices over {len(self.sliced)} variables" if self.sliced else ""
        return (
            f"{len(steps)} passes for {len(self.plan.buckets)} variables ({fused} fused), width "
            f"{self.plan.width}, {format_bytes(self.bytes)} of device memory, "
            f"{format_bytes(self.bytes_moved)} moved{slices}; about {self.seconds:.2g} s on an H200"
        )

    def solve(
        self,
        machine: Callable[[int], Machine] | None = None,
        *,
        stop: Callable[[], bool] = bool,
    ) -> GpuResult:
        """log Z, its rounding, and marginals if planned for.

        `machine`: made for a number of entries; the GPU by default. Its memory is free when this
        returns. Raises `OutOfRangeError` where a table spans more than float64 does, `StoppedError`
        between two passes once `stop()` says so.
        """
        start = time.perf_counter()
        if machine is None:
            from tightz.elimination.gpu.cuda import CudaMachine

            machine = CudaMachine
        runs = machine(self.entries)
        shares = Shares(observe(self.model).reduced, self.sliced) if self.backward else None
        found: list[Solved] = []
        try:
            for evidence, one in self._slices():
                if shares is None or self.backward is None:
                    found.append(solve(self.plan, self.passes, Factors(one, self.plan), runs, stop))
                else:
                    part = marginals(one, self.plan, self.backward, runs, stop)
                    found.append(part.solved)
                    shares.add(evidence, part)
        finally:
            runs.close()
        log_z, rounding = log_sum(found)
        seconds = time.perf_counter() - start
        if shares is None:
            return GpuResult(log_z, rounding, seconds)
        return GpuResult(log_z, rounding, seconds, *shares.normalised())

    def _slices(self) -> Iterator[tuple[dict[int, int], FactorGraph]]:
        reduced = observe(self.model).reduced
        states = [range(int(reduced.cardinalities[v])) for v in self.sliced]
        for assignment in itertools.product(*states):
            evidence = dict(zip(self.sliced, assignment, strict=True))
            yield evidence, reduced.with_evidence(evidence).condition() if evidence else reduced

    def __repr__(self) -> str:
        return f"GpuPlan({self.describe()})"


def gpu_plan(
    model: FactorGraph,
    plan: EliminationPlan,
    *,
    max_bytes: int,
    marginals: bool = False,
    most_seconds: float = math.inf,
    fuse: bool = True,
    stop: Callable[[], bool] = bool,
) -> GpuPlan | Refused:
    """How `plan` (of `model`) runs in `max_bytes` of device memory, sliced where it must be.

    Variables are fixed one by one, each time the one in most of the largest tables. `fuse=False`
    treats each bucket alone. Raises `StoppedError` once `stop()` says so, and leaves between two
    tries once the run that this thread works for is over: slicing a 60x60 grid takes many.
    """
    reduced = observe(model).reduced
    plan = build_plan(reduced, plan.order, plan.heuristic, plan.numbers, one_by_one=True)
    current, names, count = reduced, np.arange(reduced.n_variables), 1
    sliced: tuple[int, ...] = ()
    while True:
        leave_if_over()
        steps = passes(plan, _lows(current, plan), fuse=fuse)
        both = backward(plan, max_bytes, stop) if marginals else None
        found = GpuPlan(model, plan, steps, sliced, count, both)
        if found.seconds > most_seconds:
            return Refused(f"about {found.seconds:.2g} s on an H200; allowed are {most_seconds:g}")
        if found.bytes <= max_bytes and (both is not None or not marginals):
            return found
        if count >= _MAX_SLICES:
            return Refused(
                f"more than {format_bytes(max_bytes)} of device memory even in {count} slices"
            )
        v = _heaviest(plan, steps)
        count *= int(current.cardinalities[v])
        sliced = (*sliced, int(names[v]))
        order = plan.order[plan.order != v]
        current = current.with_evidence({v: 0}).condition()
        names = np.delete(names, v)
        plan = build_plan(current, order - (order > v), plan.heuristic, one_by_one=True)


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
