"""Upper bounds of pairwise spin models: each sum over a spin replaced by a quadratic above it.

log p~(s) = constant + h's + s'Js / 2, s in {-1, 1}^n, J symmetric with zero diagonal. Summing over
s_k leaves 2cosh(b), b = h_k + sum_j J_kj s_j, and for any mu and v

    log 2cosh b <= c + mu b + v b^2 / 2,   c = sup over |b - h_k| <= sum_j |J_kj| of the difference.

The right side is a quadratic in the spins left (s_j^2 = 1), so that again a pairwise model is left:

    constant += c + mu h_k + v h_k^2 / 2 + (v / 2) sum_j J_kj^2,
    h_j += (mu + v h_k) J_kj,    J_ij += v J_ki J_kj (i /= j).

The last spins are summed state by state. Before all that, multiples w >= 0 of

    1 + a b s_i s_j + a c s_i s_k + b c s_j s_k = ((a s_i + b s_j + c s_k)^2 - 1) / 2 >= 0

(a, b, c = +-1; the sum is odd) may be added to the log weight, which only raises Z; s_n = 1 is a
spin that is not summed over. The evidence is an order, the numbers mu and v and the multiples:
nothing in it could be false, the judge does all sums and finds every c itself.

The supremum. On b = y >= 0 (and on b = -y with -mu) f(y) = log 2cosh y - mu y - v y^2 / 2 has the
derivative f'(y) = tanh y - mu - v y, which is concave. So where f'(l) >= 0 >= f'(r), l < r, f
falls beyond r, and before l it falls, then rises: its supremum is at the first point, or at most
f(l) + f'(l)(r - l) + (1 + |v|)(r - l)^2. Where f' >= 0 at the last point, f falls, then rises. And
always f' lies below its tangent at any point, which bounds f when neither is the case.

Rounding, u = 2^-53: what is stored after a step is taken as the model, and |s| = 1, so an entry
that is off by e moves log Z by at most e. An entry updated by p rows at once is off by
(p + 2) u (|J_ij| + sum_k |v_k J_ki J_kj|), in whatever order the products were summed, and the
second part adds up to |v_k| (sum_j |J_kj|)^2 over all pairs. Only the entries above the diagonal
are read. Everything is doubled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.judge.links import EncodingLink, is_identity
from tightz.judge.spins import TINY, SpinTerms, exact_sum
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph

Array = NDArray[np.float64]

MAX_SPINS = 8192
"""A matrix of couplings is dense: half a gigabyte."""

MAX_TAIL = 22
"""Spins summed state by state."""

LARGEST = 1e100
"""Numbers beyond it are not worth a bound: their products overflow."""

_PANEL = 48
"""Rows whose effect on all later ones is one matrix product."""


@dataclass(frozen=True, eq=False)
class QuadraticEvidence:
    """`order` of all spins; `mu` and `v` for all but the last few, which are summed exactly.

    Inequalities: spins (T, 3), n for the spin that is 1, their signs (T, 3), multiples (T,).
    """

    link: EncodingLink
    order: NDArray[np.int64]
    mu: Array
    v: Array
    spins: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    signs: NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 3), np.int8))
    multiples: Array = field(default_factory=lambda: np.zeros(0))
    _value: list[tuple[float, float]] = field(default_factory=list, repr=False)

    def verdict(self, model: FactorGraph) -> Verdict:
        """The bound on the model, all roundings added."""
        # An upper bound needs every state of the model: only the plain encoding has all of them.
        if not is_identity(self.link.chart) or self.link.terms.impossible:
            raise RefutedError("spins of a quadratic bound are not all the bits of the model")
        distance = self.link.rounding(model)
        if not self._value:
            self._value.append(self._evaluate())
        value, error = self._value[0]
        error += distance
        upper = value + error
        if not math.isfinite(upper):
            return Verdict()
        upper = float(np.nextafter(upper, math.inf))
        return Verdict(upper=upper, rounding=upper - value)

    def _evaluate(self) -> tuple[float, float]:
        n, order = self.link.chart.n_free, np.asarray(self.order)
        if n > MAX_SPINS:
            raise RefutedError(f"a quadratic bound is over {n} spins; at most {MAX_SPINS} fit")
        whole = order.dtype.kind in "iu" and order.shape == (n,)
        if not whole or not np.array_equal(np.sort(order), np.arange(n)):
            raise RefutedError("the order of a quadratic bound does not name every spin once")
        mu, v = np.asarray(self.mu, np.float64), np.asarray(self.v, np.float64)
        if mu.shape != v.shape or mu.ndim != 1 or not max(0, n - MAX_TAIL) <= mu.size <= n:
            raise RefutedError("a quadratic bound does not have one mu and one v for each spin")
        if not (np.isfinite(mu).all() and np.isfinite(v).all()):
            raise RefutedError("a mu or a v of a quadratic bound is not a number")
        with np.errstate(all="ignore"):
            steps = _Elimination(*_matrix(self.link.terms, order))
            steps.add(*self._inequalities(order))
            return steps.upper(mu, v)

    def _inequalities(
        self, order: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], Array]:
        """Spins by their place in the order, signs, multiples."""
        n = order.size
        spins, signs = np.asarray(self.spins), np.asarray(self.signs, np.float64)
        multiples = np.asarray(self.multiples, np.float64)
        count = multiples.size
        if spins.shape != (count, 3) or signs.shape != (count, 3) or multiples.ndim != 1:
            raise RefutedError("inequalities of a quadratic bound do not have three spins each")
        whole = spins.dtype.kind in "iu" and not ((spins < 0) | (spins > n)).any()
        if not whole or not (np.abs(signs) == 1.0).all():
            raise RefutedError("an inequality of a quadratic bound is not one of spins and signs")
        if not ((multiples >= 0.0) & np.isfinite(multiples)).all():
            raise RefutedError("a multiple of an inequality is negative or not a number")
        rank = np.empty(n + 1, dtype=np.int64)
        rank[np.append(order, n)] = np.arange(n + 1)
        spins = rank[spins]
        if (np.diff(np.sort(spins, axis=1), axis=1) == 0).any():
            raise RefutedError("an inequality of a quadratic bound names a spin twice")
        return spins, signs, multiples


def _matrix(terms: SpinTerms, order: NDArray[np.int64]) -> tuple[Array, Array, float, float]:
    """(J above the diagonal, h, both in this order, the constant, what merging terms rounds)."""
    terms.check()
    n = order.size
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    arity = np.diff(terms.ptr)
    if arity.max(initial=0) > 2 or arity.min(initial=1) < 1:
        raise RefutedError("a quadratic bound is about a polynomial that is none")
    if ((terms.spins < 0) | (terms.spins >= n)).any():
        raise RefutedError("a quadratic bound is about a polynomial with other spins")
    couplings, fields = np.zeros((n, n)), np.zeros(n)
    single, double = np.flatnonzero(arity == 1), np.flatnonzero(arity == 2)
    np.add.at(fields, rank[terms.spins[terms.ptr[single]]], terms.theta[single])
    ends = rank[terms.spins[terms.ptr[double][:, None] + np.arange(2)]]
    low, high = ends.min(axis=1), ends.max(axis=1)
    if (low == high).any():
        raise RefutedError("a quadratic bound is about a polynomial with a repeated spin")
    np.add.at(couplings, (low, high), terms.theta[double])
    seen = np.unique(low * n + high).size + np.unique(terms.spins[terms.ptr[single]]).size
    repeated = terms.theta.size - seen  # merged terms round once each
    error = UNIT * (repeated + 1) * _total(terms.theta) if repeated else 0.0
    return couplings, fields, terms.constant, error


class _Elimination:
    def __init__(self, couplings: Array, fields: Array, constant: float, error: float) -> None:
        self.j, self.h = couplings, fields
        self.constants: list[float] = [constant]
        self.error = error

    def add(self, spins: NDArray[np.int64], signs: Array, multiples: Array) -> None:
        """Multiples of inequalities: products are exact up to sign, only sums round."""
        if not multiples.size:
            return
        n = self.h.size
        most = 0
        for a, b in ((0, 1), (0, 2), (1, 2)):
            ends = spins[:, [a, b]]
            low, high = ends.min(axis=1), ends.max(axis=1)
            values = signs[:, a] * signs[:, b] * multiples
            fixed = high == n
            np.add.at(self.h, low[fixed], values[fixed])
            np.add.at(self.j, (low[~fixed], high[~fixed]), values[~fixed])
            times = np.bincount(low[fixed], minlength=1).max(initial=0)
            _, many = np.unique(low[~fixed] * n + high[~fixed], return_counts=True)
            most += int(max(times, many.max(initial=0)))
        self.constants += multiples.tolist()
        size = _total(self.j) + _total(self.h) + 3.0 * _total(multiples)
        # Partial sums are no larger than what was there and all that is added, each side of which
        # is at most the final size and the multiples.
        self.error += 2.0 * (most + 1.0) * UNIT * (size + 3.0 * _total(multiples))

    def upper(self, mu: Array, v: Array) -> tuple[float, float]:
        """(an upper bound in exact arithmetic, how far rounding may have moved it)."""
        start, steps = 0, mu.size
        while start < steps:
            stop = self._uncoupled(start, steps)
            if stop - start < _PANEL:
                stop = min(start + _PANEL, steps)
            self._panel(start, stop, mu, v)
            if not math.isfinite(self.error):
                return math.inf, 0.0
            start = stop
        self._last(steps)
        value = exact_sum(self.constants)
        if not (math.isfinite(value) and math.isfinite(self.error)):
            return math.inf, 0.0
        return value, 2.0 * (self.error + UNIT * abs(value))

    def _uncoupled(self, start: int, stop: int) -> int:
        end = start + 1
        while end < stop and not self.j[start:end, end].any():
            end += 1
        return end

    def _panel(self, start: int, stop: int, mu: Array, v: Array) -> None:
        rows, h, n = self.j[start:stop, start:], self.h, self.h.size
        count = stop - start
        spread = 0.0
        for k in range(count):
            step, row = start + k, rows[k, k + 1 :]
            m, w, f = float(mu[step]), float(v[step]), float(h[step])
            sizes = np.abs(row)
            reach = float(sizes.sum()) * (1.0 + 2.0 * n * UNIT) + TINY * n
            square = float(row @ row)
            self._constant(m, w, f, reach, square, n)
            slope = m + w * f
            h[step + 1 :] += slope * row
            self.error += 4.0 * UNIT * (abs(m) + abs(w * f)) * reach
            self.error += UNIT * _total(h[step + 1 :]) + 4.0 * TINY * n
            spread += abs(w) * reach * reach
            touched = np.flatnonzero(row[: count - k - 1])
            if touched.size:
                # Rows below change in the columns after their own diagonal; the rest is not read.
                rows[k + 1 + touched, k + 1 :] += (w * row[touched, None]) * row
        # All sums of products: those of later rows here, those within the panel above, each at most
        # `count` addends.
        inner = rows[:, count:]
        self.j[stop:, stop:] += (inner.T * v[start:stop]) @ inner
        size = _upper_total(self.j, start)
        self.error += (count + 4.0) * UNIT * (size + 2.0 * spread) + 4.0 * TINY * count * n * n

    def _constant(
        self, mu: float, v: float, f: float, reach: float, square: float, count: int
    ) -> None:
        c, off = supremum(mu, v, f - reach, f + reach)
        parts = [c, mu * f, 0.5 * v * f * f, 0.5 * v * square]
        if not all(map(math.isfinite, (*parts, off, reach))):
            self.error = math.inf
            return
        self.constants += parts
        self.error += off + 4.0 * UNIT * (abs(parts[1]) + abs(parts[2])) + 8.0 * TINY
        self.error += (count + 4.0) * UNIT * abs(parts[3])

    def _last(self, start: int) -> None:
        """Sum over all states of the last spins: the two halves are rows and columns."""
        h, j = self.h[start:], np.triu(self.j[start:, start:], 1)
        count, half = h.size, h.size // 2
        one, two = _states(half), _states(count - half)
        table = ((one @ j[:half, :half]) * one).sum(axis=1)[:, None] + (one @ h[:half])[:, None]
        table = table + one @ j[:half, half:] @ two.T
        table += ((two @ j[half:, half:]) * two).sum(axis=1) + two @ h[half:]
        size = _total(h) + _total(j)
        top = float(table.max())
        total = float(np.exp(table - top).sum())
        if not math.isfinite(size + top + total):
            self.error = math.inf
            return
        self.constants += [top, math.log(total)]
        # Energies are sums of at most (count + 1)^2 numbers up to sign. Below -745 exp is 0, which
        # loses 2^count states of at most exp(-745) beside one of weight 1.
        self.error += 2.0 * (count + 2.0) ** 2 * UNIT * size + LIBRARY * (
            2.0 + abs(math.log(total))
        )
        self.error += (2.0 * table.size + 800.0) * UNIT


def _total(values: Array) -> float:
    return float(np.abs(values).sum())


def _upper_total(couplings: Array, start: int) -> float:
    """Sum of |entries| of the rows from `start` on, those below the diagonal perhaps included."""
    return _total(couplings[start:, start:])


def _states(n: int) -> Array:
    bits = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    return np.array(1.0 - 2.0 * bits, dtype=np.float64)


def supremum(mu: float, v: float, low: float, high: float) -> tuple[float, float]:
    """(c, its error): log 2cosh b - mu b - v b^2 / 2 is at most c + error on [low, high]."""
    if not all(abs(x) <= LARGEST for x in (mu, v, low, high)):
        return math.inf, 0.0
    low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    best, error = -math.inf, 0.0
    for slope, first, last in ((mu, low, high), (-mu, -high, -low)):
        if last >= 0.0:
            value, off = _half(slope, v, max(first, 0.0), last)
            # The larger of two numbers, each known to its own error.
            best, error = max(best, value), max(error, off)
    return best, error


def _half(mu: float, v: float, first: float, last: float) -> tuple[float, float]:
    """The same on [first, last], 0 <= first."""

    def f(y: float) -> tuple[float, float]:
        parts = (y + math.log1p(math.exp(-2.0 * y)), mu * y, 0.5 * v * y * y)
        return parts[0] - parts[1] - parts[2], 2.0 * LIBRARY * sum(map(abs, parts)) + 4.0 * TINY

    def rise(y: float) -> tuple[float, float]:
        return math.tanh(y) - mu - v * y, 2.0 * LIBRARY * (1.0 + abs(mu) + abs(v) * y)

    best, error = f(first)
    slope, off = rise(last)
    if slope - off >= 0.0:
        end, end_error = f(last)
        return max(best, end), max(error, end_error)
    peak = min(max(_steepest(v), first), last)
    slope, off = rise(peak)
    if slope - off >= 0.0 and peak < last:
        value, off = _crossing(f, rise, peak, last, v)
        return max(best, value), max(error, off)
    # f' <= tangent at `peak` <= top: nothing to be found, but for rounding.
    bend = 1.0 - math.tanh(peak) ** 2 - v
    doubt = 2.0 * LIBRARY * (1.0 + abs(v))
    more = max(0.0, (bend + doubt) * (last - peak), (doubt - bend) * (peak - first))
    top = slope + off + more
    return best + max(top, 0.0) * (last - first) * (1.0 + 8.0 * UNIT), error


def _crossing(f, rise, left: float, right: float, v: float) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """A bound on f over [left, right], f' >= 0 at the left end and < 0 at the right one."""
    for _ in range(200):
        middle = 0.5 * (left + right)
        slope, off = rise(middle)
        if slope >= off and left < middle:
            left = middle
        elif slope <= -off and middle < right:
            right = middle
        else:
            # f' = 0 here to the last digit. By concavity f' >= -2 off from `left` to here, and
            # beyond it rises by no more than it fell before.
            value, error = f(middle)
            return value, error + 16.0 * off * (right - left)
        if right - left <= 1e-10 * (1.0 + left):
            break
    value, error = f(left)
    slope, off = rise(left)
    gap = (right - left) * (1.0 + 4.0 * UNIT)
    return value, error + 1.001 * ((slope + off) * gap + (1.0 + abs(v)) * gap * gap)


def _steepest(v: float) -> float:
    """About where tanh y - v y is largest, y >= 0; what follows holds for any point."""
    if v >= 1.0:
        return 0.0
    if v <= 0.0:
        return math.inf
    return math.acosh(1.0 / math.sqrt(v))
