"""The descent with its tables in device memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ResourceError
from tightz.judge.cliques import CliquesEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.gpu import alone
from tightz.runtime.gpu.device import cuda, free_bytes
from tightz.runtime.gpu.graphs import Recording, own_stream, wait
from tightz.runtime.memory import format_bytes
from tightz.uppers.mini_bucket.descent import Steps
from tightz.uppers.mini_bucket.gpu.kernels import ITEMS, KERNELS, THREADS, reset
from tightz.uppers.mini_bucket.gpu.program import Launch, Program, Span, program
from tightz.uppers.mini_bucket.partition import Partition

_BLUR = 1e-5
"""Of all levels, by which a pass in float32 may be off."""


class Snapshot(NamedTuple):
    """The best bound's tables, which no longer change: log p~ = log U + sum_c (F_c - m_c).

    As real numbers, for the numbers that `pool` holds: each message is added once and taken away
    once, each level likewise. `levels` (C,) on the host.
    """

    log_u: float
    pool: Any
    levels: NDArray[np.float64]
    weights: NDArray[np.float64]


class DeviceDescent(Steps):
    """`Steps` on a device, in float32; upper bounds of models without zero potentials.

    What the passes make of rounding does not matter to the bound: shifts and weights may be any
    numbers, and the judge forms everything else anew.
    """

    def __init__(
        self,
        model: FactorGraph,
        parts: Partition,
        *,
        lower: bool = False,
        layout: Program | None = None,
    ) -> None:
        # Not in a turn on the device: it takes a second.
        self.program: Program = program(parts, ITEMS) if layout is None else layout
        super().__init__(model, parts, lower=lower)

    @alone
    def _begin(self, weights: NDArray[np.float64]) -> None:
        p = self.program
        free_bytes()  # what descents before it held is let go
        self.stream = own_stream()
        self.pool = cuda.device_array(p.entries, np.float32)
        self._kept_shifts = cuda.device_array(p.shifts.high - p.shifts.low, np.float32)
        reals = np.zeros(p.reals)
        reals[: weights.size] = weights
        self.reals = cuda.to_device(reals)
        self.plan = cuda.to_device(p.plan)
        self._up = self._recording(p.forward)
        self._down = self._recording(p.backward)
        if p.factors.size:
            self.pool[: p.factors.size].copy_to_device(p.factors, stream=self.stream)
        self._fill(self.pool, p.shifts, 0.0)

    def _recording(self, launches: list[Launch]) -> Recording:
        def work(stream: Any) -> None:
            for kernel, blocks, at in launches:
                KERNELS[kernel][blocks, THREADS, stream](plan, pool, reals, at)

        plan, pool, reals = self.plan, self.pool, self.reals
        return Recording(work, self.stream, {launch.kernel for launch in launches})

    @property
    def _shifts(self) -> Any:
        return self.pool[self.program.shifts.low : self.program.shifts.high]

    @alone
    def advance(self) -> float:
        """One iteration, in one turn on the device."""
        return super().advance()

    @alone
    def _forward(self) -> float:
        levels = self.program.levels
        self._fill(self.reals, levels, -np.inf)
        self._up.play()
        # a level is taken off every message where it is read, and a root's is its message
        found = self._fetched(self.reals[levels.low : levels.high])
        self._magnitude = float(np.abs(found).sum())
        return float(self._constant + found.sum())

    @alone
    def _backward(self, step: float, weight_rate: float) -> None:
        p = self.program
        self._fill(self.reals, p.sums, 0.0)
        steps = self.reals[p.steps.low : p.steps.high]
        steps.copy_to_device(np.array([step, weight_rate]), stream=self.stream)
        self._down.play()

    @property
    def _weights(self) -> Any:
        return self.reals[: self.program.weights.high]

    @alone
    def _keep(self) -> None:
        self._kept_weights = self._fetched(self._weights)
        if self._kept_shifts.size:
            self._kept_shifts.copy_to_device(self._shifts, stream=self.stream)
            wait(self.stream)

    @alone
    def _restore(self) -> None:
        self._weights.copy_to_device(self._kept_weights, stream=self.stream)
        if self._kept_shifts.size:
            self._shifts.copy_to_device(self._kept_shifts, stream=self.stream)

    def _fetched(self, array: Any) -> NDArray[np.float64]:
        found: NDArray[np.float64] = array.copy_to_host(stream=self.stream)
        wait(self.stream)
        return found

    def _fill(self, array: Any, span: Span, value: float) -> None:
        blocks = min(1024, -(-(span.high - span.low) // THREADS))
        if blocks:
            reset[blocks, THREADS, self.stream](array, span.low, span.high, value)

    @alone
    def snapshot(self) -> Snapshot:
        """A copy of the best bound's tables; ResourceError where there is no memory for one."""
        size = self.program.messages.high
        if 4 * size > free_bytes() // 2:
            raise ResourceError(
                f"drawing on the GPU needs {format_bytes(4 * size)} beside the tables of the "
                f"bound; {format_bytes(free_bytes())} are free"
            )
        self._restore()
        log_u = self._forward()
        pool = cuda.device_array(size, np.float32)
        pool.copy_to_device(self.pool[:size], stream=self.stream)
        levels = self.program.levels
        found = self._fetched(self.reals[levels.low : levels.high])
        return Snapshot(log_u, pool, found, self._kept_weights)

    @alone
    def evidence(self, numbers: NDArray[np.int64]) -> CliquesEvidence:
        names, parts = numbers.tolist(), self.parts
        pairs = [pair for bucket in parts.pairs for pair in bucket]
        cards = parts.cardinalities
        sizes = [int(np.prod(cards[list(shared)])) for _, _, shared in pairs]
        return CliquesEvidence(
            order=numbers[parts.order],
            scopes=tuple(tuple(names[v] for v in scope) for scope in parts.cliques),
            factors=parts.sources,
            parents=parts.parents,
            weights=self._kept_weights,
            pairs=np.array([(i, j) for i, j, _ in pairs], dtype=np.int64).reshape(-1, 2),
            shift_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            shifts=self._kept_shifts,
            claimed=self.best,
            tolerance=_BLUR * (self._magnitude + len(parts.cliques)),
        )
