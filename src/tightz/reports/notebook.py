"""Models and results as small HTML for notebooks: the words of summary(), no colours of its own."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound
from tightz.interval.interval import LogPartition
from tightz.models.factor_graph import FactorGraph, Grid
from tightz.reports.charts import DIVERGING, SEQUENTIAL, Spec, png
from tightz.reports.marginal_charts import ends_chart, pictures
from tightz.reports.results import from_interval
from tightz.reports.words import describe
from tightz.results import Result

MAX_SIDE = 200
"""A lattice with a longer side has no picture: its cells would be smaller than a pixel."""

SHOWN_LINES = 40
"""Lines of a summary that a cell shows; the rest is a print(result.summary()) away."""

ERROR_BARS, WIDE, TALL = 200, 520, 150
"""Error bars of marginals in a cell, and the size of their chart."""


def html(thing: Any) -> str:
    """The HTML of a model, a bound or a result."""
    if isinstance(thing, FactorGraph):
        return model_html(thing)
    return bound_html(thing) if isinstance(thing, Bound) else result_html(thing)


def result_html(result: Result) -> str:
    """A result in the words of its summary()."""
    lines = result.summary().splitlines()
    if len(lines) > SHOWN_LINES:
        cut = len(lines) - SHOWN_LINES
        half = SHOWN_LINES // 2
        lines = [*lines[:half], f"... {cut} lines; print(result.summary()) ...", *lines[-half:]]
    extra = ""
    if isinstance(result, LogPartition) and result.marginals is not None:
        extra = marginals_html(result)
    return _block(type(result).__name__, "\n".join(lines), extra)


def marginals_html(result: LogPartition) -> str:
    """Error bars of all marginals, and pictures of values and widths where the model is a grid.

    Nothing where no ends are far enough apart to be seen.
    """
    shown = from_interval(result).marginals
    spec = None if shown is None else ends_chart(shown, ERROR_BARS)
    if shown is None or spec is None:
        return ""
    images = "".join(
        f'<figure style="display: inline-block; margin: 0 1em 0 0"><img alt="{escape(title)}" '
        f'width="{_zoom(p) * p.shape[1]}" height="{_zoom(p) * p.shape[0]}" '
        f'style="image-rendering: pixelated" src="{png(p, 0.0, top, SEQUENTIAL)}">'
        f"<figcaption>{escape(title)}, 0 to {top:.3g}</figcaption></figure>"
        for title, p, top in pictures(shown)
        if max(p.shape) <= MAX_SIDE
    )
    held = " and ".join(
        f"{tone}: {how}" for tone, (how, _) in zip(("light", "dark"), shown.bounds, strict=False)
    )
    return f"<div>{_error_bars(spec)}</div><div>{escape(spec['title'])}; {held}</div>{images}"


def _error_bars(spec: Spec) -> str:
    """The chart as a small SVG in the colour of the text: ends in two tones, values as points."""
    step = (WIDE - 20) / max(len(spec["names"]), 1)
    *bars, dots = spec["series"]

    def at(x: int, y: float | None) -> str:
        return f"{10 + step * (x + 0.5):.1f} {TALL - 5 - (TALL - 10) * (y or 0.0):.1f}"

    def path(moves: list[str], wide: float, tone: float, cap: str) -> str:
        return (
            f'<path d="{"".join(moves)}" stroke="currentColor" stroke-width="{wide:.2f}" '
            f'stroke-opacity="{tone}" stroke-linecap="{cap}" fill="none"/>'
        )

    drawn = [
        path(
            [f"M{at(x, low)}L{at(x, high)}" for x, low, high in zip(*ends, strict=True)],
            max(1.0, step * band["width"]), tone, "butt",
        )
        for band, tone in zip(bars, (0.2, 0.55), strict=False)
        for ends in [(band["x"], band["y"], band["y2"])]
    ]  # fmt: skip
    points = [f"M{at(x, y)}h0" for x, y in zip(dots["x"], dots["y"], strict=True)]
    drawn.append(path(points, min(4.0, max(1.5, step)), 1.0, "round"))
    return (
        f'<svg viewBox="0 0 {WIDE} {TALL}" width="{WIDE}" height="{TALL}" role="img" '
        f'aria-label="{escape(spec["title"])}">{"".join(drawn)}</svg>'
    )


def _zoom(picture: NDArray[np.float64]) -> int:
    return max(1, min(8, 320 // max(picture.shape)))


def bound_html(bound: Bound) -> str:
    """A bound with the reason why it holds."""
    line = bound.summary()
    return _block("Bound", line if bound.why in line else f"{line}\n{bound.why}")


def model_html(model: FactorGraph) -> str:
    """Kind and sizes, and the lattice of couplings and fields where the model is a grid."""
    picture = ""
    lattice = _lattice(model)
    if lattice is not None:
        size = float(np.abs(lattice[np.isfinite(lattice)]).max(initial=0.0)) or 1.0
        rows, cols = lattice.shape
        zoom = _zoom(lattice)
        picture = (
            f'<div><img alt="couplings and fields of the lattice" width="{cols * zoom}" '
            f'height="{rows * zoom}" style="image-rendering: pixelated" '
            f'src="{png(lattice, -size, size, DIVERGING)}"></div>'
            f"<div>sites show fields, the cells between them couplings: blue -{size:.3g}, "
            f"white 0, orange {size:.3g}</div>"
        )
    name = f"FactorGraph {model.name}" if model.name else "FactorGraph"
    return _block(name, describe(model), picture)


def _block(title: str, text: str, extra: str = "") -> str:
    style = "margin: 0.2em 0; background: none; color: inherit; white-space: pre-wrap"
    return (
        f"<div><strong>{escape(title)}</strong>"
        f'<pre style="{style}">{escape(text)}</pre>{extra}</div>'
    )


def _lattice(model: FactorGraph) -> NDArray[np.float64] | None:
    """(2 rows - 1, 2 cols - 1): fields at even cells, couplings between them; NaN elsewhere.

    A pair's coupling is half the mean log weight of agreeing minus differing states, a site's
    field half the log odds of its states 0 and 1: J and h of an Ising model. Bonds around a torus
    are left out.
    """
    layout = model.layout
    if not isinstance(layout, Grid) or layout.rows * layout.cols != model.n_variables:
        return None
    if max(layout.rows, layout.cols) > MAX_SIDE or np.unique(model.cardinalities).size != 1:
        return None
    out = np.full((2 * layout.rows - 1, 2 * layout.cols - 1), np.nan)
    out[::2, ::2] = 0.0
    out[1::2, ::2] = 0.0
    out[::2, 1::2] = 0.0
    states = int(model.cardinalities[0])
    for batch in model.batches():
        tables = np.where(np.isfinite(batch.log_tables), batch.log_tables, np.nan)
        if batch.scopes.shape[1] == 1 and states == 2:
            row, col = np.divmod(batch.scopes[:, 0], layout.cols)
            np.add.at(out, (2 * row, 2 * col), 0.5 * (tables[:, 0] - tables[:, 1]))
        elif batch.scopes.shape[1] == 2 and states > 1:
            (r0, c0), (r1, c1) = (np.divmod(batch.scopes[:, k], layout.cols) for k in (0, 1))
            near = np.abs(r0 - r1) + np.abs(c0 - c1) == 1
            same = np.eye(states, dtype=bool)
            weight = 0.5 * (tables[:, same].mean(axis=1) - tables[:, ~same].mean(axis=1))
            np.add.at(out, ((r0 + r1)[near], (c0 + c1)[near]), weight[near])
    return out
