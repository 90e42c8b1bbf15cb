"""Flips that leave a model unchanged: found by linear algebra, checked by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tightz as tz
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.encoding import encode
from tightz.workspace.symmetry import (
    flips,
    flips_of,
    symmetrise_marginals,
    symmetrise_means,
    symmetrise_states,
)


def all_flips(polynomial: SpinPolynomial) -> set[tuple[int, ...]]:
    """Every c with log p~(s) = log p~(s flipped on c) at all s, by enumeration."""
    rows = np.array(list(itertools.product([1, -1], repeat=polynomial.n)))
    weights = polynomial.log_weight(rows)
    found = set()
    for c in itertools.product([0, 1], repeat=polynomial.n):
        moved = polynomial.log_weight(rows * (1 - 2 * np.array(c)))
        if np.abs(moved - weights).max() < 1e-9:
            found.add(c)
    return found


def spanned(basis: np.ndarray) -> set[tuple[int, ...]]:
    combinations = itertools.product([0, 1], repeat=len(basis))
    n = basis.shape[1]
    return {
        tuple((np.array(bits, dtype=int) @ basis % 2).tolist()) if bits else (0,) * n
        for bits in combinations
    }


@pytest.mark.parametrize("seed", range(30))
def test_the_basis_spans_exactly_the_flips(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    terms = [
        (rng.choice(n, size=int(rng.integers(1, min(n, 4) + 1)), replace=False), rng.normal())
        for _ in range(int(rng.integers(0, 6)))
    ]
    if seed % 2:  # no fields: more often something is left
        terms = [(members, theta) for members, theta in terms if len(members) > 1]
    polynomial = SpinPolynomial.from_terms(n, 0.5, terms)
    basis = flips(polynomial)
    assert len(spanned(basis)) == 2 ** len(basis)  # independent
    assert spanned(basis) == all_flips(polynomial)


def test_zero_field_components_and_fields():
    two = tz.ising({(0, 1): 1.0, (2, 3): -1.0}, [0.0, 0.0, 0.0, 0.0])
    assert spanned(flips(encode(two).polynomial)) == {
        (0, 0, 0, 0), (1, 1, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1),
    }  # fmt: skip
    assert len(flips(encode(tz.ising_grid(4, field=(-1, 1), seed=0)).polynomial)) == 0
    assert len(flips(SpinPolynomial.from_terms(0, 0.0, []))) == 0


def test_fields_that_cancel_up_to_rounding_are_no_fields():
    """Tables of 0.1 + 0.2 - 0.3 leave 5e-17 on single spins."""
    field = 0.1 + 0.2 - 0.3
    assert field != 0.0
    model = tz.ising({(0, 1): 1.0}, [field, 0.0])
    assert spanned(flips(encode(model).polynomial)) == {(0, 0), (1, 1)}


def test_a_gauge_model_and_many_redundant_terms():
    """Plaquettes of a torus: flipping the four edges at a corner changes nothing."""
    size = 6
    edge = np.arange(2 * size * size).reshape(2, size, size)
    terms = []
    for i, j in itertools.product(range(size), repeat=2):
        right, down = (j + 1) % size, (i + 1) % size
        members = [edge[0, i, j], edge[1, i, right], edge[0, down, j], edge[1, i, j]]
        terms.append((members, 0.7))
    polynomial = SpinPolynomial.from_terms(2 * size * size, 0.0, terms)
    basis = flips(polynomial)
    assert len(basis) == 2 * size * size - (size * size - 1)  # one plaquette follows from the rest
    rng = np.random.default_rng(0)
    spins = rng.choice([-1, 1], size=(5, polynomial.n))
    moved = symmetrise_states((1 - spins) // 2, basis, rng)
    assert polynomial.log_weight(1 - 2 * moved) == pytest.approx(polynomial.log_weight(spins))


def test_rows_that_arrive_late_still_count():
    """More terms than one round takes, the last of which breaks the only symmetry."""
    rng = np.random.default_rng(1)
    n = 20
    even = [(rng.choice(n, size=4, replace=False), 1.0) for _ in range(400)]
    assert flips(SpinPolynomial.from_terms(n, 0.0, even)).tolist() == [[1] * n]
    odd = [*even, ([0, 1, 2], 1.0)]
    assert len(flips(SpinPolynomial.from_terms(n, 0.0, odd))) == 0


def test_marginals_and_states_over_variables():
    model = tz.ising({(0, 1): 2.0, (1, 2): 1.0}, [0.0, 0.0, 0.0, 0.7])
    model = model.with_evidence({3: 1})
    basis = flips_of(encode(model))
    assert basis is not None
    assert basis.tolist() == [[1, 1, 1, 0]]
    stuck = [np.array([1.0, 0.0])] * 3 + [np.array([0.0, 1.0])]
    fixed = symmetrise_marginals(stuck, basis)
    assert [p.tolist() for p in fixed] == [[0.5, 0.5]] * 3 + [[0.0, 1.0]]
    states = symmetrise_states(np.tile([0, 0, 0, 1], (4000, 1)), basis, np.random.default_rng(0))
    assert (states[:, 3] == 1).all()
    assert (states[:, :1] == states[:, :3]).all()
    assert abs(states[:, 0].mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)
    assert symmetrise_means(np.array([0.9, 0.9, 0.9, -1.0]), basis).tolist() == [0, 0, 0, -1]


def test_bits_of_larger_variables_have_no_flips_to_offer():
    model = tz.FactorGraph([3, 2], [((0, 1), np.arange(6.0).reshape(3, 2))])
    assert flips_of(encode(model, multivalued=True)) is None


def test_large_models_are_cheap():
    """10,000 spins, and 50,000 terms of three: the one claims its flip, the other claims none."""
    grid = encode(tz.ising_grid(100, coupling=(-1, 1), field=(0, 0), seed=0)).polynomial
    basis = flips(grid)
    assert basis.shape == (1, 10_000)
    assert basis.all()
    rng = np.random.default_rng(0)
    rows = np.unique(np.sort(rng.integers(3000, size=(20_000, 3)), axis=1), axis=0)
    rows = rows[(np.diff(rows, axis=1) > 0).all(axis=1)]
    dense = SpinPolynomial.from_blocks(3000, 0.0, [(rows, np.ones(len(rows)))])
    assert len(flips(dense)) == 0
