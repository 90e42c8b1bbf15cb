"""The report's content: what is said, what is drawn, what is left out, and from which sources."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tests.naive import enumerate_model
from tightz.bounds import Bound, Proof, Side
from tightz.cli.main import main
from tightz.paper.theorem_run import theorem_run
from tightz.reports import ReportData, report, report_data
from tightz.reports.charts import (
    DIVERGING,
    MAX_DOTS,
    MAX_STEPS,
    SEQUENTIAL,
    caption,
    interval_chart,
    level_chart,
    level_rows,
    png,
    sampled,
)
from tightz.reports.data import LevelTable, Marginals, as_marginals
from tightz.reports.marginal_charts import MAX_BARS, marginal_chart, pictures
from tightz.reports.page import render
from tightz.reports.results import best_confident, joint_confidence
from tightz.reports.sections import MAX_ROWS
from tightz.reports.words import headline, proofs

SURE, LIKELY = Proof.DETERMINISTIC, Proof.CONFIDENCE
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


def lower(value, seconds=1.0, **more):
    return Bound(Side.LOWER, value, SURE, "mean field", seconds, 1.0, "any q", **more)


def upper(value, seconds=1.0):
    return Bound(Side.UPPER, value, SURE, "mini-bucket", seconds, 1.0, "Hoelder")


def confident(value, seconds=1.0, side=Side.LOWER):
    return Bound(side, value, LIKELY, "projections", seconds, 0.95, "a mixture of bets")


def confident_upper(value, seconds=1.0):
    return confident(value, seconds, Side.UPPER)


def both(value, seconds=1.0):
    return Bound(Side.BOTH, value, SURE, "exact", seconds, 1.0, "every state summed")


def data(*bounds, **more):
    return ReportData("model", "log_partition", bounds, seconds=2.0, **more)


class Page(HTMLParser):
    """Element names, attributes, the text people see, and the embedded data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.payload = [], [], [], ""
        self._in = ""
        self.feed(text)
        self.seen = " ".join(" ".join(self.text).split())
        self.data = json.loads(self.payload)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._in = tag if tag in ("script", "style") else ""
        if tag == "script" and dict(attrs).get("id") == "report-data":
            self._in = "data"

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, text):
        if self._in == "data":
            self.payload += text
        elif not self._in:
            self.text.append(text)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (data(both(3.5)), "log Z = 3.50000000, exactly."),
        (data(both(-math.inf)), "The partition function is zero: no state has weight."),
        (data(lower(1.0), lower(2.0), upper(5.0), upper(4.0)), "between 2.000000 and 4.000000"),
        (data(lower(2.0), upper(1.0)), "The ends contradict each other"),
        (data(lower(1.0)), "at least 1.000000; no upper end"),
        (data(upper(1.0)), "at most 1.000000; no lower end"),
        (data(lower(-math.inf), upper(math.inf)), "Nothing is known about log Z yet."),
        (data(estimate=7.0), "estimated at 7.000000; nothing is proven"),
        (data(), "Nothing is known about log Z yet."),
    ],
)
def test_headline_says_what_is_known_and_no_more(shown, words):
    assert words in headline(shown)
    page = Page(render(shown))
    assert words in page.seen
    assert "nan" not in page.seen.lower().split()


def test_confidence_is_told_apart_from_certainty():
    better = data(lower(1.0), confident(2.0), confident_lower=confident(2.0))
    assert "With confidence 0.95 it is at least 2.000000." in headline(better)
    sentence = next(line for line in proofs(better) if "confidence" in line)
    assert "fails with probability at most 0.05" in sentence
    assert "better here" not in sentence
    worse = data(lower(3.0), confident(2.0), confident_lower=confident(2.0))
    assert "confidence" not in headline(worse)
    assert any("The end that holds always is better here" in line for line in proofs(worse))
    assert any("Nothing about it is proven" in line for line in proofs(data(estimate=1.0)))


def test_the_best_of_several_sessions_pays_for_the_choice():
    first, second = confident(2.0), replace(confident(1.0), confidence=0.975)
    assert best_confident([first, confident(3.0)], Side.LOWER) == confident(3.0)
    assert best_confident([second, first], Side.LOWER).log_z == 2.0
    assert joint_confidence([first, confident(3.0), confident_upper(4.0)]) == 0.95
    assert joint_confidence([second, first]) == pytest.approx(1 - 0.05 - 0.025)
    assert best_confident([lower(1.0), confident(2.0)], Side.UPPER) is None
    assert math.isnan(joint_confidence([lower(1.0)]))


