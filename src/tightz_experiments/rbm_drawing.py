"""The RBM table as a picture: numbers above, means of the visible units as images below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz_experiments.canvas import FAINT, GREY, INK, bare, finish, new_figure
from tightz_experiments.rbm_models import PAPER, PUBLISHED_AIS, Column, RbmTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS: Sequence[tuple[str, str]] = (
    ("paper: mean field", "paper_mean_field"),
    ("paper: MFRP", "paper_mfrp"),
    ("mean field, best of {restarts}", "mean_field"),
    ("mean field, work of next row", "mean_field_equal"),
    ("MFRP as printed", "mfrp"),
    ("mean field, cpu time of next row", "mean_field_timed"),
    ("MFRP with our search", "estimate"),
    ("layer bound, same search", "layer"),
    ("tightz interval, lower end", "interval_lower"),
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


WIDE, HIGH, IMAGE = 1.45, 0.29, 1.2
"""Inches: a column, a row of text, the side of an image."""


def draw_table(
    config: RbmTable, records: list[dict[str, Any]], average: list[float], path: Path, note: str
) -> Path:
    """Numbers above, images below in the same columns, the average digit at the right."""
    count, step = len(config.columns), (IMAGE + 0.12) / HIGH
    below = len(ROWS) + 0.9
    bottom = below + step * len(IMAGES)
    figure = new_figure(WIDE * (count + 2.6), HIGH * (bottom + 2.2) + 0.3)
    ax = bare(figure.subplots())
    for line, label in enumerate(("hidden units", "CD-k")):
        ax.text(-1.85, line - 1.4, label, fontsize=10, color=INK, weight="bold", va="center")
        for at, column in enumerate(config.columns):
            value = f"{column.k}" + (" (public)" if column.public else "")
            text = value if line else str(column.hidden)
            ax.text(at, line - 1.4, text, fontsize=10, ha="center", va="center", weight="bold")
    ax.plot([-1.85, count + 0.4], [0.1, 0.1], color=INK, lw=1.0)
    for line, (label, key) in enumerate(ROWS):
        colour = GREY if key.startswith("p") else INK
        weight = "bold" if key in ("interval_lower", "layer") else "normal"
        style: dict[str, Any] = {"fontsize": 9.5, "color": colour, "va": "center"}
        ax.text(-1.85, line + 0.7, label.format(restarts=config.restarts), **style)
        for at, (column, record) in enumerate(zip(config.columns, records, strict=True)):
            entry = cell(column, record, key)
            ax.text(at, line + 0.7, entry, ha="center", weight=weight, **style)
    for row, (label, key) in enumerate(IMAGES):
        top = below + step * row
        ax.text(-1.85, top + 0.5 * step, label, fontsize=9.5, color=INK, va="center")
        for at, record in enumerate(records):
            if record["images"][key]:
                _image(ax, np.array(record["images"][key]), at, top)
    _image(ax, np.array(average), count, below)
    ax.text(count, below - 0.4, "average digit", fontsize=9, color=INK, ha="center", va="center")
    ax.set(xlim=(-1.95, count + 0.55), ylim=(bottom, -2.0), aspect="auto")
    return finish(figure, path, note)


def _image(ax: Axes, values: NDArray[np.float64], column: int, top: float) -> None:
    """A 28 x 28 image with a thin frame, centred in its column."""
    half, height = 0.5 * IMAGE / WIDE, IMAGE / HIGH
    left, right, bottom = column - half, column + half, top + height
    ax.imshow(
        values.reshape(28, 28), cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto",
        extent=(left, right, bottom, top),
    )  # fmt: skip
    ax.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color=FAINT, lw=0.8)
