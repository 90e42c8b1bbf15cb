"""Log potentials whose size spoils float64: numbers written for zeros, and sums that round away.

A log potential is -inf, which is a zero, or a number from -1e100 to 1e100 (`LARGEST`).

A forbidden pair is often written as a log potential of -1e30. Such a number is a zero in all but
name, but every sum that it enters loses what is smaller than 2^-53 of it, and no method that knows
zeros is told of one.
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ParameterError
from tightz.models.inputs import told

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph

LARGEST = 1e100
"""Of a log potential in size. Sums over any number of tables are then far from the end of float64,
and so are their squares and the third powers of entries; at 1e200 squares overflowed."""

BELOW = -1e9
"""An entry this far below its table's largest is taken for a zero in disguise."""

WORTH_SAYING = 1e-6
"""Rounding of more nats than this is told."""

ROUNDING = 4 * 2.0**-53
"""Relative error of a sum of log potentials, about: half a unit in the last place for each of the
few partial sums that are as large as the whole."""


class _Tables(NamedTuple):
    """Per factor: its largest entry (-inf if it has none that is finite), and per entry: its
    distance from that, -inf for zeros and NaN in tables of zeros alone."""

    tops: NDArray[np.float64]
    depths: NDArray[np.float64]


def with_zeros(model: FactorGraph, below: float) -> FactorGraph:
    """See `FactorGraph.with_zeros`."""
    hidden = _hidden(_tables(model), below)
    return type(model).from_arrays(
        model.cardinalities,
        model.scope_ptr,
        model.scope_vars,
        model.table_ptr,
        np.where(hidden, -np.inf, model.log_tables),
        evidence=model.evidence,
        name=model.name,
        layout=model.layout,
        names=model.names,
        states=model.states,
    )


def log_removed(model: FactorGraph, below: float = BELOW) -> float:
    """log of the most that Z can lose by `model.with_zeros(below)`; -inf where nothing is removed.

    Proof. A state that is lost has an entry removed in some factor f, which is at most top_f + d,
    d the largest distance of a removed entry from its table's top; every other factor g gives at
    most top_g. So log p~ <= d + sum of tops for each of the N states at most that are lost:
    Z - Z' <= N exp(d + sum of tops). With a lower bound L on log Z' of the model with zeros,
    log Z <= log Z' + log1p(exp(log_removed - L)): nothing in float64 where d is -1e9.
    """
    tables = _tables(model)
    hidden = _hidden(tables, below)
    if not hidden.any() or (tables.tops == -np.inf).any():
        return -math.inf
    free = np.ones(model.n_variables, dtype=bool)
    free[list(model.evidence)] = False
    # All N states at most are lost, a wild overestimate that costs log N nats: at d = -1e9 it does
    # not matter.
    states = float(np.log(model.cardinalities[free].astype(np.float64)).sum())
    try:
        tops = math.fsum(tables.tops.tolist())
    except OverflowError:  # no statement
        return math.inf
    return states + tops + float(tables.depths[hidden].max())


def scale_warnings(model: FactorGraph) -> list[str]:
    """See `FactorGraph.scale_warnings`."""
    tables = _tables(model)
    hidden = _hidden(tables, BELOW)
    warnings = []
    if hidden.any():
        k = int(np.argmax(hidden))
        factors = np.unique(np.searchsorted(model.table_ptr, np.flatnonzero(hidden), "right"))
        others = f" ({len(factors) - 1} more factors have such)" if len(factors) > 1 else ""
        warnings.append(
            f"{place(model, k)} is {model.log_tables[k]:g}, which is {-tables.depths[k]:.3g} "
            f"below its table's largest{others}: it looks like a zero written as a number. "
            f"model.with_zeros(below={BELOW:g}) makes zeros of these (tightz ... --zeros-below "
            f"{BELOW:g}); Z can lose exp({log_removed(model):.3g}) by it at most"
        )
    finite = np.where(np.isfinite(model.log_tables), np.abs(model.log_tables), 0.0)
    error = _rounding(model, finite)
    if error > WORTH_SAYING:
        k = int(np.argmax(finite))
        helped = _rounding(model, np.where(hidden, 0.0, finite)) <= WORTH_SAYING
        remedy = (
            f"model.with_zeros(below={BELOW:g}) mends it"
            if helped
            else "take a constant off the large tables, or scale the model down"
        )
        warnings.append(
            f"rounding: the tables' largest entries add up to {error / ROUNDING:.3g}, so a sum of "
            f"them in float64 is off by about {error:.2g} nats, more than {WORTH_SAYING:g} "
            f"({place(model, k)} is {model.log_tables[k]:g}); {remedy}"
        )
    return warnings


def _tables(model: FactorGraph) -> _Tables:
    if not model.n_factors:
        return _Tables(np.zeros(0), np.zeros(0))
    tops = np.maximum.reduceat(model.log_tables, model.table_ptr[:-1])
    logs = model.log_tables
    with np.errstate(invalid="ignore", over="ignore"):
        depths = logs - np.repeat(tops, np.diff(model.table_ptr))
    lost = np.isneginf(depths) & (logs > -np.inf)  # a difference that float64 does not hold
    return _Tables(tops, np.where(lost, -np.finfo(np.float64).max, depths))


def _hidden(tables: _Tables, below: float) -> NDArray[np.bool_]:
    """Entries that are finite and lower than their table's largest by more than -below."""
    if not isinstance(below, numbers.Real) or not -math.inf < below < 0.0:
        raise ParameterError(
            f"below is {told(below)}; expected a negative number: how far an entry is from its "
            f"table's largest when it counts as a zero, such as {BELOW:g}"
        )
    found: NDArray[np.bool_] = (tables.depths < below) & (tables.depths > -np.inf)
    return found


def _rounding(model: FactorGraph, magnitudes: NDArray[np.float64]) -> float:
    """About how many nats a log weight is off, from the largest magnitude of each table."""
    if not model.n_factors:
        return 0.0
    with np.errstate(over="ignore"):
        return ROUNDING * float(np.maximum.reduceat(magnitudes, model.table_ptr[:-1]).sum())


def place(model: FactorGraph, k: int) -> str:
    """Entry k of all tables, by factor and states."""
    f = int(np.searchsorted(model.table_ptr, k, side="right") - 1)
    scope, table = model.factor(f)
    states = np.unravel_index(int(k - model.table_ptr[f]), table.shape) if table.shape else ()
    return f"factor {f} over {scope}, entry {tuple(int(s) for s in states)}"
