"""Belief propagation on weakly coupled Ising grids: mean difference from exact log Z."""

from __future__ import annotations

import numpy as np

from tests.naive import grid_log_z
from tightz.models.builders import ising_grid
from tightz.propagation import BetheStatus, bethe

# (low, high, n, BP's mean difference in PEERS.md or None)
CASES = [
    (0.0, 1.0, 10, -0.52),
    (0.0, 1.0, 15, -1.97),
    (-1.0, 1.0, 10, -0.08),
    (-1.0, 1.0, 15, 0.07),
    (-10.0, 10.0, 10, None),
]


def main() -> None:
    bethe(ising_grid(3, seed=0))  # compile
    print("grid             n  estimate  (target)  proven lower  converged  seconds  iterations")
    for low, high, n, target in CASES:
        results, errors, lower = [], [], []
        for seed in range(5):
            model = ising_grid(n, coupling=(low, high), seed=seed)
            exact = grid_log_z(n, n, model.factors)
            result = bethe(model)
            results.append(result)
            errors.append(result.log_z - exact)
            if result.lower > -np.inf:
                assert result.lower <= exact
                lower.append(result.lower - exact)
        converged = sum(r.status is BetheStatus.CONVERGED for r in results)
        print(
            f"w in [{low:g}, {high:g}]".ljust(15)
            + f"{n:3d}  {np.mean(errors):+8.2f}  "
            + (f"{target:+8.2f}" if target is not None else "       -")
            + (f"  {np.mean(lower):+12.2f}" if lower else "             -")
            + f"  {converged:7d}/5  {np.mean([r.seconds for r in results]):7.3f}"
            + f"  {np.mean([r.iterations for r in results]):10.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
