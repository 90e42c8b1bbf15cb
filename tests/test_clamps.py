"""Ends of log Z with a variable fixed: true to the last digit on hostile models."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests.precise import hostile_model, precise_log_z
from tightz.bounds import Bound, Side
from tightz.interval.marginal_ends import combined
from tightz.interval.streams import fixed as fixed_module
from tightz.interval.streams.fixed import fixed_states
from tightz.judge import clamps as clamps_module
from tightz.judge.clamps import ClampedCliques
from tightz.judge.cliques import CliqueTree
from tightz.models.builders import potts_grid
from tightz.runtime.clock import Clock
from tightz.uppers.mini_bucket import MiniBucket, mini_bucket
from tightz.workspace.findings import Clamped, Finding
from tightz.workspace.working import Working, alone

SEEDS = st.integers(0, 2**32)


def fixed_log_z(model) -> list[Decimal]:
    """log Z with each state of each variable, in the order of entries."""
    whole = precise_log_z(model)
    out = []
    for v, count in enumerate(model.cardinalities.tolist()):
        for s in range(count):
            if v in model.evidence:
                out.append(whole if model.evidence[v] == s else Decimal("-Infinity"))
            else:
                out.append(precise_log_z(model.with_evidence({v: s})))
    return out


def judged(model, side, ibound, iterations) -> ClampedCliques:
    result = mini_bucket(model, MiniBucket(ibound, iterations, tol=0.0, side=side))
    return ClampedCliques(result.bound.evidence, model)


def all_ends(judge) -> np.ndarray:
    ends = judge.unsaid()
    for lot in judge.lots:
        ends[judge.places(lot)] = judge.ends(lot)
    return ends


def beyond(ends, truths, side) -> list[int]:
    """Which ends lie on the wrong side."""
    wrong = Decimal.__lt__ if side > 0.0 else Decimal.__gt__
    return [k for k, pair in enumerate(zip(ends.tolist(), truths, strict=True))
            if wrong(Decimal(pair[0]), pair[1])]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from([Side.UPPER, Side.LOWER]), st.integers(1, 3), st.integers(0, 10))
def test_ends_are_true_to_the_last_digit(seed, side, ibound, iterations):
    model = hostile_model(np.random.default_rng(seed))
    judge = judged(model, side, ibound, iterations)
    ends = all_ends(judge)
    assert not beyond(ends, fixed_log_z(model), judge.side)


def test_large_constants_cost_what_they_round():
    """A message near 1e9 gives way to a small one beside a constant that takes it back."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        large = 1e9 * rng.random()
        factors = [((0, 1), rng.normal(size=(2, 2))), ((0,), [large, rng.normal()]), ((), -large)]
        model = tz.FactorGraph([2, 2], factors)
        for side in (Side.UPPER, Side.LOWER):
            judge = judged(model, side, 2, 0)
            assert beyond(all_ends(judge), fixed_log_z(model), judge.side) == []


def test_sums_without_outward_rounding_are_caught(monkeypatch):
    """Negative control: the same ends without the judge's rounding lie on some of these models."""
    monkeypatch.setattr("tightz.judge.verdict.UNIT", 0.0)
    monkeypatch.setattr("tightz.judge.verdict.LIBRARY", 0.0)
    monkeypatch.setattr(clamps_module, "UNIT", 0.0)
    wrong = 0
    for seed in range(60):
        model = hostile_model(np.random.default_rng(seed))
        judge = judged(model, Side.UPPER, 2, 3)
        wrong += len(beyond(all_ends(judge), fixed_log_z(model), judge.side))
    assert wrong > 0


def grid(seed=3):
    return tz.ising_grid(4, coupling=(-2, 2), field=(-1, 1), seed=seed)


def nearly_fixed(model, evidence, v, s):
    """The same cliques on a model in which all other states of v weigh almost nothing."""
    penalty = np.where(np.arange(model.cardinalities[v]) == s, 0.0, -1e5)
    factors, placed = list(model.factors), list(map(tuple, evidence.factors))
    for c, scope in enumerate(evidence.scopes):
        if scope[-1] == v:
            placed[c] += (len(factors),)
            factors.append(((v,), penalty))
    model = tz.FactorGraph(model.cardinalities, factors)
    return CliqueTree(replace(evidence, factors=tuple(placed)), model)


@pytest.mark.parametrize("ibound", [1, 2, 3])
def test_ends_are_those_of_the_model_with_the_variable_fixed(ibound):
    model = potts_grid(5, states=3, coupling=(-1, 1), field=(-1, 1), seed=4)
    evidence = mini_bucket(model, MiniBucket(ibound, 10)).bound.evidence
    ends = all_ends(ClampedCliques(evidence, model)).reshape(-1, 3)
    for v in range(0, model.n_variables, 2):
        for s in range(3):
            alone = nearly_fixed(model, evidence, v, s).value(+1.0)
            assert abs(ends[v, s] - alone) < 1e-6


