"""Sweeps: every row as a run of its own would have it, bad rows told, whole lines."""

from __future__ import annotations

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
from tightz.interval import sweep as module
from tightz.interval.likelihood import INTERVAL

NETWORK = tz.FactorGraph.from_tables(
    [2, 2, 2],
    [((0,), [0.8, 0.2]), ((0, 1), [[0.9, 0.1], [0.3, 0.7]]), ((1, 2), [[0.95, 0.05], [0.4, 0.6]])],
    names=["rain", "wet", "slip"],
    states=[("no", "yes"), ("dry", "wet"), ("no", "yes")],
)


def check(model, swept, exact_rows=True):
    """Every row against enumeration; how many there were."""
    prior = naive.enumerate_model(model.cardinalities, model.factors, model.evidence)[0]
    count = 0
    for found in swept:
        seen = swept.rows.evidence(found.row)
        both = {**model.evidence, **seen}
        clash = any(model.evidence.get(v, s) != s for v, s in seen.items())
        log_z, marginals = naive.enumerate_model(model.cardinalities, model.factors, both)
        log_z = -math.inf if clash else log_z
        assert found.lower - 1e-10 <= log_z <= found.upper + 1e-10 or found.lower == log_z
        if exact_rows:
            assert found.log_z == pytest.approx(log_z, abs=1e-10)
        p = found.probability
        if prior > -math.inf:
            assert p.lower - 1e-9 <= log_z - prior <= p.upper + 1e-9 or p.log_p == log_z
        for v, table in found.tables.items():
            if log_z > -math.inf:
                assert (table.bounds[:, 0] <= marginals[v] + 1e-12).all()
                assert (marginals[v] <= table.bounds[:, 1] + 1e-12).all()
            if log_z > -math.inf and exact_rows:
                np.testing.assert_allclose(table.probabilities, marginals[v], atol=1e-9)
        count += 1
    return count


@settings(max_examples=60)
@given(model=models_with_zeros(max_variables=5), seed=st.integers(0, 2**32 - 1))
def test_rows_are_as_runs_of_their_own(model, seed):
    rng = np.random.default_rng(seed)
    data = np.stack([rng.integers(0, model.cardinalities) for _ in range(5)]).astype(float)
    data[rng.random(data.shape) < 0.5] = np.nan
    targets = rng.permutation(model.n_variables)[: rng.integers(0, 3)].tolist()
    assert check(model, tz.sweep(model, data, targets, seed=0)) == 5


def test_rows_out_of_reach_have_runs_of_their_own(monkeypatch):
    monkeypatch.setattr(module, "row_sums", lambda *_: iter(()))
    rows = [{"rain": "yes"}, {"slip": "yes", "wet": "dry"}, {}]
    swept = tz.sweep(NETWORK, rows, ["rain", "wet"], time_limit=5.0, seed=0)
    assert check(NETWORK, swept) == 3
    assert {found.how for found in swept} == {INTERVAL}


def test_a_run_that_is_interrupted_ends_the_sweep(monkeypatch):
    monkeypatch.setattr(module, "row_sums", lambda *_: iter(()))
    plain, calls = module.log_partition, []

    def interrupted(model, **options):
        from dataclasses import replace

        calls.append(model)
        return replace(plain(model, **options), interrupted=len(calls) > 2)

    monkeypatch.setattr(module, "log_partition", interrupted)
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(found.row for found in tz.sweep(NETWORK, [{}] * 9, seed=0))
    assert len(calls) < 5


def test_rows_by_name_and_what_they_show():
    swept = tz.sweep(NETWORK, [{"slip": "yes"}, {"rain": "no"}], "rain", evidence="wet=wet", seed=0)
    first, second = sorted(swept, key=lambda found: found.row)
    assert first["rain"]["yes"] == pytest.approx(0.14 / 0.22)
    assert first.evidence == {"slip": "yes"}
    assert second["rain"] == {"no": pytest.approx(1.0), "yes": pytest.approx(0.0)}
    assert math.exp(first.probability.log_p) == pytest.approx(0.6)  # given that it is wet
    assert "P(evidence) = 0.6" in first.summary()
    assert repr(swept).startswith("Sweep(2 rows of FactorGraph")
    frame = swept.to_dataframe()
    assert frame["row"].tolist() == [0, 1]
    assert frame["log_p"].tolist() == [first.probability.log_p, second.probability.log_p]
    assert len(swept) == 2


