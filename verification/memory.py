"""Memory ceilings, each in a process of its own: its peak against what it was allowed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

from verification.rows import Row

PEAK = """
import pathlib, re, resource
try:  # of this program alone; getrusage remembers what the process was before it became this one
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak / 1024)
"""

CASES: dict[str, tuple[str, float]] = {
    "exact, 20x20, max_memory 200 MB": (
        "tz.exact(tz.ising_grid(20, seed=0), max_memory='200MB')",
        500.0,
    ),
    "exact, 40x40, refused at 1 GB": (
        "try:\n    tz.exact(tz.ising_grid(40, seed=0), max_memory='1GB')\n"
        "    raise SystemExit('not refused')\nexcept tz.errors.ResourceError:\n    pass",
        400.0,
    ),
    "mean field and MFRP, 100x100, m = 20": (
        "tz.mfrp(tz.ising_grid(100, seed=0), 20, trials=2, seed=0)",
        1024.0,
    ),
    "log_partition, 50x50, 5 s": (
        "tz.log_partition(tz.ising_grid(50, seed=0), time_limit=5, max_memory='1GB')",
        2600.0,
    ),
    "a UAI file that promises 10^12 entries": (
        "import pathlib, tempfile\np = pathlib.Path(tempfile.mkdtemp()) / 'm.uai'\n"
        "scope = ' '.join(map(str, range(40)))\n"
        "p.write_text('MARKOV 40 ' + '2 ' * 40 + '1 40 ' + scope + ' 1099511627776 1 2')\n"
        "try:\n    tz.read(p)\n    raise SystemExit('not refused')\n"
        "except tz.TightzError:\n    pass",
        300.0,
    ),
}
"""name -> program, ceiling in MB (interpreter, numba and libraries take about 200 of them)."""


def memory(scale: float, progress: Callable[[str], None]) -> Iterator[Row]:
    """One row per case; `scale` below 0.01 leaves out the slow one."""
    for name, (program, ceiling) in CASES.items():
        if scale < 0.01 and "5 s" in name:
            continue
        progress(name)
        run = subprocess.run(
            [sys.executable, "-c", f"import tightz as tz\n{program}\n{PEAK}"],
            capture_output=True,
            text=True,
        )
        if run.returncode:
            lines = run.stderr.strip().splitlines()
            yield Row(f"memory: {name}", 1, 1, lines[-1] if lines else f"exit {run.returncode}")
            continue
        peak = float(run.stdout.strip().splitlines()[-1])
        detail = f"peak {peak:.0f} MB, ceiling {ceiling:.0f} MB"
        yield Row(f"memory: {name}", 1, int(peak > ceiling), detail)
