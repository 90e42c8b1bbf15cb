"""The stream that certifies from both sides: tighten a mini-bucket bound, then draw under its cap.

A mini-bucket bound U is two things: an upper end that holds always, and a cap on the weights of a
proposal that can be drawn from exactly. The stream tightens U (more iterations, larger tables) for
as long as that narrows the interval it can expect at the deadline, then draws until the deadline.
Pilot draws say what to expect and which stakes to take; they do not count.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Side
from tightz.elimination.exact import exact
from tightz.errors import ResourceError
from tightz.models.observed import observe
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import generator, stream
from tightz.sampling.capped.forecast import HORIZON, Outlook
from tightz.sampling.capped.lanes import LANES, Capped, Lanes
from tightz.sampling.capped.pieces import Lot, Sampler
from tightz.sampling.capped.proposal import MOST_STATES, Proposal, proposal_of
from tightz.sampling.capped.tally import Final, Portion, Tally
from tightz.sampling.capped.tightening import SHARE, Tightening
from tightz.sampling.shares import stake
from tightz.uppers.mini_bucket.run import Run
from tightz.workspace.findings import (
    Draws,
    Finding,
    Marginals,
    Mixing,
    Source,
    exact_marginals,
)
from tightz.workspace.working import Handout, Launch, Planned, Working

KEY = 2**31 + 7
"""Key of the stream's random numbers."""

STEP, GROWING, LONGEST = 0.1, 0.05, 2.0
"""Seconds of drawing between two findings: the fewest, as a part of all before them, the most.
Workers that are busy with long pieces of others come to short ones too seldom (100x100 grid, four
workers: pieces of 0.1 s every two seconds)."""

MOST = 256
"""Batches in a piece."""

TRAVELS = 2**29
"""Bytes of tables above which draws are made by this process's threads only."""

GLANCE = 0.1
"""Part of the time spent on a bound that is drawn from it at once, so that there is an interval."""

PILOT = 0.05
"""Part of the time spent on a bound that pilot draws may take."""

PROMISED, UNPROMISING, ONWARDS = 0.5, 0.3, 0.4
"""Parts of the workers' time while tightening, where no useful interval is in sight, and beside
the draws."""

TELLING = 11
"""The ibound from which forecasts say whether draws will tell anything."""

HOPELESS = 40.0
"""Nats of forecast width that are not worth half of the time."""

DIM, AT_THE_END = 2.0, 0.3
"""Nats of forecast width for which draws wait, and the part of the time that is kept for them."""

BLUR = 0.01
"""Nats of rounding in a weight beyond which nothing is drawn: tables of huge numbers."""

TOLD = 256
"""Drawn states that others are told of: put together, so many are as good as more."""

MAIN, BESIDE = "mini-bucket", "mini-bucket beside a device"
"""Tracks of the draws until the end, and of those that go on when a device has taken over."""

FEWEST = 50.0
"""Effective draws below which marginals are not called mixed."""

MISSING = 0.05
"""Nats of error, for weights that may not have been seen, above which they are not either: twice
that is a tenth of Z."""


def capped(working: Working, clock: Clock) -> Iterator[Launch]:
    """Upper ends that hold always, then both ends with confidence, estimate and marginals."""
    yield Launch((CappedDraws(working, clock),))


