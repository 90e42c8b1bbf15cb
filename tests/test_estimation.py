"""MFRP, the table of trials, theorems and marginals."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import tightz as tz
from tests import naive
from tightz.families import MeanField, PointMass, Status
from tightz.paper.theorems import lower_median, required_trials
from tightz.paper.trials import WeightedMoments
from tightz.projections import Coset
from tightz.reductions.encoding import encode
from tightz.runtime.seeds import generator

GRID = tz.ising_grid(4, coupling=(-2, 2), seed=11)
PLAIN = {"collapse": 0, "search_sweeps": 0}
"""Switches off every aid: what remains is Algorithm 1 at each level."""


def exact(model):
    return naive.enumerate_model(model.cardinalities, model.factors, model.evidence)


def test_mfrp_is_algorithm_1_from_the_same_draws():
    """The table equals Algorithm 1 done by hand with the paper's formulas, draw by draw."""
    n, m = 6, 2
    model = tz.ising_grid(2, 3, coupling=(-2, 2), seed=0)
    result = tz.mfrp(
        model, m, family=tz.MeanField(restarts=3, tol=0.0, max_sweeps=300), trials=5, seed=42
    )
    unary, pair, const = np.zeros(n), {}, 0.0
    for scope, table in model.factors:
        if len(scope) == 1:
            unary[scope[0]] += table[1] - table[0]
            const += table[0]
        else:
            k, j = scope
            const += table[0, 0]
            unary[k] += table[1, 0] - table[0, 0]
            unary[j] += table[0, 1] - table[0, 0]
            pair[k, j] = table[1, 1] - table[1, 0] - table[0, 1] + table[0, 0]
    values = []
    for t in range(5):
        a, b = tz.DenseParity().draw(m, n, generator(42, m, t, 0))
        paper = naive.PaperProjection(const, unary, pair, a, b)
        starts = generator(42, m, t, 1).uniform(-1, 1, size=(3, len(paper.free)))
        best = -np.inf
        for start in starts:
            mu = np.zeros(n)
            mu[paper.free] = (1 - start) / 2
            best = max(best, paper.objective(paper.ascend(mu, 300)))
        values.append(best)
    np.testing.assert_allclose(result.log_gamma[0], values, atol=1e-7)
    assert result.log_z == pytest.approx(np.median(values) + m * math.log(2), abs=1e-7)


def test_level_zero_is_plain_mean_field():
    e = tz.estimate(
        GRID, levels=[0], trials=1, seed=3, projections=tz.Projections(restarts=6, **PLAIN)
    )
    coset = Coset.build(encode(GRID).polynomial)
    starts = generator(3, 0, 0, 1)
    expected = MeanField(restarts=6).project(coset, starts)
    np.testing.assert_array_equal(e.log_gammas[0, 0], expected.log_gammas)
    assert e.log_z <= exact(GRID)[0] + 1e-9


def table(result):
    return result.log_gammas, result.marginals, result.marginal_spread, result.pair_marginals


@pytest.mark.parametrize("aids", [False, True])
def test_same_seed_same_numbers_however_scheduled(aids):
    how = tz.Projections(restarts=3, pairs=[(0, 1), (3, 7)], **PLAIN)
    options = {"levels": range(6), "trials": 4, "projections": how, "seed": 5}
    if aids:
        options |= {"levels": range(3), "projections": tz.Projections(restarts=3, collapse=3)}
    serial = tz.estimate(GRID, threads=1, **options)
    runs = [tz.estimate(GRID, threads=threads, **options) for threads in (2, 3, 7)]
    with ThreadPoolExecutor(4) as pool:
        runs.append(tz.estimate(GRID, executor=pool, **options))
    with ProcessPoolExecutor(2) as pool:
        runs.append(tz.estimate(GRID, executor=pool, **options))
    for other in runs:
        for a, b in zip(table(serial), table(other), strict=True):
            np.testing.assert_array_equal(a, b)
    different = tz.estimate(GRID, **{**options, "seed": 6})
    assert not np.array_equal(serial.log_gammas, different.log_gammas)


