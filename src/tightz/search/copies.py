"""Independent tempering runs side by side, in slices short enough to stop when asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import numpy as np

from tightz.runtime.backends import Backend, on_device
from tightz.runtime.clock import leave_if_over
from tightz.runtime.cores import usable_cores
from tightz.search.parallel_tempering import SLICE_WORK, Tempering

MAX_LANES = 1024
"""Threads of a block on a GPU, so replicas times temperatures of a run there."""

ENOUGH_RUNS = 32
"""Runs from which a GPU, a block a run, is worth its transfers."""


def run_copies(
    runs: Sequence[Tempering],
    *,
    sweeps: int | None,
    deadline: float | None,
    threads: int | None,
    backend: Backend = "cpu",
    finished: Callable[[], bool] = lambda: False,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Advance all runs together until `sweeps`, the deadline, `stop()` or `finished()`; True for
    the last.

    At least one slice is made. A slice's length depends on the model only, so what happens up to
    any sweep does not depend on the clock or on `threads` (default: all cores), and `finished`
    sees the same sequence of states every time. The deadline is on the clock of
    `time.perf_counter`. On a GPU the runs go side by side, one block each: worth it for
    ENOUGH_RUNS or more, which is what backend="auto" asks for.
    """
    first = runs[0]
    lanes = first.rep.beta.size
    # By work, never by a measured time: the sequence of slices, and all that is decided between
    # them, is then the same on every machine.
    length = int(np.clip(SLICE_WORK / max(1, first.problem.work * lanes), 1, 200))
    workers = min(threads or usable_cores(), len(runs))
    why_not = partial(_why_not_device, lanes)
    device = on_device(backend, why_not, worthwhile=len(runs) >= ENOUGH_RUNS)
    with ThreadPoolExecutor(workers) if workers > 1 else nullcontext() as pool:
        while sweeps is None or first.sweeps < sweeps:
            leave_if_over()
            step = length if sweeps is None else min(length, sweeps - first.sweeps)
            if device:
                from tightz.search.gpu_tempering import advance_on_device

                advance_on_device(runs, step)
            elif pool is None:
                for run in runs:
                    run.advance(step)
            else:
                for future in [pool.submit(run.advance, step) for run in runs]:
                    future.result()
            if finished():
                return True
            if stop() or (deadline is not None and time.perf_counter() >= deadline):
                return False
    return False


def _why_not_device(lanes: int, simulator: bool) -> str:
    from tightz.runtime.gpu import why_no_device

    if lanes > MAX_LANES:
        return (
            f"a run has {lanes} replicas; a block holds {MAX_LANES}. Use fewer replicas or a "
            "ladder with fewer max_temperatures"
        )
    return why_no_device(simulator)
