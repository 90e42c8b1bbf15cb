"""What the readers and writers of UAI files say."""

from __future__ import annotations

import os

import numpy as np

import tightz as tz
from tests.errors.table import Case, reads
from tightz.errors import ModelError

PAIR = "MARKOV\n2\n2 2\n1\n2 0 1\n\n4\n1 2 3 4\n"

MODELS = [
    ("", "the file is empty; expected MARKOV or BAYES and numbers (TMP/m.uai, line 1)"),
    (
        "MARKOV\n1\x00\n",
        "byte 8 is b'\\x00', which no text holds; expected a text file (TMP/m.uai, line 2)",
    ),
    ("MARCOV 1 2", "the file begins with 'MARCOV'; expected MARKOV or BAYES (TMP/m.uai, line 1)"),
    ("MARKOV", "the file ends where the number of variables was expected (TMP/m.uai, line 1)"),
    (
        "MARKOV\nthree\n",
        "the number of variables is 'three'; expected a whole number of at most 18 digits"
        " (TMP/m.uai, line 2)",
    ),
    ("MARKOV\n3\n2 2\n", "3 variables are announced; only 2 words follow (TMP/m.uai, line 2)"),
    (
        "MARKOV\n2\n2 0\n0\n",
        "variable 1 has '0' states; expected a whole number from 1 to 2147483647 "
        "(TMP/m.uai, line 3)",
    ),
    ("MARKOV\n1\ntwo\n0\n", "'two' is not a number; expected numbers here (TMP/m.uai, line 3)"),
    (
        "MARKOV\n2\n2 2\n5\n1 0\n",
        "5 factors are announced, which take at least 15 words; only 2 follow (TMP/m.uai, line 4)",
    ),
    (
        "MARKOV\n2\n2 2\n1\n3 0 1 0 8",
        "factor 0 announces 3 variables; the model has 2 (TMP/m.uai, line 5)",
    ),
    (
        "MARKOV\n5\n2 2 2 2 2\n1\n5 0 1",
        "factor 0 announces 5 variables; the file ends too early (TMP/m.uai, line 5)",
    ),
    (
        "MARKOV\n2\n2 2\n1\n2 0 2\n\n4\n1 2 3 4\n",
        "factor 0 names variable '2'; the model has variables 0 to 1 (TMP/m.uai, line 5)",
    ),
    (
        "MARKOV\n2\n2 2\n1\n2 1 1\n\n4\n1 2 3 4\n",
        "factor 0 names variable 1 twice in its scope (TMP/m.uai, line 5)",
    ),
    (
        "MARKOV\n2\n2 2\n2\n1 0\n1 1\n\n2\n1 2\n",
        "the file ends before the table of factor 1 (TMP/m.uai, line 9)",
    ),
    (
        "MARKOV\n2\n2 2\n1\n2 0 1\n\n4\n1 2 3\n",
        "factor 0 announces 4 entries; the file ends after 3 (TMP/m.uai, line 7)",
    ),
    (
        "MARKOV\n2\n2 4\n1\n2 0 1\n\n6\n1 2 3 4 5 6\n",
        "factor 0 lists 6 entries; its scope (0, 1) with 2 x 4 states needs 8 (TMP/m.uai, line 7)",
    ),
    (
        "MARKOV\n2\n2 2\n1\n2 0 1\n\n4\n1 2 -3 4\n",
        "factor 0, entry 2 is '-3'; potentials are finite numbers >= 0 (TMP/m.uai, line 8)",
    ),
    (PAIR + "5\n", "'5' follows the last table; the file should end there (TMP/m.uai, line 9)"),
]

EVIDENCE = [
    (
        "2 0 1\n",
        "evidence on 2 variables is announced and 2 words follow; expected 4, a variable "
        "and a state each (of one sample) (TMP/m.uai.evid, line 1)",
    ),
    (
        "1 7 0\n",
        "evidence names variable 7; the model has variables 0 to 1 (TMP/m.uai.evid, line 1)",
    ),
    (
        "1 0 2\n",
        "evidence puts variable 0 in state 2; it has states 0 to 1 (TMP/m.uai.evid, line 1)",
    ),
    ("2 0 1 0 0\n", "evidence puts variable 0 in state 1 and in 0 (TMP/m.uai.evid, line 1)"),
    (
        "1 0 one\n",
        "the observed state of variable 0 is 'one'; expected a whole number of at most 18"
        " digits (TMP/m.uai.evid, line 1)",
    ),
]

