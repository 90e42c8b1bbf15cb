"""Every UAI-2014 model in TIGHTZ_DATA: the interval, its reference, and how good the marginals are.

Environment: TIGHTZ_UAI_SECONDS per model (60), TIGHTZ_UAI_MODELS name prefixes, comma-separated.
References are natural logs; `*` marks those that were re-verified exactly (INDEX.tsv).
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
from tightz.estimation.interval import LogPartition

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
    def shown(self) -> str:
        r = self.result
        mark = "*" if self.verified else " "
        distance = f"{self.hellinger:.5f}" if self.hellinger == self.hellinger else "-"
        return (
            f"{self.name:24s} {r.lower:12.4f} {r.estimate:12.4f} {r.upper:12.4f} "
            f"{self.reference:12.4f}{mark} {r.width:10.4f} {self.seconds:6.1f}  {distance:>8s}  "
            f"{_short(r.lower_proof.method)} | {_short(r.upper_proof.method)}"
            + ("   VIOLATED" if self.violated else "")
        )


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
    model = tz.read_uai(path, f"{path}.evid" if Path(f"{path}.evid").exists() else None)
    start = time.perf_counter()
    result = tz.log_partition(model, time_limit=seconds, seed=0)
    taken = time.perf_counter() - start
    distance = math.nan
    checked = entry["PR_log10_exact_checked"]
    if Path(f"{path}.MAR").exists() and result.marginals is not None:
        distance = hellinger(result.marginals, tz.read_mar(f"{path}.MAR"))
    return Row(
        entry["file"].removesuffix(".uai"),
        result,
        float(checked) * math.log(10.0) if checked else tz.read_pr(f"{path}.PR"),
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
    print(f"{seconds:g} s a model, natural logs")
    print(
        f"{'model':24s} {'lower':>12s} {'estimate':>12s} {'upper':>12s} {'reference':>12s}  "
        f"{'width':>10s} {'s':>6s}  {'Hellinger':>8s} lower by | upper by"
    )
    families: dict[str, list[Row]] = defaultdict(list)
    for entry in entries:
        row = run(folder, entry, seconds)
        families[row.family].append(row)
        print(row.shown, flush=True)
    print(
        "\nfamily           models  exact  finite lower  finite upper  mean width  Hellinger, worst"
    )
    for family, rows in families.items():
        widths = [r.result.width for r in rows]
        worst = max((r.hellinger for r in rows if r.hellinger == r.hellinger), default=math.nan)
        print(
            f"{family:16s} {len(rows):6d} {sum(r.result.is_exact for r in rows):6d} "
            f"{sum(r.result.lower > -math.inf for r in rows):13d} "
            f"{sum(r.result.upper < math.inf for r in rows):13d} {np.mean(widths):11.4f} "
            f"{worst:16.5f}"
        )
    everything = [row for rows in families.values() for row in rows]
    n = len(everything)
    finite = sum(r.result.lower > -math.inf for r in everything)
    off = [
        abs(r.result.lower - r.reference) for r in everything if r.result.is_exact and r.verified
    ]
    print(f"\nviolated bounds: {sum(r.violated for r in everything)} (target 0)")
    print(f"finite lower bound: {finite} of {n} (target at least 90%)")
    print(f"finite upper bound: {sum(r.result.upper < math.inf for r in everything)} of {n}")
    print(f"exact: {sum(r.result.is_exact for r in everything)} of {n}")
    print(f"largest |exact - verified reference|: {max(off, default=0.0):.1e} (target 1e-4)")
