"""Elimination on a device: its passes run by numpy everywhere, on a GPU where there is one."""

from __future__ import annotations

from itertools import count
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tests import hostile
from tests.strategies import binary_models
from tightz.elimination.exact import plan
from tightz.elimination.exact.precision import Scale
from tightz.elimination.exact.tables import StoppedError
from tightz.elimination.gpu import GpuPlan, OutOfRangeError, Refused, gpu_plan, why_no_elimination
from tightz.elimination.gpu import backward as backward_module
from tightz.elimination.gpu.factors import Factors
from tightz.elimination.gpu.lowering import FUSED, Header, lower
from tightz.elimination.gpu.machine import PlainMachine
from tightz.elimination.gpu.program import BITS
from tightz.elimination.gpu.slices import log_sum
from tightz.elimination.gpu.solve import Solved
from tightz.judge import RefutedError
from tightz.runtime.clock import Clock, OverError, my_clock, work_for
from verification.truth import enumerate_model

ROOM = 1 << 28
on_device = pytest.mark.skipif(bool(why_no_elimination()), reason="needs a CUDA device")


def planned(model, *, max_bytes=ROOM, **options) -> GpuPlan:
    found = gpu_plan(model, plan(model), max_bytes=max_bytes, **options)
    assert isinstance(found, GpuPlan), found
    return found


def cube(side, seed=0):
    rng = np.random.default_rng(seed)
    site = np.arange(side**3).reshape(side, side, side)
    ends = [(np.delete(site, side - 1, axis=k), np.delete(site, 0, axis=k)) for k in range(3)]
    pairs = [pair for a, b in ends for pair in zip(a.ravel(), b.ravel(), strict=True)]
    return tz.ising(
        dict(zip(pairs, rng.normal(size=len(pairs)), strict=True)), rng.normal(size=site.size)
    )


def tangle(n, seed=0, states=(2,)):
    """Random factors of up to three variables: trees of buckets that join large messages."""
    rng = np.random.default_rng(seed)
    cards = rng.choice(states, size=n)
    factors = [([v], rng.normal(size=cards[v])) for v in range(n)]
    for _ in range(n):
        scope = rng.choice(n, size=int(rng.integers(2, 4)), replace=False)
        factors.append((scope.tolist(), rng.normal(size=cards[scope])))
    return tz.FactorGraph(cards.tolist(), factors)


MODELS = {
    "grid": lambda: tz.ising_grid(9, coupling=(-2, 2), seed=1),
    "long grid": lambda: tz.ising_grid(3, 40, coupling=(-2, 2), seed=1),
    "torus": lambda: tz.ising_grid(5, coupling=(-1, 1), periodic=True, seed=2),
    "chain": lambda: tz.ising_grid(1, 60, seed=3),
    "star": lambda: tz.ising({(0, v): 0.1 * v for v in range(1, 60)}, np.ones(60)),
    "cube": lambda: cube(3),
    "complete": lambda: tz.ising(np.ones((9, 9)) - np.eye(9), np.linspace(-1, 1, 9)),
    "tangle": lambda: tangle(40),
    "states": lambda: tangle(25, 1, (2, 3, 4)),
    "few of three": lambda: tangle(30, 2, (2, 2, 2, 2, 3)),
    "potts": lambda: tz.potts_grid(5, states=3, seed=0),
    "wide factor": lambda: tz.FactorGraph(
        [2] * 13,
        [(list(range(13)), np.random.default_rng(0).normal(size=[2] * 13)), ([0, 12], np.eye(2))],
    ),
    "evidence": lambda: tz.ising_grid(6, seed=4).with_evidence({7: 1, 20: 0}),
}


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_log_z_is_the_cpus(name, fuse):
    model = MODELS[name]()
    truth = tz.exact(model, marginals=False)
    found = planned(model, fuse=fuse).solve(PlainMachine)
    assert abs(found.log_z - truth.log_z) <= found.rounding + truth.rounding
    assert found.rounding < 1e-11


