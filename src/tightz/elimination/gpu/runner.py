"""One pass on a machine, and what is known about the table it makes.

Tables are on the ordinary scale throughout. Each pass reports its smallest and largest entry; the
next one multiplies by the power of two that brings the largest near 1, which is exact. Before a
pass starts, its entries are known to stay within float64's range, or `OutOfRangeError` says that
they may not: the CPU then has tables of logs, the device has not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.precision import NO_ERROR, Error, joined
from tightz.elimination.exact.tables import go_on_unless
from tightz.elimination.gpu.audit import Audit
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.lowering import coefficient_count, lower
from tightz.elimination.gpu.machine import Machine, Range
from tightz.elimination.gpu.passes import Pass
from tightz.elimination.gpu.placement import align
from tightz.elimination.gpu.program import MATRIX, Program, Source
from tightz.errors import ResourceError
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError

LIMIT = 650.0
"""Nats that the entries met in one pass may span; float64 holds full digits over 700 and more."""

_LN2_HIGH = 0.693147180369123816490  # 33 bits: times an exponent it is exact
_LN2_LOW = 1.90821492927058770002e-10
_LN2_ERROR = 2.0**-80
_SLACK = 1e-9


class OutOfRangeError(ResourceError):
    """A table spans more than float64 can hold on the ordinary scale."""


@dataclass
class Known:
    """A table: exp(sum of tops) 2^exponent times its entries, whose logs lie in [low, high]."""

    tops: list[float] = field(default_factory=list)
    exponent: int = 0
    low: float = 0.0
    high: float = 0.0
    error: Error = NO_ERROR

    def top_terms(self) -> list[float]:
        """Floats whose sum is the log of the largest entry."""
        return [
            self.high, *self.tops, self.exponent * _LN2_HIGH, self.exponent * _LN2_LOW,
        ]  # fmt: skip

    @property
    def top_rounding(self) -> float:
        """How far that sum can be off."""
        return self.error.at(0.0) + LIBRARY * abs(self.high) + _LN2_ERROR * abs(self.exponent)


def entries_with_coefficients(peak: int, passes: Iterable[Pass], plan: EliminationPlan) -> int:
    """Of the flat array: tables at its start, behind them the coefficients of all passes."""
    return align(peak) + sum(align(coefficient_count(one, plan)) for one in passes)


class Runner:
    """Runs passes in sequence, each audited at sampled contexts (`RefutedError`)."""

    def __init__(
        self,
        plan: EliminationPlan,
        factors: Factors,
        machine: Machine,
        passes: list[Pass],
        peak: int,
        stop: Callable[[], bool] = bool,
    ) -> None:
        self._stop = stop
        self._plan, self._factors, self._machine = plan, factors, machine
        self._audit = Audit(plan, factors, machine)
        self.passes = passes
        lowered, at = [], align(peak)
        for one in passes:
            lowered.append(lower(one, plan, factors, at))
            at += align(coefficient_count(one, plan))
        machine.load(lowered)

    def run(self, k: int, known: dict[Source, Known], *, keep: bool = True) -> Known | None:
        """Pass k; None where nothing but zeros comes out; `StoppedError` once `stop()` says so.

        Without `keep` the result is summed at once, and what underflows does not count.
        """
        go_on_unless(self._stop)
        one = self.passes[k]
        inputs = [known[s] for s in one.inputs]
        groups = [self._factors.merged(*s) for s in one.factors(self._plan)]
        states = math.prod(float(self._plan.cardinalities[b]) for b in one.summed)
        scale = sum(-_exponent(t.high) for t in inputs)
        shift = scale * math.log(2.0)
        high = sum(t.high for t in inputs) + math.log(states) + shift + _SLACK
        low = sum(min(t.low, 0.0) for t in inputs) + sum(g.low for g in groups)
        low += min(shift, 0.0) - _SLACK
        peak = high + sum(max(-t.high, 0.0) for t in inputs)
        if peak - (low if keep else 0.0) > LIMIT:
            raise OutOfRangeError(
                f"gpu: entries of bucket {one.chain[-1]}'s table may span {peak - low:.0f} nats; "
                f"float64 on the ordinary scale holds {LIMIT:.0f}"
            )
        own = Error(_roundings(one, states) * UNIT)
        error = joined([*(t.error for t in inputs), *(g.error for g in groups)]).plus(*own)
        sample = self._audit.before(one, 2.0**scale)
        found = self._machine.run(k, 2.0**scale)
        if not math.isfinite(found.large):
            raise RefutedError(
                f"gpu: the pass over buckets {one.chain[0]} to {one.chain[-1]} left entries that "
                "are no finite numbers"
            )
        self._audit.after(one, sample, own)
        if found.large == 0.0:
            return None
        tops = [x for g in groups for x in g.tops] + [x for t in inputs for x in t.tops]
        exponent = sum(t.exponent for t in inputs) - scale
        return measured(Known(tops, exponent, low, high, error), found)


def measured(bound: Known, found: Range) -> Known:
    """What is known of a table once its range has been seen."""
    large = math.log(found.large)
    return Known(
        bound.tops,
        bound.exponent,
        math.log(found.small) - _SLACK,
        large,
        bound.error.lowered(bound.high - large + _SLACK),
    )


def _exponent(high: float) -> int:
    """The power of two nearest below exp(high)."""
    return math.floor(high / math.log(2.0))


def _roundings(one: Pass, states: float) -> float:
    """Products and additions between an entry of the message and what it is made of."""
    if isinstance(one.work, Program):
        return sum(2 if s.kind == MATRIX else 1 for s in one.work.steps)
    return len(one.work.sources) + states
