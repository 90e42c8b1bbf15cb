"""Planar models with weak fields: ends true to the last digit, and a judge not to be fooled."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests.precise import precise_log_z
from tests.test_planar import drawing, model_of
from tightz.bounds import Bound, Side
from tightz.elimination.planar import PlanarPlan, planar_plan
from tightz.interval.portfolio import UPPER
from tightz.interval.streams.uppers import planar_fields
from tightz.judge import Audited, LargestEntries, RefutedError
from tightz.judge.elimination import bucket_tree
from tightz.judge.fields import FieldsEvidence, Part
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.clock import Clock
from tightz.uppers.mini_bucket import MiniBucket, mini_bucket
from tightz.uppers.planar_fields import planar_field_bounds
from tightz.workspace.working import Working, name_of

SEEDS = st.integers(0, 2**32)


def with_tables(model, logs):
    return FactorGraph.from_arrays(
        model.cardinalities, model.scope_ptr, model.scope_vars, model.table_ptr, logs
    )


def hostile(rng, strength=None):
    """A planar graph of up to 9 spins; couplings, fields and skew tables of any size."""
    _, pairs = drawing(rng, int(rng.integers(4, 10)), keep=rng.uniform(0.5, 1.0))
    pairs = pairs or [(0, 1)]  # of few edges all may have gone
    n = max(max(p) for p in pairs) + 1
    scale = 10.0 ** rng.uniform(-2, 1.5)
    size = 10.0 ** rng.uniform(-9, -1) if strength is None else strength
    model = model_of(
        n,
        pairs,
        rng.normal(size=len(pairs)) * scale,
        [(i, h) for i, h in enumerate(rng.normal(size=n) * size)],
    )
    if rng.random() < 0.5:  # fields inside the tables of pairs, and constants
        noise = rng.normal(size=model.log_tables.size) * size
        model = with_tables(model, model.log_tables + noise)
    return model


def found(model, steps=400):
    out = []
    for step, bound in enumerate(planar_field_bounds(model)):
        if bound is not None:
            out.append(bound)
        if step > steps:
            break
    return out


def check(model, bounds):
    truth = precise_log_z(model)
    for bound in bounds:
        value = Decimal(bound.log_z)
        assert value <= truth if bound.side is Side.LOWER else value >= truth
        verdict = bound.evidence.verdict(model)
        assert bound.log_z == (verdict.lower if bound.side is Side.LOWER else verdict.upper)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_bounds_are_true_to_the_last_digit(seed):
    model = hostile(np.random.default_rng(seed))
    check(model, found(model, 60))


def test_hostile_models_do_give_bounds():
    """The test above is about something: most of its models have both ends and a mixture."""
    ends = [found(hostile(np.random.default_rng(seed)), 60) for seed in range(20)]
    assert sum(len(bounds) >= 3 for bounds in ends) >= 8
    assert all(b.evidence is not None for bounds in ends for b in bounds)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.floats(1e-6, 0.999999))
def test_any_part_and_any_share_give_true_ends(seed, share):
    """S and W as they come: even tables that are not those of the model, a W that does not fit."""
    rng = np.random.default_rng(seed)
    model = hostile(rng, strength=10.0 ** rng.uniform(-6, 1))
    logs = model.log_tables
    sizes = np.diff(model.table_ptr)
    back = np.repeat(model.table_ptr[:-1] + model.table_ptr[1:] - 1, sizes) - np.arange(logs.size)
    noise = rng.normal(size=logs.size) * 10.0 ** rng.uniform(-16, 0)
    even = 0.5 * (logs + logs[back]) + (noise + noise[back])
    even = 0.5 * (even + even[back])
    strong = even + (logs - even) / share + rng.normal(size=logs.size) * 1e-3
    parts = [with_tables(model, tables) for tables in (even, strong)]
    proven = [Part(part, _exactly(part)) for part in parts]
    truth = precise_log_z(model)
    for evidence in (FieldsEvidence(proven[0]), FieldsEvidence(*proven, share)):
        verdict = evidence.verdict(model)
        assert Decimal(verdict.lower) <= truth <= Decimal(verdict.upper)


def _exactly(model):
    """log Z to a part in 1e15: nothing of the ends is lost in the parts."""
    value = float(precise_log_z(model))
    return Audited(value, 1e-15 * abs(value) + 1e-300)


@pytest.mark.parametrize("fields", [1e-4, 1e-3, 1e-2])
def test_weak_fields_cost_less_than_mini_buckets(fields):
    model = tz.ising_grid(14, coupling=(-1, 1), field=(-fields, fields), seed=3)
    truth = tz.exact(model, marginals=False).log_z
    bounds = [b for b in found(model, 60) if b.side is Side.UPPER]
    lower = next(b for b in found(model, 1) if b.side is Side.LOWER)
    assert lower.log_z <= truth <= min(b.log_z for b in bounds)
    plain = mini_bucket(model, MiniBucket(6, 40)).log_z - truth
    assert min(b.log_z for b in bounds[1:]) - truth < 0.5 * plain
    assert [b.log_z for b in bounds] == sorted((b.log_z for b in bounds), reverse=True)
    assert truth - lower.log_z <= 0.5 * 14 * 14 * fields**2


def test_a_torus_has_them_too():
    model = tz.ising_grid(3, coupling=(-1, 1), field=(-0.01, 0.01), periodic=True, seed=1)
    bounds = found(model, 60)
    assert len(bounds) >= 3
    check(model, bounds)


def test_fields_that_are_not_weak_leave_the_ends():
    model = tz.ising_grid(3, coupling=(-1, 1), field=(-0.3, 0.3), seed=2)
    bounds = found(model)
    assert [b.side for b in bounds] == [Side.LOWER, Side.UPPER]
    check(model, bounds)


@pytest.mark.parametrize(
    "model",
    [
        tz.ising_grid(4, field=(0, 0), seed=0),  # exact as it is
        tz.ising_grid(4, field=(3, 4), seed=0),  # strong
        tz.ising(np.ones((7, 7)) - np.eye(7), np.full(7, 0.01)),  # not planar
        tz.FactorGraph([3, 3], [((0, 1), np.eye(3))]),
        tz.FactorGraph([2, 2], [((0, 1), [[0.0, 0.01], [0.0, -np.inf]])]),
        tz.ising({(0, 1): 1.0}, [0.01, 0.02]).with_evidence({0: 1}),
        tz.FactorGraph([]),
    ],
)
def test_nothing_is_said_about_other_models(model):
    assert found(model) == []


def _sound():
    model = tz.ising_grid(3, coupling=(-1, 1), field=(-0.03, 0.03), seed=5)
    bound = found(model, 60)[-1]
    assert bound.evidence.strong is not None
    bound.evidence.verdict(model)
    return model, bound.evidence


def test_evidence_that_does_not_fit_is_refused():
    model, sound = _sound()
    other = tz.ising_grid(3, 4, seed=5)
    skew = Part(model, sound.even.evidence)
    for broken, text in [
        (replace(sound, share=0.0), "share"),
        (replace(sound, share=1.0), "share"),
        (replace(sound, share=float("nan")), "share"),
        (replace(sound, even=skew), "flip"),
        (replace(sound, even=Part(other, LargestEntries())), "other variables"),
        (replace(sound, strong=Part(other, LargestEntries())), "other variables"),
    ]:
        with pytest.raises(RefutedError, match=text):
            broken.verdict(model)
    with pytest.raises(RefutedError, match="other variables"):
        sound.verdict(model.with_evidence({0: 1}))


def test_a_wrong_part_is_paid_for():
    """Fields left out of W, or half as strong: the judge adds what is lacking."""
    model, sound = _sound()
    truth = precise_log_z(model)
    weak = Part(sound.even.model, sound.even.evidence)
    verdict = replace(sound, strong=weak).verdict(model)
    assert Decimal(verdict.upper) >= truth
    assert verdict.upper > sound.verdict(model).upper


@pytest.mark.parametrize("mixed", [False, True])
def test_fields_that_overflow_when_they_are_added_say_nothing(mixed):
    model = FactorGraph([2] * 3, [((v,), [1.5e308, -1.5e308]) for v in range(3)])
    plain = FactorGraph([2] * 3, [((v,), [0.0, 0.0]) for v in range(3)])
    part = Part(plain, bucket_tree(plain, np.arange(3)))
    verdict = FieldsEvidence(part, part if mixed else None, 0.5).verdict(model)
    assert verdict.upper == math.inf
    assert verdict.lower <= 3 * math.log(2)


def test_the_share_of_a_mixture_counts():
    """Negative control: the same numbers joined by a smaller share are below log Z."""
    model = tz.ising_grid(3, coupling=(-1, 1), field=(0.3, 0.4), seed=5)
    logs = model.log_tables.copy()
    for start, stop in zip(model.table_ptr[:-1], model.table_ptr[1:], strict=True):
        logs[start:stop] = 0.5 * (logs[start:stop] + logs[start:stop][::-1])
    even = float(precise_log_z(with_tables(model, logs)))
    strong = float(precise_log_z(with_tables(model, logs + (model.log_tables - logs) / 0.5)))
    truth = float(precise_log_z(model))
    assert 0.5 * even + 0.5 * strong > truth
    assert 0.9 * even + 0.1 * strong < truth


def test_the_planar_part_is_the_one_that_is_summed():
    model = tz.ising_grid(3, coupling=(-1, 1), field=(-0.01, 0.01), seed=2)
    evidence = found(model, 2)[0].evidence
    plan = planar_plan(evidence.even.model)
    assert isinstance(plan, PlanarPlan)
    assert not plan.graph.ghost
    assert abs(Decimal(plan.solve().log_z) - precise_log_z(evidence.even.model)) < Decimal("1e-9")


def test_the_stream_gives_both_ends_of_the_working_model():
    model = tz.ising_grid(20, coupling=(-1, 1), field=(-0.001, 0.001), seed=3)
    clock = Clock(600.0)
    working = Working(model, clock, exact=False)
    steps = itertools.islice(planar_fields(working, clock), 40)
    bounds = [b for b in steps if isinstance(b, Bound)]
    assert {b.side for b in bounds} == {Side.LOWER, Side.UPPER}
    assert "planar_fields" in {name_of(method) for method in UPPER}
