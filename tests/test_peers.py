"""`python -m peers`: the runner and its failures, judging, the page, folders of files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import tightz as tz
from peers import cases, files, page, results, runner, tables
from peers.given import load
from peers.tasks import NAMES, Engine, task
from tests import naive
from tests.test_bridges import random_network

FAKE = "tests.fake_peers"
GRID = tz.ising_grid(3, seed=0)


def run(folder: Path, name: str) -> dict:
    return runner.run(sys.executable, f"{FAKE}:{name}", folder, seconds=0.5, memory=4 << 30)


@pytest.fixture
def case(tmp_path):
    return cases.write("grid", cases.Recipe("3x3", lambda: GRID), tmp_path)


def test_an_honest_engine_answers_with_its_time_and_memory(case):
    answer = run(case, "honest")
    assert answer["value"] == pytest.approx(tz.exact(GRID).log_z)
    assert answer["seconds"] > 0.0
    assert answer["memory"] > 1 << 20


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        ("overflow", "overflow"), ("raises_overflow", "overflow"), ("underflow", "underflow"),
        ("not_a_number", "NaN"), ("hungry", "out of memory"), ("crash", "crashed"),
        ("endless", "time"), ("refuses", "refused"), ("raises", "raised"),
        ("missing", "not installed"), ("leaves", "raised"),
    ],
)  # fmt: skip
def test_failures_are_named(case, engine, word):
    answer = run(case, engine)
    assert answer["failure"] == word
    assert "value" not in answer


def test_without_an_interpreter_nothing_is_installed(case, tmp_path):
    answer = runner.run(str(tmp_path / "python"), "m:f", case, seconds=1.0, memory=1 << 30)
    assert answer["failure"] == "not installed"


@pytest.mark.parametrize("name", ["small file", "small network", "small cnf"])
def test_models_arrive_as_they_left(name, tmp_path):
    recipe = cases.RECIPES[name]
    graph = recipe.make()
    seen = {0: 1, graph.n_variables - 1: 0}
    folder = cases.write(name, recipe._replace(make=lambda: graph, files=()), tmp_path)
    given = load(folder / "model.npz")._replace(evidence=seen)
    expected, _ = naive.enumerate_model(graph.cardinalities, list(graph.factors), seen)
    scopes, arrays, scale = given.conditioned()
    cards = [1 if v in seen else c for v, c in enumerate(given.cards)]
    with np.errstate(divide="ignore"):
        factors = list(zip(scopes, map(np.log, arrays), strict=True))
    held = {v for scope in scopes for v in scope}
    cards = [c if v in held else 1 for v, c in enumerate(cards)]
    log_z, _ = naive.enumerate_model(cards, factors, {})
    assert float(log_z) + scale == pytest.approx(float(expected), abs=1e-12)
    state = [seen.get(v, 0) for v in range(graph.n_variables)]
    weight = sum(float(t[tuple(state[v] for v in s)]) for s, t in graph.factors)
    assert given.log_weight(state) == pytest.approx(weight, abs=1e-9)
    assert given.log_weight([1 - state[0], *state[1:]]) == -np.inf


def test_spins_and_tables_weigh_the_same(case):
    from peers.given import ising

    given = load(case / "model.npz")
    fields, couplings, constant = ising(given)
    rng = np.random.default_rng(0)
    for state in rng.integers(2, size=(5, len(given.cards))).tolist():
        s = 2 * np.array(state) - 1
        total = constant + fields @ s + sum(j * s[a] * s[b] for (a, b), j in couplings.items())
        assert given.log_weight(state) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(
    ("claims", "error", "expected"),
    [
        ("exact", 1e-3, True), ("exact", -1e-3, True), ("exact", 1e-9, False),
        ("lower", 1e-3, True), ("lower", -5.0, False), ("upper", -1e-3, True),
        ("upper", 5.0, False), ("estimate", 9.0, False), ("state", 9.0, False),
    ],
)  # fmt: skip
def test_claims_that_do_not_hold_are_wrong(claims, error, expected):
    assert results.wrong(claims, error, 10.0) is expected


def fake_rows() -> list[dict]:
    shared = {"task": "exact", "model": "m", "title": "a model", "says": "log | Z", "memory": 50}
    right = {"seconds": 0.5, "error": 1e-9, "value": 2.0, "wrong": False, "claims": "exact"}
    return [
        {**shared, **right, "engine": "ours", "library": "tightz", "warmed": 1.0},
        {**shared, **right, "engine": "quick", "library": "pygms", "seconds": 0.1},
        {**shared, **right, "engine": "bad", "library": "pyagrum", "error": 1.0, "wrong": True,
         "seconds": 0.001},
        {**shared, "engine": "big", "library": "pgmpy", "claims": "exact",
         "failure": "out of memory", "detail": "a | b <c>"},
    ]  # fmt: skip


def test_tables_name_failures_and_what_is_wrong():
    rows = fake_rows()
    assert tables.firsts(rows)["m"]["engine"] == "quick"  # the wrong one is faster
    text = tables.summary({"rows": rows})
    assert "| 0 of 1 | m: quick (0.1 s, ours 0.5) | 2 of 3 runs |" in text
    listed = tables.table(rows).splitlines()
    assert [line.count("|") for line in listed[1:2]] == [7]
    assert "**out of memory** (a / b (c))" in listed[-1]
    assert "**wrong**" in listed[-2]


def test_bounds_are_ranked_by_error_before_time():
    near, far = (dict(row, claims="lower") for row in fake_rows()[:2])
    near["error"], far["error"] = -0.1, -3.0
    assert tables.firsts([far, near])["m"]["engine"] == "ours"
    near["wrong"] = True
    assert tables.firsts([far, near])["m"]["engine"] == "quick"


def test_engines_that_run_again_take_their_own_places():
    first, second = (engine.name for engine in task("exact").ENGINES[:2])
    place = {"task": "exact", "model": "grid 10"}
    old = [{**place, "engine": second, "k": 1}, {**place, "engine": first, "k": 2}]
    new = [{**place, "engine": second, "k": 3}, {**place, "engine": "no longer there"}]
    assert [row["k"] for row in results.replaced(old, new)] == [2, 3]


def test_truths_are_confirmed_and_states_compared_over_all_rows():
    rows = fake_rows()
    states = [
        {"task": "heaviest", "model": "m", "claims": "state", "library": "pygms", "value": value}
        for value in (3.0, 5.0)
    ]
    truth = {"m": {"log_z": 2.0, "by": "tightz", "confirmed": ["enumeration", "pyagrum"]}}
    results.settle({"rows": [*rows, *states], "truth": truth})
    assert truth["m"]["confirmed"] == ["enumeration", "pygms"]
    assert [row["error"] for row in states] == [-2.0, 0.0]


def test_the_figure_is_drawn_with_failures(tmp_path):
    pytest.importorskip("matplotlib")
    from peers.figure import draw

    draw({"settings": {"seconds": 10.0}, "rows": fake_rows()}, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").stat().st_size > 10_000


def test_the_page_is_what_its_figures_make():
    answer = json.loads(page.STORED.read_text())
    assert page.PAGE.read_text() == page.text(answer), "run `python -m peers page -`"
    assert {row["task"] for row in answer["rows"]} == set(NAMES)


def test_our_bounds_on_the_page_hold():
    rows = json.loads(page.STORED.read_text())["rows"]
    ours = [row for row in rows if row["library"] == "tightz"]
    assert ours
    assert not [row for row in ours if row.get("wrong")]


def test_every_engine_and_model_exists():
    known = {*cases.RECIPES, *cases.STORED}
    for name in NAMES:
        module = task(name)
        assert set(module.MODELS) <= known
        for engine in module.ENGINES:
            where, function = engine.function.split(":")
            source = page.ROOT / f"{where.replace('.', '/')}.py"
            assert f"def {function}(case: Case, budget: Budget)" in source.read_text()


def test_truths_are_confirmed_by_enumeration():
    machine = cases.machine(6, 4, 0.5, 1)
    assert machine.enumerated() == pytest.approx(tz.exact(machine.graph()).log_z, abs=1e-12)


def test_an_answer_is_judged_against_its_reference():
    engine = Engine("e", "pygms", "", "exact", "")
    answer = {"marginals": [[0.25, 0.75]], "seconds": 0.1, "memory": 1 << 20}
    row = results._judged(engine, answer, [[0.5, 0.5]])
    assert (row["error"], row["wrong"]) == (0.25, True)
    answer = {"tables": [[1.0, 2.0]], "seconds": 0.1, "memory": 1 << 20}
    row = results._judged(engine, answer, 5.0)
    assert (row["value"], row["error"], row["wrong"]) == (2, 0.0, False)


# a folder of files ------------------------------------------------------------------------------


def peers(engine: str) -> files.Peers:
    return (("fake", "numpy", f"{FAKE}:{engine}"),)


@pytest.fixture
def folder(tmp_path):
    tz.write(random_network(0), tmp_path / "n0.bif")
    tz.write(tz.ising_grid(2, seed=0), tmp_path / "grid.uai")
    tz.write(cases.clauses(5, 1.0, 0, True), tmp_path / "some.cnf")
    return tmp_path


def test_files_are_solved_and_checked(folder, monkeypatch):
    for name in ("TABLES", "CLAUSES"):
        monkeypatch.setattr(files, name, peers("honest"))
    log_z = tz.exact(tz.read(folder / "grid.uai")).log_z
    tz.write(log_z, folder / "grid.uai.PR")
    rows = [files.run(path, 10, 2, peers("posteriors")) for path in files.found([str(folder)])]
    assert [row.name for row in rows] == ["grid.uai", "n0.bif", "some.cnf"]
    assert [(row.trouble, row.peer) for row in rows] == [([], "fake")] * 3
    assert max(row.off for row in rows) < 1e-9
    assert rows[1].marginals < 1e-9
    assert rows[0].reference != "-"


def test_files_that_differ_are_trouble(folder, monkeypatch, capsys):
    monkeypatch.setattr(files, "NETWORKS", ())
    assert files.run(folder / "n0.bif", 10, 2, peers("off")).trouble == ["marginals differ"]
    monkeypatch.setattr(files, "TABLES", peers("honest"))
    tz.write(99.0, folder / "grid.uai.PR")
    assert files.run(folder / "grid.uai", 10, 2).trouble == ["the reference is outside"]
    (folder / "none.uai").write_text("MARKOV\n")
    monkeypatch.setenv("PEERS_FILE_SECONDS", "10")
    with pytest.raises(SystemExit, match=r"trouble with none\.uai"):
        files.main(str(folder / "none.uai"))
    assert "1 files, 1 with trouble" in capsys.readouterr().out


@pytest.mark.parametrize("peer", ["pyagrum", "pgmpy"])
def test_an_installed_peer_agrees(peer, folder):
    pytest.importorskip(peer)
    chosen = tuple(row for row in files.NETWORKS if row[1] == peer)
    row = files.run(folder / "n0.bif", 60, 2, chosen)
    assert row.peer != "-"
    assert not row.trouble
    assert row.marginals < 1e-6
