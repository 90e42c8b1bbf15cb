"""Commands about models themselves: what a file holds, and random models to try."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tightz.cli.options import Source, emit, model_argument, require_writable
from tightz.shown import Members

if TYPE_CHECKING:
    from tightz.elimination.exact.ways import Way


@click.command("info")
@model_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def info(source: Source, as_json: bool) -> None:
    """What a model file holds, and how it would be summed exactly: width, memory, seconds.

    `tightz exact` takes the model as it is; `tightz logz` first takes out what evidence, zeros and
    leaves determine, and may sum what is left in another way.

    \b
    Example: tightz info model.uai -e model.uai.evid
    """
    import numpy as np

    from tightz.elimination.exact import exact_way
    from tightz.errors import TightzError
    from tightz.workspace.working import Working

    graph = source.load()
    counts = np.bincount(graph.arities, minlength=1)
    working = Working(graph)
    left, after = working.graph.n_variables, working.way
    way = after
    if left < graph.n_variables:
        try:
            way = exact_way(graph, marginals=False)
        except TightzError:
            way = None
    record: dict[str, Any] = {
        "variables": graph.n_variables,
        "observed": len(graph.evidence),
        "factors": graph.n_factors,
        "factors_by_arity": {str(a): int(c) for a, c in enumerate(counts) if c},
        "max_states": int(graph.cardinalities.max(initial=0)),
        "zero_entries": int((graph.log_tables == -np.inf).sum()),
        "table_entries": int(graph.log_tables.size),
        "exact": _told(way),
        "variables_left": left,
        "logz": _told(after),
        "names": graph.names,
        "states": graph.states,
        "sha256": graph.digest,
    }
    if as_json:
        emit("info", **record)
        return
    arities = ", ".join(f"{c} of arity {a}" for a, c in enumerate(counts) if c)
    click.echo(f"variables     {record['variables']} (up to {record['max_states']} states)")
    if graph.names is not None:
        click.echo(f"names         {', '.join(graph.names)}")
    click.echo(f"observed      {record['observed']}")
    click.echo(f"factors       {arities or 'none'}")
    click.echo(f"zero entries  {record['zero_entries']} of {record['table_entries']}")
    click.echo(f"exact         {_said(way)}")
    if left < graph.n_variables:
        rest = f"{left} variables are left after the reductions; {_said(after)}"
        click.echo(f"logz          {rest if left else 'the reductions leave nothing to sum'}")
    click.echo(f"sha256        {graph.digest}")


def _told(way: Way | None) -> Members | None:
    """A way to sum a model, for JSON; None where all are out of reach."""
    if way is None:
        return None
    plan = getattr(way, "plan", None)
    return Members(
        method=way.name,
        how=way.describe(),
        bytes=int(way.bytes),
        seconds=way.seconds,
        width=None if plan is None else plan.width,
        operations=None if plan is None else plan.flops,
    )


def _said(way: Way | None) -> str:
    return "out of reach by every way known" if way is None else way.describe()


@click.group("generate")
def generate() -> None:
    """Write a random model to a file; the ending of its name tells the kind.

    \b
    Example: tightz generate ising-grid 20 --coupling -10 10 --seed 0 -o grid.uai
    """


class Ranges(click.Command):
    """A command whose options of two numbers also take one, which stands for both."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = {o for p in self.params if p.nargs == 2 for o in p.opts}
        given: list[str] = []
        for k, word in enumerate(args):
            given.append(word)
            option, _, value = word.partition("=")
            if value and option in names:
                first, after = value, args[k + 1 : k + 2]
            elif k and args[k - 1] in names:
                first, after = word, args[k + 1 : k + 2]
            else:
                continue
            if not any(map(_is_number, after)):
                given.append(first)
        return super().parse_args(ctx, given)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@generate.command("ising-grid", cls=Ranges)
@click.argument("rows", type=int)
@click.argument("cols", type=int, required=False)
@click.option(
    "--coupling",
    type=float,
    nargs=2,
    default=(-1.0, 1.0),
    show_default=True,
    help="Couplings are uniform between these two; one number: all are that.",
)
@click.option(
    "--field",
    type=float,
    nargs=2,
    default=(-1.0, 1.0),
    show_default=True,
    help="Fields are uniform between these two; one number: all are that.",
)
@click.option("--periodic", is_flag=True, help="Wrap around both directions.")
@click.option("--field-per-edge", is_flag=True, help="The paper's psi_ij: fields once per edge.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option("-o", "--output", type=click.Path(), required=True, help="Where to write.")
def generate_ising_grid(
    rows: int,
    cols: int | None,
    coupling: tuple[float, float],
    field: tuple[float, float],
    periodic: bool,
    field_per_edge: bool,
    seed: int,
    output: str,
) -> None:
    """An Ising lattice with uniformly drawn couplings and fields.

    \b
    Example: tightz generate ising-grid 20 --coupling -10 10 --seed 0 -o grid.uai
    """
    import tightz as tz

    require_writable(output)
    graph = tz.ising_grid(
        rows,
        cols,
        coupling=coupling,
        field=field,
        seed=seed,
        periodic=periodic,
        field_per_edge=field_per_edge,
    )
    tz.write(graph, output)
    click.echo(f"{output}: {graph}", err=True)
