"""The run: every engine of every task on every model, errors against the truth, one JSON object."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tightz as tz
from peers import cases, runner
from peers.given import Case
from peers.settings import INTERPRETER, MEMORY, SECONDS
from peers.tasks import Engine, task

AGREE = 1e-6
"""Relative to log Z, or absolute below 1: as far as values of exact methods may be apart."""

PACKAGES = (
    "cotengra", "cotengrust", "dwave-samplers", "pgmpy", "pyagrum", "pyapproxmc", "pyganak",
    "pygms", "pytoulbar2", "rbms",
)  # fmt: skip

Row = dict[str, Any]


def run(names: Iterable[str]) -> dict[str, Any]:
    """Rows of the named tasks, with truths and versions; progress goes to standard output."""
    names, have = list(names), versions()
    print("peers:", ", ".join(f"{k} {v}" for k, v in have.items()) or "none", flush=True)
    known = cases.recipes()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        wanted = dict.fromkeys(m for name in names for m in task(name).MODELS if m in known)
        folders = {
            name: cases.write(name, recipe, root)
            for name, recipe in known.items()
            if name in wanted or name.startswith(("small", "wide"))
        }
        answer = {
            "settings": settings(), "versions": {"tightz": tz.__version__, **have},
            "truth": {}, "rows": [],
        }  # fmt: skip
        if "exact" in names:
            answer["cold"] = cold(folders)
        for name in names:
            answer["rows"] += list(_task(name, folders, known, have, answer["truth"]))
    confirm(answer)
    return answer


def versions() -> dict[str, str]:
    """Of the peers that their interpreter has."""
    code = (
        "import json, sys\nfrom importlib.metadata import version, PackageNotFoundError\n"
        "found = {}\nfor name in sys.argv[1:]:\n  try: found[name] = version(name)\n"
        "  except PackageNotFoundError: pass\nprint(json.dumps(found))"
    )
    if not Path(INTERPRETER).exists():
        return {}
    done = subprocess.run([INTERPRETER, "-c", code, *PACKAGES], capture_output=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def settings() -> dict[str, Any]:
    return {
        "seconds": SECONDS, "memory": MEMORY, "threads": 1, "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1), "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }  # fmt: skip


def cold(folders: dict[str, Path]) -> float:
    """CPU seconds of our first answer where no kernel has been compiled yet."""
    with tempfile.TemporaryDirectory() as empty:
        answer = runner.run(
            sys.executable, "peers.engines.ours:exact", folders["small"], seconds=600.0,
            memory=MEMORY, environment={"NUMBA_CACHE_DIR": empty},
        )  # fmt: skip
    return round(float(answer.get("seconds", math.nan)), 1)


def one(engine: Engine, name: str, folders: dict[str, Path], small: str) -> Row:
    """What one engine answers on one model."""
    warm = [folders[small], *([folders["wide"]] if engine.ours and small == "small" else [])]
    return runner.run(
        sys.executable if engine.ours else INTERPRETER, engine.function, folders[name],
        seconds=SECONDS, memory=MEMORY, warm=warm,
    )  # fmt: skip


def _task(
    name: str, folders: dict[str, Path], known: dict[str, cases.Recipe], have: dict[str, str],
    truth: dict[str, Any],
) -> Iterator[Row]:  # fmt: skip
    module = task(name)
    print(f"\n{module.TITLE}", flush=True)
    for model in module.MODELS:
        if model not in folders:
            continue
        answers = []
        for engine in module.ENGINES:
            if not engine.ours and engine.library not in have:
                answers.append((engine, {"failure": "not installed"}))
            else:
                answers.append((engine, one(engine, model, folders, known[model].small)))
        reference = _reference(name, model, folders, truth, answers)
        for engine, answer in answers:
            row = {
                "task": name, "model": model, "title": known[model].title, "engine": engine.name,
                "library": engine.library, "claims": engine.claims, "says": engine.says,
                **_judged(name, engine, answer, reference),
            }  # fmt: skip
            print(shown(row), flush=True)
            yield row


def _reference(
    name: str, model: str, folders: dict[str, Path], truth: dict[str, Any],
    answers: list[tuple[Engine, Row]],
) -> Any:  # fmt: skip
    """What answers are held to: log Z, marginals, the heaviest weight, or the tables written."""
    case = Case(folders[model])
    if name == "heaviest":
        given = case.model()
        for _, answer in answers:
            if "state" in answer:
                answer["value"] = given.log_weight(answer["state"])
        return max((a["value"] for _, a in answers if "state" in a), default=math.nan)
    if name == "reading":
        with np.load(case.folder / "model.npz") as file:
            return float(np.exp(2.0 * file["log_tables"]).sum())
    if model not in truth:
        truth[model] = _truth(case, name, answers)
    return truth[model]["marginals" if name == "marginals" else "log_z"]


def _truth(case: Case, name: str, answers: list[tuple[Engine, Row]]) -> dict[str, Any]:
    """Ours where there is one, else the first of a peer: `confirm` says who else has it."""
    values = [(e.library, a["value"]) for e, a in answers if e.claims == "exact" and "value" in a]
    values.sort(key=lambda pair: pair[0] != "tightz")
    if name in ("exact", "counts") and values:
        return {"log_z": values[0][1], "by": values[0][0], "confirmed": []}
    found = runner.run(
        sys.executable, "peers.engines.ours:marginals", case.folder, seconds=60.0, memory=MEMORY
    )
    known = {"log_z": found["value"], "by": "tightz", "marginals": found["marginals"]}
    if not (case.folder / "rbm.npz").exists():
        return known | {"confirmed": []}
    with np.load(case.folder / "rbm.npz") as file:
        total = cases.Machine(file["weights"], file["b"], file["c"]).enumerated()
    return known | {"confirmed": ["enumeration"] if agree(total, found["value"]) else []}


def _judged(name: str, engine: Engine, answer: Row, reference: Any) -> Row:
    """The row's numbers; a claim that does not hold is `wrong`."""
    kept = {k: answer[k] for k in ("failure", "detail", "note") if k in answer}
    for key, digits in (("seconds", 4), ("warmed", 2), ("built", 3)):
        if key in answer:
            kept[key] = round(answer[key], digits)
    if "memory" in answer:
        kept["memory"] = round(answer["memory"] / 2**20)
    if "failure" in answer:
        return kept
    if "marginals" in answer and name == "marginals":
        pairs = zip(answer["marginals"], reference, strict=True)
        error = max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)
    elif "tables" in answer:
        kept["value"] = sum(map(len, answer["tables"]))
        squares = float(sum(np.square(t).sum() for t in answer["tables"]))
        error = abs(squares - reference) / reference
    elif name == "reading":
        return kept | {"value": answer["value"]}
    else:
        kept["value"] = answer["value"]
        error = answer["value"] - reference
    return kept | {"error": error, "wrong": wrong(engine.claims, error, reference)}


