"""`upper_bound` picks the method it is given."""

from __future__ import annotations

import pytest

import tightz as tz
from tests import naive


def test_methods_bound_from_above():
    model = tz.ising_grid(3, coupling=(-2, 2), seed=1)
    log_z, _ = naive.enumerate_model(model.cardinalities, model.factors)
    loose = tz.upper_bound(model, method=tz.MiniBucket(ibound=1))
    trees = tz.upper_bound(model, method=tz.TreeReweighted())
    for result in (loose, trees):
        assert result.log_z >= log_z
        assert 0.0 < result.rounding < 1e-9
        assert result.bound.evidence.verdict(model).upper == result.log_z
    assert tz.upper_bound(model).log_z == pytest.approx(log_z, abs=1e-9)  # ibound 10 is exact here


def test_unknown_method():
    with pytest.raises(tz.errors.ParameterError, match="expected TreeReweighted"):
        tz.upper_bound(tz.ising_grid(2, seed=0), method="trw")
