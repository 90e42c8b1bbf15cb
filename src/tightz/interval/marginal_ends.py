"""Ends of marginals that hold always, from ends of log Z and of log Z with one variable fixed.

With Z_s the sum of all states in which a variable has state s, p_s = Z_s / Z and Z = sum of Z_s.
Let every Z_s lie in [l_s, u_s] and Z in [L, U]. Then Z_s also is at least L - (sum of the other u)
and at most U - (sum of the other l); p_s is least where Z_s is least and the rest is as large as
its own ends and U allow, and greatest the other way round. No better ends follow from these
numbers: they are taken by sums that agree with all of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import LIBRARY, UNIT
from tightz.workspace.findings import Clamped

SMALLEST = -660.0
"""Logs below the top at which exp still has all its digits."""

TINY = 1e-300
"""Shares below have fewer digits: nothing, from below."""


def combined(
    clamped: Clamped, lower: float, upper: float, pointers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(entries, 2) ends of p(x_i = s), rounded outward; [0, 1] where nothing follows.

    clamped        ends of log Z with x_i = s
    lower, upper   ends of log Z
    pointers       (variables + 1,) where each variable's entries begin
    """
    ends = np.empty((clamped.lower.size, 2))
    states = np.diff(pointers)
    for k in np.unique(states).tolist():
        entries = pointers[:-1][states == k][:, None] + np.arange(k)
        found = shares(clamped.lower[entries], clamped.upper[entries], lower, upper)
        ends[entries] = found
    return ends


def shares(
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    lower: float = -math.inf,
    upper: float = math.inf,
) -> NDArray[np.float64]:
    """(variables, states, 2) from ends (variables, states) of variables with as many states.

    Logs below the top by x come out of exp with a relative error of about x units, sums add one
    for each term: `slack`. What else is rounded in an end is a few units, `few`.
    """
    high = np.minimum(high, upper)
    variables, k = low.shape
    logs = np.concatenate([low, high, np.full((variables, 1), lower)], axis=1)
    top = np.where(np.isfinite(logs), logs, -np.inf).max(axis=1, keepdims=True)
    top[np.isneginf(top)] = 0.0
    slack, few = LIBRARY + (740.0 + 2.0 * k) * UNIT, 8.0 * UNIT
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # What exp can hold with few digits or not at all counts as nothing from below and as the
        # smallest that it holds well from above.
        least, at_least = (_from_below(x - top, slack) for x in (low, np.full_like(top, lower)))
        most, at_most = (_from_above(x - top, slack) for x in (high, np.full_like(top, upper)))
        others_least, others_most = _others(least), _others(most)
        own = np.maximum(least, at_least - others_most * (1.0 + few)) * (1.0 - few)
        below = np.maximum(own / (own + others_most), own / at_most) * (1.0 - few)
        own = np.minimum(most, at_most - others_least * (1.0 - few)) * (1.0 + few)
        above = np.minimum(own / (own + others_least), own / at_least) * (1.0 + few)
    known = least.sum(axis=1, keepdims=True) + at_least > 0.0
    below[known & (others_most == 0.0)] = 1.0  # nothing else has weight, and Z is not 0
    # 0 / 0, and infinities over each other: nothing is known
    below, above = np.where(below > TINY, below, 0.0), np.where(above < 1.0, above, 1.0)
    above[(most == 0.0) & (others_most > 0.0)] = 0.0  # where no state has weight nothing is known
    return np.stack([below, above], axis=-1)


def _from_below(logs: NDArray[np.float64], slack: float) -> NDArray[np.float64]:
    return np.where(logs < SMALLEST, 0.0, np.exp(logs)) * (1.0 - slack)


def _from_above(logs: NDArray[np.float64], slack: float) -> NDArray[np.float64]:
    kept = np.where(np.isneginf(logs), -math.inf, np.maximum(logs, SMALLEST))
    return np.exp(kept) * (1.0 + slack)


def _others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of each row without the entry itself, by additions only."""
    before = np.zeros_like(values)
    np.cumsum(values[:, :-1], axis=1, out=before[:, 1:])
    after = np.zeros_like(values)
    np.cumsum(values[:, :0:-1], axis=1, out=after[:, -2::-1])
    return before + after
