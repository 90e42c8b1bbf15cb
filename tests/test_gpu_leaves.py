"""The splitting tree's leaves on the device against the CPU, by the CUDA simulator.

The CPU's numbers are computed here, compiled.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tightz as tz
from tests.simulator import simulated
from tightz.errors import ParameterError
from tightz.projections.coset import Coset
from tightz.reductions.encoding import encode
from tightz.splitting import SplittingTree
from tightz.workspace.workspace import Workspace

pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")


def tasks():
    """Mean field with long terms, and q's that hold no, one and two spins, with states."""
    rng = np.random.default_rng(3)
    scopes = [rng.choice(7, size=k, replace=False).tolist() for k in (1, 2, 2, 3, 3, 2, 4, 1)]
    model = tz.FactorGraph([2] * 7, [(s, rng.normal(size=(2,) * len(s))) for s in scopes])
    family = tz.MeanField(tol=1e-9)
    states = 1 - 2 * rng.integers(0, 2, size=(3, 7), dtype=np.int8)
    whole = family.project(Coset.build(encode(model).polynomial), rng)
    whole = replace(whole, means=rng.uniform(-0.5, 0.5, size=7))
    whole = replace(whole, log_gamma=whole.evaluated())
    qs = [whole, whole.condition((2,), -1), whole.condition((2,), -1).condition((5,), 1)]
    return family, [(q, states[:k]) for k, q in enumerate(qs)]


def fits_on_device():
    family, starts = tasks()
    return [(q.log_gamma, q.means) for q in family.refine_on_device(starts)]


def test_fits_on_the_device_are_those_of_the_cpu(tmp_path):
    there = simulated("fits_on_device()", __name__, tmp_path)
    family, starts = tasks()
    here = [family.refine(*start) for start in starts]
    for (log_gamma, means), q in zip(there, here, strict=True):
        assert log_gamma == pytest.approx(q.log_gamma, abs=1e-6)
        np.testing.assert_allclose(means, q.means, atol=1e-3)
    assert here[2].means[2] == -1.0
    assert here[2].means[5] == 1.0


def test_a_tree_whose_rounds_run_side_by_side_bounds_log_z(monkeypatch):
    """The device's round (all look-aheads first, then all plans) with the CPU's fits behind it."""
    rounds = []

    def fits(self, starts):
        rounds.append(len(starts))
        return [self.refine(*start) for start in starts]

    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "")
    monkeypatch.setattr(tz.MeanField, "refine_on_device", fits)
    model = tz.ising_grid(5, coupling=(-2, 2), seed=3)
    settings = tz.Splitting(
        family=tz.MeanField(restarts=2), collapse=0, exact_width=2, upper=False, max_splits=60
    )
    result = tz.split(model, settings, backend="cuda", seed=0)
    log_z = tz.exact(model).log_z
    assert sum(rounds) > 100
    assert result.splits == 60
    start = tz.split(model, replace(settings, max_splits=0), backend="cpu", seed=0).lower
    assert start < result.lower <= log_z + 1e-9
    assert result.lower - start > 0.5 * (log_z - start)


def test_structured_leaves_are_refused(monkeypatch):
    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "")
    family = tz.StructuredMeanField(width=2)
    with pytest.raises(ParameterError, match="leaves of structured families are bounded on the"):
        tz.split(
            tz.ising_grid(5, coupling=(-2, 2), seed=0),
            tz.Splitting(max_splits=3, family=family, exact_width=2, collapse=0),
            seed=0, backend="cuda",
        )  # fmt: skip


def test_a_device_that_fails_leaves_the_tree_to_the_cpu(monkeypatch):
    def fails(self, starts):
        raise RuntimeError("no memory")

    monkeypatch.setattr("tightz.runtime.gpu.why_no_device", lambda simulator: "")
    monkeypatch.setattr(tz.MeanField, "refine_on_device", fails)
    model = tz.ising_grid(5, coupling=(-2, 2), seed=3)
    settings = tz.Splitting(
        family=tz.MeanField(restarts=2), collapse=0, exact_width=2, upper=False, max_splits=20
    )
    tree = SplittingTree(Workspace.build(model, seed=0), settings, seed=0, backend="cuda")
    bounds = list(tree.run())
    assert tree.tree.splits == 20
    assert tree.tree.trouble == "leaves go on without the GPU: RuntimeError: no memory"
    assert bounds[0].log_z < bounds[-1].log_z <= tz.exact(model).log_z + 1e-9
