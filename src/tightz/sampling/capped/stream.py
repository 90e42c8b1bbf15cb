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
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Side
from tightz.elimination.order import Order
from tightz.errors import ResourceError
from tightz.models.observed import observe
from tightz.runtime.clock import Clock
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

FIRST = 6
"""The first ibound."""

MANY = 4000
"""Factors above which orders are neither planned nor compared beyond the two best heuristics."""

SCOUTED = 10
"""The ibound from which the order planned for exact elimination is tried too."""

PLANNING = 20.0
"""Seconds that must be left for a search of elimination orders that may take a second or two."""

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

REFITS = (0.04, 0.2)
"""Parts of the time for draws after which stakes are chosen by all that was drawn."""

BLUR = 0.01
"""Nats of rounding in a weight beyond which nothing is drawn: tables of huge numbers."""

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
    told: int = 0
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
        with self._lock:
            counts = self.counts.copy()
        parts = np.split(counts, self.pointers[1:-1])
        return [np.maximum(part, 0.0) / part.sum() for part in parts]


@dataclass(eq=False)
class Final:
    """The draws until the end. Their stakes are chosen anew once it shows how they scatter.

    Each choice opens a source of its own, made from draws that are counted already.
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


def capped(working: Working, clock: Clock) -> Iterator[Finding | Bound | Launch]:
    """Upper ends that hold always, then both ends with confidence, estimate and marginals."""
    job = CappedDraws(working, clock)
    yield from job.tighten()
    if job.final is not None:
        # One lane of draws for every worker; all of them feed one source.
        lanes = max(2, working.threads)
        yield Launch((Planned(job.draws, SHARE / lanes),) * lanes)


class CappedDraws:
    """One run of the stream: the bound, its proposal, and what was drawn from it."""

    def __init__(self, working: Working, clock: Clock) -> None:
        self.working, self.clock = working, clock
        self.widest = MAX_IBOUND
        self.gaps: list[tuple[int, float]] = []  # ibound, log U - log Z after its first iterations
        self.ranking: list[tuple[float, Order]] = []  # bounds at equal work, best first
        self.pace = 0.0  # seconds of an iteration
        self.settled = False  # whether iterating on is of no use
        self.glances = 0
        self.drag = 1.0  # wall clock over forecast cost: waiting, judging, glances
        self.promise = (0.0, 0.0)  # when the last step began, and what it was to cost
        self.busy = 0.0  # seconds spent on the bound at hand
        self.level = -math.inf  # the largest estimate of log Z: too few draws make it too small
        self.best: tuple[Proposal, Outlook] | None = None
        self.final: Final | None = None
        self._lane = itertools.count()
        self._noise = generator(working.seed, KEY, next(self._lane))

    def tighten(self) -> Iterator[Finding | Bound]:
        """Bounds, and a glance at what their proposals say, until drawing pays more."""
        run = yield from self._scout()
        while run is not None and not self.clock.expired:
            self.busy = 0.0
            yield from self._iterate(run)
            if len(run.scouted) > 1:
                self.ranking = sorted(
                    ((value, kind) for kind, value in run.scouted.items()), key=lambda item: item[0]
                )
            bound = run.judged()
            yield bound
            if bound.side is Side.BOTH or self.clock.expired:
                return
            assert run.descent is not None
            proposal = Proposal.of(run.model, run.descent)
            if proposal.rounding > BLUR:
                return
            outlook = self._pilot(proposal, self.busy)
            if math.isfinite(outlook.gap):
                yield from self._glance(proposal, outlook, self.busy)
                self._keep_best(proposal, outlook)
            del proposal
            step = self._next(run, outlook)
            if step is None:
                if self.best is not None:
                    self._prepare(*self.best)
                return
            if step:
                # where the larger tables do not fit, the next decision is taken without them
                run = self._larger(run, step) or run

    def _scout(self) -> Generator[Finding, None, Run | None]:
        """Which elimination order, by bounds at about equal work: the best and its run."""
        orders = self.working.orders
        kinds = orders.kinds
        if self.working.graph.n_factors > MANY:  # setting up tables takes as long as iterating
            kinds = [Order.MIN_FILL, Order.MIN_SIZE]
        seen = {orders[kind].tobytes(): kind for kind in reversed(kinds)}
        runs = {kind: run for kind in reversed(seen.values()) if (run := self._run(FIRST, [kind]))}
        exact = [run for run in runs.values() if run.candidates[0][1].exact]
        if exact or not runs:
            return exact[0] if exact else self._run(2, kinds)
        least = min(run.entries for run in runs.values())
        for kind, run in runs.items():
            # an order with larger tables gets a smaller ibound
            fair = FIRST - int(math.log2(run.entries / least))
            even = run if fair == FIRST else self._run(max(1, fair), [kind])
            if even is None or self.clock.expired:
                continue
            yield from self._iterate(even)
            assert even.descent is not None
            self.ranking.append((even.descent.best, kind))
        if not self.ranking:
            return None
        self.ranking.sort(key=lambda item: item[0])
        return runs[self.ranking[0][1]]

    def _seconds(self, left: float) -> float:
        """Seconds of drawing, over all workers, in so many seconds of the clock."""
        return SHARE * max(2, self.working.threads) * left

    def _keep_best(self, proposal: Proposal, outlook: Outlook) -> None:
        """Larger tables can be cut less well: what promises most is kept."""
        seconds = self._seconds(min(self.clock.left, HORIZON))
        if self.best is None or outlook.width(seconds) < self.best[1].width(seconds):
            self.best = proposal, outlook

    def _larger(self, run: Run, step: int) -> Run | None:
        """The run at a larger ibound: the two best orders so far are compared there again.

        How well buckets are cut changes from ibound to ibound: on a 50x50 grid, w = 10, one order
        is 7 nats behind the other at ibound 10 and 11 nats ahead at 14.
        """
        ibound = run.config.ibound + step
        kinds = [kind for _, kind in self.ranking[:2]]
        if ibound >= SCOUTED > run.config.ibound and self._may_plan():
            # The order of least exact cost, which a run without exact answers has not looked for.
            found = self.working.plan
            if found is not None:
                self.working.orders.adopt(found.variables)
                kinds = [*kinds, Order.PLANNED] if Order.PLANNED not in kinds else kinds
        return self._run(ibound, kinds or [run.order])

    def _may_plan(self) -> bool:
        return self.working.graph.n_factors <= MANY and self.clock.left > PLANNING

    def _run(self, ibound: int, kinds: list[Order]) -> Run | None:
        """Mini-buckets of this size; None where memory or `exact=False` forbids them."""
        if ibound > self.widest:
            return None
        memory = self.working.max_memory // 2
        config = MiniBucket(ibound, iterations=10**6, max_memory=memory)
        try:
            run = Run(self.working.orders, config, time.perf_counter(), kinds)
        except ResourceError:
            run = None
        if run is None or (run.candidates[0][1].exact and not self.working.exact):
            self.widest = min(self.widest, ibound - 1)
            return None
        return run

    def _iterate(self, run: Run) -> Generator[Finding, None, None]:
        """ROUGH iterations more, after all orders had theirs; measures seconds an iteration."""
        scouts = 0 if run.history else len(run.candidates)
        spent, before = 0.0, run.passes
        for done in range(1, ROUGH + scouts + 1):
            begun = time.perf_counter()
            self.settled = next(run.steps, None) is None
            if self.settled or self.clock.expired:
                break
            took = time.perf_counter() - begun  # the stream waits between its steps
            self.busy += took
            spent += took
            if done == scouts:  # setting up tables is no iteration
                spent, before = 0.0, run.passes
            yield Finding()
        if run.passes > before:
            self.pace = spent / (run.passes - before)

    def _pilot(self, proposal: Proposal, spent: float) -> Outlook:
        """Draws that do not count: how far the cap is, how much weights scatter, how fast."""
        drawing = proposal.drawing(self._words())
        drawing.batch()  # may compile
        proposal.check(drawing)
        begun = time.perf_counter()
        found = [drawing.batch()]
        while time.perf_counter() - begun < PILOT * spent and not self.clock.expired:
            found.append(drawing.batch())
        seconds = time.perf_counter() - begun
        outlook = Outlook.of(np.concatenate(found), seconds, proposal.log_u - self.level)
        self.level = max(self.level, proposal.log_u - outlook.gap)
        return outlook

    def _next(self, run: Run, outlook: Outlook) -> int | None:
        """What to do: None draw, 0 iterate on, otherwise add this to the ibound."""
        pace, ibound, left = self.pace, run.config.ibound, min(self.clock.left, HORIZON)
        if math.isinf(outlook.gap):
            return 2 if ROUGH * pace * 4.0 < LONGEST * left and ibound + 2 <= self.widest else None
        if not self.gaps or self.gaps[-1][0] != ibound:
            self.gaps.append((ibound, outlook.gap))
        began, cost = self.promise
        if cost > 0.0:
            taken = (self.clock.elapsed - began) / cost
            self.drag = 0.5 * (self.drag + min(10.0, max(1.0, taken)))
        assert self.best is not None
        known = self.best[1]
        best, width, promised = None, known.width(self._seconds(left)), 0.0
        # As many iterations again bring about half of what the last ones brought.
        cost = self.drag * (ROUGH + 4) * pace
        history = run.history
        gained = history[-min(ROUGH + 1, len(history))] - history[-1]
        more = outlook.tightened(outlook.gap - 0.5 * gained)
        if self.settled:
            cost = math.inf
        if cost < LONGEST * left and more.width(self._seconds(left - cost)) < GAIN * width:
            best, width, promised = 0, more.width(self._seconds(left - cost)), cost
        for step in range(1, FURTHEST + 1):
            cost = self.drag * (ROUGH + 12) * pace * 2.0**step
            if ibound + step > self.widest or cost > LONGEST * left:
                break
            larger = known.tightened(known.gap * self._shrink() ** step, SLOWER**step)
            if larger.width(self._seconds(left - cost)) < GAIN * width:
                best, width, promised = step, larger.width(self._seconds(left - cost)), cost
        self.promise = self.clock.elapsed, promised / self.drag
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
            log_cap=proposal.log_cap,
            log_lost=proposal.log_lost,
            spread=math.sqrt(math.expm1(min(outlook.log_excess, 600.0))),
            expected=max(1.0, draws),
            rounding=proposal.rounding,
        )

    def _glance(self, proposal: Proposal, outlook: Outlook, spent: float) -> Iterator[Finding]:
        """A short run of draws that count, for an interval before the deadline is near."""
        seconds = GLANCE * spent
        self.glances += 1
        track = f"glance {self.glances}"
        source = self._source(track, proposal, outlook, outlook.rate * seconds)
        tally, drawing = Tally.of(proposal, source.level), proposal.drawing(self._words())
        begun = self.clock.elapsed
        while tally.drawn == 0 or self.clock.elapsed - begun < seconds:
            yield self._drawn(source, tally, drawing)
        self.level = max(self.level, tally.estimate().log_z)

    def _prepare(self, proposal: Proposal, outlook: Outlook) -> None:
        """Fix source and stakes of the draws until the end."""
        draws = outlook.rate * self._seconds(min(self.clock.left, HORIZON))
        source = self._source("mini-bucket", proposal, outlook, draws)
        self.final = Final(source, Tally.of(proposal, source.level), time.perf_counter())

    def draws(self, working: Working, clock: Clock) -> Iterator[Finding]:
        """Draw until the clock ends; several of these run side by side."""
        assert self.final is not None
        drawing = self.final.tally.proposal.drawing(self._words())
        while not clock.expired:
            source = self.final.current(clock)
            yield self._drawn(source, self.final.tally, drawing)

    def _drawn(self, source: Source, tally: Tally, drawing: Drawing) -> Finding:
        """STEP seconds of draws; now and then with what all draws say so far."""
        begun = time.perf_counter()
        found: list[NDArray[np.float64]] = []
        while not found or time.perf_counter() - begun < STEP:
            found.append(drawing.batch() + tally.proposal.log_u)
            tally.add(drawing, self._noise)
        draws = Draws(source, np.concatenate(found))
        return self._finding(draws, tally) if tally.news() else Finding(draws=draws)

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
