"""The inference commands."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tightz.bounds import figure
from tightz.cli import exits
from tightz.cli.marginals import marginals, write_bounds
from tightz.cli.options import (
    LEVELS_HELP,
    T_HELP,
    Kept,
    Source,
    Trials,
    Workers,
    bundle,
    common_options,
    delta_option,
    emit,
    executor_options,
    leave,
    max_memory_option,
    model_argument,
    parse_levels,
    progress,
    require_writable,
    store_options,
    table,
    time_limit_option,
    trial_options,
)
from tightz.errors import FullDiskError, ParameterError
from tightz.runtime.memory import MAX_MEMORY

if TYPE_CHECKING:
    from tightz.interval.interval import LogPartition


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
    source: Source,
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

    family = tz.MeanField(restarts=restarts, tol=tol, max_sweeps=max_sweeps)
    r = tz.mean_field(source.load(), family=family, seed=seed)
    if as_json:
        emit("mean-field", r)
        return
    click.echo(f"log Z >= {figure(r.log_z)}   (holds always; best of {restarts} ascents)")
    click.echo(f"status: {r.status.value}; {r.sweeps} sweeps, {r.seconds:.2f} s")


@dataclass(frozen=True)
class Variant:
    """Which levels `mfrp` runs, and whether with the aids."""

    m: int | None
    tight: bool

    def levels(self, size: Trials) -> list[int] | None:
        if self.m is None:
            return parse_levels(size.levels)
        if size.levels is not None:
            raise ParameterError(
                f"-m is {self.m} and --levels is {size.levels!r}; expected one, not both"
            )
        return [self.m]


@click.command("mfrp")
@model_argument
@bundle(
    "variant",
    Variant,
    click.option("-m", "m", type=int, help="One level: m = 5 keeps about 1 state in 32."),
    click.option(
        "--tight/--paper",
        default=False,
        show_default=True,
        help="Add collapse, tempering starts and reliability pivots, or run Algorithm 1 as "
        "printed.",
    ),
)
@trial_options(5, T_HELP, f"{LEVELS_HELP}  [default: 0:20]")
@delta_option
@store_options
@executor_options
@common_options
def mfrp(
    source: Source,
    variant: Variant,
    size: Trials,
    delta: float,
    kept: Kept,
    where: Workers,
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

    graph = source.load()
    chosen = variant.levels(size)
    trials, printed = size.trials or 0, tz.Projections.as_printed(restarts=size.restarts)
    total = trials * (len(chosen) if chosen else 21)
    with where.open() as executor, progress("projections", total) as step:
        e = tz.estimate(
            graph,
            levels=chosen,
            trials=trials,
            projections=tz.Projections(restarts=size.restarts) if variant.tight else printed,
            seed=seed,
            executor=executor,
            on_batch=lambda done: step(len(done)),
            store=kept.store,
            resume=kept.resume,
        )
    certificate = e.certificate(delta)
    if as_json:
        emit("mfrp", e, certificate=certificate)
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
    lower, drawn = figure(e.lower, 4), figure(certificate.log_z, 4)
    click.echo(f"estimate log Z ~  {figure(e.log_z, 4)}   ({e.log_z_source})")
    click.echo(f"lower    log Z >= {lower}   (holds always: {e.lower_proof.why})")
    click.echo(f"lower    log Z >= {drawn}   (with confidence {1 - delta:g})")


@dataclass(frozen=True)
class Machine:
    """What `logz` may use."""

    exact: bool = True
    max_memory: str = MAX_MEMORY
    threads: int | None = None
    backend: str = "auto"
    compile: str = "before"


@dataclass(frozen=True)
class Output:
    """What `logz` writes besides its answer, and in which form it prints that."""

    plot: str | None = None
    uai_output: str | None = None
    as_json: bool = False

    @property
    def marginals(self) -> bool:
        """Whether exact ones are written anywhere; the summary does not show them."""
        return bool(self.uai_output) or self.as_json

    def _endings(self) -> tuple[str, ...]:
        return ("PR", "txt") if self.uai_output else ()

    def check(self) -> None:
        """Refuse what cannot be written before any work is done for it."""
        require_writable(self.plot, *(f"{self.uai_output}.{end}" for end in self._endings()))
        if self.plot:
            from tightz.plots import require_picture

            require_picture(self.plot)

    def write(self, r: LogPartition) -> None:
        import tightz as tz

        if self.uai_output:
            # the contests' format has room for one number; the rest is said beside it
            tz.write(r.estimate, f"{self.uai_output}.PR")
            Path(f"{self.uai_output}.txt").write_text(r.summary() + "\n", encoding="utf-8")
            if r.marginals is not None:
                tz.write(r.marginals, f"{self.uai_output}.MAR")
                write_bounds(
                    f"{self.uai_output}.MAR.csv",
                    r.naming, r.marginals, r.marginal_bounds, r.confident.marginal_bounds,
                )  # fmt: skip
        if self.plot:
            from tightz.plots import save

            save(r.plot(), self.plot)


@click.command("logz")
@model_argument
@time_limit_option(60.0)
@delta_option
@bundle(
    "machine",
    Machine,
    click.option("--exact/--no-exact", default=True, help="Allow elimination of the whole model."),
    max_memory_option,
    click.option("--threads", type=int, help="Streams advanced at a time.  [default: all cores]"),
    click.option(
        "--backend",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="cuda: on the GPU what can run there; auto: where there is one.",
    ),
    click.option(
        "--compile",
        type=click.Choice(["before", "beside"]),
        default="before",
        show_default=True,
        help="On a first run, when kernels are compiled: before the time limit starts, or "
        "beside, within it.",
    ),
)
@executor_options
@bundle(
    "output",
    Output,
    click.option("--plot", type=click.Path(), help="Save a picture of the interval over time."),
    click.option(
        "--uai-output",
        type=click.Path(),
        help="Write PREFIX.PR (log10 of the estimate), PREFIX.MAR, and what is proven about them: "
        "PREFIX.txt, and the bounds of marginals to PREFIX.MAR.csv.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON record."),
)
@store_options
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@exits.answers
def logz(
    source: Source,
    time_limit: float,
    delta: float,
    machine: Machine,
    where: Workers,
    output: Output,
    kept: Kept,
    seed: int,
) -> None:
    """Intervals on log Z that narrow until the time limit, each end with its proof.

    \b
    Three statements are printed where log Z is not found exactly:
      log Z in [a, b]   holds always
      log Z in [c, d]   with confidence 1 - delta, both ends, whenever it is read: in a share
                        delta of runs at most one of them is wrong, over the random draws
      log Z ~ e +- f    not proven; within 2 f in about 19 of 20 runs, or f is inf

    Ctrl-C, SIGTERM and SIGHUP print what is known.

    \b
    Example: tightz logz grid.uai --time-limit 30 --plot interval.png
    """
    import tightz as tz
    from tightz.cli.live import live_bounds

    output.check()
    graph = source.load()
    beside = machine.compile == "beside"
    with where.open() as executor, live_bounds(time_limit, beside=beside) as show:
        r = tz.log_partition(
            graph,
            time_limit=time_limit,
            delta=delta,
            **asdict(machine),
            marginals=output.marginals or kept.store is not None,
            executor=executor,
            seed=seed,
            on_bound=show,
            store=kept.store,
            resume=kept.resume,
        )
    if output.as_json:
        emit("logz", r)
    else:
        click.echo(r.summary())
    output.write(r)
    if r.quarantined:
        click.echo(f"defect: {len(r.quarantined)} bounds were refused, see above", err=True)
        click.get_current_context().exit(exits.REFUSED)
    if r.store_error is not None:
        click.echo(f"error: {r.store_error}", err=True)
        full = isinstance(r.store_error, FullDiskError)
        click.get_current_context().exit(exits.FULL if full else exits.LOST)
    leave(r.contradiction)


@click.command("query")
@model_argument
@click.option(
    "--query",
    "-q",
    "targets",
    multiple=True,
    metavar="NAME",
    help="A variable whose distribution is wanted; may be repeated, and further ones may follow "
    "it.  [default: all that are not observed]",
)
@click.argument("more", metavar="[NAME]...", nargs=-1)
@time_limit_option(60.0)
@max_memory_option
@common_options
@exits.answers
def query(
    source: Source,
    targets: tuple[str, ...],
    more: tuple[str, ...],
    time_limit: float,
    max_memory: str,
    seed: int,
    as_json: bool,
) -> None:
    """Distributions of variables given evidence, with their bounds, and P(evidence).

    \b
    Each probability is followed by its ends: where the model is summed exactly by how far float64
    sums can be off, which holds always; elsewhere by ends that hold always, and by narrower ones
    (likely in) that hold for all variables together with confidence 0.95.

    \b
    Example: tightz query asia.bif -e smoke=yes -e xray=no -q dysp lung
    """
    import tightz as tz
    from tightz.cli.live import live_bounds

    graph = source.load()
    asked = [graph.naming.index(name, "query", text=True) for name in (*targets, *more)]
    with live_bounds(time_limit) as show:
        r = tz.query(
            graph,
            asked or None,
            time_limit=time_limit,
            seed=seed,
            max_memory=max_memory,
            on_bound=show,
        )
    if as_json:
        emit("query", r)
    else:
        click.echo(r.summary())
    leave(r.interval.contradiction)


COMMANDS: list[click.Command] = [logz, query, mean_field, mfrp, marginals]
