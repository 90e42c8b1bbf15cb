"""Exact log Z and marginals of models made to overflow, underflow and cancel; rounding bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests import hostile, naive
from tightz.elimination.conditioning import ConditionedElimination, Cutset
from tightz.elimination.exact import exact
from tightz.elimination.exact.planning import build_plan
from tightz.elimination.exact.run import Elimination
from tightz.elimination.exact.schedule import checkpointed_steps
from tightz.elimination.exact.slices import Sliced, run_slices
from tightz.judge.elimination import second_log_z
from tightz.models.builders import ising, ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.collapse import collapse
from tightz.reductions.leaves import sum_out_leaves

UNIT = 2.0**-53


def hostile_models(seeds):
    for seed in seeds:
        cards, factors = hostile.model(np.random.default_rng(seed))
        yield seed, cards, factors, hostile.truth(cards, factors)


def marginal_slack(factors, log_z, cards):
    """1e-8, and what float64 loses where no state avoids the deep entries of the tables."""
    depth = sum(np.max(t) for _, t in factors) - log_z + math.log(np.prod(cards))
    return 1e-8 + 8 * UNIT * depth


def assert_right(seed, cards, factors, truth, log_z, marginals, factor_marginal):
    slack = marginal_slack(factors, log_z, cards)
    for v, found in enumerate(marginals):
        gap = np.abs(found - truth.marginal([v])).max()
        assert gap <= slack, f"seed {seed}, variable {v}: off by {gap}"
    for f, (scope, _) in enumerate(factors):
        gap = np.abs(factor_marginal(f) - truth.marginal(scope)).max()
        assert gap <= slack, f"seed {seed}, factor {f}: off by {gap}"


def test_hostile_models_against_enumeration():
    """Marginals of variables and factors, and log Z within its rounding; the bound is not idle."""
    ratios = []
    for seed, cards, factors, truth in hostile_models(range(2000)):
        result = exact(FactorGraph(cards, factors))
        if truth is None:
            assert result.log_z == -math.inf
            assert result.rounding == 0.0
            assert all(np.isnan(m).all() for m in result.marginals)
            continue
        error = truth.error(result.log_z)
        assert error <= result.rounding, f"seed {seed}"
        assert result.bound.rounding == result.rounding
        ratios.append(result.rounding / max(error, UNIT * abs(result.log_z), 1e-17))
        assert_right(
            seed, cards, factors, truth, result.log_z, result.marginals, result.factor_marginal
        )
    assert np.median(ratios) < 100
    assert np.quantile(ratios, 0.99) < 1000


@pytest.mark.parametrize("scale", [100.0, 1e3, 1e5])
def test_strong_couplings(scale):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        half = np.triu(scale * rng.normal(size=(9, 9)), 1)
        model = ising(half + half.T)
        truth = hostile.truth(model.cardinalities, list(model.factors))
        result = exact(model)
        for v, found in enumerate(result.marginals):
            np.testing.assert_allclose(found, truth.marginal([v]), rtol=0, atol=1e-8)
        assert truth.error(result.log_z) <= result.rounding


@pytest.mark.parametrize("depth", [300.0, 450.0, 600.0, 640.0])
def test_soft_constraints_between_binary_variables(depth):
    """One message and one factor a bucket, near the end of float64's range: beliefs overflowed."""
    for seed in range(150):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(4, 11))
        factors = []
        for _ in range(int(rng.integers(n, 3 * n))):
            soft, weak = -depth * rng.random((2, 2)), rng.normal(size=(2, 2))
            table = np.where(rng.random((2, 2)) < 0.5, soft, weak)
            factors.append((rng.permutation(n)[:2].tolist(), table))
        truth = hostile.truth([2] * n, factors)
        result = exact(FactorGraph([2] * n, factors))
        assert truth.error(result.log_z) <= result.rounding
        for v, found in enumerate(result.marginals):
            np.testing.assert_allclose(found, truth.marginal([v]), rtol=0, atol=1e-8)


@pytest.mark.parametrize("cuts", [(2,), (3,), (2, 2)])
def test_any_order_and_recomputation(cuts):
    for seed, cards, factors, truth in hostile_models(range(5000, 5120)):
        if truth is None:
            continue
        model = FactorGraph(cards, factors)
        order = np.random.default_rng(seed).permutation(len(cards))
        plan = build_plan(model, order, "random")
        run = Elimination(model, plan)
        run.run(list(checkpointed_steps(plan.buckets, plan.sizes(), cuts)))
        assert truth.error(run.log_z) <= run.rounding, f"seed {seed}"

        def table(f, run=run, model=model):
            first, last = model.table_ptr[f : f + 2]
            return run.factor_marginals[first:last].reshape(model.factor(f).log_table.shape)

        assert_right(seed, cards, factors, truth, run.log_z, run.marginals, table)
        forward = Elimination(model, plan)
        forward.run(plan.log_z_schedule())
        assert truth.error(forward.log_z) <= forward.rounding, f"seed {seed}"


def test_slices():
    """Every variable in turn is sliced: log Z, rounding and marginals as without."""
    for seed, cards, factors, truth in hostile_models(range(7000, 7200)):
        model = FactorGraph(cards, factors)
        v = seed % len(cards)
        inner = model.with_evidence({v: 0}).condition()
        plan = build_plan(inner, np.arange(inner.n_variables), "natural")
        sliced = Sliced((v,), inner, plan)
        log_z, rounding, singles, tables = run_slices(model, sliced, 1 << 30, marginals=True)
        if truth is None:
            assert log_z == -math.inf
            continue
        assert truth.error(log_z) <= rounding, f"seed {seed}"

        def table(f, tables=tables, model=model):
            first, last = model.table_ptr[f : f + 2]
            return tables[first:last].reshape(model.factor(f).log_table.shape)

        assert_right(seed, cards, factors, truth, log_z, singles, table)
        for single in singles:
            assert single.sum() == pytest.approx(1.0, abs=1e-12)


