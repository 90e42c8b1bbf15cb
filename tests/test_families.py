"""Mean field and point masses on cosets, against enumeration and the paper's own formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import projected_models
from tightz.families import MeanField, PointMass, Status, evaluate
from tightz.families.ascent import ascend, best_vertex, descend_to_vertex
from tightz.models import SpinPolynomial
from tightz.projections import Coset, DenseParity


def coset_of(model, parities=None, policy=None):
    return Coset.build(SpinPolynomial.from_factor_graph(model), parities, policy)


def enumerated(model, coset):
    """log weights of all states of a coset, by its free spins."""

    def states_of(free):
        return (1 - coset.spins_from_free(1 - 2 * free)) // 2

    return states_of, lambda x: naive.log_weights(model.cardinalities, model.factors, x)


@given(projected_models(max_variables=6, max_arity=4), st.integers(0, 2**32 - 1))
def test_evaluator_equals_enumeration_of_q(case, seed):
    model, parities = case
    coset = coset_of(model, parities)
    means = np.random.default_rng(seed).uniform(-1, 1, size=(coset.n_free, 3))
    means[:, 2] = np.sign(means[:, 2])
    values = evaluate(coset, means)
    if not coset.feasible:
        assert (values == -np.inf).all()
        return
    states_of, log_weight = enumerated(model, coset)
    for lane in range(3):
        expected = naive.brute_bound(log_weight, states_of, means[:, lane])
        assert values[lane] == pytest.approx(expected, abs=1e-9)


@given(projected_models(max_variables=6), st.integers(0, 2**32 - 1))
def test_proposition_1_equals_enumeration_of_q(case, seed):
    """Singleton and pairwise marginals, every case of the proposition, rank-deficient A too."""
    model, parities = case
    coset = coset_of(model, parities)
    result = MeanField(restarts=2, max_sweeps=1).project(coset, np.random.default_rng(seed))
    n = model.n_variables
    pairs = np.array([(i, j) for i in range(n) for j in range(i + 1, n)], dtype=int)
    pairs = pairs.reshape(-1, 2)
    if not coset.feasible:
        assert np.isnan(result.marginals()).all()
        assert np.isnan(result.pair_marginals(pairs)).all()
        return
    free, q = naive.product_weights(result.means)
    x = (1 - coset.spins_from_free(1 - 2 * free)) // 2
    np.testing.assert_allclose(result.marginals(), q @ x, atol=1e-12)
    joint = q @ (x[:, pairs[:, 0]] * x[:, pairs[:, 1]])
    np.testing.assert_allclose(result.pair_marginals(pairs), joint, atol=1e-12)


def paper_model(rng, n=6):
    """A random pairwise 0/1 model as (FactorGraph, const, unary, pair)."""
    unary = rng.normal(size=n)
    pair = {
        (k, j): 2 * rng.normal() for k in range(n) for j in range(k + 1, n) if rng.random() < 0.6
    }
    factors = [((k,), [0.0, unary[k]]) for k in range(n)]
    factors += [(kl, [[0.0, 0.0], [0.0, w]]) for kl, w in pair.items()]
    return tz.FactorGraph([2] * n, [*factors, ((), 0.7)]), 0.7, unary, pair


@pytest.mark.parametrize("m", range(7))
def test_as_printed_proposition_objective_gradients_and_ascent(m):
    """The paper's formulas, enumeration and the library agree; gradients by finite differences."""
    rng = np.random.default_rng(m)
    for repeat in range(4):
        model, const, unary, pair = paper_model(rng)
        parities = DenseParity().draw(m, 6, rng)
        if repeat == 3 and m > 1:
            parities.matrix[-1] = parities.matrix[0]
            parities.rhs[-1] = parities.rhs[0]
        paper = naive.PaperProjection(const, unary, pair, parities.matrix, parities.rhs)
        coset = coset_of(model, parities)
        assert coset.feasible == paper.feasible
        if not paper.feasible:
            continue
        assert coset.free.tolist() == paper.free
        mu = rng.uniform(0.05, 0.95, size=6)
        means = 1 - 2 * mu[coset.free]
        assert evaluate(coset, means)[0] == pytest.approx(paper.objective(mu), abs=1e-9)
        for k in paper.free:
            up, down = mu.copy(), mu.copy()
            up[k] += 1e-5
            down[k] -= 1e-5
            numeric = (paper.objective(up) - paper.objective(down)) / 2e-5
            slope = paper.slope(k, mu)
            assert slope + np.log((1 - mu[k]) / mu[k]) == pytest.approx(numeric, abs=1e-5)
        lanes = means[:, None].copy()
        ascend(coset.grouped, lanes, np.zeros(0), -1.0, 3, np.zeros(1))
        expected = 1 - 2 * paper.ascend(mu, 3)[coset.free]
        np.testing.assert_allclose(lanes[:, 0], expected, atol=1e-8)


@given(projected_models(), st.integers(0, 2**32 - 1))
def test_objective_is_concave_in_each_free_marginal(case, seed):
    model, parities = case
    coset = coset_of(model, parities)
    if not coset.feasible or coset.n_free == 0:
        return
    rng = np.random.default_rng(seed)
    means = rng.uniform(-1, 1, size=coset.n_free)
    k = int(rng.integers(coset.n_free))
    line = np.repeat(means[:, None], 3, axis=1)
    line[k] = np.sort(rng.uniform(-1, 1, size=3))
    low, middle, high = evaluate(coset, line)
    share = (line[k, 1] - line[k, 0]) / max(line[k, 2] - line[k, 0], 1e-300)
    assert middle >= (1 - share) * low + share * high - 1e-9


