"""The splitting tree's leaves on the device against the CPU, by the CUDA simulator.

The CPU's numbers are computed here, compiled.
"""

from __future__ import annotations

import numpy as np
import pytest

import tightz as tz
from tests.simulator import simulated
from tightz.errors import ParameterError
from tightz.reductions.encoding import encode
from tightz.splitting.fits import ProductFitter
from tightz.splitting.region import Region

pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")


def tasks():
    """A fitter with long terms, and starts in regions with two, one and no pinned spins."""
    rng = np.random.default_rng(3)
    scopes = [rng.choice(7, size=k, replace=False).tolist() for k in (1, 2, 2, 3, 3, 2, 4, 1)]
    model = tz.FactorGraph([2] * 7, [(s, rng.normal(size=(2,) * len(s))) for s in scopes])
    fitter = ProductFitter.build(encode(model).polynomial, tz.MeanField(tol=1e-9))
    whole = Region.whole(7)
    regions = [whole, whole.restrict((2,), -1), whole.restrict((2,), -1).restrict((5,), 1)]
    states = 1 - 2 * rng.integers(0, 2, size=(3, 7), dtype=np.int8)
    start = rng.uniform(-0.5, 0.5, size=7)
    return fitter, [(region, start, states[:k]) for k, region in enumerate(regions)]


def fits_on_device():
    fitter, starts = tasks()
    return [(fit.log_gamma, fit.q) for fit in fitter.fit_on_device(starts)]


def test_fits_on_the_device_are_those_of_the_cpu(tmp_path):
    there = simulated("fits_on_device()", __name__, tmp_path)
    fitter, starts = tasks()
    here = [fitter.fit(*start) for start in starts]
    for (log_gamma, q), fit in zip(there, here, strict=True):
        assert log_gamma == pytest.approx(fit.log_gamma, abs=1e-6)
        np.testing.assert_allclose(q, fit.q, atol=1e-3)
    assert here[2].q[2] == -1.0
    assert here[2].q[5] == 1.0


def test_a_tree_whose_rounds_run_side_by_side_bounds_log_z(monkeypatch):
    """The device's round (all look-aheads first, then all plans) with the CPU's fits behind it."""
    rounds = []

    def fits(self, starts):
        rounds.append(len(starts))
        return [self.fit(*start) for start in starts]

    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "")
    monkeypatch.setattr(ProductFitter, "fit_on_device", fits)
    model = tz.ising_grid(5, coupling=(-2, 2), seed=3)
    options = {"family": tz.MeanField(restarts=2), "collapse": 0, "exact_width": 2, "seed": 0}
    options["upper"] = False
    result = tz.split(model, max_splits=60, backend="cuda", **options)
    log_z = tz.exact(model).log_z
    assert sum(rounds) > 100
    assert result.splits == 60
    start = tz.split(model, max_splits=0, backend="cpu", **options).lower
    assert start < result.lower <= log_z + 1e-9
    assert result.lower - start > 0.5 * (log_z - start)


def test_structured_leaves_are_refused(monkeypatch):
    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "")
    family = tz.StructuredMeanField(width=2)
    with pytest.raises(ParameterError, match="leaves of structured families are bounded on the"):
        tz.split(
            tz.ising_grid(5, coupling=(-2, 2), seed=0), max_splits=3, seed=0, family=family,
            exact_width=2, collapse=0, backend="cuda",
        )  # fmt: skip
