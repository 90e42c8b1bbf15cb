"""Collapse: same Z, same conditional distributions, exact means of what was summed out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import naive
from tightz.errors import ModelError, ParameterError, ResourceError
from tightz.families import MeanField
from tightz.models import ising_grid
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections import Coset, DenseParity
from tightz.reductions.collapse import collapse


@st.composite
def polynomials(draw, max_spins=9, max_arity=4):
    n = draw(st.integers(0, max_spins))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.1, 1.0, 10.0, 1e3, 1e6]))
    terms = []
    for _ in range(draw(st.integers(0, 3 * n))):
        arity = int(rng.integers(0, min(max_arity, n) + 1))
        terms.append((rng.choice(n, size=arity, replace=False).tolist(), scale * rng.normal()))
    return SpinPolynomial.from_terms(n, float(scale * rng.normal()), terms)


def terms_of(poly):
    return [
        (poly.spins[poly.ptr[a] : poly.ptr[a + 1]].tolist(), poly.theta[a])
        for a in range(poly.n_terms)
    ]


def log_weights(poly):
    spins = naive.all_spins(poly.n)
    return naive.polynomial_log_weights(poly.constant, terms_of(poly), spins), spins


def tolerance(poly):
    return 1e-12 * (1.0 + abs(poly.constant) + np.abs(poly.theta).sum())


def grid_log_z(model, rows, cols):
    poly = SpinPolynomial.from_factor_graph(model)
    fields, across, down = np.zeros(rows * cols), np.zeros((rows, cols)), np.zeros((rows, cols))
    for members, theta in terms_of(poly):
        if len(members) == 1:
            fields[members[0]] = theta
        else:
            (across if members[1] == members[0] + 1 else down).ravel()[members[0]] = theta
    return naive.transfer_matrix_log_z(
        rows, cols, across[:, :-1], down[:-1], fields.reshape(rows, cols)
    )


@settings(max_examples=150, deadline=None)
@given(polynomials(), st.integers(0, 6))
def test_every_kept_state_keeps_its_weight(poly, k):
    collapsed = collapse(poly, k)
    logs, spins = log_weights(poly)
    ours, kept_spins = log_weights(collapsed.polynomial)
    for row, value in zip(kept_spins, ours, strict=True):
        match = (spins[:, collapsed.kept] == row).all(axis=1)
        assert value == pytest.approx(naive.log_sum_exp(logs[match]), abs=tolerance(poly), rel=0)
    assert np.diff(collapsed.scope_ptr).max(initial=0) <= k
    assert collapsed.dropped <= tolerance(poly)


@settings(max_examples=100, deadline=None)
@given(polynomials(max_spins=8), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_means_of_product_q_come_back_exactly(poly, k, seed):
    collapsed = collapse(poly, k)
    means = np.random.default_rng(seed).uniform(-1, 1, size=collapsed.kept.size)
    logs, spins = log_weights(poly)
    q = np.prod((1 + means * spins[:, collapsed.kept]) / 2, axis=1)
    assert collapsed.lift_means(means) == pytest.approx(
        _lifted(logs, spins, collapsed.kept, q), abs=1e-9
    )


def _lifted(logs, spins, kept, q):
    """E[s] under q(kept) p(rest | kept), q given at every full state."""
    code = (spins[:, kept] < 0) @ (1 << np.arange(kept.size))
    total = np.zeros(spins.shape[1])
    for value in np.unique(code):
        rows = code == value
        conditional = np.exp(logs[rows] - naive.log_sum_exp(logs[rows]))
        total += q[rows][0] * (conditional @ spins[rows])
    return total


def test_means_on_a_coset():
    rng = np.random.default_rng(5)
    model = ising_grid(3, coupling=(-2, 2), seed=3)
    poly = SpinPolynomial.from_factor_graph(model)
    collapsed = collapse(poly, 4, keep=[0, 2, 4, 6, 7])
    assert (collapsed.next_use < collapsed.order.size).any()  # a joint table from another one
    for trial in range(20):
        parities = DenseParity().draw(2, collapsed.kept.size, rng)
        coset = Coset.build(collapsed.polynomial, parities)
        if not coset.feasible:
            continue
        best = MeanField(restarts=2).project(coset, np.random.default_rng(trial))
        lifted = collapsed.lift_means(
            lambda ptr, spins, c=coset, v=best.means: c.expectations(ptr, spins, v)[:, 0]
        )
        logs, spins = log_weights(poly)
        inside = coset.contains(spins[:, collapsed.kept])
        free = spins[:, collapsed.kept[coset.free]]
        q = np.where(inside, np.prod((1 + best.means * free) / 2, axis=1), 0.0)
        assert lifted == pytest.approx(_lifted(logs, spins, collapsed.kept, q), abs=1e-10)


@settings(max_examples=60, deadline=None)
@given(polynomials(max_spins=8), st.integers(0, 5))
def test_heaviest_states_come_back(poly, k):
    collapsed = collapse(poly, k)
    logs, spins = log_weights(poly)
    kept_states = naive.all_spins(collapsed.kept.size)
    lifted = collapsed.lift_states(kept_states)
    assert (lifted[:, collapsed.kept] == kept_states).all()
    got = naive.polynomial_log_weights(poly.constant, terms_of(poly), lifted.astype(float))
    for row, value in zip(kept_states, got, strict=True):
        match = (spins[:, collapsed.kept] == row).all(axis=1)
        assert value == pytest.approx(logs[match].max(), abs=tolerance(poly), rel=0)


def test_drawn_states_follow_the_conditional_distribution():
    poly = SpinPolynomial.from_factor_graph(ising_grid(3, coupling=(-1, 1), seed=11))
    collapsed = collapse(poly, 4, keep=[0, 4])
    kept = np.ones(collapsed.kept.size)
    count = 40_000
    drawn = collapsed.lift_states(np.tile(kept, (count, 1)), np.random.default_rng(1))
    logs, spins = log_weights(poly)
    match = (spins[:, collapsed.kept] == kept).all(axis=1)
    p = np.exp(logs[match] - naive.log_sum_exp(logs[match]))
    powers = 1 << np.arange(poly.n)
    frequency = np.zeros(2**poly.n)
    np.add.at(frequency, (drawn < 0) @ powers, 1.0 / count)
    expected = np.zeros(2**poly.n)
    expected[(spins[match] < 0) @ powers] = p
    # 4 / count: a rare state may be seen a few times, where the normal approximation is off.
    spread = np.sqrt(expected * (1 - expected) / count)
    assert (np.abs(frequency - expected) <= 5 * spread + 4 / count).all()
    # The negative control: independent draws from the right marginals are caught by this check.
    marginal = p @ spins[match]
    wrong = np.random.default_rng(2).random((count, poly.n)) < (1 + marginal) / 2
    frequency[:] = 0.0
    np.add.at(frequency, (~wrong) @ powers, 1.0 / count)
    assert not (np.abs(frequency - expected) <= 5 * spread + 4 / count).all()


@pytest.mark.parametrize("coupling", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("k", [2, 4, 6, None])
def test_grids_against_the_transfer_matrix(coupling, k):
    model = ising_grid(8, 7, coupling=(-coupling, coupling), seed=7)
    exact = grid_log_z(model, 8, 7)
    poly = SpinPolynomial.from_factor_graph(model)
    collapsed = collapse(poly, k)
    finished = collapse(collapsed.polynomial, 20)
    assert finished.kept.size == 0
    assert finished.polynomial.constant == pytest.approx(exact, rel=1e-10)


def test_mean_field_on_the_collapsed_model_stays_below_and_improves():
    for seed in range(5):
        model = ising_grid(6, coupling=(-2, 2), seed=seed)
        exact = grid_log_z(model, 6, 6)
        poly = SpinPolynomial.from_factor_graph(model)
        values = []
        for k in (0, 4, 6):
            coset = Coset.build(collapse(poly, k).polynomial)
            values.append(MeanField(restarts=20).project(coset, np.random.default_rng(0)).log_gamma)
            assert values[-1] <= exact + 1e-9
        assert values[0] < values[1] - 0.1
        assert values[1] <= values[2] + 0.05


def test_a_tree_is_summed_out_entirely():
    rng = np.random.default_rng(0)
    terms = [((int(rng.integers(i)), i), rng.normal()) for i in range(1, 14)]
    terms += [((i,), rng.normal()) for i in range(14)]
    poly = SpinPolynomial.from_terms(14, 0.5, terms)
    collapsed = collapse(poly, 1)
    assert collapsed.kept.size == 0
    assert collapsed.polynomial.n_terms == 0
    logs, spins = log_weights(poly)
    log_z = naive.log_sum_exp(logs)
    assert collapsed.polynomial.constant == pytest.approx(log_z, rel=1e-12)
    assert collapsed.lift_means([]) == pytest.approx(np.exp(logs - log_z) @ spins, abs=1e-12)
    best = collapsed.lift_states(np.zeros((1, 0)))
    assert poly.log_weight(best)[0] == pytest.approx(logs.max())


def test_edges_of_the_domain():
    empty = collapse(SpinPolynomial.from_terms(0, 1.5, []))
    assert (empty.kept.size, empty.polynomial.constant) == (0, 1.5)
    assert empty.lift_states(np.zeros((2, 0))).shape == (2, 0)
    assert empty.lift_means([]).shape == (0,)
    loose = collapse(SpinPolynomial.from_terms(3, 0.0, []), 0)
    assert loose.polynomial.constant == pytest.approx(3 * np.log(2))
    nothing = collapse(SpinPolynomial.from_blocks(3, -np.inf, []))
    assert nothing.polynomial.constant == -np.inf
    huge = collapse(SpinPolynomial.from_terms(3, 1e5, [((0, 1), 1e300), ((1, 2), -1e300)]), 2)
    assert huge.polynomial.constant == pytest.approx(2e300)
    assert np.isfinite(huge.fields).all()


def test_spins_to_keep_are_kept_and_orders_are_nested():
    poly = SpinPolynomial.from_factor_graph(ising_grid(8, seed=0))
    collapsed = collapse(poly, 6, keep=[0, 9, 33])
    assert set(collapsed.kept.tolist()) >= {0, 9, 33}
    long = collapse(poly, 7).order
    for k in range(7):
        short = collapse(poly, k).order
        assert (long[: short.size] == short).all()


def test_k_is_chosen_by_cost():
    poly = SpinPolynomial.from_factor_graph(ising_grid(20, seed=0))
    for budget in (0, 1500, 2000, 5000, 20_000):
        chosen = collapse(poly, max_terms=budget)
        if chosen.k > 0:
            assert chosen.polynomial.n_terms <= budget
    assert collapse(poly, max_terms=0).order.size == 0
    assert collapse(poly, max_terms=2000).k < collapse(poly, max_terms=20_000).k
    # A dense model has nothing to eliminate and comes back as it is.
    weights = np.random.default_rng(0).normal(size=(30, 30))
    dense = SpinPolynomial.from_terms(
        30, 0.0, [((i, j), weights[i, j]) for i in range(30) for j in range(i)]
    )
    same = collapse(dense)
    assert same.kept.size == 30
    assert same.polynomial.n_terms == dense.n_terms


def test_what_is_refused(monkeypatch):
    poly = SpinPolynomial.from_factor_graph(ising_grid(4, seed=0))
    with pytest.raises(ParameterError, match="k is 99"):
        collapse(poly, 99)
    with pytest.raises(ParameterError, match="keep names spin 16; the model has spins 0 to 15"):
        collapse(poly, 2, keep=[16])
    with pytest.raises(ModelError, match="kept spins"):
        collapse(poly, 2).lift_states(np.zeros((1, 3)))
    with pytest.raises(ModelError, match="means have shape"):
        collapse(poly, 2).lift_means(np.zeros(99))
    monkeypatch.setattr("tightz.reductions.collapse_plan.MAX_TABLE_ENTRIES", 100)
    with pytest.raises(ResourceError, match="lower k"):
        collapse(poly, 4)
    assert repr(collapse(poly, 2)).count("\n") == 0
