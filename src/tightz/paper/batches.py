"""Many trials: in batches, on the CPU, on workers or on a GPU; and the table that they fill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from tightz.paper.trials import (
    BATCH,
    STATUSES,
    Position,
    TrialBatch,
    TrialPlan,
    WeightedMoments,
    run_batch,
)
from tightz.runtime.backends import Backend, on_device
from tightz.runtime.executors import Submits, map_ordered


def run_batches(
    plan: TrialPlan,
    positions: Iterable[Position],
    *,
    executor: Submits | None = None,
    threads: int | None = None,
    batch: int = BATCH,
    backend: Backend = "auto",
) -> Iterator[TrialBatch]:
    """All the positions' trials in batches of `batch`, in the order of the positions.

    backend: "cpu", "cuda" (an error where that cannot be), or "auto": a GPU where one is usable
    and can run this plan, unless an executor is given.
    """
    # A trial depends on its position only, so who runs it is a matter of speed.
    if on_device(backend, partial(why_not_device, plan), worthwhile=executor is None):
        from tightz.paper.gpu.batches import run_batches_cuda

        return run_batches_cuda(plan, positions, batch=batch, fall_back=backend == "auto")
    run = partial(run_batch, plan)
    return map_ordered(run, _batches(positions, batch), executor=executor, threads=threads)


def why_not_device(plan: TrialPlan, simulator: bool) -> str:
    """Why the plan's trials cannot run on a GPU; "" where they can."""
    from tightz.paper.gpu.availability import why_not

    return why_not(plan, simulator=simulator)


def _batches(positions: Iterable[Position], size: int) -> Iterator[tuple[Position, ...]]:
    source = iter(positions)
    while chunk := tuple(islice(source, size)):
        yield chunk


class TrialTable:
    """Every (level, trial, restart) of a run; 8 bytes a restart and 24 a trial, whatever its size.

    Batches come in the order of `all_positions`, so what is there is always a run of whole
    repetitions and part of one more. `planned_levels` and `planned_trials` stay as they were at
    the start, whatever is cut: certificates pay for the plan.
    """

    def __init__(
        self, levels: Sequence[int], trials: int, restarts: int, *, spins: int, pairs: int
    ) -> None:
        shape = (len(levels), trials)
        self.levels = self.planned_levels = np.array(levels, dtype=np.int64)
        self.planned_trials = trials
        self.log_gammas = np.full((*shape, restarts), np.nan)
        self.sweeps = np.zeros(shape, dtype=np.int64)
        self.ranks = np.zeros(shape, dtype=np.int64)
        self.statuses = np.empty(shape, dtype=object)
        self.singles, self.joint = WeightedMoments(spins), WeightedMoments(pairs)
        self.done = 0
        self._row = np.zeros(self.levels.max(initial=0) + 1, dtype=np.int64)
        self._row[self.levels] = np.arange(len(levels))

    def take(self, batch: TrialBatch) -> None:
        """Put a batch into its places and merge its averages."""
        at = self._row[batch.levels], batch.trials
        self.log_gammas[at] = batch.log_gammas
        self.sweeps[at], self.ranks[at] = batch.sweeps, batch.ranks
        self.statuses[at] = [STATUSES[code] for code in batch.statuses]
        self.singles.merge(batch.spins)
        self.joint.merge(batch.pairs)
        self.done += len(batch)

    def cut(self) -> None:
        """Drop the places that were not reached: whole repetitions, or the levels of the first."""
        repetitions, rest = divmod(self.done, len(self.levels))
        rows, columns = (len(self.levels), repetitions) if repetitions else (rest, 1)
        self.levels = self.levels[:rows]
        self.log_gammas = self.log_gammas[:rows, :columns]
        self.sweeps, self.ranks = self.sweeps[:rows, :columns], self.ranks[:rows, :columns]
        self.statuses = self.statuses[:rows, :columns]
