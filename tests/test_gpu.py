"""Trials on the device against the CPU's, by the CUDA simulator in a process of its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tightz.errors import ParameterError, UnsupportedModelError
from tightz.families.projection import Status, evaluate
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.paper.batches import run_batches
from tightz.paper.gpu.availability import why_not_plan
from tightz.paper.trials import TrialPlan, all_positions
from tightz.projections import Coset, DenseParity, FirstColumns, Reliability, SparseParity
from tightz.projections.gf2 import unpack
from tightz.reductions.encoding import encode
from tightz.runtime.gpu.streams import pcg64_states
from tightz.runtime.seeds import generator

NO_PAIRS = np.zeros((0, 2), np.int64)
BATCH = 3


def plan(polynomial, **changes):
    given_parts = {
        "polynomial": polynomial,
        "family": tz.MeanField(restarts=2),
        "hashing": DenseParity(),
        "pivots": FirstColumns(),
        "seed": np.random.SeedSequence(5, spawn_key=(2,)),
        "pairs": NO_PAIRS,
    }
    return TrialPlan(**{**given_parts, **changes})


def grid_plan():
    """Spins of more partners than lanes; feasible and infeasible draws; pairs asked for."""
    model = tz.ising_grid(3, coupling=(-3, 3), field=(-1, 1), seed=0)
    pairs = np.array([[0, 1], [2, 7]])
    return plan(encode(model).polynomial, pairs=pairs), all_positions((0, 3, 9), 3)


def annealed_plan():
    """Terms of three and four spins, a chain, sparse parities, chosen pivots, annealing."""
    rng = np.random.default_rng(1)
    terms = [([i, i + 1], rng.normal()) for i in range(6)]
    terms += [([i], rng.normal()) for i in range(7)]
    terms += [([0, 2, 4], 1.5), ([1, 3, 5, 6], -2.0)]
    return plan(
        SpinPolynomial.from_terms(7, 0.3, terms),
        family=tz.AnnealedMeanField(restarts=3, sweeps=6, tol=1e-7),
        hashing=SparseParity(0.3),
        pivots=Reliability(rng.permutation(7).astype(float)),
    ), all_positions((1, 4), 3)


def many_terms_plan():
    """More long terms per lane than a word has bits, and no marginals wanted."""
    rng = np.random.default_rng(2)
    pairs = [([i, j], rng.normal()) for i in range(13) for j in range(i)]
    return plan(
        SpinPolynomial.from_terms(13, 0.0, pairs), family=tz.MeanField(restarts=1), lift=False
    ), [(8, 0)]


def states_plan():
    """Starts from given states, some of which agree once repaired, more than are wanted."""
    model = tz.ising_grid(3, coupling=(-2, 2), seed=4)
    rng = np.random.default_rng(4)
    states = 1 - 2 * rng.integers(0, 2, size=(40, 9), dtype=np.int8)
    return plan(
        encode(model).polynomial,
        family=tz.MeanField(restarts=4, max_sweeps=1),
        pivots=Reliability(rng.uniform(size=9)),
        states=states,
    ), [(2, 0), (6, 1), (7, 0)]


def faint_plan():
    """One sweep over products of some 140 random means, far below float32's range until its end."""
    rng = np.random.default_rng(3)
    terms = [([i], rng.normal(scale=9.0)) for i in range(280)]
    return plan(
        SpinPolynomial.from_terms(280, 0.0, terms), family=tz.MeanField(restarts=1, max_sweeps=1)
    ), [(3, 0)]


CASES = {
    "grid": grid_plan,
    "annealed": annealed_plan,
    "many terms": many_terms_plan,
    "states": states_plan,
    "faint": faint_plan,
}


def complete():
    """Every pair of 21 spins: 210 terms, more than the simulator's kernels hold."""
    return SpinPolynomial.from_terms(21, 0.0, [([i, j], 0.1) for i in range(21) for j in range(i)])


SMALL_CHUNKS = [(1, 0), (0, 0), (2, 0), (1, 1), (0, 1)]


