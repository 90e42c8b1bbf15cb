"""Joint distributions of two variables: right where summed, honest where drawn, ends that hold."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import binary_models, models_with_zeros
from tightz.errors import TightzError
from tightz.interval.interval import LogPartition
from tightz.interval.pairs import _counted, _fitted
from tightz.models.ends import joint
from tightz.models.pair_marginals import PairMarginal
from tightz.workspace.findings import Mixing, Samples

SEEDS = st.integers(0, 2**32)
ROUNDING = 1e-12
"""Of the enumeration itself."""


def truth(model, i, j):
    if i == j:
        return np.diag(naive.joint_marginal(model.cardinalities, list(model.factors), (i,),
                                            model.evidence))  # fmt: skip
    return naive.joint_marginal(model.cardinalities, list(model.factors), (i, j), model.evidence)


def holds(ends, p):
    return (ends[..., 0] <= p + ROUNDING).all() and (p <= ends[..., 1] + ROUNDING).all()


@settings(max_examples=60, deadline=None)
@given(st.one_of(binary_models(max_variables=6), models_with_zeros(max_variables=5)), SEEDS)
def test_any_two_variables_are_summed(model, seed):
    rng = np.random.default_rng(seed)
    result = tz.exact(model)
    i, j = rng.integers(model.n_variables, size=2).tolist()
    pair = result.pair_marginal(i, j)
    assert pair.source == "exact"
    if result.log_z == -math.inf:
        assert np.isnan(pair.table).all()
        assert (pair.bounds == [0.0, 1.0]).all()
        return
    right = truth(model, i, j)
    np.testing.assert_allclose(pair.table, right, atol=1e-10)
    assert holds(pair.bounds, right)
    assert (pair.bounds[..., 1] - pair.bounds[..., 0]).max() < 1e-8
    np.testing.assert_array_equal(result.pair_marginal(j, i).table, pair.table.T)
    if (model.cardinalities[[i, j]] == 2).all():
        s = np.array([1.0, -1.0])
        mean = s @ right @ s
        product = (s @ right.sum(axis=1)) * (s @ right.sum(axis=0))
        for moment, value in ((pair.correlation, mean), (pair.covariance, mean - product)):
            assert moment.error == 0.0
            assert float(moment) == pytest.approx(value, abs=1e-9)
            low, high = moment.bounds
            assert low - ROUNDING <= value <= high + ROUNDING
            assert low <= float(moment) <= high


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_ends_of_both_marginals_bound_the_joint_table_and_its_moments(seed):
    """Against random tables inside random ends of their marginals."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(1, 4, size=2)
    table = rng.dirichlet(np.full(rows * columns, rng.choice([0.05, 1.0]))).reshape(rows, columns)

    def around(p):
        low = np.maximum(0.0, p - rng.choice([0.0, 0.1, 1.0]) * rng.random(p.size))
        return np.stack([low, np.minimum(1.0, p + rng.choice([0.0, 0.1, 1.0]))], axis=1)

    ends = joint(around(table.sum(axis=1)), around(table.sum(axis=0)))
    assert holds(ends, table)
    naming = tz.FactorGraph([rows, columns]).naming
    pair = PairMarginal.within((0, 1), np.full(table.shape, 1.0 / table.size), ends, ends,
                               effective=10.0, source="", naming=naming)  # fmt: skip
    assert holds(ends, pair.table)
    if rows == columns == 2:
        s = np.array([1.0, -1.0])
        mean = s @ table @ s
        covariance = mean - (s @ table.sum(axis=1)) * (s @ table.sum(axis=0))
        for moment, value in ((pair.correlation, mean), (pair.covariance, covariance)):
            assert moment.bounds[0] - ROUNDING <= value <= moment.bounds[1] + ROUNDING
            assert moment.bounds[0] <= moment.value <= moment.bounds[1]


def test_frechet_ends_are_the_best_that_follow():
    one, other = np.array([[0.7, 0.7], [0.3, 0.3]]), np.array([[0.6, 0.6], [0.4, 0.4]])
    expected = [[[0.3, 0.6], [0.1, 0.4]], [[0.0, 0.3], [0.0, 0.3]]]
    np.testing.assert_allclose(joint(one, other), expected, atol=1e-15)


def test_ends_that_are_too_narrow_are_caught():
    """Negative control of `holds`: marginals that are off exclude the table."""
    table = np.array([[0.3, 0.4], [0.1, 0.2]])
    off = np.array([[0.75, 0.75], [0.25, 0.25]])
    assert not holds(joint(off, np.array([[0.9, 0.9], [0.1, 0.1]])), table)


MODEL = tz.ising_grid(3, coupling=(-1, 1), field=(-0.5, 0.5), seed=4)


def weighted(rng, model, k, tilt):
    """Draws from a product, with weights that make up for it."""
    states = naive.all_states(model.cardinalities)
    logs = naive.log_weights(model.cardinalities, list(model.factors), states)
    proposal = np.exp(tilt * logs - naive.log_sum_exp(tilt * logs))
    drawn = rng.choice(len(states), size=k, p=proposal)
    return Samples(states[drawn], logs[drawn] - np.log(proposal[drawn]), Mixing.MIXED)


def misses(scale):
    """Share of 400 tables of 500 weighted draws with a cell beyond two of its errors."""
    rng = np.random.default_rng(20_261_116)
    right, found = truth(MODEL, 0, 8), []
    for _ in range(400):
        table, effective = _counted(weighted(rng, MODEL, 500, 0.6), 0, 8, (2, 2))
        pair = PairMarginal((0, 8), table, *(np.tile([0.0, 1.0], (2, 2, 1)),) * 2, effective,
                            "", MODEL.naming)  # fmt: skip
        found.append(np.abs(table - right) > 2.0 * scale * pair.error)
    return np.mean(found)


