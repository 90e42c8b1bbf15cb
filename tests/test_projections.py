"""GF(2) elimination, hash families, pivots and cosets."""

from __future__ import annotations

import galois
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import parity_systems, projected_models
from tightz.models import SpinPolynomial
from tightz.projections import Coset, Parities
from tightz.projections.gf2 import pack, row_reduce, unpack

GF2 = galois.GF(2)


@given(st.integers(0, 6), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_pack_round_trip(rows, n, seed):
    bits = np.random.default_rng(seed).integers(0, 2, size=(rows, n), dtype=np.uint8)
    np.testing.assert_array_equal(unpack(pack(bits), n), bits)


@given(st.integers(1, 20), st.integers(1, 130), st.integers(0, 2**32 - 1), st.booleans())
def test_row_reduce_equals_galois(m, n, seed, deficient):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 2, size=(m, n), dtype=np.uint8)
    if deficient and m > 2:
        matrix[-1] = matrix[0] ^ matrix[1]
    rhs = rng.integers(0, 2, size=m, dtype=np.uint8)
    rows, pivots, b = pack(matrix), np.full(m, -1), rhs.copy()
    rank = row_reduce(rows, b, np.arange(n), pivots)
    expected = GF2(np.column_stack([matrix, rhs])).row_reduce(ncols=n)
    np.testing.assert_array_equal(unpack(rows, n), np.asarray(expected[:, :n]))
    np.testing.assert_array_equal(b[:rank], np.asarray(expected[:rank, n]))
    assert rank == np.linalg.matrix_rank(GF2(matrix))
    assert b[rank:].any() == (rank < np.linalg.matrix_rank(GF2(np.column_stack([matrix, rhs]))))


@given(st.data())
def test_row_reduce_equals_naive_for_any_column_order(data):
    n = data.draw(st.integers(1, 12))
    system = data.draw(parity_systems(n))
    order = np.array(data.draw(st.permutations(range(n))))
    rows, b = pack(system.matrix), system.rhs.copy()
    pivots = np.full(len(b), -1)
    rank = row_reduce(rows, b, order, pivots)
    c, b_naive, pivots_naive, feasible = naive.reduce_parities(system.matrix, system.rhs, order)
    assert pivots[:rank].tolist() == pivots_naive
    np.testing.assert_array_equal(unpack(rows[:rank], n), c)
    np.testing.assert_array_equal(b[:rank], b_naive)
    assert feasible == (not b[rank:].any())


