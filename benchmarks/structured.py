"""Structured mean field on grids with known log Z (independent transfer matrix in tests/naive.py).

Targets (issue 3): 15x15, w in [-1,1] and w in [0,1], within 1.0 nat of exact in 10 s each.
"""

from __future__ import annotations

import time

import numpy as np

from tests import naive
from tightz.families.mean_field import MeanField
from tightz.families.structured import StructuredMeanField
from tightz.models.builders import ising_grid
from tightz.paper.estimate import estimate
from tightz.paper.setup import Projections
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity
from tightz.reductions.encoding import encode

SEEDS = range(100, 105)
LOG_2 = float(np.log(2.0))


def main() -> None:
    """Gap and seconds per grid, then the same family at m > 0."""
    warm = Coset.build(encode(ising_grid(4, seed=0)).polynomial)
    StructuredMeanField(width=2).project(warm, np.random.default_rng(0))  # compile
    print("gap = exact log Z - bound; must never be negative")
    _grids(15, (-1.0, 1.0), (1, 4, 8, 10), target="8: 1.0 nat, 10 s (mean field: 15.3)")
    _grids(15, (0.0, 1.0), (1, 4, 8, 10), target="8: 1.0 nat, 10 s (mean field: 11.1)")
    _grids(20, (-10.0, 10.0), (8, 10, 12), target="none; mean field best of 20: 285")
    _collapsed()
    _levels()


def _grids(
    side: int, coupling: tuple[float, float], widths: tuple[int, ...], *, target: str
) -> None:
    print(f"\n{side}x{side}, w in {coupling}, f in [-1, 1]; target at width {target}")
    gaps: dict[int, list[float]] = {w: [] for w in widths}
    times: dict[int, list[float]] = {w: [] for w in widths}
    for seed in SEEDS:
        model = ising_grid(side, coupling=coupling, seed=seed)
        log_z = naive.grid_log_z(side, side, list(model.factors))
        for width in widths:
            start = time.perf_counter()
            coset = Coset.build(encode(model).polynomial)
            family = StructuredMeanField(width=width, tol=1e-4)
            result = family.project(coset, np.random.default_rng(seed))
            times[width].append(time.perf_counter() - start)
            gaps[width].append(log_z - result.log_gamma)
            if result.log_gamma > log_z + 1e-8:
                raise ArithmeticError(f"bound {result.log_gamma} above log Z {log_z}, seed {seed}")
    for width in widths:
        each = " ".join(f"{g:7.3f}" for g in gaps[width])
        print(
            f"  width {width:>2}: gaps {each}   worst {max(gaps[width]):.3f}   "
            f"{max(times[width]):.2f} s at most"
        )


def _collapsed() -> None:
    print("\n15x15, w in [-1, 1], collapse first, then width 8, m = 0; target 1.0 nat, 10 s")
    for k in (0, 4, 6, 8):
        gaps, times = [], []
        for seed in SEEDS:
            model = ising_grid(15, coupling=(-1.0, 1.0), seed=seed)
            log_z = naive.grid_log_z(15, 15, list(model.factors))
            family = StructuredMeanField(tol=1e-4)
            e = estimate(
                model,
                projections=Projections(collapse=k, search_sweeps=0),
                levels=[0],
                trials=1,
                family=family,
                seed=seed,
            )
            gaps.append(log_z - e.lower)
            times.append(e.seconds)
            if gaps[-1] < -1e-8:
                raise ArithmeticError(f"bound above log Z at k = {k}, seed {seed}: {gaps[-1]}")
        each = " ".join(f"{g:8.5f}" for g in gaps)
        print(f"  k = {k}: gaps {each}   {max(times):.2f} s at most")


def _levels() -> None:
    print("\n15x15, w in [-1, 1], one draw of m dense parities: log gamma + m log 2")
    model = ising_grid(15, coupling=(-1.0, 1.0), seed=100)
    poly = encode(model).polynomial
    print(f"  exact log Z {naive.grid_log_z(15, 15, list(model.factors)):.3f}")
    for m in (0, 1, 5, 20, 60):
        rng = np.random.default_rng(m)
        coset = Coset.build(poly, DenseParity().draw(m, poly.n, rng))
        plain = MeanField(restarts=8).project(coset, rng).log_gamma + m * LOG_2
        start = time.perf_counter()
        ours = StructuredMeanField(width=4, restarts=2, tol=1e-4).project(coset, rng)
        seconds = time.perf_counter() - start
        print(
            f"  m = {m:>2}: mean field {plain:.3f}, structured (width {ours.forest.width}) "
            f"{ours.log_gamma + m * LOG_2:.3f} in {seconds:.2f} s"
        )


if __name__ == "__main__":
    main()
