"""The temperatures of a tempering run: chosen from a short pilot, and turned into log Z.

An estimate with a standard error, not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.errors import require_range
from tightz.models.spin_polynomial import SpinPolynomial


@dataclass(frozen=True)
class Ladder:
    """How the ladder is laid out; beta = 1 is always on it, exactly.

    step               thermodynamic length between neighbours; in a large model exchanges are then
                       accepted with probability erfc(step / 2): 0.40 at 1.2
    to_zero            start at beta = 0, where log Z is known (needed to estimate log Z);
                       otherwise where spins still flip freely
    coldest            the last beta, in units of 1 / the typical local field; at least 2
    max_temperatures   wider steps are taken when more would be needed
    """

    step: float = 1.2
    to_zero: bool = False
    coldest: float = 8.0
    max_temperatures: int = 64

    def __post_init__(self) -> None:
        require_range("step", self.step, 0.01)
        require_range("coldest", self.coldest, 0.0)
        require_range("max_temperatures", self.max_temperatures, 4)

    def geometric(self, polynomial: SpinPolynomial, count: int) -> NDArray[np.float64]:
        """A first guess: about `count` values in ratio, from hot to cold, with 1 among them."""
        scales = local_scales(polynomial)
        scales = scales[scales > 0.0]
        if not scales.size:
            return np.array([0.0, 1.0]) if self.to_zero else np.ones(1)
        # Hot enough that the strongest spin still flips freely, cold enough that a typical one is
        # frozen.
        hot = min(0.5, 0.5 / float(scales.max()))
        cold = max(2.0, self.coldest / float(np.median(scales)))
        below = max(1, round(count * math.log(1.0 / hot) / math.log(cold / hot)))
        above = max(1, count - below)
        betas = np.concatenate([np.geomspace(hot, 1.0, below + 1), np.geomspace(1.0, cold, above)])
        betas[below] = 1.0
        betas = np.unique(betas)
        return np.concatenate([[0.0], betas]) if self.to_zero else betas

    def respaced(
        self, betas: NDArray[np.float64], means: NDArray[np.float64], multiple: int
    ) -> NDArray[np.float64]:
        """Equal thermodynamic lengths between neighbours, from mean energies measured at `betas`.

        The length of a gap is sqrt((beta' - beta)(E' - E)), on which alone the exchange rate
        depends. (Standard deviations would say the same in equilibrium; in a short run they hold
        the scatter between valleys and ask for too many cold temperatures.) The number of
        temperatures is a multiple of `multiple`.
        """
        gaps = np.diff(betas)
        # Mean energies rise with beta in equilibrium; where a short run measured a fall it is
        # noise, and counts as no distance.
        rise = np.sqrt(np.maximum(gaps * np.diff(np.maximum.accumulate(means)), 0.0))
        length = np.concatenate([[0.0], np.cumsum(rise + 1e-9)])
        unit = int(np.flatnonzero(betas == 1.0)[0])
        wanted = np.array([length[unit], length[-1] - length[unit]]) / self.step
        wanted *= min(1.0, (self.max_temperatures - 1) / max(float(wanted.sum()), 1e-9))
        below = max(int(unit > 0), math.ceil(wanted[0]))
        above = max(int(unit + 1 < betas.size), math.ceil(wanted[1]))
        # Lanes come in multiples for SIMD: spare ones go below beta = 1.
        if unit > 0:
            below += -(below + above + 1) % multiple
            if below + above + 1 > self.max_temperatures and below > multiple:
                below -= multiple
        marks = np.concatenate(
            [
                np.linspace(0.0, length[unit], below + 1),
                np.linspace(length[unit], length[-1], above + 1)[1:],
            ]
        )
        out: NDArray[np.float64] = np.interp(marks, length, betas)
        out[below] = 1.0
        return out


def local_scales(polynomial: SpinPolynomial) -> NDArray[np.float64]:
    """(n,) typical local field of each spin: root of the sum of theta^2 over its terms."""
    largest = float(np.abs(polynomial.theta).max(initial=0.0)) or 1.0
    squares = np.repeat((polynomial.theta / largest) ** 2, polynomial.arities)
    total = np.bincount(polynomial.spins, squares, minlength=polynomial.n)
    return largest * np.sqrt(total)


BLOCKS = 10
"""Stretches of the run whose scatter gives the standard error."""


def bennett(low: NDArray[np.float64], high: NDArray[np.float64], gap: float) -> float:
    """log Z(beta + gap) - log Z(beta) from energies sampled at both (Bennett, 1976).

    Solves mean_low f(d - gap E) = mean_high f(gap E - d) for d, f(x) = 1 / (1 + exp(x)). The
    difference falls with d and changes sign between the ends below, whatever the energies.
    """
    from scipy.optimize import brentq
    from scipy.special import expit, logsumexp

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
