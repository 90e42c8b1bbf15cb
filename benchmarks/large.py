"""Large models: the first finite interval, peak memory, the end of the run.

Issue 19: a 200x200 grid and a model of 10^5 variables within 8 GB, the first finite interval within
3 s. Each run is a process of its own, with kernels compiled; its clock is the caller's, from the
call of `log_partition`, which loads the streams before its own clock starts. LARGE_SEED draws other
models, LARGE_ONLY="200x200 sat" runs some, LARGE_SECONDS sets the time.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import tightz as tz
from benchmarks.above import lattice
from tests.large_models import clauses, regular, triples

SEED = int(os.environ.get("LARGE_SEED", "1919"))
SECONDS = float(os.environ.get("LARGE_SECONDS", "15"))

MODELS: dict[str, Callable[[], tz.FactorGraph]] = {
    **{
        f"{n}x{n} w={w}": lambda n=n, w=w: tz.ising_grid(  # type: ignore[misc]
            n, coupling=(-w, w), field=(-1, 1), seed=SEED
        )
        for n in (100, 200)
        for w in (1, 10)
    },
    "20^3 lattice": lambda: lattice(20, SEED),
    "3-regular 10^5": lambda: regular(100_000, SEED),
    "factors of 3 10^5": lambda: triples(100_000, SEED),
    "3-SAT 10^5": lambda: clauses(100_000, SEED),
}


def one(name: str, seconds: float) -> None:
    """Run in the child: what was reached, as JSON."""
    model = MODELS[name]()
    begun, ends, first = time.perf_counter(), [-math.inf, math.inf], math.nan

    def see(bound: tz.Bound) -> None:
        nonlocal first
        if bound.proof.name == "DETERMINISTIC" and bound.side.name != "UPPER":
            ends[0] = max(ends[0], bound.log_z)
        if bound.proof.name == "DETERMINISTIC" and bound.side.name != "LOWER":
            ends[1] = min(ends[1], bound.log_z)
        if math.isnan(first) and all(map(math.isfinite, ends)):
            first = time.perf_counter() - begun

    r = tz.log_partition(model, time_limit=seconds, exact=False, seed=SEED, on_bound=see)
    print(
        json.dumps(
            [
                first, time.perf_counter() - begun, r.compile_seconds,
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                model.n_variables, model.n_factors, [r.lower, r.lower_proof.method],
                [r.upper, r.upper_proof.method], [r.confident.lower, r.confident.upper], r.failures,
            ]
        )
    )  # fmt: skip


def run(name: str, seconds: float) -> list:  # type: ignore[type-arg]
    call = f"from benchmarks.large import one; one({name!r}, {seconds})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", call], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    only = os.environ.get("LARGE_ONLY", "").lower().split()
    print(f"load {os.getloadavg()[0]:.1f}; {SECONDS:g} s each, seed {SEED}")
    for name in MODELS:
        if only and not any(word in name.lower() for word in only):
            continue
        found = run(name, SECONDS)
        if found[2] > 0.5:  # kernels were compiled in it
            found = run(name, SECONDS)
        first, wall, _, memory, n, factors, lower, upper, confident, failures = found
        print(
            f"{name:17s} {n:,} variables, {factors:,} factors: first finite interval {first:.2f} s "
            f"(aim 3), peak {memory:.2f} GB (aim 8), back after {wall:.1f} s; always "
            f"[{lower[0]:.2f} {lower[1]}, {upper[0]:.2f} {upper[1]}], 95% "
            f"{confident[1] - confident[0]:.3f}", *failures, flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
