"""Table: log Z of RBMs trained on MNIST, by mean field, MFRP, our default and AIS.

A column is five records: training, the comparison at equal work, the layer bound, AIS, and the
interval. Each is kept with its wall and processor seconds, so columns can be added one by one and
the cost of the whole table can be read off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tightz.errors import require_range
from tightz_experiments.processes import processes, single_threaded
from tightz_experiments.rbm_drawing import draw_table
from tightz_experiments.rbm_models import Column, RbmTable, load_column, train_column
from tightz_experiments.rbm_search import layer_with_search, mfrp_with_search
from tightz_experiments.store import Spent, Store, small_print

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph

Report = Callable[[str], None]

LANES = 32
"""Restarts that plain mean field runs side by side where it has a budget: its fastest layout."""


def silent(_line: str) -> None:
    """Report nothing; unlike a lambda it travels to a worker process."""


_TRAINING = ("epochs", "batch_size", "examples", "seed")


def rbm_table(
    store: Store,
    path: Path,
    *,
    config: RbmTable | None = None,
    mnist: str | None = None,
    workers: int = 1,
    report: Report = silent,
) -> Path:
    """Train and measure what is missing, draw the table and return its path.

    `mnist` is the folder with the idx files (see `load_mnist`); it is read only where a column
    has to be computed. `workers` processes take a column each; `report` must then be picklable.
    """
    require_range("workers", workers, 1)
    config = config or RbmTable()
    records = results(store, config, mnist=mnist, workers=workers, report=report)
    average = store.recall("average-digit", {"examples": 60_000}, lambda: _average_digit(mnist))
    total = Spent.sum(cost for column in config.columns for _, cost in costs(store, column))
    report(f"all {len(config.columns)} columns: {total}")
    note = small_print(
        store.made_with(f"{config.columns[-1].name}-interval"),
        f"seed {config.seed}, {config.epochs} epochs, minibatch {config.batch_size}, "
        f"T = {config.trials}, J = {config.restarts}, m in {list(config.levels)}, "
        f"interval {config.seconds:g} s, AIS 128 x {config.temperatures}, "
        f"{total.processor_seconds / 60:.0f} min of processor time in all",
    )
    return draw_table(config, records, average["mean"], path, note)


def results(
    store: Store,
    config: RbmTable,
    *,
    mnist: str | None = None,
    workers: int = 1,
    report: Report = silent,
) -> list[dict[str, Any]]:
    """One record per column, in order, recalled or computed.

    All but the intervals runs on one core, `workers` columns at a time, dearest first.
    The intervals come after, one at a time in a process of its own, so that each has the machine
    to itself.
    """
    tasks = [_Task(store, config, column, mnist, report) for column in config.columns]
    missing = [task for task in tasks if not task.known]
    if workers > 1 and missing:
        dearest = sorted(missing, key=lambda task: -task.column.hidden * task.column.k)
        with single_threaded(), processes(workers) as pool:
            list(pool.map(_Task.alone, dearest))
        for task in missing:
            with processes(1) as pool:
                pool.submit(_Task.interval, task).result()
    records = []
    for task in tasks:
        records.append(task.whole())
        spent = Spent.sum(cost for _, cost in costs(store, task.column))
        report(f"{task.column.name}: {_short(records[-1])}; {spent}")
    return records


def costs(store: Store, column: Column) -> Iterator[tuple[str, Spent]]:
    """(part, time spent) of a column's records."""
    for part in PARTS:
        if part == "training" and not column.public:
            kept = store.result(f"{column.name}-training")
            yield part, Spent(kept["seconds"], kept["processor_seconds"])
        elif part != "training":
            yield part, store.spent(f"{column.name}-{part}")


PARTS = ("training", "comparison", "layer", "ais", "interval")


