"""Rounds of annealing: what is fixed before the draws of a round, and what they say together."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.reductions.collapse import Collapsed
from tightz.sampling.ais.paths import Path, SpinPath, Walk
from tightz.sampling.ais.state_path import StatePath
from tightz.sampling.annealed_states import Ends
from tightz.sampling.calibration import effective_size, log_mean, pooled, weight_error
from tightz.workspace.findings import PointEstimate, Source

FOUNDERS = 80.0
"""Eight populations of f families each are taken to scatter by at least FOUNDERS / f^3 (nats^2).

Measured on grids: at w = 1 (f = 22 to 218) the scatter seen is as large or larger; at w = 10 eight
populations of 1 to 5 families may agree by chance, up to 18 nats low at f = 1: no error then.
"""

STEADY = 0.25
"""Variance of a group's log weight: less wastes draws (the certificate wants many), more wastes
work on chains whose weights are low."""

EVIDENCE = 7.0
"""Nats of wealth that a certificate needs: log(2 / delta) and the shares of track and stake."""

POPULATION, MOST = 8, 64
"""Chains that are resampled together. Single chains and large populations were no better on any
model tried; larger ones are for groups of more than LONG temperatures a chain."""

LONG = 2000
FEWEST = 20
"""Temperatures below which a round is not worth its time."""


RESAMPLED = SpinPath | StatePath
"""Paths whose chains are resampled in populations."""


class Shape(NamedTuple):
    """Chains of a group and the temperatures they go through."""

    size: int
    temperatures: int

    @property
    def work(self) -> float:
        return float(self.size * self.temperatures)


@dataclass(frozen=True, eq=False)
class Plan:
    """All that decides about the draws of a round, fixed before the first of them.

    `seconds` is how long the round shall last.
    """

    start: str
    path: Path
    shape: Shape
    betas: NDArray[np.float64]
    source: Source
    seconds: float

    def draw(self, words: NDArray[np.uint64]) -> Walk:
        """One chain per row of `words`."""
        if isinstance(self.path, RESAMPLED) and self.shape.size > 1:
            return self.path.populations(self.betas, words, self.shape.size)
        return self.path.walk(self.betas, words, with_slopes=False, threads=1)


@dataclass(frozen=True, eq=False)
class Round:
    """Draws of one plan: `groups` are independent unbiased log weights, `states` some of the ends.

    `families` is the effective number of starts that a group's survivors stem from, on average,
    `work` counts temperatures of chains, `seconds` are of processor time (on a device, of the
    clock's), `walking` those of them that grow with the draws.
    """

    start: str
    groups: NDArray[np.float64]
    states: Ends
    families: float
    resampled: bool
    work: float

    seconds: float = 0.0
    walking: float = 0.0

    @property
    def unit(self) -> float:
        """Work at which the variance of a group's log weight is about 1: it falls as 1 / work."""
        alive = self.groups[self.groups > -math.inf]
        if alive.size < self.groups.size:  # weights of 0: no less scatter than theirs
            share = alive.size / self.groups.size
            scatter = float(alive.var(ddof=1)) if alive.size > 1 else 1.0
            return (scatter + 1.0 / max(share, 1e-3) - 1.0) * self.work / self.groups.size
        return float(self.groups.var(ddof=1)) * self.work / self.groups.size

    def reach(self, work: float) -> float:
        """Where a certificate from that much more work would lie."""
        return log_mean(self.groups) - math.sqrt(2.0 * EVIDENCE * self.unit / work)

    def with_more(self, more: Round, most: int) -> Round:
        """More draws of the same plan; of the end states the last `most` stay."""
        count, added = self.groups.size, more.groups.size
        return replace(
            self,
            groups=np.concatenate([self.groups, more.groups]),
            states=Ends.joined([self.states, more.states]).last(most),
            families=(count * self.families + added * more.families) / (count + added),
            work=self.work + more.work,
            seconds=self.seconds + more.seconds,
            walking=self.walking + more.walking,
        )

    def estimate(self) -> PointEstimate:
        """log Z by this round alone, with its error from the scatter of the groups."""
        count = self.groups.size
        # Few families mean that resampling kept what one lucky start found (Wang, Machta and
        # Katzgraber 2015): groups that agree may all have missed the same rare start. What matters
        # is how many an eighth of all groups have; `least` is what that leaves to a single one.
        founders = self.families * count / 8.0
        least = FOUNDERS / founders**3 * count / 8.0 if self.resampled else 0.0
        return PointEstimate(
            log_mean(self.groups),
            weight_error(self.groups, least),
            "annealed importance sampling",
            "ais" if self.start == "fields" else "fitted start",
            effective_size(self.groups) * self.families,
        )


class Lot(NamedTuple):
    """Some groups of a round: the chains' random words, and the seed for what is lifted."""

    words: NDArray[np.uint64]
    seed: int


@dataclass(frozen=True, eq=False)
class Drawer:
    """Draws lots of one plan, here or elsewhere: what it returns depends on the lot alone.

    `most` end states are kept, as spins of the model that was collapsed.
    """

    plan: Plan
    collapsed: Collapsed | None
    most: int
    on_device: bool = False

    def __call__(self, lot: Lot) -> Round:
        now = time.perf_counter if self.on_device else time.thread_time  # a launch takes no time
        begun = now()
        walk = self.plan.draw(lot.words)
        walking = now() - begun
        ends = walk.ends[-self.most :]
        if self.collapsed is not None:  # the exact conditional: the weights stay what they are
            ends = self.collapsed.lift_states(ends, np.random.default_rng(lot.seed))
        made = round_of(self.plan, walk, ends)
        return replace(made, seconds=max(1e-9, now() - begun), walking=max(1e-9, walking))


def round_of(plan: Plan, walk: Walk, ends: NDArray) -> Round:
    """The round of one `plan.draw`; `ends` are the walk's last ones in the model's form."""
    # A group is what is unbiased by itself: a population, or a single chain. Errors come from the
    # scatter of groups, never from that of chains inside a resampled population, which are copies
    # of each other.
    size = plan.shape.size
    groups = log_means(walk.log_weights.reshape(-1, size))
    owner = np.arange(len(walk.log_weights)) // size  # groups go to the two halves in turn
    whole = Ends(walk.log_weights, walk.ends, owner % 2 == 0, walk.ancestors)
    return Round(
        plan.start,
        groups,
        replace(whole.last(len(ends)), ends=ends),
        families_of(walk, size),
        size > 1,
        plan.shape.work * groups.size,
    )


def log_means(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """`log_mean` of each row."""
    from scipy.special import logsumexp

    means: NDArray[np.float64] = logsumexp(rows, axis=1) - math.log(rows.shape[1])
    return means


def families_of(walk: Walk, size: int) -> float:
    """Effective number of ancestors of a group of `size` chains, on average."""
    logs = walk.log_weights.reshape(-1, size)
    top = logs.max(axis=1, keepdims=True)
    weights = np.exp(logs - np.where(np.isneginf(top), 0.0, top))
    dead = np.isneginf(top)[:, 0]
    weights[dead] = 1.0  # nobody's family: any number does
    shares = weights / weights.sum(axis=1, keepdims=True)
    rows = np.bincount(walk.ancestors, shares.ravel(), minlength=logs.size)
    return float((1.0 / (rows.reshape(logs.shape) ** 2).sum(axis=1)).mean())


def shape_of(unit: float, work: float, largest: float, *, resampled: bool) -> Shape | None:
    """Groups that make the most of `work`, none with more than `largest`; None if none fits.

    With weights of log variance v = unit / w, w the work of a group, the certificate lies
    sqrt(2 EVIDENCE unit / work) below the mean for every w from unit / STEADY, where stakes are
    small, to sqrt(unit work / (2 EVIDENCE)), where the stake is everything; the first of these
    gives more draws.
    """
    best = min(unit / STEADY, math.sqrt(unit * work / (2.0 * EVIDENCE)), largest)
    size = POPULATION if resampled else 1
    while resampled and size < MOST and best > size * LONG:
        size *= 2
    temperatures = max(FEWEST, int(best / size))
    return Shape(size, temperatures) if temperatures * size <= largest else None


def together(rounds: Sequence[Round]) -> PointEstimate:
    """Rounds of one start pooled.

    An error from few groups is itself uncertain, and weights taken from it would favour rounds
    that look precise by luck. Variance falls as 1 / work, so each round takes at least what the
    average over rounds predicts. Rounds twice as wide as the best are left out: what makes them
    wide also makes them low.
    """
    each = [(r.estimate(), r.work) for r in rounds]
    usable = [(e, work) for e, work in each if math.isfinite(e.error)]
    # Each round's error is pulled up to what the rounds together predict for its work, never down:
    # a lucky scatter of few groups must not dominate.
    works = np.array([work**2 for _, work in usable])  # small rounds are wide for other reasons
    typical = float(np.average([e.error**2 * work for e, work in usable], weights=works))
    wide = [replace(e, error=max(e.error, math.sqrt(typical / work))) for e, work in usable]
    best = min(e.error for e in wide)
    return pooled([e for e in wide if e.error <= 2.0 * best])