def wrong(claims: str, error: float, reference: Any) -> bool:
    slack = AGREE * max(1.0, abs(reference) if isinstance(reference, float) else 1.0)
    return (
        (claims == "exact" and abs(error) > slack)
        or (claims == "lower" and error > slack)
        or (claims == "upper" and error < -slack)
    )


def agree(a: float, b: float) -> bool:
    return abs(a - b) <= AGREE * max(1.0, abs(b))


def confirm(answer: dict[str, Any]) -> None:
    """Who else found each truth: libraries whose exact value is right. Vectors are dropped."""
    for model, known in answer["truth"].items():
        known.pop("marginals", None)
        for row in answer["rows"]:
            right = row["claims"] == "exact" and row["library"] != known["by"]
            done = row.get("wrong") is False and row["task"] in ("exact", "counts")
            if row["model"] == model and right and done:
                known["confirmed"].append(row["library"])
        known["confirmed"] = sorted(set(known["confirmed"]))


def shown(row: Row) -> str:
    head = f"  {row['model']:20s} {row['engine']:26s}"
    if "failure" in row:
        return f"{head} {row['failure']}: {row.get('detail', '')[:80]}"
    error = f"{row['error']:+.2e}" if "error" in row else "-"
    mark = "  WRONG" if row.get("wrong") else ""
    value = f"{row['value']:.6f}" if "value" in row else ""
    return f"{head} {value:>14s} {error:>10s} {row['seconds']:9.3f} s {row['memory']:6d} MB{mark}"


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new`, with the tasks of `old` that it has not run."""
    done = {row["task"] for row in new["rows"]}
    rows = [row for row in old.get("rows", ()) if row["task"] not in done] + new["rows"]
    truth = old.get("truth", {}) | new["truth"]
    answer = old | new | {"rows": rows, "truth": truth}
    confirm(answer)
    return answer
