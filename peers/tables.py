"""Tables of the page, from the rows of a run."""

from __future__ import annotations

import math
from typing import Any

from peers.tasks import NAMES, task

Row = dict[str, Any]

HEAD = ("engine", "value", "error", "CPU s", "MB", "what it says its number is")
SAME = 1e-6
"""Errors below this are no reason to prefer one value."""

STEP = 0.005


def right(row: Row) -> bool:
    """A value whose claim holds."""
    return "failure" not in row and not row.get("wrong", False) and "error" in row


def rank(row: Row) -> tuple[float, float]:
    """The smaller error first, then the shorter time."""
    error = abs(row["error"])
    return (0.0 if error < SAME or row["claims"] == "exact" else error, row["seconds"])


def groups(rows: list[Row]) -> dict[str, list[Row]]:
    """By model, in the order of the run."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["model"], []).append(row)
    return found


def firsts(rows: list[Row]) -> dict[str, Row]:
    """The best right row of every model that has one."""
    ranked = {m: sorted(filter(right, g), key=rank) for m, g in groups(rows).items()}
    return {model: found[0] for model, found in ranked.items() if found}


def summary(answer: dict[str, Any]) -> str:
    """Who is first, task by task."""
    lines = [
        "| task | tightz first | first elsewhere | peers without a right value |",
        "|---|---|---|---|",
    ]
    for name in NAMES:
        rows = [row for row in answer["rows"] if row["task"] == name]
        if not rows:
            continue
        best = firsts(rows)
        ours = sum(row["library"] == "tightz" for row in best.values())
        others = ", ".join(
            f"{model}: {row['engine']}{_lead(rows, model, row)}"
            for model, row in best.items()
            if row["library"] != "tightz"
        )
        theirs = [row for row in rows if row["library"] != "tightz"]
        failed = sum("failure" in row or bool(row.get("wrong")) for row in theirs)
        title = task(name).TITLE
        lines.append(
            f"| [{title}](#{anchor(title)}) | {ours} of {len(best)} | {others or '-'} "
            f"| {failed} of {len(theirs)} runs |"
        )
    return "\n".join(lines)


def anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _lead(rows: list[Row], model: str, first: Row) -> str:
    """The best of ours beside it."""
    ours = [r for r in rows if r["model"] == model and r["library"] == "tightz" and right(r)]
    if not ours:
        return " (we have no value)"
    best = min(ours, key=rank)
    if rank(best)[0] > rank(first)[0]:
        return f" (error {number(first['error'])}, ours {number(best['error'])})"
    return f" ({took(first)} s, ours {took(best)})"


def table(rows: list[Row]) -> str:
    """One model's rows."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def cells(row: Row) -> list[str]:
    if "failure" in row:
        detail = f" ({plain(row['detail'])})" if row.get("detail") else ""
        used = str(row["memory"]) if "memory" in row else "-"
        return [row["engine"], f"**{row['failure']}**{detail}", "-", "-", used, row["says"]]
    value = number(row["value"], 9) if "value" in row else "-"
    note = f" {plain(row['note'])}" if row.get("note") else ""
    error = number(row["error"]) if "error" in row else "-"
    mark = " **wrong**" if row.get("wrong") else ""
    return [
        row["engine"], value + note, error + mark, took(row), str(row["memory"]),
        row["says"],
    ]  # fmt: skip


def took(row: Row) -> str:
    """CPU seconds, which the kernel counts in steps of a few milliseconds while a limit is set."""
    return f"{row['seconds']:.3g}" if row["seconds"] >= STEP else f"<{STEP}"


def number(value: float, digits: int = 2) -> str:
    if math.isnan(value) or math.isinf(value):
        return str(value)
    if abs(value) < 1e-12:
        return "0"
    return f"{value:.{digits}g}"


def plain(text: str) -> str:
    """One short line without what a table or a page would take for markup."""
    line = " ".join(text.replace("|", "/").replace("<", "(").replace(">", ")").split())
    return line if len(line) <= 70 else line[:67] + "..."
