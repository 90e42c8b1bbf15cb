"""A rigorous lower bound on E[log 2cosh X], X = h + sum_k J_k s_k with independent spins s_k.

With phi(x) = log 2cosh x, the Fourier transform of phi''(x) = 1 / cosh^2 x is pi t / sinh(pi t/2),
so that, with psi(t) = E exp(i t X) = exp(i t h) prod_k (cos t J_k + i v_k sin t J_k),

    E phi(X) = log 2 + integral_0^inf (1 - Re psi(t)) / (t sinh(pi t / 2)) dt.

The trapezoidal rule with step tau = 2 pi / P replaces phi by phi_P with phi_P'' = sum over n of
phi''(x + n P) (Poisson summation), which is above phi by a known amount; every term of the sum is
non-negative, so stopping early only lowers it. What is returned is the sum less

- the aliasing: at most 5 exp(-2 (P - R)) for |x| <= R, and 4 x^2 / P + 6 anywhere, the latter
  with the probability of |X - E X| > R - |E X| by Hoeffding's inequality (1963);
- the rounding error of psi, first order in the unit roundoff with a factor of 2 to spare.

So the value is both rigorous and within about 1e-10 of the truth. Few undecided spins are
enumerated. Where the sum would be too long (many couplings of thousands and undecided spins),
phi(x) >= s log cosh(x / s) for s >= 1 widens the kernel at a loss of up to s log 2. Jensen's
phi(E X) is a lower bound too, and the largest is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.clock import leave_if_over
from tightz.runtime.kernels import inner, kernel

CUTOFF = 16.0
"""The integral is stopped at this t: at most 1e-11 is lost."""

MARGIN = 20.0
"""P exceeds the likely |X| by this: aliasing below 1e-16."""

ENUMERATED = 14
"""Up to this many undecided spins are enumerated where that is cheaper or X is too wide."""

HUGE = 1e150
"""Fields beyond this keep Jensen's bound: their squares would overflow."""

UNIT = 2.0**-53
LOG_2 = 0.6931471805599453  # rounded down

MAX_NODES = 8192
"""Longest sum; wider distributions of X are treated with s > 1."""


class Rows(NamedTuple):
    """X_i = field[i] + sum_p weights[p] s_{spins[p]}, p in ptr[i]..ptr[i+1]-1; means of the s."""

    field: NDArray[np.float64]
    ptr: NDArray[np.int64]
    spins: NDArray[np.int32]
    weights: NDArray[np.float64]
    means: NDArray[np.float64]


class Quadrature(NamedTuple):
    """The trapezoidal rule of one row: t = j step, j = 1..nodes, of X / scale."""

    step: float
    scale: float
    nodes: int


BLOCK = 32
"""Rows between two looks at the clock: one of 1,000 spins takes up to a millisecond."""


