"""What the paper's experiments, their records and their figures say."""

from __future__ import annotations

from tests.errors.table import Case, refuses
from tightz.errors import ParameterError, TightzError
from tightz_experiments import canvas, rbm_models
from tightz_experiments.rbm import rbm_table
from tightz_experiments.store import Store


def _finish_below_a_file(tmp):
    (tmp / "file").write_text("")
    canvas.finish(canvas.new_figure(1, 1), tmp / "file" / "plot.png", "")


def _never():
    raise AssertionError("computed what cannot be kept")


def _store_nowhere(tmp):
    (tmp / "records").symlink_to(tmp / "nothing")
    Store(tmp / "records").recall("ising", {}, _never)


def _damaged_record(tmp):
    (tmp / "ising.json").write_text("{")
    Store(tmp).recall("ising", {}, dict)


def _no_data(patch):
    patch.delenv("TIGHTZ_DATA", raising=False)
    rbm_models.public_file()


CASES = [
    Case(
        TightzError,
        "TMP/file/plot.png: cannot be written (File exists); choose a path in a folder that "
        "is there and writable",
        _finish_below_a_file,
    ),
    Case(
        TightzError,
        "TMP/records: cannot be created (File exists); choose another folder with --out",
        _store_nowhere,
    ),
    Case(
        TightzError,
        "TMP/ising.json: no such record; compute it first",
        lambda tmp: Store(tmp).result("ising"),
    ),
    Case(
        TightzError,
        "TMP/ising.json is not a readable record (Expecting property name enclosed in "
        "double quotes: line 1 column 2 (char 1)); delete it to compute it again",
        _damaged_record,
    ),
    Case(
        ParameterError,
        "the public CD25_500 column needs rbm_mnist_CD25_500_salakhutdinov.npz; set "
        "TIGHTZ_DATA to the folder whose rbm/ holds it, or leave the column out",
        _no_data,
    ),
    refuses(
        "workers is 0; expected at least 1", rbm_table, Store("unused"), "unused.png", workers=0
    ),
]
