"""Figure: log Z of the paper's Ising grids, as the paper compares it and then at equal work.

One record per grid, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz_experiments.canvas import BLUE, GOLD, GREEN, GREY, INK, RED, finish, new_figure, tidy
from tightz_experiments.store import Store, small_print

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True)
class IsingGrids:
    """The paper's protocol: m = 0..20, T = 5, five grids a size, w in [-10, 10], f in [-1, 1].

    restarts     J; the paper gives no number, mean field gets the same
    exact_to     largest side whose log Z is computed exactly
    seconds      time limit of the certified interval on each grid, exact elimination forbidden
    """

    sizes: tuple[int, ...] = (5, 10, 15, 20, 25, 30)
    grids: int = 5
    levels: int = 20
    trials: int = 5
    restarts: int = 8
    exact_to: int = 25
    seconds: float = 10.0
    seed: int = 0

    def quick(self) -> IsingGrids:
        """A size for a first look: small grids, few levels and trials."""
        return replace(self, sizes=(4, 6), grids=2, levels=4, trials=3, restarts=4, seconds=0.5)


LINES = {  # key: (label, colour, marker, drawn dashed)
    "trw": ("TRW upper bound", GOLD, "^", False),
    "exact": ("exact", GREEN, "s", False),
    "interval_upper": ("tightz interval, upper end", GOLD, "v", False),
    "interval_lower": ("tightz interval, lower end", GREEN, "o", False),
    "estimate": ("tightz estimate, default", BLUE, "D", False),
    "mfrp": ("MFRP as printed, best median", RED, "o", False),
    "mean_field_equal": ("mean field, as many updates as MFRP", GREY, "x", True),
    "mean_field": ("mean field, best of as many restarts (J)", INK, ".", True),
    "mfrp_best": ("MFRP, best single projection (no bound)", RED, "^", True),
    "mean_field_one": ("mean field, one restart (average)", GREY, ".", True),
}


def ising(
    store: Store,
    path: Path,
    *,
    config: IsingGrids | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Path:
    """Compute what is missing, draw the figure and return its path."""
    config = config or IsingGrids()
    table = results(store, config, report)
    note = small_print(
        store.made_with(f"n{config.sizes[-1]}-grid0"),
        f"{config.grids} grids a size, seed {config.seed}, m = 0..{config.levels}, "
        f"T = {config.trials}, J = {config.restarts}, interval {config.seconds:g} s",
    )
    return _draw(config, table, path, note)


def results(
    store: Store, config: IsingGrids, report: Callable[[str], None] = lambda _: None
) -> dict[int, list[dict[str, Any]]]:
    """For each size one record per grid, recalled or computed."""
    protocol = {
        name: getattr(config, name) for name in ("levels", "trials", "restarts", "seconds", "seed")
    }
    table: dict[int, list[dict[str, Any]]] = {}
    for size in config.sizes:
        table[size] = []
        for grid in range(config.grids):
            parameters: dict[str, Any] = {
                **protocol,
                "size": size,
                "grid": grid,
                "exact": size <= config.exact_to,
            }
            record = store.recall(
                f"n{size}-grid{grid}", parameters, partial(_one_grid, **parameters)
            )
            average = float(np.mean(record["mean_field_runs"]))
            table[size].append({**record, "mean_field_one": average})
            report(f"ising {size}x{size}, grid {grid}: {_short(record)}")
    return table


def paper_grid(size: int, grid: int, seed: int) -> FactorGraph:
    """Grid number `grid` of a size; a site's field counts once per edge, as in the paper's psi."""
    from tightz.models import ising_grid
    from tightz.runtime.seeds import stream

    return ising_grid(
        size,
        coupling=(-10.0, 10.0),
        field=(-1.0, 1.0),
        field_per_edge=True,
        seed=stream(seed, size, grid),
    )


def _one_grid(
    *,
    size: int,
    grid: int,
    seed: int,
    levels: int,
    trials: int,
    restarts: int,
    seconds: float,
    exact: bool,
) -> dict[str, Any]:
    import tightz as tz
    from tightz.paper.equal_work import Outcome, at_equal_work
    from tightz.runtime.seeds import stream

    model = paper_grid(size, grid, seed)
    key = stream(seed, size, grid, 1)
    chosen = range(min(levels, size * size) + 1)
    plain = tz.mean_field(model, family=tz.MeanField(restarts=restarts), seed=stream(key, 0))
    printed = tz.estimate(
        model,
        projections=tz.Projections(restarts=restarts, collapse=0, search_sweeps=0),
        levels=chosen,
        trials=trials,
        seed=stream(key, 1),
    )

    def once(at: np.random.SeedSequence) -> Outcome:
        run = tz.mean_field(model, family=tz.MeanField(restarts=32), seed=at)
        return Outcome(run.log_z, run.sweeps * model.n_variables)

    (equal,) = at_equal_work({"mean field": once}, updates=printed.updates, seed=stream(key, 2))
    aided = tz.estimate(
        model, projections=tz.Projections(restarts=restarts), trials=trials, seed=stream(key, 3)
    )
    interval = tz.log_partition(model, time_limit=seconds, exact=False, seed=stream(key, 4))
    trw = tz.upper_bound(model, method=tz.TreeReweighted())
    truth = tz.exact(model, marginals=False) if exact else None
    return {
        "mean_field": plain.log_z,
        "mean_field_runs": plain.log_zs.tolist(),
        "mfrp": printed.median,
        "mfrp_best": float(printed.log_g.max()),
        "mfrp_level": printed.best_level,
        "mfrp_medians": [level.median for level in printed.by_level],
        "mfrp_certificate": printed.certificate(0.05).log_z,
        "mfrp_lower": printed.lower,
        "mfrp_updates": printed.updates,
        "mean_field_equal": equal.log_z,
        "mean_field_equal_restarts": 32 * equal.runs,
        "mean_field_equal_updates": equal.updates,
        "estimate": aided.log_z,
        "estimate_level": aided.best_level,
        "estimate_certificate": aided.certificate(0.05).log_z,
        "estimate_lower": aided.lower,
        "interval_lower": interval.lower,
        "interval_confident": [interval.confident.lower, interval.confident.upper],
        "interval_upper": interval.upper,
        "interval_methods": [interval.lower_proof.method, interval.upper_proof.method],
        "trw": trw.log_z,
        "exact": None if truth is None else truth.log_z,
        "seconds": {
            "mean_field": plain.seconds,
            "mfrp": printed.seconds,
            "mean_field_equal": equal.seconds,
            "estimate": aided.seconds,
            "interval": interval.seconds,
            "trw": trw.seconds,
            "exact": None if truth is None else truth.seconds,
        },
    }


def column(records: list[dict[str, Any]], key: str, relative_to: str) -> NDArray[np.float64]:
    """record[key] - record[relative_to] over grids; NaN where either is unknown."""
    values = [(r[key], r[relative_to]) for r in records]
    return np.array([np.nan if a is None or b is None else a - b for a, b in values])


def _short(record: dict[str, Any]) -> str:
    base = record["mean_field"]
    keys = ("mfrp", "mean_field_equal", "estimate", "interval_lower", "interval_upper", "exact")
    shown = ", ".join(f"{key} {record[key] - base:+.2f}" for key in keys if record[key] is not None)
    return f"mean field {base:.2f}; {shown}"


def _draw(
    config: IsingGrids, table: dict[int, list[dict[str, Any]]], path: Path, note: str
) -> Path:
    figure = new_figure(13.5, 6.3)
    left, right = figure.subplots(1, 2)
    for key in ("trw", "exact", "mfrp_best", "mfrp", "mean_field_one"):
        _line(left, table, key, "mean_field")
    left.axhline(0.0, color=INK, lw=1.0, ls="--")
    tidy(
        left,
        "As in the paper: log ratio to mean field",
        xlabel="side n of the grid",
        ylabel="log estimate - log mean field   [nats, linear to 100]",
    )
    left.plot([], [], "--", color=INK, lw=1.0, label=f"mean field, best of {config.restarts}: 0")
    left.set_yscale("symlog", linthresh=100.0)
    for key in (
        "interval_upper", "interval_lower", "estimate", "mean_field_equal", "mfrp", "mean_field",
    ):  # fmt: skip
        _line(right, table, key, "exact")
    right.axhline(0.0, color=GREEN, lw=1.2)
    tidy(
        right,
        "The same grids at equal work, against exact log Z",
        xlabel="side n of the grid",
        ylabel="distance from exact log Z   [nats, symmetric log scale]",
    )
    right.set_yscale("symlog", linthresh=0.1, linscale=0.6)
    for ax in (left, right):
        ax.set_xticks([n for n in config.sizes if ax is left or n <= config.exact_to])
        ax.legend(
            frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2
        )
    return finish(figure, path, note)


def _line(ax: Axes, table: dict[int, list[dict[str, Any]]], key: str, base: str) -> None:
    """Mean over grids with its standard error."""
    label, colour, marker, dashed = LINES[key]
    sizes, means, errors = [], [], []
    for size, records in table.items():
        values = column(records, key, base)
        if np.isnan(values).any():
            continue
        sizes.append(size)
        means.append(values.mean())
        errors.append(values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else 0.0)
    style = "--" if dashed else "-"
    ax.errorbar(
        sizes, means, errors, fmt=marker + style, color=colour, lw=1.7, ms=5, capsize=3, label=label
    )
