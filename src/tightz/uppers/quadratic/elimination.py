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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.uppers.quadratic.panels import eliminated, moments_of, uncoupled
from tightz.uppers.quadratic.tail import summed

Array = NDArray[np.float64]

PANEL = 64
"""Rows of a panel whose spins are coupled. Half as many take as long, but ask for the interpreter
twice as often."""

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
    quadratics: Array  # a Touching in each row

    @property
    def mu(self) -> Array:
        return self.quadratics[:, 1]

    @property
    def v(self) -> Array:
        return self.quadratics[:, 2]


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
        count = stop - start
        rows = j[start:stop, start:].copy()
        panel = Panel(start, stop, coupled, rows, np.zeros(count), np.zeros((count, 8)))
        self.value += eliminated(
            rows, h, self.log_at, start, coupled, panel.quadratics, panel.fields
        )
        return panel

    def moments(self) -> tuple[Array, Array, Array]:
        """(d value / d log_at, E[s], E[s s'] with zero diagonal), the latter two in order."""
        n, steps = self.n, self.steps
        gradient, g, pairs = np.zeros(steps), np.zeros(n), np.zeros((n, n))
        _, g[steps:], pairs[steps:, steps:] = self.last
        with np.errstate(all="ignore"):
            for panel in reversed(self.panels):
                start, stop, rows = panel.start, panel.stop, panel.rows
                own = np.zeros_like(rows)  # the panel's rows of `pairs`
                later = rows[:, stop - start :] @ pairs[stop:, stop:]
                moments_of(
                    rows, later, panel.quadratics, panel.fields, start, panel.coupled,
                    g, gradient, own,
                )  # fmt: skip
                pairs[start:stop, start:] = own
                pairs[start:, start:stop] = own.T
        return gradient, g, pairs
