"""The time before the first answer: imports, --help and small models, in fresh processes.

Kernels are compiled first and are not counted. Each line is the median of TIGHTZ_START_RUNS (7)
processes, wall seconds and CPU seconds (all threads, user and system), from process start to end.
Byte code is written, as an installation has it. TIGHTZ_DATA adds a UAI-2014 model and a network.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import tightz as tz

RUNS = int(os.environ.get("TIGHTZ_START_RUNS", "7"))

MODELS = ("uai2014/Grids_11.uai", "uai2014/DBN_11.uai", "bnlearn/alarm.bif")
"""Of TIGHTZ_DATA: those that exact sums solve soon."""


class Spent(NamedTuple):
    """Seconds of one process."""

    wall: float
    cpu: float

    def less(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.cpu - other.cpu)


def spent(*arguments: str) -> Spent:
    """Run python once; what it prints is thrown away, an error is not."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, begun = _of_children(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    wall = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"python {' '.join(arguments)}\n{done.stderr}")
    return Spent(wall, _of_children() - before)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def typical(*arguments: str) -> Spent:
    """Medians; one run before them fills caches of files, byte code and kernels."""
    spent(*arguments)
    runs = [spent(*arguments) for _ in range(RUNS)]
    return Spent(median(r.wall for r in runs), median(r.cpu for r in runs))


def show(name: str, took: Spent, target: float | None = None) -> None:
    aim = "" if target is None else f"   (target {target:g} s)"
    print(f"{name:44s} {took.wall:7.3f} s wall {took.cpu:7.3f} s CPU{aim}", flush=True)


def main() -> None:
    bare = typical("-c", "pass")
    show("python", bare)
    show("import tightz, beyond python", typical("-c", "import tightz").less(bare), 0.015)
    show("tightz --help", typical("-m", "tightz", "--help"), 0.15)
    numba = typical("-c", "import numba")
    show("import numba", numba)
    beyond = typical("-c", "import numba, tightz.interval.log_partition").less(numba)
    show("imports of log_partition, beyond numba", beyond, 0.5)
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for side in (5, 20):
            path = Path(folder, f"{side}.uai")
            tz.write(tz.ising_grid(side, coupling=(-10, 10), seed=0), path)
            files[f"tightz logz, {side}x{side} Ising grid"] = path
        data = os.environ.get("TIGHTZ_DATA")
        for name in MODELS if data else ():
            files[f"tightz logz, {name}"] = Path(str(data), name)
        for name, path in files.items():
            show(name, typical("-m", "tightz", "logz", str(path)), 1.2)


if __name__ == "__main__":
    main()
