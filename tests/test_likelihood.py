"""Log-likelihoods against enumeration: ends hold always, the conservative one is the lower."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tests.strategies import models_with_zeros
from tightz.cli.main import main
from tightz.errors import ModelError
from tightz.interval import likelihood as module
from tightz.interval import row_sums as choosing
from tightz.interval.likelihood import INTERVAL, Ends


def machine(visible=6, hidden=4, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    w = scale * rng.normal(size=(visible, hidden))
    return tz.rbm(w, rng.normal(size=visible), rng.normal(size=hidden))


def log_z(model, *observed):
    seen = dict(model.evidence)
    for more in observed:
        for v, state in more.items():
            if seen.setdefault(v, state) != state:
                return -math.inf
    return naive.enumerate_model(model.cardinalities, model.factors, seen)[0]


def inside(ends, exact, slack=1e-10):
    return (
        ends.lower - slack <= exact <= ends.upper + slack
        and ends.confident_lower - slack <= exact <= ends.confident_upper + slack
    )


def row(examples: Ends, k: int) -> Ends:
    return Ends(*(float(values[k]) for values in vars(examples).values()))


def test_the_free_energy_less_log_z():
    model = machine()
    data = naive.all_states([2] * 6)
    r = tz.log_likelihood(model, data, seed=0)
    full = log_z(model)
    exact = [log_z(model, dict(enumerate(x))) - full for x in data.tolist()]
    np.testing.assert_allclose(r.examples.estimate, exact, atol=1e-12)
    assert (r.examples.lower <= exact).all()
    assert (exact <= r.examples.upper).all()
    assert float(np.exp(r.examples.estimate).sum()) == pytest.approx(1.0, abs=1e-12)
    assert r.mean.lower <= np.mean(exact) <= r.mean.upper
    assert r.lower == r.conservative == r.mean.lower
    assert r.upper - r.lower < 1e-11
    assert r.sources == {choosing.CLOSED_FORM: 64}
    assert r.interval.is_exact
    assert len(r.sample(5, seed=0).states) == 5


@settings(max_examples=60)
@given(model=models_with_zeros(max_variables=5), seed=st.integers(0, 2**32 - 1))
def test_partial_rows_conditions_and_evidence(model, seed):
    """log p of whole and partial rows, and of parts given others, of models with zeros."""
    rng = np.random.default_rng(seed)
    n = model.n_variables
    data = np.stack([rng.integers(0, model.cardinalities) for _ in range(4)]).astype(float)
    data[rng.random(data.shape) < 0.4] = np.nan
    listed = rng.permutation(n)[: rng.integers(0, n + 1)].tolist()
    r = tz.log_likelihood(model, data, given=listed or None, seed=0)
    for k, x in enumerate(data.tolist()):
        seen = {v: int(s) for v, s in enumerate(x) if not math.isnan(s)}
        under = {v: s for v, s in seen.items() if v in listed}
        below = log_z(model, under)
        found = row(r.examples, k)
        if below == -math.inf:  # of nothing no share is known
            assert (found.lower, found.upper) == (-math.inf, 0.0)
            continue
        exact = log_z(model, seen) - below
        assert inside(found, exact) or exact == found.upper == -math.inf
        assert found.estimate == pytest.approx(exact, abs=1e-9)
        assert found.lower <= found.estimate <= found.upper <= 0.0


def intervals(monkeypatch, rows=False, **options):
    """No exact sum of the model; with `rows` none of the rows either."""
    plain = module.log_partition
    options = {"exact": False, **options}
    monkeypatch.setattr(module, "log_partition", lambda *a, **more: plain(*a, **more | options))
    if rows:
        monkeypatch.setattr(module, "row_sums", lambda *_: iter(()))


def test_ends_from_intervals_on_log_z(monkeypatch):
    intervals(monkeypatch)
    model = machine(7, 5, seed=2, scale=2.0)
    data = np.random.default_rng(0).integers(0, 2, size=(20, 7))
    r = tz.log_likelihood(model, data, time_limit=1.0, seed=1)
    full = log_z(model)
    exact = [log_z(model, dict(enumerate(x))) - full for x in data.tolist()]
    assert all(inside(row(r.examples, k), x) for k, x in enumerate(exact))
    assert inside(r.mean, float(np.mean(exact)))
    assert r.confidence == 0.95
    # the lower end of log p is made of the upper end of log Z, and of nothing wider
    weight = np.array([log_z(model, dict(enumerate(x))) for x in data.tolist()])
    np.testing.assert_allclose(r.examples.lower, weight - r.interval.upper, atol=1e-9)
    likely = np.minimum(0.0, weight - r.interval.confident.lower)
    np.testing.assert_allclose(r.examples.confident_upper, likely, atol=1e-9)


def test_rows_with_runs_of_their_own(monkeypatch):
    intervals(monkeypatch, rows=True)
    model = machine(4, 3)
    data = np.array([[0, 1, np.nan, 1], [1, 1, 0, 0], [0, 1, np.nan, 1]])
    asked = []
    plain = module.log_partition

    def counted(model, **options):
        asked.append((dict(model.evidence), options["delta"]))
        return plain(model, **options)

    monkeypatch.setattr(module, "log_partition", counted)
    r = tz.log_likelihood(model, data, time_limit=1.5, seed=1)
    assert [delta for _, delta in asked] == [pytest.approx(0.05 / 3)] * 3  # two rows are alike
    assert r.sources == {INTERVAL: 3}
    full = log_z(model)
    for k, x in enumerate(data.tolist()):
        seen = {v: int(s) for v, s in enumerate(x) if not math.isnan(s)}
        assert inside(row(r.examples, k), log_z(model, seen) - full)
    again = tz.log_likelihood(model, data, given=[0, 1], time_limit=1.0, seed=1)
    assert again.interval is None
    assert inside(row(again.examples, 1), log_z(model, dict(enumerate([1, 1, 0, 0])))
                  - log_z(model, {0: 1, 1: 1}))  # fmt: skip


def test_the_ends_would_be_wrong_the_other_way_round(monkeypatch):
    """A control: with log Z's ends exchanged the truth is not between them."""
    intervals(monkeypatch, only=())  # nothing but what holds of every model
    model = machine(7, 5, seed=2, scale=2.0)
    data = np.random.default_rng(0).integers(0, 2, size=(5, 7))
    plain = module._ratio

    def exchanged(whole, under):
        e = under.ends
        turned = Ends(e.upper, e.lower, e.confident_upper, e.confident_lower, e.estimate,
                      e.estimate_error)  # fmt: skip
        return plain(whole, module._Rows(under.rows, under.known, turned, under.sources))

    monkeypatch.setattr(module, "_ratio", exchanged)
    r = tz.log_likelihood(model, data, time_limit=0.3, seed=1)
    assert r.interval.width > 1e-6
    exact = log_z(model, dict(enumerate(data[0].tolist()))) - log_z(model)
    assert not inside(row(r.examples, 0), exact)


