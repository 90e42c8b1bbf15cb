"""`tightz marginals`: the marginal of every variable, with its ends, and of pairs."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tightz.cli import exits
from tightz.cli.options import (
    LEVELS_HELP,
    T_HELP,
    Source,
    Trials,
    common_options,
    delta_option,
    emit,
    leave,
    max_memory_option,
    model_argument,
    parse_levels,
    require_writable,
    table,
    time_limit_option,
    trial_options,
)
from tightz.errors import require_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tightz.interval.evidence import Contradiction
    from tightz.interval.interval import LogPartition
    from tightz.models.factor_graph import FactorGraph
    from tightz.models.names import Names
    from tightz.models.pair_marginals import Moment, PairMarginal
    from tightz.results import Result

SECONDS = 60.0
"""Of a run that is not told how long."""

NOTHING = "Z = 0: no state has weight, so there are no marginals (exact)"


@dataclass(frozen=True)
class Found:
    """Marginals as they are printed: their source, values, and ends where there are any."""

    result: Result
    source: str
    vectors: Any
    always: Any = None
    confident: Any = None
    confidence: float = math.nan
    spread: Any = None
    notes: list[str] = field(default_factory=list)
    pair: Callable[[int, int], PairMarginal] | None = None
    contradiction: Contradiction | None = None

    @property
    def drawn(self) -> bool:
        """Whether any end holds with confidence only."""
        if self.always is None:
            return False
        return any((a != c).any() for a, c in zip(self.always, self.confident, strict=True))

    def headline(self) -> str:
        """What the values and the ends are, in one line."""
        likely = f", those with confidence {self.confidence:g} for all variables together"
        ends = "" if self.always is None or self.source == NOTHING else "; ends that hold always"
        return f"# {self.source}{ends}{likely if self.drawn else ''}"


@click.command("marginals")
@model_argument
@click.option(
    "--method",
    type=click.Choice(["auto", "exact", "mfrp"]),
    default="auto",
    show_default=True,
    help="auto: as logz does it, exact where that fits, with bounds either way; mfrp: the paper's "
    "average, without bounds.",
)
@trial_options(5, T_HELP, f"For mfrp. {LEVELS_HELP}  [default: 0:20]")
@time_limit_option(
    None, "Seconds; with exact, no sum that is predicted to take more.  [default: 60; exact: any]"
)
@delta_option
@max_memory_option
@click.option("--uai-output", type=click.Path(), help="Also write a UAI .MAR file: values only.")
@click.option(
    "--bounds", "bounds_output", type=click.Path(), metavar="FILE",
    help="Also write values and bounds as a CSV file.",
)  # fmt: skip
@click.option(
    "--pair", "pairs", nargs=2, multiple=True, metavar="A B",
    help="Also the joint distribution of these two variables, and their correlation where both "
    "have two states. May be repeated.",
)  # fmt: skip
@common_options
@exits.answers
def marginals(
    source: Source,
    method: str,
    size: Trials,
    time_limit: float | None,
    delta: float,
    max_memory: str,
    uai_output: str | None,
    bounds_output: str | None,
    pairs: tuple[tuple[str, str], ...],
    seed: int,
    as_json: bool,
) -> None:
    """Marginal probabilities of every variable, with bounds.

    \b
    Each value is followed by ends that hold always (+- where they are next to it) and, where
    draws say more, by ends that hold for all variables together with confidence 1 - delta.

    \b
    Example: tightz marginals grid.uai --bounds grid.csv --pair 0 1 --pair 0 8
    """
    import tightz as tz
    from tightz.interval.evidence import contradiction

    if time_limit is not None:
        require_seconds("time_limit", time_limit)
    require_writable(uai_output, bounds_output)
    graph, chosen = source.load(), parse_levels(size.levels)
    index = graph.naming.index
    asked = [(index(a, "--pair", text=True), index(b, "--pair", text=True)) for a, b in pairs]
    if method == "auto":
        r = tz.log_partition(
            graph, time_limit=time_limit or SECONDS, delta=delta, max_memory=max_memory, seed=seed
        )
        found = _of_run(graph, r, seed)
    elif method == "exact":
        limit = math.inf if time_limit is None else time_limit
        e = tz.exact(graph, max_memory=max_memory, time_limit=limit)
        nothing = e.log_z == -math.inf
        found = Found(
            e, NOTHING if nothing else "exact", e.marginals, e.marginal_bounds, e.marginal_bounds,
            1.0, pair=e.pair_marginal, contradiction=contradiction(graph) if nothing else None,
        )  # fmt: skip
    else:
        t = tz.estimate(
            graph,
            levels=chosen,
            trials=size.trials or 0,
            projections=tz.Projections(restarts=size.restarts, pairs=asked or None),
            seed=seed,
        )
        label = "mfrp (estimate: average of q over projections, weighted by 2^m gamma)"
        found = Found(t, label, list(t.marginals), spread=t.marginal_spread, pair=t.pair_marginal)
    if uai_output:
        tz.write(found.vectors, uai_output, format="MAR")
    if bounds_output:
        write_bounds(bounds_output, graph.naming, found.vectors, found.always, found.confident)
    joint = [found.pair(i, j) for i, j in asked] if found.pair else []
    if as_json:
        emit("marginals", found.result, pairs=joint)
        leave(found.contradiction)
        return
    click.echo(found.headline())
    if found.contradiction is not None:
        click.echo(found.contradiction.summary())
        leave(found.contradiction)
    _print(graph.naming, found)
    for pair in joint:
        click.echo(f"\n{pair.summary()}")
        for name, moment in _moments(pair).items():
            click.echo(f"  {name}: " + moment.summary().replace("\n", "\n    "))
    for note in found.notes:
        click.echo(f"note: {note}")


def _moments(pair: PairMarginal) -> dict[str, Moment]:
    """Of two spins; none where a variable has other than two states."""
    if any(int(pair.naming.cardinalities[v]) != 2 for v in pair.variables):
        return {}
    return {"correlation": pair.correlation, "covariance": pair.covariance}


def _of_run(graph: FactorGraph, r: LogPartition, seed: int) -> Found:
    import numpy as np

    vectors, label = r.marginals, r.marginal_origin
    if r.upper == -math.inf:
        label = NOTHING
    if vectors is None:
        vectors = [np.full(int(d), math.nan) for d in graph.cardinalities]
        label = label or "no method gave marginals in this time"
    return Found(
        r, label, vectors, r.marginal_bounds, r.confident.marginal_bounds, r.confident.confidence,
        notes=r.notes, pair=lambda i, j: r.pair_marginal(i, j, seed=seed),
        contradiction=r.contradiction,
    )  # fmt: skip


def _print(names: Names, found: Found) -> None:
    """A line for each state of each variable."""
    from tightz.models.ends import shown_ends

    head = ["variable", "state", "value"]
    if found.spread is not None:
        head += ["spread"]
    elif found.always is not None:
        head += ["always", "with confidence"] if found.drawn else ["always"]
    rows = []
    for v, vector in enumerate(found.vectors):
        for s, (state, p) in enumerate(zip(names.state_labels(v), vector, strict=True)):
            row = [names.label(v), state, "?" if math.isnan(p) else f"{p:.6f}"]
            if found.spread is not None:
                row.append(f"{found.spread[v]:.4f}")
            elif found.always is not None:
                row += shown_ends(p, found.always[v][s], found.confident[v][s])[: len(head) - 3]
            rows.append(row)
    table(head, rows)


def write_bounds(path: str, names: Names, vectors: Any, always: Any, confident: Any) -> None:
    """A CSV file with a line for each state of each variable; ends are empty where none is known.

    Numbers are written so that they are read back to the bit.
    """
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(
            ["variable", "state", "value", "lower", "upper", "confident_lower", "confident_upper"]
        )
        for v, vector in enumerate(vectors):
            for s, state in enumerate(names.state_labels(v)):
                ends = [""] * 4
                if always is not None:
                    ends = [repr(float(x)) for e in (always, confident) for x in e[v][s]]
                out.writerow([names.label(v), state, repr(float(vector[s])), *ends])