class _Task(NamedTuple):
    """One column: its records, each computed where it is missing."""

    store: Store
    config: RbmTable
    column: Column
    mnist: str | None
    report: Report

    def parameters(self, *names: str) -> dict[str, Any]:
        """What a record depends on: how the RBM was trained, and these settings."""
        settings = asdict(self.config)
        chosen = {name: settings[name] for name in (*_TRAINING, *names)}
        return {**chosen, **asdict(self.column)}

    @property
    def known(self) -> bool:
        """Whether all records are there already."""
        return all(self.store.has(f"{self.column.name}-{p}", q) for p, q in self._settings.items())

    @property
    def _settings(self) -> dict[str, dict[str, Any]]:
        compared = ("levels", "trials", "restarts", "search_sweeps")
        trained = {} if self.column.public else {"training": self.parameters()}
        return {
            **trained,
            "comparison": self.parameters(*compared),
            "layer": self.parameters("search_sweeps"),
            "ais": self.parameters("temperatures"),
            "interval": self.parameters("seconds"),
        }

    def _recall(self, part: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return self.store.recall(f"{self.column.name}-{part}", self._settings[part], compute)

    def alone(self) -> dict[str, Any]:
        """Training, comparison, layer bound and AIS: the parts that one core does."""
        folder, report = self.store.folder, self.report
        if not self.column.public:
            self._recall(
                "training",
                lambda: train_column(folder, self.config, self.column, self.mnist, report),
            )
        return {
            **self._recall("comparison", lambda: _compare(self._model(), self.config)),
            **self._recall("layer", lambda: _sum_out_a_layer(self._model(), self.config)),
            **self._recall("ais", lambda: _ais(self._model(), self.config)),
        }

    def interval(self) -> dict[str, Any]:
        """Our default, with whatever cores there are."""
        return self._recall("interval", lambda: _interval(self._model(), self.config))

    def whole(self) -> dict[str, Any]:
        one, other = self.alone(), self.interval()
        return {**one, **other, "images": {**one["images"], **other["images"]}}

    def _model(self) -> FactorGraph:
        return load_column(self.store.folder, self.column)


def _compare(model: FactorGraph, config: RbmTable) -> dict[str, Any]:
    """Mean field and MFRP, as printed and with our search, each at equal work; one thread.

    Work is coordinate updates against MFRP as printed. Against MFRP with search, which also
    tempers, it is processor time, counted in microseconds.
    """
    import tightz as tz
    from tightz.paper.equal_work import Outcome, at_equal_work
    from tightz.reductions.encoding import encode
    from tightz.runtime.seeds import stream

    polynomial = encode(model).polynomial
    n = polynomial.n
    levels = [m for m in config.levels if m <= n]
    shared: dict[str, Any] = {"levels": levels, "trials": config.trials}
    plain = tz.mean_field(
        polynomial, family=tz.MeanField(restarts=config.restarts), seed=stream(config.seed, 1)
    )
    printed = tz.estimate(
        polynomial,
        projections=tz.Projections.as_printed(restarts=config.restarts),
        threads=1,
        seed=stream(config.seed, 2),
        **shared,
    )

    def by_updates(at: np.random.SeedSequence) -> Outcome:
        run = tz.mean_field(polynomial, family=tz.MeanField(restarts=config.restarts), seed=at)
        return Outcome(run.log_z, run.sweeps * n)

    def by_processor(at: np.random.SeedSequence) -> Outcome:
        begun = time.process_time()
        run = tz.mean_field(polynomial, family=tz.MeanField(restarts=LANES), seed=at)
        return Outcome(run.log_z, round(1e6 * (time.process_time() - begun)))

    (equal,) = at_equal_work(
        {"mean field": by_updates}, updates=printed.updates, seed=stream(config.seed, 3)
    )
    aided = mfrp_with_search(
        polynomial,
        sweeps=config.search_sweeps,
        seed=stream(config.seed, 4),
        restarts=config.restarts,
        **shared,
    )
    budget = round(1e6 * aided.processor_seconds)
    (timed,) = at_equal_work(
        {"mean field": by_processor}, updates=budget, seed=stream(config.seed, 7)
    )
    table = aided.table
    return {
        "mean_field": plain.log_z,
        "mean_field_runs": plain.log_zs.tolist(),
        "mfrp": printed.median,
        "mfrp_level": printed.best_level,
        "mfrp_medians": [level.median for level in printed.by_level],
        "mean_field_equal": equal.log_z,
        "mean_field_equal_restarts": config.restarts * equal.runs,
        "mean_field_timed": timed.log_z,
        "mean_field_timed_restarts": LANES * timed.runs,
        "mean_field_timed_processor_seconds": 1e-6 * timed.updates,
        "estimate": table.log_z,
        "estimate_level": table.best_level,
        "estimate_medians": [level.median for level in table.by_level],
        "estimate_lower": table.lower,
        "estimate_pool": aided.pool,
        "estimate_optima": aided.optima,
        "estimate_processor_seconds": aided.processor_seconds,
        "images": {
            "mean_field": _image(plain.marginals),
            "mfrp": _image(printed.marginals),
            "estimate": _image(table.marginals),
        },
    }


def _sum_out_a_layer(model: FactorGraph, config: RbmTable) -> dict[str, Any]:
    from tightz.reductions.encoding import encode
    from tightz.runtime.seeds import stream

    found = layer_with_search(
        encode(model).polynomial, sweeps=config.search_sweeps, seed=stream(config.seed, 4)
    )
    return {"layer": found.log_z}


def _ais(model: FactorGraph, config: RbmTable) -> dict[str, Any]:
    import tightz as tz
    from tightz.runtime.seeds import stream

    sampled = tz.ais(
        model, temperatures=config.temperatures, seed=stream(config.seed, 6), threads=1
    )
    return {
        "ais": sampled.log_z,
        "ais_error": sampled.standard_error,
        "ais_effective": sampled.effective_sample_size,
    }


def _interval(model: FactorGraph, config: RbmTable) -> dict[str, Any]:
    import tightz as tz
    from tightz.runtime.seeds import stream

    found = tz.log_partition(
        model, time_limit=config.seconds, exact=False, seed=stream(config.seed, 5)
    )
    marginals = found.marginals  # None where no stream got that far
    return {
        "interval_lower": found.lower,
        "interval_upper": found.upper,
        "interval_method": found.lower_proof.method,
        "interval_seconds": found.lower_proof.seconds,
        "images": {"interval": [] if marginals is None else _image(np.array(marginals))},
    }


def _image(marginals: np.ndarray) -> list[float]:
    """P(on) of the visible units."""
    pixels: list[float] = np.round(marginals[:784, 1], 4).tolist()
    return pixels


def _average_digit(mnist: str | None) -> dict[str, Any]:
    from tightz.models.mnist import load_mnist

    mean = load_mnist(mnist).probabilities().mean(axis=0, dtype=np.float64)
    return {"mean": np.round(mean, 4).tolist()}


def _short(record: dict[str, Any]) -> str:
    keys = (
        "mean_field", "mean_field_equal", "mfrp", "mean_field_timed", "estimate",
        "layer", "interval_lower", "ais",
    )  # fmt: skip
    return ", ".join(f"{key} {record[key]:.2f}" for key in keys)
