"""Annealing on the device against the CPU's chains, by the CUDA simulator in a process of its own.

The CPU's numbers are computed here, compiled.
"""

from __future__ import annotations

import numpy as np
import pytest

import tightz as tz
from tests import naive
from tests.simulator import simulated
from tightz.sampling.ais.bases import likely_forest, pairs_of
from tightz.sampling.ais.paths import LayerPath, SpinPath, annealing_path

pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")

BETAS = np.array([0.0, 0.1, 0.4, 0.6, 0.9, 1.0])


def words(chains):
    return np.random.default_rng(8).integers(2**64, size=(chains, 4), dtype=np.uint64)


def spin_paths():
    """Terms of up to four spins from independent spins, and an odd cycle from a forest."""
    rng = np.random.default_rng(3)
    scopes = [rng.choice(6, size=k, replace=False).tolist() for k in (1, 2, 2, 3, 3, 2, 4, 1)]
    higher = tz.FactorGraph([2] * 6, [(s, 4.0 * rng.normal(size=(2,) * len(s))) for s in scopes])
    cycle = tz.ising({(0, 1): 1.9, (1, 2): -1.7, (0, 2): 1.8, (2, 3): 1.0}, [0.1, 0.2, -0.5, 0.3])
    out = [annealing_path(higher), annealing_path(cycle)]
    terms = out[1].terms
    means, products = np.full(4, 0.2), np.full(len(pairs_of(terms)[0]), 0.3)
    fitted = SpinPath(out[1].constant, terms, likely_forest(terms, means, products))
    assert all(isinstance(path, SpinPath) for path in out)
    return [*out, fitted]


def spin_walks(on_device, chains=10, betas=BETAS):
    """Everything that walks and populations say; a chain fewer than fills the blocks."""
    from tightz.sampling.ais.gpu import device_path

    out = []
    for path in spin_paths():
        mine = device_path(path) if on_device else path
        walks = [mine.walk(betas, words(chains - 1), with_slopes=True, threads=1)]
        walks += [mine.walk(betas[::-1].copy(), words(5), with_slopes=False, threads=1)]
        walks += [mine.populations(betas, words(chains), size) for size in (2, 4)]
        out += [np.asarray(part) for walk in walks for part in walk]
    return out


def layer_path():
    rng = np.random.default_rng(5)
    w, b, c = 1.5 * rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=3)
    path = annealing_path(tz.rbm(w, b, c))
    assert isinstance(path, LayerPath)
    return LayerPath(**{**vars(path), "base": np.array([0.3, -0.8, 0.1])})


def layer_walk(betas=BETAS, chains=12):
    from tightz.sampling.ais.gpu import DeviceLayerPath

    path = DeviceLayerPath(**vars(layer_path()))
    return path.walk(betas, words(chains), with_slopes=True, threads=1)


def test_chains_on_the_device_are_those_of_the_cpu(tmp_path):
    there = simulated("spin_walks(True, 12)", __name__, tmp_path)
    here = spin_walks(False, 12)
    assert len(there) == len(here) == 3 * 4 * 4
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    resampled = here[15], here[31], here[47]
    assert any((np.diff(ancestors) == 0).any() for ancestors in resampled)


def deviation(log_weights, log_z):
    """(mean weight - Z) in standard errors."""
    weights = np.exp(log_weights - log_z)
    return float((weights.mean() - 1.0) / (weights.std(ddof=1) / np.sqrt(weights.size)))


def test_layers_on_the_device_follow_the_formula(tmp_path):
    """A twin with the same coins; its mean weight is Z, and is not where the path stops short."""
    there = simulated("layer_walk()", __name__, tmp_path)
    path = layer_path()
    model = path.weights, path.kept, path.base, path.summed
    logs, units = naive.annealed_layers(*model, BETAS, words(12))
    np.testing.assert_allclose(there.log_weights, path.constant + logs, atol=1e-9)
    np.testing.assert_array_equal(there.ends[:, path.kept_at], 1 - 2 * units)
    assert there.slopes.shape == (12, BETAS.size - 1)
    start = naive.annealed_layers(*model, BETAS[:2], words(12))[1]
    share = 1.0 / (1.0 + np.exp(-path.summed - BETAS[1] * (start @ path.weights)))
    slopes = start @ (path.kept - path.base) + (share * (start @ path.weights)).sum(axis=1)
    np.testing.assert_allclose(there.slopes[:, 0], slopes, atol=1e-9)
    log_z = naive.rbm_by_hidden_states(path.weights.T, path.summed, path.kept)[0]
    many = words(20_000)
    assert abs(deviation(naive.annealed_layers(*model, BETAS, many)[0], log_z)) < 4.0
    short = BETAS * 0.8
    assert abs(deviation(naive.annealed_layers(*model, short, many)[0], log_z)) > 4.0
