"""Quadratic elimination: above the truth whatever the numbers, and close to it on dense models."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tightz.errors import UnsupportedModelError
from tightz.judge import quadratic as judge
from tightz.judge.links import SpinEvidence, SpinLink
from tightz.judge.quadratic import QuadraticEvidence, suprema
from tightz.judge.spins import ProductQ, SpinMap
from tightz.judge.verdict import RefutedError
from tightz.reductions.encoding import encode
from tightz.runtime import blas_threads
from tightz.runtime.blas_threads import one_blas_thread
from tightz.uppers.quadratic import QuadraticStatus, quadratic_bounds
from tightz.uppers.quadratic.cuts import BROKEN, Added, Cuts, broken
from tightz.uppers.quadratic.descent import MEMORY, Memory
from tightz.uppers.quadratic.elimination import Elimination
from tightz.uppers.quadratic.orders import candidates, two_layers, weakest_first
from tightz.uppers.quadratic.run import Spins
from tightz.uppers.quadratic.tail import states, summed
from tightz.uppers.quadratic.touching import touching
from verification.truth import enumerate_model

SCALES = (0.0, 1e-300, 1e-9, 0.1, 1.0, 10.0, 1e3, 1e8)


def random_ising(rng: np.random.Generator, n: int, coupling: float, field: float):
    j = np.triu(coupling * rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.7), 1)
    return tz.ising(j + j.T, field * rng.normal(size=n))


def evidence_for(model: tz.FactorGraph, order, mu, v, *cuts) -> QuadraticEvidence:
    return QuadraticEvidence(Spins.of(encode(model, multivalued=True)).link, order, mu, v, *cuts)


def random_cuts(rng: np.random.Generator, n: int, size: float):
    """Inequalities with their multiples, the spin that is 1 among them."""
    count = int(rng.integers(0, 12)) if n >= 2 else 0
    spins = np.array([rng.permutation(n + 1)[:3] for _ in range(count)], dtype=np.int64)
    spins = spins.reshape(count, 3)
    return spins, rng.choice([-1, 1], size=(count, 3)), size * rng.random(count)


def log_z(couplings: np.ndarray, fields: np.ndarray) -> float:
    s = states(fields.size)
    e = s @ fields + 0.5 * ((s @ couplings) * s).sum(axis=1)
    return float(e.max() + np.log(np.exp(e - e.max()).sum()))


def glass(n: int, beta: float, seed: int) -> np.ndarray:
    j = np.triu(np.random.default_rng(seed).normal(size=(n, n)) * beta / math.sqrt(n), 1)
    return j + j.T


# Above the truth ----------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(0, 9),
    coupling=st.sampled_from(SCALES),
    field=st.sampled_from(SCALES),
    tail=st.integers(0, 6),
    iterations=st.integers(0, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_bound_is_above_the_truth(n, coupling, field, tail, iterations, seed):
    model = random_ising(np.random.default_rng(seed), n, coupling, field)
    r = tz.upper_bound(model, method=tz.Quadratic(tail=tail, iterations=iterations))
    assert r.log_z >= enumerate_model(model).low
    assert not math.isnan(r.log_z)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 8),
    coupling=st.sampled_from(SCALES),
    field=st.sampled_from(SCALES),
    mu=st.floats(-1e6, 1e6),
    v=st.floats(-100.0, 1e6) | st.floats(-1.0, 1.5),
    spread=st.sampled_from((0.0, 0.1, 10.0)),
    cut=st.sampled_from((0.0, 1e-9, 0.3, 1e4)),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_order_and_any_numbers_prove_a_bound(n, coupling, field, mu, v, spread, cut, seed):
    rng = np.random.default_rng(seed)
    model = random_ising(rng, n, coupling, field)
    steps = int(rng.integers(0, n + 1))
    many = mu * rng.random(steps) * (rng.random() < 0.7), v + spread * rng.normal(size=steps)
    cuts = random_cuts(rng, n, cut)
    verdict = evidence_for(model, rng.permutation(n), *many, *cuts).verdict(model)
    assert verdict.upper >= enumerate_model(model).low
    assert verdict.lower == -math.inf


@pytest.mark.parametrize("size", [1e30, 1e60, 1e99])
def test_huge_couplings_give_a_bound_or_none(size):
    model = random_ising(np.random.default_rng(0), 6, size, size)
    r = tz.upper_bound(model, method=tz.Quadratic(tail=2))
    assert r.log_z >= float(enumerate_model(model).low)
    if not math.isfinite(r.log_z):
        assert r.log_z == math.inf
        assert r.status is QuadraticStatus.OVERFLOW


@pytest.mark.parametrize("tail", [0, 3])
def test_layers_fields_evidence_and_constants(tail):
    rng = np.random.default_rng(1)
    for scale in (0.1, 1.0, 5.0):
        weights = scale * rng.normal(size=(7, 5))
        model = tz.rbm(weights, rng.normal(size=7), rng.normal(size=5))
        clamped = tz.FactorGraph([2] * 12, model.factors, evidence={0: 1, 8: 0})
        scaled = tz.FactorGraph([2] * 3, [((0, 1), [[1e6, 2.0], [3.0, 1e6]]), ((2,), [-1e6, 0.0])])
        for each in (model, clamped, scaled):
            truth = enumerate_model(each)
            value = tz.upper_bound(each, method=tz.Quadratic(tail=tail)).log_z
            assert truth.low <= value
            assert value < truth.high + 12.0 * max(scale, 1.0)


def test_observed_variables_and_single_states():
    factors = [((0, 1), [[1.0, 2.0], [0.5, 0.0]]), ((1, 2), [[0.3], [0.7]]), ((3, 1), np.eye(2))]
    model = tz.FactorGraph([2, 2, 1, 2], factors, evidence={3: 1})
    truth = enumerate_model(model)
    assert 0.0 <= tz.upper_bound(model, method=tz.Quadratic(tail=0)).log_z - truth.low < 1e-6


def test_the_last_spins_alone_are_exact():
    model = random_ising(np.random.default_rng(2), 9, 1.0, 1.0)
    r = tz.upper_bound(model, method=tz.Quadratic(tail=14))
    assert 0.0 <= r.log_z - enumerate_model(model).low < 1e-11
    assert r.rounding < 1e-11


def test_trees_are_exact():
    """A spin with one neighbour has a field of two values, through both of which it touches."""
    n = 40
    rng = np.random.default_rng(3)
    j = np.zeros((n, n))
    for k in range(1, n):
        i = int(rng.integers(k))
        j[i, k] = j[k, i] = rng.normal()
    model = tz.ising(j, rng.normal(size=n))
    r = tz.upper_bound(model, method=tz.Quadratic(tail=2, tol=1e-9))
    assert r.log_z == pytest.approx(tz.exact(model).log_z, abs=1e-6)


def test_every_iterate_of_the_stream_is_a_bound():
    model = tz.ising(glass(20, 1.5, 0), 0.2 * np.ones(20))
    truth = tz.exact(model).log_z
    values = [b.log_z for b in quadratic_bounds(encode(model), tz.Quadratic(tail=4))]
    assert values == sorted(values, reverse=True)
    assert values[-1] >= truth - 1e-9
    assert values[-1] < truth + 3.0


# Close to it --------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta", "gap"), [(0.5, 0.2), (1.0, 1.5), (2.0, 5.0)])
def test_spin_glasses(beta, gap):
    model = tz.ising(glass(24, beta, 1), np.zeros(24))
    r = tz.upper_bound(model, method=tz.Quadratic(tail=10))
    assert 0.0 <= r.log_z - tz.exact(model).log_z < gap
    assert r.status is QuadraticStatus.CONVERGED


def test_it_beats_mini_buckets_on_a_dense_glass():
    model = tz.ising(glass(40, 1.0, 2), np.zeros(40))
    tables = tz.upper_bound(model, method=tz.MiniBucket(ibound=6, iterations=10)).log_z
    assert tz.upper_bound(model, method=tz.Quadratic(tail=8)).log_z < tables - 5.0


# The parts ----------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(field=st.floats(-50.0, 50.0), reach=st.floats(0.0, 80.0), log_at=st.floats(-12.0, 6.0))
def test_quadratics_lie_above(field, reach, log_at):
    q = touching(field, reach, log_at)
    for b in np.linspace(field - reach, field + reach, 101):
        value = q.c + q.mu * b + 0.5 * q.v * b * b
        assert value >= np.logaddexp(b, -b) - 1e-7 * (1.0 + b * b)


@settings(max_examples=300, deadline=None)
@given(
    mu=st.floats(-3.0, 3.0) | st.just(0.0),
    v=st.floats(-2.0, 3.0) | st.floats(0.0, 1.0),
    low=st.floats(-40.0, 40.0),
    length=st.floats(0.0, 60.0) | st.just(1e6),
)
def test_the_supremum_is_one(mu, v, low, length):
    high = low + length
    value, error = (x[0] for x in suprema(*(np.array([x]) for x in (mu, v, low, high))))
    b = np.concatenate(
        [np.linspace(low, high, 4001), np.linspace(max(low, -40), min(high, 40), 4001)]
    )
    b = np.clip(b, low, high).astype(np.longdouble)
    f = np.abs(b) + np.log1p(np.exp(-2 * np.abs(b))) - mu * b - v * b * b / 2
    assert f.max() <= np.longdouble(value) + np.longdouble(error)
    assert error <= 1e-12 * (1.0 + length * length + low * low) * (1.0 + abs(mu) + abs(v))
    step = max(length / 4000, 0.02) ** 2
    assert value + error <= float(f.max()) + (1.0 + abs(v)) * step + 1e-9 * (1 + length**2)


def test_a_slope_within_its_rounding_adds_up_over_a_long_way():
    """f(y) = log 2cosh y - y + 5e-22 y^2 is flat to all digits and rises by 5e-10."""
    c, error = suprema(*(np.array([x]) for x in (1.0, -1e-21, 30.0, 1e6)))
    assert 4.9e-10 <= c[0] + error[0] < 1e-6


def test_the_gradient_is_that_of_the_value():
    rng = np.random.default_rng(4)
    for n, tail, field, layer in (
        (9, 3, 0.3, 0),
        (9, 3, 4.0, 0),
        (44, 4, 1.0, 20),
        (70, 2, 0.1, 0),
    ):
        j, h = glass(n, 1.2, n), field * rng.normal(size=n)
        j[:layer, :layer] = 0.0
        at = np.log(rng.uniform(0.8, 3.0, n - tail))
        gradient = Elimination(j, h, at).moments()[0]
        for k in range(0, n - tail, 3):
            step = 1e-6 * (np.arange(n - tail) == k)
            change = Elimination(j, h, at + step).value - Elimination(j, h, at - step).value
            assert gradient[k] == pytest.approx(change / 2e-6, rel=2e-4, abs=1e-5)


@pytest.mark.parametrize("layer", [0, 20])
def test_panels_sum_out_one_spin_after_the_other(layer):
    j, h, at = glass(70, 1.2, 1), np.linspace(-2, 1, 70), np.full(66, np.nan)
    j[:layer, :layer] = 0.0
    found = Elimination(j, h, at)
    c, mu, v = np.concatenate([panel.quadratics for panel in found.panels])[:, :3].T
    constant, *rest = naive.quadratic_elimination(j, h, c, mu, v)
    assert found.value == pytest.approx(constant + summed(*rest)[0], rel=1e-12)
    assert np.isfinite(found.log_at).all()
    # E[s] and E[s s'] are how fast the bound rises with a field or a coupling.
    found = Elimination(j, h, found.log_at)
    _, means, pairs = found.moments()
    rng = np.random.default_rng(3)
    for a, b in rng.integers(70, size=(40, 2)):
        by_field, by_pair = 1e-6 * (np.arange(70) == a), np.zeros((70, 70))
        up, down = (Elimination(j, h + sign * by_field, found.log_at).value for sign in (1, -1))
        assert means[a] == pytest.approx((up - down) / 2e-6, rel=2e-4, abs=1e-5)
        if a != b and max(a, b) >= layer:
            by_pair[a, b] = by_pair[b, a] = 1e-6
            up, down = (Elimination(j + sign * by_pair, h, found.log_at).value for sign in (1, -1))
            assert pairs[a, b] == pytest.approx((up - down) / 2e-6, rel=2e-4, abs=1e-5)


@pytest.mark.parametrize("count", [1, 3, MEMORY, MEMORY + 5])
def test_directions_are_those_of_the_last_pairs(count):
    rng = np.random.default_rng(13)
    bend = np.diag(rng.uniform(0.5, 2.0, 9))
    steps = rng.normal(size=(count, 9))
    memory = Memory(9)
    for step in steps:
        memory.add(step, bend @ step)
        memory.add(step, -bend @ step)  # bends downwards: not kept
    gradient = 1e-3 * rng.normal(size=9)
    expected = naive.inverse_hessian_product(-gradient, [(s, bend @ s) for s in steps[-MEMORY:]])
    np.testing.assert_allclose(memory.direction(gradient), expected, rtol=1e-9)


def test_moments_are_those_of_the_model_where_nothing_was_replaced():
    j, h = glass(8, 1.0, 5), np.linspace(-1, 1, 8)
    found = Elimination(j, h, np.zeros(0))
    s = states(8)
    p = np.exp(s @ h + 0.5 * ((s @ j) * s).sum(axis=1) - found.value)
    assert found.value == pytest.approx(log_z(j, h))
    np.testing.assert_allclose(found.moments()[1], p @ s, atol=1e-12)
    np.testing.assert_allclose(
        found.moments()[2], s.T @ (p[:, None] * s) * (1 - np.eye(8)), atol=1e-12
    )


def test_orders_name_every_spin_once_and_layers_are_found():
    rng = np.random.default_rng(6)
    j = np.zeros((30, 30))
    j[:18, 18:] = rng.normal(size=(18, 12))
    j += j.T
    assert len(set(two_layers(j)[:18])) == 1
    assert two_layers(glass(5, 1.0, 0)) is None
    orders = candidates(j, rng.normal(size=30), 4)
    assert len(orders) == 3
    assert set(orders[0][:18].tolist()) == set(range(18))
    for order in [*orders, weakest_first(glass(12, 1.0, 0), np.zeros(12), 3)]:
        assert sorted(order.tolist()) == list(range(order.size))


def test_rounding_covers_exact_arithmetic():
    """The steps in fractions, with the c that the judge found: less than rounding away."""
    rng = np.random.default_rng(7)
    for scale in (1e-8, 1.0, 1e3):
        n, steps = 12, 9
        j, h = scale * glass(n, 1.0, 8), scale * rng.normal(size=n)
        mu, v = 0.2 * rng.normal(size=steps), rng.uniform(0.1, 0.9, steps) / max(scale, 1.0)
        model = tz.ising(j, h)
        spins = Spins.of(encode(model))
        verdict = QuadraticEvidence(spins.link, np.arange(n), mu, v).verdict(model)
        exact = exact_elimination(spins, mu, v)
        assert verdict.upper >= exact - 1e-15 * abs(exact)
        assert verdict.upper - exact <= 2.0 * verdict.rounding + 1e-12 * abs(exact)
        assert verdict.rounding <= 1e-9 * max(1.0, scale)


def test_the_last_spins_are_within_the_rounding_of_their_own_sum():
    """The sum over all states alone: what the steps before it charge would cover it by luck."""
    off = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = 6
        j, h = 1e6 * np.triu(rng.normal(size=(n, n)), 1), 1e6 * rng.normal(size=n)
        steps = judge._Elimination(j, h, 0.0, 0.0)
        steps._last(0)
        energies = [
            sum(Fraction(h[a]) * s[a] for a in range(n))
            + sum(Fraction(j[a, b]) * s[a] * s[b] for a in range(n) for b in range(a + 1, n))
            for s in (states(n).astype(int)).tolist()
        ]
        top = max(energies)
        log_sum = Fraction(math.log(math.fsum(math.exp(float(e - top)) for e in energies)))
        value = sum(Fraction(x) for part in steps.constants for x in part.tolist())
        miss = float(top + log_sum - value)
        assert abs(miss) <= steps.error < 1e-6
        off += miss > 1e-11
    assert off > 0  # the sum itself was below the truth: without its error the bound would be


@pytest.mark.parametrize("error", [1e-17, 1e-9, 1.0])
def test_rows_that_are_not_right_prove_no_less(monkeypatch, error):
    """Nothing rests on how rows and fields were found: what they miss is added."""
    found, rng = judge._substituted, np.random.default_rng(11)

    def off(*panel):
        rows, fields = found(*panel)
        more = error * rng.normal(size=rows.shape)
        return rows + np.triu(more, 1), fields * (1.0 + error * rng.normal(size=fields.shape))

    monkeypatch.setattr(judge, "_substituted", off)
    for coupling in (1e-9, 0.3, 10.0):
        model = random_ising(rng, 8, coupling, coupling)
        v = rng.uniform(0.1, 0.9, 7) / max(1.0, coupling)
        verdict = evidence_for(model, np.arange(8), 0.1 * rng.normal(size=7), v).verdict(model)
        assert verdict.upper >= enumerate_model(model).low
        assert verdict.rounding >= error


@pytest.mark.parametrize("panel", [(1, 1), (3, 2), (5, 16), (256, 3)])
def test_panels_and_blocks_do_not_matter(monkeypatch, panel):
    rng = np.random.default_rng(12)
    j, h = glass(23, 1.0, 8), rng.normal(size=23)
    j[:6, :6] = 0.0
    model = tz.ising(j, h)
    evidence = evidence_for(model, np.arange(23), 0.1 * rng.normal(size=20), np.full(20, 0.4))
    usual = evidence.verdict(model)
    monkeypatch.setattr(judge, "_PANEL", panel[0])
    monkeypatch.setattr(judge, "_BLOCK", panel[1])
    other = replace(evidence).verdict(model)
    assert abs(other.upper - usual.upper) <= usual.rounding < 1e-10


@pytest.mark.parametrize("part", ["c", "field"])
def test_a_judge_with_a_mistake_is_caught(monkeypatch, part):
    """Two spins and a quadratic through both values of the field: nothing to spare."""
    usual, last = judge.suprema, judge._Elimination._last

    def lowered(*rows):
        c, error = usual(*rows)
        return c - 1e-9, error

    def moved(self, start):
        self.h[start:] -= 1e-9
        last(self, start)

    model = tz.ising(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.3, 0.7]))
    truth = enumerate_model(model)
    low, high = np.logaddexp(0.7, -0.7), np.logaddexp(1.3, -1.3)
    evidence = evidence_for(model, np.arange(2), np.array([(high - low) / 2]), np.zeros(1))
    assert truth.low <= evidence.verdict(model).upper < truth.high + 1e-10
    if part == "c":
        monkeypatch.setattr(judge, "suprema", lowered)
    else:
        monkeypatch.setattr(judge._Elimination, "_last", moved)
    assert replace(evidence).verdict(model).upper < truth.low


def test_evidence_that_is_changed_forgets_what_was_judged():
    """What was found about one model, one polynomial or one q is no finding about another."""
    one = tz.ising(np.zeros((3, 3)), np.zeros(3))
    two = tz.ising(3.0 * (np.ones((3, 3)) - np.eye(3)), np.zeros(3))
    evidence = evidence_for(one, np.arange(3), np.zeros(3), np.zeros(3))
    link = Spins.of(encode(two, multivalued=True)).link
    assert evidence.verdict(one).upper == pytest.approx(3.0 * math.log(2.0), abs=1e-9)
    assert replace(evidence, link=link).verdict(two).upper >= enumerate_model(two).low
    with pytest.raises(RefutedError, match="away from the model's tables"):
        replace(evidence.link, terms=link.terms).rounding(one)
    q = ProductQ(SpinMap.identity(3), np.zeros(3))
    low = SpinEvidence(SpinLink(evidence.link), q)
    sure = ProductQ(SpinMap.identity(3), np.ones(3))
    assert low.verdict(one).lower == pytest.approx(3.0 * math.log(2.0), abs=1e-9)
    assert replace(low, q=sure).verdict(one).lower == pytest.approx(0.0, abs=1e-9)


def exact_elimination(spins: Spins, mu: np.ndarray, v: np.ndarray) -> float:
    j = [[Fraction(float(x)) for x in row] for row in spins.couplings]
    h = [Fraction(float(x)) for x in spins.fields]
    total, rest = Fraction(float(spins.constant)), 0.0
    n = len(h)
    for k, (m, w) in enumerate(
        zip(map(Fraction, mu.tolist()), map(Fraction, v.tolist()), strict=True)
    ):
        reach = sum(abs(j[k][i]) for i in range(k + 1, n))
        ends = np.array([[float(x)] for x in (m, w, h[k] - reach, h[k] + reach)])
        rest += float(suprema(*ends)[0][0])
        total += m * h[k] + w * h[k] ** 2 / 2 + w / 2 * sum(j[k][i] ** 2 for i in range(k + 1, n))
        for a in range(k + 1, n):
            h[a] += (m + w * h[k]) * j[k][a]
            for b in range(k + 1, n):
                j[a][b] += w * j[k][a] * j[k][b] if a != b else 0
    left = range(v.size, n)
    last = log_z(
        np.array([[float(j[a][b]) for b in left] for a in left]),
        np.array([float(h[a]) for a in left]),
    )
    return float(total) + rest + last


# Forgeries and refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "mu", "v", "says"),
    [
        ([0, 1, 1], [0.0], [1.0], "does not name every spin once"),
        ([0, 1], [0.0], [1.0], "does not name every spin once"),
        ([0, 1, 3], [0.0], [1.0], "does not name every spin once"),
        ([0.0, 1.0, 2.0], [0.0], [1.0], "does not name every spin once"),
        ([0, 1, 2], [0.0] * 4, [1.0] * 4, "one mu and one v"),
        ([0, 1, 2], [0.0], [1.0, 1.0], "one mu and one v"),
        ([0, 1, 2], [0.0], [math.nan], "not a number"),
        ([0, 1, 2], [math.inf], [1.0], "not a number"),
    ],
)
def test_the_judge_refuses(order, mu, v, says):
    model = tz.ising(glass(3, 1.0, 0), np.zeros(3))
    with pytest.raises(RefutedError, match=says):
        evidence_for(model, np.array(order), np.array(mu), np.array(v)).verdict(model)


@pytest.mark.parametrize(
    ("spins", "signs", "multiples", "says"),
    [
        ([[0, 1, 2]], [[1, 1, 1]], [-1e-9], "negative or not a number"),
        ([[0, 1, 2]], [[1, 1, 1]], [math.nan], "negative or not a number"),
        ([[0, 1, 2]], [[1, 1, 1]], [math.inf], "negative or not a number"),
        ([[0, 1, 4]], [[1, 1, 1]], [1.0], "not one of spins and signs"),
        ([[0, 1, -1]], [[1, 1, 1]], [1.0], "not one of spins and signs"),
        ([[0.0, 1.0, 2.0]], [[1, 1, 1]], [1.0], "not one of spins and signs"),
        ([[0, 1, 2]], [[1, 1, 0]], [1.0], "not one of spins and signs"),
        ([[0, 1, 2]], [[1, 1, 2]], [1.0], "not one of spins and signs"),
        ([[0, 1, 1]], [[1, 1, -1]], [1.0], "names a spin twice"),
        ([[3, 1, 3]], [[1, 1, -1]], [1.0], "names a spin twice"),
        ([[0, 1]], [[1, 1]], [1.0], "do not have three spins"),
        ([[0, 1, 2]], [[1, 1, 1]], [1.0, 1.0], "do not have three spins"),
    ],
)
def test_the_judge_refuses_inequalities(spins, signs, multiples, says):
    model = tz.ising(glass(3, 1.0, 0), np.zeros(3))
    cuts = np.array(spins), np.array(signs), np.array(multiples)
    with pytest.raises(RefutedError, match=says):
        evidence_for(model, np.arange(3), np.zeros(1), np.ones(1), *cuts).verdict(model)


def test_cuts_hold_at_every_state_and_come_from_broken_moments():
    rng = np.random.default_rng(9)
    means, pairs = rng.uniform(-0.9, 0.9, 7), rng.uniform(-0.9, 0.9, (7, 7))
    pairs = np.triu(pairs, 1) + np.triu(pairs, 1).T
    cuts = broken(means, pairs, 0)
    assert cuts.size > 20
    assert np.unique(cuts.keys).size == cuts.size
    assert (Added(cuts).slopes(means, pairs) < -BROKEN).all()
    for s in states(7):
        left = Added(cuts).slopes(s, np.outer(s, s))
        assert set(left.tolist()) <= {0.0, 4.0}
        np.testing.assert_array_equal(left, naive.inequality(s, cuts.spins, cuts.signs))
    assert not (broken(means, pairs, 4).spins[:, :2] < 4).all(axis=1).any()
    assert cuts.joined(cuts).size == cuts.size


def test_multiples_change_couplings_fields_and_the_constant():
    rng = np.random.default_rng(10)
    spins, signs, multiples = random_cuts(rng, 6, 1.0)
    spins = np.sort(spins, axis=1)
    j, h = glass(6, 1.0, 11), rng.normal(size=6)
    more, field, constant = Added(Cuts(6, spins, signs)).to(j, h, multiples)
    for s in states(6):
        extra = multiples @ naive.inequality(s, spins, signs)
        assert s @ field + s @ more @ s / 2 + constant == pytest.approx(
            s @ h + s @ j @ s / 2 + extra
        )


def test_cuts_tighten_a_cold_machine():
    rng = np.random.default_rng(12)
    model = tz.rbm(2.0 * rng.normal(size=(12, 10)), rng.normal(size=12) - 1.0, rng.normal(size=10))
    truth = tz.exact(model).log_z
    without, with_ = (
        tz.upper_bound(model, method=tz.Quadratic(tail=4, cuts=cuts)).log_z - truth
        for cuts in (False, True)
    )
    assert 0.0 <= with_ < 0.7 * without


def test_the_judge_refuses_another_model():
    model, other = (tz.ising(glass(3, 1.0, seed), np.zeros(3)) for seed in (0, 1))
    evidence = evidence_for(model, np.arange(3), np.zeros(1), np.ones(1))
    with pytest.raises(RefutedError, match="away from the model's tables"):
        evidence.verdict(other)


def test_products_of_three_and_zeros_are_refused():
    triple = tz.FactorGraph([2] * 3, [((0, 1, 2), np.arange(8.0).reshape(2, 2, 2) ** 3)])
    with pytest.raises(UnsupportedModelError, match=r"products of 3; use tz\.MiniBucket"):
        tz.upper_bound(triple, method=tz.Quadratic())
    zero = tz.FactorGraph([2] * 2, [((0, 1), [[0.0, -math.inf], [-math.inf, 0.0]])])
    with pytest.raises(UnsupportedModelError, match=r"zeros; use tz\.MiniBucket"):
        tz.upper_bound(zero, method=tz.Quadratic())


def test_what_it_says():
    r = tz.upper_bound(tz.ising(glass(20, 1.0, 0), np.zeros(20)), method=tz.Quadratic(tail=4))
    assert "quadratic elimination" in r.summary()
    assert "status=CONVERGED" in repr(r)
    assert r.upper == r.log_z
    assert r.bound.evidence is not None


def test_threads_of_matrix_products_are_given_back():
    calls = blas_threads._calls()
    if calls is None:
        pytest.skip("numpy has no OpenBLAS of its own")
    get, _ = calls
    before = get()
    with one_blas_thread():
        assert get() == 1
        with one_blas_thread():
            assert get() == 1
        assert get() == 1
    assert get() == before


def test_changes_whose_squares_underflow_are_no_curvature():
    memory = Memory(2)
    memory.add(np.array([1.0, 0.0]), np.array([1e-170, 0.0]))
    assert np.isfinite(memory.direction(np.ones(2))).all()
