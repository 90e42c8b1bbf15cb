"""The splitting tree and the coset sum against enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import binary_models
from tightz.bounds import Proof, Side
from tightz.errors import ParameterError, TightzError
from tightz.families.mean_field import MeanField
from tightz.families.structured import StructuredMeanField
from tightz.interval.streams.spins import _mixture
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.paper.coset_sum import coset_sum
from tightz.projections.coset import Coset
from tightz.projections.hashing import SparseParity
from tightz.reductions.encoding import encode
from tightz.runtime.clock import Clock
from tightz.splitting import Splitting, SplittingTree, split
from tightz.splitting.candidates import Effort, coin_divergence, propose
from tightz.splitting.nodes import log_difference
from tightz.splitting.region import Region, as_factor_graph
from tightz.splitting.results import Samples
from tightz.workspace.working import Working
from tightz.workspace.workspace import Workspace

PRODUCT = MeanField(restarts=4)
TREES = StructuredMeanField(width=1, restarts=2, max_sweeps=50)
FAMILIES = [PRODUCT, TREES]


def exact_log_z(model):
    return naive.enumerate_model(model.cardinalities, list(model.factors), model.evidence)[0]


def exact_marginals(model):
    return np.array(
        naive.enumerate_model(model.cardinalities, list(model.factors), model.evidence)[1]
    )


def slack(model):
    return 1e-9 * (1.0 + np.abs(model.log_tables[np.isfinite(model.log_tables)]).sum())


def enumeration_error(model):
    """The truth's own rounding; exact sums are compared without any in test_judge_parts."""
    return 1e-14 * (1.0 + np.abs(model.log_tables[np.isfinite(model.log_tables)]).sum())


def random_polynomial(n, rng, scale=1.0, terms=None):
    rows = [
        (rng.choice(n, size=int(rng.integers(1, min(n, 4) + 1)), replace=False).tolist(), theta)
        for theta in scale * rng.normal(size=3 * n if terms is None else terms)
    ]
    return SpinPolynomial.from_terms(n, float(rng.normal()), rows)


def all_spins(n):
    return 1 - 2 * naive.all_states([2] * n)


def random_region(n, rng):
    region = Region.whole(n)
    for _ in range(int(rng.integers(0, n))):
        parity = rng.choice(region.free, size=min(region.free.size, int(rng.integers(1, 3))))
        if region.free.size and len(set(parity.tolist())) == len(parity):
            region = region.restrict(tuple(parity.tolist()), int(rng.choice([-1, 1])))
    return region


# --- Regions ----------------------------------------------------------------------------------


@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_a_restricted_polynomial_weighs_the_region_as_the_model_does(n, seed):
    rng = np.random.default_rng(seed)
    poly = random_polynomial(n, rng)
    region = random_region(n, rng)
    states = all_spins(n)
    inside = states[region.contains(states)]
    assert len(inside) == 2**region.free.size
    small = region.restricted(poly)
    np.testing.assert_allclose(
        small.log_weight(inside[:, region.free]), poly.log_weight(inside), atol=1e-10
    )
    graph = as_factor_graph(small)
    bits = (1 - inside[:, region.free]) // 2
    np.testing.assert_allclose(graph.log_weight(bits), poly.log_weight(inside), atol=1e-10)


def test_the_two_sides_of_a_parity_partition_a_region():
    states = all_spins(5)
    region = Region.whole(5).restrict((3,), -1).restrict((0, 4), -1)
    for parity in ((1,), (0, 2)):
        parts = [region.restrict(parity, sign).contains(states) for sign in (1, -1)]
        assert not (parts[0] & parts[1]).any()
        np.testing.assert_array_equal(parts[0] | parts[1], region.contains(states))


def test_a_region_lifts_to_the_model_that_holds_its_spins():
    region = Region.whole(3).restrict((2,), -1).restrict((0, 1), -1)
    states = all_spins(5)
    kept = np.array([1, 3, 4])
    np.testing.assert_array_equal(
        region.lifted(kept, 5).contains(states), region.contains(states[:, kept])
    )


