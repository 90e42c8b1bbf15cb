"""Estimates whose errors can be believed: the rules, and their coverage by simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import tightz as tz
from tests import naive
from tests.streams import drawn
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.clock import Clock
from tightz.sampling.ais.paths import Walk
from tightz.sampling.annealed import Annealing, annealed
from tightz.sampling.annealed_rounds import families_of
from tightz.sampling.calibration import (
    combine,
    effective_size,
    from_interval,
    log_mean,
    mixing_of,
    pooled,
    unseen_error,
    weight_error,
)
from tightz.workspace.findings import Mixing, PointEstimate
from tightz.workspace.working import Working, alone
from tightz.workspace.workspace import Workspace


def ais(value: float, error: float, effective: float = 500.0) -> PointEstimate:
    return PointEstimate(value, error, "annealing", "ais", effective)


def tree(value: float, error: float) -> PointEstimate:
    return PointEstimate(value, error, "tree", "tree", 1000.0)


def covers(estimate: PointEstimate, truth: float, errors: float = 2.0) -> bool:
    return abs(estimate.log_z - truth) <= errors * estimate.error + 1e-9


def test_an_interval_of_no_width_is_exact():
    assert combine([tree(5.0, 0.1)], 7.0, 7.0).family == "exact"
    assert combine([], 7.0, 7.0).error == 0.0
    assert combine([], -math.inf, -math.inf).log_z == -math.inf
    assert combine([], -math.inf, -math.inf).error == 0.0
    with pytest.raises(ValueError, match="lower <= upper"):
        combine([], 1.0, 0.0)


@pytest.mark.parametrize("error", [1e-5, 1e-9, 1e-12, 0.0])
def test_estimates_of_very_different_errors_are_pooled(error):
    """Where one error is 1e-8 of the other their disagreement still widens the answer."""
    one = pooled([ais(5.0, error), tree(1.0, 2.0)])
    assert one.log_z == pytest.approx(3.0, abs=0.6)
    assert 1.0 < one.error < 3.0


@pytest.mark.parametrize(
    ("estimate", "lower", "upper", "truth"),
    [
        (tree(2993.065, 0.0004), 2993.05, 2999.0, 2993.296),
        (tree(6957.838, 0.0008), 6957.0, 6970.0, 6958.135),
        (tree(935.143, 0.23), 930.0, 944.0, 940.874),
        (tree(92.09, 0.24), 91.5, 140.0, 94.78),
        (tree(79.01, 0.05), 80.5, 83.0, 81.78),
    ],
    ids=["20x20", "30x30", "critical", "all pairs", "rbm, cut to the interval"],
)
def test_the_errors_that_misled(estimate, lower, upper, truth):
    """What was shown is many errors off (the control); what is shown now covers the truth."""
    assert not covers(estimate, truth)
    assert covers(combine([estimate], lower, upper), truth)
    honest = ais(truth - 0.1, 0.1)
    both = combine([estimate, honest], lower, upper)
    assert covers(both, truth)
    assert both.error < 0.5


def test_a_lone_tree_has_no_error_without_a_proof():
    found = combine([tree(10.0, 0.01)], 9.0, math.inf)
    assert (found.log_z, found.error) == (10.0, math.inf)
    assert combine([], 9.0, math.inf).log_z == 9.0
    assert combine([tree(8.0, 0.01)], 9.0, math.inf).log_z == 9.0
    assert combine([], -math.inf, math.inf).error == math.inf


def test_an_unknown_lower_end_is_no_exact_value():
    """inf <= inf: no state found was taken for Z = 0, whatever was drawn."""
    drawn = PointEstimate(3.0, 0.1, "draws", "mini-bucket", 1000.0)
    for upper in (5.0, math.inf):
        assert combine([drawn], -math.inf, upper) == drawn
        nothing = combine([], -math.inf, upper)
        assert (nothing.log_z, nothing.error, nothing.family) == (upper, math.inf, "none")


def test_agreement_is_worth_no_more_than_the_weaker_error():
    assert combine([tree(10.0, 1e-4), ais(10.05, 0.1)], 0.0, 100.0).error == 0.1
    tempering = PointEstimate(10.1, 0.2, "tempering", "tempering", 100.0)
    assert combine([tempering], 0.0, 100.0).family == "interval"
    both = combine([tree(10.0, 1e-4), tempering], 0.0, 100.0)
    assert both.family == "tree+tempering"
    assert both.error == pytest.approx(0.2 / math.sqrt(2))


def test_a_tree_above_widens_and_one_below_is_explained():
    above = combine([ais(10.0, 0.05), tree(11.0, 0.01)], 0.0, 100.0)
    assert above.error >= 0.45
    assert covers(above, 10.0)
    assert covers(above, 11.0)
    below = combine([ais(10.0, 0.05), tree(9.0, 0.01)], 0.0, 100.0)
    assert below.log_z == 10.0
    assert below.error == 0.05


def test_the_last_estimate_of_a_family_counts():
    assert combine([ais(1.0, 0.1), ais(2.0, 0.2)], -100.0, 100.0).log_z == 2.0
    assert combine([ais(1.0, 0.1), ais(2.0, math.inf)], -100.0, 100.0).family == "interval"
    assert combine([ais(1.0, 0.1, effective=3.0)], -100.0, 100.0).family == "interval"


def test_a_value_outside_the_proof_is_not_shown():
    found = combine([ais(8.0, 0.5)], 9.0, 11.0)
    assert (found.log_z, found.error) == (10.0, 0.5)
    assert found.family == "interval"


def test_a_confident_interval_cuts_as_a_proof_does():
    """2926.29 was shown beside an interval from 2927.24."""
    below = combine([ais(2926.29, 0.6)], 2900.0, 3000.0, (2927.24, 2930.0))
    assert 2927.24 <= below.log_z <= 2930.0
    refuted = combine([ais(2926.29, 0.01)], 2900.0, 3000.0, (2927.24, 2930.0))
    assert (refuted.family, refuted.error) == ("confident", pytest.approx(0.69))
    inside = combine([ais(2928.0, 0.1)], 2900.0, 3000.0, (2927.24, 2930.0))
    assert (inside.log_z, inside.error) == (2928.0, 0.1)
    narrow = combine([], 9.0, 10.0, (9.5, math.nextafter(9.5, 10.0)))
    assert narrow.family == "confident"  # nothing is exact that is not proven


def test_what_draws_may_have_missed_is_little_where_they_outnumber_the_cap():
    """Rare weights at the cap: 2 errors hold whether or not a draw has one."""
    assert unseen_error(1.0, 1e6) < 1e-5
    assert unseen_error(20.0, 1e4) > 4.0
    rng = np.random.default_rng(0)
    for gap in (3.0, 8.0, 12.0):
        for share in (0.02, 0.5):  # of Z, by weights e^gap times the mean of the others
            rare = share / (1.0 - share) * math.exp(-gap)
            hits = rng.binomial(1000, rare, size=2000)
            logs = np.log1p(hits / 1000 * math.exp(gap))
            off = np.abs(logs - math.log1p(rare * math.exp(gap)))
            heavy = hits * math.exp(gap) > 200.0  # a draw with a fifth of the weight: no error
            error = unseen_error(gap, 1000)
            spread = np.sqrt(hits) / 1000 * np.exp(gap - logs)
            assert np.mean(heavy | (off <= 2.0 * np.hypot(error, spread))) > 0.94


def test_near_an_end_the_range_is_what_both_allow():
    found = combine([ais(9.2, 0.4)], 9.0, 30.0)
    assert found.log_z - 2 * found.error == pytest.approx(9.0)
    assert found.log_z + 2 * found.error == pytest.approx(10.0)
    thin = combine([ais(8.65, 0.4)], 9.0, 30.0)
    assert thin.error >= 0.2  # not the 0.11 of the overlap: the estimate is half refuted


def test_two_far_apart():
    both = pooled([ais(1.0, 0.01), ais(3.0, 0.01)])
    assert both.log_z == pytest.approx(2.0)
    assert both.error == pytest.approx(1.0, rel=1e-3)
    assert pooled([ais(1.0, 0.1)]).error == 0.1


def test_combination_keeps_the_coverage_of_its_parts():
    """Honest sampling errors and proven ends, at random distances: 2 errors hold 19 of 20 runs."""
    rng = np.random.default_rng(0)
    inside, worst = [], 0.0
    for _ in range(4000):
        e = float(rng.exponential(0.3)) + 1e-3
        found = combine(
            [ais(e * rng.normal(), e), tree(-float(rng.exponential(0.5)), 0.001)],
            -float(rng.exponential(0.5)),
            float(rng.exponential(2.0)),
        )
        off = abs(found.log_z) / found.error
        inside.append(off <= 2.0)
        worst = max(worst, off)
    assert np.mean(inside) > 0.94
    assert worst < 6.0


@pytest.mark.parametrize("count", [8, 64])
@pytest.mark.parametrize("scatter", [0.05, 0.5, 1.0, 1.5, 2.5])
def test_errors_of_log_normal_weights(count, scatter):
    """log Z = 0. The plain error of the mean (the control) fails where weights scatter."""
    rng = np.random.default_rng(1)
    within, plain = [], []
    for _ in range(600):
        logs = scatter * rng.normal(size=count) - scatter**2 / 2
        error = weight_error(logs)
        within.append(abs(log_mean(logs)) <= 2.0 * error)
        weights = np.exp(logs)
        naive_error = weights.std(ddof=1) / weights.mean() / math.sqrt(count)
        plain.append(abs(log_mean(logs)) <= 2.0 * naive_error)
    assert np.mean(within) > 0.92
    if scatter >= 2.5:
        assert np.mean(plain) < 0.8


@pytest.mark.parametrize("scatter", [0.05, 0.5])
def test_weights_of_zero_count_in_the_error(scatter):
    rng = np.random.default_rng(2)
    within = []
    for _ in range(600):
        logs = scatter * rng.normal(size=64) - scatter**2 / 2
        logs[rng.random(64) < 0.7] = -math.inf
        error = weight_error(logs)
        within.append(error < 1.0 and abs(log_mean(logs) - math.log(0.3)) <= 2.0 * error)
    assert np.mean(within) > 0.92


def test_weights_that_say_nothing():
    assert weight_error(np.array([1.0, 2.0])) == math.inf
    assert weight_error(np.array([1.0, 2.0, 3.0, -math.inf])) == math.inf
    assert weight_error(10.0 * np.random.default_rng(0).normal(size=64)) == math.inf
    assert effective_size(np.full(3, -math.inf)) == 0.0
    assert effective_size(np.zeros(7)) == pytest.approx(7.0)


def test_draws_that_miss_half_of_z_are_not_mixed():
    logs = 0.1 * np.random.default_rng(0).normal(size=1000)
    sure = ais(0.0, 0.02)
    assert mixing_of(logs, sure) is Mixing.MIXED
    assert mixing_of(logs, ais(math.log(2.0), 0.02)) is Mixing.NOT_MIXED
    assert mixing_of(logs, ais(0.0, 5.0)) is Mixing.NOT_MIXED  # the estimate cannot tell
    assert mixing_of(logs, from_interval(-0.02, 0.05)) is Mixing.MIXED
    assert mixing_of(logs) is Mixing.MIXED
    assert mixing_of(8.0 * logs * 10) is Mixing.NOT_MIXED
    assert mixing_of(np.concatenate([logs, [9.0]]), sure) is Mixing.NOT_MIXED


def potts(seed: int) -> FactorGraph:
    rng = np.random.default_rng(seed)
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3)]
    return FactorGraph([3] * 4, [(s, rng.normal(size=(3, 3))) for s in scopes])


def dense(n: int, seed: int) -> FactorGraph:
    rng = np.random.default_rng(seed)
    pairs = {(a, b): rng.normal() / math.sqrt(n) for a in range(n) for b in range(a + 1, n)}
    return tz.ising(pairs, np.zeros(n))


def small_rbm(seed: int) -> FactorGraph:
    rng = np.random.default_rng(seed)
    return tz.rbm(rng.normal(size=(7, 5)), rng.normal(size=7), rng.normal(size=5))


MODELS = {"zero field": dense(11, 0), "potts": potts(1), "rbm": small_rbm(2)}


def rounds(model: FactorGraph, count: int, units: float = 60_000.0) -> Annealing:
    """Steps of a run that has 60 seconds left, at a pace that is set and not measured."""
    run = Annealing.of(Workspace.build(model, seed=0, collapse=4), np.random.default_rng(3))
    assert run is not None
    for _ in range(count):
        run.pace = 0.08 / units
        assert drawn(run) is not None
    return run


@pytest.mark.parametrize("name", MODELS)
def test_rounds_find_log_z_and_marginals(name):
    model = MODELS[name]
    run = rounds(model, 3)
    finding = run.finding()
    log_z, expected = naive.enumerate_model(
        model.cardinalities, list(model.factors), model.evidence
    )[:2]
    assert finding.estimate is not None
    assert finding.marginals is not None
    assert covers(finding.estimate, log_z, errors=4.0)
    assert finding.estimate.error < 0.1
    assert finding.marginals.mixing is Mixing.MIXED
    for found, p in zip(finding.marginals.vectors, expected, strict=True):
        assert np.asarray(found) == pytest.approx(p[: len(found)], abs=0.05)
    assert finding.sampler is not None
    states = finding.sampler(2000, 1).states
    for v, p in enumerate(expected):
        share = np.bincount(states[:, v], minlength=len(p)) / 2000
        assert share == pytest.approx(p, abs=0.1)


def test_zero_field_is_symmetrised_and_says_so():
    finding = rounds(MODELS["zero field"], 1).finding()
    assert finding.marginals is not None
    assert finding.marginals.source == "AIS, symmetrised"
    assert all((p == 0.5).all() for p in finding.marginals.vectors)


def test_collapsed_spins_come_back():
    """Half of a grid's spins are summed out before annealing and drawn given the others."""
    model = tz.ising_grid(9, coupling=(-1, 1), field=(-1, 1), seed=1)
    exact = tz.exact(model)
    run = rounds(model, 2)
    assert run.collapsed is not None
    finding = run.finding()
    assert finding.estimate is not None
    assert finding.marginals is not None
    assert covers(finding.estimate, exact.log_z, errors=4.0)
    assert np.array(finding.marginals.vectors) == pytest.approx(np.array(exact.marginals), abs=0.06)


