"""Annealed importance sampling: unbiased weights, honest errors, valid certificates."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path as File

import numpy as np
import pytest
from scipy.stats import chisquare

import tightz as tz
from tests import naive
from tests.called import called
from tightz.bounds import Proof, Side
from tightz.errors import ParameterError
from tightz.models.builders import ising, ising_grid, rbm
from tightz.models.factor_graph import FactorGraph
from tightz.sampling.ais import AisStatus, ais, paths
from tightz.sampling.ais.bases import base_log_z, likely_forest, pairs_of, product_base
from tightz.sampling.ais.kernels import Forest, draw_forest, fill_uniform, fill_uniform_lanes
from tightz.sampling.ais.paths import LayerPath, Path, SpinPath, annealing_path, tuned_schedule


def exact(model: FactorGraph) -> float:
    return naive.enumerate_model(model.cardinalities, list(model.factors), model.evidence)[0]


def small_rbm(seed: int = 0) -> FactorGraph:
    rng = np.random.default_rng(seed)
    return rbm(1.5 * rng.normal(size=(6, 4)), rng.normal(size=6), rng.normal(size=4))


def third_order(seed: int = 1) -> FactorGraph:
    """Arities 0 to 3, a one-state variable, an isolated variable."""
    rng = np.random.default_rng(seed)
    cards = np.array([2, 2, 1, 2, 2, 2, 2])
    scopes = [(), (0,), (0, 1), (1, 2, 3), (0, 3, 4), (1, 4, 5), (3, 5)]
    return FactorGraph(cards, [(s, 0.8 * rng.normal(size=tuple(cards[list(s)]))) for s in scopes])


MODELS = {
    "collapsed": small_rbm(),
    "block": small_rbm(),
    "spins": ising_grid(3, coupling=(-1, 1), field=(-1, 1), seed=4),
    "third order": third_order(),
    "evidence": ising_grid(3, coupling=(-1, 1), seed=5).with_evidence({4: 1, 0: 0}),
    "odd cycle": ising({(0, 1): 0.9, (1, 2): -0.7, (0, 2): 0.8}, [0.1, 0.2, -0.5]),
}


def path_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    if name == "block":
        monkeypatch.setattr(paths, "_COLLAPSED_ENTRIES", 0)
    path = annealing_path(MODELS[name])
    assert not isinstance(path, float)
    return path


def deviation(path: Path, betas: np.ndarray, log_z: float, chains: int = 6000) -> float:
    """(mean weight - Z) in standard errors, from raw chains."""
    states = np.random.default_rng(7).integers(2**63, size=(chains, 4)).astype(np.uint64)
    logs = path.walk(betas, states, with_slopes=False, threads=1).log_weights
    weights = np.exp(logs - log_z)
    return float((weights.mean() - 1.0) / (weights.std(ddof=1) / np.sqrt(chains)))


@pytest.mark.parametrize("name", MODELS)
def test_mean_weight_is_z(name, monkeypatch):
    """Few temperatures, so weights vary and a wrong transition or increment would show."""
    path = path_of(name, monkeypatch)
    log_z = exact(MODELS[name])
    for betas in ([0.0, 1.0], [0.0, 0.4, 1.0], np.linspace(0, 1, 8)):
        assert abs(deviation(path, np.array(betas), log_z)) < 4.0


@pytest.mark.parametrize("name", MODELS)
def test_a_run_cut_short_is_caught(name, monkeypatch):
    """Negative control: stopping at beta = 0.7 is not a sample of Z and the same test says so."""
    path = path_of(name, monkeypatch)
    log_z = exact(MODELS[name])
    assert abs(deviation(path, np.linspace(0, 0.7, 8), log_z)) > 4.0


def test_paths_are_chosen_by_structure(monkeypatch):
    collapsed, block = path_of("collapsed", monkeypatch), path_of("block", monkeypatch)
    assert isinstance(collapsed, LayerPath)
    assert collapsed.weights.shape == (4, 6)
    assert block.name == "block Gibbs on two layers"
    for name in ("third order", "odd cycle"):
        assert isinstance(path_of(name, monkeypatch), SpinPath)
    assert isinstance(annealing_path(ising_grid(8, seed=0)), SpinPath)


def test_layer_path_is_the_rbm():
    rng = np.random.default_rng(3)
    w, b, c = rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=3)
    path = annealing_path(rbm(w, b, c))
    assert isinstance(path, LayerPath)
    assert path.weights == pytest.approx(w.T, abs=1e-12)
    assert path.kept == pytest.approx(c, abs=1e-12)
    assert path.summed == pytest.approx(b, abs=1e-12)
    assert path.constant == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_estimate_is_within_its_error(name):
    model = MODELS[name]
    result = ais(model, temperatures=300, seed=11, threads=1)
    log_z = exact(model)
    assert abs(result.log_z - log_z) < 4 * result.standard_error + 1e-12
    assert result.standard_error < 0.1
    assert result.status is AisStatus.STEADY
    assert result.lower_in_expectation <= result.log_z
    low, high = result.interval(0.99)
    assert low <= result.log_z <= high


def test_chains_that_fall_behind_have_no_small_error():
    """20x20, w = 3: a dozen chains may carry the estimate and all of them lie low."""
    model = ising_grid(20, coupling=(-3, 3), field=(-1, 1), seed=1)
    log_z = tz.exact(model, marginals=False).log_z
    result = ais(model, temperatures=1000, seed=1)
    weights = np.exp(result.log_weights - result.log_z)
    plain = weights.std(ddof=1) / math.sqrt(weights.size)  # the control
    assert log_z - result.log_z > 5.0 * plain
    assert result.effective_sample_size > 10.0
    assert abs(log_z - result.log_z) <= 2.0 * result.standard_error
    assert result.status is AisStatus.FEW_EFFECTIVE


def test_certificates_hold_as_often_as_they_say():
    """With weights this noisy the plain estimate fails half the time; the certificate must not."""
    model = small_rbm(2)
    log_z = exact(model)
    results = [ais(model, chains=8, temperatures=[0, 1], seed=s, threads=1) for s in range(300)]
    failures = np.mean([r.certificate(0.2).log_z > log_z for r in results])
    assert failures <= 0.2
    assert np.mean([r.log_z > log_z for r in results]) > 0.2
    bound = results[0].certificate(0.2)
    assert bound.side is Side.LOWER
    assert bound.proof is Proof.CONFIDENCE
    assert bound.confidence == pytest.approx(0.8)


def test_certificate_beats_plain_markov_with_steady_weights():
    result = ais(small_rbm(), temperatures=300, seed=1, threads=1)
    assert result.certificate(0.05).log_z > result.log_z - np.log(1 / 0.05)
    assert result.certificate(0.05).log_z < result.log_z


def test_a_schedule_replays_a_run_on_any_number_of_threads():
    for model in (small_rbm(), MODELS["spins"]):
        first = ais(model, chains=70, time_limit=0.2, seed=3, threads=2)
        again = ais(model, chains=70, temperatures=first.betas, seed=3, threads=1)
        assert np.array_equal(first.log_weights, again.log_weights)
        other = ais(model, chains=70, temperatures=first.betas, seed=4, threads=1)
        assert not np.array_equal(first.log_weights, other.log_weights)


def test_time_limit_sets_the_number_of_temperatures():
    model = ising_grid(10, seed=0)
    short = ais(model, chains=16, time_limit=0.05, seed=0)
    long = ais(model, chains=16, time_limit=1.5, seed=0)
    assert 10 <= short.betas.size < long.betas.size
    capped = ais(model, chains=16, temperatures=12, time_limit=5.0, seed=0)
    assert capped.betas.size == 12


@pytest.mark.parametrize(
    ("model", "log_z"),
    [
        (FactorGraph([]), 0.0),
        (FactorGraph([1, 1], [((), 3.0), ((0,), [1.0])]), 4.0),
        (FactorGraph([2, 2], [((0,), [-np.inf, -np.inf])]), -np.inf),
        (FactorGraph([2, 2], [((0, 1), np.ones((2, 2)))], evidence={0: 0, 1: 1}), 1.0),
        (FactorGraph([1], [((0,), [1e15]), ((0,), [0.3]), ((0,), [-1e15])]), 0.3),
    ],
    ids=["empty", "one-state", "zero everywhere", "all observed", "cancelling"],
)
def test_nothing_to_sample(model, log_z):
    result = ais(model, chains=4, seed=0)
    scale = np.abs(model.log_tables[np.isfinite(model.log_tables)]).sum()
    assert result.log_z == log_z or abs(result.log_z - log_z) <= result.standard_error
    assert result.status is AisStatus.EXACT
    assert result.standard_error <= 1e-14 * scale
    assert result.certificate().log_z == result.log_z - result.standard_error
    assert "exact" in result.summary()


def test_independent_spins_have_constant_weights():
    model = FactorGraph([2, 1, 2], [((0,), [0.3, -2.0])])
    result = ais(model, chains=5, temperatures=10, seed=0, threads=1)
    assert result.log_weights == pytest.approx(np.full(5, exact(model)), abs=1e-12)


@pytest.mark.parametrize("strength", [1e3, 1e6])
def test_huge_couplings_stay_finite(strength):
    rng = np.random.default_rng(0)
    models = [
        ising_grid(3, coupling=(-strength, strength), seed=0),
        rbm(strength * rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=3)),
    ]
    for model in models:
        result = ais(model, chains=8, temperatures=30, seed=0, threads=1)
        assert np.isfinite(result.log_weights).all()
        assert result.log_z <= exact(model) + 50


@pytest.mark.parametrize(
    ("model", "log_z"),
    [
        (FactorGraph([3], [((0,), [0.0, 1.0, 2.0])]), np.log(1 + np.e + np.e**2)),
        (FactorGraph([2], [((0,), [0.0, -np.inf])]), 0.0),
    ],
)
def test_many_states_and_zeros_are_no_obstacle(model, log_z):
    found = ais(model, chains=8, temperatures=5, seed=0)
    assert found.log_z == pytest.approx(log_z, abs=1e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"chains": 0},
        {"temperatures": 1},
        {"temperatures": [0.0, 0.5]},
        {"temperatures": [0.1, 1.0]},
        {"temperatures": [0.0, 0.7, 0.6, 1.0]},
        {"time_limit": -1.0},
    ],
)
def test_parameters_out_of_range(wrong):
    with pytest.raises(ParameterError):
        ais(MODELS["spins"], **wrong)
    with pytest.raises(ParameterError):
        ais(MODELS["spins"], chains=2, temperatures=2, seed=0).certificate(1.0)


def test_generators_agree_and_are_uniform():
    state = np.random.default_rng(0).integers(2**63, size=4).astype(np.uint64)
    lanes = np.repeat(state[:, None], 3, axis=1)
    one = np.empty(4000)
    called(fill_uniform)(state, one, one.size)
    for expected in one[:5]:
        row = np.empty(3)
        called(fill_uniform_lanes)(lanes, row)
        assert (row == expected).all()
    assert abs(one.mean() - 0.5) < 4 * np.sqrt(1 / 12 / one.size)
    assert (np.histogram(one, bins=20, range=(0, 1))[0] > 130).all()


def test_tuned_schedule_is_dense_where_slopes_vary():
    betas = np.linspace(0, 1, 101)
    slopes = np.random.default_rng(0).normal(size=(16, 100)) * np.where(betas[1:] < 0.5, 10.0, 1.0)
    tuned = tuned_schedule(betas, slopes, 50)
    assert (np.diff(tuned) > 0).all()
    assert (tuned[0], tuned[-1], tuned.size) == (0.0, 1.0, 50)
    assert (tuned < 0.5).sum() > 35


@pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="TIGHTZ_DATA is not set")
def test_tiny_15():
    data = np.load(File(os.environ["TIGHTZ_DATA"]) / "rbm" / "rbm_mnist_tiny_15.npz")
    model = rbm(data["W"], data["visible_bias"], data["hidden_bias"])
    result = ais(model, chains=32, temperatures=1000, seed=0)
    assert abs(result.log_z - 216.0615441) < 0.5
    assert result.certificate().log_z < 216.0615441


def spin_path(seed: int = 4) -> tuple[SpinPath, FactorGraph]:
    """A cycle of 9 spins with chords: odd cycles, so no two layers."""
    rng = np.random.default_rng(seed)
    pairs = [(v, (v + 1) % 9) for v in range(9)] + [(0, 4), (2, 6), (3, 8)]
    model = ising({pair: float(rng.uniform(-1.5, 1.5)) for pair in pairs}, rng.normal(size=9))
    path = annealing_path(model)
    assert isinstance(path, SpinPath)
    return path, model


def words(chains: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(2**64, size=(chains, 4), dtype=np.uint64)


def every_state(model: FactorGraph) -> tuple[np.ndarray, np.ndarray]:
    """Spins (2^n, n) and their probabilities."""
    n = model.n_variables
    states = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    logs = model.log_weight(states)
    weights = np.exp(logs - logs.max())
    return 1 - 2 * states, weights / weights.sum()


def fitted(path: SpinPath, spins: np.ndarray, p: np.ndarray) -> Forest:
    """The forest fitted to all states, somewhat shrunk."""
    _, pairs = pairs_of(path.terms)
    means, products = p @ spins, p @ (spins[:, pairs[:, 0]] * spins[:, pairs[:, 1]])
    return likely_forest(path.terms, 0.9 * means, 0.9 * products)


def test_a_forest_is_drawn_exactly_and_knows_its_log_z():
    path, model = spin_path()
    spins, p = every_state(model)
    base = fitted(path, spins, p)
    ptr = path.terms.ptr
    logs = spins @ base.fields
    for t in np.flatnonzero(base.theta):
        logs += base.theta[t] * spins[:, path.terms.spins[ptr[t] : ptr[t + 1]]].prod(axis=1)
    assert base_log_z(base) == pytest.approx(np.logaddexp.reduce(logs), abs=1e-12)
    q = np.exp(logs - base_log_z(base))
    # Chow and Liu: the fit keeps the means and the products along the forest
    assert q @ spins == pytest.approx(0.9 * (p @ spins), abs=1e-9)
    drawn = np.empty((9, 40_000))
    draw_forest(base, np.ascontiguousarray(words(40_000).T), drawn)
    counts = np.bincount((2.0 ** np.arange(9) @ (drawn < 0)).astype(int), minlength=512)
    codes = ((spins < 0) @ 2 ** np.arange(9)).astype(int)
    expected = np.empty(512)
    expected[codes] = 40_000 * q
    rare = expected < 5.0
    pool = [np.append(x[~rare], x[rare].sum()) for x in (counts, expected)]
    assert chisquare(*pool).pvalue > 1e-4


@pytest.mark.parametrize("base", ["fields", "product", "forest"])
def test_populations_are_unbiased_whatever_the_base(base):
    """Few temperatures and small populations, so that resampling happens and could be wrong."""
    path, model = spin_path()
    if base == "product":
        path = replace(path, base=product_base(path.terms, np.linspace(-0.8, 0.8, 9)))
    if base == "forest":
        spins, p = every_state(model)
        path = replace(path, base=fitted(path, spins, p))
        assert np.count_nonzero(path.base.theta) == 8
    # forests are so close to the model that two temperatures are needed to see any resampling
    betas = np.linspace(0, 1, 2 if base == "forest" else 5)
    walk = path.populations(np.append(betas, 1.0), words(96_000), 6)
    assert np.unique(walk.ancestors).size < 96_000
    means = np.exp(walk.log_weights - exact(model)).reshape(-1, 6).mean(axis=1)
    assert abs(means.mean() - 1.0) < 4 * means.std(ddof=1) / np.sqrt(means.size)
    weights = np.exp(walk.log_weights - exact(model))
    products = (weights[:, None] * walk.ends).reshape(-1, 6, 9).mean(axis=1)
    spins, p = every_state(model)
    error = products.std(axis=0, ddof=1) / np.sqrt(len(products))
    assert (np.abs(products.mean(axis=0) - p @ spins) < 5 * error).all()


def test_ends_of_a_population_without_their_weights_are_off():
    """Negative control: the same averages without weights and with one temperature are not p's."""
    path, model = spin_path()
    ends = path.walk(np.array([0.0, 1.0]), words(4000), with_slopes=False, threads=1).ends
    spins, p = every_state(model)
    assert np.abs(ends.mean(axis=0) - p @ spins).max() > 0.1


@pytest.mark.parametrize("name", ["collapsed", "block"])
def test_end_states_of_layers_are_samples(name, monkeypatch):
    """Weighted end states give the marginals, of the layer summed out too, from any base."""
    path = path_of(name, monkeypatch)
    assert isinstance(path, LayerPath)
    path = replace(path, base=np.linspace(-1, 1, path.kept.size))
    walk = path.walk(np.linspace(0, 1, 20), words(3000), with_slopes=False, threads=1)
    weights = np.exp(walk.log_weights - exact(MODELS[name]))
    assert abs(weights.mean() - 1.0) < 4 * weights.std(ddof=1) / np.sqrt(weights.size)
    spins, p = every_state(MODELS[name])
    products = weights[:, None] * walk.ends
    error = products.std(axis=0, ddof=1) / np.sqrt(len(products))
    assert (np.abs(products.mean(axis=0) - p @ spins) < 5 * error).all()
