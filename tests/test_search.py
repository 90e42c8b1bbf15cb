"""Search: tempering against enumeration, its moves, ground states, pools and annealing."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tests.called import called
from tightz.errors import ParameterError
from tightz.families.mean_field import MeanField
from tightz.interval.ground_state import ground_state
from tightz.models.builders import ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.array_files import read_model
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity
from tightz.reductions.encoding import encode
from tightz.runtime.seeds import seed_sequence
from tightz.search.annealing import AnnealedMeanField
from tightz.search.copies import run_copies
from tightz.search.ground_state import SEARCHER, Search, SearchStatus
from tightz.search.ladder import Ladder, bennett, local_scales, log_z_by_tempering
from tightz.search.moves import Best, Replicas, offer, recombine, reweigh, swap_clusters
from tightz.search.parallel_tempering import ParallelTempering, Problem, Tempering, tune_ladder
from tightz.search.pool import sample_pool
from tightz.search.recombination import recombined


def random_terms(n, degree, count, scale, rng):
    """Distinct terms of arity 1..degree with couplings uniform on [-scale, scale]."""
    terms = {}
    for _ in range(count):
        arity = int(rng.integers(1, min(degree, n) + 1))
        members = tuple(sorted(rng.choice(n, size=arity, replace=False).tolist()))
        terms[members] = float(rng.uniform(-scale, scale))
    return list(terms.items())


def polynomial(terms, n, constant=0.0):
    return SpinPolynomial.from_terms(n, constant, terms)


@st.composite
def spin_models(draw, max_n=10, max_degree=4):
    n = draw(st.integers(1, max_n))
    degree = draw(st.integers(1, max_degree))
    seed = draw(st.integers(0, 2**32 - 1))
    scale = draw(st.sampled_from([0.1, 1.0, 10.0, 1e6]))
    count = draw(st.integers(0, 3 * n))
    return n, random_terms(n, degree, count, scale, np.random.default_rng(seed))


def run_of(poly, betas, *, config=None, key=0, sweeps=0):
    config = config or ParallelTempering()
    run = Tempering(Problem.build(poly), config, np.asarray(betas), seed_sequence(7), key)
    run.advance(sweeps)
    return run


# Kernels


@pytest.mark.parametrize("degree", [2, 4])
def test_tracked_energies_and_products_equal_recomputed_ones(degree, monkeypatch):
    rng = np.random.default_rng(degree)
    terms = random_terms(30, degree, 80, 2.0, rng)
    poly = polynomial(terms, 30, 5.0)
    monkeypatch.setattr(Tempering, "refresh", lambda self: None)
    run = run_of(poly, [0.0, 0.3, 1.0, 2.0])
    reweigh(run.problem.grouped, run.rep.spins, run.rep.products, run.rep.energy)
    run.advance(300)  # clusters, exchanges and sweeps, never refreshed
    assert run.clusters[0] > 0
    assert run.swaps[0].min() > 0
    states = run.rep.spins.T.astype(np.int64)
    exact = naive.polynomial_log_weights(0.0, terms, states)
    np.testing.assert_allclose(run.rep.energy, exact, atol=1e-9)
    long_terms = [(m, theta) for m, theta in terms if len(m) > 2]
    assert len(long_terms) == len(run.rep.products)
    values = {round(abs(t), 12): t * states[:, list(m)].prod(axis=1) for m, t in long_terms}
    for row in run.rep.products:
        np.testing.assert_allclose(row, values[round(abs(row[0]), 12)], atol=1e-12)
    for a in range(2):
        np.testing.assert_array_equal(run.rep.beta[run.rep.lane_of[a]], run.rep.betas)


def test_best_states_are_distinct_local_maxima_with_the_right_energy():
    rng = np.random.default_rng(3)
    terms = random_terms(12, 3, 40, 1.0, rng)
    run = run_of(polynomial(terms, 12), [0.2, 0.5, 1.0, 2.0], sweeps=200)
    size = int(run.best.size[0])
    states, energies = run.best.spins[:size], run.best.energy[:size]
    assert size > 1
    assert len(np.unique(states, axis=0)) == size
    np.testing.assert_allclose(
        energies, naive.polynomial_log_weights(0.0, terms, states), atol=1e-9
    )
    for state, energy in zip(states, energies, strict=True):
        for i in range(12):
            flipped = state.copy()
            flipped[i] *= -1
            assert naive.polynomial_log_weights(0.0, terms, flipped[None])[0] <= energy + 1e-9


def test_the_list_of_best_states_keeps_the_heaviest():
    best = Best(
        np.ones((3, 8), np.int8), np.full(3, -np.inf), np.zeros(3, np.uint64), np.zeros(1, int)
    )
    states = naive.all_spins(8)[:20].astype(np.int8)
    values = np.random.default_rng(0).normal(size=20)
    for state, value in zip(states, values, strict=True):
        called(offer)(best, state, value)
        assert not called(offer)(best, state, value)
    np.testing.assert_allclose(np.sort(best.energy), np.sort(values)[-3:])
    for state, value in zip(best.spins, best.energy, strict=True):
        np.testing.assert_array_equal(state, states[np.flatnonzero(values == value)[0]])


# Cluster moves


def pair_of_lanes(problem, first, second, clock=1):
    n = problem.polynomial.n
    rep = Replicas(
        spins=np.stack([first, second], axis=1).astype(np.int8),
        energy=np.zeros(2),
        beta=np.ones(2),
        keys=np.zeros(2, np.uint64),
        clock=np.array([0, clock], np.uint64),
        lane_of=np.array([[0], [1]]),
        betas=np.ones(1),
        products=np.zeros((problem.grouped.coef.size, 2)),
    )
    reweigh(problem.grouped, rep.spins, rep.products, rep.energy)
    return rep, np.zeros(n, bool), np.zeros(n, np.int64)


@settings(max_examples=60, deadline=None)
@given(spin_models(), st.integers(0, 2**32 - 1))
def test_cluster_moves_conserve_the_pairs_total_energy(model, seed):
    n, terms = model
    problem = Problem.build(polynomial(terms, n))
    rng = np.random.default_rng(seed)
    first, second = 1 - 2 * rng.integers(0, 2, size=(2, n))
    rep, differs, queue = pair_of_lanes(problem, first, second, seed)
    before = naive.polynomial_log_weights(0.0, terms, np.stack([first, second]))
    scale = 1e-12 * (1.0 + sum(abs(t) for _, t in terms))
    for _ in range(5):
        called(swap_clusters)(problem.grouped, rep, 0, 1, differs, queue, np.zeros(2, np.int64))
        after = naive.polynomial_log_weights(0.0, terms, rep.spins.T)
        assert abs(after.sum() - before.sum()) <= scale
        np.testing.assert_allclose(rep.energy, after, atol=scale)
        np.testing.assert_array_equal(rep.spins[:, 0] != rep.spins[:, 1], first != second)


def cluster_chi_square(betas, draws=20000):
    """Joint states of two lanes drawn exactly at `betas` and moved once, against the same law."""
    terms = [((0,), 0.4), ((1, 2), 0.9), ((0, 1), -0.7), ((2, 3), 0.8), ((3,), -0.3), ((4, 5), 0.6)]
    n = 6
    problem = Problem.build(polynomial(terms, n))
    rng = np.random.default_rng(11)
    laws = [naive.spin_gibbs(terms, n, b)[2] for b in betas]
    states = naive.all_spins(n)
    picks = [rng.choice(2**n, size=draws, p=law) for law in laws]
    place = 2 ** np.arange(n)[::-1]
    counts = np.zeros((2**n, 2**n))
    rep, differs, queue = pair_of_lanes(problem, states[0], states[0], 5)
    moved = 0
    for a, b in zip(*picks, strict=True):
        rep.spins[:, 0], rep.spins[:, 1] = states[a], states[b]
        called(swap_clusters)(problem.grouped, rep, 0, 1, differs, queue, np.zeros(2, np.int64))
        after = (rep.spins < 0).T @ place
        counts[tuple(after)] += 1
        moved += after[0] != a
    assert moved > draws / 4
    # Coarsen to 8 x 8 cells of equal probability, so that every cell is well filled.
    cells = [np.minimum((np.cumsum(law) * 8).astype(int), 7) for law in laws]
    expected, observed = np.zeros((8, 8)), np.zeros((8, 8))
    np.add.at(expected, np.ix_(*cells), np.outer(*laws) * draws)
    np.add.at(observed, np.ix_(*cells), counts)
    full = expected > 5
    statistic = ((observed - expected)[full] ** 2 / expected[full]).sum()
    return statistic, full.sum() - 1


def test_cluster_moves_leave_the_joint_distribution_invariant():
    statistic, freedom = cluster_chi_square((1.0, 1.0))
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_cluster_moves_between_different_temperatures_would_be_wrong():
    statistic, freedom = cluster_chi_square((0.2, 2.0))
    assert statistic > freedom + 20 * math.sqrt(2 * freedom)


@settings(max_examples=60, deadline=None)
@given(spin_models(), st.integers(0, 2**32 - 1))
def test_recombining_is_at_least_as_good_as_both_parents(model, seed):
    n, terms = model
    problem = Problem.build(polynomial(terms, n))
    first, second = 1 - 2 * np.random.default_rng(seed).integers(0, 2, size=(2, n))
    rep, differs, queue = pair_of_lanes(problem, first, second)
    parents = naive.polynomial_log_weights(0.0, terms, np.stack([first, second]))
    x = first.reshape(n, 1).astype(np.int8)
    products = rep.products[:, :1].copy()
    gain = called(recombine)(problem.grouped, x, second.astype(np.int8), products, differs, queue)
    child = naive.polynomial_log_weights(0.0, terms, x.T)[0]
    scale = 1e-12 * (1.0 + sum(abs(t) for _, t in terms))
    assert child >= parents.max() - scale
    assert child == pytest.approx(parents[0] + gain, abs=scale)


@settings(max_examples=60, deadline=None)
@given(spin_models(), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_what_is_put_together_is_heavier_than_all_and_no_flip_gains(model, count, seed):
    n, terms = model
    poly = polynomial(terms, n)
    states = 1 - 2 * np.random.default_rng(seed).integers(0, 2, size=(count, n)).astype(np.int8)
    before = states.copy()
    child = recombined(poly, states)
    weights = naive.polynomial_log_weights(0.0, terms, np.vstack([child, states]))
    scale = 1e-12 * (1.0 + sum(abs(t) for _, t in terms))
    assert weights[0] >= weights[1:].max() - scale
    assert (poly.flip_costs(child) >= -scale).all()
    assert (states == before).all()


def test_a_pool_has_the_state_that_its_states_make():
    """A 60x60 grid, few sweeps: each sample is wrong in places, in others than the next."""
    poly = encode(ising_grid(60, coupling=(-10, 10), field=(-1, 1), seed=2)).polynomial
    pool = sample_pool(poly, sweeps=60, seed=4, samples=50)
    assert pool.log_weights[0] >= pool.sample_log_weights.max()
    assert pool.log_weights[0] > pool.log_weights[1] + 10.0  # found by no single run


# Sampling


def z_scores(poly, terms, n, *, exact_beta, config, sweeps=6000):
    """(measured - exact) / standard error of the mean energy at each beta of a short ladder."""
    betas = np.array([0.0, 0.5, 1.0, 1.5])
    run = run_of(poly, betas, config=config, sweeps=sweeps)
    trace = run.trace[len(run.trace) // 10 :]
    blocks = np.array([b.mean(axis=(0, 1)) for b in np.array_split(trace, 20)])
    scores = []
    for k, beta in enumerate(betas):
        _, energies, probabilities = naive.spin_gibbs(terms, n, exact_beta(beta))
        error = blocks[:, k].std(ddof=1) / math.sqrt(len(blocks))
        scores.append((blocks[:, k].mean() - probabilities @ energies) / error)
    return np.array(scores)


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("clusters", [0, 1])
def test_mean_energies_at_every_temperature_are_exact(degree, clusters):
    terms = random_terms(9, degree, 20, 0.8, np.random.default_rng(20 + degree))
    poly = polynomial(terms, 9, -3.0)
    config = ParallelTempering(cluster_every=clusters, cluster_cold=0.0)
    assert np.abs(z_scores(poly, terms, 9, exact_beta=lambda b: b, config=config)).max() < 4.5
    wrong = z_scores(poly, terms, 9, exact_beta=lambda b: 1.1 * b, config=config)
    assert np.abs(wrong).max() > 6.0


def test_pool_samples_have_the_exact_marginals():
    terms = random_terms(10, 2, 25, 0.7, np.random.default_rng(4))
    pool = sample_pool(polynomial(terms, 10), sweeps=8000, samples=4000, seed=1)
    states, _, probabilities = naive.spin_gibbs(terms, 10)
    # Samples are a few sweeps apart here: treat them as independent, with room for correlation.
    exact = probabilities @ states
    error = np.sqrt((1 - exact**2) / len(pool.samples)) + 1e-9
    assert np.abs((pool.spin_means() - exact) / error).max() < 6.0
    hot = naive.spin_gibbs(terms, 10, 0.7)
    assert np.abs((pool.spin_means() - hot[2] @ hot[0]) / error).max() > 10.0
    np.testing.assert_allclose(
        pool.sample_log_weights, naive.polynomial_log_weights(0.0, terms, pool.samples), atol=1e-9
    )


def test_pool_holds_what_it_promises():
    terms = random_terms(14, 3, 40, 1.5, np.random.default_rng(9))
    pool = sample_pool(polynomial(terms, 14, 2.5), sweeps=1500, samples=300, seed=3)
    assert pool.samples.shape == (300, 14)
    assert set(np.unique(pool.samples)) == {-1, 1}
    assert (np.diff(pool.log_weights) <= 0).all()
    np.testing.assert_allclose(
        pool.log_weights, naive.polynomial_log_weights(2.5, terms, pool.states), atol=1e-9
    )
    energies = naive.polynomial_log_weights(2.5, terms, naive.all_spins(14))
    assert pool.log_weights[0] == pytest.approx(energies.max())
    assert 1.0 in pool.betas
    assert pool.betas[0] == 0.0
    assert pool.flip_rates[0] == pytest.approx(0.5, abs=0.02)
    assert (pool.swap_rates > 0.1).all()
    assert "\n" not in repr(pool)


def test_log_z_estimate_agrees_with_enumeration_within_its_error():
    scores = []
    for seed in range(8):
        terms = random_terms(10, 2 + seed % 2, 25, 1.0, np.random.default_rng(100 + seed))
        pool = sample_pool(polynomial(terms, 10, 7.0), sweeps=1500, samples=10, seed=seed)
        energies = naive.polynomial_log_weights(7.0, terms, naive.all_spins(10))
        assert 0.0 < pool.log_z_error < 0.3
        scores.append((pool.log_z_estimate - naive.log_sum_exp(energies)) / pool.log_z_error)
    assert np.abs(scores).max() < 5.0
    assert abs(np.mean(scores)) < 1.5


def test_bennett_is_exact_where_the_answer_is_known():
    assert bennett(np.full(5, 3.0), np.full(7, 3.0), 0.5) == pytest.approx(1.5)
    assert bennett(np.full(5, 1e8), np.full(7, 1e8), 1.0) == pytest.approx(1e8)
    rng = np.random.default_rng(0)  # E normal(0, 1) at beta = 0 is normal(b, 1) at b: log Z = b^2/2
    low, high = rng.normal(size=100_000), rng.normal(loc=0.8, size=100_000)
    assert bennett(low, high, 0.8) == pytest.approx(0.32, abs=0.01)
    assert math.isnan(log_z_by_tempering(np.array([0.5, 1.0]), [np.zeros((20, 2, 2))], 3, 0.0)[0])


def test_same_seed_same_pool_whatever_the_threads():
    poly = encode(ising_grid(5, coupling=(-2, 2), seed=1)).polynomial
    one, two, other = (
        sample_pool(poly, sweeps=300, samples=50, seed=seed, threads=threads)
        for seed, threads in ((5, 1), (5, 2), (6, 2))
    )
    np.testing.assert_array_equal(one.samples, two.samples)
    np.testing.assert_array_equal(one.states, two.states)
    assert one.log_z_estimate == two.log_z_estimate
    assert not np.array_equal(one.samples, other.samples)


def test_slices_do_not_change_a_run():
    poly = encode(ising_grid(4, coupling=(-2, 2), seed=1)).polynomial
    whole = run_of(poly, [0.2, 1.0], sweeps=90)
    parts = run_of(poly, [0.2, 1.0], sweeps=40)
    parts.advance(50)
    np.testing.assert_array_equal(whole.rep.spins, parts.rep.spins)
    np.testing.assert_allclose(whole.trace, parts.trace, atol=1e-10)


def test_a_disordered_and_a_cooled_start_reach_the_same_energies():
    terms = random_terms(12, 2, 30, 1.0, np.random.default_rng(8))
    poly = polynomial(terms, 12)
    betas = np.array([0.0, 0.4, 1.0])
    cooled = run_of(poly, betas, key=1)
    cooled.anneal(3)
    exact = naive.polynomial_log_weights(0.0, terms, cooled.rep.spins.T)
    np.testing.assert_allclose(cooled.rep.energy, exact, atol=1e-9)
    np.testing.assert_array_equal(cooled.rep.beta, np.tile(betas, 2))
    cooled.advance(3000)
    random = run_of(poly, betas, sweeps=3000)
    for run in (cooled, random):
        _, energies, probabilities = naive.spin_gibbs(terms, 12)
        assert run.trace[300:, :, 2].mean() == pytest.approx(probabilities @ energies, abs=0.25)


# Ladder


def test_tuned_ladder_holds_beta_one_and_exchanges_evenly():
    poly = encode(ising_grid(8, coupling=(-3, 3), seed=2)).polynomial
    config = ParallelTempering(ladder=Ladder(step=1.2, to_zero=True))
    betas = tune_ladder(Problem.build(poly), config, seed_sequence(1))
    assert betas[0] == 0.0
    assert (betas == 1.0).sum() == 1
    assert betas[-1] >= 2.0
    assert (np.diff(betas) > 0).all()
    assert (config.replicas * betas.size) % 8 == 0
    run = run_of(poly, betas, sweeps=1000)
    rates = run.swaps[0] / run.swaps[1]
    assert rates.min() > 0.15
    assert np.median(rates) == pytest.approx(math.erfc(0.6), abs=0.2)


def test_ladder_respects_its_cap_and_degenerate_models():
    poly = encode(ising_grid(12, coupling=(-5, 5), seed=2)).polynomial
    config = ParallelTempering(ladder=Ladder(max_temperatures=12))
    betas = tune_ladder(Problem.build(poly), config, seed_sequence(1))
    assert betas.size <= 12
    assert 1.0 in betas
    free = SpinPolynomial.from_terms(3, 0.0, [])
    np.testing.assert_array_equal(Ladder().geometric(free, 31), [1.0])
    np.testing.assert_array_equal(local_scales(free), np.zeros(3))
    tiny = SpinPolynomial.from_terms(2, 0.0, [((0, 1), 1e-9)])
    huge = SpinPolynomial.from_terms(2, 0.0, [((0, 1), 1e6), ((0,), 1.0)])
    for poly in (tiny, huge):
        betas = tune_ladder(Problem.build(poly), ParallelTempering(), seed_sequence(0))
        assert 1.0 in betas
        assert np.isfinite(betas).all()
        assert (np.diff(betas) > 0).all()


# Ground states


@settings(max_examples=40, deadline=None)
@given(spin_models(max_n=11), st.integers(0, 1000))
def test_tempering_finds_the_brute_force_ground_state(model, seed):
    n, terms = model
    found = ground_state(
        polynomial(terms, n, 1.0), Search(enumerate_up_to=0, sweeps=120), time_limit=None, seed=seed
    )
    energies = naive.polynomial_log_weights(1.0, terms, naive.all_spins(n))
    assert found.log_weight == pytest.approx(energies.max(), rel=1e-12, abs=1e-9)
    assert found.log_weight == pytest.approx(
        naive.polynomial_log_weights(1.0, terms, found.spins[None])[0], abs=1e-6
    )
    np.testing.assert_array_equal(found.state, (1 - found.spins) // 2)


@settings(max_examples=30, deadline=None)
@given(spin_models(max_n=8))
def test_enumeration_is_proven(model):
    n, terms = model
    found = ground_state(polynomial(terms, n), seed=0)
    energies = naive.polynomial_log_weights(0.0, terms, naive.all_spins(n))
    assert found.status is SearchStatus.OPTIMAL
    assert found.log_weight == pytest.approx(energies.max(), rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("enumerate_up_to", [0, 20])
def test_evidence_isolated_and_one_state_variables(enumerate_up_to):
    rng = np.random.default_rng(1)
    cards = [2, 1, 2, 2, 2, 2]
    factors = [
        ((0, 2), rng.normal(size=(2, 2))),
        ((2, 3), 3 * rng.normal(size=(2, 2))),
        ((1, 3), rng.normal(size=(1, 2))),
        ((4,), rng.normal(size=2)),
        ((), np.array(2.5)),
    ]
    model = FactorGraph(cards, factors, evidence={2: 1})
    states = naive.all_states(cards)
    logs = naive.log_weights(cards, factors, states)
    logs[states[:, 2] != 1] = -np.inf
    found = ground_state(model, Search(enumerate_up_to=enumerate_up_to, sweeps=60), seed=0)
    assert found.state[2] == 1
    assert found.state[1] == 0
    assert found.log_weight == pytest.approx(logs.max())
    assert naive.log_weights(cards, factors, found.state[None])[0] == pytest.approx(logs.max())


@pytest.mark.parametrize("enumerate_up_to", [0, 20])
def test_empty_and_zero_models(enumerate_up_to):
    for model, value in (
        (FactorGraph([], []), 0.0),
        (FactorGraph([2, 2], []), 0.0),
        (FactorGraph([1], [((0,), [1.5])]), 1.5),
        (FactorGraph([2], [((0,), [-np.inf, -np.inf])]), -math.inf),
    ):
        found = ground_state(model, Search(enumerate_up_to=enumerate_up_to, sweeps=20), seed=0)
        assert found.log_weight == value
        assert found.states.shape == (int(value > -math.inf), model.n_variables)
        assert (found.status is SearchStatus.ZERO) == (value == -math.inf)
        pool = sample_pool(encode(model).polynomial, sweeps=20, samples=4, seed=0)
        if value == -math.inf:
            assert pool.log_z_estimate == -math.inf
            assert len(pool.states) == 0
        else:
            n = encode(model).polynomial.n
            assert pool.log_z_estimate == pytest.approx(value + n * math.log(2))


def test_huge_couplings_and_constants_stay_finite():
    rng = np.random.default_rng(5)
    terms = random_terms(12, 2, 30, 1e6, rng)
    poly = polynomial(terms, 12, 1e5)
    pool = sample_pool(poly, sweeps=400, samples=20, seed=0)
    energies = naive.polynomial_log_weights(1e5, terms, naive.all_spins(12))
    assert pool.log_weights[0] == pytest.approx(energies.max(), rel=1e-12)
    assert math.isfinite(pool.log_z_estimate)
    for values in (pool.flip_rates, pool.swap_rates, pool.betas, pool.sample_log_weights):
        assert np.isfinite(values).all()


def test_disconnected_grids_and_agreement():
    terms = [((i, i + 1), 1.0 if i % 3 else -2.0) for i in range(0, 40, 2)]
    terms += [((i,), 0.1 * (-1) ** i) for i in range(40)]
    found = ground_state(polynomial(terms, 40), seed=0, time_limit=20)
    best = 0.0
    for i in range(0, 40, 2):
        pair = [(m, t) for m, t in terms if set(m) <= {i, i + 1}]
        shifted = [(tuple(j - i for j in m), t) for m, t in pair]
        best += naive.polynomial_log_weights(0.0, shifted, naive.all_spins(2)).max()
    assert found.log_weight == pytest.approx(best)
    assert found.status is SearchStatus.AGREED
    assert "\n" not in repr(found)


def test_target_limits_and_seeds():
    model = ising_grid(12, coupling=(-10, 10), field=(-1, 1), seed=4)
    best = ground_state(model, Search(sweeps=600, patience=math.inf), seed=0, time_limit=None)
    assert best.status is SearchStatus.LIMIT
    assert best.sweeps == 600
    again = ground_state(
        model, Search(sweeps=600, patience=math.inf), seed=0, time_limit=None, threads=1
    )
    np.testing.assert_array_equal(best.state, again.state)
    assert best.found_at == again.found_at
    early = ground_state(model, Search(target=0.9 * best.log_weight, patience=math.inf), seed=1)
    assert early.status is SearchStatus.TARGET
    assert early.log_weight >= 0.9 * best.log_weight
    assert early.sweeps < 600
    start = time.perf_counter()
    short = ground_state(model, Search(patience=math.inf), seed=2, time_limit=0.3)
    assert short.status is SearchStatus.LIMIT
    assert time.perf_counter() - start < 10.0  # loose: the machine may be busy


def test_interrupts_pass_through():
    poly = encode(ising_grid(4, seed=1)).polynomial
    runs = [run_of(poly, [0.5, 1.0], key=k) for k in range(2)]

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_copies(runs, sweeps=None, deadline=None, threads=2, finished=interrupt)
    assert runs[0].sweeps == runs[1].sweeps > 0


def test_seeds_agree_on_the_ground_state_of_a_frustrated_grid():
    poly = encode(ising_grid(16, coupling=(-10, 10), field=(-1, 1), seed=3)).polynomial
    reference = ground_state(poly, Search(sweeps=3000, patience=math.inf), seed=9, time_limit=None)
    for seed in range(3):
        found = ground_state(
            poly, Search(sweeps=1500, patience=math.inf), seed=seed, time_limit=None
        )
        assert found.log_weight == pytest.approx(reference.log_weight, rel=1e-12)


def test_wrong_parameters_are_refused():
    poly = polynomial([((0,), 1.0)], 1)
    with pytest.raises(ParameterError, match="time_limit is 0"):
        ground_state(poly, time_limit=0.0)
    with pytest.raises(ParameterError, match="never end"):
        ground_state(poly, Search(patience=math.inf), time_limit=None)
    with pytest.raises(ParameterError, match="runs is 0"):
        sample_pool(poly, runs=0)
    with pytest.raises(ParameterError, match="sweeps is 0"):
        sample_pool(poly, sweeps=0)
    with pytest.raises(ParameterError, match="replicas is 3"):
        replace(SEARCHER, replicas=3)
    with pytest.raises(ParameterError, match="restarts is 0"):
        AnnealedMeanField(restarts=0)


@pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="TIGHTZ_DATA is not set")
def test_rbm_ground_state_equals_enumeration_of_the_hidden_layer():
    path = Path(os.environ["TIGHTZ_DATA"]) / "rbm" / "rbm_mnist_tiny_15.npz"
    with np.load(path) as data:
        w, b, c = data["W"], data["visible_bias"].ravel(), data["hidden_bias"].ravel()
    hidden = naive.all_states([2] * 15)
    best = (hidden @ c + np.maximum(b + hidden @ w.T, 0.0).sum(axis=1)).max()
    found = ground_state(read_model(path), Search(sweeps=600), seed=0, time_limit=None)
    assert found.log_weight == pytest.approx(best, rel=1e-6)


# Annealed mean field


@settings(max_examples=30, deadline=None)
@given(spin_models(max_n=8), st.integers(0, 3), st.integers(0, 1000))
def test_annealed_mean_field_is_a_lower_bound_on_every_coset(model, m, seed):
    n, terms = model
    rng = np.random.default_rng(seed)
    coset = Coset.build(polynomial(terms, n), DenseParity().draw(min(m, n), n, rng))
    found = AnnealedMeanField(restarts=3, sweeps=20).project(coset, rng)
    states = naive.all_spins(n)
    logs = naive.polynomial_log_weights(0.0, terms, states)
    exact = naive.log_sum_exp(logs[coset.contains(states)])
    assert found.log_gamma <= exact + 1e-9 * (1.0 + abs(exact) if coset.feasible else 0.0)
    assert found.log_gammas.shape == (3,)
    assert (found.log_gamma == -np.inf) == (not coset.feasible)


def test_annealing_beats_plain_ascent_and_reduces_to_it():
    coset = Coset.build(
        encode(ising_grid(20, coupling=(-10, 10), field=(-1, 1), seed=0)).polynomial
    )
    plain = MeanField(restarts=8).project(coset, np.random.default_rng(1))
    annealed = AnnealedMeanField(restarts=8).project(coset, np.random.default_rng(1))
    assert annealed.log_gamma > plain.log_gamma + 100.0
    starts = np.random.default_rng(2).uniform(-1, 1, size=(3, 400))
    same = AnnealedMeanField(sweeps=0).ascend_from(coset, starts)
    np.testing.assert_array_equal(
        same.log_gammas, MeanField().ascend_from(coset, starts).log_gammas
    )
    schedule = AnnealedMeanField(sweeps=50).schedule(coset)
    assert schedule[-1] == 1.0
    assert (np.diff(schedule) > 0).all()