@pytest.mark.parametrize("name", MODELS)
def test_marginals_are_the_cpus(name):
    model = MODELS[name]()
    free = [v for v in range(model.n_variables) if v not in model.evidence]
    truth = tz.exact(model)
    found = planned(model, marginals=True).solve(PlainMachine)
    assert abs(found.log_z - truth.log_z) <= found.rounding + truth.rounding
    for ours, v in zip(found.marginals, free, strict=True):
        np.testing.assert_allclose(ours, truth.marginals[v], atol=1e-12)
    if not model.evidence:
        theirs = [truth.factor_marginal(f).ravel() for f in range(model.n_factors)]
        np.testing.assert_allclose(found.factor_marginals, np.concatenate(theirs), atol=1e-12)


def test_hostile_models_hold_or_are_refused():
    """Huge couplings, soft and hard zeros: within the stated rounding, or out of range."""
    refused = 0
    for seed in range(400):
        cards, factors = hostile.model(np.random.default_rng(seed))
        truth = hostile.truth(cards, factors)
        try:
            found = planned(tz.FactorGraph(cards, factors)).solve(PlainMachine)
        except OutOfRangeError:
            refused += 1
            continue
        if truth is None:
            assert found.log_z == -np.inf
            assert found.rounding == 0.0
        else:
            assert truth.error(found.log_z) <= found.rounding
    assert 0 < refused < 320


def test_tables_that_cancel_hold():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        one, two = 1e9 * rng.normal(size=(2, 3, 3))
        tables = [one, two, rng.normal(size=(3, 3)) - (one + two)]
        model = tz.FactorGraph([3] * 2, [((0, 1), table) for table in tables])
        found = planned(model).solve(PlainMachine)
        truth = enumerate_model(model)
        assert truth.low - found.rounding <= found.log_z <= truth.high + found.rounding


def test_terms_below_the_last_digit_are_within_the_rounding():
    """Sums of 1 and of many numbers that are each lost beside it."""
    leaves, states = 16, 4000
    small = np.full(states, -36.8)
    small[0] = 0.0
    factors = [((0, v + 1), np.stack([small, small])) for v in range(leaves)]
    found = planned(tz.FactorGraph([2] + [states] * leaves, factors)).solve(PlainMachine)
    exact = leaves * np.log1p((states - 1) * np.exp(np.longdouble(-36.8))) + np.log(
        np.longdouble(2)
    )
    assert abs(found.log_z - exact) <= found.rounding
    # a device that adds one after the other loses them all, wherever numpy keeps most
    lost = float(exact - np.log(np.longdouble(2)))
    assert lost <= found.rounding


def test_slices_are_off_by_as_much_as_each():
    parts = [Solved(Scale(0.0), 1e-6), Solved(Scale(1.0), 1e-3), Solved(Scale(-5.0), 1e-9)]
    log_z, rounding = log_sum(parts)
    assert log_z == pytest.approx(np.log(1.0 + np.e + np.exp(-5.0)), abs=1e-12)
    assert 1e-3 < rounding < 1.001e-3


def test_hostile_marginals():
    solved = 0
    for seed in range(150):
        cards, factors = hostile.model(np.random.default_rng(seed))
        truth = hostile.truth(cards, factors)
        try:
            found = planned(tz.FactorGraph(cards, factors), marginals=True).solve(PlainMachine)
        except OutOfRangeError:
            continue
        if truth is None:
            assert all(np.isnan(p).all() for p in found.marginals)
            continue
        solved += 1
        assert truth.error(found.log_z) <= found.rounding
        for v, single in enumerate(found.marginals):
            slack = 1e-12 + 4.0 * found.rounding
            np.testing.assert_allclose(single, truth.marginal([v]), atol=slack)
    assert solved > 20


