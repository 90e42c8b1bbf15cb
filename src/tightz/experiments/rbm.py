"""Table: log Z of RBMs trained on MNIST, by mean field, MFRP, our default and AIS.

Each column is trained and measured on its own and kept, so columns can be added one by one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ParameterError
from tightz.experiments.canvas import GREY, INK, bare, finish, new_figure
from tightz.experiments.store import Store, small_print

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True)
class Column:
    """One RBM: trained here by CD-k, or the public CD25_500 weights (`public`)."""

    hidden: int
    k: int
    public: bool = False

    @property
    def name(self) -> str:
        return f"cd{self.k}-{self.hidden}" + ("-public" if self.public else "")


PAPER = {  # (hidden, k): (mean field, MFRP) as printed in the paper's table
    (100, 1): (501, 501),
    (100, 5): (348, 433),
    (100, 15): (297, 342),
    (200, 5): (203, 380),
    (200, 15): (293, 313),
    (200, 25): (279, 295),
}
PUBLIC = Column(500, 25, public=True)
COLUMNS = (*(Column(*key) for key in PAPER), PUBLIC)
PUBLIC_FILE = "rbm_mnist_CD25_500_salakhutdinov.npz"
PUBLISHED_AIS = {PUBLIC: 451.28}


@dataclass(frozen=True)
class RbmTable:
    """The paper's training (15 epochs, minibatches of 20) and the effort of each estimate.

    examples      digits used in training
    levels        MFRP's numbers of parities
    search_sweeps tempering sweeps before MFRP with our search
    temperatures  of AIS, 128 chains
    seconds       time limit of the interval (our default)
    """

    columns: tuple[Column, ...] = COLUMNS
    epochs: int = 15
    batch_size: int = 20
    examples: int = 60_000
    levels: tuple[int, ...] = (0, 1, 2, 3, 5, 7, 10, 15, 20)
    trials: int = 5
    restarts: int = 8
    search_sweeps: int = 1000
    temperatures: int = 20_000
    seconds: float = 60.0
    seed: int = 0

    def quick(self) -> RbmTable:
        """A size for a first look: a few hidden units, one epoch on a subset."""
        return replace(
            self,
            columns=(Column(6, 1), Column(8, 2)),
            epochs=1,
            examples=1000,
            levels=(0, 2),
            trials=3,
            restarts=2,
            search_sweeps=100,
            temperatures=100,
            seconds=1.0,
        )


def rbm_table(
    store: Store,
    path: Path,
    *,
    config: RbmTable | None = None,
    mnist: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Path:
    """Train and measure what is missing, draw the table and return its path.

    `mnist` is the folder with the idx files (see `load_mnist`); it is read only where a column
    has to be computed.
    """
    config = config or RbmTable()
    records = results(store, config, mnist=mnist, report=report)
    average = store.recall("average-digit", {"examples": 60_000}, lambda: _average_digit(mnist))
    note = small_print(
        store.made_with(config.columns[-1].name),
        f"seed {config.seed}, {config.epochs} epochs, minibatch {config.batch_size}, "
        f"T = {config.trials}, J = {config.restarts}, m in {list(config.levels)}, "
        f"interval {config.seconds:g} s, AIS 128 x {config.temperatures}",
    )
    return _draw(config, records, average["mean"], path, note)


def results(
    store: Store,
    config: RbmTable,
    *,
    mnist: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """One record per column, in order, recalled or computed."""
    settings = {key: value for key, value in asdict(config).items() if key != "columns"}
    records = []
    for column in config.columns:
        parameters = {**settings, **asdict(column)}

        def compute(column: Column = column) -> dict[str, Any]:
            model, training = _model(store, config, column, mnist, report)
            return {**_measure(model, config), "training": training}

        records.append(store.recall(column.name, parameters, compute))
        report(f"{column.name}: {_short(records[-1])}")
    return records


def _model(
    store: Store, config: RbmTable, column: Column, mnist: str | None, report: Callable[[str], None]
) -> tuple[FactorGraph, dict[str, Any]]:
    """The column's RBM, trained from its checkpoint on."""
    from tightz.models.mnist import load_mnist
    from tightz.models.rbm_files import load_rbm
    from tightz.models.train_rbm import Epoch, train_rbm

    if column.public:
        return load_rbm(public_file()), {}
    data = load_mnist(mnist).probabilities()[: config.examples]

    def told(epoch: Epoch) -> None:
        report(
            f"{column.name}: epoch {epoch.number}/{config.epochs}, reconstruction error "
            f"{epoch.reconstruction_error:.5f}, {epoch.seconds:.0f} s"
        )

    trained = train_rbm(
        data,
        hidden=column.hidden,
        k=column.k,
        epochs=config.epochs,
        batch_size=config.batch_size,
        seed=config.seed,
        checkpoint=store.folder / "checkpoints" / f"h{column.hidden}-k{column.k}.npz",
        on_epoch=told,
    )
    trained.save(store.folder / f"{column.name}.npz")
    course = trained.reconstruction_error.tolist()
    return trained.model, {"reconstruction_error": course, "seconds": trained.seconds}