# --- Conditioning never loses -----------------------------------------------------------------


def families(n, seed):
    """Families with a q of each that is no optimum."""
    rng = np.random.default_rng(seed)
    coset = Coset.build(random_polynomial(n, rng))
    means = rng.uniform(-1, 1, size=n)
    product = replace(PRODUCT.project(coset, rng), means=means)
    yield PRODUCT, replace(product, log_gamma=product.evaluated())
    family = StructuredMeanField(width=2, restarts=1, max_sweeps=20)
    q = family.project(coset, rng)
    tables = q.tables.reshape(-1, 2)
    noise = rng.random(len(tables))
    mixed = 0.5 * tables + 0.5 * np.stack([noise, 1 - noise], axis=1)
    yield family, q.with_tables(mixed.ravel())


@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_conditionals_add_up_to_at_least_the_parent(n, seed):
    for _, q in families(n, seed):
        spin = seed % n
        sides = [q.condition((spin,), sign) for sign in (1, -1)]
        total = np.logaddexp(*[side.evaluated() for side in sides])
        assert total >= q.evaluated() - 1e-10
        single = np.arange(n + 1), np.arange(n)
        pairs = np.stack([np.arange(n), np.full(n, spin)], axis=1)
        others = np.arange(n) != spin
        v = q.expectations(*single)
        vv = q.expectations(2 * np.arange(n + 1), pairs.ravel())
        for side, sign in zip(sides, (1, -1), strict=True):
            expected = (v + sign * vv) / (1.0 + sign * v[spin])
            found = side.expectations(*single)
            np.testing.assert_allclose(found[others], expected[others], atol=1e-9)
            np.testing.assert_allclose(side.means, found, atol=1e-12)
            assert found[spin] == pytest.approx(sign, abs=1e-12)
            assert np.isnan(side.log_gamma)  # a start


@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_a_refined_q_stays_in_its_region_below_its_log_z_and_above_its_start(n, seed):
    rng = np.random.default_rng(seed + 1)
    for family, start in families(n, seed):
        region = Region.whole(n)
        for spin in rng.choice(n, size=int(rng.integers(0, n)), replace=False).tolist():
            sign = int(rng.choice([-1, 1]))
            region, start = region.restrict((spin,), sign), start.condition((spin,), sign)
        q = family.refine(start, np.zeros((0, n), np.int8))
        states = all_spins(n)
        inside = states[region.contains(states)]
        truth = naive.log_sum_exp(q.coset.polynomial.log_weight(inside))
        assert q.log_gamma <= truth + 1e-9
        assert q.log_gamma >= start.evaluated() - 1e-9
        drawn, log_q = q.draw(50, rng)
        assert region.contains(drawn).all()
        assert np.isfinite(log_q).all()


def test_a_tied_q_is_mean_field_on_the_coset():
    rng = np.random.default_rng(3)
    poly = random_polynomial(6, rng)
    q = PRODUCT.project(Coset.build(poly), rng)
    region = Region.whole(6).restrict((1, 4), -1).restrict((2,), 1).restrict((1, 5), 1)
    half = q.condition((1, 4), -1).condition((2,), 1).condition((1, 5), 1)
    np.testing.assert_array_equal(np.sort(half.coset.pivots), [4, 5])
    tied = PRODUCT.refine(half, np.zeros((0, 6), np.int8))
    drawn, _ = tied.draw(100, rng)
    assert region.contains(drawn).all()
    states = all_spins(6)
    truth = naive.log_sum_exp(poly.log_weight(states[region.contains(states)]))
    assert tied.log_gamma <= truth + 1e-9
    assert TREES.project(Coset.build(poly), rng).condition((1, 4), -1) is None


