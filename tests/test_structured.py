"""Structured mean field against enumeration of its q, exact sums and plain mean field."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tests.strategies import binary_models, projected_models
from tightz.elimination.exact import exact
from tightz.elimination.graph import scopes_from
from tightz.errors import ParameterError, ResourceError
from tightz.families.evidence import JENSEN, lower_bound_of
from tightz.families.mean_field import MeanField
from tightz.families.projection import Status, evaluate
from tightz.families.structured import StructuredMeanField, shape, terms, thinning
from tightz.families.structured.clusters import (
    grow_partition,
    is_within,
    lattice_partitions,
    lattice_shape,
    strips,
    thin,
)
from tightz.families.structured.junction import build_forest, structured_bound
from tightz.families.structured.thinning import keep_heaviest
from tightz.interval.streams.structured import Fit, Known, Shaped, structured
from tightz.models.builders import ising, ising_grid, rbm
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.paper.estimate import estimate
from tightz.paper.setup import Projections
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity, Parities
from tightz.reductions.encoding import encode
from tightz.runtime.clock import Clock
from tightz.sampling.capped.heavy import heavy_states
from tightz.workspace.findings import Marginals, Mixing
from tightz.workspace.working import Handout, Working, alone

TIGHT = {"tol": 1e-12, "max_sweeps": 3000}


def coset_of(model, parities=None):
    return Coset.build(encode(model).polynomial, parities)


def log_z_on(coset):
    """log Z(A, b): every state of the coset, weighed by the model's own terms."""
    if not coset.feasible:
        return -np.inf
    states = coset.spins_from_free(naive.all_spins(coset.n_free))
    return naive.log_sum_exp(coset.polynomial.log_weight(states))


def joint_of(result):
    """q as a table over all states of the free spins, from the projection's forest and tables."""
    f = result.forest
    separators, tables = [], []
    for k in range(f.n):
        separators.append(f.spin_of[f.sep[f.sep_ptr[k] : f.sep_ptr[k + 1]]])
        tables.append(result.tables[f.tab_ptr[k] : f.tab_ptr[k + 1]].reshape(-1, 2))
    return naive.conditional_joint(f.spin_of, separators, tables)