class CappedDraws:
    """One run of the stream: the bound, its proposal, and what was drawn from it.

    It plans its own time: what pays is the end, not each step.
    """

    __name__ = "capped"

    def __init__(self, working: Working, clock: Clock, key: int = KEY) -> None:
        self.working, self.clock, self.key = working, clock, key
        self.bounds = Tightening(working, clock)
        self.glances = 0
        self.level = -math.inf  # the largest estimate of log Z: too few draws make it too small
        self.best: tuple[Capped, Outlook] | None = None
        self.final: Final | None = None
        self.drawing = False
        self._seen: Lanes | None = None
        self._lane = itertools.count()
        self._noise = generator(working.seed, key, next(self._lane))

    @property
    def beatable(self) -> Side | None:
        """Before it draws, its bounds are not all that it has to give."""
        return Side.UPPER if self.drawing else None

    @property
    def proves(self) -> bool:
        """Beside the draws it goes on for the end that holds always."""
        return self.drawing

    @property
    def left(self) -> float:
        """Seconds of drawing until the deadline, over all workers."""
        return self.bounds.drawing(min(self.clock.left, HORIZON))

    @property
    def share(self) -> float:
        """Part of all workers' time that it should get: little where no draws will tell much."""
        if self.bounds.dense:  # what it gains, if anything: other bounds are far ahead there
            return 0.0
        if self.drawing:
            return ONWARDS
        gaps = self.bounds.gaps  # none where the first draws come after all tables
        if self.best is None or not gaps or gaps[-1][0] < TELLING:
            return PROMISED
        return PROMISED if self.best[1].width(self.left) < HOPELESS else UNPROMISING

    def __call__(
        self, working: Working, clock: Clock
    ) -> Iterator[Finding | Bound | Launch | Handout]:
        run = yield from self.tighten()
        if run is not None and self._dim:
            # Draws under so loose a cap say little: tables first, draws at the end.
            run = yield from self.bounds.onwards(run, self.level, AT_THE_END * clock.left)
            yield from self._look(run)
        if self.best is not None and not clock.expired:
            self._prepare(*self.best)
            share = min(SHARE, 1.2 * self.share)
            self.drawing = True
            yield Launch((Planned(self.draws, share),))
        if run is not None:
            # The draws say no more about the end that holds always.
            yield from self.bounds.onwards(run, self.level)

    @property
    def _dim(self) -> bool:
        """Whether draws until the deadline would leave a wide interval."""
        return self.best is None or self.best[1].width(self.left) > DIM

    def tighten(self) -> Generator[Finding | Bound | Handout, Any, Run | None]:
        """Bounds, and a glance at what their proposals say, until drawing pays more."""
        run = yield from self.bounds.scout()
        while run is not None and not self.clock.expired:
            yield from self.bounds.iterate(run)
            bound = run.judged()
            self.bounds.judgement = run.judgement
            yield bound
            if bound.side is Side.BOTH:
                if bound.log_z > -math.inf:  # narrow: marginals are cheap
                    yield from exact_marginals(
                        exact(self.working.graph, max_memory=self.working.max_memory)
                    )
                return None
            outlook = yield from self._look(run)
            step = self.bounds.next_step(run, outlook, self.best and self.best[1])
            if step is None:
                return run
            if step:
                # where the larger tables do not fit, the next decision is taken without them
                run = (yield from self.bounds.larger(run, step)) or run
        return None

    def _look(self, run: Run) -> Generator[Finding, None, Outlook]:
        """What the bound promises as a proposal, and a first interval from it."""
        proposal = self._proposal(run)
        if proposal is None:
            return Outlook(math.inf, math.inf, 0.0)
        outlook = self._pilot(proposal, self.bounds.busy)
        yield self._told()
        if math.isfinite(outlook.gap):
            yield from self._glance(proposal, outlook, self.bounds.busy)
            self._keep_best(proposal, outlook)
        return outlook

    def _proposal(self, run: Run) -> Capped | None:
        """The bound as a proposal; None where nothing can be drawn from it."""
        if run.descent is None:  # the time ended before its first iteration
            return None
        try:
            proposal = proposal_of(run.model, run.descent)
        except ResourceError:  # no room for its tables beside the bound's: those before it serve
            return None
        large = run.model.cardinalities.max(initial=1) > MOST_STATES
        return None if proposal.rounding > BLUR or large else proposal

    def _keep_best(self, proposal: Capped, outlook: Outlook) -> None:
        """Larger tables can be cut less well: what promises most is kept."""
        if self.best is None or outlook.width(self.left) < self.best[1].width(self.left):
            self.best = proposal, outlook

    def _told(self) -> Finding:
        """States of the last pilot, for those who start from heavy ones."""
        assert self._seen is not None
        observed = observe(self.working.graph, single_states=False)
        return Finding(states=observed.lift_states(self._seen.states[:, :TOLD].T))

    def _pilot(self, proposal: Capped, spent: float) -> Outlook:
        """Draws that do not count: how far the cap is, how much weights scatter, how fast."""
        few = proposal.drawing(self._words(min(LANES, proposal.lanes)))
        few.batch()  # may compile
        proposal.check(few)
        drawing = proposal.drawing(self._words(proposal.lanes))
        begun = time.perf_counter()
        found = [drawing.batch()]
        while time.perf_counter() - begun < PILOT * spent and not self.clock.expired:
            found.append(drawing.batch())
        seconds = time.perf_counter() - begun
        outlook = Outlook.of(np.concatenate(found), seconds, proposal.log_u - self.level)
        self.level = max(self.level, proposal.log_u - outlook.gap)
        self._seen = drawing
        return outlook

    def _source(self, track: str, proposal: Capped, outlook: Outlook, draws: float) -> Source:
        return Source(
            track,
            level=proposal.log_u - outlook.gap,
            log_cap=proposal.log_cap,
            log_lost=proposal.log_lost,
            spread=math.sqrt(math.expm1(min(outlook.log_excess, 600.0))),
            expected=max(1.0, draws),
            rounding=proposal.rounding,
        )

    def _glance(self, proposal: Capped, outlook: Outlook, spent: float) -> Iterator[Finding]:
        """A short run of draws that count, for an interval before the deadline is near."""
        seconds = GLANCE * spent
        self.glances += 1
        track = f"glance {self.glances}"
        source = self._source(track, proposal, outlook, outlook.rate * seconds)
        tally = self._tally(source, proposal, outlook)
        drawing = proposal.drawing(self._words(proposal.lanes))
        begun = self.clock.elapsed
        while tally.drawn == 0 or self.clock.elapsed - begun < seconds:
            yield self._drawn(source, tally, drawing)
        self.level = max(self.level, tally.estimate().log_z)

    def _prepare(self, proposal: Capped, outlook: Outlook) -> None:
        """Fix source and stakes of the draws until the end."""
        source = self._source(MAIN, proposal, outlook, outlook.rate * self.left)
        tally = self._tally(source, proposal, outlook)
        tally.name = MAIN
        self.final = Final(source, tally, time.perf_counter())

    def _tally(self, source: Source, proposal: Capped, outlook: Outlook) -> Tally:
        tally = Tally.of(proposal, source.level)
        mean, entries = source.level - proposal.log_cap, len(tally.counts)
        tally.stake = stake(mean, outlook.log_excess, source.expected, entries, self.working.delta)
        return tally

    def draws(
        self, working: Working, clock: Clock
    ) -> Generator[Finding | Handout, list[Portion], None]:
        """Draw until the clock ends, by as many hands as there are."""
        assert self.final is not None
        try:
            if isinstance(self.final.tally.proposal, Proposal):
                yield from self._in_portions(working, clock)
                return
            # tables on a device, which draws by the thousand
            tally = self.final.tally
            drawing = tally.proposal.drawing(self._words(tally.proposal.lanes))
            while not clock.expired:
                source, for_main = self._belongs(clock)
                yield self._drawn(source, tally, drawing)
                if for_main:
                    working.capped.entered()
        finally:
            working.capped.leave()

    def _belongs(self, clock: Clock) -> tuple[Source, bool]:
        """Where the draws that begin now belong, and whether that is the main track."""
        assert self.final is not None
        for_main = self.working.capped.begin()
        if not for_main and self.final.source.track == MAIN:
            self.final.source = replace(self.final.source, track=BESIDE)
        return self.final.current(clock), for_main

    def _in_portions(
        self, working: Working, clock: Clock
    ) -> Generator[Finding | Handout, list[Portion], None]:
        """Draws handed out; each piece comes back as a `Portion`."""
        assert self.final is not None
        tally = self.final.tally
        proposal = tally.proposal
        assert isinstance(proposal, Proposal)
        sampler = Sampler(proposal, tally.level)
        near = proposal.tables.nbytes > TRAVELS
        pace = LANES / self.best[1].rate if self.best is not None else STEP
        begun, ahead = clock.elapsed, deque[tuple[Source, bool, int]]()
        while not clock.expired:
            # Whose draws they are and how many is settled before they are made; all of them count.
            seconds = min(LONGEST, max(STEP, GROWING * (clock.elapsed - begun)), clock.left)
            batches = max(1, min(MOST, int(seconds / pace)))
            hands = working.threads if near else working.hands
            seeds = [stream(working.seed, self.key, next(self._lane)) for _ in range(hands)]
            lots = [Lot(seed, batches, tally.least) for seed in seeds]
            ahead.append((*self._belongs(clock), batches))
            # Nobody waits for this stream: the next lots are under way while it counts the last.
            portions = yield Handout(sampler, lots, near=near, keep=hands)
            if not portions:
                continue
            source, for_main, batches = ahead.popleft()
            for portion in portions:
                tally.merge(portion)
            pace = max(1e-6, sum(p.seconds for p in portions) / (batches * len(portions)))
            draws = Draws(source, np.concatenate([p.log_weights for p in portions]))
            yield self._finding(draws, tally) if tally.news() else Finding(draws=draws)
            if for_main:
                working.capped.entered()

    def _drawn(self, source: Source, tally: Tally, drawing: Lanes) -> Finding:
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
        vectors = tally.marginals()
        if vectors is None:
            return Finding(draws=draws, estimate=estimate)
        many = tally.worth >= FEWEST and math.isfinite(estimate.error)
        mixed = many and tally.unseen <= MISSING
        mixing = Mixing.MIXED if mixed else Mixing.NOT_MIXED
        observed = observe(self.working.graph, single_states=False)
        return Finding(
            draws=draws,
            estimate=estimate,
            shares=tally.shares(draws.source),
            marginals=Marginals(
                observed.lift_marginals(vectors), "draws under a mini-bucket cap",
                tally.worth if many else -math.inf, mixing,
            ),
            sampler=tally.sampler(estimate, mixing) if many else None,
        )  # fmt: skip

    def _words(self, lanes: int) -> NDArray[np.uint64]:
        """Random words of a new stream of draws, so many at a time."""
        rng = generator(self.working.seed, self.key, next(self._lane))
        return rng.integers(2**64, size=lanes, dtype=np.uint64)
