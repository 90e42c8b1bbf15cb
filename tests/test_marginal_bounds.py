"""Ends of marginals as people see them: values inside, names, tables, stores, pages."""

from __future__ import annotations

import csv
import json
import math
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.precise import precise_log_z
from tests.strategies import binary_models, models_with_zeros
from tightz.cli.main import main
from tightz.interval import marginal_bounds as marginal_bounds_module
from tightz.interval import query
from tightz.interval.board import Board
from tightz.interval.log_partition import log_partition
from tightz.interval.marginal_bounds import marginal_bounds
from tightz.interval.streams.spins import plain_mean_field
from tightz.interval.streams.states import blocks
from tightz.models.ends import nearest, width
from tightz.reports import notebook
from tightz.reports.data import as_marginals
from tightz.reports.marginal_charts import ends_chart, marginal_chart, pictures
from tightz.reports.page import report_data
from tightz.runtime.clock import Clock
from tightz.runtime.store import RunReader
from tightz.sampling.annealed import annealed
from tightz.sampling.capped.stream import capped
from tightz.workspace.findings import Mixing
from tightz.workspace.working import Working

WAYS = {
    "exact": {},
    "all": {"exact": False},
    "mean field": {"only": [plain_mean_field]},
    "blocks": {"only": [blocks]},
    "annealing": {"only": [annealed]},
    "capped draws": {"only": [capped], "exact": False},
    "nothing": {"only": []},
}


def inside(values, ends):
    return all(((e[:, 0] <= q) & (q <= e[:, 1])).all() for q, e in zip(values, ends, strict=True))


def cancelling(size: float, n: int) -> tz.FactorGraph:
    """Three tables of numbers of this size on one pair that cancel; all pairs have one more."""
    rng = np.random.default_rng(1)
    a, b = size * rng.normal(size=(2, 2, 2))
    pairs = [((i, j), rng.normal(size=(2, 2))) for i in range(n) for j in range(i + 1, n)]
    tables = [a, b, rng.normal(size=(2, 2)) - (a + b)]
    return tz.FactorGraph([2] * n, [((0, 1), table) for table in tables] + pairs)


@pytest.mark.parametrize("n", [2, 4])  # summed by the reductions, and by elimination
@pytest.mark.parametrize("size", [1.0, 1e9, 1e12, 1e15])
def test_what_is_summed_says_what_rounding_leaves_of_it(size, n):
    model = cancelling(size, n)
    r = tz.log_partition(model, time_limit=5.0, seed=0)
    truth = precise_log_z(model)
    assert r.is_exact
    assert abs(Decimal(r.estimate) - truth) <= Decimal(r.estimate_error)
    assert r.estimate_error == r.lower_proof.rounding
    clamped = [[precise_log_z(model.with_evidence({v: s})) for s in (0, 1)] for v in range(n)]
    shares = [np.array([float((log - truth).exp()) for log in logs]) for logs in clamped]
    assert inside(shares, r.marginal_bounds)
    if size <= 1e9:
        assert r.marginal_status is Mixing.EXACT
        assert width(r.marginal_bounds).max() < 0.01
    else:
        assert r.marginal_status is not Mixing.EXACT
        assert "marginals: " in r.summary()


@settings(max_examples=40, deadline=None)
@given(
    st.one_of(binary_models(max_variables=6), models_with_zeros(max_variables=5)),
    st.sampled_from(sorted(WAYS)),
    st.integers(0, 2**32),
)
def test_values_lie_inside_their_ends_whatever_the_method(model, way, seed):
    r = tz.log_partition(model, time_limit=0.3, seed=seed, **WAYS[way])
    always, likely = r.marginal_bounds, r.confident.marginal_bounds
    for wide, narrow in zip(always, likely, strict=True):
        assert ((wide[:, 0] <= narrow[:, 0]) & (narrow[:, 1] <= wide[:, 1])).all()
        assert ((wide >= 0.0) & (wide <= 1.0)).all()
    _, right = naive.enumerate_model(model.cardinalities, list(model.factors), model.evidence)
    if r.upper > -math.inf:
        for p, ends in zip(right, always, strict=True):
            assert (ends[:, 0] <= p + 1e-12).all()
            assert (p <= ends[:, 1] + 1e-12).all()
        if r.marginals is not None:
            assert inside(r.marginals, always)
            assert inside(r.marginals, likely)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_the_nearest_distribution_is_one_and_lies_inside(seed):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 6))
    right, q = rng.dirichlet(np.ones(k), size=2)
    low = np.maximum(0.0, right - rng.random() * rng.random(k))
    ends = np.stack([low, np.minimum(1.0, right + rng.random() * rng.random(k))], axis=1)
    found = nearest(q, ends)
    assert inside([found], [ends])
    assert found.sum() == pytest.approx(1.0, abs=1e-9)
    if inside([q], [ends]):
        np.testing.assert_array_equal(found, q)


GRID = tz.ising_grid(4, coupling=(-1, 1), field=(-0.5, 0.5), seed=2)
NAMED = GRID.with_names([f"v{k}" for k in range(16)], [("down", "up")] * 16)