@given(projected_models(max_arity=4), st.integers(0, 2**32 - 1))
def test_every_sweep_raises_the_objective(case, seed):
    model, parities = case
    coset = coset_of(model, parities)
    if not coset.feasible:
        return
    v = np.random.default_rng(seed).uniform(-1, 1, size=(coset.n_free, 4))
    before = evaluate(coset, v)
    for _ in range(6):
        ascend(coset.grouped, v, np.zeros(0), -1.0, 1, np.zeros(4))
        after = evaluate(coset, v)
        # means that need an inverse are kept 1e-6 away from zero: about 1e-12 nats each
        assert (after >= before - 1e-9).all()
        before = after


@settings(max_examples=200)
@given(projected_models(max_arity=4), st.integers(0, 2**32 - 1))
def test_bounds_never_exceed_the_coset_partition_function(case, seed):
    model, parities = case
    coset = coset_of(model, parities)
    states = naive.coset_states(parities.matrix, parities.rhs)
    logs = naive.log_weights(model.cardinalities, model.factors, states)
    log_z = naive.log_sum_exp(logs)
    slack = 1e-9 * max(1.0, abs(log_z)) if log_z > -np.inf else 0.0
    for family in (MeanField(restarts=3), PointMass(restarts=3, enumerate_up_to=0), PointMass()):
        result = family.project(coset, np.random.default_rng(seed))
        assert result.log_gamma <= log_z + slack
        assert result.log_gamma == result.log_gammas.max()
        if not coset.feasible:
            assert result.status is Status.INFEASIBLE
            assert result.log_gamma == -np.inf
        elif isinstance(family, PointMass):
            assert result.log_gamma <= logs.max() + slack
            if result.status is Status.OPTIMAL:
                assert result.log_gamma == pytest.approx(logs.max(), abs=1e-9)
            assert coset.contains(coset.spins_from_free(result.means)).all()


def test_full_rank_square_system_is_one_states_weight():
    model = tz.ising_grid(2, 3, seed=1)
    rng = np.random.default_rng(0)
    seen = 0
    while seen < 5:
        parities = DenseParity().draw(6, 6, rng)
        coset = coset_of(model, parities)
        if coset.rank < 6:
            continue
        seen += 1
        (state,) = naive.coset_states(parities.matrix, parities.rhs)
        for family in (MeanField(), PointMass()):
            got = family.project(coset, rng).log_gamma
            assert got == pytest.approx(model.log_weight(state)[0], abs=1e-12)


def test_more_restarts_keep_the_earlier_ones():
    coset = coset_of(tz.ising_grid(5, coupling=(-3, 3), seed=0))
    few = MeanField(restarts=3, tol=0.0, max_sweeps=400).project(coset, np.random.default_rng(1))
    many = MeanField(restarts=40, tol=0.0, max_sweeps=400).project(coset, np.random.default_rng(1))
    np.testing.assert_allclose(many.log_gammas[:3], few.log_gammas, atol=1e-9)
    assert many.log_gamma >= few.log_gamma - 1e-9


def test_local_search_ends_where_no_flip_helps():
    model = tz.ising_grid(4, coupling=(-3, 3), seed=0)
    rng = np.random.default_rng(3)
    coset = coset_of(model, DenseParity().draw(3, 16, rng))
    v = rng.choice([-1.0, 1.0], size=(coset.n_free, 4))
    sweeps = descend_to_vertex(coset.grouped, v, 100)
    assert sweeps < 100
    assert set(np.unique(v)) == {-1.0, 1.0}
    value = evaluate(coset, v)
    for k in range(coset.n_free):
        flipped = v.copy()
        flipped[k] *= -1
        assert (evaluate(coset, flipped) <= value + 1e-9).all()


@given(projected_models(max_arity=4))
def test_gray_code_value_is_the_states_weight(case):
    model, parities = case
    coset = coset_of(model, parities)
    if not coset.feasible:
        return
    best = np.ones(coset.n_free)
    value = best_vertex(coset.grouped, best)
    assert value == pytest.approx(evaluate(coset, best)[0], abs=1e-8)


def test_not_converged_says_so_and_advises():
    coset = coset_of(tz.ising_grid(6, coupling=(-1, 1), seed=0))
    result = MeanField(restarts=2, max_sweeps=1).project(coset, np.random.default_rng(0))
    assert result.status is Status.NOT_CONVERGED
    assert "raise max_sweeps" in result.status.value


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("m", [0, 3, 9])
def test_extreme_couplings_neither_overflow_nor_exceed(scale, m):
    model = tz.ising_grid(3, coupling=(-scale, scale), field=(-scale, scale), seed=5)
    rng = np.random.default_rng(0)
    parities = DenseParity().draw(m, 9, rng)
    coset = coset_of(model, parities)
    states = naive.coset_states(parities.matrix, parities.rhs)
    log_z = naive.log_sum_exp(naive.log_weights(model.cardinalities, model.factors, states))
    result = MeanField(restarts=4).project(coset, rng)
    assert not np.isnan(result.log_gammas).any()
    assert result.log_gamma <= log_z + 1e-9 * max(1.0, abs(log_z)) or not coset.feasible


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeanField(restarts=0), "restarts is 0; expected at least 1"),
        (lambda: MeanField(max_sweeps=0), "max_sweeps is 0"),
        (lambda: MeanField(tol=-1.0), "tol is -1"),
        (lambda: PointMass(restarts=0), "restarts is 0"),
        (lambda: PointMass(enumerate_up_to=50), "between 0 and 40"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(tz.errors.ParameterError, match=message):
        make()


def test_evaluator_refuses_means_outside_the_cube():
    coset = coset_of(tz.ising_grid(2, seed=0))
    with pytest.raises(ArithmeticError, match="outside"):
        evaluate(coset, np.full(4, 1.01))
