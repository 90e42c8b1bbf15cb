"""Annealing on the device, by the CUDA simulator in a process of its own, against twins in numpy.

A twin throws the same coins; that its mean weight is Z is tested with many more chains than a
simulator can run, and with a path that stops short as the control.
"""

from __future__ import annotations

import itertools
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import tightz as tz
from tests import naive
from tests.simulator import simulated
from tests.streams import drawn
from tightz.runtime.clock import Clock
from tightz.sampling import annealed
from tightz.sampling.ais.bases import likely_forest, pairs_of
from tightz.sampling.ais.colours import coloured, phases_of
from tightz.sampling.ais.paths import LayerPath, SpinPath, annealing_path
from tightz.workspace.working import Working, alone
from tightz.workspace.workspace import Workspace

pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")

BETAS = np.array([0.0, 0.1, 0.4, 0.6, 0.9, 1.0])
SIZES = (0, 8, 16)
"""Of populations; 0: single chains, some of the last octet missing."""


def words(chains):
    return np.random.default_rng(8).integers(2**64, size=(chains, 4), dtype=np.uint64)


def models():
    rng = np.random.default_rng(3)
    scopes = [rng.choice(6, size=k, replace=False).tolist() for k in (1, 2, 2, 3, 3, 2, 4, 1)]
    tables = [(s, 1.5 * rng.normal(size=(2,) * len(s))) for s in scopes]
    pairs = {(0, 1): 1.2, (1, 2): -0.7, (0, 2): 0.8, (2, 3): 1.0}
    return tz.FactorGraph([2] * 6, tables), tz.ising(pairs, [0.1, 0.2, -0.5, 0.3])


def spin_paths():
    """Terms of up to four spins from independent spins, and an odd cycle from a forest, too."""
    higher, cycle = map(annealing_path, models())
    means, products = np.full(4, 0.2), np.full(len(pairs_of(cycle.terms)[0]), 0.3)
    base = likely_forest(cycle.terms, means, products)
    assert base.theta.any()
    return [higher, cycle, SpinPath(cycle.constant, cycle.terms, base)]


def spin_walks():
    from tightz.sampling.ais.gpu import device_path

    out = []
    for path in map(device_path, spin_paths()):
        out.append(path.walk(BETAS, words(21), with_slopes=True, threads=1))
        out += [path.populations(BETAS, words(32), size) for size in SIZES[1:]]
    return out


def spin_twin(path, betas, words, size):
    terms, base = path.terms, path.base
    members = [[i] for i in range(base.fields.size)]
    members += [terms.spins[a:b].tolist() for a, b in pairwise(terms.ptr.tolist())]
    start, goal = np.append(base.fields, base.theta), np.append(terms.fields, terms.theta)
    parents = [(i, base.parent[i]) for i in base.order]
    order = np.argsort(coloured(terms), kind="stable")
    logs, spins = naive.annealed_spins(members, start, goal, parents, order, betas, words, size)
    return path.constant + logs, spins


def deviation(weights):
    """(mean - 1) in standard errors."""
    return float((weights.mean() - 1.0) / (weights.std(ddof=1) / np.sqrt(weights.size)))


def test_spins_on_the_device_follow_the_formula(tmp_path):
    there = iter(simulated("spin_walks()", __name__, tmp_path))
    resampled = []
    for path in spin_paths():
        for size in SIZES:
            walk, chains = next(there), 32 if size else 21
            logs, spins = spin_twin(path, BETAS, words(chains), size)
            np.testing.assert_allclose(walk.log_weights, logs, atol=1e-9)
            np.testing.assert_array_equal(walk.ends, spins)
            resampled.append(len(set(walk.ancestors.tolist())) < chains)
            if not size:
                steps = np.diff(BETAS) * walk.slopes
                start = walk.log_weights - steps.sum(axis=1)
                np.testing.assert_allclose(start, start[0], atol=1e-9)
    assert not any(resampled[::3])
    assert resampled[1]
    assert resampled[2]


