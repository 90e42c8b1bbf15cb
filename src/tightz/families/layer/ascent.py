"""Mean field over some spins of a pairwise model, the others summed out exactly.

With I the summed spins (no two of them coupled) and q a product over the kept ones,

    objective = constant + b.v + v'Av / 2 + sum_{i in I} E_q[log 2cosh(h_i + sum_k J_ik s_k)]
              + entropy(v),

never below the mean-field objective at the same v. It is climbed twice: many starts at once with
Gaussian fields in place of their true distribution (fast, no bound), then the best of them with
the true one, on the rigorous value itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.families.layer.log_cosh import expected_log_2cosh
from tightz.families.projection import entropy
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.runtime.clock import leave_if_over

if TYPE_CHECKING:
    from scipy import sparse

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
WEIGHTS = WEIGHTS / WEIGHTS.sum()

MAX_POINTS = 10_000_000
"""Quadrature points handled at a time: starts are taken in blocks of this size."""

_LARGEST = 1e150
"""Couplings above this have squares beyond float64."""

DENSE = 0.05
"""Couplings are stored as a full matrix above this density."""


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """A pairwise polynomial split into kept spins and an independent set of summed ones.

    kept (K,), summed (I,) spin numbers; field (K,) and inner (K, K) act among the kept spins,
    summed_field (I,) and weights (I, K, CSR) on the summed ones.
    """

    constant: float
    kept: NDArray[np.int64]
    summed: NDArray[np.int64]
    field: NDArray[np.float64]
    inner: sparse.csr_array
    summed_field: NDArray[np.float64]
    weights: sparse.csr_array

    @classmethod
    def build(cls, poly: SpinPolynomial, summed: NDArray[np.int64]) -> LayerProblem:
        """Split `poly` (degree at most 2); `summed` must be independent."""
        from scipy import sparse

        is_summed = np.zeros(poly.n, dtype=bool)
        is_summed[summed] = True
        summed, kept = np.flatnonzero(is_summed), np.flatnonzero(~is_summed)
        number = np.empty(poly.n, dtype=np.int64)
        number[summed], number[kept] = np.arange(summed.size), np.arange(kept.size)
        field, pairs, theta = np.zeros(poly.n), np.zeros((0, 2), np.int64), np.zeros(0)
        for arity, rows, values in poly.by_arity():
            if arity == 1:
                field[rows[:, 0]] = values
            else:
                pairs, theta = rows.astype(np.int64), values
        cross = is_summed[pairs].any(axis=1)
        ends = pairs[cross]
        flip = is_summed[ends[:, 1]]
        rows = np.where(flip, ends[:, 1], ends[:, 0])
        columns = np.where(flip, ends[:, 0], ends[:, 1])
        weights = sparse.csr_array(
            (theta[cross], (number[rows], number[columns])), shape=(summed.size, kept.size)
        )
        within = number[pairs[~cross]].reshape(-1, 2)
        both = np.concatenate([within, within[:, ::-1]])
        inner = sparse.csr_array(
            (np.tile(theta[~cross], 2), (both[:, 0], both[:, 1])), shape=(kept.size, kept.size)
        )
        return cls(poly.constant, kept, summed, field[kept], inner, field[summed], weights)

    @cached_property
    def matrices(self) -> tuple[NDArray | sparse.csr_array, NDArray | sparse.csr_array]:
        """The couplings and their squares, as full matrices where that is faster."""
        entries = self.weights.shape[0] * self.weights.shape[1]
        largest = float(np.abs(self.weights.data).max(initial=0.0))
        if largest > _LARGEST:
            raise UnsupportedModelError(
                f"a coupling of {largest:.3g} is beyond what the layer's integral can square; "
                "tz.mean_field takes it"
            )
        if self.weights.nnz >= DENSE * entries:
            full = self.weights.toarray()
            return full, full**2
        return self.weights, self.weights.power(2)

    def _fields(self, v: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(mean, standard deviation) (I, R) of the fields on the summed spins; v (K, R)."""
        couplings, squares = self.matrices
        mean = self.summed_field[:, None] + couplings @ v
        return mean, np.sqrt(np.maximum(squares @ (1.0 - v * v), 0.0))

    def curvature(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """(I,) E[1 / cosh^2] of each summed spin's field, as if Gaussian; v (K,)."""
        mean, spread = self._fields(v[:, None])
        return (1.0 - np.tanh(mean + spread * NODES) ** 2) @ WEIGHTS

    def gaussian(self, v: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(objective (R,), its gradient less the entropy's (K, R)) with Gaussian fields; v (K, R).

        The gradient is that of the quadrature itself, so that no step is misjudged.
        """
        couplings, squares = self.matrices
        mean, spread = self._fields(v)
        x = mean[:, :, None] + spread[:, :, None] * NODES
        size = np.abs(x)
        decay = np.exp(-2.0 * size)
        value = ((size + np.log1p(decay)) @ WEIGHTS).sum(axis=0)
        tanh = np.sign(x) * (1.0 - decay) / (1.0 + decay)
        curve = tanh @ (WEIGHTS * NODES) / np.maximum(spread, 1e-12)
        curve = np.where(spread > 1e-6, curve, 1.0 - tanh[:, :, NODES.size // 2] ** 2)
        inner = self.inner @ v
        value += self.constant + self.field @ v + 0.5 * (v * inner).sum(axis=0)
        gradient = self.field[:, None] + inner + couplings.T @ (tanh @ WEIGHTS)
        return value + entropy(v).sum(axis=0), gradient - v * (squares.T @ curve)

    def lower_bound(
        self, v: NDArray[np.float64], *, gradient: bool = False
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """(rigorous objective, E[s_i] of the summed spins, gradient (K,) or nothing); v (K,)."""
        w = self.weights
        ptr, spins = w.indptr.astype(np.int64), w.indices.astype(np.int32)
        lower, tanh, slopes = expected_log_2cosh(
            self.summed_field, ptr, spins, w.data, v, slopes=gradient
        )
        inner = self.inner @ v
        value = self.constant + self.field @ v + 0.5 * (v @ inner) + lower.sum() + entropy(v).sum()
        if not gradient:
            return float(value), tanh, slopes
        return (
            float(value),
            tanh,
            self.field + inner + np.bincount(spins, slopes, minlength=v.size),
        )


def climb_gaussian(
    problem: LayerProblem, v: NDArray[np.float64], held: NDArray[np.bool_], tol: float, steps: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """(means (K, R), Gaussian objectives (R,), all converged) from v (K, R); `held` means stay."""
    block = max(1, MAX_POINTS // (NODES.size * max(problem.summed.size, 1)))
    parts = []
    for first in range(0, v.shape[1], block):
        columns = slice(first, first + block)
        parts.append(_climb(problem, v[:, columns], held[:, columns], tol, steps))
    return (
        np.concatenate([p[0] for p in parts], axis=1),
        np.concatenate([p[1] for p in parts]),
        all(p[2] for p in parts),
    )


def _climb(
    problem: LayerProblem, v: NDArray[np.float64], held: NDArray[np.bool_], tol: float, steps: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Damped fixed-point steps on atanh(v), each lane with its own step; a loss is taken back."""
    top = np.tanh(18.0)
    v = np.where(held, v, np.clip(v, -top, top))
    natural = np.arctanh(np.clip(v, -top, top))
    value, gradient = problem.gaussian(v)
    pace = np.full(v.shape[1], 0.3)
    done = np.zeros(v.shape[1], dtype=bool)
    for _ in range(steps):
        leave_if_over()
        trial = natural + pace * (gradient - natural)
        trial_v = np.where(held, v, np.tanh(trial))
        trial_value, trial_gradient = problem.gaussian(trial_v)
        better = trial_value >= value - 1e-12 * np.abs(value)
        done = (better & (trial_value - value <= tol * pace)) | (pace < 1e-3)
        natural = np.where(better, trial, natural)
        v = np.where(better, trial_v, v)
        gradient = np.where(better, trial_gradient, gradient)
        value = np.where(better, trial_value, value)
        pace = np.where(better, np.minimum(1.2 * pace, 1.0), 0.4 * pace)
        if done.all():
            break
    return v, value, bool(done.all())


def climb_exact(
    problem: LayerProblem, v: NDArray[np.float64], held: NDArray[np.bool_], tol: float, steps: int
) -> tuple[NDArray[np.float64], float, bool]:
    """(means (K,), rigorous objective, converged): the same climb on the rigorous value."""
    top = np.tanh(18.0)
    natural = np.arctanh(np.clip(v, -top, top))
    value, _, gradient = problem.lower_bound(v, gradient=True)
    pace = 0.5
    for _ in range(steps):
        trial = natural + pace * (gradient - natural)
        trial_v = np.where(held, v, np.tanh(trial))
        trial_value, _, trial_gradient = problem.lower_bound(trial_v, gradient=True)
        gain = trial_value - value
        if gain > 0.0:
            natural, v, value, gradient = trial, trial_v, trial_value, trial_gradient
            if gain <= tol * pace:
                return v, value, True
            pace = min(1.2 * pace, 1.0)
        else:
            pace *= 0.4
            if pace < 1e-3:
                return v, value, True
    return v, value, False
