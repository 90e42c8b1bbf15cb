"""What happens before any method runs: leaves, components, and everything together."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.precise import precise_log_z
from tests.test_discrete import discrete_models, enumerated, slack
from tightz.judge import RefutedError
from tightz.judge.reductions import check_barren, check_sum
from tightz.models.observed import observe
from tightz.reductions.barren import drop_barren
from tightz.reductions.leaves import sum_out_leaves
from tightz.reductions.preparation import prepare, solve_components
from tightz.reductions.private import Private, sum_out_private


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


def test_ties_beside_variables_that_are_forced():
    """Those forced in an earlier round have numbers that the model left has no longer."""
    tie, edge = np.where(np.eye(2) > 0, 0.3, -np.inf), np.array([[0.1, 0.4], [-0.2, 0.9]])
    factors = [((0, 1), tie), ((1, 2), tie), ((2, 3), edge), ((0, 3), edge)]
    factors += [((v,), np.array([0.7, -np.inf])) for v in (4, 5)]
    model = tz.FactorGraph([2] * 6, factors)
    chain = prepare(model, log2_size=0.0)
    assert_same(model, chain.reduced, chain.lift_marginals)


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


# --- Barren variables ------------------------------------------------------------------------


@st.composite
def networks(draw, max_variables=7, most_parents=3):
    """Bayesian networks, zeros among their probabilities, sometimes scaled by constants."""
    n = draw(st.integers(1, max_variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = rng.integers(1, 4, size=n)
    zeros = draw(st.sampled_from([0.0, 0.0, 0.3]))
    factors = []
    for v in range(n):
        count = int(rng.integers(0, min(v, most_parents) + 1))
        parents = rng.choice(v, size=count, replace=False).tolist() if count else []
        table = rng.dirichlet(np.ones(cards[v]), size=tuple(cards[parents]))
        table = np.where(rng.random(table.shape) < zeros, 0.0, table)
        table[..., 0] += 1.0 - table.sum(axis=-1)
        with np.errstate(divide="ignore"):
            logs = np.log(table) + draw(st.sampled_from([0.0, 0.0, 3.7, -200.0]))
        order = rng.permutation(len(parents) + 1)
        scope = np.array([*parents, v])[order].tolist()
        factors.append((scope, logs.transpose(order)))
    observed = rng.choice(n, size=int(rng.integers(0, n)), replace=False).tolist()
    return tz.FactorGraph(cards, factors), {v: int(rng.integers(cards[v])) for v in observed}


@given(networks())
def test_a_network_without_evidence_is_empty(case):
    model, _ = case
    ready = prepare(model)
    assert ready.reduced.n_variables == 0
    log_z, marginals = enumerated(model)
    assert ready.reduced.log_tables.sum() == pytest.approx(log_z, abs=1e-9)
    assert abs(ready.reduced.log_tables.sum() - log_z) <= ready.rounding + 1e-12 * abs(log_z)
    for got, expected in zip(ready.lift_marginals([]), marginals, strict=True):
        assert np.abs(got - expected).max() < 6 * math.sqrt(0.25 / 20_000)  # counted from draws


@given(networks())
def test_what_is_observed_keeps_its_ancestors_only(case):
    model, evidence = case
    model = model.with_evidence(evidence)
    log_z, marginals = enumerated(model)
    step = drop_barren(observe(model).reduced)
    if log_z == -np.inf:
        assert enumerated(step.reduced)[0] == -np.inf
        return
    assert enumerated(step.reduced)[0] == pytest.approx(log_z, abs=max(1e-9, slack(log_z)))
    inner = enumerated(step.reduced)[1]
    kept = observe(model).kept[step.kept]
    for got, v in zip(inner, kept.tolist(), strict=True):
        np.testing.assert_allclose(got, marginals[v], atol=1e-6)


def test_states_of_barren_variables_follow_the_model():
    rng = np.random.default_rng(3)
    cards = [2, 3, 2, 3]
    tables = [((0,), 2), ((0, 1), 3), ((0, 1, 2), 2), ((2, 1, 3), 3)]
    factors = []
    for scope, _ in tables:
        shape = [cards[v] for v in scope]
        factors.append((scope, np.log(rng.dirichlet(np.ones(shape[-1]), size=tuple(shape[:-1])))))
    model = tz.FactorGraph(cards, factors)
    step = drop_barren(model)
    assert len(step.gone) == 4
    assert not step.lifts_exactly
    drawn = step.lift_states(np.zeros((40_000, 0), dtype=np.int64), np.random.default_rng(0))
    every = naive.all_states(model.cardinalities)
    exact = np.exp(model.log_weight(every) - enumerated(model)[0])
    got = np.bincount(np.ravel_multi_index(drawn.T, tuple(cards)), minlength=len(every)) / 40_000
    assert np.abs(got - exact).max() < 5 * math.sqrt(0.25 / 40_000)


def test_what_does_not_sum_to_a_constant_stays():
    rows = np.log([[0.5, 0.5], [0.25, 0.75 + 1e-9]])
    almost = tz.FactorGraph([2, 2], [((0, 1), rows), ((0,), [0.1, 0.3])])
    assert drop_barren(almost).reduced is almost


def test_the_judge_refuses_variables_that_are_not_barren():
    rows = np.log([[0.5, 0.5], [0.25, 0.75]])
    model = tz.FactorGraph([2, 2], [((0, 1), rows), ((0,), np.log([0.4, 0.6]))])
    honest = drop_barren(model)
    check_barren(model, honest.reduced, [(b.variable, b.factor) for b in honest.gone], 1e-12)
    empty = tz.FactorGraph([], [((), 0.0)])
    with pytest.raises(RefutedError, match="no barren one"):  # variable 0 is named twice
        check_barren(model, empty, [(0, 0), (1, 1)], 1e-12)
    tilted = tz.FactorGraph([2, 2], [((0, 1), rows + np.array([[0.0], [1e-3]]))])
    lone = tz.FactorGraph([2], [((), 0.0)])
    with pytest.raises(RefutedError, match="changed the model"):
        check_barren(tilted, lone, [(1, 0)], 1e-12)
    wrong = tz.FactorGraph([], [((), 0.1)])
    with pytest.raises(RefutedError, match="changed the model"):
        check_barren(model, wrong, [(1, 0), (0, 1)], 1e-12)
    with pytest.raises(RefutedError, match="still names them"):
        check_barren(model, model, [(1, 0)], 1e-12)


def test_log_partition_of_a_wide_network_without_evidence():
    """Too wide to eliminate in the time; barren all the same, marginals from exact draws."""
    rng = np.random.default_rng(0)
    n = 150
    factors = [((v,), np.log([0.3, 0.7])) for v in range(20)]
    for v in range(20, n):
        parents = rng.choice(v, size=4, replace=False).tolist()
        factors.append(([*parents, v], np.log(rng.dirichlet([1.0, 1.0], size=(2, 2, 2, 2)))))
    model = tz.FactorGraph([2] * n, factors)
    r = tz.log_partition(model, time_limit=5, seed=0)
    assert r.is_exact
    assert r.width < 1e-9
    assert r.lower <= 0.0 <= r.upper
    assert all(abs(m.sum() - 1.0) < 1e-9 for m in r.marginals)
    np.testing.assert_allclose(r.marginals[0], [0.3, 0.7], atol=1e-12)
    observed = tz.log_partition(model.with_evidence({30: 1}), time_limit=5, seed=0)
    truth = tz.exact(prepare(model.with_evidence({30: 1})).reduced).log_z
    assert observed.lower <= truth <= observed.upper
    assert observed.is_exact


@st.composite
def relational(draw):
    """Things of two or three states, and for pairs of them a fact that one table alone names."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    things = draw(st.integers(2, 3))
    pairs = [(i, j) for i in range(things) for j in range(things) if i != j][:5]
    cards = rng.integers(2, 4, size=things + len(pairs))
    share = draw(st.sampled_from([0.0, 0.3]))
    twice = np.repeat(np.arange(len(cards)), 2)  # up to two tables of its own for a variable
    factors = [((v,), rng.normal(size=cards[v])) for v in twice if rng.random() < 0.6]
    for fact, (i, j) in enumerate(pairs, start=things):
        scope = rng.permutation([i, j, fact])
        table = 3.0 * rng.normal(size=tuple(cards[scope]))
        factors.append((scope, np.where(rng.random(table.shape) < share, -np.inf, table)))
    return tz.FactorGraph(cards, factors), len(pairs)


