"""Lower bounds on log Z with confidence 1 - delta, as functions of the table of trials.

With G = 2^m gamma, E[G] <= 2^m E[Z(A, b)] = Z for every solver, however poor, because gamma never
exceeds Z(A, b). Each bound below turns independent draws of G into a statement about Z; an
infeasible draw is G = 0 and counts. All take log_g = log gamma + m log 2.

All may be read when a run has been stopped, whatever the reason for stopping: what is paid for
(levels, stakes, and for the median the number of trials) is what was planned before the first
draw, never what was reached. Paying for what was reached is a certificate that fails more often
than it says: a rule that stops in the first repetition as soon as the levels reached suffice
would fail in 8% of runs at delta = 5% with 11 levels (verification/stopping.py keeps it as a
negative control).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ParameterError, require_probability
from tightz.runtime.kernels import inner, kernel

BETS = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 1.0])
"""Stakes lambda mixed over, uniformly; lambda = 1 is the product of the G themselves."""

PRECISION = 1e-9
"""The anytime certificate is below its largest value by at most this many nats."""


def _check(log_g: ArrayLike, delta: float) -> NDArray[np.float64]:
    values = np.asarray(log_g, dtype=np.float64)
    require_probability("delta", delta)
    if values.size == 0 or np.isnan(values).any():
        raise ParameterError(
            f"log_g has shape {values.shape} and {np.isnan(values).sum()} NaN; a certificate needs "
            "at least one trial, and no NaN"
        )
    return values


def _planned(what: str, planned: int | None, made: int) -> int:
    """How many levels or trials are paid for: never fewer than were made."""
    if planned is not None and planned < made:
        raise ParameterError(
            f"planned_{what} is {planned} and log_g has {made} {what}; expected at least {made}: "
            "the plan made before the first draw"
        )
    return made if planned is None else planned


def mean_certificate(log_g: ArrayLike, delta: float) -> float:
    """log(mean G) - log(1 / delta).

    Proof. E[mean G] <= Z, so P(mean G >= Z / delta) <= delta by Markov's inequality. At a stopping
    time too: the means of the first t of independent equal draws, read from the last t to the
    first, are a martingale, and Doob's inequality bounds the chance that any of them reaches
    Z / delta by E[G_1] delta / Z <= delta.
    """
    from scipy.special import logsumexp

    # An infeasible draw is log G = -inf: logsumexp counts it as 0, and the size divides by it too.
    values = _check(log_g, delta)
    return float(logsumexp(values) - math.log(values.size) + math.log(delta))


def median_certificate(
    log_g: ArrayLike, delta: float, *, planned_trials: int | None = None
) -> float:
    """log(k-th largest G) - log c with k = ceil((T + 1) / 2), the lower median.

    T is `planned_trials` (default: those given). Planned trials that were not made count as G = 0:
    that only lowers the k-th largest, so a run may be stopped; with fewer than k trials made there
    is nothing to say, -inf.

    Proof. By Markov each G_t >= c Z with probability at most 1 / c, independently, so the k-th
    largest reaches c Z with probability at most P(Bin(T, 1 / c) >= k); c is the smallest factor
    that brings this tail down to delta. (The paper's c = 4 with Chernoff, made exact.)
    """
    from scipy.special import betaincinv

    made = np.sort(_check(log_g, delta).ravel())
    trials = _planned("trials", planned_trials, made.size)
    # k is fixed by the plan, before any draw: a k chosen after seeing how many trials came in
    # would be a selection that the binomial tail does not pay for.
    k = trials - (trials - 1) // 2
    if made.size < k:
        return -math.inf
    # P(Bin(T, p) >= k) is the regularised incomplete beta function I_p(k, T - k + 1)
    log_c = -math.log(betaincinv(k, trials - k + 1, delta))
    return float(made[made.size - k] - log_c)


def product_certificate(log_g: ArrayLike, delta: float) -> float:
    """mean(log G) - log(1 / delta) / T.

    Proof. The G_t are independent, so E[prod G_t] <= Z^T and P(prod G_t >= Z^T / delta) <= delta.
    At a stopping time too: prod G_t / Z is a nonnegative supermartingale (Ville's inequality).
    """
    values = _check(log_g, delta)
    return float(values.mean() + math.log(delta) / values.size)


def anytime_certificate(
    log_g: ArrayLike, delta: float, *, planned_levels: int | None = None
) -> float:
    """The largest z that a mixture of bets rejects; valid at any stopping time, selection paid.

    log_g is (levels, trials) or (trials,): one row of independent draws per level, all with mean
    at most Z. Trials that have not been run are NaN at the end of a row. `planned_levels` is how
    many levels the run was to have (default: the rows given); the mixture is over all of them,
    since its weights have to be fixed before the first draw.

    Proof. If Z <= z, each factor 1 - lambda + lambda G_t / z has conditional mean at most 1, so
    the product over t is a nonnegative supermartingale started at 1; so is every mixture of such
    products over lambda and over levels with weights fixed in advance. By Ville's inequality it
    ever reaches 1 / delta with probability at most delta. Every z at which it has done so is
    rejected, and the mixture falls in z, so the rejected z are an interval from 0: its end is a
    lower bound on Z that may be read off at any time, and choosing among levels is paid for.
    """
    table = np.atleast_2d(np.asarray(log_g, dtype=np.float64))
    require_probability("delta", delta)
    if table.size == 0 or np.isnan(table[:, 0]).all():
        raise ParameterError(
            f"log_g has shape {table.shape} and no trial that was run; expected at least one trial"
        )
    # Every draw infeasible or missing: nothing was ever won, so no z is rejected.
    finite = table[np.isfinite(table)]
    if finite.size == 0:
        return -math.inf
    # Levels not reached keep their share of the stake at its start, 1: the weights of a mixture
    # have to be fixed before the first draw, so an unreached level still takes its part.
    unreached = _planned("levels", planned_levels, len(table)) - len(table)
    table = np.pad(table, ((0, unreached), (0, 0)), constant_values=np.nan)
    target = -math.log(delta)
    # The answer lies between these: no bet wins where z is above every G (each factor is at most
    # 1), and at the low end every finite draw wins by 50 nats more than the target. If even that
    # is not rejected, infeasible draws took more than was won: no bound.
    low, high = float(finite.min()) - target - 50.0, float(finite.max()) + 1.0
    if not _rejects(table, low, target, BETS):
        return -math.inf
    # The rejected z are an interval from 0 (see the proof), so bisection finds its end; `low` is
    # always a rejected value, hence a valid bound whenever this stops.
    while high - low > PRECISION:
        middle = 0.5 * (low + high)
        if middle in (low, high):  # neighbouring floats: log Z is huge
            break
        if _rejects(table, middle, target, BETS):
            low = middle
        else:
            high = middle
    return low


@kernel
def _rejects(table, log_z, target, bets):  # type: ignore[no-untyped-def]
    """Whether the mixture's wealth against Z <= exp(log_z) ever reached exp(target).

    table (levels, trials), a missing trial (NaN) multiplies by 1. wealth (levels, bets) is
    sum_t log(1 - lambda + lambda G_t / z); trials are taken in time and the first crossing ends it.
    """
    levels, trials = table.shape
    wealth = np.zeros((levels, bets.size))
    for t in range(trials):
        top = -np.inf
        for i in range(levels):
            # All in logs. A trial that was not run is NaN and multiplies by 1, which keeps the
            # martingale; an infeasible one is -inf and costs the stake, as it must.
            ratio = table[i, t] - log_z
            for j in range(bets.size):
                if not np.isnan(ratio):
                    wealth[i, j] += _log_factor(bets[j], ratio)
                top = max(top, wealth[i, j])
        if top < target:
            continue  # the mixture is at most its largest path
        # The wealth of the mixture is the mean over levels and stakes. It is looked at after every
        # trial: Ville's inequality allows the best moment to be chosen afterwards.
        total = 0.0
        for i in range(levels):
            for j in range(bets.size):
                total += math.exp(wealth[i, j] - top)
        if top + math.log(total / wealth.size) >= target:
            return True
    return False


@inner
def _log_factor(stake, ratio):  # type: ignore[no-untyped-def]
    """log(1 - stake + stake e^ratio), without overflow."""
    # All staked: the factor is G / z itself, and an infeasible draw ends this path at -inf for
    # good.
    if stake == 1.0:
        return ratio
    if ratio > 0.0:
        return ratio + math.log(stake + (1.0 - stake) * math.exp(-ratio))
    return math.log1p(-stake + stake * math.exp(ratio)) if ratio > -40.0 else math.log1p(-stake)
