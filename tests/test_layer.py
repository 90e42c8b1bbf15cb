"""Summing out a layer: never above log Z, never below mean field, exact where it must be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tightz.bounds import Proof, Side
from tightz.errors import ModelError, ParameterError, UnsupportedModelError
from tightz.families import MeanField, Status
from tightz.families.layer import LayerMeanField, independent_sets, layer_mean_field
from tightz.families.layer.ascent import LayerProblem
from tightz.families.layer.log_cosh import expected_log_2cosh
from tightz.models import FactorGraph, ising, ising_grid, rbm
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections import Coset


def exact_expectation(field, weights, means):
    """(E log 2cosh X, E tanh X) over all states."""
    spins = naive.all_spins(len(weights))
    p = np.prod((1 + means * spins) / 2, axis=1)
    x = field + spins @ weights
    return p @ np.logaddexp(x, -x), p @ np.tanh(x)


def one_row(field, weights, means, **options):
    count = len(weights)
    return expected_log_2cosh(
        np.array([field]), np.array([0, count]), np.arange(count, dtype=np.int32),
        np.asarray(weights, dtype=float), np.asarray(means, dtype=float), **options,
    )  # fmt: skip


def draw_row(rng):
    count = int(rng.integers(0, 13))
    scale = rng.choice([0.01, 0.3, 1.0, 3.0, 10.0, 100.0])
    means = rng.uniform(-1, 1, size=count)
    if rng.random() < 0.5:
        means = np.tanh(rng.choice([0.1, 3.0, 30.0]) * means)
    return scale * rng.normal(), scale * rng.normal(size=count), means


def pairwise_polynomial(rng, n, strength, bipartite):
    terms = [((i,), strength * rng.normal()) for i in range(n) if rng.random() < 0.7]
    cut = int(rng.integers(0, n + 1))
    for i in range(n):
        for j in range(i + 1, n):
            if (not bipartite or (i < cut <= j)) and rng.random() < 0.7:
                terms.append(((i, j), strength * rng.normal()))
    return SpinPolynomial.from_terms(n, strength * rng.normal(), terms)


def log_z_of(poly):
    terms = [
        (poly.spins[poly.ptr[a] : poly.ptr[a + 1]].tolist(), poly.theta[a])
        for a in range(poly.n_terms)
    ]
    logs = naive.polynomial_log_weights(poly.constant, terms, naive.all_spins(poly.n))
    return naive.log_sum_exp(logs)


def test_expectation_over_few_spins_is_exact_and_below():
    rng = np.random.default_rng(0)
    for _ in range(800):
        field, weights, means = draw_row(rng)
        lower, tanh, _ = one_row(field, weights, means)
        exact, slope = exact_expectation(field, weights, means)
        size = 1 + abs(field) + np.abs(weights).sum()
        assert exact - 1e-9 * size <= lower[0] <= exact + 1e-15 * size
        assert tanh[0] == pytest.approx(slope, abs=1e-7)


def test_expectation_by_the_fourier_sum_is_tight_and_below():
    rng = np.random.default_rng(6)
    spins = naive.all_spins(15)  # one more than is enumerated
    for trial in range(150):
        scale = [0.01, 0.3, 1.0, 3.0, 10.0, 100.0][trial % 6]
        field, weights = scale * rng.normal(), scale * rng.normal(size=15)
        means = np.tanh(rng.choice([0.1, 1.0, 5.0]) * rng.normal(size=15))
        p = np.prod((1 + means * spins) / 2, axis=1)
        x = field + spins @ weights
        lower, tanh, _ = one_row(field, weights, means)
        exact, size = p @ np.logaddexp(x, -x), 1 + np.abs(weights).sum()
        assert exact - 1e-9 * size <= lower[0] <= exact + 1e-15 * size
        assert tanh[0] == pytest.approx(p @ np.tanh(x), abs=1e-7)


def test_expectation_of_many_spins_against_samples_and_strong_ones_against_enumeration():
    rng = np.random.default_rng(1)
    weights, means = 0.2 * rng.normal(size=300), rng.uniform(-1, 1, size=300)
    lower, _, _ = one_row(0.3, weights, means)
    spins = np.where(rng.random((100_000, 300)) < (1 + means) / 2, 1.0, -1.0)
    x = 0.3 + spins @ weights
    values = np.logaddexp(x, -x)
    assert abs(values.mean() - lower[0]) < 5 * values.std() / np.sqrt(len(values))
    for scale in (1e3, 1e4, 1e6):
        for _ in range(5):
            weights, means = scale * rng.normal(size=16), rng.uniform(-1, 1, size=16)
            exact, _ = exact_expectation(0.0, weights, means)
            lower, _, _ = one_row(0.0, weights, means)
            assert 0.99 * exact <= lower[0] <= exact * (1 + 1e-14)


def test_expectation_of_huge_couplings_stays_finite_and_below():
    for scale in (1e100, 1e200, 1e300):
        weights, means = scale * np.linspace(-1, 1, 16), np.linspace(-0.5, 0.9, 16)
        lower, _, _ = one_row(0.0, weights, means)
        exact, _ = exact_expectation(0.0, weights, means)
        assert 0.0 < lower[0] <= exact * (1 + 1e-14)


def test_slopes_are_derivatives():
    rng = np.random.default_rng(2)
    for count, scale in ((5, 1.0), (30, 0.5), (20, 3.0), (16, 1e3), (10, 1e3)):
        field, weights = scale * rng.normal(), scale * rng.normal(size=count)
        means = rng.uniform(-0.9, 0.9, size=count)
        _, _, slopes = one_row(field, weights, means, slopes=True)
        for k in range(count):
            step = 1e-4 * np.eye(count)[k]
            up, down = (one_row(field, weights, means + s)[0][0] for s in (step, -step))
            assert slopes[k] == pytest.approx((up - down) / 2e-4, abs=1e-6 * scale)


def test_objective_and_gradients():
    rng = np.random.default_rng(3)
    poly = pairwise_polynomial(rng, 8, 0.7, bipartite=False)
    problem = LayerProblem.build(poly, independent_sets(poly)[0])
    v = rng.uniform(-0.9, 0.9, size=problem.kept.size)
    value, tanh, gradient = problem.lower_bound(v, gradient=True)
    # E over q(kept) of log sum over the summed spins, plus entropy, by enumeration.
    spins = naive.all_spins(poly.n)
    logs = poly.log_weight(spins)
    code = (spins[:, problem.kept] < 0) @ (1 << np.arange(problem.kept.size))
    expected, mean = 0.0, np.zeros(poly.n)
    for c in np.unique(code):
        rows = code == c
        q = np.prod((1 + v * spins[rows][0, problem.kept]) / 2)
        total = naive.log_sum_exp(logs[rows])
        expected += q * (total - np.log(q))
        mean += q * (np.exp(logs[rows] - total) @ spins[rows])
    assert value == pytest.approx(expected, abs=1e-9)
    assert tanh == pytest.approx(mean[problem.summed], abs=1e-9)
    for k in range(v.size):
        step = 1e-5 * np.eye(v.size)[k]
        slope = (problem.lower_bound(v + step)[0] - problem.lower_bound(v - step)[0]) / 2e-5
        assert gradient[k] - np.arctanh(v[k]) == pytest.approx(slope, abs=1e-6)
        up, down = (problem.gaussian((v + s)[:, None])[0][0] for s in (step, -step))
        fast = problem.gaussian(v[:, None])[1][k, 0] - np.arctanh(v[k])
        assert fast == pytest.approx((up - down) / 2e-5, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 9), st.sampled_from([0.1, 1.0, 5.0, 100.0, 1e6]), st.booleans(),
    st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5]),
)  # fmt: skip
def test_never_above_the_truth(n, strength, bipartite, seed, leaves):
    poly = pairwise_polynomial(np.random.default_rng(seed), n, strength, bipartite)
    exact = log_z_of(poly)
    result = layer_mean_field(
        poly, LayerMeanField(restarts=3, leaves=leaves, max_sweeps=30), seed=seed
    )
    size = 1.0 + np.abs(poly.theta).sum() + abs(poly.constant)
    assert result.log_z <= exact + 1e-14 * size
    assert (np.abs(result.spin_means) <= 1.0).all()
    assert np.isfinite(result.log_z)


def test_never_above_the_truth_on_a_thousand_models_at_any_means():
    rng = np.random.default_rng(4)
    for trial in range(1000):
        poly = pairwise_polynomial(rng, int(rng.integers(2, 9)), rng.choice([0.3, 2.0, 20.0]), True)
        problem = LayerProblem.build(poly, independent_sets(poly)[trial % 2 - 1])
        v = np.tanh(rng.choice([0.3, 3.0, 30.0]) * rng.normal(size=problem.kept.size))
        size = 1.0 + np.abs(poly.theta).sum()
        assert problem.lower_bound(v)[0] <= log_z_of(poly) + 1e-14 * size


def test_at_least_mean_field_and_better_with_leaves():
    better = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        model = rbm(1.5 * rng.normal(size=(7, 5)), rng.normal(size=7), rng.normal(size=5))
        poly = SpinPolynomial.from_factor_graph(model)
        plain = MeanField(restarts=20).project(Coset.build(poly), np.random.default_rng(0))
        result = layer_mean_field(model, seed=0, starts=plain.spin_means()[None, :])
        split = layer_mean_field(model, LayerMeanField(leaves=8), seed=0)
        exact = log_z_of(poly)
        assert plain.log_gamma <= result.log_z + 1e-6
        assert result.log_z <= split.log_z + 1e-6
        assert split.log_z <= exact + 1e-12
        assert split.log_zs.size == 8
        better += exact - split.log_z < 0.3 * (exact - plain.log_gamma)
        assert result.marginals.sum(axis=1) == pytest.approx(np.ones(12))
    assert better >= 4


def test_splitting_to_the_end_is_exact():
    rng = np.random.default_rng(0)
    model = rbm(2 * rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=3))
    poly = SpinPolynomial.from_factor_graph(model)
    result = layer_mean_field(model, LayerMeanField(summed=np.arange(6), leaves=8), seed=0)
    assert result.log_z == pytest.approx(log_z_of(poly), abs=1e-9)
    spins = naive.all_spins(9)
    p = np.exp(poly.log_weight(spins) - log_z_of(poly))
    assert result.spin_means == pytest.approx(p @ spins, abs=1e-7)


def test_independent_sets():
    poly = SpinPolynomial.from_factor_graph(ising_grid(4, 5, seed=0))
    sides = independent_sets(poly)
    assert sorted(np.concatenate(sides).tolist()) == list(range(20))
    triangle = SpinPolynomial.from_factor_graph(ising({(0, 1): 1.0, (1, 2): 1.0, (0, 2): 1.0}))
    assert [len(s) for s in independent_sets(triangle)] == [1]
    loose = SpinPolynomial.from_terms(5, 0.0, [((0, 1), 1.0), ((3, 4), 1.0)])
    assert all(2 in side and len(side) == 3 for side in independent_sets(loose))


def test_a_star_is_exact_up_to_its_centre():
    model = ising({(0, j): 0.8 for j in range(1, 7)}, np.linspace(-1, 1, 7))
    poly = SpinPolynomial.from_factor_graph(model)
    # Keeping the centre alone, q is exact: one spin's distribution is always a product.
    result = layer_mean_field(model, LayerMeanField(tol=1e-12), seed=0)
    assert result.kept.tolist() == [0]
    assert result.log_z == pytest.approx(log_z_of(poly), abs=1e-9)


def test_edges_of_the_domain():
    empty = layer_mean_field(SpinPolynomial.from_terms(0, 2.5, []), seed=0)
    assert 2.5 - 1e-14 < empty.log_z <= 2.5  # rounded outward
    free = layer_mean_field(SpinPolynomial.from_terms(3, 1.0, [((0,), 2.0)]), seed=0)
    assert free.log_z == pytest.approx(1 + np.log(2 * np.cosh(2.0)) + 2 * np.log(2))
    nothing = layer_mean_field(FactorGraph([2, 2], [([0, 1], np.full(4, -np.inf))]), seed=0)
    assert nothing.log_z == -np.inf
    assert np.isnan(nothing.marginals).all()
    seen = FactorGraph(
        [2, 1, 2], [([0, 2], [1.0, 0, 0, 1]), ([1], [0.5]), ([], [0.25])], evidence={0: 1}
    )
    result = layer_mean_field(seen, seed=0)
    assert result.log_z == pytest.approx(0.75 + np.log(1 + np.e))
    assert result.marginals[0].tolist() == [0.0, 1.0]


def test_same_seed_same_numbers_and_a_record():
    model = ising_grid(4, coupling=(-1, 1), seed=1)
    one, two = (layer_mean_field(model, LayerMeanField(leaves=4), seed=5) for _ in range(2))
    assert one.log_z == two.log_z
    assert (one.spin_means == two.spin_means).all()
    assert (one.bound.side, one.bound.proof) == (Side.LOWER, Proof.DETERMINISTIC)
    assert one.status is Status.CONVERGED
    assert (
        layer_mean_field(model, LayerMeanField(max_sweeps=1), seed=5).status is Status.NOT_CONVERGED
    )
    assert "LayerMeanField(" in one.provenance["parameters"]["family"]
    assert repr(one).count("\n") == 0


def test_what_is_refused():
    cubic = SpinPolynomial.from_terms(3, 0.0, [((0, 1, 2), 1.0)])
    with pytest.raises(UnsupportedModelError, match="term of 3 spins"):
        layer_mean_field(cubic)
    grid = ising_grid(3, seed=0)
    with pytest.raises(ParameterError, match="0 and 1, which are coupled"):
        layer_mean_field(grid, LayerMeanField(summed=[0, 1]))
    with pytest.raises(ParameterError, match="summed names spin 9; the model has spins 0 to 8"):
        layer_mean_field(grid, LayerMeanField(summed=[9]))
    with pytest.raises(ModelError, match="starts have shape"):
        layer_mean_field(grid, starts=np.zeros((2, 3)))
    with pytest.raises(ParameterError, match="at least one"):
        layer_mean_field(grid, LayerMeanField(restarts=0))
    with pytest.raises(ParameterError, match="leaves is 0"):
        LayerMeanField(leaves=0)


@pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="needs TIGHTZ_DATA")
def test_tiny_rbm():
    data = np.load(Path(os.environ["TIGHTZ_DATA"]) / "rbm" / "rbm_mnist_tiny_15.npz")
    w, b, c = data["W"].astype(float), data["visible_bias"].ravel(), data["hidden_bias"].ravel()
    model = rbm(w if w.shape == (b.size, c.size) else w.T, b, c)
    result = layer_mean_field(model, seed=0)
    assert 216.0 <= result.log_z <= 216.0615441
