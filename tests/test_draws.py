"""Draws and conditionals of every family: exact states of q, and the q that the judge is shown."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tightz as tz
from tests import naive
from tightz.families.clustered import ClusterMeanField
from tightz.families.projection import Family, Refines
from tightz.judge.layers import SPARED
from tightz.judge.spins import SpinTerms
from tightz.projections import Coset, DenseParity
from tightz.reductions.encoding import encode
from tightz.runtime.clock import Clock

FAMILIES = [
    tz.MeanField(restarts=2),
    tz.StructuredMeanField(width=2, restarts=2),
    tz.BlockMeanField(restarts=2),
    tz.PointMass(),
]
LAYERS = [tz.LayerMeanField(restarts=3), tz.LayerMeanField(restarts=3, leaves=4)]


def check_draws(q, polynomial, rng, count=20_000):
    """log q sums to 1 over its states, and E_q[log p~ - log q] is the bound itself."""
    states, log_q = q.draw(count, rng)
    assert states.shape == (count, polynomial.n)
    assert q.coset.contains(states).all()
    _, first, times = np.unique(states, axis=0, return_index=True, return_counts=True)
    p = np.exp(log_q[first])
    assert p.sum() <= 1.0 + 1e-9
    often = p > 10 / count
    spread = np.sqrt(p[often] * (1 - p[often]) / count)
    assert (np.abs(times[often] / count - p[often]) <= 6 * spread + 1e-12).all()
    gains = polynomial.log_weight(states) - log_q
    error = gains.std() / math.sqrt(count)
    assert abs(gains.mean() - q.log_gamma) <= 5 * error + 1e-8
    means = q.spin_means()
    assert (np.abs(states.mean(axis=0) - means) <= 6 * np.sqrt((1 - means**2) / count) + 1e-9).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("m", [0, 3])
def test_draws_are_of_q(family, m):
    rng = np.random.default_rng(m)
    polynomial = encode(tz.ising_grid(3, coupling=(-2, 2), seed=4)).polynomial
    parities = DenseParity().draw(m, 9, rng)
    q = family.project(Coset.build(polynomial, parities), rng)
    check_draws(q, polynomial, rng)
    value, rounding = q.distribution().value(SpinTerms.of(polynomial))
    assert value == pytest.approx(q.log_gamma, abs=1e-9 + rounding)
    assert q.evaluated() == pytest.approx(q.log_gamma, abs=1e-12)


def test_draws_of_tables_over_the_bits_of_a_variable():
    rng = np.random.default_rng(0)
    factors = [((i, i + 1), rng.normal(size=(3, 3))) for i in range(3)]
    polynomial = encode(tz.FactorGraph([3] * 4, factors), multivalued=True).polynomial
    q = tz.BlockMeanField(restarts=2).project(Coset.build(polynomial), rng)
    check_draws(q, polynomial, rng)
    assert q.condition((0,), 1) is None


@pytest.mark.parametrize("family", LAYERS)
def test_draws_with_a_layer_summed_out(family):
    rng = np.random.default_rng(1)
    model = tz.rbm(rng.normal(size=(5, 4)), rng.normal(size=5), rng.normal(size=4))
    polynomial = encode(model).polynomial
    q = family.project(Coset.build(polynomial), np.random.default_rng(0))
    assert len(q.leaves) == family.leaves
    check_draws(q, polynomial, rng)
    assert q.log_gamma <= naive.log_sum_exp(polynomial.log_weight(naive.all_spins(9)))
    value, rounding = q.distribution().value(SpinTerms.of(polynomial))
    assert q.log_gamma - SPARED <= value <= q.log_gamma + rounding + 1e-9
    kept = q.problem.kept[:2].tolist()
    states = q.draw(50_000, rng).states
    joint = q.expectations(np.array([0, 2]), np.array(kept))[0]
    assert joint == pytest.approx(states[:, kept].prod(axis=1).mean(), abs=0.03)
    assert q.condition((0,), 1) is None


def test_draws_of_clusters():
    rng = np.random.default_rng(2)
    model = tz.potts({(0, 1): 0.7, (1, 2): -0.4, (2, 3): 0.9, (0, 3): 0.3}, 3)
    start = [np.full(3, 1 / 3)] * 4
    run = ClusterMeanField(model, np.array([0, 0, 1, 1]), start)
    bounds = list(run.bounds(Clock(10.0)))
    states, log_q = run.draw(20_000, rng)
    gains = model.log_weight(states) - log_q
    # The tables are kept in single precision: q is known to about 1e-7.
    assert abs(gains.mean() - bounds[-1].log_z) <= 5 * gains.std() / math.sqrt(len(gains)) + 1e-5
    _, first = np.unique(states, axis=0, return_index=True)
    assert np.exp(log_q[first]).sum() == pytest.approx(1.0, abs=1e-5)
    for v in range(4):
        frequency = np.bincount(states[:, v], minlength=3) / len(states)
        np.testing.assert_allclose(frequency, run.marginals[v], atol=0.02)


def test_which_families_the_tree_takes():
    for family in (*FAMILIES, *LAYERS):
        assert isinstance(family, Family)
        assert isinstance(family, Refines) == isinstance(
            family, tz.MeanField | tz.StructuredMeanField
        )


def test_conditioning_a_q_that_is_exact_is_bayes_rule():
    """One cluster of full width is the model itself, so its halves are the model's halves."""
    polynomial = encode(tz.ising_grid(3, coupling=(-1, 1), seed=2)).polynomial
    q = tz.StructuredMeanField(width=8).project(Coset.build(polynomial), np.random.default_rng(0))
    spins = naive.all_spins(9)
    weights = polynomial.log_weight(spins)
    for sign in (1, -1):
        half = q.condition((4,), sign)
        truth = naive.log_sum_exp(weights[spins[:, 4] == sign])
        assert half.evaluated() == pytest.approx(truth, abs=1e-9)
        assert half.held[4] == sign
        assert np.count_nonzero(half.held) == 1
