"""Mini-buckets where arrays and numbers come to their ends: sizes, counts, underflow, weights."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.called import called
from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket.descent import Descent
from tightz.uppers.mini_bucket.partition import partition
from tightz.uppers.mini_bucket.passes import TILE, _update_weights


def descended(model: FactorGraph, order, ibound: int, *, steps: int = 3, lower: bool = False):
    """(the descent after some steps, the judge's verdict on it)."""
    descent = Descent(model, partition(model, np.asarray(order), ibound), lower=lower)
    for _ in range(steps):
        descent.advance()
    return descent, descent.evidence(np.arange(model.n_variables)).verdict(model)


def test_a_bucket_of_more_mini_buckets_than_a_tile_has_entries():
    """One entropy each: they were once written past the end of a tile."""
    rng = np.random.default_rng(0)
    count = 2 * TILE
    tables = rng.normal(size=(count, 2, 2))
    model = FactorGraph([2] * (count + 1), [((0, i + 1), t) for i, t in enumerate(tables)])
    descent, verdict = descended(model, range(count + 1), 1)
    assert np.diff(descent.parts.bucket_ptr).max() == count
    truth = np.logaddexp.reduce(np.logaddexp.reduce(tables, axis=2).sum(axis=0))
    assert truth <= verdict.upper < descent.iterates[0]


@pytest.mark.parametrize("seed", [1495067184])
def test_underflow_is_no_zero_of_the_model(seed):
    """Beliefs of states that are merely rare stay above zero, whatever they are multiplied by."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(14, 24))
    scale = rng.choice([50.0, 100.0, 200.0, 500.0, 1e3, 1e4])
    factors = [
        (pair, scale * rng.normal(size=(2, 2)) * 10.0 ** rng.uniform(-2, 0))
        for pair in itertools.combinations(range(n), 2)
        if rng.random() < 0.9
    ]
    factors += [((v,), 2 * scale * rng.normal(size=2)) for v in range(n)]
    model = FactorGraph([2] * n, factors)
    order, ibound = rng.permutation(n), int(rng.integers(6, 11))
    descent, verdict = descended(model, order, ibound, steps=8)
    shifts = descent.evidence(np.arange(n)).shifts
    assert np.isfinite(shifts).all()  # no table has a zero
    assert math.isfinite(verdict.upper)


def test_negative_weights_stay_small_enough_to_sum_to_one():
    """Nothing else holds them back; the judge refuses sums that rounding hides."""
    weights, entropies = np.array([1.2, -0.1, -0.1]), np.array([0.6, 0.0, 0.5])
    for _ in range(100):
        called(_update_weights)(weights, entropies, 5.0)
    assert (weights > 0.0).tolist() == [True, False, False]
    assert abs(math.fsum(weights) - 1.0) < 1e-9
