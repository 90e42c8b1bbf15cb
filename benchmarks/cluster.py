"""Clusters: speed-up, bytes on the wire, same numbers everywhere, and workers that are killed.

Issue 8: dask with 2 processes at least 1.7 times as fast as with 1; a worker killed mid-run loses
nothing and the table is bit-identical to the serial one. Every worker has one thread. The machine
must be quiet for the speed-up: the load is printed, and so is the speed-up of two processes that
take half of the run each and exchange nothing, which no cluster can beat.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

import tightz as tz
from tightz.paper import trials as seam
from tightz.paper.results import Estimate
from tightz.runtime import executors
from tightz.runtime.local_workers import LocalWorkers

LEVELS = range(21)
TRIALS = 200
REPEATS = 3


def model() -> tz.FactorGraph:
    return tz.ising_grid(20, coupling=(-10, 10), field=(-1, 1), seed=7001)


def run(trials: int = TRIALS, restarts: int = 16, **options: Any) -> Estimate:
    """Algorithm 1 as printed, all levels; 16 restarts so that it takes long enough to measure."""
    printed = tz.Projections.as_printed(restarts=restarts)
    return tz.estimate(
        model(), levels=LEVELS, trials=trials, projections=printed, seed=0, **options
    )


def same(a: Estimate, b: Estimate) -> str:
    parts = ("log_gammas", "marginals", "marginal_spread", "sweeps", "ranks")
    equal = all(np.array_equal(getattr(a, p), getattr(b, p)) for p in parts)
    return "bit-identical to serial" if equal else "DIFFERS from serial"


@contextmanager
def dask(workers: int) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with LocalCluster(n_workers=workers, **options) as cluster, Client(cluster) as client:
        yield client


def pids(pool: Any) -> list[int]:
    return pool.pids if isinstance(pool, LocalWorkers) else list(pool.run(os.getpid).values())


POOLS: dict[str, Callable[[int], Any]] = {"dask": dask, "local": LocalWorkers}


def start_up() -> None:
    """From nothing to the first trials back, kernels cached on disk: why --workers is not dask."""
    for name, start in POOLS.items():
        begun = time.perf_counter()
        with start(2) as pool:
            run(trials=1, restarts=1, executor=pool)
            ready = time.perf_counter() - begun
        print(f"{name}: 2 workers started and warm in {ready:.1f} s")


def _part(trials: int) -> float:
    """Seconds of a part of the run in one process."""
    return run(trials=trials, threads=1).seconds


def speed_up() -> None:
    """2 workers against 1, in turn, fastest of REPEATS; beside it what two cores give at all."""
    best: dict[tuple[str, int], float] = {}

    def note(name: str, size: int, seconds: float) -> None:
        best[name, size] = min(best.get((name, size), np.inf), seconds)

    for name, start in POOLS.items():
        with start(1) as one, start(2) as two, mp.get_context("spawn").Pool(2) as apart:
            for pool in (one, two):
                run(trials=8, restarts=1, executor=pool)  # workers import and load kernels
            apart.map(_part, [8, 8], 1)
            for _ in range(REPEATS):
                note(name, 1, run(executor=one).seconds)
                note(name, 2, run(executor=two).seconds)
                note("no communication", 1, apart.apply(_part, (TRIALS,)))
                note("no communication", 2, max(apart.map(_part, [TRIALS // 2] * 2, 1)))
    for name in (*POOLS, "no communication"):
        one, two = best[name, 1], best[name, 2]
        target = " (target 1.7)" if name == "dask" else ""
        print(f"{name}: 1 process {one:.2f} s, 2 {two:.2f} s: speed-up {one / two:.2f}{target}")
    print(f"load {os.getloadavg()[0]:.1f}")


def bytes_per_batch() -> None:
    """What travels: the plan once a worker, then positions out and small records back."""

    class Counting(LocalWorkers):
        plans: list[int]
        tasks: list[int]

        def share(self, content: bytes) -> Any:
            self.plans.append(len(content))
            return super().share(content)

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            self.tasks.append(len(pickle.dumps((fn, args))))
            return super().submit(fn, *args, **kwargs)

    tight = tz.Projections(search_sweeps=200)
    for label, how in (("as printed", tz.Projections.as_printed()), ("tight", tight)):
        with Counting(2) as pool:
            pool.plans, pool.tasks = [], []
            batches: list[seam.TrialBatch] = []
            tz.estimate(
                model(), levels=LEVELS, trials=20, seed=0, executor=pool, on_batch=batches.append,
                projections=how,
            )  # fmt: skip
        came = [len(pickle.dumps(batch)) for batch in batches]
        print(
            f"{label}: plan {pool.plans} bytes, once to each of 2 workers; then "
            f"{np.mean(pool.tasks):,.0f} bytes out and {np.mean(came):,.0f} back per batch of "
            f"{len(batches[0])} trials ({len(batches)} batches)"
        )


def same_everywhere() -> None:
    serial = run(trials=20, restarts=8, threads=1)
    with ThreadPoolExecutor(3) as pool:
        print(f"threads: {same(serial, run(trials=20, restarts=8, executor=pool))}")
    for name, start in POOLS.items():
        with start(2) as pool:
            print(f"{name}: {same(serial, run(trials=20, restarts=8, executor=pool))}")


def killed() -> None:
    """SIGKILL one of two workers in the middle, and both of them."""
    serial = run(trials=40, threads=1)
    for name, start in POOLS.items():
        for victims in (1, 2):
            with start(2) as pool:
                run(trials=1, restarts=1, executor=pool)
                seen: list[int] = []

                def strike(
                    batch: seam.TrialBatch, pool: Any = pool, seen: list[int] = seen
                ) -> None:
                    seen.append(len(batch))
                    if len(seen) == 10:
                        for pid in pids(pool)[:victims]:  # noqa: B023
                            os.kill(pid, signal.SIGKILL)

                result = run(trials=40, executor=pool, on_batch=strike)
            print(
                f"{name}: {victims} of 2 workers killed after batch 10 of {len(seen)}: "
                f"{same(serial, result)}; {serial.seconds:.1f} s serial, {result.seconds:.1f} here"
            )


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, window {executors.IN_FLIGHT}")
    start_up()
    bytes_per_batch()
    same_everywhere()
    killed()
    speed_up()


if __name__ == "__main__":
    main()
