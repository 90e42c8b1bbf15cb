"""Picture of the approach (the paper's Figure 1), computed on a model small enough to list."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz_experiments.canvas import (
    FAINT,
    GREEN,
    INK,
    PALE,
    RED,
    arrow_after,
    bare,
    finish,
    new_figure,
    set_layout,
    tidy,
)
from tightz_experiments.store import Store, small_print

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS, COLS = 2, 4
SPINS = ROWS * COLS
SHOWN_LEVEL = 2
LOG_2 = math.log(2.0)


def idea(store: Store, path: Path, *, matrices: int = 12, seed: int = 4) -> Path:
    """Compute (or recall) the bounds on all cuts of a 2x4 grid and draw the three steps."""
    parameters = {"matrices": matrices, "seed": seed, "rows": ROWS, "cols": COLS}
    result = store.recall("idea", parameters, lambda: _bounds_on_cuts(matrices, seed))
    return _draw(result, path, small_print(store.made_with("idea"), f"seed {seed}"))


def _bounds_on_cuts(matrices: int, seed: int) -> dict[str, Any]:
    """Every level, several A each with all 2^m right-hand sides: the sum over b is exact."""
    from tightz.families import MeanField
    from tightz.models import ising_grid
    from tightz.projections.coset import Coset
    from tightz.projections.hashing import DenseParity, Parities
    from tightz.reductions.encoding import encode
    from tightz.runtime.seeds import generator

    poly = encode(ising_grid(ROWS, COLS, coupling=(-1.5, 1.5), field=(-0.3, 0.3), seed=seed))
    polynomial = poly.polynomial
    states = all_states()
    weights = polynomial.log_weight(1 - 2 * states)
    family = MeanField(restarts=16)
    levels: list[dict[str, Any]] = []
    for m in range(SPINS + 1):
        values, shares = [], []
        for number in range(matrices if m else 1):
            drawn = DenseParity().draw(m, SPINS, generator(seed, m, number))
            row = []
            for at, bits in enumerate(itertools.product((0, 1), repeat=m)):
                rhs = np.array(bits, dtype=np.uint8)
                coset = Coset.build(polynomial, Parities(drawn.matrix, rhs))
                row.append(family.project(coset, generator(seed, m, number, at)).log_gamma)
            values.append(row)
            shares.append(float(np.logaddexp.reduce(row)))
        finite = [v + m * LOG_2 for row in values for v in row if v > -math.inf]
        mean = float(np.logaddexp.reduce(shares) - math.log(len(shares)))
        levels.append({"m": m, "values": finite[:200], "mean": mean})
    cut = DenseParity().draw(SHOWN_LEVEL, SPINS, generator(seed, SHOWN_LEVEL, 1))
    return {
        "log_weights": weights.tolist(),
        "log_z": float(np.logaddexp.reduce(weights)),
        "levels": levels,
        "matrix": cut.matrix.tolist(),
        "rhs": cut.rhs.tolist(),
    }


def all_states() -> NDArray[np.int64]:
    """(256, 8) states x in {0, 1}; row r * 16 + c sits at row r, column c of the picture.

    Both halves run through a Gray code, so neighbours in the picture differ in one variable.
    """
    gray = np.arange(16) ^ (np.arange(16) >> 1)
    bits = (gray[:, None] >> np.arange(4)) & 1
    return np.concatenate([np.repeat(bits, 16, axis=0), np.tile(bits, (16, 1))], axis=1)


def _draw(result: dict[str, Any], path: Path, note: str) -> Path:
    figure = new_figure(13.2, 4.9)
    axes = figure.subplots(1, 3, width_ratios=[1, 1, 1.35])
    states = all_states()
    matrix, rhs = np.array(result["matrix"]), np.array(result["rhs"])
    inside = ((states @ matrix.T - rhs) % 2 == 0).all(axis=1)
    probability = np.exp(np.array(result["log_weights"]) - result["log_z"])
    _dots(axes[0], probability, np.ones(len(states), dtype=bool))
    axes[0].set_title("1  All states, weighted by p(x)", loc="left", fontsize=12, color=INK)
    axes[0].set_xlabel(
        "$Z$ sums over all $2^n$ of them.\nOne simple $q$ fits one mode: mean field falls short.",
        fontsize=10,
    )
    _dots(axes[1], probability, inside)
    axes[1].set_title("2  Random parities cut the space", loc="left", fontsize=12, color=INK)
    equations = "     ".join(
        r"$" + r" \oplus ".join(f"x_{i + 1}" for i in np.flatnonzero(row)) + f" = {b}$"
        for row, b in zip(matrix, rhs, strict=True)
    )
    axes[1].set_xlabel(
        f"{equations}\n$m$ coin-flip parities keep each state with chance $2^{{-m}}$.", fontsize=10
    )
    _ladder(axes[2], result)
    set_layout(figure, wspace=0.07)
    for ax in axes[:2]:
        arrow_after(ax)
    return finish(figure, path, note)


def _dots(ax: Axes, probability: NDArray[np.float64], kept: NDArray[np.bool_]) -> None:
    y, x = np.divmod(np.arange(probability.size), 16)
    size = 5 + 900 * np.sqrt(probability) * 0.42
    ax.scatter(x[~kept], y[~kept], s=size[~kept], color=FAINT, lw=0)
    ax.scatter(x[kept], y[kept], s=size[kept], color=PALE if kept.all() else RED, lw=0, alpha=0.9)
    bare(ax)
    ax.set(xlim=(-0.9, 15.9), ylim=(15.9, -0.9), aspect="equal")


def _ladder(ax: Axes, result: dict[str, Any]) -> None:
    """Bounds on single cuts, rescaled by 2^m, and their average, against m."""
    levels = result["levels"]
    for level in levels:
        values = np.array(level["values"])
        jitter = 0.26 * np.sin(np.arange(values.size) * 2.399)
        at = np.zeros(1) if level["m"] == 0 else level["m"] + jitter
        ax.plot(at, values, "o", ms=3.2, color=PALE, alpha=0.35, mew=0, zorder=1)
    ax.plot([], [], "o", ms=5, color=PALE, mew=0, label=r"one cut: bound $\gamma$, times $2^m$")
    means = [level["mean"] for level in levels]
    ax.plot(
        [level["m"] for level in levels], means, "o-", color=RED, lw=2.2, ms=5, zorder=3,
        label=r"average over cuts: never above $Z$",
    )  # fmt: skip
    top = result["log_z"]
    ax.axhline(top, color=GREEN, lw=1.8, zorder=2, label=f"exact log Z = {top:.2f}")
    ax.annotate(
        "plain\nmean field", (0, means[0]), (0.55, means[0] - 1.3), fontsize=9, color=INK,
        ha="center", arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.8},
    )  # fmt: skip
    ax.set_ylim(top - 4.0, top + 3.1)
    tidy(ax, xlabel="parities m", ylabel="log Z  [nats]")
    ax.set_title("3  Bound the cut, multiply by $2^m$", loc="left", fontsize=12, color=INK)
    ax.legend(frameon=False, fontsize=9, loc="upper left")
