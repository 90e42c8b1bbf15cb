"""Any discrete model: zeros, many states, higher orders, against enumeration."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.large_models import clauses
from tightz.bounds import Proof, Side
from tightz.elimination.conditioning import ConditionedElimination, choose_cutset
from tightz.errors import ModelError, ParameterError, UnsupportedModelError
from tightz.families.block import BlockMeanField, block_mean_field, evaluate_tables
from tightz.families.clustered import ClusterMeanField, cluster_labels
from tightz.families.priced import freest_first, priced
from tightz.interval.board import judged
from tightz.interval.portfolio import LOWER, UPPER
from tightz.interval.streams.cutset_sum import CutsetSum
from tightz.interval.streams.first import solved
from tightz.interval.streams.states import blocks, cutset_sums
from tightz.models.builders import potts, potts_grid
from tightz.reductions.bits import state_of_code, to_bits
from tightz.reductions.encoding import encode
from tightz.reductions.zeros import possible_states, simplify
from tightz.runtime.clock import Clock
from tightz.search.feasible import Feasibility, feasible_state, feasible_states
from tightz.workspace.working import Working

DISCRETE = (solved, blocks, cutset_sums)

SLACK = 1e-9


@st.composite
def discrete_models(draw, zeros=True, max_variables=6):
    """1 to 4 states a variable, arity 0 to 4, zeros, evidence, weak to extreme weights."""
    n = draw(st.integers(0, max_variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = rng.integers(1, 5, size=n)
    strength = draw(st.sampled_from([0.1, 2.0, 30.0, 1e6]))
    share = draw(st.sampled_from([0.0, 0.2, 0.5])) if zeros else 0.0
    factors = []
    for _ in range(draw(st.integers(0, 2 * n + 1))):
        scope = rng.choice(n, size=rng.integers(0, min(4, n) + 1), replace=False).tolist()
        table = strength * rng.normal(size=cards[scope])
        if scope:
            table[rng.random(table.shape) < share] = -np.inf
        factors.append((scope, table))
    evidence = {0: int(rng.integers(cards[0]))} if n and draw(st.booleans()) else None
    return tz.FactorGraph(cards, factors, evidence=evidence)


def enumerated(model):
    return naive.enumerate_model(model.cardinalities, model.factors, model.evidence)


def slack(log_z):
    return SLACK * max(1.0, abs(log_z)) if math.isfinite(log_z) else 0.0


def below(value, log_z):
    return value <= log_z + slack(log_z)


@given(discrete_models())
def test_simplify_keeps_z_and_marginals(model):
    log_z, marginals = enumerated(model)
    simple = simplify(model)
    reduced_log_z, reduced = enumerated(simple.reduced)
    if log_z == -np.inf:
        assert reduced_log_z == -np.inf
        return
    assert reduced_log_z == pytest.approx(log_z, abs=slack(log_z))
    assert (simple.reduced.cardinalities > 1).all()
    for got, expected in zip(simple.lift_marginals(reduced), marginals, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    states = naive.all_states(simple.reduced.cardinalities)
    np.testing.assert_allclose(
        model.log_weight(simple.lift_states(states)),
        simple.reduced.log_weight(states),
        rtol=1e-12,
        atol=1e-9,
    )


def test_equalities_and_negations_are_merged():
    """A ring of two-state variables, each tied to the next, leaves one positive variable."""
    rng = np.random.default_rng(0)
    tables = []
    for k in range(5):
        hard = np.where(np.eye(2) > 0, rng.normal(size=(2, 2)), -np.inf)
        tables.append(((k, (k + 1) % 6), hard[::-1] if k % 2 else hard))
    tables.append(((0, 3, 5), rng.normal(size=(2, 2, 2))))
    model = tz.FactorGraph([2] * 6, tables)
    simple = simplify(model)
    assert simple.reduced.n_variables == 1
    assert simple.removed == 5
    log_z, marginals = enumerated(model)
    reduced_log_z, reduced = enumerated(simple.reduced)
    assert reduced_log_z == pytest.approx(log_z, abs=1e-12)
    np.testing.assert_allclose(simple.lift_marginals(reduced), marginals, atol=1e-12)
    closed = tz.FactorGraph([2] * 6, [*tables, ((5, 0), np.where(np.eye(2) > 0, -np.inf, 0.0))])
    assert (enumerated(closed)[0] == -np.inf) == simplify(closed).contradiction


def test_an_observed_state_that_was_ruled_out_before_stays_out():
    rule = np.where(np.eye(2) > 0, -np.inf, 0.0)
    model = tz.FactorGraph([2, 2], [((0, 1), rule)], evidence={0: 1})
    assert possible_states(model).tolist() == [False, True, True, False]
    among = np.array([True, False, True, True])
    assert not possible_states(model, among).any()


@pytest.mark.parametrize("shift", [1, 2])
def test_ties_of_three_states_are_followed_the_right_way(shift):
    """x_j = x_i + shift mod 3: the inverse is another permutation, which two states never show."""
    rng = np.random.default_rng(shift)
    tie = np.where(np.roll(np.eye(3), shift, axis=1) > 0, rng.normal(size=(3, 3)), -np.inf)
    tables = [((0, 1), tie), ((1, 2), tie)]
    tables += [((v,), 2.0 * rng.normal(size=3)) for v in range(4)]
    tables += [((0, 3), rng.normal(size=(3, 3))), ((3, 2), rng.normal(size=(3, 3)))]
    model = tz.FactorGraph([3] * 4, tables)
    log_z, marginals = enumerated(model)
    simple = simplify(model)
    assert simple.removed == 2
    reduced_log_z, reduced = enumerated(simple.reduced)
    assert reduced_log_z == pytest.approx(log_z, abs=1e-12)
    np.testing.assert_allclose(simple.lift_marginals(reduced), marginals, atol=1e-12)
    found = tz.log_partition(model, time_limit=5, seed=0)
    assert found.lower <= log_z + 1e-12
    assert found.upper >= log_z - 1e-12
    assert found.width < 1e-9


@given(discrete_models())
def test_arc_consistency_is_the_fixed_point_of_its_definition(model):
    """A state is possible when each factor has a positive entry over possible states."""
    alive = [set(range(int(c))) for c in model.cardinalities]
    for v, state in model.evidence.items():
        alive[v] = {state}
    moving = True
    while moving:
        moving = False
        for scope, table in model.factors:
            for axis, v in enumerate(scope):
                held = {
                    index[axis]
                    for index in np.ndindex(table.shape)
                    if table[index] > -np.inf
                    and all(x in alive[u] for u, x in zip(scope, index, strict=True))
                }
                if not alive[v] <= held:
                    alive[v] &= held
                    moving = True
    expected = [x in alive[v] for v, c in enumerate(model.cardinalities) for x in range(int(c))]
    got = possible_states(model)
    if not all(alive):  # a contradiction: where propagation stops does not matter
        ptr = np.cumsum([0, *model.cardinalities])
        assert any(not got[a:b].any() for a, b in itertools.pairwise(ptr))
    else:
        assert got.tolist() == expected


@given(discrete_models())
def test_feasible_state_is_found_or_proven_absent(model):
    log_z, _ = enumerated(model)
    found = feasible_state(model, time_limit=5, seed=0)
    if log_z == -np.inf:
        assert found.status is Feasibility.IMPOSSIBLE
        assert found.state is None
    else:
        assert found.status is Feasibility.FOUND
        assert found.log_weight == pytest.approx(float(model.log_weight(found.state)[0]))
        assert found.log_weight > -np.inf
        assert below(found.log_weight, log_z)


@given(discrete_models(), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_conditioned_sums_and_samples(model, log2_size, seed):
    """log Z of an assignment equals enumeration; sums over all assignments give Z."""
    model = model.condition()
    rng = np.random.default_rng(seed)
    cutset = choose_cutset(model, log2_size, noise=rng.uniform(0, 1, model.n_variables))
    assert sorted([*cutset.held, *cutset.order]) == list(range(model.n_variables))
    run = ConditionedElimination(model, cutset)
    states = naive.all_states(model.cardinalities)
    logs = naive.log_weights(model.cardinalities, model.factors, states)
    parts = []
    for values in naive.all_states(model.cardinalities[cutset.held])[:20]:
        state = np.zeros(model.n_variables, dtype=np.int64)
        state[cutset.held] = values
        inside = (states[:, cutset.held] == values).all(axis=1)
        expected = naive.log_sum_exp(logs[inside])
        parts.append(run.log_z(state))
        assert parts[-1] == pytest.approx(expected, abs=slack(expected))
        if expected > -np.inf:
            drawn = run.sample(state, rng)
            assert (drawn[cutset.held] == values).all()
            assert model.log_weight(drawn)[0] > -np.inf


def test_conditioned_samples_follow_the_model():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(3, 2, 3))
    table[0, 1, 2] = -np.inf
    model = tz.FactorGraph([3, 2, 3, 2], [((0, 1, 2), table), ((2, 3), rng.normal(size=(3, 2)))])
    run = ConditionedElimination(model, choose_cutset(model, 20))
    log_z, marginals = enumerated(model)
    state = np.zeros(4, dtype=np.int64)
    assert run.log_z(state) == pytest.approx(log_z, abs=1e-12)
    drawn = np.array([run.sample(state, rng) for _ in range(4000)])
    for v, expected in enumerate(marginals):
        got = np.bincount(drawn[:, v], minlength=len(expected)) / len(drawn)
        assert np.abs(got - expected).max() < 5 * np.sqrt(0.25 / len(drawn))
    assert model.log_weight(drawn).min() > -np.inf


@given(discrete_models())
def test_block_mean_field_is_a_lower_bound(model):
    log_z, _ = enumerated(model)
    found = feasible_state(model, time_limit=5, seed=0)
    if found.state is None:
        return
    r = block_mean_field(model, states=found.state, seed=0)
    assert below(r.log_z, log_z)
    assert r.log_z >= found.log_weight - slack(found.log_weight)
    for v, q in enumerate(r.marginals):
        assert q.size == model.cardinalities[v]
        assert q.sum() == pytest.approx(1.0)


@given(discrete_models(max_variables=4), st.integers(0, 2**32 - 1))
def test_block_evaluator_equals_enumeration_of_q(model, seed):
    model = model.condition()
    rng = np.random.default_rng(seed)
    tables = [rng.dirichlet(np.ones(int(c))) for c in model.cardinalities]
    for q in tables:
        if q.size > 1 and rng.random() < 0.5:
            q[:] = np.eye(q.size)[rng.integers(q.size)]
    states = naive.all_states(model.cardinalities)
    weight = np.prod([[q[x] for q, x in zip(tables, row, strict=True)] for row in states], axis=1)
    logs = naive.log_weights(model.cardinalities, model.factors, states)
    live = weight > 0
    expected = float((weight[live] * (logs[live] - np.log(weight[live]))).sum())
    got = evaluate_tables(model, np.concatenate(tables) if tables else np.zeros(0))
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(discrete_models(zeros=False), st.integers(0, 2**32 - 1))
def test_clustered_mean_field_is_a_lower_bound(model, seed):
    """Any partition: below log Z, never falling; one cluster of everything is exact."""
    rng = np.random.default_rng(seed)
    pairs = [(scope, table) for scope, table in model.factors if len(scope) <= 2]
    model = simplify(tz.FactorGraph(model.cardinalities, pairs, evidence=model.evidence)).reduced
    log_z, marginals = enumerated(model)
    n = model.n_variables
    start = [rng.dirichlet(np.ones(int(c))) for c in model.cardinalities]
    labels = np.unique(rng.integers(0, 3, size=n), return_inverse=True)[1]
    values = [b.log_z for b in ClusterMeanField(model, labels, start).bounds(Clock(5.0))]
    assert all(below(value, log_z) for value in values)
    assert np.diff(values).min(initial=0.0) >= -1e-9 * max(1.0, abs(log_z)) - 1e-6
    whole = ClusterMeanField(model, np.zeros(n, dtype=np.int64), start)
    last = [b.log_z for b in whole.bounds(Clock(5.0))][-1]
    assert last == pytest.approx(log_z, abs=slack(log_z))
    for got, expected in zip(whole.marginals, marginals, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_clusters_beat_single_variables_on_a_lattice():
    model = potts_grid(8, states=3, seed=1)
    log_z = tz.exact(model).log_z
    single = block_mean_field(model, seed=0)
    values = []
    for log2_size in (4.0, 7.0):
        run = ClusterMeanField(model, cluster_labels(model, log2_size), single.marginals)
        values.append([b.log_z for b in run.bounds(Clock(20.0))][-1])
    assert single.log_z < values[0] < values[1] < log_z
    with pytest.raises(UnsupportedModelError, match="clustered mean field"):
        ClusterMeanField(tz.FactorGraph([2], [((0,), [0, -np.inf])]), np.zeros(1, int), [])
    ring = tz.FactorGraph([3] * 9, [((k, (k + 1) % 9), np.eye(3)) for k in range(9)])
    labels = cluster_labels(ring, 7.0)
    assert np.bincount(labels).max() <= 4


def test_block_mean_field_is_exact_on_independent_variables():
    rng = np.random.default_rng(0)
    model = tz.FactorGraph([3, 5, 1], [((0,), rng.normal(size=3)), ((1,), rng.normal(size=5))])
    log_z, marginals = enumerated(model)
    r = block_mean_field(model, seed=0)
    assert r.log_z == pytest.approx(log_z, abs=1e-12)
    np.testing.assert_allclose(r.marginals[1], marginals[1], atol=1e-12)
    assert "converged" in repr(r)
    assert r.bound.side is Side.LOWER


def test_block_mean_field_refuses_what_it_cannot_start():
    model = tz.FactorGraph([2, 2], [((0, 1), [[0.0, -np.inf], [-np.inf, 0.0]])])
    with pytest.raises(ModelError, match="start of positive weight"):
        block_mean_field(model)
    with pytest.raises(ModelError, match="expected rows of 2"):
        block_mean_field(model, states=np.array([[0, 2]]))
    with pytest.raises(ModelError, match="at least one start"):
        block_mean_field(tz.FactorGraph([2]), config=BlockMeanField(restarts=0))
    with pytest.raises(ParameterError, match="max_sweeps"):
        BlockMeanField(max_sweeps=-1)


@settings(max_examples=60)
@given(discrete_models())
def test_cutset_sums_rise_to_z(model):
    log_z, _ = enumerated(model)
    reduced = simplify(model).reduced
    found = feasible_state(reduced, time_limit=5, seed=0)
    if found.state is None or not reduced.n_variables:
        return
    clock = Clock(5.0)
    run = CutsetSum(reduced, found.state, np.random.default_rng(0), clock, 1 << 20)
    values = [b.log_z for b in run.burn_in()]
    for bound in run.sums((2, 3)):
        values.append(bound.log_z)
        if bound.side is Side.BOTH:
            assert bound.log_z == pytest.approx(log_z, abs=slack(log_z))
    assert all(below(value, log_z) for value in values)
    assert np.diff(values).min(initial=0.0) >= -slack(log_z)


@settings(max_examples=60)
@given(discrete_models(max_variables=5), st.booleans(), st.sampled_from([LOWER, UPPER, None]))
def test_every_stream_brackets_enumeration(model, allowed, stream):
    log_z, marginals = enumerated(model)
    r = tz.log_partition(model, time_limit=0.3, seed=0, exact=allowed, only=stream)
    for bound in r.bounds:
        if bound.proof is Proof.DETERMINISTIC and bound.side in (Side.LOWER, Side.BOTH):
            assert below(bound.log_z, log_z), bound
        if bound.proof is Proof.DETERMINISTIC and bound.side in (Side.UPPER, Side.BOTH):
            assert bound.log_z >= log_z - slack(log_z), bound
    if r.marginals is not None and log_z > -np.inf:
        for got, expected in zip(r.marginals, marginals, strict=True):
            assert got.shape == expected.shape
            assert got.sum() == pytest.approx(1.0)


def test_lower_bound_is_finite_with_zeros_and_many_states():
    """A chain of hard constraints over 5 states, with too few supports for a random state."""
    rng = np.random.default_rng(3)
    n = 60
    factors = []
    for v in range(n - 1):
        table = rng.normal(size=(5, 5))
        table[rng.random((5, 5)) < 0.6] = -np.inf
        table[rng.integers(5), :] = 0.0
        factors.append(((v, v + 1), table))
    for v in range(0, n - 7, 3):
        factors.append(((v, v + 7), rng.normal(size=(5, 5))))
    model = tz.FactorGraph([5] * n, factors)
    log_z = tz.exact(model).log_z
    r = tz.log_partition(model, time_limit=6, seed=0, exact=False)
    assert log_z - 8 < r.lower <= log_z + 1e-9
    assert r.upper >= log_z - 1e-9
    assert len(r.marginals) == n


def test_contradiction_is_proven():
    """Pairwise different states of n - 1 for n variables: consistent by arcs, yet Z = 0."""
    for n, method in ((3, "reductions"), (4, "backtracking")):
        different = np.where(np.eye(n - 1) > 0, -np.inf, 0.0)
        pairs = itertools.combinations(range(n), 2)
        model = tz.FactorGraph([n - 1] * n, [(pair, different) for pair in pairs])
        r = tz.log_partition(model, time_limit=5, seed=0, only=DISCRETE)
        assert r.lower == r.upper == -np.inf
        assert r.lower_proof.method == method


# --- Bits ------------------------------------------------------------------------------------


@given(discrete_models(max_variables=4))
def test_bits_keep_z_and_marginals(model):
    model = model.condition()
    log_z, marginals = enumerated(model)
    bits = to_bits(model)
    bit_log_z, _ = enumerated(bits.binary)
    assert bit_log_z == pytest.approx(log_z, abs=slack(log_z))
    if log_z == -np.inf:
        return
    codes = naive.all_states(bits.binary.cardinalities)
    weights = np.exp(bits.binary.log_weight(codes) - bit_log_z)
    states = bits.states(codes)
    for v, expected in enumerate(marginals):
        got = np.bincount(states[:, v], weights, minlength=expected.size)
        np.testing.assert_allclose(got, expected, atol=1e-6)
    products = []
    for low, high in itertools.pairwise(bits.ptr):
        for subset in itertools.product((0, 1), repeat=high - low):
            if any(subset):
                odd = codes[:, low:high] @ np.array(subset, dtype=np.int64) % 2
                products.append(weights @ (1.0 - 2.0 * odd))
    for got, expected in zip(
        bits.marginals_from_products(np.array(products)), marginals, strict=True
    ):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_codes_repeat_real_states():
    assert state_of_code(5).tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert state_of_code(4).tolist() == [0, 1, 2, 3]
    assert state_of_code(1).tolist() == [0]


@settings(max_examples=25)
@given(discrete_models(zeros=False, max_variables=4))
def test_spin_methods_run_on_bits(model):
    log_z, _ = enumerated(model)
    r = tz.mean_field(model, family=tz.MeanField(restarts=2), seed=0)
    assert below(r.log_z, log_z)
    assert len(r.marginals) == model.n_variables
    for got, states in zip(r.marginals, model.cardinalities, strict=True):
        assert len(got) in (states, 2)  # binary models keep the (n, 2) layout
        assert got.sum() == pytest.approx(1.0)
    e = tz.estimate(model, levels=[0], trials=1, seed=0)
    assert below(e.log_z, log_z)


def test_projections_of_bits_are_right_in_the_mean():
    """The sum over all right-hand sides of exact Z(A, b) is Z, over bits as over states."""
    model = potts_grid(2, states=3, seed=0)
    log_z, _ = enumerated(model)
    poly = encode(model, multivalued=True).polynomial
    spins = naive.all_spins(poly.n)
    logs = poly.log_weight(spins)
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 2, size=(3, poly.n))
    parity = ((1 - spins) // 2 @ matrix.T) % 2
    parts = [naive.log_sum_exp(logs[(parity == b).all(axis=1)]) for b in np.ndindex(2, 2, 2)]
    assert naive.log_sum_exp(parts) == pytest.approx(log_z, abs=1e-9)
    e = tz.estimate(model, levels=[0, 2], trials=3, seed=0)
    assert e.marginals.shape == (4, 3)


def test_bits_refuse_what_blows_up():
    model = tz.FactorGraph([40] * 3, [((0, 1, 2), np.zeros((40, 40, 40)))])
    with pytest.raises(UnsupportedModelError, match=r"takes 18 bits.*at most 16"):
        to_bits(model)
    with pytest.raises(UnsupportedModelError, match="variable 0 has 40 states"):
        encode(model)
    r = tz.log_partition(model, time_limit=2, seed=0, exact=False)
    assert r.lower <= 3 * math.log(40) + 1e-9 <= r.upper + 2e-9
    with pytest.raises(ModelError, match=r"evidence.*condition\(\)"):
        to_bits(tz.FactorGraph([3], evidence={0: 1}))
    with pytest.raises(ParameterError, match="binary variables"):
        tz.estimate(
            potts_grid(2, states=3, seed=0), projections=tz.Projections(pairs=[(0, 1)]), levels=[0]
        )


# --- Potts -----------------------------------------------------------------------------------


def test_potts_weights():
    model = potts({(0, 1): 2.0, (2, 1): -1.0}, 3, fields=np.arange(9.0).reshape(3, 3))
    state = [1, 1, 2]
    assert model.log_weight(state)[0] == pytest.approx(2.0 + 1.0 + 4.0 + 8.0)
    grid = potts_grid(2, 3, states=4, seed=0, periodic=True)
    assert grid.n_factors == 6 + 7 + 2
    assert potts({}, 3).n_variables == 0
    two = potts_grid(3, states=2, field=(0, 0), seed=5)
    assert tz.exact(two).log_z == pytest.approx(enumerated(two)[0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: potts({(0, 0): 1.0}, 2), "with itself"),
        (lambda: potts({(0, 1): np.inf}, 2), r"coupling \(0, 1\) is inf"),
        (lambda: potts({(0, 3): 1.0}, 2, fields=np.zeros((2, 2))), "2 fields for 4 variables"),
        (lambda: potts({}, 2, fields=np.zeros((2, 3))), "expected"),
        (lambda: potts({}, 0), "states is 0"),
        (lambda: potts_grid(2, coupling=(1, 0)), "coupling range"),
    ],
)
def test_potts_refuses(build, message):
    with pytest.raises((ModelError, ParameterError), match=message):
        build()


# --- Data ------------------------------------------------------------------------------------


@pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="TIGHTZ_DATA is not set")
@pytest.mark.parametrize("name", ["linkage_21", "2bitadd_11.cnf", "ra.cnf"])
def test_uai_models_with_zeros_have_finite_lower_bounds(name):
    path = Path(os.environ["TIGHTZ_DATA"]) / "uai2014" / f"{name}.uai"
    model = tz.read(path)
    reference = tz.read(f"{path}.PR")

    def until_near(bound):
        if bound.low > reference - 40:
            raise KeyboardInterrupt  # as soon as it is there: the machine may be slow

    r = tz.log_partition(
        model,
        time_limit=120,
        seed=0,
        exact=False,
        only=DISCRETE,
        on_bound=until_near,
    )
    assert reference - 40 < r.lower <= reference + 1e-3 * abs(reference)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_estimate_keeps_a_table_per_variable(seed):
    """Marginals and pairs come from q itself: at m = 0 they are those of block mean field."""
    rng = np.random.default_rng(seed)
    cards = np.array([3, 2, 4, 2])
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3), (2,)]
    model = tz.FactorGraph(cards, [(s, 2.0 * rng.normal(size=cards[list(s)])) for s in scopes])
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    e = tz.estimate(
        model,
        projections=tz.Projections(restarts=4, collapse=0, search_sweeps=0, pairs=[(1, 3)]),
        levels=[0],
        trials=1,
        seed=0,
    )
    plain = tz.mean_field(model, family=tz.MeanField(restarts=4, tol=1e-9), seed=0)
    assert plain.log_z <= log_z + 1e-9
    assert e.log_gammas.max() <= log_z + 1e-9
    for marginal, d in zip(e.marginals, cards, strict=True):
        assert marginal.shape == (d,)
        assert marginal.sum() == pytest.approx(1.0)
    blocks = tz.mean_field(model, family=tz.BlockMeanField(), states=states_of(e.marginals), seed=0)
    assert blocks.log_z == pytest.approx(e.log_gammas.max(), abs=2e-4) or (
        blocks.log_z > e.log_gammas.max()
    )
    table = e.pair_marginals[0]
    np.testing.assert_allclose(table.sum(axis=1), e.marginals[1], atol=1e-9)
    np.testing.assert_allclose(table.sum(axis=0), e.marginals[3], atol=1e-9)
    product = np.outer(e.marginals[1], e.marginals[3])  # q is a product over variables
    np.testing.assert_allclose(table, product, atol=1e-9)


def states_of(marginals):
    return np.array([[int(np.argmax(p)) for p in marginals]])


def test_observed_variables_of_many_states_keep_their_length():
    model = tz.FactorGraph([4, 2], [((0, 1), np.arange(8.0).reshape(4, 2))], evidence={0: 3})
    for result in (tz.mean_field(model, seed=0), tz.estimate(model, levels=[0], seed=0)):
        np.testing.assert_array_equal(result.marginals[0], [0, 0, 0, 1])
        np.testing.assert_allclose(result.marginals[1], np.exp([6, 7]) / np.exp([6, 7]).sum())


def _either():
    """Two variables of which one must be 1."""
    return tz.FactorGraph([2, 2], [((0, 1), [[-np.inf, 0.0], [0.0, 0.0]])])


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_between_zeros_who_comes_first_is_freed(order):
    r = block_mean_field(_either(), states=[[1, 1]], order=np.array(order))
    assert r.log_z == pytest.approx(math.log(2.0))
    np.testing.assert_allclose(r.marginals[order[0]], 0.5)
    np.testing.assert_allclose(r.marginals[order[1]], [0.0, 1.0])


def test_the_order_is_of_all_variables_also_the_observed_ones():
    factors = [((0,), [1.0, 2.0]), *(((v, 3), [[-np.inf, 0.0], [0.0, 0.0]]) for v in (1, 2))]
    model = tz.FactorGraph([2, 2, 2, 2], factors, evidence={0: 1})
    r = block_mean_field(model, states=[[1, 1, 1, 1]], order=np.array([0, 3, 1, 2]))
    np.testing.assert_allclose(r.marginals[3], 0.5)
    assert r.log_z == pytest.approx(2.0 + math.log(2.0))


@given(discrete_models())
def test_opened_products_are_below_z(model):
    log_z, _ = enumerated(model)
    working = Working(model, Clock(5.0))
    if not working.graph.has_zeros:
        return
    for found in blocks(working, Clock(5.0)):
        if found.bound is not None:
            assert below(judged(found.bound, working.graph).log_z, log_z)


def test_zeros_at_a_price_leave_more_free_than_the_first_state():
    model = clauses(1500, seed=5)
    state = feasible_state(model, time_limit=20.0, seed=0).state
    alone = block_mean_field(model, states=state).log_z
    *_, tables = priced(model, 32, 0)
    start = next(feasible_states(model, clock=Clock(20.0), seed=0, beliefs=tables))
    opened = block_mean_field(model, states=start.state, order=freest_first(tables)).log_z
    assert opened > 1.3 * alone


def test_prices_are_below_what_a_table_allows():
    """Also where all it allows weighs e^-500; and a table of zeros alone has no least entry."""
    table = np.full((2, 2), -500.0)
    table[0, 0] = -np.inf
    model = tz.FactorGraph([2, 2, 2], [((0, 1), table), ((2,), [-np.inf, -np.inf])])
    *_, tables = priced(model, 60, 0)
    assert tables[0][0] * tables[1][0] < 0.01
    np.testing.assert_allclose(tables[2], 0.5, atol=0.03)


def test_the_freest_variables_come_first():
    tables = [np.array([1.0, 0.0]), np.array([0.5, 0.5]), np.array([1.0]), np.array([0.1, 0.9])]
    assert freest_first(tables).tolist()[:2] == [1, 3]
