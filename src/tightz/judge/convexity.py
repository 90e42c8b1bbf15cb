"""What follows from log Z at several temperatures about energies, entropies and log Z itself.

Let w(x) be the log weight of state x and f(b) = log of the sum over possible x of exp(b w(x)), so
that the model at inverse temperature b has log Z = f(b) and energy E = -w. Then

    f is convex, f'(b) = <w> = -<E>, S(b) = f(b) - b f'(b)                                       (1)

so that f'(b) lies between the slopes of any two chords that meet in b, f lies below its chords and
above its tangents, and S, an entropy, between 0 and the log of the number of states. As b grows,
f(b) / b falls towards the largest w: f'(b) <= f(c) / c for every c > 0. Each end below is one of
these statements with the ends of f put in on the side that makes it weaker; where the ends of f
hold together with some confidence, so do all that follow.

Every operation on given numbers is rounded once, so a slope is off by less than 4 u of itself;
ends are moved outward by `SLACK` of what they were summed from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tightz.judge.claims import total_scale
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError
from tightz.models.factor_graph import FactorGraph

SLACK = 16 * UNIT

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Limits:
    """What the tables alone say: w in [least, most], and the number of states.

    log_states   (2,) ends of f(0), the log of the number of possible states
    """

    least: float
    most: float
    log_states: Array

    @classmethod
    def of(cls, model: FactorGraph) -> Limits:
        free = np.ones(model.n_variables, dtype=bool)
        free[list(model.evidence)] = False
        count = math.fsum(np.log(model.cardinalities[free].astype(np.float64)).tolist())
        slack = (LIBRARY + 2 * UNIT) * count
        zeros = bool(np.isneginf(model.log_tables).any())
        ends = np.array([-math.inf if zeros else count - slack, count + slack])
        starts = model.table_ptr[:-1]
        if not starts.size:
            return cls(0.0, 0.0, ends)
        finite = np.where(np.isneginf(model.log_tables), np.inf, model.log_tables)
        least = np.minimum.reduceat(finite, starts)
        most = np.maximum.reduceat(model.log_tables, starts)
        if np.isneginf(most).any():  # a table of zeros: no state is possible
            return cls(-math.inf, math.inf, np.array([-math.inf, -math.inf]))
        low, high = math.fsum(least.tolist()), math.fsum(most.tolist())
        return cls(low - SLACK * abs(low), high + SLACK * abs(high), ends)


def scaling_slack(scaled: FactorGraph) -> float:
    """Nats by which log Z of tables times 1/T may be off: each entry was rounded twice.

    1/T and the product round by u each; a sum of one entry of every table moves by no more than 2 u
    of the largest entries' magnitudes, and log Z by no more than the sums.
    """
    return 4.0 * UNIT * total_scale(scaled) + scaled.n_factors * 2.0**-1000


@dataclass(frozen=True, eq=False)
class Thermal:
    """Ends (k, 2) at each beta; NaN for energy and entropy where no state is possible."""

    log_z: Array
    energy: Array
    entropy: Array


def thermal(betas: Array, ends: Array, limits: Limits) -> Thermal:
    """What `ends` (k, 2) of log Z at distinct ascending `betas` (k,) imply there."""
    if betas.ndim != 1 or ends.shape != (betas.size, 2) or not (np.diff(betas) > 0.0).all():
        raise RefutedError("ends of log Z need ascending betas, one pair for each")
    if np.isnan(ends).any() or (ends[:, 0] > ends[:, 1]).any():
        raise RefutedError("a lower end of log Z lies above its upper end")
    at = np.union1d(betas, [0.0])
    given = np.searchsorted(at, betas)
    low, high = np.full(at.size, -np.inf), np.full(at.size, np.inf)
    low[given], high[given] = ends.T
    if (high == -np.inf).any():  # possible states do not depend on the temperature
        nothing = np.full(ends.shape, np.nan)
        return Thermal(np.full(ends.shape, -np.inf), nothing, nothing)
    zero = int(np.searchsorted(at, 0.0))
    low[zero] = max(low[zero], limits.log_states[0])
    high[zero] = min(high[zero], limits.log_states[1])
    high = _below_chords(at, high)
    low = _above_tangents(at, low, *_slopes(at, low, high, limits))
    slope = _slopes(at, low, high, limits)
    entropy = _entropies(at, low, high, *slope, limits)
    energy = np.stack([-slope[1], -slope[0]], axis=1)
    return Thermal(np.stack([low, high], axis=1)[given], energy[given], entropy[given])


def _outward(values: Array, scale: Array, side: int) -> Array:
    """Values moved by the rounding of sums of that scale; what is not finite says nothing."""
    moved = np.nextafter(values + side * SLACK * scale, side * np.inf)
    return np.where(np.isfinite(moved), moved, side * np.inf)


def _below_chords(at: Array, high: Array) -> Array:
    """f <= the chord between the two nearest corners of the lower convex hull of `high`."""
    hull: list[int] = []
    for k in np.flatnonzero(np.isfinite(high)).tolist():
        while len(hull) > 1:
            i, j = hull[-2:]
            with np.errstate(over="ignore", invalid="ignore"):  # any chord holds, the best or not
                left = (high[j] - high[i]) * (at[k] - at[j])
                right = (high[k] - high[j]) * (at[j] - at[i])
            if left < right:
                break
            hull.pop()
        hull.append(k)
    out = high.copy()
    for i, j in pairwise(hull):
        inner = np.arange(i + 1, j)
        share = (at[inner] - at[i]) / (at[j] - at[i])
        chord = (1.0 - share) * high[i] + share * high[j]
        size = np.full(inner.size, abs(high[i]) + abs(high[j]))
        out[inner] = np.minimum(out[inner], _outward(chord, size, 1))
    return out


def _slopes(at: Array, low: Array, high: Array, limits: Limits) -> tuple[Array, Array]:
    """Ends of f' at every point: chords to all points on either side, the range of w, monotone."""
    gap = at[None, :] - at[:, None]  # [k, j]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        right = (high[None, :] - low[:, None]) / gap
        left = (low[:, None] - high[None, :]) / -gap
        most = high / at
    right = _outward(np.where(gap > 0.0, right, np.inf), np.abs(right), 1)
    left = _outward(np.where(gap < 0.0, left, -np.inf), np.abs(left), -1)
    top = _outward(np.where(at > 0.0, most, np.inf), np.abs(most), 1).min(initial=limits.most)
    above = np.minimum(right.min(axis=1), top)
    below = np.maximum(left.max(axis=1), limits.least)
    return np.maximum.accumulate(below), np.minimum.accumulate(above[::-1])[::-1]


