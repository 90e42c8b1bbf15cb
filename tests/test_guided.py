"""`estimate` with its aids: collapse, tempering starts, reliability pivots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import binary_models, projected_models
from tightz.families import MeanField, evaluate
from tightz.families.projection import heaviest_in_coset
from tightz.paper.trials import TrialPlan
from tightz.projections import Coset, DenseParity, Reliability
from tightz.reductions.collapse import collapse
from tightz.reductions.encoding import encode
from tightz.runtime.seeds import generator
from tightz.workspace.workspace import Workspace


@settings(max_examples=60)
@given(binary_models(max_variables=8), st.integers(0, 3), st.integers(0, 2**31))
def test_deterministic_lower_bounds_never_exceed_log_z(model, k, seed):
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    n = len(collapse(encode(model).polynomial, k).kept) if k else model.n_variables
    e = tz.estimate(
        model,
        projections=tz.Projections(restarts=4, collapse=k, search_sweeps=20),
        levels=range(min(3, n) + 1),
        trials=2,
        seed=seed,
        threads=1,
    )
    slack = 1e-9 * max(1.0, abs(log_z))
    assert e.lower <= log_z + slack
    assert (e.log_gammas <= log_z + slack).all()
    assert e.n == n


def test_search_finds_what_random_starts_miss():
    """A frustrated strong-coupling grid: far better at equal ascents, still below exact."""
    model = tz.ising_grid(10, coupling=(-10, 10), seed=3)
    exact = tz.exact(model).log_z
    plain = tz.estimate(
        model,
        projections=tz.Projections(collapse=0, search_sweeps=0),
        levels=[0, 4],
        trials=3,
        seed=0,
    )
    aided = tz.estimate(
        model, projections=tz.Projections(collapse=0), levels=[0, 4], trials=3, seed=0
    )
    assert plain.lower < exact - 10
    assert exact - 3 < aided.lower <= exact + 1e-9
    assert aided.by_level[1].median > plain.by_level[1].median + 10


def test_reliability_pivots_cost_less_than_leading_columns():
    model = tz.ising_grid(8, coupling=(-10, 10), seed=1)
    options = {"levels": [12], "trials": 5, "seed": 2}
    reliable = tz.estimate(model, projections=tz.Projections(collapse=0), **options)
    first = tz.Projections(pivots=tz.FirstColumns(), collapse=0)
    leading = tz.estimate(model, projections=first, **options)
    assert reliable.log_z > leading.log_z + 5


@pytest.mark.parametrize("k", [0, 2, 4])
def test_marginals_after_collapse_are_those_of_the_lifted_q(k):
    """One projection at m = 0: E_q p(eliminated | kept) by enumeration over the kept spins."""
    model = tz.ising_grid(3, coupling=(-1, 1), seed=5)
    e = tz.estimate(
        model, projections=tz.Projections(restarts=4, collapse=k), levels=[0], trials=1, seed=1
    )
    polynomial = encode(model).polynomial
    kept = collapse(polynomial, k).kept if k else np.arange(9)
    _, q_means = naive.enumerate_model(model.cardinalities, model.factors)
    states = naive.all_states([2] * 9)
    weights = np.exp(naive.log_weights(model.cardinalities, model.factors, states))
    up = e.marginals[kept, 0]
    q = np.prod(np.where(states[:, kept] == 0, up, 1 - up), axis=1)
    codes = states[:, kept] @ (1 << np.arange(len(kept)))
    total = np.bincount(codes, weights)
    joint = q * weights / total[codes]
    np.testing.assert_allclose(joint.sum(), 1.0)
    for v in range(9):
        assert e.marginals[v, 1] == pytest.approx(joint[states[:, v] == 1].sum(), abs=1e-9)
    assert np.abs(e.marginals - np.array(q_means)).max() < 0.3


@given(projected_models(), st.integers(0, 2**31))
def test_repaired_states_lie_in_the_coset_and_heaviest_come_first(case, seed):
    model, parities = case
    rng = np.random.default_rng(seed)
    polynomial = encode(model).polynomial
    states = rng.choice([-1, 1], size=(12, polynomial.n)).astype(np.int8)
    coset = Coset.build(polynomial, parities, Reliability(rng.random(polynomial.n)))
    if not coset.feasible:
        return
    starts = heaviest_in_coset(coset, states, 5)
    assert 1 <= len(starts) <= 5
    weights = evaluate(coset, starts.T)
    assert (np.diff(weights) <= 1e-9).all()
    assert coset.contains(coset.spins_from_free(starts)).all()
    everything = evaluate(coset, states[:, coset.free].T.astype(float))
    assert weights[0] == pytest.approx(everything.max())


def test_states_that_satisfy_the_parities_are_used_as_they_are():
    model = tz.ising_grid(4, coupling=(-10, 10), seed=0)
    polynomial = encode(model).polynomial
    guide = Workspace.build(polynomial, seed=0, collapse=0, search_sweeps=200).guide
    best = guide.states[0]
    a, _ = DenseParity().draw(5, 16, np.random.default_rng(0))
    b = (a @ ((1 - best) // 2) % 2).astype(np.uint8)
    coset = Coset.build(polynomial, (tz.projections.Parities(a, b)), Reliability(guide.reliability))
    result = MeanField(restarts=4).project(coset, np.random.default_rng(1), guide.states)
    assert result.log_gamma >= polynomial.log_weight(best)[0]


def test_polishing_never_loses_and_stays_below_log_z():
    """Annealed starts and a second basis: at least the first basis's value in every restart."""
    model = tz.ising_grid(4, coupling=(-4, 4), seed=2)
    polynomial = encode(model).polynomial
    seed = np.random.SeedSequence(3)
    options = {
        "polynomial": polynomial, "family": MeanField(restarts=3), "hashing": DenseParity(),
        "pivots": tz.FirstColumns(), "seed": seed, "pairs": np.zeros((0, 2), dtype=np.int64),
    }  # fmt: skip
    improved = 0
    for m in (0, 2, 5, 9):
        for t in range(6):
            plain = TrialPlan(**options).run((m, t))
            polished = TrialPlan(**options, polish=True).run((m, t))
            assert (polished.log_gammas >= plain.log_gammas).all()
            improved += polished.log_gamma > plain.log_gamma + 1e-6
            a, b = DenseParity().draw(m, 16, generator(seed, m, t, 0))
            states = naive.coset_states(a, b)
            if len(states):
                logs = naive.log_weights(model.cardinalities, model.factors, states)
                assert polished.log_gamma <= naive.log_sum_exp(logs) + 1e-9
    assert improved >= 3


