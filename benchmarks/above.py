"""Upper ends that hold always, after 10 and 60 seconds: the figures of issue 18.

`log_partition` with exact answers forbidden. Each model is run in a process of its own; with
TIGHTZ_BEFORE, the path of another checkout, also by that one, in turn, so that both meet the same
machine. ABOVE_SEED draws other models, ABOVE_ONLY="sk rbm" runs some. What an end is held against
is the exact value where there is one (Pfaffians), otherwise the estimate of the longer run, whose
error is printed; for the public RBM 451.28, by annealed importance sampling (PEERS.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tightz as tz

SEED = int(os.environ.get("ABOVE_SEED", "1801"))
LIMITS = (10.0, 60.0)
RBM = 451.28


def lattice(size: int, seed: int) -> tz.FactorGraph:
    """A cubic lattice, couplings +-1, no field."""
    rng = np.random.default_rng(seed)
    places = np.arange(size**3).reshape(size, size, size)
    couplings: dict[tuple[int, int], float] = {}
    for axis in range(3):
        ends = np.delete(places, 0, axis), np.delete(places, -1, axis)
        for i, j in zip(ends[1].ravel().tolist(), ends[0].ravel().tolist(), strict=True):
            couplings[i, j] = float(rng.choice([-1.0, 1.0]))
    return tz.ising(couplings)


def glass(n: int, beta: float, seed: int) -> tz.FactorGraph:
    """Sherrington and Kirkpatrick: couplings N(0, beta^2 / n) between all."""
    upper = np.triu(np.random.default_rng(seed).normal(0.0, beta / np.sqrt(n), (n, n)), 1)
    return tz.ising(upper + upper.T)


def grid(size: int, width: float) -> tz.FactorGraph:
    return tz.ising_grid(size, coupling=(-width, width), field=(-1, 1), seed=SEED)


def public_rbm() -> tz.FactorGraph:
    return tz.read(Path(os.environ["TIGHTZ_DATA"]) / "rbm" / "rbm_mnist_CD25_500_salakhutdinov.npz")


MODELS: dict[str, tuple[Callable[[], tz.FactorGraph], float]] = {
    "30x30 w=10": (lambda: grid(30, 10), 0.4),
    "30x30 w=1": (lambda: grid(30, 1), 0.2),
    "32x32 critical": (
        lambda: tz.ising_grid(32, coupling=(0.4406868,) * 2, field=(0, 0), seed=SEED),
        1.5,
    ),
    "50x50 w=10": (lambda: grid(50, 10), 5.0),
    "100x100 w=1": (lambda: grid(100, 1), 15.0),
    "8^3 lattice": (lambda: lattice(8, SEED), 6.0),
    "SK n=100 beta=1": (lambda: glass(100, 1.0, SEED), 45.0),
    "SK n=100 beta=2": (lambda: glass(100, 2.0, SEED), 70.0),
    "public RBM": (public_rbm, 2000.0 - RBM),
}
"""Model and nats above log Z that were asked for after 60 s."""


def one(name: str, seconds: float) -> None:
    """Run in the child: the upper end with its time, the estimate and its error, as JSON."""
    model = MODELS[name][0]()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    r = tz.log_partition(model, time_limit=seconds, exact=False, seed=SEED, threads=cores)
    ends = [
        (b.seconds, b.log_z, b.method)
        for b in r.bounds
        if b.side is not tz.Side.LOWER and b.proof is tz.Proof.DETERMINISTIC
    ]
    best = min(ends, key=lambda end: end[1])
    print(json.dumps([r.upper, best[2], r.estimate, r.estimate_error]))


def run(name: str, seconds: float, checkout: Path | None) -> list:
    here = Path(__file__).resolve().parent.parent
    source = (checkout or here) / "src"
    paths = os.pathsep.join([str(source), str(here)])
    call = f"from benchmarks.above import one; one({name!r}, {seconds})"
    done = subprocess.run(
        [sys.executable, "-c", call], env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    before = os.environ.get("TIGHTZ_BEFORE")
    checkouts = {"now": None, **({"before": Path(before)} if before else {})}
    only = os.environ.get("ABOVE_ONLY", "").lower().split()
    for name, (make, asked) in MODELS.items():
        if only and not any(word in name.lower() for word in only):
            continue
        if name == "public RBM" and "TIGHTZ_DATA" not in os.environ:
            print("public RBM: TIGHTZ_DATA is not set")
            continue
        found = {
            (label, limit): run(name, limit, path)
            for limit in LIMITS
            for label, path in checkouts.items()
        }
        truth, error = found["now", LIMITS[-1]][2:]
        if name == "public RBM":
            truth, error = RBM, 0.0
        elif "critical" in name:
            truth, error = tz.exact(make()).log_z, 0.0
        cells = [
            f"{label} {limit:.0f} s {found[label, limit][0] - truth:+.3f} "
            f"({found[label, limit][1]})"
            for label, limit in found
        ]
        print(f"{name}: {'; '.join(cells)}; asked {asked:+.1f}; reference off by {error:.2g}")


if __name__ == "__main__":
    main()
