"""Spins summed out one after the other, each sum replaced by a quadratic above it.

log p~(s) = h's + s'Js / 2, J symmetric with zero diagonal. Summing over s_k leaves 2cosh(b_k),
b_k = h_k + sum_j J_kj s_j, and log 2cosh b <= c + mu b + v b^2 / 2 is a quadratic in the spins
left (s_j^2 = 1):

    constant += c + mu h_k + v h_k^2 / 2 + (v / 2) sum_j J_kj^2,
    h_j += (mu + v h_k) J_kj,    J_ij += v J_ki J_kj (i /= j).

The last spins are summed exactly. Rows are taken in panels, as in a blocked Cholesky factorisation,
so that most of the work is matrix products; spins without couplings among each other, as in a layer
of an RBM, are one panel however many they are.

The gradient is that of reverse differentiation: with g_j = E[s_j] and G_ij = E[s_i s_j] in the
Gaussian-like model that the later steps stand for, each step adds its own spin's row to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.uppers.quadratic.tail import summed
from tightz.uppers.quadratic.touching import Touching, first_point, slopes, touching

Array = NDArray[np.float64]

PANEL = 32
"""Rows of a panel whose spins are coupled."""

_LAYER = 8
"""Uncoupled spins from which on they are taken as one panel."""


@dataclass(frozen=True, eq=False)
class Panel:
    """Rows start..stop as they were when their spin was summed out, from column `start` on."""

    start: int
    stop: int
    coupled: bool
    rows: Array
    fields: Array
    quadratics: list[Touching]

    @property
    def mu(self) -> Array:
        return np.array([q.mu for q in self.quadratics])

    @property
    def v(self) -> Array:
        return np.array([q.v for q in self.quadratics])


class Elimination:
    """All steps at `log_at`, one tangent point for each spin but the last `tail` ones.

    J and h are in the order of elimination. `value` is inf where numbers overflowed. A point that
    is NaN is chosen on the way, and found in `log_at` afterwards.
    """

    def __init__(self, couplings: Array, fields: Array, log_at: Array) -> None:
        self.log_at, self.n, self.steps = log_at.copy(), fields.size, log_at.size
        j, h = couplings.copy(), fields.copy()
        self.value = 0.0
        self.panels: list[Panel] = []
        start = 0
        with np.errstate(all="ignore"):
            while start < self.steps and np.isfinite(self.value):
                panel = self._panel(j, h, start)
                inner = panel.rows[:, panel.stop - start :]
                j[panel.stop :, panel.stop :] += (inner.T * panel.v) @ inner
                j.flat[panel.stop * (self.n + 1) :: self.n + 1] = 0.0
                self.panels.append(panel)
                start = panel.stop
            self.last = summed(j[self.steps :, self.steps :], h[self.steps :])
            self.value += self.last[0]
        if not np.isfinite(self.value):
            self.value = np.inf

    @property
    def layer(self) -> int:
        """How many of the first spins have no couplings with each other; 0 where few."""
        return 0 if not self.panels or self.panels[0].coupled else self.panels[0].stop

    def _panel(self, j: Array, h: Array, start: int) -> Panel:
        stop = uncoupled(j, start, self.steps)
        coupled = stop - start < _LAYER
        if coupled:
            stop = min(start + PANEL, self.steps)
        panel = Panel(
            start, stop, coupled, j[start:stop, start:].copy(), np.empty(stop - start), []
        )
        if coupled:
            self._one_by_one(panel, h)
        else:
            self._at_once(panel, h)
        return panel

    def _one_by_one(self, panel: Panel, h: Array) -> None:
        rows, count = panel.rows, panel.stop - panel.start
        for k in range(count):
            row = rows[k, k + 1 :]
            step = panel.start + k
            field = panel.fields[k] = float(h[step])
            size = float(row @ row)
            q = self._touch(step, field, float(np.abs(row).sum()), size)
            panel.quadratics.append(q)
            self.value += q.c + (q.mu + 0.5 * q.v * field) * field + 0.5 * q.v * size
            h[step + 1 :] += (q.mu + q.v * field) * row
            if k + 1 < count:
                rows[k + 1 :, k + 1 :] += (q.v * row[: count - k - 1, None]) * row
                rows.flat[(k + 1) * (rows.shape[1] + 1) :: rows.shape[1] + 1] = 0.0

    def _at_once(self, panel: Panel, h: Array) -> None:
        inner = panel.rows[:, panel.stop - panel.start :]
        field = h[panel.start : panel.stop].copy()
        panel.fields[:] = field
        reach, sizes = np.abs(inner).sum(axis=1), (inner * inner).sum(axis=1)
        each = zip(range(panel.start, panel.stop), field, reach, sizes, strict=True)
        for step, *of_spin in each:
            panel.quadratics.append(self._touch(step, *map(float, of_spin)))
        mu, v = panel.mu, panel.v
        self.value += sum(q.c for q in panel.quadratics)
        self.value += float((mu + 0.5 * v * field) @ field + 0.5 * v @ sizes)
        h[panel.stop :] += (mu + v * field) @ inner

    def _touch(self, step: int, field: float, reach: float, size: float) -> Touching:
        if not math.isfinite(field * field + reach * reach):
            return Touching(math.inf, 0.0, 0.0, 1.0, 0.0, 1.0, True, 0)
        if math.isnan(self.log_at[step]):
            self.log_at[step] = first_point(field, size)
        return touching(field, reach, float(self.log_at[step]))

    def moments(self) -> tuple[Array, Array, Array]:
        """(d value / d log_at, E[s], E[s s'] with zero diagonal), the latter two in order."""
        n, steps = self.n, self.steps
        gradient, g, pairs = np.zeros(steps), np.zeros(n), np.zeros((n, n))
        _, g[steps:], pairs[steps:, steps:] = self.last
        with np.errstate(all="ignore"):
            for panel in reversed(self.panels):
                if panel.coupled:
                    _back_one_by_one(panel, gradient, g, pairs)
                else:
                    _back_at_once(panel, gradient, g, pairs)
        return gradient, g, pairs


def uncoupled(couplings: Array, start: int, stop: int) -> int:
    """The end of the run of spins from `start` on that have no couplings with each other."""
    end = start + 1
    while end < stop and not couplings[end, start:end].any():
        end += 1
    return min(end, stop)


def _back_one_by_one(panel: Panel, gradient: Array, g: Array, pairs: Array) -> None:
    start, stop, rows = panel.start, panel.stop, panel.rows
    count = stop - start
    later = rows[:, count:] @ pairs[stop:, stop:]
    own = np.zeros_like(rows)  # the panel's rows of `pairs`
    for k in range(count - 1, -1, -1):
        row, q, field, below = rows[k, k + 1 :], panel.quadratics[k], panel.fields[k], own[k + 1 :]
        product = np.concatenate(
            [below[:, k + 1 :] @ row, later[k] + row[: count - k - 1] @ below[:, count:]]
        )
        ahead = g[start + k + 1 :]
        linear = float(ahead @ row)
        mean = field + linear
        square = field * field + float(row @ (row + product)) + 2.0 * field * linear
        gradient[start + k], by_field, by_reach = slopes(q, mean, square)
        own[k, k + 1 :] = q.v * (row + product) + (q.mu + q.v * field) * ahead
        if by_reach:
            own[k, k + 1 :] += by_reach * np.sign(row)
        own[k + 1 :, k] = own[k, k + 1 : count]
        g[start + k] = q.mu + q.v * mean + by_field
    pairs[start:stop, start:] = own
    pairs[start:, start:stop] = own.T


def _back_at_once(panel: Panel, gradient: Array, g: Array, pairs: Array) -> None:
    start, stop = panel.start, panel.stop
    inner, field, mu, v = panel.rows[:, stop - start :], panel.fields, panel.mu, panel.v
    product = inner @ pairs[stop:, stop:]
    linear = inner @ g[stop:]
    mean = field + linear
    square = field * field + (inner * (inner + product)).sum(axis=1) + 2.0 * field * linear
    found = [slopes(*each) for each in zip(panel.quadratics, mean, square, strict=True)]
    by_at, by_field, by_reach = np.array(found).T
    own = v[:, None] * (inner + product) + (mu + v * field)[:, None] * g[stop:]
    own += by_reach[:, None] * np.sign(inner)
    gradient[start:stop] = by_at
    g[start:stop] = mu + v * mean + by_field
    pairs[start:stop, stop:] = own
    pairs[stop:, start:stop] = own.T
