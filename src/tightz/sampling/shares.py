"""Ends of marginals from draws under a cap: bets on which part of the weight has x_i = s.

With X in [0, 1] the capped weight of a draw x, E[X 1[x_i = s]] = p E[X] for p = p(x_i = s). If p is
at most a candidate r, then Y = X (1[x_i = s] - r) has mean at most 0 and is at least -r, so the
product of 1 + c Y over draws is a nonnegative supermartingale for every stake c in [0, 1 / r]
fixed before them, and so is a mixture over stakes. By Ville's inequality it ever reaches 1 / delta
with probability at most delta: an r at which it has done so is below p. The other end bets on -Y
with c in [0, 1 / (1 - r)]. With stakes min(c, 1 / r) every factor falls in r, so the rejected r are
an interval, whose end is found by bisection. Several sources of draws are mixed as stakes are.

No ratio of two intervals comes into it, and what the draws say about Z itself cancels.

Draws come as counts at few values of X (`tightz.workspace.shares`).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tightz.models.ends import odds
from tightz.runtime.cores import usable_cores
from tightz.runtime.executors import map_ordered
from tightz.runtime.kernels import inner, kernel
from tightz.workspace.shares import Shares

STAKES = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
"""In units of the best stake at p = 1/2; rarer states want larger ones. 0 keeps its part for good:
an account that does badly costs little."""

FINAL, EARLIER = 0.5, 0.4
"""Weights of the draws until the end and of all short ones before them in the mixture of sources;
the k-th of them has 1 / k(k + 1) of its part, and so has any other in what is left."""

HALVINGS = 30
"""Of the interval in which an end is searched for."""

AT_A_TIME = 64
"""Entries that a thread bounds before it asks for more."""

SLACK = 1e-6
"""Nats added to the target: the wealth is computed in floating point."""


def stake(log_mean: float, log_excess: float, draws: float, entries: int, delta: float) -> float:
    """The best stake at p = 1/2 for so many draws of X with E[X] and E[X^2] / E[X]^2 as given."""
    square = math.exp(min(0.0, 2.0 * log_mean + min(log_excess, -log_mean)))  # E[X^2] <= E[X]
    target = math.log(2.0 * max(1, entries) / delta)
    return math.sqrt(8.0 * target / (max(1.0, draws) * max(square, 1e-300)))


def bounded(
    sources: list[Shares], delta: float, log_z: float, slack: float = 0.0
) -> NDArray[np.float64]:
    """(entries, 2) ends of p(x_i = s), all of them together with confidence 1 - delta.

    log_z    a lower bound on it: how much of Z was never drawn
    slack    nats by which log Z of the draws' model may be off that of the model meant

    Every variable of two states is one question, one of d states is d; each has two ends, and the
    error is divided evenly between them (union bound).
    """
    pointers = sources[0].pointers
    entries = int(pointers[-1])
    out = np.tile([0.0, 1.0], (entries, 1))
    pairs = np.diff(pointers) == 2
    twins = pointers[:-1][pairs] + 1  # 1 - the entry before
    asked = np.setdiff1d(np.arange(entries), twins)
    target = math.log(2.0 * asked.size / delta) + SLACK
    usable = [s for s in sources if s.counts.any() and s.log_lost < log_z]
    if not usable or not asked.size:
        return out
    lots = [asked[k : k + AT_A_TIME] for k in range(0, asked.size, AT_A_TIME)]
    ends = list(map_ordered(partial(_ends, usable, target), lots, threads=usable_cores()))
    out[asked] = np.concatenate(ends)
    out[twins] = 1.0 - out[twins - 1, ::-1]
    # Weights off by e^r move odds by at most e^2r; what is never drawn may be of any state.
    blur = 2.0 * (max(s.rounding for s in usable) + slack)
    lost = math.exp(max(s.log_lost for s in usable) - log_z)
    low, high = odds(out[:, 0], -blur) * (1.0 - lost), odds(out[:, 1], blur) + lost
    tiny = 4e-16
    return np.stack(
        [np.clip(low * (1.0 - tiny) - tiny, 0.0, 1.0), np.clip(high + 2.0 * tiny, 0.0, 1.0)], axis=1
    )


def _weights(sources: list[Shares]) -> NDArray[np.float64]:
    """Of the sources in the mixture: by their names, which are known before they draw."""
    out, others = np.empty(len(sources)), 0
    for k, source in enumerate(sources):
        kind, _, number = source.track.partition(" ")
        if source.track == "mini-bucket":
            out[k] = FINAL
        elif kind == "glance" and number.isdecimal():
            out[k] = EARLIER / (int(number) * (int(number) + 1.0))
        else:
            others += 1
            out[k] = (1.0 - FINAL - EARLIER) / (others * (others + 1.0))
    return out


def _ends(sources: list[Shares], target: float, lot: NDArray[np.int64]) -> NDArray[np.float64]:
    """(len(lot), 2) ends of the entries `lot`."""
    widest = max(s.grid.count for s in sources)
    points = np.zeros((len(sources), widest))
    ones, zeros = np.zeros((2, len(sources), lot.size, widest))
    stakes = np.stack([s.stake * STAKES for s in sources])
    for k, s in enumerate(sources):
        count = s.grid.count
        points[k, :count] = s.grid.points
        ones[k, :, :count] = s.counts[lot]
        first, last = s.pointers[:2]
        zeros[k, :, :count] = s.counts[first:last].sum(axis=0) - s.counts[lot]
    out = np.empty((lot.size, 2))
    _bisect(points, ones, zeros, stakes, np.log(_weights(sources)), target, out)
    return out


@kernel
def _bisect(points, ones, zeros, stakes, log_weights, target, out):  # type: ignore[no-untyped-def]
    """Both ends of every entry; the other end of p is one end of 1 - p."""
    for e in range(out.shape[0]):
        for side in range(2):
            one = ones[:, e] if side == 0 else zeros[:, e]
            zero = zeros[:, e] if side == 0 else ones[:, e]
            low, high = 0.0, 0.0
            for k in range(points.shape[0]):
                mass, total = 0.0, 0.0
                for a in range(points.shape[1]):
                    mass += points[k, a] * one[k, a]
                    total += points[k, a] * (one[k, a] + zero[k, a])
                if total > 0.0:  # no bet wins at or above the mean of its own draws
                    high = max(high, mass / total)
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                wealth = -np.inf
                if middle > 0.0:
                    wealth = _log_wealth(middle, points, one, zero, stakes, log_weights)
                if wealth >= target:
                    low = middle
                else:
                    high = middle
            out[e, side] = low if side == 0 else 1.0 - low


@inner
def _log_wealth(r, points, one, zero, stakes, log_weights):  # type: ignore[no-untyped-def]
    """log of the wealth against p <= r: a mixture over sources and stakes."""
    parts = np.empty(stakes.size)
    top = -np.inf
    for k in range(points.shape[0]):
        for j in range(stakes.shape[1]):
            c = min(stakes[k, j], 1.0 / r)
            logs = log_weights[k] - math.log(stakes.shape[1])
            for a in range(points.shape[1]):
                if one[k, a] > 0.0:
                    logs += one[k, a] * math.log1p(c * points[k, a] * (1.0 - r))
                if zero[k, a] > 0.0:
                    loss = c * points[k, a] * r
                    logs += zero[k, a] * math.log1p(-loss) if loss < 1.0 else -np.inf
            parts[k * stakes.shape[1] + j] = logs
            top = max(top, logs)
    total = 0.0
    for logs in parts:
        total += math.exp(logs - top)
    return top + math.log(total)
