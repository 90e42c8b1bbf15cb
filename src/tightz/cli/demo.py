"""`tightz demo`: a paper grid, mean field, MFRP per level and the exact value, with a plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tightz.cli.options import progress, table

if TYPE_CHECKING:
    from tightz.estimation.results import Estimate, MeanFieldResult
    from tightz.references.exact import ExactResult


@click.command("demo")
@click.option("--size", type=int, default=14, show_default=True, help="Side of the grid.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--output", type=click.Path(), default="out/demo.png", show_default=True)
def demo(size: int, seed: int, output: str) -> None:
    """Run the paper's experiment on one grid and save a picture of it."""
    import tightz as tz

    model = tz.ising_grid(size, coupling=(-10, 10), field=(-1, 1), seed=seed)
    click.echo(f"model     {model}", err=True)
    plain = tz.mean_field(model, restarts=20, seed=seed)
    with progress("projections", 21 * 5) as step:
        e = tz.estimate(
            model,
            levels=range(21),
            trials=5,
            family=tz.MeanField(restarts=8),
            hashing=tz.DenseParity(),
            pivots=tz.FirstColumns(),
            seed=seed,
            on_trial=lambda _: step(),
        )
    exact = tz.exact(model)
    rows = [
        [
            str(r.m),
            f"{r.median:.3f}",
            f"{r.best:.3f}",
            f"{r.median - exact.log_z:+.3f}",
        ]
        for r in e.by_level
    ]
    table(["m", "median", "best", "median - exact"], rows, "MFRP: log(2^m gamma) per level")
    certificate = e.certificate(0.05)
    click.echo(f"exact                       log Z  = {exact.log_z:.4f}")
    click.echo(f"mean field, 20 restarts     log Z >= {plain.log_z:.4f}   (holds always)")
    click.echo(f"MFRP, max over m of median  log Z ~  {e.log_z:.4f}   (at m = {e.best_level})")
    click.echo(f"MFRP, best coset            log Z >= {e.lower.log_z:.4f}   (holds always)")
    click.echo(f"MFRP, certificate           log Z >= {certificate.log_z:.4f}   (confidence 0.95)")
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    _draw(e, plain, exact, size, path)
    click.echo(f"picture saved to {path}")


def _draw(e: Estimate, plain: MeanFieldResult, exact: ExactResult, size: int, path: Path) -> None:
    import numpy as np

    from tightz.plots import plot_grid, plot_levels, pyplot

    plt = pyplot()
    fig = plt.figure(figsize=(11, 4.8), layout="constrained")
    left, right = fig.subfigures(1, 2, width_ratios=[1.7, 1])
    ax = left.subplots()
    plot_levels(e, ax=ax, exact=exact.log_z, mean_field=plain.log_z)
    ax.set_title(f"{size}x{size} Ising grid, couplings in [-10, 10]", fontsize=10, loc="left")
    axes = right.subplots(2, 2)
    truth = np.array([p[0] for p in exact.marginals])
    shown = [
        (truth, "exact P(spin up)"),
        (plain.marginals[:, 0], "mean field"),
        (e.marginals[:, 0], "MFRP"),
    ]
    for panel, (values, title) in zip(axes.ravel(), shown, strict=False):
        error = np.abs(values - truth).mean()
        label = title if values is truth else f"{title} (mean error {error:.3f})"
        plot_grid(values.reshape(size, size), label, ax=panel)
    plot_grid(
        np.abs(e.marginals[:, 0] - truth).reshape(size, size), "|MFRP - exact|", ax=axes[1, 1]
    )
    fig.savefig(path, dpi=130)
    plt.close(fig)
