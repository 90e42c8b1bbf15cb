"""Zeros at a price: where a product may be free on a model with zeros, before a state is known.

Among zeros coordinate ascent moves nothing far: a variable is freed where all its neighbours allow
it, and then holds them. With zeros at a finite price that rises, all variables settle together
which of them are free. What that leads to is no bound while the price is finite; a state of
positive weight that agrees with it, opened by `block_mean_field` in the order of the entropies
here, is one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tightz.families.block import _arrays, _ascend
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import per_variable
from tightz.runtime.seeds import Seed, generator

LEAST, MOST = 0.5, 10.0
"""Nats below a table's least finite entry at which its zeros stand, at first and at last.

3-SAT, 3 clauses a variable, 30,000 variables, 22 sweeps, nats that came of it: 4,722; 1 to 30
4,645, 0.3 to 4 4,639, all at 4 4,428; 6 sweeps 4,221, 44 4,821, 220 4,935; opened in the order of
their numbers from a state that repair found, 3,405."""

JITTER = 0.1
"""Of the first q, which is nearly uniform: symmetries must break."""


def priced(model: FactorGraph, sweeps: int, seed: Seed) -> Iterator[list[NDArray[np.float64]]]:
    """The tables of q after each sweep, zeros a little dearer each time."""
    arrays = _arrays(model)
    logs = model.log_tables
    zero = np.isneginf(logs)
    least = np.minimum.reduceat(np.where(zero, np.inf, logs), model.table_ptr[:-1])
    least = np.where(np.isfinite(least), least, 0.0)  # a table of zeros alone
    base = np.repeat(least, np.diff(model.table_ptr))
    q = 1.0 + JITTER * generator(seed).random(int(arrays.ptr[-1]))
    q /= np.repeat(np.add.reduceat(q, arrays.ptr[:-1]), model.cardinalities)
    for price in np.geomspace(LEAST, MOST, sweeps):
        tables = np.where(zero, base - price, logs)
        tables.setflags(write=False)  # as a model's: the kernel is compiled for those
        _ascend(arrays._replace(log_tables=tables), q, 1, 0, 0.0)
        yield per_variable(q, model.cardinalities)


def freest_first(tables: list[NDArray[np.float64]]) -> NDArray[np.int64]:
    """The variables in the order of their entropies, the largest first."""
    sizes = np.array([q.size for q in tables])
    flat = np.concatenate(tables)
    parts = -flat * np.log(np.where(flat > 0.0, flat, 1.0))
    ends = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.argsort(-np.add.reduceat(parts, ends), kind="stable")
