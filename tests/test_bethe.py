"""Belief propagation: exact on trees, a twin elsewhere, and lower bounds only where proven."""

from __future__ import annotations

import math
import os
import pickle
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tests.called import called
from tests.precise import precise_log_z
from tightz.bounds import Proof, Side
from tightz.errors import ModelError, ParameterError
from tightz.judge.attractive import joint_tables
from tightz.models.builders import ising, ising_grid, potts_grid
from tightz.models.ensembles import random_regular
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.uai import read_uai
from tightz.paper.mean_field import mean_field
from tightz.propagation import BetheStatus, bethe
from tightz.propagation.parity import box_plus


def exact(model, parities=()):
    factors = [(f.scope, f.log_table) for f in model.factors]
    factors += [parity_table(variables, b) for variables, b in parities]
    return naive.enumerate_model(model.cardinalities, factors, model.evidence)


def parity_table(variables, b):
    """The constraint as an ordinary factor with zeros."""
    states = naive.all_states([2] * len(variables))
    table = np.where(states.sum(axis=1) % 2 == b, 0.0, -np.inf)
    return tuple(variables), table.reshape([2] * len(variables))


def tree_factors(rng, n, scale, zeros):
    """Factors of arity 0 to 4 whose factor graph is a forest: each takes one old variable."""
    cards = rng.integers(1, 4, size=n).tolist()
    factors = [((), rng.normal())]
    unused = list(range(1, n))
    used = [0]
    while unused:
        new = [unused.pop() for _ in range(min(len(unused), int(rng.integers(1, 4))))]
        scope = rng.permutation([int(rng.choice(used)), *new]).tolist()
        used += new
        factors.append((scope, scale * rng.normal(size=[cards[v] for v in scope])))
    factors += [((v,), scale * rng.normal(size=cards[v])) for v in range(n) if rng.random() < 0.7]
    for _, table in factors[1:]:
        table[rng.random(table.shape) < zeros] = -np.inf
    return cards, factors


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.1, 3.0, 200.0, 1e6]),
    st.sampled_from([0.0, 0.25]),
    st.booleans(),
)
def test_exact_on_trees(seed, scale, zeros, observed):
    rng = np.random.default_rng(seed)
    cards, factors = tree_factors(rng, 6, scale, zeros)
    evidence = {2: int(rng.integers(cards[2]))} if observed else None
    model = FactorGraph(cards, factors, evidence=evidence)
    log_z, marginals = exact(model)
    result = bethe(model)
    if log_z == -np.inf:
        assert result.status is BetheStatus.IMPOSSIBLE
        assert result.log_z == -np.inf
        assert result.bound.side is Side.BOTH
        return
    assert result.status is BetheStatus.CONVERGED
    assert result.log_z == pytest.approx(log_z, rel=1e-10, abs=1e-8)
    for ours, theirs in zip(result.marginals, marginals, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    for (scope, _), table in zip(factors, result.factor_marginals, strict=True):
        assert table.sum() == pytest.approx(1.0)
        for axis, v in enumerate(scope):
            others = tuple(k for k in range(len(scope)) if k != axis)
            np.testing.assert_allclose(table.sum(axis=others), marginals[v], atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_the_twin_on_cycles(seed):
    """A weak loopy model with factors of arity 2 and 3, three-state variables and a zero."""
    rng = np.random.default_rng(seed)
    cards = [2, 3, 2, 2, 3]
    factors = [((v,), rng.normal(size=c)) for v, c in enumerate(cards)]
    for scope in [(0, 1), (2, 1), (1, 3), (3, 4), (0, 4), (0, 2, 3), (4, 2, 1)]:
        factors.append((scope, 0.4 * rng.normal(size=[cards[v] for v in scope])))
    factors[5][1][0, 0] = -np.inf
    result = bethe(FactorGraph(cards, factors))
    log_z, marginals = naive.loopy_belief_propagation(cards, factors)
    assert result.status is BetheStatus.CONVERGED
    assert result.log_z == pytest.approx(log_z, abs=1e-7)
    assert abs(log_z - naive.enumerate_model(cards, factors)[0]) > 1e-5
    for ours, theirs in zip(result.marginals, marginals, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    damped = bethe(FactorGraph(cards, factors), damping=0.4)
    assert damped.log_z == pytest.approx(log_z, abs=1e-7)
    assert damped.iterations > result.iterations


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.5, 20.0, 1e4]))
def test_parities_without_cycles_are_exact(seed, scale):
    """Chain 0-1-2, loose variables 3..6; parities touch the chain at most once each."""
    rng = np.random.default_rng(seed)
    factors = [((v,), scale * rng.normal(size=2)) for v in range(7)]
    factors += [(e, scale * rng.normal(size=(2, 2))) for e in [(0, 1), (2, 1)]]
    parities = [([0, 3, 4], int(rng.integers(2))), ([4, 5, 6], int(rng.integers(2)))]
    model = FactorGraph([2] * 7, factors)
    result = bethe(model, parities=parities)
    log_z, marginals = exact(model, parities)
    assert result.log_z == pytest.approx(log_z, rel=1e-10, abs=1e-8)
    for ours, theirs in zip(result.marginals, marginals, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert result.lower == -np.inf
    assert result.bound.side is Side.ESTIMATE
    assert result.bound.proof is Proof.NONE


@pytest.mark.parametrize("seed", range(6))
def test_tanh_rule_equals_the_parity_table(seed):
    """On a loopy model, with repeated bits, evidence, one-state variables and a forced bit."""
    rng = np.random.default_rng(seed)
    cards = [2] * 6 + [1]
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5)]
    factors = [((v,), rng.normal(size=c)) for v, c in enumerate(cards)]
    factors += [(e, 0.3 * rng.normal(size=(2, 2))) for e in edges]
    if seed % 2:
        factors.append(((3,), [0.0, -np.inf]))
    model = FactorGraph(cards, factors, evidence={5: 1})
    rule = bethe(model, parities=[([0, 2, 5, 2, 2, 6], 1), ([1, 3, 4], 0)])
    plain = FactorGraph(
        cards,
        [*factors, parity_table([0, 2, 5], 1), parity_table([1, 3, 4], 0)],
        evidence={5: 1},
    )
    table = bethe(plain)
    assert rule.status is table.status is BetheStatus.CONVERGED
    assert rule.log_z == pytest.approx(table.log_z, abs=1e-7)
    for ours, theirs in zip(rule.marginals, table.marginals, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_contradicting_parities_have_no_weight():
    model = ising_grid(2, seed=0)
    for parities in (
        [([0], 0), ([0], 1)],
        [([1, 1], 1)],
        [([], 1)],
        [([0], 1), ([0, 1], 0), ([1], 0)],
    ):
        result = bethe(model, parities=parities)
        assert result.log_z == -np.inf
        assert result.status is BetheStatus.IMPOSSIBLE
    assert bethe(model, parities=[([], 0)]).log_z == bethe(model).log_z


def attractive_model(rng, n, scale, density=0.7):
    """Attractive couplings under a random relabelling of spins."""
    couplings = np.triu(rng.uniform(0.0, scale, (n, n)) * (rng.random((n, n)) < density), 1)
    flips = rng.choice([-1.0, 1.0], n)
    couplings = couplings * np.outer(flips, flips)
    return ising(couplings + couplings.T, rng.uniform(-1.0, 1.0, n) * rng.choice([0.0, 1.0, scale]))


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.2, 1.0, 5.0, 50.0, 1e6]),
    st.sampled_from([1, 2, 5, 300]),
)
def test_attractive_models_get_a_lower_bound_at_any_iterate(seed, scale, iterations):
    rng = np.random.default_rng(seed)
    model = attractive_model(rng, 7, scale)
    log_z, _ = exact(model)
    result = bethe(model, max_iterations=iterations)
    assert result.lower > -np.inf
    assert np.isfinite(result.lower)
    assert result.lower <= log_z
    assert result.bound.side is Side.LOWER
    assert result.bound.proof is Proof.DETERMINISTIC
    if result.status is BetheStatus.CONVERGED:
        assert result.lower == pytest.approx(result.log_z, rel=1e-8, abs=1e-5)


