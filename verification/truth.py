"""The truth about a small model by enumeration, as an interval that holds whatever numpy rounded.

Shares nothing with the library: tables are laid over the joint by numpy's own broadcasting, in
extended precision, each state's log weight as a sum of two numbers. `decimal_log_z` is a second,
independent route with as many digits as asked for; `tests/test_verification.py` compares the two.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import tightz as tz

UNIT = np.finfo(np.longdouble).epsneg / 2
"""Relative error of one correctly rounded operation in extended precision (2^-64 on x86)."""

LIBRARY = 8 * UNIT
"""What the extended exp and log may be off by, relatively."""


@dataclass(frozen=True, eq=False)
class Truth:
    """low <= log Z <= high in extended precision; marginals of every variable (NaN where Z = 0).

    `size` is the largest sum of |entries| over the states that matter: no float64 computation can
    know their log weights better than some units of it.
    """

    low: np.longdouble
    high: np.longdouble
    marginals: list[NDArray[np.longdouble]]
    size: float = 0.0


class Joint(NamedTuple):
    """Log weights high + low of all states, one axis per variable, and sums of |entries|.

    `possible` is False where a zero potential or the evidence rules a state out; the numbers there
    mean nothing.
    """

    high: NDArray[np.longdouble]
    low: NDArray[np.longdouble]
    size: NDArray[np.longdouble]
    possible: NDArray[np.bool_]


def joint_log_weights(model: tz.FactorGraph) -> Joint:
    """Sums of two extended numbers (Knuth's TwoSum), so that 1e30 and 1e-12 can meet in one."""
    shape = tuple(int(c) for c in model.cardinalities)
    high, low, size = (np.zeros(shape, np.longdouble) for _ in range(3))
    possible = np.ones(shape, bool)
    for scope, table in model.factors:
        order = sorted(range(len(scope)), key=scope.__getitem__)
        spread = [shape[v] if v in scope else 1 for v in range(len(shape))]
        entries = np.asarray(table).transpose(order).reshape(spread).astype(np.longdouble)
        possible = possible & (entries > -np.inf)
        entries = np.where(np.isfinite(entries), entries, 0)
        total = high + entries
        part = total - high
        low = low + ((high - (total - part)) + (entries - part))
        high, size = total, size + np.abs(entries)
    for v, state in model.evidence.items():
        possible[(slice(None),) * v + (np.arange(shape[v]) != state,)] = False
    return Joint(high, low, size, possible)


def enumerate_model(model: tz.FactorGraph) -> Truth:
    """log Z between two numbers that differ by the rounding of this very sum, and marginals."""
    joint = joint_log_weights(model)
    if not joint.possible.any():
        nothing = [np.full(int(c), np.nan, np.longdouble) for c in model.cardinalities]
        return Truth(np.longdouble(-np.inf), np.longdouble(-np.inf), nothing)
    top = np.argmax(np.where(joint.possible, joint.high, -np.inf))
    for _ in range(2):  # `high` alone may not show which of two sums of 1e30 is the larger
        above, rest = joint.high.flat[top], joint.low.flat[top]
        logs = np.where(joint.possible, (joint.high - above) + (joint.low - rest), -np.inf)
        top = np.argmax(logs)
    shares = np.exp(logs)
    whole = shares.sum()
    log_z = above + (rest + np.log(whole))
    slack = (logs.size + 32) * UNIT + LIBRARY * (4 + abs(np.log(whole)))
    # What is lighter than the heaviest by more than this adds less than one unit in all.
    heavy = joint.possible & (logs >= -45 - math.log(logs.size))
    size = joint.size[heavy].max()
    slack += 4 * UNIT * abs(log_z) + 16 * (model.n_factors * UNIT) ** 2 * size
    axes = range(logs.ndim)
    marginals = [shares.sum(axis=tuple(a for a in axes if a != v)) / whole for v in axes]
    return Truth(log_z - slack, log_z + slack, marginals, float(size))


def decimal_log_z(model: tz.FactorGraph, digits: int = 60) -> Decimal:
    """log Z state by state in decimal arithmetic; -Infinity where Z = 0. Slow: tiny models only."""
    context = Context(prec=digits)
    factors = [
        (scope, {index: Decimal(float(table[index])) for index in np.ndindex(table.shape)})
        for scope, table in model.factors
    ]
    logs = []
    for state in itertools.product(*(range(int(c)) for c in model.cardinalities)):
        if any(state[v] != x for v, x in model.evidence.items()):
            continue
        weight = Decimal(0)
        for scope, table in factors:
            weight = context.add(weight, table[tuple(state[v] for v in scope)])
        if weight.is_finite():
            logs.append(weight)
    if not logs:
        return Decimal("-Infinity")
    top = max(logs)
    total = Decimal(0)
    for weight in logs:
        total = context.add(total, context.exp(context.subtract(weight, top)))
    return context.add(top, context.ln(total))
