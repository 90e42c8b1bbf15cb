"""`tightz train-rbm` and `tightz reproduce`: the paper's experiments from the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tightz.cli.options import bundle, emit, require_writable

if TYPE_CHECKING:
    from tightz.models.train_rbm import Epoch

FOLDER = "out/reproduce"


@dataclass(frozen=True)
class Steps:
    """The settings of `tz.Training`, which this module does not import before it is needed."""

    hidden: int
    k: int
    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float


@click.command("train-rbm")
@click.option("-o", "--output", type=click.Path(), required=True, help="Where to write the .npz.")
@click.option("--mnist", type=click.Path(), help="Folder with the MNIST idx files.")
@click.option("--examples", type=int, default=60_000, show_default=True, help="Digits to use.")
@bundle(
    "training",
    Steps,
    click.option("--hidden", type=int, default=100, show_default=True, help="Hidden units."),
    click.option("-k", "k", type=int, default=15, show_default=True, help="Gibbs steps of CD-k."),
    click.option(
        "--epochs", type=int, default=15, show_default=True, help="Passes over the digits."
    ),
    click.option("--batch-size", type=int, default=20, show_default=True, help="Digits per step."),
    click.option("--learning-rate", type=float, default=0.1, show_default=True, help="Step size."),
    click.option("--momentum", type=float, default=0.0, show_default=True, help="From 0 to 0.999."),
    click.option("--weight-decay", type=float, default=0.0, show_default=True, help="L2 penalty."),
)
@click.option("--checkpoint", type=click.Path(), help="Written after every epoch, resumed from.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def train_rbm(
    output: str,
    mnist: str | None,
    examples: int,
    training: Steps,
    checkpoint: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Train an RBM on MNIST by contrastive divergence and write its weights.

    The digits come from --mnist, else from $TIGHTZ_DATA/mnist, else they are downloaded once.
    A run with --checkpoint that was cut off goes on where it stopped, with the same result.

    \b
    Example: tightz train-rbm --hidden 100 -k 5 --checkpoint run.npz -o rbm.npz
             tightz logz rbm.npz
    """
    from tightz.errors import require_range
    from tightz.models.mnist import load_mnist
    from tightz.models.train_rbm import Training
    from tightz.models.train_rbm import train_rbm as train

    require_writable(output)
    require_range("examples", examples, 1, 60_000)

    def told(epoch: Epoch) -> None:
        click.echo(
            f"epoch {epoch.number}/{training.epochs}: reconstruction error "
            f"{epoch.reconstruction_error:.5f}, {epoch.seconds:.0f} s",
            err=True,
        )

    result = train(
        load_mnist(mnist).probabilities()[:examples],
        Training(**vars(training)),
        seed=seed,
        checkpoint=checkpoint,
        on_epoch=told,
    )
    result.save(output)
    if as_json:
        emit("train-rbm", result, output=output)
        return
    click.echo(result.summary())
    click.echo(f"weights saved to {output}")


@click.group("reproduce")
def reproduce() -> None:
    """Redo the paper's figures and table, and show them at equal work.

    Results are kept under --out; a second run redraws from them in seconds, and a run that was
    cut off goes on where it stopped. --quick is a small size that takes seconds.

    \b
    Example: tightz reproduce ising --quick
    """
    from importlib.util import find_spec

    from tightz.errors import MissingExtraError

    if find_spec("tightz_experiments") is None:
        raise MissingExtraError(
            "tightz reproduce runs the package tightz_experiments, which is not here; "
            "pip install --force-reinstall tightz brings both"
        )


def _sized(command: Callable) -> Callable:
    """--quick and --out."""
    command = click.option(
        "--out", type=click.Path(), default=FOLDER, show_default=True, help="Results and figures."
    )(command)
    return click.option("--quick", is_flag=True, help="A small size: seconds, not minutes.")(
        command
    )


def _places(name: str, out: str, quick: bool) -> tuple[Path, Path]:
    """(folder of the records, folder of the figures); quick runs are kept apart."""
    folder = Path(out) / "quick" if quick else Path(out)
    return folder / name, folder


def _report(line: str) -> None:
    click.echo(line, err=True)


@reproduce.command("ising")
@_sized
def reproduce_ising(quick: bool, out: str) -> None:
    """Ising grids: log ratios to mean field, then at equal work (6 to 9 minutes).

    \b
    Example: tightz reproduce ising --quick
    """
    from tightz_experiments.ising import IsingGrids, ising
    from tightz_experiments.store import Store

    records, figures = _places("ising", out, quick)
    config = IsingGrids().quick() if quick else IsingGrids()
    click.echo(ising(Store(records), figures / "ising.png", config=config, report=_report))


@reproduce.command("runtime")
@_sized
def reproduce_runtime(quick: bool, out: str) -> None:
    """Time of an ascent against the size of the grid and the parities (about 10 seconds).

    \b
    Example: tightz reproduce runtime --quick
    """
    from tightz_experiments.runtime import Runtimes, runtime
    from tightz_experiments.store import Store

    records, figures = _places("runtime", out, quick)
    config = Runtimes().quick() if quick else Runtimes()
    click.echo(runtime(Store(records), figures / "runtime.png", config=config, report=_report))


@reproduce.command("rbm")
@_sized
@click.option("--mnist", type=click.Path(), help="Folder with the MNIST idx files.")
@click.option("--only", multiple=True, help="A column such as cd5-100; may be repeated.")
@click.option("--workers", type=int, default=2, show_default=True, help="Columns at a time.")
def reproduce_rbm(
    quick: bool, out: str, mnist: str | None, only: tuple[str, ...], workers: int
) -> None:
    """RBMs on MNIST: trains what is missing, then the table (42 processor minutes).

    \b
    Example: tightz reproduce rbm --only cd5-100
    """
    from dataclasses import replace

    from tightz.errors import ParameterError
    from tightz_experiments.rbm import rbm_table
    from tightz_experiments.rbm_models import RbmTable
    from tightz_experiments.store import Store

    records, figures = _places("rbm", out, quick)
    config = RbmTable().quick() if quick else RbmTable()
    if only:
        known = {column.name: column for column in config.columns}
        unknown = [name for name in only if name not in known]
        if unknown:
            raise ParameterError(f"no column {unknown[0]}; there are {', '.join(known)}")
        config = replace(config, columns=tuple(known[name] for name in only))
    store = Store(records)
    path = figures / "rbm.png"
    click.echo(rbm_table(store, path, config=config, mnist=mnist, workers=workers, report=_report))


@reproduce.command("picture")
@_sized
def reproduce_picture(quick: bool, out: str) -> None:
    """The idea in three steps, and reliability pivots at work (seconds).

    \b
    Example: tightz reproduce picture --quick
    """
    from tightz_experiments.idea import idea
    from tightz_experiments.pivots import PivotPicture, pivots
    from tightz_experiments.store import Store

    records, figures = _places("picture", out, quick)
    store = Store(records)
    click.echo(idea(store, figures / "idea.png", matrices=2 if quick else 12))
    config = PivotPicture().quick() if quick else PivotPicture()
    click.echo(pivots(store, figures / "pivots.png", config=config))


COMMANDS: list[click.Command] = [train_rbm, reproduce]
