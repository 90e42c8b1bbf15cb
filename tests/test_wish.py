"""Exact MPE under parity, and WISH, against enumeration."""

from __future__ import annotations

import itertools
import math
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

import tightz as tz
from tests import naive
from tests.strategies import models_with_zeros
from tightz.bounds import Side
from tightz.errors import MissingExtraError, ParameterError
from tightz.families import PointMass, Status
from tightz.models import FactorGraph, SpinPolynomial, ising_grid
from tightz.paper.estimate import estimate
from tightz.paper.theorems import required_trials
from tightz.paper.wish import wish
from tightz.paper.wish.results import band_lower, band_upper
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity, Parities
from tightz.runtime.seeds import generator
from tightz.search.exact_mpe import ExactPointMass, StateTable

LOG_32 = math.log(32.0)


def random_problem(seed, n, m, scale=1.0):
    """A polynomial with terms of degree 1 to 4, and m parities, some of them dependent."""
    rng = np.random.default_rng(seed)
    terms = []
    for _ in range(int(rng.integers(0, 3 * n + 1))):
        size = int(rng.integers(1, min(n, 4) + 1)) if n else 0
        members = tuple(rng.choice(n, size=size, replace=False).tolist()) if n else ()
        terms.append((members, float(rng.normal() * scale)))
    matrix = rng.integers(0, 2, size=(m, n), dtype=np.uint8)
    rhs = rng.integers(0, 2, size=m, dtype=np.uint8)
    if m >= 2 and rng.random() < 0.5:  # a repeated row: rank deficient, infeasible half the time
        matrix[-1] = matrix[0]
    constant = float(rng.normal())
    return constant, terms, Parities(matrix, rhs)


def built(n, constant, terms, parities):
    poly = SpinPolynomial.from_terms(n, constant, terms)
    return Coset.build(poly, parities), poly


@given(seed=st.integers(0, 2**32), n=st.integers(0, 7), m=st.integers(0, 8))
@settings(max_examples=120, deadline=None)
def test_enumeration_and_table_equal_brute_force(seed, n, m):
    constant, terms, parities = random_problem(seed, n, m)
    coset, poly = built(n, constant, terms, parities)
    truth = naive.heaviest_in_coset(n, constant, terms, parities.matrix, parities.rhs)
    best = ExactPointMass().project(coset, np.random.default_rng(0))
    assert best.log_gamma == pytest.approx(truth, abs=1e-10)
    assert best.status is (Status.OPTIMAL if truth > -np.inf else Status.INFEASIBLE)
    assert truth <= best.log_upper <= truth + 1e-9 or truth == best.log_upper == -np.inf
    values, codes = StateTable(poly).heaviest(parities.matrix[None], parities.rhs[None])
    assert values[0] == pytest.approx(truth, abs=1e-10)
    assert (codes[0] >= 0) == (truth > -np.inf)
    if truth > -np.inf:
        state = (codes[0] >> np.arange(n)) & 1
        assert ((parities.matrix.astype(int) @ state) % 2 == parities.rhs).all()
        assert coset.contains(coset.spins_from_free(best.means[None]))[0]


