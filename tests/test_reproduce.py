"""The paper's figures at their quick sizes: they run, mean what they say, and come from cache."""

from __future__ import annotations

import itertools
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests import naive
from tightz.cli.experiments import COMMANDS
from tightz.errors import ParameterError, TightzError
from tightz.families.mean_field import MeanField
from tightz.families.projection import evaluate
from tightz.models.builders import rbm
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.paper.mean_field import mean_field
from tightz.projections.coset import Coset
from tightz.reductions.encoding import encode
from tightz_experiments import idea as idea_module
from tightz_experiments import ising as ising_module
from tightz_experiments import pivots as pivots_module
from tightz_experiments import rbm as rbm_module
from tightz_experiments import rbm_search
from tightz_experiments import runtime as runtime_module
from tightz_experiments.processes import single_threaded
from tightz_experiments.rbm_drawing import cell
from tightz_experiments.rbm_models import PAPER, PUBLIC, Column, RbmTable, load_column, public_file
from tightz_experiments.store import Spent, Store, small_print

TRAIN, REPRODUCE = COMMANDS
NEEDS_DATA = pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="needs TIGHTZ_DATA")


def _refuse(*_args, **_options):
    raise AssertionError("computed again instead of recalled")


def _is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 10_000


def test_a_record_is_computed_once_and_again_when_its_parameters_change(tmp_path):
    store = Store(tmp_path / "a")
    calls = []

    def compute() -> dict:
        calls.append(1)
        return {"value": len(calls)}

    assert store.recall("x", {"m": (1, 2)}, compute) == {"value": 1}
    assert store.recall("x", {"m": (1, 2)}, compute) == {"value": 1}
    assert store.recall("x", {"m": (1, 3)}, compute) == {"value": 2}
    assert store.has("x", {"m": [1, 3]})
    assert not store.has("x", {"m": [1, 2]})
    kept = json.loads((tmp_path / "a" / "x.json").read_text())
    assert store.spent("x") == (kept["seconds"], kept["processor_seconds"])
    with pytest.raises(TightzError, match="no such record"):
        store.spent("y")
    made = store.made_with("x")
    assert {"tightz", "numpy", "numba", "python", "machine"} <= made.keys()
    assert "seed 5" in small_print(made, "seed 5")
    assert made["machine"] in small_print(made)
    (tmp_path / "a" / "x.json").write_text("{")
    with pytest.raises(TightzError, match="delete it"):
        store.recall("x", {"m": (1, 3)}, compute)


def test_ising_quick(tmp_path, monkeypatch):
    config = ising_module.IsingGrids().quick()
    store = Store(tmp_path / "ising")
    lines: list[str] = []
    path = ising_module.ising(store, tmp_path / "a.png", config=config, report=lines.append)
    assert _is_png(path)
    assert len(lines) == len(config.sizes) * config.grids
    table = ising_module.results(store, config)
    for size, records in table.items():
        for grid, record in enumerate(records):
            model = ising_module.paper_grid(size, grid, config.seed)
            factors = [(tuple(f.scope), f.log_table) for f in model.factors]
            if size <= 4:
                exact = naive.grid_log_z(size, size, factors)
                assert record["exact"] == pytest.approx(exact, abs=1e-8)
            truth = record["exact"] + 1e-8
            proven = ("mean_field", "mean_field_equal", "mfrp_lower", "interval_lower")
            assert max(record[key] for key in proven) <= truth
            assert min(record["interval_upper"], record["trw"]) >= truth - 2e-8
            assert record["mean_field"] == pytest.approx(max(record["mean_field_runs"]), abs=1e-9)
            assert record["mean_field_equal_updates"] >= record["mfrp_updates"]
            assert record["mfrp"] == max(record["mfrp_medians"]) <= record["mfrp_best"]
    monkeypatch.setattr(ising_module, "_one_grid", _refuse)
    again = ising_module.ising(store, tmp_path / "b.png", config=config)
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(AssertionError, match="again"):  # the cache does notice a change
        ising_module.results(store, replace(config, trials=2))


def test_the_grids_follow_the_paper():
    """psi_ij holds f_i and f_j, so a site's field counts once per edge."""
    model = ising_module.paper_grid(3, 0, 0)
    other = ising_module.paper_grid(3, 1, 0)
    assert model.digest != other.digest
    assert model.digest == ising_module.paper_grid(3, 0, 0).digest
    fields = [f.log_table[0] for f in model.factors if len(f.scope) == 1]
    assert 1.0 < np.abs(fields).max() <= 4.0


def test_column_leaves_unknown_values_out():
    records = [{"a": 3.0, "b": 1.0}, {"a": None, "b": 1.0}]
    assert np.array_equal(ising_module.column(records, "a", "b"), [2.0, np.nan], equal_nan=True)


