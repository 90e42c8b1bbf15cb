"""Ends of marginals from ends of log Z with a variable fixed: true, and as near as they can be."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightz.interval.marginal_ends import combined
from tightz.workspace.findings import Clamped

SEEDS = st.integers(0, 2**32)
PRECISE = Context(prec=120, Emin=-(10**9), Emax=10**9)


def below(value: Decimal) -> float:
    """The largest float that is not above."""
    near = float(value)
    return near if Decimal(near) <= value else math.nextafter(near, -math.inf)


def above(value: Decimal) -> float:
    return -below(-value)


def ends_around(rng, logs):
    """(low, high) of each log: equal, near, far or unknown; a log of -inf may be known or not."""
    width = np.array([0.0, 1e-12, 0.1, 30.0, math.inf])
    dead = np.isneginf(logs)
    low, high = np.where(dead, 0.0, logs), np.where(dead, 0.0, logs)
    low -= rng.choice(width, size=logs.size)
    high += rng.choice(width, size=logs.size)
    low[dead] = -math.inf
    high[dead] = rng.choice([-math.inf, -5.0, math.inf], size=int(dead.sum()))
    return low, high


def random_sums(rng):
    """Logs of the parts of one Z for variables of several states, and where they begin."""
    states = rng.integers(1, 6, size=3)
    pointers = np.concatenate([[0], np.cumsum(states)])
    level = rng.choice([0.0, 3000.0, -1e6, 1e9])
    spread = rng.choice([1e-9, 1.0, 40.0, 900.0])
    logs = spread * rng.normal(size=int(pointers[-1]))
    logs = np.where(rng.random(logs.size) < 0.15, -math.inf, logs)
    return level + logs, pointers, level


@settings(max_examples=600, deadline=None)
@given(SEEDS)
def test_shares_lie_inside(seed):
    rng = np.random.default_rng(seed)
    logs, pointers, level = random_sums(rng)
    low, high = ends_around(rng, logs)
    with localcontext(PRECISE):
        for a, b in pairwise(pointers.tolist()):
            parts = [(x - Decimal(level)).exp() if x.is_finite() else Decimal(0)
                     for x in map(Decimal, logs[a:b].tolist())]  # fmt: skip
            z = sum(parts, Decimal(0))
            if not z:
                continue
            log_z = Decimal(level) + z.ln()
            width = Decimal(float(rng.choice([0.0, 0.01, 5.0])))
            lower, upper = below(log_z - width), above(log_z + width)
            lower = rng.choice([lower, -math.inf])
            upper = rng.choice([upper, math.inf])
            found = combined(Clamped(low[a:b], high[a:b], ""), lower, upper, np.array([0, b - a]))
            for part, (bottom, top) in zip(parts, found.tolist(), strict=True):
                assert 0.0 <= bottom <= top <= 1.0
                assert Decimal(bottom) <= part / z <= Decimal(top)


def test_variables_are_told_apart():
    rng = np.random.default_rng(5)
    low = rng.normal(size=9)
    high = low + rng.random(9)
    pointers = np.array([0, 2, 5, 5, 6, 9])
    whole = combined(Clamped(low, high, ""), 1.0, 3.0, pointers)
    for a, b in pairwise(pointers.tolist()):
        alone = combined(Clamped(low[a:b], high[a:b], ""), 1.0, 3.0, np.array([0, b - a]))
        np.testing.assert_array_equal(whole[a:b], alone)


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_ends_are_the_best_that_follow(seed):
    """Random sums within all ends: none beyond the ends, and corners that reach them."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 5))
    low = rng.random(k)
    high = low + rng.random(k)
    total_low = rng.uniform(low.sum(), high.sum())
    total_high = rng.uniform(total_low, high.sum())
    logs = Clamped(np.log(low), np.log(high), "")
    found = combined(logs, math.log(total_low), math.log(total_high), np.array([0, k]))
    for s in range(k):
        rest = np.arange(k) != s
        own = max(low[s], total_low - high[rest].sum())
        least = own / (own + min(high[rest].sum(), total_high - own))
        own = min(high[s], total_high - low[rest].sum())
        most = own / (own + max(low[rest].sum(), total_low - own))
        np.testing.assert_allclose(found[s], [least, most], rtol=1e-11)


def test_a_moved_end_is_caught():
    """Negative control: ends that exclude the truth give shares that exclude it."""
    logs = np.log([0.3, 0.7])
    moved = logs + np.array([1e-9, -1e-9])
    wrong = Clamped(moved, moved, "")
    (bottom, _), (_, top) = combined(wrong, -math.inf, math.inf, np.array([0, 2]))
    assert bottom > 0.3
    assert top < 0.7


@pytest.mark.parametrize(
    ("low", "high", "lower", "upper", "expected"),
    [
        ([-math.inf] * 2, [math.inf] * 2, -math.inf, math.inf, [[0, 1], [0, 1]]),
        ([-math.inf] * 2, [math.inf, -math.inf], 3000.0, math.inf, [[1, 1], [0, 0]]),
        ([-math.inf] * 2, [math.inf, 0.0], 3000.0, math.inf, [[1, 1], [0, 0]]),
        ([-math.inf], [math.inf], 0.0, math.inf, [[1, 1]]),
        ([0.0, -math.inf], [0.0, -2000.0], -math.inf, math.inf, [[1, 1], [0, 0]]),
        ([-math.inf] * 2, [3.0, -math.inf], -math.inf, math.inf, [[0, 1], [0, 0]]),
        ([-math.inf] * 2, [3.0, -900.0], -math.inf, math.inf, [[0, 1], [0, 1]]),
        ([-math.inf, -750.0], [0.0, -740.0], -math.inf, math.inf, [[0, 1], [0, 1]]),
    ],
)
def test_extremes(low, high, lower, upper, expected):
    found = combined(
        Clamped(np.array(low), np.array(high), ""), lower, upper, np.array([0, len(low)])
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    dead = np.isneginf(high)
    assert (found[~dead, 1] > 0.0).all()
