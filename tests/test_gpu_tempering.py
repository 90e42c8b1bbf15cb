"""Tempering on the device against the CPU kernels, by the CUDA simulator in a process of its own.

The CPU's numbers are computed here, compiled.
"""

from __future__ import annotations

import numpy as np
import pytest

import tightz as tz
from tests.simulator import simulated
from tightz.errors import ParameterError
from tightz.reductions.encoding import encode
from tightz.search.copies import run_copies
from tightz.search.parallel_tempering import ParallelTempering, Problem, Tempering

cuda = pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")

BETAS = np.array([0.3, 0.6, 1.0, 1.8])
CONFIG = ParallelTempering(
    replicas=4, cluster_every=2, quench_every=3, keep_samples=20, cluster_cold=0.1
)


def models():
    rng = np.random.default_rng(0)
    scopes = [rng.choice(6, size=k, replace=False).tolist() for k in (1, 2, 2, 2, 3, 3, 1, 2)]
    higher = tz.FactorGraph([2] * 6, [(s, rng.normal(size=(2,) * len(s))) for s in scopes])
    return [higher, tz.ising_grid(3, coupling=(-2, 2), seed=1)]


def outcome(backend):
    """Everything that two slices of two runs leave behind."""
    out = []
    for model in models():
        problem = Problem.build(encode(model).polynomial)
        runs = [Tempering(problem, CONFIG, BETAS, np.random.SeedSequence(5), 1, c) for c in (0, 1)]
        for sweeps in (7, 20):
            run_copies(runs, sweeps=sweeps, deadline=None, threads=1, backend=backend)
        for r in runs:
            out += [r.rep.spins, r.rep.energy, r.rep.lane_of, r.trace, r.best.spins, r.best.energy]
            out += [r.samples, r.sample_at, r.flips, r.swaps, r.clusters, np.array(r.top_at)]
    return out


def test_a_run_on_the_device_is_the_run_on_the_cpu(tmp_path):
    there = simulated("outcome('cuda')", __name__, tmp_path)
    here = outcome("cpu")
    assert len(there) == len(here) == 2 * 2 * 12
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    assert sum(int(clusters[0]) for clusters in here[10::12]) > 10  # cluster moves did happen
    assert all(len(samples) > 5 for samples in here[6::12])


def test_auto_leaves_a_few_runs_on_the_cpu_and_cuda_insists(monkeypatch):
    monkeypatch.setattr(
        "tightz.runtime.gpu.why_no_device", lambda simulator: "no device here; install one"
    )
    model = tz.ising_grid(5, seed=0)
    assert tz.ground_state(model, tz.Search(sweeps=20), seed=0, backend="auto").log_weight > 0
    with pytest.raises(ParameterError, match="backend='cuda' cannot be used: no device here"):
        tz.ground_state(model, tz.Search(sweeps=20), seed=0, backend="cuda")
    with pytest.raises(ParameterError, match="backend is 'tpu'; expected 'auto', 'cpu' or 'cuda'"):
        tz.ground_state(model, tz.Search(sweeps=20), seed=0, backend="tpu")


def test_a_run_wider_than_a_block_is_refused():
    config = ParallelTempering(replicas=512)
    with pytest.raises(ParameterError, match=r"a run has \d+ replicas; a block holds 1024"):
        tz.ground_state(
            tz.ising_grid(5, seed=0), tz.Search(sweeps=1, tempering=config), seed=0, backend="cuda"
        )
