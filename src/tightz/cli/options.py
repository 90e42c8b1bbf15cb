"""Options and steps that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tightz.cli import exits
from tightz.errors import ModelError, ParameterError
from tightz.runtime.memory import MAX_MEMORY
from tightz.shown import Recorded, as_json

if TYPE_CHECKING:
    from tightz.interval.evidence import Contradiction
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


def bundle(name: str, kind: type, *options: Callable) -> Callable:
    """A decorator: the values of `options` reach the command as one `kind`, under `name`."""
    fields = [f.name for f in dataclasses.fields(kind)]

    def decorate(command: Callable) -> Callable:
        @functools.wraps(command)
        def gathered(*args: Any, **values: Any) -> Any:
            own = {field: values.pop(field) for field in fields}
            return command(*args, **{name: kind(**own)}, **values)

        for option in reversed(options):
            gathered = option(gathered)
        return gathered

    return decorate


@dataclass(frozen=True)
class Source:
    """MODEL and the options that say how it is read."""

    path: str
    evidence: tuple[str, ...] = ()
    format: str | None = None
    zeros_below: float | None = None
    rbm_rows: str | None = None

    def load(self) -> FactorGraph:
        """Read the model by the ending of its name; --zeros-below is applied."""
        from tightz.models.factor_graph import FactorGraph
        from tightz.models.formats import read
        from tightz.models.formats.evidence import given
        from tightz.models.scale import log_removed

        options: dict[str, Any] = {}
        if self.rbm_rows is not None:
            options["transposed"] = self.rbm_rows == "hidden"
        model = read(self.path, format=self.format, **options)
        if not isinstance(model, FactorGraph):
            raise ModelError(f"{self.path} holds results; expected a model")
        for one in self.evidence:
            model = given(model, one)
        if self.zeros_below is None:
            return model
        zeroed = model.with_zeros(self.zeros_below)
        count = int((zeroed.log_tables != model.log_tables).sum())
        most = log_removed(model, self.zeros_below)
        click.echo(
            f"{self.path}: {count} entries taken as zeros; Z loses at most exp({most:g})", err=True
        )
        return zeroed


evidence_option = click.option(
    "--evidence",
    "-e",
    multiple=True,
    metavar="NAME=STATE|FILE",
    help="What is observed: smoke=yes by names, 3=1 by numbers, or a file of such lines, of UAI's "
    "evidence or a JSON object. May be repeated.",
)
"""-e, as often as there is evidence."""


model_argument = bundle(
    "source",
    Source,
    click.argument("path", metavar="MODEL", type=click.Path()),
    evidence_option,
    click.option(
        "--format", metavar="ENDING", help="Read it as uai, fg, cnf, ... whatever its own ending."
    ),
    click.option(
        "--zeros-below",
        type=float,
        metavar="X",
        help="Log potentials lower than their table's largest by more than -X are zeros: "
        "-1e9 for a model that writes -1e30 for 0.",
    ),
    click.option(
        "--rbm-rows",
        type=click.Choice(["visible", "hidden"]),
        help="What the rows of W are in a file of RBM weights; needed where W is square.",
    ),
)
"""MODEL, and how it is read."""


def time_limit_option(default: float | None, help: str = "Seconds.") -> Callable:
    """-T."""
    return click.option(
        "--time-limit", "-T", type=float, default=default, show_default=default is not None,
        help=help,
    )  # fmt: skip


max_memory_option = click.option(
    "--max-memory", default=MAX_MEMORY, show_default=True, help="Work space allowed."
)
"""--max-memory."""


def state_text(graph: FactorGraph, state: Any) -> str:
    """A state as lines name=state, which -e takes again; numbers stand for names that are not."""
    return "\n".join(f"{name}={value}" for name, value in graph.naming.assignment(state).items())


def common_options(command: Callable) -> Callable:
    """--seed and --json."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")(
        command
    )
    return click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")(
        command
    )


@dataclass(frozen=True)
class Workers:
    """Where the work is done."""

    workers: int | None = None
    cluster: str | None = None

    def open(self) -> AbstractContextManager[Submits | None]:
        """In a `with` statement: the executor of --workers or --cluster, None for threads."""
        from tightz.runtime.cluster import open_executor

        return open_executor(self.workers, self.cluster)


executor_options = bundle(
    "where",
    Workers,
    click.option(
        "--workers",
        type=int,
        metavar="N",
        help="Run on N local processes.  [default: threads; logz: both, on many cores]",
    ),
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Run on the dask cluster of this scheduler (tcp://...).",
    ),
)
"""--workers and --cluster."""


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


@dataclass(frozen=True)
class Kept:
    """Where a run is kept, and whether one that is there goes on."""

    store: str | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        if self.resume and self.store is None:
            raise ParameterError("--resume needs --store FILE: which run is to go on?")


store_options = bundle(
    "kept",
    Kept,
    click.option("--store", type=click.Path(), help="Keep the run in this SQLite file as it goes."),
    click.option(
        "--resume", is_flag=True, help="Go on with the run in --store; the same model and options."
    ),
)
"""--store and --resume."""


@dataclass(frozen=True)
class Trials:
    """--levels, --trials and --restarts: the paper's m, T and J."""

    levels: str | None
    trials: int | None
    restarts: int


def trial_options(trials: int | None, trials_help: str, levels_help: str) -> Callable:
    """--levels, --trials (by default `trials`) and --restarts, as `size`."""
    return bundle(
        "size",
        Trials,
        click.option("--levels", help=levels_help),
        click.option(
            "--trials", "-t", type=int, default=trials, show_default=True, help=trials_help
        ),
        click.option("--restarts", "-j", type=int, default=8, show_default=True, help=J_HELP),
    )


def parse_levels(text: str | None) -> list[int] | None:
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


def emit(command: str, result: Recorded | None = None, **more: Any) -> None:
    """Print one JSON record, that of a result and what goes with it, by results.schema.json."""
    told = {} if result is None else result.record()
    record = {"command": command, **told, **as_json(more)}
    click.echo(json.dumps(record, indent=2, allow_nan=False))


def leave(contradiction: Contradiction | None) -> None:
    """End with the exit code of evidence that is impossible, where it is."""
    if contradiction is not None:
        click.get_current_context().exit(exits.CONTRADICTED)


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
