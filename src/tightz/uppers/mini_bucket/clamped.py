"""Ends of log Z with each variable fixed, made from a mini-bucket bound beside the run itself."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Side
from tightz.judge.clamps import ClampedCliques
from tightz.runtime.clock import Clock
from tightz.uppers.mini_bucket.descent import Descent
from tightz.uppers.mini_bucket.run import Run
from tightz.workspace.findings import Clamped, Finding
from tightz.workspace.working import Handout, Launch, Planned, Working

EARLY = 0.5
"""Part of their time, as it is so far, that ends may take before the last bound's."""

PACE = 2e-8
"""Seconds for each entry of a table on the way up, until it is measured."""

HORIZON = 3600.0
"""Seconds that a run without a limit plans for."""


class Clamping:
    """Which of a stream's bounds are worth their ends with a variable fixed, and when.

    A fixed state costs its way up the clique tree, all of them a hundred passes or more; so the
    last bound that their part of the time (`share`) allows is what they are made for, and an
    earlier one only where it is cheap.
    """

    def __init__(self, working: Working, clock: Clock, share: float) -> None:
        self.working, self.clock, self.share = working, clock, share
        self.pace, self.spent = PACE, 0.0  # seconds an entry, seconds in all
        self.under_way = False
        self._waiting: Ends | None = None

    def seconds(self, run: Run) -> float:
        """Of one worker for the ends of this run; 0 where there will be none: not wanted, or
        beyond their part of the time.
        """
        parts = run.descent.parts if run.descent else run.candidates[0][1]
        if not self.working.marginals or run.place.device or parts.exact:
            return 0.0
        cost = self.pace * parts.entries_on_ways
        return cost if cost <= self._part(min(self.clock.left, HORIZON), 1.0) else 0.0

    def _part(self, ahead: float, part: float) -> float:
        """What is left of so much of their time, as it is so many seconds from now."""
        return part * self.share * self.working.threads * (self.clock.spent + ahead) - self.spent

    def offer(self, run: Run) -> Iterator[Launch]:
        """A bound was judged: its ends come at once where they are cheap, or wait."""
        if self.seconds(run) > 0.0:
            self._waiting = Ends(self, run)
            if self.pace * self._waiting.entries <= self._part(0.0, EARLY):
                yield from self.settle()

    def settle(self, ahead: Run | None = None) -> Iterator[Launch]:
        """No ends of a later bound will be made, or not of the one ahead: those that wait are."""
        if ahead is not None and self.seconds(ahead) > 0.0:
            return
        if self._waiting is not None and not self.under_way:
            self.under_way = True
            yield Launch((Planned(self._waiting, self.share, proves=True, beatable=None),))
            self._waiting = None


class Ends:
    """The stream: lot by lot, by as many threads as there are."""

    __name__ = "clamped"

    def __init__(self, clamping: Clamping, run: Run) -> None:
        assert isinstance(run.descent, Descent)
        self.clamping, self.model = clamping, run.source
        self.evidence = run.descent.evidence(run.numbers)
        below = " from below" if run.config.side is Side.LOWER else ""
        self.source = f"mini-buckets{below} of ibound {run.config.ibound}"
        self.entries = run.descent.parts.entries_on_ways

    def __call__(self, working: Working, clock: Clock) -> Generator[Finding | Handout, Any, None]:
        try:
            yield from self._findings(working.threads)
        finally:
            self.clamping.under_way = False

    def _findings(self, threads: int) -> Generator[Finding | Handout, Any, None]:
        judge = ClampedCliques(self.evidence, self.model)
        yield Finding()
        ends, lots, spent = judge.unsaid(), judge.lots, 0.0
        nothing = np.full(ends.size, -judge.side * math.inf)
        for k in range(0, len(lots), threads):
            some = lots[k : k + threads]
            results = yield Handout(_Timed(judge), some, near=True)
            for lot, (values, seconds) in zip(some, results, strict=True):
                ends[judge.places(lot)] = values
                spent += seconds
                self.clamping.spent += seconds
            low, high = (nothing, ends) if judge.side > 0.0 else (ends, nothing)
            yield Finding(clamped=Clamped(low.copy(), high.copy(), self.source))
        self.clamping.pace = max(1e-10, spent / self.entries)


class _Timed:
    """A lot's ends, and the seconds that they took."""

    def __init__(self, judge: ClampedCliques) -> None:
        self.judge = judge

    def __call__(self, lot: list[int]) -> tuple[NDArray[np.float64], float]:
        begun = time.perf_counter()
        return self.judge.ends(lot), time.perf_counter() - begun
