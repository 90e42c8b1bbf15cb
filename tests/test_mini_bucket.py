"""Weighted mini-bucket bounds against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from tests import naive
from tests.called import called
from tightz.bounds import Proof, Side
from tightz.elimination.buckets import bucket_tree
from tightz.elimination.exact import exact, plan
from tightz.elimination.order import Order, Orders
from tightz.errors import ParameterError, ResourceError
from tightz.models.builders import ising, ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket import (
    MiniBucket,
    MiniBucketStatus,
    mini_bucket,
    mini_bucket_bounds,
)
from tightz.uppers.mini_bucket.descent import Descent
from tightz.uppers.mini_bucket.kernels import exp_chunk, log1p_chunk
from tightz.uppers.mini_bucket.partition import Partition, partition
from tightz.uppers.mini_bucket.passes import TILE, _sum_pairs, _sum_rows, backward, forward

SIDES = (Side.UPPER, Side.LOWER)


@st.composite
def random_models(draw, max_zeros=0.3, scale=4.0):
    """(model, exact log Z): 1 to 4 states, arity up to 4, zeros, evidence, isolated variables."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, 7))
    cards = rng.integers(1, 5, size=n)
    zeros = draw(st.sampled_from([0.0, 0.0, max_zeros]))
    spread = draw(st.sampled_from([0.3, scale, 10 * scale]))
    factors = []
    for _ in range(draw(st.integers(0, 9))):
        scope = rng.choice(n, size=rng.integers(0, min(4, n) + 1), replace=False)
        table = spread * rng.normal(size=tuple(cards[scope]))
        factors.append((tuple(scope), np.where(rng.random(table.shape) < zeros, -np.inf, table)))
    seen = {int(v): int(rng.integers(cards[v])) for v in range(n) if rng.random() < 0.15}
    log_z, _ = naive.enumerate_model(cards, factors, seen)
    return FactorGraph(cards, factors, evidence=seen), log_z


def slack(log_z: float, scale: float = 1e3) -> float:
    return 1e-12 * max(scale, abs(log_z) if np.isfinite(log_z) else 0.0)


@settings(max_examples=150, deadline=None)
@given(random_models(), st.integers(1, 6), st.sampled_from(list(Order)))
def test_every_iterate_is_an_upper_bound(case, ibound, order):
    model, log_z = case
    config = MiniBucket(ibound, iterations=12, tol=0.0, order=order)
    result = mini_bucket(model, config, orders=Orders(model, plan(model).variables))
    assert not np.isnan(result.iterates).any()
    assert (result.iterates >= log_z - slack(log_z)).all()
    assert (np.diff(result.history) <= 0).all() or log_z == -np.inf
    assert result.log_z == pytest.approx(result.history[-1], abs=1e-9)
    if result.side is Side.BOTH:
        assert result.log_z == pytest.approx(log_z, abs=1e-10 * max(1, abs(log_z)))


@settings(max_examples=150, deadline=None)
@given(random_models(max_zeros=0.05), st.integers(1, 6))
def test_every_iterate_is_a_lower_bound(case, ibound):
    model, log_z = case
    result = mini_bucket(model, MiniBucket(ibound, iterations=12, tol=0.0, side=Side.LOWER))
    assert not np.isnan(result.iterates).any()
    assert (result.iterates <= log_z + slack(log_z)).all()
    assert (np.diff(result.history[np.isfinite(result.history)]) >= 0).all()


@settings(max_examples=60, deadline=None)
@given(random_models(max_zeros=0.0), st.integers(1, 5))
def test_padding_alone_changes_no_bound(case, ibound):
    """Until costs are shifted no table depends on what was added to it."""
    orders = Orders(case[0])
    model, order = orders.model, orders.cutting(ibound + 1.0)
    wide = partition(model, order, ibound)
    narrow = Partition(
        bucket_tree(orders.scopes, order, log2_card=orders.log2_card, log2_table=ibound + 1),
        model,
        wide.cardinalities,
    )
    assert wide.table_sizes.sum() >= narrow.table_sizes.sum()
    bounds = [Descent(model, parts).best for parts in (wide, narrow)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(random_models())
def test_exact_once_nothing_is_cut(case):
    model, log_z = case
    for side in SIDES:
        result = mini_bucket(model, MiniBucket(14, side=side))
        assert result.status is MiniBucketStatus.EXACT
        assert result.side is Side.BOTH
        assert result.log_z == pytest.approx(log_z, abs=1e-10 * max(1, abs(log_z)))


def frustrated(seed: int = 3) -> tuple[FactorGraph, float]:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.normal(size=(10, 10)), 1)
    model = ising(upper + upper.T, rng.normal(size=10))
    log_z, _ = naive.enumerate_model(model.cardinalities, list(model.factors))
    return model, log_z