def test_without_cuts_ends_are_exact():
    model = grid()
    exact = tz.exact(model)
    ends = all_ends(judged(model, Side.UPPER, 10, 1))
    truth = np.log(np.concatenate(exact.marginals)) + exact.log_z
    np.testing.assert_allclose(ends, truth, atol=1e-9)


def test_lots_change_no_number(monkeypatch):
    model = grid()
    whole = all_ends(judged(model, Side.UPPER, 3, 5))
    monkeypatch.setattr(clamps_module, "HELD", 1)
    monkeypatch.setattr(clamps_module, "TABLE", 1)
    judge = judged(model, Side.UPPER, 3, 5)
    assert len(judge.lots) == model.n_variables
    np.testing.assert_allclose(all_ends(judge), whole, rtol=0, atol=1e-12)
    assert sorted(v for lot in judge.lots for v in lot) == list(range(model.n_variables))


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_marginals_lie_inside(seed):
    """Both sides together with both ends of log Z, against enumeration in decimals."""
    rng = np.random.default_rng(seed)
    model = hostile_model(rng)
    truth = precise_log_z(model)
    if not truth.is_finite():
        return
    upper, lower = (judged(model, side, 2, 5) for side in (Side.UPPER, Side.LOWER))
    low = all_ends(lower) if lower.side < 0.0 else np.full(all_ends(upper).size, -math.inf)
    first = np.concatenate([[0], np.cumsum(model.cardinalities)])
    bottom = lower.value if lower.side < 0.0 else -math.inf
    ends = combined(Clamped(low, all_ends(upper), ""), bottom, upper.value, first)
    for part, (least, most) in zip(fixed_log_z(model), ends.tolist(), strict=True):
        share = (part - truth).exp() if part.is_finite() else Decimal(0)
        slack = Decimal(10) ** -25  # of the decimals
        assert Decimal(least) <= share + slack
        assert share <= Decimal(most) + slack


def stream_of(model, limit=20.0, **options):
    """What the stream says in so many seconds, its handouts done in one thread."""
    clock = Clock(limit)
    working = Working(model, clock, exact=False, threads=2, **options)
    said = []
    for item in alone(fixed_states(working, clock)):
        said.append(item)
        if sum(1 for each in said if isinstance(each, Finding) and each.clamped) >= 6:
            break
    return said


def test_the_stream_says_both_sides_of_all_entries():
    model = tz.ising_grid(8, coupling=(-2, 2), field=(-1, 1), seed=9)
    exact = tz.exact(model)
    truth = np.log(np.concatenate(exact.marginals)) + exact.log_z
    said = stream_of(model)
    found = [each.clamped for each in said if isinstance(each, Finding) and each.clamped]
    low = np.max([each.lower for each in found], axis=0)
    high = np.min([each.upper for each in found], axis=0)
    assert (low - 1e-9 <= truth).all()
    assert (truth <= high + 1e-9).all()
    assert np.isfinite(low).all()
    assert np.isfinite(high).all()
    assert {each.source.split(" of ")[0] for each in found} == {
        "mini-buckets",
        "mini-buckets from below",
    }
    bounds = [each for each in said if isinstance(each, Bound)]
    assert {bound.side for bound in bounds} == {Side.UPPER, Side.LOWER}


def test_zeros_leave_ends_from_above():
    rng = np.random.default_rng(2)
    pairs = [(v, (v + k) % 12) for v in range(12) for k in (1, 3)]
    tables = rng.normal(size=(len(pairs), 3, 3))
    tables[rng.random(tables.shape) < 0.2] = -np.inf
    model = tz.FactorGraph([3] * 12, list(zip(pairs, tables, strict=True)))
    exact = tz.exact(Working(model, exact=False).graph)  # without the states that zeros rule out
    found = [x.clamped for x in stream_of(model) if isinstance(x, Finding) and x.clamped]
    assert found
    for each in found:
        assert np.isneginf(each.lower).all()
        with np.errstate(divide="ignore"):
            truth = np.log(np.concatenate(exact.marginals)) + exact.log_z
        assert (truth <= each.upper + 1e-9).all()


def test_no_ends_where_they_are_not_wanted_or_take_too_long():
    model = tz.ising_grid(8, coupling=(-2, 2), field=(-1, 1), seed=9)
    assert not stream_of(model, marginals=False)
    assert not stream_of(model, limit=1e-3)


def test_a_short_run_has_its_first_sets(monkeypatch):
    """Whose part of the time is less than any set takes; without `LEAST` there is none."""
    model = tz.ising_grid(12, coupling=(-1, 1), field=(-1, 1), seed=7)
    monkeypatch.setattr(fixed_module, "SHARE", 0.02)
    found = [x.clamped for x in stream_of(model) if isinstance(x, Finding) and x.clamped]
    assert np.isfinite(np.min([each.upper for each in found], axis=0)).all()
    assert np.isfinite(np.max([each.lower for each in found], axis=0)).all()
    monkeypatch.setattr(fixed_module, "LEAST", 0.0)
    assert not stream_of(model)