def test_evidence_is_a_condition_of_all_rows():
    model = machine(4, 3)
    data = naive.all_states([2] * 4)
    r = tz.log_likelihood(model, data, evidence={0: 1}, seed=0)
    assert (r.examples.upper[data[:, 0] == 0] == -np.inf).all()
    assert float(np.exp(r.examples.estimate).sum()) == pytest.approx(1.0, abs=1e-12)
    assert r.mean.lower == -math.inf
    assert "8 of the rows have probability 0, always: 0, 1, 2" in r.summary()
    under = tz.log_likelihood(model, data[8:], given=0, seed=0)
    np.testing.assert_allclose(under.examples.estimate, r.examples.estimate[8:], atol=1e-12)


def test_names_and_states():
    model = tz.FactorGraph.from_tables(
        [2, 2], [((0, 1), [[0.1, 0.2], [0.3, 0.4]])],
        names=["rain", "wet"], states=[("no", "yes"), ("dry", "wet")],
    )  # fmt: skip
    r = tz.log_likelihood(model, [{"rain": "yes"}, {"wet": "wet", "rain": "no"}], seed=0)
    np.testing.assert_allclose(np.exp(r.examples.estimate), [0.7, 0.2], rtol=1e-12)
    r = tz.log_likelihood(model, [{"rain": "yes", "wet": "dry"}], given="rain", seed=0)
    assert math.exp(r.estimate) == pytest.approx(3 / 7)


def test_no_state_at_all():
    model = tz.FactorGraph([2], [((0,), [-np.inf, -np.inf])])
    r = tz.log_likelihood(model, [[0]], seed=0)
    assert (r.lower, r.upper) == (-math.inf, 0.0)
    assert math.isnan(r.estimate)


