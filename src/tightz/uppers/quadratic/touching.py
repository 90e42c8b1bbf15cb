"""Quadratics above log 2cosh: the best ones that an optimiser has to choose from.

A field b in [low, high] is to be bounded by log 2cosh b <= c + mu b + v b^2 / 2. Whatever
distribution b has, the best quadratic touches log 2cosh twice: with a tangent at y and, on the
other side of zero, with a tangent at -y where -y can be reached (mu = 0 and v = tanh(y) / y, as in
Jaakkola and Jordan 1997), else at the near end of the interval. So one number y per spin says it
all. Fields that point down are mirrored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tightz.runtime.kernels import inner, kernel

NEAREST = 1e-3
"""Distance, in lengths of the interval, that a tangent keeps from an end of the same sign."""

LEAST = 1e-6
"""The smallest tangent point: below it log 2cosh is a parabola to the last bit."""

START = 1.5
"""First tangent points, in root mean squares of the field that a spin sees from free spins."""


@inner
def log_2cosh(x):  # type: ignore[no-untyped-def]
    x = abs(x)
    return x + math.log1p(math.exp(-2.0 * x))


class Touching(NamedTuple):
    """c + mu b + v b^2 / 2 with a tangent at `at`, for b mirrored by `sign`.

    `both`: it has one at -at too. `end` is the near end of the interval. `held` is -1 where `at`
    was raised to what the interval allows, 1 where it was lowered.
    """

    c: float
    mu: float
    v: float
    sign: float
    end: float
    at: float
    both: bool
    held: int


@kernel
def touching(field, reach, log_at):  # type: ignore[no-untyped-def]
    """The quadratic with a tangent at exp(log_at), or as near as [field -+ reach] allows."""
    sign = -1.0 if field < 0.0 else 1.0
    end, high = abs(field) - reach, abs(field) + reach
    least = end + NEAREST * 2.0 * reach + LEAST if end > 0.0 else LEAST
    at, held = math.exp(min(log_at, 600.0)), 0
    if at < least or high < least:
        at, held = least, -1
    elif at > high:
        at, held = high, 1
    slope, value = math.tanh(at), log_2cosh(at)
    both = at <= -end
    if both:
        return Touching(
            value - slope * at / 2.0, 0.0, slope / at, sign, end, at, both, held
        )  # fmt: skip
    v = _curvature(end, at)
    c = value - slope * at + v * at * at / 2.0
    return Touching(c, sign * (slope - v * at), v, sign, end, at, both, held)


@inner
def _curvature(end, at):  # type: ignore[no-untyped-def]
    """v of the quadratic with a tangent at `at` that goes through log 2cosh at `end`."""
    gap = end - at
    if gap * gap == 0.0:
        return 1.0 - math.tanh(at) ** 2
    if end < 0.0:
        above = log_2cosh(end) - log_2cosh(at) - math.tanh(at) * gap
    else:  # the same without the parts that cancel
        far = math.exp(-2.0 * at)
        above = 2.0 * far / (1.0 + far) * gap
        above += math.log1p(math.exp(-2.0 * end)) - math.log1p(far)
    return 2.0 * above / (gap * gap)


@inner
def slopes(t, mean, square):  # type: ignore[no-untyped-def]
    """d E[quadratic(b)] / d (log_at, field, reach), for E[b] = mean and E[b^2] = square.

    Only the choice of the quadratic counts here; what the law of b adds is the caller's.
    """
    mean *= t.sign
    bend = 1.0 - math.tanh(t.at) ** 2  # the second derivative of log 2cosh
    if t.both:
        by_at, by_end = (bend - t.v) / t.at * (square - t.at * t.at) / 2.0, 0.0
    else:
        gap = min(t.end - t.at, -LEAST)
        by_at = (t.v - bend) / gap * (square - (t.at + t.end) * mean + t.at * t.end)
        chord = (math.tanh(t.end) - math.tanh(t.at)) / gap
        by_end = (chord - t.v) / gap * (square - 2.0 * t.at * mean + t.at * t.at)
    if t.held == 0:
        return by_at * t.at, t.sign * by_end, -by_end
    if t.held > 0:
        return 0.0, t.sign * (by_end + by_at), by_at - by_end
    if t.end > 0.0:
        return 0.0, t.sign * (by_end + by_at), -by_end - (1.0 - 2.0 * NEAREST) * by_at
    return 0.0, t.sign * by_end, -by_end


@kernel
def first_point(field, size):  # type: ignore[no-untyped-def]
    """Where to begin: log of START root mean squares of the spin's field."""
    return math.log(START * math.sqrt(size + field * field) + LEAST)
