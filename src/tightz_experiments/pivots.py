"""Picture of reliability pivots at work: which spins pay for the parities, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz_experiments.canvas import BLUE, GREEN, INK, RED, bare, finish, new_figure, tidy
from tightz_experiments.store import Store, small_print

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tightz.projections.hashing import PivotPolicy


@dataclass(frozen=True)
class PivotPicture:
    """One grid with w in [-10, 10]; `shown` parities on the maps, `levels` on the curve."""

    size: int = 12
    shown: int = 12
    levels: tuple[int, ...] = (0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
    trials: int = 15
    restarts: int = 8
    seed: int = 0

    def quick(self) -> PivotPicture:
        """A size for a first look."""
        return replace(self, size=6, shown=6, levels=(0, 3, 6), trials=3, restarts=2)


def pivots(store: Store, path: Path, *, config: PivotPicture | None = None) -> Path:
    """Compute (or recall) both choices of pivots on the same parities and draw them."""
    config = config or PivotPicture()
    result = store.recall("pivots", {**config.__dict__}, lambda: _compare(config))
    note = small_print(
        store.made_with("pivots"),
        f"{config.size}x{config.size} grid, w in [-10, 10], f in [-1, 1], seed {config.seed}, "
        f"T = {config.trials}, J = {config.restarts}",
    )
    return _draw(config, result, path, note)


def _compare(config: PivotPicture) -> dict[str, Any]:
    """The same heavy states, the same parities, two choices of constrained spins."""
    import tightz as tz
    from tightz.projections.coset import Coset
    from tightz.reductions.encoding import encode
    from tightz.runtime.seeds import generator, stream
    from tightz.workspace.workspace import Workspace

    seed = config.seed
    model = tz.ising_grid(config.size, coupling=(-10, 10), field=(-1, 1), seed=stream(seed, 0))
    poly = encode(model).polynomial
    work = Workspace.build(poly, seed=stream(seed, 1), collapse=0, search_sweeps=1000)
    guide = work.guide
    assert guide is not None
    best = guide.states[0]
    policies: dict[str, PivotPolicy] = {
        "first": tz.FirstColumns(),
        "reliable": tz.Reliability(guide.reliability),
    }
    family = tz.MeanField(restarts=config.restarts)
    out: dict[str, Any] = {
        "log_z": tz.exact(model, marginals=False).log_z,
        "flip_costs": guide.reliability.tolist(),
    }
    for name, policy in policies.items():
        drawn = tz.DenseParity().draw(config.shown, poly.n, generator(seed, 2))
        coset = Coset.build(poly, drawn, policy)
        repaired = coset.spins_from_free(best[None, coset.free])[0]
        weights = poly.log_weight(np.stack([best, repaired]))
        medians = []
        for m in config.levels:
            values = []
            for t in range(config.trials):
                parities = tz.DenseParity().draw(m, poly.n, generator(seed, 3, m, t))
                at = Coset.build(poly, parities, policy)
                q = family.project(at, generator(seed, 4, m, t), guide.states)
                values.append(q.log_gamma + m * np.log(2.0))
            medians.append([float(x) for x in np.quantile(values, [0.25, 0.5, 0.75])])
        out[name] = {
            "pivots": coset.pivots.tolist(),
            "flipped": np.flatnonzero(repaired != best).tolist(),
            "cost": float(weights[0] - weights[1]),
            "quartiles": medians,
        }
    return out


def _draw(config: PivotPicture, result: dict[str, Any], path: Path, note: str) -> Path:
    figure = new_figure(13.2, 4.7)
    axes = figure.subplots(1, 3, width_ratios=[1, 1, 1.3])
    titles = {"first": "Leading spins carry the parities", "reliable": "Cheapest spins carry them"}
    for ax, (name, title) in zip(axes[:2], titles.items(), strict=True):
        image = _map(ax, config.size, result, name)
        ax.set_title(title, loc="left", fontsize=12, color=INK)
    bar = figure.colorbar(image, ax=axes[:2].tolist(), location="left", shrink=0.75, pad=0.02)
    bar.set_label("cost of flipping a spin in the best state  [nats]", fontsize=9)
    for name, colour, label in (
        ("first", RED, "leading spins (the paper)"),
        ("reliable", BLUE, "cheapest spins (reliability)"),
    ):
        low, mid, high = np.array(result[name]["quartiles"]).T - result["log_z"]
        axes[2].fill_between(config.levels, low, high, color=colour, alpha=0.18, lw=0)
        axes[2].plot(config.levels, mid, "o-", color=colour, lw=2, ms=4, label=label)
    axes[2].axhline(0.0, color=GREEN, lw=1.6, label="exact")
    tidy(axes[2], xlabel="parities m", ylabel=r"$\log(2^m\gamma)$ - exact log Z   [nats]")
    axes[2].set_title("Same cuts, same starts", loc="left", fontsize=12, color=INK)
    axes[2].locator_params(axis="x", integer=True)
    axes[2].legend(frameon=False, fontsize=9, loc="lower left")
    return finish(figure, path, note)


def _map(ax: Axes, size: int, result: dict[str, Any], name: str) -> Any:
    """Flip costs as an image; squares mark constrained spins, crosses those that had to flip."""
    costs = np.array(result["flip_costs"]).reshape(size, size)
    top = float(np.quantile(costs, 0.95))
    image = bare(ax).imshow(costs, cmap="Blues", vmin=0.0, vmax=top, alpha=0.75)
    part = result[name]
    y, x = np.divmod(np.array(part["pivots"], dtype=int), size)
    ax.scatter(x, y, marker="s", s=150, facecolors="none", edgecolors=INK, lw=1.8)
    y, x = np.divmod(np.array(part["flipped"], dtype=int), size)
    ax.scatter(x, y, marker="x", s=60, color=RED, lw=2.2)
    ax.set_xlabel(
        f"squares: constrained; crosses: must flip ({len(part['flipped'])})\n"
        f"moving the best state into the cut: {-part['cost']:.1f} nats",
        fontsize=10,
    )
    return image
