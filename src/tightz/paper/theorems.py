"""Theorems 1 and 2 of the paper as code: how many trials, what they promise, what held."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError, require_probability, require_range

ALPHA = 0.0042
"""The largest constant the theorems allow."""


def required_trials(n: int, delta: float, alpha: float = ALPHA) -> int:
    """T >= ln(n / delta) / alpha trials at every level 0..n, for n binary variables."""
    require_range("n", n, 1)
    require_probability("delta", delta)
    if not 0.0 < alpha <= ALPHA:
        raise ParameterError(f"alpha is {alpha}; the theorems need 0 < alpha <= {ALPHA}")
    return math.ceil(math.log(n / delta) / alpha)


@dataclass(frozen=True)
class Assumptions:
    """What a theorem needs, each checked against the run.

    enough_trials        every level has T >= required_trials(n, delta), the T that was planned
    all_levels           levels 0, 1, ..., n were all run
    strongly_universal   the hash family makes states survive pairwise independently
    global_optima        every I-projection was proven optimal
    """

    enough_trials: bool
    all_levels: bool
    strongly_universal: bool
    global_optima: bool

    @property
    def all_held(self) -> bool:
        return (
            self.enough_trials
            and self.all_levels
            and self.strongly_universal
            and self.global_optima
        )

    def missing(self) -> list[str]:
        """The assumptions that did not hold, in words."""
        words = {
            "enough_trials": "fewer trials than the theorem's T (or than were planned)",
            "all_levels": "not every level m = 0..n was run",
            "strongly_universal": "the hash family is not strongly universal",
            "global_optima": "the I-projections are not proven global optima",
        }
        return [text for name, text in words.items() if not getattr(self, name)]


@dataclass(frozen=True)
class TheoremStatement:
    """The interval a theorem gives on log Z with the stated confidence, and what it rests on.

    `lower_holds` and `upper_holds` say whether the assumptions behind each end were met; an end
    that does not hold is reported as it would read, never as a bound.
    """

    theorem: str
    lower: float
    upper: float
    lower_holds: bool
    upper_holds: bool
    confidence: float
    assumptions: Assumptions

    def bounds(self, seconds: float = 0.0) -> list[Bound]:
        """The ends whose assumptions held."""
        ends = (
            (Side.LOWER, self.lower, self.lower_holds),
            (Side.UPPER, self.upper, self.upper_holds),
        )
        why = f"{self.theorem} of the paper, both ends together"
        return [
            Bound(side, value, Proof.CONFIDENCE, self.theorem, seconds, self.confidence, why)
            for side, value, held in ends
            if held
        ]

    def summary(self) -> str:
        """Two lines of text: the statement, and what is missing for it."""
        ends = [
            f"log Z >= {self.lower:.4f} ({'holds' if self.lower_holds else 'not established'})",
            f"log Z <= {self.upper:.4f} ({'holds' if self.upper_holds else 'not established'})",
        ]
        missing = self.assumptions.missing()
        why = "all assumptions held" if not missing else "missing: " + "; ".join(missing)
        return f"{self.theorem}, confidence {self.confidence:g}: {', '.join(ends)}\n  {why}"


def lower_median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median over the last axis; of an even number of values the lower middle one.

    The lower one keeps the theorems' lower end on the safe side and needs no average of logs.
    """
    ordered = np.sort(values, axis=-1)
    return ordered[..., (values.shape[-1] - 1) // 2]


def theorem_1(
    levels: NDArray[np.int64],
    log_gamma: NDArray[np.float64],
    n: int,
    *,
    delta: float,
    assumptions: Assumptions,
) -> TheoremStatement:
    """4 Z >= max_m 2^m Median(gamma^m) >= Z / (32 (n + 1)) with probability 1 - 2 delta.

    log_gamma is (levels, trials). The left inequality at a fixed level is Markov plus a binomial
    tail and needs neither optima nor universality, only T; the right one needs everything.
    """
    scaled = lower_median(log_gamma) + levels * math.log(2.0)
    best = float(scaled.max())
    return TheoremStatement(
        theorem="Theorem 1",
        lower=best - math.log(4.0),
        upper=best + math.log(32.0 * (n + 1)),
        lower_holds=assumptions.enough_trials,
        upper_holds=assumptions.all_held,
        confidence=1.0 - 2.0 * delta,
        assumptions=assumptions,
    )


def theorem_2(
    levels: NDArray[np.int64],
    log_maxima: NDArray[np.float64],
    *,
    delta: float,
    assumptions: Assumptions,
) -> TheoremStatement:
    """sum_i 2^(i-1) Median(max_x p~(x) on the coset) is a 32-approximation, with prob. 1 - delta.

    log_maxima is (levels, trials): log weights of the heaviest state of each coset (family D).
    """
    from scipy.special import logsumexp

    terms = lower_median(log_maxima) + (levels - 1) * math.log(2.0)
    total = float(logsumexp(terms)) if len(terms) else -math.inf
    held = assumptions.all_held
    return TheoremStatement(
        theorem="Theorem 2",
        lower=total - math.log(32.0),
        upper=total + math.log(32.0),
        lower_holds=held,
        upper_holds=held,
        confidence=1.0 - delta,
        assumptions=assumptions,
    )
