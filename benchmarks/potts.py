"""A 60 x 60 Potts grid with 5 states: an interval in 60 s and under 4 GB.

Environment: TIGHTZ_POTTS_SECONDS (60).
"""

from __future__ import annotations

import os
import resource
import time

import tightz as tz
from tightz.models.potts import potts_grid


def main() -> None:
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