def on_device():
    """What the simulated device makes of every case: batches, and a chunk's inner state."""
    from tightz.paper.gpu import batches
    from tightz.paper.gpu.chunk import Chunk
    from tightz.paper.gpu.model import DeviceModel, most_long

    answer = {}
    for name, case in CASES.items():
        chosen, positions = case()
        places = list(positions)
        levels, trials = np.array(places).T.copy()
        chunk = Chunk(DeviceModel.build(chosen), levels, trials)
        chunk.run()
        answer[name] = {
            "batches": list(batches.batches_of(chunk, BATCH)),
            "rows": chunk.rows.copy_to_host(),
            "pivot_row": chunk.pivot_row.copy_to_host(),
            "means": chunk.v.copy_to_host(),
            "log_gammas": chunk.log_gammas,
            "n_long": chunk.n_long,
            "most_long": most_long(chosen.polynomial)[levels],
        }
    model = tz.ising_grid(8, seed=0)  # 64 spins and a right-hand side: two words a row
    for hashing in (DenseParity(), SparseParity(0.2)):
        wide = plan(encode(model).polynomial, hashing=hashing)
        chunk = Chunk(DeviceModel.build(wide), np.array([5, 0, 20]), np.array([0, 1, 2]))
        chunk.draw()
        answer[type(hashing).__name__] = chunk.rows.copy_to_host()
    crowd = complete()
    batches.MOST_PROJECTIONS = 2
    answer["whole"] = list(run_batches(plan(crowd), SMALL_CHUNKS, batch=2, backend="cuda"))
    answer["refused"] = []
    for backend in ("cuda", "auto"):
        try:
            list(run_batches(plan(crowd), [(21, 0)], backend=backend))
        except UnsupportedModelError as error:
            answer["refused"].append((backend, str(error)))
    return answer


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    pytest.importorskip("numba_cuda", reason="the extra gpu (numba-cuda) is not installed")
    path = tmp_path_factory.mktemp("gpu") / "answer.pkl"
    program = (
        "import pickle, sys\nfrom tests.test_gpu import on_device\n"
        "pickle.dump(on_device(), open(sys.argv[1], 'wb'))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(path)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return pickle.loads(path.read_bytes())


def cosets(chosen, places):
    for level, trial in places:
        drawn = chosen.hashing.draw(
            level, chosen.polynomial.n, generator(chosen.seed, level, trial, 0)
        )
        yield Coset.build(chosen.polynomial, drawn, chosen.pivots)


@pytest.mark.parametrize("name", CASES)
def test_batches_are_those_of_the_cpu(device, name):
    chosen, positions = CASES[name]()
    here = list(run_batches(chosen, positions, batch=BATCH, threads=1, backend="cpu"))
    there = device[name]["batches"]
    assert len(here) == len(there)
    for cpu, gpu in zip(here, there, strict=True):
        np.testing.assert_array_equal(gpu.levels, cpu.levels)
        np.testing.assert_array_equal(gpu.trials, cpu.trials)
        np.testing.assert_array_equal(gpu.ranks, cpu.ranks)
        np.testing.assert_array_equal(gpu.statuses, cpu.statuses)
        np.testing.assert_allclose(gpu.log_gammas, cpu.log_gammas, atol=1e-4)
        assert (gpu.sweeps <= cpu.sweeps).all()  # the CPU's restarts wait for each other
        for mine, its in ((gpu.spins, cpu.spins), (gpu.pairs, cpu.pairs)):
            np.testing.assert_allclose(mine.mean, its.mean, atol=1e-3)
            np.testing.assert_allclose(mine.spread, its.spread, atol=1e-3)


def test_the_cases_cover_what_they_claim(device):
    statuses = np.concatenate([b.statuses for b in device["grid"]["batches"]])
    assert {list(Status)[code] for code in statuses} == {Status.CONVERGED, Status.INFEASIBLE}
    assert device["many terms"]["n_long"].min() > 64  # two lanes, 32 bits a word
    start = generator(faint_plan()[0].seed, 3, 0, 1).uniform(-1.0, 1.0, 277)
    assert np.abs(start).prod() ** 0.5 < 1e-45  # half of them: no float32


@pytest.mark.parametrize("name", CASES)
def test_bounds_come_from_an_evaluator_that_agrees_with_the_cpus(device, name):
    chosen, positions = CASES[name]()
    there = device[name]
    feasible = 0
    for p, coset in enumerate(cosets(chosen, positions)):
        if not coset.feasible:
            assert (there["log_gammas"][p] == -np.inf).all()
            continue
        feasible += 1
        means = there["means"][p][:, coset.free].T.astype(np.float64)
        np.testing.assert_allclose(there["log_gammas"][p], evaluate(coset, means), rtol=1e-12)
    assert feasible


@pytest.mark.parametrize("name", CASES)
def test_long_terms_stay_within_the_forecast(device, name):
    assert (device[name]["n_long"] <= device[name]["most_long"]).all()


@pytest.mark.parametrize("name", CASES)
def test_pivots_are_those_of_the_cpu(device, name):
    chosen, positions = CASES[name]()
    for p, coset in enumerate(cosets(chosen, positions)):
        np.testing.assert_array_equal(np.flatnonzero(device[name]["pivot_row"][p] < 0), coset.free)


@pytest.mark.parametrize("hashing", [DenseParity(), SparseParity(0.2)])
def test_parities_are_drawn_as_on_the_cpu(device, hashing):
    rows = device[type(hashing).__name__]
    seed, at = plan(None).seed, 0
    for level, trial in ((5, 0), (0, 1), (20, 2)):
        mine = rows[at : at + 2 * level].reshape(2, level).T
        bits = unpack(np.ascontiguousarray(mine), 65)
        drawn = hashing.draw(level, 64, generator(seed, level, trial, 0))
        np.testing.assert_array_equal(bits[:, :64], drawn.matrix)
        np.testing.assert_array_equal(bits[:, 64], drawn.rhs)
        at += 2 * level


def test_chunks_of_any_size_give_the_same_batches(device):
    here = list(run_batches(plan(complete()), SMALL_CHUNKS, batch=2, threads=1, backend="cpu"))
    assert [len(b) for b in device["whole"]] == [2, 2, 1]
    for cpu, gpu in zip(here, device["whole"], strict=True):
        np.testing.assert_array_equal(gpu.levels, cpu.levels)
        np.testing.assert_array_equal(gpu.trials, cpu.trials)
        np.testing.assert_allclose(gpu.log_gammas, cpu.log_gammas, atol=1e-4)


def test_too_many_long_terms_are_refused_by_name_and_auto_takes_the_cpu(device):
    [(backend, message)] = device["refused"]
    assert backend == "cuda"
    assert "long terms" in message
    assert "backend='cpu'" in message


@given(
    st.one_of(st.integers(0, 2**200), st.lists(st.integers(0, 2**70), min_size=1, max_size=6)),
    st.lists(st.integers(0, 2**64), max_size=3),
    st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 10**6)), min_size=1, max_size=4),
    st.integers(0, 2),
)
def test_streams_start_where_numpys_generators_do(entropy, key, places, part):
    seed = np.random.SeedSequence(entropy, spawn_key=key)
    levels, trials = np.array(places).T
    states = pcg64_states(seed, levels, trials, part)
    for (level, trial), row in zip(places, states.tolist(), strict=True):
        want = generator(seed, level, trial, part).bit_generator.state["state"]
        assert (row[0] << 64 | row[1], row[2] << 64 | row[3]) == (want["state"], want["inc"])


