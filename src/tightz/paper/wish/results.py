"""What WISH returns: the table of heaviest states, and what each end of the interval rests on.

With N(v) = #{x : p~(x) >= v}, Z is the integral of N(v) over v > 0. For M_i the maximum of p~ on a
coset of i fair-coin parities, P_i(v) = P(M_i >= v), and mu = N(v) / 2^i the expected number of
survivors at or above v, pairwise independence gives

    mu / (mu + 1 - 2^-i) <= P_i(v) <= mu      (one-sided Chebyshev; Markov),

hence 2^i P_i(v) <= N(v) <= (2^i - 1) P_i(v) / (1 - P_i(v)). The empirical distribution of T trials
is within eps = sqrt(ln(2 L / delta) / (2 T)) of P_i on each side, for all v at once and at L levels
at once, with probability 1 - delta (Dvoretzky, Kiefer and Wolfowitz 1956; Massart 1990).

The left inequality for N survives if M_i is replaced by the weight of any state found, the right
one if it is replaced by any upper bound on M_i. The left one needs no pairwise independence.

Write M_it for the maximum of p~ on the coset (i, t), and suppose the search returned a state of
weight m_it <= M_it and a proof that M_it <= u_it. Medians and sums are monotone, so with
S(v) = sum_i 2^(i-1) Median_t(v_it): S(m) <= S(M) <= S(u), and the event of Theorem 2,
{S(M) / 32 <= Z <= 32 S(M)}, of probability 1 - delta, implies

    S(m) / 32 <= Z    whatever the search did; leaving levels out only lowers S(m);
    Z <= 32 S(u)      with all levels 0..n; S(u) = S(m) up to rounding when all optima are proven.

So an unproven optimum costs tightness of the upper end, never validity: u is the solver's bound,
and never above that of level 0 or constant + sum |theta|, which bound every coset. The theorem asks
for T >= ln(n / delta) / alpha trials at each level; with fewer both ends are withheld, and the band
(`wish_band`) remains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.families.projection import Status
from tightz.paper.theorems import (
    Assumptions,
    TheoremStatement,
    lower_median,
    required_trials,
    theorem_2,
)
from tightz.results import Result

LOG_2 = math.log(2.0)


def _epsilon(levels: NDArray[np.int64], trials: int, delta: float) -> float:
    """Half-width of the band: two sides, and every level but 0, whose maximum is not random."""
    random_levels = max(1, int((levels > 0).sum()))
    return math.sqrt(math.log(2.0 * random_levels / delta) / (2.0 * trials))


def _integral(log_values: NDArray[np.float64], log_counts: NDArray[np.float64]) -> float:
    """log of the integral of a count that is exp(log_counts[k]) on (v_k+1, v_k], v descending."""
    from scipy.special import logsumexp

    if not log_values.size:
        return -math.inf
    following = np.append(log_values[1:], -np.inf)
    with np.errstate(divide="ignore"):
        pieces = log_counts + log_values + np.log(-np.expm1(following - log_values))
    return float(logsumexp(pieces)) if pieces.max() > -np.inf else -math.inf


def _shares(values: NDArray[np.float64], row: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fraction of `row` at or above each of `values`."""
    return 1.0 - np.searchsorted(np.sort(row), values, side="left") / row.size


def band_lower(
    levels: NDArray[np.int64], log_maxima: NDArray[np.float64], delta: float
) -> float:  # fmt: skip
    """log of the integral of max_i 2^i (share_i(v) - eps) <= N(v), from states found."""
    values = np.unique(log_maxima[log_maxima > -np.inf])[::-1]
    epsilon = _epsilon(levels, log_maxima.shape[1], delta)
    counts = np.zeros(values.size)  # N(v) >= 1 up to the heaviest state seen
    for level, row in zip(levels.tolist(), log_maxima, strict=True):
        if level:
            with np.errstate(divide="ignore"):
                share = np.log(np.maximum(0.0, _shares(values, row) - epsilon))
            counts = np.maximum(counts, level * LOG_2 + share)
    return _integral(values, counts)


