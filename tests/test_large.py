"""Large models: memory that grows with the model, no step per factor, an interval at once."""

from __future__ import annotations

import threading
import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

import tightz as tz
from tests.large_models import MODELS, clauses, regular, triples
from tightz.elimination.order import Order, Orders
from tightz.errors import UnsupportedModelError
from tightz.judge import StatesEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.models.selection import factors_of_each, naming, ranges, selected
from tightz.projections.coset import Coset
from tightz.reductions.encoding import encode
from tightz.reductions.preparation import prepare
from tightz.runtime.clock import Clock
from tightz.search.feasible import Feasibility, feasible_state
from tightz.search.pool import distinct, least_cost
from tightz.uppers.mini_bucket.layout import own_tables, skeleton
from tightz.uppers.mini_bucket.partition import partition
from tightz.workspace.working import Working


def _encode(model: FactorGraph) -> None:
    try:
        polynomial = encode(model, multivalued=True).polynomial
    except UnsupportedModelError:  # zeros that are no parities
        return
    _ = Coset.build(polynomial).grouped


def _lay_out(model: FactorGraph) -> None:
    parts = partition(model, Orders(model)[Order.BREADTH_FIRST], 4)
    own_tables(parts, skeleton(parts))


WORK = {"prepare": prepare, "encode": _encode, "lay out": _lay_out}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("kind", MODELS)
def test_memory_is_a_multiple_of_the_model(kind, work):
    """At 24,000 variables anything quadratic takes a thousand times the model."""
    WORK[work](MODELS[kind](300))  # what is imported or loaded at the first call
    model = MODELS[kind](24_000)
    arrays = model.scope_ptr, model.scope_vars, model.table_ptr, model.log_tables
    tracemalloc.start()
    try:
        WORK[work](model)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60 * sum(array.nbytes for array in arrays)


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_left_alone_costs_no_step_of_its_own(kind, monkeypatch):
    looked: Counter[int] = Counter()
    factor = FactorGraph.factor

    def counting(self: FactorGraph, f: int):
        looked[n] += 1
        return factor(self, f)

    monkeypatch.setattr(FactorGraph, "factor", counting)
    for n in (6_000, 24_000):
        prepare(MODELS[kind](n))
        # Leaves and variables named once are looked at; all others are taken over in one piece.
        assert looked[n] < n / 5


def test_a_refusal_is_found_once(monkeypatch):
    from tightz.workspace import working as module

    calls = []

    def refusing(model, **kwargs):
        calls.append(model)
        raise UnsupportedModelError("no spins")

    monkeypatch.setattr(module, "encode", refusing)
    working = Working(clauses(50), Clock(10.0))
    for _ in range(3):
        with pytest.raises(UnsupportedModelError, match="no spins"):
            _ = working.encoding
    assert len(calls) == 1


def test_tempering_does_not_start_where_it_cannot_end():
    small, large = Working(regular(200), Clock(10.0)), Working(regular(40_000), Clock(10.0))
    assert small.spins.sweeps is None
    assert large.spins.sweeps == 0
    assert large.spins.states is None
    seconds, memory = least_cost(large.encoding.polynomial)
    again, more = least_cost(Working(regular(160_000)).encoding.polynomial)
    assert again < 4.5 * seconds
    assert more < 4.5 * memory


@pytest.mark.parametrize("kind", MODELS)
def test_a_hundred_thousand_variables_have_a_finite_interval(kind):
    r = tz.log_partition(MODELS[kind](100_000), time_limit=4.0, seed=0)
    assert np.isfinite(r.upper)
    assert r.lower <= r.upper
    assert not r.failures
    if kind != "clauses":  # there a state has to be found first, which takes a free processor
        assert np.isfinite(r.lower)


