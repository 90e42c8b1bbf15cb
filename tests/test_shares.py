"""Ends of marginals from capped draws: coverage with a control, the grid, lifting, exact ones."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tightz.models.ends import around, loosened, through
from tightz.reductions import reduction
from tightz.reductions.preparation import prepare
from tightz.sampling import shares
from tightz.sampling.capped.stream import capped
from tightz.sampling.shares import bounded, stake
from tightz.workspace.shares import Grid, Shares

DELTA = 0.2


def draws(rng, weights, share, count, gap):
    """X of two kinds of states: log-normal around e^-gap and capped, heavier for one."""
    ones = rng.random(count) < share
    log_x = np.minimum(0.0, rng.normal(-gap, weights, count) + 0.5 * ones)
    return ones, log_x


def counted(rng, ones, log_x, grid, unit, lost=-math.inf):
    places = grid.place(log_x, rng.random(log_x.size))
    counts = np.zeros((2, grid.count), dtype=np.int64)
    for entry, chosen in enumerate((~ones, ones)):
        counts[entry] = np.bincount(places[chosen], minlength=grid.count + 1)[: grid.count]
    return Shares("mini-bucket", grid, np.array([0, 2]), counts, unit, 0.0, lost)


def truth(rng, weights, share, gap):
    ones, log_x = draws(rng, weights, share, 4_000_000, gap)
    x = np.exp(log_x)
    return float(x[ones].sum() / x.sum())


def test_ends_cover_as_often_as_they_say_and_bold_ones_do_not(monkeypatch):
    rng = np.random.default_rng(5)
    runs, outside, bold = 400, 0, 0
    for weights, share, gap in ((0.5, 0.5, 1.0), (1.5, 0.05, 3.0)):
        p = truth(rng, weights, share, gap)
        grid = Grid.of(gap, 2)
        unit = stake(-gap, weights**2, 500, 1, DELTA)
        for _ in range(runs // 2):
            found = counted(rng, *draws(rng, weights, share, 500, gap), grid, unit)
            low, high = bounded([found], DELTA, 0.0)[1]
            outside += not low <= p <= high
            # the control: less wealth than the bets begin with is called a win
            with monkeypatch.context() as patch:
                patch.setattr(shares, "SLACK", -math.log(2.0 / DELTA) - 2.0)
                low, high = bounded([found], DELTA, 0.0)[1]
            bold += not low <= p <= high
    assert outside <= DELTA * runs
    assert bold > DELTA * runs


@pytest.mark.parametrize("states", [2, 3])
def test_many_marginals_share_the_error(states):
    """Each of n questions has the n-th part: those of a model of one have ends that are as wide."""
    rng, grid, n = np.random.default_rng(3), Grid.of(1.0, 2), 6
    ones, log_x = draws(rng, 0.5, 0.3, 2000, 1.0)
    one = counted(rng, ones, log_x, grid, stake(-1.0, 0.3, 2000, 1, 0.05))
    rows = np.concatenate([one.counts, np.zeros((states - 2, grid.count), dtype=np.int64)])
    many = replace(one, pointers=states * np.arange(n + 1), counts=np.tile(rows, (n, 1)))
    asked = n if states == 2 else n * states
    alone = bounded([one], 0.05 / asked, 0.0)
    np.testing.assert_allclose(bounded([many], 0.05, 0.0)[:2], alone, atol=1e-8)
    assert (np.diff(bounded([one], 0.05, 0.0)) < np.diff(alone) - 1e-3).all()


def test_ends_meet_with_more_draws_and_stay_inside_the_unit_interval():
    rng, widths = np.random.default_rng(1), []
    grid = Grid.of(2.0, 2)
    for count in (0, 1, 10, 1000, 100_000):
        unit = stake(-2.0, 0.3, max(1, count), 1, 0.05)
        found = counted(rng, *draws(rng, 0.5, 0.3, count, 2.0), grid, unit)
        ends = bounded([found], 0.05, 0.0)
        assert ((ends >= 0.0) & (ends <= 1.0)).all()
        assert ends[0] == pytest.approx(1.0 - ends[1, ::-1], abs=1e-12)
        widths.append(float(ends[0, 1] - ends[0, 0]))
    assert widths[0] == widths[1] == 1.0
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.02


def test_what_is_never_drawn_and_rounding_widen_the_ends():
    rng, grid = np.random.default_rng(2), Grid.of(1.0, 2)
    ones, log_x = draws(rng, 0.5, 0.3, 10_000, 1.0)
    unit = stake(-1.0, 0.3, 10_000, 1, 0.05)
    plain = counted(rng, ones, log_x, grid, unit)
    narrow = bounded([plain], 0.05, 0.0)
    lossy = Shares(**{**vars(plain), "log_lost": math.log(0.1)})
    assert (bounded([lossy], 0.05, 0.0)[:, 1] >= narrow[:, 1] + 0.1 - 1e-9).all()
    assert (bounded([lossy], 0.05, math.log(0.05)) == [0.0, 1.0]).all()
    blurred = bounded([Shares(**{**vars(plain), "rounding": 0.5})], 0.05, 0.0)
    odds = narrow / (1.0 - narrow)
    assert blurred / (1.0 - blurred) == pytest.approx(odds * np.exp([-1.0, 1.0]), rel=1e-9)


@given(st.floats(0.0, 60.0), st.integers(1, 10**7), st.integers(0, 2**32))
def test_moving_draws_to_the_grid_keeps_their_mean(gap, entries, seed):
    rng, grid = np.random.default_rng(seed), Grid.of(gap, entries)
    assert grid.count >= 2
    assert grid.points[0] == 1.0
    log_x = np.concatenate([[0.0, -math.inf, 1e-12, -700.0], -rng.exponential(gap + 1.0, 50)])
    x, ladder = np.exp(np.minimum(log_x, 0.0)), np.append(grid.points, 0.0)
    low = grid.place(log_x, np.full(log_x.size, 1.0 - 1e-16))
    high = grid.place(log_x, np.zeros(log_x.size))
    assert (ladder[low] <= x * (1 + 1e-12)).all()
    assert (ladder[high] >= x * (1 - 1e-12)).all()
    uniform = (np.arange(4000) + 0.5) / 4000
    for value, at in zip(x, log_x, strict=True):
        moved = ladder[grid.place(np.full(4000, at), uniform)]
        assert moved.mean() == pytest.approx(
            value, abs=max(1e-300, float(ladder[grid.place(np.array([at]), np.zeros(1))[0]])) / 1000
        )


def test_a_source_that_loses_everything_costs_little():
    rng, grid = np.random.default_rng(3), Grid.of(1.0, 2)
    ones, log_x = draws(rng, 0.5, 0.3, 20_000, 1.0)
    good = counted(rng, ones, log_x, grid, stake(-1.0, 0.3, 20_000, 1, 0.05))
    bold = Shares(**{**vars(good), "track": "glance 1", "stake": 1e6})
    alone, both = (np.diff(bounded(each, 0.05, 0.0))[0] for each in ([good], [good, bold]))
    assert 0.99 * alone < both < 1.1 * alone


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4))
def test_what_passes_through_a_conditional_stays_inside_and_is_tight(seed, states, others):
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.ones(states), size=others).T
    p = rng.dirichlet(np.ones(others))
    width = rng.random(others) * 0.2
    given_ends = np.clip(np.stack([p - width, p + width * rng.random(others)], axis=1), 0.0, 1.0)
    found = through(around(table, 0.0), given_ends)
    value = table @ p
    assert (found[:, 0] <= value).all()
    assert (found[:, 1] >= value - 1e-15).all()
    exact = through(around(table, 0.0), np.stack([p, p], axis=1))
    assert np.abs(exact - value[:, None]).max() < 1e-11


def random_model(seed):
    """Small and hostile: many states, zeros, leaves, barren variables, parts, evidence."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    cards = rng.integers(1, 4, n)
    factors = []
    for _ in range(int(rng.integers(0, 2 * n + 1))):
        scope = rng.choice(n, size=min(n, int(rng.integers(1, 4))), replace=False)
        table = rng.normal(0.0, rng.choice([0.1, 1.0, 20.0]), size=tuple(cards[scope]))
        if rng.random() < 0.3:
            table = np.where(rng.random(table.shape) < 0.3, -np.inf, table)
        if rng.random() < 0.3:  # a conditional table: barren where nothing hangs on it
            total = np.logaddexp.reduce(table, axis=0, keepdims=True)
            table = table - np.where(np.isneginf(total), 0.0, total)
        factors.append((tuple(int(v) for v in scope), table))
    model = tz.FactorGraph(cards, factors)
    seen = {v: int(rng.integers(cards[v])) for v in range(n) if rng.random() < 0.15}
    return model.with_evidence(seen) if seen else model


