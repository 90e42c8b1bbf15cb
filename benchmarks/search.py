"""Ground states, pools and annealing: seconds and weights. TIGHTZ_FULL=1 runs the full protocol.

Every grid is compared with the best of longer runs under other seeds: three of 30 s, or ten of
60 s in the full protocol.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import numpy as np

from tightz.families.mean_field import MeanField
from tightz.interval.ground_state import ground_state
from tightz.models.builders import ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.array_files import read_model
from tightz.projections.coset import Coset
from tightz.reductions.encoding import encode
from tightz.search.annealing import AnnealedMeanField
from tightz.search.ground_state import Search
from tightz.search.pool import sample_pool


def main() -> None:
    ground_state(grid(5, 0), Search(enumerate_up_to=0, sweeps=20))  # compile outside the clock
    annealing()
    grids(20, limit=1.0, references=1, reference_seconds=5.0, count=5)
    full = bool(os.environ.get("TIGHTZ_FULL"))
    runs, seconds = (10, 60.0) if full else (3, 30.0)
    grids(30, limit=5.0, references=runs, reference_seconds=seconds, count=5 if full else 2)
    pools()
    if "TIGHTZ_DATA" in os.environ:
        machines(Path(os.environ["TIGHTZ_DATA"]) / "rbm")
    else:
        print("set TIGHTZ_DATA to the data folder for the RBM figures")


def grid(side: int, seed: int) -> FactorGraph:
    return ising_grid(side, coupling=(-10, 10), field=(-1, 1), seed=1000 + seed)


def annealing() -> None:
    """Mean field from annealed and from plain starts, the same number of restarts."""
    for seed in range(3):
        coset = Coset.build(encode(grid(20, seed)).polynomial)
        line = [f"mean field, 20x20, seed {seed}:"]
        for family in (MeanField(restarts=8), AnnealedMeanField(restarts=8)):
            start = time.perf_counter()
            found = family.project(coset, np.random.default_rng(seed))
            line.append(
                f"{type(family).__name__} {found.log_gamma:.1f} "
                f"in {1e3 * (time.perf_counter() - start):.0f} ms"
            )
        print("  ".join(line), "(planned: 2771 and 2941 on a grid with log Z 3040)", flush=True)


def grids(
    side: int, *, limit: float, references: int, reference_seconds: float, count: int
) -> None:
    """The ground state within `limit` seconds against the best of longer runs."""
    for seed in range(count):
        model = grid(side, seed)
        found = ground_state(model, Search(patience=math.inf), time_limit=limit, seed=0)
        best = max(
            ground_state(
                model, Search(patience=math.inf), time_limit=reference_seconds, seed=1 + run
            ).log_weight
            for run in range(references)
        )
        again = ground_state(
            model, Search(patience=math.inf, target=best - 1e-6), time_limit=limit, seed=0
        )
        agreed = ground_state(model, time_limit=10 * limit, seed=0)
        print(
            f"{side}x{side}, seed {seed}: {found.log_weight:.6f} in {found.seconds:.2f} s, best of "
            f"{references} x {reference_seconds:g} s {best:.6f}, short by "
            f"{max(0.0, best - found.log_weight):.6f} (target 0 in {limit:g} s); reached after "
            f"{again.seconds:.2f} s; stops by itself after {agreed.seconds:.2f} s "
            f"({agreed.status.name.lower()}, short by {max(0.0, best - agreed.log_weight):.6f})",
            flush=True,
        )


def pools() -> None:
    """Samples and the estimate of log Z on a 20x20 grid."""
    for low, high in ((-10, 10), (-1, 1)):
        poly = encode(ising_grid(20, coupling=(low, high), field=(-1, 1), seed=1000)).polynomial
        pool = sample_pool(poly, time_limit=2.0, seed=0)
        print(
            f"pool in 2 s, 20x20, w in [{low}, {high}]: {pool}; exchanges accepted "
            f"{pool.swap_rates.min():.2f} to {pool.swap_rates.max():.2f} at {pool.betas.size} "
            "temperatures",
            flush=True,
        )


def machines(folder: Path) -> None:
    """Restricted Boltzmann machines: dense bipartite models."""
    for name, note in (
        ("rbm_mnist_tiny_15", "heaviest state by enumeration 155.488492, exact log Z 216.0615"),
        ("rbm_mnist_CD25_500_salakhutdinov", "published AIS 451.28"),
    ):
        model = read_model(folder / f"{name}.npz")
        found = ground_state(model, Search(patience=math.inf), time_limit=5.0, seed=0)
        pool = sample_pool(encode(model).polynomial, time_limit=5.0, seed=0)
        lanes = pool.runs * 2 * pool.betas.size
        print(
            f"{name}: {found.log_weight:.6f} in {found.seconds:.2f} s ({found.sweeps} sweeps); "
            f"{pool}; {1e6 * pool.seconds / (lanes * pool.sweeps):.0f} us per sweep of a replica, "
            f"all cores ({note})",
            flush=True,
        )


if __name__ == "__main__":
    main()
