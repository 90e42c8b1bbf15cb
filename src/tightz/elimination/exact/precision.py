"""How far the tables of an elimination can be from the real numbers they stand for.

Write M(S) for the log of a table's entry at S, the whole table on its own scale, and `high` for an
upper bound on M. Every table carries an `Error` (a, r) with the promise

    |computed M(S) - true M(S)| <= a + r (high - M(S))       for every S with M(S) > -inf,

zeros being exact. The second term is what keeps the promise small: float64 errs in proportion to
the numbers it adds, and those are large only at entries far below the best ones. Steps keep it:

* A product of tables, F = sum_i M_i with high_F = sum_i high_i: sum_i a_i, and max_i r_i because
  sum_i r_i (high_i - M_i) <= max_i r_i (high_F - F). No cancellation: every term is >= 0.
* A sum over q states, M = log sum_v exp F_v, where F_v errs by e_v <= a + r (high_F - F_v). With
  p_v = exp(F_v - M), the error is at most a + r (high_F - M) + log sum_v p_v^(1 - r), and
  sum_v p_v^(1 - r) <= q^r. So the promise holds with high = high_F + log q, and a and r unchanged
  (the lower side likewise: sum_v p_v^(1 + r) >= q^-r).
* Taking out the largest entry T moves high to T: a grows by r (high - T). This is the only way r
  reaches the result, whose one entry is its own largest. A table of pseudo-zeros (-1e30) costs
  nothing unless the model has no state without them.
* Rounding on the ordinary scale: a product or a sum of non-negative numbers costs `UNIT` in a,
  wherever M lies; exp costs `LIBRARY`. Nothing underflows: see `tables`.
* Rounding in logs: an addition whose result is M costs UNIT |M| <= UNIT (high - M) + UNIT high, so
  it adds UNIT to r and UNIT high to a; log of an entry the same with `LIBRARY`.
* log sum exp with a running maximum: every term is multiplied by exp of at most q differences that
  add up to D_v = top - F_v, q times LIBRARY + 2 UNIT; rounding the differences costs UNIT E_p[D] <=
  UNIT log q (E_p[D] = entropy - log sum exp(-D)), and the q additions q UNIT; terms more than 745
  below the maximum are left out: q e^-745.

Scales (the T's and the tables' own maxima) are added without error, as pairs of floats. Products of
two error terms are covered by `_SECOND_ORDER`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from tightz.judge.verdict import LIBRARY, UNIT

_SECOND_ORDER = 1.0 + 2.0**-10  # sums of fewer than 2^40 terms of size UNIT, squared


class Error(NamedTuple):
    """The promise (a, r) of the module's text: nats, and nats per nat below the table's top."""

    absolute: float = 0.0
    relative: float = 0.0

    def plus(self, absolute: float, relative: float = 0.0) -> Error:
        return Error(self.absolute + absolute, self.relative + relative)

    def lowered(self, drop: float) -> Error:
        """The promise for a `high` that lies `drop` nats lower."""
        return Error(self.absolute + self.relative * max(drop, 0.0), self.relative)

    def at(self, depth: float) -> float:
        """Nats at an entry `depth` below high."""
        return _SECOND_ORDER * (self.absolute + self.relative * max(depth, 0.0))


NO_ERROR = Error()


def joined(errors: Iterable[Error]) -> Error:
    """The error of a product before its own rounding."""
    listed = list(errors)
    return Error(
        math.fsum(e.absolute for e in listed), max((e.relative for e in listed), default=0.0)
    )


def step_error(inputs: int, states: int, high: float, *, logarithmic: bool) -> Error:
    """What one bucket's own arithmetic costs: `inputs` tables joined, `states` summed out.

    `high` bounds the log of the product from above.
    """
    if not logarithmic:
        return Error((inputs + states - 2) * UNIT)
    count = math.log(states)
    additions = inputs * UNIT  # inputs - 1 to join, one for top + log(total)
    total = states * (LIBRARY + 3.0 * UNIT) + (LIBRARY + UNIT) * count
    return Error(total + additions * (max(high, 0.0) + count), additions)


class Scale(NamedTuple):
    """high + low, a sum of float64 numbers to twice their precision."""

    high: float = 0.0
    low: float = 0.0


NO_SCALE = Scale()


def add_scales(parts: Iterable[float]) -> Scale:
    """The sum rounded once, and what that rounding left over, rounded once."""
    terms = list(parts)
    high = math.fsum(terms)
    return Scale(high, math.fsum([*terms, -high]))
