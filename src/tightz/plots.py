"""Pictures of results. Functions take an optional axes and return it; nothing is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tightz.estimation.results import Estimate

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
        raise MissingExtraError(
            "plots need matplotlib: pip install 'tightz[plot]' (or pip install matplotlib)"
        ) from error
    return plt


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
    ax.set_ylabel("log(2^m γ)   [nats]")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
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
