"""Trials: one random projection and its I-projection, for every level and repetition.

Work travels in batches: a run is a list of positions (level, trial) cut into batches of a fixed
size, so that what comes back does not depend on who computed it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tightz.families.mean_field import MeanField
from tightz.families.projection import Family, IProjection, Status
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.projections.hashing import HashFamily, Parities, PivotPolicy, Reliability
from tightz.reductions.collapse import Collapsed
from tightz.reductions.encoding import Products, mean_products
from tightz.runtime.seeds import generator
from tightz.search.annealing import AnnealedMeanField
from tightz.workspace.workspace import lifted_means


class WeightedMoments:
    """Running mean and spread of vectors with weights exp(log_weight), one pass, no overflow."""

    def __init__(self, size: int) -> None:
        self._log_scale = -math.inf
        self._weight = 0.0
        self._sum = np.zeros(size)
        self._squares = np.zeros(size)

    def add(self, log_weight: float, values: NDArray[np.float64]) -> None:
        """Take in one vector; a weight of zero (log_weight = -inf) changes nothing."""
        if log_weight == -math.inf:
            return
        # Everything so far is expressed relative to the largest weight seen: exp never overflows,
        # and a new maximum shrinks what was there.
        if log_weight > self._log_scale:
            self._rescale(log_weight)
        w = math.exp(log_weight - self._log_scale)
        self._weight += w
        self._sum += w * values
        self._squares += w * values * values

    def merge(self, other: WeightedMoments) -> None:
        """Take in all that `other` has seen."""
        if other._log_scale > self._log_scale:
            self._rescale(other._log_scale)
        if other._log_scale > -math.inf:
            w = math.exp(other._log_scale - self._log_scale)
            self._weight += w * other._weight
            self._sum += w * other._sum
            self._squares += w * other._squares

    def to_array(self) -> NDArray[np.float64]:
        """Everything in one vector [log scale, weight, sums, squares], for files and cables."""
        return np.concatenate([[self._log_scale, self._weight], self._sum, self._squares])

    @classmethod
    def from_array(cls, packed: NDArray[np.float64]) -> WeightedMoments:
        """The inverse of `to_array`."""
        size = (packed.size - 2) // 2
        moments = cls(size)
        moments._log_scale, moments._weight = float(packed[0]), float(packed[1])
        moments._sum, moments._squares = packed[2 : 2 + size].copy(), packed[2 + size :].copy()
        return moments

    def _rescale(self, log_scale: float) -> None:
        shrink = math.exp(self._log_scale - log_scale)
        self._weight *= shrink
        self._sum *= shrink
        self._squares *= shrink
        self._log_scale = log_scale

    @property
    def mean(self) -> NDArray[np.float64]:
        """The weighted mean; NaN before anything of positive weight came in."""
        if self._weight == 0.0:
            return np.full_like(self._sum, np.nan)
        return self._sum / self._weight

    @property
    def spread(self) -> NDArray[np.float64]:
        """The weighted standard deviation between vectors."""
        if self._weight == 0.0:
            return np.full_like(self._sum, np.nan)
        variance = self._squares / self._weight - self.mean**2
        return np.sqrt(np.maximum(variance, 0.0))


Position = tuple[int, int]
"""(level, trial): what a trial's random draws depend on, besides the seed."""

BATCH = 16
"""Trials that travel together unless the caller says otherwise."""

BATCH_SECONDS = 0.5
"""What `batch_size` aims at on one core of today: far above the cost of sending a batch."""

MIN_BATCHES = 64
"""A run is cut into at least this many batches, so that many workers share a short one."""

STATUSES = tuple(Status)

