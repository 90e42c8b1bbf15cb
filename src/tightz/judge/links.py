"""A q over spins as evidence about a model: the value on the spins, less all roundings between."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tightz.judge.collapses import CollapseLink
from tightz.judge.encodings import EncodingLink
from tightz.judge.spins import SpinDistribution, SpinTerms
from tightz.judge.verdict import RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph


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
    _value: list[tuple[float, float]] = field(default_factory=list, repr=False)

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
