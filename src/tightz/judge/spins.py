"""The bound of a product q over free spins, from its means and the terms of a spin polynomial.

With s_i = sign_i * prod_{k in S_i} y_k and y -> s injective, the states s(y) are part of all
states, so for every q over y

    log Z >= constant + sum_a theta_a E_q[chi_a(s(y))] + H(q)                       (Jensen).

E_q[chi_a] of a product q is the sign times the product of the means of the spins that the supports
of a's members leave over (y_k^2 = 1).

Rounding (u = 2^-53, first order, doubled at the end):
- a product of k means: k u |E|, and 2^-1074 for each factor that may have made it underflow;
- theta * E: u |theta E|; the sum of everything is rounded once by fsum: u |value|;
- p = (1 + v) / 2 is within u p of the truth, so -p log p is within u (p |log p| + p) for that, and
  within (LIBRARY + 2 u) p |log p| for log, product and sum of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import LIBRARY, UNIT, RefutedError

TINY = 2.0**-1074
"""Absolute error of an operation whose result underflows."""

_MAX_BITS = 1 << 24
"""Free spins times terms that are expanded at a time."""


@dataclass(frozen=True, eq=False)
class SpinTerms:
    """log p~(s) = constant + sum_a theta_a prod of s over spins[ptr[a]:ptr[a+1]]."""

    constant: float
    ptr: NDArray[np.int64]
    spins: NDArray[np.int64]
    theta: NDArray[np.float64]

    @classmethod
    def of(cls, polynomial: object) -> SpinTerms:
        """From anything that has these four attributes, a SpinPolynomial say."""
        return cls(
            float(polynomial.constant),  # type: ignore[attr-defined]
            np.asarray(polynomial.ptr, dtype=np.int64),  # type: ignore[attr-defined]
            np.asarray(polynomial.spins, dtype=np.int64),  # type: ignore[attr-defined]
            np.asarray(polynomial.theta, dtype=np.float64),  # type: ignore[attr-defined]
        )

    @property
    def impossible(self) -> bool:
        """Whether the polynomial says that no state has weight."""
        return self.constant == -math.inf

    def check(self) -> None:
        """RefutedError unless every number is finite, or the constant -inf."""
        sane = not math.isnan(self.constant) and self.constant < math.inf
        if not sane or not np.isfinite(self.theta).all():
            raise RefutedError("a coefficient of the polynomial is not a number")

    def log_weights(self, states: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(log p~, its rounding) at each row of spins +-1: signs are exact, fsum rounds once."""
        odd = np.asarray(states) < 0
        owner = np.repeat(np.arange(self.theta.size), np.diff(self.ptr))
        values, errors = np.empty(len(odd)), np.empty(len(odd))
        for r, row in enumerate(odd):
            # Parity of the number of -1 spins in each term: the sign is exact, only the sum
            # rounds.
            flips = np.bincount(owner[row[self.spins]], minlength=self.theta.size)
            values[r] = exact_sum([self.constant], np.where(flips & 1, -self.theta, self.theta))
            errors[r] = UNIT * abs(values[r]) if np.isfinite(values[r]) else 0.0
        return values, errors


