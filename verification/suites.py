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

SUITES: dict[str, tuple[list[str], str, int]] = {
    "readers: mutated files": (
        ["tests/test_formats.py", "tests/test_rbm_files.py", "-k", "test_fuzz"],
        "TIGHTZ_FUZZ",
        100_000,
    ),
    "properties: fresh random examples": (
        [
            "tests/test_projections.py",
            "tests/test_families.py",
            "tests/test_discrete.py",
            "tests/test_ledger.py",
        ],
        "TIGHTZ_HUNT",
        400,
    ),
    "store: killed, damaged, full": (["tests/test_store.py"], "TIGHTZ_FUZZ", 3_000),
    "cluster: a worker dies": (["tests/test_cluster.py", "-k", "kill"], "", 0),
}
"""name -> what pytest runs, and the variable that sets its size with the full size, if any."""


def suites(scale: float, progress: Callable[[str], None]) -> Iterator[Row]:
    """One row per suite; its cases are tests, each of which does what `variable` says."""
    for name, (arguments, variable, size) in SUITES.items():
        setting = {variable: str(max(3, int(size * scale)))} if variable else {}
        told = " ".join(f"{key}={value}" for key, value in setting.items())
        progress(f"{name} {told}")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:xdist", "-o", "addopts=", *arguments],
            cwd=ROOT,
            env={**os.environ, **setting},
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
        yield Row(
            name, passed + failed, failed, f"tests {told}: {detail}" if told else f"tests: {detail}"
        )
