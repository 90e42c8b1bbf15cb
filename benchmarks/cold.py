"""The first run on a new machine: every model with an empty kernel folder, then again.

Printed for each: seconds until an interval whose ends are within 10 nats of the warm run's, widths
after 10 s of the first run and of the second, seconds of compilation. `first` is the interval of
both ends together at confidence 0.95, `always` the one that holds always. At the end: all kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIMIT = 10.0
NEAR = 10.0

RUN = """
import json, sys, time
begun = time.perf_counter()
import tightz as tz
sys.path.insert(0, {root!r})
from benchmarks.cold import model
seen = []
def note(b):
    seen.append((time.perf_counter() - begun, b.proof.name == "DETERMINISTIC", b.low, b.high))
r = tz.log_partition(
    model({name!r}), time_limit={limit}, seed={seed}, exact=False, on_bound=note
)
print(json.dumps({{
    "seen": seen, "always": [r.lower, r.upper], "confident": [r.confident.lower, r.confident.upper],
    "compile": r.compile_seconds,
}}))
"""


def models() -> list[str]:
    names = ["grid 30x30 w=0.5", "grid 30x30 w=1", "grid 30x30 w=10", "rbm 100x50"]
    data = os.environ.get("TIGHTZ_DATA")
    if data and list(Path(data).rglob("linkage_11.uai")):
        names.append("linkage_11")
    return names


def model(name: str) -> Any:
    import numpy as np

    import tightz as tz

    rng = np.random.default_rng(SEED)
    if name.startswith("grid"):
        w = float(name.split("=")[1])
        return tz.ising_grid(30, coupling=(-w, w), field=(-1, 1), seed=SEED)
    if name.startswith("rbm"):
        weights = rng.normal(size=(100, 50)) * 0.3
        return tz.rbm(weights, rng.normal(size=100), rng.normal(size=50))
    path = next(Path(os.environ["TIGHTZ_DATA"]).rglob(f"{name}.uai"))
    evidence = path.with_name(path.name + ".evid")
    return tz.read(path, evidence=evidence if evidence.exists() else None)


SEED = int(os.environ.get("TIGHTZ_COLD_SEED", "211"))


def run(name: str, folder: str) -> dict[str, Any]:
    root = str(Path(__file__).resolve().parent.parent)
    code = RUN.format(root=root, name=name, limit=LIMIT, seed=SEED)
    env = {**os.environ, "NUMBA_CACHE_DIR": folder}
    done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def until(cold: dict[str, Any], goal: list[float], *, always: bool) -> float:
    """Seconds until both ends are within NEAR nats of the goal's."""
    low, high = -float("inf"), float("inf")
    for seconds, proven, a, b in cold["seen"]:
        if proven or not always:
            low, high = max(low, a), min(high, b)
        if low >= goal[0] - NEAR and high <= goal[1] + NEAR:
            return float(seconds)
    return float("inf")


def main() -> None:
    print(f"{LIMIT:g} s each, seed {SEED}, {os.cpu_count()} cores")
    print(
        f"{'':18} {'first':>7} {'always':>7}   {'width 0.95':>21} {'ratio':>6}   "
        f"{'width always':>21} {'ratio':>6}   {'compiling':>9}"
    )
    for name in models():
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = run(name, folder), run(name, folder)
        line = f"{name:18}"
        for kind in ("confident", "always"):
            line += f" {until(cold, warm[kind], always=kind == 'always'):6.1f}s"
        for kind in ("confident", "always"):
            first, second = (r[kind][1] - r[kind][0] for r in (cold, warm))
            line += f"   {first:9.4g} / {second:9.4g} {first / second:6.2f}"
        print(f"{line}   {cold['compile']:8.1f}s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tightz", "compile"],
            env={**os.environ, "NUMBA_CACHE_DIR": folder, "TMPDIR": folder},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )  # fmt: skip
    print(f"tightz compile: {done.stdout.partition(';')[2].strip()}")


if __name__ == "__main__":
    main()