def test_three_statements_each_with_its_width():
    bounds = [lower(1.0, 0.5), upper(9.0, 0.6), confident(3.0, 0.7), confident_upper(3.002, 0.8)]
    shown = data(
        *bounds,
        confident_lower=bounds[2],
        confident_upper=bounds[3],
        together=0.95,
        estimate=3.001,
        estimate_error=0.0004,
    )
    page = Page(render(shown))
    for text in (
        "holds always [1.000000, 9.000000] width 8; mean field; mini-bucket",
        "with confidence 0.95, both ends [3.000000, 3.002000] width 0.002; projections",
        "not proven log Z \u2248 3.001000 \u00b1 0.0004",
        "With confidence 0.95 it is at least 3.000000 and at most 3.002000 (width 0.002).",
        "Together, log Z in [3.000000, 3.002000] with confidence 0.95: both ends",
    ):
        assert text in page.seen
    charts = {chart["id"]: chart for chart in page.data["charts"]}
    widths = {s["name"]: s["y"] for s in charts["widths"]["series"]}
    assert widths["always"] == pytest.approx([math.log10(8.0)] * len(widths["always"]))
    assert widths["with confidence"][-1] == pytest.approx(math.log10(0.002))
    near = charts["interval"]["near"]["y"]
    assert 2.99 < near[0] < 3.0 < 3.002 < near[1] < 3.01
    half = data(*bounds[:3], confident_lower=bounds[2], together=0.95)
    seen = Page(render(half)).seen
    assert "[3.000000, 9.000000] width 6; projections; mini-bucket (holds always)" in seen


def test_interrupted_runs_and_notes_are_said():
    seen = Page(render(data(lower(1.0), interrupted=True, notes=["took a rest"]))).seen
    assert "The run was interrupted" in seen
    assert "note: took a rest" in seen


def test_the_page_loads_nothing_and_its_script_is_pinned():
    text = render(data(lower(1.0), upper(2.0)))
    page = Page(text)
    policy = next(v for t, n, v in page.attributes if t == "meta" and n == "content" and "src" in v)
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    for _, name, value in page.attributes:
        if name in ("src", "href"):
            assert value.startswith("data:")
    urls = set(re.findall(r"(?:https?:)?//[a-z][\w.]+\.[a-z]{2,}", text))
    assert urls == {"http://www.w3.org"}  # the SVG namespace, a name and not an address to load


def test_names_and_notes_cannot_inject_html():
    evil = Bound(Side.LOWER, 1.0, SURE, EVIL, 1.0, 1.0, EVIL)
    shown = ReportData(
        EVIL, EVIL, [evil, replace(evil, log_z=2.0, seconds=2.0)], notes=[EVIL], model=EVIL,
        estimate=1.5, estimate_source=EVIL, provenance={EVIL: {"a": EVIL}}, seconds=3.0,
        marginals=Marginals([np.array([0.5, 0.5])], EVIL),
        table=LevelTable(np.array([0, 1]), np.array([[1.0], [2.0]]), EVIL),
    )  # fmt: skip
    text = render(shown)
    page = Page(text)
    assert page.tags.count("script") == 2
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert all(v != "x" for _, name, v in page.attributes if name == "src")
    assert "alert(1)" in page.seen  # shown as text
    assert "<" not in page.payload
    assert page.data["charts"][1]["title"].startswith(EVIL)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lower", "upper", "confident lower", "confident upper"]),
            st.floats(-50, 50) | st.sampled_from([-math.inf, math.inf]),
            st.floats(0, 10),
        ),
        max_size=12,
    )
)
def test_lines_over_time_are_the_best_ends_so_far(records):
    make = {
        "lower": lower,
        "upper": upper,
        "confident lower": confident,
        "confident upper": confident_upper,
    }
    bounds = [make[kind](value, seconds) for kind, value, seconds in records]
    shown = data(*bounds)
    spec = interval_chart(shown)
    render(shown)
    usable = [(k, v, t) for k, v, t in records if math.isfinite(v)]
    if len({t for _, _, t in usable}) < 2:
        assert spec is None
        return
    named = {
        "lower end": "lower",
        "upper end": "upper",
        "lower, confident": "confident lower",
        "upper, confident": "confident upper",
    }
    lines = {named[s["name"]]: s for s in spec["series"] if s["kind"] == "step"}
    for kind, best in (
        ("lower", max), ("upper", min), ("confident lower", max), ("confident upper", min),
    ):  # fmt: skip
        mine = [(t, v) for k, v, t in usable if k == kind]
        assert (kind in lines) == bool(mine)
        for t, y in zip(*(lines[kind][a] if mine else () for a in "xy"), strict=True):
            known = best(v for s, v in mine if float(f"{s:.6g}") <= t)
            assert y == pytest.approx(known, rel=1e-9, abs=1e-300)
    for axis in (spec["view"]["x"], spec["view"]["y"], spec["full"]["y"]):
        assert axis[0] < axis[1]