@pytest.mark.parametrize("side", SIDES)
def test_optimisation_tightens(side):
    model, log_z = frustrated()
    result = mini_bucket(model, MiniBucket(4, iterations=60, order=Order.MIN_FILL, side=side))
    assert len(result.history) > 5
    assert abs(result.log_z - log_z) < 0.8 * abs(result.iterates[0] - log_z)


def test_descent_reaches_the_least_bound():
    """The bound is convex in the cost shifts: a general-purpose optimiser finds nothing lower."""
    model = ising_grid(4, coupling=(-3, 3), field=(-1, 1), seed=0)
    parts = partition(model, Orders(model)[Order.MIN_FILL], 2)
    run = Descent(model, parts)
    for _ in range(200):
        run.advance()
    rival = Descent(model, parts)
    skel, tables = rival._skeleton, rival._tables
    clean, at = tables.own.copy(), skel.shift_ptr

    def bound(x):
        tables.own[:] = clean
        for pair, (i, j) in enumerate(skel.pairs):
            scopes = [parts.cliques[i], parts.cliques[j]]
            shared = [v for v in scopes[0] if v in scopes[1]]
            shift = x[at[pair] : at[pair + 1]].reshape([2] * len(shared))
            for c, sign in ((i, 1.0), (j, -1.0)):
                scope = parts.own_scopes[c]
                own = tables.own[skel.own_ptr[c] : skel.own_ptr[c + 1]].reshape([2] * len(scope))
                own += sign * shift.reshape([2 if v in shared else 1 for v in scope])
        logits = x[at[-1] :]
        for b in range(len(parts.order)):
            cut = slice(parts.bucket_ptr[b], parts.bucket_ptr[b + 1])
            tables.weights[cut] = np.exp(logits[cut]) / np.exp(logits[cut]).sum()
        return forward(skel, tables)

    best = minimize(bound, np.zeros(at[-1] + len(parts.cliques)), method="L-BFGS-B").fun
    assert bound(np.zeros(at[-1] + len(parts.cliques))) == pytest.approx(run.iterates[0])
    assert run.best == pytest.approx(best, abs=2e-3)
    assert run.best < run.iterates[0] - 0.1


def test_descent_leaves_the_model_unchanged():
    """Cost shifts move tables among cliques: their sum over a joint state stays log p~."""
    model, _ = frustrated()
    run = Descent(model, partition(model, Orders(model)[Order.MIN_FILL], 3))
    for _ in range(20):
        run.advance()
    states = naive.all_states(model.cardinalities)[::37]
    total = np.zeros(len(states))
    skel, own = run._skeleton, run._tables.own
    for c, scope in enumerate(run.parts.own_scopes):
        table = own[skel.own_ptr[c] : skel.own_ptr[c + 1]].reshape([2] * len(scope))
        total += table[tuple(states[:, v] for v in scope)]
    assert total == pytest.approx(model.log_weight(states), abs=1e-9)


def test_a_step_too_long_is_taken_back():
    """On this strong grid the undamped fixed point makes the bound worse; the best one is kept."""
    model = ising_grid(8, coupling=(-10, 10), field=(-1, 1), seed=0)
    result = mini_bucket(model, MiniBucket(2, iterations=30, order=Order.MIN_FILL))
    assert (np.diff(result.iterates) > 0).any()
    assert result.log_z == pytest.approx(result.iterates.min(), abs=1e-9)


def test_zeros_travel_between_cliques():
    """Contradictions that the first pass overlooks are found by ruling states out everywhere."""
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        scopes = [(i, j) for i in range(6) for j in range(i)]
        tables = [np.where(rng.random((3, 3)) < 0.45, -np.inf, 0.0) for _ in scopes]
        factors = list(zip(scopes, tables, strict=True))
        result = mini_bucket(FactorGraph([3] * 6, factors), MiniBucket(2, order=Order.MIN_FILL))
        if result.log_z == -np.inf:
            assert naive.enumerate_model([3] * 6, factors)[0] == -np.inf
            assert result.side is Side.BOTH
            found += result.iterates[0] > -np.inf
    assert found > 0