def public_file() -> Path:
    """The CD25_500 weights (R. Salakhutdinov) under TIGHTZ_DATA; they cannot be downloaded."""
    folder = os.environ.get("TIGHTZ_DATA")
    if not folder:
        raise ParameterError(
            f"the public CD25_500 column needs {PUBLIC_FILE}; set TIGHTZ_DATA to the folder whose "
            "rbm/ holds it, or leave the column out"
        )
    return Path(folder) / "rbm" / PUBLIC_FILE


def _measure(model: FactorGraph, config: RbmTable) -> dict[str, Any]:
    """All estimates of one RBM, the seconds of each, and the means of the visible units."""
    import tightz as tz
    from tightz.estimation.equal_work import Outcome, at_equal_work
    from tightz.runtime.seeds import stream

    n = model.n_variables
    levels = [m for m in config.levels if m <= n]
    shared: dict[str, Any] = {
        "levels": levels, "trials": config.trials, "restarts": config.restarts,
    }  # fmt: skip
    plain = tz.mean_field(model, restarts=config.restarts, seed=stream(config.seed, 1))
    printed = tz.estimate(model, collapse=0, search_sweeps=0, seed=stream(config.seed, 2), **shared)

    def once(at: np.random.SeedSequence) -> Outcome:
        run = tz.mean_field(model, restarts=config.restarts, seed=at)
        return Outcome(run.log_z, run.sweeps * n)

    (equal,) = at_equal_work(
        {"mean field": once}, updates=printed.updates, seed=stream(config.seed, 3)
    )
    aided = tz.estimate(
        model, search_sweeps=config.search_sweeps, seed=stream(config.seed, 4), **shared
    )
    (timed,) = at_equal_work(
        {"mean field": once}, seconds=aided.seconds, seed=stream(config.seed, 7)
    )
    interval = tz.log_partition(
        model, time_limit=config.seconds, exact=False, seed=stream(config.seed, 5)
    )
    sampled = tz.ais(model, temperatures=config.temperatures, seed=stream(config.seed, 6))
    images = {
        "mean_field": plain.marginals,
        "mfrp": printed.marginals,
        "estimate": aided.marginals,
        "interval": np.array(interval.marginals),
    }
    return {
        "mean_field": plain.log_z,
        "mean_field_runs": plain.log_zs.tolist(),
        "mfrp": printed.log_z,
        "mfrp_level": printed.best_level,
        "mfrp_medians": [level.median for level in printed.by_level],
        "mean_field_equal": equal.log_z,
        "mean_field_equal_restarts": config.restarts * equal.runs,
        "mean_field_timed": timed.log_z,
        "mean_field_timed_restarts": config.restarts * timed.runs,
        "estimate": aided.log_z,
        "estimate_level": aided.best_level,
        "estimate_medians": [level.median for level in aided.by_level],
        "estimate_lower": aided.lower.log_z,
        "interval_lower": interval.lower,
        "interval_upper": interval.upper,
        "interval_method": interval.lower_proof.method,
        "ais": sampled.log_z,
        "ais_error": sampled.standard_error,
        "ais_effective": sampled.effective_sample_size,
        "seconds": {
            "mean_field": plain.seconds,
            "mfrp": printed.seconds,
            "mean_field_equal": equal.seconds,
            "mean_field_timed": timed.seconds,
            "estimate": aided.seconds,
            "interval": interval.seconds,
            "ais": sampled.seconds,
        },
        "images": {key: np.round(table[:784, 1], 4).tolist() for key, table in images.items()},
    }