def tied_chain(links, field):
    """x0 = x1 = ... with x0 = 1 forced; the last link carries a field against state 1."""
    equal = np.where(np.eye(2, dtype=bool), 0.0, -np.inf)
    factors = [((v, v + 1), equal) for v in range(links)]
    return FactorGraph(
        [2] * (links + 1), [*factors, ((0,), [-np.inf, 0.0]), ((links,), [0.0, field])]
    )


@pytest.mark.parametrize("links", [2, 2600])
def test_zeros_that_have_not_spread_yet_leave_nothing_out(links):
    """These chains once claimed log Z >= 0: the live state's belief was rounded to zero."""
    model = tied_chain(links, -800.0)
    for iterations in (1, 2, 1000):
        result = bethe(model, max_iterations=iterations)
        assert result.lower > -np.inf
        assert -800.0 - 1e-9 <= result.lower <= -800.0


def hostile_attractive_model(rng):
    """Attractive up to flips, with dead states, huge fields and couplings, and parallel factors."""
    n = int(rng.integers(1, 8))
    scale = rng.choice([0.5, 20.0, 1e3, 1e5, 1e9])
    flips = rng.choice([-1.0, 1.0], n)
    ties = rng.choice([0.0, 0.5])
    factors = []
    if ties and rng.random() < 0.7:  # a state that is forced, and has yet to be heard of
        factors.append(((0,), np.where(np.arange(2) == rng.integers(2), 0.0, -np.inf)))
    for i in range(n):
        for j in range(i):
            for _ in range(rng.choice([0, 1, 1, 2])):
                w = scale * rng.choice([0.0, 1e-17, rng.random()]) * flips[i] * flips[j]
                offset = scale * rng.normal()
                table = np.array([[w, -w], [-w, w]]) + offset
                table = table + scale * rng.normal(size=(2, 1))
                if rng.random() < ties:
                    table[[0, 1], [1, 0] if flips[i] == flips[j] else [0, 1]] = -np.inf
                factors.append(((i, j), table))
        field = scale * rng.choice([0.0, 1.0, 100.0]) * rng.normal(size=2)
        factors.append(((i,), np.where(rng.random(2) < 0.15, -np.inf, field)))
    seen = {int(v): int(rng.integers(2)) for v in range(n) if rng.random() < 0.1}
    return FactorGraph([2] * n, factors, evidence=seen)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 200]))
