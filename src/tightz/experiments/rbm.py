"""Table: log Z of RBMs trained on MNIST, by mean field, MFRP, our default and AIS.

Each column is trained and measured on its own and kept, so columns can be added one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz.experiments.rbm_drawing import draw_table
from tightz.experiments.rbm_models import Column, RbmTable, trained_model
from tightz.experiments.store import Store, small_print

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph


LAYER_STARTS = 64
"""Random starts of the layer bound, and as many tempered ones: the heaviest mode hides well."""

_LAYER_SETTINGS = ("epochs", "batch_size", "examples", "search_sweeps", "seed")


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
    return draw_table(config, records, average["mean"], path, note)


def results(
    store: Store,
    config: RbmTable,
    *,
    mnist: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """One record per column, in order, recalled or computed."""
    records = []
    for column in config.columns:
        records.append(_column(store, config, column, mnist, report))
        report(f"{column.name}: {_short(records[-1])}")
    return records


def _column(
    store: Store, config: RbmTable, column: Column, mnist: str | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Two records under one roof: the comparison, and the layer bound."""

    @cache
    def model() -> tuple[FactorGraph, dict[str, Any]]:
        return trained_model(store.folder, config, column, mnist, report)

    def compare() -> dict[str, Any]:
        return {**_measure(model()[0], config), "training": model()[1]}

    settings = {key: value for key, value in asdict(config).items() if key != "columns"}
    training = {key: settings[key] for key in _LAYER_SETTINGS}
    layer = {**training, **asdict(column), "layer_starts": LAYER_STARTS}
    return {
        **store.recall(column.name, {**settings, **asdict(column)}, compare),
        **store.recall(f"{column.name}-layer", layer, lambda: _sum_out_a_layer(model()[0], config)),
    }


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


def _sum_out_a_layer(model: FactorGraph, config: RbmTable) -> dict[str, Any]:
    """One layer summed exactly, climbing from tempered states too: a deterministic lower bound."""
    import tightz as tz
    from tightz.models.encoding import encode
    from tightz.runtime.seeds import stream

    polynomial = encode(model).polynomial
    begun = time.perf_counter()
    pool = tz.sample_pool(polynomial, sweeps=config.search_sweeps, seed=stream(config.seed, 9))
    found = tz.layer_mean_field(
        model,
        restarts=LAYER_STARTS,
        starts=pool.states[:LAYER_STARTS],
        seed=stream(config.seed, 8),
    )
    return {"layer": found.log_z, "layer_seconds": time.perf_counter() - begun}


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
        "layer",
        "ais",
    )
    return ", ".join(f"{key} {record[key]:.2f}" for key in keys)