LOG_2 = math.log(2.0)


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
    products: Products | None = None

    def project(self, position: Position) -> IProjection:
        """Draw (A, b), reduce it, and look for the best q: the same at every call."""
        # Three streams keyed by position: parities, starts, polishing. The parities must not
        # depend on what a solver does, and no (A, b) is ever drawn again because it is infeasible.
        level, trial = position
        parities = self.hashing.draw(
            level, self.polynomial.n, generator(self.seed, level, trial, 0)
        )
        coset = Coset.build(self.polynomial, parities, self.pivots)
        # gamma <= Z(A, b) whatever the family finds, so E[2^m gamma] <= Z needs no optimality.
        best = self.family.project(coset, generator(self.seed, level, trial, 1), self.states)
        if self.polish and coset.feasible and best.log_gamma > -np.inf:
            best = self._polished(best, parities, generator(self.seed, level, trial, 2))
        return best

    def run(self, position: Position) -> Trial:
        """One trial: its projection, and what the aggregates need of it."""
        best = self.project(position)
        return Trial(
            level=position[0],
            trial=position[1],
            log_gamma=best.log_gamma,
            log_gammas=best.log_gammas,
            rank=best.coset.rank,
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
        # Another basis of the same coset: the set of states is unchanged, so the bound is on the
        # same Z(A, b) and taking the better of two q's is no selection over random draws.
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
        """Means of the products that give the model's marginals (default: of all its spins).

        Spins that a collapse has summed out come back as means, so there products of several are
        taken as if independent. Empty where nobody wants them (lift=False).
        """
        if not self.lift:
            return np.zeros(0)
        if self.collapsed is None and self.products is not None:
            ptr, spins, signs = self.products
            return signs * best.expectations(ptr, spins)
        means = lifted_means(best, self.collapsed)
        return means if self.products is None else mean_products(self.products, means)


@dataclass(frozen=True, eq=False)
class TrialBatch:
    """The outcomes at `levels[i], trials[i]`, in that order, with their averages of q.

    log_gammas (k, restarts); ranks, sweeps (k,); statuses (k,) indices into STATUSES. `spins` and
    `pairs` average E s_i and E s_i s_j over the batch, weighted by 2^level gamma.
    """

    levels: NDArray[np.int64]
    trials: NDArray[np.int64]
    log_gammas: NDArray[np.float64]
    ranks: NDArray[np.int64]
    sweeps: NDArray[np.int64]
    statuses: NDArray[np.int8]
    spins: WeightedMoments
    pairs: WeightedMoments

    def __len__(self) -> int:
        return int(self.levels.size)

    @property
    def log_gamma(self) -> NDArray[np.float64]:
        """(k,) the best restart of each trial."""
        return self.log_gammas.max(axis=1)


def run_batch(plan: TrialPlan, positions: Sequence[Position]) -> TrialBatch:
    """The trials at `positions`, one after the other."""
    done = [plan.run(position) for position in positions]
    spins, pairs = WeightedMoments(done[0].spin_means.size), WeightedMoments(len(plan.pairs))
    for trial in done:
        # Averages over trials weigh a projection by what it says about Z: 2^m gamma.
        log_weight = trial.log_gamma + trial.level * LOG_2
        spins.add(log_weight, trial.spin_means)
        pairs.add(log_weight, trial.pair_means)
    return TrialBatch(
        levels=np.array([t.level for t in done], dtype=np.int64),
        trials=np.array([t.trial for t in done], dtype=np.int64),
        log_gammas=np.array([t.log_gammas for t in done]),
        ranks=np.array([t.rank for t in done], dtype=np.int64),
        sweeps=np.array([t.sweeps for t in done], dtype=np.int64),
        statuses=np.array([STATUSES.index(t.status) for t in done], dtype=np.int8),
        spins=spins,
        pairs=pairs,
    )


def all_positions(levels: Sequence[int], trials: int) -> Iterator[Position]:
    """Repetition by repetition, each sweeping the levels: every prefix is nearly balanced."""
    return ((level, trial) for trial in range(trials) for level in levels)


def batch_size(plan: TrialPlan, levels: Sequence[int], trials: int) -> int:
    """Trials a batch: about BATCH_SECONDS by a forecast of the work, within a factor of 10.

    Depends on the plan and the positions only, never on workers or timings, since averages over a
    batch do depend on its size (in the last bits).
    """
    positions = len(levels) * trials
    if not isinstance(plan.family, MeanField):
        return 1  # no forecast; a trial of another family is seldom short
    n, m = plan.polynomial.n, np.asarray(levels, dtype=np.float64)
    # Measured on grids: restarts x members of terms x 0.1 us, times 1 + m (n - m) / 10 n for the
    # long products that m parities make; polishing costs five such projections.
    level = 1.0 + float((m * (n - m)).mean()) / (10.0 * max(n, 1))
    work = plan.family.restarts * (plan.polynomial.spins.size + n) * level
    seconds = 2e-4 + 1e-7 * work * (5.0 if plan.polish else 1.0)
    return max(1, min(int(BATCH_SECONDS / seconds), positions // MIN_BATCHES))
