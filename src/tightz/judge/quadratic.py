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
f(l) + f'(l)(r - l) + max(f''(l), 0)(r - l)^2, whichever way l and r were found; where r is the last
point, no matter what f'(r) is. Where f' >= 0 at the last point, f falls, then rises. And always f'
lies below its tangent at any point, which bounds f when neither is the case.

Rows and fields. With r_k the row J_k. that spin k sees when its turn comes and f_k its field,

    r_kj = J_kj + sum_{i<k} v_i r_ik r_ij,    f_k = h_k + sum_{i<k} (mu_i + v_i f_i) r_ik,

J and h as they were at first. The judge finds r and f as fast as it can, and nothing rests on how:
put any r and f in their place, and let J' and h' be the model that is left before step k when the
steps before it were made with theirs. Row k of J' and field k of h' then miss r_k and f_k by the
residuals of the two equations. |s| = 1, so replacing an entry that is off by e moves log Z by at
most e; then the spin is summed out with r_k and f_k themselves, c included, and what is left is J'
and h' of the next step. So the sum of all |residuals|, those of the last spins too, is added to the
bound. Of the first spins that have no couplings with each other the rows are J's own.

Rounding, u = 2^-53. A residual of a row is evaluated in at most n + 5 operations on each addend, in
whatever order the products were summed: it is off by (n + 5) u (|J_kj| + sum_i |v_i r_ik r_ij| +
|r_kj|), where |J_kj| is at most the other two and the residual, and the middle part adds up to
|v_i| (sum_j |r_ij|)^2 / 2 over all pairs. Likewise for fields, with |mu_i| + |v_i f_i| in place of
|v_i r_ik| and two operations more. A product that underflows is off by 2^-1074, times what it is
multiplied with next. Only the entries above the diagonal are read. Everything is doubled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.judge.links import EncodingLink, is_identity
from tightz.judge.spins import TINY, SpinTerms, exact_sum
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError, Verdict, log_summation
from tightz.models.factor_graph import FactorGraph

Array = NDArray[np.float64]

MAX_SPINS = 8192
"""A matrix of couplings is dense: half a gigabyte."""

MAX_TAIL = 22
"""Spins summed state by state."""

LARGEST = 1e100
"""Numbers beyond it are not worth a bound: their products overflow."""

_PANEL, _BLOCK = 256, 16
"""Rows that are compared with what they stand for at once, and those that are found at once."""

_PART = 64
"""Multiples that are summed before fsum takes over."""

_STEPS, _NEAR = 60, 2.0**-30
"""Steps towards a zero of f', and how near to it f' should change its sign."""


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
    _value: list[tuple[float, float]] = field(default_factory=list, init=False, repr=False)

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
        if (spins == spins[:, [1, 2, 0]]).any():
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
    single, double = terms.ptr[:-1][arity == 1], terms.ptr[:-1][arity == 2]
    one, two = rank[terms.spins[double]], rank[terms.spins[double + 1]]
    if (one == two).any():
        raise RefutedError("a quadratic bound is about a polynomial with a repeated spin")
    pair, alone = np.minimum(one, two) * n + np.maximum(one, two), rank[terms.spins[single]]
    couplings = _gathered(pair, terms.theta[arity == 2], n * n).reshape(n, n)
    fields = _gathered(alone, terms.theta[arity == 1], n)
    seen = np.zeros(n * n + n, dtype=bool)
    seen[pair] = seen[n * n + alone] = True
    repeated = terms.theta.size - np.count_nonzero(seen)  # merged terms round once each
    error = UNIT * (repeated + 1) * _total(terms.theta) if repeated else 0.0
    return couplings, fields, terms.constant, error


