"""A panel of spins summed out one after the other, and the moments on the way back.

Compiled: some ten thousand short operations on numpy's arrays would ask for the interpreter each
time, and beside other streams wait for it longer than they take.

Spins of a panel that is not `coupled` have no couplings with each other.
"""

from __future__ import annotations

import math

import numpy as np

from tightz.runtime.kernels import kernel
from tightz.uppers.quadratic.touching import Touching, first_point, slopes, touching

SUMS = {"reassoc", "contract"}
"""Sums in any order: the judge evaluates what comes of them."""


@kernel
def uncoupled(couplings, start, stop):  # type: ignore[no-untyped-def]
    """The end of the run of spins from `start` on that have no couplings with each other."""
    end = start + 1
    while end < stop:
        for k in range(start, end):
            if couplings[end, k] != 0.0:
                return end
        end += 1
    return min(end, stop)


@kernel(fastmath=SUMS)
def eliminated(rows, h, log_at, start, coupled, quadratics, fields):  # type: ignore[no-untyped-def]
    """Sum the rows' spins out, of columns `start` on; returns what that adds to the bound.

    `rows` and `h` become what a spin saw when its turn came; a point that is NaN is chosen.
    """
    count, width = rows.shape
    value = 0.0
    for k in range(count):
        first = k + 1 if coupled else count
        reach, size, field = 0.0, 0.0, h[start + k]
        for j in range(first, width):
            reach += abs(rows[k, j])
            size += rows[k, j] * rows[k, j]
        if not math.isfinite(field * field + reach * reach):
            return np.inf
        if math.isnan(log_at[start + k]):
            log_at[start + k] = first_point(field, size)
        q = touching(field, reach, log_at[start + k])
        at = quadratics[k]
        at[0], at[1], at[2], at[3] = q.c, q.mu, q.v, q.sign
        at[4], at[5], at[6], at[7] = q.end, q.at, q.both, q.held
        fields[k] = field
        value += q.c + (q.mu + 0.5 * q.v * field) * field + 0.5 * q.v * size
        push = q.mu + q.v * field
        for j in range(first, width):
            h[start + j] += push * rows[k, j]
        if coupled:
            for i in range(k + 1, count):
                weight = q.v * rows[k, i]
                for j in range(i + 1, width):
                    rows[i, j] += weight * rows[k, j]
    return value


@kernel(fastmath=SUMS)
def moments_of(rows, later, quadratics, fields, start, coupled, g, gradient, own):  # type: ignore[no-untyped-def]
    """The panel's part of the gradient, of E[s] (`g`) and of E[s s'] (`own`), last spin first.

    `later` are the rows times E[s s'] of the spins after the panel.
    """
    count, width = rows.shape
    product = np.empty(width)
    for k in range(count - 1, -1, -1):
        first = k + 1 if coupled else count
        for j in range(count, width):
            product[j] = later[k, j - count]
        for i in range(first, count):
            total, weight = 0.0, rows[k, i]
            for j in range(first, width):
                total += own[i, j] * rows[k, j]
            product[i] = total
            for j in range(count, width):
                product[j] += weight * own[i, j]
        linear, inside, field = 0.0, 0.0, fields[k]
        for j in range(first, width):
            linear += g[start + j] * rows[k, j]
            inside += rows[k, j] * (rows[k, j] + product[j])
        mean = field + linear
        square = field * field + inside + 2.0 * field * linear
        at = quadratics[k]
        q = Touching(at[0], at[1], at[2], at[3], at[4], at[5], at[6] > 0.0, int(at[7]))
        by_at, by_field, by_reach = slopes(q, mean, square)
        gradient[start + k] = by_at
        push = q.mu + q.v * field
        for j in range(first, width):
            x = rows[k, j]
            own[k, j] = q.v * (x + product[j]) + push * g[start + j] + by_reach * np.sign(x)
        for i in range(first, count):
            own[i, k] = own[k, i]
        g[start + k] = q.mu + q.v * mean + by_field
