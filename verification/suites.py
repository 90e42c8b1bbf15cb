"""Checks that live in the tests, run here at full size: fuzzing, properties, kill and resume."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from verification.rows import Row

ROOT = Path(__file__).parent.parent
FUZZED = 100_000
HUNTED = 400
KILLS = 30

SUITES: dict[str, tuple[list[str], str, int]] = {
    "readers: mutated files": (
        ["tests/test_formats.py", "tests/test_uai.py", "tests/test_rbm_files.py", "-k", "fuzz"],
        "TIGHTZ_FUZZ",
        FUZZED,
    ),
    "properties: fresh random examples": (
        ["tests/test_projections.py", "tests/test_families.py", "tests/test_discrete.py"],
        "TIGHTZ_HUNT",
        HUNTED,
    ),
    "store: kill -9 and resume": (["tests/test_store.py", "-k", "kill"], "TIGHTZ_KILLS", KILLS),
    "cluster: a worker dies": (["tests/test_cluster.py", "-k", "kill"], "TIGHTZ_KILLS", 5),
}
"""name -> what pytest runs, the variable that sets its size, the full size."""


def suites(scale: float, progress: Callable[[str], None]) -> Iterator[Row]:
    """One row per suite; its cases are tests times size."""
    for name, (arguments, variable, size) in SUITES.items():
        size = max(3, int(size * scale))
        progress(f"{name}: {variable}={size}")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:xdist", "-o", "addopts=", *arguments],
            cwd=ROOT,
            env={**os.environ, variable: str(size)},
            capture_output=True,
            text=True,
        )
        counts = {
            word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", run.stdout)
        }
        passed = counts.get("passed", 0)
        failed = counts.get("failed", 0) + counts.get("error", 0)
        if run.returncode and not failed:
            failed = 1
        last = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else run.stderr[-200:]
        detail = last.strip("= ")
        yield Row(name, (passed + failed) * size, failed, detail)
