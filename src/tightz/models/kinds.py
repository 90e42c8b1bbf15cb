"""Kinds of models, by which methods and kernels a task runs on them."""

from __future__ import annotations

from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial

MANY = 8
"""Couplings a spin from which a model is dense, as an RBM is."""


def kind_of(model: FactorGraph | SpinPolynomial) -> str:
    """One of seven kinds.

    spins; free, spins without fields; dense, spins with many couplings; terms, of more spins than
    two; states, more than two of a variable; zeros, on two states; mixed zeros, on more.
    """
    if isinstance(model, SpinPolynomial):
        if model.degree > 2:
            return "terms"
        return "dense" if model.n_terms > MANY * model.n else "spins"
    several = bool((model.cardinalities > 2).any())
    if model.has_zeros:
        return "mixed zeros" if several else "zeros"
    if several:
        return "states"
    if (model.arities > 2).any():
        return "terms"
    if model.n_factors > MANY * model.n_variables:
        return "dense"
    fields = model.table_ptr[:-1][model.arities == 1]
    tilted = (
        model.log_tables[fields] != model.log_tables[model.table_ptr[1:][model.arities == 1] - 1]
    )
    return "spins" if tilted.any() else "free"