@given(binary_models(max_variables=9), st.booleans(), st.booleans())
def test_small_binary_models(model, fuse, marginals):
    truth = tz.exact(model)
    found = planned(model, fuse=fuse, marginals=marginals).solve(PlainMachine)
    assert abs(found.log_z - truth.log_z) <= found.rounding + truth.rounding
    for ours, theirs in zip(found.marginals or [], truth.marginals, strict=False):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize(
    ("cards", "factors", "log_z"),
    [
        ([], [], 0.0),
        ([], [([], 1.5)], 1.5),
        ([2], [], np.log(2.0)),
        ([2, 3, 5], [], np.log(30.0)),
        ([2, 2], [([0, 1], np.zeros((2, 2))), ([], -np.inf)], -np.inf),
        ([2, 2], [([0], [-np.inf, 0.0]), ([0, 1], [[0.0, 0.0], [-np.inf, -np.inf]])], -np.inf),
        ([2, 3], [([1], [0.0, -np.inf, 1.0]), ([0], [700.0, 700.0])], None),
    ],
)
def test_tiny_models(cards, factors, log_z):
    model = tz.FactorGraph(cards, factors)
    truth = tz.exact(model).log_z if log_z is None else log_z
    for marginals in (False, True):
        found = planned(model, marginals=marginals).solve(PlainMachine)
        assert found.log_z == pytest.approx(truth, abs=1e-13)


@pytest.mark.parametrize("marginals", [False, True])
def test_slices_add_up(marginals):
    model = tz.ising_grid(8, coupling=(-2, 2), seed=5)
    whole = planned(model, marginals=marginals)
    room = 90_000 if marginals else whole.bytes - 4_000
    found = planned(model, marginals=marginals, max_bytes=room)
    assert found.slices == 2 ** len(found.sliced) > 1
    assert found.bytes <= room < whole.bytes
    assert "slices over" in found.describe()
    truth = tz.exact(model)
    solved = found.solve(PlainMachine)
    assert abs(solved.log_z - truth.log_z) <= solved.rounding + truth.rounding
    for ours, theirs in zip(solved.marginals or [], truth.marginals, strict=False):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_what_does_not_fit_is_refused_before_anything_runs():
    model = tz.ising_grid(8, seed=0)
    assert "device memory" in gpu_plan(model, plan(model), max_bytes=1000).reason
    assert "0.001" in gpu_plan(model, plan(model), max_bytes=ROOM, most_seconds=0.001).reason
    assert isinstance(gpu_plan(model, plan(model), max_bytes=1000), Refused)


def test_chains_are_fused_and_the_largest_table_is_all_that_must_fit():
    model = tz.ising_grid(18, seed=0)
    found = planned(model)
    large = [one for one in found.passes.steps if one.out.size >= 2**15]
    assert np.mean([len(one.chain) for one in large]) > 4.5
    assert all(one.in_place for one in large)
    assert found.passes.peak <= 2**18 + 2**12
    assert found.bytes_moved < 16 * sum(found.plan.sizes()) / 4


def test_checkpoints_meet_the_memory_they_are_given():
    model = tz.ising_grid(12, seed=0)
    free, tight = (
        planned(model, marginals=True),
        planned(model, marginals=True, max_bytes=1_100_000),
    )
    assert tight.bytes <= 1_100_000 < free.bytes
    assert tight.slices == 1
    assert len(tight.backward.actions) > len(free.backward.actions)
    np.testing.assert_allclose(
        np.array(tight.solve(PlainMachine).marginals), np.array(free.solve(PlainMachine).marginals)
    )


class Counted(PlainMachine):
    """Counts its passes, and knows whether its memory was given back."""

    made: ClassVar[list[Counted]] = []

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        self.passes, self.closed = 0, False
        self.made.append(self)

    def run(self, k, scale):
        self.passes += 1
        return super().run(k, scale)

    def close(self) -> None:
        self.closed = True


def test_planning_ends_with_the_run_that_it_is_for():
    before, clock = my_clock(), Clock()
    work_for(clock)
    try:
        assert planned(MODELS["cube"]())
        clock.stop()
        with pytest.raises(OverError):
            planned(MODELS["cube"]())
    finally:
        work_for(before)


