"""The stream that estimates log Z by annealing: rounds of growing size, each checking the others.

Every round starts anew, so rounds are independent and their agreement is evidence. Sparse models
are annealed in populations that are resampled on the way, dense two-layer ones chain by chain; a
population's mean weight and a chain's weight are both unbiased, which is all that the error needs.
A second start, the product of the marginals found, must reach the same value.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.judge.verdict import UNIT
from tightz.reductions.collapse import Collapsed
from tightz.reductions.encoding import SpinEncoding
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import generator
from tightz.sampling.ais.paths import LayerPath, Path, SpinPath, polynomial_path, tuned_schedule
from tightz.sampling.annealed_states import Ends, marginals_of, resampler, weighted_means
from tightz.sampling.calibration import (
    effective_size,
    log_mean,
    pooled,
    supported,
    weight_error,
)
from tightz.workspace.findings import Finding, PointEstimate
from tightz.workspace.symmetry import flips, symmetrise_means
from tightz.workspace.working import Working
from tightz.workspace.workspace import Workspace

KEY = 2**31 + 1
"""Key of the stream's random numbers."""

FIRST = 0.08
"""Seconds of the first round; each further round takes twice the one before."""

LONGEST = 0.1
"""Part of the time left that a round may take: it then ends in time on a machine that is busy."""

POPULATIONS = 8
"""Independent populations of a round: enough to see their scatter, few enough to be large."""

SMALLEST, LARGEST = 32, 256
"""Chains of a population. Larger ones cost memory and gain nothing over more temperatures."""

FOUNDERS = 80.0
"""A population of f families is taken to scatter by at least FOUNDERS / f^3 (nats squared).

Measured on grids: at w = 1 (f = 22 to 218) the scatter seen is as large or larger; at w = 10 eight
populations of 1 to 5 families may agree by chance, up to 18 nats low at f = 1: no error then.
"""

CHAINS = 64
TEMPERATURES = 300
FEWEST = 20
"""Temperatures below which a round is not worth its time."""

SHRINK = 0.9
"""Means of the product start: short of the marginals found, so that no state is ruled out."""

PRODUCT_EVERY = 3

BLUR = 1e-3
"""Nats of rounding in a state's log weight above which chains compare noise, and none is run."""

KEPT = 3
"""Rounds whose end states count for marginals and samples: the largest, both starts among them."""


@dataclass(frozen=True, eq=False)
class Round:
    """One round: `groups` are independent unbiased log weights, `log_weights` those of the ends."""

    start: str
    groups: NDArray[np.float64]
    log_weights: NDArray[np.float64]
    ends: NDArray[np.int8]
    ancestors: NDArray[np.int64]
    work: float

    @property
    def states(self) -> Ends:
        """The end states; groups go to the two halves in turn."""
        owner = np.arange(len(self.ends)) * self.groups.size // len(self.ends)
        return Ends(self.log_weights, self.ends, owner % 2 == 0, self.ancestors)

    @property
    def families(self) -> float:
        """Effective number of starts that a population's survivors stem from, on average.

        Few mean that resampling kept what one lucky start found (Wang, Machta and Katzgraber
        2015): populations that agree may then all have missed the same rare start.
        """
        logs = self.log_weights.reshape(self.groups.size, -1)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        shares = weights / weights.sum(axis=1, keepdims=True)
        rows = np.bincount(self.ancestors, shares.ravel(), minlength=logs.size)
        return float((1.0 / (rows.reshape(logs.shape) ** 2).sum(axis=1)).mean())

    def estimate(self) -> PointEstimate:
        """log Z by this round alone, with its error from the scatter of the groups."""
        share = effective_size(self.groups) / self.groups.size
        resampled = self.groups.size < len(self.ends)
        least = FOUNDERS / self.families**3 if resampled else 0.0
        return PointEstimate(
            log_mean(self.groups),
            weight_error(self.groups, least),
            "annealed importance sampling",
            "ais" if self.start == "fields" else "product start",
            share * self.families * self.groups.size,
        )