def test_the_error_of_drawn_tables_is_meant():
    """5% of 1600 cells are 80; four tables' cells go together, so up to twice the binomial's."""
    assert misses(1.0) < 0.05 + 2 * 3 * math.sqrt(0.05 * 0.95 / 1600)
    assert misses(0.5) > 0.2  # a smaller error would be noticed


def test_draws_that_do_not_stand_for_the_model_have_no_error():
    drawn = weighted(np.random.default_rng(1), MODEL, 100, 0.5)
    for status in Mixing:
        _, effective = _counted(
            Samples(drawn.states, drawn.log_weights, status), 0, 1, (2, 2)
        )  # fmt: skip
        assert (effective > 0.0) == (status in (Mixing.EXACT, Mixing.MIXED))
    nothing = Samples(drawn.states, np.full(100, -np.inf), Mixing.MIXED)
    assert _counted(nothing, 0, 1, (2, 2))[1] == 0.0


def test_a_fitted_table_has_the_marginals_and_its_own_odds():
    rng = np.random.default_rng(3)
    table = rng.dirichlet(np.ones(4)).reshape(2, 2)
    fitted = _fitted(table, np.array([0.3, 0.7]), np.array([0.6, 0.4]))
    np.testing.assert_allclose(fitted.sum(axis=1), [0.3, 0.7], atol=1e-6)
    np.testing.assert_allclose(fitted.sum(axis=0), [0.6, 0.4], atol=1e-6)
    odds = [t[0, 0] * t[1, 1] / (t[0, 1] * t[1, 0]) for t in (table, fitted)]
    assert odds[0] == pytest.approx(odds[1])
    never = _fitted(np.array([[0.0, 0.0], [0.5, 0.5]]), np.array([0.1, 0.9]), np.full(2, 0.5))
    assert np.isfinite(never).all()
    assert never.sum() == pytest.approx(1.0)


def test_a_run_sums_where_it_may_and_draws_elsewhere():
    run = tz.log_partition(MODEL, time_limit=2.0, exact=False, seed=0)
    right = truth(MODEL, 0, 8)
    np.testing.assert_allclose(run.pair_marginal(0, 8).table, right, atol=1e-10)
    drawn = run.pair_marginal(0, 8, exact=False, draws=2000)
    assert drawn.source.startswith("2,000 draws")
    assert (np.abs(drawn.table - right) <= 5.0 * drawn.error).all()
    assert holds(drawn.bounds, right)
    assert holds(drawn.bounds, drawn.table)
    np.testing.assert_array_equal(run.pair_marginal(0, 8, exact=False, draws=2000), drawn.table)
    itself = run.pair_marginal(3, 3, exact=False, draws=100)
    assert itself[0, 1] == itself[1, 0] == 0.0
    assert float(run.correlation(3, 3, exact=False, draws=100)) == pytest.approx(1.0)


def test_draws_are_as_many_as_fit_into_the_time(monkeypatch):
    run = tz.log_partition(MODEL, time_limit=2.0, exact=False, seed=0)
    states = naive.all_states(MODEL.cardinalities)[:1]
    made = []

    def sample(self, k, seed=None, *, time_limit):
        made.append(k)
        time.sleep(1e-3 * k)
        return Samples(np.repeat(states, k, axis=0), np.zeros(k), Mixing.MIXED)

    monkeypatch.setattr(LogPartition, "sample", sample)
    pair = run.pair_marginal(0, 8, exact=False, draws=10**6, time_limit=1.0)
    assert sum(made) <= 1000
    assert pair.source.startswith(f"{made[-1]:,} draws")

    def nothing(self, k, seed=None, *, time_limit):
        raise TightzError("there is nothing to draw from")

    monkeypatch.setattr(LogPartition, "sample", nothing)
    pair = run.pair_marginal(0, 7, exact=False, draws=10, time_limit=1.0)
    assert "no draws" in pair.source
    assert np.isinf(pair.error).all()
    assert holds(pair.bounds, truth(MODEL, 0, 7))


def test_a_model_without_weight_has_no_pairs():
    never = tz.FactorGraph([2, 2], [((0,), [-np.inf, -np.inf])])
    pair = tz.log_partition(never, seed=0).pair_marginal(0, 1)
    assert np.isnan(pair.table).all()
    assert np.isinf(pair.error).all()
    assert math.isnan(pair.correlation.value)


def test_by_name():
    model = tz.FactorGraph(
        [2, 3], [((0, 1), np.log([[1, 2, 3], [4, 5, 6]]))], names=("a", "b"),
        states=(("no", "yes"), ("x", "y", "z")),
    )  # fmt: skip
    pair = tz.log_partition(model, seed=0).pair_marginal("b", "a")
    assert pair["z", "no"] == pytest.approx(3 / 21)
    assert pair[2, 0] == pair["z", "no"]
    assert "p(b, a)   (exact" in pair.summary()
    pytest.importorskip("pandas")
    frame = pair.to_dataframe()
    assert list(frame.columns[:4]) == ["b", "a", "probability", "error"]
    assert frame.probability.sum() == pytest.approx(1.0)


def test_pairs_of_an_estimate_are_those_asked_for():
    asked = tz.Projections(pairs=[(0, 8), (1, 2)], restarts=2)
    e = tz.estimate(MODEL, levels=[0, 1], trials=2, projections=asked, seed=0)
    np.testing.assert_array_equal(e.pair_marginal(8, 0).table, e.pair_marginals[0].T)
    assert np.isinf(e.pair_marginal(1, 2).error).all()
