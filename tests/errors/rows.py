"""What is said of rows of observations, of likelihoods and of sweeps."""

from __future__ import annotations

import csv

import numpy as np

import tightz as tz
from tests.errors.table import Case
from tightz.cli.rows import _rows
from tightz.errors import ModelError, ParameterError
from tightz.judge import RefutedError
from tightz.judge.rows import RowSums
from tightz.judge.units import UnitSums
from tightz.models.rows import rows_of

NAMED = tz.FactorGraph(
    [2, 2], [((0, 1), np.zeros((2, 2)))], names=["rain", "wet"], states=[("no", "yes")] * 2
)
RBM = tz.rbm(np.ones((3, 2)))
CHAIN = tz.FactorGraph([2, 2, 2], [((0, 1), np.zeros((2, 2))), ((1, 2), np.zeros((2, 2)))])
HUGE = tz.FactorGraph([2, 2], [((0,), [1e308, 0.0]), ((0, 1), [1e308, 0.0, 0.0, 0.0])])


def _file(tmp, name, content):
    path = tmp / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    return str(path)


def _damaged_table(tmp, patch):
    patch.setattr(csv, "field_size_limit", csv.field_size_limit)
    before = csv.field_size_limit(4)
    try:
        rows_of(NAMED, _file(tmp, "a.csv", "rain\nyesyesyes\n"))
    finally:
        csv.field_size_limit(before)


def _several_arrays(tmp):
    np.savez(tmp / "a.npz", one=np.zeros(1), two=np.zeros(1))
    return rows_of(NAMED, tmp / "a.npz")


def _other_machine(tmp):
    import h5py

    with h5py.File(tmp / "a.h5", "w") as file:
        file.create_group("update_1")["vbias"] = np.zeros(2)
        file["model_type"] = "PBRBM"
    return tz.read(tmp / "a.h5")


def _conditional():
    return tz.log_likelihood(NAMED, [{"rain": "yes", "wet": "no"}], given="rain").sample(2)


MODELS = [
    (
        "visible names a variable twice; expected each once",
        lambda: rows_of(NAMED, [[0, 1]], ["rain", 0]),
    ),
    (
        "data has 1 columns and the model has 2; expected one for each variable, in order, or "
        "visible=[...] with the variables of the columns",
        lambda: rows_of(NAMED, [[0]]),
    ),
    (
        "data has 4 columns and the model has 5, or 3 visible ones; expected ...",
        lambda: rows_of(RBM, [[0, 0, 0, 0]]),
    ),
    (
        "data has 2 columns and visible lists 1; expected ...",
        lambda: rows_of(NAMED, [[0, 1]], "rain"),
    ),
    (
        "data has shape (2,); expected rows x columns: one row is x[None, :], images are "
        "x.reshape(len(x), -1)",
        lambda: rows_of(NAMED, [0, 1]),
    ),
    (
        "data[1, 0] is 0.25; 'rain' has states 0 to 1, and nan is for what is not observed. Of "
        "grey values data > 0.5 makes such, or --threshold",
        lambda: rows_of(NAMED, [[0, 1], [0.25, 0]]),
    ),
    (
        "data has two columns for 'rain'; expected one",
        lambda tmp: rows_of(NAMED, _file(tmp, "a.csv", "rain,rain\nyes,no\n")),
    ),
    (
        "1 cells; expected 2, as many as columns (TMP/a.csv, line 3)",
        lambda tmp: rows_of(NAMED, _file(tmp, "a.csv", "rain,wet\nyes,no\nyes\n")),
    ),
    (
        "a row is an int, 3; expected a mapping variable -> state (data[1])",
        lambda: rows_of(NAMED, [{"rain": "yes"}, 3]),
    ),
    (
        'the line is no JSON object such as {"rain": "yes"}: ... (TMP/a.jsonl, line 2)',
        lambda tmp: rows_of(NAMED, _file(tmp, "a.jsonl", '{}\n{"rain"\n')),
    ),
    (
        "TMP/a.txt: unknown ending '.txt' for rows; expected .npy, .npz, .csv, .tsv, .jsonl, .evid "
        "or an idx file of images",
        lambda tmp: rows_of(NAMED, _file(tmp, "a.txt", "")),
    ),
    (
        "TMP/a.npy is no .npy or .npz file (or a damaged one); expected an array",
        lambda tmp: rows_of(NAMED, _file(tmp, "a.npy", "no")),
    ),
    ("TMP/a.npy does not exist", lambda tmp: rows_of(NAMED, tmp / "a.npy")),
    (
        "TMP/a.npz holds the arrays one, two; expected one, or one called data",
        _several_arrays,
    ),
    (
        "TMP/a-ubyte.gz: damaged gzip file (...)",
        lambda tmp: rows_of(RBM, _file(tmp, "a-ubyte.gz", b"\x1f\x8b\x08")),
    ),
    (
        "byte 5 is no text; expected UTF-8 (TMP/a.csv, line 2)",
        lambda tmp: rows_of(NAMED, _file(tmp, "a.csv", b"rain\n\xff\n")),
    ),
    ("the table cannot be read: ... (TMP/a.csv, line 2)", _damaged_table),
    (
        "the words are neither one sample, `k v1 s1 ... vk sk`, nor their number and then each of "
        "them; expected one of these (TMP/a.evid, line 1)",
        lambda tmp: rows_of(NAMED, _file(tmp, "a.evid", "2 0 1")),
    ),
    (
        "evidence puts variable 0 in state 1 and in 0; expected one (TMP/a.evid, sample 0)",
        lambda tmp: rows_of(NAMED, _file(tmp, "a.evid", "2 0 1 0 0")),
    ),
    (
        "TMP/a.h5 holds a PBRBM of the package rbms; expected a BBRBM, whose units are all binary",
        _other_machine,
    ),
    (
        "from_state_dict was given an int, 3; expected weights by name, such as "
        "module.state_dict() or {'W': W, 'v_bias': b, 'h_bias': c}",
        lambda: tz.from_state_dict(3),
    ),
    (
        "the state dict holds two arrays of one name after their prefixes: a.W, b.W; expected the "
        "part of one RBM",
        lambda: tz.from_state_dict({"a.W": 1, "b.W": 2}),
    ),
    (
        "data has no rows; expected one at least",
        lambda: tz.log_likelihood(NAMED, np.zeros((0, 2))),
    ),
    (
        "given names 'wet'; expected a variable of the rows",
        lambda: tz.log_likelihood(NAMED, [{"rain": "yes"}], given="wet"),
    ),
]

