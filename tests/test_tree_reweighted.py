"""Tree-reweighted bounds: never below exact at any iteration, exact on trees, tight at the end."""

from __future__ import annotations

import itertools
import os
import pickle
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from tests import naive
from tests.precise import precise_log_z
from tightz.bounds import Proof, Side
from tightz.errors import ParameterError, UnsupportedModelError
from tightz.judge.spanning import Forests
from tightz.models.builders import ising, ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.uai import read_uai
from tightz.models.pairwise import pairwise_model
from tightz.uppers.tree_reweighted import (
    TreeReweighted,
    TreeReweightedStatus,
    tree_reweighted,
    tree_reweighted_bounds,
)
from tightz.uppers.tree_reweighted.kernels import sweep, valid_bound
from tightz.uppers.tree_reweighted.spanning_trees import (
    INSIDE,
    _covering_trees,
    edge_probabilities,
    maximum_spanning_tree,
    visiting_order,
)


def random_factors(rng, cards, edges, scale=1.0, zeros=0.0):
    """Unary and pair log tables, scopes in either order, with a share of zero potentials."""
    factors = [((), rng.normal())]
    for v, c in enumerate(cards):
        factors.append(((v,), scale * rng.normal(size=c)))
    for i, j in edges:
        scope = (i, j) if rng.random() < 0.5 else (j, i)
        table = scale * rng.normal(size=[cards[v] for v in scope])
        table[rng.random(table.shape) < zeros] = -np.inf
        factors.append((scope, table))
    return factors


def exact(model):
    factors = [(f.scope, f.log_table) for f in model.factors]
    return naive.enumerate_model(model.cardinalities, factors, model.evidence)


def rounding(log_z):
    return 1e-12 * max(1.0, abs(log_z)) if np.isfinite(log_z) else 0.0


@st.composite
def pairwise_models(draw):
    n = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cards = [draw(st.integers(1, 4)) for _ in range(n)]
    pairs = list(itertools.combinations(range(n), 2))
    edges = [p for p in pairs if rng.random() < draw(st.sampled_from([0.3, 0.7, 1.0]))]
    if edges and draw(st.booleans()):
        edges.append(edges[0])
    factors = random_factors(
        rng,
        cards,
        edges,
        scale=draw(st.sampled_from([0.1, 1.0, 10.0, 1000.0])),
        zeros=draw(st.sampled_from([0.0, 0.3])),
    )
    evidence = {0: int(rng.integers(cards[0]))} if draw(st.booleans()) else None
    return FactorGraph(cards, factors, evidence=evidence)


@settings(max_examples=150, deadline=None)
@given(pairwise_models(), st.sampled_from([0.0, 0.4]))
def test_no_iterate_is_below_exact(model, damping):
    log_z, _ = exact(model)
    config = TreeReweighted(max_iterations=30, tol=0.0, damping=damping)
    result = tree_reweighted(model, config)
    assert not np.isnan(result.history).any()
    assert (result.history >= log_z - rounding(log_z)).all()
    assert result.log_z == pytest.approx(result.history.min(), rel=1e-9, abs=1e-9)
    stream = [b.log_z for b in tree_reweighted_bounds(model, config)]
    assert len(stream) == len(result.history)
    assert (np.diff(stream) <= 0.0).all() or log_z == -np.inf
    assert min(stream) >= result.log_z
    if log_z == -np.inf:
        return
    assert min(Decimal(value) for value in stream) >= precise_log_z(model)
    assert Decimal(result.log_z) >= precise_log_z(model)


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("scale", [0.3, 3.0, 50.0, 1e6])
def test_stopping_at_every_iteration(low, scale):
    """Attractive and frustrated grids; a run cut at k iterations reports a valid value."""
    model = ising_grid(3, 4, coupling=(low * scale, scale), seed=3)
    log_z, _ = exact(model)
    for k in range(1, 40):
        result = tree_reweighted(model, TreeReweighted(max_iterations=k, tol=0.0))
        assert result.iterations == k
        assert result.status is TreeReweightedStatus.ITERATION_LIMIT
        assert np.isfinite(result.log_z)
        assert result.log_z >= log_z - rounding(log_z)


def test_the_same_check_catches_plain_belief_propagation():
    """Negative control: with rho = 1 (no tree distribution) the formula dips below log Z."""
    rng = np.random.default_rng(0)
    couplings = np.triu(rng.uniform(0.0, 1.0, (5, 5)), 1)
    model = ising(couplings + couplings.T, rng.uniform(-0.1, 0.1, 5))
    arrays = pairwise_model(model).arrays
    messages = np.zeros(int(arrays.message_ptr[-1]))
    order = np.arange(5)
    for _ in range(100):
        sweep(arrays, np.ones(10), messages, order, order, 0.0, 2)
        sweep(arrays, np.ones(10), messages, order[::-1].copy(), order[::-1].copy(), 0.0, 2)
    assert valid_bound(arrays, np.ones(10), messages, 2) < exact(model)[0] - 0.1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.1, 5.0, 300.0]), st.sampled_from([0.0, 0.3]))