def test_lower_bounds_of_attractive_models_hold_to_the_last_digit(seed, iterations):
    model = hostile_attractive_model(np.random.default_rng(seed))
    result = bethe(model, max_iterations=iterations)
    if result.lower > -np.inf:
        assert Decimal(result.lower) <= precise_log_z(model)


def test_frustrated_models_get_no_lower_bound():
    """On a frustrated cycle the Bethe value exceeds log Z: the label matters."""
    rng = np.random.default_rng(0)
    couplings = {(0, 1): 1.0, (1, 2): 1.0, (0, 2): -1.0}
    model = ising(couplings, rng.uniform(-0.1, 0.1, 3))
    result = bethe(model)
    assert result.log_z > exact(model)[0] + 1e-3
    assert result.lower == -np.inf
    assert result.bound.side is Side.ESTIMATE
    three_states = FactorGraph([3, 2], [((0, 1), rng.normal(size=(3, 2)))])
    assert bethe(three_states).lower == -np.inf
    hard = FactorGraph([2, 2], [((0, 1), [[0.0, -np.inf], [1.0, 0.0]])])
    assert bethe(hard).lower == -np.inf
    triple = FactorGraph([2, 2, 2], [((0, 1, 2), np.zeros((2, 2, 2)))])
    assert bethe(triple).lower == -np.inf


