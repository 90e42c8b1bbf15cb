"""What draws from one proposal add up to: estimate, marginals, a sample, and the stakes to take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.clock import Clock
from tightz.runtime.seeds import Seed, generator
from tightz.sampling.calibration import effective_size, log_mean, unseen_error
from tightz.sampling.capped.forecast import HORIZON
from tightz.sampling.capped.kernels import tally
from tightz.sampling.capped.lanes import Capped, Lanes
from tightz.workspace.findings import Mixing, PointEstimate, Samples, Source
from tightz.workspace.shares import Grid, Shares

KEPT = 4096
"""States kept for samples."""

DEEPEST = 600.0
"""Nats between numbers whose ratio is still a float."""

REFITS = (0.04, 0.2)
"""Parts of the time for draws after which stakes are chosen by all that was drawn."""


class Portion(NamedTuple):
    """Draws made elsewhere: their log weights, and what a tally needs of their states."""

    log_weights: NDArray[np.float64]
    counts: NDArray[np.int64]
    mass: float
    square: float
    largest: float
    keys: NDArray[np.float64]
    logs: NDArray[np.float64]
    states: NDArray[np.unsignedinteger]
    seconds: float


@dataclass(eq=False)
class Tally:
    """Counts, moments and a sample of all states drawn from one proposal.

    counts (entries, points) are those of `Shares`: draws by state and value of X. `stake` of the
    bets on them is fixed before the first draw; 0: none.
    Of each state that is kept there is a key and the log of its weight over exp(level). Those with
    keys below `floor` are not kept: better ones are known elsewhere. `counted`: draws
    whose states were looked at; the others are weights alone. `name`: of the bets on counts, the
    source's track where empty.
    """

    proposal: Capped
    level: float
    grid: Grid
    pointers: NDArray[np.int64]
    counts: NDArray[np.int64]
    drawn: int = 0
    counted: int = 0
    mass: float = 0.0
    square: float = 0.0
    largest: float = 0.0
    keys: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    logs: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    states: NDArray[np.unsignedinteger] | None = None
    told: int = 0
    floor: float = -math.inf
    stake: float = 0.0
    family: str = "mini-bucket"
    name: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, proposal: Capped, level: float, floor: float = -math.inf) -> Tally:
        cards = proposal.cardinalities
        pointers = np.concatenate([[0], np.cumsum(cards)]).astype(np.int64)
        grid = Grid.of(proposal.log_cap - level, int(pointers[-1]))
        counts = np.zeros((int(pointers[-1]), grid.count), dtype=np.int64)
        return cls(proposal, level, grid, pointers, counts, floor=floor)

    @property
    def least(self) -> float:
        """The key that a state must have to be kept."""
        with self._lock:
            return self.keys.min() if self.keys.size >= KEPT else self.floor

    def add(self, drawing: Lanes, rng: np.random.Generator) -> None:
        """Count the drawing's last batch."""
        logs = drawing.log_x + self.proposal.log_u - self.level
        weights = np.exp(np.minimum(logs, DEEPEST))
        log_x = drawing.log_x + (self.proposal.log_u - self.proposal.log_cap)
        places = self.grid.place(log_x, rng.random(logs.size))
        edges = np.searchsorted(np.sort(places), np.arange(self.grid.count + 1))
        counts = np.zeros_like(self.counts)
        tally(drawing.states, np.argsort(places), edges, self.pointers, counts)
        # Of all draws those with the largest log weight + Gumbel noise are a sample in proportion
        # to the weights, without replacement.
        keys = logs + rng.gumbel(size=logs.size)
        new = np.flatnonzero(keys > self.least)
        self.merge(
            Portion(
                logs, counts, float(weights.sum()), float((weights**2).sum()),
                float(weights.max()), keys[new], logs[new], drawing.states[:, new].T.copy(), 0.0,
            )
        )  # fmt: skip

    def weigh(self, log_x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take draws whose states stay unknown; their log weights."""
        log_weights = log_x + self.proposal.log_u
        weights = np.exp(np.minimum(log_weights - self.level, DEEPEST))
        with self._lock:
            self.drawn += weights.size
            self.mass += float(weights.sum())
            self.square += float((weights**2).sum())
            self.largest = max(self.largest, float(weights.max()))
        return log_weights

    def merge(self, more: Portion) -> None:
        """Count draws that were made elsewhere."""
        with self._lock:
            self.counts += more.counts
            self.drawn += more.log_weights.size
            self.counted += more.log_weights.size
            self.mass += more.mass
            self.square += more.square
            self.largest = max(self.largest, more.largest)
            if more.keys.size:
                self.keys = np.concatenate([self.keys, more.keys])
                self.logs = np.concatenate([self.logs, more.logs])
                rows = more.states
                self.states = rows if self.states is None else np.concatenate([self.states, rows])
                if self.keys.size > 2 * KEPT:
                    self._thin()

    def portion(self, log_weights: NDArray[np.float64], seconds: float) -> Portion:
        """All that was counted, for another tally."""
        states = self.states
        if states is None:
            states = np.empty((0, self.proposal.cardinalities.size), dtype=np.uint8)
        elif len(states) > KEPT:
            self._thin()
            states = self.states
        assert states is not None
        return Portion(
            log_weights, self.counts, self.mass, self.square, self.largest,
            self.keys, self.logs, states, seconds,
        )  # fmt: skip

    def _thin(self) -> None:
        best = np.argsort(-self.keys)[:KEPT]
        assert self.states is not None
        self.keys, self.logs = self.keys[best], self.logs[best]
        self.states = self.states[best]

    def news(self) -> bool:
        """Whether a fifth more was drawn since this was last asked and answered yes."""
        with self._lock:
            if self.drawn < 1.2 * self.told:
                return False
            self.told = self.drawn
            return True

    @property
    def effective(self) -> float:
        return self.mass**2 / self.square if self.square > 0.0 else 0.0

    @property
    def worth(self) -> float:
        """Effective draws among those whose states were looked at."""
        return self.effective * self.counted / max(1, self.drawn)

    @property
    def unseen(self) -> float:
        """Nats of the estimate's error for weights between the heaviest drawn and the cap."""
        log_mean = self.level + math.log(self.mass / self.drawn)
        return unseen_error(self.proposal.log_cap - log_mean, self.drawn)

    def estimate(self) -> PointEstimate:
        """log Z by the mean weight; no error where one draw carries a fifth of it."""
        if self.mass <= 0.0:
            return PointEstimate(-math.inf, math.inf, "draws under a cap", self.family, 0.0)
        value = self.level + math.log(self.mass / self.drawn)
        variance = max(0.0, self.square / self.mass**2 - 1.0 / self.drawn)
        share = self.largest / self.mass
        error = math.hypot(math.sqrt(variance), self.unseen) if share < 0.2 else math.inf
        return PointEstimate(
            value, error, "draws under a mini-bucket cap", self.family, self.effective
        )

    def sampler(self, estimate: PointEstimate, mixing: Mixing) -> Callable[..., Samples]:
        """States that were kept, weighted by what each of them stands for."""
        with self._lock:
            self._thin()
            assert self.states is not None
            states, logs = self.states.astype(np.int64), self.logs
            if self.counted > self.keys.size:
                # A key is a log weight w and Gumbel noise: beyond t with probability
                # 1 - exp(-exp(w - t)). Nearly in proportion to weight where most are below t.
                passed = -np.expm1(-np.exp(np.minimum(logs - self.keys.min(), DEEPEST)))
                logs = logs - np.log(np.maximum(passed, 1e-300))
        logs = logs + (estimate.log_z - log_mean(logs))
        worth = min(self.worth, effective_size(logs))

        def sample(k: int, seed: Seed = None) -> Samples:
            rng = generator(seed)
            rows = rng.choice(len(states), size=k, replace=k > len(states))
            return Samples(states[rows], logs[rows], mixing, worth)

        return sample

    def shares(self, source: Source) -> Shares | None:
        """What bets on marginals need."""
        if not self.stake:
            return None
        with self._lock:
            counts = self.counts.copy()
        return Shares(
            self.name or source.track,
            self.grid,
            self.pointers,
            counts,
            self.stake,
            source.rounding,
            source.log_lost,
        )

    def marginals(self) -> list[NDArray[np.float64]] | None:
        """By counts at all points; None where every draw is far below what was expected."""
        with self._lock:
            weights = self.counts @ self.grid.points
        parts = np.split(weights, self.pointers[1:-1])
        return [part / part.sum() for part in parts] if weights.any() else None


@dataclass(eq=False)
class Final:
    """The draws until the end. Their stakes are chosen anew once it shows how they scatter.

    Each choice opens a source of its own, made from draws that are counted already. Bets on
    marginals keep to the tally's stake.
    """

    source: Source
    tally: Tally
    begun: float
    refits: list[float] = field(default_factory=lambda: list(REFITS))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def current(self, clock: Clock) -> Source:
        """Where the next draws belong."""
        tally, elapsed = self.tally, time.perf_counter() - self.begun
        with self._lock:
            left = min(clock.left, HORIZON)
            if self.refits and elapsed > self.refits[0] * (elapsed + left) and tally.mass > 0.0:
                del self.refits[0]
                variance = max(1e-12, tally.drawn * tally.square / tally.mass**2 - 1.0)
                self.source = replace(
                    self.source,
                    spread=math.sqrt(variance),
                    expected=tally.drawn * (1.0 + left / elapsed),
                )
            return self.source