def test_runtime_quick(tmp_path, monkeypatch):
    config = runtime_module.Runtimes().quick()
    store = Store(tmp_path / "runtime")
    path = runtime_module.runtime(store, tmp_path / "a.png", config=config)
    assert _is_png(path)
    sweep, ascent = runtime_module.results(store, config)
    assert sweep.shape == ascent.shape == (len(config.sizes), len(config.levels))
    assert (sweep > 0).all()
    monkeypatch.setattr(runtime_module, "_time_size", _refuse)
    assert runtime_module.runtime(store, tmp_path / "b.png", config=config).exists()


def test_the_exponent_of_a_power_law_is_found():
    x = np.array([1.0, 4.0, 9.0, 100.0])
    assert runtime_module.exponent(x, 3.0 * x**1.25) == pytest.approx(1.25)


def test_the_idea_is_true_of_its_own_picture(tmp_path, monkeypatch):
    store = Store(tmp_path)
    assert _is_png(idea_module.idea(store, tmp_path / "a.png", matrices=2))
    result = json.loads((tmp_path / "idea.json").read_text())["result"]
    top = result["log_z"]
    assert top == pytest.approx(naive.log_sum_exp(result["log_weights"]))
    means = [level["mean"] for level in result["levels"]]
    assert max(means) <= top + 1e-9  # the average over cuts is never above Z
    assert means[-1] > means[0]
    assert any(max(level["values"]) > top for level in result["levels"])  # single cuts may be
    monkeypatch.setattr(idea_module, "_bounds_on_cuts", _refuse)
    assert _is_png(idea_module.idea(store, tmp_path / "b.png", matrices=2))


def test_neighbours_in_the_picture_differ_in_one_variable():
    states = idea_module.all_states()
    assert len(np.unique(states, axis=0)) == 256
    square = states.reshape(16, 16, 8)
    assert (np.abs(np.diff(square, axis=0)).sum(axis=2) == 1).all()
    assert (np.abs(np.diff(square, axis=1)).sum(axis=2) == 1).all()


def test_pivots_quick(tmp_path, monkeypatch):
    config = pivots_module.PivotPicture().quick()
    store = Store(tmp_path)
    assert _is_png(pivots_module.pivots(store, tmp_path / "a.png", config=config))
    result = json.loads((tmp_path / "pivots.json").read_text())["result"]
    costs = np.array(result["flip_costs"])
    chosen = {name: costs[result[name]["pivots"]].sum() for name in ("first", "reliable")}
    assert chosen["reliable"] < chosen["first"]
    for name in chosen:
        assert set(result[name]["flipped"]) <= set(result[name]["pivots"])
    monkeypatch.setattr(pivots_module, "_compare", _refuse)
    assert _is_png(pivots_module.pivots(store, tmp_path / "b.png", config=config))


def test_a_record_states_what_it_took(tmp_path):
    store = Store(tmp_path)

    def busy() -> dict:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass
        time.sleep(0.1)
        return {}

    store.recall("x", {}, busy)
    wall, processor = store.spent("x")
    assert processor >= 0.05
    assert wall >= 0.15  # asleep for at least 0.1 of it
    total = Spent.sum([store.spent("x"), Spent(60.0, 120.0)])
    assert total == (wall + 60.0, processor + 120.0)
    assert str(Spent(90.0, 120.0)) == "1.5 min of wall time summed, 2.0 min of processor time"


def test_threads_are_held_back_in_the_block_only(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    with single_threaded():
        assert os.environ["OMP_NUM_THREADS"] == os.environ["NUMBA_NUM_THREADS"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "NUMBA_NUM_THREADS" not in os.environ


def _small_rbm(seed: int) -> SpinPolynomial:
    rng = np.random.default_rng(seed)
    model = rbm(rng.normal(0.0, 2.5, (7, 5)), rng.normal(size=7), rng.normal(size=5))
    return encode(model).polynomial


def test_states_are_ranked_by_what_mean_field_makes_of_them():
    """To 1e-5 nats: an ascent stops when a sweep gains less than 1e-6."""
    polynomial = _small_rbm(4)
    states = np.array(list(itertools.product((-1, 1), repeat=12)), dtype=np.int8)[::7]
    ranked, means = rbm_search.rank(polynomial, states)
    coset = Coset.build(polynomial)

    def climb(start: np.ndarray) -> float:
        return MeanField().ascend_from(coset, start[None, :].astype(float)).log_gamma

    values = [climb(state) for state in ranked]
    assert len(values) > 2
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(max(climb(state) for state in states), abs=1e-5)
    assert evaluate(coset, means)[0] == pytest.approx(values[0], abs=1e-5)
    weights = polynomial.log_weight(ranked)
    assert np.argmax(weights) != 0  # the heaviest start is not the best one here


def test_search_never_loses_the_best_start_and_bounds_hold():
    polynomial = _small_rbm(4)
    states = np.array(list(itertools.product((-1, 1), repeat=12)), dtype=np.int8)
    exact = naive.log_sum_exp(polynomial.log_weight(states))
    found = rbm_search.mfrp_with_search(
        polynomial, levels=(0, 1, 3), trials=3, restarts=8, sweeps=50, seed=1
    )
    plain = mean_field(polynomial, family=MeanField(restarts=64), seed=2).log_z
    assert found.table.by_level[0].median == pytest.approx(plain, abs=1e-6)
    assert found.table.lower <= exact + 1e-9
    layer = rbm_search.layer_with_search(polynomial, sweeps=50, seed=1)
    assert plain <= layer.log_z <= exact + 1e-9
    assert 0 < found.optima <= found.pool
    assert found.processor_seconds > 0.0


@NEEDS_DATA
def test_rbm_quick(tmp_path, monkeypatch):
    config = replace(RbmTable().quick(), columns=(Column(6, 1),))
    store = Store(tmp_path / "rbm")
    lines: list[str] = []
    path = rbm_module.rbm_table(store, tmp_path / "a.png", config=config, report=lines.append)
    assert _is_png(path)
    (record,) = rbm_module.results(store, config)
    weights = np.load(tmp_path / "rbm" / "cd1-6.npz")
    exact, *_ = naive.rbm_by_hidden_states(
        weights["W"], weights["visible_bias"], weights["hidden_bias"]
    )
    proven = ("mean_field", "mean_field_equal", "estimate_lower", "layer", "interval_lower")
    assert max(record[key] for key in proven) <= exact + 1e-8 <= record["interval_upper"] + 2e-8
    assert record["ais"] == pytest.approx(exact, abs=6 * record["ais_error"] + 0.05)
    budget = record["estimate_processor_seconds"]
    assert record["mean_field_timed_processor_seconds"] >= budget > 0.0
    images = record["images"]
    assert len(images.pop("interval")) in (0, 784)  # none where a busy machine ran out of time
    assert [len(image) for image in images.values()] == 3 * [784]
    parts = dict(rbm_module.costs(store, config.columns[0]))
    assert parts.keys() == set(rbm_module.PARTS)
    assert all(wall > 0.0 and processor > 0.0 for wall, processor in parts.values())
    assert lines[-1] == f"all 1 columns: {Spent.sum(parts.values())}"
    for name in ("_compare", "_sum_out_a_layer", "_ais", "_interval", "train_column"):
        monkeypatch.setattr(rbm_module, name, _refuse)
    again = rbm_module.rbm_table(store, tmp_path / "b.png", config=config, workers=2)
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(AssertionError, match="again"):  # the cache does notice a change
        rbm_module.results(store, replace(config, trials=2))


@NEEDS_DATA
def test_a_worker_process_finds_what_this_one_does(tmp_path):
    column = Column(3, 1)
    config = replace(RbmTable().quick(), examples=200, columns=(column,), seconds=0.5)
    store = Store(tmp_path)
    (record,) = rbm_module.results(store, config, workers=2)
    here = rbm_module._compare(load_column(tmp_path, column), config)
    for key in ("mean_field", "mfrp_medians", "mean_field_equal", "estimate_medians"):
        assert record[key] == pytest.approx(here[key], abs=1e-9)
    with pytest.raises(ParameterError, match="workers is 0"):
        rbm_module.rbm_table(store, tmp_path / "a.png", config=config, workers=0)


def test_the_table_quotes_the_paper():
    record = {"ais": 1.0, "ais_error": 0.25, "mfrp": 3.0}
    assert cell(Column(200, 5), record, "paper_mean_field") == "203"
    assert cell(Column(200, 5), record, "paper_mfrp") == "380"
    assert cell(PUBLIC, record, "paper_mfrp") == ""
    assert cell(PUBLIC, record, "published") == "451.28"
    assert cell(PUBLIC, record, "mfrp") == "3.00"
    assert cell(PUBLIC, record, "ais") == "1.00 ± 0.25"
    assert len(PAPER) == 6


def test_the_public_weights_are_not_replaced(monkeypatch):
    monkeypatch.delenv("TIGHTZ_DATA", raising=False)
    with pytest.raises(ParameterError, match="TIGHTZ_DATA"):
        public_file()


def test_the_commands_draw_into_the_folder_asked_for(tmp_path):
    runner = CliRunner()
    for name, figures in (("runtime", ["runtime"]), ("picture", ["idea", "pivots"])):
        done = runner.invoke(REPRODUCE, [name, "--quick", "--out", str(tmp_path)])
        assert done.exit_code == 0, done.output
        for figure in figures:
            assert _is_png(tmp_path / "quick" / f"{figure}.png")
    done = runner.invoke(REPRODUCE, ["rbm", "--quick", "--only", "cd9-9", "--out", str(tmp_path)])
    assert isinstance(done.exception, ParameterError)
    assert "cd1-6" in str(done.exception)


@NEEDS_DATA
def test_train_rbm_command(tmp_path):
    runner = CliRunner()
    place = tmp_path / "rbm.npz"
    options = ["--hidden", "3", "-k", "1", "--epochs", "1", "--examples", "200", "-o", str(place)]
    done = runner.invoke(TRAIN, [*options, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["output"] == str(place)
    assert np.load(place)["W"].shape == (784, 3)
    assert isinstance(
        runner.invoke(TRAIN, [*options, "--examples", "70000"]).exception, ParameterError
    )
