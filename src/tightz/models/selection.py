"""A model from some factors of another: what reductions leave, without a Python object each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph


def selected(
    model: FactorGraph,
    variables: NDArray[np.int64],
    factors: NDArray[np.bool_],
    added: Sequence[tuple[Sequence[int], NDArray[np.float64]]] = (),
    *,
    cardinalities: NDArray | None = None,
) -> FactorGraph:
    """The marked `factors` (n_factors,) over `variables`, which keep their order, then `added`.

    Marked factors name no other variable; scopes of `added`, and `cardinalities` where some
    differ, are in the model's numbers as well.
    """
    number = np.full(model.n_variables, -1, dtype=np.int64)
    number[variables] = np.arange(len(variables))
    arities = np.array([len(scope) for scope, _ in added], dtype=np.int64)
    sizes = np.array([table.size for _, table in added], dtype=np.int64)
    named = np.array([v for scope, _ in added for v in scope], dtype=np.int64)
    scopes = model.scope_vars[np.repeat(factors, model.arities)].astype(np.int64)
    tables = model.log_tables[np.repeat(factors, np.diff(model.table_ptr))]
    return FactorGraph.from_arrays(
        (model.cardinalities if cardinalities is None else cardinalities)[variables],
        _edges(model.arities[factors], arities),
        number[np.concatenate([scopes, named])],
        _edges(np.diff(model.table_ptr)[factors], sizes),
        np.concatenate([tables, *(np.ravel(table) for _, table in added)]),
        name=model.name,
    )


def _edges(*counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64)


def naming(model: FactorGraph, variables: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n_factors,) which factors name one of the marked `variables`."""
    out = np.zeros(model.n_factors, dtype=bool)
    owner = np.repeat(np.arange(model.n_factors), model.arities)
    out[owner[variables[model.scope_vars]]] = True
    return out


def factors_of_each(model: FactorGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(ptr, factors): those that name variable v are factors[ptr[v]:ptr[v+1]], ascending."""
    owner = np.repeat(np.arange(model.n_factors), model.arities)
    order = np.argsort(model.scope_vars, kind="stable")
    uses = np.bincount(model.scope_vars, minlength=model.n_variables)
    return np.concatenate([[0], np.cumsum(uses)]).astype(np.int64), owner[order]


def ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """starts[k], starts[k] + 1, ... sizes[k] of them, for one k after the other."""
    before = np.cumsum(sizes) - sizes
    out: NDArray[np.int64] = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return out