def band_upper(
    levels: NDArray[np.int64],
    log_uppers: NDArray[np.float64],
    n: int,
    log_ceiling: float,
    delta: float,
) -> float:
    """log of the integral of min_i (2^i - 1) p / (1 - p) >= N(v), p = share_i(v) + eps < 1."""
    values = np.unique(np.minimum(np.append(log_uppers, log_ceiling), log_ceiling))[::-1]
    values = values[values > -np.inf]
    epsilon = _epsilon(levels, log_uppers.shape[1], delta)
    counts = np.full(values.size, n * LOG_2)
    for level, row in zip(levels.tolist(), log_uppers, strict=True):
        if level:
            share = np.minimum(1.0, _shares(values, row) + epsilon)
            with np.errstate(divide="ignore"):
                odds = np.log(share) - np.log1p(-share)
            counts = np.minimum(counts, level * LOG_2 + math.log1p(-(2.0**-level)) + odds)
    return _integral(values, counts)


@dataclass(frozen=True)
class WishTrial:
    """The heaviest state found in one coset, and the solver's upper bound on the heaviest."""

    level: int
    trial: int
    log_max: float
    log_upper: float
    status: Status


@dataclass(frozen=True, eq=False, repr=False)
class WishResult(Result):
    """The table of heaviest states and what it proves about log Z (natural log).

    levels       (L,) numbers of parities
    log_maxima   (L, T) log weight of the heaviest state found; -inf where A x = b is infeasible
    log_uppers   (L, T) proven upper bounds on the heaviest, log_ceiling where the solver has none
    statuses     (L, T) OPTIMAL or INFEASIBLE where the problem was settled
    log_ceiling  no state is heavier than this
    rounding     nats by which log_maxima may be off; what is stated from below leaves them out
    """

    levels: NDArray[np.int64]
    log_maxima: NDArray[np.float64]
    log_uppers: NDArray[np.float64]
    statuses: NDArray[np.object_]
    n: int
    delta: float
    log_ceiling: float
    seconds: float
    provenance: dict[str, Any] = field(default_factory=dict)
    rounding: float = 0.0
    _also = (
        "log_z", "lower", "upper", "confidence", "two_sided", "unproven", "statement", "band",
        *Result._also,
    )  # fmt: skip

    @property
    def log_z(self) -> float:
        """log S, the estimate of Theorem 2; the exact value is within log 32 if `two_sided`."""
        from scipy.special import logsumexp

        terms = lower_median(self.log_maxima) + (self.levels - 1) * LOG_2
        return float(logsumexp(terms)) if terms.max() > -np.inf else -math.inf

    @property
    def _surely(self) -> NDArray[np.float64]:
        """What the states found weigh at least."""
        return np.nextafter(self.log_maxima - self.rounding, -np.inf)

    @property
    def unproven(self) -> int:
        """Subproblems without a proven optimum."""
        settled = (self.statuses == Status.OPTIMAL) | (self.statuses == Status.INFEASIBLE)
        return int(settled.size - settled.sum())

    @property
    def assumptions(self) -> Assumptions:
        """What Theorem 2 needs, checked against the run."""
        needed = required_trials(max(self.n, 1), self.delta)
        return Assumptions(
            enough_trials=self.log_maxima.shape[1] >= needed,
            all_levels=set(self.levels.tolist()) == set(range(self.n + 1)),
            strongly_universal=True,
            global_optima=self.unproven == 0,
        )

    @property
    def statement(self) -> TheoremStatement:
        """Theorem 2 with each end judged by its own needs, as derived above."""
        held = self.assumptions
        lower = theorem_2(self.levels, self._surely, delta=self.delta, assumptions=held)
        upper = theorem_2(self.levels, self.log_uppers, delta=self.delta, assumptions=held)
        return replace(
            lower,
            upper=upper.upper,
            lower_holds=held.enough_trials,
            upper_holds=held.enough_trials and held.all_levels,
        )

    @property
    def lower(self) -> float:
        """log S(m) - log 32 with confidence 1 - delta; -inf with too few trials."""
        return self.statement.lower if self.statement.lower_holds else -math.inf

    @property
    def upper(self) -> float:
        """log S(u) + log 32 with confidence 1 - delta; +inf where Theorem 2 does not give it."""
        return self.statement.upper if self.statement.upper_holds else math.inf

    @property
    def lower_proof(self) -> Bound:
        return self._end(Side.LOWER, self.lower)

    @property
    def upper_proof(self) -> Bound:
        return self._end(Side.UPPER, self.upper)

    def _end(self, side: Side, value: float) -> Bound:
        return Bound(
            side, value, Proof.CONFIDENCE, "WISH", self.seconds, self.confidence,
            "Theorem 2: the sum of medians is a 32-approximation",
        )  # fmt: skip

    @property
    def confidence(self) -> float:
        """1 - delta, for `lower` and `upper` together, and for both ends of the band together."""
        return 1.0 - self.delta

    @property
    def two_sided(self) -> bool:
        """Theorem 2 as printed: |log Z - log S| <= log 32, every subproblem proven optimal."""
        return self.assumptions.all_held

    @property
    def band(self) -> tuple[Bound, Bound]:
        """(lower, upper) bounds by integrating N(v), jointly with confidence 1 - delta; any T."""
        lower = band_lower(self.levels, self._surely, self.delta)
        upper = band_upper(self.levels, self.log_uppers, self.n, self.log_ceiling, self.delta)
        why = "counts of heavy states from the maxima's distribution (Markov, Chebyshev, DKW)"
        low = Bound(
            Side.LOWER, lower, Proof.CONFIDENCE, "WISH (band)", self.seconds,
            self.confidence, why,
        )  # fmt: skip
        return low, replace(low, side=Side.UPPER, log_z=upper)

    @property
    def bounds(self) -> list[Bound]:
        """Every bound that holds, each with its own confidence."""
        out = [
            Bound(
                Side.LOWER, float(self._surely.max()), Proof.DETERMINISTIC, "heaviest state",
                self.seconds, 1.0, "one state's weight is part of Z", rounding=self.rounding,
            )
        ]  # fmt: skip
        ends = (self.lower_proof, self.upper_proof)
        out += [end for end in ends if math.isfinite(end.log_z)]
        return [*out, *self.band]

    def summary(self) -> str:
        """The levels and the statements that follow, as text."""
        trials = self.log_maxima.shape[1]
        lines = [f"{'level':>5} {'median':>14} {'largest':>14} {'infeasible':>11} {'unproven':>9}"]
        medians = lower_median(self.log_maxima)
        for i, level in enumerate(self.levels.tolist()):
            row = self.statuses[i]
            empty = int((row == Status.INFEASIBLE).sum())
            open_ = trials - empty - int((row == Status.OPTIMAL).sum())
            lines.append(
                f"{level:>5} {medians[i]:>14.4f} {self.log_maxima[i].max():>14.4f} "
                f"{empty:>11} {open_:>9}"
            )
        low, high = (bound.log_z for bound in self.band)
        proof = "all optima proven" if not self.unproven else f"{self.unproven} optima not proven"
        return "\n".join(
            [
                *lines,
                f"estimate  log Z ~ {self.log_z:.4f}  (not a bound)",
                self.statement.summary(),
                f"  {proof} of {self.statuses.size}; "
                + ("two-sided" if self.two_sided else "not the two-sided statement as printed"),
                f"band, confidence {self.confidence:g}: {low:.4f} <= log Z <= {high:.4f}",
            ]
        )

    def __repr__(self) -> str:
        kind = "two-sided" if self.two_sided else "not two-sided"
        return (
            f"WishResult(log_z={self.log_z:.6f} in [{self.lower:.4f}, {self.upper:.4f}] with "
            f"confidence {self.confidence:g}, {kind}, {self.unproven} unproven)"
        )
