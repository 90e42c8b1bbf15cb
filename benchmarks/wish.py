"""WISH with the theorem's full T at delta = 0.05 against exact log Z, and its solvers' times.

Targets: inside the factor 32 on twenty 4x4 grids and on twenty 6x6 grids after collapse.
"""

from __future__ import annotations

import math
import time

import numpy as np

from tests import naive
from tightz.families.ascent import best_vertex
from tightz.models import SpinPolynomial, ising_grid
from tightz.paper.wish import wish
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity
from tightz.reductions.collapse import collapse
from tightz.search.exact_mpe import ExactPointMass

RANGES = ((-1.0, 1.0), (0.0, 1.0), (-3.0, 3.0), (-10.0, 10.0))


def grids(side: int, k: int | None, first_seed: int) -> None:
    """Twenty grids, five of each coupling range; k: collapse first."""
    error, outside, band_outside, width = 0.0, 0, 0, 0.0
    spins = two_sided = 0
    seconds = []
    for number in range(20):
        model = ising_grid(side, coupling=RANGES[number % 4], seed=first_seed + number)
        exact = naive.grid_log_z(side, side, model.factors)
        poly = SpinPolynomial.from_factor_graph(model)
        if k is not None:
            poly = collapse(poly, k).polynomial
        spins = max(spins, poly.n)
        start = time.perf_counter()
        result = wish(poly, delta=0.05, seed=number)
        seconds.append(time.perf_counter() - start)
        error = max(error, abs(result.log_z - exact))
        outside += not result.lower <= exact <= result.upper
        two_sided += result.two_sided
        low, high = (bound.log_z for bound in result.band)
        band_outside += not low <= exact <= high
        width = max(width, high - low)
    trials = result.log_maxima.shape[1]
    name = f"{side}x{side}" + ("" if k is None else f" collapsed with k = {k}")
    print(f"twenty {name} grids, {spins} spins, T = {trials}, levels 0..{spins}")
    print(f"  largest |log S - log Z| = {error:.3f}  (target: at most log 32 = {math.log(32):.3f})")
    print(f"  outside the factor 32: {outside} of 20  (target: 0); two-sided: {two_sided} of 20")
    print(
        f"  outside the band: {band_outside} of 20; widest band {width:.3f} nats (Theorem 2: 6.931)"
    )
    print(f"  seconds each: median {np.median(seconds):.2f}, worst {max(seconds):.2f}")


def solvers() -> None:
    """One coset each: blocked Walsh transform, Gray code, CP-SAT."""
    poly = SpinPolynomial.from_factor_graph(ising_grid(6, coupling=(-10, 10), seed=1))
    print("one coset of a 6x6 grid, w in [-10, 10]: seconds by Walsh, Gray code, CP-SAT")
    for m in (0, 4, 8, 12, 16, 20):
        coset = Coset.build(poly, DenseParity().draw(m, 36, np.random.default_rng(m)))
        times = []
        for run in range(2):  # the first call compiles
            times = []
            for solver in (
                ExactPointMass(),
                None,
                ExactPointMass(enumerate_up_to=0, time_limit=30),
            ):
                start = time.perf_counter()
                if (solver is None or solver.enumerate_up_to) and coset.n_free > 25:
                    times.append("-")
                    continue
                if solver is None:
                    best_vertex(coset.grouped, np.ones(coset.n_free))
                else:
                    status = solver.project(coset, np.random.default_rng(run)).status
                times.append(f"{time.perf_counter() - start:.3f}")
        print(f"  m = {m:>2}: {' / '.join(times)}  ({status.name.lower()})", flush=True)


def main() -> None:
    grids(4, None, 1000)
    grids(6, 4, 2000)
    solvers()
