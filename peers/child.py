"""One engine on one model, in its own process: `python -m peers.child ENGINE CASE SECONDS WARM...`.

ENGINE is module:function, CASE a folder, WARM folders of small models that the engine runs on
first, so that nobody pays for imports or compilation on the clock. Past SECONDS of CPU time after
that the process is ended by SIGPROF; methods that stop when told are told half of it. Standard
output's last line is JSON, also on failure.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from peers.given import Budget, Case, Refused

SLOWEST = 8.0
"""The wall clock is stretched by no more than this on a shared machine."""


def main(engine: str, folder: str, limit: str, *warm: str) -> None:
    seconds = float(limit)
    if hasattr(os, "sched_setaffinity"):  # where a library's threads are its own affair
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    stdout = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not the answer
    try:
        answer = run(engine, Path(folder), seconds, [Path(name) for name in warm])
    except BaseException as error:
        name = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
        answer = {"failure": kind(error), "detail": f"{name}{error}"[:200]}
    answer["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    os.write(stdout, (json.dumps(answer) + "\n").encode())


def run(engine: str, folder: Path, seconds: float, warm: list[Path]) -> dict[str, Any]:
    module, name = engine.split(":")
    begin, wall = time.process_time(), time.perf_counter()
    function = getattr(importlib.import_module(module), name)
    for small in warm:
        function(Case(small), Budget(0.5, 0.5))()
    warmed = time.process_time() - begin
    slow = max(1.0, (time.perf_counter() - wall) / max(warmed, 1e-3))
    begin = time.process_time()
    call = function(Case(folder), Budget(seconds / 2, seconds / 2 * min(slow, SLOWEST)))
    built = time.process_time() - begin
    begin, wall = time.process_time(), time.perf_counter()
    signal.setitimer(signal.ITIMER_PROF, seconds)
    answer: dict[str, Any] = call()
    signal.setitimer(signal.ITIMER_PROF, 0.0)  # the CPU clock is coarse while it is set
    used, passed = time.process_time() - begin, time.perf_counter() - wall
    return answer | {"seconds": used, "wall": passed, "built": built, "warmed": warmed}


def kind(error: BaseException) -> str:
    """The word for a failure."""
    if isinstance(error, MemoryError) or "bad_alloc" in str(error) or "allocate" in str(error):
        return "out of memory"
    if isinstance(error, OverflowError):
        return "overflow"
    if isinstance(error, ModuleNotFoundError):
        return "not installed"
    return "refused" if isinstance(error, Refused) else "raised"


if __name__ == "__main__":
    main(*sys.argv[1:])
