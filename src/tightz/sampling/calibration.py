"""From several estimates and a proven interval to one estimate whose error can be believed.

The promise: log Z lies within 2 errors in about 19 of 20 runs, or the error says inf. A sampler
that misses modes cannot see it in its own draws, so an error is believed only with evidence from
outside: a proof (the interval), unbiased weights that agree among independent populations, or a
second family of samplers that found the same number by another way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tightz.workspace.findings import Mixing, PointEstimate

NEEDS_SUPPORT = frozenset({"tree", "tempering", "fitted start"})
"""Families that follow what a search found: a mode it missed leaves no trace in their errors.

They count only beside another family, and then with no less error than that family's.
"""

FEW = 8.0
"""Fewer effective draws than this say nothing about their own scatter."""

BROADEST = 4.0
"""Largest scatter of independent log weights, in nats, from which an error is formed."""

ROUNDING = 1e-12
"""Ends closer than this share of their size are one number."""

NAMED = 0.01
"""Weight in a pooled estimate from which its source is named."""

UNSEEN = 3.0
"""Among N draws something of share UNSEEN / N is not seen in 5% of runs: the rule of three."""


def effective_size(log_weights: NDArray[np.float64]) -> float:
    """(sum w)^2 / sum w^2: how many equal weights would carry the same average (Kish)."""
    logs = np.asarray(log_weights, dtype=np.float64)
    top = logs.max(initial=-math.inf)
    if top == -math.inf:
        return 0.0
    weights = np.exp(logs - top)
    return float(weights.sum() ** 2 / (weights**2).sum())


def log_mean(log_weights: NDArray[np.float64]) -> float:
    """log of the mean of exp(log_weights)."""
    from scipy.special import logsumexp

    return float(logsumexp(log_weights)) - math.log(len(log_weights))


def weight_error(log_weights: NDArray[np.float64], least_scatter: float = 0.0) -> float:
    """Standard error of `log_mean` of independent unbiased weights; inf where none is honest.

    Weights with log-scatter s have relative variance exp(s^2) - 1, carried by weights s^2 above
    the mean of logs. Beyond s = 1 the few at hand need not contain them: the log of their mean
    then lies low by up to s^2 / 2, and that is the error. Below, the delta method's
    sd(w) / (mean(w) sqrt(N)) is too small while such weights are rare, so the log-normal's
    variance is taken where that is more, with Student's quantile for few weights. Of many weights
    only the upper half gives the scatter: low ones do no harm. Weights of 0 are no part of it, and
    count as what they are in the mean. `least_scatter` (variance of logs) is what is known of the
    weights from elsewhere.
    """
    every = np.asarray(log_weights, dtype=np.float64)
    logs = every[every != -math.inf]
    count, share = len(logs), len(logs) / max(1, len(every))
    if count < 4 or not np.isfinite(logs).all():
        return math.inf
    # Few weights: their sample variance, corrected below by Student's quantile. Many: the mean
    # squared distance from the median over the upper half alone, since a long tail of tiny weights
    # does not make the mean uncertain.
    if count < 32:
        scatter = float(logs.var(ddof=1))
    else:
        above = logs - np.median(logs)
        scatter = float((above[above >= 0.0] ** 2).mean())
        if effective_size(logs) < FEW:  # the naive error would be that of a few weights
            scatter = max(scatter, 1.0, float(logs.max() - np.median(logs)))
    scatter = max(scatter, least_scatter)
    # Beyond this the mean is carried by weights so rare that none need be among these: no error
    # would be honest.
    if scatter > BROADEST**2:
        return math.inf
    ratios = np.exp(every - log_mean(every))
    # Relative variance of the mean: what the weights show, or what a log-normal of this scatter
    # beside the zeros would have, whichever is more.
    model = math.exp(min(scatter, 1.0)) / share - 1.0
    variance = max(float(ratios.var(ddof=1)), model) / len(every)
    few = _student(count - 1)
    # E[log mean] is below log Z (Jensen) by about half the relative variance; the shift counts as
    # error, added in quadrature.
    low = scatter / 2.0 if scatter > 1.0 else variance / 2.0
    return math.hypot(few * math.sqrt(variance), low)


def unseen_error(gap: float, draws: float) -> float:
    """Nats that log Z may lie above the log mean of draws, for weights that none of them had.

    `gap` is log of cap / mean: weights at the cap may have a share of UNSEEN / draws without one
    among them, and two errors shall reach what that adds to Z. Small where draws outnumber e^gap.
    """
    return 0.5 * float(np.logaddexp(0.0, gap + math.log(UNSEEN / draws)))


@cache
def _student(freedom: int) -> float:
    """How much wider than a normal's the 95% range is for a variance from few draws."""
    from scipy.special import stdtrit  # scipy.stats.t.ppf is this, and takes a second to import

    return float(stdtrit(freedom, 0.975)) / 1.96