def random_partition(n, rng):
    labels = rng.integers(0, max(1, n // 2) + 1, size=n)  # label 0: left to stand alone
    return [np.flatnonzero(labels == c).tolist() for c in range(1, labels.max(initial=0) + 1)]


@settings(max_examples=250)
@given(projected_models(max_variables=7, max_arity=4), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_bound_is_the_value_of_its_q_and_never_exceeds_log_z(projected, width, seed):
    model, parities = projected
    coset = coset_of(model, parities)
    rng = np.random.default_rng(seed)
    partition = ["auto", [range(model.n_variables)], random_partition(model.n_variables, rng)][
        seed % 3
    ]
    family = StructuredMeanField(width=width, restarts=2, partition=partition)
    result = family.project(coset, rng)
    log_z = log_z_on(coset)
    if not coset.feasible:
        assert result.log_gamma == log_z == -np.inf
        assert result.status is Status.INFEASIBLE
        assert np.isnan(result.spin_means()).all()
        return
    assert result.log_gamma <= log_z + 1e-9 * max(1.0, abs(log_z))
    q = joint_of(result)
    states = coset.spins_from_free(naive.all_spins(coset.n_free))
    live = q > 0
    value = (q[live] * coset.polynomial.log_weight(states)[live]).sum()
    value -= (q[live] * np.log(q[live])).sum()
    assert q.sum() == pytest.approx(1.0, abs=1e-12)
    assert result.log_gamma == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert result.forest.width <= width
    np.testing.assert_allclose(result.spin_means(), q @ states, atol=1e-9)
    pairs = np.array(list(itertools.combinations(range(model.n_variables), 2)), int).reshape(-1, 2)
    expected = q @ (states[:, pairs[:, 0]] * states[:, pairs[:, 1]])
    np.testing.assert_allclose(result.pair_means(pairs), expected, atol=1e-9)
    np.testing.assert_allclose(result.means, q @ naive.all_spins(coset.n_free), atol=1e-9)


@settings(max_examples=60)
@given(projected_models(max_variables=7, max_arity=4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_every_sweep_raises_the_objective_and_the_evaluator_agrees(projected, width, seed):
    model, parities = projected
    coset = coset_of(model, parities)
    if not coset.feasible:
        return
    rng = np.random.default_rng(seed)
    whole = [range(model.n_variables)]
    family = StructuredMeanField(width=width, restarts=1, partition=whole, **TIGHT)
    start = rng.uniform(-1, 1, (1, coset.n_free))
    result = family.ascend_from(coset, start)
    scale = 1.0 + np.abs(coset.polynomial.theta).sum()
    assert np.diff(result.trace).min(initial=0.0) >= -1e-12 * scale
    assert result.trace[-1] == pytest.approx(result.log_gamma, abs=1e-11 * scale)
    assert result.trace[0] >= evaluate(coset, start.T)[0] - 1e-12 * scale


@settings(max_examples=60)
@given(projected_models(max_variables=7, max_arity=3), st.integers(0, 2**32 - 1))
def test_enough_width_gives_log_z_of_any_coset(projected, seed):
    model, parities = projected
    coset = coset_of(model, parities)
    family = StructuredMeanField(width=max(coset.n_free, 1), restarts=1)
    result = family.project(coset, np.random.default_rng(seed))
    log_z = log_z_on(coset)
    assert result.log_gamma == pytest.approx(log_z, rel=1e-12, abs=1e-9)
    if coset.feasible:
        assert result.sweeps == 1
        assert result.status is Status.CONVERGED


@pytest.mark.parametrize(("rows", "cols", "width"), [(4, 3, 3), (2, 6, 2), (1, 9, 1)])
def test_one_cluster_of_the_treewidth_is_exact(rows, cols, width):
    model = ising_grid(rows, cols, coupling=(-2, 2), seed=3)
    log_z, marginals = naive.enumerate_model(model.cardinalities, list(model.factors))
    clusters = strips(rows, cols, min(rows, cols), vertical=cols < rows)
    assert len(clusters) == 1
    family = StructuredMeanField(width=width, restarts=1, partition=clusters)
    result = family.project(coset_of(model), np.random.default_rng(0))
    assert result.log_gamma == pytest.approx(log_z, abs=1e-9)
    np.testing.assert_allclose(result.marginals(), [m[1] for m in marginals], atol=1e-9)
    narrow = StructuredMeanField(width=width - 1, restarts=1, partition=clusters)
    assert narrow.project(coset_of(model), np.random.default_rng(0)).log_gamma < log_z - 1e-6


@settings(max_examples=60)
@given(projected_models(max_variables=7, max_arity=3), st.integers(0, 2**32 - 1))
def test_singletons_are_plain_mean_field(projected, seed):
    model, parities = projected
    coset = coset_of(model, parities)
    start = np.random.default_rng(seed).uniform(-0.9, 0.9, (1, coset.n_free))
    plain = MeanField(restarts=1, tol=1e-14, max_sweeps=20000).ascend_from(coset, start)
    ours = StructuredMeanField(width=0, restarts=1, tol=1e-14, max_sweeps=20000)
    listed = StructuredMeanField(width=3, restarts=1, tol=1e-14, max_sweeps=20000, partition=[[0]])
    for family in (ours, listed):
        result = family.ascend_from(coset, start)
        if coset.feasible:
            assert result.forest.n_trees == coset.n_free
            # Same coordinate steps from the same start, so the same fixed point.
            assert result.log_gamma == pytest.approx(plain.log_gamma, rel=1e-7, abs=1e-5)
        else:
            assert result.log_gamma == -np.inf


def test_no_small_change_of_one_table_raises_the_bound():
    model = ising_grid(3, 3, coupling=(-1.5, 1.5), seed=5)
    parities = DenseParity().draw(3, 9, np.random.default_rng(2))
    coset = coset_of(model, parities)
    family = StructuredMeanField(width=2, restarts=1, partition=[range(5), range(5, 9)], **TIGHT)
    result = family.project(coset, np.random.default_rng(0))
    assert result.forest.n_trees < coset.n_free
    rng = np.random.default_rng(1)
    for _ in range(100):
        k = int(rng.integers(result.forest.n))
        tables = result.tables.copy()
        rows = tables[result.forest.tab_ptr[k] : result.forest.tab_ptr[k + 1]].reshape(-1, 2)
        rows[:, 0] = np.clip(rows[:, 0] + rng.normal(scale=0.05, size=len(rows)), 0, 1)
        rows[:, 1] = 1.0 - rows[:, 0]
        assert structured_bound(coset, result.forest, tables) <= result.log_gamma + 1e-9


@settings(max_examples=40)
@given(projected_models(max_variables=6), st.integers(0, 2**32 - 1))
def test_point_masses_are_members(projected, seed):
    model, parities = projected
    coset = coset_of(model, parities)
    if not coset.feasible:
        return
    rng = np.random.default_rng(seed)
    result = StructuredMeanField(width=2, restarts=1).project(coset, rng)
    f = result.forest
    y = rng.choice([-1.0, 1.0], size=coset.n_free)
    tables = shape.product_tables(f, y)
    assert set(tables.tolist()) <= {0.0, 1.0}
    weight = coset.polynomial.log_weight(coset.spins_from_free(y[None, :]))[0]
    assert structured_bound(coset, f, tables) == pytest.approx(weight, abs=1e-9)


def test_an_unnormalised_table_is_refused_by_the_evaluator():
    coset = coset_of(ising_grid(2, seed=0))
    result = StructuredMeanField(width=1).project(coset, np.random.default_rng(0))
    with pytest.raises(ArithmeticError):
        structured_bound(coset, result.forest, result.tables * 1.001)


def test_more_width_is_tighter_on_a_lattice():
    model = ising_grid(6, coupling=(-1, 1), seed=1)
    log_z = naive.grid_log_z(6, 6, list(model.factors))
    coset = coset_of(model)
    gaps = [
        log_z
        - StructuredMeanField(width=w, restarts=2)
        .project(coset, np.random.default_rng(0))
        .log_gamma
        for w in (0, 1, 3, 6)
    ]
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2] > gaps[3]
    assert abs(gaps[3]) < 1e-9


@pytest.mark.parametrize("coupling", [(-1.0, 1.0), (0.0, 1.0)])
def test_15x15_grids_are_within_a_nat(coupling):
    model = ising_grid(15, coupling=coupling, seed=11)
    log_z = naive.grid_log_z(15, 15, list(model.factors))
    result = StructuredMeanField().project(coset_of(model), np.random.default_rng(0))
    assert log_z - 1.0 < result.log_gamma <= log_z + 1e-9


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_couplings_of_any_size(scale):
    rng = np.random.default_rng(4)
    matrix = np.triu(scale * rng.normal(size=(7, 7)), 1)
    model = ising(matrix + matrix.T, scale * rng.normal(size=7))
    for m in (0, 2):
        coset = coset_of(model, DenseParity().draw(m, 7, rng))
        for width in (1, 3, 7):
            result = StructuredMeanField(width=width).project(coset, rng)
            log_z = log_z_on(coset)
            assert np.isfinite(result.log_gamma)
            assert result.log_gamma <= log_z + 1e-9 * max(1.0, abs(log_z))
    exact = StructuredMeanField(width=7).project(coset_of(model), rng)
    assert exact.log_gamma == pytest.approx(log_z_on(coset_of(model)), rel=1e-12)


def test_large_log_z():
    poly = SpinPolynomial.from_terms(3, 1e5, [([0, 1], 2e5), ([1, 2], -3e5), ([0], 1.0)])
    coset = Coset.build(poly)
    result = StructuredMeanField(width=1).project(coset, np.random.default_rng(0))
    assert result.log_gamma == pytest.approx(log_z_on(coset), rel=1e-14)


def test_models_without_spins_terms_or_weight():
    rng = np.random.default_rng(0)
    empty = StructuredMeanField().project(Coset.build(SpinPolynomial.from_terms(0, 2.5, [])), rng)
    assert empty.log_gamma == 2.5
    flat = StructuredMeanField().project(coset_of(FactorGraph([2] * 5, [])), rng)
    assert flat.log_gamma == pytest.approx(5 * np.log(2))
    zero = FactorGraph([2, 2], [((0,), [-np.inf, -np.inf]), ((0, 1), np.ones((2, 2)))])
    assert StructuredMeanField().project(coset_of(zero), rng).log_gamma == -np.inf
    observed = FactorGraph([2, 1, 2], [((0, 1, 2), np.arange(4.0).reshape(2, 1, 2))])
    seen = observed.with_evidence({0: 1})
    value = StructuredMeanField().project(coset_of(seen), rng).log_gamma
    assert value == pytest.approx(np.logaddexp(2.0, 3.0))
    constant = coset_of(
        ising_grid(2, seed=0), Parities(np.eye(4, dtype=np.uint8), np.ones(4, np.uint8))
    )
    point = StructuredMeanField().project(constant, rng)
    assert constant.n_free == 0
    assert point.log_gamma == pytest.approx(log_z_on(constant))


def test_estimate_takes_it_as_a_family():
    model = ising_grid(4, coupling=(-1, 1), seed=2)
    log_z = naive.grid_log_z(4, 4, list(model.factors))
    family = StructuredMeanField(width=2, restarts=2)
    plainly = {"seed": 7, "projections": Projections.as_printed()}
    runs = [estimate(model, levels=[0, 3, 16], trials=3, family=family, **plainly) for _ in "ab"]
    np.testing.assert_array_equal(runs[0].log_gammas, runs[1].log_gammas)
    assert runs[0].log_gammas.shape == (3, 3, 2)
    assert runs[0].lower <= log_z
    assert runs[0].lower > log_z - 0.5
    plain = estimate(model, levels=[0], trials=1, family=MeanField(restarts=20), **plainly)
    assert runs[0].lower > plain.lower
    guided = estimate(
        model, projections=Projections(collapse=2), levels=[0, 3], trials=2, family=family, seed=7
    )
    assert guided.lower <= log_z + 1e-9


def test_known_states_serve_as_starts():
    model = ising_grid(5, coupling=(-10, 10), seed=4)
    poly = encode(model).polynomial
    states = np.random.default_rng(0).choice([-1, 1], size=(3, 25)).astype(np.int8)
    coset = Coset.build(poly, DenseParity().draw(4, 25, np.random.default_rng(1)))
    family = StructuredMeanField(width=1, restarts=2)
    result = family.project(coset, np.random.default_rng(2), states)
    repaired = coset.spins_from_free(states[:, coset.free])
    # An ascent never falls below its start, and the start is the heaviest repaired state.
    assert result.log_gammas[0] >= poly.log_weight(repaired).max() - 1e-9
    other = family.project(coset, np.random.default_rng(2))
    assert result.log_gammas[0] != other.log_gammas[0]


# --- Partitions ---------------------------------------------------------------------------------


def test_strips_cover_the_lattice():
    for offset, vertical in itertools.product((0, 1, 2), (False, True)):
        clusters = strips(5, 4, 2, offset=offset, vertical=vertical)
        assert sorted(i for c in clusters for i in c) == list(range(20))
        assert max(len(c) for c in clusters) == (10 if vertical else 8)
    assert strips(3, 2, 2) == ((0, 2, 1, 3), (4, 5))


def test_lattices_are_recognised():
    def pairs_of(model):
        poly = encode(model).polynomial
        return poly.spins[poly.ptr[:-1][poly.arities == 2][:, None] + np.arange(2)].astype(np.int64)

    assert lattice_shape(12, pairs_of(ising_grid(4, 3, seed=0))) == (4, 3)
    assert lattice_shape(16, pairs_of(ising_grid(4, seed=0, periodic=True))) is None
    chain = np.stack([np.arange(5), np.arange(1, 6)], axis=1)
    assert lattice_shape(6, chain) is None
    assert lattice_shape(6, np.concatenate([chain, [[0, 3]]])) is None  # 2-3 wraps a row
    assert lattice_shape(4, np.array([[0, 2], [1, 3], [0, 1], [0, 3]])) is None


def test_lattice_cuts_are_the_lightest():
    poly = encode(ising_grid(7, 3, seed=3)).polynomial
    pairs = poly.spins[poly.ptr[:-1][poly.arities == 2][:, None] + np.arange(2)].astype(np.int64)
    weights = np.abs(poly.theta[poly.arities == 2])

    def cut(clusters):
        home = np.zeros(21, dtype=int)
        for c, cluster in enumerate(clusters):
            home[list(cluster)] = c
        return weights[home[pairs[:, 0]] != home[pairs[:, 1]]].sum()

    found = lattice_partitions(7, 3, pairs, weights, 3)
    horizontal = next(p for p in found if len(p) > 1)
    lightest = min(
        cut([range(3 * a, 3 * b) for a, b in itertools.pairwise([0, *cuts, 7])])
        for count in range(1, 7)
        for cuts in itertools.combinations(range(1, 7), count)
        if max(np.diff([0, *cuts, 7])) <= 3
    )
    assert cut(horizontal) == pytest.approx(lightest)
    assert max(len(c) for c in horizontal) <= 9


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_grown_clusters_are_disjoint_and_within_the_width(n, width, seed):
    rng = np.random.default_rng(seed)
    pairs = np.array([p for p in itertools.combinations(range(n), 2) if rng.random() < 0.4])
    pairs = pairs.reshape(-1, 2).astype(np.int64)
    weights = rng.random(len(pairs)) + 0.1
    for source in (None, rng):
        clusters = grow_partition(n, pairs, weights, width, source)
        assert sorted(i for c in clusters for i in c) == list(range(n))
        near = np.zeros((n, n), dtype=bool)
        near[pairs[:, 0], pairs[:, 1]] = near[pairs[:, 1], pairs[:, 0]] = True
        for c in clusters:
            inside = near[np.ix_(c, c)]
            assert is_within(inside, width)
            order, touched = naive.elimination_game(inside, naive.degree_then_fill)
            assert sorted(order) == list(range(len(c)))
            assert max(touched) <= width


def test_width_one_keeps_a_maximum_spanning_tree():
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    rng = np.random.default_rng(8)
    pairs = np.array(list(itertools.combinations(range(9), 2)))
    weights = rng.random(len(pairs)) + 0.1
    order, terms = thin(9, list(pairs), weights, 1)
    assert build_forest(9, order, terms).width == 1
    at = {tuple(p): w for p, w in zip(pairs.tolist(), weights, strict=True)}
    kept = [tuple(sorted(term.tolist())) for term in terms]
    tree = minimum_spanning_tree(coo_array((-weights, pairs.T), shape=(9, 9)))
    assert sum(at[p] for p in kept) == pytest.approx(-tree.sum())


def width_along(n, order, scopes):
    """Most neighbours of a spin at its turn, eliminated by definition."""
    near = np.zeros((n, n), dtype=bool)
    for scope in scopes:
        near[np.ix_(scope, scope)] = True
    most = 0
    for i in order:
        around = np.flatnonzero(near[i])
        around = around[around != i]
        most = max(most, around.size)
        near[np.ix_(around, around)] = True
        near[i] = near[:, i] = False
    return most


@settings(max_examples=80)
@given(st.integers(2, 14), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_scopes_are_kept_in_turn_while_the_width_allows(n, width, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, min(width + 1, n) + 1, size=rng.integers(1, 40))
    scopes = [np.sort(rng.choice(n, size, replace=False)) for size in sizes]
    order, kept = keep_heaviest(scopes_from(n, scopes), width)
    assert sorted(order.tolist()) == list(range(n))
    assert width_along(n, order, [scopes[a] for a in kept]) <= width
    assert kept[0] == 0  # what is alone fits
    # What is left out would have brought a new edge: none is refused idly.
    joined = {p for a in kept for p in itertools.combinations(scopes[a].tolist(), 2)}
    for a in set(range(len(scopes))) - set(kept.tolist()):
        assert set(itertools.combinations(scopes[a].tolist(), 2)) - joined
    assert keep_heaviest(scopes_from(n, scopes), n)[1].size == len(scopes)


def test_thinning_refuses_what_would_take_too_long(monkeypatch):
    monkeypatch.setattr(thinning, "MAX_PLAYED", 4)
    ring = [np.array([i, i + 1]) for i in range(9)] + [np.array([0, 9])]
    order, kept = keep_heaviest(scopes_from(10, ring), 2)
    assert kept.size < len(ring)
    assert width_along(10, order, [ring[a] for a in kept]) <= 2


def joined_parts(n, scopes):
    """Connected parts of the graph of all scopes."""
    part = list(range(n))
    for scope in scopes:
        low = min(part[i] for i in scope)
        old = {part[i] for i in scope}
        part = [low if p in old else p for p in part]
    return len(set(part))


@settings(max_examples=80)
@given(st.integers(2, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_what_joins_trees_leaves_the_width(n, width, seed):
    rng = np.random.default_rng(seed)
    pairs = [np.sort(rng.choice(n, 2, replace=False)) for _ in range(4 * n)]
    longer = [np.sort(rng.choice(n, min(width + 1, n), replace=False)) for _ in range(n // 4)]
    scopes = [*longer, *pairs]
    order, kept = keep_heaviest(scopes_from(n, scopes), width)
    assert width_along(n, order, [scopes[a] for a in kept]) <= width
    assert joined_parts(n, [scopes[a] for a in kept]) == joined_parts(n, scopes)
    assert build_forest(n, order, [scopes[a] for a in kept]).width <= width


@pytest.mark.parametrize(("shape", "width"), [((60, 60), 4), ((10, 10, 10), 8)])
def test_no_spin_of_a_lattice_is_left_apart(shape, width):
    """The game alone left 13 and 9 trees, which see each other through means only."""
    places = np.arange(np.prod(shape)).reshape(shape)
    pairs = np.concatenate([
        np.stack([np.delete(places, -1, axis).ravel(), np.delete(places, 0, axis).ravel()], axis=1)
        for axis in range(places.ndim)
    ])  # fmt: skip
    pairs = np.random.default_rng(0).permutation(pairs)
    order, kept = keep_heaviest(scopes_from(places.size, list(pairs)), width)
    forest = build_forest(places.size, order, list(pairs[kept]))
    assert forest.n_trees == 1
    assert forest.width <= width


def test_a_scope_hangs_below_a_bucket():
    # One bucket {0, 1, 2} and a tree of its own, 3 - 4, whose end 4 is eliminated before.
    scopes = [np.array([0, 1, 2]), np.array([3, 4]), np.array([4, 5]), np.array([0, 1, 4])]
    order, kept = keep_heaviest(scopes_from(6, scopes), 2)
    assert kept.size == 4
    assert width_along(6, order, scopes) == 2


def test_more_width_keeps_more():
    """In one pass early games spend what later terms need: width 5 kept less than width 3."""
    poly = Coset.build(encode(ising_grid(40, coupling=(-1, 1), seed=3)).polynomial).polynomial
    rows = [row for arity, rows, _ in poly.by_arity() if arity == 2 for row in rows]
    heavy = {tuple(r): abs(t) for a, rs, th in poly.by_arity() if a == 2
             for r, t in zip(rs.tolist(), th, strict=True)}  # fmt: skip
    rows.sort(key=lambda row: -heavy[tuple(row.tolist())])
    lost = []
    for width in (3, 4, 5, 6, 7):
        kept = keep_heaviest(scopes_from(poly.n, rows), width)[1]
        left = np.setdiff1d(np.arange(len(rows)), kept)
        lost.append(sum(heavy[tuple(rows[a].tolist())] ** 2 for a in left))
    assert lost == sorted(lost, reverse=True)


@settings(max_examples=60)
@given(projected_models(max_variables=7, max_arity=4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_a_shape_made_for_q_bounds_from_below_too(projected, width, seed):
    model, parities = projected
    coset = coset_of(model, parities)
    rng = np.random.default_rng(seed)
    first = MeanField(2).project(coset, rng)
    family = StructuredMeanField(width=width)
    for source in (None, rng):
        result = family.refit(first, source)
        log_z = log_z_on(coset)
        if not coset.feasible:
            assert result.log_gamma == log_z == -np.inf
            continue
        q = joint_of(result)
        weights = coset.polynomial.log_weight(coset.spins_from_free(naive.all_spins(coset.n_free)))
        live = q > 0
        value = (q[live] * (weights[live] - np.log(q[live]))).sum()
        assert result.log_gamma == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert result.log_gamma <= log_z + 1e-9 * max(1.0, abs(log_z))
        assert result.forest.width <= width


def test_couplings_of_frozen_spins_give_way_to_those_that_fluctuate():
    """A ring of three free spins and heavy couplings from each to a pinned one.

    The heaviest forest takes all three heavy couplings, which a product follows just as well, and
    no edge of the ring fits beside them; a shape made for q takes two of the ring.
    """
    couplings = {(0, 3): 3.0, (1, 3): -3.0, (2, 3): 3.0, (0, 1): 1.0, (1, 2): 1.0, (0, 2): -1.0}
    fields = np.array([-3.0, 3.0, -3.0, 50.0])  # what the pinned spin adds is taken away again
    coset = coset_of(ising(couplings, fields))
    family = StructuredMeanField(width=1, restarts=4, tol=1e-10)
    first = family.project(coset, np.random.default_rng(1))
    again = family.refit(first)
    assert again.log_gamma > first.log_gamma + 0.02
    assert again.log_gamma <= log_z_on(coset)


def test_large_or_dense_models_are_cut_into_clusters(monkeypatch):
    rng = np.random.default_rng(3)
    lattice = ising_grid(6, coupling=(-1, 1), seed=1)
    boltzmann = rbm(rng.normal(size=(8, 5)), rng.normal(size=8), rng.normal(size=5))
    monkeypatch.setattr(shape, "MAX_THINNED", 0)
    result = StructuredMeanField(width=3, restarts=2).project(coset_of(lattice), rng)
    assert result.forest.n_trees == 2
    assert result.log_gamma <= naive.grid_log_z(6, 6, list(lattice.factors))
    for m in (0, 3):
        coset = coset_of(boltzmann, DenseParity().draw(m, 13, rng))
        result = StructuredMeanField(width=3, restarts=2).project(coset, rng)
        assert 1 < result.forest.n_trees < coset.n_free
        assert result.log_gamma <= log_z_on(coset)


def test_too_little_room_lowers_the_width_or_is_refused(monkeypatch):
    model = ising_grid(4, coupling=(-1, 1), seed=1)
    coset = coset_of(model, DenseParity().draw(4, 16, np.random.default_rng(0)))
    monkeypatch.setattr(terms, "MAX_ENTRIES", 200)
    result = StructuredMeanField(width=3, restarts=1).project(coset, np.random.default_rng(0))
    assert result.forest.width < 3
    assert result.log_gamma <= log_z_on(coset)
    family = StructuredMeanField(width=3, partition=[range(16)])
    with pytest.raises(ResourceError, match="lower `width`"):
        family.project(coset, np.random.default_rng(0))
    with pytest.raises(ResourceError, match="lower `width`"):
        build_forest(40, range(40), [range(40)])


def test_parameters_are_checked():
    coset = coset_of(ising_grid(2, seed=0))
    rng = np.random.default_rng(0)
    with pytest.raises(ParameterError, match="width is 40"):
        StructuredMeanField(width=40)
    with pytest.raises(ParameterError, match="'strips'; expected 'auto'"):
        StructuredMeanField(partition="strips")
    with pytest.raises(ParameterError, match="names spin 4; the model has spins 0 to 3"):
        StructuredMeanField(partition=[[0, 4]]).project(coset, rng)
    with pytest.raises(ParameterError, match="names spin 1 again"):
        StructuredMeanField(partition=[[0, 1], [1]]).project(coset, rng)
    with pytest.raises(ParameterError, match="in \\[-1, 1\\]"):
        StructuredMeanField().ascend_from(coset, np.full((1, 4), 2.0))
    assert "\n" not in repr(StructuredMeanField().project(coset, rng))


def test_unconverged_ascents_say_so_and_still_bound():
    coset = coset_of(ising_grid(3, coupling=(-1, 1), seed=0))
    rng = np.random.default_rng(0)
    for partition in ("auto", [range(4), range(4, 9)]):
        short = StructuredMeanField(width=1, restarts=1, max_sweeps=1, partition=partition)
        result = short.project(coset, rng)
        assert result.status is Status.NOT_CONVERGED
        assert result.log_gamma <= log_z_on(coset)
        long = StructuredMeanField(width=1, restarts=1, partition=partition)
        assert long.project(coset, rng).status is Status.CONVERGED


def test_a_samplers_means_lead_the_shapes_out_of_one_valley():
    """Whatever the means say, bounds stay below; the exact ones do better than q's own."""
    model = ising_grid(14, coupling=(-10, 10), field=(-1, 1), seed=16)
    truth = exact(model)

    def best(told):
        working = Working(model, Clock(60.0), exact=False, seed=np.random.SeedSequence(14))
        values = []
        for found in alone(structured(working, Clock(60.0))):
            if found.bound is not None:
                values.append(found.bound.log_z)
                assert found.bound.log_z <= truth.log_z + 1e-9
            if told:
                vectors = list(truth.marginals)
                working.sampled.marginals = Marginals(vectors, "exact", 0.0, Mixing.MIXED)
            if len(values) >= 5:
                break
        return values[-1]

    assert best(told=True) > best(told=False) + 0.05


def working_on(model, **given):
    return Working(model, Clock(60.0), exact=False, seed=np.random.SeedSequence(3), **given)


def test_q_starts_from_what_draws_and_pool_make_together():
    """Each half of the heaviest state is in one place only; told of both, q starts there."""
    model = ising_grid(12, coupling=(-10, 10), field=(-1, 1), seed=5)
    working = working_on(model)
    spins = working.spins
    truth = spins.pool.states[0]  # tempering finds it at this size
    halves = np.tile(truth, (2, 1))
    halves[0, :60] *= -1
    halves[1, -60:] *= -1
    known = Known(working)
    known.state, known.weight = halves[0], float(spins.original.log_weight(halves[:1])[0])
    assert not known.news()
    working.sampled.states = spins.encoding.lift_states(halves[1:])
    assert known.news()
    assert not known.news()  # the same states again are no news
    assert known.weight >= spins.original.log_weight(truth[None])[0] - 1e-9
    assert (known.starts[0] == known.state[spins.kept]).all()


def test_large_models_start_from_draws_of_mini_buckets():
    """A 40x40 grid, where tempering's states are far behind what a few draws make."""
    model = ising_grid(40, coupling=(-10, 10), field=(-1, 1), seed=8)
    working = working_on(model)
    pool = working.spins.pool
    known = Known(working)
    steps = heavy_states(working)
    while True:
        try:
            assert next(steps).bound is None
        except StopIteration as end:
            drawn = end.value
            break
    assert known.join(drawn)
    assert known.weight > pool.log_weights[0]
    assert known.weight == pytest.approx(working.spins.original.log_weight(known.state[None])[0])


@pytest.mark.parametrize("hands", [1, 4, 12])
def test_shapes_are_handed_out_and_travel(hands):
    model = ising_grid(10, coupling=(-1, 1), field=(-1, 1), seed=2)
    steps = structured(working_on(model, threads=hands), Clock(60.0))
    item = next(steps)
    while not isinstance(item, Handout):
        item = next(steps)
    assert len(item.tasks) == max(1, hands // 4)
    fit = pickle.loads(pickle.dumps(item.function))
    away = [
        pickle.loads(pickle.dumps(fit(task))).q for task in pickle.loads(pickle.dumps(item.tasks))
    ]
    here = [item.function(task).q for task in item.tasks]
    assert [q.log_gamma for q in away] == [q.log_gamma for q in here]  # by the task alone
    if hands == 12:
        assert len({q.log_gamma for q in here}) > 1  # no hand does what another does
    found = steps.send([item.function(task) for task in item.tasks])
    if found.bound is not None:
        assert found.bound.log_z <= exact(model).log_z


@settings(max_examples=40)
@given(binary_models(max_variables=9, max_arity=3, scale=30.0), st.integers(0, 2**32 - 1))
def test_no_shape_and_no_start_lifts_the_end_above_log_z(model, seed):
    """Hostile tasks: any means, any width, any seed; what the judge makes of q stays below."""
    coset = Coset.build(encode(model).polynomial)
    rng = np.random.default_rng(seed)
    fit = Fit(coset, 1e-6)
    for width in (1, 3, 6):
        shaped, start = rng.choice([-1.0, 0.0, 0.5, 1.0], size=(2, coset.n_free))
        task = Shaped(width, shaped, start, np.random.SeedSequence(seed))
        bound = lower_bound_of(fit(task).q, "q", JENSEN)
        assert bound.log_z <= log_z_on(coset)


@pytest.mark.parametrize(("many", "finds"), [(20_000, True), (10, False)])
def test_bits_of_many_states_are_left_to_tables_where_terms_are_many(monkeypatch, many, finds):
    monkeypatch.setattr("tightz.interval.streams.structured.MANY_TERMS", many)
    rng = np.random.default_rng(3)
    ends = [(v, v + step) for v in range(36) for step in (1, 6) if v + step < 36]
    working = working_on(FactorGraph([4] * 36, [(pair, rng.normal(0, 1, (4, 4))) for pair in ends]))
    assert any(f.bound for f in alone(structured(working, Clock(60.0)))) == finds
