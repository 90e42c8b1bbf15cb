"""The bound of layer mean field: some spins summed exactly, a product q over the others, in parts.

No two summed spins meet in a term and none meets more than one kept spin, so given the kept ones
they are independent with fields f_i, and summing them gives prod_i 2 cosh f_i. For every product q
over the kept spins

    log Z >= constant + sum of theta E_q[chi] over terms of kept spins
             + sum_i E_q[log 2cosh f_i] + H(q),

each expectation of log 2cosh being bounded below by `cosh`. Leaves hold some kept spins at +-1;
two leaves that hold one spin at opposite values share no state, so their parts of Z add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.judge.cosh import expected_log_2cosh
from tightz.judge.spins import (
    TINY,
    SpinMap,
    SpinTerms,
    binary_entropy,
    combine,
    exact_sum,
    segment_products,
)
from tightz.judge.verdict import UNIT, RefutedError, log_summation, summation

SPARED = 1e-3
"""Nats that replacing nearly decided spins by their means may cost a leaf in all: it saves time."""


@dataclass(frozen=True, eq=False)
class LayerQ:
    """Means (leaves, n) of all spins; those of `summed` ones are not read, `held` ones are +-1."""

    summed: NDArray[np.bool_]
    held: NDArray[np.bool_]
    means: NDArray[np.float64]

    @property
    def n(self) -> int:
        """Spins of the polynomial."""
        return int(self.summed.size)

    @property
    def chart(self) -> SpinMap:
        """All spins are its own: no parity is followed."""
        return SpinMap.identity(self.n)

    def value(self, terms: SpinTerms) -> tuple[float, float]:
        """The log-sum of the leaves' bounds, rounding taken off each, and the sum's own."""
        terms.check()
        self._check(terms)
        if terms.impossible:
            return -math.inf, 0.0
        split = _Split(terms, self.summed)
        # Rounding comes off every leaf before they are added: exp is monotone, so the sum is still
        # below.
        values = [value - error for value, error in map(split.value, self.means)]
        top = max(values)
        if not math.isfinite(top):
            return -math.inf, 0.0
        spread = math.log(math.fsum(math.exp(value - top) for value in values))
        value = top + spread
        return value, log_summation(len(values)) + summation(2, abs(value))

    def _check(self, terms: SpinTerms) -> None:
        """RefutedError unless these are means of disjoint leaves of the polynomial's spins."""
        n = self.summed.size
        shape = (len(self.means), n)
        if self.means.shape != shape or self.held.shape != shape or not len(self.means):
            raise RefutedError("leaves of a layer need one mean for every spin")
        if terms.spins.max(initial=-1) >= n or terms.spins.min(initial=0) < 0:
            raise RefutedError("a term names a spin that the layer does not have")
        kept = self.means[:, ~self.summed]
        held = self.held[:, ~self.summed]
        if not (np.abs(kept) <= 1.0).all() or (np.abs(kept[held]) != 1.0).any():
            raise RefutedError("a mean lies outside [-1, 1], or a held spin is not decided")
        signs = np.where(held, kept, 0.0)
        # Two leaves are disjoint if some spin is held at +1 in one and at -1 in the other; a pair
        # without such a spin shares states and would count them twice.
        for k in range(1, len(signs)):
            if (signs[:k] * signs[k] >= 0.0).all(axis=1).any():
                raise RefutedError("two leaves of a layer share states")


