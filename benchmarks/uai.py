"""Every UAI-2014 model in TIGHTZ_DATA: the interval, its reference, and how good the marginals are.

Environment: TIGHTZ_UAI_SECONDS per model (60), TIGHTZ_UAI_MODELS name prefixes, comma-separated,
TIGHTZ_UAI_OUT a file for the same tables in markdown, written anew after every model. Ctrl-C ends
the run with the totals of what is done. References are natural logs; `*` marks those that were
re-verified exactly (INDEX.tsv).
"""

from __future__ import annotations

import csv
import math
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tightz as tz
from tightz.interval.interval import LogPartition
from tightz.models.formats.text_files import write_atomically

SLACK = 1e-6
"""Relative: verified references hold nine digits after the point of log10 Z."""


@dataclass(frozen=True)
class Row:
    """One model's outcome."""

    name: str
    result: LogPartition
    reference: float
    verified: bool
    hellinger: float
    seconds: float

    @property
    def family(self) -> str:
        return self.name.split("_")[0].split(".")[0]

    @property
    def violated(self) -> bool:
        slack = SLACK * max(1.0, abs(self.reference))
        low, high = self.result.lower - slack, self.result.upper + slack
        return self.verified and not low <= self.reference <= high

    @property
    def cells(self) -> list[str]:
        r = self.result
        return [
            self.name,
            f"{r.lower:.4f}",
            f"{r.estimate:.4f}",
            f"{r.upper:.4f}",
            f"{self.reference:.4f}" + ("*" if self.verified else ""),
            f"{r.width:.4f}",
            f"{self.seconds:.1f}",
            f"{self.hellinger:.5f}" if self.hellinger == self.hellinger else "-",
            _short(r.lower_proof.method),
            _short(r.upper_proof.method) + (" VIOLATED" if self.violated else ""),
        ]


COLUMNS = [
    "model", "lower", "estimate", "upper", "reference", "width", "s", "Hellinger", "lower by",
    "upper by",
]  # fmt: skip
WIDTHS = [24, 12, 12, 12, 13, 10, 6, 9, 34, 34]


def aligned(cells: list[str]) -> str:
    """One line: the name and the methods to the left, numbers to the right."""
    words = zip(cells, WIDTHS, strict=True)
    return " ".join(
        f"{cell:{'<' if i in (0, 8, 9) else '>'}{width}s}" for i, (cell, width) in enumerate(words)
    ).rstrip()


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _short(method: str) -> str:
    return method if len(method) <= 34 else method[:31] + "..."


def hellinger(found: list[np.ndarray], truth: list[np.ndarray]) -> float:
    """Mean over variables of the Hellinger distance."""
    return float(
        np.mean(
            [
                np.sqrt(max(0.0, 0.5 * ((np.sqrt(p) - np.sqrt(q)) ** 2).sum()))
                for p, q in zip(found, truth, strict=True)
            ]
        )
    )


def run(folder: Path, entry: dict[str, str], seconds: float) -> Row:
    path = folder / entry["file"]
    model = tz.read(path, f"{path}.evid" if Path(f"{path}.evid").exists() else None)
    start = time.perf_counter()
    result = tz.log_partition(model, time_limit=seconds, seed=0)
    taken = time.perf_counter() - start
    distance = math.nan
    checked = entry["PR_log10_exact_checked"]
    if Path(f"{path}.MAR").exists() and result.marginals is not None:
        distance = hellinger(result.marginals, tz.read(f"{path}.MAR"))
    return Row(
        entry["file"].removesuffix(".uai"),
        result,
        float(checked) * math.log(10.0) if checked else tz.read(f"{path}.PR"),
        bool(checked),
        distance,
        taken,
    )


def main() -> None:
    root = os.environ.get("TIGHTZ_DATA")
    if not root:
        sys.exit("set TIGHTZ_DATA to the folder that holds uai2014/")
    folder = Path(root) / "uai2014"
    seconds = float(os.environ.get("TIGHTZ_UAI_SECONDS", "60"))
    wanted = tuple(os.environ.get("TIGHTZ_UAI_MODELS", "").split(","))
    with open(folder / "INDEX.tsv") as index:
        entries = [e for e in csv.DictReader(index, delimiter="\t") if e["file"].startswith(wanted)]
    tz.log_partition(tz.ising_grid(4, seed=0), time_limit=30, seed=0)  # compile the usual kernels
    title = f"{seconds:g} s a model, natural logs"
    print(f"{title}\n{aligned(COLUMNS)}", flush=True)
    rows: list[Row] = []
    try:
        for entry in entries:
            rows.append(run(folder, entry, seconds))
            print(aligned(rows[-1].cells), flush=True)
            _publish(title, rows)
            if rows[-1].result.interrupted:
                break
    except KeyboardInterrupt:
        pass
    for header, lines in totals(rows):
        print()
        for line in [header, *lines] if header else lines:
            print("  ".join(f"{cell:>14s}" for cell in line) if header else line[0])


def totals(rows: list[Row]) -> list[tuple[list[str], list[list[str]]]]:
    """By family, then over all models."""
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    header = ["family", "models", "exact", "finite lower", "finite upper", "mean width"]
    lines = []
    for family, some in families.items():
        worst = max((r.hellinger for r in some if r.hellinger == r.hellinger), default=math.nan)
        lines.append(
            [
                family,
                str(len(some)),
                str(sum(r.result.is_exact for r in some)),
                str(sum(r.result.lower > -math.inf for r in some)),
                str(sum(r.result.upper < math.inf for r in some)),
                f"{np.mean([r.result.width for r in some]):.4f}",
                f"{worst:.5f}" if worst == worst else "-",
            ]
        )
    n = len(rows)
    finite = sum(r.result.lower > -math.inf for r in rows)
    off = [abs(r.result.lower - r.reference) for r in rows if r.result.is_exact and r.verified]
    words = [
        f"violated bounds: {sum(r.violated for r in rows)} (target 0)",
        f"finite lower bound: {finite} of {n} (target at least 90%)",
        f"finite upper bound: {sum(r.result.upper < math.inf for r in rows)} of {n} (target all)",
        f"exact: {sum(r.result.is_exact for r in rows)} of {n}",
        f"largest |exact - verified reference|: {max(off, default=0.0):.1e} (target 1e-4)",
    ]
    return [([*header, "worst Hellinger"], lines), ([], [[word] for word in words])]


def _publish(title: str, rows: list[Row]) -> None:
    """The tables as markdown in TIGHTZ_UAI_OUT, where that is set."""
    path = os.environ.get("TIGHTZ_UAI_OUT")
    if not path:
        return
    (header, lines), (_, words) = totals(rows)
    parts = [title + "\n", markdown(COLUMNS, [row.cells for row in rows]), markdown(header, lines)]
    parts.append("".join(f"* {word}\n" for (word,) in words))
    write_atomically([(path, "\n".join(parts).encode())])
