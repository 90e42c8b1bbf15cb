"""Commands for the reference methods: exact, upper, ais, map, wish."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from tightz.bounds import figure
from tightz.cli import exits
from tightz.cli.options import (
    Source,
    common_options,
    delta_option,
    emit,
    leave,
    max_memory_option,
    model_argument,
    progress,
    state_text,
    time_limit_option,
)
from tightz.errors import ParameterError
from tightz.runtime.backends import Backend

if TYPE_CHECKING:
    from tightz.interval.ground_state import GroundState
    from tightz.models.factor_graph import FactorGraph


@click.command("exact")
@model_argument
@time_limit_option(None, "Refuse at once what is predicted to take more seconds.")
@max_memory_option
@click.option(
    "--backend",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="auto: a GPU where there is one and it is faster.",
)
@common_options
def exact(
    source: Source,
    time_limit: float | None,
    max_memory: str,
    backend: Backend,
    seed: int,
    as_json: bool,
) -> None:
    """Exact log Z by whatever way is fastest, refused in advance where none fits.

    Elimination by an order or a contraction tree, Pfaffians (planar, no fields), model counting
    (clauses). The model is taken as it is; `tightz logz` reduces it first. Nothing is drawn:
    --seed is taken, as by every command, and changes nothing.

    \b
    Example: tightz exact grid.uai --max-memory 8GB
    """
    import tightz as tz
    from tightz.interval.evidence import contradiction

    limit = math.inf if time_limit is None else time_limit
    graph = source.load()
    r = tz.exact(graph, max_memory=max_memory, marginals=False, backend=backend, time_limit=limit)
    why = contradiction(graph) if r.log_z == -math.inf else None
    if as_json:
        emit("exact", r)
        leave(why)
        return
    rounding = f" +- {r.rounding:.1g}" if r.log_z > float("-inf") else ""
    click.echo(f"log Z = {figure(r.log_z, 10)}{rounding}   (exact)")
    click.echo(f"{r.seconds:.2f} s; {r.way.describe()}")
    if why is not None:
        click.echo(why.summary())
    leave(why)


@click.command("upper")
@model_argument
@click.option(
    "--method",
    type=click.Choice(["mini-bucket", "trw", "quadratic"]),
    default="mini-bucket",
    show_default=True,
    help="trw (tree-reweighted) takes factors over one or two variables, quadratic those of "
    "two states a variable; it is best where couplings are dense.",
)
@click.option("--ibound", type=int, default=10, show_default=True, help="Mini-bucket width.")
@click.option("--iterations", type=int, default=100, show_default=True, help="At most this many.")
@time_limit_option(None, "Seconds for the descent; not with trw.")
@max_memory_option
@common_options
def upper(
    source: Source,
    method: str,
    ibound: int,
    iterations: int,
    time_limit: float | None,
    max_memory: str,
    seed: int,
    as_json: bool,
) -> None:
    """A deterministic upper bound on log Z: mini-bucket, tree-reweighted or quadratic elimination.

    An ibound of i keeps tables within 2^(i+1) entries: raising it by one doubles time and memory
    and tightens the bound, until it reaches the width and the value is exact. Nothing is drawn:
    --seed is taken, as by every command, and changes nothing.

    \b
    Example: tightz upper grid.uai --ibound 12
    """
    import tightz as tz

    graph = source.load()
    chosen: tz.TreeReweighted | tz.MiniBucket | tz.Quadratic
    if method == "trw" and time_limit is not None:
        raise ParameterError(
            f"--time-limit is {time_limit:g} and --method trw; expected --iterations to end it"
        )
    if method == "trw":
        chosen = tz.TreeReweighted(max_iterations=iterations)
    elif method == "quadratic":
        chosen = tz.Quadratic(iterations=iterations, time_limit=time_limit)
    else:
        chosen = tz.MiniBucket(ibound, iterations, time_limit=time_limit, max_memory=max_memory)
    r = tz.upper_bound(graph, method=chosen)
    if as_json:
        emit("upper", r)
        return
    click.echo(f"log Z <= {figure(r.log_z)}   (holds always: {r.bound.why})")
    click.echo(f"status: {r.status.value}; {r.seconds:.2f} s")


@click.command("ais")
@model_argument
@click.option("--chains", type=int, default=128, show_default=True, help="Independent chains.")
@click.option("--temperatures", type=int, help="Intermediate distributions; default 2000.")
@time_limit_option(None, "Choose the temperatures to fit [seconds].")
@delta_option
@common_options
@exits.answers
def ais(
    source: Source,
    chains: int,
    temperatures: int | None,
    time_limit: float | None,
    delta: float,
    seed: int,
    as_json: bool,
) -> None:
    """Annealed importance sampling: an estimate of log Z with its standard error.

    \b
    Example: tightz ais rbm.npz --chains 128 --time-limit 30
    """
    import tightz as tz

    r = tz.ais(
        source.load(),
        chains=chains,
        temperatures=temperatures,
        time_limit=time_limit,
        seed=seed,
    )
    certificate = r.certificate(delta)
    if as_json:
        emit("ais", r, certificate=certificate)
        return
    value = f"{figure(r.log_z, 4)} +- {r.standard_error:.4f}"
    click.echo(f"log Z ~  {value}   (estimate; nothing is proven)")
    click.echo(f"log Z >= {figure(certificate.log_z, 4)}   (with confidence {1 - delta:g})")
    click.echo(f"status: {r.status.value}; {r.effective_sample_size:.1f} effective chains")


@click.command("map")
@model_argument
@click.option(
    "-k", "count", type=int, default=1, show_default=True, help="How many, heaviest first."
)
@time_limit_option(5.0)
@max_memory_option
@common_options
@exits.answers
def map_state(
    source: Source, count: int, time_limit: float, max_memory: str, seed: int, as_json: bool
) -> None:
    """The heaviest states of any model: proven by elimination where it fits, else with a gap.

    \b
    Example: tightz map alarm.bif -k 3
    """
    import tightz as tz

    graph = source.load()
    r = tz.ground_state(graph, k=count, time_limit=time_limit, seed=seed, max_memory=max_memory)
    if as_json:
        emit("map", r)
    elif r.contradiction is not None:
        click.echo(r.contradiction.summary())
    else:
        _print_states(graph, r)
    leave(r.contradiction)


def _print_states(graph: FactorGraph, r: GroundState) -> None:
    """The states, one after the other, as -e takes one; what is known of them is a comment."""
    from tightz.search.ground_state import SearchStatus

    click.echo(f"# log weight {figure(r.log_weight)}   (log Z is at least this)")
    if r.status is not SearchStatus.OPTIMAL:
        click.echo(f"# no state weighs more than {figure(r.log_upper)}   (gap {r.gap:.3g})")
    click.echo(f"# status: {r.status.value}; {r.seconds:.2f} s")
    for k, state in enumerate(r.states):
        if len(r.states) > 1:
            click.echo(f"# log weight {figure(float(r.log_weights[k]))}")
        click.echo(state_text(graph, state))


@click.command("wish")
@model_argument
@delta_option
@click.option(
    "--trials",
    "-t",
    type=int,
    help="Random projections per level (T).  [default: ln(n/delta)/0.0042, at n = 16 and "
    "delta = 0.05 T = 1374]",
)
@time_limit_option(None, "Seconds for the whole run.")
@common_options
def wish(
    source: Source,
    delta: float,
    trials: int | None,
    time_limit: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Theorem 2: heaviest states under random parities give log Z within log 32, both ways.

    For n = 16 and delta = 0.05 the theorem asks for T = 1374 trials at each of 17 levels.

    \b
    Example: tightz wish small.uai --delta 0.05
    """
    import tightz as tz
    from tightz.paper.theorems import required_trials

    graph = source.load()
    n = graph.n_variables - len(graph.evidence)
    total = (n + 1) * (trials or required_trials(max(n, 1), delta))
    with progress("heaviest states", total) as step:
        r = tz.wish(
            graph,
            delta=delta,
            trials=trials,
            time_limit=time_limit,
            seed=seed,
            on_trial=lambda _: step(),
        )
    if as_json:
        emit("wish", r)
        return
    click.echo(r.summary())


COMMANDS: list[click.Command] = [exact, upper, ais, map_state, wish]