class _Split:
    """Terms by what they hold: kept spins alone, or one summed spin and at most one kept."""

    def __init__(self, terms: SpinTerms, summed: NDArray[np.bool_]) -> None:
        self.n, self.constant = summed.size, terms.constant
        arity = np.diff(terms.ptr)
        owner = np.repeat(np.arange(terms.theta.size), arity)
        inside = np.bincount(owner, summed[terms.spins], minlength=terms.theta.size)
        # Independence of the summed spins given the kept ones is what makes the inner sum a
        # product of 2 cosh; a term with two of them, or one with two kept spins, would break it.
        if ((inside > 1) | ((inside == 1) & (arity > 2))).any():
            raise RefutedError("summed spins are not independent given the kept ones")
        self.kept = np.flatnonzero(~summed)
        self.outer = inside == 0
        rows = np.flatnonzero(inside == 1)
        pairs, singles = rows[arity[rows] == 2], rows[arity[rows] == 1]
        number = np.cumsum(summed) - 1
        ends = terms.spins[terms.ptr[pairs][:, None] + np.arange(2)]
        flip = summed[ends[:, 1]]
        row = number[np.where(flip, ends[:, 1], ends[:, 0])]
        column = np.where(flip, ends[:, 0], ends[:, 1])
        order = np.argsort(row, kind="stable")
        self.row, self.column, self.theta = row[order], column[order], terms.theta[pairs][order]
        at = number[terms.spins[terms.ptr[singles]]]
        count = int(summed.sum())
        self.field = np.bincount(at, terms.theta[singles], minlength=count).astype(np.float64)
        size = np.bincount(at, np.abs(terms.theta[singles]), minlength=count)
        self.field_error = UNIT * float((np.bincount(at, minlength=count) * size).sum())
        self.terms = terms

    @cached_property
    def _outer(self) -> tuple[SpinTerms, NDArray[np.int64]]:
        """The terms of kept spins alone, and their arities."""
        arity = np.diff(self.terms.ptr)
        members = np.repeat(self.outer, arity)
        ptr = np.concatenate([[0], np.cumsum(arity[self.outer])]).astype(np.int64)
        some = SpinTerms(
            self.constant, ptr, self.terms.spins[members], self.terms.theta[self.outer]
        )
        return some, arity[self.outer]

    def value(self, means: NDArray[np.float64]) -> tuple[float, float]:
        """(bound of one leaf, its rounding)."""
        some, arity = self._outer
        expected = segment_products(means[some.spins], arity)
        errors = arity * (UNIT * np.abs(expected) + TINY)
        entropies, entropy_error = binary_entropy(means[self.kept])
        value, rounding = combine(some, expected, errors, entropies, entropy_error)
        cosh, slip = self._cosh(means)
        total = exact_sum([value], cosh)
        return total, rounding + slip + 2.0 * UNIT * abs(total)

    def _cosh(self, means: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """(lower bounds on E log 2cosh of each summed spin's field, error of the fields)."""
        open_ = self._undecided(means)[self.column]
        fixed = ~open_
        shifts = self.theta[fixed] * means[self.column[fixed]]
        moved = np.bincount(self.row[fixed], shifts, minlength=self.field.size)
        field: NDArray[np.float64] = self.field + moved.astype(np.float64)
        many = np.bincount(self.row[fixed], minlength=self.field.size)
        sizes = np.bincount(self.row[fixed], np.abs(shifts), minlength=self.field.size)
        slip = self.field_error + 2.0 * UNIT * float(
            ((many + 2.0) * (sizes + np.abs(self.field))).sum()
        )
        out = np.empty(field.size)
        for rows, couplings, columns in _padded(
            self.row[open_], self.theta[open_], self.column[open_], field.size
        ):
            out[rows] = expected_log_2cosh(field[rows], couplings, means[columns])
        return out, slip

    def _undecided(self, means: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(n,) the spins whose distribution is kept: the others cost at most SPARED together.

        A spin replaced by its mean lowers E log 2cosh by at most J^2 (1 - v^2) / 2, and the result
        stays a lower bound (Jensen): this choice needs no proof, only its cost a reason.
        """
        with np.errstate(over="ignore"):
            squares = np.bincount(self.column, self.theta**2, minlength=self.n)
            cost = 0.5 * squares * (1.0 - np.clip(means, -1.0, 1.0) ** 2)
        order = np.argsort(cost, kind="stable")
        out = np.ones(self.n, dtype=bool)
        out[order[np.cumsum(cost[order]) <= SPARED]] = False
        return out


def _padded(
    row: NDArray[np.int64], theta: NDArray[np.float64], column: NDArray[np.int64], count: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]]:
    """(rows, couplings, columns), rows of similar length together; 0 couples to nothing."""
    length = np.bincount(row, minlength=count)
    start = np.cumsum(length) - length
    level = np.array([int(x - 1).bit_length() if x else -1 for x in length.tolist()], np.int64)
    for size in np.unique(level).tolist():
        rows = np.flatnonzero(level == size)
        width = int(length[rows].max())
        place = start[rows][:, None] + np.arange(width)
        inside = np.arange(width) < length[rows][:, None]
        place = np.where(inside, place, 0)
        if not width:
            empty = np.zeros((rows.size, 0))
            yield rows, empty, empty.astype(np.int64)
            continue
        yield rows, np.where(inside, theta[place], 0.0), column[place]
