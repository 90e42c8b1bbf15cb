"""Links between a q over spins and the model: what each step on the way may round.

Each unobserved variable of d > 1 states has k = ceil(log2 d) bits, most significant first; codes d
and above repeat the first states, and the codes of one state share its weight. So

    Z = sum over codes of p~(state(code)) / prod_v codes(state_v) >= sum over y of the same,

where y -> bits is injective (`SpinMap`): bits may be signed products of fewer free spins y, which
is how parities among a model's zeros are solved. The summand's logarithm is a polynomial in y, and
a polynomial's coefficients are unique: the judge expands the model's tables itself and compares.
A table counts where the map reaches it; a zero there refutes the link, and elsewhere any number may
stand in for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.judge.collapses import CollapseLink
from tightz.judge.expansion import Residual, far_off, walsh, walsh_error
from tightz.judge.products import equal_rows, same_shapes
from tightz.judge.spins import SpinDistribution, SpinMap, SpinTerms
from tightz.judge.verdict import LIBRARY, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph

MAX_BITS = 20
"""A table over more bits is refused: it would have more than 2^20 coefficients."""


@dataclass(frozen=True, eq=False)
class EncodingLink:
    """`terms` over free spins is the model on the bits that `chart` makes of them.

    The check costs as much as making the polynomial, so it is kept for the models it was done on.
    """

    terms: SpinTerms
    chart: SpinMap
    _done: list[tuple[FactorGraph, float]] = field(default_factory=list, init=False, repr=False)

    def rounding(self, model: FactorGraph) -> float:
        """How far `terms` can be from the model's log weight at any state; RefutedError if far."""
        for known, error in self._done:
            if known is model:
                return error
        error = check_encoding(model, self.terms, self.chart)
        self._done.append((model, error))
        return error


def check_encoding(model: FactorGraph, terms: SpinTerms, chart: SpinMap) -> float:
    """Nats by which `terms` can be off at any state of the free spins of `chart`."""
    chart.check()
    terms.check()
    free = model.cardinalities > 1
    free[list(model.evidence)] = False
    counts = np.array([(int(d) - 1).bit_length() for d in model.cardinalities], dtype=np.int64)
    counts[~free] = 0
    # The bits are numbered by the judge from the cardinalities: a map over other spins is about
    # another model.
    if chart.n != int(counts.sum()):
        raise RefutedError(f"a map has {chart.n} spins; the model takes {int(counts.sum())} bits")
    if terms.impossible:
        return 0.0
    first = np.cumsum(counts) - counts
    identity = is_identity(chart)
    residual, derived = Residual(), 0.0
    for scopes, tables in _bit_tables(model, free):
        bits = np.concatenate(
            [first[v][:, None] + np.arange(counts[v[0]]) for v in scopes.T], axis=1
        ) if scopes.shape[1] else np.zeros((len(scopes), 0), np.int64)  # fmt: skip
        if bits.shape[1] > MAX_BITS:
            raise RefutedError(f"a table over {bits.shape[1]} bits is too large to be expanded")
        derived += _expand(bits[:, ::-1], tables, None if identity else chart, residual)
    residual.subtract(terms)
    error, rounding = residual.bound()
    # log 2 is rounded once for each variable of which codes share a state
    states = model.cardinalities[free]
    derived += rounding + LIBRARY * int(((states & (states - 1)) != 0).sum())
    if far_off(error, derived, terms):
        raise RefutedError(f"a polynomial is {error:.3g} nats away from the model's tables")
    return error + derived


def is_identity(chart: SpinMap) -> bool:
    every = np.arange(chart.n)
    return (
        chart.n_free == chart.n
        and np.array_equal(chart.free, every)
        and np.array_equal(chart.ptr[:-1], every)
        and bool((chart.sign == 1.0).all())
    )