def test_levels_and_trials_are_independent_of_what_else_is_run():
    whole = tz.estimate(
        GRID, levels=range(5), trials=4, seed=8, projections=tz.Projections(restarts=2, **PLAIN)
    )
    part = tz.estimate(
        GRID, levels=[3], trials=2, seed=8, projections=tz.Projections(restarts=2, **PLAIN)
    )
    np.testing.assert_array_equal(part.log_gammas[0], whole.log_gammas[3, :2])
    np.testing.assert_array_equal(
        tz.mfrp(GRID, 3, family=tz.MeanField(restarts=2), trials=4, seed=8).log_gammas[0],
        whole.log_gammas[3],
    )


def test_the_estimate_is_no_less_than_what_its_trials_prove():
    """The median of five trials was 79 beside a proven 83.6."""
    grid = tz.ising_grid(6, coupling=(-3, 3), field=(-1, 1), seed=1)
    e = tz.mfrp(grid, 6, trials=5, seed=9)
    assert e.median == e.by_level[0].median < e.lower  # the control
    assert e.log_z == max(e.lower, e.certificate().log_z)
    assert e.log_z_source in e.summary()


def test_aggregates_come_from_the_table():
    e = tz.estimate(
        GRID, levels=[0, 2, 5], trials=6, seed=1, projections=tz.Projections(restarts=2, **PLAIN)
    )
    g = e.log_gammas.max(axis=2) + np.array([0, 2, 5])[:, None] * math.log(2)
    for row, level in zip(g, e.by_level, strict=True):
        assert level.median == np.sort(row)[2]  # the lower of the two middle ones
        assert level.mean == pytest.approx(naive.log_sum_exp(row) - math.log(6))
        assert level.best == row.max()
    assert e.log_z == max(level.median for level in e.by_level)
    assert e.best_level == max(e.by_level, key=lambda level: level.median).m
    assert len(list(e.trials)) == 3 * 6 * 2
    assert 0.0 <= e.log_gammas.max() - e.lower < 1e-9
    assert e.lower <= exact(GRID)[0] + 1e-9


@pytest.mark.parametrize("family", [MeanField(restarts=4), PointMass()])
@pytest.mark.parametrize("m", [1, 4, 8])
def test_theorem_1_expectation_bound(family, m):
    """E[2^m gamma] <= Z, and a gamma inflated threefold is caught by the same test."""
    model = tz.ising_grid(3, coupling=(-1, 1), seed=2)
    log_z, _ = exact(model)
    e = tz.estimate(
        model, levels=[m], trials=600, seed=9, family=family, projections=tz.Projections(**PLAIN)
    )
    g = np.exp(e.log_g[0] - log_z)
    error = g.std() / math.sqrt(g.size)
    assert g.mean() <= 1 + 4 * error
    coset_share = (g > 0).mean()
    assert 0 < coset_share <= 1
    if family.restarts == 4 and m == 1:
        assert (3 * g).mean() > 1 + 4 * 3 * error


def test_infeasible_draws_count_as_zero():
    model = tz.ising_grid(2, seed=0)
    e = tz.estimate(
        model, levels=[4], trials=200, seed=0, projections=tz.Projections(restarts=1, **PLAIN)
    )
    infeasible = e.statuses[0] == Status.INFEASIBLE
    assert 0.3 < infeasible.mean() < 0.95  # 1 - P(full rank) - ..., most draws are deficient
    assert (e.log_gammas[0][infeasible] == -np.inf).all()
    assert e.by_level[0].infeasible == infeasible.sum()


def test_theorem_2_on_a_small_grid():
    """Full T at every level with proven optima: inside the factor 32, and the report says so."""
    model = tz.ising_grid(2, 4, coupling=(-2, 2), seed=1)
    e = tz.estimate(
        model,
        levels=range(9),
        trials=required_trials(8, 0.1),
        seed=0,
        family=PointMass(restarts=1),
        projections=tz.Projections(**PLAIN),
    )
    log_z, _ = exact(model)
    for statement in (e.theorem_2(0.1), e.theorem_1(0.1)):
        assert statement.assumptions.all_held
        assert statement.lower_holds
        assert statement.upper_holds
        assert statement.lower <= log_z <= statement.upper
        assert "all assumptions held" in statement.summary()


