"""The inference commands."""

from __future__ import annotations

from collections.abc import Callable

import click

from tightz.cli.options import (
    chosen_executor,
    common_options,
    delta_option,
    emit,
    executor_options,
    load,
    model_argument,
    progress,
    record,
    require_writable,
    table,
)
from tightz.errors import ParameterError

T_HELP = (
    "Random projections per level (T). T = 5 shows the spread; Theorem 1 at n = 400 and "
    "delta = 0.05 asks for T = 2140."
)
J_HELP = "Random starts per projection (J), the best of which counts: J = 8 costs 8 times J = 1."
LEVELS_HELP = (
    "Numbers m of parities, as 0:20 or 0,5,10. About 1 state in 2^m is left: m = 10, 1 in 1024."
)


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


def _levels(text: str | None, n: int) -> list[int] | None:
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


@click.command("mean-field")
@model_argument
@click.option(
    "--restarts",
    "-j",
    type=int,
    default=20,
    show_default=True,
    help="Random starts (J), the best of which counts: J = 20 costs twice J = 10.",
)
@click.option("--tol", type=float, default=1e-6, show_default=True, help="Gain to stop at [nats].")
@click.option("--max-sweeps", type=int, default=1000, show_default=True, help="Sweeps per start.")
@common_options
def mean_field(
    model: str,
    evidence: str | None,
    restarts: int,
    tol: float,
    max_sweeps: int,
    seed: int,
    as_json: bool,
) -> None:
    """Plain mean field: a deterministic lower bound on log Z.

    \b
    Example: tightz mean-field grid.uai --restarts 20
    """
    import tightz as tz

    r = tz.mean_field(
        load(model, evidence), restarts=restarts, tol=tol, max_sweeps=max_sweeps, seed=seed
    )
    if as_json:
        emit(
            {
                "command": "mean-field",
                "lower": r.log_z,
                "proof": "deterministic",
                "by_restart": r.log_zs,
                "status": r.status.name,
                "seconds": r.seconds,
                "provenance": r.provenance,
            }
        )
        return
    click.echo(f"log Z >= {r.log_z:.6f}   (holds always; best of {restarts} ascents)")
    click.echo(f"status: {r.status.value}; {r.sweeps} sweeps, {r.seconds:.2f} s")


