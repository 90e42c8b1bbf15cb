"""A model at another temperature: p(x) ~ exp(beta w(x)), w the log weight of the model as given."""

from __future__ import annotations

import numpy as np

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.scale import LARGEST


def at_beta(model: FactorGraph, beta: float) -> FactorGraph:
    """The model with all log tables times `beta`; zeros stay zeros, at beta = 0 too.

    The model as given is the one at beta = 1: its energy is minus its log weight.
    """
    tables = np.full(model.log_tables.shape, -np.inf)
    possible = model.log_tables > -np.inf
    with np.errstate(over="ignore"):
        tables[possible] = beta * model.log_tables[possible]
    wrong = possible & (np.abs(tables) > LARGEST)
    if wrong.any():
        entry = int(np.argmax(wrong))
        f = int(np.searchsorted(model.table_ptr, entry, side="right")) - 1
        raise ModelError(
            f"factor {f} holds {model.log_tables[entry]:g}, which times beta = {beta:g} is too "
            "large for sums in float64; expected a smaller beta, or zeros instead of large "
            "numbers: model.with_zeros()"
        )
    return FactorGraph.from_arrays(
        model.cardinalities,
        model.scope_ptr,
        model.scope_vars,
        model.table_ptr,
        tables,
        evidence=model.evidence,
        name=model.name,
        layout=model.layout,
        names=model.names,
        states=model.states,
    )