def test_theorem_reports_what_is_missing():
    e = tz.estimate(
        GRID,
        levels=[0, 1],
        trials=3,
        seed=0,
        projections=tz.Projections(hashing=tz.SparseParity(0.2), **PLAIN),
    )
    statement = e.theorem_1(0.05)
    assert not statement.lower_holds
    assert not statement.upper_holds
    text = statement.summary()
    for word in ("fewer trials", "not every level", "not strongly universal", "global optima"):
        assert word in text
    with pytest.raises(tz.errors.ParameterError, match="PointMass"):
        e.theorem_2()


def test_required_trials():
    assert required_trials(400, 0.05) == 2140
    assert required_trials(16, 0.05) == math.ceil(math.log(320) / 0.0042)
    for bad in ({"n": 0, "delta": 0.1}, {"n": 5, "delta": 0.0}, {"n": 5, "delta": 1.0}):
        with pytest.raises(tz.errors.ParameterError):
            required_trials(**bad)
    with pytest.raises(tz.errors.ParameterError, match="alpha"):
        required_trials(5, 0.1, alpha=0.01)


def test_lower_median():
    assert lower_median(np.array([3.0, 1.0, 2.0])) == 2.0
    assert lower_median(np.array([4.0, 1.0, 2.0, 3.0])) == 2.0
    assert lower_median(np.array([-np.inf, 5.0])) == -np.inf


def test_marginals_are_the_weighted_average_over_projections():
    pairs = [(0, 1), (2, 9)]
    e = tz.estimate(
        GRID,
        levels=[0, 3],
        trials=4,
        seed=4,
        projections=tz.Projections(restarts=2, pairs=pairs, **PLAIN),
    )
    encoding = encode(GRID)
    weights, singles, joints = [], [], []
    for m in (0, 3):
        for t in range(4):
            coset = Coset.build(
                encoding.polynomial, tz.DenseParity().draw(m, 16, generator(4, m, t, 0))
            )
            best = MeanField(restarts=2).project(coset, generator(4, m, t, 1))
            weights.append(best.log_gamma + m * math.log(2))
            singles.append(best.marginals())
            joints.append(best.pair_marginals(np.array(pairs)))
    w = np.exp(np.array(weights) - naive.log_sum_exp(weights))
    mean = w @ np.array(singles)
    np.testing.assert_allclose(e.marginals[:, 1], mean, atol=1e-10)
    np.testing.assert_allclose(e.marginals.sum(axis=1), 1.0)
    spread = np.sqrt(w @ (np.array(singles) - mean) ** 2)
    np.testing.assert_allclose(e.marginal_spread, spread, atol=1e-7)
    np.testing.assert_allclose(e.pair_marginals[:, 1, 1], w @ np.array(joints), atol=1e-10)
    np.testing.assert_allclose(e.pair_marginals.sum(axis=(1, 2)), 1.0)
    # summing one variable out of a joint gives the other's marginal
    np.testing.assert_allclose(e.pair_marginals.sum(axis=2), e.marginals[[0, 2]], atol=1e-12)


def test_weighted_moments_survive_huge_and_zero_weights():
    moments = WeightedMoments(1)
    moments.add(-math.inf, np.array([np.nan]))
    assert np.isnan(moments.mean).all()
    moments.add(5000.0, np.array([1.0]))
    moments.add(5000.0 + math.log(3), np.array([2.0]))
    moments.add(-5000.0, np.array([100.0]))
    assert moments.mean[0] == pytest.approx(1.75)
    assert moments.spread[0] == pytest.approx(math.sqrt(0.75 * 0.25))


def test_evidence_is_respected():
    model = GRID.with_evidence({0: 1, 5: 0})
    log_z, marginals = exact(model)
    e = tz.estimate(
        model, projections=tz.Projections(collapse=0), levels=range(3), trials=3, seed=0
    )
    assert e.lower <= log_z + 1e-9
    assert e.marginals[0].tolist() == [0.0, 1.0]
    assert e.marginals[5].tolist() == [1.0, 0.0]
    assert (
        tz.estimate(model, levels=[0], trials=1, seed=0, projections=tz.Projections(**PLAIN)).n
        == 14
    )
    assert tz.mean_field(model, seed=0).marginals.shape == (16, 2)
    assert np.abs(e.marginals - np.array(marginals)).max() < 0.6