def test_what_a_q_cannot_follow_are_the_terms_outside_its_buckets():
    coset = Coset.build(encode(tz.ising_grid(3, seed=0)).polynomial)
    rng = np.random.default_rng(0)
    wide = StructuredMeanField(width=8).project(coset, rng)
    np.testing.assert_array_equal(wide.unfollowed(), 0.0)
    thin = StructuredMeanField(width=1).project(coset, rng)
    assert thin.unfollowed().max() > 0.0
    assert (PRODUCT.project(coset, rng).unfollowed() >= thin.unfollowed()).all()


# --- The stream -------------------------------------------------------------------------------


def planted(model, *, seed=None, threads=None, time_limit=math.inf, backend="auto", **options):
    """A tree on a workspace of its own."""
    encoding = encode(model)
    work = Workspace.build(encoding, seed=seed, collapse=options.get("collapse"), threads=threads)
    return SplittingTree(
        work, Splitting(**options), clock=Clock(time_limit), seed=seed, threads=threads,
        backend=backend,
    )  # fmt: skip


def check_stream(model, truth, **options):
    tree = planted(model, **options)
    ends = {Side.LOWER: -math.inf, Side.UPPER: math.inf}
    for bound in tree.run():
        assert bound.proof is Proof.DETERMINISTIC
        if bound.side is Side.LOWER:
            assert bound.log_z <= truth + enumeration_error(model)
            assert bound.log_z > ends[Side.LOWER] or ends[Side.LOWER] == -math.inf
        else:
            assert bound.log_z >= truth - enumeration_error(model)
            assert bound.log_z < ends[Side.UPPER]
        ends[bound.side] = bound.log_z
        if truth > -math.inf:
            found = bound.evidence.verdict(model)
            assert bound.log_z in (found.lower, found.upper)
    tree.check()
    result = tree.result()
    assert (result.lower, result.upper) == (ends[Side.LOWER], ends[Side.UPPER])
    return result


@given(binary_models(max_variables=6), st.sampled_from(FAMILIES), st.integers(0, 2))
@settings(deadline=None, max_examples=30)
def test_every_record_holds_and_the_tree_ends_at_the_exact_value(model, family, width):
    truth = exact_log_z(model)
    result = check_stream(
        model, truth, family=family, collapse=0, exact_width=width, seed=1, threads=1
    )
    assert result.closed
    assert result.lower == pytest.approx(truth, abs=slack(model))
    assert result.upper == pytest.approx(truth, abs=slack(model))


