"""Time against error, a panel for each task; failures are on a line of their own at the top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peers.tables import groups
from peers.tasks import task

PANELS = ("exact", "marginals", "lower", "upper", "estimate", "heaviest")
LIBRARIES = (
    "tightz", "pygms", "pyagrum", "pgmpy", "cotengra", "dwave-samplers", "pytoulbar2",
)  # fmt: skip
MARKERS = "osDv^<>"
NEAR = ("lower", "upper", "estimate")
"""Tasks whose errors are shown down to 1e-6; of the others down to rounding."""

MOST = 1e4
"""Errors end here; runs without a value are above."""


def draw(answer: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(11.0, 6.6), sharex=True)
    for name, ax in zip(PANELS, axes.ravel(), strict=True):
        panel(ax, name, [row for row in answer["rows"] if row["task"] == name], answer)
    for ax in axes[1]:
        ax.set_xlabel("CPU seconds")
    handles = [
        pyplot.Line2D([], [], marker=m, color=f"C{k}", linestyle="", label=library)
        for k, (library, m) in enumerate(zip(LIBRARIES, MARKERS, strict=True))
    ]
    figure.legend(handles=handles, loc="lower center", ncols=len(LIBRARIES), frameon=False)
    figure.tight_layout(rect=(0.0, 0.05, 1.0, 1.0))
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def panel(ax: Any, name: str, rows: list[dict[str, Any]], answer: dict[str, Any]) -> None:
    limit, least = answer["settings"]["seconds"], 1e-6 if name in NEAR else 1e-16
    step = (MOST / least) ** 0.03
    ax.set(xscale="log", yscale="log", ylim=(least / 3.0, MOST * step**9))
    ax.set_yticks([10.0**k for k in (range(-6, 5, 2) if name in NEAR else range(-16, 5, 4))])
    ax.set_title(task(name).TITLE, fontsize=10)
    ax.set_ylabel(f"error ({task(name).UNIT})", fontsize=8)
    ax.axhline(MOST * step**0.5, color="0.8", linewidth=0.8)
    ax.text(
        0.02, 0.975, "no value, or a wrong one", fontsize=7, va="top", transform=ax.transAxes,
        color="0.4",
    )  # fmt: skip
    ax.tick_params(labelsize=8)
    slots = len(groups(rows)) + 1
    for slot, group in enumerate(groups(rows).values()):
        for row in group:
            k = LIBRARIES.index(row["library"])
            style = {"marker": MARKERS[k], "color": f"C{k}", "markersize": 6, "alpha": 0.75}
            if "failure" in row or row.get("wrong"):
                place = limit * 10 ** (0.8 * (slot / slots - 0.5))
                ax.plot(place, MOST * step ** (k + 1.5), fillstyle="none", **style)
            elif "error" in row:
                error = min(max(abs(row["error"]), least), MOST)
                ax.plot(max(row["seconds"], 1e-4), error, **style)
