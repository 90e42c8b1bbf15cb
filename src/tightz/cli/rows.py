"""Commands over many rows: `tightz likelihood` and `tightz sweep`."""

from __future__ import annotations

import json
from typing import Any

import click

from tightz.cli import exits
from tightz.cli.options import (
    Source,
    common_options,
    delta_option,
    emit,
    leave,
    max_memory_option,
    model_argument,
    require_writable,
    time_limit_option,
)


@click.command("likelihood")
@model_argument
@click.argument("data", type=click.Path())
@click.option(
    "--threshold",
    type=float,
    metavar="X",
    help="Numbers above X are state 1, others state 0: 127 for grey values up to 255.",
)
@click.option("--rows", "count", type=int, metavar="N", help="Take the first N rows only.")
@click.option(
    "--given",
    "-g",
    multiple=True,
    metavar="NAME",
    help="A variable of the rows that is a condition: log p(the others | these). May be repeated.",
)
@click.option(
    "--output", "-o", type=click.Path(), help="Write a line for each row, with its ends, as .csv."
)
@time_limit_option(60.0)
@delta_option
@max_memory_option
@common_options
@exits.answers
def likelihood(
    source: Source,
    data: str,
    threshold: float | None,
    count: int | None,
    given: tuple[str, ...],
    output: str | None,
    time_limit: float,
    delta: float,
    max_memory: str,
    seed: int,
    as_json: bool,
) -> None:
    """log p of the rows of DATA and their mean, between ends that hold always.

    DATA is .npy, .npz, .csv, .jsonl, .evid or an idx file of images; empty cells and nan are not
    observed. The columns are the model's variables, or the visible units of an RBM, in order,
    unless the file names them. The lower end of log p rests on the upper end of log Z: it is the
    conservative one.

    \b
    Example: tightz likelihood rbm.npz t10k-images-idx3-ubyte.gz --threshold 127
    """
    import tightz as tz
    from tightz.cli.live import live_bounds

    require_writable(output)
    graph = source.load()
    rows = _rows(graph, data, threshold, count)
    asked = [graph.naming.index(name, "given", text=True) for name in given]
    with live_bounds(time_limit) as show:
        r = tz.log_likelihood(
            graph,
            rows,
            given=asked or None,
            time_limit=time_limit,
            delta=delta,
            max_memory=max_memory,
            seed=seed,
            on_bound=show,
        )
    if output:
        _write_examples(r, output)
    if as_json:
        emit("likelihood", r)
    else:
        click.echo(r.summary())
    leave(r.contradiction)


def _rows(graph: Any, path: str, threshold: float | None, count: int | None) -> Any:
    """The rows of a file, of which `--threshold` makes two states and `--rows` takes the first."""
    import numpy as np

    from tightz.errors import ParameterError, require_range
    from tightz.models.formats.row_files import read_rows
    from tightz.models.rows import Rows, rows_of

    data: Any = path
    if threshold is not None:
        data = read_rows(path)
        if not isinstance(data, np.ndarray):
            raise ParameterError(f"--threshold is for numbers; {path} holds names of states")
        data = np.where(np.isnan(data), np.nan, data > threshold)
    rows = rows_of(graph, data)
    if count is None:
        return rows
    require_range("rows", count, 1)
    return Rows(rows.variables, rows.states[:count])


def _write_examples(r: Any, path: str) -> None:
    import csv
    from dataclasses import asdict

    columns = {name: values.tolist() for name, values in asdict(r.examples).items()}
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


@click.command("sweep")
@model_argument
@click.argument("rows", type=click.Path())
@click.option(
    "--query",
    "-q",
    "targets",
    multiple=True,
    metavar="NAME",
    help="A variable whose distribution is wanted in every row; may be repeated.",
)
@click.option("--strict", is_flag=True, help="Stop at a row that cannot be read, before any other.")
@time_limit_option(60.0, "Seconds for log Z, and for each row that needs a run of its own.")
@max_memory_option
@common_options
def sweep(
    source: Source,
    rows: str,
    targets: tuple[str, ...],
    strict: bool,
    time_limit: float,
    max_memory: str,
    seed: int,
    as_json: bool,
) -> None:
    """log Z, P(evidence) and posteriors for each row of evidence of a file, a line each.

    ROWS is a .csv whose first line names variables (an empty cell is not observed), .jsonl with an
    object {variable: state} on each line, UAI evidence with several samples (.evid), or .npy. What
    rows share is worked out once; lines come as rows are done and say which they are. A row that
    cannot be read is named on its line, the others go on, and the exit code is 2.

    \b
    Example: tightz sweep asia.bif patients.csv -q lung --json
    """
    import tightz as tz

    graph = source.load()
    asked = [graph.naming.index(name, "query", text=True) for name in targets]
    bad = 0
    for row in tz.sweep(
        graph, rows, asked, time_limit=time_limit, max_memory=max_memory, seed=seed, strict=strict
    ):
        bad += bool(row.problem)
        # one write for each line: Ctrl-C leaves whole ones
        told = {"command": "sweep", **row.record()} if as_json else {}
        click.echo(json.dumps(told, allow_nan=False) if as_json else row.summary())
    if bad:
        click.echo(f"error: {bad} rows could not be read, see above", err=True)
        click.get_current_context().exit(2)


COMMANDS: list[click.Command] = [likelihood, sweep]