@pytest.mark.parametrize(
    "model",
    [
        tz.FactorGraph([2, 2, 2]),
        tz.FactorGraph([2]),
        tz.FactorGraph([]),
        tz.FactorGraph([2, 2], [((0,), [1.0, 2.0])]),
        tz.FactorGraph([2], evidence={0: 1}),
        tz.FactorGraph([1, 1], [((0, 1), [[2.5]])]),
        tz.FactorGraph([2, 2], [((), 1.25), ((0, 1), [[1.0, 0], [0, 1]])]),
    ],
)
def test_small_and_odd_models(model):
    log_z, _ = exact(model)
    e = tz.estimate(model, trials=3, seed=0)
    assert e.lower <= log_z + 1e-12
    assert np.isfinite(e.log_z)
    result = tz.mean_field(model, seed=0)
    assert result.log_z <= log_z + 1e-12
    if model.n_factors < 2:  # independent variables: mean field is exact
        assert result.log_z == pytest.approx(log_z, abs=1e-9)
    assert "\n" not in repr(e)
    assert "lower bound" in repr(result)


def test_a_table_of_zeros_is_log_zero_said_plainly():
    model = tz.FactorGraph([2, 2], [((0, 1), np.full((2, 2), -np.inf)), ((0,), [0.0, 1.0])])
    assert tz.mean_field(model, seed=0).log_z == -np.inf
    e = tz.estimate(model, trials=3, seed=0)
    assert e.log_z == -np.inf
    assert e.lower == -np.inf
    assert e.certificate(0.1).log_z == -np.inf
    assert np.isnan(e.marginals).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: tz.estimate(GRID, projections=tz.Projections(search_sweeps=-1, collapse=0)),
            "search_sweeps is -1",
        ),
        (lambda: tz.mfrp(GRID, -1), "m is -1.*0 <= m <= 16"),
        (lambda: tz.mfrp(GRID, 17), "m is 17.*0 <= m <= 16"),
        (lambda: tz.mfrp(GRID, 1, trials=0), "trials is 0; expected at least 1"),
        (lambda: tz.mfrp(GRID, 1, family=tz.MeanField(restarts=0)), "restarts is 0"),
        (lambda: tz.estimate(GRID, levels=[]), "expected distinct"),
        (
            lambda: tz.estimate(GRID, levels=[1, 1], projections=tz.Projections(**PLAIN)),
            "expected distinct",
        ),
        (lambda: tz.estimate(GRID, projections=tz.Projections(pairs=[(0, 0)])), r"pair \(0, 0\)"),
        (lambda: tz.estimate(GRID, projections=tz.Projections(pairs=[(0, 99)])), r"pair \(0, 99\)"),
        (
            lambda: tz.estimate(GRID, levels=[1], projections=tz.Projections(**PLAIN)).certificate(
                1.5
            ),
            "delta is 1.5",
        ),
        (
            lambda: tz.estimate(GRID, levels=[1], projections=tz.Projections(**PLAIN)).certificate(
                kind="best"
            ),
            "certificate kind",
        ),
    ],
)
def test_bad_parameters(call, message):
    with pytest.raises(tz.errors.ParameterError, match=message):
        call()


def test_full_square_level_works():
    model = tz.ising_grid(2, 3, seed=0)
    e = tz.estimate(model, levels=[6], trials=30, seed=1, projections=tz.Projections(**PLAIN))
    assert np.isfinite(e.log_gamma).any()
    assert e.lower <= exact(model)[0]


def test_provenance_and_summary():
    e = tz.estimate(GRID, levels=[0, 1], trials=2, seed=77, projections=tz.Projections(**PLAIN))
    assert e.provenance["seed"]["entropy"] == 77
    assert e.provenance["model_sha256"] == GRID.digest
    assert "MeanField" in e.provenance["parameters"]["family"]
    text = e.summary()
    assert "not a bound" in text
    assert "holds always" in text
    assert "confidence 0.95" in text


def test_seed_kinds():
    a = tz.mean_field(GRID, seed=5).log_zs
    b = tz.mean_field(GRID, seed=np.random.SeedSequence(5)).log_zs
    np.testing.assert_array_equal(a, b)
    rng = np.random.default_rng(5)
    first, second = tz.mean_field(GRID, seed=rng).log_zs, tz.mean_field(GRID, seed=rng).log_zs
    assert not np.array_equal(first, second)
