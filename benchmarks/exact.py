"""Exact elimination: speed against a hand-written transfer matrix, marginals, memory, RBMs."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.naive import transfer_matrix_log_z
from tightz.elimination.exact import exact, plan
from tightz.errors import ResourceError
from tightz.models.builders import ising_grid, rbm
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.memory import format_bytes


def _timed(work: Callable[[], Any], repeats: int = 1) -> tuple[Any, float]:
    """The result and the best of `repeats` times."""
    best, result = np.inf, None
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best


def _transfer(model: FactorGraph, n: int) -> float:
    fields = model.log_tables[: 2 * n * n : 2].reshape(n, n)
    edges = model.log_tables[2 * n * n :].reshape(-1, 4)[:, 0]
    across = n * (n - 1)
    return transfer_matrix_log_z(
        n, n, edges[:across].reshape(n, n - 1), edges[across:].reshape(n - 1, n), fields
    )


def main() -> None:
    warm = ising_grid(12, coupling=(-10, 10), seed=0)
    exact(warm)  # compile
    for width in (1.0, 10.0, 100.0):
        model = ising_grid(20, coupling=(-width, width), seed=0)
        _, search = _timed(lambda m=model: plan(m), 3)
        result, log_z = _timed(lambda m=model: exact(m, marginals=False), 3)
        _, both = _timed(lambda m=model: exact(m), 3)
        line = f"20x20, w in [-{width:g}, {width:g}]: log Z {result.log_z:.6f} in {log_z:.2f} s"
        if width <= 10.0:  # the twin's rows stay inside float64's range
            twin, seconds = _timed(lambda m=model: _transfer(m, 20), 3)
            line += (
                f", {log_z / seconds:.2f}x the transfer matrix's {seconds:.2f} s (target 3x), "
                f"difference {result.log_z - twin:.1e}"
            )
        print(line)
        print(
            f"  with all marginals {both:.2f} s, {both / log_z:.1f}x (target 4x; "
            f"{(both - search) / (log_z - search):.1f}x without the {search:.2f} s for the order)"
        )
    print(f"  {result.plan!r}")

    model = ising_grid(25, coupling=(-10, 10), seed=0)
    result, seconds = _timed(lambda: exact(model, marginals=False, max_memory="8GB"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"25x25: log Z {result.log_z:.6f} in {seconds:.1f} s, work space "
        f"{format_bytes(result.plan.log_z_bytes)}, process peak {format_bytes(peak)} (target 8 GB)"
    )

    big = ising_grid(20, coupling=(150.0, 150.0), seed=0)
    result, seconds = _timed(lambda: exact(big, marginals=False))
    print(f"log Z of {result.log_z:.6f} (above 1e5, finite) in {seconds:.2f} s")

    data = os.environ.get("TIGHTZ_DATA")
    tiny = Path(data or "") / "rbm" / "rbm_mnist_tiny_15.npz"
    if data and tiny.exists():
        with np.load(tiny) as arrays:
            model = rbm(arrays["W"], arrays["visible_bias"], arrays["hidden_bias"])
        result, seconds = _timed(lambda: exact(model, marginals=False))
        print(f"RBM 784x15: {result!r} (reference 216.0615441) in {seconds:.2f} s")
        _, seconds = _timed(lambda: exact(model))
        print(f"  with all marginals {seconds:.2f} s")
    rng = np.random.default_rng(0)
    dense = rbm(rng.normal(size=(784, 500)), np.zeros(784), np.zeros(500))
    start = time.perf_counter()
    try:
        exact(dense)
    except ResourceError:
        print(f"RBM 784x500 refused in {time.perf_counter() - start:.2f} s (target: seconds)")
