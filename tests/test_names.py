"""Variables and states by name: in evidence, queries, results, files and on the command line."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tightz.bounds import at_most, figure
from tightz.cli.main import main
from tightz.cli.options import state_text
from tightz.errors import ModelError
from tightz.interval.evidence import (
    EvidenceProbability,
    contradiction,
    log_z_of_network,
    probability,
)
from tightz.models.formats.evidence import given as with_given

NETWORK = tz.FactorGraph.from_tables(
    [2, 2, 3, 2],
    [
        ((0,), [0.2, 0.8]),
        ((1, 0), [[0.1, 0.7], [0.9, 0.3]]),
        ((2, 0), [[0.5, 0.1], [0.5, 0.2], [0.0, 0.7]]),
        ((3, 1, 2), [[[1.0, 0.6, 0.2], [0.3, 0.5, 0.0]], [[0.0, 0.4, 0.8], [0.7, 0.5, 1.0]]]),
    ],
    names=["rain", "sprinkler", "sky", "wet"],
    states=[("no", "yes"), ("off", "on"), ("clear", "grey", "black"), ("dry", "wet")],
    name="garden",
)


@st.composite
def models(draw, max_variables=5):
    """1 to 4 states a variable, tables over up to 3 variables, some with zeros."""
    n = draw(st.integers(1, max_variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = rng.integers(1, 5, size=n)
    zeros, strength = (
        draw(st.sampled_from([0.0, 0.2, 0.5])),
        draw(st.sampled_from([0.3, 2.0, 20.0])),
    )
    factors = []
    for _ in range(draw(st.integers(0, 2 * n))):
        scope = rng.choice(n, size=rng.integers(1, min(3, n) + 1), replace=False).tolist()
        table = strength * rng.normal(size=cards[scope])
        factors.append((scope, np.where(rng.random(table.shape) < zeros, -np.inf, table)))
    return tz.FactorGraph(cards, factors)


def named(model):
    """The model under names that say their numbers, in no order of the alphabet."""
    names = [f"v{(7 * v) % 11}x{v}" for v in range(model.n_variables)]
    states = [[f"s{(5 * k) % 7}y{k}" for k in range(int(d))] for d in model.cardinalities]
    return model.with_names(names, states)


def posterior(model, v):
    """p(x_v | evidence) by enumeration; None where the evidence is impossible."""
    states = naive.all_states(model.cardinalities)
    logs = naive.log_weights(model.cardinalities, model.factors, states)
    for u, state in model.evidence.items():
        logs[states[:, u] != state] = -np.inf
    if logs.max(initial=-np.inf) == -np.inf:
        return None
    weights = np.exp(logs - logs.max())
    shares = [weights[states[:, v] == s].sum() for s in range(model.cardinalities[v])]
    return np.array(shares) / weights.sum()


@settings(max_examples=25)
@given(models(max_variables=5), st.data())
def test_a_query_by_name_is_the_posterior_of_enumeration(model, data):
    model = named(model)
    v = data.draw(st.integers(0, model.n_variables - 1))
    u = data.draw(st.integers(0, model.n_variables - 1))
    state = data.draw(st.integers(0, int(model.cardinalities[u]) - 1))
    evidence = {model.names[u]: model.states[u][state]}
    found = tz.query(model, model.names[v], evidence=evidence, seed=0)
    assert found.model.evidence == {u: state}
    truth = posterior(found.model, v)
    if truth is None:
        assert found.impossible
        assert " = 0" in found.summary()
        return
    told, ends = found[model.names[v]], found.marginal_bound(v)
    assert list(told) == list(model.states[v])
    np.testing.assert_allclose(list(told.values()), truth, atol=1e-9)
    for p, (low, high) in zip(truth, ends.values(), strict=True):
        assert low - 1e-12 <= p <= high + 1e-12  # the enumeration itself rounds
        assert high - low < 1e-6


def test_a_query_is_a_mapping():
    found = tz.query(NETWORK, ["wet", "sky"], evidence="rain=yes", seed=0)
    assert list(found) == ["wet", "sky"]
    assert len(found) == 2
    assert "wet" in found
    assert 3 in found
    assert "rain" not in found
    assert "snow" not in found
    assert None not in found
    assert dict(found) == {"wet": found["wet"], "sky": found[2]}
    assert found.get("rain") is None
    assert [sum(p.values()) for p in found.values()] == pytest.approx([1.0, 1.0])
    (row,) = tz.sweep(NETWORK, [{"rain": "yes"}], ["wet", "sky"], seed=0)
    assert dict(row)["wet"] == pytest.approx(found["wet"])
    bare = tz.query(tz.ising_grid(2, seed=0), [1, 3], seed=0)
    assert dict(bare).keys() == {1, 3}


@settings(max_examples=60, deadline=None)
@given(models(max_variables=5), st.data())
def test_contradicting_observations_are_found(model, data):
    """They have probability 0 together, and not without any of them."""
    model = named(model)
    asked = {
        v: data.draw(st.integers(0, int(d) - 1)) for v, d in enumerate(model.cardinalities.tolist())
    }
    seen = model.with_evidence(asked)
    if naive_log_z(seen) > -math.inf:
        return
    found = contradiction(seen, 10.0)
    assert found.minimal
    assert naive_log_z(model.with_evidence(found.observed)) == -math.inf
    for variable in found.observed:
        fewer = {v: s for v, s in found.observed.items() if v != variable}
        assert naive_log_z(model.with_evidence(fewer)) > -math.inf


def naive_log_z(model):
    factors = [(f.scope, f.log_table) for f in model.factors]
    return naive.enumerate_model(model.cardinalities, factors, model.evidence)[0]


def test_what_is_not_found_in_time_is_not_claimed():
    never = NETWORK.with_evidence({"rain": "no", "sky": "black", "wet": "wet"})
    found = contradiction(never, 1e-9)
    assert found.observed == {"rain": "no", "sky": "black", "wet": "wet"}
    assert not found.minimal
    assert found.summary().endswith("contradict each other: rain=no, sky=black, wet=wet")
    assert contradiction(NETWORK) is None


@settings(max_examples=25)
@given(models(max_variables=5), st.data())
def test_the_probability_of_evidence_is_a_ratio_of_sums(model, data):
    u = data.draw(st.integers(0, model.n_variables - 1))
    truth = posterior(model, u)
    if truth is None:
        return
    found = tz.query(model, [], evidence={u: 0}, seed=0).evidence
    if truth[0] == 0.0:
        assert found.log_p == -math.inf
        return
    assert found.exact
    assert found.log_p == pytest.approx(math.log(truth[0]), abs=1e-9)
    assert found.lower - 1e-12 <= math.log(truth[0]) <= found.upper + 1e-12
    assert found.upper <= 0.0


def test_a_network_is_known_by_its_tables():
    seen = NETWORK.with_evidence({"wet": "wet"})
    low, high = log_z_of_network(seen)
    assert low <= 0.0 <= high < 1e-12
    assert log_z_of_network(NETWORK) is None  # nothing is observed
    assert log_z_of_network(tz.ising_grid(3, seed=0).with_evidence({0: 1})) is None
    r = tz.log_partition(NETWORK, evidence={"wet": "wet"}, seed=0)
    truth = posterior(NETWORK, 3)[1]
    assert math.exp(r.evidence.log_p) == pytest.approx(truth, abs=1e-12)
    assert f"P(evidence) = {truth:.8g}   (log {math.log(truth):.8f} +- " in r.summary()
    assert tz.log_partition(NETWORK, seed=0).evidence is None


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_tables_that_sum_to_almost_one_bound_log_z(seed, scaled):
    """Random networks whose columns are off by a thousandth, as printed digits are."""
    rng = np.random.default_rng(seed)
    cards = rng.integers(1, 4, size=5)
    factors = []
    for v in range(5):
        scope = [v, *rng.permutation(v)[: rng.integers(0, 3)].tolist()]
        table = rng.random(cards[scope]) + 1e-3
        table /= table.sum(axis=0) * (1.0 + 1e-3 * rng.uniform(-1, 1, size=table.shape[1:]))
        factors.append((scope, table * (2.0 if scaled and v == 3 else 1.0)))
    order = rng.permutation(5)
    model = tz.FactorGraph.from_tables(cards, [factors[v] for v in order], evidence={0: 0})
    found = log_z_of_network(model)
    if scaled and cards[3] > 1:
        assert found is None
    elif not scaled:
        truth = tz.exact(model.without_evidence()).log_z
        assert found[0] <= truth <= found[1]
        assert found[1] - found[0] < 0.011


def test_small_probabilities_are_powers_of_ten():
    assert probability(-2000.0) == f"10^{-2000 / math.log(10):.6f}"
    assert probability(math.log(0.25)) == "0.25"
    assert probability(-math.inf) == "0"


def test_marginals_by_name_in_every_result():
    seen = NETWORK.with_evidence({"sprinkler": "on"})
    truth = dict(zip(NETWORK.states[2], posterior(seen, 2), strict=True))
    for r in (tz.exact(seen), tz.log_partition(seen, seed=0), tz.exact(NETWORK, evidence="1=1")):
        assert r.marginal("sky") == pytest.approx(truth, abs=1e-9)
        assert r.marginal("sprinkler") == {"off": 0.0, "on": 1.0}
    assert set(tz.bethe(seen).marginal("rain")) == {"no", "yes"}
    grid = named(tz.ising_grid(2, seed=0))
    for r in (tz.mean_field(grid, seed=0), tz.estimate(grid, levels=[0], trials=1, seed=0)):
        assert set(r.marginal(grid.names[3])) == set(grid.states[3])
    assert set(tz.mean_field(tz.ising_grid(2, seed=0), seed=0).marginal(3)) == {"0", "1"}


def test_exact_marginals_where_the_reductions_leave_nothing():
    """A network without evidence is summed away; its marginals are not drawn for that."""
    r = tz.log_partition(NETWORK, seed=0)
    assert r.marginal_status.name == "EXACT"
    for v in range(4):
        np.testing.assert_allclose(r.marginals[v], posterior(NETWORK, v), atol=1e-12)


def test_samples_by_name():
    grid = named(tz.ising_grid(3, seed=0))
    run = tz.log_partition(grid, time_limit=2, exact=False, seed=0)
    # with the run's own sampler, and where it came to none
    for drawn in (run.sample(4, seed=0), replace(run, sampler=None).sample(4, seed=0)):
        first = drawn.assignments()[0]
        assert list(first) == list(grid.names)
        assert [grid.state(v, s) for v, s in first.items()] == drawn.states[0].tolist()


def test_dataframes():
    pytest.importorskip("pandas")
    frame = tz.exact(NETWORK).to_dataframe()
    ends = ["lower", "upper", "confident_lower", "confident_upper"]
    assert list(frame.columns) == ["variable", "state", "probability", *ends]
    plain = tz.mean_field(tz.ising_grid(2, seed=0), seed=0).to_dataframe()
    assert list(plain.columns) == ["variable", "state", "probability"]
    assert frame[frame.variable == "sky"].state.tolist() == ["clear", "grey", "black"]
    assert frame.groupby("variable").probability.sum().tolist() == pytest.approx([1.0] * 4)
    asked = tz.query(NETWORK, "wet", evidence="rain=yes").to_dataframe()
    assert list(asked.columns) == list(frame.columns)
    assert (asked.lower <= asked.probability).all()
    assert (asked.probability <= asked.upper).all()
    grid = named(tz.ising_grid(2, seed=0))
    drawn = tz.log_partition(grid, time_limit=2, exact=False, seed=0).sample(3, seed=0)
    assert list(drawn.to_dataframe().columns) == [*grid.names, "log_weight"]


EVIDENCE = {
    "lines": "rain = yes\n\n# the sky was seen too\nsky=black\n",
    "names": '{"rain": "yes", "sky": "black"}',
    "numbers": '{"0": 1, "sky": "2"}',
    "digits": "0=1\n2=2\n",
    "uai": "2 0 1 2 2\n",
    "mark": "\ufeffrain=yes\nsky=black",
}


@pytest.mark.parametrize("kind", EVIDENCE)
def test_evidence_in_files(kind, tmp_path):
    path = tmp_path / "e.txt"
    path.write_text(EVIDENCE[kind], encoding="utf-8")
    assert with_given(NETWORK, path).evidence == {0: 1, 2: 2}
    assert with_given(NETWORK, str(path)).evidence == {0: 1, 2: 2}


def test_a_name_may_hold_an_equals_sign(tmp_path):
    odd = tz.FactorGraph([2, 2], names=["a", "a=b"], states=[("x", "b=c"), ("b", "c=d")])
    assert with_given(odd, "a=b=c").evidence == {0: 1}
    assert with_given(odd, "a=b = c=d").evidence == {1: 1}
    twice = tz.FactorGraph([2, 2], names=["a", "a=b"], states=[("x", "b=c"), ("b", "c")])
    with pytest.raises(ModelError, match="may put 'a' in state 'b=c' or 'a=b' in state 'c'"):
        with_given(twice, "a=b=c")
    assert with_given(twice, {"a=b": "c"}).evidence == {1: 1}
    (tmp_path / "x=y").write_text("a=x")
    assert with_given(odd, tmp_path / "x=y").evidence == {0: 0}  # a file that is there


def test_a_name_may_begin_as_remarks_do(tmp_path):
    """A state that map prints is evidence again: no line of it is lost."""
    odd = tz.FactorGraph([2, 2], names=["#rooms", "a\u2028b"], states=[("1", "2"), ("x", "y")])
    path = tmp_path / "e.txt"
    path.write_text("# rooms, counted\n# rain=yes\n" + state_text(odd, [1, 1]), encoding="utf-8")
    assert with_given(odd, path).evidence == {0: 1, 1: 1}


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_no_file_is_worse_than_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.evid"
    path.write_bytes(data)
    found = {}
    with contextlib.suppress(ModelError):
        found = with_given(NETWORK, path).evidence
    assert all(0 <= s < NETWORK.cardinalities[v] for v, s in found.items())


@settings(max_examples=25)
@given(models(max_variables=4))
def test_names_do_not_change_results(model):
    assert tz.exact(named(model)).log_z == tz.exact(model).log_z
    assert named(model).digest == model.digest


# The command line ---------------------------------------------------------------------------


@pytest.fixture
def bif(tmp_path):
    path = tmp_path / "garden.bif"
    tz.write(NETWORK, path, names=NETWORK.names, states=NETWORK.states)
    return str(path)


def run(*arguments, code=0):
    done = CliRunner().invoke(main, [str(a) for a in arguments])
    assert done.exit_code == code, done.output
    return done.stderr if code == 2 else done.stdout


def test_every_command_says_so_where_nothing_has_weight(bif, tmp_path):
    never = ("-e", "rain=no", "-e", "sky=black")
    row = tmp_path / "row.csv"
    row.write_text("wet\nwet\n")
    for command in (
        ("logz", bif), ("query", bif), ("map", bif), ("marginals", bif), ("likelihood", bif, row),
        ("marginals", bif, "--method", "exact"), ("exact", bif),
    ):  # fmt: skip
        text = run(*command, *never, "-e", "sprinkler=on", code=5)
        assert "P(evidence) = 0   (no state agrees with it, holds always)\n" in text
        assert "\nrain=no, sky=black contradict each other\n" in f"{text}\n"
        assert "nknown: no marginals" not in text
        if command[0] in ("map", "query"):  # no state and no table is shown for what cannot be
            assert text.count("\n") == 2 + (command[0] == "query")
    row.write_text("rain,sky\nno,black\nno,clear\n")
    swept = run("sweep", bif, row, "-q", "wet").splitlines()
    assert "P(evidence) = 0; rain=no, sky=black contradict each other" in swept[0]
    assert "P(evidence) = 0." in swept[1]
    tz.write(tz.FactorGraph([2], [((0,), [-np.inf, -np.inf])]), tmp_path / "none.uai")
    assert run("query", tmp_path / "none.uai").startswith("the partition function is zero")


def test_no_bound_on_the_way_is_minus_nothing(tmp_path):
    tz.write(tz.FactorGraph([2]), tmp_path / "one.uai")
    done = CliRunner().invoke(main, ["logz", str(tmp_path / "one.uai")])
    assert "always" in done.stderr
    assert "-0.000000" not in done.output


def test_query_prints_tables_and_the_probability_of_the_evidence(bif):
    seen = NETWORK.with_evidence({"rain": "yes", "wet": "wet"})
    text = run("query", bif, "-e", "rain=yes", "-e", "wet=wet", "-q", "sky", "sprinkler")
    assert "given rain=yes, wet=wet" in text
    for v in (1, 2):
        for state, p in zip(NETWORK.states[v], posterior(seen, v), strict=True):
            assert f"  {state}" in text
            assert f"{p:.8f}" in text
    assert "P(evidence) = " in text
    record = json.loads(run("query", bif, "-e", "rain=yes", "-q", "2", "--json"))
    assert record["evidence"] == {"rain": "yes"}
    assert list(record["posteriors"]) == ["sky"]
    told = record["posteriors"]["sky"]
    assert list(told["probabilities"]) == list(NETWORK.states[2])
    for state, (low, high) in told["bounds"].items():
        assert low <= told["probabilities"][state] <= high
    assert record["log_p_evidence"]["log_p"] == pytest.approx(math.log(0.8), abs=1e-9)


def test_json_is_keyed_by_names(bif, tmp_path):
    record = json.loads(run("marginals", bif, "--json"))
    assert list(record["marginals"]) == list(NETWORK.names)
    assert list(record["marginals"]["sky"]) == list(NETWORK.states[2])
    record = json.loads(run("logz", bif, "-e", "sky=grey", "--json", "-T", 5))
    assert record["marginals"]["sky"] == {"clear": 0.0, "grey": 1.0, "black": 0.0}
    assert record["evidence"] == {"sky": "grey"}
    assert json.loads(run("info", bif, "--json"))["names"] == list(NETWORK.names)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(record))
    run("report", path, "-o", tmp_path / "page.html")
    assert "clear 0.0000, grey 1.0000, black 0.0000" in (tmp_path / "page.html").read_text()


def test_a_stored_run_keeps_names_for_its_report(bif, tmp_path):
    store = tmp_path / "run.db"
    run("logz", bif, "-e", "rain=yes", "--store", store, "-T", 5)
    run("report", store, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "sprinkler" in page
    assert "black 0.7000" in page


@pytest.mark.parametrize("command", ["logz", "query", "marginals", "exact", "info", "upper"])
@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ("rian=yes", "evidence names 'rian'; the model has no such: did you mean 'rain'?"),
        ("rain=yess", "evidence puts 'rain' in state 'yess'; it has no such: did you mean 'yes'?"),
        ("rain", "evidence is 'rain'; expected a pair such as rain=no"),
        ("nowhere.txt", "nowhere.txt does not exist"),
    ],
)
def test_wrong_names_are_met_with_the_right_ones(command, evidence, text, bif):
    assert text in run(command, bif, "-e", evidence, code=2)


def test_a_state_is_shown_as_evidence_is_given():
    assert state_text(NETWORK, [1, 0, 2, 1]) == "rain=yes\nsprinkler=off\nsky=black\nwet=wet"
    bare = tz.FactorGraph(NETWORK.cardinalities)
    assert state_text(bare, [1, 0, 2, 1]) == "0=1\n1=0\n2=2\n3=1"


SHARED = {
    "-e": ("logz", "query", "mean-field", "mfrp", "marginals", "exact", "upper", "ais", "map",
           "wish", "info", "theorem", "report"),
    "-T": ("logz", "query", "marginals", "exact", "upper", "ais", "map", "wish"),
    "--json": ("logz", "query", "mean-field", "mfrp", "marginals", "exact", "upper", "ais", "map",
               "wish", "info", "theorem"),
    "--seed": ("logz", "query", "mean-field", "mfrp", "marginals", "exact", "upper", "ais", "map",
               "wish", "theorem"),
}  # fmt: skip


@pytest.mark.parametrize("option", SHARED)
def test_commands_share_their_options(option):
    for name in SHARED[option]:
        listed = [o for p in main.commands[name].params for o in p.opts]
        assert option in listed, name


def test_one_default_of_memory():
    defaults = {
        p.default
        for command in main.commands.values()
        for p in command.params
        if p.name == "max_memory"
    }
    assert defaults == {"8GB"}


def test_an_error_is_never_shown_smaller():
    for error, text in ((1.4e-13, "2e-13"), (2e-7, "2e-07"), (9.6e-3, "1e-02"), (9.4, "1e+01")):
        assert at_most(error) == text
    for error in (0.0, 5e-324, math.pi, math.inf):
        assert float(at_most(error)) >= error


def test_nothing_has_a_minus_sign():
    assert figure(-1e-12) == "0.000000"
    assert figure(-0.5, 3) == "-0.500"
    assert "-0.0" not in tz.log_partition(NETWORK, seed=0).summary()
    assert tz.log_partition(NETWORK, seed=0).summary().startswith("log Z  = 0.00000000")


@pytest.mark.parametrize(
    ("prior", "ends"),
    [
        ((0.5, 1.0), (-5.0, -2.5)),
        ((-math.inf, 1.0), (-5.0, 0.0)),
        ((0.5, math.inf), (-math.inf, -2.5)),
        ((-math.inf, math.inf), (-math.inf, 0.0)),
    ],
)
def test_p_evidence_where_little_is_known_of_log_z_without_it(prior, ends):
    with_it = SimpleNamespace(
        lower=-4.0, upper=-2.0, estimate=-3.0, is_exact=False, lower_proof=None
    )
    p = EvidenceProbability.of(with_it, *prior)
    assert (p.lower, p.upper) == pytest.approx(ends)
    assert math.isnan(p.log_p) == (not all(map(math.isfinite, prior)))
    assert "nan" not in p.summary()


def test_heaviest_states_and_draws_take_evidence_by_name():
    table = np.log([[0.5, 0.2, 0.1], [0.05, 0.05, 0.1]])
    model = tz.FactorGraph(
        [2, 3],
        [((0, 1), table)],
        names=["rain", "grass"],
        states=[["no", "yes"], ["dry", "damp", "wet"]],
    )
    best = tz.ground_state(model, evidence={"rain": "yes"})
    assert best.state.tolist() == [1, 2]
    assert best.log_weight == pytest.approx(np.log(0.1))
    drawn = tz.sample(model, 50, evidence="rain=yes", seed=1)
    assert (drawn.states[:, 0] == 1).all()
    assert set(drawn.states[:, 1].tolist()) == {0, 1, 2}
