"""The command line through click's runner: results on stdout, errors on stderr, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tightz as tz
from tightz.cli.live import _View
from tightz.cli.main import main
from tightz.interval import log_partition
from tightz.workspace.findings import Draws, Finding, Source

COMMANDS = [
    "logz", "mean-field", "mfrp", "marginals", "info", "generate", "demo", "exact", "upper", "ais",
    "map", "wish",
]  # fmt: skip


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.uai"
    tz.write(tz.ising_grid(3, coupling=(-2, 2), seed=1), path)
    return str(path)


def run(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


def rows(by_variable):
    """The values of {variable: {state: value}}."""
    return [list(states.values()) for states in by_variable.values()]


def run_json(*args):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_every_command_has_help_with_an_example():
    listing = run("--help")
    assert listing.exit_code == 0
    for name in COMMANDS:
        assert name in listing.stdout
        text = run(name, "--help").stdout
        assert "Usage" in text
        if name not in ("generate", "demo"):
            assert "Example: tightz" in text


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from click.testing import CliRunner; from tightz.cli.main import main; "
        "CliRunner().invoke(main, ['--help']); "
        "print([m for m in ('numpy', 'numba', 'scipy', 'rich', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_mean_field_mirrors_the_api(grid):
    record = run_json("mean-field", grid, "--restarts", 4, "--seed", 3)
    expected = tz.mean_field(tz.read(grid), family=tz.MeanField(restarts=4), seed=3)
    assert record["lower"] == expected.log_z
    assert record["log_zs"] == expected.log_zs.tolist()
    assert record["provenance"]["seed"]["entropy"] == 3
    assert "holds always" in run("mean-field", grid).stdout


def test_mfrp_is_the_papers_algorithm_by_default(grid):
    record = run_json("mfrp", grid, "-m", 2, "--trials", 3, "--restarts", 2, "--seed", 5)
    expected = tz.mfrp(tz.read(grid), 2, family=tz.MeanField(restarts=2), trials=3, seed=5)
    assert record["log_z"] == expected.log_z
    assert record["log_gammas"] == expected.log_gammas.tolist()
    text = run("mfrp", grid, "--levels", "0:2", "--trials", 2).stdout
    assert "not a bound" in text
    assert "with confidence 0.95" in text
    tight = run_json("mfrp", grid, "--levels", "0,1", "--trials", 2, "--tight")
    assert tight["lower"] >= record["lower"] - 1e-9


def test_logz_is_exact_on_a_small_grid(grid, tmp_path):
    exact = tz.exact(tz.read(grid)).log_z
    prefix = tmp_path / "out"
    plot = tmp_path / "i.png"
    record = run_json("logz", grid, "-T", 20, "--uai-output", prefix, "--plot", plot)
    assert record["is_exact"] is True
    assert record["lower"] == pytest.approx(exact, abs=1e-9)
    assert tz.read(f"{prefix}.PR") == pytest.approx(exact, abs=1e-4)
    marginals = tz.read(f"{prefix}.MAR")
    np.testing.assert_allclose(marginals, rows(record["marginals"]), atol=1e-5)
    assert plot.stat().st_size > 5000
    assert record["confident"]["lower"] == record["lower"]
    text = run("logz", grid).stdout
    assert "exact" in text
    assert text.splitlines()[0] == Path(f"{prefix}.txt").read_text().splitlines()[0]


def test_logz_makes_three_statements(grid, monkeypatch):
    exact = tz.exact(tz.read(grid)).log_z

    def draws(working, clock):
        rng = np.random.default_rng(working.seed)
        source = Source("mini-bucket", exact, exact + 4.0, spread=0.5, expected=1e4)
        logs = exact + rng.normal(-0.125, 0.5, size=10_000)
        yield Finding(draws=Draws(source, np.minimum(logs, exact + 4.0)))

    monkeypatch.setattr(log_partition, "opening", draws)
    r = run_json("logz", grid, "-T", 20, "--delta", 0.01)
    said = {"lower", "upper", "confidence", "lower_proof", "upper_proof", "marginal_bounds"}
    assert set(r["confident"]) == said
    assert r["confident"]["confidence"] == 0.99
    assert r["lower"] < r["confident"]["lower"] < exact < r["confident"]["upper"] < r["upper"]
    assert r["confident"]["upper_proof"]["proof"] == "CONFIDENCE"
    assert abs(r["estimate"] - exact) <= 2 * r["estimate_error"] < 1.0
    result = run("logz", grid, "-T", 20, "--delta", 0.01)
    always, confident, estimate = result.stdout.splitlines()[:3]
    low, high = r["lower"], r["upper"]
    assert always.startswith(f"log Z in [{low:.6f}, {high:.6f}] ")
    assert "holds always: one state; largest entries" in always
    assert f"width {high - low:.4g}" in always
    low, high = r["confident"]["lower"], r["confident"]["upper"]
    assert confident.startswith(f"log Z in [{low:.6f}, {high:.6f}] ")
    assert confident.endswith("with confidence 0.99, both ends: mini-bucket, 10,000 draws")
    assert estimate.startswith(f"log Z ~   {r['estimate']:.6f} +- {r['estimate_error']:.2g} ")
    assert "not proven: middle of the confident interval" in estimate
    assert re.search(r"s  upper confident  [\d.]+  mini-bucket, 10,000 draws", result.stderr)


def test_the_live_view_shows_both_intervals_narrowing():
    view = _View(60.0, beside=False)
    sure, likely = tz.Proof.DETERMINISTIC, tz.Proof.CONFIDENCE

    def shown():
        columns = [list(column.cells) for column in view.table().columns]
        return [row[:5] for row in zip(*columns, strict=True)]

    view.take(tz.Bound(tz.Side.LOWER, 1.0, sure, "a", 0.5))
    view.take(tz.Bound(tz.Side.UPPER, 9.0, sure, "b", 0.6))
    both = ("1.000000", "9.000000", "8", "a; b")
    assert shown() == [("always", *both), ("confident", *both)]
    view.take(tz.Bound(tz.Side.LOWER, 4.0, likely, "c", 0.7, 0.95))
    view.take(tz.Bound(tz.Side.UPPER, 4.5, likely, "c", 0.8, 0.95))
    view.take(tz.Bound(tz.Side.UPPER, 8.0, sure, "d", 0.9))
    assert shown() == [
        ("always", "1.000000", "8.000000", "7", "a; d"),
        ("confidence 0.95", "4.000000", "4.500000", "0.5", "c"),
    ]
    assert "5 bounds" in view.headline()
    view.take(tz.Bound(tz.Side.BOTH, 4.25, sure, "exact", 1.0, rounding=0.0))
    assert shown() == [("exact", "4.250000", "4.250000", "0", "exact")]


def test_exact_upper_ais_map_wish(grid):
    exact = run_json("exact", grid)["log_z"]
    assert run_json("upper", grid, "--ibound", 2)["upper"] >= exact - 1e-9
    assert run_json("upper", grid, "--method", "trw")["upper"] >= exact - 1e-9
    ais = run_json("ais", grid, "--chains", 64, "--temperatures", 200)
    assert abs(ais["log_z"] - exact) < 6 * ais["standard_error"] + 0.05
    best = run_json("map", grid, "--time-limit", 1)
    model = tz.read(grid)
    state = [int(s) for s in best["state"].values()]
    assert best["log_weight"] == pytest.approx(model.log_weight(state)[0])
    wish = run_json("wish", grid, "--trials", 20)
    low, high = wish["band"]
    assert low["log_z"] <= exact <= high["log_z"]
    for name in ("exact", "upper", "ais", "map", "wish"):
        extra = ["--trials", "5"] if name == "wish" else []
        result = run(name, grid, *extra)
        assert result.exit_code == 0
        assert "log Z" in result.stdout or "log weight" in result.stdout


def test_map_of_networks_and_clauses(tmp_path):
    """Many states, zeros and hard clauses: proven, and as many as there are."""
    network = tz.FactorGraph.from_tables(
        [2, 3], [((0,), [0.4, 0.6]), ((0, 1), [[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])]
    )
    tz.write(network, tmp_path / "net.bif")
    found = run_json("map", tmp_path / "net.bif", "-k", 9)
    assert found["status"] == "OPTIMAL"
    assert [list(state.values()) for state in found["states"][:3]] == [
        ["s1", "s2"], ["s0", "s0"], ["s0", "s1"],
    ]  # fmt: skip
    assert len(found["states"]) == 5
    np.testing.assert_allclose(np.exp(found["log_weights"]), [0.42, 0.2, 0.2, 0.12, 0.06])
    assert found["log_others"] is None
    assert found["log_others_null"] == "-infinity"
    (tmp_path / "sat.cnf").write_text("p cnf 3 3\n1 2 0\n-1 3 0\n-2 -3 0\n")
    shown = run("map", tmp_path / "sat.cnf", "-k", 2).stdout
    assert "status: proven heaviest" in shown
    assert "\n0=0\n1=1\n2=0\n" in shown
    (tmp_path / "unsat.cnf").write_text("p cnf 1 2\n1 0\n-1 0\n")
    assert "proven: every state has weight zero" in run("map", tmp_path / "unsat.cnf").stdout


def test_marginals(grid, tmp_path):
    exact = np.array(tz.exact(tz.read(grid)).marginals)
    record = run_json("marginals", grid, "--uai-output", tmp_path / "m.MAR")
    assert record["marginal_source"] == "exact"
    np.testing.assert_allclose(rows(record["marginals"]), exact, atol=1e-9)
    np.testing.assert_allclose(tz.read(tmp_path / "m.MAR"), exact, atol=1e-5)
    estimate = run_json("marginals", grid, "--method", "mfrp", "--trials", 2)
    assert estimate["result"] == "Estimate"
    assert len(estimate["marginal_spread"]) == 9
    lines = run("marginals", grid, "--method", "mfrp", "--trials", 2).stdout.splitlines()
    assert len(lines) == 2 + 18  # what it is, a heading, and a line for each state


def test_pairs_of_marginals(grid):
    exact = tz.exact(tz.read(grid)).pair_marginal(0, 8)
    for method in ("auto", "exact"):
        record = run_json("marginals", grid, "--method", method, "--pair", 0, 8, "--pair", 4, 4)
        far, same = record["pairs"]
        assert far["variables"] == ["0", "8"]
        np.testing.assert_allclose(far["table"], exact.table, atol=1e-9)
        low, high = far["correlation"]["bounds"]
        assert low <= exact.correlation.value <= high < low + 1e-9
        assert same["correlation"]["value"] == pytest.approx(1.0)
    shown = run("marginals", grid, "--pair", 0, 8).stdout
    assert "p(0, 8)" in shown
    assert f"correlation: {exact.correlation.value:.6f}" in shown
    paper = run_json("marginals", grid, "--method", "mfrp", "--trials", 2, "--pair", 0, 1)
    assert np.sum(paper["pairs"][0]["table"]) == pytest.approx(1.0)
    assert run("marginals", grid, "--pair", 0, 9).exit_code != 0


def test_info_and_evidence(grid, tmp_path):
    (tmp_path / "e.evid").write_text("1 4 1")
    record = run_json("info", grid, "--evidence", tmp_path / "e.evid")
    assert record["variables"] == 9
    assert record["observed"] == 1
    assert record["factors_by_arity"] == {"1": 9, "2": 12}
    assert "width" in run("info", grid).stdout


def test_info_says_what_exact_does(tmp_path):
    """Clauses that leave less after the reductions, which `exact` does not make."""
    path = tmp_path / "f.cnf"
    path.write_text("p cnf 6 6\n1 2 0\n-1 3 4 0\n-3 5 0\n-5 6 1 0\n2 -6 0\n4 0\n")
    told, done = run_json("info", path), run_json("exact", path)
    assert told["exact"]["how"] == done["how"]
    assert told["exact"]["method"] == done["method"]
    assert told["variables_left"] < 6
    assert told["logz"]["how"] != done["how"]
    lines = run("info", path).stdout.splitlines()
    assert f"exact         {done['how']}" in lines
    assert sum(line.startswith("logz  ") for line in lines) == 1


def test_a_state_that_map_prints_is_evidence(grid, tmp_path):
    """With names and without, as text and as JSON: what is no state is a comment."""
    tables = [((0,), [0.4, 0.6]), ((0, 1), [[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])]
    tz.write(tz.FactorGraph.from_tables([2, 3], tables), tmp_path / "net.bif")
    for model in (grid, tmp_path / "net.bif"):
        best = tz.ground_state(tz.read(model))
        for flags in ([], ["--json"]):
            state = tmp_path / "st.txt"
            state.write_text(run("map", model, *flags).stdout)
            r = run_json("logz", model, "-e", state)
            assert r["upper"] == pytest.approx(best.log_weight)
            assert [int(s.lstrip("s")) for s in r["evidence"].values()] == best.state.tolist()


def test_generate(tmp_path):
    path = tmp_path / "g.uai"
    result = run(
        "generate", "ising-grid", 3, 4, "--coupling", -2, 2, "--periodic", "--seed", 7, "-o", path
    )
    assert result.exit_code == 0
    expected = tz.ising_grid(3, 4, coupling=(-2, 2), seed=7, periodic=True)
    np.testing.assert_allclose(tz.read(path).log_tables, expected.log_tables, rtol=1e-12)


@pytest.mark.parametrize(
    "given",
    [
        ["3", "--coupling", "-1", "--field", "0.25"],
        ["3", "--field=0.25", "--coupling=-1"],
        ["--field", "0.25", "0.25", "--coupling", "-1", "-1", "3"],
        ["3", "3", "--coupling=-1", "-1", "--field", "0.25", "--periodic", "--seed", "5"],
    ],
)
def test_generate_takes_one_number_for_a_range(given, tmp_path):
    path = tmp_path / "g.uai"
    assert run("generate", "ising-grid", *given, "-o", path).exit_code == 0
    expected = tz.ising_grid(3, coupling=-1, field=0.25, periodic="--periodic" in given)
    np.testing.assert_allclose(tz.read(path).log_tables, expected.log_tables, rtol=1e-12)


def test_rbm_weights(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "r.npz"
    tz.write(tz.rbm(rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=3)), path)
    assert run_json("info", path)["variables"] == 7
    assert run_json("exact", path)["log_z"] == pytest.approx(tz.exact(tz.read(path)).log_z)


def test_demo_prints_the_story_and_saves_the_picture(tmp_path):
    result = run("demo", "--size", 5, "--output", tmp_path / "sub" / "demo.png")
    assert result.exit_code == 0, result.stderr
    assert "exact" in result.stdout
    assert "holds always" in result.stdout
    assert (tmp_path / "sub" / "demo.png").stat().st_size > 20000


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["mfrp", "GRID", "-m", "-1"], "m is -1"),
        (["mfrp", "GRID", "-m", "10"], "m is 10"),
        (["mfrp", "GRID", "-m", "1", "--trials", "0"], "trials is 0"),
        (["mfrp", "GRID", "-m", "1", "--restarts", "0"], "restarts is 0"),
        (["mfrp", "GRID", "-m", "1", "--levels", "0:3"], "not both"),
        (["mfrp", "GRID", "--levels", "a:b"], "expected a range like 0:20"),
        (["mfrp", "GRID", "--delta", "2", "-m", "1"], "delta is 2"),
        (["logz", "GRID", "--time-limit", "0"], "time_limit is 0"),
        (["logz", "GRID", "--delta", "1"], "delta is 1"),
        (["logz", "GRID", "--max-memory", "lots"], "lots"),
        (["logz", "missing.uai"], "missing.uai does not exist"),
        (["info", "missing.npz"], "missing.npz does not exist"),
        (["info", "model.txt"], "does not exist"),
        (["exact", "GRID", "--evidence", "nope.evid"], "nope.evid does not exist"),
        (["marginals", "GRID", "--uai-output", "/nonexistent/x.MAR"], "/nonexistent"),
        (["generate", "ising-grid", "3", "-o", "/nonexistent/x.uai"], "/nonexistent"),
        (["generate", "ising-grid", "0", "-o", "x.uai"], "rows is 0"),
        (["logz", "GRID", "--plot", "/nonexistent/x.png"], "/nonexistent/x.png"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, message, grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*[grid if a == "GRID" else a for a in args])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1 or "Usage" not in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "x.uai").exists()


@pytest.mark.parametrize(
    "text", ["", "MARKOV\n2\n2 2\n1\n2 0 1\n\n4\n1 2 3\n", "\x00\x01", "MARKOV 1 2 1 1 0 2 1 -1"]
)
def test_malformed_files_exit_with_2(text, tmp_path):
    path = tmp_path / "bad.uai"
    path.write_text(text)
    for command in ("info", "mean-field", "logz"):
        result = run(command, path)
        assert result.exit_code == 2
        assert "bad.uai" in result.stderr


def test_zero_model_is_said_plainly(tmp_path):
    path = tmp_path / "zero.uai"
    path.write_text("MARKOV\n1\n2\n1\n1 0\n\n2\n0 0\n")
    assert "partition function is zero" in run("logz", path).stdout
    assert run_json("logz", path)["upper_null"] == "-infinity"
    assert "-inf" in run("mean-field", path).stdout
