"""What a family is, what its I-projections know, and the evaluator that turns a q into a bound.

A family Q is a frozen settings object with `project`: the best q found on a coset. A q can be
asked for expectations, restricted to a half of its coset (`condition`), sampled (`draw`), and
written down for the judge (`distribution`, `proof`). A family that can also `refine` a restricted
q serves the splitting tree.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tightz.errors import TightzError
from tightz.judge.cosets import CosetQ
from tightz.judge.regions import Product, Proof
from tightz.judge.spins import ProductQ, SpinMap
from tightz.projections.coset import Coset
from tightz.projections.gf2 import unpack
from tightz.projections.hashing import Parities, Reliability


class Status(enum.Enum):
    """How the optimisation ended; the value advises."""

    CONVERGED = "converged"
    NOT_CONVERGED = "not converged: the bound holds, raise max_sweeps for a tighter one"
    OPTIMAL = "proven global optimum"
    INFEASIBLE = "no state satisfies the parities: Z(A, b) = 0"


class Drawn(NamedTuple):
    """Independent draws from a q: states (k, n) of all the polynomial's spins, log q (k,)."""

    states: NDArray[np.int8]
    log_q: NDArray[np.float64]


Projection = TypeVar("Projection", bound="IProjection")


@dataclass(frozen=True, eq=False)
class IProjection:
    """The best q found for one coset; this class is the product over the free spins.

    log_gamma     log gamma <= log Z(A, b), evaluated in float64 from q alone; NaN where that was
                  not done yet: what `condition` gives is a start (`evaluated` has the value)
    log_gammas    (restarts,) the same for every restart
    means         (n_free,) E_q[y_k] of the best restart
    sweeps        over the free spins, all restarts together
    held          (n_free,) the signs at which `condition` holds free spins, 0 where they are free;
                  None: all are. log_gamma then bounds the part of the coset with these signs
    """

    coset: Coset
    log_gamma: float
    log_gammas: NDArray[np.float64]
    means: NDArray[np.float64]
    sweeps: int
    status: Status
    held: NDArray[np.int8] | None = field(default=None, kw_only=True)

    def evaluated(self) -> float:
        """log_gamma afresh, from q alone."""
        return float(evaluate(self.coset, self.means)[0])

    def condition(self, parity: tuple[int, ...], sign: int) -> IProjection | None:
        """q on the half of its region where the product of these free spins is `sign`.

        A single spin is held, and the result is q given that half: exact, so the two halves'
        bounds add up to at least this one's. (With F the bound of a q and w+- = q(s = +-1), F(q) =
        sum_b w_b (F(q(.|b)) - log w_b), since the entropy of q is that of s plus the conditionals'
        mean entropy; by Gibbs' inequality this is at most log sum_b exp F(q(.|b)).)

        Several spins are tied: the coset gets one more parity and q the product with the same
        means, which may lose. None where the family has no q on that half.

        The result is not evaluated: a family's `refine` improves it first.
        """
        if len(parity) == 1:
            at = int(self.coset.free_index[parity[0]])
            means = self.means.copy()
            means[at] = sign
            return as_start(replace(self, held=holding(self, at, sign), means=means))
        coset = tied(self.coset, parity, sign)
        free = coset.free
        means = np.clip(self.expectations(np.arange(free.size + 1), free), -1.0, 1.0)
        held = None if self.held is None else self.held[self.coset.free_index[free]]
        return as_start(replace(self, coset=coset, held=held, means=means))

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        """`count` independent states of q, exactly; TightzError where Z(A, b) = 0."""
        check_states(self)
        y = np.where(rng.random((count, self.means.size)) < (1.0 + self.means) / 2.0, 1.0, -1.0)
        log_q = np.log((1.0 + y * self.means) / 2.0).sum(axis=1)  # no state of weight 0 is drawn
        return Drawn(self.coset.spins_from_free(y), log_q)

    def distribution(self) -> CosetQ:
        """q over the spins of the coset's polynomial, explicitly, for the judge."""
        return ProductQ(chart_of(self.coset), self.means)

    def proof(self) -> Proof:
        """q as the judge is shown it for one region of a splitting tree."""
        return Product(self.coset.free, self.means)

    def unfollowed(self) -> NDArray[np.float64]:
        """(n,) sum of |theta| over the terms at each spin whose correlations q cannot follow."""
        return weight_at_spins(self.coset, np.abs(self.coset.polynomial.theta))

    @property
    def nbytes(self) -> int:
        """Memory that q's own numbers take."""
        return self.means.nbytes

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


@runtime_checkable
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


@runtime_checkable
class Refines(Family, Protocol):
    """A family whose restricted q's can be improved where they are: what the tree takes."""

    def refine(self, q: IProjection, states: NDArray[np.int8]) -> IProjection:
        """The best q on q's own region, from q itself and from `states` in it; never below q."""


START = 0.95
"""Means of a start at a state of a region: close to its corner, yet free to leave it."""


def holding(q: IProjection, at: int, sign: int) -> NDArray[np.int8]:
    """q's held signs with one more."""
    held = np.zeros(q.coset.n_free, dtype=np.int8) if q.held is None else q.held.copy()
    held[at] = sign
    return held


def as_start(q: Projection) -> Projection:
    """q without a value of its own."""
    return replace(q, log_gamma=np.nan, log_gammas=np.zeros(0), sweeps=0)


def tied(coset: Coset, parity: tuple[int, ...], sign: int) -> Coset:
    """The part of a coset where the product of these free spins is `sign`.

    The last of them joins the constrained spins, so all others that are free stay so.
    """
    poly = coset.polynomial
    matrix = np.zeros((coset.rank + 1, poly.n), dtype=np.uint8)
    rows = np.arange(coset.rank)
    matrix[rows, coset.pivots] = 1
    matrix[: coset.rank, coset.free] = unpack(coset.support, coset.n_free)
    matrix[-1, list(parity)] = 1
    rhs = np.append(coset.sign < 0.0, sign < 0).astype(np.uint8)
    rank = np.ones(poly.n)
    rank[coset.pivots] = rank[parity[-1]] = 0.0
    return Coset.build(poly, Parities(matrix, rhs), Reliability(rank))


def check_states(q: IProjection) -> None:
    """A q on no state cannot be drawn from."""
    if not q.coset.feasible or q.log_gamma == -np.inf:
        raise TightzError("there is no state of positive weight to draw: Z(A, b) = 0")


def weight_at_spins(coset: Coset, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) the weights (terms,) of a polynomial's terms added up at their spins."""
    poly = coset.polynomial
    owner = np.repeat(np.arange(poly.n_terms), poly.arities)
    return np.bincount(poly.spins, weight[owner], minlength=poly.n).astype(np.float64)


def chart_of(coset: Coset) -> SpinMap:
    """All spins of the coset's polynomial as signed products of its free ones, for the judge."""
    n = coset.polynomial.n
    if not coset.rank:
        return SpinMap.identity(n)
    rows, columns = np.nonzero(unpack(coset.support, coset.n_free))
    owner = np.concatenate([coset.free, coset.pivots[rows]])
    free = np.concatenate([np.arange(coset.n_free), columns])
    order = np.argsort(owner, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n))])
    sign = np.ones(n)
    sign[coset.pivots] = coset.sign
    return SpinMap(coset.n_free, ptr.astype(np.int64), free[order].astype(np.int64), sign)


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