class _Elimination:
    """J and h become, row by row, what each spin sees when its turn comes, then the last spins."""

    def __init__(self, couplings: Array, fields: Array, constant: float, error: float) -> None:
        self.j, self.h = couplings, fields
        self.constants: list[Array] = [np.array([constant])]
        self.error = error
        n = fields.size
        # Of each row: mu + v h, the sum of sizes and that of squares.
        self.slope, self.reach, self.square = np.zeros(n), np.zeros(n), np.zeros(n)

    def add(self, spins: NDArray[np.int64], signs: Array, multiples: Array) -> None:
        """Multiples of inequalities: products are exact up to sign, only sums round."""
        if not multiples.size:
            return
        n = self.h.size
        sides = ((0, 1), (0, 2), (1, 2))
        one, two = (np.concatenate([spins[:, side[k]] for side in sides]) for k in (0, 1))
        values = np.concatenate([signs[:, p] * signs[:, q] * multiples for p, q in sides])
        at = np.minimum(one, two) * (n + 1) + np.maximum(one, two)
        more = _gathered(at, values, (n + 1) ** 2).reshape(n + 1, n + 1)
        most = int(np.bincount(at).max())
        self.j += more[:n, :n]
        self.h += more[:n, n]
        # So many numbers would keep fsum busy for longer than all the rest: sums of a few.
        self.constants.append(np.add.reduceat(multiples, np.arange(0, multiples.size, _PART)))
        self.error += _PART * UNIT * _total(multiples)
        size = _total(self.j) + _total(self.h) + 3.0 * _total(multiples)
        # Partial sums are no larger than what was there and all that is added, each side of which
        # is at most the final size and the multiples.
        self.error += 2.0 * (most + 1.0) * UNIT * (size + 3.0 * _total(multiples))

    def upper(self, mu: Array, v: Array) -> tuple[float, float]:
        """(an upper bound in exact arithmetic, how far rounding may have moved it)."""
        n, steps = self.h.size, mu.size
        start = _uncoupled(self.j, steps)
        self.slope[:start] = mu[:start] + v[:start] * self.h[:start]
        self._measure(0, start, self.j[:start, start:])
        while start < n:
            stop = min(start + _PANEL, steps) if start < steps else n
            self._panel(start, stop, mu, v)
            start = stop
        self._constants(mu, v)
        self._last(steps)
        value = exact_sum(*self.constants)
        if not (math.isfinite(value) and math.isfinite(self.error)):
            return math.inf, 0.0
        return value, 2.0 * (self.error + UNIT * abs(value))

    def _panel(self, start: int, stop: int, mu: Array, v: Array) -> None:
        """Rows and fields of these spins, and by how much they miss what they stand for."""
        j, above = self.j, self.j[:start, start:stop].T
        seen = np.triu(j[start:stop, start:] + (above * v[:start]) @ j[:start, start:], 1)
        felt = self.h[start:stop] + above @ self.slope[:start]
        rows, fields = seen, felt
        if start < mu.size:
            m, w = mu[start:stop], v[start:stop]
            rows, fields = _substituted(seen, felt, m, w)
            slope = self.slope[start:stop] = m + w * fields
            inner = rows[:, : stop - start].T
            self.error += _total(np.triu(seen + (inner * w) @ rows - rows, 1))
            self.error += _total(felt + inner @ slope - fields)
        j[start:stop, start:], self.h[start:stop] = rows, fields
        self._measure(start, stop, rows)

    def _measure(self, start: int, stop: int, rows: Array) -> None:
        self.reach[start:stop] = np.abs(rows).sum(axis=1)
        self.square[start:stop] = np.einsum("ij,ij->i", rows, rows)

    def _constants(self, mu: Array, v: Array) -> None:
        """What each step adds to the constant, and the rounding of all steps."""
        n, steps = self.h.size, mu.size
        f, size = self.h[:steps], np.abs(v)
        reach = self.reach * (1.0 + 2.0 * n * UNIT) + TINY * n
        total = 2.0 * (_total(self.h) + float(reach.sum())) + self.error
        reach = reach[:steps]
        total += 2.0 * float(size @ (reach * reach) + (np.abs(mu) + size * np.abs(f)) @ reach)
        self.error += (n + 8.0) * UNIT * total + 4.0 * TINY * n * (n * n + total)
        c, off = suprema(mu, v, f - reach, f + reach)
        linear, bent, spread = mu * f, 0.5 * v * f * f, 0.5 * v * self.square[:steps]
        self.constants += [c, linear, bent, spread]
        self.error += float(off.sum()) + 4.0 * UNIT * (_total(linear) + _total(bent))
        self.error += (n + 4.0) * UNIT * _total(spread)
        self.error += 8.0 * TINY * n * float((1.0 + f * f + size).sum())

    def _last(self, start: int) -> None:
        """Sum over all states of the last spins: the two halves are rows and columns."""
        h, j = self.h[start:], self.j[start:, start:]
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
        self.constants.append(np.array([top, math.log(total)]))
        # Energies are sums of at most (count + 1)^2 numbers up to sign. Below -745 exp is 0, which
        # loses 2^count states of at most exp(-745) beside one of weight 1.
        self.error += 2.0 * (count + 2.0) ** 2 * UNIT * size
        self.error += log_summation(table.size) + UNIT