def test_long_streams_are_thinned_on_the_page():
    bounds = [lower(math.log(k + 1.0), k / 100) for k in range(20_000)]
    shown = data(*bounds)
    line = interval_chart(shown)["series"][0]
    assert len(line["x"]) <= MAX_STEPS
    assert (line["x"][0], line["x"][-1]) == (0.0, 199.99)
    assert line["y"][-1] == pytest.approx(math.log(20_000.0))
    page = Page(render(shown))
    assert f"The latest {MAX_ROWS:,} of 20,000 records" in page.seen
    assert page.tags.count("tr") < MAX_ROWS + 20


def table_of(levels=6, trials=20, seed=0, infeasible=0.2):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(levels, trials)) - np.arange(levels)[:, None]
    values[rng.random(values.shape) < infeasible] = -np.inf
    return LevelTable(np.arange(levels), values)


def test_every_trial_is_a_dot_and_infeasible_draws_are_marked():
    table = table_of()
    shown = data(lower(1.0), table=table)
    series = {s["name"]: s for s in level_chart(shown)["series"]}
    dots = series["one trial"]
    finite = np.isfinite(table.values)
    assert sorted(dots["y"]) == pytest.approx(sorted(table.values[finite].tolist()), rel=1e-6)
    assert np.array_equal(np.rint(dots["x"]), np.nonzero(finite)[0])
    empty = (~finite).sum(axis=1)
    assert series["infeasible draws"]["x"] == np.flatnonzero(empty).tolist()
    assert f"{empty.sum():,} draws are infeasible" in caption(shown)
    assert "Every feasible trial is a dot" in caption(shown)


def test_level_aggregates_count_infeasible_draws():
    table = table_of(trials=7, infeasible=0.4)
    for row, values in zip(level_rows(table), table.values, strict=True):
        ordered = sorted(values.tolist())
        assert row["median"] == ordered[3]
        assert row["best"] == ordered[-1]
        assert row["infeasible"] == ordered.count(-math.inf)
        average = sum(math.exp(v) for v in values) / 7
        assert row["mean"] == pytest.approx(math.log(average) if average else -math.inf)
    half = replace(table, values=np.where(np.arange(7) < 3, table.values, np.nan))
    assert [row["trials"] for row in level_rows(half)] == [3] * 6
    assert f"{half.done} of 42 planned trials were run" in caption(data(table=half))


