"""What all figures share: colours, clean axes, small print, and writing the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightz.errors import TightzError
from tightz.plots import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b2a41"
BLUE = "#3d6fa8"
PALE = "#7a9cc6"
RED = "#c8553d"
GREEN = "#2a7f62"
GOLD = "#d9a441"
GREY = "#8d8d8d"
FAINT = "#dfe3e8"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with constrained layout."""
    figure: Figure = pyplot().figure(figsize=(width, height), layout="constrained")
    return figure


def set_layout(figure: Figure, **options: Any) -> None:
    """Options of the constrained layout, such as rect and wspace."""
    engine: Any = figure.get_layout_engine()
    engine.set(**options)


def tidy(ax: Axes, title: str = "", **labels: str) -> Axes:
    """Drop the box, put the title on the left, set axis labels."""
    ax.spines[["top", "right"]].set_visible(False)
    if title:
        ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.set(**labels)
    return ax


def bare(ax: Axes) -> Axes:
    """No ticks, no frame: for drawings and images."""
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def finish(figure: Figure, path: Path, note: str) -> Path:
    """Add the small print, write the file and close the figure."""
    set_layout(figure, rect=(0.0, 0.035, 1.0, 0.965))
    figure.text(0.006, 0.006, note, fontsize=5.5, color=GREY, ha="left", va="bottom")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Software": "tightz"})
    except OSError as error:
        raise TightzError(
            f"{path}: cannot be written ({error.strerror}); choose a path in a folder that is "
            "there and writable"
        ) from error
    finally:
        pyplot().close(figure)
    return path


def arrow_after(ax: Axes) -> None:
    """An arrow in the gap to the right of a panel."""
    note = ax.annotate(
        "", (1.075, 0.5), (1.012, 0.5), xycoords="axes fraction", annotation_clip=False,
        arrowprops={"arrowstyle": "-|>", "mutation_scale": 18, "lw": 1.8, "color": INK},
    )  # fmt: skip
    note.set_in_layout(False)
