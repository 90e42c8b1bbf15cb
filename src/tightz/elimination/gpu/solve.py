"""Following the passes of a plan: scales, roundings and the audit of one elimination.

Tables are on the ordinary scale throughout. Each pass reports its smallest and largest entry; the
next one multiplies by the power of two that brings the largest near 1, which is exact. Before a
pass starts, its entries are known to stay within float64's range, or `OutOfRangeError` says that
they may not: the CPU then has tables of logs, the device has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.precision import NO_ERROR, Error, Scale, add_scales, joined
from tightz.elimination.gpu.audit import Audit
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.lowering import coefficient_count, lower
from tightz.elimination.gpu.machine import Machine, Range
from tightz.elimination.gpu.passes import Pass, Passes
from tightz.elimination.gpu.placement import align
from tightz.elimination.gpu.program import MATRIX, Program, Source
from tightz.errors import ResourceError
from tightz.judge.verdict import LIBRARY, UNIT

LIMIT = 650.0
"""Nats that the entries met in one pass may span; float64 holds full digits over 700 and more."""

_LN2_HIGH = 0.693147180369123816490  # 33 bits: times an exponent it is exact
_LN2_LOW = 1.90821492927058770002e-10
_SLACK = 1e-9


class OutOfRangeError(ResourceError):
    """A table spans more than float64 can hold on the ordinary scale."""


@dataclass
class Known:
    """A message: exp(sum of tops) 2^exponent times its entries, whose logs lie in [low, high]."""

    tops: list[float] = field(default_factory=list)
    exponent: int = 0
    low: float = 0.0
    high: float = 0.0
    error: Error = NO_ERROR


class Solved(NamedTuple):
    """log Z to twice float64's precision, and how far it can be off."""

    scale: Scale
    rounding: float


def total_entries(found: Passes, plan: EliminationPlan) -> int:
    """Of the flat array: messages at its start, behind them the coefficients of all passes."""
    return align(found.peak) + sum(align(coefficient_count(one, plan)) for one in found.steps)


class Solve:
    """One elimination on a machine."""

    def __init__(
        self, plan: EliminationPlan, found: Passes, factors: Factors, machine: Machine
    ) -> None:
        self._plan, self._passes, self._factors = plan, found, factors
        self._machine = machine
        self._known: dict[int, Known] = {}
        self._audit = Audit(plan, factors, machine)

    def run(self) -> Solved:
        """log Z; every pass is audited at sampled contexts (`RefutedError`)."""
        lowered, at = [], align(self._passes.peak)
        for one in self._passes.steps:
            lowered.append(lower(one, self._plan, self._factors, at))
            at += align(coefficient_count(one, self._plan))
        self._machine.load(lowered)
        terms, rounding = list(self._factors.constants), 0.0
        if -math.inf in terms:
            return Solved(Scale(-math.inf), 0.0)
        for k, one in enumerate(self._passes.steps):
            known = self._pass(k, one)
            if known is None:
                return Solved(Scale(-math.inf), 0.0)
            last = one.chain[-1]
            if self._plan.buckets[last].scope:
                self._known[last] = known
                continue
            terms += [known.high, *known.tops]  # one entry: its log is its own largest
            terms += [known.exponent * _LN2_HIGH, known.exponent * _LN2_LOW]
            rounding += known.error.at(0.0) + LIBRARY * abs(known.high) + _tiny(known)
        scale = add_scales(terms)
        return Solved(scale, rounding + UNIT * abs(scale.high))

    def _pass(self, k: int, one: Pass) -> Known | None:
        """Run pass k; None where nothing but zeros comes out."""
        inputs = [self._known.pop(c) for c in one.inputs]
        groups = [self._factors.merged(*s) for s in _groups(one, self._plan)]
        states = [int(self._plan.cardinalities[b]) for b in one.chain]
        scale = sum(-_exponent(t.high) for t in inputs)
        shift = scale * math.log(2.0)
        high = sum(t.high for t in inputs) + sum(math.log(q) for q in states) + shift + _SLACK
        low = sum(min(t.low, 0.0) for t in inputs) + sum(g.low for g in groups)
        low += min(shift, 0.0) - _SLACK
        peak = high + sum(max(-t.high, 0.0) for t in inputs)
        if peak - low > LIMIT:
            raise OutOfRangeError(
                f"gpu: entries of bucket {one.chain[-1]}'s message may span {peak - low:.0f} nats; "
                f"tables of float64 on the ordinary scale hold {LIMIT:.0f}"
            )
        own = Error(_roundings(one, states) * UNIT)
        error = joined([*(t.error for t in inputs), *(g.error for g in groups)]).plus(*own)
        sample = self._audit.before(one, 2.0**scale)
        found = self._machine.run(k, 2.0**scale)
        self._audit.after(one, sample, own)
        if found.large == 0.0:
            return None
        return self._measured(
            found, high, error, inputs, [x for g in groups for x in g.tops], scale
        )

    def _measured(
        self, found: Range, high: float, error: Error, inputs: list[Known], tops: list[float],
        scale: int,
    ) -> Known:  # fmt: skip
        large = math.log(found.large)
        return Known(
            [*tops, *(x for t in inputs for x in t.tops)],
            sum(t.exponent for t in inputs) - scale,
            math.log(found.small) - _SLACK,
            large,
            error.lowered(high - large + _SLACK),
        )


def _exponent(high: float) -> int:
    """The power of two nearest below exp(high)."""
    return math.floor(high / math.log(2.0))


def _groups(one: Pass, plan: EliminationPlan) -> list[Source]:
    return [Source(b, g) for b in one.chain for g in range(len(plan.buckets[b].groups))]


def _roundings(one: Pass, states: list[int]) -> int:
    """Products and additions between an entry of the message and what it is made of."""
    if isinstance(one.work, Program):
        return sum(2 if s.kind == MATRIX else 1 for s in one.work.steps)
    return len(one.work.sources) + states[0]


def _tiny(known: Known) -> float:
    """What the constant ln 2 itself is off by, times the exponent."""
    return 2.0**-80 * abs(known.exponent)
