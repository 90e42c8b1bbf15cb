"""Options and steps that several commands share."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tightz.errors import ModelError, ParameterError

if TYPE_CHECKING:
    from tightz.bounds import Bound
    from tightz.models.factor_graph import FactorGraph
    from tightz.runtime.executors import Submits


T_HELP = (
    "Random projections per level (T). T = 5 shows the spread; Theorem 1 at n = 400 and "
    "delta = 0.05 asks for T = 2140."
)
J_HELP = "Random starts per projection (J), the best of which counts: J = 8 costs 8 times J = 1."
LEVELS_HELP = (
    "Numbers m of parities, as 0:20 or 0,5,10. About 1 state in 2^m is left: m = 10, 1 in 1024."
)


ZEROS = "tightz.zeros_below"
"""Where a command's --zeros-below waits for `load`."""


ROWS = "tightz.rbm_rows"
"""Where a command's --rbm-rows waits for `load`."""


def _keep(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """An option that waits in the context until `load` asks for it."""

    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        context.meta[key] = value

    return keep


def _waiting(key: str) -> Any:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(key)


def model_argument(command: Callable) -> Callable:
    """MODEL, --evidence, and two options that `load` heeds by itself."""
    command = click.option(
        "--rbm-rows",
        type=click.Choice(["visible", "hidden"]),
        expose_value=False,
        callback=_keep(ROWS),
        help="What the rows of W are in a file of RBM weights; needed where W is square.",
    )(command)
    command = click.option(
        "--zeros-below",
        type=float,
        metavar="X",
        expose_value=False,
        callback=_keep(ZEROS),
        help="Log potentials lower than their table's largest by more than -X are zeros: "
        "-1e9 for a model that writes -1e30 for 0.",
    )(command)
    command = click.option(
        "--evidence", "-e", type=click.Path(), help="UAI evidence file; both dialects are read."
    )(command)
    return click.argument("model", type=click.Path())(command)


def common_options(command: Callable) -> Callable:
    """--seed and --json."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")(
        command
    )
    return click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")(
        command
    )


def executor_options(command: Callable) -> Callable:
    """--workers and --cluster; `chosen_executor` opens what they name."""
    command = click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Run on the dask cluster of this scheduler (tcp://...).",
    )(command)
    return click.option(
        "--workers", type=int, metavar="N", help="Run on N local processes.  [default: threads]"
    )(command)


def chosen_executor(
    workers: int | None, cluster: str | None
) -> AbstractContextManager[Submits | None]:
    """In a `with` statement: the executor of --workers or --cluster, None for threads."""
    from tightz.runtime.cluster import open_executor

    return open_executor(workers, cluster)


def delta_option(command: Callable) -> Callable:
    """--delta."""
    return click.option(
        "--delta",
        type=float,
        default=0.05,
        show_default=True,
        help="A bound with confidence 1 - delta fails in a share delta of runs at most: "
        "delta = 0.05 is 1 run in 20.",
    )(command)


def store_options(command: Callable) -> Callable:
    """--store and --resume."""
    command = click.option(
        "--resume", is_flag=True, help="Go on with the run in --store; the same model and options."
    )(command)
    return click.option(
        "--store", type=click.Path(), help="Keep the run in this SQLite file as it goes."
    )(command)


def check_resume(store: str | None, resume: bool) -> None:
    """--resume says nothing without --store."""
    if resume and store is None:
        raise ParameterError("--resume needs --store FILE: which run is to go on?")


def parse_levels(text: str | None, n: int) -> list[int] | None:
    """'0:20' or '1,2,5' -> list of m."""
    if text is None:
        return None
    try:
        if ":" in text:
            low, high = (int(part) for part in text.split(":"))
            chosen = list(range(low, high + 1))
        else:
            chosen = [int(part) for part in text.split(",")]
    except ValueError:
        chosen = []
    if not chosen:
        raise ParameterError(
            f"levels are {text!r}; expected a range like 0:20 or a list like 0,5,10"
        )
    return chosen


def load(path: str, evidence: str | None) -> FactorGraph:
    """Read a model by the ending of its name; --zeros-below of the command is applied."""
    from tightz.models.factor_graph import FactorGraph
    from tightz.models.formats import read

    rows = _waiting(ROWS)
    options = {} if rows is None else {"transposed": rows == "hidden"}
    model = read(path, evidence, **options)
    if not isinstance(model, FactorGraph):
        raise ModelError(f"{path} holds results; expected a model")
    below = _waiting(ZEROS)
    if below is None:
        return model
    from tightz.models.scale import log_removed

    zeroed = model.with_zeros(below)
    count = int((zeroed.log_tables != model.log_tables).sum())
    most = log_removed(model, below)
    click.echo(f"{path}: {count} entries taken as zeros; Z loses at most exp({most:g})", err=True)
    return zeroed


def require_writable(*paths: str | None) -> None:
    """Refuse an output that cannot be written, before any work is done for it."""
    for path in filter(None, paths):
        folder = Path(path).parent
        if not folder.is_dir():
            problem = "its folder does not exist; create it first"
        elif os.path.isdir(path):
            problem = "it is a directory; expected a file"
        elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
            problem = "permission denied; choose another place"
        else:
            continue
        raise ParameterError(f"cannot write {path}: {problem}")


def emit(record: dict[str, Any]) -> None:
    """Print one JSON record; infinities and NaN as strings, since JSON has none."""
    click.echo(json.dumps(_plain(record), indent=2))


def record(bound: Bound) -> dict[str, Any]:
    """A bound as a JSON object."""
    return {
        "side": bound.side.value,
        "log_z": bound.log_z,
        "proof": bound.proof.name,
        "confidence": bound.confidence,
        "method": bound.method,
        "why": bound.why,
        "seconds": bound.seconds,
        "rounding": bound.rounding,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on stderr when it is a terminal; a no-op otherwise. Yields step(by=1)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda by=1: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda by=1: bars.advance(task, by)


def table(columns: list[str], rows: list[list[str]], title: str = "") -> None:
    """A table on stdout: rich on a terminal, plain aligned columns in a pipe."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if console.is_terminal:
        view = Table(title=title or None, title_justify="left", header_style="bold")
        for column in columns:
            view.add_column(column, justify="right" if column != columns[-1] else "left")
        for row in rows:
            view.add_row(*row)
        console.print(view)
        return
    widths = [max(len(r[i]) for r in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())