@click.command("mfrp")
@model_argument
@click.option("-m", "m", type=int, help="One level: m = 5 keeps about 1 state in 32.")
@click.option("--levels", help=f"{LEVELS_HELP}  [default: 0:20]")
@click.option("--trials", "-t", type=int, default=5, show_default=True, help=T_HELP)
@click.option("--restarts", "-j", type=int, default=8, show_default=True, help=J_HELP)
@delta_option
@click.option(
    "--tight/--paper",
    default=False,
    show_default=True,
    help="Add collapse, tempering starts and reliability pivots, or run Algorithm 1 as printed.",
)
@store_options
@executor_options
@common_options
def mfrp(
    model: str,
    evidence: str | None,
    m: int | None,
    levels: str | None,
    trials: int,
    restarts: int,
    delta: float,
    tight: bool,
    store: str | None,
    resume: bool,
    workers: int | None,
    cluster: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Mean field with random projections (the paper's Algorithm 1) at one or many levels.

    With m random parity constraints about 2^-m of Z survives; the median over T projections of
    2^m gamma estimates Z from below. The printed certificate holds with confidence 1 - delta.
    Theorem 1's guarantee needs T = ln(n/delta)/0.0042 (n = 400, delta = 0.05: T = 2140) and
    global optima; with T = 5 the median is an estimate.

    \b
    Example: tightz mfrp grid.uai --levels 0:20 --trials 5 --restarts 8
    """
    import tightz as tz

    check_resume(store, resume)
    if m is not None and levels is not None:
        raise ParameterError(f"-m is {m} and --levels is {levels!r}; expected one, not both")
    graph = load(model, evidence)
    chosen = [m] if m is not None else _levels(levels, graph.n_variables)
    total = trials * (len(chosen) if chosen else 21)
    with chosen_executor(workers, cluster) as executor, progress("projections", total) as step:
        e = tz.estimate(
            graph,
            levels=chosen,
            trials=trials,
            restarts=restarts,
            collapse=None if tight else 0,
            search_sweeps=None if tight else 0,
            seed=seed,
            executor=executor,
            on_batch=lambda done: step(len(done)),
            store=store,
            resume=resume,
        )
    certificate = e.certificate(delta)
    if as_json:
        emit(
            {
                "command": "mfrp",
                "estimate": e.log_z,
                "best_level": e.best_level,
                "lower": e.lower.log_z,
                "lower_proof": e.lower.why,
                "certificate": {"lower": certificate.log_z, "confidence": 1 - delta},
                "levels": [vars(level) for level in e.by_level],
                "log_gammas": e.log_gammas,
                "seconds": e.seconds,
                "provenance": e.provenance,
            }
        )
        return
    rows = [
        [
            str(r.m),
            f"{r.median:.4f}",
            f"{r.mean:.4f}",
            f"{r.best:.4f}",
            f"{r.infeasible}/{r.trials}",
        ]
        for r in e.by_level
    ]
    table(["m", "median", "mean", "best", "infeasible"], rows, "log(2^m gamma) over projections")
    click.echo(f"estimate log Z ~  {e.log_z:.4f}   (max over m of the median; not a bound)")
    click.echo(f"lower    log Z >= {e.lower.log_z:.4f}   (holds always: {e.lower.why})")
    click.echo(f"lower    log Z >= {certificate.log_z:.4f}   (with confidence {1 - delta:g})")


@click.command("logz")
@model_argument
@click.option("--time-limit", "-T", type=float, default=60.0, show_default=True, help="Seconds.")
@delta_option
@click.option("--exact/--no-exact", default=True, help="Allow elimination of the whole model.")
@click.option("--max-memory", default="8GB", show_default=True, help="Work space allowed.")
@click.option("--plot", type=click.Path(), help="Save a picture of the interval over time.")
@click.option("--uai-output", type=click.Path(), help="Write PREFIX.PR (log10) and PREFIX.MAR.")
@store_options
@common_options
def logz(
    model: str,
    evidence: str | None,
    time_limit: float,
    delta: float,
    exact: bool,
    max_memory: str,
    plot: str | None,
    uai_output: str | None,
    store: str | None,
    resume: bool,
    seed: int,
    as_json: bool,
) -> None:
    """An interval on log Z that narrows until the time limit, each end with its proof.

    A deterministic end holds always; one with confidence 1 - delta fails in at most a delta share
    of runs over the random projections. Ctrl-C prints what is known.

    \b
    Example: tightz logz grid.uai --time-limit 30 --plot interval.png
    """
    import tightz as tz
    from tightz.cli.live import live_bounds

    check_resume(store, resume)
    require_writable(plot, uai_output and f"{uai_output}.PR")
    if plot:
        from tightz.plots import require_picture

        require_picture(plot)
    graph = load(model, evidence)
    with live_bounds(time_limit) as show:
        r = tz.log_partition(
            graph,
            time_limit=time_limit,
            delta=delta,
            exact=exact,
            max_memory=max_memory,
            seed=seed,
            on_bound=show,
            store=store,
            resume=resume,
        )
    if uai_output:
        tz.write_pr(r.estimate, f"{uai_output}.PR")
        if r.marginals is not None:
            tz.write_mar(r.marginals, f"{uai_output}.MAR")
    if plot:
        from tightz.plots import save

        save(r.plot(), plot)
    if as_json:
        emit(
            {
                "command": "logz",
                "lower": r.lower,
                "upper": r.upper,
                "exact": r.is_exact,
                "lower_proof": record(r.lower_proof),
                "upper_proof": record(r.upper_proof),
                "certified": record(r.certified),
                "estimate": r.estimate,
                "estimate_error": r.estimate_error,
                "estimate_source": r.estimate_source,
                "marginals": r.marginals,
                "marginal_source": r.marginal_source,
                "bounds": [record(bound) for bound in r.bounds],
                "notes": r.notes,
                "interrupted": r.interrupted,
                "seconds": r.seconds,
                "provenance": r.provenance,
            }
        )
        return
    click.echo(r.summary())


@click.command("info")
@model_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def info(model: str, evidence: str | None, as_json: bool) -> None:
    """What a model file holds: sizes, cardinalities, zeros, elimination width.

    \b
    Example: tightz info model.uai --evidence model.uai.evid
    """
    import numpy as np

    from tightz.errors import ResourceError
    from tightz.references.exact import plan
    from tightz.runtime.memory import format_bytes

    graph = load(model, evidence)
    counts = np.bincount(graph.arities, minlength=1)
    try:
        elimination = plan(graph)
        width, needed = elimination.width, int(elimination.log_z_bytes)
        reach = f"width {width}, needs {format_bytes(needed)}"
    except ResourceError as error:
        width, needed, reach = None, None, f"out of reach: {error}"
    record = {
        "command": "info",
        "variables": graph.n_variables,
        "observed": len(graph.evidence),
        "factors": graph.n_factors,
        "factors_by_arity": {str(a): int(c) for a, c in enumerate(counts) if c},
        "max_states": int(graph.cardinalities.max(initial=0)),
        "zero_entries": int((graph.log_tables == -np.inf).sum()),
        "table_entries": int(graph.log_tables.size),
        "elimination_width": width,
        "exact_bytes": needed,
        "sha256": graph.digest,
    }
    if as_json:
        emit(record)
        return
    arities = ", ".join(f"{c} of arity {a}" for a, c in enumerate(counts) if c)
    click.echo(f"variables     {record['variables']} (up to {record['max_states']} states)")
    click.echo(f"observed      {record['observed']}")
    click.echo(f"factors       {arities or 'none'}")
    click.echo(f"zero entries  {record['zero_entries']} of {record['table_entries']}")
    click.echo(f"exact         {reach}")
    click.echo(f"sha256        {graph.digest}")


@click.command("marginals")
@model_argument
@click.option(
    "--method",
    type=click.Choice(["auto", "exact", "mfrp"]),
    default="auto",
    show_default=True,
    help="auto: exact where it fits in --max-memory, else mfrp.",
)
@click.option("--levels", help=f"For mfrp. {LEVELS_HELP}  [default: 0:20]")
@click.option("--trials", "-t", type=int, default=5, show_default=True, help=T_HELP)
@click.option("--restarts", "-j", type=int, default=8, show_default=True, help=J_HELP)
@click.option("--max-memory", default="4GB", show_default=True, help="Limit for exact.")
@click.option("--uai-output", type=click.Path(), help="Also write a UAI .MAR file.")
@common_options
def marginals(
    model: str,
    evidence: str | None,
    method: str,
    levels: str | None,
    trials: int,
    restarts: int,
    max_memory: str,
    uai_output: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Marginal probabilities of every variable.

    \b
    Example: tightz marginals grid.uai --uai-output grid.uai.MAR
    """
    import tightz as tz
    from tightz.errors import ResourceError

    require_writable(uai_output)
    graph = load(model, evidence)
    chosen = _levels(levels, graph.n_variables)
    spread = None
    rows = None
    if method != "mfrp":
        try:
            rows = tz.exact(graph, max_memory=max_memory).marginals
            label = "exact"
        except ResourceError:
            if method == "exact":
                raise
    if rows is None:
        e = tz.estimate(
            graph,
            levels=chosen,
            trials=trials,
            restarts=restarts,
            seed=seed,
        )
        rows, spread = list(e.marginals), e.marginal_spread
        label = "mfrp (estimate: average of q over projections, weighted by 2^m gamma)"
    if uai_output:
        from tightz.models.uai import write_mar

        write_mar(rows, uai_output)
    if as_json:
        emit({"command": "marginals", "method": label, "marginals": rows, "spread": spread})
        return
    click.echo(f"# {label}")
    for v, row in enumerate(rows):
        note = "" if spread is None else f"  +- {spread[v]:.4f}"
        click.echo(f"{v} " + " ".join(f"{p:.6f}" for p in row) + note)


@click.group("generate")
def generate() -> None:
    """Write a random model as a UAI file.

    \b
    Example: tightz generate ising-grid 20 --coupling -10 10 --seed 0 -o grid.uai
    """


@generate.command("ising-grid")
@click.argument("rows", type=int)
@click.argument("cols", type=int, required=False)
@click.option(
    "--coupling",
    type=float,
    nargs=2,
    default=(-1.0, 1.0),
    show_default=True,
    help="Couplings are uniform between these two.",
)
@click.option(
    "--field",
    type=float,
    nargs=2,
    default=(-1.0, 1.0),
    show_default=True,
    help="Fields are uniform between these two.",
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
    tz.write_uai(graph, output)
    click.echo(f"{output}: {graph}", err=True)


COMMANDS: list[click.Command] = [logz, mean_field, mfrp, marginals, info, generate]