def test_rounds_that_disagree_widen():
    """The second round is 1 nat higher than the first: both cannot be right to 0.01."""
    run = rounds(MODELS["zero field"], 1)
    first = run.rounds[0]
    alone = run.estimate()
    run.rounds.append(replace(first, groups=first.groups + 1.0))
    assert run.estimate().error > max(0.4, 3 * alone.error)


def test_a_last_round_without_an_error_leaves_none():
    run = rounds(MODELS["zero field"], 1)
    first = run.rounds[0]
    wild = first.groups + 50.0 * np.arange(first.groups.size)
    run.rounds.append(replace(first, groups=wild))
    finding = run.finding()
    assert finding.estimate is not None
    assert finding.estimate.error == math.inf
    assert finding.marginals is not None
    assert finding.marginals.mixing is Mixing.NOT_MIXED
    assert finding.sampler is None


def working(model: FactorGraph, seconds: float) -> Working:
    return Working(model, Clock(seconds), seed=np.random.SeedSequence(0), exact=False)


def test_the_stream_ends_with_its_clock_and_yields_nothing_for_zeros():
    grid = tz.ising_grid(12, coupling=(-1, 1), field=(-1, 1), seed=0)
    run = working(grid, 600.0)
    stream = alone(annealed(run, run.clock))
    first = next(stream)
    assert first.bound is None
    assert first.estimate is not None
    run.clock.stop()
    assert list(stream) == []
    hard = FactorGraph([2, 2], [((0, 1), [[0.0, -np.inf], [1.0, 2.0]]), ((0,), [0.3, 0.1])])
    zeros = working(hard, 1.0)
    assert list(annealed(zeros, zeros.clock)) == []


def test_a_model_too_large_for_the_time_yields_nothing(monkeypatch):
    monkeypatch.setattr(Annealing, "_measure", lambda self: 1e3)
    run = working(MODELS["zero field"], 1.0)
    assert list(annealed(run, run.clock)) == []


def test_a_population_of_few_families_has_no_small_error():
    """Eight populations that agree, each the copies of one start: they may all lack the same."""
    run = rounds(MODELS["zero field"], 1)
    first = run.rounds[0]
    groups = first.groups[:8]
    assert replace(first, groups=groups).estimate().error < 1.0
    assert replace(first, groups=groups, families=1.0).estimate().error == math.inf
    lone = Walk(np.zeros(6), np.zeros((6, 1)), np.zeros((6, 0)), np.array([0, 0, 0, 3, 3, 3]))
    assert families_of(lone, 3) == 1.0
    assert families_of(lone._replace(ancestors=np.arange(6)), 3) == pytest.approx(3.0)