@dataclass(frozen=True, eq=False)
class SpinMap:
    """s_i = sign[i] * prod of y_k over k in free[ptr[i]:ptr[i+1]]; n_free spins y."""

    n_free: int
    ptr: NDArray[np.int64]
    free: NDArray[np.int64]
    sign: NDArray[np.float64]

    @classmethod
    def identity(cls, n: int) -> SpinMap:
        """Every spin is free."""
        return cls(n, np.arange(n + 1), np.arange(n), np.ones(n))

    @classmethod
    def of(cls, support: NDArray[np.bool_], sign: NDArray[np.float64]) -> SpinMap:
        """From support (n, n_free) and sign (n,)."""
        dense = np.asarray(support, dtype=bool)
        ptr = np.concatenate([[0], np.cumsum(dense.sum(axis=1))]).astype(np.int64)
        return cls(dense.shape[1], ptr, np.nonzero(dense)[1], np.asarray(sign, np.float64))

    @property
    def n(self) -> int:
        return int(self.ptr.size - 1)

    def check(self) -> None:
        """RefutedError unless y -> s is injective: each free spin stands alone in some row.

        Then y_k = sign_i s_i for that row, so different y give different states.
        """
        sizes = np.diff(self.ptr)
        inside = (self.free >= 0) & (self.free < self.n_free)
        fits = self.sign.shape == (self.n,) and self.ptr[0] == 0 and self.ptr[-1] == self.free.size
        if not fits or (sizes < 0).any() or not inside.all() or (np.abs(self.sign) != 1.0).any():
            raise RefutedError("a map of free spins has a wrong shape or a sign that is none")
        # Sufficient for injectivity, and what all makers provide: constrained spins follow from
        # free ones that are themselves spins of the model.
        alone = np.zeros(self.n_free, dtype=bool)
        alone[self.free[self.ptr[:-1][sizes == 1]]] = True
        if not alone.all():
            raise RefutedError("free spins do not stand alone in any spin: states may repeat")

    def spins(self, free_spins: NDArray) -> NDArray[np.float64]:
        """All spins (S, n) of rows of free ones (S, n_free)."""
        y = np.atleast_2d(np.asarray(free_spins, dtype=np.float64))
        owner = np.repeat(np.arange(self.n), np.diff(self.ptr))
        odd = np.zeros((self.n, len(y)), dtype=np.int64)
        np.add.at(odd, owner, (y[:, self.free] < 0.0).T)
        return self.sign * (1.0 - 2.0 * (odd.T & 1))

    def images(
        self, terms: SpinTerms
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """(term, free spin, signs): chi_a is signs[a] times its distinct free spins, by term."""
        spins, count = terms.spins, terms.theta.size
        if ((spins < 0) | (spins >= self.n)).any() or terms.ptr[-1] != spins.size:
            raise RefutedError("a term names a spin that the map does not have")
        sizes = np.diff(self.ptr)
        owner = np.repeat(np.arange(count), np.diff(terms.ptr))
        odd = np.bincount(owner, self.sign[spins] < 0.0, minlength=count).astype(np.int64) & 1
        # Most terms hold only free spins, each once: they are their own image. The others go
        # through symmetric differences of bit sets, where a spin that occurs twice drops out.
        mixed = np.zeros(count, dtype=bool)
        mixed[owner[sizes[spins] > 1]] = True
        single = np.flatnonzero(sizes[spins] == 1)
        row, column = owner[single], self.free[self.ptr[spins[single]]]
        repeats = np.flatnonzero((np.diff(row) == 0) & (np.diff(column) <= 0))
        mixed[row[repeats]] = True  # perhaps a spin twice: let the symmetric difference decide
        plain = ~mixed[row]
        rows, columns = [row[plain]], [column[plain]]
        for chunk, bits in self._differences(terms, np.flatnonzero(mixed)):
            at, spin = np.nonzero(bits)
            rows.append(chunk[at])
            columns.append(spin)
        row, column = np.concatenate(rows).astype(np.int64), np.concatenate(columns)
        if len(rows) > 1:
            order = np.argsort(row, kind="stable")
            row, column = row[order], column[order]
        return row, column, (1 - 2 * odd).astype(np.float64)

    def _differences(
        self, terms: SpinTerms, which: NDArray[np.int64]
    ) -> Iterable[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """(terms, bits (terms, n_free)): symmetric differences of the supports of the members."""
        if not which.size:
            return
        dense = np.zeros((self.n, -(-self.n_free // 8)), dtype=np.uint8)
        owner = np.repeat(np.arange(self.n), np.diff(self.ptr))
        shift = (7 - (self.free & 7)).astype(np.uint8)
        np.bitwise_xor.at(dense, (owner, self.free >> 3), np.uint8(1) << shift)
        arity = np.diff(terms.ptr)
        step = max(1, _MAX_BITS // max(self.n_free, 1))
        for size in np.unique(arity[which]).tolist():
            group = which[arity[which] == size]
            for low in range(0, group.size, step):
                chunk = group[low : low + step]
                members = terms.spins[terms.ptr[chunk][:, None] + np.arange(size)]
                packed = np.bitwise_xor.reduce(dense[members], axis=1)
                yield chunk, np.unpackbits(packed, axis=1, count=self.n_free)


class SpinDistribution(Protocol):
    """An explicit q over free spins."""

    @property
    def n(self) -> int:
        """Spins of the polynomial that q is about: one more, and q would count states twice."""

    def value(self, terms: SpinTerms) -> tuple[float, float]:
        """(a lower bound on log sum_s exp of the terms, its rounding, not yet subtracted)."""


@dataclass(frozen=True, eq=False)
class ProductQ:
    """Independent free spins with these means; `chart` says what the others are."""

    chart: SpinMap
    means: NDArray[np.float64]

    @property
    def n(self) -> int:
        """Spins of the polynomial."""
        return self.chart.n

    def value(self, terms: SpinTerms) -> tuple[float, float]:
        """The bound of this q and its rounding."""
        v = np.asarray(self.means, dtype=np.float64)
        self.chart.check()
        terms.check()
        if v.shape != (self.chart.n_free,) or not (np.abs(v) <= 1.0).all():
            raise RefutedError("a mean lies outside [-1, 1], or there is not one per free spin")
        if terms.impossible:
            return -math.inf, 0.0
        row, free, signs = self.chart.images(terms)
        length = np.bincount(row, minlength=signs.size)
        # Independent spins: the mean of a product of distinct ones is the product of means.
        expected = signs * segment_products(v[free], length)
        errors = length * (UNIT * np.abs(expected) + TINY)
        return combine(terms, expected, errors, *binary_entropy(v))


def combine(
    terms: SpinTerms,
    expected: NDArray[np.float64],
    errors: NDArray[np.float64],
    entropies: NDArray[np.float64],
    entropy_error: float,
) -> tuple[float, float]:
    """constant + theta . expected + sum of entropies, and twice the first-order rounding."""
    energies = terms.theta * expected
    value = exact_sum([terms.constant], energies, entropies)
    if not math.isfinite(value):
        return -math.inf, 0.0
    rounding = UNIT * (abs(value) + exact_sum(np.abs(energies)) + TINY * energies.size)
    rounding += exact_sum(np.abs(terms.theta) * errors) + entropy_error
    return value, 2.0 * rounding


def binary_entropy(means: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """(-p log p of both states of every spin, the error of their sum)."""
    p = np.concatenate([1.0 + means, 1.0 - means]) / 2.0
    parts, error = plogp(p)
    return parts, error + UNIT * float(p.size)


def plogp(p: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """(-p log p, 0 at 0; the error of the sum of these for the p given, log and product alone)."""
    parts = -p * np.log(np.where(p > 0.0, p, 1.0))
    return parts, (LIBRARY + 3 * UNIT) * float(np.abs(parts).sum()) + TINY * p.size


def segment_products(values: NDArray[np.float64], length: NDArray) -> NDArray[np.float64]:
    """The product of each of the consecutive segments of `values`; 1 for an empty one."""
    if not len(length):
        return np.zeros(0)
    ends = np.cumsum(length)
    # A 1 in front of every segment: reduceat cannot express an empty one.
    padded = np.insert(values, ends - length, 1.0)
    return np.multiply.reduceat(padded, ends - length + np.arange(len(length)))


def exact_sum(*parts: Iterable[float]) -> float:
    """The sum, rounded once; -inf where it overflows or is no number."""
    numbers = [x for part in parts for x in (part.tolist() if hasattr(part, "tolist") else part)]
    try:
        total = math.fsum(numbers)
    except (OverflowError, ValueError):
        return -math.inf
    return total if total < math.inf else -math.inf
