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
    """Both proven ends against time, the interval between them shaded."""
    if ax is None:
        ax = pyplot().subplots(figsize=(7, 4.5))[1]
    ends: dict[str, list[tuple[float, float]]] = {"lower": [], "upper": [], "certified": []}
    for bound in result.bounds:
        if bound.side in (Side.LOWER, Side.BOTH):
            kind = "lower" if bound.proof is Proof.DETERMINISTIC else "certified"
            ends[kind].append((bound.seconds, bound.log_z))
        if bound.side in (Side.UPPER, Side.BOTH):
            ends["upper"].append((bound.seconds, bound.log_z))
    last = max(result.seconds, 1e-3)
    grid = np.linspace(0.0, last, 1000)
    curves = {kind: _steps(points, grid) for kind, points in ends.items()}
    ax.fill_between(grid, curves["lower"], curves["upper"], color=TRIAL, alpha=0.25, lw=0)
    ax.plot(grid, curves["upper"], color=MEDIAN, lw=1.8, label=f"upper {result.upper:.3f}")
    ax.plot(grid, curves["lower"], color=INK, lw=1.8, label=f"lower {result.lower:.3f}")
    if ends["certified"] and result.certified.proof is Proof.CONFIDENCE:
        label = f"lower, confidence {result.certified.confidence:g}: {result.certified.log_z:.3f}"
        ax.plot(grid, curves["certified"], color=EXACT, lw=1.2, ls="--", label=label)
    final = abs(result.upper - result.lower)
    if np.isfinite(final):
        margin = max(4.0 * final, 1e-3 * max(1.0, abs(result.lower)))
        ax.set_ylim(result.lower - margin, result.upper + margin)
    ax.set_xlabel("seconds")
    ax.set_ylabel("log Z   [nats]")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    return ax


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


def _steps(points: list[tuple[float, float]], grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Step function through (time, value) points; NaN before the first."""
    if not points:
        return np.full_like(grid, np.nan)
    times = np.array([t for t, _ in points])
    values = np.array([v for _, v in points])
    at = np.searchsorted(times, grid, side="right") - 1
    return np.where(at >= 0, values[np.maximum(at, 0)], np.nan)


def plot_grid(probabilities: NDArray[np.float64], title: str, *, ax: Axes | None = None) -> Axes:
    """P(spin up) of a lattice as an image, white = 0, dark = 1."""
    if ax is None:
        ax = pyplot().subplots(figsize=(3, 3))[1]
    ax.imshow(probabilities, cmap="cividis", vmin=0.0, vmax=1.0)
    ax.set_title(title, fontsize=9, color=INK)
    ax.set_xticks([])
    ax.set_yticks([])
    return ax
