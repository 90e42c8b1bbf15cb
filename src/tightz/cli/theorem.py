"""`tightz theorem`: the theorems' own parameters as an ordinary, resumable command."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tightz.cli.options import (
    LEVELS_HELP,
    Kept,
    Source,
    Trials,
    Workers,
    bundle,
    common_options,
    delta_option,
    emit,
    executor_options,
    model_argument,
    parse_levels,
    store_options,
    trial_options,
)

if TYPE_CHECKING:
    from tightz.paper.forecast import Forecast
    from tightz.paper.trials import TrialBatch

PLAIN_EVERY = 10.0
"""Seconds between lines of progress where stderr is not a terminal."""


@dataclass(frozen=True)
class How:
    """What the trials are made of, where they run, and whether they do."""

    family: str
    collapse: int
    search: bool
    backend: str
    dry_run: bool

    def arguments(self, size: Trials) -> dict[str, Any]:
        """The same for `theorem_run` and `theorem_forecast`."""
        import tightz as tz

        families = {
            "structured": tz.StructuredMeanField,
            "point-mass": tz.PointMass,
            "mean-field": tz.MeanField,
        }
        return {
            "levels": None if size.levels == "all" else parse_levels(size.levels),
            "trials": size.trials,
            "family": families[self.family](restarts=size.restarts),
            "projections": tz.Projections(
                collapse=self.collapse, search_sweeps=None if self.search else 0
            ),
            "backend": self.backend,
        }


@click.command("theorem")
@model_argument
@delta_option
@trial_options(
    None,
    "Random projections per level (T).  [default: ln(n/delta)/0.0042, at n = 400 and "
    "delta = 0.05 T = 2140]",
    f"{LEVELS_HELP}  [default: all]",
)
@bundle(
    "how",
    How,
    click.option(
        "--family",
        type=click.Choice(["mean-field", "structured", "point-mass"]),
        default="mean-field",
        show_default=True,
        help="Kind of q; point-mass (heaviest states) is what Theorem 2 speaks of.",
    ),
    click.option(
        "--collapse", type=int, default=0, show_default=True, help="Sum out easy spins first."
    ),
    click.option("--search/--no-search", default=False, help="Look for heavy states first."),
    click.option(
        "--backend",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where trials run.",
    ),
    click.option("--dry-run", is_flag=True, help="Print the forecast and stop."),
)
@store_options
@executor_options
@common_options
def theorem(
    source: Source,
    delta: float,
    size: Trials,
    how: How,
    kept: Kept,
    where: Workers,
    seed: int,
    as_json: bool,
) -> None:
    """Theorems 1 and 2 with their own number of trials at every level from 0 to n.

    T = ln(n/delta)/0.0042 projections at each of the n + 1 levels (n = 400, delta = 0.05: 2140
    each, 858,000 in all). A short pilot forecasts the cost. Theorem 1 then holds with confidence
    1 - 2 delta, Theorem 2 with 1 - delta, where their assumptions do; the certificate holds with
    1 - delta whatever the solver. Ctrl-C prints what the trials so far say; with --store the run
    goes on later with --resume.

    \b
    Example: tightz theorem grid.uai --delta 0.05 --store run.db
    """
    from tightz.paper.theorem_run import theorem_forecast, theorem_run

    graph = source.load()
    arguments: dict[str, Any] = {"delta": delta, "seed": seed, **how.arguments(size)}
    with where.open() as executor:
        if how.dry_run:
            plan = theorem_forecast(graph, executor=executor, **arguments)
            if as_json:
                emit("theorem", plan)
            else:
                click.echo(plan.summary())
            return
        if kept.resume:
            _tell_stored(str(kept.store))
        try:
            with _progress() as view:
                run = theorem_run(
                    graph,
                    executor=executor,
                    store=kept.store,
                    resume=kept.resume,
                    on_forecast=view.plan,
                    on_batch=view.step,
                    **arguments,
                )
        except KeyboardInterrupt:  # before the first batch
            click.echo(_how_to_go_on(kept.store), err=True)
            sys.exit(130)
    if as_json:
        emit("theorem", run, forecast=view.forecast)
    else:
        click.echo(run.summary())
    if not run.complete:
        click.echo(_how_to_go_on(kept.store), err=True)
        sys.exit(130)


def _tell_stored(store: str) -> None:
    from pathlib import Path

    from tightz.runtime.store import RunReader

    if Path(store).exists():
        with RunReader(store) as run:
            done, total = run.progress()
            click.echo(f"{store}: {done:,} of {total:,} trials are there already", err=True)


def _how_to_go_on(store: str | None) -> str:
    if store is None:
        return "interrupted; nothing was kept: give --store FILE to be able to go on"
    words = [word for word in sys.argv if word != "--resume"]
    words[0] = "tightz"
    return f"interrupted; go on with: {shlex.join([*words, '--resume'])}"


class _View:
    """Counts trials and tells, on stderr, how far the run is and when it will end."""

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self.show, self.done = show, 0
        self.forecast: Forecast | None = None

    def plan(self, plan: Forecast) -> None:
        self.forecast = plan
        click.echo(plan.summary(), err=True)

    def step(self, batch: TrialBatch) -> None:
        self.done += len(batch)
        if self.forecast is not None:
            self.show(self.done, self.forecast.total)


@contextmanager
def _progress() -> Iterator[_View]:
    """A bar with the time left on a terminal, a line now and then elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from tightz.paper.forecast import duration

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
            task = bars.add_task("trials", total=None)
            yield _View(lambda done, total: bars.update(task, completed=done, total=total))
        return
    last = [time.perf_counter(), 0]

    def line(done: int, total: int) -> None:
        seconds, made = time.perf_counter() - last[0], done - last[1]
        if seconds >= PLAIN_EVERY:
            last[:] = [time.perf_counter(), done]
            left = f", {duration(seconds * (total - done) / made)} left"
            early = 1000 * done < total  # kernels may still have been compiling
            click.echo(f"{done:,} of {total:,} trials{'' if early else left}", err=True)

    yield _View(line)