def test_forests_are_exact(seed, scale, zeros):
    rng = np.random.default_rng(seed)
    cards = rng.integers(1, 5, size=6).tolist()
    edges = [(int(rng.integers(v)), v) for v in range(1, 6) if rng.random() < 0.8]
    model = FactorGraph(cards, random_factors(rng, cards, edges, scale, zeros))
    log_z, marginals = exact(model)
    result = tree_reweighted(model)
    assert result.status is TreeReweightedStatus.EXACT
    assert result.iterations <= 1
    assert result.log_z == pytest.approx(log_z, rel=1e-10, abs=1e-9)
    if log_z > -np.inf:
        for ours, theirs in zip(result.marginals, marginals, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-9)
        assert (result.edge_probabilities == 1.0).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.3, 0.9]), st.sampled_from([1.0, 1e5, 1e9]))
def test_damping_does_not_make_a_tree_exactly_wrong(seed, damping, scale):
    """A damped single iteration once reported 3.878 as exact where the truth was 3.230."""
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 4, size=6).tolist()
    edges = [(int(rng.integers(v)), v) for v in range(1, 6)]
    model = FactorGraph(cards, random_factors(rng, cards, edges, scale))
    truth = precise_log_z(model)
    result = tree_reweighted(model, TreeReweighted(damping=damping))
    assert result.status is TreeReweightedStatus.EXACT
    assert result.bound.side is Side.BOTH
    assert abs(Decimal(result.log_z) - truth) <= Decimal(result.rounding)
    assert result.rounding <= 1e-12 * (abs(float(truth)) + 1e3 * scale)


def tree_dual(cards, factors, edges):
    """min over unary offsets of the mean of log Z over all spanning trees, by enumeration.

    Every tree gets the whole unary potential plus its offsets, and theta_e / rho_e on its edges.
    """
    n, trees = len(cards), []
    for subset in itertools.combinations(range(len(edges)), n - 1):
        label = list(range(n))
        for e in subset:
            i, j = edges[e]
            label = [label[i] if x == label[j] else x for x in label]
        if len(set(label)) == 1:
            trees.append(subset)
    rho = np.array([np.mean([e in t for t in trees]) for e in range(len(edges))])
    states = naive.all_states(cards)
    unary = [f for f in factors if len(f[0]) < 2]
    pair = [f for f in factors if len(f[0]) == 2]
    base = np.array(
        [
            naive.log_weights(cards, unary + [(pair[e][0], pair[e][1] / rho[e]) for e in t], states)
            for t in trees
        ]
    )
    one_hot = np.concatenate(
        [states[:, [v]] == np.arange(c) for v, c in enumerate(cards)], axis=1
    ).astype(float)

    def value(flat):
        offsets = flat.reshape(len(trees), -1)
        offsets = offsets - offsets.mean(axis=0)
        logs = base + offsets @ one_hot.T
        norms = np.array([naive.log_sum_exp(row) for row in logs])
        means = np.exp(logs - norms[:, None]) @ one_hot
        gradient = (means - means.mean(axis=0)) / len(trees)
        return norms.mean(), gradient.ravel()

    start = np.zeros(len(trees) * one_hot.shape[1])
    options = {"maxiter": 20000, "ftol": 1e-15, "gtol": 1e-9}
    return minimize(value, start, jac=True, method="L-BFGS-B", options=options).fun, rho


@pytest.mark.parametrize("scale", [0.5, 3.0])
@pytest.mark.parametrize("n", [3, 4])
def test_fixed_probabilities_reach_the_dual_optimum(n, scale):
    rng = np.random.default_rng(n)
    cards = [2, 3, 2, 2][:n]
    edges = list(itertools.combinations(range(n), 2))
    factors = [f for f in random_factors(rng, cards, [], scale) if len(f[0]) == 1]
    factors += [(e, scale * rng.normal(size=[cards[v] for v in e])) for e in edges]
    optimum, rho = tree_dual(cards, factors, edges)
    model = FactorGraph(cards, factors)
    result = tree_reweighted(model, TreeReweighted(max_iterations=4000, tol=1e-9, edge_updates=0))
    assert result.status is TreeReweightedStatus.CONVERGED
    np.testing.assert_allclose(result.edge_probabilities, rho, atol=1e-7)
    assert result.log_z == pytest.approx(optimum, abs=2e-5)
    assert optimum > exact(model)[0] + 1e-3