@settings(max_examples=100, deadline=None)
@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 30.0), st.floats(0.0, 1.0))
def test_pair_table_is_consistent_and_optimal(a, b, attraction, other):
    margins = [(np.array([min(p, 1.0 - p)]), np.array([p <= 0.5])) for p in (a, b)]
    joint = joint_tables(*margins, np.exp([-attraction]))
    table = np.array([p[0] for p, _ in joint])
    both, a_only, b_only = table[:3]
    assert (table >= 0.0).all()
    assert both + a_only == pytest.approx(a, abs=1e-14)
    assert both + b_only == pytest.approx(b, abs=1e-14)
    assert table.sum() == pytest.approx(1.0, abs=1e-14)

    def value(t):
        t = np.maximum(t, 0.0)
        return attraction * t[0] - sum(p * np.log(p) for p in t if p > 0.0)

    low, high = max(0.0, a + b - 1.0), min(a, b)
    x = low + other * (high - low)
    assert value(table) >= value(np.array([x, a - x, b - x, 1.0 - a - b + x])) - 1e-9


@settings(max_examples=100, deadline=None)
@given(st.floats(-30.0, 30.0), st.floats(-30.0, 30.0))
def test_box_plus_is_the_tanh_rule(a, b):
    expected = np.tanh(a / 2.0) * np.tanh(b / 2.0)
    assert np.tanh(called(box_plus)(a, b) / 2.0) == pytest.approx(expected, abs=1e-12)
    assert called(box_plus)(np.inf, b) == b
    assert called(box_plus)(a, -np.inf) == -a
    assert np.isfinite(called(box_plus)(1e6 * a, 1e6 * b))


@pytest.mark.parametrize("scale", [10.0, 1e3, 1e6])
def test_strong_couplings_stay_finite(scale):
    model = ising_grid(8, coupling=(-scale, scale), seed=1)
    parities = [(list(range(0, 64, 3)), 1), ([1, 2, 5], 0)]
    for result in (
        bethe(model, max_iterations=60),
        bethe(model, max_iterations=60, parities=parities),
    ):
        assert np.isfinite(result.log_z)
        assert all(np.isfinite(m).all() for m in result.marginals)


def test_non_convergence_is_a_status_with_advice():
    model = ising_grid(8, coupling=(-10.0, 10.0), seed=1)
    result = bethe(model, max_iterations=3)
    assert result.status is BetheStatus.NOT_CONVERGED
    assert result.iterations == 3
    assert result.residual > 1e-3
    assert "raise max_iterations" in result.summary()
    assert "\n" not in repr(result)
    copy = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(copy.factor_marginals[-1], result.factor_marginals[-1])


PARAMAGNET = math.log(2.0) + 1.5 * math.log(math.cosh(0.8))
"""Per spin, at uniform messages: the exact value of such a graph is 1.2158 (ordered)."""


@pytest.mark.parametrize("starts", [1, 4, "states", "mean field"])
def test_an_ordered_phase_is_found_whatever_the_start(starts):
    model = random_regular(200, 3, coupling=0.8, seed=0)
    if starts == "states":
        starts = [np.zeros(200, dtype=int)]
    if starts == "mean field":
        starts = [mean_field(model, seed=0).marginals]
    result = bethe(model, starts=starts)
    assert result.log_zs[0] / 200 == pytest.approx(PARAMAGNET)  # uniform messages, a saddle
    assert result.status is BetheStatus.CONVERGED
    assert result.growth < 0.9
    assert 1.2158 - math.log(2.0) / 200 == pytest.approx(result.log_z / 200, abs=3e-4)
    assert result.lower == pytest.approx(result.log_z)
    again = bethe(model, starts=starts)
    np.testing.assert_array_equal(again.marginals, result.marginals)


def test_an_unstable_fixed_point_is_said_to_be_one():
    """Three colours in their ordered phase, and no iterations left to leave the saddle."""
    model = potts_grid(8, states=3, coupling=1.5, field=0.0)
    result = bethe(model, max_iterations=2)
    assert result.status is BetheStatus.UNSTABLE
    assert result.growth > 1.01
    assert "unstable fixed point" in result.summary()
    ordered = bethe(model, starts=1)
    assert ordered.status is BetheStatus.CONVERGED
    assert ordered.log_z > result.log_z + 1.0
    assert ordered.log_z == max(ordered.log_zs)


