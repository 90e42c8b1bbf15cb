"""log Z at many rows of observations: the judge's sums, and rows from arrays, tables and files."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightz as tz
from tests import hostile, naive
from tests.strategies import models_with_zeros
from tightz.errors import ModelError
from tightz.interval import row_sums as choosing
from tightz.interval.row_sums import row_sums
from tightz.judge import rows as judge_rows
from tightz.judge.rows import RowLogs, RowSums, added
from tightz.judge.units import UnitSums, independent
from tightz.models.rows import Rows, rows_of


def drawn(rng, cards, columns, count, missing=()):
    """Random states of the columns, -1 in half of the rows for those that may be missing."""
    states = np.stack([rng.integers(0, cards[v], size=count) for v in columns], axis=1)
    for k, v in enumerate(columns):
        if v in missing:
            states[rng.random(count) < 0.5, k] = -1
    return states.astype(np.int64)


def truth_at(cards, factors, columns, row, more=None):
    """The truth with the row observed, by enumeration in extended precision; None for zero."""
    seen = {v: int(s) for v, s in zip(columns, row, strict=True) if s >= 0}
    for v, state in (more or {}).items():
        if seen.setdefault(v, state) != state:
            return None
    reduced = tz.FactorGraph(cards, factors, evidence=seen).condition()
    return hostile.truth(reduced.cardinalities, list(reduced.factors))


def violations(seed, trials, narrower=1.0):
    """(statements, wrong ones) of row sums on hostile models; `narrower` shrinks the errors."""
    rng = np.random.default_rng(seed)
    said = wrong = 0
    for _ in range(trials):
        cards, factors = hostile.model(rng)
        model, n = tz.FactorGraph(cards, factors), len(cards)
        columns = rng.permutation(n)[: rng.integers(1, n + 1)].tolist()
        soft = [v for v in columns if rng.random() < 0.4]
        free = rng.permutation([v for v in range(n) if v not in columns or v in soft]).tolist()
        keep = [free.pop()] if free and rng.random() < 0.4 else []
        states = drawn(rng, cards, columns, 4, soft)
        found = [(RowSums(model, columns, free, soft, keep).logs(states), keep)]
        if (states >= 0).all() and independent(model, columns):
            found.append((UnitSums(model, columns).logs(states), []))
        for logs, kept in found:
            errors = logs.errors * narrower
            for row, seen in enumerate(states):
                for state in range(cards[kept[0]]) if kept else [None]:
                    at = row if state is None else (row, state)
                    more = {kept[0]: state} if kept else None
                    truth = truth_at(cards, factors, columns, seen, more)
                    value = float(logs.values[at])
                    said += 1
                    if truth is None or value == -math.inf:
                        wrong += (truth is None) != (value == -math.inf)
                    else:
                        wrong += truth.error(value) > errors[at]
    return said, wrong


def test_sums_of_rows_hold_on_hostile_models():
    said, wrong = violations(1, 250)
    assert said > 1000
    assert wrong == 0


def test_errors_a_thousand_times_smaller_would_not_hold():
    assert violations(1, 250, narrower=1e-3)[1] > 10


def test_a_lost_table_shows(monkeypatch):
    """The comparison can fail: one factor is left out."""
    monkeypatch.setattr(judge_rows, "_slices", lambda tables: (None, [slice(0, 1)] * len(tables)))
    assert violations(1, 50)[1] > 0


def test_rows_share_what_they_have_in_common():
    """A chain whose ends are observed: the middle is one table for every row."""
    rng = np.random.default_rng(3)
    n = 12
    factors = [((v, v + 1), rng.normal(size=(3, 3))) for v in range(n - 1)]
    model = tz.FactorGraph([3] * n, factors)
    sums = RowSums(model, [0, n - 1], list(range(1, n - 1)))
    states = drawn(rng, [3] * n, [0, n - 1], 500)
    first = sums.logs(states)
    assert len(np.unique(first.values)) == 9
    assert sums.largest == 9
    kept = RowSums(model, [0], list(range(1, n - 1)), keep=(n - 1,))
    again = kept.logs(states[:, :1])
    np.testing.assert_allclose(again.values[np.arange(500), states[:, 1]], first.values, rtol=1e-14)
    assert kept._static == {} or all(t.slices is None for t in kept._static.values())


@given(st.lists(st.lists(st.floats(-700, 700), min_size=1, max_size=5), min_size=1, max_size=4))
def test_runs_of_rows_are_added(runs):
    values = np.array([x for run in runs for x in run])
    starts = np.cumsum([0, *(len(run) for run in runs[:-1])])
    found = added(RowLogs(values, np.full(values.shape, 1e-13)), starts)
    for run, value, error in zip(runs, found.values, found.errors, strict=True):
        high = np.array(run, dtype=np.longdouble)
        exact = high.max() + np.log(np.exp(high - high.max()).sum())
        assert abs(value - exact) <= error < 1e-9
    nothing = added(RowLogs(np.full(2, -np.inf), np.zeros(2)), np.zeros(1, dtype=np.int64))
    assert nothing.values[0] == -np.inf
    assert nothing.low[0] == nothing.high[0] == -np.inf


# ---- which way, and evidence of the model -------------------------------------------------------


@pytest.mark.parametrize("limits", [(19.0, 20.0), (-1.0, 20.0), (-1.0, -1.0)])
@settings(max_examples=40)
@given(model=models_with_zeros(max_variables=5), seed=st.integers(0, 2**32 - 1))
def test_every_way_gives_the_sums_of_enumeration(limits, model, seed):
    rng = np.random.default_rng(seed)
    n, cards = model.n_variables, model.cardinalities
    columns = rng.permutation(n)[: rng.integers(1, n + 1)].tolist()
    states = drawn(rng, cards, columns, 6, columns)
    rows = Rows(np.array(columns), states.astype(np.int32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "TOGETHER", limits[0])
        patch.setattr(choosing, "APART", limits[1])
        found = list(row_sums(model, rows))
    numbers = np.concatenate([b.rows for b in found]) if found else np.zeros(0, dtype=np.int64)
    assert len(set(numbers.tolist())) == len(numbers)
    if limits[1] > 0:
        assert len(numbers) == 6
    for block in found:
        for row, value, low, high in zip(
            block.rows, block.logs[0].values, block.logs[0].low, block.logs[0].high, strict=True
        ):
            seen = rows.evidence(int(row))
            evidence = {**model.evidence, **seen}
            if any(model.evidence.get(v, s) != s for v, s in seen.items()):
                assert value == -math.inf
                continue
            exact = naive.enumerate_model(cards, model.factors, evidence)[0]
            assert value == pytest.approx(exact, abs=1e-10)
            assert low - 1e-12 <= exact <= high + 1e-12


def test_missing_pixels_are_gone_through_one_by_one(monkeypatch):
    monkeypatch.setattr(choosing, "TOGETHER", -1.0)
    monkeypatch.setattr(choosing, "APART", -1.0)
    monkeypatch.setattr(choosing, "COMPLETIONS", 4)
    rng = np.random.default_rng(5)
    model = tz.rbm(rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=3))
    states = np.array([[0, 1, -1, -1, 1], [-1, -1, -1, 0, 0], [1, 1, 1, 0, 1]], dtype=np.int32)
    found = {int(b.rows[0]): b for b in row_sums(model, Rows(np.arange(5), states))}
    assert sorted(found) == [0, 2]
    assert found[0].how == choosing.COMPLETED
    seen = {v: int(s) for v, s in enumerate(states[0]) if s >= 0}
    exact = naive.enumerate_model(model.cardinalities, model.factors, seen)[0]
    assert found[0].logs[0].values[0] == pytest.approx(exact, abs=1e-12)


def test_potentials_beyond_doubles_are_left_alone():
    model = tz.FactorGraph([2, 2], [((0,), [1e308, 0.0]), ((0, 1), [[1e308, 0.0], [0.0, 0.0]])])
    assert not list(row_sums(model, Rows(np.array([0]), np.array([[1]], dtype=np.int32))))


# ---- reading rows -------------------------------------------------------------------------------

RAIN = tz.FactorGraph(
    [2, 3, 2],
    [((0, 1), np.zeros((2, 3)))],
    names=["rain", "sky", "9"],
    states=[("no", "yes"), ("1", "2", "3"), None],
)
EXPECTED = [[1, 0, -1], [-1, 2, 1]]


def read(data, **options):
    rows = rows_of(RAIN, data, **options)
    found = np.full((len(rows), 3), -1)
    found[:, rows.variables] = rows.states
    return found.tolist()


def test_rows_of_every_kind(tmp_path):
    assert read([[1, 0, np.nan], [np.nan, 2, 1]]) == EXPECTED
    masked = np.ma.masked_array([[1, 0, 5], [7, 2, 1]], [[0, 0, 1], [1, 0, 0]])
    assert read(masked) == EXPECTED
    assert read([{"rain": "yes", "sky": "1"}, {"sky": 2, "9": 1}]) == EXPECTED
    assert read({"rain": "yes", "sky": "1"}) == EXPECTED[:1]
    frame = pd.DataFrame({"sky": ["1", "3"], "rain": ["yes", None], "9": [None, 1]})
    assert read(frame) == EXPECTED
    assert read([[0, 1], [2, np.nan]], visible=["sky", 0]) == [[1, 0, -1], [-1, 2, -1]]
    (tmp_path / "a.csv").write_text("sky,rain,9\n1,yes,\n3,,1\n")
    (tmp_path / "a.tsv").write_text("yes\t1\t\n\t3\t1\n")
    (tmp_path / "a.jsonl").write_text(
        '{"rain": "yes", "sky": "1", "9": null}\n\n{"sky": "3", "9": 1}\n'
    )
    (tmp_path / "a.evid").write_text("2\n2 0 1 1 0\n2 1 2 2 1\n")
    np.save(tmp_path / "a.npy", np.array([[1, 0, np.nan], [np.nan, 2, 1]]))
    np.savez(tmp_path / "a.npz", data=np.array([[1, 0, np.nan], [np.nan, 2, 1]]), other=0)
    for ending in ("csv", "jsonl", "evid", "npy", "npz"):
        assert read(tmp_path / f"a.{ending}") == EXPECTED, ending


def test_a_first_line_that_is_a_row_is_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("0,1,0\n1,0,1\n")
    with pytest.raises(ModelError, match=r"state '0'; it has '1', '2', '3' .*\(.*line 2\)"):
        read(tmp_path / "a.csv", strict=True)  # states called 1, 2, 3 are names, not numbers
    (tmp_path / "a.csv").write_text("0,1,0\n1,,1\n")
    plain = tz.FactorGraph([2, 2, 2])
    assert rows_of(plain, tmp_path / "a.csv").states.tolist() == [[0, 1, 0], [1, -1, 1]]
    (tmp_path / "a.csv").write_text("0,1,0\n1,1,1\n")
    assert rows_of(plain, str(tmp_path / "a.csv")).states.tolist() == [[0, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("0", [{}]),
        ("1 0", [{}]),
        ("1 0 1", [{0: 1}]),
        ("1\n1 0 1\n", [{0: 1}]),
        ("2\n0\n1 1 0", [{}, {1: 0}]),
        ("2 0 1 1 0", [{0: 1, 1: 0}]),  # one sample of two, or two of none and one: all on a line
        ("2\n1 0 1\n2 1 2 2 1\n", [{0: 1}, {1: 2, 2: 1}]),
    ],
)
def test_samples_of_uai_evidence(tmp_path, text, expected):
    path = tmp_path / "a.evid"
    path.write_text(text)
    rows = rows_of(RAIN, path)
    assert [rows.evidence(k) for k in range(len(rows))] == expected


def test_images_are_rows(tmp_path):
    images = np.random.default_rng(0).integers(0, 2, size=(3, 2, 2)).astype(np.uint8)
    header = b"\0\0\x08\x03" + b"".join(int(k).to_bytes(4, "big") for k in images.shape)
    (tmp_path / "a-idx3-ubyte").write_bytes(header + images.tobytes())
    model = tz.rbm(np.ones((4, 2)))
    rows = rows_of(model, tmp_path / "a-idx3-ubyte")
    assert rows.states.tolist() == images.reshape(3, 4).tolist()
    assert rows.variables.tolist() == [0, 1, 2, 3]


@given(st.data())
def test_text_and_numbers_say_the_same(data):
    """A table of text, JSON lines and an array of one set of observations."""
    import tempfile
    from pathlib import Path

    cells = st.tuples(*(st.sampled_from([-1, *range(d)]) for d in (2, 3, 2)))
    wanted = data.draw(st.lists(cells, min_size=1, max_size=5))
    labels = [RAIN.naming.state_labels(v) for v in range(3)]
    lines = [{RAIN.names[v]: labels[v][s] for v, s in enumerate(row) if s >= 0} for row in wanted]
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(",".join(line.get(name, "") for name in RAIN.names) for line in lines)
        Path(folder, "a.csv").write_text(",".join(RAIN.names) + "\n" + text + "\n")
        Path(folder, "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
        array = np.where(np.array(wanted) < 0, np.nan, wanted)
        found = [read(Path(folder, "a.csv")), read(Path(folder, "a.jsonl")), read(array)]
    assert found == [[list(row) for row in wanted]] * 3


def test_bad_rows_are_told_and_others_read():
    rows = rows_of(RAIN, [[1, 0, 0], [0, 7, 0], [0.5, 0, 0], [0, 1, 1]], strict=False)
    assert rows.states.tolist() == [[1, 0, 0], [-1, -1, -1], [-1, -1, -1], [0, 1, 1]]
    assert rows.problems[1].startswith("data[1, 1] is 7; 'sky' has states 0 to 2")
    assert rows.problems[2].startswith("data[2, 0] is 0.5; 'rain' has states 0 to 1")
    with pytest.raises(ModelError, match=r"data\[1, 1\] is 7"):
        rows_of(RAIN, [[1, 0, 0], [0, 7, 0], [0.5, 0, 0], [0, 1, 1]])
