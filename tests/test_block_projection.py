"""One table per variable on a coset: against enumeration of q, mean field and block mean field."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import projected_models
from tightz.errors import ParameterError, UnsupportedModelError
from tightz.families.block import BlockMeanField, block_mean_field, family_for
from tightz.families.block_projection import blocks_of, point_tables, project_blocks, random_tables
from tightz.families.mean_field import MeanField
from tightz.projections import Coset, DenseParity, Parities
from tightz.reductions.bits import BlockPolynomial
from tightz.reductions.collapse import collapse
from tightz.reductions.encoding import encode


@st.composite
def qary_cosets(draw, max_variables=3):
    """A positive model of 2 to 5 states a variable in bits, cut by 0 to 3 parities."""
    n = draw(st.integers(1, max_variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = rng.integers(2, 6, size=n)
    factors = [((v,), rng.normal(size=cards[v])) for v in range(n)]
    for pair in itertools.combinations(range(n), 2):
        factors.append((pair, 2.0 * rng.normal(size=cards[list(pair)])))
    model = tz.FactorGraph([*cards.tolist(), 3], [*factors, ((n,), rng.normal(size=3))])
    encoding = encode(model, multivalued=True)
    m = draw(st.integers(0, 3))
    coset = Coset.build(encoding.polynomial, DenseParity().draw(m, encoding.polynomial.n, rng))
    return model, encoding, coset, rng


def joint(q, spins):
    """The probability of each row of free spins under q, table by table."""
    out = np.ones(len(spins))
    for b, (low, high) in enumerate(itertools.pairwise(q.blocks.first)):
        code = sum(((spins[:, low + j] < 0).astype(int) << j) for j in range(high - low))
        out *= q.tables[q.blocks.table_ptr[b] + code]
    return out


@settings(max_examples=60)
@given(qary_cosets())
def test_value_and_expectations_equal_enumeration_of_q(case):
    model, encoding, coset, rng = case
    q = BlockMeanField(restarts=3, max_sweeps=50).project(coset, rng)
    if not coset.feasible:
        assert q.log_gamma == -np.inf
        return
    free = naive.all_spins(coset.n_free)
    spins = coset.spins_from_free(free)
    logs = encoding.polynomial.log_weight(spins)
    weights = joint(q, free)
    assert weights.sum() == pytest.approx(1.0)
    inside = weights > 0.0
    value = weights @ logs - weights[inside] @ np.log(weights[inside])
    assert q.log_gamma == pytest.approx(value, abs=1e-9)
    assert q.log_gamma <= naive.log_sum_exp(logs) + 1e-9
    np.testing.assert_allclose(q.spin_means(), weights @ spins, atol=1e-12)
    np.testing.assert_allclose(q.means, weights @ free, atol=1e-12)
    states = encoding.lift_states(spins)
    lifted = encoding.marginals_of(q.expectations)
    for v, d in enumerate(model.cardinalities):
        expected = np.bincount(states[:, v], weights, minlength=int(d))
        np.testing.assert_allclose(lifted[v], expected, atol=1e-12)


@settings(max_examples=40)
@given(qary_cosets(), st.integers(1, 8))
def test_every_sweep_raises_the_bound(case, sweeps):
    _, _, coset, rng = case
    if not coset.feasible:
        return
    start = random_tables(blocks_of(coset), 4, rng)
    values = [
        project_blocks(coset, [(start.copy(), 0)], tol=0.0, max_sweeps=k).log_gammas
        for k in (sweeps, sweeps + 1)
    ]
    assert (values[1] >= values[0] - 1e-9).all()


def test_without_parities_it_is_block_mean_field():
    for states in (3, 4, 5):
        model = tz.potts_grid(3, states=states, coupling=(-2, 2), seed=states)
        coset = Coset.build(encode(model, multivalued=True).polynomial)
        config = BlockMeanField(restarts=30, tol=1e-12, max_sweeps=3000)
        q = config.project(coset, np.random.default_rng(0))
        direct = block_mean_field(model, config=config, seed=0)
        assert q.log_gamma == pytest.approx(direct.log_z, abs=1e-6)


@settings(max_examples=40)
@given(projected_models(max_variables=6), st.integers(0, 2**32 - 1))
def test_one_bit_a_variable_is_mean_field(case, seed):
    """From the same point mass the two ascents take the same steps."""
    model, parities = case
    coset = Coset.build(encode(model).polynomial, parities)
    if not coset.feasible:
        return
    start = np.random.default_rng(seed).choice([-1.0, 1.0], size=(2, coset.n_free))
    blocks = blocks_of(coset)
    tables = point_tables(blocks, start)
    q = project_blocks(coset, [(tables, 0)], tol=0.0, max_sweeps=5)
    field = MeanField(restarts=2, tol=0.0, max_sweeps=5).ascend_from(coset, start)
    np.testing.assert_allclose(q.log_gammas, field.log_gammas, rtol=1e-6, atol=1e-6)


def test_a_point_mass_is_in_the_family():
    model = tz.potts_grid(2, states=5, seed=0)
    poly = encode(model, multivalued=True).polynomial
    coset = Coset.build(poly, Parities(np.ones((1, poly.n), np.uint8), np.ones(1, np.uint8)))
    spins = naive.all_spins(coset.n_free)[[3, 77]]
    tables = point_tables(blocks_of(coset), spins)
    q = project_blocks(coset, [(tables, 0)], tol=0.0, max_sweeps=0)
    np.testing.assert_allclose(q.log_gammas, poly.log_weight(coset.spins_from_free(spins)))


def test_estimate_takes_the_family_and_tables_beat_bits():
    model = tz.potts_grid(4, states=3, coupling=(-2, 2), seed=1)
    log_z = tz.exact(model).log_z
    printed = tz.Projections.as_printed()
    kwargs = {"levels": [0, 2, 4], "trials": 3, "seed": 0, "projections": printed}
    blocks = tz.estimate(model, family=BlockMeanField(restarts=8), **kwargs)
    bits = tz.estimate(model, family=MeanField(restarts=8), **kwargs)
    assert blocks.lower <= log_z + 1e-9
    assert (blocks.log_gamma.mean(axis=1) > bits.log_gamma.mean(axis=1) + 1.0).all()
    again = tz.estimate(model, family=BlockMeanField(restarts=8), **kwargs)
    np.testing.assert_array_equal(blocks.log_gammas, again.log_gammas)
    searched = tz.estimate(model, family=BlockMeanField(restarts=4), levels=[0], trials=1, seed=0)
    assert searched.log_z <= log_z + 1e-9


def test_blocks_survive_a_collapse():
    poly = encode(tz.potts_grid(3, states=4, seed=0), multivalued=True).polynomial
    assert isinstance(poly, BlockPolynomial)
    collapsed = collapse(poly, 4)
    carried = poly.carried(collapsed.polynomial, collapsed.kept)
    assert carried.blocks.tolist() == (collapsed.kept // 2).tolist()
    assert isinstance(family_for(carried), BlockMeanField)
    assert isinstance(family_for(collapsed.polynomial), MeanField)
    q = family_for(carried).project(Coset.build(carried), np.random.default_rng(0))
    assert q.log_gamma <= tz.exact(tz.potts_grid(3, states=4, seed=0)).log_z + 1e-9


def test_what_is_refused():
    poly = encode(tz.FactorGraph([2**13]), multivalued=True).polynomial
    with pytest.raises(UnsupportedModelError, match="13 free bits"):
        blocks_of(Coset.build(poly))
    with pytest.raises(ParameterError, match="restarts"):
        BlockMeanField(restarts=0).project(
            Coset.build(encode(tz.ising_grid(2, seed=0)).polynomial), np.random.default_rng(0)
        )