def test_pseudo_zeros_cost_no_rounding_where_they_are_avoided():
    grid = ising_grid(4, seed=0)
    wall = np.array([[0.0, -1e30], [-1e30, 0.0]])
    factors = [*grid.factors, ((0, 5), wall), ((5, 10), wall)]
    result = exact(FactorGraph(grid.cardinalities, factors))
    truth = hostile.truth(grid.cardinalities, factors)
    assert truth.error(result.log_z) <= result.rounding < 1e-12
    walled = FactorGraph([2, 2], [((0, 1), np.full((2, 2), -1e30) + np.eye(2))])
    assert exact(walled).rounding >= 1e30 * UNIT  # no state avoids it: the bound says so


def test_a_large_grid_has_a_small_rounding():
    result = exact(ising_grid(16, coupling=(-10, 10), seed=0), marginals=False)
    assert 0.0 < result.rounding < 1e-11


def test_second_elimination_and_conditioning():
    for seed, cards, factors, truth in hostile_models(range(9000, 9800)):
        rng = np.random.default_rng(seed)
        model = FactorGraph(cards, factors)
        value, rounding = second_log_z(model, 10**6)
        if truth is None:
            assert (value, rounding) == (-math.inf, 0.0)
        else:
            assert truth.error(value) <= rounding, f"seed {seed}"
        n = len(cards)
        held = np.sort(rng.permutation(n)[: rng.integers(0, n)])
        rest = rng.permutation(np.setdiff1d(np.arange(n), held))
        given = ConditionedElimination(model, Cutset(held, rest, 0.0))
        state = np.array([rng.integers(c) for c in cards])
        assert given.audit(state)
        value = given.log_z(state)
        ties = [((v,), np.where(np.arange(cards[v]) == state[v], 0.0, -np.inf)) for v in held]
        part = hostile.truth(cards, [*factors, *ties])
        if part is None:
            assert value == -math.inf
        else:
            assert part.error(value) <= given.rounding, f"seed {seed}"


def test_second_elimination_says_when_it_is_too_large():
    assert second_log_z(ising_grid(6, seed=0), 8) is None
    assert second_log_z(FactorGraph([3, 2]), 8)[0] == pytest.approx(math.log(6))
    assert second_log_z(FactorGraph([]), 8) == (0.0, 0.0)
    model = ising_grid(5, seed=1).with_evidence({3: 1, 12: 0})
    value, rounding = second_log_z(model, 10**4)
    result = exact(model)
    assert abs(value - result.log_z) <= rounding + result.rounding < 1e-11


def test_leaves_say_their_rounding():
    for seed, cards, factors, _ in hostile_models(range(11000, 12000)):
        factors = [f for f in factors if len(f[0]) <= 2]
        done = sum_out_leaves(FactorGraph(cards, factors))
        if not done.leaves:
            assert done.rounding == 0.0
            continue
        before = hostile.truth(cards, factors)
        after = hostile.truth(done.reduced.cardinalities, list(done.reduced.factors))
        if before is None:
            assert after is None
            continue
        moved = np.longdouble(before.high) - after.high + (np.longdouble(before.low) - after.low)
        assert abs(moved + (before.rest - after.rest)) <= done.rounding, f"seed {seed}"


def test_collapse_says_its_rounding():
    """At every kept state the remainder is within `dropped` of the sum over the others."""
    for seed in range(600):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 10))
        scale = rng.choice([0.1, 1.0, 10.0, 1e3, 1e6, 1e9])
        terms = [
            (np.sort(rng.permutation(n)[: rng.integers(0, 5)]).tolist(), scale * rng.normal())
            for _ in range(int(rng.integers(1, 3 * n)))
        ]
        poly = SpinPolynomial.from_terms(n, float(scale * rng.normal()), terms)
        done = collapse(poly, int(rng.integers(0, 8)))
        whole, left = as_tables(poly), as_tables(done.polynomial)
        kept = naive.all_spins(done.kept.size)
        for row in kept if len(kept) <= 16 else kept[rng.permutation(len(kept))[:16]]:
            ties = [
                ((v,), np.array([0.0, -np.inf])[:: int(s)])
                for v, s in zip(done.kept.tolist(), row.tolist(), strict=True)
            ]
            own = [((k,), t) for k, (_, t) in enumerate(ties)]
            before = hostile.truth([2] * n, [*whole, *ties])
            after = hostile.truth([2] * done.kept.size, [*left, *own])
            moved = np.longdouble(before.high) - after.high
            moved += np.longdouble(before.low) - after.low + (before.rest - after.rest)
            assert abs(moved) <= done.dropped, f"seed {seed}"


def as_tables(poly):
    """Every term as a log table, spin +1 first."""
    tables = [((), poly.constant)]
    for a in range(poly.n_terms):
        members = poly.spins[poly.ptr[a] : poly.ptr[a + 1]].tolist()
        sign = np.prod(naive.all_spins(len(members)), axis=1).reshape([2] * len(members))
        tables.append((tuple(members), poly.theta[a] * sign))
    return tables