@given(relational())
def test_private_variables_keep_z_and_draw_back(case):
    model, count = case
    step = sum_out_private(model, fewest=1)
    private = count >= 0.5 * model.n_variables
    assert step.reduced.n_variables == model.n_variables - (count if private else 0)
    log_z, _ = enumerated(model)
    assert enumerated(step.reduced)[0] == pytest.approx(log_z, abs=1e-9)
    assert step.rounding < 1e-9
    if not private or log_z == -np.inf:
        return
    check_sum(model, step.reduced, step.kept, step.rounding)
    rng = np.random.default_rng(0)
    states = naive.all_states(step.reduced.cardinalities)
    weights = step.reduced.log_weight(states)
    heavy = states[[int(weights.argmax())]]
    drawn = step.lift_states(np.repeat(heavy, 4000, axis=0), rng)
    assert (drawn[:, step.kept] == heavy).all()
    assert (model.log_weight(drawn) > -np.inf).all()
    held = model.with_evidence(dict(zip(step.kept.tolist(), heavy[0].tolist(), strict=True)))
    for v, expected in enumerate(enumerated(held)[1]):
        seen = np.bincount(drawn[:, v], minlength=len(expected)) / 4000
        np.testing.assert_allclose(seen, expected, atol=0.05)


def test_parts_are_solved_within_the_rounding():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        large = 1e6 * rng.random(3)
        factors = [((2 * k, 2 * k + 1), x + rng.normal(size=(3, 3))) for k, x in enumerate(large)]
        model = tz.FactorGraph([3] * 6, [*factors, ((), -large.sum())])
        step = solve_components(model, 4.0)
        assert len(step.solved) == 3
        off = precise_log_z(step.reduced) - precise_log_z(model)
        assert abs(off) <= Decimal(step.rounding) < 1e-6
        assert off


