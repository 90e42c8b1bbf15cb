"""docs/comparison.md and its figure, from the JSON of a run: `python -m peers page [JSON]`.

The prose is in peers/comparison.md; what a task is, and why we are not always first in it, is in
the task's module.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from peers import tables
from peers.tasks import NAMES, task

ROOT = Path(__file__).resolve().parent.parent
PROSE = ROOT / "peers" / "comparison.md"
STORED = ROOT / "docs" / "peers.json"
PAGE = ROOT / "docs" / "comparison.md"
FIGURE = ROOT / "docs" / "images" / "peers.png"


def main(*arguments: str) -> None:
    """From out/peers.json or the named file; "-" takes docs/peers.json as it is."""
    from peers.figure import draw

    source = Path(*arguments) if arguments else ROOT / "out" / "peers.json"
    answer = json.loads((STORED if arguments == ("-",) else source).read_text())
    STORED.write_text(json.dumps(answer, indent=1) + "\n")
    PAGE.write_text(text(answer))
    draw(answer, FIGURE)


def text(answer: dict[str, Any]) -> str:
    settings, libraries = answer["settings"], dict(answer["versions"])
    ours = libraries.pop("tightz")
    warmed = [row["warmed"] for row in answer["rows"] if is_ours(row) and "warmed" in row]
    rows = {name: [row for row in answer["rows"] if row["task"] == name] for name in NAMES}
    return PROSE.read_text().format(
        **settings,
        half=settings["seconds"] / 2,
        gib=settings["memory"] / 2**30,
        version=ours,
        libraries=", ".join(f"{name} {version}" for name, version in libraries.items()),
        cold=answer["cold"],
        note=f"{answer['note']} " if "note" in answer else "",
        warm=statistics.median(warmed),
        summary=tables.summary(answer),
        sections="\n\n".join(section(n, r, answer["truth"]) for n, r in rows.items() if r),
    )


def is_ours(row: dict[str, Any]) -> bool:
    return bool(row["library"] == "tightz")


def section(name: str, rows: list[dict[str, Any]], truth: dict[str, Any]) -> str:
    module = task(name)
    parts = [
        f"## {module.TITLE}",
        f"{(module.__doc__ or '').strip()} The error is in {module.UNIT}.",
    ]
    if not all(map(is_ours, tables.firsts(rows).values())):
        parts.append(f"**Why we are not always first.** {module.WHY.strip()}")
    for model, group in tables.groups(rows).items():
        title = f"**{model}**: {group[0]['title']}" if group[0]["title"] else f"**{model}**"
        parts.append(f"{title}.{known(truth.get(model))}\n\n{tables.table(group)}")
    return "\n\n".join(parts)


def known(truth: dict[str, Any] | None) -> str:
    if truth is None:
        return ""
    others = ", ".join(truth["confirmed"]) or "nobody else"
    return f" log Z = {truth['log_z']:.9g} ({truth['by']}; confirmed by {others})."
