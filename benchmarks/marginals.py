"""Ends of marginals after 60 s where exact answers are forbidden, and how far the values are off.

20x20 and 30x30 grids of three couplings, fields in [-1, 1]; the 20x20 ones are summed exactly for
comparison. Aims at 20x20, coupling 10: mean width 0.02, mean error 0.005. MARGINALS_SEED draws
other models, MARGINALS_SECONDS sets the time, MARGINALS_ONLY="20x20" runs some.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

import tightz as tz

SEED = int(os.environ.get("MARGINALS_SEED", "2121"))
SECONDS = float(os.environ.get("MARGINALS_SECONDS", "60"))


def width(ends: list[NDArray[np.float64]]) -> float:
    return float(np.mean([np.mean(each[:, 1] - each[:, 0]) for each in ends]))


def outside(ends: list[NDArray[np.float64]], truth: list[NDArray[np.float64]]) -> int:
    """Variables whose exact marginal lies outside by more than its own rounding."""
    pairs = zip(ends, truth, strict=True)
    return sum(bool(((p < e[:, 0] - 1e-12) | (p > e[:, 1] + 1e-12)).any()) for e, p in pairs)


def main() -> None:
    only = os.environ.get("MARGINALS_ONLY", "").split()
    for size in (20, 30):
        for coupling in (10, 3, 1):
            name = f"{size}x{size} w={coupling}"
            if only and not any(word in name for word in only):
                continue
            model = tz.ising_grid(
                size, coupling=(-coupling, coupling), field=(-1, 1), seed=SEED + coupling
            )
            r = tz.log_partition(model, time_limit=SECONDS, exact=False, seed=SEED)
            assert r.marginals is not None
            assert r.marginal_bounds is not None
            assert r.confident.marginal_bounds is not None
            line = (
                f"{name:12s} {r.seconds:.0f} s: mean width always {width(r.marginal_bounds):.5f}, "
                f"95% {width(r.confident.marginal_bounds):.5f}; log Z always {r.width:.4f}, "
                f"95% {r.confident.width:.5f}"
            )
            if size == 20:
                truth = tz.exact(model).marginals
                errors = [np.abs(p - q).max() for p, q in zip(r.marginals, truth, strict=True)]
                line += (
                    f"; error mean {np.mean(errors):.6f}, largest {np.max(errors):.5f}; outside: "
                    f"always {outside(r.marginal_bounds, truth)}, "
                    f"95% {outside(r.confident.marginal_bounds, truth)}"
                )
            print(line, flush=True)


if __name__ == "__main__":
    main()