def _uncoupled(couplings: Array, most: int) -> int:
    """How many of the first spins, at most so many, have no couplings with each other."""
    coupled = np.flatnonzero(couplings.any(axis=0))  # with a spin before it
    return min(int(coupled[0]), most) if coupled.size else most


def _substituted(seen: Array, felt: Array, mu: Array, v: Array) -> tuple[Array, Array]:
    """(rows, fields) of a panel's spins, from what those before the panel leave of them.

    A row is what is left of it and a combination of rows above: a few at a time, first their square
    and the combinations, then all columns by one product.
    """
    count, fields = len(seen), felt.copy()
    rows, slope = seen.copy(), np.zeros(count)
    for a in range(0, count, _BLOCK):
        b = min(a + _BLOCK, count)
        above = rows[:a, a:b].T
        rows[a:b, a:] += (above * v[:a]) @ rows[:a, a:]
        fields[a:b] += above @ slope[:a]
        size = b - a
        block = np.concatenate([rows[a:b, a:b], fields[a:b, None], np.eye(size)], axis=1)
        for k in range(size - 1):
            push = v[a + k] * block[k]
            push[size] += mu[a + k]
            block[k + 1 :] += block[k, k + 1 : size, None] * push
        rows[a:b, a:] = np.triu(block[:, size + 1 :] @ rows[a:b, a:], 1)
        fields[a:b] = block[:, size]
        slope[a:b] = mu[a:b] + v[a:b] * fields[a:b]
    return rows, fields


def _gathered(places: NDArray[np.int64], values: Array, size: int) -> Array:
    """The sum of the values at each place; numpy's `add.at` takes ten times as long."""
    # Without values numpy counts in integers.
    return np.asarray(np.bincount(places, values, minlength=size), dtype=np.float64)


def _total(values: Array) -> float:
    return float(np.abs(values).sum())


def _states(n: int) -> Array:
    bits = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    return np.array(1.0 - 2.0 * bits, dtype=np.float64)