def test_edge_updates_tighten_the_bound():
    model = ising_grid(4, coupling=(-1.0, 1.0), seed=5)
    log_z, _ = exact(model)
    plain = tree_reweighted(model, TreeReweighted(edge_updates=0)).log_z
    better = tree_reweighted(model).log_z
    assert log_z <= better < log_z + 0.75 * (plain - log_z)


def test_edge_probabilities_stay_in_the_spanning_tree_polytope():
    rng = np.random.default_rng(2)
    edges = [p for p in itertools.combinations(range(7), 2) if rng.random() < 0.6]
    cards = [2] * 7
    model = FactorGraph(cards, random_factors(rng, cards, edges, scale=2.0))
    result = tree_reweighted(model, TreeReweighted(max_iterations=300, tol=0.0))
    assert np.ptp(result.edge_probabilities) > 0.1
    assert (result.edge_probabilities > 0.0).all()
    for size in range(2, 8):
        for subset in itertools.combinations(range(7), size):
            inside = np.isin(result.edges, subset).all(axis=1)
            assert result.edge_probabilities[inside].sum() <= size - 1


def graph_arrays(n, edges):
    """Ends of the edges in the library's order, and the order in which it visits variables."""
    a = pairwise_model(FactorGraph([2] * n, [(e, np.zeros(4)) for e in edges])).arrays
    return a.first, a.second, visiting_order(n, a.incident_ptr, a.incident, a.first, a.second)


@pytest.mark.parametrize("seed", range(5))
def test_uniform_spanning_tree_probabilities(seed):
    """Against the list of all spanning forests; two components, one with a bridge."""
    rng = np.random.default_rng(seed)
    middle = [p for p in itertools.combinations(range(1, 5), 2) if rng.random() < 0.8]
    edges = np.array([(0, 1), *middle, (5, 6), (6, 7), (5, 7)])
    first, second, order = graph_arrays(8, rng.permutation(8)[edges])
    edges = np.stack([first, second], axis=1)

    def components(chosen):
        label = list(range(8))
        for i, j in edges[list(chosen)]:
            label = [label[i] if x == label[j] else x for x in label]
        return len(set(label))

    rank = 8 - components(range(len(edges)))
    forests = [
        subset
        for subset in itertools.combinations(range(len(edges)), rank)
        if components(subset) == 8 - rank
    ]
    expected = np.array([np.mean([e in f for f in forests]) for e in range(len(edges))])
    ours = edge_probabilities(8, first, second, order)
    np.testing.assert_allclose(ours, expected, atol=1e-7)
    assert (ours[expected == 1.0] == 1.0).all()
    assert (ours[expected < 1.0] <= INSIDE * expected[expected < 1.0] + 1e-12).all()
    weights = rng.normal(size=len(edges))
    tree = maximum_spanning_tree(8, first, second, weights)
    best = max(forests, key=lambda f: weights[list(f)].sum())
    assert tuple(np.flatnonzero(tree)) == best
    covering = _covering_trees(8, first, second)
    assert covering.any(axis=0).all()
    assert (covering.sum(axis=1) == rank).all()
    Forests(np.stack([first, second], axis=1), covering).check(
        0.999 * covering.mean(axis=0), np.ones(1)
    )


def test_dense_graphs_have_equal_probabilities():
    """In the complete graph every edge has probability 2/n."""
    first, second, order = graph_arrays(30, np.stack(np.triu_indices(30, 1), axis=1))
    ours = edge_probabilities(30, first, second, order)
    np.testing.assert_allclose(ours, 2.0 / 30.0, rtol=1e-7)


def test_visiting_order_on_a_forest_has_one_earlier_neighbour():
    rng = np.random.default_rng(1)
    cards = [2] * 12
    edges = [(int(rng.integers(v)), v) for v in range(1, 12) if v != 6]
    a = pairwise_model(FactorGraph(cards, random_factors(rng, cards, edges))).arrays
    order = visiting_order(12, a.incident_ptr, a.incident, a.first, a.second)
    assert sorted(order) == list(range(12))
    rank = np.argsort(order)
    later = np.where(rank[a.first] > rank[a.second], a.first, a.second)
    assert len(set(later)) == 10


def test_marginals_of_a_converged_run_are_consistent():
    rng = np.random.default_rng(4)
    cards = [2, 3, 1, 4, 2]
    edges = list(itertools.combinations(range(5), 2))
    factors = random_factors(rng, cards, edges, zeros=0.2)
    model = FactorGraph(cards, factors, evidence={4: 1})
    result = tree_reweighted(model, TreeReweighted(tol=1e-9, edge_updates=20))
    assert [m.size for m in result.marginals] == cards
    np.testing.assert_allclose(result.marginals[4], [0.0, 1.0])
    assert not np.isin(result.edges, [2, 4]).any()
    for (i, j), table in zip(result.edges, result.edge_marginals, strict=True):
        np.testing.assert_allclose(table.sum(axis=1), result.marginals[i], atol=1e-3)
        np.testing.assert_allclose(table.sum(axis=0), result.marginals[j], atol=1e-3)


