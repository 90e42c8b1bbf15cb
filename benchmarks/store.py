"""The run store: kills, full disks, memory over a long run, and what keeping a run costs."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import tightz as tz
from tightz.paper.results import Estimate
from tightz.paper.theorem_run import statements
from tightz.runtime.memory import format_bytes
from tightz.runtime.store import RunReader, StoreError

KILLS = int(os.environ.get("TIGHTZ_KILLS", "30"))
TRIALS = int(os.environ.get("TIGHTZ_STORE_TRIALS", "100000"))

MODEL = tz.ising_grid(6, coupling=(-2, 2), seed=1)
PLAIN: dict[str, Any] = {"seed": 5, "backend": "cpu"}
PRINTED = tz.Projections.as_printed(restarts=4)
SHORT: dict[str, Any] = {**PLAIN, "levels": range(37), "trials": 40, "projections": PRINTED}


def run_short(path: str) -> Estimate:
    """What the killed processes run: start the run at `path`, or go on with it."""
    return tz.estimate(MODEL, store=path, resume=True, **SHORT)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        kills(Path(folder))  # TIGHTZ_KILLS and TIGHTZ_STORE_TRIALS set the sizes
        full_disk(Path(folder))
        overhead(Path(folder))
        long_run(Path(folder))


def kills(folder: Path) -> None:
    """Each run is killed once at a random moment of its life, then resumed to its end."""
    reference = tz.estimate(MODEL, **SHORT)
    start = time.perf_counter()
    run_short(str(folder / "timed.db"))
    life = time.perf_counter() - start
    rng = np.random.default_rng(int(time.time()))
    same = killed = cut = runs = 0
    while killed < KILLS:  # a run that ends before its moment is drawn again
        runs += 1
        path = folder / f"kill{runs}.db"
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                run_short(str(path))
            os._exit(0)
        time.sleep(rng.uniform(0.0, life))
        os.kill(child, signal.SIGKILL)
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            continue
        killed += 1
        if path.exists():
            with RunReader(path) as run:
                done, total = run.progress()
                cut += 0 < done < total
                assert run.verify() == []
        again = run_short(str(path))
        with RunReader(path) as run:
            rows = run.trials()
        places = set(zip(rows.levels.tolist(), rows.trials.tolist(), strict=True))
        same += (
            np.array_equal(again.log_gammas, reference.log_gammas)
            and np.array_equal(again.marginals, reference.marginals)
            and len(rows) == len(places) == reference.log_gammas[:, :, 0].size
        )
    print(f"kill -9 at {killed} random moments, {cut} of them with part of the table stored")
    print(f"  resumed to the same table, no trial lost or doubled: {same} of {killed} (all)")


def full_disk(folder: Path) -> None:
    """A tmpfs of 300 kB where we may mount one, else a limit on the size of files."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))
    path = disk / "run.db"
    try:
        tz.estimate(MODEL, store=path, **{**SHORT, "trials": 400})
        print("full disk: never noticed (FAILED)")
    except StoreError as error:
        print(f"full disk ({'tmpfs' if mounted else 'file-size limit'}): {error}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with RunReader(path) as run:
        print(f"  intact: {run.progress()[0]} of {run.progress()[1]} trials, {run.verify()} wrong")
    if mounted:
        read_only = subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True)
        if read_only.returncode == 0:
            try:
                tz.estimate(MODEL, store=path, resume=True, **{**SHORT, "trials": 400})
                print("read-only: never noticed (FAILED)")
            except StoreError as error:
                print(f"read-only: {error}")
        subprocess.run(["umount", "-l", str(disk)], check=True)


def overhead(folder: Path) -> None:
    """The same work with and without a store, in turns; processor time, since cores are shared."""
    work: dict[str, Any] = {**SHORT, "trials": 120, "threads": 1}
    ratios = []
    for i in range(5):
        spent = []
        for extra in ({}, {"store": folder / f"overhead{i}.db"}):
            start = time.process_time()
            tz.estimate(MODEL, **work, **extra)
            spent.append(time.process_time() - start)
        ratios.append(spent[1] / spent[0])
    print(f"overhead: processor time with a store / without, median of 5: {np.median(ratios):.3f}")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def long_run(folder: Path) -> None:
    """Memory over a run of many trials; the table itself is allocated at the start."""
    trials = -(-TRIALS // 37)
    marks = {10: 0, 50: 0, 100: 0}
    done = 0

    def watch(batch: Any) -> None:
        nonlocal done
        done += len(batch)
        for percent in marks:
            if not marks[percent] and 100 * done >= percent * 37 * trials:
                marks[percent] = resident()

    path = folder / "long.db"
    start = time.perf_counter()
    printed = tz.Projections.as_printed()
    options: dict[str, Any] = {
        **PLAIN,
        "levels": range(37),
        "trials": trials,
        "projections": printed,
    }
    e = tz.estimate(MODEL, store=path, on_batch=watch, **options)
    seconds = time.perf_counter() - start
    print(f"{37 * trials:,} trials with 8 restarts of a 6x6 grid in {seconds:.0f} s")
    print("  resident: " + ", ".join(f"{format_bytes(v)} at {p}%" for p, v in marks.items()))
    growth = marks[100] - marks[10]
    print(f"  from 10% to 100%: {format_bytes(abs(growth))} {'more' if growth > 0 else 'less'}")
    print(f"  table {format_bytes(e.log_gammas.nbytes)}, store {format_bytes(path.stat().st_size)}")
    start = time.perf_counter()
    with RunReader(path) as run:
        assert run.verify() == []
        np.testing.assert_array_equal(run.table(), e.log_gammas)
    print(f"  verified and read back bit for bit in {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    r = statements(e, 0.05, planned=(37, trials))
    print(f"  {r} in {time.perf_counter() - start:.1f} s; exact {tz.exact(MODEL).log_z:.6f}")


if __name__ == "__main__":
    sys.exit(main())