def annealed(working: Working, clock: Clock) -> Iterator[Finding]:
    """Estimates, marginals and samples of positive models (zeros only where they are parities)."""
    try:
        run = Annealing.of(working.spins, generator(working.seed, KEY))
    except UnsupportedModelError:
        return
    # Weights differ by sums of about this many nats; where float64 cannot resolve BLUR in them,
    # chains would compare rounding errors.
    weights = np.abs(working.encoding.polynomial.theta).sum()
    if run is None or 16.0 * UNIT * float(weights) > BLUR:
        return
    for number in itertools.count():
        # Rounds double, so the last one is about half of all work and no earlier choice weighs
        # much; a cap on the time left lets the last round end before the clock.
        wanted = FIRST * 2**number
        size = min(wanted, LONGEST * clock.left)
        if not run.affords(size):
            if size < wanted:  # no larger allowance will come: the model is too large for the time
                return
            continue
        if not run.advance(size, product=number % PRODUCT_EVERY == PRODUCT_EVERY - 1):
            return
        yield run.finding()


@dataclass(eq=False)
class Annealing:
    """All rounds of one model."""

    encoding: SpinEncoding
    path: Path
    collapsed: Collapsed | None
    rng: np.random.Generator
    rounds: list[Round] = field(default_factory=list)
    work: float = 0.0

    @classmethod
    def of(cls, work: Workspace, rng: np.random.Generator) -> Annealing | None:
        """The path that suits the model; None where nothing is left to sample.

        Spins of few neighbours are summed out first: on grids half of the spins go, and
        populations of the same cost scatter half as much (w in [-3, 3], 20 x 20). The collapse
        that the streams of bounds use serves as well as one of 4 neighbours (measured there).
        """
        encoding = work.encoding
        if encoding.reason:
            return None
        path = polynomial_path(encoding.polynomial)
        collapsed = work.collapsed if isinstance(path, SpinPath) else None
        if collapsed is not None:
            if collapsed.kept.size == 0:
                return None
            # Summing spins out exactly only lowers the variance (Rao-Blackwell): the weights are
            # of the same Z, with fewer coordinates to equilibrate.
            if _pays(collapsed):
                path = polynomial_path(collapsed.polynomial)
            else:
                collapsed = None
        if isinstance(path, float):
            return None
        return cls(encoding, path, collapsed, rng)

    def __post_init__(self) -> None:
        self.basis = flips(self.encoding.polynomial)
        self.schedules: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self.pace = self._measure()

    def affords(self, seconds: float) -> bool:
        """Whether a round of that length is worth running."""
        return self._shape(seconds / self.pace) is not None

    def advance(self, seconds: float, *, product: bool) -> bool:
        """One more round of about `seconds`; False where it would say no more than the last."""
        # A shorter round than the last would only dilute it.
        if seconds < 0.7 * self.work:
            return False
        path, start = self.path, "fields"
        if product and self.rounds and (moved := self._product_path()) is not None:
            path, start = moved, "product"
        shape = self._shape(seconds / self.pace)
        if shape is None:
            return False
        size, chains, temperatures = shape
        # The schedule comes from a pilot run with random numbers of its own, so it is fixed before
        # the chains that count: their weights stay unbiased.
        betas = tuned_schedule(*self._pilot(path, start), temperatures)
        words = self._words(chains)
        begun = time.thread_time()
        if isinstance(path, SpinPath):
            walk = path.populations(betas, words, size)
        else:
            walk = path.walk(betas, words, with_slopes=False, threads=1)
        self.pace = max(1e-9, time.thread_time() - begun) / (chains * temperatures)
        self.work = seconds
        # A group is what is unbiased by itself: a population, or (size 1) a single chain. Errors
        # come from the scatter of groups, never from that of chains inside a resampled population,
        # which are copies of each other.
        groups = np.array([log_mean(g) for g in walk.log_weights.reshape(-1, size)])
        ends = walk.ends
        if self.collapsed is not None:  # the exact conditional: the weights stay what they are
            ends = self.collapsed.lift_states(ends, self.rng)
        work = float(chains * temperatures)
        self.rounds.append(Round(start, groups, walk.log_weights, ends, walk.ancestors, work))
        return True

    def estimate(self) -> PointEstimate:
        """The rounds together; an error only if the last and largest round has one."""
        found = []
        for start in ("fields", "product"):
            each = [r for r in self.rounds if r.start == start]
            if each and math.isfinite(each[-1].estimate().error):
                found.append(_together(each))
        # No error from the product start alone: it follows marginals that an earlier round found
        # and would repeat its omissions.
        if not found or found[0].family != "ais":
            last = self._last("fields").estimate()
            return replace(last, error=math.inf)
        return replace(pooled(supported(found)), family="ais")

    def finding(self) -> Finding:
        """What the rounds say so far: estimate, marginals, and a sampler where it has mixed."""
        estimate = self.estimate()
        found = Ends.joined([r.states for r in self.rounds[-KEPT:]])
        marginals = marginals_of(self.encoding, found, self.basis, estimate)
        return Finding(
            estimate=estimate,
            marginals=marginals,
            sampler=resampler(self.encoding, found, estimate, marginals.mixing),
        )

    def _last(self, start: str) -> Round:
        return next(r for r in reversed(self.rounds) if r.start == start)

    def _words(self, chains: int) -> NDArray[np.uint64]:
        return self.rng.integers(2**64, size=(chains, 4), dtype=np.uint64)

    def _measure(self) -> float:
        """Seconds a chain takes per temperature; the first call compiles and does not count."""
        for betas in (np.array([0.0, 0.5, 1.0]), np.linspace(0.0, 1.0, 6)):
            begun = time.thread_time()
            self.path.walk(betas, self._words(8), with_slopes=True, threads=1)
        return max(1e-9, time.thread_time() - begun) / (8 * 6)

    def _pilot(self, path: Path, start: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Betas and slopes from which schedules are spaced, once for each start."""
        if start not in self.schedules:
            # About half of the first round's time for 32 pilot chains.
            count = int(np.clip(0.5 * FIRST / (32 * self.pace), FEWEST, 300))
            betas = np.linspace(0.0, 1.0, count)
            walk = path.walk(betas, self._words(32), with_slopes=True, threads=1)
            self.schedules[start] = betas, walk.slopes
        return self.schedules[start]

    def _shape(self, units: float) -> tuple[int, int, int] | None:
        """(chains of a group, chains, temperatures) that cost `units` chain-temperatures."""
        if not isinstance(self.path, SpinPath):
            steady = bool(self.rounds) and self.rounds[-1].groups.std() < 0.5
            temperatures = TEMPERATURES if steady else 10 * TEMPERATURES  # then more end states
            chains = int(np.clip(units / temperatures, CHAINS, 16 * CHAINS)) // 2 * 2
            return None if units < CHAINS * FEWEST else (1, chains, int(units / chains))
        size = int(np.clip(units / (POPULATIONS * TEMPERATURES), SMALLEST, LARGEST))
        temperatures = int(units / (POPULATIONS * size))
        return None if temperatures < FEWEST else (size, POPULATIONS * size, temperatures)

    def _product_path(self) -> Path | None:
        """The path from the product of the marginals found; None where that is the same start.

        At zero field the symmetrised product is the uniform start again.
        """
        means = weighted_means(self._last("fields").states)
        # Means are shrunk, so that the base covers every state: a base that rules a state out
        # would make the weights' mean smaller than Z.
        fields = np.arctanh(SHRINK * symmetrise_means(means, self.basis))
        if not np.abs(fields).max(initial=0.0) > 0.01:
            return None
        if isinstance(self.path, SpinPath):
            kept = slice(None) if self.collapsed is None else self.collapsed.kept
            return replace(self.path, base=fields[kept])
        assert isinstance(self.path, LayerPath)
        return replace(self.path, base=-2.0 * fields[self.path.kept_at])  # unit 1 is spin -1


def _together(rounds: Sequence[Round]) -> PointEstimate:
    """Rounds of one start pooled.

    An error from eight groups is itself uncertain, and weights taken from it would favour rounds
    that look precise by luck. Variance falls as 1 / work, so each round takes at least what the
    average over rounds predicts. Rounds twice as wide as the best are left out: what makes them
    wide also makes them low.
    """
    each = [(r.estimate(), r.work) for r in rounds]
    usable = [(e, work) for e, work in each if math.isfinite(e.error)]
    # Each round's error is pulled up to what the rounds together predict for its work, never down:
    # a lucky scatter of eight groups must not dominate.
    typical = float(np.mean([e.error**2 * work for e, work in usable]))
    wide = [replace(e, error=max(e.error, math.sqrt(typical / work))) for e, work in usable]
    best = min(e.error for e in wide)
    return pooled([e for e in wide if e.error <= 2.0 * best])


def _pays(collapsed: Collapsed) -> bool:
    """Whether enough spins go and a sweep over what stays is not far dearer.

    Measured on 3-regular graphs: 63 of 200 spins left and sweeps 30 times as dear still halve the
    error at equal time.
    """
    before, after = (
        float((p.arities**2).sum()) for p in (collapsed.original, collapsed.polynomial)
    )
    return collapsed.kept.size <= 0.8 * collapsed.original.n and after <= 30.0 * before