@pytest.mark.parametrize("m", [0, 1, 2, 9])
def test_enumeration_across_blocks(m):
    poly = SpinPolynomial.from_factor_graph(ising_grid(4, coupling=(-2, 2), seed=3))
    codes = np.arange(2**16)
    spins = 1 - 2 * ((codes[:, None] >> np.arange(16)) & 1)
    weights = poly.log_weight(spins)
    for trial in range(3):
        parities = DenseParity().draw(m, 16, np.random.default_rng([m, trial]))
        sums = ((1 - spins) // 2) @ parities.matrix.T.astype(int) % 2
        truth = weights[(sums == parities.rhs).all(axis=1)].max()
        coset = Coset.build(poly, parities)
        best = ExactPointMass().project(coset, np.random.default_rng(0))
        assert best.log_gamma == pytest.approx(truth, abs=1e-10)
        values, _ = StateTable(poly).heaviest(parities.matrix[None], parities.rhs[None])
        assert values[0] == pytest.approx(truth, abs=1e-10)


def test_table_walks_the_coset_when_the_heaviest_states_are_all_outside():
    """A strong field and a parity that forbids its sign: none of the listed states survives."""
    n = 14
    poly = SpinPolynomial.from_terms(n, 0.0, [((i,), 10.0 if i < 4 else 0.1) for i in range(n)])
    matrix = np.eye(4, n, dtype=np.uint8)
    rhs = np.ones(4, dtype=np.uint8)  # x_i = 1, spin -1, for the four strong ones
    table = StateTable(poly)
    assert len(table._arrays[1]) < 2**n
    values, codes = table.heaviest(matrix[None], rhs[None])
    assert values[0] == pytest.approx(-40.0 + 1.0)
    assert codes[0] == 0b1111


@given(seed=st.integers(0, 2**32), n=st.integers(1, 6), m=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_cp_sat_equals_brute_force(seed, n, m):
    pytest.importorskip("ortools")
    constant, terms, parities = random_problem(seed, n, m, scale=10.0 ** (seed % 7 - 3))
    coset, _ = built(n, constant, terms, parities)
    if not coset.feasible or coset.n_free == 0:
        return
    truth = naive.heaviest_in_coset(n, constant, terms, parities.matrix, parities.rhs)
    best = ExactPointMass(enumerate_up_to=0).project(coset, np.random.default_rng(1))
    size = 1.0 + sum(abs(theta) for _, theta in terms)
    assert best.status is Status.OPTIMAL
    assert best.log_gamma == pytest.approx(truth, abs=1e-11 * size)
    assert truth - 1e-12 * size <= best.log_upper <= truth + 1e-9 * size


@pytest.mark.parametrize("time_limit", [0.0, 1e-6, 1e-3, 0.05])
@pytest.mark.parametrize("m", [2, 6])
def test_status_is_honest_when_time_is_short(time_limit, m):
    pytest.importorskip("ortools")
    poly = SpinPolynomial.from_factor_graph(ising_grid(5, 4, coupling=(-3, 3), seed=m))
    coset = Coset.build(poly, DenseParity().draw(m, 20, np.random.default_rng(m)))
    exact = ExactPointMass().project(coset, np.random.default_rng(0))
    hurried = ExactPointMass(enumerate_up_to=0, time_limit=time_limit)
    best = hurried.project(coset, np.random.default_rng(0))
    assert best.log_gamma <= exact.log_gamma + 1e-9 <= best.log_upper + 2e-9
    assert coset.contains(coset.spins_from_free(best.means[None]))[0]
    if best.status is Status.OPTIMAL:
        assert best.log_gamma == pytest.approx(exact.log_gamma, abs=1e-9)
    if time_limit <= 1e-6:
        assert best.status is Status.NOT_CONVERGED


def test_a_solver_that_claims_too_much_is_not_believed(monkeypatch):
    """Negative control: 'proven', but the bound leaves a gap, so the status is withdrawn."""
    poly = SpinPolynomial.from_factor_graph(ising_grid(3, seed=0))
    coset = Coset.build(poly)

    def boastful(coset, start, time_limit, workers, seed):
        return start, 1e9, True

    monkeypatch.setattr("tightz.search.exact_mpe._solve", boastful)
    best = ExactPointMass(enumerate_up_to=0).project(coset, np.random.default_rng(0))
    assert best.status is Status.NOT_CONVERGED
    assert best.log_upper < 1e9  # the sum of magnitudes is a better bound than the solver's


def test_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    coset = Coset.build(SpinPolynomial.from_terms(3, 0.0, [((0, 1), 1.0)]))
    with pytest.raises(MissingExtraError, match=r"pip install 'tightz\[wish\]'"):
        ExactPointMass(enumerate_up_to=2).project(coset, np.random.default_rng(0))


@pytest.mark.parametrize("coupling", [1e-3, 1e6])
def test_extreme_couplings(coupling):
    model = ising_grid(3, coupling=(-coupling, coupling), seed=5)
    poly = SpinPolynomial.from_factor_graph(model)
    weights = naive.log_weights(model.cardinalities, model.factors, naive.all_states([2] * 9))
    for solver in (ExactPointMass(), ExactPointMass(enumerate_up_to=0)):
        best = solver.project(Coset.build(poly), np.random.default_rng(0))
        assert best.status is Status.OPTIMAL
        assert best.log_gamma == pytest.approx(weights.max(), rel=1e-12)
        assert best.log_upper >= weights.max() * (1 - 1e-15)


SMALL = {
    "grid, weak": ising_grid(2, 3, coupling=(-1, 1), seed=1),
    "grid, strong": ising_grid(2, 3, coupling=(-10, 10), seed=2),
    "no factor": FactorGraph([2, 2, 2]),
    "no variable": FactorGraph([], [((), 1.5)]),
    "degree 3, evidence, one-state and isolated variables": FactorGraph(
        [2, 2, 1, 2, 2, 2],
        [
            ((0, 1, 3), np.random.default_rng(0).normal(size=8)),
            ((1, 2, 4), np.random.default_rng(1).normal(size=4)),
            ((), 2.0),
        ],
        evidence={0: 1},
    ),
    "log Z of 1e5": FactorGraph([2] * 4, [((0, 1), [1e5, 0, 0, 1e5]), ((2, 3), [0, 1, 2, 3])]),
    "three states": FactorGraph([3, 2, 3], [((0, 1), np.arange(6.0)), ((1, 2), np.ones(6))]),
    "zeros": FactorGraph([2] * 4, [((0, 1), [-np.inf, 0, 1, 2]), ((1, 2, 3), [0, -np.inf] * 4)]),
    "states and zeros": FactorGraph(
        [3, 3, 2],
        [
            ((0, 1), [-np.inf, 0, 1, 2, -np.inf, 0, 0, 1, -np.inf]),
            ((1, 2), [0, 1, -np.inf, 2, 1, 0]),
        ],
        evidence={2: 1},
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_wish_interval_contains_log_z(name):
    model = SMALL[name]
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors, model.evidence)
    result = wish(model, seed=7)
    assert result.two_sided
    assert result.confidence == 0.95
    assert result.lower <= log_z <= result.upper
    assert abs(result.log_z - log_z) <= LOG_32
    assert result.upper - result.lower == pytest.approx(2 * LOG_32, abs=1e-6)
    assert result.log_maxima.shape == (result.n + 1, required_trials(max(result.n, 1), 0.05))
    low, high = result.band
    assert low.log_z <= log_z <= high.log_z
    assert high.log_z - low.log_z < 1.5
    for bound in result.bounds:
        assert bound.log_z <= log_z + 1e-9 if bound.side is Side.LOWER else bound.log_z >= log_z
    assert "\n" not in repr(result)
    assert "two-sided" in result.summary()


@given(model=models_with_zeros(max_variables=4), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_heaviest_codes_of_any_model_equal_brute_force(model, seed):
    """Codes written out here: spare ones repeat the first states and share their weight."""
    free = [v for v in range(model.n_variables) if v not in model.evidence]
    free = [v for v in free if model.cardinalities[v] > 1]
    bits = [(int(model.cardinalities[v]) - 1).bit_length() for v in free]
    every = list(itertools.product((0, 1), repeat=sum(bits)))
    codes = np.array(every, dtype=np.int64).reshape(len(every), sum(bits))
    states = np.zeros((len(codes), model.n_variables), dtype=np.int64)
    states[:, list(model.evidence)] = list(model.evidence.values())
    shared, at = np.zeros(len(codes)), 0
    for v, width in zip(free, bits, strict=True):
        d = int(model.cardinalities[v])
        code = codes[:, at : at + width] @ (1 << np.arange(width)[::-1])
        states[:, v] = np.where(code < d, code, code - d)
        spare = 2**width - d
        shared -= np.where(states[:, v] < spare, math.log(2.0), 0.0)
        at += width
    weights = naive.log_weights(model.cardinalities, model.factors, states) + shared
    result = wish(model, trials=3, seed=seed, threads=1)
    assert result.n == sum(bits)
    for i, level in enumerate(result.levels.tolist()):
        for trial in range(3):
            drawn = DenseParity().draw(level, result.n, generator(seed, level, trial, 0))
            inside = ((codes @ drawn.matrix.T) % 2 == drawn.rhs).all(axis=1)
            top = weights[inside].max(initial=-math.inf)
            assert result.log_maxima[i, trial] == pytest.approx(top, abs=1e-9)
            assert result.log_uppers[i, trial] >= top - 1e-12


def test_cp_sat_takes_zeros_as_constraints():
    pytest.importorskip("ortools")
    rng = np.random.default_rng(5)
    factors = [
        ((i, j), np.where(rng.random((3, 2)) < 0.3, -np.inf, rng.normal(size=(3, 2))))
        for i in (0, 2, 4)
        for j in (1, 3)
    ]
    model = FactorGraph([3, 2, 3, 2, 3], factors)
    table = wish(model, trials=6, seed=2)
    solved = wish(model, trials=6, seed=2, family=ExactPointMass(enumerate_up_to=0))
    np.testing.assert_allclose(solved.log_maxima, table.log_maxima, atol=1e-9)
    assert (solved.log_uppers >= table.log_maxima).all()
    assert np.isneginf(solved.log_maxima).any()
    local = wish(model, trials=6, seed=2, family=PointMass(restarts=2, enumerate_up_to=0))
    assert (local.log_maxima <= table.log_maxima + 1e-9).all()


def test_a_model_with_zero_weight():
    result = wish(FactorGraph([2, 2], [((0,), [-np.inf, -np.inf])]), trials=3, seed=0)
    assert result.log_z == -math.inf
    assert [bound.log_z for bound in result.band] == [-math.inf, -math.inf]
    assert "-inf" in result.summary()


def test_estimate_with_point_masses_gives_the_same_table():
    """Same seed, same cosets: two routes to every maximum."""
    model = ising_grid(2, 4, coupling=(-2, 2), seed=4)
    table = wish(model, trials=12, seed=11)
    other = estimate(model, levels=range(9), trials=12, family=PointMass(restarts=1), seed=11)
    np.testing.assert_allclose(table.log_maxima, other.log_gamma, atol=1e-10)
    family = estimate(model, levels=range(9), trials=2, family=ExactPointMass(), seed=11)
    np.testing.assert_allclose(table.log_maxima[:, :2], family.log_gamma, atol=1e-10)


def test_table_route_and_coset_route_agree_and_so_do_threads():
    model = ising_grid(2, 4, coupling=(-2, 2), seed=4)
    table = StateTable(SpinPolynomial.from_factor_graph(model))
    reference = wish(model, trials=150, seed=3, threads=1)
    threaded = wish(model, trials=150, seed=3, threads=2)
    np.testing.assert_array_equal(reference.log_maxima, threaded.log_maxima)
    by_coset = wish(model, trials=10, seed=3, family=PointMass(restarts=1))
    np.testing.assert_allclose(reference.log_maxima[:, :10], by_coset.log_maxima, atol=1e-10)
    assert by_coset.unproven == 0
    copy = pickle.loads(pickle.dumps(table))  # an executor in another process
    parities = DenseParity().draw(3, 8, np.random.default_rng(0))
    system = parities.matrix[None], parities.rhs[None]
    assert copy.heaviest(*system)[0] == table.heaviest(*system)[0]


def test_unproven_optima_flip_the_flag_and_leave_valid_ends():
    model = ising_grid(2, 2, coupling=(-2, 2), seed=6)
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    proven = wish(model, seed=5)
    assert proven.two_sided
    # Local search proves nothing and knows no upper bound: only the trivial one is left.
    local = wish(model, seed=5, family=PointMass(restarts=1, enumerate_up_to=0))
    assert not local.two_sided
    assert local.unproven > 0
    assert local.lower <= proven.lower <= log_z <= proven.upper < local.upper < math.inf
    # Nothing solved at all: poor ends, both valid, and both said to be unproven optima.
    unsolved = wish(model, seed=5, family=ExactPointMass(time_limit=0.0))
    assert not unsolved.two_sided
    assert unsolved.lower < proven.lower
    assert log_z <= proven.upper < unsolved.upper < math.inf
    low, high = unsolved.band
    assert low.log_z <= log_z <= high.log_z
    late = wish(model, seed=5, trials=20, time_limit=0.0)
    assert late.unproven > 0
    assert "not proven" in late.summary()


def test_one_unproven_subproblem_is_enough_to_flip_the_flag():
    result = wish(ising_grid(2, 2, seed=0), seed=0)
    assert result.two_sided
    statuses = result.statuses.copy()
    statuses[2, 17] = Status.NOT_CONVERGED
    assert not replace(result, statuses=statuses).two_sided


def test_too_few_trials_or_levels_withhold_theorem_2():
    model = ising_grid(2, 3, coupling=(-2, 2), seed=6)
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    few = wish(model, seed=1, trials=200)
    assert not few.two_sided
    assert (few.lower, few.upper) == (-math.inf, math.inf)
    assert few.band[0].log_z <= log_z <= few.band[1].log_z < math.inf
    some = wish(model, seed=1, levels=[0, 2, 4])
    assert some.upper == math.inf
    assert -math.inf < some.lower <= log_z
    assert some.band[0].log_z <= log_z <= some.band[1].log_z


def test_a_wrong_aggregate_is_caught():
    """Negative control: the maximum over trials in place of the median leaves the factor 32."""
    model = FactorGraph([2] * 8, [((i,), [1.5, -1.5]) for i in range(8)])
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    result = wish(model, seed=2)
    assert abs(result.log_z - log_z) <= LOG_32
    wrong = logsumexp(result.log_maxima.max(axis=1) + (result.levels - 1) * math.log(2.0))
    assert wrong - log_z > LOG_32


def test_band_covers_at_its_confidence_and_a_biased_table_does_not():
    """200 runs at delta = 0.2: failures stay below 20% plus 4 standard errors (in fact far below).

    Negative control: maxima shifted up by 2 nats, as a broken solver would report, must fail.
    """
    model = ising_grid(2, 3, coupling=(-1, 1), seed=8)
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    levels, trials, delta, runs = np.arange(7), 40, 0.2, 200
    whole = wish(model, seed=21, trials=runs * trials)
    missed, caught = 0, 0
    for run in range(runs):
        table = whole.log_maxima[:, run * trials : (run + 1) * trials]
        low = band_lower(levels, table, delta)
        high = band_upper(levels, table, 6, whole.log_ceiling, delta)
        missed += not low <= log_z <= high
        caught += band_lower(levels, table + 2.0, delta) > log_z
        caught += band_upper(levels, table - 2.0, 6, whole.log_ceiling, delta) < log_z
    assert missed <= runs * (0.2 + 4 * math.sqrt(0.2 * 0.8 / runs))
    assert caught > 0.9 * 2 * runs


def test_band_is_exact_arithmetic_on_a_hand_made_table():
    """Two levels, four trials: the integral by hand."""
    levels = np.array([0, 3])
    table = np.log(np.array([[8.0, 8.0, 8.0, 8.0], [8.0, 4.0, 2.0, 1.0]]))
    delta = 2 * math.exp(-2 * 4 * 0.01)  # eps = 0.1
    # N >= 8 (share - 0.1), at least 1; N <= 7 p / (1 - p) with p = share + 0.1, at most 2^4.
    counts = [max(1.0, 8 * (share - 0.1)) for share in (0.25, 0.5, 0.75, 1.0)]
    low = (8 - 4) * counts[0] + (4 - 2) * counts[1] + (2 - 1) * counts[2] + 1 * counts[3]
    assert band_lower(levels, table, delta) == pytest.approx(math.log(low))
    odds = [min(16.0, 7 * p / (1 - p)) if p < 1 else 16.0 for p in (0.35, 0.6, 0.85, 1.1)]
    high = (8 - 4) * odds[0] + (4 - 2) * odds[1] + (2 - 1) * odds[2] + 1 * odds[3]
    assert band_upper(levels, table, 4, math.log(8.0), delta) == pytest.approx(math.log(high))


def test_parameters_are_checked():
    model = ising_grid(2, 2, seed=0)
    with pytest.raises(ParameterError, match="alpha"):
        required_trials(4, 0.05, alpha=0.1)
    with pytest.raises(ParameterError, match="delta"):
        wish(model, delta=0.0)
    with pytest.raises(ParameterError, match="trials"):
        wish(model, trials=0)
    with pytest.raises(ParameterError, match="distinct"):
        wish(model, levels=[1, 1], trials=1)
    with pytest.raises(ParameterError, match="m is 5"):
        wish(model, levels=[5], trials=1)
    with pytest.raises(ParameterError, match="enumerate_up_to"):
        ExactPointMass(enumerate_up_to=50)
    with pytest.raises(ParameterError, match="time_limit"):
        wish(model, time_limit=-1.0)


def test_on_trial_sees_every_problem_in_order():
    seen = []
    wish(ising_grid(2, 2, seed=0), trials=3, seed=0, on_trial=seen.append)
    expected = [(0, 0), *itertools.product(range(1, 5), range(3))]
    assert [(one.level, one.trial) for one in seen] == expected


def test_what_tables_lose_when_they_cancel_is_left_out():
    """Fields of 1e9 that cancel: a polynomial's coefficients are 1e-8 off, no end may be."""
    below = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        large, small = np.round(1e9 * rng.normal(size=(2, 4)), 2), rng.normal(size=(2, 4))
        single = [np.where(np.arange(4) == seed % 4, 0.0, -np.inf), np.array([0.0, -np.inf])]
        factors = [((0, 1), -large.T), ((0, 1), large.T + small.T)]
        factors += [((0,), single[0]), ((1,), single[1])]
        model = tz.FactorGraph([4, 2], factors)
        exact = math.fsum(table[seed % 4, 0] for _, table in factors[:2])
        result = tz.wish(model, trials=3, seed=seed)
        below += result.log_maxima.max() > exact
        assert all(b.log_z <= exact for b in result.bounds if b.side is tz.Side.LOWER)
        assert all(b.log_z >= exact for b in result.bounds if b.side is tz.Side.UPPER)
        assert result.log_ceiling >= exact
        assert result.log_maxima.max() - result.rounding > exact - 1e-3
    assert below  # the coefficients alone would have been wrong
