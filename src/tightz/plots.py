"""Pictures of results. Functions take an optional axes and return it; nothing is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Proof, Side
from tightz.errors import MissingExtraError, ParameterError, TightzError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tightz.interval.interval import LogPartition
    from tightz.interval.likelihood import LogLikelihood
    from tightz.interval.thermodynamics import Curve, FreeEnergy
    from tightz.paper.results import Estimate
    from tightz.results import Result

INK = "#1b2a41"
TRIAL = "#7a9cc6"
MEDIAN = "#c8553d"
EXACT = "#2a7f62"
PLAIN = "#8d8d8d"


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to get it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError("plots need matplotlib: pip install 'tightz[plot]'") from error
    return plt


def require_picture(path: str) -> None:
    """Refuse a picture that `save` could not write: no matplotlib, or an unknown ending."""
    pyplot()
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    ending = Path(path).suffix
    if ending and ending[1:].lower() not in known:
        raise ParameterError(f"{path}: unknown ending {ending!r}; expected .{', .'.join(known)}")


def save(ax: Axes, path: str) -> None:
    """Write the figure that holds `ax` and close it."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    try:
        figure.savefig(path, dpi=130, bbox_inches="tight")
    except OSError as error:
        raise TightzError(
            f"{path}: cannot be written ({error.strerror}); choose a path in a folder that is "
            "there and writable"
        ) from error
    finally:
        pyplot().close(figure)


