"""Marginals as bars, as a histogram, and as pictures where variables are cells of a grid."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tightz.reports.charts import Spec, plain
from tightz.reports.data import Marginals

MAX_BARS = 200
"""Variables drawn one by one; beyond that their probabilities are counted in bins."""


def marginal_value(marginals: Marginals) -> tuple[str, NDArray[np.float64]]:
    """One number per variable and what it is: P(state 1), or the largest probability."""
    if marginals.binary:
        return "P(state 1)", np.array([v[1] if len(v) > 1 else 0.0 for v in marginals.vectors])
    return "largest probability", np.array([v.max(initial=0.0) for v in marginals.vectors])


def marginal_chart(marginals: Marginals) -> Spec | None:
    """Sorted bars, or a histogram for many variables; pixels of a picture are left out."""
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


def pictures(marginals: Marginals) -> list[tuple[str, NDArray[np.float64]]]:
    """(title, rows x cols probabilities): one for binary pixels, else one per state, up to 8."""
    if marginals.shape is None:
        return []
    rows, cols = marginals.shape
    cells = marginals.vectors[: rows * cols]
    states = max(len(cell) for cell in cells)
    shown = [1] if states <= 2 else range(min(states, 8))
    return [
        (
            f"P(state {k})",
            np.array([c[k] if k < len(c) else 0.0 for c in cells]).reshape(rows, cols),
        )
        for k in shown
    ]
