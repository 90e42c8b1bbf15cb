"""Commands about models themselves: what a file holds, and random models to try."""

from __future__ import annotations

from typing import Any

import click

from tightz.cli.options import Source, emit, model_argument, require_writable


@click.command("info")
@model_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def info(source: Source, as_json: bool) -> None:
    """What a model file holds, and how it would be summed exactly: width, memory, seconds.

    \b
    Example: tightz info model.uai -e model.uai.evid
    """
    import numpy as np

    from tightz.workspace.working import Working

    graph = source.load()
    counts = np.bincount(graph.arities, minlength=1)
    working = Working(graph)
    way, plan = working.way, working.plan
    left = working.graph.n_variables
    reach = "out of reach by every way known" if way is None else way.describe()
    if not left:
        reach = "evidence, zeros and leaves leave nothing to sum"
    elif left < graph.n_variables:
        reach = f"{left} variables are left after the reductions; {reach}"
    record: dict[str, Any] = {
        "variables": graph.n_variables,
        "observed": len(graph.evidence),
        "factors": graph.n_factors,
        "factors_by_arity": {str(a): int(c) for a, c in enumerate(counts) if c},
        "max_states": int(graph.cardinalities.max(initial=0)),
        "zero_entries": int((graph.log_tables == -np.inf).sum()),
        "table_entries": int(graph.log_tables.size),
        "variables_left": left,
        "elimination_width": None if plan is None else plan.width,
        "elimination_flops": None if plan is None else plan.flops,
        "exact_by": None if way is None else way.name,
        "exact_bytes": None if way is None else int(way.bytes),
        "exact_seconds": None if way is None or way.seconds != way.seconds else way.seconds,
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
    click.echo(f"exact         {reach}")
    click.echo(f"sha256        {graph.digest}")


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
