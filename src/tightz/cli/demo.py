"""`tightz demo`: a paper grid by mean field, MFRP as printed, tightz and exactly, with a plot."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tightz.cli.options import progress, require_writable, table

if TYPE_CHECKING:
    from tightz.elimination.exact import ExactResult
    from tightz.families.results import MeanFieldResult
    from tightz.paper.results import Estimate


@click.command("demo")
@click.option("--size", type=int, default=14, show_default=True, help="Side of the grid.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option(
    "--output",
    type=click.Path(),
    default="out/demo.png",
    show_default=True,
    help="Where to write the picture.",
)
def demo(size: int, seed: int, output: str) -> None:
    """Run the paper's experiment on one grid, then with our aids, and save a picture of it.

    \b
    Example: tightz demo --size 14 --output demo.png
    """
    import tightz as tz
    from tightz.plots import require_picture

    path = Path(output)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    require_writable(output)
    require_picture(output)
    model = tz.ising_grid(size, coupling=(-10, 10), field=(-1, 1), seed=seed)
    click.echo(f"model: {model}", err=True)
    click.echo(
        "the first run compiles the kernels (about a minute); later ones start at once", err=True
    )
    plain = tz.mean_field(model, family=tz.MeanField(restarts=20), seed=seed)
    levels = range(min(20, size * size) + 1)
    with progress("paper's algorithm and ours", 2 * 5 * len(levels)) as step:
        options: dict[str, Any] = {"levels": levels, "trials": 5, "seed": seed}
        options["on_batch"] = lambda done: step(len(done))
        printed = tz.estimate(model, projections=tz.Projections.as_printed(), **options)
        aided = tz.estimate(model, **options)
    exact = tz.exact(model)
    rows = [
        [str(a.m), f"{a.median:.3f}", f"{a.median - exact.log_z:+.3f}", f"{b.median:.3f}",
         f"{b.median - exact.log_z:+.3f}"]
        for a, b in zip(printed.by_level, aided.by_level, strict=True)
    ]  # fmt: skip
    table(
        ["m", "as printed", "- exact", "tightz", "- exact "],
        rows,
        "median over 5 projections of log(2^m gamma)",
    )
    confidence = aided.certificate(0.05)
    lines = [
        ("exact elimination", "=", exact.log_z, f"width {exact.width}"),
        ("mean field, 20 restarts", ">=", plain.log_z, "holds always"),
        ("MFRP as printed", "~", printed.median, f"max of medians, at m = {printed.best_level}"),
        ("tightz estimate", "~", aided.log_z, f"max of medians, at m = {aided.best_level}"),
        ("tightz, one coset", ">=", aided.lower, "holds always"),
        ("tightz certificate", ">=", confidence.log_z, "holds with confidence 0.95"),
    ]
    for name, sign, value, note in lines:
        click.echo(f"{name:<24} log Z {sign:<2} {value:10.3f}   ({note})")
    _draw(printed, aided, plain, exact, size, path)
    click.echo(f"picture saved to {path}")


def _draw(
    printed: Estimate,
    aided: Estimate,
    plain: MeanFieldResult,
    exact: ExactResult,
    size: int,
    path: Path,
) -> None:
    import numpy as np

    from tightz.plots import plot_grid, plot_levels, pyplot

    plt = pyplot()
    fig = plt.figure(figsize=(12, 4.6), layout="constrained")
    left, right = fig.subfigures(1, 2, width_ratios=[2.1, 1])
    axes = left.subplots(1, 2)
    plot_levels(printed, ax=axes[0], exact=exact.log_z, mean_field=plain.log_z)
    axes[0].set_title("MFRP as printed", fontsize=10, loc="left")
    plot_levels(aided, ax=axes[1], exact=exact.log_z)
    axes[1].set_title("tightz: collapse, search, reliability pivots", fontsize=10, loc="left")
    axes[1].set_ylabel("")
    truth = np.array([p[0] for p in exact.marginals])
    shown = [
        (truth, "exact P(spin up)"),
        (plain.marginals[:, 0], "mean field"),
        (printed.marginals[:, 0], "MFRP as printed"),
        (aided.marginals[:, 0], "tightz"),
    ]
    for panel, (values, title) in zip(right.subplots(2, 2).ravel(), shown, strict=True):
        error = np.abs(values - truth).mean()
        label = title if values is truth else f"{title}\nmean error {error:.3f}"
        plot_grid(values.reshape(size, size), label, ax=panel)
    fig.savefig(path, dpi=130)
    plt.close(fig)
