"""The stream that certifies from both sides: tighten a mini-bucket bound, then draw under its cap.

A mini-bucket bound U is two things: an upper end that holds always, and a cap on the weights of a
proposal that can be drawn from exactly. The stream tightens U (more iterations, larger tables) for
as long as that narrows the interval it can expect at the deadline, then draws until the deadline.
Pilot draws say what to expect and which stakes to take; they do not count.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Side
from tightz.elimination.order import Order
from tightz.errors import ResourceError
from tightz.runtime.clock import Clock
from tightz.models.observed import observe
from tightz.runtime.seeds import Seed, generator
from tightz.sampling.capped.forecast import Outlook
from tightz.sampling.capped.kernels import tally
from tightz.sampling.capped.proposal import LANES, Drawing, Proposal
from tightz.uppers.mini_bucket import MiniBucket
from tightz.uppers.mini_bucket.run import MAX_IBOUND, Run
from tightz.workspace.findings import (
    Draws,
    Finding,
    Marginals,
    Mixing,
    PointEstimate,
    Samples,
    Source,
)
from tightz.workspace.working import Launch, Planned, Working

KEY = 2**31 + 7
"""Key of the stream's random numbers."""

FIRST, SETTLED = 6, 12
"""The first ibound with draws, and the one from which the best elimination order is kept.

The order that is best at a small ibound need not be so at a large one (linkage_11: 8 nats).
"""

ROUGH = 8
"""Iterations at a new ibound before the next decision."""

FURTHEST = 4
"""Largest step of the ibound: forecasts are extrapolated over it."""

SLOWER = 1.06
"""Drawing slows down by about this for each step of the ibound (caches)."""

STEP = 0.1
"""Seconds of drawing between two findings."""

GLANCE = 0.1
"""Part of the time spent on a bound that is drawn from it at once, so that there is an interval."""

PILOT = 0.05
"""Part of the time spent on a bound that pilot draws may take."""

SHARE = 0.6
"""Part of the workers' time that draws are expected to get."""

LONGEST = 0.5
"""Part of the time left that one more step of tightening may take."""

GAIN = 0.97
"""A step must promise an interval this much narrower than without it."""

HORIZON = 3600.0
"""Seconds that a run without a limit plans for."""

KEPT = 4096
"""States kept for samples."""

FEWEST = 50.0
"""Effective draws below which marginals are not called mixed."""


@dataclass(eq=False)
class Tally:
    """Weighted counts, moments and a sample of all states drawn from one proposal."""

    proposal: Proposal
    level: float
    counts: NDArray[np.float64]
    pointers: NDArray[np.int64]
    drawn: int = 0
    mass: float = 0.0
    square: float = 0.0
    largest: float = 0.0
    keys: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    states: NDArray[np.uint8] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, proposal: Proposal, level: float) -> Tally:
        cards = proposal.cardinalities
        pointers = np.concatenate([[0], np.cumsum(cards)]).astype(np.int64)
        return cls(proposal, level, np.zeros(int(pointers[-1])), pointers)

    def add(self, drawing: Drawing, rng: np.random.Generator) -> None:
        """Count the drawing's last batch."""
        logs = drawing.log_x + self.proposal.log_u - self.level
        weights = np.exp(np.minimum(logs, 600.0))
        counts = np.zeros_like(self.counts)
        tally(drawing.states, weights, self.pointers, counts)
        # Of all draws those with the largest log weight + Gumbel noise are a sample in proportion
        # to the weights, without replacement.
        keys = logs + rng.gumbel(size=logs.size)
        with self._lock:
            self.counts += counts
            self.drawn += logs.size
            self.mass += float(weights.sum())
            self.square += float((weights**2).sum())
            self.largest = max(self.largest, float(weights.max()))
            least = self.keys.min() if self.keys.size >= KEPT else -math.inf
            new = np.flatnonzero(keys > least)
            if new.size:
                rows = drawing.states[:, new].T.copy()
                self.keys = np.concatenate([self.keys, keys[new]])
                self.states = rows if self.states is None else np.concatenate([self.states, rows])
                if self.keys.size > 2 * KEPT:
                    self._thin()

    def _thin(self) -> None:
        best = np.argsort(-self.keys)[:KEPT]
        assert self.states is not None
        self.keys, self.states = self.keys[best], self.states[best]

    @property
    def effective(self) -> float:
        return self.mass**2 / self.square if self.square > 0.0 else 0.0

    def estimate(self) -> PointEstimate:
        """log Z by the mean weight; no error where one draw carries a fifth of it."""
        if self.mass <= 0.0:
            return PointEstimate(-math.inf, math.inf, "draws under a cap", "mini-bucket", 0.0)
        value = self.level + math.log(self.mass / self.drawn)
        share = self.largest / self.mass
        variance = max(0.0, self.square / self.mass**2 - 1.0 / self.drawn)
        # what was not seen is about as heavy as the heaviest that was
        error = math.hypot(math.sqrt(variance), share) if share < 0.2 else math.inf
        return PointEstimate(
            value, error, "draws under a mini-bucket cap", "mini-bucket", self.effective
        )

    def sampler(self, estimate: PointEstimate, mixing: Mixing) -> Callable[..., Samples]:
        """Draws in proportion to weight: all that are kept have the same weight after that."""
        with self._lock:
            self._thin()
            assert self.states is not None
            states = self.states.astype(np.int64)
        worth = min(self.effective, float(len(states)))

        def sample(k: int, seed: Seed = None) -> Samples:
            rng = generator(seed)
            rows = rng.choice(len(states), size=k, replace=k > len(states))
            return Samples(states[rows], np.full(k, estimate.log_z), mixing, worth)

        return sample

    def marginals(self) -> list[NDArray[np.float64]]:
        parts = np.split(self.counts, self.pointers[1:-1])
        return [np.maximum(part, 0.0) / part.sum() for part in parts]


