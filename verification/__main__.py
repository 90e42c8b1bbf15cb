"""`python -m verification [SCALE] [NAME ...]`: run the trust suite and print one table.

After `faults` the parts of the library whose faults are planted may be named: `faults judge ends`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from verification.agreement import agreement
from verification.calibration import calibration
from verification.coverage import coverage
from verification.drawn import drawn
from verification.fault_table import PLACES
from verification.faults import plant
from verification.hostile import attack
from verification.killing import killing
from verification.ledger import ledger
from verification.marginals import marginals
from verification.memory import memory
from verification.rows import Row
from verification.stopping import stopping
from verification.suites import suites
from verification.tracks import tracks
from verification.violations import hunt


def checks(workers: int, places: Sequence[str] = ()) -> dict[str, Callable[..., Iterator[Row]]]:
    """The parts of the suite by name, each a function of (scale, progress).

    places   where faults are planted; everywhere if there are none
    """
    return {
        "agreement": agreement,
        "memory": memory,
        "coverage": lambda scale, progress: coverage(scale, workers, progress),
        "stopping": lambda scale, progress: stopping(scale, workers, progress),
        "drawn": lambda scale, progress: drawn(scale, workers, progress),
        "ledger": lambda scale, progress: ledger(scale, workers, progress),
        "tracks": lambda scale, progress: tracks(scale, workers, progress),
        "bounds": lambda scale, progress: hunt(scale, workers, progress),
        "marginals": lambda scale, progress: marginals(scale, workers, progress),
        "calibration": calibration,
        "hostile": lambda scale, progress: attack(scale, workers, progress),
        "killing": killing,
        "suites": suites,
        "faults": lambda scale, progress: plant(scale, workers, progress, places),
    }


def summary(rows: list[Row]) -> str:
    """The table, one line a check."""
    width = max(len(row.check) for row in rows)
    lines = [f"{'check':{width}}  {'cases':>9}  {'failures':>8}  control  detail"]
    for row in rows:
        control = {None: "-", True: "caught", False: "MISSED"}[row.control_caught]
        lines.append(
            f"{row.check:{width}}  {row.cases:>9,}  {row.failures:>8}  {control:>7}  {row.detail}"
        )
    failed = [row.check for row in rows if not row.passed]
    cases = sum(row.cases for row in rows)
    verdict = f"{len(rows)} checks, {cases:,} cases: "
    verdict += "all passed" if not failed else f"{len(failed)} FAILED: {', '.join(failed)}"
    return "\n".join([*lines, verdict])


def main(arguments: list[str]) -> int:
    """Exit status 1 if anything failed."""
    numbers = [a for a in arguments if a.replace(".", "", 1).isdigit()]
    scale = float(numbers[0]) if numbers else 1.0
    places = [a for a in arguments if a in PLACES] if "faults" in arguments else []
    parts = checks(os.cpu_count() or 1, places)
    unknown = [a for a in arguments if a not in (*parts, *places, *numbers)]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; expected a scale and any of {', '.join(parts)}")
        return 2
    wanted = [a for a in arguments if a in parts] or list(parts)
    start = time.perf_counter()
    rows: list[Row] = []
    for name in wanted:
        say = partial(_say, name, start)
        for row in parts[name](scale, say):
            rows.append(row)
            _say(name, start, "")
            print(f"{row.check}: {row.cases:,} cases, {row.failures} failures", flush=True)
    print(summary(rows))
    print(f"scale {scale:g}, {time.perf_counter() - start:.0f} s")
    return int(any(not row.passed for row in rows))


def _say(name: str, start: float, text: str) -> None:
    print(f"\r\033[K{time.perf_counter() - start:6.0f} s  {name}: {text}", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