def marginals_of(model):
    """By enumeration, with nothing of the product's; None where Z = 0."""
    cards = model.cardinalities
    every = np.stack(np.unravel_index(np.arange(int(np.prod(cards))), tuple(cards)), axis=1)
    logs = np.zeros(len(every))
    for scope, table in model.factors:
        logs = logs + np.asarray(table)[tuple(every[:, list(scope)].T)]
    for v, state in model.evidence.items():
        logs[every[:, v] != state] = -np.inf
    if logs.max() == -np.inf:
        return None
    weights = np.exp(logs - logs.max())
    return [
        np.array([weights[every[:, v] == s].sum() for s in range(int(d))]) / weights.sum()
        for v, d in enumerate(cards)
    ]


@given(st.integers(0, 2**32))
def test_ends_of_the_reduced_model_are_ends_of_the_model(seed):
    model = random_model(seed)
    truth = marginals_of(model)
    if truth is None:
        return
    for small in (0.0, 16.0):
        chain = prepare(model, log2_size=small)
        inner = marginals_of(chain.reduced) if chain.reduced.n_variables else []
        rng = np.random.default_rng(seed)
        ends = []
        for p in inner:
            room = rng.random((len(p), 2)) * 0.1 * (rng.random() < 0.5)
            ends.append(np.clip(np.stack([p - room[:, 0], p + room[:, 1]], axis=1), 0.0, 1.0))
        for p, found in zip(truth, chain.lift_ends(ends), strict=True):
            assert (found[:, 0] <= p + 1e-12).all()
            assert (found[:, 1] >= p - 1e-12).all()