def _above_tangents(at: Array, low: Array, below: Array, above: Array) -> Array:
    """f(b_k) >= f(b_j) + (b_k - b_j) f'(b_j), the slope on the side that makes this least."""
    gap = at[:, None] - at[None, :]  # [k, j]
    with np.errstate(invalid="ignore", over="ignore"):
        step = gap * np.where(gap > 0.0, below, above)  # slopes at j
        line = _outward(low[None, :] + step, np.abs(low)[None, :] + np.abs(step), -1)
    line = np.where((gap == 0.0) | np.isnan(line), -np.inf, line)
    return np.maximum(low, line.max(axis=1, initial=-np.inf))


def _entropies(
    at: Array, low: Array, high: Array, below: Array, above: Array, limits: Limits
) -> Array:
    """f - b f' between its extremes, between 0 and the log of the number of states."""
    with np.errstate(invalid="ignore", over="ignore"):
        first, second = at * below, at * above
        most, least = np.fmax(first, second), np.fmin(first, second)
        under = _outward(low - most, np.abs(low) + np.abs(most), -1)
        over = _outward(high - least, np.abs(high) + np.abs(least), 1)
    under, over = np.where(np.isnan(under), -np.inf, under), np.where(np.isnan(over), np.inf, over)
    return np.stack([np.maximum(under, 0.0), np.minimum(over, limits.log_states[1])], axis=1)