@pytest.mark.parametrize("family", [None, *FAMILIES])
@pytest.mark.parametrize("coupling", [1.0, 10.0])
def test_a_grid_of_twelve_spins_closes(family, coupling):
    model = tz.ising_grid(3, 4, coupling=(-coupling, coupling), seed=4)
    truth = exact_log_z(model)
    result = check_stream(model, truth, family=family, collapse=1, exact_width=1, seed=2)
    assert result.closed
    assert result.splits > 1
    assert abs(result.upper - result.lower) < 1e-8
    assert result.lower == pytest.approx(truth, abs=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_upper_bounds_fully_resolved_leaves_add_up_to_z(family):
    model = tz.ising_grid(2, 3, coupling=(-2, 2), seed=7)
    result = check_stream(
        model, exact_log_z(model), family=family, collapse=0, exact_width=0, upper=False, seed=0
    )
    assert result.lower == pytest.approx(exact_log_z(model), abs=1e-9)


@pytest.mark.parametrize("splits", [0, 1, 5, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_more_splits_never_loosen_either_end(family, splits):
    model = tz.ising_grid(4, coupling=(-3, 3), seed=11)
    truth = naive.grid_log_z(4, 4, list(model.factors))
    options = {"family": family, "collapse": 0, "exact_width": 2, "seed": 3}
    few = check_stream(model, truth, max_splits=splits, **options)
    more = check_stream(model, truth, max_splits=splits + 5, **options)
    assert few.lower <= more.lower
    assert few.upper >= more.upper


def test_splitting_closes_most_of_the_mean_field_gap():
    model = tz.ising_grid(5, coupling=(-3, 3), seed=21)
    truth = naive.grid_log_z(5, 5, list(model.factors))
    options = {"family": PRODUCT, "collapse": 0, "exact_width": 1, "upper": False}
    root = split(model, Splitting(max_splits=1, **options), seed=0)
    tree = split(model, Splitting(max_splits=200, **options), seed=0)
    assert truth - tree.lower < 0.5 * (truth - root.lower)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_tree_whatever_the_threads(family):
    model = tz.ising_grid(5, coupling=(-3, 3), seed=2)
    runs = [
        split(
            model,
            Splitting(family=family, collapse=2, exact_width=2, max_splits=8),
            seed=9,
            threads=threads,
        )
        for threads in (1, 2, 3)
    ]
    for run in runs[1:]:
        assert [b.log_z for b in run.history] == [b.log_z for b in runs[0].history]
        np.testing.assert_array_equal(run.log_lowers, runs[0].log_lowers)
        np.testing.assert_array_equal(run.marginals, runs[0].marginals)


def test_a_dropped_leaf_leaves_a_valid_bound_and_an_inflated_one_is_caught():
    model = tz.ising_grid(4, coupling=(-2, 2), seed=6)
    truth = naive.grid_log_z(4, 4, list(model.factors))
    tree = planted(model, family=PRODUCT, collapse=0, exact_width=1, max_splits=10, seed=0)
    list(tree.run())
    tree.check()
    lowers = tree.result().log_lowers
    for drop in range(len(lowers)):
        assert naive.log_sum_exp(np.delete(lowers, drop)) < truth
    for leaf in list(tree.tree.root.leaves()):
        honest = leaf.own_lower
        leaf.own_lower = honest + 0.1
        with pytest.raises(ArithmeticError, match="claims"):
            tree.check()
        leaf.own_lower = honest
    leaf = next(leaf for leaf in tree.tree.root.leaves() if not leaf.exact)
    part = leaf.part
    leaf.part = part._replace(q=replace(part.q, means=-part.q.means))  # outside its region
    with pytest.raises(ArithmeticError, match="claims"):
        tree.check()
    leaf.part = part
    first, second = tree.tree.root.children
    for wrong in ((first, first), (first, second.children[0] if second.children else first)):
        tree.tree.root.children = wrong  # counted twice, or a part missing
        with pytest.raises(ArithmeticError, match="partition"):
            tree.check()


def test_ends_that_contradict_each_other_are_refused():
    standing = planted(tz.ising_grid(3, seed=0)).standing
    standing.improve(1.0, 2.0)
    with pytest.raises(ArithmeticError, match="above upper"):
        standing.improve(3.0, 4.0)
    with pytest.raises(ArithmeticError, match="above upper"):  # no tolerance
        standing.improve(np.nextafter(2.0, 3.0), 4.0)


def test_an_interrupted_run_keeps_what_it_has():
    model = tz.ising_grid(4, coupling=(-3, 3), seed=1)
    truth = naive.grid_log_z(4, 4, list(model.factors))
    for count in (1, 2, 3, 5):
        tree = planted(model, collapse=0, family=PRODUCT, exact_width=1, seed=0)
        run = tree.run()
        for _ in itertools.islice(run, count):
            pass
        run.close()
        result = tree.result()
        assert result.lower <= truth <= result.upper
        assert len(result.history) == count


def test_a_time_limit_ends_an_open_run():
    model = tz.ising_grid(9, coupling=(-1, 1), seed=1)
    truth = naive.grid_log_z(9, 9, list(model.factors))
    settings_ = Splitting(family=PRODUCT, collapse=2, exact_width=2)
    result = split(model, settings_, time_limit=0.5, seed=0)
    assert result.lower <= truth <= result.upper
    assert not result.closed


# --- Corners ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [None, *FAMILIES])
@pytest.mark.parametrize("options", [{}, {"collapse": 0, "exact_width": 0}])
def test_corner_models(family, options):
    three = np.array([0.1, 0.2])
    for model in (
        tz.FactorGraph([], []),
        tz.FactorGraph([], [((), np.array(2.5))]),
        tz.FactorGraph([2, 2], []),
        tz.FactorGraph([2], [((0,), three)]),
        tz.FactorGraph([1, 2], [((0, 1), three[None, :])]),
        tz.FactorGraph([2, 2, 2], [((0, 2), np.arange(4.0).reshape(2, 2))]),
        tz.ising({(0, 1): 1e6, (1, 2): -1e6, (0, 2): 1e6}, [1.0, 2.0, -3.0]),
        tz.FactorGraph([2, 2], [((0, 1), np.full((2, 2), 1e5)), ((0,), three)]),
    ):
        truth = exact_log_z(model)
        result = check_stream(model, truth, family=family, seed=0, threads=1, **options)
        assert result.closed
        assert result.lower == pytest.approx(truth, abs=slack(model))
        np.testing.assert_allclose(result.marginals[:, 0].sum(), sum_first(model), atol=1e-5)


def sum_first(model):
    return sum(m[0] for m in exact_marginals_list(model))


def exact_marginals_list(model):
    return naive.enumerate_model(model.cardinalities, list(model.factors), model.evidence)[1]


def test_a_model_with_z_zero():
    model = tz.FactorGraph([2, 2], [((0, 1), np.full((2, 2), -np.inf))])
    bounds = list(planted(model, seed=0).run())
    assert [(b.side, b.log_z) for b in bounds] == [
        (Side.LOWER, -math.inf),
        (Side.UPPER, -math.inf),
    ]
    result = split(model, seed=0)
    assert result.closed
    assert np.isnan(result.marginals).all()
    assert result.sampled_log_z(10, 0).log_z == -math.inf
    assert all(b.evidence.verdict(model).upper == -math.inf for b in bounds)
    with pytest.raises(TightzError, match="no state of positive weight"):
        result.sample(10, 0)


def test_samples_of_a_run_that_found_nothing_are_refused():
    tree = planted(tz.ising_grid(3, seed=0), time_limit=1e-9)
    list(tree.run())
    with pytest.raises(TightzError, match="more time"):
        tree.result().sample(10, 0)
    with pytest.raises(TightzError, match="more time"):
        tree.result().sampled_log_z(10, 0)


def test_effective_size_counts_equal_weights():
    states = np.zeros((4, 1), dtype=np.int64)
    assert Samples(states, np.full(4, 7.0)).effective_size == pytest.approx(4.0)
    assert Samples(states, np.array([0.0, 0.0, -800.0, -800.0])).effective_size == pytest.approx(2)
    assert Samples(states, np.full(4, -np.inf)).effective_size == 0.0
    assert Samples(states[:0], np.zeros(0)).effective_size == 0.0


def test_evidence_is_honoured():
    model = tz.ising_grid(3, coupling=(-2, 2), seed=3).with_evidence({4: 1, 0: 0})
    truth = exact_log_z(model)
    result = check_stream(model, truth, collapse=0, exact_width=1, family=PRODUCT, seed=0)
    assert result.lower == pytest.approx(truth, abs=1e-8)
    np.testing.assert_allclose(result.marginals, exact_marginals(model), atol=1e-6)
    states = result.sample(20, 0).states
    assert (states[:, 4] == 1).all()
    assert (states[:, 0] == 0).all()


def test_refused_parameters():
    model = tz.ising_grid(3, seed=0)
    with pytest.raises(ParameterError, match="time_limit"):
        split(model, time_limit=-1.0)
    with pytest.raises(ParameterError, match="exact_width"):
        split(model, Splitting(exact_width=50))
    with pytest.raises(ParameterError, match="family"):
        split(model, Splitting(family=tz.PointMass()))
    with pytest.raises(ParameterError, match="max_leaves"):
        split(model, Splitting(max_leaves=0))


def test_a_collapse_that_solves_the_model_closes_it():
    model = tz.ising({(0, 1): 0.5, (1, 2): -0.7}, [0.1, 0.2, 0.3])
    result = check_stream(model, exact_log_z(model), collapse=1, exact_width=0, seed=0)
    assert result.closed
    assert result.upper - result.lower < 1e-9


def test_candidates_are_where_the_pool_and_q_disagree():
    rng = np.random.default_rng(0)
    q = replace(PRODUCT.project(Coset.build(random_polynomial(8, rng)), rng), means=np.zeros(8))
    members = rng.choice(np.array([-1, 1], dtype=np.int8), size=(400, 8))
    members[:, 3] = 1
    members[:, 5] = 1
    members[:, 6] = -members[:, 7]  # a pair that flips together, each spin fair by itself
    free = np.array([0, 1, 2, 3, 6, 7])
    effort = Effort(disagreeing=1, cut=0, pairs=1, random=1)
    found = propose(q, free, members, np.ones(8), effort, rng)
    assert found[:2] == [(3,), (6, 7)]
    assert {i for parity in found for i in parity} <= set(free.tolist())
    alike = np.repeat(members[:, :1], 8, axis=1)
    alike[:, 7] = members[:, 1]
    two = propose(replace(q, means=np.full(8, 0.9)), np.arange(8), alike, np.ones(8),
                  Effort(disagreeing=2, cut=0, pairs=0, random=0), rng)  # fmt: skip
    assert len(two) == 2
    assert (7,) in two


# --- The mixture ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("collapse", [0, 1])
def test_importance_weights_are_those_of_a_normalised_mixture(family, collapse):
    model = tz.ising_grid(2, 2, coupling=(-1, 1), seed=5)
    settings_ = Splitting(family=family, collapse=collapse, exact_width=0, max_splits=2)
    result = split(model, settings_, seed=1, threads=1)
    states, log_weights = result.sample(4000, 3)
    log_q = model.log_weight(states) - log_weights
    distinct, first = np.unique(states, axis=0, return_index=True)
    assert len(distinct) == 16
    # With spins summed out a weight is shared by all their states: q is then p's conditional.
    np.testing.assert_allclose(np.exp(log_q[first]).sum(), 1.0, atol=1e-9)
    estimate = result.sampled_log_z(4000, 4)
    assert abs(estimate.log_z - exact_log_z(model)) < 5 * estimate.error + 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_marginals_and_samples_of_a_closed_tree_are_exact(family):
    model = tz.ising_grid(3, coupling=(-2, 2), seed=8)
    result = split(model, Splitting(family=family, collapse=1, exact_width=1), seed=1)
    assert result.closed
    np.testing.assert_allclose(result.marginals, exact_marginals(model), atol=1e-3)
    np.testing.assert_allclose(np.exp(result.log_weights).sum(), 1.0)
    frequencies = result.sample(4000, 2).states.mean(axis=0)
    np.testing.assert_allclose(frequencies, exact_marginals(model)[:, 1], atol=0.05)


def test_a_polynomial_is_a_model_too():
    poly = random_polynomial(5, np.random.default_rng(0))
    truth = naive.log_sum_exp(poly.log_weight(all_spins(5)))
    result = split(poly, Splitting(collapse=0, exact_width=1, family=PRODUCT), seed=0)
    assert result.lower == pytest.approx(truth, abs=1e-8)
    assert result.sample(7, 0).states.shape == (7, 5)
    assert "closed" in result.summary()
    assert "\n" not in repr(result)


# --- The coset sum ----------------------------------------------------------------------------


@given(binary_models(max_variables=6), st.integers(0, 6), st.integers(0, 2**16))
@settings(deadline=None, max_examples=30)
def test_the_coset_sum_is_a_lower_bound_and_exact_at_full_rank(model, m, seed):
    truth = exact_log_z(model)
    n = model.n_variables
    options = {"seed": seed, "projections": tz.Projections.as_printed(), "threads": 1}
    found = coset_sum(model, min(m, n), **options)
    assert found.log_z <= truth + enumeration_error(model)
    assert found.bound.proof is Proof.DETERMINISTIC
    assert found.bound.evidence.verdict(model).lower == found.log_z
    full = coset_sum(model, n, matrix=np.tri(n, dtype=np.uint8), **options)
    assert len(full.log_gammas) == 2**n
    assert full.log_z == pytest.approx(truth, abs=slack(model))
    np.testing.assert_allclose(full.marginals, exact_marginals(model), atol=1e-6)


def test_dependent_rows_are_dropped():
    model = tz.ising_grid(3, seed=1)
    rows = np.zeros((3, 9), dtype=np.uint8)
    rows[0, :3] = rows[1, 2:5] = 1
    rows[2] = rows[0] ^ rows[1]
    found = coset_sum(model, 3, projections=tz.Projections.as_printed(), matrix=rows, seed=0)
    assert found.matrix.shape == (2, 9)
    assert len(found.log_gammas) == 4
    assert found.log_z <= exact_log_z(model)


def test_more_parities_of_a_nested_matrix_tighten_the_sum_to_exact():
    model = tz.ising_grid(3, coupling=(-2, 2), seed=1)
    truth = exact_log_z(model)
    values = [
        coset_sum(model, m, matrix=np.eye(9, dtype=np.uint8)[:m], seed=0).log_z
        for m in (0, 3, 6, 9)
    ]
    assert values[0] < values[-1] <= truth
    assert values[-1] == pytest.approx(truth, abs=1e-9)


def test_coset_sum_corners():
    zero = tz.FactorGraph([2, 2], [((0, 1), np.full((2, 2), -np.inf))])
    assert coset_sum(zero, 1, seed=0).log_z == -math.inf
    constant = coset_sum(tz.FactorGraph([], [((), np.array(1.5))]), 0, seed=0)
    assert constant.log_z <= 1.5 <= constant.log_z + 2 * constant.rounding
    grid = tz.ising_grid(3, seed=0)
    collapsed = coset_sum(
        grid, 2, projections=tz.Projections(collapse=2, hashing=SparseParity(0.3)), seed=0
    )
    assert collapsed.log_z <= exact_log_z(grid)
    same = [coset_sum(grid, 3, seed=4, threads=t).log_gammas for t in (1, 2)]
    np.testing.assert_array_equal(*same)
    with pytest.raises(ParameterError, match="matrix"):
        coset_sum(grid, 2, matrix=np.eye(3), seed=0)
    with pytest.raises(ParameterError, match="m is"):
        coset_sum(tz.ising_grid(5, seed=0), 21, seed=0)


# --- Small pieces -----------------------------------------------------------------------------


def test_log_difference_and_coin_divergence():
    assert log_difference(math.log(3.0), math.log(2.0)) == pytest.approx(0.0)
    assert log_difference(1.0, 1.0) == -math.inf
    assert log_difference(1.0, -math.inf) == 1.0
    assert log_difference(math.inf, 1.0) == math.inf
    v, e = np.array([0.0, 1.0, -0.5]), np.array([0.0, 0.5, 0.25])
    p, r = (1 + v) / 2, (1 + e) / 2
    expected = [0.0, math.log(1 / 0.75)]
    expected.append(p[2] * math.log(p[2] / r[2]) + (1 - p[2]) * math.log((1 - p[2]) / (1 - r[2])))
    np.testing.assert_allclose(coin_divergence(v, e), expected, atol=1e-12)


def test_a_tree_that_knows_a_bound_and_has_no_q_offers_no_mixture():
    """The clock ended between a bound from elsewhere and the first q: that is no failure."""
    working = Working(tz.ising_grid(4, seed=0), Clock(60.0), exact=False)
    tree = SplittingTree(working.spins, Splitting(), seed=1)
    tree.standing.lower = 0.0
    with pytest.raises(TightzError, match="nothing to draw from"):
        tree.result().sample(3)
    assert list(_mixture(working, tree)) == []
    for _ in tree.run():
        pass
    (found,) = _mixture(working, tree)
    assert found.sampler is not None
