"""What a splitting run returns: both ends, the leaves, and the mixture of their q's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import TightzError, require_range
from tightz.reductions.collapse import Collapsed
from tightz.reductions.encoding import SpinEncoding
from tightz.results import Result
from tightz.runtime.seeds import Seed, generator
from tightz.shown import ASIDE
from tightz.splitting.nodes import Node
from tightz.splitting.upper import UpperBounder
from tightz.workspace.findings import Samples

MAX_EXACT = 64
"""Exact leaves whose own distribution is used in marginals; the others take their q's."""


class LogEstimate(NamedTuple):
    """log of an average, and its standard error by the delta method. An estimate, not a bound."""

    log_z: float
    error: float


@dataclass(frozen=True, eq=False)
class Mixture:
    """The distribution sum over leaves of weight * q_leaf, leaves being disjoint."""

    encoding: SpinEncoding
    collapsed: Collapsed | None
    bounder: UpperBounder
    leaves: tuple[Node, ...]

    @property
    def kept(self) -> NDArray[np.int64]:
        """The spins of the original that the leaves' q's are over."""
        return np.arange(self.bounder.poly.n) if self.collapsed is None else self.collapsed.kept

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """(leaves,) exp(lower bound), normalised; NaN where Z = 0."""
        logs = np.array([leaf.own_lower for leaf in self.leaves])
        if not len(logs) or logs.max() == -np.inf:
            return np.full(len(logs), np.nan)
        weights = np.exp(logs - logs.max())
        return weights / weights.sum()

    @property
    def _known(self) -> bool:
        """False where Z = 0, or nothing was found yet."""
        return len(self.leaves) > 0 and not np.isnan(self.weights).any()

    @cached_property
    def _exact(self) -> frozenset[int]:
        """Leaves that use their exact distribution: the heaviest of the exact ones."""
        exact = [i for i, leaf in enumerate(self.leaves) if leaf.exact]
        return frozenset(sorted(exact, key=lambda i: -self.weights[i])[:MAX_EXACT])

    def spin_means(self) -> NDArray[np.float64]:
        """E[s_i] of all spins of the original model."""
        n = self.bounder.poly.n
        if not self._known:
            return np.full(n, np.nan)
        total = np.zeros(n)
        fitted = [i for i in range(len(self.leaves)) if i not in self._exact]
        for i in self._exact:
            region = self.leaves[i].part.region.lifted(self.kept, n)
            done = self.bounder.summed_out(region)
            means = np.append(done.lift_means(np.zeros(0)), 1.0)  # the last entry is a constant
            number = np.full(n + 1, region.free.size, dtype=np.int64)
            number[region.free] = np.arange(region.free.size)
            total += self.weights[i] * region.sign * means[number[region.rep]]

        def chi(ptr: NDArray[np.int64], spins: NDArray[np.int32]) -> NDArray[np.float64]:
            out = np.zeros(len(ptr) - 1)
            for i in fitted:
                out += self.weights[i] * self.leaves[i].part.q.expectations(ptr, spins)
            return out / share

        share = float(self.weights[fitted].sum())
        if fitted and share > 0.0:
            if self.collapsed is None:
                rest = chi(np.arange(n + 1), np.arange(n, dtype=np.int32))
            else:
                rest = self.collapsed.lift_means(chi)
            total += share * rest
        return np.clip(total, -1.0, 1.0)

    def marginals(self) -> Any:
        """(n, 2) state probabilities of the model's variables."""
        return self.encoding.marginals(self.spin_means())

    def states(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(states of the model (count, n), log p~ - log q)."""
        spins, logs = self.draw(count, rng)
        return self.encoding.lift_states(spins), logs

    def draw(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        """(spins of the original (count, n), log p~ - log q); refuses where nothing is known."""
        if not self._known:
            raise TightzError(
                "there is nothing to draw from: the run ended before it had its first q. Give it "
                "more time (time_limit)"
            )
        n = self.bounder.poly.n
        spins, logs = np.ones((count, n), dtype=np.int8), np.full(count, -np.inf)
        home = rng.choice(len(self.leaves), size=count, p=self.weights)
        for i in np.unique(home).tolist():
            at = np.flatnonzero(home == i)
            states, excess = self._draw_leaf(i, at.size, rng)
            spins[at] = states
            logs[at] = excess - math.log(self.weights[i])
        return spins, logs

    def _draw_leaf(
        self, i: int, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        leaf = self.leaves[i]
        n = self.bounder.poly.n
        if i in self._exact:
            region = leaf.part.region.lifted(self.kept, n)
            done = self.bounder.summed_out(region)
            free = done.lift_states(np.ones((count, 0)), rng)
            states = np.ones((count, n), dtype=np.int8)
            states[:, region.free] = free
            return region.complete(states), np.full(count, done.polynomial.constant)
        q = leaf.part.q
        states, log_q = q.draw(count, rng)
        excess = q.coset.polynomial.log_weight(states) - log_q
        return (
            states if self.collapsed is None else self.collapsed.lift_states(states, rng)
        ), excess


class MixtureOfLeaves(Protocol):
    """What the leaves' q's are together, over spins or over states."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """(leaves,) their shares."""

    def marginals(self) -> Any:
        """State probabilities of the model's variables: an array (n, 2), or a list of vectors."""

    def states(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(states of the model (count, n), log p~ - log q)."""


@dataclass(frozen=True, eq=False, repr=False)
class SplittingResult(Result):
    """lower <= log Z <= upper, both deterministic; one row per leaf, heaviest first.

    log_lowers, log_uppers   (leaves,) bounds on the leaves' own log Z; upper inf: not computed
    depths, exact            (leaves,) splits above a leaf, and whether its log Z is known
    history                  the bounds as they were found
    closed                   whether the two ends agree up to rounding
    """

    lower: float
    upper: float
    log_lowers: NDArray[np.float64]
    log_uppers: NDArray[np.float64]
    depths: NDArray[np.int64]
    exact: NDArray[np.bool_]
    splits: int
    closed: bool
    history: tuple[Bound, ...] = field(metadata=ASIDE)  # written as `bounds`
    seconds: float
    provenance: dict[str, Any]
    mixture: MixtureOfLeaves = field(metadata=ASIDE)

    @property
    def bounds(self) -> list[Bound]:
        return list(self.history)

    @property
    def lower_proof(self) -> Bound:
        """The record of the lower end."""
        return max(self.history, key=lambda bound: bound.low, default=_nothing(Side.LOWER))

    @property
    def upper_proof(self) -> Bound:
        """The record of the upper end."""
        return min(self.history, key=lambda bound: bound.high, default=_nothing(Side.UPPER))

    @cached_property
    def marginals(self) -> Any:
        """State probabilities under the mixture of the leaves, one row a variable; NaN where Z = 0.

        Where zeros were solved as parities, a spin that follows from several others is taken to
        follow from independent ones (`SpinEncoding.marginals`); samples are not.
        """
        return self.mixture.marginals()

    @property
    def log_weights(self) -> NDArray[np.float64]:
        """(leaves,) log of each leaf's share of the mixture."""
        with np.errstate(divide="ignore"):
            return np.log(self.mixture.weights)

    def sample(self, k: int, rng: Seed = None) -> Samples:
        """k states of the model drawn from the mixture, with their importance weights.

        TightzError where Z = 0, or where the run ended before anything was found.
        """
        require_range("k", k, 0)
        if self.upper == -math.inf:
            raise TightzError("Z = 0: the model has no state of positive weight to draw")
        return Samples(*self.mixture.states(int(k), generator(rng)))

    def sampled_log_z(self, k: int = 1000, rng: Seed = None) -> LogEstimate:
        """log Z from k importance-weighted samples, and the standard error of these draws.

        That error is about the draws made, not about what the mixture misses: a mode that no leaf's
        q covers is not drawn and does not show in it, so it can be far too small. Look at
        `Samples.effective_size`, and compare with an estimate of another kind.
        """
        require_range("k", k, 2)
        if self.upper == -math.inf:
            return LogEstimate(-math.inf, 0.0)
        logs = self.sample(k, rng).log_weights
        top = float(logs.max())
        ratios = np.exp(logs - top)
        mean = float(ratios.mean())
        return LogEstimate(top + math.log(mean), float(ratios.std(ddof=1)) / (mean * math.sqrt(k)))

    def summary(self) -> str:
        """The interval and the leaves in a few lines."""
        state = "closed" if self.closed else "open: give it more time"
        known = int(self.exact.sum())
        return (
            f"{self.lower:.6f} <= log Z <= {self.upper:.6f}  (holds always; {state})\n"
            f"{len(self.depths)} leaves, {known} of them exact, depth up to "
            f"{self.depths.max(initial=0)}, {self.seconds:.3g} s"
        )

    def __repr__(self) -> str:
        return (
            f"SplittingResult(lower={self.lower:.6f}, upper={self.upper:.6f}, "
            f"leaves={len(self.depths)}, seconds={self.seconds:.3g})"
        )


def _nothing(side: Side) -> Bound:
    """What is known before the first finding."""
    value = -math.inf if side is Side.LOWER else math.inf
    return Bound(side, value, Proof.DETERMINISTIC, "splitting", confidence=1.0)