@pytest.mark.parametrize("size", SIZES)
def test_the_mean_weight_of_that_formula_is_z(size):
    for path, model in zip(spin_paths(), (*models(), models()[1]), strict=True):
        log_z = naive.enumerate_model(model.cardinalities, list(model.factors))[0]

        def off(last, path=path, log_z=log_z):
            betas = np.array([0.0, 0.2, 0.5, last])
            logs, _ = spin_twin(path, betas, words(6000 * max(1, size // 2)), size)
            return deviation(np.exp(logs - log_z).reshape(-1, max(1, size)).mean(axis=1))

        assert abs(off(1.0)) < 4.0
        assert abs(off(0.8)) > 4.0


def test_slices_hold_every_term_once_and_colours_share_none():
    path = annealing_path(tz.ising_grid(9, coupling=(-2, 2), seed=0))
    terms, colour = path.terms, coloured(path.terms)
    phases = phases_of(terms, path.base)
    for first, last in pairwise(terms.ptr.tolist()):
        assert len(set(colour[terms.spins[first:last]].tolist())) == last - first
    assert sorted(phases.sites[phases.sites >= 0].tolist()) == list(range(81))
    for at, (part, end) in enumerate(pairwise(phases.parts_ptr.tolist())):
        assert end == part + 1  # pairs only
        rows = slice(phases.part_ptr[part], phases.part_ptr[part + 1])
        for lane, i in enumerate(phases.sites[at].tolist()):
            near = phases.others[rows, lane][phases.moving[rows, lane] != 0.0]
            mine = terms.others[terms.site_ptr[i] : terms.site_ptr[i + 1]] if i >= 0 else near
            assert sorted(near.tolist()) == sorted(mine.tolist())


def layer_path():
    rng = np.random.default_rng(5)
    w, b, c = 1.5 * rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=3)
    path = annealing_path(tz.rbm(w, b, c))
    assert isinstance(path, LayerPath)
    return LayerPath(**{**vars(path), "base": np.array([0.3, -0.8, 0.1])})


def layer_walk():
    from tightz.sampling.ais.gpu import DeviceLayerPath

    path = DeviceLayerPath(**vars(layer_path()))
    return path.walk(BETAS, words(12), with_slopes=True, threads=1)


def test_layers_on_the_device_follow_the_formula(tmp_path):
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
    for last, least, most in ((1.0, 0.0, 4.0), (0.8, 4.0, np.inf)):
        logs, _ = naive.annealed_layers(*model, BETAS * last, words(20_000))
        assert least <= abs(deviation(np.exp(logs - log_z))) < most


SPACE = Workspace.build(tz.ising_grid(9, coupling=(-2, 2), seed=1), seed=0, collapse=0)


@pytest.fixture
def wide(monkeypatch):
    """A device of 16 chains whose work the CPU does, and a clock that ticks when looked at."""
    from tightz.sampling.ais import gpu

    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: 0.08 * next(ticks))
    clock.thread_time = clock.perf_counter
    monkeypatch.setattr(annealed, "time", clock)
    monkeypatch.setattr(annealed, "why_no_device", lambda simulator: "")
    monkeypatch.setattr(gpu, "_multiprocessors", lambda: 1)
    asked = []

    def run(self, betas, states, *, with_slopes=False, size=1, renewal=0.0):
        asked.append((len(states), betas.size))
        if renewal:
            return SpinPath.populations(self, betas, states, size)
        return SpinPath.walk(self, betas, states, with_slopes=with_slopes, threads=1)

    monkeypatch.setattr(gpu.DeviceSpinPath, "_run", run)
    return asked


def test_steps_fill_the_device(wide):
    run = annealed.Annealing.of(SPACE, np.random.default_rng(0), "cuda")
    width = run.path.width()
    assert width >= 16
    for _ in range(8):
        run.pace = 0.08 / 10_000.0
        assert drawn(run) is not None
    assert len(wide) > 8
    assert all(chains % width == 0 for chains, _ in wide)
    longest = annealed.LONGEST * 60.0 / (2.0 * run.pace * width)
    assert all(temperatures <= max(300, longest) for _, temperatures in wide)


def test_a_device_that_fails_leaves_annealing_to_the_cpu(wide, monkeypatch):
    """From the start, and after some rounds; those count on."""
    from tightz.sampling.ais import gpu

    working = Working(tz.ising_grid(9, coupling=(-2, 2), seed=1), backend="cuda")
    begun = gpu.DeviceSpinPath._run
    for before in (0, 8):
        calls = itertools.count()

        def run(self, *arguments, calls=calls, before=before, **options):
            if next(calls) >= before:
                raise RuntimeError("no memory")
            return begun(self, *arguments, **options)

        monkeypatch.setattr(gpu.DeviceSpinPath, "_run", run)
        steps = alone(annealed.annealed(working, Clock(60.0)))
        found = [next(steps) for _ in range(before + 4)]
        notes = [each.note for each in found if each.note]
        assert notes == ["annealing goes on without the GPU: RuntimeError: no memory"]
        assert (found[0].note == "") == (before > 0)
        assert found[-1].draws is not None
        assert abs(found[-1].estimate.log_z - tz.exact(working.model).log_z) < 3.0
