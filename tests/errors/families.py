"""What the I-projection families say."""

from __future__ import annotations

import numpy as np

import tightz as tz
from tests.errors.table import Case, refuses
from tightz.errors import (
    ModelError,
    ParameterError,
    ResourceError,
    TightzError,
    UnsupportedModelError,
)
from tightz.families import block_projection, clustered, strips
from tightz.families.clustered import ClusterMeanField
from tightz.families.layer import layer_mean_field
from tightz.families.projection import evaluate
from tightz.families.structured import junction, terms
from tightz.families.structured.junction import structured_bound
from tightz.models import SpinPolynomial
from tightz.projections import Coset, DenseParity
from tightz.projections.hashing import Parities
from tightz.runtime.clock import Clock

GRID = tz.ising_grid(4, seed=0)
SPINS = SpinPolynomial.from_factor_graph(GRID)
WHOLE = Coset.build(SPINS)
NOWHERE = Coset.build(SPINS, Parities(np.ones((2, 16), np.uint8), np.array([0, 1], np.uint8)))
ZERO = tz.FactorGraph([2], [((0,), [0.0, -np.inf])])
TRIPLE = tz.FactorGraph([2, 2, 2], [((0, 1, 2), np.arange(8.0) ** 2 % 5)])


def _structured(coset=WHOLE, **options):
    return tz.StructuredMeanField(**options).project(coset, np.random.default_rng(0))


def _crowded(patch):
    patch.setattr(junction, "MAX_BYTES", 100)
    _structured(width=4, partition=[range(16)])


def _crowded_parities(patch):
    patch.setattr(terms, "MAX_ENTRIES", 1)
    parities = DenseParity().draw(2, SPINS.n, np.random.default_rng(0))
    _structured(Coset.build(SPINS, parities), width=2, partition=[range(16)])


def _unnormalised():
    found = _structured(width=2)
    structured_bound(WHOLE, found.forest, np.full_like(found.tables, 0.7))


def _many_bits(patch):
    patch.setattr(block_projection, "MAX_BITS", 0)
    block_projection.blocks_of(WHOLE)


def _no_distribution():
    blocks = block_projection.blocks_of(WHOLE)
    block_projection.evaluate_blocks(WHOLE, blocks, np.full((32, 1), 0.7))


def _wide_cluster(patch):
    patch.setattr(clustered, "_MAX_BYTES", 64)
    cards = GRID.cardinalities
    start = [np.full(int(d), 1.0 / d) for d in cards]
    list(ClusterMeanField(GRID, np.zeros(cards.size, np.int64), start).bounds(Clock(60.0)))


