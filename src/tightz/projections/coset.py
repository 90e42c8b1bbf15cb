"""The coset {x : A x = b mod 2} as free spins and signed products of them.

s_i = sign_i * prod_{k in support_i} y_k for a constrained spin i, with y the free spins. This is
the paper's row-reduced form C = [I | A'] with the permutation kept explicit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError, ParameterError
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.gf2 import pack, row_reduce, unpack
from tightz.projections.grouped import GroupedPolynomial, group_terms
from tightz.projections.hashing import FirstColumns, Parities, PivotPolicy
from tightz.runtime.kernels import kernel

_TERMS = 4096
"""Terms substituted at a time: each takes a byte per free spin."""


@dataclass(frozen=True, eq=False, repr=False)
class Coset:
    """One random projection of a spin polynomial.

    m             parities drawn (rows of A); `rank` of them are independent
    feasible      False when no state satisfies A x = b: Z(A, b) = 0
    pivots        (rank,) constrained spins; free: (n_free,) the others, ascending
    pivot_row     (n,) row of `support` for a constrained spin, -1 for a free one
    free_index    (n,) position among the free spins, -1 for a constrained one
    support       (rank, words) packed free positions whose product gives the constrained spin
    sign          (rank,) +1.0 or -1.0
    """

    polynomial: SpinPolynomial
    m: int
    feasible: bool
    pivots: NDArray[np.int64]
    free: NDArray[np.int64]
    pivot_row: NDArray[np.int64]
    free_index: NDArray[np.int64]
    support: NDArray[np.uint64]
    sign: NDArray[np.float64]

    @property
    def rank(self) -> int:
        return int(self.pivots.size)

    @property
    def n_free(self) -> int:
        return int(self.free.size)

    @classmethod
    def build(
        cls,
        polynomial: SpinPolynomial,
        parities: Parities | None = None,
        policy: PivotPolicy | None = None,
    ) -> Coset:
        """Row-reduce `parities` over the polynomial's spins; None means no constraint (m = 0)."""
        n = polynomial.n
        if parities is None:
            parities = Parities(np.zeros((0, n), np.uint8), np.zeros(0, np.uint8))
        matrix = np.asarray(parities.matrix, dtype=np.uint8)
        rhs = np.array(parities.rhs, dtype=np.uint8)
        if matrix.ndim != 2 or matrix.shape[1] != n or rhs.shape != matrix.shape[:1]:
            raise ModelError(
                f"parities have shapes {matrix.shape} and {rhs.shape}; a model of {n} spins needs "
                f"(m, {n}) and (m,)"
            )
        m = len(matrix)
        rows = pack(matrix)
        pivots = np.full(m, -1, dtype=np.int64)
        order = (policy or FirstColumns()).order(n).astype(np.int64) if m else np.zeros(0, np.int64)
        # Row r now reads x_pivot + (sum of free x in the row) = b_r: the constrained spin is
        # sign_r times the product of the row's free spins. Which columns become pivots changes the
        # parametrisation, never the set.
        rank = int(row_reduce(rows, rhs, order, pivots))
        pivots = pivots[:rank]
        pivot_row = np.full(n, -1, dtype=np.int64)
        pivot_row[pivots] = np.arange(rank)
        free = np.flatnonzero(pivot_row < 0)
        free_index = np.full(n, -1, dtype=np.int64)
        free_index[free] = np.arange(free.size)
        support = np.zeros((rank, max(1, -(-free.size // 64))), dtype=np.uint64)
        _compress_columns(rows[:rank], free, support)
        return cls(
            polynomial=polynomial,
            m=m,
            # Rows beyond the rank are 0 = b_r. They are kept and counted, never redrawn: E[Z(A,
            # b)] = 2^-m Z needs infeasible draws to count as 0.
            feasible=not rhs[rank:].any(),
            pivots=pivots,
            free=free,
            pivot_row=pivot_row,
            free_index=free_index,
            support=support,
            sign=1.0 - 2.0 * rhs[:rank].astype(np.float64),
        )

    @cached_property
    def grouped(self) -> GroupedPolynomial:
        """The polynomial over the free spins in the form that the kernels work on."""
        return group_terms(
            self.polynomial,
            self.pivot_row,
            self.free_index,
            self.support,
            self.sign,
            self.n_free,
        )

    def images(self, ptr: NDArray, spins: NDArray) -> tuple[NDArray[np.uint64], NDArray]:
        """Products of model spins (CSR) as packed free spins (terms, words) and signs (terms,)."""
        words = np.zeros((len(ptr) - 1, self.support.shape[1]), dtype=np.uint64)
        signs = np.ones(len(ptr) - 1)
        _images(
            np.asarray(ptr, np.int64), np.asarray(spins, np.int32), self.pivot_row,
            self.free_index, self.support, self.sign, words, signs,
        )  # fmt: skip
        return words, signs

    def substituted(self) -> SpinPolynomial:
        """The polynomial over the free spins, every term expanded and equal terms merged."""
        return self.substitute(self.polynomial)

    def substitute(self, poly: SpinPolynomial) -> SpinPolynomial:
        """Any polynomial over the model's spins as one over the free spins: equal on the coset."""
        terms: list[tuple[NDArray, float]] = []
        for first in range(0, poly.n_terms, _TERMS):
            last = min(first + _TERMS, poly.n_terms)
            words, signs = self.images(poly.ptr[first : last + 1], poly.spins)
            members = (np.flatnonzero(row) for row in unpack(words, self.n_free))
            terms += zip(members, signs * poly.theta[first:last], strict=True)
        return SpinPolynomial.from_terms(self.n_free, poly.constant, terms)

    def expectations(
        self, ptr: NDArray, spins: NDArray, means: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """E_q[prod_{i in a} s_i] for each term a (CSR over model spins); Proposition 1.

        q is the product over free spins with E y_k = means[k] or means[k, lane]; returns
        (terms, lanes).
        """
        v = np.ascontiguousarray(means[:, None] if means.ndim == 1 else means)
        out = np.ones((len(ptr) - 1, v.shape[1]))
        _expectations(
            np.asarray(ptr, np.int64), np.asarray(spins, np.int32), self.pivot_row,
            self.free_index, self.support, self.sign, v, out,
        )  # fmt: skip
        return out

    def spins_from_free(self, free_spins: NDArray) -> NDArray[np.int8]:
        """All n spins of the states whose free spins (S, n_free) are given."""
        y = np.array(np.atleast_2d(free_spins), dtype=np.float64).T
        ptr = np.arange(self.polynomial.n + 1)
        spins = self.expectations(ptr, np.arange(self.polynomial.n), y)
        return spins.T.astype(np.int8)

    def contains(self, spins: NDArray) -> NDArray[np.bool_]:
        """Which rows of `spins` (S, n) satisfy the parities."""
        s = np.atleast_2d(spins)
        if not self.feasible:
            return np.zeros(len(s), dtype=bool)
        return (self.spins_from_free(s[:, self.free]) == s).all(axis=1)

    def __repr__(self) -> str:
        note = "" if self.feasible else ", infeasible"
        return f"Coset({self.m} parities of rank {self.rank}, {self.n_free} free spins{note})"


def check_level(m: int, n: int) -> int:
    """Refuse a number of parities outside 0..n."""
    if not 0 <= m <= n:
        raise ParameterError(f"m is {m}; a model of {n} binary variables takes 0 <= m <= {n}")
    return int(m)


@kernel
def _compress_columns(rows, free, support):  # type: ignore[no-untyped-def]
    """Keep the free columns of `rows` only, renumbered by their position among the free ones."""
    for r in range(rows.shape[0]):
        for k in range(free.size):
            column = free[k]
            bit = (rows[r, column >> 6] >> np.uint64(column & 63)) & np.uint64(1)
            support[r, k >> 6] |= bit << np.uint64(k & 63)


@kernel
def _images(ptr, spins, pivot_row, free_index, support, sign, words, signs):  # type: ignore[no-untyped-def]
    """words[a], signs[a]: symmetric difference of the supports of term a's members, and sign."""
    for a in range(ptr.size - 1):
        for p in range(ptr[a], ptr[a + 1]):
            i = spins[p]
            row = pivot_row[i]
            # s^2 = 1, so a free spin that occurs twice cancels: xor of bit sets is multiplication
            # of spins.
            if row < 0:
                k = free_index[i]
                words[a, k >> 6] ^= np.uint64(1) << np.uint64(k & 63)
            else:
                signs[a] *= sign[row]
                for w in range(words.shape[1]):
                    words[a, w] ^= support[row, w]


@kernel
def _expectations(ptr, spins, pivot_row, free_index, support, sign, v, out):  # type: ignore[no-untyped-def]
    """out[a, lane] = sign * prod_{k in image(a)} v[k, lane], straight from the definition."""
    lanes = v.shape[1]
    image = np.zeros(support.shape[1], dtype=np.uint64)
    for a in range(ptr.size - 1):
        constrained = False
        for p in range(ptr[a], ptr[a + 1]):
            constrained |= pivot_row[spins[p]] >= 0
        if not constrained:
            for p in range(ptr[a], ptr[a + 1]):
                k = free_index[spins[p]]
                for r in range(lanes):
                    out[a, r] *= v[k, r]
            continue
        # Under a product q, E of a product of distinct free spins is the product of their means.
        # That is Proposition 1 of the paper in all three of its cases at once: the image decides
        # which spins are left.
        image[:] = np.uint64(0)
        s = 1.0
        for p in range(ptr[a], ptr[a + 1]):
            i = spins[p]
            row = pivot_row[i]
            if row < 0:
                image[free_index[i] >> 6] ^= np.uint64(1) << np.uint64(free_index[i] & 63)
            else:
                s *= sign[row]
                for w in range(image.size):
                    image[w] ^= support[row, w]
        for r in range(lanes):
            out[a, r] = s
        for w in range(image.size):
            bits = image[w]
            k = w << 6
            while bits != np.uint64(0):
                if bits & np.uint64(1):
                    for r in range(lanes):
                        out[a, r] *= v[k, r]
                bits >>= np.uint64(1)
                k += 1