def capped(working: Working, clock: Clock) -> Iterator[Finding | Bound | Launch]:
    """Upper ends that hold always, then both ends with confidence, estimate and marginals."""
    job = CappedDraws(working, clock)
    yield from job.tighten()
    if job.ready:
        # One lane of draws for every worker; all of them feed one source.
        lanes = max(2, working.threads)
        yield Launch((Planned(job.draws, SHARE / lanes),) * lanes)


class CappedDraws:
    """One run of the stream: the bound, its proposal, and what was drawn from it."""

    def __init__(self, working: Working, clock: Clock) -> None:
        self.working, self.clock = working, clock
        self.widest = MAX_IBOUND
        self.gaps: list[tuple[int, float]] = []  # ibound, log U - log Z after its first iterations
        self.source: Source | None = None
        self.tally: Tally | None = None
        self._lane = itertools.count()

    @property
    def ready(self) -> bool:
        """Whether there is a proposal to draw from until the end."""
        return self.tally is not None

    def tighten(self) -> Iterator[Finding | Bound]:
        """Bounds, and a glance at what their proposals say, until drawing pays more."""
        run = self._run(FIRST, Order.AUTO) or self._run(2, Order.AUTO)
        while run is not None and not self.clock.expired:
            begun = time.perf_counter()
            pace = yield from self._iterate(run)
            bound = run.judged()
            yield bound
            if bound.side is Side.BOTH or self.clock.expired:
                return
            assert run.descent is not None
            proposal = Proposal.of(run.descent)
            outlook = self._pilot(proposal, time.perf_counter() - begun)
            if math.isfinite(outlook.gap):
                yield from self._glance(proposal, outlook, time.perf_counter() - begun)
            step = self._next(run, outlook, pace)
            if step is None:
                if math.isfinite(outlook.gap):
                    self._prepare(proposal, outlook)
                return
            if step:
                del proposal
                ibound = run.config.ibound + step
                order = run.order if ibound > SETTLED else Order.AUTO
                # where the larger tables do not fit, the next decision is taken without them
                run = self._run(ibound, order) or run

    def _run(self, ibound: int, order: Order) -> Run | None:
        """Mini-buckets of this size; None where memory or `exact=False` forbids them."""
        if ibound > self.widest:
            return None
        memory = self.working.max_memory // 2
        config = MiniBucket(ibound, iterations=10**6, order=order, max_memory=memory)
        try:
            run = Run(self.working.orders, config, time.perf_counter())
        except ResourceError:
            run = None
        if run is None or (run.candidates[0][1].exact and not self.working.exact):
            self.widest = min(self.widest, ibound - 1)
            return None
        return run

    def _iterate(self, run: Run) -> Generator[Finding, None, float]:
        """ROUGH iterations more, after all orders had theirs; returns seconds an iteration."""
        scouts = 0 if run.history else len(run.candidates)
        begun, before = time.perf_counter(), run.passes
        for done, _ in enumerate(run.steps, start=1):
            if done >= ROUGH + scouts or self.clock.expired:
                break
            yield Finding()
        return (time.perf_counter() - begun) / max(1, run.passes - before)

    def _pilot(self, proposal: Proposal, spent: float) -> Outlook:
        """Draws that do not count: how far the cap is, how much weights scatter, how fast."""
        drawing = proposal.drawing(self._words())
        drawing.batch()  # may compile
        begun = time.perf_counter()
        found = [drawing.batch()]
        while time.perf_counter() - begun < PILOT * spent and not self.clock.expired:
            found.append(drawing.batch())
        return Outlook.of(np.concatenate(found), time.perf_counter() - begun)

    def _next(self, run: Run, outlook: Outlook, pace: float) -> int | None:
        """What to do: None draw, 0 iterate on, otherwise add this to the ibound."""
        ibound, left = run.config.ibound, min(self.clock.left, HORIZON)
        workers = SHARE * max(2, self.working.threads)
        if math.isinf(outlook.gap):
            return 2 if ROUGH * pace * 4.0 < LONGEST * left and ibound + 2 <= self.widest else None
        if not self.gaps or self.gaps[-1][0] != ibound:
            self.gaps.append((ibound, outlook.gap))
        best, width = None, outlook.width(workers * left)
        # As many iterations again bring about half of what the last ones brought.
        cost = (ROUGH + 4) * pace
        history = run.history
        gained = history[-min(ROUGH + 1, len(history))] - history[-1]
        more = outlook.tightened(outlook.gap - 0.5 * gained)
        if cost < LONGEST * left and more.width(workers * (left - cost)) < GAIN * width:
            best, width = 0, more.width(workers * (left - cost))
        for step in range(1, FURTHEST + 1):
            cost = (ROUGH + 8) * pace * 2.0**step
            if ibound + step > self.widest or cost > LONGEST * left:
                break
            larger = outlook.tightened(outlook.gap * self._shrink() ** step, SLOWER**step)
            if larger.width(workers * (left - cost)) < GAIN * width:
                best, width = step, larger.width(workers * (left - cost))
        return best

    def _shrink(self) -> float:
        """The factor by which the gap falls for each step of the ibound, by the last two seen."""
        if len(self.gaps) < 2:
            return 0.88
        (a, gap_a), (b, gap_b) = self.gaps[-2:]
        return min(0.97, max(0.7, (gap_b / gap_a) ** (1.0 / max(1, b - a))))

    def _source(self, track: str, proposal: Proposal, outlook: Outlook, draws: float) -> Source:
        return Source(
            track,
            level=proposal.log_u - outlook.gap,
            log_cap=proposal.log_u,
            spread=math.sqrt(math.expm1(min(outlook.log_excess, 600.0))),
            expected=max(1.0, draws),
            rounding=proposal.rounding,
        )

    def _glance(self, proposal: Proposal, outlook: Outlook, spent: float) -> Iterator[Finding]:
        """A short run of draws that count, for an interval before the deadline is near."""
        seconds = GLANCE * spent
        number = len(self.gaps) + 1
        source = self._source(f"glance {number}", proposal, outlook, outlook.rate * seconds)
        tally = Tally.of(proposal, source.level)
        yield from self._drawn(source, tally, self._words(), self.clock.child(seconds))

    def _prepare(self, proposal: Proposal, outlook: Outlook) -> None:
        draws = outlook.rate * SHARE * max(2, self.working.threads) * min(self.clock.left, HORIZON)
        self.source = self._source("mini-bucket", proposal, outlook, draws)
        self.tally = Tally.of(proposal, self.source.level)

    def draws(self, working: Working, clock: Clock) -> Iterator[Finding]:
        """Draw until the clock ends; several of these run side by side."""
        assert self.source is not None and self.tally is not None
        yield from self._drawn(self.source, self.tally, self._words(), clock)

    def _drawn(
        self, source: Source, tally: Tally, words: NDArray[np.uint64], clock: Clock
    ) -> Iterator[Finding]:
        drawing = tally.proposal.drawing(words)
        rng = generator(int(words[0]))
        look = 0
        first = True
        while first or not clock.expired:
            first = False
            begun, found = time.perf_counter(), []
            while not found or time.perf_counter() - begun < STEP:
                found.append(drawing.batch() + tally.proposal.log_u)
                tally.add(drawing, rng)
            draws = Draws(source, np.concatenate(found))
            if tally.drawn < 1.2 * look:
                yield Finding(draws=draws)
                continue
            look = tally.drawn
            yield self._finding(draws, tally)

    def _finding(self, draws: Draws, tally: Tally) -> Finding:
        estimate = tally.estimate()
        if not math.isfinite(estimate.log_z):
            return Finding(draws=draws)
        numbers = self.working.orders.numbers
        source = self.working.graph
        mixed = tally.effective >= FEWEST and math.isfinite(estimate.error)
        mixing = Mixing.MIXED if mixed else Mixing.NOT_MIXED
        vectors = observe(source, single_states=False).lift_marginals(tally.marginals())
        assert len(vectors) == source.n_variables, numbers
        return Finding(
            draws=draws,
            estimate=estimate,
            marginals=Marginals(
                vectors, "draws under a mini-bucket cap",
                estimate.log_z if mixed else -math.inf, mixing,
            ),
            sampler=tally.sampler(estimate, mixing) if mixed else None,
        )  # fmt: skip

    def _words(self) -> NDArray[np.uint64]:
        """Random words of a new lane."""
        rng = generator(self.working.seed, KEY, next(self._lane))
        return rng.integers(2**64, size=LANES, dtype=np.uint64)