def from_interval(
    lower: float, upper: float, *, family: str = "interval", source: str = "middle of the interval"
) -> PointEstimate:
    """The middle, with an error of a quarter of the width: the interval is the 2-error range."""
    middle = lower + (upper - lower) / 2.0
    return PointEstimate(middle, (upper - lower) / 4.0, source, family)


def pooled(estimates: Sequence[PointEstimate]) -> PointEstimate:
    """The random-effects mean of DerSimonian and Laird (1986): disagreement widens the error.

    The variance that errors do not explain, tau^2, is added to each. Two estimates a and b much
    further apart than their errors get (a + b) / 2 with error |a - b| / 2.
    """
    if len(estimates) == 1:
        return estimates[0]
    values = np.array([e.log_z for e in estimates])
    variances = np.maximum([e.error**2 for e in estimates], 1e-24)
    weights = 1.0 / variances
    mean = float(weights @ values / weights.sum())
    # Cochran's Q minus its expectation: how much more the values differ than their errors explain.
    # `spare`, the sum of w less that of w^2 / sum w, scales that to a variance (their moment
    # estimate), never below 0. As a difference it is 0 where one error is 1e-8 of the others.
    excess = float(weights @ (values - mean) ** 2) - (len(estimates) - 1)
    spare = 2.0 * math.fsum(a * b for a, b in combinations(weights, 2)) / weights.sum()
    weights = 1.0 / (variances + max(0.0, excess / spare))
    carry = [e for e, w in zip(estimates, weights / weights.sum(), strict=True) if w >= NAMED]
    return PointEstimate(
        float(weights @ values / weights.sum()),
        1.0 / math.sqrt(float(weights.sum())),
        " and ".join(dict.fromkeys(e.source for e in carry)),
        "+".join(dict.fromkeys(e.family for e in carry)),
        sum(e.effective for e in carry),
    )


def supported(estimates: Sequence[PointEstimate]) -> list[PointEstimate]:
    """Estimates whose error may count, one a family.

    Families in NEEDS_SUPPORT miss modes without knowing, and are then low: the mean of their
    weights is at most Z. Beside a family that stands alone (an anchor) they add nothing that
    could be checked to less than its error, so they count only where they contradict it from
    above, which missed modes do not explain: pooled, the disagreement widens. Without an anchor
    two of them support each other, neither with less error than the other.
    """
    anchors = [e for e in estimates if e.family not in NEEDS_SUPPORT]
    out = list(anchors)
    for estimate in estimates:
        others = [e for e in estimates if e.family != estimate.family]
        if estimate.family not in NEEDS_SUPPORT or not others:
            continue
        # Missing modes make a family low, never high: one that lies below an anchor is explained
        # by its blindness and adds nothing, one that lies above is evidence and widens the answer.
        above = all(estimate.log_z > a.log_z + math.hypot(estimate.error, a.error) for a in anchors)
        if above:
            floor = min(e.error for e in others)
            out.append(replace(estimate, error=max(estimate.error, floor)))
    return out


def combine(
    estimates: Sequence[PointEstimate],
    lower: float,
    upper: float,
    confident: tuple[float, float] | None = None,
) -> PointEstimate:
    """One estimate from all that is known; the last estimate of each family stands for it.

    This alone decides what is shown as an estimate, and with which error. Both ends of
    [lower, upper] must hold always; `confident`, inside them, in 19 of 20 runs at least. The
    estimate lies inside both. The error is inf only where an end is infinite and no estimate has
    evidence on its side.
    """
    if not lower <= upper:
        raise ValueError(f"the interval is [{lower}, {upper}]; expected lower <= upper")
    proven = math.isfinite(lower) and math.isfinite(upper)
    if lower == upper or (proven and upper - lower <= ROUNDING * max(1.0, abs(lower))):
        error = 0.0 if lower == upper else (upper - lower) / 2.0
        return PointEstimate(lower + error, error, "exact", "exact")
    middle = from_interval(lower, upper) if proven else None
    if confident is not None and confident != (lower, upper):
        lower, upper = confident
        if math.isfinite(lower) and math.isfinite(upper):
            source = "middle of the confident interval"
            middle = from_interval(lower, upper, family="confident", source=source)
    latest = list({e.family: e for e in estimates}.values())
    # First throw out what contradicts the interval, then ask who supports whom, then pool, and
    # last cut with the interval: it always has the final word.
    usable = supported([e for e in latest if _usable(e, lower, upper)])
    sampled = _within(pooled(usable), lower, upper) if usable else None
    # The interval's own middle is a fallback with a certain error; samples are preferred only
    # where they claim to know more.
    if sampled is not None and (middle is None or sampled.error < middle.error):
        return sampled
    return middle if middle is not None else _unknown(latest, lower, upper)


