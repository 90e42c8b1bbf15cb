"""`tightz report`: a run as one self-contained HTML page."""

from __future__ import annotations

import click

from tightz.cli.options import Source, evidence_option
from tightz.errors import ParameterError


@click.command("report")
@click.argument("run", type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    default="report.html",
    show_default=True,
    help="Where to write the page.",
)
@click.option("--model", type=click.Path(), help="The run's model file: for sizes, names and grid.")
@evidence_option
@click.option("--shape", help="Draw the first R*C variables as a picture: 20x20, 28x28.")
@click.option("--title", help="Heading; default the model's name or the file's.")
def report(
    run: str,
    output: str,
    model: str | None,
    evidence: tuple[str, ...],
    shape: str | None,
    title: str | None,
) -> None:
    """A page with the interval, every trial by level, marginals, certificate and provenance.

    RUN is a run store (--store run.db; a run that still goes on may be read too) or the record a
    command prints with --json. The page is one file and loads nothing from the network.

    \b
    Example: tightz logz grid.uai -T 30 --store run.db && tightz report run.db -o report.html
    """
    from tightz.reports import report as write

    graph = None if model is None else Source(model, evidence).load()
    path = write(run, output, model=graph, shape=_shape(shape), title=title)
    click.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB", err=True)


def _shape(text: str | None) -> tuple[int, int] | None:
    """'20x30' -> (20, 30)."""
    if text is None:
        return None
    try:
        rows, cols = (int(side) for side in text.lower().split("x"))
    except ValueError:
        raise ParameterError(
            f"shape is {text!r}; expected rows and columns such as 20x30"
        ) from None
    return rows, cols