DRAWN = {"time_limit": 2.0, "only": [capped], "exact": False}
"""Of a run whose ends are drawn: no sum of everything, no tree."""


@pytest.fixture(scope="module")
def drawn():
    found = tz.log_partition(NAMED, seed=0, **DRAWN)
    assert width(found.confident.marginal_bounds).max() < 1.0
    return found


def only_drawn(*args, **options):
    return log_partition(*args, **(options | DRAWN))


def test_ends_by_name(drawn):
    always, likely = drawn.marginal_bound("v3"), drawn.marginal_bound("v3", confident=True)
    assert list(always) == list(likely) == ["down", "up"]
    for state, (low, high) in likely.items():
        assert low <= drawn.marginal("v3")[state] <= high
        assert high - low < 1.0
        assert always[state][0] <= low <= high <= always[state][1]
    exact = tz.exact(NAMED)
    (low, high), p = exact.marginal_bound("v3")["up"], exact.marginal("v3")["up"]
    assert low < p < high < low + 1e-9
    assert exact.marginal_bound(3, confident=True) == exact.marginal_bound("v3")
    pytest.importorskip("pandas")
    frame = drawn.to_dataframe()
    assert (frame.lower <= frame.confident_lower).all()
    assert (frame.confident_lower <= frame.probability).all()
    assert (frame.probability <= frame.confident_upper).all()
    assert (frame.confident_upper <= frame.upper).all()


def test_a_query_that_is_not_summed_has_the_ends_of_the_run(monkeypatch):

    monkeypatch.setattr(query, "log_partition", only_drawn)
    asked = tz.query(NAMED, ["v1", "v2"], time_limit=1.5, seed=0)
    for name in ("v1", "v2"):
        for state, (low, high) in asked.marginal_bound(name, confident=True).items():
            assert 0.0 < low <= asked[name][state] <= high < 1.0
    assert "likely in [" in asked.summary()
    assert "with confidence 0.95, all together" in asked.summary()


def test_many_exact_posteriors_have_ends_from_rounding():
    model = tz.ising_grid(6, seed=1)
    asked = tz.query(model, time_limit=20, seed=0)
    right = tz.exact(model).marginals
    for v in (0, 35):
        for p, (low, high) in zip(right[v], asked.marginal_bound(v).values(), strict=True):
            assert low <= p <= high < low + 1e-9


