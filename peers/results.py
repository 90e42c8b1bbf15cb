"""The run: every engine of every task on every model, errors against the truth, one JSON object."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tightz as tz
from peers import cases, runner
from peers.given import Case
from peers.settings import INTERPRETER, MEMORY, SECONDS
from peers.tasks import NAMES, Engine, task

AGREE = 1e-6
"""Relative to log Z, or absolute below 1: as far as values of exact methods may be apart."""

PACKAGES = (
    "cotengra", "cotengrust", "dwave-samplers", "pgmpy", "pyagrum", "pyapproxmc", "pyganak",
    "pygms", "pytoulbar2", "rbms",
)  # fmt: skip

Row = dict[str, Any]

MISSING: Row = {"failure": "not installed"}


def run(names: Sequence[str], old: dict[str, Any], engines: str = "") -> dict[str, Any]:
    """`old` with the rows of the named tasks made anew; progress goes to standard output.

    engines    only those whose name starts with this
    """
    have = versions()
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
        answer = old | {"settings": settings(), "versions": {"tightz": tz.__version__, **have}}
        answer["truth"] = dict(old.get("truth", {}))
        if "exact" in names and not engines:
            answer["cold"] = cold(folders)
        rows = [
            row
            for name in names
            for row in _task(name, engines, folders, known, have, answer["truth"])
        ]
    answer["rows"] = replaced(old.get("rows", []), rows)
    settle(answer)
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
    name: str, engines: str, folders: dict[str, Path], known: dict[str, cases.Recipe],
    have: dict[str, str], truth: dict[str, Any],
) -> Iterator[Row]:  # fmt: skip
    module = task(name)
    print(f"\n{module.TITLE}", flush=True)
    for model in module.MODELS:
        if model not in folders:
            continue
        answers = []
        for engine in module.ENGINES:
            if engine.name.startswith(engines) and fits(engine, known[model]):
                there = engine.ours or engine.library in have
                found = one(engine, model, folders, known[model].small) if there else MISSING
                answers.append((engine, found))
        reference = _reference(name, Case(folders[model]), model, truth, answers)
        for engine, answer in answers:
            row = {
                "task": name, "model": model, "title": known[model].title, "engine": engine.name,
                "library": engine.library, "claims": engine.claims, "says": engine.says,
                **_judged(engine, answer, reference),
            }  # fmt: skip
            print(shown(row), flush=True)
            yield row


def _reference(
    name: str, case: Case, model: str, truth: dict[str, Any], answers: list[tuple[Engine, Row]]
) -> Any:
    """What answers are held to: log Z, marginals, the heaviest weight, or the tables written."""
    if name == "heaviest":
        given = case.model()
        for _, answer in answers:
            if "state" in answer:
                answer["value"] = given.log_weight(answer["state"])
        return max((a["value"] for _, a in answers if "state" in a), default=math.nan)
    if name == "reading":
        with np.load(case.folder / "model.npz") as file:
            return float(np.exp(2.0 * file["log_tables"]).sum())
    if name == "marginals":
        return _ours(case)["marginals"]
    if model not in truth:
        truth[model] = _truth(case, name, answers)
    return truth[model]["log_z"]


def _truth(case: Case, name: str, answers: list[tuple[Engine, Row]]) -> dict[str, Any]:
    """Ours where there is one, else the first of a peer: `settle` says who else has it."""
    values = [(e.library, a["value"]) for e, a in answers if e.claims == "exact" and "value" in a]
    values.sort(key=lambda pair: pair[0] != "tightz")
    if name in ("exact", "counts") and values:
        return {"log_z": values[0][1], "by": values[0][0], "confirmed": []}
    known = {"log_z": _ours(case)["value"], "by": "tightz", "confirmed": []}
    if (case.folder / "rbm.npz").exists():
        with np.load(case.folder / "rbm.npz") as file:
            total = cases.Machine(file["weights"], file["b"], file["c"]).enumerated()
        if not wrong("exact", total - known["log_z"], total):
            known["confirmed"].append("enumeration")
    return known


def _ours(case: Case) -> Row:
    return runner.run(
        sys.executable, "peers.engines.ours:marginals", case.folder, seconds=60.0, memory=MEMORY
    )


def _judged(engine: Engine, answer: Row, reference: Any) -> Row:
    """The row's numbers; a claim that does not hold is `wrong`."""
    kept = {k: answer[k] for k in ("failure", "detail", "note") if k in answer}
    for key, digits in (("seconds", 6), ("warmed", 2), ("built", 3)):
        if key in answer:
            kept[key] = round(answer[key], digits)
    if "memory" in answer:
        kept["memory"] = round(answer["memory"] / 2**20)
    if "failure" in answer:
        return kept
    if isinstance(reference, list):
        pairs = zip(answer["marginals"], reference, strict=True)
        error = max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)
    elif "tables" in answer:
        kept["value"] = sum(map(len, answer["tables"]))
        squares = float(sum(np.square(t).sum() for t in answer["tables"]))
        error = abs(squares - reference) / reference
    elif engine.claims == "parts":
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


def fits(engine: Engine, recipe: cases.Recipe) -> bool:
    return not engine.needs or engine.needs in recipe.files


def replaced(old: list[Row], new: list[Row]) -> list[Row]:
    """Rows of both, the new one where a place is taken, in the order of the tasks."""
    rows = {(r["task"], r["model"], r["engine"]): r for r in [*old, *new]}
    listed = [
        (name, model, engine.name)
        for name in NAMES
        for model in task(name).MODELS
        for engine in task(name).ENGINES
        if model not in cases.RECIPES or fits(engine, cases.RECIPES[model])
    ]
    return [rows[key] for key in listed if key in rows]


def settle(answer: dict[str, Any]) -> None:
    """What rows say together: the heaviest state of all engines, and who confirms a log Z."""
    for row in answer["rows"]:
        if row["task"] == "heaviest" and "value" in row:
            same = (
                r for r in answer["rows"] if (r["task"], r["model"]) == ("heaviest", row["model"])
            )
            row["error"] = row["value"] - max(r["value"] for r in same if "value" in r)
    for model, known in answer["truth"].items():
        found = {
            row["library"]
            for row in answer["rows"]
            if row["model"] == model and row["claims"] == "exact" and row.get("wrong") is False
            if row["task"] in ("exact", "counts") and row["library"] != known["by"]
        }
        known["confirmed"] = sorted(found | ({"enumeration"} & set(known["confirmed"])))


def shown(row: Row) -> str:
    head = f"  {row['model']:20s} {row['engine']:26s}"
    if "failure" in row:
        return f"{head} {row['failure']}: {row.get('detail', '')[:80]}"
    error = f"{row['error']:+.2e}" if "error" in row else "-"
    mark = "  WRONG" if row.get("wrong") else ""
    value = f"{row['value']:.6f}" if "value" in row else ""
    return f"{head} {value:>14s} {error:>10s} {row['seconds']:9.3f} s {row['memory']:6d} MB{mark}"
