"""Log weights of single states, entry by entry from the model's tables, without kernels."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.judge.rounding import UNIT
from tightz.models.factor_graph import FactorGraph


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
