"""Marginals as bars with their ends, as a histogram, and as pictures of the cells of a grid."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.ends import Ends, width
from tightz.reports.charts import Spec, plain
from tightz.reports.data import Marginals

MAX_BARS = 200
"""Variables drawn one by one; beyond that their probabilities are counted in bins."""

MAX_ERRORS = 500
"""Error bars drawn."""


def marginal_value(marginals: Marginals) -> tuple[str, NDArray[np.float64]]:
    """One number per variable and what it is: P(state 1), or the largest probability."""
    if marginals.binary:
        return "P(state 1)", np.array([v[1] if len(v) > 1 else 0.0 for v in marginals.vectors])
    return "largest probability", np.array([v.max(initial=0.0) for v in marginals.vectors])


def value_ends(marginals: Marginals, ends: Ends) -> NDArray[np.float64]:
    """(variables, 2) ends of the number that `marginal_value` shows."""
    if marginals.binary:
        return np.array([e[1] if len(e) > 1 else [0.0, 0.0] for e in ends])
    tops = [int(np.argmax(vector)) for vector in marginals.vectors]
    return np.array([e[top] for e, top in zip(ends, tops, strict=True)])


def ends_chart(marginals: Marginals, most: int = MAX_ERRORS) -> Spec | None:
    """An error bar for every variable, sorted by value: always in a light tone, confident darker.

    Of more than `most` variables every k-th is drawn. None where no ends
    are far enough apart to be seen.
    """
    label, values = marginal_value(marginals)
    variables = np.flatnonzero(np.isfinite(values))
    if not marginals.bounds or not variables.size:
        return None
    order = variables[np.argsort(-values[variables], kind="stable")]
    step = -(-order.size // most)
    order = order[::step]
    x = list(range(order.size))
    series: list[Spec] = []
    for (name, ends), color, wide in zip(
        marginals.bounds, ("trial", "confident"), (0.8, 0.5), strict=False
    ):
        low, high = value_ends(marginals, ends)[order].T
        series.append(
            {"name": name, "kind": "bars", "color": color, "width": wide, "x": x,
             "y": plain(low, 6), "y2": plain(high, 6)}
        )  # fmt: skip
    series.append(
        {"name": label, "kind": "dots", "color": "lower", "x": x, "y": plain(values[order], 6)}
    )
    some = f", one in {step} of them" if step > 1 else ""
    return {
        "id": "marginals", "log_x": False, "first": 0, "full": None,
        "title": f"{label} of each variable with its ends, largest first{some}",
        "xlabel": f"variables, largest first{some}", "ylabel": label, "short_x": "rank",
        "integer_x": True, "last": order.size - 1,
        "names": [_titled(marginals, v) for v in order.tolist()],
        "series": series, "view": {"x": [-0.6, order.size - 0.4], "y": [-0.02, 1.02]},
    }  # fmt: skip


def marginal_chart(marginals: Marginals) -> Spec | None:
    """Error bars where there are ends to show; else sorted bars, or a histogram of many variables.

    Without ends, pixels of a picture are left out.
    """
    shown = ends_chart(marginals)
    if shown is not None:
        return shown
    start = marginals.shape[0] * marginals.shape[1] if marginals.shape is not None else 0
    label, values = marginal_value(marginals)
    variables = np.arange(start, values.size)[np.isfinite(values[start:])]
    if not variables.size:
        return None
    base: Spec = {"id": "marginals", "log_x": False, "first": 0, "full": None}
    if variables.size > MAX_BARS:
        counts, edges = np.histogram(values[variables], bins=25, range=(0.0, 1.0))
        centres = (edges[1:] + edges[:-1]) / 2
        notes = [f"{a:.2f} to {b:.2f}" for a, b in pairwise(edges.tolist())]
        bars = {
            "name": "variables", "kind": "bars", "color": "lower", "width": 0.036,
            "x": plain(centres, 6), "y": counts.tolist(), "notes": notes,
        }  # fmt: skip
        return base | {
            "title": f"How many variables have which {label}", "xlabel": label,
            "ylabel": "variables", "short_x": label, "integer_x": False, "last": 1,
            "series": [bars], "view": {"x": [0.0, 1.0], "y": [0.0, 1.05 * float(counts.max())]},
        }  # fmt: skip
    order = variables[np.argsort(-values[variables], kind="stable")]
    bars = {
        "name": label, "kind": "bars", "color": "lower", "width": 0.8,
        "x": list(range(order.size)), "y": plain(values[order], 6),
    }  # fmt: skip
    return base | {
        "title": f"{label} of each variable, largest first", "xlabel": "variables, largest first",
        "ylabel": label, "short_x": "rank", "integer_x": True, "last": order.size - 1,
        "names": [_titled(marginals, v) for v in order.tolist()],
        "series": [bars], "view": {"x": [-0.6, order.size - 0.4], "y": [0.0, 1.02]},
    }  # fmt: skip


def _titled(marginals: Marginals, v: int) -> str:
    """A variable by name, with its likeliest state; by number where it has none."""
    if marginals.names is None:
        return f"variable {v}"
    if marginals.binary:
        return marginals.label(v)
    likeliest = int(np.argmax(marginals.vectors[v]))
    return f"{marginals.label(v)} = {marginals.names.state_labels(v)[likeliest]}"


class Picture(NamedTuple):
    """values (rows, cols) from 0 to `top`."""

    title: str
    values: NDArray[np.float64]
    top: float = 1.0


def pictures(marginals: Marginals) -> list[Picture]:
    """One for binary pixels, else one per state, up to 8; then the widths of their ends."""
    if marginals.shape is None:
        return []
    rows, cols = marginals.shape
    cells = marginals.vectors[: rows * cols]
    states = max(len(cell) for cell in cells)
    shown = [1] if states <= 2 else range(min(states, 8))
    out = [
        Picture(
            f"P(state {k})",
            np.array([c[k] if k < len(c) else 0.0 for c in cells]).reshape(rows, cols),
        )
        for k in shown
    ]
    for how, ends in marginals.bounds:
        wide = width(ends[: rows * cols]).reshape(rows, cols)
        out.append(Picture(f"width of the ends, {how}", wide, float(wide.max()) or 1.0))
    return out