def plot_levels(
    estimate: Estimate,
    *,
    ax: Axes | None = None,
    exact: float | None = None,
    mean_field: float | None = None,
) -> Axes:
    """Every trial's log(2^m gamma) against m, the median per level, and reference lines."""
    if ax is None:
        ax = pyplot().subplots(figsize=(7, 4.5))[1]
    table = estimate.log_g
    jitter = np.linspace(-0.22, 0.22, table.shape[1])
    for m, row in zip(estimate.levels, table, strict=True):
        ax.plot(m + jitter, row, "o", ms=4, color=TRIAL, alpha=0.8, mec="none", zorder=2)
    ax.plot([], [], "o", ms=4, color=TRIAL, label="one projection, best restart")
    medians = [level.median for level in estimate.by_level]
    ax.plot(estimate.levels, medians, "-", lw=2, color=MEDIAN, label="median per level", zorder=3)
    if exact is not None:
        ax.axhline(exact, color=EXACT, lw=1.6, label=f"exact {exact:.2f}")
    if mean_field is not None:
        label = f"mean field {mean_field:.2f}"
        ax.axhline(mean_field, color=PLAIN, lw=1.6, ls="--", label=label)
    ax.set_xlabel("parity constraints m")
    ax.set_ylabel(r"$\log(2^m \gamma)$   [nats]")
    ax.locator_params(axis="x", integer=True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    return ax


def plot_interval(result: LogPartition, *, ax: Axes | None = None) -> Axes:
    """The proven interval (light), the confident one (dark) and the estimate against time.

    The confident interval may be a thousand times narrower: a second panel shows both widths on a
    log scale. It is left out where the caller gives the axes.
    """
    below = None
    if ax is None:
        _, (ax, below) = pyplot().subplots(
            2, 1, figsize=(7, 6), sharex=True, height_ratios=[3, 2], layout="constrained"
        )
    grid, always, likely = interval_curves(result)
    c = result.confident
    ax.fill_between(grid, *always, color=TRIAL, alpha=0.25, lw=0, step="post")
    ax.step(grid, always[1], color=MEDIAN, lw=1.6, where="post", label=f"upper {result.upper:.3f}")
    ax.step(grid, always[0], color=INK, lw=1.6, where="post", label=f"lower {result.lower:.3f}")
    if not result.is_exact and c.width < result.width:
        label = f"confidence {c.confidence:g}: [{c.lower:.4f}, {c.upper:.4f}]"
        # drawn from the moment it is the narrower one
        ends = np.where(likely[1] - likely[0] < always[1] - always[0], likely, np.nan)
        ax.fill_between(
            grid,
            ends[0],
            ends[1],
            color=EXACT,
            alpha=0.55,
            lw=1.0,
            ec=EXACT,
            step="post",
            label=label,
        )
    if not result.is_exact and np.isfinite(result.estimate_error):
        label = f"estimate {result.estimate:.4f} +- {result.estimate_error:.2g}"
        ax.axhline(result.estimate, color=INK, lw=1.0, ls=":", label=label)
    if np.isfinite(result.width):
        margin = max(2.0 * result.width, 1e-3 * max(1.0, abs(result.lower)))
        ax.set_ylim(result.lower - margin, result.upper + margin)
    ax.set_ylabel("log Z   [nats]")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    ax.set_xlabel("seconds")
    if below is not None:
        ax.tick_params(labelbottom=True)
        _plot_widths(below, grid, always, likely)
    return ax


Ends = tuple[NDArray[np.float64], NDArray[np.float64]]


def interval_curves(result: LogPartition) -> tuple[NDArray[np.float64], Ends, Ends]:
    """(times, proven ends, confident ends): the best of each so far at every record's time."""
    times = sorted({0.0, *(b.seconds for b in result.bounds), max(result.seconds, 1e-3)})
    always, likely = np.empty((2, len(times))), np.empty((2, len(times)))
    bounds = iter(sorted(result.bounds, key=lambda b: b.seconds))
    bound, proven, any_proof = next(bounds, None), [-np.inf, np.inf], [-np.inf, np.inf]
    for i, now in enumerate(times):
        while bound is not None and bound.seconds <= now:
            best = [any_proof] if bound.proof is Proof.CONFIDENCE else [proven, any_proof]
            for ends in best:
                ends[:] = max(ends[0], bound.low), min(ends[1], bound.high)
            bound = next(bounds, None)
        always[:, i], likely[:, i] = proven, any_proof
    always[~np.isfinite(always)] = likely[~np.isfinite(likely)] = np.nan
    return np.array(times), (always[0], always[1]), (likely[0], likely[1])


def _plot_widths(ax: Axes, times: NDArray[np.float64], always: Ends, likely: Ends) -> None:
    """Both widths on a log scale; a closed interval has none."""
    for (low, high), color, label, lw in (
        (always, INK, "always", 2.6),
        (likely, EXACT, "with confidence", 1.4),
    ):
        width = np.where(high > low, high - low, np.nan)
        if np.isfinite(width).any():
            ax.step(times, width, color=color, lw=lw, where="post", label=label)
            ax.set_yscale("log")
    ax.set_xlabel("seconds")
    ax.set_ylabel("width   [nats]")
    ax.grid(axis="y", color=PLAIN, alpha=0.25, lw=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=8)


def plot_free_energy(result: FreeEnergy, *, ax: Axes | None = None) -> Axes:
    """Free energy, energy, entropy and heat capacity per variable against the temperature.

    Light: what holds always. Dark: with confidence. With `ax` the free energy alone.
    """
    shown = [
        (result.free_energy, "free energy F / n"),
        (result.energy, "energy <E> / n"),
        (result.entropy, "entropy S / n   [nats]"),
        (result.heat_capacity, "heat capacity C / n"),
    ]
    if ax is not None:
        shown, places = shown[:1], [ax]
    else:
        places = list(pyplot().subplots(2, 2, figsize=(9, 6), layout="constrained")[1].flat)
    for place, (curve, label) in zip(places, shown, strict=True):
        _plot_curve(place, result, curve)
        place.set_xlabel("temperature T")
        place.set_ylabel(label)
        place.spines[["top", "right"]].set_visible(False)
    places[0].legend(frameon=False, fontsize=8)
    return places[0]


def _plot_curve(ax: Axes, result: FreeEnergy, curve: Curve) -> None:
    n = max(1, result.model.free_variables.size)
    order = np.argsort(result.temperatures)
    order = order[np.isfinite(result.temperatures[order])]
    at = result.temperatures[order]
    label = f"confidence {result.confidence:g}"
    for ends, color, alpha, name in (
        ((curve.lower, curve.upper), TRIAL, 0.3, "holds always"),
        (curve.confident.T, EXACT, 0.45, label),
    ):
        low, high = (np.where(np.isfinite(end), end, np.nan)[order] / n for end in ends)
        ax.fill_between(at, low, high, color=color, alpha=alpha, lw=0, label=name)
    exact = bool(result.exact.all())
    line, name = ("-", "exact") if exact else (":", "estimate")
    ax.plot(at, curve.value[order] / n, line, marker="o", ms=3.5, lw=1.2, color=INK, label=name)


def plot_bounds(result: Result, *, ax: Axes | None = None) -> Axes:
    """What a result says about log Z: one row per bound, pointing where log Z lies."""
    if ax is None:
        ax = pyplot().subplots(figsize=(7, 1.2 + 0.5 * max(1, len(result.bounds))))[1]
    colours = {Side.LOWER: INK, Side.UPPER: MEDIAN, Side.BOTH: EXACT, Side.ESTIMATE: PLAIN}
    marks = {Side.LOWER: ">", Side.UPPER: "<", Side.BOTH: "D", Side.ESTIMATE: "o"}
    for row, bound in enumerate(result.bounds):
        label = bound.summary()
        value = bound.log_z if np.isfinite(bound.log_z) else np.nan  # said in the legend
        ax.plot([value], [row], marks[bound.side], color=colours[bound.side], ms=7, label=label)
    ax.set_yticks([])
    ax.set_xlabel("log Z   [nats]")
    ax.spines[["top", "right", "left"]].set_visible(False)
    if result.bounds:
        ax.legend(frameon=False, fontsize=8)
    return ax


def plot_likelihood(result: LogLikelihood, *, ax: Axes | None = None) -> Axes:
    """A histogram of log p over the rows, and the mean between its ends."""
    if ax is None:
        _, ax = pyplot().subplots(figsize=(7, 3.5))
    values = result.examples.estimate
    values = values[np.isfinite(values)]
    if values.size:
        ax.hist(values, bins=min(60, max(5, values.size // 20)), color=TRIAL)
    mean = result.mean
    for low, high, label, strong in (
        (mean.lower, mean.upper, "mean, always", 0.2),
        (mean.confident_lower, mean.confident_upper, f"confidence {result.confidence:g}", 0.45),
    ):
        if np.isfinite([low, high]).all():
            ax.axvspan(low, high, color=MEDIAN, alpha=strong, label=label)
    ax.set_xlabel("log p (natural log)")
    ax.set_ylabel("rows")
    ax.legend(frameon=False)
    return ax


def plot_line(
    points: Sequence[tuple[float, float]], x: str, y: str, *, ax: Axes | None = None
) -> Axes:
    """A curve through a few points, axes labelled."""
    if ax is None:
        ax = pyplot().subplots(figsize=(7, 4.5))[1]
    ax.plot([p[0] for p in points], [p[1] for p in points], "-o", ms=4, color=INK)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_grid(probabilities: NDArray[np.float64], title: str, *, ax: Axes | None = None) -> Axes:
    """P(spin up) of a lattice as an image, white = 0, dark = 1."""
    if ax is None:
        ax = pyplot().subplots(figsize=(3, 3))[1]
    ax.imshow(probabilities, cmap="cividis", vmin=0.0, vmax=1.0)
    ax.set_title(title, fontsize=9, color=INK)
    ax.set_xticks([])
    ax.set_yticks([])
    return ax