def test_an_impossible_row_is_impossible_whatever_is_known_of_log_z(monkeypatch):
    intervals(monkeypatch, only=())
    equal = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    apart = [-np.inf, 0.0]  # against the state that a run begins with: no lower end of log Z
    model = tz.FactorGraph([2] * 3, [((0, 1), equal), ((1, 2), equal), ((0,), apart)])
    r = tz.log_likelihood(model, [[0, 1, 1]], time_limit=0.1, seed=0)
    assert r.interval.lower == -math.inf
    assert r.examples.estimate.tolist() == r.examples.upper.tolist() == [-math.inf]
    assert r.estimate_error == 0.0


def test_a_sklearn_machine_has_the_free_energy_of_its_own():
    networks = pytest.importorskip("sklearn.neural_network")
    rng = np.random.default_rng(0)
    data = (rng.random((60, 8)) < 0.4).astype(float)
    theirs = networks.BernoulliRBM(n_components=5, n_iter=30, random_state=0).fit(data)
    r = tz.log_likelihood(tz.from_sklearn_rbm(theirs), data, seed=0)
    every = naive.all_states([2] * 8).astype(float)
    full = naive.log_sum_exp(-theirs._free_energy(every))
    np.testing.assert_allclose(
        r.examples.estimate, -theirs._free_energy(data) - full, rtol=0, atol=1e-11
    )


def test_what_it_shows(tmp_path):
    r = tz.log_likelihood(machine(4, 3), naive.all_states([2] * 4), seed=0)
    told = json.loads(r.to_json())
    assert told["mean"]["lower"] == told["conservative"] == r.lower
    assert told["examples"]["upper"] == r.examples.upper.tolist()
    frame = r.to_dataframe()
    assert list(frame.columns) == list(vars(r.examples))
    assert len(frame) == len(r) == 16
    assert "mean log p =" in r.summary()
    assert "LogLikelihood(16 rows" in repr(r)
    assert "<pre" in r._repr_html_()
    pytest.importorskip("matplotlib")
    ax = r.plot()
    assert ax.get_ylabel() == "rows"


# ---- the command --------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tz.write(machine(4, 3), "rbm.npz")
    np.save("grey.npy", np.random.default_rng(0).integers(0, 256, size=(9, 4)))
    return tmp_path


def test_the_command_reads_grey_values(files):
    done = CliRunner().invoke(
        main, ["likelihood", "rbm.npz", "grey.npy", "--threshold", "127", "--json", "-o", "p.csv"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    expected = tz.log_likelihood("rbm.npz", np.load("grey.npy") > 127, seed=0)
    assert told["examples"]["estimate"] == expected.examples.estimate.tolist()
    with open("p.csv", newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0] == list(vars(expected.examples))
    assert [float(line[0]) for line in lines[1:]] == expected.examples.lower.tolist()
    few = CliRunner().invoke(
        main, ["likelihood", "rbm.npz", "grey.npy", "--threshold", "127", "--rows", "2", "-g", "0"]
    )
    assert few.output.startswith("2 rows, natural logs\nmean log p =")


def test_the_command_names_the_row_and_the_column(files):
    done = CliRunner().invoke(main, ["likelihood", "rbm.npz", "grey.npy"])
    assert done.exit_code == 2
    value = np.load("grey.npy")[0, 0]
    assert f"data[0, 0] is {value}; variable 0 has states 0 to 1" in done.output


def test_data_without_rows_is_refused():
    with pytest.raises(ModelError, match="data has no rows"):
        tz.log_likelihood(machine(), np.zeros((0, 6)))


def test_a_condition_that_is_impossible_leaves_no_estimate():
    model = tz.FactorGraph([2, 2], [((0, 1), np.zeros((2, 2))), ((1,), [0.0, -np.inf])])
    r = tz.log_likelihood(model, np.array([[0, 1]]), given=[1], seed=0)
    assert (r.lower, r.upper) == (-np.inf, 0.0)
    assert r.estimate_error == np.inf
    assert "no estimate" in r.summary()
    assert "+- 0" not in r.summary()
    never = tz.log_likelihood(model, np.array([[0, 1]]), seed=0)
    assert "mean log p = -infinity   (holds always)" in never.summary()
