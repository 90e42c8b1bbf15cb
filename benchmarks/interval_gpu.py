"""The interval on a machine with a GPU after 60 s, against two of its cores in the same time.

Issue 19: 30x30, 50x50 and 100x100 grids (w = 1 and w = 10), cubic lattices, the public RBM; exact
answers forbidden. Aims with the GPU: 50x50, w = 10: at most 2 nats always and 0.2 at 95%; 100x100,
w = 1: at most 20 always and 1 at 95%. Both runs of a model go side by side, each a process on
cores of its own: two for the plain one, all others for the one with the GPU. GPU_SEED draws other
models, GPU_ONLY="50x50 rbm" runs some, GPU_SECONDS sets the time, GPU_PLACES="gpu cores" where.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import tightz as tz
from benchmarks.above import lattice, public_rbm

SEED = int(os.environ.get("GPU_SEED", "1919"))
SECONDS = float(os.environ.get("GPU_SECONDS", "60"))
CORES = 2


def grid(size: int, width: float) -> Callable[[], tz.FactorGraph]:
    return lambda: tz.ising_grid(size, coupling=(-width, width), field=(-1, 1), seed=SEED)


MODELS: dict[str, Callable[[], tz.FactorGraph]] = {
    **{f"{n}x{n} w={w}": grid(n, w) for n in (30, 50, 100) for w in (1, 10)},
    "8^3 lattice": lambda: lattice(8, SEED),
    "12^3 lattice": lambda: lattice(12, SEED),
    "public RBM": public_rbm,
}
AIMS = {"50x50 w=10": (2.0, 0.2), "100x100 w=1": (20.0, 1.0)}


def one(name: str, place: str) -> None:
    """Run in the child: what was reached, as JSON."""
    backend = "cpu" if place == "cores" else "auto"
    r = tz.log_partition(
        MODELS[name](), time_limit=SECONDS, exact=False, seed=SEED, backend=backend
    )
    c = r.confident
    print(
        json.dumps(
            [
                [r.lower, r.lower_proof.method], [r.upper, r.upper_proof.method],
                [c.lower, c.upper], [r.estimate, r.estimate_error], r.seconds, r.failures,
            ]
        )
    )  # fmt: skip


def start(name: str, place: str) -> subprocess.Popen[str]:
    call = f"from benchmarks.interval_gpu import one; one({name!r}, {place!r})"
    cores = sorted(os.sched_getaffinity(0))
    own = cores[:CORES] if place == "cores" else cores[CORES:] or cores
    # before the child starts: threads of its linear algebra are made when it is imported
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", call],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=partial(os.sched_setaffinity, 0, own),
    )  # fmt: skip


def main() -> None:
    only = os.environ.get("GPU_ONLY", "").lower().split()
    places = os.environ.get("GPU_PLACES", "gpu cores").split()
    for name in MODELS:
        if only and not any(word in name.lower() for word in only):
            continue
        if name == "public RBM" and "TIGHTZ_DATA" not in os.environ:
            print("public RBM: TIGHTZ_DATA is not set")
            continue
        for place, run in [(place, start(name, place)) for place in places]:
            out, err = run.communicate()
            if run.returncode:
                print(f"{name} on {place}: {err.strip().splitlines()[-1]}")
                continue
            lower, upper, confident, estimate, seconds, failures = json.loads(out.splitlines()[-1])
            middle = estimate[0]
            aim = AIMS.get(name, ("-", "-"))
            print(
                f"{name:13s} {place:5s} {seconds:.0f} s: always {upper[0] - lower[0]:.3f} "
                f"({lower[0] - middle:+.3f} {lower[1]}; {upper[0] - middle:+.3f} {upper[1]}), "
                f"95% {confident[1] - confident[0]:.4f}, estimate {middle:.4f} "
                f"+- {estimate[1]:.4f}; aims {aim[0]}, {aim[1]}",
                *failures, flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
