"""Exact elimination on a GPU: times, memory, bandwidth as a share of the device's own copy.

    python -m benchmarks exact_gpu

Needs an NVIDIA GPU; sizes are for an H200 (what does not fit a smaller one is sliced or skipped).
Grids are held against the CPU's elimination and, with cupy, against `benchmarks.transfer`, which
shares nothing with the library.
"""

from __future__ import annotations

import time

import numpy as np

from tightz.elimination.exact import exact, plan
from tightz.elimination.gpu import (
    GpuPlan,
    GpuResult,
    OutOfRangeError,
    Refused,
    device_bytes,
    gpu_plan,
    why_no_elimination,
)
from tightz.elimination.gpu.machine import Range
from tightz.models.builders import ising, potts_grid
from tightz.models.factor_graph import FactorGraph, Grid

MOST_SECONDS = 150.0


def normal_grid(side: int, seed: int = 0) -> tuple[FactorGraph, tuple[np.ndarray, ...]]:
    """Couplings and fields N(0, 1); also (right, down, field) as arrays."""
    rng = np.random.default_rng(seed)
    right = rng.normal(size=(side, side - 1))
    down = rng.normal(size=(side - 1, side))
    field = rng.normal(size=(side, side))
    site = np.arange(side * side).reshape(side, side)
    pairs = [
        *zip(site[:, :-1].ravel(), site[:, 1:].ravel(), strict=True),
        *zip(site[:-1].ravel(), site[1:].ravel(), strict=True),
    ]
    weights = np.concatenate([right.ravel(), down.ravel()])
    model = ising(dict(zip(pairs, weights, strict=True)), field.ravel())
    laid = FactorGraph.from_arrays(
        model.cardinalities, model.scope_ptr, model.scope_vars, model.table_ptr, model.log_tables,
        name=f"grid {side}x{side}", layout=Grid(side, side, False),
    )  # fmt: skip
    return laid, (right, down, field)


def lattice(side: int, seed: int = 0) -> FactorGraph:
    """A cube with couplings and fields N(0, 1)."""
    rng = np.random.default_rng(seed)
    site = np.arange(side**3).reshape(side, side, side)
    ends = [(np.delete(site, side - 1, axis=k), np.delete(site, 0, axis=k)) for k in range(3)]
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in ends])
    weights = rng.normal(size=len(pairs))
    return ising(
        dict(zip(map(tuple, pairs.tolist()), weights, strict=True)), rng.normal(size=side**3)
    )


def regular(n: int, seed: int = 0) -> FactorGraph:
    """A random graph of degree 3 with couplings and fields N(0, 1)."""
    rng = np.random.default_rng(seed)
    while True:
        pairs = np.sort(rng.permutation(3 * n).reshape(-1, 2) // 3, axis=1)
        if (pairs[:, 0] < pairs[:, 1]).all() and len(np.unique(pairs, axis=0)) == len(pairs):
            break
    weights = rng.normal(size=len(pairs))
    return ising(dict(zip(map(tuple, pairs.tolist()), weights, strict=True)), rng.normal(size=n))


def copy_speed() -> float:
    """Bytes read and written a second by the device's own copy."""
    from cuda.bindings import driver

    size = min(8 << 30, device_bytes() // 4)
    first, second = driver.cuMemAlloc(size)[1], driver.cuMemAlloc(size)[1]
    best = np.inf
    for _ in range(6):
        start = time.perf_counter()
        driver.cuMemcpyDtoD(first, second, size)
        driver.cuCtxSynchronize()
        best = min(best, time.perf_counter() - start)
    driver.cuMemFree(first)
    driver.cuMemFree(second)
    return 2 * size / best


def report(
    name: str, model: FactorGraph, speed: float, *, marginals: bool = False
) -> GpuResult | None:
    """Plan and solve."""
    start = time.perf_counter()
    chosen = plan(model)
    found = gpu_plan(
        model,
        chosen,
        max_bytes=device_bytes(),
        most_seconds=MOST_SECONDS,
        marginals=marginals,
    )
    planning = time.perf_counter() - start
    if isinstance(found, Refused):
        print(f"{name}: {found.reason}", flush=True)
        return None
    print(f"{name}: {found.describe()}; planned in {planning:.1f} s", flush=True)
    return _solved(found, speed)


def _solved(found: GpuPlan, speed: float) -> GpuResult | None:
    from tightz.elimination.gpu.cuda import CudaMachine

    spent = []

    class Timed(CudaMachine):
        def run(self, k: int, scale: float) -> Range:
            start = time.perf_counter()
            out = super().run(k, scale)
            spent.append(time.perf_counter() - start)
            return out

    try:
        result = found.solve(Timed)
    except OutOfRangeError as error:
        print(f"  {error}", flush=True)
        return None
    rate = found.bytes_moved / sum(spent)
    print(
        f"  log Z {result.log_z:.12g} +- {result.rounding:.1e} in {result.seconds:.3f} s; "
        f"passes {sum(spent):.3f} s, "
        f"{rate / 1e12:.2f} TB/s = {rate / speed:.0%} of a copy's",
        flush=True,
    )
    return result


def main() -> None:
    reason = why_no_elimination()
    if reason:
        print(f"no GPU: {reason}")
        return
    from tightz.elimination.gpu.cuda import kernels

    start = time.perf_counter()
    kernels()
    print(f"kernels compiled in {time.perf_counter() - start:.2f} s")
    speed = copy_speed()
    print(f"device copy: {speed / 1e12:.2f} TB/s")
    for side in (20, 30, 33, 34, 35):
        model, arrays = normal_grid(side)
        found = report(f"{side}x{side}, N(0, 1)", model, speed)
        if side == 20 and found is not None:
            _against_cpu(model, found)
        if side == 30 and found is not None:
            _transfer(side, arrays, found.log_z)
    for side in (20, 25, 30):
        model, _ = normal_grid(side)
        found = report(f"{side}x{side} with all marginals", model, speed, marginals=True)
        if side == 20 and found is not None:
            _against_cpu(model, found)
    report("6x6x6, N(0, 1)", lattice(6), speed)
    report("3-regular, n = 200", regular(200), speed)
    report("3-regular, n = 220", regular(220), speed)
    report("Potts 17x17, 3 states", potts_grid(17, states=3, seed=0), speed)


def _against_cpu(model: FactorGraph, found: GpuResult) -> None:
    cpu = exact(model, marginals=found.marginals is not None)
    line = f"  CPU {cpu.log_z:.12g} +- {cpu.rounding:.1e} in {cpu.seconds:.2f} s, relative "
    line += f"difference {abs(found.log_z / cpu.log_z - 1.0):.1e}"
    if found.marginals is not None:
        gaps = [np.abs(a - b).max() for a, b in zip(found.marginals, cpu.marginals, strict=True)]
        line += f", of marginals at most {max(gaps):.1e}"
    print(line, flush=True)


def _transfer(side: int, arrays: tuple[np.ndarray, ...], log_z: float) -> None:
    try:
        from benchmarks.transfer import log_z as transfer_log_z

        start = time.perf_counter()
        found = transfer_log_z(side, *arrays)
        seconds = time.perf_counter() - start
    except ImportError as error:
        print(f"  no transfer matrix: {error}")
        return
    print(f"  transfer matrix {found:.12g} in {seconds:.1f} s, difference {log_z - found:.1e}")