def test_planning_marginals_asks_at_every_step_whether_to_stop(monkeypatch):
    """On a 33x33 grid it takes a minute for each schedule that is followed to its end."""
    model, asked, steps = MODELS["cube"](), count(), []
    step = backward_module._Writer.step
    monkeypatch.setattr(
        backward_module._Writer, "step", lambda writer, one: steps.append(step(writer, one))
    )
    with pytest.raises(StoppedError):
        planned(model, marginals=True, stop=lambda: next(asked) >= 10)
    assert len(steps) == 10
    steps.clear()
    assert backward_module.backward(plan(model), max_bytes=8) is None
    assert 0 < len(steps) <= len(backward_module.CUTS)  # each is given up at its first table


@pytest.mark.parametrize("marginals", [False, True])
def test_a_sum_is_stopped_between_two_passes_and_gives_its_memory_back(marginals):
    found = planned(MODELS["cube"](), marginals=marginals)
    asked = count()
    with pytest.raises(StoppedError):
        found.solve(Counted, stop=lambda: next(asked) == 2)
    assert (Counted.made[-1].passes, Counted.made[-1].closed) == (2, True)


class Slip(PlainMachine):
    """One entry of one pass comes out wrong by a part in 10^9."""

    def run(self, k, scale):
        found = super().run(k, scale)
        one = self._passes[k]
        if one.kind == FUSED and k == len(self._passes) - 2:
            self._memory[: 1 << 12] *= 1.0 + 1e-9
        return found


def test_the_audit_sees_a_wrong_entry():
    with pytest.raises(RefutedError, match="not the sums of what it read"):
        planned(tz.ising_grid(7, seed=0)).solve(Slip)


def test_tables_out_of_range_are_refused():
    model = tz.ising_grid(6, coupling=(-200, 200), seed=0)
    with pytest.raises(OutOfRangeError, match="ordinary scale"):
        planned(model).solve(PlainMachine)


def test_a_program_is_no_longer_than_its_registers():
    model = tangle(40)
    for one in planned(model).passes.steps:
        assert len(one.work.loaded) == len(one.work.stored) == BITS


def test_lanes_take_the_smallest_strides():
    """Threads of a warp that read side by side are side by side in memory, in every large pass."""
    model = tz.ising_grid(14, seed=0)
    found = planned(model)
    factors = Factors(model, found.plan)
    exchanged = 0
    for one in found.passes.steps:
        if one.out.size < 2**13 or one.work.main is None:
            continue
        words = lower(one, found.plan, factors, 0).words
        head = Header(*words[: len(Header._fields)].tolist())
        exchanged += head.lanes_read > 0
        places = words[head.inner : head.inner + 32]
        assert np.unique(places // 8).size <= 8  # of 32 threads, at least 4 share a block
    assert exchanged > 3


@on_device
@pytest.mark.parametrize("marginals", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_on_the_device(name, marginals):
    model = MODELS[name]()
    truth = tz.exact(model)
    found = planned(model, marginals=marginals)
    first, again = found.solve(), found.solve()
    assert first.log_z == again.log_z
    assert abs(first.log_z - truth.log_z) <= first.rounding + truth.rounding
    free = [v for v in range(model.n_variables) if v not in model.evidence]
    for ours, v in zip(first.marginals or [], free, strict=False):
        np.testing.assert_allclose(ours, truth.marginals[v], atol=1e-12)


@on_device
@pytest.mark.parametrize("fuse", [True, False])
def test_20x20_on_the_device(fuse):
    model = tz.ising_grid(20, coupling=(-2, 2), seed=0)
    truth = tz.exact(model, marginals=False)
    found = planned(model, fuse=fuse).solve()
    assert abs(found.log_z - truth.log_z) <= found.rounding + truth.rounding
    assert found.log_z == pytest.approx(truth.log_z, rel=1e-12)
