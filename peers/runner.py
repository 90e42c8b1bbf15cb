"""Starts an engine in a process of its own, with limits, and names what came back."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START = 60.0
"""Wall-clock seconds for imports, the small models and building the engine's own model."""

SLOW = 12.0
"""A CPU second may take so many on the wall clock: the machine may be shared."""

THREADS = ("OMP", "MKL", "OPENBLAS", "NUMBA", "NUMEXPR", "VECLIB_MAXIMUM")


def run(
    python: str, engine: str, case: Path, *, seconds: float, memory: int,
    warm: Sequence[Path] = (), environment: dict[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The engine's answer with `seconds`, `memory` and so on, or `failure` and `detail`."""
    if not Path(python).exists():
        return {"failure": "not installed", "detail": "no interpreter with the peers"}
    command = [
        python, "-m", "peers.child", engine, str(case), str(seconds), *map(str, warm),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=_environment() | (environment or {}), capture_output=True,
            text=True, timeout=START * SLOW / 4 + SLOW * seconds, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failure": "time", "detail": "the process did not end"}
    answer = judged(_answer(done))
    if "detail" in answer:
        answer["detail"] = answer["detail"].replace(str(case.parent), "").strip()
    return answer


def _environment() -> dict[str, str]:
    """One thread for everybody; our source where the interpreter has no tightz installed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {
        **os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1",
        **{f"{name}_NUM_THREADS": "1" for name in THREADS},
    }  # fmt: skip


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    if done.returncode == -signal.SIGPROF:
        return {"failure": "time"}
    last = (done.stderr.strip().splitlines() or ["nothing printed"])[-1][:200]
    if "bad_alloc" in done.stderr or "MemoryError" in done.stderr:
        return {"failure": "out of memory", "detail": last}
    if done.returncode == -signal.SIGKILL:
        return {"failure": "out of memory", "detail": "killed"}
    if done.returncode < 0:
        last = f"{signal.Signals(-done.returncode).name}: {last}"
    return {"failure": "crashed", "detail": last}


def judged(answer: dict[str, Any]) -> dict[str, Any]:
    """A number that is none is a failure with a name."""
    value = answer.get("value", 0.0)
    numbers = [p for row in answer.get("marginals", ()) for p in row]
    if "failure" in answer:
        return answer
    if math.isnan(value) or any(map(math.isnan, numbers)):
        word = "NaN"
    elif math.isinf(value):
        word = "overflow" if value > 0.0 else "underflow"
    else:
        return answer
    kept = {k: v for k, v in answer.items() if k not in ("value", "marginals")}
    return kept | {"failure": word, "detail": answer.get("note", f"its value is {value}")}
