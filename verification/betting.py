"""Streams of weights and an adversary who bets with them, in one compiled loop.

All weights have mean exactly Z = 1 (those of projections at most 1). After every single draw the
wealth of each track against the true Z, times its share, is worked out from the draws themselves:
the interval at that moment misses Z exactly where the largest is at least 2 / delta. A run's
maximum over time is what somebody gets who stops at the worst moment.

The adversary sees everything drawn so far and chooses who draws next, when the next source of a
track begins, its distribution, its cap, and what its pilot is said to have found.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import ndtr

from tightz.sampling.ledger import stakes_of
from tightz.workspace.findings import Source

LOGNORMAL, TWO_POINTS, BETA, PROJECTION = range(4)
STEADY, RESTLESS, TUNED_LOWER, TUNED_UPPER, CHASER = range(5)

SMALL = 0.02
"""Chance of the cap while no single draw would do."""

BEYOND = 1.0 + 1e-9
"""How far above the least value that makes the certificate wrong a tuned draw is."""


class Stock(NamedTuple):
    """A distribution of mean 1: its kind, two numbers, what it is divided by, its cap."""

    kind: int
    a: float
    b: float
    norm: float
    cap: float


def lognormal(sigma: float, clip: float = math.inf) -> Stock:
    """min(e^(sigma g - sigma^2 / 2), clip), scaled to mean 1."""
    if math.isinf(clip):
        return Stock(LOGNORMAL, sigma, clip, 1.0, math.inf)
    at = math.log(clip) / sigma + sigma / 2.0
    norm = float(ndtr(at - sigma) + clip * ndtr(-at))
    return Stock(LOGNORMAL, sigma, clip, norm, clip / norm)


def two_points(chance: float, share: float = 1.0) -> Stock:
    """The cap, with a small chance, holds `share` of the mean; the rest is one common value."""
    return Stock(TWO_POINTS, chance, share / chance, 1.0, max(1.0, share / chance))


def constant(cap: float) -> Stock:
    return Stock(TWO_POINTS, 0.5, 1.0, 1.0, cap)


def beta(log_mean: float, shape: float, zeros: float = 0.0) -> Stock:
    """Beta of mean e^log_mean in units of that; `zeros` is the chance of a dead end."""
    mean = math.exp(log_mean)
    return Stock(BETA, shape, zeros, mean * (1.0 - zeros), 1.0 / (mean * (1.0 - zeros)))


def projection(levels: int, loss: float = 0.0) -> Stock:
    """2^m gamma: the coset holds all weight with chance 2^-m, and gamma of it u^loss, u uniform."""
    return Stock(PROJECTION, 2.0**-levels, loss, 1.0, math.inf)


class Menu(NamedTuple):
    """Stakes and their weights by what a pilot said: (offers, stakes), padded by weight 0."""

    stakes: NDArray[np.float64]
    weights: NDArray[np.float64]
    spreads: NDArray[np.float64]
    expected: NDArray[np.float64]


def menu_of(pilots: list[tuple[float, float]]) -> Menu:
    both = [stakes_of(Source("", 0.0, spread=s, expected=n)) for s, n in pilots]
    most = max(c.size for c, _ in both)
    stakes = np.array([np.pad(c, (0, most - c.size), constant_values=1e-9) for c, _ in both])
    weights = np.array([np.pad(w, (0, most - w.size)) for _, w in both])
    return Menu(stakes, weights, *np.array(pilots).T)


class Table(NamedTuple):
    """What is fixed before a run: (tracks,) shares, (stocks, 5) stocks, who may offer which."""

    lower_shares: NDArray[np.float64]
    upper_shares: NDArray[np.float64]
    stocks: NDArray[np.float64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    menu: Menu


class Log(NamedTuple):
    """What happened at each draw, for the real ledger to repeat: account, track, offers, W."""

    account: NDArray[np.int64]
    track: NDArray[np.int64]
    offer: NDArray[np.int64]
    log_cap: NDArray[np.float64]
    log_weight: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


def empty_log(size: int) -> Log:
    whole, real = (lambda: np.zeros(size, dtype=np.int64)), (lambda: np.zeros(size))
    return Log(whole(), whole(), whole(), real(), real(), real(), real())


@njit(cache=True)
def draw(rng, stock):  # type: ignore[no-untyped-def]
    kind, a, b, norm = int(stock[0]), stock[1], stock[2], stock[3]
    if kind == LOGNORMAL:
        return min(math.exp(a * rng.normal() - 0.5 * a * a), b) / norm
    if kind == TWO_POINTS:
        return b if rng.random() < a else (1.0 - a * b) / (1.0 - a)
    if kind == BETA:
        if rng.random() < b:
            return 0.0
        return rng.beta(a, a * ((1.0 - b) / norm - 1.0)) / norm
    return rng.random() ** b / a if rng.random() < a else 0.0


@njit(cache=True)
def factors_of(stakes, limit, w, out):  # type: ignore[no-untyped-def]
    """Multiply (2, stakes) wealths, against Z <= 1 and against Z >= 1, by the factors of W = w."""
    for j in range(stakes.size):
        out[0, j] *= 1.0 + stakes[j] * (w - 1.0)
        out[1, j] *= max(0.0, 1.0 + min(stakes[j], limit) * (1.0 - w))


@njit(cache=True)
def bold(stakes, total, track, target):  # type: ignore[no-untyped-def]
    """The value that lifts the track to `target` at once; it comes with chance 1 / value.

    `track` (stakes,) is the wealth of the track that draws next, `total` its sum.
    """
    staked = (track * stakes).sum()
    return max(1.0 + 1e-9, BEYOND * (target - total + staked) / staked)


@njit(cache=True)
def chance_of(stakes, track, total, target):  # type: ignore[no-untyped-def]
    """The chance p of the cap 1 / p with which a draw of 0 lifts the upper wealth to `target`.

    `track` (stakes,) is what a fresh source would bet. Small steps until one will do.
    """
    low, high = 0.0, 0.5
    if total + (track * np.minimum(stakes, 1.0)).sum() < target * BEYOND:
        return SMALL
    for _ in range(60):
        p = 0.5 * (low + high)
        if total + (track * np.minimum(stakes, p / (1.0 - p))).sum() >= target * BEYOND:
            high = p
        else:
            low = p
    return high


@njit(cache=True)
def play(rng, policy, table, horizon, target, bias, believed, paths, log):  # type: ignore[no-untyped-def]
    """(largest wealth below, above) over one run; with `paths` of any stake instead of the mixture.

    Weights are multiplied by `bias`; a finite `believed` is the cap that the upper bets trust.
    A log of any length is filled, one of length 0 is not.
    """
    stakes, weights = table.menu.stakes, table.menu.weights
    tracks, offers, size = table.begin.size, weights.shape[0], weights.shape[1]
    shares = np.stack((table.lower_shares, table.upper_shares))
    now = np.zeros((tracks, 2, size))
    closed = np.ones((tracks, 2))
    parts = np.zeros((2, tracks))
    stock = np.zeros((tracks, 5))
    offer = np.zeros(tracks, dtype=np.int64)
    account = np.full(tracks, -1)
    opened = 0
    most = np.zeros(2)
    for t in range(horizon):
        # who draws
        k = t % tracks
        if policy == CHASER and rng.random() < 0.7:
            k = int(np.argmax(parts[rng.integers(0, 2)]))
        # whether a new source begins
        fresh = account[k] < 0
        if not fresh and policy in (RESTLESS, CHASER):
            a, b = now[k, 0].sum(), now[k, 1].sum()
            restless = a > 2.0 or b > 2.0 or (a < 0.5 and b < 0.5)
            fresh = restless and rng.random() < 0.2
        if policy == TUNED_UPPER:
            ahead = shares[1, k] * closed[k, 1] * (1.0 if fresh else now[k, 1].sum())
            p = chance_of(stakes[0], ahead * weights[0], ahead, target)
            fresh = fresh or p != SMALL
        if fresh:
            if account[k] >= 0:
                closed[k, 0] *= now[k, 0].sum()
                closed[k, 1] *= now[k, 1].sum()
            account[k], opened = opened, opened + 1
            if policy >= RESTLESS:
                offer[k] = rng.integers(0, offers)
            which = table.begin[k]
            if policy in (RESTLESS, CHASER):
                which = rng.integers(table.begin[k], table.end[k])
            stock[k] = table.stocks[which]
            if policy == TUNED_UPPER:
                offer[k] = 0
                stock[k] = np.array([float(TWO_POINTS), p, 1.0 / p, 1.0, 1.0 / p])
            now[k, 0] = weights[offer[k]]
            now[k, 1] = weights[offer[k]]
        c = stakes[offer[k]]
        cap = min(believed, stock[k, 4])
        # the draw
        if policy == TUNED_LOWER:
            part = shares[0, k] * closed[k, 0] * now[k, 0]
            parts[0, k] = part.sum()
            g = bold(c, part.sum(), part, target)
            w = g if rng.random() < 1.0 / g else 0.0
        else:
            w = bias * draw(rng, stock[k])
        limit = 1.0 / (cap - 1.0) if cap > 1.0 else 1.0
        factors_of(c, limit, w, now[k])
        if w > cap * (1.0 + 1e-9) or math.isinf(cap):
            now[k, 1] *= 0.0
        # the reading
        for side in range(2):
            parts[side, k] = shares[side, k] * closed[k, side] * now[k, side].sum()
            wealth = parts[side].max()
            if paths:
                wealth = 0.0
                for j in range(size):
                    if weights[offer[k], j] > 0.0:
                        wealth = max(wealth, now[k, side, j] / weights[offer[k], j])
            most[side] = max(most[side], wealth)
        if t < log.account.size:
            log.account[t], log.track[t], log.offer[t] = account[k], k, offer[k]
            log.log_cap[t] = math.log(cap)
            log.log_weight[t] = math.log(w) if w > 0.0 else -np.inf
            log.lower[t], log.upper[t] = parts[0].max(), parts[1].max()
    return most


@njit(cache=True)
def rare(rng, table, horizon):  # type: ignore[no-untyped-def]
    """`play` of one steady source of two points, from one cap to the next.

    Between two caps all draws are equal, and a sum of powers is convex in their number: its
    largest value is at an end of the stretch. So a million draws cost a few steps.
    """
    stakes, weights = table.menu.stakes[0], table.menu.weights[0]
    chance, high, cap = table.stocks[0, 1], table.stocks[0, 2], table.stocks[0, 4]
    common = (1.0 - chance * high) / (1.0 - chance)
    shares = np.array([table.lower_shares[0], table.upper_shares[0]])
    limit = 1.0 / (cap - 1.0)
    once, hit = np.ones((2, stakes.size)), np.ones((2, stakes.size))
    factors_of(stakes, limit, common, once)
    factors_of(stakes, limit, high, hit)
    logs = np.zeros((2, stakes.size))
    most = np.zeros(2)
    left = horizon
    while left > 0:
        gap = min(left, int(math.log(1.0 - rng.random()) / math.log1p(-chance)))
        for stretch in range(2):
            for side in range(2):
                for j in range(stakes.size):
                    f = hit[side, j] if stretch else once[side, j]
                    n = 1 if stretch else gap
                    if n > 0:
                        logs[side, j] += n * math.log(f) if f > 0.0 else -np.inf
                wealth = shares[side] * (weights * np.exp(np.minimum(700.0, logs[side]))).sum()
                most[side] = max(most[side], wealth)
            if gap == left:
                break
        left -= gap + 1
    return most


@njit(cache=True)
def normal_ever_misses(rng, stock, horizon, first):  # type: ignore[no-untyped-def]
    """The control: mean +- 1.96 standard errors, looked at after every draw from the `first` on."""
    mean, square = 0.0, 0.0
    for t in range(1, horizon + 1):
        w = draw(rng, stock)
        step = w - mean
        mean += step / t
        square += step * (w - mean)
        if t >= first and abs(mean - 1.0) > 1.96 * math.sqrt(square) / t:
            return True
    return False


@njit(cache=True)
def follow(log_weights, log_cap, stakes, weights, shares):  # type: ignore[no-untyped-def]
    """Largest wealth and last, each (below, above), over given draws of a source; log Z = 0."""
    wealth = np.stack((weights, weights))
    most = np.zeros(2)
    limit = 1.0 / math.expm1(log_cap) if log_cap > 0.0 else 1.0
    for log_w in log_weights:
        factors_of(stakes, limit, math.exp(log_w), wealth)
        for side in range(2):
            most[side] = max(most[side], shares[side] * wealth[side].sum())
    return most, wealth.sum(axis=1)