def test_flip_costs():
    polynomial = encode(tz.ising_grid(3, seed=0)).polynomial
    rng = np.random.default_rng(0)
    s = rng.choice([-1.0, 1.0], size=9)
    for i, cost in enumerate(polynomial.flip_costs(s)):
        flipped = s.copy()
        flipped[i] *= -1
        drop = polynomial.log_weight(s)[0] - polynomial.log_weight(flipped)[0]
        assert cost == pytest.approx(drop, abs=1e-12)


def test_pairs_switch_collapse_off_and_say_when_they_cannot_be_had():
    model = tz.ising_grid(3, seed=0)
    e = tz.estimate(model, projections=tz.Projections(pairs=[(0, 1)]), levels=[0], trials=1, seed=0)
    assert e.n == 9
    with pytest.raises(tz.errors.ParameterError, match="collapse=0"):
        tz.estimate(
            model,
            projections=tz.Projections(pairs=[(0, 1)], collapse=2),
            levels=[0],
            trials=1,
            seed=0,
        )


def test_automatic_collapse_leaves_room_for_the_levels_asked_for():
    model = tz.ising_grid(4, seed=0)
    assert tz.estimate(model, trials=1, seed=0).n == 0  # summed out whole: exact
    e = tz.estimate(model, levels=[0, 5], trials=2, seed=0)
    assert 5 <= e.n < 16
    assert tz.estimate(model, levels=[16], trials=2, seed=0).n == 16
    with pytest.raises(tz.errors.ParameterError, match="m is 17"):
        tz.estimate(model, levels=[17], trials=2, seed=0)


@pytest.mark.parametrize("k", [None, 0, 3])
def test_odd_models_with_the_aids_on(k):
    for model in (
        tz.FactorGraph([]),
        tz.FactorGraph([2]),
        tz.FactorGraph([2, 2], [((0, 1), [[1.0, 0.0], [0.0, 1.0]])]),
        tz.FactorGraph([2, 2], [((0, 1), np.full((2, 2), -np.inf))]),
        tz.FactorGraph([2, 2, 2], evidence={0: 1, 1: 0, 2: 0}),
    ):
        log_z, _ = naive.enumerate_model(model.cardinalities, model.factors, model.evidence)
        e = tz.estimate(model, projections=tz.Projections(collapse=k), trials=2, seed=0)
        if log_z == -np.inf:
            assert e.lower == -np.inf
        else:
            assert e.lower <= log_z + 1e-9
