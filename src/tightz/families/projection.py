"""What an I-projection returns, and the one evaluator that turns a q into a bound."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.projections.coset import Coset


class Status(enum.Enum):
    """How the optimisation ended; the value advises."""

    CONVERGED = "converged"
    NOT_CONVERGED = "not converged: the bound holds, raise max_sweeps for a tighter one"
    OPTIMAL = "proven global optimum"
    INFEASIBLE = "no state satisfies the parities: Z(A, b) = 0"


@dataclass(frozen=True, eq=False)
class IProjection:
    """The best q found for one coset.

    log_gamma     log gamma <= log Z(A, b), evaluated in float64 from `means`
    log_gammas    (restarts,) the same for every restart
    means         (n_free,) E_q[y_k] of the best restart
    sweeps        over the free spins, all restarts together
    """

    coset: Coset
    log_gamma: float
    log_gammas: NDArray[np.float64]
    means: NDArray[np.float64]
    sweeps: int
    status: Status

    def expectations(self, ptr: NDArray, spins: NDArray) -> NDArray[np.float64]:
        """E_q[prod of spins[ptr[a]:ptr[a+1]]] for each a; NaN where Z(A, b) = 0."""
        if not self.coset.feasible:
            return np.full(len(ptr) - 1, np.nan)
        return self.coset.expectations(ptr, spins, self.means)[:, 0]

    def spin_means(self) -> NDArray[np.float64]:
        """E_q[s_i] for all n spins (Proposition 1, singletons)."""
        n = self.coset.polynomial.n
        return self.expectations(np.arange(n + 1), np.arange(n))

    def pair_means(self, pairs: NDArray) -> NDArray[np.float64]:
        """E_q[s_i s_j] for rows (i, j) of `pairs` (Proposition 1, pairs)."""
        rows = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        return self.expectations(2 * np.arange(len(rows) + 1), rows.ravel())

    def marginals(self) -> NDArray[np.float64]:
        """mu_i = q(x_i = 1) = (1 - E s_i) / 2 for all n variables."""
        return (1.0 - self.spin_means()) / 2.0

    def pair_marginals(self, pairs: NDArray) -> NDArray[np.float64]:
        """mu_ij = q(x_i = 1, x_j = 1) for rows (i, j) of `pairs`."""
        rows = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        s = self.spin_means()
        return (1.0 - s[rows[:, 0]] - s[rows[:, 1]] + self.pair_means(rows)) / 4.0


class Family(Protocol):
    """A tractable family Q that contains every point mass (D inside Q)."""

    @property
    def restarts(self) -> int:
        """Starting points per projection (the paper's J)."""

    def project(
        self, coset: Coset, rng: np.random.Generator, states: NDArray | None = None
    ) -> IProjection:
        """Look for the q in Q, on this coset, with the largest bound.

        `states` (S, n) are heavy states of the whole model, spins +-1, heaviest first, that may
        serve as starts: keep their free spins and let the constrained ones follow.
        """


def heaviest_in_coset(coset: Coset, states: NDArray, count: int) -> NDArray[np.float64]:
    """Free spins (count, n_free) of the heaviest states reached by repairing `states`.

    A state is repaired by keeping its free spins: with the least reliable spins constrained this
    is the cheapest repair to first order (ordered-statistics decoding of order 0).
    """
    free = states[:, coset.free]
    weights = coset.polynomial.log_weight(coset.spins_from_free(free))
    top = np.argsort(-weights, kind="stable")[: 4 * count]
    _, first = np.unique(free[top], axis=0, return_index=True)  # states may agree on free spins
    return free[top[np.sort(first)[:count]]].astype(np.float64)


def entropy(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy in nats of spins with the given means, elementwise; 0 at +-1."""
    up, down = (1.0 + means) / 2.0, (1.0 - means) / 2.0
    with np.errstate(divide="ignore", invalid="ignore"):
        h = -(np.where(up > 0, up * np.log(up), 0.0) + np.where(down > 0, down * np.log(down), 0.0))
    return h


def evaluate(coset: Coset, means: NDArray[np.float64]) -> NDArray[np.float64]:
    """The bound log gamma of every product q: theta . E_q[chi] + entropy, per column of `means`.

    Independent of every optimiser and of the factored polynomial they run on: it starts from the
    model's own terms and the coset's supports, in float64. means (n_free, lanes) in [-1, 1].
    """
    v = np.asarray(means, dtype=np.float64)
    v = v[:, None] if v.ndim == 1 else v
    poly = coset.polynomial
    if not coset.feasible or poly.constant == -np.inf:
        return np.full(v.shape[1], -np.inf)
    if np.isnan(v).any() or (np.abs(v) > 1.0).any():
        raise ArithmeticError("a mean lies outside [-1, 1]: this is a bug in the optimiser")
    chi = coset.expectations(poly.ptr, poly.spins, v)
    # einsum, not @: the sum must not depend on how many threads BLAS has
    return poly.constant + np.einsum("t,tr->r", poly.theta, chi) + entropy(v).sum(axis=0)
