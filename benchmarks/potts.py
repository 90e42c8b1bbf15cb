"""Potts models: tables per variable against products of bits, and a 60 x 60 grid with 5 states.

Environment: TIGHTZ_POTTS_SECONDS (60) for each 60 x 60 grid.
"""

from __future__ import annotations

import os
import resource
import time

import numpy as np

import tightz as tz
from tightz.models.builders import potts_grid
from tightz.projections import Coset, DenseParity
from tightz.reductions.encoding import encode

LEVELS = (0, 1, 2, 4, 6, 8, 10)
SWEEPS = 60
TRIALS = 5


def main() -> None:
    blocks_and_bits()
    large_grid()


def blocks_and_bits() -> None:
    """10 x 10, the same cosets and exactly the same number of sweeps for both families."""
    families = {
        "bits": tz.MeanField(restarts=8, tol=0.0, max_sweeps=SWEEPS),
        "blocks": tz.BlockMeanField(restarts=8, tol=0.0, max_sweeps=SWEEPS, annealing=0),
    }
    print(
        f"10 x 10 Potts, median over {TRIALS} projections of m log 2 + log gamma less log Z, "
        f"8 starts of {SWEEPS} sweeps"
    )
    print(
        "states couplings family " + "".join(f"{f'm = {m}':>9s}" for m in LEVELS) + "   ms/ascent"
    )
    for states in (3, 4, 5):
        for strength in (1.0, 3.0):
            model = potts_grid(10, states=states, coupling=(-strength, strength), seed=states)
            log_z = tz.exact(model).log_z
            poly = encode(model, multivalued=True).polynomial
            for name, family in families.items():
                spent, shown = 0.0, ""
                for m in LEVELS:
                    values = []
                    for t in range(TRIALS):
                        parities = DenseParity().draw(m, poly.n, np.random.default_rng((m, t)))
                        coset = Coset.build(poly, parities)
                        start = time.perf_counter()
                        q = family.project(coset, np.random.default_rng((m, t, 1)))
                        spent += time.perf_counter() - start
                        values.append(q.log_gamma + m * np.log(2.0))
                    shown += f"{np.median(values) - log_z:9.2f}"
                ascents = len(LEVELS) * TRIALS * 8
                print(f"{states:6d} {strength:9g} {name:7s}{shown} {1e3 * spent / ascents:11.2f}")


def large_grid() -> None:
    """An interval on 60 x 60 grids with 5 states in the time limit and under 4 GB."""
    seconds = float(os.environ.get("TIGHTZ_POTTS_SECONDS", "60"))
    tz.log_partition(potts_grid(4, states=5, seed=0), time_limit=30, seed=0, exact=False)  # compile
    print("couplings      lower        upper      width   s (limit)   peak GB (target 4)   methods")
    for low, high in ((-1.0, 1.0), (0.0, 1.0), (-3.0, 3.0)):
        model = potts_grid(60, states=5, coupling=(low, high), field=(-1.0, 1.0), seed=0)
        start = time.perf_counter()
        r = tz.log_partition(model, time_limit=seconds, seed=0, max_memory="2GB")
        taken = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"[{low:g}, {high:g}]  {r.lower:12.3f} {r.upper:12.3f} {r.width:9.3f}  "
            f"{taken:5.1f} ({seconds:g})  {peak:8.2f}            {r.lower_proof.method} | "
            f"{r.upper_proof.method}",
            flush=True,
        )
