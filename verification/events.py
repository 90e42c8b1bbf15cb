"""Probabilities of events in a small model by enumeration, as intervals that hold always.

As in `verification.truth`, from which the log weights come: extended precision, nothing shared with
the library. Here every state's weight has two ends, so that an event is known whatever its weight
is beside the others: a rare state of probability 1e-200 has as many digits as a likely one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import tightz as tz
from verification.truth import LIBRARY, UNIT, joint_log_weights

Extended = NDArray[np.longdouble]
TINY = np.finfo(np.longdouble).tiny


class Interval(NamedTuple):
    low: Extended
    high: Extended


@dataclass(frozen=True, eq=False)
class Events:
    """The weights of all states over that of the heaviest, between `low` and `high`.

    top   two extended numbers whose sum is the log weight of the heaviest state
    """

    low: Extended
    high: Extended
    top: tuple[np.longdouble, np.longdouble]

    @classmethod
    def of(cls, model: tz.FactorGraph) -> Events:
        joint = joint_log_weights(model)
        nothing = np.zeros(joint.high.shape, np.longdouble)
        if not joint.possible.any():
            return cls(nothing, nothing, (np.longdouble(0), np.longdouble(0)))
        top = np.argmax(np.where(joint.possible, joint.high, -np.inf))
        for _ in range(2):  # `high` alone may not show which of two sums of 1e30 is the larger
            above, rest = joint.high.flat[top], joint.low.flat[top]
            logs = np.where(joint.possible, (joint.high - above) + (joint.low - rest), 0)
            top = np.argmax(np.where(joint.possible, logs, -np.inf))
        # TwoSum leaves the errors of the low parts alone; then a subtraction, a sum and an exp.
        size = joint.size + joint.size.flat[top]
        error = 4 * UNIT * np.abs(logs) + 16 * (model.n_factors * UNIT) ** 2 * size
        with np.errstate(under="ignore", over="ignore"):
            low = np.exp(logs - error) * (1 - LIBRARY)
            high = np.maximum(np.exp(logs + error) * (1 + LIBRARY), TINY)
        # below the least normal number digits are lost, so from below there is nothing
        zero = ~joint.possible
        return cls(np.where(zero | (low < TINY), 0, low), np.where(zero, 0, high), (above, rest))

    @property
    def possible(self) -> bool:
        return bool((self.high > 0).any())

    def weights(self, variables: tuple[int, ...], given: Mapping[int, int]) -> Interval:
        """(states of these variables, in this order) sums of weights with `given` observed."""
        seen = tuple(
            slice(None) if v not in given else slice(given[v], given[v] + 1)
            for v in range(self.low.ndim)
        )
        ends = []
        for weights, sign in ((self.low, -1), (self.high, 1)):
            part = np.zeros_like(weights)
            part[seen] = weights[seen]
            others = tuple(v for v in range(part.ndim) if v not in variables)
            summed = part.sum(axis=others) * (1 + sign * (part.size + 4) * UNIT)
            kept = sorted(variables)
            ends.append(np.transpose(summed, [kept.index(v) for v in variables]))
        return Interval(*ends)

    def shares(self, variables: tuple[int, ...], given: Mapping[int, int]) -> Interval:
        """p(x_variables | given) of each of their states; [0, 1] where nothing has weight."""
        low, high = self.weights(variables, given)
        with np.errstate(invalid="ignore", divide="ignore"):
            least = low / (low + _others(high)) * (1 - 8 * UNIT)
            most = high / (high + _others(low)) * (1 + 8 * UNIT)
        return Interval(np.nan_to_num(least), np.where(np.isnan(most), 1, np.minimum(most, 1)))

    def logs(self, variables: tuple[int, ...], given: Mapping[int, int]) -> Interval:
        """log Z with each state of these variables."""
        low, high = self.weights(variables, given)
        with np.errstate(divide="ignore"):
            logs = [np.log(one) for one in (low, high)]
        ends = []
        for one, sign in zip(logs, (-1, 1), strict=True):
            alive = np.where(np.isneginf(one), 0, one)
            value = self.top[0] + (self.top[1] + alive)
            slack = LIBRARY * (2 + np.abs(alive)) + 4 * UNIT * (np.abs(value) + np.abs(self.top[1]))
            ends.append(np.where(np.isneginf(one), one, value + sign * slack))
        return Interval(*ends)


def _others(values: Extended) -> Extended:
    """The sum of all entries but each itself, by additions only."""
    flat = values.ravel()
    before = np.concatenate([[0], np.cumsum(flat[:-1])]).astype(np.longdouble)
    after = np.concatenate([[0], np.cumsum(flat[:0:-1])]).astype(np.longdouble)[::-1]
    summed: Extended = (before + after).reshape(values.shape)
    return summed