def _average_digit(mnist: str | None) -> dict[str, Any]:
    from tightz.models.mnist import load_mnist

    mean = load_mnist(mnist).probabilities().mean(axis=0, dtype=np.float64)
    return {"mean": np.round(mean, 4).tolist()}


def _short(record: dict[str, Any]) -> str:
    keys = (
        "mean_field",
        "mean_field_equal",
        "mfrp",
        "mean_field_timed",
        "estimate",
        "interval_lower",
        "ais",
    )

    return ", ".join(f"{key} {record[key]:.2f}" for key in keys)


ROWS: Sequence[tuple[str, str]] = (
    ("paper: mean field", "paper_mean_field"),
    ("paper: MFRP", "paper_mfrp"),
    ("mean field, best of {restarts}", "mean_field"),
    ("mean field, work of next row", "mean_field_equal"),
    ("MFRP as printed", "mfrp"),
    ("mean field, time of next row", "mean_field_timed"),
    ("MFRP with our search", "estimate"),
    ("tightz lower bound", "interval_lower"),
    ("AIS (estimate)", "ais"),
    ("published AIS", "published"),
)
IMAGES: Sequence[tuple[str, str]] = (
    ("mean field mu", "mean_field"),
    ("MFRP mu", "mfrp"),
    ("tightz mu", "interval"),
)


def cell(column: Column, record: dict[str, Any], key: str) -> str:
    """One entry of the table as text; empty where there is no such value."""
    if key in ("paper_mean_field", "paper_mfrp"):
        printed = PAPER.get((column.hidden, column.k))
        return "" if printed is None else str(printed[key == "paper_mfrp"])
    if key == "published":
        return f"{PUBLISHED_AIS[column]:.2f}" if column in PUBLISHED_AIS else ""
    if key == "ais":
        return f"{record['ais']:.2f} ± {record['ais_error']:.2f}"
    return f"{record[key]:.2f}"


def _draw(
    config: RbmTable, records: list[dict[str, Any]], average: list[float], path: Path, note: str
) -> Path:
    """Numbers above, images of the visible units' means below, the average digit at the right."""
    count = len(config.columns)
    figure = new_figure(2.6 + 1.45 * (count + 1), 8.4)
    upper, lower = figure.subfigures(2, 1, height_ratios=[1.15, 1.5])
    ax = bare(upper.subplots())
    ax.set(xlim=(-1.9, count + 0.5), ylim=(len(ROWS) + 0.2, -1.9))
    heads = [("hidden units", "hidden"), ("CD-k", "k")]
    for line, (label, attribute) in enumerate(heads):
        ax.text(-1.85, line - 1.4, label, fontsize=10, color=INK, weight="bold", va="center")
        for at, column in enumerate(config.columns):
            text = str(getattr(column, attribute)) + (" (public)" if column.public and line else "")
            ax.text(at, line - 1.4, text, fontsize=10, ha="center", va="center", weight="bold")
    ax.axhline(0.1, color=INK, lw=1.0)
    for line, (label, key) in enumerate(ROWS):
        y = line + 0.7
        text = label.format(restarts=config.restarts)
        faint = GREY if key.startswith("p") else INK
        ax.text(-1.85, y, text, fontsize=9.5, color=faint, va="center")
        for at, (column, record) in enumerate(zip(config.columns, records, strict=True)):
            bold = "bold" if key == "interval_lower" else "normal"
            ax.text(
                at, y, cell(column, record, key), fontsize=9.5, ha="center", va="center",
                color=faint, weight=bold,
            )  # fmt: skip
    panels = lower.subplots(
        len(IMAGES), count + 2, width_ratios=[1.9, *[1.0] * (count + 1)], squeeze=False
    )
    for row, (label, key) in enumerate(IMAGES):
        bare(panels[row, 0]).text(0.0, 0.5, label, fontsize=9.5, color=INK, va="center")
        for at, record in enumerate(records):
            _image(panels[row, at + 1], np.array(record["images"][key]))
        bare(panels[row, -1])
    _image(panels[0, -1], np.array(average))
    panels[0, -1].set_title("average digit", fontsize=8.5, color=INK)
    return finish(figure, path, note)


def _image(ax: Axes, values: NDArray[np.float64]) -> None:
    bare(ax).imshow(values.reshape(28, 28), cmap="Greys", vmin=0.0, vmax=1.0)
