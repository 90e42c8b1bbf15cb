"""Mean field and MFRP: ascents per second, scaling in n and m, a large grid, the paper's protocol.

`python -m benchmarks mean_field`. Speeds are ratios taken in this run; targets stand beside them.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numpy as np

import tightz as tz
from tests import naive
from tightz.families.ascent import ascend
from tightz.projections import Coset, DenseParity
from tightz.reductions.encoding import encode


def numpy_sweeps(coset: Coset, v: np.ndarray, sweeps: int) -> tuple[np.ndarray, float]:
    """Algorithm 1's inner loop with one numpy expression per coordinate, no compiled code.

    Constrained marginals are recomputed after each step as printed; the gradient of every term
    comes from one product over the members of its image. Returns (means, seconds per sweep), the
    set-up left out.
    """
    poly = coset.substituted()
    terms = [poly.spins[poly.ptr[a] : poly.ptr[a + 1]] for a in range(poly.n_terms)]
    touching = [[a for a, members in enumerate(terms) if k in members] for k in range(poly.n)]
    rows = [
        np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        for row in coset.support
    ]
    constrained = np.zeros(len(rows))
    start = time.perf_counter()
    for _ in range(sweeps):
        for k in range(poly.n):
            g = 0.0
            for a in touching[k]:
                others = terms[a][terms[a] != k]
                g += poly.theta[a] * np.prod(v[others])
            v[k] = np.tanh(g)
            for r, members in enumerate(rows):
                constrained[r] = coset.sign[r] * np.prod(v[members])
    return v, (time.perf_counter() - start) / sweeps


def fastest(function, repeats: int = 7) -> float:
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def sweep_seconds(size: int, m: int, sweeps: int = 20, lanes: int = 8) -> float:
    """Seconds per sweep of `lanes` restarts on a size x size paper grid with m parities."""
    model = tz.ising_grid(size, coupling=(-10, 10), seed=0)
    rng = np.random.default_rng(0)
    coset = Coset.build(encode(model).polynomial, DenseParity().draw(m, size * size, rng))
    start = rng.uniform(-1, 1, size=(coset.n_free, lanes))
    grouped, gains = coset.grouped, np.zeros(lanes)
    ascend(grouped, start.copy(), np.zeros(0), -1.0, 1, gains)
    return fastest(lambda: ascend(grouped, start.copy(), np.zeros(0), -1.0, sweeps, gains)) / sweeps


def exponent(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def ascents() -> None:
    """One thread, 20x20, m = 0 and m = 10, against numpy from the same start."""
    model = tz.ising_grid(20, coupling=(-10, 10), seed=0)
    polynomial = encode(model).polynomial
    rng = np.random.default_rng(0)
    for m in (0, 10):
        coset = Coset.build(polynomial, DenseParity().draw(m, 400, rng))
        family = tz.MeanField(restarts=8)
        family.project(coset, np.random.default_rng(1))
        seconds = fastest(lambda c=coset, f=family: f.project(c, np.random.default_rng(1))) / 8
        sweeps = family.project(coset, np.random.default_rng(1)).sweeps / 8
        v = rng.uniform(-1, 1, size=coset.n_free)
        lanes = np.repeat(v[:, None], 8, axis=1)
        slow, per_sweep = numpy_sweeps(coset, v.copy(), 2)
        numpy_per_ascent = per_sweep * sweeps
        ascend(coset.grouped, lanes, np.zeros(0), -1.0, 2, np.zeros(8))
        agree = np.abs(lanes[:, 0] - slow).max()
        print(
            f"20x20, m = {m:2}: {1 / seconds:7.0f} ascents/s, one thread "
            f"({sweeps:.0f} sweeps each); "
            f"{numpy_per_ascent / seconds:.0f}x plain numpy (target 100x); "
            f"largest difference of means {agree:.1e}"
        )


def scaling() -> None:
    sizes = [20, 28, 40, 56, 80, 100]
    times = [sweep_seconds(s, 10) for s in sizes]
    print(
        f"time per sweep in n at m = 10: exponent {exponent([s * s for s in sizes], times):.3f} "
        f"(target <= 1.15); {times[0] * 1e6:.0f} us at n = 400, {times[-1] * 1e6:.0f} us at 10^4"
    )
    levels = [5, 10, 20, 40, 80]
    times = [sweep_seconds(40, m) for m in levels]
    print(f"time per sweep in m at 40x40:  exponent {exponent(levels, times):.3f} (target <= 1.15)")


LARGE = """
import time, resource, tightz as tz
model = tz.ising_grid(100, coupling=(-10, 10), seed=0)
family = tz.MeanField(restarts=8, max_sweeps=50, tol=0.0)
printed = tz.Projections.as_printed()
plain = {"levels": [20], "trials": 1, "threads": 1, "projections": printed}
tz.estimate(model, family=tz.MeanField(restarts=8, max_sweeps=1), **plain)
start = time.perf_counter()
e = tz.estimate(model, family=family, seed=1, **plain)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"100x100, m = 20, 8 restarts, 50 sweeps: {seconds:.2f} s on one core (aim 10 s), "
      f"peak memory {peak:.2f} GB for the whole process (target 1 GB)")