@given(st.integers(0, 2**32))
def test_exact_marginals_lie_inside_their_ends(seed):
    model = random_model(seed)
    truth = marginals_of(model)
    if truth is None:
        return
    r = tz.log_partition(model, time_limit=60.0, seed=0)
    assert r.marginals is not None
    for p, q, always, likely in zip(
        truth, r.marginals, r.marginal_bounds, r.confident.marginal_bounds, strict=True
    ):
        for ends in (always, likely):
            assert (ends[:, 0] <= p + 1e-12).all()
            assert (ends[:, 1] >= p - 1e-12).all()
            assert (ends[:, 0] <= q).all()
            assert (q <= ends[:, 1]).all()


def inside(values, ends):
    return all(((e[:, 0] <= p) & (p <= e[:, 1])).all() for p, e in zip(values, ends, strict=True))


@pytest.mark.parametrize("exact", [True, False])
def test_what_a_later_step_takes_out_carries_the_rounding_of_those_before(exact):
    """A barren child's sums differ in the last digits of 1e5, which move its parent."""
    rng = np.random.default_rng(0)
    table = 1e5 + np.log(rng.dirichlet(np.ones(3), size=5).T)
    sums = np.exp(table - 1e5).sum(axis=0)  # no digit is lost: table - 1e5 is exact
    truth = [np.exp(table - 1e5).sum(axis=1) / sums.sum(), sums / sums.sum()]
    assert np.abs(truth[1] - 0.2).max() > 3e-13
    model = tz.FactorGraph([3, 5], [((0, 1), table)])
    chain = prepare(model, log2_size=0.0)
    assert not chain.reduced.n_variables
    assert inside(truth, chain.lift_ends([]))
    assert inside(truth, tz.log_partition(model, exact=exact, time_limit=1.0).marginal_bounds)


def test_numbers_that_lost_digits_to_underflow_are_nothing_from_below():
    """e^-732 in float64 has five digits."""
    model = tz.FactorGraph([2], [((0,), np.array([0.0, -732.0]))])
    for ends in (tz.exact(model).marginal_bounds, tz.log_partition(model).marginal_bounds):
        assert ends[0][1, 0] == 0.0
        assert 1e-318 < ends[0][1, 1] < 1e-299


@pytest.mark.parametrize("exact", [True, False])
def test_rare_states_carry_the_rounding_of_all_that_their_logs_add(exact):
    """Sixty fields of about -10 each: their sum errs by the rounding of every partial one."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        fields = -rng.random((60, 2)) * [0.0, 20.0]
        model = tz.FactorGraph([2], [((0,), field) for field in fields])
        total = sum((Fraction(x) for x in fields[:, 1].tolist()), Fraction(0))
        near = float(total)
        p = math.exp(near) * (1.0 + float(total - Fraction(near)))
        low, high = tz.log_partition(model, exact=exact, time_limit=1.0).marginal_bounds[0][1]
        assert low <= p * (1 + 1e-15)
        assert p * (1 - 1e-15) <= high < low * (1 + 1e-8)


def test_sessions_of_a_stored_run_share_delta(tmp_path, monkeypatch):
    seen = []

    def note(sources, delta, *rest):
        seen.append(delta)
        return bounded(sources, delta, *rest)

    monkeypatch.setattr("tightz.interval.marginal_bounds.bounded", note)
    grid, store = tz.ising_grid(10, coupling=(-2, 2), seed=4), tmp_path / "run.db"
    options = {"exact": False, "time_limit": 3.0, "only": [capped], "delta": 0.1}
    tz.log_partition(grid, seed=1, **options)
    for resume in (False, True):
        tz.log_partition(grid, seed=1, store=store, resume=resume, **options)
    assert seen == pytest.approx([0.1, 0.1 / 2, 0.1 / 6])


def test_ends_of_many_variables_are_loosened_at_once_and_as_one_by_one(monkeypatch):
    calls = []
    monkeypatch.setattr(reduction, "loosened", lambda *args: calls.append(1) or loosened(*args))
    model = tz.ising_grid(2, seed=0)
    steps = [SimpleNamespace(lift_ends=lambda ends: ends, rounding=1e-9)] * 2
    rng = np.random.default_rng(0)
    ends = [np.sort(rng.random((k, 2)), axis=1) for k in (2, 3, 1, 5)]
    lifted = reduction.Chain(model, steps).lift_ends(ends)
    assert len(calls) == 2
    for each, one in zip(lifted, ends, strict=True):
        np.testing.assert_array_equal(each, loosened(loosened(one, 1e-9), 1e-9))
    assert reduction.Chain(model, steps).lift_ends([]) == []