def run(*arguments):
    done = CliRunner().invoke(main, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_commands_show_both_kinds_of_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(tz, "log_partition", only_drawn)
    tz.write(GRID, tmp_path / "grid.uai")
    path = tmp_path / "grid.uai"
    lines = run("marginals", path).splitlines()
    assert lines[0].startswith("# draws under a mini-bucket cap")
    assert "with confidence 0.95 for all variables together" in lines[0]
    assert lines[1].split() == ["variable", "state", "value", "always", "with", "confidence"]
    assert len(lines) >= 2 + 32
    assert lines[2].count("[") >= 1
    bounds = tmp_path / "b.csv"
    told = json.loads(run("marginals", path, "--json", "--bounds", bounds))
    always, likely = told["marginal_bounds"], told["confident"]["marginal_bounds"]
    value = told["marginals"]
    rows = list(csv.DictReader(bounds.read_text().splitlines()))
    assert len(rows) == 32
    for row in rows:
        v, s = row["variable"], row["state"]
        assert [float(row["lower"]), float(row["upper"])] == always[v][s]
        assert [float(row["confident_lower"]), float(row["confident_upper"])] == likely[v][s]
        assert likely[v][s][0] <= value[v][s] <= likely[v][s][1]
        assert float(row["value"]) == value[v][s]
    prefix = tmp_path / "out"
    record = json.loads(run("logz", path, "--json", "--uai-output", prefix))
    assert (tmp_path / "out.MAR.csv").read_text().count("\n") == 33
    (tmp_path / "r.json").write_text(json.dumps(record))
    shown = report_data(tmp_path / "r.json").marginals
    assert np.shape(shown.always) == (16, 2, 2)
    for ends, told in ((shown.always, record), (shown.confident, record["confident"])):
        listed = [list(states.values()) for states in told["marginal_bounds"].values()]
        np.testing.assert_array_equal(ends, listed)


def test_json_of_ends_is_keyed_by_names(tmp_path):
    net = tz.FactorGraph(
        [2, 2], [((0,), np.log([0.4, 0.6])), ((1, 0), np.log([[0.1, 0.5], [0.9, 0.5]]))],
        names=("a", "b"), states=(("no", "yes"), ("no", "yes")),
    )  # fmt: skip
    tz.write(net, tmp_path / "n.xml")
    for command in ("marginals", "logz"):
        told = json.loads(run(command, tmp_path / "n.xml", "--json"))
        low, high = told["marginal_bounds"]["a"]["yes"]
        assert low <= told["marginals"]["a"]["yes"] <= high
        assert told["confident"]["marginal_bounds"]["a"]["yes"] == [low, high]
    told = json.loads(run("query", tmp_path / "n.xml", "--json"))["posteriors"]["b"]
    low, high = told["bounds"]["yes"]
    assert low <= told["probabilities"]["yes"] <= high
    assert told["confident_bounds"]["yes"] == [low, high]


def test_a_store_keeps_ends_and_a_resumed_run_starts_from_those_that_hold_always(tmp_path):
    path = tmp_path / "run.db"
    exact = tz.log_partition(NAMED, seed=0, store=path)
    assert width(exact.marginal_bounds).max() < 1e-9
    with RunReader(path) as reader:
        answer = reader.answer()
    for stored, told in zip(answer.always, exact.marginal_bounds, strict=True):
        np.testing.assert_array_equal(stored, told)
    shown = report_data(path).marginals
    assert inside(shown.vectors, shown.always)
    again = tz.log_partition(NAMED, seed=0, store=path, resume=True)
    for now, before in zip(again.marginal_bounds, exact.marginal_bounds, strict=True):
        assert (now[:, 0] >= before[:, 0]).all()
        assert (now[:, 1] <= before[:, 1]).all()
    assert inside(again.marginals, again.marginal_bounds)


def test_confident_ends_of_an_earlier_session_are_not_carried_over(tmp_path):
    path = tmp_path / "run.db"
    first = tz.log_partition(NAMED, seed=0, store=path, **DRAWN)
    assert width(first.confident.marginal_bounds).max() < 1.0
    with RunReader(path) as reader:
        answer = reader.answer()
    for stored, told in zip(answer.confident, first.confident.marginal_bounds, strict=True):
        np.testing.assert_array_equal(stored, told)

    clock = Clock(1.0)
    working = Working(NAMED, clock, 0.05, np.random.SeedSequence(0), True, 10**9)
    board = Board(clock)
    board.earlier = answer.always
    ends = marginal_bounds(working, board)
    for now, before in zip(ends.confident, answer.always, strict=True):
        np.testing.assert_array_equal(now, before)
    board.earlier = [np.tile([2.0, 2.0], (2, 1))] * 16  # contradicts that they are shares
    assert (np.array(marginal_bounds(working, board).always) == [0.0, 1.0]).all()
    assert board.notes[-1].startswith("DEFECT: ends of 16 marginals contradict")


def test_reports_draw_an_error_bar_for_each_variable_and_the_widths_on_grids(tmp_path):
    r = tz.log_partition(GRID, seed=0, **DRAWN)
    shown = report_data(r).marginals
    chart = marginal_chart(shown)
    wide, narrow, dots = chart["series"]
    assert [s["name"] for s in (wide, narrow)] == ["holds always", "with confidence 0.95"]
    values = np.array([p[1] for p in r.marginals])
    order = np.argsort(-values, kind="stable")
    np.testing.assert_allclose(dots["y"], values[order], atol=1e-5)
    for series, ends in ((wide, r.marginal_bounds), (narrow, r.confident.marginal_bounds)):
        np.testing.assert_allclose(series["y"], np.array(ends)[order, 1, 0], atol=1e-5)
        np.testing.assert_allclose(series["y2"], np.array(ends)[order, 1, 1], atol=1e-5)
    value, always, likely = pictures(shown)
    assert value.title == "P(state 1)"
    np.testing.assert_array_equal(always.values.ravel(), width(r.marginal_bounds))
    np.testing.assert_array_equal(likely.values.ravel(), width(r.confident.marginal_bounds))
    assert likely.top == likely.values.max()
    page = tz.report(r, tmp_path / "r.html").read_text()
    assert "width of the ends, with confidence 0.95" in page
    assert "Probabilities and their ends" in page
    cell = notebook.result_html(r)
    assert cell.count("<img") == 3
    assert "dark: with confidence 0.95" in cell
    assert "<img" not in notebook.result_html(tz.log_partition(GRID, seed=0))  # exact: no width


def test_many_error_bars_are_thinned():
    p = np.random.default_rng(0).random(1000)
    ends = [np.array([[0.0, 1.0], [0.0, 1.0]])] * 1000
    many = as_marginals(np.stack([1 - p, p], axis=1), "x", ends=(ends, ends), confidence=0.95)
    chart = ends_chart(many, 300)
    assert len(chart["series"]) == 2  # nothing is said with confidence only
    assert len(chart["series"][0]["x"]) == 250
    assert "one in 4 of them" in chart["title"]


def test_draws_of_a_device_bet_on_marginals_by_themselves(monkeypatch):
    """They come beside those of the cores, in an order that draws may decide: sums of both bets
    would not do. Without a device there are none, so what is asked of `bounded` is looked at."""
    working = Working(tz.ising_grid(3, coupling=(-1, 1), seed=0), exact=False)
    board, asked = Board(working.clock), []
    board.shares = {t: SimpleNamespace(track=t) for t in ("glance 1", "wide 1", "mini-bucket")}

    def bounded(shares, *rest):
        asked.append([each.track for each in shares])
        return np.tile([0.0, 1.0], (int(working.graph.cardinalities.sum()), 1))

    monkeypatch.setattr(marginal_bounds_module, "bounded", bounded)
    marginal_bounds(working, board)
    assert asked == [["glance 1", "mini-bucket"], ["wide 1"]]