def expected_log_2cosh(
    field: NDArray[np.float64],
    ptr: NDArray[np.int64],
    spins: NDArray[np.int32],
    weights: NDArray[np.float64],
    means: NDArray[np.float64],
    *,
    slopes: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(lower bounds on E[log 2cosh X_i], E[tanh X_i], slopes) for all rows i of a CSR matrix.

    X_i = field[i] + sum_p weights[p] s_{spins[p]} over p in ptr[i]..ptr[i+1]-1, E s_k = means[k].
    The first is rigorous; the others are approximate to about 1e-8. The slope at p is the
    derivative of E[log 2cosh X_i] in means[spins[p]]; none unless asked for.
    """
    lower, tanh = np.empty(field.size), np.empty(field.size)
    out = np.empty(weights.size if slopes else 0)
    for low in range(0, field.size, BLOCK):
        leave_if_over()
        part = slice(low, low + BLOCK)
        rows = Rows(field[part], ptr[low : low + BLOCK + 1], spins, weights, means)
        _fill(rows, lower[part], tanh[part], out)
    return lower, tanh, out


@inner
def _log_2cosh(x):  # type: ignore[no-untyped-def]
    return abs(x) + np.log1p(np.exp(-2.0 * abs(x)))


@kernel
def _fill(rows, lower, tanh, slopes):  # type: ignore[no-untyped-def]
    """lower (I,), tanh (I,), slopes (weights.size or 0,); see the module's formula."""
    field, ptr, weights = rows.field, rows.ptr, rows.weights
    buffers = np.empty((5, 2 * MAX_NODES))
    for i in range(field.size):
        # Decided spins are part of the field (`base`). The others span `reach` about it; by
        # Hoeffding's inequality |X - E X| > radius has probability below e^-45 / largest^2.
        base, mean, reach, squares, variance, active = field[i], field[i], 0.0, 0.0, 0.0, 0
        size = abs(field[i])
        for p in range(ptr[i], ptr[i + 1]):
            v, w = rows.means[rows.spins[p]], weights[p]
            mean += w * v
            size += abs(w)
            if abs(v) == 1.0:
                base += w * v
            elif w != 0.0:
                reach += abs(w)
                squares += w * w
                variance += w * w * (1.0 - v * v)
                active += 1
        largest = abs(base) + reach
        radius = np.sqrt(2.0 * squares * (45.0 + 2.0 * np.log(1.0 + largest)))
        # Jensen's bound, rounded down: phi is convex and at least log 2. E X is known to within
        # `slack`: one rounding per operation, and one to spare; phi has slope at most 1.
        slack = 2.0 * UNIT * (ptr[i + 1] - ptr[i] + 8) * size
        lower[i] = max(_log_2cosh(mean) * (1.0 - 8.0 * UNIT) - slack, LOG_2)
        tanh[i] = np.tanh(mean)
        for p in range(ptr[i], ptr[i + 1] if slopes.size else ptr[i]):
            slopes[p] = weights[p] * tanh[i]
        if active == 0 or max(abs(mean) - radius, abs(base) - reach) > MARGIN:
            continue  # X is one number, or surely of one sign: Jensen's bound is exact enough
        if size > HUGE:
            continue
        # The period P covers the likely |X| and MARGIN; where that takes too many nodes, X is
        # divided by `scale`, at the loss that the module's formula names.
        likely = min(abs(mean) + radius, largest)
        widest = 2.0 * np.pi * MAX_NODES / CUTOFF
        scale = max(1.0, likely / (widest - MARGIN))
        period = likely / scale + MARGIN
        step = 2.0 * np.pi / period
        nodes = min(int(np.ceil(CUTOFF / step)), MAX_NODES)
        # Few undecided spins: the sum over their states, of 2^active positive terms, each a
        # product of `active` roundings; no aliasing and nothing cut off.
        if active <= ENUMERATED and (scale > 1.0 or 1 << active <= nodes * active):
            total, tanh[i] = _enumerate(rows, i, base, buffers, slopes)
            found = total * (1.0 - UNIT * ((1 << active) + 8.0 * active + 16.0)) - slack
            lower[i] = max(lower[i], found)
            continue
        # The sum over t. Its term at t = 0 is the limit E X^2 / 2 of (1 - Re psi) / t^2, times
        # 2 / pi, at half weight; every further one is non-negative, so stopping early is safe.
        rule = Quadrature(step, scale, nodes)
        _characteristic(rows, i, base, rule, buffers)
        total = step * (mean * mean + variance) / (scale * scale) / (2.0 * np.pi)
        slope = step * mean / scale / np.pi
        kernel = 0.0
        for j in range(nodes):
            t = (j + 1) * step
            weight = step / (t * np.sinh(0.5 * np.pi * t))
            buffers[4, j] = weight
            kernel += weight
            total += weight * (1.0 - buffers[0, j])
            slope += weight * t * buffers[1, j]
        # What is subtracted: aliasing within the likely range, and beyond it where X can get
        # there; the rounding of psi (active factors, each turned by doubling) and of its argument;
        # that of the sum; all of it twice over, for the second order.
        aliasing = 5.0 * np.exp(-2.0 * MARGIN)
        if likely < largest:
            worst = largest / scale
            tail = 2.0 * np.exp(-radius * radius / (2.0 * squares))
            aliasing += (4.0 * worst * worst / period + 6.0) * tail
        psi_error = 8.0 * UNIT * (active + 1.0) * (np.log2(nodes + 1.0) + 4.0)
        psi_error += CUTOFF * slack / scale
        sum_error = UNIT * (nodes + ptr[i + 1] - ptr[i] + 16.0) * abs(total)
        found = total - aliasing - 2.0 * (kernel * psi_error + sum_error)
        found = found + LOG_2 if scale == 1.0 else found * scale
        lower[i] = max(lower[i], found - 3.0 * slack)
        tanh[i] = min(max(slope, -1.0), 1.0)
        if slopes.size:
            _slopes(rows, i, mean, tanh[i], rule, buffers, slopes)


@inner
def _enumerate(rows, i, base, buffers, slopes):  # type: ignore[no-untyped-def]
    """(E log 2cosh X, E tanh X) over all states of the undecided spins; fills row i's slopes."""
    low, high = rows.ptr[i], rows.ptr[i + 1]
    x, probability = buffers[0], buffers[1]
    x[0], probability[0] = base, 1.0
    done = 1
    for p in range(low, high):
        v, w = rows.means[rows.spins[p]], rows.weights[p]
        if abs(v) == 1.0 or w == 0.0:
            continue
        for j in range(done):
            x[j + done] = x[j] - w
            probability[j + done] = probability[j] * (0.5 * (1.0 - v))
            x[j] += w
            probability[j] *= 0.5 * (1.0 + v)
        done *= 2
    total, slope = 0.0, 0.0
    for j in range(done):
        total += probability[j] * _log_2cosh(x[j])
        slope += probability[j] * np.tanh(x[j])
    bit = 1
    for p in range(low, high if slopes.size else low):
        v = rows.means[rows.spins[p]]
        if abs(v) == 1.0 or rows.weights[p] == 0.0:
            slopes[p] = rows.weights[p] * slope
            continue
        slopes[p] = 0.0
        for j in range(done):
            sign = -1.0 if j & bit else 1.0
            slopes[p] += probability[j] * _log_2cosh(x[j]) * sign / (1.0 + v * sign)
        bit *= 2
    return total, slope


@inner(error_model="numpy")
def _characteristic(rows, i, base, rule, buffers):  # type: ignore[no-untyped-def]
    """buffers[0] + i buffers[1] = psi(j step / scale), j = 1..nodes; rows 2 and 3 are scratch."""
    re, im, c, s = buffers[0], buffers[1], buffers[2], buffers[3]
    step = rule.step / rule.scale
    _multiples(base * step, rule.nodes, re, im)
    for p in range(rows.ptr[i], rows.ptr[i + 1]):
        v, w = rows.means[rows.spins[p]], rows.weights[p]
        if abs(v) == 1.0 or w == 0.0:
            continue
        _multiples(w * step, rule.nodes, c, s)
        for j in range(rule.nodes):
            x, y = re[j], im[j]
            z = v * s[j]
            re[j] = x * c[j] - y * z
            im[j] = x * z + y * c[j]


@inner(error_model="numpy")
def _slopes(rows, i, mean, tanh, rule, buffers, slopes):  # type: ignore[no-untyped-def]
    """d E phi / d v_k = J (mean - J v) step / pi + sum_t weight Im(sin(t J) psi / factor_k)."""
    re, im, c, s, weight = buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]
    for p in range(rows.ptr[i], rows.ptr[i + 1]):
        v, w = rows.means[rows.spins[p]], rows.weights[p] / rule.scale
        if abs(v) == 1.0 or w == 0.0:
            slopes[p] = rows.weights[p] * tanh
            continue
        _multiples(w * rule.step, rule.nodes, c, s)
        total = w * (mean / rule.scale - w * v) * rule.step / np.pi
        for j in range(rule.nodes):
            z = v * s[j]
            size = max(c[j] * c[j] + z * z, 1e-30)
            total += weight[j] * s[j] * (im[j] * c[j] - re[j] * z) / size
        slopes[p] = total * rule.scale


@inner(error_model="numpy")
def _multiples(angle, count, c, s):  # type: ignore[no-untyped-def]
    """c[j], s[j] = cos, sin of (j + 1) angle for j < count, by doubling: log2(count) roundings."""
    c[0] = np.cos(angle)
    s[0] = np.sin(angle)
    done = 1
    while done < count:
        turn_c, turn_s = np.cos(done * angle), np.sin(done * angle)
        for j in range(done):
            c[j + done] = c[j] * turn_c - s[j] * turn_s
            s[j + done] = s[j] * turn_c + c[j] * turn_s
        done *= 2
