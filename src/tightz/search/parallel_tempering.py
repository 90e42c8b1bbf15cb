"""One tempering run: replicas at every temperature, advanced in slices and recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ParameterError, require_range
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.projections.grouped import GroupedPolynomial
from tightz.runtime.clock import leave_if_over
from tightz.runtime.seeds import generator
from tightz.search.ladder import Ladder, local_scales
from tightz.search.lane_sweeps import Scratch, sweep_lanes, temper
from tightz.search.moves import Best, Plan, Replicas, Tally, reweigh

SLICE_WORK = 1e8
"""Work between two looks at the clock: 10 to 50 ms."""

MAX_ROWS = 4096
"""Sweeps whose energies are kept per run; when more have been made, every other one is dropped."""

REFRESH_EVERY = 50
"""Sweeps, rounded up to slices, after which energies are recomputed from the spins."""


@dataclass(frozen=True)
class ParallelTempering:
    """Parallel tempering (Geyer, 1991; Hukushima and Nemoto, 1996) with cluster moves.

    replicas        states per temperature (even: cluster moves work on pairs)
    ladder          how temperatures are chosen
    cluster_every   sweeps between cluster moves, 0 for none; only in sparse models
    cluster_cold    cluster moves start at this beta, in units of 1 / the typical local field: where
                    spins flip freely they cost more than they bring
    quench_every    sweeps between quenches of the coldest states into the list of best states
    quench_coldest  how many of the coldest temperatures are quenched
    keep_best       most distinct best states kept per run
    keep_samples    about how many states at beta = 1 are kept per run; 0 for none
    sparse_below    neighbours per spin, on average, up to which cluster moves are made
    """

    replicas: int = 2
    ladder: Ladder = field(default_factory=Ladder)
    cluster_every: int = 2
    cluster_cold: float = 1.5
    quench_every: int = 10
    quench_coldest: int = 4
    keep_best: int = 64
    keep_samples: int = 0
    sparse_below: float = 16.0

    def __post_init__(self) -> None:
        if self.replicas < 2 or self.replicas % 2:
            raise ParameterError(
                f"replicas is {self.replicas}; expected an even number, cluster moves take pairs"
            )
        require_range("cluster_every", self.cluster_every, 0)
        require_range("quench_every", self.quench_every, 1)
        require_range("quench_coldest", self.quench_coldest, 1)
        require_range("keep_best", self.keep_best, 1)
        require_range("keep_samples", self.keep_samples, 0)


@dataclass(frozen=True, eq=False)
class Problem:
    """A polynomial in the form the kernels want, shared by all runs on it."""

    polynomial: SpinPolynomial
    grouped: GroupedPolynomial

    @classmethod
    def build(cls, polynomial: SpinPolynomial) -> Problem:
        """Lists of neighbours and of the terms longer than pairs."""
        return cls(polynomial, Coset.build(polynomial).grouped)

    @property
    def work(self) -> int:
        """Cost of a sweep of one lane: a unit is a fraction of a nanosecond."""
        return 8 * self.polynomial.n + self.polynomial.spins.size

    @property
    def degree(self) -> float:
        """Average number of other spins that share a term with a spin, repeats counted."""
        arities = self.polynomial.arities
        return float((arities * (arities - 1)).sum() / max(1, self.polynomial.n))


class Tempering:
    """A run of parallel tempering. Its numbers depend on the seed and the sweeps made only."""

    def __init__(
        self,
        problem: Problem,
        config: ParallelTempering,
        betas: NDArray[np.float64],
        seed: np.random.SeedSequence,
        *key: int,
    ) -> None:
        rng = generator(seed, *key)
        n = problem.polynomial.n
        shape = config.replicas, betas.size
        lanes = config.replicas * betas.size
        self.problem = problem
        self.config = config
        self.sweeps = 0
        self.unit = int(np.flatnonzero(betas == 1.0)[0])
        scale = float(np.median(local_scales(problem.polynomial))) if n else 0.0
        self.cluster_from = int(np.searchsorted(betas * scale, config.cluster_cold))
        spins = 1 - 2 * rng.integers(0, 2, size=(n, lanes), dtype=np.int8)
        lane_of = np.arange(lanes).reshape(shape)
        self.rep = Replicas(
            spins=spins,
            energy=np.zeros(lanes),
            beta=np.tile(betas, config.replicas),
            keys=rng.integers(0, 2**64, size=lanes, dtype=np.uint64),
            clock=rng.integers(0, 2**64, size=2, dtype=np.uint64),
            lane_of=lane_of,
            betas=betas,
            products=np.zeros((problem.grouped.coef.size, lanes)),
        )
        self.best = Best(
            np.ones((config.keep_best, n), dtype=np.int8),
            np.full(config.keep_best, -np.inf),
            np.zeros(config.keep_best, dtype=np.uint64),
            np.zeros(1, dtype=np.int64),
        )
        self.flips = np.zeros(betas.size, dtype=np.int64)
        self.swaps = np.zeros((2, betas.size - 1), dtype=np.int64)
        self.clusters = np.zeros(2, dtype=np.int64)
        self.trace = np.zeros((0, *shape))
        self.trace_at = np.zeros(0, dtype=np.int64)
        self.trace_every = 1
        self.samples = np.zeros((0, n), dtype=np.int8)
        self.sample_at = np.zeros(0, dtype=np.int64)
        self.sample_every = 1
        self.top, self.top_at = -np.inf, 0
        self.refresh()

    def anneal(self, sweeps: int) -> None:
        """Cool all replicas together, `sweeps` at each temperature of the ladder on the way."""
        rep = self.rep
        target = rep.beta.copy()
        local, new, moved = np.empty((3, target.size))
        for beta in np.repeat(rep.betas, sweeps):
            leave_if_over()
            # Every lane is cooled with the ladder until it reaches its own temperature and then
            # stays there.
            np.minimum(target, beta, out=rep.beta)
            sweep_lanes(self.problem.grouped, rep, local, new, moved)
        rep.beta[:] = target
        self.refresh()

    def adopt_best(self, rng: np.random.Generator) -> None:
        """Put best states, drawn by weight, at all temperatures where clusters form: a cold start.

        Not a move that keeps the distribution: for the burn-in only.
        """
        rep, size = self.rep, int(self.best.size[0])
        energy = self.best.energy[:size] - self.best.energy[:size].max()
        for k in range(self.cluster_from, rep.betas.size):
            # By weight at the lane's own temperature, among the few states known.
            weights = np.exp(rep.betas[k] * energy)
            for lane in rep.lane_of[:, k]:
                pick = rng.choice(size, p=weights / weights.sum())
                rep.spins[:, lane] = self.best.spins[pick]
        self.refresh()

    def refresh(self) -> None:
        """Recompute energies and products from the spins: rounding never builds up over slices."""
        rep, poly = self.rep, self.problem.grouped
        reweigh(poly, rep.spins, rep.products, rep.energy)

    def advance(self, sweeps: int) -> None:
        """Make `sweeps` sweeps, keeping energies, best states and states at beta = 1."""
        if sweeps <= 0:
            return
        tally = self.new_tally(sweeps)
        rest = (self.rep, self.best, tally, sweeps, self.sweeps + 1, self.plan())
        temper(self.problem.grouped, *rest, Scratch.of(self.rep))
        self.take(tally, sweeps)

    def new_tally(self, sweeps: int) -> Tally:
        """Room for what a slice of `sweeps` records; the counts go on from the last slice's."""
        replicas, temperatures = self.rep.lane_of.shape
        sampling = self.config.keep_samples > 0
        room = replicas * (sweeps // self.sample_every + 1) if sampling else 0
        return Tally(
            trace=np.empty((sweeps, replicas, temperatures)),
            flips=self.flips,
            swaps=self.swaps,
            clusters=self.clusters,
            samples=np.empty((room, self.problem.polynomial.n), dtype=np.int8),
            size=np.zeros(1, dtype=np.int64),
        )

    def plan(self) -> Plan:
        """What the next slice does besides sweeps and exchanges."""
        return Plan(
            cluster_every=self.config.cluster_every,
            cluster_from=self.cluster_from,
            quench_every=self.config.quench_every,
            quench_from=max(0, self.rep.betas.size - self.config.quench_coldest),
            sample_every=self.sample_every if self.config.keep_samples > 0 else 0,
            unit=self.unit,
            sparse=self.problem.degree <= self.config.sparse_below,
        )

    def take(self, tally: Tally, sweeps: int) -> None:
        """Book a slice of `sweeps` that has been made and recorded in `tally`."""
        numbers = np.arange(self.sweeps + 1, self.sweeps + sweeps + 1)
        self.sweeps += sweeps
        if self.sweeps // REFRESH_EVERY > (self.sweeps - sweeps) // REFRESH_EVERY:
            self.refresh()
        top = float(self.best.energy.max())
        # When the best was last improved; the margin keeps rounding of the same state from
        # counting.
        if top > self.top + 1e-9 * (1.0 + abs(top)):
            self.top, self.top_at = top, self.sweeps
        self._keep(tally, numbers)

    def _keep(self, tally: Tally, numbers: NDArray[np.int64]) -> None:
        """Append a slice's energies and samples; on overflow keep every other sweep's."""
        rows = numbers % self.trace_every == 0
        self.trace = np.concatenate([self.trace, tally.trace[rows]])
        self.trace_at = np.concatenate([self.trace_at, numbers[rows]])
        # Drop every other sweep and keep every other from now on: evenly spaced whatever the
        # length.
        while self.trace_at.size > MAX_ROWS:
            self.trace_every *= 2
            rows = self.trace_at % self.trace_every == 0
            self.trace, self.trace_at = self.trace[rows], self.trace_at[rows]
        if not self.config.keep_samples:
            return
        at = np.repeat(numbers[numbers % self.sample_every == 0], self.config.replicas)
        self.samples = np.concatenate([self.samples, tally.samples[: tally.size[0]]])
        self.sample_at = np.concatenate([self.sample_at, at])
        while self.sample_at.size > 3 * max(self.config.keep_samples, self.config.replicas):
            self.sample_every *= 2
            rows = self.sample_at % self.sample_every == 0
            self.samples, self.sample_at = self.samples[rows], self.sample_at[rows]

    def settled(self, at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the sweeps numbered `at` come after the burn-in: the last three quarters."""
        return at > self.sweeps // 4


def tune_ladder(
    problem: Problem, config: ParallelTempering, seed: np.random.SeedSequence
) -> NDArray[np.float64]:
    """Betas at equal exchange rates, from two short pilot runs (Katzgraber and others, 2006)."""
    betas = config.ladder.geometric(problem.polynomial, 31)
    if betas.size <= 2:
        return betas
    multiple = max(1, 8 // config.replicas)
    for round_ in range(2):
        lanes = config.replicas * betas.size
        sweeps = int(np.clip(1e9 / (problem.work * lanes), 20, 100 * (round_ + 1)))
        pilot = Tempering(problem, config, betas, seed, 0, round_)
        step = max(1, int(SLICE_WORK / (problem.work * lanes)))
        for made in range(0, sweeps, step):
            leave_if_over()
            pilot.advance(min(step, sweeps - made))
        # The first third is burn-in; replicas are pooled, since they have the same law.
        late = pilot.trace[sweeps // 3 :]
        pooled = late.transpose(2, 0, 1).reshape(betas.size, -1)
        betas = config.ladder.respaced(betas, pooled.mean(axis=1), multiple)
    return betas