def test_a_theorem_grade_run_fits_in_a_small_page():
    table = table_of(401, 2140)
    shown = data(lower(1.0), table=table, estimate=1.0)
    text = render(shown)
    assert len(text.encode()) < 2_000_000
    rows, trials = sampled(table)
    assert 401 < rows.size <= MAX_DOTS
    assert "a seeded sample of each level" in caption(shown)
    for i in (0, 200, 400):
        drawn = table.values[i, trials[rows == i]]
        feasible = table.values[i][np.isfinite(table.values[i])]
        assert drawn.max() == feasible.max()
        assert drawn.min() == feasible.min()
    again = sampled(table)
    assert np.array_equal(rows, again[0])
    assert np.array_equal(trials, again[1])
    medians = next(s for s in level_chart(shown)["series"] if s["name"] == "median")
    middle = np.sort(table.values, axis=1)[:, (2140 - 1) // 2]
    assert medians["y"] == pytest.approx(middle.tolist(), rel=1e-6)


def test_a_run_without_a_feasible_trial_is_said():
    nothing = LevelTable(np.arange(3), np.full((3, 4), np.nan))
    assert "No trial was run yet" in Page(render(data(table=nothing))).seen
    empty = LevelTable(np.arange(3), np.full((3, 4), -np.inf))
    assert "No trial of this run is feasible" in Page(render(data(table=empty))).seen


def decoded(address):
    """(rows, cols, palette indices) of a PNG written by `png`."""
    raw = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    cols, rows = (int.from_bytes(raw[i : i + 4], "big") for i in (16, 20))
    at, packed = 8, b""
    while at < len(raw):
        size, kind = int.from_bytes(raw[at : at + 4], "big"), raw[at + 4 : at + 8]
        body = raw[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == int.from_bytes(raw[at + 8 + size : at + 12 + size], "big")
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    lines = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(rows, cols + 1)
    assert not lines[:, 0].any()
    return lines[:, 1:]


def test_pictures_hold_the_values():
    values = np.array([[0.0, 0.5, 1.0], [np.nan, 2.0, -1.0]])
    assert decoded(png(values, 0.0, 1.0, SEQUENTIAL)).tolist() == [[0, 127, 254], [255, 254, 0]]
    assert decoded(png(np.zeros((1, 1)), 0.0, 0.0, DIVERGING)).tolist() == [[0]]


def test_marginals_are_a_picture_bars_or_a_histogram():
    grid = tz.ising_grid(3, 4, seed=0)
    exact = tz.exact(grid)
    shown = report_data(exact).marginals
    [(title, picture, _)] = pictures(shown)
    assert title == "P(state 1)"
    np.testing.assert_allclose(picture.ravel(), [p[1] for p in exact.marginals])
    assert marginal_chart(shown) is None  # every variable is a pixel
    assert picture.shape == (3, 4)
    plain = as_marginals(exact.marginals, "exact")
    assert plain.shape is None
    bars = marginal_chart(plain)["series"][0]
    assert bars["y"] == sorted(bars["y"], reverse=True)
    assert len(bars["y"]) == 12
    many = as_marginals(np.random.default_rng(0).dirichlet([1, 1], size=MAX_BARS + 50), "x")
    assert sum(marginal_chart(many)["series"][0]["y"]) == MAX_BARS + 50
    potts = as_marginals(tz.exact(tz.potts_grid(2, states=3, seed=0)).marginals, "x", shape=(2, 2))
    assert [one.title for one in pictures(potts)] == ["P(state 0)", "P(state 1)", "P(state 2)"]
    units = as_marginals(
        np.full((19, 2), 0.5), "x", model=tz.rbm(np.ones((16, 3)), [0] * 16, [0] * 3)
    )
    assert units.shape == (4, 4)
    assert len(marginal_chart(units)["series"][0]["y"]) == 3


def test_marginals_that_do_not_exist():
    seen = Page(render(data(both(-math.inf), marginals=Marginals([np.full(2, np.nan)], "none"))))
    assert "Some do not exist" in seen.seen


GRID = tz.ising_grid(3, coupling=(-2, 2), seed=1)


def test_an_interval_becomes_a_page(tmp_path):
    result = tz.log_partition(GRID, time_limit=5, seed=0)
    path = report(result, tmp_path / "r.html")
    page = Page(path.read_text(encoding="utf-8"))
    exact = enumerate_model(GRID.cardinalities, list(GRID.factors))[0]
    assert f"log Z = {exact:.8f}, exactly." in page.seen
    assert GRID.digest in page.seen
    assert "P(state 1)" in page.seen
    assert "3 x 3 grid: 9 variables of 2 states" in page.seen
    assert page.data["pictures"][0]["rows"] == 3
    titled = report(result, tmp_path / "t.html", title="my <run>")
    assert "<title>my &lt;run&gt;: log Z report</title>" in titled.read_text(encoding="utf-8")


def test_a_table_of_trials_becomes_a_page():
    e = tz.estimate(GRID, projections=tz.Projections(collapse=0), levels=range(4), trials=6, seed=0)
    shown = report_data(e, model=GRID)
    assert shown.confident_lower.log_z == e.certificate(0.05).log_z
    np.testing.assert_array_equal(shown.table.values, e.log_g)
    assert shown.marginals.shape == (3, 3)
    page = Page(render(shown))
    assert "Theorem 1" in page.seen
    assert "this run has 6" in page.seen
    assert "is not established" in page.seen
    assert "did not hold : every level m = 0..9 was run" in page.seen
    assert {"levels"} == {chart["id"] for chart in page.data["charts"]}


def test_theorem_two_and_the_band_of_wish():
    w = tz.wish(GRID, trials=8, seed=0)
    shown = report_data(w)
    low, high = (b.log_z for b in w.band)
    assert (shown.confident_lower.log_z, shown.confident_upper.log_z) == (low, high)
    seen = Page(render(shown)).seen
    assert "Theorem 2" in seen
    assert "held : every I-projection is a proven global optimum" in seen
    assert f"at most {high:.6f}" in seen


def test_a_theorem_run_states_its_own_certificate(tmp_path):
    small = tz.ising_grid(2, seed=0)
    run = theorem_run(
        small,
        projections=tz.Projections.as_printed(restarts=2),
        trials=30,
        seed=0,
        store=tmp_path / "theorem.db",
    )
    for shown in (report_data(run, model=small), report_data(tmp_path / "theorem.db")):
        assert shown.confident_lower.log_z == run.certificate.log_z
        assert shown.method == "theorem"
        assert shown.table.planned == 150
        seen = Page(render(shown)).seen
        assert "at least 1,044 trials at every level; this run has 30" in seen
        assert "held : every level m = 0..4 was run" in seen


def test_the_json_record_of_a_theorem_run(tmp_path):
    tz.write(tz.ising_grid(2, seed=0), tmp_path / "g.uai")
    arguments = ["theorem", str(tmp_path / "g.uai"), "--trials", "5", "--json"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    (tmp_path / "run.json").write_text(done.stdout)
    shown = report_data(tmp_path / "run.json")
    lower = next(b for b in shown.bounds if b.proof is Proof.DETERMINISTIC)
    assert lower.log_z == pytest.approx(told["lower"])
    assert shown.confident_lower.log_z == pytest.approx(told["certificate"]["log_z"])
    assert shown.confident_lower.confidence == told["certificate"]["confidence"]


def test_a_theorem_that_holds_gives_an_upper_end():
    pair = tz.ising({(0, 1): 0.7}, [0.2, -0.4])
    e = tz.estimate(
        pair,
        projections=tz.Projections(collapse=0, search_sweeps=0),
        trials=tz.required_trials(2, 0.05),
        family=tz.ExactPointMass(),
        seed=0,
    )
    shown = report_data(e, model=pair)
    second = e.theorem_2(0.05)
    assert second.upper_holds
    assert shown.confident_upper.log_z == second.upper
    text = headline(shown)
    # the certificate's 0.05 and the theorem's 0.05 add up
    low = f"{shown.confident_lower.log_z:.6f}"
    assert f"With confidence 0.9 it is at least {low} and at most" in text
    exact = enumerate_model(pair.cardinalities, list(pair.factors))[0]
    assert shown.confident_lower.log_z <= exact <= second.upper
    assert "is not established" not in Page(render(shown)).seen.partition("Theorem 2")[2]


def layer(model):
    return tz.mean_field(model, family=tz.LayerMeanField())


@pytest.mark.parametrize(
    "run",
    [tz.exact, tz.mean_field, tz.ais, tz.bethe, tz.upper_bound, layer],
    ids=lambda run: run.__name__,
)
def test_any_result_with_a_bound_becomes_a_page(run):
    result = run(GRID)
    shown = report_data(result, model=GRID)
    page = Page(render(shown))
    assert f"{result.log_z:.6f}" in page.seen
    estimate = result.bound.side is Side.ESTIMATE
    assert (shown.estimate is not None) == estimate
    assert len(shown.bounds) == (0 if estimate else 1)


def invoke(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture
def grid_file(tmp_path):
    path = tmp_path / "grid.uai"
    tz.write(GRID, path)
    return path


@pytest.mark.parametrize(
    "command",
    [
        ["logz", "-T", "5"],
        ["mfrp", "--levels", "0:3", "-t", "4"],
        ["mean-field"],
        ["exact"],
        ["upper"],
        ["ais", "--chains", "16", "--temperatures", "50"],
        ["wish", "-t", "5"],
        ["marginals"],
    ],
    ids=lambda command: command[0],
)
def test_json_records_become_pages(command, grid_file, tmp_path):
    out = invoke(command[0], grid_file, *command[1:], "--json")
    assert out.exit_code == 0, out.stderr
    record = tmp_path / "run.json"
    record.write_text(out.stdout)
    page_file = tmp_path / "page.html"
    done = invoke("report", record, "-o", page_file, "--model", grid_file, "--shape", "3x3")
    assert done.exit_code == 0, done.output
    page = Page(page_file.read_text(encoding="utf-8"))
    told = json.loads(out.stdout)
    for key in ("lower", "upper", "log_z"):
        if isinstance(told.get(key), float):
            assert f"{told[key]:.6f}" in page.seen
    if command[0] == "mfrp":
        e = tz.estimate(
            GRID,
            projections=tz.Projections(collapse=0, search_sweeps=0, restarts=8),
            levels=range(4),
            trials=4,
            seed=0,
        )
        shown = report_data(record)
        np.testing.assert_allclose(shown.table.values, e.log_g, rtol=1e-12)
        assert shown.confident_lower.log_z == e.certificate(0.05).log_z
    if told.get("marginals"):
        assert page.data["pictures"]


def test_what_to_json_wrote_becomes_a_page(tmp_path):
    result = tz.log_partition(GRID, time_limit=5, seed=0)
    (tmp_path / "r.json").write_text(result.to_json())
    ours, theirs = report_data(tmp_path / "r.json"), report_data(result)
    assert ours.bounds == theirs.bounds
    assert ours.estimate == theirs.estimate
    np.testing.assert_array_equal(ours.marginals.vectors, theirs.marginals.vectors)


def test_zero_partition_function_from_a_record(tmp_path):
    (tmp_path / "zero.uai").write_text("MARKOV\n1\n2\n1\n1 0\n\n2\n0 0\n")
    record = tmp_path / "zero.json"
    record.write_text(invoke("logz", tmp_path / "zero.uai", "--json").stdout)
    assert invoke("report", record, "-o", tmp_path / "z.html").exit_code == 0
    assert "The partition function is zero" in (tmp_path / "z.html").read_text(encoding="utf-8")


def test_the_command_says_what_is_wrong_in_one_line(tmp_path):
    for args, message in (
        (["report", tmp_path / "none.db"], "no such file"),
        (["report", tmp_path / "none.db", "--shape", "3by3"], "shape is '3by3'; expected rows"),
    ):
        result = invoke(*args)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    text = invoke("report", "--help").stdout
    assert "Example: tightz" in text


def test_a_stored_interval_becomes_a_page(tmp_path):
    store = tmp_path / "run.db"
    result = tz.log_partition(GRID, time_limit=5, seed=0, store=store)
    shown = report_data(store)
    assert [(b.side, b.log_z, b.method) for b in shown.bounds] == [
        (b.side, b.log_z, b.method) for b in result.bounds
    ]
    assert shown.marginals.shape == (3, 3)
    assert not shown.interrupted
    page = Page(render(shown))
    assert f"log Z = {result.lower:.8f}, exactly." in page.seen
    assert GRID.digest in page.seen
    assert "session 1" in page.seen


def test_a_run_that_still_goes_on_can_be_read(tmp_path):
    seen = []

    def look(_):
        seen.append(report_data(tmp_path / "run.db"))

    tz.log_partition(GRID, time_limit=5, seed=0, store=tmp_path / "run.db", on_bound=look)
    assert any("has no end in order (killed or still running)" in note for note in seen[0].notes)
    assert len(seen[-1].bounds) > len(seen[0].bounds)
    assert repr(seen[0]) == "ReportData('run.db', log_partition, 1 bounds)"
    render(seen[0])


def test_a_stored_table_becomes_a_page_whole_or_cut_short(tmp_path):
    e = tz.estimate(
        GRID,
        projections=tz.Projections(collapse=0),
        levels=range(4),
        trials=100,
        seed=0,
        store=tmp_path / "whole.db",
    )
    shown = report_data(tmp_path / "whole.db", model=GRID)
    np.testing.assert_array_equal(shown.table.values, e.log_g)
    assert shown.table.planned == 400
    assert [s.theorem for s in shown.statements] == ["Theorem 1"]
    assert "400 trials." in Page(render(shown)).seen

    class Stop(KeyboardInterrupt):
        pass

    def stop(_):
        raise Stop

    with pytest.raises(Stop):
        tz.estimate(
            GRID,
            projections=tz.Projections(collapse=0),
            levels=range(4),
            trials=100,
            seed=0,
            on_batch=stop,
            store=tmp_path / "cut.db",
        )
    cut = report_data(tmp_path / "cut.db")
    assert 0 < cut.table.done < 400
    assert cut.interrupted
    np.testing.assert_array_equal(cut.table.values, e.log_g[:, : cut.table.values.shape[1]])
    assert f"{cut.table.done} of 400 planned trials were run" in Page(render(cut)).seen
