"""Weighted mini-bucket on the paper's grids: excess over exact log Z, and seconds.

Targets are merlin's figures (10 iterations) where PEERS.md has them.
"""

from __future__ import annotations

import time

import numpy as np

from tests import naive
from tightz.bounds import Side
from tightz.models.builders import ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket import MiniBucket, mini_bucket, mini_bucket_bounds

CASES = [  # side, largest coupling, ibound, largest mean excess allowed
    (10, 10.0, 2, 121.0),
    (10, 10.0, 6, 50.0),
    (10, 10.0, 10, 3.0),
    (15, 10.0, 2, 386.0),
    (15, 10.0, 6, 155.0),
    (15, 10.0, 10, 64.0),
    (20, 10.0, 2, 773.0),
    (20, 10.0, 6, 332.0),
    (20, 10.0, 10, 176.0),
    (20, 10.0, 16, 90.0),
    (15, 1.0, 10, 1.3),
]


def exact_log_z(model: FactorGraph, n: int) -> float:
    """Transfer matrix: every pair table is w * [[1, -1], [-1, 1]], horizontal bonds first."""
    pairs = np.array([table[0, 0] for scope, table in model.factors if len(scope) == 2])
    fields = np.array([table[0] for scope, table in model.factors if len(scope) == 1])
    across = pairs[: n * (n - 1)].reshape(n, n - 1)
    down = pairs[n * (n - 1) :].reshape(n - 1, n)
    return naive.transfer_matrix_log_z(n, n, across, down, fields.reshape(n, n))


def main() -> None:
    mini_bucket(ising_grid(3, seed=0), MiniBucket(1))  # compile
    grids = {
        (n, w): [ising_grid(n, coupling=(-w, w), field=(-1, 1), seed=s) for s in range(5)]
        for n, w, _, _ in CASES
    }
    exact = {key: [exact_log_z(m, key[0]) for m in models] for key, models in grids.items()}
    print("grid     w  ibound   upper - exact (worst)  target   lower - exact   s upper  s lower")
    for n, w, ibound, target in CASES:
        gaps: dict[Side, list[float]] = {Side.UPPER: [], Side.LOWER: []}
        seconds = {Side.UPPER: 0.0, Side.LOWER: 0.0}
        for model, log_z in zip(grids[n, w], exact[n, w], strict=True):
            for side in gaps:
                result = mini_bucket(model, MiniBucket(ibound, side=side))
                gaps[side].append(result.log_z - log_z)
                seconds[side] += result.seconds / len(exact[n, w])
        up, low = np.array(gaps[Side.UPPER]), np.array(gaps[Side.LOWER])
        verdict = (
            "ok" if up.mean() <= target and up.min() > -1e-8 and low.max() < 1e-8 else "MISSED"
        )
        print(
            f"{n}x{n}  {w:4g}  {ibound:5d}  {up.mean():+12.4f} ({up.max():.2f})  +{target:<6g} "
            f"{low.mean():+13.4f}   {seconds[Side.UPPER]:7.2f}  {seconds[Side.LOWER]:7.2f}  "
            f"{verdict}",
            flush=True,
        )
    print("stream on 20x20, w = 10, 20 s: seconds, upper bound - exact at each ibound")
    start, last = time.perf_counter(), {}
    for bound in mini_bucket_bounds(grids[20, 10.0][0], time_limit=20.0):
        last[bound.method] = (bound.seconds, bound.log_z - exact[20, 10.0][0], bound.side.name)
    for method, (seconds_in, gap, side_name) in last.items():
        print(f"  {method:24s} {seconds_in:6.2f} s  {gap:+10.4f}  {side_name}")
    print(f"  ended after {time.perf_counter() - start:.1f} s")