def _bit_tables(
    model: FactorGraph, free: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """(unobserved variables (F, r), tables (F, 2^bits)), shares of repeated codes at the end."""
    observed = np.zeros(model.n_variables, dtype=np.int64)
    for v, state in model.evidence.items():
        observed[v] = state
    for scopes, tables in same_shapes(model):
        for mine in equal_rows(free[scopes]):
            open_ = free[scopes[mine[0]]]
            rows, part = scopes[mine], tables[mine]
            for axis in range(len(open_) - 1, -1, -1):
                if open_[axis]:
                    part = np.take(part, _states(part.shape[axis + 1]), axis=axis + 1)
                else:
                    index = observed[rows[:, axis]].reshape(-1, *(1,) * (part.ndim - 1))
                    part = np.take_along_axis(part, index, axis=axis + 1).squeeze(axis + 1)
            yield rows[:, open_], part.reshape(len(mine), -1)
    # Codes that stand for the same state share its weight: minus the log of their number, once per
    # variable.
    for d in np.unique(model.cardinalities[free]).tolist():
        states = _states(d)
        shared = np.bincount(states)[states]
        if (shared > 1).any():
            rows = np.flatnonzero(free & (model.cardinalities == d))[:, None]
            yield rows, np.tile(-np.log(shared), (len(rows), 1))


def _states(d: int) -> NDArray[np.int64]:
    """The state of each code of a variable of d states."""
    codes = np.arange(1 << (d - 1).bit_length())
    return np.where(codes < d, codes, codes - d)


def _expand(
    bits: NDArray[np.int64],
    tables: NDArray[np.float64],
    chart: SpinMap | None,
    residual: Residual,
) -> float:
    """Add the expansions of tables over `bits` (F, r), bit j of an index; returns their error."""
    width = bits.shape[1]
    zero = np.isneginf(tables)
    if zero.any():
        tables = _without_zeros(bits, tables, zero, chart)
    theta = walsh(tables)
    for subset in range(1 << width):
        rows = bits[:, [j for j in range(width) if subset >> j & 1]]
        if chart is None:
            residual.add(rows, theta[:, subset])
        else:
            row, spin, signs = chart.images(_rows(rows, theta[:, subset]))
            residual.add_images(row, spin, signs * theta[:, subset])
    return walsh_error(np.abs(tables).max(axis=1), max(width, 1))


def _rows(rows: NDArray[np.int64], theta: NDArray[np.float64]) -> SpinTerms:
    count, arity = rows.shape
    return SpinTerms(0.0, arity * np.arange(count + 1), rows.ravel(), theta)


def _without_zeros(
    bits: NDArray[np.int64],
    tables: NDArray[np.float64],
    zero: NDArray[np.bool_],
    chart: SpinMap | None,
) -> NDArray[np.float64]:
    """Tables with 0 in the entries that no state of the free spins reaches.

    A product of bits whose image is empty is constant: an entry is reached if and only if it has
    the right sign for all of them, that is if their signed sum there is their number.
    """
    out = tables.copy()
    width = bits.shape[1]
    for f in np.flatnonzero(zero.any(axis=1)).tolist():
        if chart is None:
            raise RefutedError("a polynomial stands for a table with zeros")
        members = [[bits[f, j] for j in range(width) if c >> j & 1] for c in range(1 << width)]
        ptr = np.concatenate([[0], np.cumsum([len(m) for m in members])]).astype(np.int64)
        spins = np.array([i for m in members for i in m], dtype=np.int64)
        row, _, signs = chart.images(SpinTerms(0.0, ptr, spins, np.zeros(1 << width)))
        fixed = np.bincount(row, minlength=1 << width) == 0
        # For every entry the signed sum over all products that the map fixes; it equals their
        # number only where each of them has the sign that the map gives it, that is where some y
        # leads.
        sums = walsh(np.where(fixed, signs, 0.0)[None, :])[0] * float(1 << width)
        reached = sums == fixed.sum()
        if zero[f][reached].any():
            raise RefutedError("a polynomial gives weight to a state that a table forbids")
        out[f] = np.where(reached, tables[f], 0.0)
    return out


@dataclass(frozen=True, eq=False)
class SpinLink:
    """The way from a model to the polynomial that q is over; one object per run, checked once.

    Without an encoding the polynomial came from nowhere and can be judged on no model.
    """

    encoding: EncodingLink | None
    collapse: CollapseLink | None = None

    @property
    def terms(self) -> SpinTerms:
        """The polynomial that q is over."""
        if self.collapse is not None:
            return self.collapse.terms
        if self.encoding is None:
            raise RefutedError("a q over spins came without the polynomial that it is about")
        return self.encoding.terms

    @property
    def n(self) -> int:
        """Spins of the polynomial that q is over, those without a term included."""
        if self.collapse is not None:
            return int(self.collapse.kept.size)
        return self.encoding.chart.n_free if self.encoding is not None else 0

    def rounding(self, model: FactorGraph) -> float:
        """Nats between log sums of `terms` and of the model, whatever the states summed."""
        if self.encoding is None:
            raise RefutedError("a q over spins came without its model")
        # Each step of the way is compared with what it stands for, coefficient by coefficient, and
        # their distances add up: a bound on the last polynomial is one on the model within the
        # sum.
        error = self.encoding.rounding(model)
        if self.collapse is not None:
            if self.collapse.kept.size + self.collapse.order.size != self.encoding.chart.n_free:
                raise RefutedError("a collapse keeps or sums out spins that the model has not")
            error += self.collapse.rounding(self.encoding.terms)
        return error


@dataclass(frozen=True, eq=False)
class SpinEvidence:
    """q over the spins of a polynomial that stands for the model."""

    link: SpinLink
    q: SpinDistribution
    _value: list[tuple[float, float]] = field(default_factory=list, init=False, repr=False)

    @property
    def value(self) -> tuple[float, float]:
        """(bound on the polynomial's log sum, its rounding), computed once."""
        if not self._value:
            if self.q.n != self.link.n:  # spins without a term would still double the sum
                raise RefutedError(f"q is over {self.q.n} spins; there are {self.link.n}")
            self._value.append(self.q.value(self.link.terms))
        return self._value[0]

    def verdict(self, model: FactorGraph) -> Verdict:
        """The bound of q on the model, all roundings taken off."""
        value, error = self.value
        if value == -math.inf:
            return Verdict()
        return lowered(value, error + self.link.rounding(model))


def lowered(value: float, rounding: float) -> Verdict:
    """A lower bound moved down by its rounding, the subtraction's own included."""
    if not math.isfinite(value - rounding):
        return Verdict()
    low = float(np.nextafter(value - rounding, -math.inf))
    return Verdict(lower=low, rounding=value - low)
