"""A model of spins with fields, held against one that does not change when all spins are flipped.

T are the tables of the model, S others over the same scopes with S(-x) = S(x), F = T - S. Where
every table of F changes its sign with x,

    Z = sum_x exp(S(x)) (exp F(x) + exp F(-x)) / 2 >= Z_S,

since the mean of two exponentials is at least the exponential of the mean, which is 0. From above
F is at most the sum of its largest entries; or with a third model W and a share 0 < w < 1, by
Hoelder's inequality,

    log Z <= (1 - w) log Z_S + w log Z_W + sum over tables of max (T - (1 - w) S - w W).

For W = S + F / w the last sum is rounding. What of F does not change its sign, and any other W, are
charged in the same way, so that nothing depends on how S and W were made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import UNIT, Evidence, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph

_LEAST = 1e-300
"""Added to every error: numbers that are too small for a relative one."""


class Part(NamedTuple):
    """A model over the scopes of the one that is judged, and what is proven about its log Z."""

    model: FactorGraph
    evidence: Evidence


@dataclass(frozen=True, eq=False)
class FieldsEvidence:
    """`even` is S; `strong` is W with its `share` w, or None: the largest entries of F then."""

    even: Part
    strong: Part | None = None
    share: float = 0.0

    def verdict(self, model: FactorGraph) -> Verdict:
        for part in (self.even, self.strong):
            if part is not None and not _alike(part.model, model):
                raise RefutedError("a part is a model over other variables, states or scopes")
        if (model.cardinalities != 2).any():
            raise RefutedError("a variable that is no spin has no flip")
        given, even = model.log_tables, self.even.model.log_tables
        mirror = _mirror(model)
        if not (np.isfinite(given).all() and np.array_equal(even, even[mirror])):
            raise RefutedError("tables with zeros, or a part that a flip of all spins changes")
        proven = self.even.evidence.verdict(self.even.model)
        with np.errstate(over="ignore", invalid="ignore"):
            # The part of F that keeps its sign: rounding, if S is the even part of T.
            kept = even - 0.5 * (given + given[mirror])
            size = np.abs(given) + np.abs(given[mirror]) + np.abs(even)
            lost, error = _largest(model, kept, size)
            value = proven.lower - lost
            rounding = error + 4.0 * UNIT * (abs(proven.lower) + abs(lost))
            lower = value - rounding
            upper, charge = self._upper(model, proven)
        if not math.isfinite(lower):
            lower = -math.inf
        return Verdict(lower, upper, proven.rounding + max(rounding, charge))

    def _upper(self, model: FactorGraph, even: Verdict) -> tuple[float, float]:
        """(upper end, what was added to it for rounding); inf where a part says nothing."""
        given, least = model.log_tables, self.even.model.log_tables
        if self.strong is None:
            ends, rest = [even.upper], given - least
            size = np.abs(given) + np.abs(least)
        else:
            if not 0.0 < self.share < 1.0:
                raise RefutedError(f"a share of {self.share!r} is not between 0 and 1")
            # Both are exact and add up to exactly 1: the difference of 1 and a number from 1/2 to 1
            # is a float.
            most = 1.0 - self.share
            share = 1.0 - most
            other = self.strong.evidence.verdict(self.strong.model)
            ends = [most * even.upper, share * other.upper]
            weighted = share * self.strong.model.log_tables
            rest = given - (most * least + weighted)
            size = np.abs(given) + np.abs(least) + np.abs(weighted)
        over, error = _largest(model, rest, size)
        value = _sum([*ends, over])
        rounding = error + 4.0 * UNIT * (sum(map(abs, ends)) + abs(over) + abs(value))
        if not math.isfinite(value + rounding):
            return math.inf, 0.0
        return value + rounding, rounding


def _alike(part: FactorGraph, model: FactorGraph) -> bool:
    return not (part.evidence or model.evidence) and all(
        np.array_equal(getattr(part, name), getattr(model, name))
        for name in ("cardinalities", "scope_ptr", "scope_vars", "table_ptr")
    )


def _mirror(model: FactorGraph) -> NDArray[np.int64]:
    """Where an entry's state with all spins flipped is: tables backwards."""
    ptr = model.table_ptr.astype(np.int64)
    ends = np.repeat(ptr[:-1] + ptr[1:] - 1, np.diff(ptr))
    return ends - np.arange(ends.size)


def _largest(
    model: FactorGraph, entries: NDArray[np.float64], size: NDArray[np.float64]
) -> tuple[float, float]:
    """(sum over tables of the largest entry, how much more it can be for rounding).

    An entry is a sum of at most three products of numbers that add up to `size`.
    """
    if not entries.size:
        return 0.0, 0.0
    starts = model.table_ptr[:-1]
    most = np.maximum.reduceat(entries, starts).tolist()
    errors = np.maximum.reduceat(8.0 * UNIT * size + _LEAST, starts).tolist()
    total = _sum(most)
    return total, 1.001 * _sum(errors) + UNIT * abs(total)


def _sum(numbers: list[float]) -> float:
    """Rounded once; inf, which says nothing, where some number or the sum is not finite."""
    if not all(map(math.isfinite, numbers)):
        return math.inf
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf
