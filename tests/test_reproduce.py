"""The paper's figures at their quick sizes: they run, mean what they say, and come from cache."""

from __future__ import annotations

import json
import os
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests import naive
from tightz.cli.experiments import COMMANDS
from tightz.errors import ParameterError, TightzError
from tightz.experiments import idea as idea_module
from tightz.experiments import ising as ising_module
from tightz.experiments import pivots as pivots_module
from tightz.experiments import rbm as rbm_module
from tightz.experiments import runtime as runtime_module
from tightz.experiments.rbm_drawing import cell
from tightz.experiments.rbm_models import PAPER, PUBLIC, Column, RbmTable, public_file
from tightz.experiments.store import Store, small_print

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
            assert record["mean_field"] == max(record["mean_field_runs"])
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


@NEEDS_DATA
def test_rbm_quick(tmp_path, monkeypatch):
    config = replace(RbmTable().quick(), columns=(Column(6, 1),))
    store = Store(tmp_path / "rbm")
    path = rbm_module.rbm_table(store, tmp_path / "a.png", config=config)
    assert _is_png(path)
    (record,) = rbm_module.results(store, config)
    weights = np.load(tmp_path / "rbm" / "cd1-6.npz")
    exact, *_ = naive.rbm_by_hidden_states(
        weights["W"], weights["visible_bias"], weights["hidden_bias"]
    )
    proven = ("mean_field", "mean_field_equal", "estimate_lower", "interval_lower")
    assert max(record[key] for key in proven) <= exact + 1e-8 <= record["interval_upper"] + 2e-8
    assert record["ais"] == pytest.approx(exact, abs=6 * record["ais_error"] + 0.05)
    assert len(record["images"]["mfrp"]) == 784
    monkeypatch.setattr(rbm_module, "_measure", _refuse)
    monkeypatch.setattr(rbm_module, "trained_model", _refuse)
    assert _is_png(rbm_module.rbm_table(store, tmp_path / "b.png", config=config))


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


@pytest.mark.parametrize("name", ["ising", "runtime", "rbm", "picture"])
def test_the_scripts_load(name):
    script = Path(__file__).parents[1] / "experiments" / f"{name}.py"
    assert callable(runpy.run_path(str(script))["main"])
