"""Mean field: the best q of a family over the whole space, a deterministic lower bound."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError
from tightz.families.block import BlockMeanField, block_mean_field, family_for
from tightz.families.evidence import (
    JENSEN,
    link_of,
    lower_bound_of,
    mean_field_bound,
    on_model,
)
from tightz.families.layer import LayerMeanField, layer_mean_field
from tightz.families.mean_field import MeanField
from tightz.families.projection import Family
from tightz.families.results import MeanFieldResult
from tightz.families.structured import StructuredMeanField
from tightz.judge.links import SpinLink
from tightz.models.factor_graph import FactorGraph
from tightz.models.given import ModelOrPath, given_model
from tightz.models.inputs import integer_array
from tightz.models.prepared import prepared
from tightz.projections.coset import Coset
from tightz.reductions.encoding import SpinEncoding, encode, model_digest
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence

RESTARTS = 20
"""Ascents of the default family."""


@prepared("mean_field")
def mean_field(
    model: ModelOrPath,
    *,
    family: Family | LayerMeanField | None = None,
    states: ArrayLike | None = None,
    seed: Seed = None,
    link: SpinLink | None = None,
) -> MeanFieldResult:
    """The best q of a family: every q gives a deterministic lower bound on log Z.

    family   MeanField(restarts=20), the default: q a product over the variables, whatever their
             number of states.
             StructuredMeanField: exact inside clusters of bounded width, a product between them.
             LayerMeanField: an independent set of spins is summed exactly (RBMs).
             BlockMeanField: the same product with annealed starts; the only one that takes any
             zero potentials, given `states` of positive weight to start from.
             Also AnnealedMeanField, PointMass and ExactPointMass.
    states   rows (S, n) of states of the model's variables to start from, besides random starts
    link     for a polynomial that stands for another model (`families.evidence.link_of`): the
             bound can then be judged on that one
    """
    model = given_model(model, "mean_field")
    named = getattr(model, "naming", None)
    if isinstance(family, BlockMeanField) and isinstance(model, FactorGraph):
        rows = None if states is None else integer_array(states, "states")
        found = block_mean_field(model, config=family, states=rows, seed=seed)
        return replace(found, named=named)
    if isinstance(family, LayerMeanField):
        starts = None if states is None else _spins(encode(model), states)
        found = layer_mean_field(model, family, starts=starts, seed=seed, link=link)
        return replace(found, named=named)
    start = time.perf_counter()
    root = seed_sequence(seed)
    encoding = encode(model, multivalued=True)
    chosen = MeanField(RESTARTS) if family is None else family
    if isinstance(chosen, MeanField):  # a table for a variable of several bits
        chosen = family_for(encoding.polynomial, **asdict(chosen))
    known = None if states is None else _spins(encoding, states)
    best = chosen.project(Coset.build(encoding.polynomial), generator(root), known)
    ptr, spins, signs = encoding.products
    products = signs * best.expectations(ptr, spins)
    if best.log_gamma == -np.inf:  # marginals of a model with Z = 0 do not exist
        products = np.full_like(products, np.nan)
    marginals = encoding.from_products(products)
    if isinstance(chosen, StructuredMeanField):
        bound = lower_bound_of(best, "structured mean field", JENSEN, link or link_of(encoding))
        bound = on_model(bound, model)
    else:
        bound = mean_field_bound(encoding, best, marginals, link)
    seconds = time.perf_counter() - start
    return MeanFieldResult(
        bound=replace(bound, seconds=seconds),
        log_zs=best.log_gammas,
        marginals=marginals,
        status=best.status,
        sweeps=best.sweeps,
        seconds=seconds,
        provenance=provenance(root, model_digest(model), family=chosen),
        named=named,
    )


def _spins(encoding: SpinEncoding, states: ArrayLike) -> NDArray[np.int8]:
    """Rows of model states as spins, +1 for state 0, where each variable is one spin."""
    rows = np.atleast_2d(integer_array(states, "states"))
    model = encoding.model
    if not encoding.direct:
        raise ModelError(
            "states are given for a model of more than two states a variable, or with zeros; "
            "expected family=tz.BlockMeanField(...), which starts from any"
        )
    width = model.n_variables if isinstance(model, FactorGraph) else model.n
    if rows.shape[1] != width or ((rows < 0) | (rows > 1)).any():
        raise ModelError(
            f"states have shape {rows.shape}; expected rows of {width}, each entry 0 or 1"
        )
    return (1 - 2 * rows[:, encoding.variables]).astype(np.int8)
