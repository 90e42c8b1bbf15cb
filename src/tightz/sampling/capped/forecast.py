"""How narrow the confident interval will be: what decides between tightening U and drawing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

REACH = 3.0
"""Standard errors between the mean and an end of the confident interval."""

RARE = 5.2
"""From N draws an unseen weight at the cap may have a share of up to RARE / N (95%, two ends)."""


HORIZON = 3600.0
"""Seconds that a run without a limit plans for."""

FEW = 50.0
"""Effective draws below which their own second moment says too little."""


@dataclass(frozen=True)
class Outlook:
    """A proposal in three numbers: log U - log Z, log E[W^2] / E[W]^2, draws a second.

    Measured over ten models, the second falls in proportion to the first as a bound gets tighter.
    """

    gap: float
    log_excess: float
    rate: float

    @classmethod
    def of(cls, log_x: NDArray[np.float64], seconds: float, most: float = math.inf) -> Outlook:
        """From pilot draws; the scatter of logs stands in where the heavy weights are too rare.

        `most`: what earlier draws say the gap is at most; heavy weights that a pilot misses make
        its own too large.
        """
        alive = log_x[log_x > -np.inf]
        if alive.size < 2:
            return cls(math.inf, math.inf, log_x.size / seconds)
        top = float(alive.max())
        ratios = np.exp(alive - top)
        mean = float(ratios.sum()) / log_x.size
        excess = math.log(float((ratios**2).sum()) / log_x.size / mean**2)
        gap = max(1e-6, min(most, -(top + math.log(mean))))
        if math.exp(-excess) * log_x.size < FEW:  # log-normal weights: as much as their logs vary
            excess = max(excess, float(alive.var()))
        # no weight exceeds the cap, so no excess the gap
        return cls(gap, min(gap, max(excess, 1e-9)), log_x.size / seconds)

    def width(self, seconds: float) -> float:
        """Of the interval after `seconds` of drawing: noise at both ends, or the cap above."""
        draws = self.rate * seconds
        if not draws > RARE or math.isinf(self.gap):
            return math.inf
        noise = REACH * math.sqrt(math.expm1(min(self.log_excess, 600.0)) / draws)
        # Noise of many means says that the draws miss most of Z: a nat for each e-fold.
        below = noise if noise < 1.0 else 1.0 + math.log(noise)
        # An unseen weight at the cap, of share RARE / draws, adds this to Z:
        unseen = float(np.logaddexp(0.0, self.gap - math.log(draws / RARE)))
        return below + max(below, unseen)

    def tightened(self, gap: float, slower: float = 1.0) -> Outlook:
        """The same proposal with a smaller gap, by what was measured on others."""
        gap = max(gap, 1e-3)
        return replace(
            self, gap=gap, log_excess=self.log_excess * gap / self.gap, rate=self.rate / slower
        )