def test_starts_agree_where_there_is_one_fixed_point():
    rng = np.random.default_rng(5)
    parities = [([0, 3, 7], 1), ([3, 4, 5], 0)]
    for model in (ising_grid(4, coupling=(0.0, 0.4), seed=1), attractive_model(rng, 6, 0.2)):
        result = bethe(model, parities=parities[: model.n_variables == 16])
        np.testing.assert_allclose(result.log_zs, result.log_z, rtol=1e-7)
        assert result.growth < 1.0
    assert bethe(tied_chain(2, -8.0)).log_zs.size == 1  # a tree has one


def test_degenerate_models():
    assert bethe(FactorGraph([])).log_z == 0.0
    assert bethe(FactorGraph([], [((), 1.5)])).log_z == 1.5
    assert bethe(FactorGraph([3, 1, 2])).log_z == pytest.approx(np.log(6.0))
    assert bethe(FactorGraph([2], [((), -np.inf)])).log_z == -np.inf
    dead = bethe(FactorGraph([2, 2], [((0, 1), np.full((2, 2), -np.inf))]))
    assert dead.log_z == -np.inf
    assert [m.tolist() for m in dead.marginals] == [[0.5, 0.5], [0.5, 0.5]]
    assert dead.factor_marginals[0].shape == (2, 2)
    observed = FactorGraph([2, 3], [((0, 1), np.arange(6.0))], evidence={0: 1, 1: 2})
    result = bethe(observed)
    assert result.log_z == 5.0
    assert result.lower == pytest.approx(5.0)
    assert result.factor_marginals[0][1, 2] == 1.0


def test_bad_input_is_refused():
    model = FactorGraph([2, 3], [((0, 1), np.zeros((2, 3)))])
    with pytest.raises(ModelError, match="parity 0 names variable 7"):
        bethe(model, parities=[([7], 0)])
    with pytest.raises(ModelError, match="variable 1, which has 3 states"):
        bethe(model, parities=[([0, 1], 0)])
    with pytest.raises(ModelError, match="right-hand side 2"):
        bethe(model, parities=[([0], 2)])
    with pytest.raises(ParameterError, match="damping is 1"):
        bethe(model, damping=1.0)
    with pytest.raises(ParameterError, match="max_iterations is 0"):
        bethe(model, max_iterations=0)


@pytest.mark.parametrize(("low", "expected"), [(0.0, -0.52), (-1.0, -0.08)])
def test_weak_coupling_grids_match_the_peers(low, expected):
    """Mean over five 10x10 grids of Bethe minus exact log Z, the figures of PEERS.md."""
    models = [ising_grid(10, coupling=(low, 1.0), seed=seed) for seed in range(5)]
    errors = [bethe(m).log_z - naive.grid_log_z(10, 10, m.factors) for m in models]
    assert np.mean(errors) == pytest.approx(expected, abs=0.006)


@pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="TIGHTZ_DATA is not set")
@pytest.mark.parametrize(
    ("name", "log10_z", "below", "above", "proven"),
    [
        ("DBN_15", 152.617, 0.02, 0.0, True),
        ("Segmentation_11", -23.9961, 6.0, 0.0, True),
        ("Alchemy_11", 606.279, 0.05, 0.05, False),
        ("linkage_23", -116.58, 20.0, 20.0, False),
    ],
)
def test_uai_models(name, log10_z, below, above, proven):
    """Hard constraints on cycles (linkage) once drove messages to 1e90: the cap holds them."""
    folder = Path(os.environ["TIGHTZ_DATA"]) / "uai2014"
    model = read_uai(folder / f"{name}.uai", evidence=folder / f"{name}.uai.evid")
    log_z = np.log(10.0) * log10_z
    result = bethe(model, max_iterations=300)
    assert log_z - below - 1e-3 <= result.log_z <= log_z + above + 1e-3
    assert (result.lower > -np.inf) == proven
    if result.lower > -np.inf:
        assert result.lower <= log_z + 1e-3
