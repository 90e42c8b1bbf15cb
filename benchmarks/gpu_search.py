"""Tempering and the splitting tree's leaves on a GPU, against two CPU threads in the same run.

Needs an NVIDIA GPU. First calls compile and are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from tightz.families.mean_field import MeanField
from tightz.models.builders import ising_grid
from tightz.projections.coset import Coset
from tightz.reductions.collapse import collapse
from tightz.reductions.encoding import encode
from tightz.runtime.gpu import why_no_device
from tightz.search.copies import run_copies
from tightz.search.ground_state import SEARCHER
from tightz.search.parallel_tempering import Problem, Tempering, tune_ladder

SWEEPS = 200
RUNS = (132, 528, 2112)
LEAVES = (512, 4096)


def main() -> None:
    reason = why_no_device(False)
    if reason:
        print(f"no GPU: {reason}")
        return
    for side in (20, 30):
        tempering(side)
    leaves(0)
    leaves(6)


def tempering(side: int) -> None:
    """Spin updates a second, exchanges, cluster moves and quenches included."""
    problem = Problem.build(encode(ising_grid(side, coupling=(-10, 10), seed=1)).polynomial)
    root = np.random.SeedSequence(0)
    betas = tune_ladder(problem, SEARCHER, root)
    lanes = betas.size * SEARCHER.replicas

    def rate(count: int, threads: int, backend: str) -> tuple[float, list[Tempering]]:
        runs = [Tempering(problem, SEARCHER, betas, root, 1, c) for c in range(count)]

        def advance() -> None:
            goal = runs[0].sweeps + SWEEPS
            run_copies(runs, sweeps=goal, deadline=None, threads=threads, backend=backend)

        return count * SWEEPS * lanes * side * side / timed(advance), runs

    base, cpu = rate(2, 2, "cpu")
    print(f"tempering {side}x{side}, {lanes} replicas a run: 2 CPU threads {base / 1e6:.0f} M/s")
    for count in RUNS:
        speed, runs = rate(count, 1, "cuda")
        tops = np.array([run.top for run in runs])
        hit = 100 * np.mean(tops >= tops.max() - 1e-6)
        print(
            f"  {count:5d} runs: {speed / 1e6:8.0f} M updates/s, {speed / base:6.1f} x; best log "
            f"weight {tops.max():.4f}, in {hit:.0f}% of runs after {runs[0].sweeps} sweeps"
        )
    same = max(abs(a.top - b.top) for a, b in zip(cpu, runs[:2], strict=True))
    print(f"  best weights of the same two runs on CPU and GPU differ by {same:.1e}")


def leaves(k: int) -> None:
    """Mean field on regions with ten pinned spins, four starts each."""
    poly = encode(ising_grid(20, coupling=(-10, 10), seed=1)).polynomial
    if k:
        poly = collapse(poly, k).polynomial
    family = MeanField(tol=1e-6, max_sweeps=200)
    rng = np.random.default_rng(0)
    whole = family.project(Coset.build(poly), rng)
    starts = []
    for _ in range(max(LEAVES)):
        q = replace(whole, means=rng.uniform(-1, 1, size=poly.n))
        for spin in rng.choice(poly.n, size=10, replace=False):
            half = q.condition((int(spin),), int(rng.choice([-1, 1])))
            assert half is not None
            q = half
        states = 1 - 2 * rng.integers(0, 2, size=(3, poly.n), dtype=np.int8)
        starts.append((q, states))
    few = starts[:128]
    with ThreadPoolExecutor(2) as pool:
        slow = timed(lambda: list(pool.map(lambda s: family.refine(*s), few))) / len(few)
    here = [family.refine(*start).log_gamma for start in few]
    print(f"leaves, 20x20 collapsed with k = {k} ({poly.n} spins): 2 CPU threads {1 / slow:.0f}/s")
    for count in LEAVES:
        fast = timed(lambda count=count: family.refine_on_device(starts[:count])) / count
        print(f"  {count} leaves: {1 / fast:.0f}/s, {slow / fast:.1f} x")
    there = [q.log_gamma for q in family.refine_on_device(few)]
    print(f"  largest difference of a bound {np.abs(np.subtract(here, there)).max():.1e} nats")


def timed(work: Callable[[], object]) -> float:
    """Seconds of the second call."""
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
