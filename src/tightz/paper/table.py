"""The table of trials as it fills, and the averages that go with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightz.paper.moments import WeightedMoments
from tightz.paper.trials import STATUSES, TrialBatch


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