"""


def protocol() -> None:
    """The paper's protocol, and proof that a second process compiles nothing."""
    code = (
        "import time, numba, tightz as tz\n"
        "model = tz.ising_grid(20, coupling=(-10, 10), seed=0)\n"
        "start = time.perf_counter()\n"
        "printed = tz.Projections.as_printed()\n"
        "tz.estimate(model, levels=range(21), trials=5, seed=0, projections=printed)\n"
        "first = time.perf_counter() - start\n"
        "start = time.perf_counter()\n"
        "tz.estimate(model, levels=range(21), trials=5, seed=1, projections=printed)\n"
        "second = time.perf_counter() - start\n"
        "from tightz.families.ascent import ascend\n"
        "hits = sum(ascend.stats.cache_hits.values())\n"
        "misses = sum(ascend.stats.cache_misses.values())\n"
        "print(f'20x20 protocol (m = 0..20, T = 5, J = 8): {first:.2f} s in a fresh process, '\n"
        "      f'{second:.2f} s warm (target 5 s); kernel cache: {hits} hits, {misses} misses')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def help_time() -> None:
    call = [sys.executable, "-m", "tightz", "--help"]
    subprocess.run(call, check=True, capture_output=True)
    seconds = fastest(lambda: subprocess.run(call, check=True, capture_output=True), 3)
    print(f"tightz --help: {seconds:.2f} s (target 0.5 s)")


def accuracy() -> None:
    """Where the paper's protocol stands against the exact value, so speed is seen beside it."""
    model = tz.ising_grid(12, coupling=(-10, 10), seed=0)
    e = tz.estimate(
        model,
        projections=tz.Projections(restarts=8, collapse=0, search_sweeps=0),
        levels=range(21),
        trials=5,
        seed=0,
    )
    horizontal, vertical, fields = grid_parts(model, 12)
    exact = naive.transfer_matrix_log_z(12, 12, horizontal, vertical, fields)
    print(
        f"12x12 as printed: exact {exact:.2f}, max of medians {e.log_z:.2f} at m = {e.best_level}"
    )


def grid_parts(model: tz.FactorGraph, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Couplings and fields of a planar grid model, as the transfer matrix wants them."""
    horizontal, vertical = np.zeros((size, size - 1)), np.zeros((size - 1, size))
    fields = np.zeros((size, size))
    for scope, table in model.factors:
        if len(scope) == 1:
            fields[divmod(scope[0], size)] = table[0]
        elif scope[1] == scope[0] + 1:
            horizontal[divmod(scope[0], size)] = table[0, 0]
        else:
            vertical[divmod(scope[0], size)] = table[0, 0]
    return horizontal, vertical, fields


def main() -> None:
    ascents()
    scaling()
    subprocess.run([sys.executable, "-c", LARGE], check=True)
    protocol()
    help_time()
    accuracy()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process: {peak:.2f} GB")
