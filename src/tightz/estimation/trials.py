"""Trials: one random projection and its I-projection, for every level and repetition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tightz.estimation.workspace import lifted_means
from tightz.families.projection import Family, IProjection, Status
from tightz.models.collapse import Collapsed
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.projections.hashing import HashFamily, Parities
from tightz.projections.pivots import PivotPolicy, Reliability
from tightz.runtime.executors import map_ordered
from tightz.runtime.seeds import generator
from tightz.search.annealing import AnnealedMeanField


@dataclass(frozen=True, eq=False)
class Trial:
    """The outcome at (level, trial): log_gammas per restart, and the best q's expectations."""

    level: int
    trial: int
    log_gamma: float
    log_gammas: NDArray[np.float64]
    rank: int
    sweeps: int
    status: Status
    spin_means: NDArray[np.float64]
    pair_means: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TrialPlan:
    """Everything a worker needs to run any trial; a trial depends on its (level, trial) only."""

    polynomial: SpinPolynomial
    family: Family
    hashing: HashFamily
    pivots: PivotPolicy
    seed: np.random.SeedSequence
    pairs: NDArray[np.int64]
    states: NDArray[np.int8] | None = None
    collapsed: Collapsed | None = None
    lift: bool = True
    polish: bool = False

    def run(self, position: tuple[int, int]) -> Trial:
        """Draw (A, b), reduce it, project, and keep what the aggregates need."""
        level, trial = position
        parities = self.hashing.draw(
            level, self.polynomial.n, generator(self.seed, level, trial, 0)
        )
        coset = Coset.build(self.polynomial, parities, self.pivots)
        best = self.family.project(coset, generator(self.seed, level, trial, 1), self.states)
        if self.polish and coset.feasible and best.log_gamma > -np.inf:
            best = self._polished(best, parities, generator(self.seed, level, trial, 2))
        return Trial(
            level=level,
            trial=trial,
            log_gamma=best.log_gamma,
            log_gammas=best.log_gammas,
            rank=coset.rank,
            sweeps=best.sweeps,
            status=best.status,
            spin_means=self._lift(best),
            pair_means=best.pair_means(self.pairs),
        )

    def _polished(
        self, first: IProjection, parities: Parities, rng: np.random.Generator
    ) -> IProjection:
        """Annealed starts, then a second basis of the same coset: its weakest spins constrained.

        Each restart keeps the best value it reached; the q kept is the best of all.
        """
        annealed = AnnealedMeanField(restarts=self.family.restarts).project(first.coset, rng)
        best = max(first, annealed, key=lambda q: q.log_gamma)
        means = best.spin_means()
        again = Coset.build(self.polynomial, parities, Reliability(np.abs(means)))
        states = np.where(means >= 0.0, 1, -1).astype(np.int8)[None, :]
        if self.states is not None:
            states = np.concatenate([states, self.states])
        second = self.family.project(again, rng, states)
        best = max(best, second, key=lambda q: q.log_gamma)
        return replace(
            best,
            log_gammas=np.max([q.log_gammas for q in (first, annealed, second)], axis=0),
            sweeps=first.sweeps + annealed.sweeps + second.sweeps,
        )

    def _lift(self, best: IProjection) -> NDArray[np.float64]:
        """Means of all the model's spins, unless nobody wants them (lift=False)."""
        return lifted_means(best, self.collapsed) if self.lift else np.zeros(0)


def run_trials(
    plan: TrialPlan,
    levels: Sequence[int],
    trials: int,
    *,
    executor: Executor | None = None,
    threads: int | None = None,
) -> Iterator[Trial]:
    """All trials, repetition by repetition, each sweeping the levels; always in this order."""
    positions = ((level, trial) for trial in range(trials) for level in levels)
    return map_ordered(plan.run, positions, executor=executor, threads=threads)