def test_lower_bound_with_zeros_may_be_vacuous_and_says_so():
    table = np.where(np.eye(3, dtype=bool), -np.inf, 0.0)
    model = FactorGraph([3] * 5, [((i, j), table) for i in range(5) for j in range(i)])
    result = mini_bucket(model, MiniBucket(1, side=Side.LOWER))
    assert result.log_z == -np.inf
    assert result.status is MiniBucketStatus.VACUOUS
    assert "raise ibound" in result.summary()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("model", "log_z"),
    [
        (FactorGraph([]), 0.0),
        (FactorGraph([], [((), 2.5)]), 2.5),
        (FactorGraph([3, 1, 2]), np.log(6)),
        (FactorGraph([2], [((), 1.0), ((), -np.inf)]), -np.inf),
        (FactorGraph([2, 2], [((0,), [-np.inf, -np.inf])]), -np.inf),
        (FactorGraph([2, 2], [((0, 1), np.zeros((2, 2)))], evidence={0: 1, 1: 0}), 0.0),
    ],
    ids=["empty", "constant", "no factors", "zero constant", "zero table", "all observed"],
)
def test_corner_models(model, log_z, side):
    result = mini_bucket(model, MiniBucket(3, side=side))
    assert result.log_z == pytest.approx(log_z, abs=1e-12)
    assert result.side is Side.BOTH


@pytest.mark.parametrize("strength", [1e3, 1e6])
def test_huge_couplings_neither_overflow_nor_lose_the_side(strength):
    model = ising_grid(4, coupling=(-strength, strength), field=(-1, 1), seed=1)
    log_z, _ = naive.enumerate_model(model.cardinalities, list(model.factors))
    upper = mini_bucket(model, MiniBucket(2, iterations=30)).log_z
    lower = mini_bucket(model, MiniBucket(2, iterations=30, side=Side.LOWER)).log_z
    assert lower - 1e-13 * strength * 100 <= log_z <= upper + 1e-13 * strength * 100
    assert np.isfinite([lower, upper]).all()


def test_memory_is_refused_in_advance_with_figures():
    model = ising_grid(20, seed=0)
    with pytest.raises(ResourceError, match=r"ibound 18 needs .* max_memory allows 1 MB.* ibound"):
        mini_bucket(model, MiniBucket(18, max_memory="1MB"))
    result = mini_bucket(model, MiniBucket(6, iterations=1, max_memory="1MB"))
    assert result.peak_bytes <= 1_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"ibound": 0},
        {"ibound": 99},
        {"iterations": -1},
        {"tol": -1.0},
        {"side": Side.BOTH},
        {"time_limit": -1.0},
        {"max_memory": "much"},
    ],
)
def test_parameters_out_of_range(wrong):
    with pytest.raises(ParameterError):
        MiniBucket(**wrong)


@pytest.mark.parametrize("side", SIDES)
def test_stream_tightens_to_the_exact_value(side):
    model = ising_grid(5, coupling=(-2, 2), seed=2)
    log_z = mini_bucket(model, MiniBucket(12)).log_z
    sign = 1.0 if side is Side.UPPER else -1.0
    bounds = list(mini_bucket_bounds(model, side=side, ibounds=[1, 2, 3, 4, 5, 6, 7]))
    assert bounds[0].side is side
    assert bounds[-1].side is Side.BOTH
    assert bounds[-1].log_z == pytest.approx(log_z, abs=1e-10)
    assert all(b.proof is Proof.DETERMINISTIC and b.confidence == 1.0 for b in bounds)
    values = sign * np.array([b.log_z for b in bounds])
    assert (np.diff(values[:-1]) < 0).all()
    assert (values >= sign * log_z - 1e-10).all()


def test_stream_ends_with_its_time_and_its_memory():
    model = ising_grid(12, coupling=(-2, 2), seed=2)
    assert {b.method for b in mini_bucket_bounds(model, time_limit=0.0)} == {
        "mini-bucket, ibound 2"
    }
    methods = {b.method for b in mini_bucket_bounds(model, max_memory="200kB", iterations=3)}
    assert "mini-bucket, ibound 4" in methods
    assert "mini-bucket, ibound 10" not in methods
    with pytest.raises(ResourceError):
        next(mini_bucket_bounds(model, max_memory=1000))


def test_orders_are_permutations_and_min_fill_is_narrow():
    model = ising_grid(9, seed=0)
    orders = Orders(model, plan(model).variables)
    for kind in Order:
        assert sorted(orders[kind]) == list(range(81))
    assert orders[Order.AUTO] is orders[Order.PLANNED]
    assert Orders(model).kinds == orders.kinds[1:]
    assert partition(model, Orders(model)[Order.MIN_FILL], 11).exact
    assert partition(model, Orders(model)[Order.BREADTH_FIRST], 9).exact
    assert not partition(model, Orders(model)[Order.BREADTH_FIRST], 8).exact