def _usable(estimate: PointEstimate, lower: float, upper: float) -> bool:
    """A finite error, enough draws behind it or an error that says so, no interval against it.

    A value outside the interval by more than its error is evidence that the error is wrong, so the
    estimate says nothing.
    """
    finite = math.isfinite(estimate.log_z) and math.isfinite(estimate.error)
    if not finite or (estimate.effective < FEW and estimate.error < 1.0):
        return False
    return lower - estimate.error <= estimate.log_z <= upper + estimate.error


def _within(estimate: PointEstimate, lower: float, upper: float) -> PointEstimate | None:
    """The estimate and the interval together: what is left of its 2-error range.

    log Z lies in the 2-error range in 19 of 20 runs and in [lower, upper] always, or more often
    than that, so in what both have in common about as often. An estimate that the interval cuts
    down to little is half refuted: at least half of its error stays.
    """
    low, high = estimate.log_z - 2.0 * estimate.error, estimate.log_z + 2.0 * estimate.error
    if low >= lower and high <= upper:
        return estimate
    low, high = max(low, lower), min(high, upper)
    if low > high:
        return None
    error = max((high - low) / 4.0, estimate.error / 2.0)
    source = estimate.source + ", within the interval"
    return replace(estimate, log_z=low + (high - low) / 2.0, error=error, source=source)


def _unknown(latest: Sequence[PointEstimate], lower: float, upper: float) -> PointEstimate:
    """A value without an error: the best effective estimate inside, otherwise a finite end."""
    inside = [e for e in latest if lower <= e.log_z <= upper and math.isfinite(e.log_z)]
    if inside:
        best = max(inside, key=lambda e: (e.family not in NEEDS_SUPPORT, e.effective))
        return replace(best, error=math.inf, source=best.source + ", unconfirmed")
    value = lower if math.isfinite(lower) else upper
    return PointEstimate(value, math.inf, "an end of the interval; no estimate", "none", 0.0)


def mixing_of(
    log_weights: NDArray[np.float64], estimate: PointEstimate | None = None, missing: float = 0.1
) -> Mixing:
    """Whether weighted draws stand for the model.

    log_weights are log p~(x) - log q(x) of draws from q: their mean estimates the part of Z that q
    reaches. Without `estimate` two halves must agree; with it (log Z from everything known) the
    draws must reach all but a share `missing` of Z, as far as its error can tell. An estimate that
    cannot tell (2 errors above 4 * missing) leaves draws unconfirmed, that is not mixed.
    """
    logs = np.asarray(log_weights, dtype=np.float64)
    # A handful of draws that carry all the weight cannot stand for anything.
    if effective_size(logs) < max(FEW, 0.02 * len(logs)):
        return Mixing.NOT_MIXED
    if estimate is None:
        # Without an outside estimate the draws can only be compared with each other: interleaved
        # halves agree unless single draws dominate.
        halves = logs[0::2], logs[1::2]
        errors = [float(np.exp(h - log_mean(h)).std()) / math.sqrt(len(h)) for h in halves]
        apart = abs(log_mean(halves[0]) - log_mean(halves[1]))
        return Mixing.MIXED if apart <= 3.0 * math.hypot(*errors) + missing else Mixing.NOT_MIXED
    if estimate.family == "exact":
        return _reaches(logs, estimate, missing)
    if not 2.0 * estimate.error <= 4.0 * missing:
        return Mixing.NOT_MIXED
    return _reaches(logs, estimate, missing)


def _reaches(logs: NDArray[np.float64], estimate: PointEstimate, missing: float) -> Mixing:
    own = float(np.exp(logs - log_mean(logs)).std()) / math.sqrt(len(logs))
    # -log(1 - missing) is what log Z loses if that share of it is not reached.
    slack = 2.0 * math.hypot(own, estimate.error) - math.log1p(-missing)
    reached = abs(log_mean(logs) - estimate.log_z) <= slack
    return Mixing.MIXED if reached else Mixing.NOT_MIXED