PARAMETERS = [
    (
        "time_limit is 0; expected a positive number of seconds",
        lambda: tz.log_likelihood(NAMED, [[0, 1]], time_limit=0),
    ),
    (
        "delta is 2; expected a probability strictly between 0 and 1",
        lambda: tz.log_likelihood(NAMED, [[0, 1]], delta=2),
    ),
    (
        "time_limit is 0; expected a positive number of seconds",
        lambda: tz.sweep(NAMED, [[0, 1]], time_limit=0),
    ),
    (
        "delta is 2; expected a probability strictly between 0 and 1",
        lambda: tz.sweep(NAMED, [[0, 1]], delta=2),
    ),
    (
        "every row has its own condition, so there is no one distribution to draw from; expected "
        "a likelihood without `given`, or tz.sample(model, k, evidence=...)",
        _conditional,
    ),
    (
        "--threshold is for numbers; TMP/a.csv holds names of states",
        lambda tmp: _rows(NAMED, _file(tmp, "a.csv", "rain\nyes\n"), 0.5, None),
    ),
    (
        "rows is 0; expected at least 1",
        lambda tmp: _rows(NAMED, _file(tmp, "a.csv", "rain\nyes\n"), None, 0),
    ),
]

STATE = np.zeros((1, 1), dtype=np.int64)

REFUTED = [
    (
        "rows: every variable is summed, kept or observed, and only once",
        lambda: RowSums(CHAIN, [0], [1]),
    ),
    (
        "rows: a variable that some rows observe has no column",
        lambda: RowSums(CHAIN, [0], [1, 2], soft=[1]),
    ),
    (
        "rows: the model's log potentials add up to more than doubles hold",
        lambda: RowSums(HUGE, [0], [1]),
    ),
    (
        "rows: a state is none of its variable's",
        lambda: RowSums(CHAIN, [0], [1, 2]).logs(STATE - 1),
    ),
    (
        "rows: variables that are not observed are not independent",
        lambda: UnitSums(CHAIN, [0]),
    ),
    (
        "rows: a state is none of its variable's",
        lambda: UnitSums(CHAIN, [0, 1]).logs(np.full((1, 2), 2)),
    ),
]

CASES = [
    *(Case(ModelError, text, act) for text, act in MODELS),
    *(Case(ParameterError, text, act) for text, act in PARAMETERS),
    *(Case(RefutedError, text, act) for text, act in REFUTED),
]