def test_an_answer_in_time_does_not_wait_for_what_nobody_has_made(monkeypatch):
    answered = threading.Event()

    def late(model, **options):
        answered.wait(60.0)
        return prepare(model, **options)

    monkeypatch.setattr("tightz.workspace.working.prepare", late)
    model = regular(10_000).with_evidence({7: 1})
    try:
        r = tz.log_partition(model, time_limit=1.0, seed=0)
    finally:
        answered.set()
    assert r.seconds < 30.0
    assert r.lower > -np.inf
    np.testing.assert_array_equal(r.marginal_bounds[7], [[0.0, 0.0], [1.0, 1.0]])
    np.testing.assert_array_equal(r.marginal_bounds[8], [[0.0, 1.0], [0.0, 1.0]])


def test_a_state_of_many_clauses_is_found():
    model = clauses(20_000)
    found = feasible_state(model, time_limit=60.0, seed=0)
    assert found.status is Feasibility.FOUND
    assert StatesEvidence(found.state[None]).verdict(model).lower <= found.log_weight


def test_selected_is_the_model_of_the_factors_listed():
    model = triples(60)
    rng = np.random.default_rng(0)
    marked = rng.random(model.n_factors) < 0.6
    kept = np.unique(model.scope_vars[np.repeat(marked, model.arities)]).astype(np.int64)
    number = {int(v): k for k, v in enumerate(kept)}
    added = [((int(kept[3]),), np.arange(float(model.cardinalities[kept[3]]))), ((), np.array(2.0))]
    listed = [
        *(model.factor(f) for f in np.flatnonzero(marked)),
        *added,
    ]
    plain = FactorGraph(
        model.cardinalities[kept], [([number[v] for v in scope], t) for scope, t in listed]
    )
    assert selected(model, kept, marked, added).digest == plain.digest


def test_factors_of_variables():
    model = triples(50)
    ptr, factors = factors_of_each(model)
    for v in range(model.n_variables):
        expected = [f for f in range(model.n_factors) if v in model.factor(f).scope]
        assert factors[ptr[v] : ptr[v + 1]].tolist() == expected
    marked = np.arange(model.n_variables) % 7 == 0
    expected = [any(marked[list(model.factor(f).scope)]) for f in range(model.n_factors)]
    assert naming(model, marked).tolist() == expected
    assert ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]


def test_batches_are_all_factors_by_shape():
    model = triples(80)
    seen = []
    for indices, scopes, tables in model.batches():
        for f, scope, table in zip(indices, scopes, tables, strict=True):
            own = model.factor(int(f))
            assert own.scope == tuple(scope.tolist())
            assert np.array_equal(own.log_table, table)
            seen.append(int(f))
    assert sorted(seen) == list(range(model.n_factors))


@pytest.mark.parametrize("kind", ["regular", "triples"])
def test_cliques_laid_out_by_arrays_equal_those_by_sets(kind):
    model = MODELS[kind](150)
    parts = partition(model, Orders(model)[Order.MIN_FILL], 4)
    held = [set() for _ in parts.cliques]
    for c, placed in enumerate(parts.sources):
        for f in placed:
            held[c].update(model.factor(f).scope)
    for bucket, (low, high) in zip(parts.pairs, pairwise(parts.bucket_ptr.tolist()), strict=True):
        assert len(bucket) == (high - low) * (high - low - 1) // 2 or high - low > 3
        for i, j, shared in bucket:
            assert low <= i < j < high
            assert shared == tuple(v for v in parts.cliques[i] if v in parts.cliques[j])
            held[i].update(shared)
            held[j].update(shared)
    own = [tuple(v for v in s if v in h) for s, h in zip(parts.cliques, held, strict=True)]
    assert parts.own_scopes == own
    sizes = [np.prod(model.cardinalities[list(scope)]) for scope in own]
    assert parts.own_entries == sum(sizes)
    assert np.diff(skeleton(parts).own_ptr).tolist() == sizes


def test_distinct_rows_come_in_order():
    rows = 1 - 2 * np.random.default_rng(0).integers(0, 2, (200, 6), dtype=np.int8)
    assert np.array_equal(distinct(rows), np.unique(rows, axis=0))
    assert len(distinct(rows[:, :0])) == 1
