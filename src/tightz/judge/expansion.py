"""The judge's own Walsh expansions, and how far another polynomial is from them at any state.

Two polynomials over spins differ at no state by more than the sum of |coefficient differences|.
So a polynomial that somebody made is compared coefficient by coefficient with one made here, and
the difference is paid for: no state is sampled, and a wrong polynomial costs at least its lie.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.judge.spins import SpinTerms, exact_sum
from tightz.judge.verdict import UNIT


def walsh(tables: NDArray[np.float64]) -> NDArray[np.float64]:
    """(F, 2^r) coefficients: entry c is 2^-r sum_x t(x) (-1)^(bits of x and c); halves first.

    Each of the r steps rounds by at most u max |t|, so a coefficient is within r u max |t|.
    """
    count, size = tables.shape
    step = 1
    while step < size:
        halves = tables.reshape(count, -1, 2, step) / 2.0
        a, b = halves[:, :, 0], halves[:, :, 1]
        tables = np.stack([a + b, a - b], axis=2)
        step *= 2
    return tables.reshape(count, size)


def walsh_error(top: NDArray[np.float64], bits: int) -> float:
    """Error at any state of the expansions of tables of `bits` spins with these max |t|."""
    return UNIT * bits * 2.0**bits * float(top.sum())


def far_off(error: float, derived: float, terms: SpinTerms) -> bool:
    """Whether a polynomial differs from what it stands for by more than rounding explains.

    The difference is paid for whatever it is: this tells a defect from the makers' own rounding,
    which may be larger than the judge's and goes with the size of the numbers.
    """
    scale = abs(terms.constant) + float(np.abs(terms.theta).sum())
    return error > 64.0 * derived + 1e-6 + 1e-10 * scale


class Residual:
    """A sum of terms, addends of equal spins merged at the end; terms taken off count negative."""

    def __init__(self) -> None:
        self._rows: dict[int, list[NDArray[np.int64]]] = {}
        self._theta: dict[int, list[NDArray[np.float64]]] = {}

    def add(self, rows: NDArray[np.int64], theta: NDArray[np.float64]) -> None:
        """Rows (T, arity) of distinct spins, in any order, with their coefficients (T,)."""
        self._rows.setdefault(rows.shape[1], []).append(np.sort(rows, axis=1))
        self._theta.setdefault(rows.shape[1], []).append(theta)

    def add_images(
        self, row: NDArray[np.int64], spin: NDArray[np.int64], theta: NDArray[np.float64]
    ) -> None:
        """Terms given as pairs (term, spin), sorted by term."""
        length = np.bincount(row, minlength=theta.size)
        start = np.cumsum(length) - length
        for size in np.unique(length).tolist():
            which = np.flatnonzero(length == size)
            self.add(spin[start[which][:, None] + np.arange(size)], theta[which])

    def add_terms(
        self,
        terms: SpinTerms,
        which: NDArray[np.int64],
        number: NDArray[np.int64],
        factor: float,
    ) -> None:
        """Some terms of a polynomial times `factor`, spin i being called number[i]."""
        arity = np.diff(terms.ptr)[which]
        for size in np.unique(arity).tolist():
            some = which[arity == size]
            rows = number[terms.spins[terms.ptr[some][:, None] + np.arange(size)]]
            self.add(rows, factor * terms.theta[some])

    def subtract(self, terms: SpinTerms) -> None:
        """Take a polynomial off."""
        spins = np.arange(terms.spins.max(initial=-1) + 1)
        self.add_terms(terms, np.arange(terms.theta.size), spins, -1.0)
        self.add(np.zeros((1, 0), np.int64), np.array([-terms.constant]))

    def bound(self) -> tuple[float, float]:
        """(sum of |coefficients|, error of the merges): at any state the sum is within both.

        The constant is summed exactly; other merges of c addends round by c u sum |addends|.
        """
        total, rounding = 0.0, 0.0
        for size, blocks in self._theta.items():
            theta = np.concatenate(blocks)
            if size == 0:
                total += abs(exact_sum(theta))
                continue
            rows = np.concatenate(self._rows[size])
            # Addends of one term side by side. |chi| = 1 at every state, so the sum of |merged
            # coefficients| bounds the difference of the two polynomials everywhere.
            rows, theta, fresh = _sorted(rows, theta)
            starts = np.flatnonzero(fresh)
            merged = np.add.reduceat(theta, starts) if starts.size else theta
            many = np.diff(np.append(starts, theta.size))
            size_of = np.add.reduceat(np.abs(theta), starts) if starts.size else theta
            total += float(np.abs(merged).sum())
            rounding += UNIT * float((many * size_of).sum())
        return total * (1.0 + 1e-6), rounding * (1.0 + 1e-6)


def _sorted(
    rows: NDArray[np.int64], theta: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """Rows with equal ones together, their coefficients, and where a new row begins."""
    base, width = int(rows.max(initial=0)) + 1, rows.shape[1]
    fresh = np.ones(len(rows), dtype=bool)
    if width * np.log2(base + 1) < 62.0:  # one number says it all: far faster to sort
        key = np.zeros(len(rows), dtype=np.int64)
        for column in rows.T:
            key = key * base + column
        order = np.argsort(key, kind="stable")
        fresh[1:] = np.diff(key[order]) != 0
    else:
        order = np.lexsort(rows.T[::-1])
        fresh[1:] = (np.diff(rows[order], axis=0) != 0).any(axis=1)
    return rows[order], theta[order], fresh
