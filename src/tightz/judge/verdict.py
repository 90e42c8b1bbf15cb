"""What the judge is given and what it answers; its roundings, and the weights of single states.

u = 2^-53 is the largest relative error of one correctly rounded operation. A sum of n terms in any
order differs from the true sum by at most (n - 1) u / (1 - (n - 1) u) * sum |terms| (Higham,
"Accuracy and Stability of Numerical Algorithms", 2002, section 4.2); `math.fsum` rounds once.
numpy's exp and log are within 4 units in the last place on the platforms numpy tests (its own SIMD
versions included); `LIBRARY` takes 8.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph


class Verdict(NamedTuple):
    """lower <= log Z <= upper, both moved outward by `rounding` nats; infinite: no statement."""

    lower: float = -math.inf
    upper: float = math.inf
    rounding: float = 0.0


class Evidence(Protocol):
    """What a bound rests on: arrays that can be checked without trusting who made them."""

    def verdict(self, model: FactorGraph) -> Verdict:
        """What this evidence proves about log Z of `model`; RefutedError where it is not sound."""


class RefutedError(Exception):
    """Evidence that does not hold: a table that does not sum to the model, a q that is none."""


UNIT = 2.0**-53
"""Relative error of one correctly rounded float64 operation."""

LIBRARY = 8 * UNIT
"""Relative error allowed to exp, log and their kin."""


def summation(count: int, magnitude: Any) -> Any:
    """Error of a sum of `count` terms whose absolute values add up to `magnitude`, any order.

    And of a product of so many factors, of that magnitude; for an array of magnitudes, too.

    Twice the first-order bound, so that the higher orders and the rounding of `magnitude` itself
    are covered for every count below 2^50.
    """
    return 2.0 * max(count, 1) * UNIT * magnitude


def log_summation(count: Any, weight: Any = 1.0) -> Any:
    """Error of w log sum exp((x - top) / w) over `count` numbers x, top the one that gives most.

    With a = (x - top) / w <= 0 computed to 2 u |a|, each of n terms exp(a) is off by at most
    (2 u |a| + L) exp(a) <= 2 u / e + L exp(a), L = LIBRARY, their sum, which is at least 1, by
    (n - 1) u relatively more, its logarithm (at most log n) by L relatively, the product with w by
    u: in all |w| (u (2 n + log n) + L (1 + log n)). Twice that covers the higher orders and the
    rounding of the padding; what adding top rounds is not in it. For arrays, too.
    """
    logs = np.log(count)
    return 2.0 * abs(weight) * (UNIT * (2.0 * count + logs) + LIBRARY * (1.0 + logs))


def entries_at(model: FactorGraph, state: NDArray[np.int64]) -> NDArray[np.float64]:
    """(factors,) the entry of every log table that `state` selects."""
    shape = model.cardinalities.astype(np.int64)
    scope_ptr, variables = model.scope_ptr, model.scope_vars.astype(np.int64)
    # Row-major index by Horner's rule from the last variable of each scope to the first.
    index = np.zeros(model.n_factors, dtype=np.int64)
    stride = np.ones(model.n_factors, dtype=np.int64)
    arity = np.diff(scope_ptr)
    for back in range(int(arity.max(initial=0))):
        has = arity > back
        v = variables[scope_ptr[1:][has] - 1 - back]
        index[has] += stride[has] * state[v]
        stride[has] *= shape[v]
    return model.log_tables[model.table_ptr[:-1] + index]


def log_weight(model: FactorGraph, state: NDArray[np.int64]) -> tuple[float, float]:
    """(log p~(state), its rounding error): correctly rounded once by fsum; (-inf, 0) for a zero."""
    entries = entries_at(model, state)
    if np.isneginf(entries).any():
        return -math.inf, 0.0
    value = math.fsum(entries.tolist())
    return value, UNIT * abs(value)


def allowed(model: FactorGraph, state: NDArray[np.int64]) -> bool:
    """Whether `state` names one existing state per variable and agrees with the evidence."""
    fits = state.shape == (model.n_variables,) and bool(
        ((state >= 0) & (state < model.cardinalities)).all()
    )
    return fits and all(int(state[v]) == s for v, s in model.evidence.items())
