"""Tree-reweighted upper bounds on Ising grids: excess over exact log Z and seconds."""

from __future__ import annotations

import os
import time

import numpy as np

from tests.naive import grid_log_z
from tightz.models.builders import ising_grid
from tightz.uppers.tree_reweighted import TreeReweighted, tree_reweighted

# (low, high, n, libDAI's mean excess, libDAI's seconds or None): PEERS.md, 5 seeds each
CASES = [
    (-10.0, 10.0, 10, 131.0, 0.9),
    (-10.0, 10.0, 15, 382.0, 2.7),
    (-10.0, 10.0, 20, 755.0, 5.4),
    (0.0, 1.0, 10, 7.7, None),
    (0.0, 1.0, 15, 20.6, None),
    (-1.0, 1.0, 10, 10.0, None),
    (-1.0, 1.0, 15, 24.9, None),
]


def main() -> None:
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print("note: set OMP_NUM_THREADS=1 for one-core times")
    tree_reweighted(ising_grid(3, seed=0))  # compile
    print("grid             n   excess  (target)  uniform rho  seconds  (target)  iterations")
    for low, high, n, target, peer_seconds in CASES:
        excess, plain, seconds, iterations = [], [], [], []
        for seed in range(5):
            model = ising_grid(n, coupling=(low, high), seed=seed)
            exact = grid_log_z(n, n, model.factors)
            started = time.perf_counter()
            result = tree_reweighted(model)
            seconds.append(time.perf_counter() - started)
            excess.append(result.log_z - exact)
            iterations.append(result.iterations)
            assert (result.history >= exact).all()
            uniform = tree_reweighted(model, TreeReweighted(edge_updates=0))
            plain.append(uniform.log_z - exact)
        limit = f"<= {peer_seconds / 10:.2f}" if peer_seconds else "-"
        print(
            f"w in [{low:g}, {high:g}]".ljust(15)
            + f"{n:3d}  {np.mean(excess):+7.2f}  {target:+8.1f}  {np.mean(plain):+11.2f}"
            + f"  {np.mean(seconds):7.3f}  {limit:>8}  {np.mean(iterations):10.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