def test_observed_variables_are_certain():
    (found,) = tz.sweep(NETWORK, [{"rain": "yes"}], ["wet", "rain"], evidence="wet=dry", seed=0)
    assert found["wet"] == {"dry": 1.0, "wet": 0.0}
    assert found["rain"]["yes"] == pytest.approx(1.0)


def test_bad_rows_do_not_stop_the_others():
    rows = [{"rain": "yes"}, {"snow": "yes"}, {"rain": "perhaps"}, {}]
    told = {found.row: found for found in tz.sweep(NETWORK, rows, seed=0)}
    assert sorted(told) == [0, 1, 2, 3]
    assert [k for k, found in told.items() if found.problem] == [1, 2]
    assert "evidence names 'snow'" in told[1].problem
    said = {"result": "SweepRow", "row": 1, "problem": told[1].problem}
    assert told[1].record() == said
    with pytest.raises(tz.errors.ModelError, match=r"evidence names 'snow'.*\(rows\[1\]\)"):
        tz.sweep(NETWORK, rows, strict=True)


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tz.write(NETWORK, "net.bif")
    (tmp_path / "rows.csv").write_text("rain,slip\nyes,\nmaybe,no\n,yes\n")
    done = CliRunner().invoke(main, ["sweep", "net.bif", "rows.csv", "-q", "wet", "--json"])
    assert done.exit_code == 2
    lines = {line["row"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert sorted(lines) == [0, 1, 2]
    assert "state 'maybe'" in lines[1]["problem"]
    assert lines[1]["problem"].endswith("(rows.csv, line 3)")
    assert lines[0]["evidence"] == {"rain": "yes"}
    wet = lines[0]["posteriors"]["wet"]
    assert wet["probabilities"]["wet"] == pytest.approx(0.7)
    assert wet["bounds"]["wet"][0] <= 0.7 <= wet["bounds"]["wet"][1]
    assert math.exp(lines[0]["log_p_evidence"]["log_p"]) == pytest.approx(0.2)
    strict = CliRunner().invoke(main, ["sweep", "net.bif", "rows.csv", "--strict"])
    assert strict.exit_code == 2
    assert not strict.stdout
    (tmp_path / "rows.csv").write_text("rain,slip\nyes,\n,yes\n")
    good = CliRunner().invoke(main, ["sweep", "net.bif", "rows.csv"])
    assert good.exit_code == 0
    assert good.stdout.splitlines()[0].startswith("0: log Z = -1.609438; P(evidence) = 0.2")


def test_lines_are_whole_when_it_is_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tz.write(NETWORK, "net.bif")
    (tmp_path / "rows.csv").write_text("rain\nyes\nno\n")
    plain = module.row_sums

    def stopped(*asked):
        yield from plain(*asked)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "row_sums", stopped)
    done = CliRunner().invoke(main, ["sweep", "net.bif", "rows.csv", "--json"])
    assert done.exit_code == 130
    assert [json.loads(line)["row"] for line in done.stdout.splitlines()] == [0, 1]


def test_posteriors_of_an_impossible_row_are_not_known():
    equal = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    model = tz.FactorGraph([2, 2, 2], [((0, 1), equal), ((1, 2), np.ones((2, 2)))])
    impossible, possible = tz.sweep(model, [{0: 0, 1: 1}, {0: 0, 1: 0}], [2], seed=0)
    assert impossible.upper == -math.inf
    np.testing.assert_array_equal(impossible.tables[2].bounds, [[0.0, 1.0]] * 2)
    assert possible.tables[2].bounds[0][0] > 0.49


def test_a_bad_number_is_not_answered_with_an_option_of_another_command():
    bad, _ = tz.sweep(tz.FactorGraph([2], [((0,), [0.0, 1.0])]), np.array([[0.3], [1.0]]), seed=0)
    assert "rows > 0.5" in bad.problem
    assert "--threshold" not in bad.problem


@pytest.mark.parametrize("summed", [True, False])
def test_a_row_against_the_models_own_evidence_says_so(monkeypatch, summed):
    model = tz.FactorGraph([2, 3], [((0, 1), np.zeros((2, 3)))]).with_evidence({0: 1})
    if not summed:  # as where sums of rows are out of reach
        monkeypatch.setattr(module, "row_sums", lambda *_: [])
    (row,) = tz.sweep(model, [{0: 0}], [1], seed=0)
    assert np.isnan(list(row[1].values())).all()
    assert row.probability.log_p == -math.inf
    assert row.contradiction.observed == {"0": "0"}
    assert "0=0 is impossible" in row.summary()
    assert json.loads(row.to_json())["contradiction"]["minimal"]
