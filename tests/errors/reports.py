"""What reports say."""

from __future__ import annotations

import numpy as np

import tightz as tz
from tests.errors.table import Case
from tightz.cli import report as command
from tightz.errors import ModelError, ParameterError, TightzError
from tightz.reports import report, report_data
from tightz.reports.data import as_marginals


def _written(tmp, name, text):
    (tmp / name).write_text(text)
    return tmp / name


CASES = [
    Case(
        ParameterError,
        "a report cannot be made from int; expected a result such as log_partition(...) or "
        "estimate(...) returns, or the path of a run store or JSON record",
        lambda: report_data(3),
    ),
    Case(
        TightzError,
        "TMP/no/page.html: cannot be written (No such file or directory); choose a path in a "
        "folder that is there and writable",
        lambda tmp: report(tz.exact(tz.ising_grid(2, seed=0)), tmp / "no" / "page.html"),
    ),
    Case(
        ModelError,
        "TMP/run.db: no such file; expected a run store or a JSON record",
        lambda tmp: report_data(tmp / "run.db"),
    ),
    Case(
        ModelError,
        "TMP: cannot be read (Is a directory); expected a run store or a JSON record",
        lambda tmp: report_data(tmp),
    ),
    Case(
        ModelError,
        "TMP/notes.txt is neither a run store nor a JSON record (...); make one with `tightz logz "
        "MODEL --store run.db` or `tightz logz MODEL --json > run.json`",
        lambda tmp: report_data(_written(tmp, "notes.txt", "hello")),
    ),
    Case(
        ModelError,
        "TMP/a.json has no field 'command' or 'result'; expected the record of a tightz command "
        "with --json, or what to_json() of a result wrote",
        lambda tmp: report_data(_written(tmp, "a.json", '{"lower": 3}')),
    ),
    Case(
        ModelError,
        "the record of 'info' holds no bound, estimate, table or marginals; expected one of logz, "
        "mfrp, theorem, mean-field, exact, upper, ais, wish or marginals",
        lambda tmp: report_data(_written(tmp, "i.json", '{"command": "info", "variables": 4}')),
    ),
    Case(
        ModelError,
        "the record of 'mfrp' is not as this version writes it (KeyError 'levels'); run the "
        "command again with --json",
        lambda tmp: report_data(_written(tmp, "b.json", '{"command": "mfrp", "log_gammas": []}')),
    ),
    Case(
        ParameterError,
        "shape is 3 x 9; expected positive sides with at most 12 cells, one per variable",
        lambda: as_marginals(np.full((12, 2), 0.5), "", shape=(3, 9)),
    ),
    Case(
        ParameterError,
        "the run has marginals of 12 variables, the model has 9; give the model of the run",
        lambda: as_marginals(np.full((12, 2), 0.5), "", model=tz.ising_grid(3, seed=0)),
    ),
    Case(
        ParameterError,
        "shape is '3by3'; expected rows and columns such as 20x30",
        lambda: command._shape("3by3"),
    ),
]