@given(projected_models(), st.data())
def test_coset_is_the_solution_set_whatever_the_pivots(case, data):
    model, parities = case
    n = model.n_variables
    scores = np.array(data.draw(st.permutations(range(n))), dtype=float)
    expected = {tuple(x) for x in naive.coset_states(parities.matrix, parities.rhs)}
    polynomial = SpinPolynomial.from_factor_graph(model)
    for policy in (tz.FirstColumns(), tz.Reliability(scores)):
        coset = Coset.build(polynomial, parities, policy)
        assert coset.feasible == bool(expected)
        everything = naive.all_states([2] * n)
        inside = coset.contains(1 - 2 * everything)
        assert {tuple(x) for x in everything[inside]} == expected
        if not coset.feasible:
            continue
        spins = coset.spins_from_free(1 - 2 * naive.all_states([2] * coset.n_free))
        assert {tuple(x) for x in (1 - spins) // 2} == expected


def test_reliability_takes_the_least_reliable_independent_columns():
    polynomial = SpinPolynomial.from_terms(4, 0.0, [])
    parities = Parities(np.array([[1, 1, 0, 1], [1, 1, 1, 0]], np.uint8), np.zeros(2, np.uint8))
    coset = Coset.build(polynomial, parities, tz.Reliability([0.5, 0.1, 9.0, 0.9]))
    # column 1 first; column 0 is equal to it, hence dependent; then column 3
    assert sorted(coset.pivots.tolist()) == [1, 3]
    with pytest.raises(tz.errors.ParameterError, match="expected 4 scores"):
        Coset.build(polynomial, parities, tz.Reliability([1.0]))


@given(projected_models(max_variables=6, max_arity=4))
def test_substituted_and_grouped_polynomials_equal_the_model_on_the_coset(case):
    model, parities = case
    coset = Coset.build(SpinPolynomial.from_factor_graph(model), parities)
    if not coset.feasible:
        return
    y = 1 - 2 * naive.all_states([2] * coset.n_free)
    states = (1 - coset.spins_from_free(y)) // 2
    expected = naive.log_weights(model.cardinalities, model.factors, states)
    np.testing.assert_allclose(coset.substituted().log_weight(y), expected, atol=1e-9)
    np.testing.assert_allclose(_grouped_value(coset.grouped, y), expected, atol=1e-9)


def _grouped_value(g, y):
    """The formula in grouped.py, term by term."""
    total = g.constant + y @ g.field
    for k in range(g.n):
        for p in range(g.adj_ptr[k], g.adj_ptr[k + 1]):
            total = total + 0.5 * g.adj_w[p] * y[:, k] * y[:, g.adj_to[p]]
    inner = [np.full(len(y), c) for c in g.coef]
    for k in range(g.n):
        for p in range(g.in_ptr[k], g.in_ptr[k + 1]):
            inner[g.in_group[p]] = inner[g.in_group[p]] + g.in_theta[p] / y[:, k]
        for p in range(g.out_ptr[k], g.out_ptr[k + 1]):
            inner[g.out_group[p]] = inner[g.out_group[p]] + g.out_theta[p] * y[:, k]
    for i, value in enumerate(inner):
        members = g.base_spins[g.base_ptr[i] : g.base_ptr[i + 1]]
        total = total + y[:, members].prod(axis=1) * value
    return total


@given(projected_models())
def test_cosets_of_one_matrix_partition_z(case):
    """For fixed A the sum over all b of Z(A, b) is Z."""
    model, parities = case
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    parts = []
    polynomial = SpinPolynomial.from_factor_graph(model)
    for b in naive.all_states([2] * len(parities.rhs)):
        coset = Coset.build(polynomial, Parities(parities.matrix, b.astype(np.uint8)))
        if coset.feasible:
            y = 1 - 2 * naive.all_states([2] * coset.n_free)
            parts.append(naive.log_sum_exp(coset.substituted().log_weight(y)))
    assert naive.log_sum_exp(parts) == pytest.approx(log_z, abs=1e-9)


def _coset_z(model, parities):
    states = naive.coset_states(parities.matrix, parities.rhs)
    return float(np.exp(naive.log_weights(model.cardinalities, model.factors, states)).sum())


@pytest.mark.parametrize("hashing", [tz.DenseParity(), tz.SparseParity(0.15)])
@pytest.mark.parametrize("m", [2, 5])
def test_expected_rescaled_coset_sum_is_z_and_redrawing_is_caught(hashing, m):
    """E[2^m Z(A, b)] = Z; the negative control redraws infeasible b and must miss Z."""
    model = tz.ising_grid(2, 3, coupling=(-1, 1), seed=3)
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    rng = np.random.default_rng(7)
    honest, redrawn = [], []
    for _ in range(3000):
        parities = hashing.draw(m, 6, rng)
        value = _coset_z(model, parities) * 2.0**m
        honest.append(value)
        while not len(naive.coset_states(parities.matrix, parities.rhs)):
            parities = hashing.draw(m, 6, rng)
            value = _coset_z(model, parities) * 2.0**m
        redrawn.append(value)

    def z_score(values):
        return (np.mean(values) - np.exp(log_z)) / (np.std(values) / np.sqrt(len(values)))

    assert abs(z_score(honest)) < 4
    if m == 5:  # few of six variables remain: infeasible systems are common
        assert z_score(redrawn) > 6


def test_dense_parity_states_survive_pairwise_independently():
    rng = np.random.default_rng(0)
    x, y = np.array([1, 0, 1, 1, 0]), np.array([1, 1, 0, 1, 0])
    both = single = 0
    for _ in range(20000):
        a, b = tz.DenseParity().draw(2, 5, rng)
        in_x, in_y = ((a @ x) % 2 == b).all(), ((a @ y) % 2 == b).all()
        single += in_x
        both += in_x and in_y
    assert single / 20000 == pytest.approx(1 / 4, abs=4 * np.sqrt(3 / 16 / 20000))
    assert both / 20000 == pytest.approx(1 / 16, abs=4 * np.sqrt(15 / 256 / 20000))


def test_sparse_parity_density_is_checked():
    with pytest.raises(tz.errors.ParameterError, match=r"density is 0\.7"):
        tz.SparseParity(0.7)
    drawn = tz.SparseParity(0.1).draw(200, 300, np.random.default_rng(0)).matrix
    assert drawn.mean() == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / drawn.size))


def test_parities_of_the_wrong_size_are_refused():
    polynomial = SpinPolynomial.from_terms(4, 0.0, [])
    with pytest.raises(tz.errors.ModelError, match=r"\(2, 3\).*4 spins"):
        Coset.build(polynomial, Parities(np.zeros((2, 3), np.uint8), np.zeros(2, np.uint8)))


@settings(max_examples=30)
@given(projected_models())
def test_coset_repr(case):
    model, parities = case
    text = repr(Coset.build(SpinPolynomial.from_factor_graph(model), parities))
    assert f"{len(parities.rhs)} parities" in text
    assert "\n" not in text