def test_private_variables_are_summed_within_the_rounding():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scopes = [(0, 1, 2 + k) for k in range(3)]
        factors = [(s, rng.normal(size=(2, 2, 3))) for s in scopes]
        large = 1e6 * rng.random(size=(3, 1))
        factors += [((2 + k,), large[k] + rng.normal(size=3)) for k in range(3)]
        model = tz.FactorGraph([2, 2, 3, 3, 3], [*factors, ((), -large.sum())])
        step = sum_out_private(model, fewest=1)
        assert len(step.gone) == 3
        off = precise_log_z(step.reduced) - precise_log_z(model)
        assert abs(off) <= Decimal(step.rounding) < 1e-6
        assert off


def test_private_variables_go_where_most_are_such_and_marginals_stay_exact():
    """A chain of 150 rules over a hidden path: summed exactly, marginals with all variables in."""
    rng = np.random.default_rng(3)
    n = 150
    factors = [((i, i + 1, n + 1 + i), rng.normal(size=(2, 2, 2))) for i in range(n)]
    model = tz.FactorGraph([2] * (2 * n + 1), factors)
    steps = prepare(model).steps
    assert not any(isinstance(step, Private) for step in steps)  # 150 of 301 are not most
    wide = tz.FactorGraph(
        [2] * (2 * n + 2), [*factors, ((0, n, 2 * n + 1), rng.normal(size=(2, 2, 2)))]
    )
    assert any(isinstance(step, Private) for step in prepare(wide).steps)
    assert not any(isinstance(s, Private) for s in prepare(wide, barren=False).steps)
    result = tz.log_partition(wide, time_limit=20, seed=0)
    reference = tz.exact(wide)
    assert result.is_exact
    assert result.lower == pytest.approx(reference.log_z, abs=1e-8)
    for got, expected in zip(result.marginals, reference.marginals, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-8)