def test_models_without_weight_or_without_variables():
    rng, cards, triangle = np.random.default_rng(0), [2, 2, 3], [(0, 1), (1, 2), (0, 2)]
    impossible = [
        FactorGraph(cards, [((0, 1), np.full((2, 2), -np.inf))]),
        FactorGraph([2, 2, 2], [((), -np.inf), *random_factors(rng, [2] * 3, triangle)]),
        FactorGraph(cards, [((0,), [0.0, -np.inf]), ((0, 1), [[-np.inf, -np.inf], [1.0, 2.0]])]),
    ]
    for model in impossible:
        result = tree_reweighted(model)
        assert result.log_z == -np.inf
        assert result.status is TreeReweightedStatus.EXACT
        assert [b.log_z for b in tree_reweighted_bounds(model)] == [-np.inf]
        assert [m.size for m in result.marginals] == model.cardinalities.tolist()
    assert tree_reweighted(FactorGraph([])).log_z == 0.0
    assert tree_reweighted(FactorGraph([], [((), 2.5)])).log_z == pytest.approx(2.5, abs=1e-13)
    assert tree_reweighted(FactorGraph([1, 1])).log_z == pytest.approx(0.0, abs=1e-12)
    assert tree_reweighted(FactorGraph([3, 2])).log_z == pytest.approx(np.log(6.0))


def test_large_values_do_not_overflow():
    model = ising_grid(12, coupling=(-1e6, 1e6), seed=0)
    result = tree_reweighted(model, TreeReweighted(max_iterations=50))
    states = np.zeros((1, 144), dtype=int)
    assert np.isfinite(result.history).all()
    assert result.log_z > model.log_weight(states)[0]
    assert all(np.isfinite(m).all() for m in result.marginals)


def test_result_describes_itself():
    model = ising_grid(3, seed=0)
    result = tree_reweighted(model)
    assert result.bound.side is Side.UPPER
    assert result.bound.proof is Proof.DETERMINISTIC
    assert result.bound.log_z == result.log_z
    assert "\n" not in repr(result)
    assert "log Z <=" in result.summary()
    assert result.provenance["model_sha256"] == model.digest
    copy = pickle.loads(pickle.dumps(result))
    assert copy.log_z == result.log_z
    np.testing.assert_array_equal(copy.edge_marginals[0], result.edge_marginals[0])


def test_bad_input_is_refused():
    model = FactorGraph([2, 2, 2], [((0, 1, 2), np.zeros((2, 2, 2)))])
    with pytest.raises(UnsupportedModelError, match="factor 0 has arity 3"):
        tree_reweighted(model)
    with pytest.raises(UnsupportedModelError, match="arity 3"):
        next(tree_reweighted_bounds(model))
    with pytest.raises(ParameterError, match=r"damping is 1\.5"):
        TreeReweighted(damping=1.5)
    with pytest.raises(ParameterError, match="max_iterations is 0"):
        TreeReweighted(max_iterations=0)
    assert np.isfinite(tree_reweighted(model.with_evidence({0: 1})).log_z)


@pytest.mark.parametrize(("coupling", "libdai"), [((-10.0, 10.0), 131.0), ((-1.0, 1.0), 10.0)])
def test_no_looser_than_the_peer_on_its_grids(coupling, libdai):
    """Mean excess over five 10x10 grids; PEERS.md has libDAI's figures for the same grids."""
    models = [ising_grid(10, coupling=coupling, seed=seed) for seed in range(5)]
    excess = [tree_reweighted(m).log_z - naive.grid_log_z(10, 10, m.factors) for m in models]
    assert min(excess) > 0.0
    assert np.mean(excess) <= libdai


@pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="TIGHTZ_DATA is not set")
@pytest.mark.parametrize(
    ("name", "log10_z", "margin"),
    [
        ("DBN_15", 152.617, 1.0),
        ("ObjectDetection_61", -23.1519, 0.5),
        ("Segmentation_11", -23.9961, 7.0),
    ],
)
def test_uai_models(name, log10_z, margin):
    """Models of up to 21 states with zeros; reference values of the competition."""
    folder = Path(os.environ["TIGHTZ_DATA"]) / "uai2014"
    model = read_uai(folder / f"{name}.uai", evidence=folder / f"{name}.uai.evid")
    log_z = np.log(10.0) * log10_z
    result = tree_reweighted(model, TreeReweighted(max_iterations=200))
    assert log_z - 1e-3 <= result.history.min() <= log_z + margin
