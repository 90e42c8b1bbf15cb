"""`tightz generate` for the models of statistical physics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tightz.cli.models import Ranges, generate
from tightz.cli.options import bundle, require_writable
from tightz.errors import ParameterError

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True)
class Couplings:
    """--coupling, --plus-minus and --normal, of which one is given, and --field."""

    coupling: tuple[float, float] | None
    plus_minus: float | None
    normal: float | None
    field: tuple[float, float]

    def drawn(self) -> dict[str, Any]:
        """coupling and field as the builders take them."""
        import tightz as tz

        given = {
            "--coupling": self.coupling,
            "--plus-minus": None if self.plus_minus is None else tz.PlusMinus(self.plus_minus),
            "--normal": None if self.normal is None else tz.Normal(0.0, self.normal),
        }
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise ParameterError(f"{' and '.join(named)} are given; expected one of them")
        return {"coupling": given[named[0]] if named else 1.0, "field": self.field}


_field = click.option(
    "--field",
    type=float,
    nargs=2,
    default=(0.0, 0.0),
    show_default=True,
    help="Fields are uniform between these two; one number: all are that.",
)
_couplings = bundle(
    "couplings",
    Couplings,
    click.option(
        "--coupling",
        type=float,
        nargs=2,
        help="Couplings are uniform between these two; one number: all are that.  [default: 1]",
    ),
    click.option("--plus-minus", type=float, metavar="J", help="Couplings are +J or -J at random."),
    click.option(
        "--normal", type=float, metavar="SIGMA", help="Couplings are normal around 0, so wide."
    ),
    _field,
)


def _written(command: Callable[..., FactorGraph]) -> Callable:
    """--seed and -o: the model that `command` returns is written."""

    def run(output: str, **values: Any) -> None:
        import tightz as tz

        require_writable(output)
        graph = command(**values)
        tz.write(graph, output)
        click.echo(f"{output}: {graph}", err=True)

    run.__doc__ = command.__doc__
    where = click.option("-o", "--output", type=click.Path(), required=True, help="Where to write.")
    seed = click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
    return seed(where(run))


_periodic = click.option("--periodic", is_flag=True, help="Close every direction to a ring.")


@generate.command("lattice", cls=Ranges)
@click.argument("shape", type=int, nargs=-1, required=True)
@_couplings
@_periodic
@_written
def lattice(shape: tuple[int, ...], couplings: Couplings, periodic: bool, seed: int) -> FactorGraph:
    """Spins on a lattice of any dimension: SHAPE is the length of each side.

    \b
    Example: tightz generate lattice 6 6 6 --plus-minus 1 --periodic -o cube.uai
    """
    import tightz as tz

    return tz.ising_lattice(shape, **couplings.drawn(), seed=seed, periodic=periodic)


@generate.command("triangular", cls=Ranges)
@click.argument("rows", type=int)
@click.argument("cols", type=int, required=False)
@_couplings
@_periodic
@_written
def triangular(
    rows: int, cols: int | None, couplings: Couplings, periodic: bool, seed: int
) -> FactorGraph:
    """Spins on a triangular lattice.

    \b
    Example: tightz generate triangular 16 --coupling -1 --periodic -o antiferromagnet.uai
    """
    import tightz as tz

    return tz.ising_triangular(rows, cols, **couplings.drawn(), seed=seed, periodic=periodic)


@generate.command("random-regular", cls=Ranges)
@click.argument("n", type=int)
@click.argument("degree", type=int, default=3)
@_couplings
@_written
def random_regular(n: int, degree: int, couplings: Couplings, seed: int) -> FactorGraph:
    """N spins on a random graph, each with DEGREE neighbours (3 unless given).

    \b
    Example: tightz generate random-regular 200 3 --plus-minus 1 -o glass.uai
    """
    import tightz as tz

    return tz.random_regular(n, degree, **couplings.drawn(), seed=seed)


@generate.command("sk", cls=Ranges)
@click.argument("n", type=int)
@_field
@_written
def sk(n: int, field: tuple[float, float], seed: int) -> FactorGraph:
    """The Sherrington-Kirkpatrick glass: all pairs of N spins, couplings of variance 1/N.

    \b
    Example: tightz generate sk 20 -o sk.uai
    """
    import tightz as tz

    return tz.sherrington_kirkpatrick(n, field=field, seed=seed)


@generate.command("hopfield", cls=Ranges)
@click.argument("patterns", type=int)
@click.argument("n", type=int)
@_field
@_written
def hopfield(patterns: int, n: int, field: tuple[float, float], seed: int) -> FactorGraph:
    """Hopfield's memory of PATTERNS random patterns in N spins.

    \b
    Example: tightz generate hopfield 2 100 -o memory.uai
    """
    import tightz as tz

    return tz.hopfield(patterns, n, field=field, seed=seed)
