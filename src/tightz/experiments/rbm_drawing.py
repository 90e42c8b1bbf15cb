"""The RBM table as a picture: numbers above, means of the visible units as images below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.experiments.canvas import GREY, INK, bare, finish, new_figure
from tightz.experiments.rbm_models import PAPER, PUBLISHED_AIS, Column, RbmTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS: Sequence[tuple[str, str]] = (
    ("paper: mean field", "paper_mean_field"),
    ("paper: MFRP", "paper_mfrp"),
    ("mean field, best of {restarts}", "mean_field"),
    ("mean field, work of next row", "mean_field_equal"),
    ("MFRP as printed", "mfrp"),
    ("mean field, time of next row", "mean_field_timed"),
    ("MFRP with our search", "estimate"),
    ("tightz interval, lower end", "interval_lower"),
    ("tightz layer mean field", "layer"),
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


def draw_table(
    config: RbmTable, records: list[dict[str, Any]], average: list[float], path: Path, note: str
) -> Path:
    """Numbers above, images of the visible units' means below, the average digit at the right."""
    count = len(config.columns)
    figure = new_figure(2.6 + 1.45 * (count + 1), 8.4)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.15, 1.5])
    upper, lower = parts
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
            bold = "bold" if key in ("interval_lower", "layer") else "normal"
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