def suprema(mu: Array, v: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """(c, its error): log 2cosh b - mu b - v b^2 / 2 is at most c + error on [low, high]."""
    known = np.abs([mu, v, low, high]).max(axis=0) <= LARGEST
    mu, v, low, high = np.where(known, [mu, v, low, high], 0.0)
    low, high = np.nextafter(low, -math.inf), np.nextafter(high, math.inf)
    # Both signs of b at once: b = y, then b = -y.
    first, last = np.concatenate([low, -high]), np.concatenate([high, -low])
    near = np.maximum(first, 0.0)
    value, off = _halves(
        np.concatenate([mu, -mu]), np.concatenate([v, v]), near, np.maximum(last, near)
    )
    value, off = np.where(last >= 0.0, value, -math.inf), np.where(last >= 0.0, off, 0.0)
    # The larger of two numbers, each known to its own error.
    best, error = value.reshape(2, -1).max(axis=0), off.reshape(2, -1).max(axis=0)
    return np.where(known, best, math.inf), np.where(known, error, 0.0)


def _halves(mu: Array, v: Array, first: Array, last: Array) -> tuple[Array, Array]:
    """The same on [first, last], 0 <= first."""
    best, error = _difference(mu, v, first)
    peak = np.minimum(np.maximum(_steepest(v), first), last)
    top, off = _rise(mu, v, peak)
    # f' <= tangent at `peak` <= top: nothing to be found, but for rounding.
    bend, doubt = _bend(v, peak)
    more = np.maximum((bend + doubt) * (last - peak), (doubt - bend) * (peak - first))
    most = np.maximum(top + off + np.maximum(more, 0.0), 0.0)
    value = best + most * (last - first) * (1.0 + 8.0 * UNIT)
    slope, doubt = _rise(mu, v, last)
    rises = slope >= doubt
    end, end_error = _difference(mu, v, last)
    value = np.where(rises, np.maximum(best, end), value)
    error = np.where(rises, np.maximum(error, end_error), error)
    falls = np.flatnonzero(~rises & (top >= off) & (peak < last))
    found, off = _crossings(mu[falls], v[falls], peak[falls], last[falls])
    value[falls] = np.maximum(best[falls], found)
    error[falls] = np.maximum(error[falls], off)
    return value, error


def _crossings(mu: Array, v: Array, left: Array, right: Array) -> tuple[Array, Array]:
    """Bounds on f over [left, right], f' >= 0 at the left ends, and concave."""
    # Newton's steps from the right of the zero stay there. Any point would do.
    at = np.clip((1.0 - mu) / v, left, right)
    for _ in range(_STEPS):
        slope, off = _rise(mu, v, at)
        if (np.abs(slope) <= off).all():
            break
        at = np.fmin(np.fmax(at - slope / _bend(v, at)[0], left), right)
    gap = _NEAR * (1.0 + at)
    while True:
        low, high = np.maximum(at - gap, left), np.minimum(at + gap, right)
        slope, off = _rise(mu, v, low)
        fall, doubt = _rise(mu, v, high)
        between = ((slope >= off) | (low <= left)) & ((fall <= -doubt) | (high >= right))
        if between.all():
            break
        gap = np.where(between, gap, 64.0 * gap)
    value, error = _difference(mu, v, low)
    gap = (high - low) * (1.0 + 4.0 * UNIT)
    bend, doubt = _bend(v, low)
    return value, error + 1.001 * gap * (slope + off + np.maximum(bend + doubt, 0.0) * gap)


def _difference(mu: Array, v: Array, y: Array) -> tuple[Array, Array]:
    """f(y) and its error."""
    whole, linear, bent = y + np.log1p(np.exp(-2.0 * y)), mu * y, 0.5 * v * y * y
    size = whole + np.abs(linear) + np.abs(bent)
    return whole - linear - bent, 3.0 * LIBRARY * size + 4.0 * TINY


def _rise(mu: Array, v: Array, y: Array) -> tuple[Array, Array]:
    """f'(y) and its error."""
    off = 2.0 * LIBRARY * (1.0 + np.abs(mu) + np.abs(v) * y)
    return np.tanh(y) - mu - v * y, off


def _bend(v: Array, y: Array) -> tuple[Array, Array]:
    """f''(y) and its error: 1 / cosh^2 y - v without 1 - tanh^2 y, where digits would cancel."""
    far = np.exp(-2.0 * y)
    steep = 4.0 * far / (1.0 + far) ** 2
    return steep - v, 4.0 * LIBRARY * (steep + np.abs(v)) + 8.0 * TINY


def _steepest(v: Array) -> Array:
    """About where tanh y - v y is largest, y >= 0; what follows holds for any point."""
    inside = np.clip(v, 1e-300, 1.0)
    return np.where(v > 0.0, np.arccosh(1.0 / np.sqrt(inside)), math.inf)