PR = [
    ("PR 1 2 3", "3 words follow PR; expected log10 Z alone (or 1 and log10 Z) (TMP/m.PR, line 1)"),
    ("PR nan", "log10 Z is 'nan'; expected a finite number or -inf (TMP/m.PR, line 1)"),
    ("MAR 1", "the file begins with 'MAR'; expected PR (TMP/m.PR, line 1)"),
]

MAR = [
    ("PR 1.5", "the file begins with 'PR'; expected MAR (TMP/m.MAR, line 1)"),
    ("MAR 3 2 0.5 0.5", "3 variables are announced; 3 numbers follow (TMP/m.MAR, line 1)"),
    (
        "MAR 2 2 0.5 0.5 4 0.5 0.5",
        "variable 1 lists 4 states; the file ends too early (TMP/m.MAR, line 1)",
    ),
    ("MAR 1 2 0.5 0.9", "the marginal of variable 0 sums to 1.4; expected 1 (TMP/m.MAR, line 1)"),
    (
        "MAR 2 2 0.5 0.5 2 0.5 0.5 7",
        "'7' follows the last marginal; the file should end there (TMP/m.MAR, line 1)",
    ),
]


def _with_evidence(path: os.PathLike[str]) -> object:
    model = path.__fspath__() + ".uai"
    with open(model, "w") as out:
        out.write(PAIR)
    return tz.read(model, path)


def _coupling(strength: float) -> tz.FactorGraph:
    return tz.ising({(0, 1): strength})


def _unreadable(tmp):
    (tmp / "\0").read_bytes()


def _write_twice(tmp):
    path = tmp / "both.uai"
    tz.write(tz.ising_grid(2, seed=0), path, evidence_path=path)


def _write_protected(tmp, patch):
    path = tmp / "m.uai"
    path.write_text("kept")
    patch.setattr(os, "access", lambda *_: False)
    tz.write(tz.ising_grid(2, seed=0), path)


CASES = [
    *(reads(tz.read, "m.uai", content, text) for content, text in MODELS),
    *(reads(_with_evidence, "m.uai.evid", content, text) for content, text in EVIDENCE),
    *(reads(tz.read, "m.PR", content, text) for content, text in PR),
    *(reads(tz.read, "m.MAR", content, text) for content, text in MAR),
    Case(ModelError, "TMP/m.uai does not exist", lambda tmp: tz.read(tmp / "m.uai")),
    Case(ModelError, "TMP is a directory; expected a file", lambda tmp: tz.read(tmp)),
    Case(ModelError, "cannot read m\u0000.uai: embedded null byte", lambda: tz.read("m\0.uai")),
    Case(
        ModelError,
        "cannot write TMP/a/m.uai: its folder does not exist; create it first",
        lambda tmp: tz.write(tz.ising_grid(2, seed=0), tmp / "a" / "m.uai"),
    ),
    Case(
        ModelError,
        "cannot write TMP/both.uai: two files would be written there; give each its own path",
        _write_twice,
    ),
    Case(
        ModelError,
        "cannot write TMP/m.uai: the file is read-only; choose another path",
        _write_protected,
    ),
    Case(
        ModelError,
        "the model has evidence on 2 variables, which a UAI model file cannot hold; pass "
        "evidence_path=, or write model.condition()",
        lambda tmp: tz.write(tz.ising_grid(2, seed=0).with_evidence({0: 1, 3: 0}), tmp / "m.uai"),
    ),
    Case(
        ModelError,
        "factor 2 has log potentials from -1e+06 to 1e+06; UAI tables are read as "
        "doubles, which hold -708 to 709: no shift brings it there; wide=True writes "
        "decimals that only tightz reads",
        lambda tmp: tz.write(_coupling(1e6), tmp / "m.uai"),
    ),
    Case(
        ModelError,
        "factor 2 has a log potential of 1e+300; decimals end near 2e18. Scale the model down",
        lambda tmp: tz.write(_coupling(1e300), tmp / "m.uai", wide=True),
    ),
    Case(
        ModelError,
        "log_z is nan; a PR file holds a finite number or -inf",
        lambda tmp: tz.write(np.nan, tmp / "m.PR"),
    ),
    Case(
        ModelError,
        "the marginal of variable 1 sums to 0.2; expected 1",
        lambda tmp: tz.write([[0.5, 0.5], [0.1, 0.1]], tmp / "m.MAR"),
    ),
]