CASES = [
    refuses("restarts is 0; expected at least 1", tz.MeanField, restarts=0),
    refuses("tol is -1.0; expected at least 0.0", tz.MeanField, tol=-1.0),
    refuses("max_sweeps is 0; expected at least 1", tz.MeanField, max_sweeps=0),
    Case(
        ArithmeticError,
        "a mean lies outside [-1, 1]: this is a bug in the optimiser",
        lambda: evaluate(WHOLE, np.full(16, 1.5)),
    ),
    refuses("restarts is 0; expected at least 1", tz.PointMass, restarts=0),
    refuses("enumerate_up_to is 64; expected between 0 and 40", tz.PointMass, enumerate_up_to=64),
    refuses("max_sweeps is 0; expected at least 1", tz.PointMass, max_sweeps=0),
    refuses("restarts is -1; expected at least 0", tz.BlockMeanField, restarts=-1),
    refuses("max_sweeps is -1; expected at least 0", tz.BlockMeanField, max_sweeps=-1),
    refuses("annealing is -1; expected at least 0", tz.BlockMeanField, annealing=-1),
    Case(
        ModelError,
        "states have shape (1, 3); expected rows of 16, each entry a state of its "
        "variable (from 0)",
        lambda: tz.mean_field(GRID, family=tz.BlockMeanField(), states=[[0, 1, 0]]),
    ),
    Case(
        ModelError,
        "the model has zero potentials and no states are given; expected a start of "
        "positive weight. tightz.search.feasible.feasible_state(model) looks for one",
        lambda: tz.mean_field(ZERO, family=tz.BlockMeanField()),
    ),
    Case(
        ModelError,
        "restarts is 0 and no states are given; expected at least one start",
        lambda: tz.mean_field(GRID, family=tz.BlockMeanField(restarts=0)),
    ),
    Case(
        UnsupportedModelError,
        "FactorGraph(3 variables of 2 states, 1 factors of arity up to 3) has zeros, "
        "evidence, a one-state variable or a factor over more than two variables; "
        "clustered mean field takes none of these. tz.BlockMeanField takes any model",
        lambda: ClusterMeanField(TRIPLE, np.zeros(3, np.int64), []),
    ),
    Case(
        ResourceError,
        "cluster 0 of 16 variables is too wide for 64 B; cut the model into more clusters",
        _wide_cluster,
    ),
    Case(
        TightzError,
        "there is no state of positive weight to draw: Z(A, b) = 0",
        lambda: (
            tz.MeanField()
            .project(NOWHERE, np.random.default_rng(0))
            .draw(1, np.random.default_rng(0))
        ),
    ),
    Case(
        UnsupportedModelError,
        "2 parities over a model with terms of up to 2 spins; summing out a layer takes pairwise "
        "models as a whole. tz.MeanField takes any",
        lambda: tz.LayerMeanField().project(NOWHERE, np.random.default_rng(0)),
    ),
    Case(
        UnsupportedModelError,
        "the mean of a product with a summed-out spin was asked for; layer mean field knows those "
        "of kept spins and of single ones. tz.MeanField knows all",
        lambda: (
            tz.LayerMeanField(restarts=1)
            .project(WHOLE, np.random.default_rng(0))
            .expectations(np.array([0, 2]), np.array([0, 1]))
        ),
    ),
    refuses("restarts is -1; expected at least 0", tz.LayerMeanField, restarts=-1),
    refuses("leaves is 0; expected at least 1", tz.LayerMeanField, leaves=0),
    refuses("tol is -1.0; expected at least 0.0", tz.LayerMeanField, tol=-1.0),
    refuses("max_sweeps is 0; expected at least 1", tz.LayerMeanField, max_sweeps=0),
    Case(
        UnsupportedModelError,
        "the model has a term of 3 spins; summing out a layer takes pairwise models. "
        "tz.mean_field and tz.log_partition take any degree",
        lambda: tz.mean_field(TRIPLE, family=tz.LayerMeanField()),
    ),
    Case(
        UnsupportedModelError,
        "a coupling of 5e+217 is beyond what the layer's integral can square; tz.mean_field takes "
        "it",
        lambda: layer_mean_field(tz.FactorGraph([2, 2], [((1, 0), [[0, 2e218], [0, 0]])])),
    ),
    refuses(
        "restarts is 0 and no starts are given; expected at least one",
        tz.mean_field,
        GRID,
        family=tz.LayerMeanField(restarts=0),
    ),
    refuses(
        "summed names spin 16; the model has spins 0 to 15",
        tz.mean_field,
        GRID,
        family=tz.LayerMeanField(summed=[0, 16]),
    ),
    refuses(
        "summed holds spins 0 and 1, which are coupled; expected an independent set",
        tz.mean_field,
        GRID,
        family=tz.LayerMeanField(summed=[0, 1]),
    ),
    Case(
        ModelError,
        "states have shape (1, 3); expected rows of 16, each entry 0 or 1",
        lambda: tz.mean_field(GRID, states=[[0, 1, 0]]),
    ),
    Case(
        ModelError,
        "states are given for a model of more than two states a variable, or with zeros; expected "
        "family=tz.BlockMeanField(...), which starts from any",
        lambda: tz.mean_field(tz.FactorGraph([3]), states=[[2]]),
    ),
    Case(
        ModelError,
        "starts have shape (1, 16); expected rows of 16 means or spins in [-1, 1]",
        lambda: layer_mean_field(GRID, starts=[[2.0] * 16]),
    ),
    refuses("width is 30; expected between 0 and 24", tz.StructuredMeanField, width=30),
    refuses("restarts is 0; expected at least 1", tz.StructuredMeanField, restarts=0),
    refuses("tol is -1.0; expected at least 0.0", tz.StructuredMeanField, tol=-1.0),
    refuses("max_sweeps is 0; expected at least 1", tz.StructuredMeanField, max_sweeps=0),
    refuses(
        "partition is 'strips'; expected 'auto' or a list of clusters",
        tz.StructuredMeanField,
        partition="strips",
    ),
    Case(
        ParameterError,
        "starts have shape (3,); expected at least one row of 16 means, each in [-1, 1]",
        lambda: tz.StructuredMeanField().ascend_from(WHOLE, np.zeros(3)),
    ),
    Case(
        ParameterError,
        "cluster 0 names spin 16; the model has spins 0 to 15",
        lambda: _structured(partition=[[0, 16]]),
    ),
    Case(
        ParameterError,
        "cluster 1 names spin 1 again; clusters must be disjoint",
        lambda: _structured(partition=[[0, 1], [1, 2]]),
    ),
    refuses("height is 0; expected at least 1", strips, 4, 4, 0),
    refuses("offset is 3; expected between 0 and 2", strips, 4, 4, 2, offset=3),
    Case(
        ResourceError,
        "structured mean field with separators of up to 4 spins needs 8.98 kB for its "
        "tables; lower `width` (each step halves them)",
        _crowded,
    ),
    Case(
        ResourceError,
        "parities across clusters of width 2 need more than 1 table entries; lower "
        "`width`, or take smaller clusters",
        _crowded_parities,
    ),
    refuses(
        "restarts is 0; expected at least 1",
        tz.BlockMeanField(restarts=0).project,
        WHOLE,
        np.random.default_rng(0),
    ),
    Case(
        UnsupportedModelError,
        "a variable has 1 free bits; block tables hold at most 0. tz.MeanField treats "
        "bits one by one",
        _many_bits,
    ),
    Case(
        ArithmeticError,
        "a table is no distribution: this is a bug in the optimiser",
        _no_distribution,
    ),
    Case(ArithmeticError, "a conditional table is not normalised: this is a bug", _unnormalised),
]