def test_backend_is_checked_and_says_what_stands_in_the_way():
    model = tz.ising_grid(3, seed=0)
    with pytest.raises(ParameterError, match="'auto', 'cpu' or 'cuda'"):
        tz.mfrp(model, 2, backend="tpu")
    with pytest.raises(ParameterError, match="collapse=0"):
        tz.estimate(
            model,
            projections=tz.Projections(search_sweeps=0, collapse=2),
            levels=[1],
            backend="cuda",
        )
    with pytest.raises(ParameterError, match="StructuredMeanField"):
        tz.estimate(
            model,
            projections=tz.Projections(collapse=0, search_sweeps=0),
            levels=[1],
            family=tz.StructuredMeanField(),
            backend="cuda",
        )


def test_auto_is_the_cpu_where_there_is_no_device():
    from tightz.runtime.gpu import why_no_device

    if not why_no_device():
        pytest.skip("there is a device here")
    model = tz.ising_grid(3, seed=0)
    with pytest.raises(ParameterError, match="tightz\\[gpu\\]"):
        tz.mfrp(model, 2, seed=1, backend="cuda")
    auto, cpu = (tz.mfrp(model, 2, seed=1, backend=b) for b in ("auto", "cpu"))
    np.testing.assert_array_equal(auto.log_gammas, cpu.log_gammas)


def test_a_driver_without_devices_is_no_device(monkeypatch):
    """CUDA_VISIBLE_DEVICES may be empty: the driver's library loads and refuses, or counts none."""
    from tightz.runtime import gpu

    def driver(status, devices):
        def count(where):
            where._obj.value = devices
            return 0

        return SimpleNamespace(cuInit=lambda flags: status, cuDeviceGetCount=count)

    for status, devices, listed in ((100, 1, False), (0, 0, False), (0, 2, True)):
        monkeypatch.setattr(gpu, "_driver", partial(driver, status, devices))
        assert gpu._has_driver() == listed
    monkeypatch.setattr(gpu, "_driver", lambda: None)
    assert not gpu._has_driver()


def test_a_driver_that_fails_to_start_is_no_device(monkeypatch):
    from tightz.runtime import gpu
    from tightz.runtime.gpu import device

    def fails():
        raise OSError("Error at driver init")

    monkeypatch.setattr(gpu, "_has_driver", lambda: True)
    monkeypatch.setattr(device, "SIMULATED", False)
    monkeypatch.setattr(device, "cuda", SimpleNamespace(is_available=fails))
    assert "Error at driver init; no CUDA device" in gpu._why_no_device.__wrapped__(False)


def test_plans_that_stay_on_the_cpu_are_named():
    poly = encode(tz.ising_grid(3, seed=0)).polynomial
    assert why_not_plan(plan(poly)) == ""
    assert "polish" in why_not_plan(plan(poly, polish=True))
    assert "Z = 0" in why_not_plan(plan(SpinPolynomial.from_terms(3, -np.inf, [])))
    assert "PointMass" in why_not_plan(plan(poly, family=tz.PointMass()))
