"""Figure: processor time of one coordinate ascent against the grid's size and the parities."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz_experiments.canvas import BLUE, GOLD, GREEN, GREY, INK, RED, finish, new_figure, tidy
from tightz_experiments.store import Store, small_print

FORCED_SWEEPS = 50

COLOURS = (INK, BLUE, GREEN, GOLD, RED, GREY)


@dataclass(frozen=True)
class Runtimes:
    """The paper's grids, timed in the kernel itself.

    A sweep is the least of `repeats` runs of 50 sweeps, an ascent the mean of 4 x `repeats` runs to
    convergence (tol 1e-6); both are averaged over `grids` grids.
    """

    sizes: tuple[int, ...] = (5, 10, 15, 20, 30, 40, 60)
    levels: tuple[int, ...] = (0, 1, 2, 5, 10, 15, 20)
    grids: int = 3
    repeats: int = 3
    restarts: int = 8
    seed: int = 0

    def quick(self) -> Runtimes:
        """A size for a first look."""
        return replace(self, sizes=(4, 8), levels=(0, 2, 4), grids=1, repeats=1)


def runtime(
    store: Store,
    path: Path,
    *,
    config: Runtimes | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Path:
    """Measure what is missing, draw the figure and return its path."""
    config = config or Runtimes()
    sweep, ascent = results(store, config, report)
    note = small_print(
        store.made_with(f"n{config.sizes[-1]}"),
        f"processor time of one thread, {config.restarts} restarts as lanes, time per restart; "
        f"{config.grids} grids a size, seed {config.seed}",
    )
    return _draw(config, sweep, ascent, path, note)


def results(
    store: Store, config: Runtimes, report: Callable[[str], None] = lambda _: None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds (sizes, levels) of one sweep and of one ascent to convergence, per restart."""
    sweep, ascent = [], []
    shared = {
        name: getattr(config, name) for name in ("grids", "repeats", "restarts", "seed", "levels")
    }
    for size in config.sizes:
        parameters: dict[str, Any] = {**shared, "size": size}
        record = store.recall(f"n{size}", parameters, partial(_time_size, **parameters))
        sweep.append(record["sweep"])
        ascent.append(record["ascent"])
        report(
            f"runtime {size}x{size}: ascent {1e3 * record['ascent'][0]:.3f} ms at m = 0, "
            f"{1e3 * record['ascent'][-1]:.3f} ms at m = {config.levels[-1]}"
        )
    return np.array(sweep), np.array(ascent)


def exponent(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Slope of log y against log x: the power of a power law."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _time_size(
    *, size: int, levels: tuple[int, ...], grids: int, repeats: int, restarts: int, seed: int
) -> dict[str, Any]:
    from tightz.families.ascent import ascend
    from tightz.projections.coset import Coset
    from tightz.projections.hashing import DenseParity
    from tightz.reductions.encoding import encode
    from tightz.runtime.seeds import generator
    from tightz_experiments.ising import paper_grid

    table = np.zeros((2, grids, len(levels)))
    for grid in range(grids):
        poly = encode(paper_grid(size, grid, seed)).polynomial
        for at, m in enumerate(levels):
            parities = DenseParity().draw(m, poly.n, generator(seed, size, grid, m))
            coset = Coset.build(poly, parities)
            gains = np.zeros(restarts)

            def seconds(betas: NDArray[np.float64], key: int, coset: Coset = coset) -> float:
                shape = (coset.n_free, restarts)
                v = generator(seed, key).uniform(-1.0, 1.0, size=shape)
                begun = time.thread_time()
                ascend(coset.grouped, v, betas, 1e-6, 1000, gains)  # noqa: B023
                return (time.thread_time() - begun) / restarts

            forced = np.ones(FORCED_SWEEPS)  # inverse temperature 1: sweeps that cannot stop early
            seconds(forced, 0)  # compiles, and warms the cache
            sweeps = [seconds(forced, r) / FORCED_SWEEPS for r in range(repeats)]
            ascents = [seconds(np.zeros(0), r) for r in range(4 * repeats)]
            table[:, grid, at] = min(sweeps), np.mean(ascents)
    return {"sweep": table[0].mean(axis=0).tolist(), "ascent": table[1].mean(axis=0).tolist()}


def _draw(
    config: Runtimes,
    sweep: NDArray[np.float64],
    ascent: NDArray[np.float64],
    path: Path,
    note: str,
) -> Path:
    figure = new_figure(13.2, 4.9)
    axes = figure.subplots(1, 3)
    variables = np.array(config.sizes, dtype=float) ** 2
    shown = [at for at, m in enumerate(config.levels) if m in (0, 5, 20)] or [0, -1]
    for panel, table, title in (
        (axes[0], sweep, "One sweep against the number of variables"),
        (axes[1], ascent, "One ascent, to convergence"),
    ):
        for at, colour in zip(shown, COLOURS, strict=False):
            fitted = variables > 4 * config.levels[at]  # else nearly every spin is constrained
            power = exponent(variables[fitted], table[fitted, at])
            label = f"m = {config.levels[at]}: fitted $N^{{{power:.2f}}}$"
            panel.loglog(variables, 1e3 * table[:, at], "o-", color=colour, label=label)
        tidy(panel, title, xlabel="variables N = n x n", ylabel="milliseconds per restart")
        panel.loglog(
            variables, 1e3 * table[0, shown[0]] * variables / variables[0], ":", color=GREY,
            label="linear",
        )  # fmt: skip
        panel.legend(frameon=False, fontsize=9)
    m = np.array(config.levels, dtype=float)
    large = [at for at, n in enumerate(config.sizes) if n in (10, 20, 40, 60)] or [-1]
    for at, colour in zip(large, COLOURS, strict=False):
        slope, start = np.polyfit(m, sweep[at] / sweep[at, 0], 1)
        label = f"{config.sizes[at]} x {config.sizes[at]}: {start:.2f} + {slope:.3f} m"
        axes[2].plot(m, sweep[at] / sweep[at, 0], "o", color=colour, label=label)
        axes[2].plot(m, start + slope * m, "-", color=colour, lw=1.2)
    tidy(axes[2], "One sweep against m, fitted lines", xlabel="parities m", ylabel="time / at m=0")
    axes[2].set_ylim(bottom=0.0)
    axes[2].locator_params(axis="x", integer=True)
    axes[2].legend(frameon=False, fontsize=9)
    return finish(figure, path, note)
