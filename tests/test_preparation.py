"""What happens before any method runs: leaves, components, and everything together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.test_discrete import discrete_models, enumerated, slack
from tightz.reductions.leaves import sum_out_leaves
from tightz.reductions.preparation import prepare, solve_components


@st.composite
def forests(draw, max_variables=7):
    """Trees and isolated variables of 1 to 4 states, zeros, sometimes a triangle or a triple."""
    n = draw(st.integers(1, max_variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = rng.integers(1, 5, size=n)
    share = draw(st.sampled_from([0.0, 0.0, 0.3]))
    factors = []
    scopes = [[v] for v in range(n)] + [[v, int(rng.integers(v))] for v in range(1, n)]
    scopes += [rng.choice(n, size=k, replace=False).tolist() for k in (2, 3) if k <= n]
    for scope in scopes:
        if rng.random() < 0.75:
            table = 2.0 * rng.normal(size=cards[scope])
            table[rng.random(table.shape) < share] = -np.inf
            factors.append((rng.permutation(scope).tolist(), None))
            factors[-1] = (scope, table)
    return tz.FactorGraph(cards, factors)


def assert_same(model, reduced, lift):
    log_z, marginals = enumerated(model)
    reduced_log_z, inner = enumerated(reduced)
    if log_z == -np.inf:
        assert reduced_log_z == -np.inf
        return
    assert reduced_log_z == pytest.approx(log_z, abs=max(1e-9, slack(log_z)))
    for got, expected in zip(lift(inner), marginals, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


@given(forests())
def test_leaves_keep_z_and_marginals(model):
    step = sum_out_leaves(model)
    assert_same(model, step.reduced, step.lift_marginals)
    left = {v for scope, _ in step.reduced.factors if len(scope) > 1 for v in scope}
    degree = {v: set() for v in range(step.reduced.n_variables)}
    for scope, _ in step.reduced.factors:
        for v in scope:
            degree[v] |= set(scope) - {v}
    assert all(len(around) > 1 for around in degree.values())
    assert left == set(degree)


@given(forests(), st.integers(0, 6))
def test_components_add_up(model, log2_size):
    step = solve_components(model, log2_size)
    assert_same(model, step.reduced, step.lift_marginals)


@given(st.one_of(discrete_models(), forests()), st.sampled_from([0.0, 4.0, 16.0]))
def test_everything_together(model, log2_size):
    ready = prepare(model, log2_size=log2_size)
    assert_same(model, ready.reduced, ready.lift_marginals)
    assert (ready.reduced.cardinalities > 1).all()
    log_z, _ = enumerated(model)
    if ready.contradiction:
        assert log_z == -np.inf
    states = naive.all_states(ready.reduced.cardinalities)[:50]
    lifted = ready.lift_states(states, seed=0)
    possible = ready.reduced.log_weight(states) > -np.inf
    assert ((model.log_weight(lifted) > -np.inf) == possible)[possible].all()


def test_lifted_states_follow_the_model():
    rng = np.random.default_rng(0)
    pair = rng.normal(size=(2, 3))
    pair[1, 2] = -np.inf
    factors = [((0, 1), pair), ((1, 2), rng.normal(size=(3, 2))), ((3,), rng.normal(size=2))]
    factors += [((v, w), rng.normal(size=(2, 2))) for v, w in ((4, 5), (5, 6), (6, 4))]
    model = tz.FactorGraph([2, 3, 2, 2, 2, 2, 2], factors)
    ready = prepare(model)
    assert ready.reduced.n_variables == 0 or ready.reduced.n_variables == 3
    inner = naive.enumerate_model(ready.reduced.cardinalities, ready.reduced.factors)[0]
    weights = np.exp(
        ready.reduced.log_weight(naive.all_states(ready.reduced.cardinalities)) - inner
    )
    rows = naive.all_states(ready.reduced.cardinalities)
    drawn = rows[rng.choice(len(rows), size=20_000, p=weights)]
    states = ready.lift_states(drawn, seed=1)
    every = naive.all_states(model.cardinalities)
    exact = np.exp(model.log_weight(every) - enumerated(model)[0])
    index = np.ravel_multi_index(states.T, tuple(model.cardinalities))
    got = np.bincount(index, minlength=len(every)) / len(states)
    assert np.abs(got - exact).max() < 5 * math.sqrt(0.25 / len(states))
    assert (exact[got > 0] > 0).all()


def test_trees_and_small_parts_are_solved_at_once():
    rng = np.random.default_rng(0)
    chain = [((v, v + 1), rng.normal(size=(3, 3))) for v in range(40)]
    model = tz.FactorGraph([3] * 41, chain)
    r = tz.log_partition(model, time_limit=5, seed=0, exact=False)
    assert r.is_exact
    assert r.lower == pytest.approx(tz.exact(model).log_z, abs=1e-9)
    np.testing.assert_allclose(r.marginals, tz.exact(model).marginals, atol=1e-9)
    grid = tz.ising_grid(5, seed=0)
    assert sum_out_leaves(grid).reduced is grid
    assert solve_components(grid, 30.0).reduced is grid
