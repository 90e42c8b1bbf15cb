"""Notebook manners: small escaped HTML in the words of summary(), and progress in place."""

from __future__ import annotations

import inspect
import io
import math
import subprocess
import sys
import typing
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

import tightz as tz
from tightz.bounds import Bound, Proof, Side
from tightz.cli.live import live_bounds
from tightz.reports import notebook
from tightz.reports.progress import Progress, in_notebook
from tightz.results import Result

GRID = tz.ising_grid(3, coupling=(-2, 2), seed=1)


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, text):
        self.text += text


RESULTS = {
    "LogPartition": lambda: tz.log_partition(GRID, time_limit=5, seed=0),
    "Estimate": lambda: tz.estimate(
        GRID, projections=tz.Projections(collapse=0), levels=range(3), trials=2, seed=0
    ),
    "WishResult": lambda: tz.wish(GRID, trials=4, seed=0),
    "MiniBucketResult": lambda: tz.upper_bound(GRID, method=tz.MiniBucket(ibound=2)),
    "TreeReweightedResult": lambda: tz.upper_bound(GRID, method=tz.TreeReweighted()),
    "AisResult": lambda: tz.ais(GRID, chains=8, temperatures=20, seed=0),
    "BetheResult": lambda: tz.bethe(GRID),
    "SplittingResult": lambda: tz.split(GRID, time_limit=30, seed=0),
    "MeanFieldResult": lambda: tz.mean_field(GRID, seed=0),
    "ExactResult": lambda: tz.exact(GRID),
    "FreeEnergy": lambda: tz.free_energy(GRID, [1.0, 2.0], time_limit=60, seed=0),
    "CosetSum": lambda: tz.coset_sum(GRID, 2, seed=0),
    "TheoremRun": lambda: tz.theorem_run(GRID, levels=[0, 1], trials=3, seed=0, threads=1),
    "Forecast": lambda: tz.theorem_forecast(GRID, levels=[0, 1], trials=3, seed=0, threads=1),
    "GroundState": lambda: tz.ground_state(GRID, seed=0),
    "RbmTraining": lambda: tz.train_rbm(np.eye(4), tz.Training(hidden=2, k=1, epochs=2), seed=0),
    "MeanFieldResult of clusters": lambda: tz.mean_field(
        GRID, family=tz.StructuredMeanField(width=2), seed=0
    ),
    "LayerResult": lambda: tz.mean_field(GRID, family=tz.LayerMeanField(), seed=0),
    "MeanFieldResult of blocks": lambda: tz.mean_field(GRID, family=tz.BlockMeanField(), seed=0),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_share_one_protocol_and_one_set_of_words(name):
    result = RESULTS[name]()
    kind = name.split()[0]
    assert type(result).__name__ == kind
    assert isinstance(result, Result)
    text = result._repr_html_()
    assert len(text) < 5_000
    shown = Tags(text)
    assert set(shown.tags) == {"div", "strong", "pre"}
    assert shown.text.startswith(kind)
    assert result.summary() in shown.text
    assert "\n" not in repr(result)
    assert isinstance(result.bounds, list)
    assert all(isinstance(bound, Bound) for bound in result.bounds)
    assert bool(result.bounds) == (kind not in ("Forecast", "RbmTraining"))
    assert isinstance(result.seconds, float)
    assert {"tightz", "versions"} & set(result.provenance)
    for end in ("lower", "upper", "log_z", "estimate"):
        assert isinstance(getattr(result, end, 0.0), float), end
    for end, proof in (("lower", "lower_proof"), ("upper", "upper_proof")):
        if hasattr(result, end) and math.isfinite(getattr(result, end)):
            assert isinstance(getattr(result, proof), Bound)
            exact = tz.exact(GRID).log_z
            assert kind == "WishResult" or (result.lower <= exact + 1e-9)
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("agg")
    ax = result.plot()
    assert result.plot(ax=ax) is ax
    matplotlib.pyplot.close("all")


def test_every_public_function_returns_a_result():
    """What speaks of log Z derives from Result, so that one way to look at it serves for all."""
    plain = {"read", "write", "required_trials", "load_mnist", "report", "to_ising", "to_qubo"} | {
        "noisy_or",  # factors, for a FactorGraph
        "sample",  # states
        "sweep",  # rows, each with what is said of it
        "to_pgmpy",  # a network of another library
    }
    for name in tz.__all__:
        made = getattr(tz, name)
        if name in plain or not inspect.isfunction(made):
            continue
        own = inspect.unwrap(made)  # only what it returns: arguments may name what loads late
        returned = eval(own.__annotations__["return"], own.__globals__)
        kinds = typing.get_args(returned) or (returned,)
        assert all(issubclass(kind, Result | tz.FactorGraph) for kind in kinds), name


def test_no_colours_of_its_own():
    """A cell takes the notebook's theme: nothing sets a colour or loads anything."""
    for text in (GRID._repr_html_(), tz.mean_field(GRID, seed=0)._repr_html_()):
        for word in ("#fff", "#000", "rgb(", "http", "<script", "<style"):
            assert word not in text.lower().replace("data:image/png", "")
        assert "color: inherit" in text


def test_long_summaries_are_cut_in_the_middle(monkeypatch):
    monkeypatch.setattr(notebook, "SHOWN_LINES", 4)
    e = tz.estimate(GRID, projections=tz.Projections(collapse=0), levels=range(8), trials=2, seed=0)
    text = unescape(e._repr_html_())
    lines = e.summary().splitlines()
    assert f"... {len(lines) - 4} lines" in text
    assert lines[0] in text
    assert lines[-1] in text
    assert lines[4] not in text


def test_bounds_say_what_they_are():
    bound = Bound(Side.LOWER, 3.25, Proof.CONFIDENCE, "projections", 1.0, 0.95, "bets < stakes")
    text = unescape(Tags(bound._repr_html_()).text)
    assert "log Z >= 3.250000   (with confidence 0.95: projections)" in text
    assert "bets < stakes" in text
    nothing = Bound(Side.UPPER, np.inf, Proof.DETERMINISTIC, "nothing yet", confidence=1.0)
    assert "log Z <= infinity   (holds always: nothing yet)" in unescape(nothing._repr_html_())
    guess = Bound(Side.ESTIMATE, 1.0, Proof.NONE, "ais")
    assert "(estimate, not proven: ais)" in guess._repr_html_()
    mean = Bound(Side.LOWER, 1.0, Proof.IN_EXPECTATION, "ais")
    assert "(holds in expectation only: ais)" in mean._repr_html_()


def test_models_show_kind_sizes_and_the_lattice():
    text = GRID._repr_html_()
    shown = Tags(text)
    assert "3 x 3 grid: 9 variables of 2 states, 21 factors of arity up to 2" in shown.text
    assert shown.tags.count("img") == 1
    torus = tz.ising_grid(3, seed=0, periodic=True)
    assert "3 x 3 torus" in torus._repr_html_()
    rbm = tz.rbm(np.ones((4, 3)), np.zeros(4), np.zeros(3))
    assert "two layers of 4 and 3: 7 variables" in rbm._repr_html_()
    assert "<img" not in rbm._repr_html_()
    observed = tz.FactorGraph([2, 3], [([0, 1], np.zeros((2, 3)))], evidence={0: 1})
    assert "2 variables of up to 3 states, 1 factors of arity up to 2, 1 observed" in (
        observed._repr_html_()
    )
    assert "0 variables of no states" in tz.FactorGraph([])._repr_html_()
    large = tz.ising_grid(120, seed=0)
    assert len(large._repr_html_()) < 100_000


def test_the_lattice_holds_couplings_and_fields():
    model = tz.ising_grid(2, 3, coupling=(-2, 2), seed=3)
    lattice = notebook._lattice(model)
    assert lattice.shape == (3, 5)
    for scope, table in model.factors:
        if len(scope) == 1:
            row, col = divmod(scope[0], 3)
            assert lattice[2 * row, 2 * col] == pytest.approx(table[0])
        else:
            (r0, c0), (r1, c1) = (divmod(v, 3) for v in scope)
            assert lattice[r0 + r1, c0 + c1] == pytest.approx(table[0, 0])
    assert np.isnan(lattice[1, 1])
    zeros = tz.FactorGraph([2, 2], [([0, 1], [[0.0, -np.inf], [-np.inf, 0.0]])])
    zeros.layout = type(model.layout)(1, 2)
    assert "<img" in zeros._repr_html_()


def test_names_cannot_inject_html():
    model = tz.FactorGraph([2], [([0], [0.0, 1.0])], name="<script>alert(1)</script>")
    shown = Tags(model._repr_html_())
    assert "script" not in shown.tags
    assert "<script>alert(1)</script>" in shown.text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_rewrites_one_line_on_a_terminal():
    out = Terminal()
    result = tz.log_partition(GRID, time_limit=5, seed=0, on_bound=Progress(stream=out))
    text = out.getvalue()
    assert text.count("\n") == 1
    assert text.endswith(f"log Z = {result.lower:.6f} (exact)\n")


def test_progress_of_trials_and_of_an_open_interval():
    out = Terminal()
    with Progress(total=8, stream=out) as show:
        e = tz.estimate(
            GRID,
            projections=tz.Projections(collapse=0),
            levels=[0, 1],
            trials=4,
            seed=0,
            on_batch=show,
        )
    assert f"8 of 8 trials (100%), log Z >= {e.lower:.4f}" in out.getvalue()
    log = io.StringIO()
    show = Progress(stream=log)
    show(Bound(Side.LOWER, 1.0, Proof.DETERMINISTIC, "a"))
    show(Bound(Side.UPPER, 3.0, Proof.DETERMINISTIC, "b"))
    assert log.getvalue().count("\n") == 1  # a log file gets a line now and then, not every bound
    assert show.line().endswith("1.0000 <= log Z <= 3.0000, width 2.0000, 2 bounds")
    show(Bound(Side.LOWER, 1.5, Proof.CONFIDENCE, "c", confidence=0.95))
    show(Bound(Side.UPPER, 1.75, Proof.CONFIDENCE, "c", confidence=0.95))
    assert show.line().endswith(
        "1.0000 <= log Z <= 3.0000, width 2.0000; with confidence 0.95 in [1.5000, 1.7500], "
        "width 0.25, 4 bounds"
    )
    with Progress(stream=log):
        pass
    assert log.getvalue().count("\n") == 1  # nothing happened, nothing is said


def test_the_command_line_writes_one_line_under_jupyter(monkeypatch, capsys):
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    with live_bounds(5.0) as show:
        tz.log_partition(GRID, time_limit=5, seed=0, on_bound=show)
    err = capsys.readouterr().err
    assert "(exact)" in err
    assert "\x1b[1A" not in err  # no cursor movement


def test_ipython_is_not_imported_to_find_out():
    code = (
        "import sys; from tightz.reports.progress import in_notebook; "
        "print(in_notebook(), 'IPython' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False False"
    assert not in_notebook()


CELLS = [
    "import tightz as tz\nmodel = tz.ising_grid(3, coupling=(-2, 2), seed=1)\nmodel",
    "from tightz.reports.progress import Progress\n"
    "r = tz.log_partition(model, time_limit=5, seed=0, on_bound=Progress())\nr",
    "plain = tz.Projections(collapse=0)\n"
    "tz.estimate(model, levels=range(3), trials=40, projections=plain, seed=0,\n"
    "            on_batch=Progress(total=120))",
]


@pytest.mark.filterwarnings("ignore")  # of the Jupyter client and its event loop
def test_a_notebook_runs_and_shows_one_line_of_progress():
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    model, interval, table = (cell.outputs for cell in book.cells)
    assert "3 x 3 grid" in model[0].data["text/html"]
    for outputs, words in ((interval, "(exact)"), (table, "120 of 120 trials (100%)")):
        assert [o.output_type for o in outputs] == ["display_data", "execute_result"]
        assert words in outputs[0].data["text/plain"]
    assert "log Z  = " in interval[1].data["text/html"]
    assert "max over m of the median" in table[1].data["text/html"]
