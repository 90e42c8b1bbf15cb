"""log Z from a tempering run: Bennett's acceptance ratio between neighbouring temperatures.

An estimate with a standard error, not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logsumexp

BLOCKS = 10
"""Stretches of the run whose scatter gives the standard error."""


def bennett(low: NDArray[np.float64], high: NDArray[np.float64], gap: float) -> float:
    """log Z(beta + gap) - log Z(beta) from energies sampled at both (Bennett, 1976).

    Solves mean_low f(d - gap E) = mean_high f(gap E - d) for d, f(x) = 1 / (1 + exp(x)). The
    difference falls with d and changes sign between the ends below, whatever the energies.
    """
    up, down = gap * low, gap * high
    # One-sided averages bracket the root: at any d below all of these the imbalance is positive,
    # above negative, since expit is monotone.
    forward = float(logsumexp(up)) - math.log(up.size)
    backward = math.log(down.size) - float(logsumexp(-down))
    below = min(forward, backward, float(up.min())) - 1.0
    above = max(forward, backward, float(down.max())) + 1.0

    def imbalance(d: float) -> float:
        return float(expit(up - d).mean() - expit(d - down).mean())

    return float(brentq(imbalance, below, above, xtol=1e-10))


def log_z_by_tempering(
    betas: NDArray[np.float64], traces: Sequence[NDArray[np.float64]], n: int, constant: float
) -> tuple[float, float]:
    """(estimate of log Z, standard error) from each run's energies (rows, replicas, temperatures).

    Needs beta = 0, where log Z = n log 2, and beta = 1 on the ladder; NaN otherwise. The error is
    the scatter between consecutive stretches of the runs (correlation in time shorter than a
    stretch is paid for) or that between runs, whichever is more: runs that started differently
    disagree when a model has phases that tempering does not cross.
    """
    unit = np.flatnonzero(betas == 1.0)
    if constant == -math.inf:
        return -math.inf, 0.0
    if betas[0] != 0.0 or not unit.size or not all(len(t) for t in traces):
        return math.nan, math.nan
    top = int(unit[0])

    def total(rows: NDArray[np.float64]) -> float:
        steps = [
            bennett(rows[:, :, k].ravel(), rows[:, :, k + 1].ravel(), betas[k + 1] - betas[k])
            for k in range(top)
        ]
        return math.fsum(steps)

    everything = np.concatenate(traces)
    estimate = constant + n * math.log(2.0) + total(everything)
    if len(everything) < BLOCKS:
        return estimate, math.inf
    # Stretches in time, not random subsets: neighbouring sweeps are correlated, and a stretch
    # longer than the correlation scatters as independent runs would.
    blocks = [total(b) for b in np.array_split(everything, BLOCKS)]
    error = float(np.std(blocks, ddof=1)) / math.sqrt(BLOCKS)
    if len(traces) > 1:
        runs = [total(t) for t in traces]
        error = max(error, float(np.std(runs, ddof=1)) / math.sqrt(len(runs)))
    return estimate, error