def test_min_fill_of_a_tree_adds_nothing():
    rng = np.random.default_rng(5)
    edges = {(int(rng.integers(v)), v): 1.0 for v in range(1, 200)}
    model = ising(edges)
    assert partition(model, Orders(model)[Order.MIN_FILL], 1).exact


def test_exp_chunk_is_accurate():
    x = np.concatenate([-np.logspace(-12, 2.8, 500), [0.0, -708.0, -1e4, -np.inf]])
    got = x.copy()
    called(exp_chunk)(got, got.size, np.empty(got.size))
    assert got[:-2] == pytest.approx(np.exp(x[:-2]), rel=2e-15)
    assert (got[-2:] < 1e-300).all()


def test_log1p_chunk_is_accurate():
    x = np.concatenate([[0.0, 1.0], np.logspace(-300, 0, 2000), np.linspace(0, 1, 2000)])
    got, share = x.copy(), np.empty(x.size)
    called(log1p_chunk)(got, got.size, share)
    assert got == pytest.approx(np.log1p(x), rel=1e-15)
    assert share == pytest.approx(x / (1 + x), rel=1e-15)


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 5), st.floats(-3, 3).filter(lambda w: abs(w) > 0.01)
)
@settings(max_examples=60, deadline=None)
def test_power_sums_are_their_twin(seed, states, weight):
    """Messages, conditionals and entropies of a tile of rows against plain numpy."""
    rng = np.random.default_rng(seed)
    rows = TILE // 2
    table = 30 * rng.normal(size=(rows, states))
    table[rng.random(table.shape) < 0.1] = -np.inf
    out, entropy = np.empty(rows), np.empty(rows, dtype=np.float32)
    if states == 2:
        odds, chunk = np.empty(rows, dtype=np.float32), np.empty(rows)
        called(_sum_pairs)(table.ravel(), weight, out, odds, chunk, np.empty(rows))
        rare = np.abs(odds)
        first = np.where(np.signbit(odds), rare, 1 - rare)
        found = np.stack([first, 1 - first], axis=1)
    else:
        odds = np.empty(rows * states, dtype=np.float32)
        called(_sum_rows)(table.ravel(), states, weight, out, odds, entropy)
        found = odds.reshape(rows, states)
    expected = naive.power_sum(table, weight) if states > 1 else table[:, 0]
    assert out == pytest.approx(expected, rel=1e-13, abs=1e-12)
    alive = expected > -np.inf
    with np.errstate(invalid="ignore"):
        q = np.exp((table - expected[:, None]) / weight)[alive]
    assert found[alive] == pytest.approx(q, rel=1e-5, abs=1e-7)
    if states != 2:
        h = -(q * np.log(np.where(q > 0, q, 1.0))).sum(axis=1)
        assert entropy[alive] == pytest.approx(h, rel=1e-5, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(random_models(), st.sampled_from([Order.MIN_FILL, Order.AS_NUMBERED]))
def test_what_comes_down_are_marginals_where_nothing_is_cut(case, order):
    model, log_z = case
    if log_z == -np.inf:
        return
    orders = Orders(model)
    parts = partition(orders.model, orders[order], 20)
    run = Descent(orders.model, parts)
    backward(run._skeleton, run._tables, 0.0, 0.0)
    skel, tables = run._skeleton, run._tables
    marginals = exact(model).marginals
    for c, scope in enumerate(parts.cliques):
        down = tables.down[skel.message_ptr[c] : skel.message_ptr[c + 1]]
        assert down.sum() == pytest.approx(1.0)
        for axis, v in enumerate(scope[:-1]):
            rest = down.reshape([int(parts.cardinalities[u]) for u in scope[:-1]])
            summed = rest.sum(axis=tuple(a for a in range(rest.ndim) if a != axis))
            assert summed == pytest.approx(marginals[orders.numbers[v]], abs=1e-6)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("seed", range(4))
def test_converged_says_that_its_own_iterates_stand_still(side, seed):
    """Orders tried before it, each no better than the first, are no iterations of the one kept."""
    model = ising_grid(8, coupling=(-5, 5), field=(-1, 1), seed=seed)
    result = mini_bucket(model, MiniBucket(3, side=side))
    assert result.status is MiniBucketStatus.CONVERGED
    best = min if side is Side.UPPER else max
    assert abs(best(result.iterates[:-5]) - best(result.iterates)) < result.config.tol
