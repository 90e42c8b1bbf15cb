"""The anytime interval against exact values: the figures of issue 4.

`python -m benchmarks interval` runs all of it (about 20 minutes); TIGHTZ_QUICK=1 takes one grid of
each kind. Exact log Z comes from the transfer matrix in tests/naive.py.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

import tightz as tz
from benchmarks.tight import grid
from tightz.bounds import Proof, Side
from tightz.interval.interval import LogPartition

QUICK = bool(os.environ.get("TIGHTZ_QUICK"))
FRESH = range(8001, 8002 if QUICK else 8006)


def monotone(result: LogPartition) -> bool:
    """Whether the proven lower ends only rise and the proven upper ends only fall."""
    proven = [b for b in result.bounds if b.proof is Proof.DETERMINISTIC]
    low = [b.log_z for b in proven if b.side is not Side.UPPER]
    high = [b.log_z for b in proven if b.side is not Side.LOWER]
    return bool(np.all(np.diff(low) >= -1e-9) and np.all(np.diff(high) <= 1e-9))


def warm_up() -> None:
    """Compile everything, so that time limits measure work."""
    for model in (tz.ising_grid(12, coupling=(-3, 3), seed=0), tz.ising_grid(30, seed=0)):
        tz.log_partition(model, time_limit=20, seed=0, exact=False)
    tz.log_partition(tz.ising_grid(8, seed=0), time_limit=20, seed=0)


def strong() -> None:
    lower, confident, widths = [], [], []
    for seed in FRESH:
        model, exact = grid(20, 10, seed)
        r = tz.log_partition(model, time_limit=30, seed=seed, exact=False)
        c = r.confident
        lower.append(r.lower - exact)
        confident.append(c.width)
        widths.append(r.width)
        print(
            f"  20x20 seed {seed}, 30 s: lower {r.lower - exact:+.4f}, upper "
            f"{r.upper - exact:+.4f}, with confidence {c.lower - exact:+.4f} to "
            f"{c.upper - exact:+.4f}, estimate "
            f"{r.estimate - exact:+.4f} +- {r.estimate_error:.4f}, monotone {monotone(r)}; "
            f"{r.lower_proof.method}"
        )
    print(
        f"20x20 w=10, 30 s: lower within {-min(lower):.4f} (target 0.25), widest "
        f"interval {max(widths):.3f}, with confidence {max(confident):.4f}"
    )


def weak() -> None:
    for low in (-1, 0):
        for seed in list(FRESH)[:2]:
            model, exact = grid(15, 1, seed, low=low)
            r = tz.log_partition(model, time_limit=60, seed=seed, exact=False)
            print(
                f"15x15 w in [{low}, 1], 60 s: lower {r.lower - exact:+.4f} (target -0.7), upper "
                f"{r.upper - exact:+.4f}, width {r.width:.4f} (target 2), estimate "
                f"{r.estimate - exact:+.5f}; {r.seconds:.0f} s"
            )


def large() -> None:
    for seed in list(FRESH)[:2]:
        model = tz.ising_grid(30, coupling=(-10, 10), field=(-1, 1), seed=seed)
        r = tz.log_partition(model, time_limit=60, seed=seed, exact=False)
        best = tz.ground_state(
            model, tz.Search(patience=1e9), time_limit=30 if QUICK else 600, seed=seed
        )
        print(
            f"30x30 w=10, 60 s: [{r.lower:.3f}, {r.upper:.3f}], width {r.width:.2f}; lower end "
            f"minus the best state found in {best.seconds:.0f} s: "
            f"{r.lower - best.log_weight:+.3f} (target >= 0)"
        )


def exactly() -> None:
    for size, width, low in ((20, 10, None), (10, 3, None), (15, 1, None), (15, 1, 0)):
        model, exact = grid(size, width, 8001, low=low)
        r = tz.log_partition(model, time_limit=60, seed=0)
        print(
            f"{size}x{size}: exact {r.is_exact}, off by {r.lower - exact:+.1e}; {r.seconds:.1f} s"
        )


def on_time() -> None:
    models = {"50x50 grid": tz.ising_grid(50, coupling=(-10, 10), seed=0)}
    if "TIGHTZ_DATA" in os.environ:
        path = os.path.join(os.environ["TIGHTZ_DATA"], "rbm/rbm_mnist_CD25_500_salakhutdinov.npz")
        models["784x500 RBM"] = tz.read(path)
    for name, model in models.items():
        for limit in (1, 5) if QUICK else (1, 5, 60):
            start = time.perf_counter()
            r = tz.log_partition(model, time_limit=limit, seed=0, exact=False)
            took = time.perf_counter() - start
            print(f"{name}, {limit} s: took {took:.2f} s; [{r.lower:.2f}, {r.upper:.2f}]")
            while threading.active_count() > 1:  # let the last kernels end before the next timing
                time.sleep(0.1)


def interrupted() -> None:
    """SIGINT at random moments: a valid interval each time."""
    model, exact = grid(12, 3, 8001)
    rng = np.random.default_rng(0)
    valid = 0
    for _ in range(20):
        timer = threading.Timer(rng.uniform(0.05, 5), signal.raise_signal, [signal.SIGINT])
        timer.start()
        r = tz.log_partition(model, time_limit=20, seed=0, exact=False)
        timer.cancel()
        valid += r.lower - 1e-9 <= exact <= r.upper + 1e-9
    print(f"interrupted at 20 random moments: {valid} valid intervals (target 20)")


def main() -> None:
    warm_up()
    strong()
    weak()
    exactly()
    on_time()
    interrupted()
    large()
