"""`tightz free-energy`: thermodynamics over a grid of temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tightz.cli import exits
from tightz.cli.options import (
    Source,
    bundle,
    common_options,
    delta_option,
    emit,
    max_memory_option,
    model_argument,
    progress,
    require_writable,
    time_limit_option,
)
from tightz.errors import ParameterError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Grid:
    """--temperatures or --betas."""

    temperatures: str | None
    betas: str | None

    def parsed(self) -> dict[str, Any]:
        """The one of the two that was given, as an argument of `tz.free_energy`."""
        return {
            name: None if text is None else parse_grid(text, f"--{name}")
            for name, text in vars(self).items()
        }


def parse_grid(text: str, name: str) -> NDArray[np.float64]:
    """'1.5:3.5:20' (both ends and how many) or '1,2,2.5'."""
    import numpy as np

    from tightz.interval.free_energy import MOST

    try:
        if ":" in text:
            low, high, count = text.split(":")
            # one too many is refused like a million too many
            return np.linspace(float(low), float(high), min(int(count), MOST + 1))
        return np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise ParameterError(
            f"{name} is {text!r}; expected LOW:HIGH:COUNT like 1.5:3.5:20, or a list like 1,2,2.5"
        ) from None


@click.command("free-energy")
@model_argument
@bundle(
    "grid",
    Grid,
    click.option(
        "--temperatures",
        metavar="GRID",
        help="1.5:3.5:20 is 20 temperatures from 1.5 to 3.5; or a list, 1,2,2.5. The model as "
        "given is the one at T = 1.",
    ),
    click.option("--betas", metavar="GRID", help="Inverse temperatures instead, in the same way."),
)
@time_limit_option(60.0, "Seconds, for all temperatures together.")
@delta_option
@click.option("--exact/--no-exact", default=True, help="Allow summing the whole model.")
@max_memory_option
@click.option("--plot", type=click.Path(), help="Save a picture of the curves with their bands.")
@common_options
@exits.answers
def free_energy(
    source: Source,
    grid: Grid,
    time_limit: float,
    delta: float,
    exact: bool,
    max_memory: str,
    plot: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Free energy, energy, entropy, heat capacity, magnetisation over temperatures.

    \b
    Where the model is summed exactly the values are exact; elsewhere intervals on log Z at all
    temperatures hold together with confidence 1 - delta, energies and entropies have the intervals
    that follow because log Z is convex in 1/T, and what is marked ~ is an estimate.

    Ctrl-C prints what is known.

    \b
    Example: tightz free-energy grid.uai --temperatures 1.5:3.5:20 --plot curves.png
    """
    import tightz as tz

    require_writable(plot)
    if plot:
        from tightz.plots import require_picture

        require_picture(plot)
    chosen = grid.parsed()
    graph = source.load()
    count = sum(values.size for values in chosen.values() if values is not None)
    with progress("temperatures", count) as step:
        r = tz.free_energy(
            graph,
            **chosen,
            time_limit=time_limit,
            delta=delta,
            exact=exact,
            max_memory=max_memory,
            seed=seed,
            on_point=lambda _: step(),
        )
    if plot:
        from tightz.plots import save

        save(r.plot(), plot)
    if as_json:
        emit("free-energy", r)
    else:
        click.echo(r.summary())
