"""Certificates: coverage over independent runs, with inflated draws as the negative control."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import tightz as tz
from tests import naive
from tightz.paper.estimate import run_setup
from tightz.paper.setup import Where, set_up
from tightz.paper.stored import read_estimate
from tightz.paper.theorem_run import statements
from tightz.runtime.store import RunStore
from tightz.sampling.certificates import (
    BETS,
    anytime_certificate,
    mean_certificate,
    median_certificate,
    product_certificate,
)

PLAIN = {"collapse": 0, "search_sweeps": 0}
CLASSICAL = [mean_certificate, median_certificate, product_certificate]


def adversarial_draws(rng, shape, kind):
    """G >= 0 with mean exactly 1 (log Z = 0), of the kinds that strain each bound."""
    if kind == "lognormal":
        return rng.normal(-0.5, 1.0, size=shape)
    if kind == "constant":
        return np.zeros(shape)
    heavy = rng.random(shape) < 0.04  # nearly always zero, rarely 25
    with np.errstate(divide="ignore"):
        return np.log(np.where(heavy, 25.0, 0.0))


@pytest.mark.parametrize("certificate", CLASSICAL)
@pytest.mark.parametrize("kind", ["lognormal", "constant", "rare"])
@pytest.mark.parametrize("trials", [1, 4, 25])
def test_classical_coverage(certificate, kind, trials):
    rng = np.random.default_rng(0)
    delta, runs = 0.1, 1500
    misses = sum(
        certificate(adversarial_draws(rng, trials, kind), delta) > 1e-12 for _ in range(runs)
    )
    assert misses <= binom.ppf(0.9999, runs, delta)


@pytest.mark.parametrize("kind", ["lognormal", "rare"])
def test_anytime_coverage_against_an_adversary_who_stops_at_the_worst_moment(kind):
    rng = np.random.default_rng(1)
    delta, runs = 0.1, 400
    misses = inflated = 0
    for _ in range(runs):
        table = adversarial_draws(rng, (3, 20), kind)
        # the certificate looks at every prefix itself, so its value is the adversary's best
        misses += anytime_certificate(table, delta) > 1e-9
        inflated += anytime_certificate(table + math.log(4.0), delta) > 1e-9
    limit = binom.ppf(0.9999, runs, delta)
    assert misses <= limit
    assert inflated > limit  # the negative control: gamma four times too large is noticed


def test_anytime_is_monotone_in_time():
    table = np.random.default_rng(2).normal(0.0, 1.5, size=(4, 30))
    values = [anytime_certificate(table[:, :t], 0.05) for t in range(1, 31)]
    assert np.all(np.diff(values) >= -1e-9)


def test_anytime_equals_a_direct_search_over_z():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(2, 6))
    delta = 0.2
    got = anytime_certificate(table, delta)

    def wealth(z, t):
        g = np.exp(table[:, :t] - z)
        return np.mean([[np.prod(1 - lam + lam * row) for row in g] for lam in BETS])

    best = max(
        z for z in np.linspace(-8, 4, 4801) if max(wealth(z, t) for t in range(1, 7)) >= 1 / delta
    )
    assert got == pytest.approx(best, abs=0.003)


def test_anytime_shifts_with_log_z_however_large():
    table = np.random.default_rng(6).normal(size=(3, 8))
    base = anytime_certificate(table, 0.05)
    for shift in (1e3, 1e9, -1e12):
        moved = anytime_certificate(table + shift, 0.05)
        assert moved - shift == pytest.approx(base, abs=1e-8 + 4e-16 * abs(shift))


def test_missing_trials_are_neutral():
    table = np.array([[0.3, 1.0, np.nan], [0.1, np.nan, np.nan]])
    assert np.isfinite(anytime_certificate(table, 0.05))
    with pytest.raises(tz.errors.ParameterError, match="at least one trial"):
        anytime_certificate(np.full((2, 2), np.nan), 0.05)


def test_levels_that_were_not_reached_are_paid_for():
    reached = np.array([[3.0], [1.0], [2.0]])
    whole = np.pad(reached, ((0, 8), (0, 0)), constant_values=np.nan)
    paid = anytime_certificate(reached, 0.05, planned_levels=11)
    assert paid == anytime_certificate(whole, 0.05)
    assert paid < anytime_certificate(reached, 0.05) - 1.0
    assert anytime_certificate(reached, 0.05, planned_levels=3) == anytime_certificate(
        reached, 0.05
    )


def test_planned_trials_that_were_not_made_count_as_zeros():
    values = np.random.default_rng(7).normal(size=6)
    whole = np.concatenate([values, np.full(3, -np.inf)])
    assert median_certificate(values, 0.1, planned_trials=9) == median_certificate(whole, 0.1)
    assert median_certificate(values[:4], 0.1, planned_trials=9) == -np.inf


@pytest.mark.parametrize("kind", ["anytime", "mean", "median", "product"])
@pytest.mark.parametrize("stop", [1, 3, 8, 16])
def test_a_stopped_run_pays_for_what_was_planned(kind, stop, tmp_path):
    """From Ctrl-C and from the store: the certificate of the planned levels and trials."""
    made = []

    def interrupt(batch):
        made.append(batch)
        if len(made) == stop:
            raise KeyboardInterrupt

    model = tz.ising_grid(3, seed=0)
    setup = set_up(
        model,
        levels=range(8),
        trials=3,
        family=tz.PointMass(restarts=1),
        projections=tz.Projections(**PLAIN),
        seed=np.random.SeedSequence(0),
    )
    store = RunStore(tmp_path / "run.db")
    e = run_setup(setup, Where(), store=store, partial=True, on_batch=interrupt, start=0.0)
    assert not e.complete
    assert (e.planned_levels.tolist(), e.planned_trials) == (list(range(8)), 3)
    table = np.full((8, 3), np.nan)
    table[: len(e.levels), : e.log_g.shape[1]] = e.log_g
    expected = {
        "anytime": lambda: anytime_certificate(table, 0.1),
        "mean": lambda: max(mean_certificate(row, 0.1 / 8) for row in e.log_g),
        "median": lambda: max(
            median_certificate(np.nan_to_num(row, nan=-np.inf), 0.1 / 8) for row in table
        ),
        "product": lambda: max(product_certificate(row, 0.1 / 8) for row in e.log_g),
    }[kind]()
    assert e.certificate(0.1, kind=kind).log_z == expected
    again = read_estimate(tmp_path / "run.db")
    assert again.certificate(0.1, kind=kind).log_z == expected
    assert not again.complete


def test_a_theorem_run_bets_on_levels_planned_not_reached():
    """Levels 22 and 9 in that order: the bet is on 9 alone, reached or not."""
    model = tz.ising_grid(5, seed=0)
    e = tz.estimate(model, levels=[22, 9], trials=1, seed=0, projections=tz.Projections(**PLAIN))
    one = replace(e, levels=e.levels[:1], log_gammas=e.log_gammas[:1], statuses=e.statuses[:1])
    assert statements(one, 0.1, (2, 1)).certificate.log_z == -np.inf
    assert one.certificate(0.1, kind="mean").log_z > -np.inf
    whole = statements(e, 0.1, (2, 1)).certificate.log_z
    assert whole == anytime_certificate(e.log_g[1:], 0.1)


def test_theorems_want_the_number_of_trials_that_was_planned():
    e = tz.estimate(
        tz.ising_grid(2, seed=0),
        trials=1200,
        seed=0,
        projections=tz.Projections(restarts=1, **PLAIN),
    )
    assert e.assumptions(0.1).enough_trials
    stopped = replace(e, log_gammas=e.log_gammas[:, :1100], planned_trials=1200)
    assert tz.required_trials(4, 0.1) < 1100
    assert not stopped.assumptions(0.1).enough_trials


def test_many_trials_approach_the_mean():
    log_g = np.random.default_rng(4).normal(-0.02, 0.2, size=400)  # E G = 1
    assert -0.1 < anytime_certificate(log_g, 0.05) < 0.0
    assert mean_certificate(log_g, 0.05) == pytest.approx(math.log(0.05), abs=0.05)


@pytest.mark.parametrize("certificate", [*CLASSICAL, anytime_certificate])
def test_zero_draws_and_bad_delta(certificate):
    assert certificate(np.full(5, -np.inf), 0.1) == -np.inf
    for delta in (0.0, 1.0, -0.1):
        with pytest.raises(tz.errors.ParameterError, match="delta"):
            certificate(np.zeros(3), delta)
    with pytest.raises(tz.errors.ParameterError, match="at least one trial"):
        certificate(np.zeros(0), 0.1)


def test_median_factor_is_the_binomial_tail():
    value = median_certificate(np.zeros(9), 0.05)
    c = math.exp(-value)
    assert binom.sf(4, 9, 1 / c) == pytest.approx(0.05, abs=1e-9)


@pytest.fixture(scope="module")
def thousand_runs():
    """(estimate, exact log Z) of 1,000 independent small runs across kinds of model and method."""
    rng = np.random.default_rng(5)
    runs = []
    for i in range(1000):
        if i % 4 == 0:
            model = tz.ising_grid(2, 3, coupling=(-2, 2), seed=i)
        elif i % 4 == 1:
            model = tz.rbm(2 * rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3))
        elif i % 4 == 2:  # frustrated, strong
            model = tz.ising_grid(2, 3, coupling=(-8, 8), field=(-0.1, 0.1), seed=i)
        else:  # terms of three spins
            scopes = [rng.choice(6, size=3, replace=False) for _ in range(6)]
            model = tz.FactorGraph([2] * 6, [(s, rng.normal(size=(2, 2, 2))) for s in scopes])
        log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
        e = tz.estimate(
            model,
            levels=range(1, 6),
            trials=6,
            seed=i,
            threads=1,
            family=tz.PointMass(restarts=1) if i % 8 == 5 else tz.MeanField(restarts=2),
            projections=tz.Projections(
                hashing=tz.SparseParity(0.2) if i % 3 == 0 else tz.DenseParity(), **PLAIN
            ),
        )
        runs.append((e, log_z))
    return runs


@pytest.mark.parametrize("kind", ["anytime", "mean", "median", "product"])
def test_certificates_of_real_runs_cover(kind, thousand_runs):
    """At most a delta share of 1,000 runs exceeds the truth, selection over levels included."""
    delta = 0.2
    misses = sum(e.certificate(delta, kind=kind).log_z > log_z + 1e-9 for e, log_z in thousand_runs)
    assert misses <= binom.ppf(0.9999, len(thousand_runs), delta)


def test_inflated_gamma_fails_the_same_test(thousand_runs):
    """Negative control: were gamma 30 times too large, the anytime certificate would be caught."""
    delta = 0.2
    misses = sum(
        anytime_certificate(e.log_g + math.log(30.0), delta) > log_z + 1e-9
        for e, log_z in thousand_runs
    )
    assert misses > binom.ppf(0.9999, len(thousand_runs), delta)


def test_an_adversary_who_stops_at_the_worst_moment_gains_nothing(thousand_runs):
    """The largest certificate over all stopping times, level by level and trial by trial."""
    delta = 0.2
    misses = 0
    for e, log_z in thousand_runs[:400]:
        worst = -np.inf
        table = np.full_like(e.log_g, np.nan)
        for t in range(table.shape[1]):
            for level in range(len(table)):
                table[level, t] = e.log_g[level, t]
                worst = max(worst, anytime_certificate(table, delta))
        misses += worst > log_z + 1e-9
    assert misses <= binom.ppf(0.9999, 400, delta)
