"""docs/comparison.md and its figure, from the JSON of a run: `python -m peers page [JSON]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peers import tables
from peers.tasks import NAMES, task

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "docs" / "peers.json"
PAGE = ROOT / "docs" / "comparison.md"
FIGURE = ROOT / "docs" / "images" / "peers.png"

INTRO = """# Against the peers, on the same work

Every library that PyPI has for a task gets the same models in the same run: `make peers`. This page is
written from that run's figures (`docs/peers.json`) by `python -m peers page`, the prose about it included.

**How to read it.** Each engine runs on each model in a process of its own, one thread, at most {seconds:g}
seconds of CPU time and {memory:g} GiB of address space. The clock starts when the library has imported,
has done a small model of the same kind and has built its own form of this one; planning is on the
clock. Methods that stop when told are told {half:g} s. MB is the peak of the whole process. A failure is
named: time, out of memory, overflow, underflow, NaN, refused (it says that it does not do this),
raised (an error came up), crashed. A value is **wrong** if it claims to be exact and is off by more
than 1e-6 of log Z, or claims to be a bound and is on the other side.

**This run.** {cores} cores shared with other work (load {load:g}), {machine}, Python {python}: seconds are CPU
seconds, which shared caches still make noisy, so ratios below 2 mean little. tightz {versions}. Our
first answer on a new machine compiles its kernels first: {cold:g} CPU seconds for exact sums; after that
loading them takes {warm:g} s (median, before the clock here)."""

ELSEWHERE = """## Measured once elsewhere

libDAI and merlin are not on PyPI. Their figures are from an earlier measurement on a machine of the
same kind (2 shared cores, one thread each, wall-clock seconds), means over five grids, differences
from exact log Z in nats; ours there come from `python -m benchmarks NAME`. With uniform tree
probabilities our tree-reweighted bound gives +131.05, +382.03 and +755.22 on 10x10, 15x15 and 20x20
grids where libDAI's gives +131, +382 and +755: `ising_grid` seeds 0 to 4 appear to be the same grids.

| 20x20, couplings in [-10, 10] | from below | from above | proof |
|---|---|---|---|
| libDAI mean field, best of 20 | -284.6, 2.0 s | | deterministic |
| libDAI TRW-BP, 1000 trees | | +755, 5.4 s | at convergence only |
| merlin mini-bucket, ibound 10 | | +176, 0.8 s | deterministic |
| libDAI junction tree | out of memory (40-62 GB) | | exact |
| toulbar2 `-logz` | nothing at 10x10 in 25 s | | exact |
| tightz tree-reweighted | | +745.9, 0.07 s | deterministic at every iterate |
| tightz mini-bucket, ibound 10 | -4.3, 0.5 s | +0.10, 0.5 s | deterministic |
| tightz `estimate` (mean field on cosets) | -2.0 at worst | | deterministic; 2 s |
| tightz `log_partition(exact=False)`, 30 s | -0.05 at worst | +0.4 at worst | deterministic, both |
| tightz `exact` | 0 | 0 | exact, 0.24 s and 21 MB |

The `estimate` and `log_partition` lines are the worst of the fresh grids 7001-7005 and 8001-8002; the
others are means over seeds 0-4. A hand-written transfer matrix took 1.45 s in the same run as the
0.24 s; 25x25 takes ours 4.3 s and 671 MB, and took the transfer matrix 40 s.

| weak coupling, 15x15 | mean field x20 | TRW-BP | BP | tightz structured mean field, width 8 | tightz TRW | tightz mini-bucket 10 |
|---|---|---|---|---|---|---|
| w in [0,1] | -11.1 | +20.6 | -1.97 | -0.16 (worst) | +8.7 | |
| w in [-1,1] | -15.3 | +24.9 | +0.07 | -0.19 (worst) | +12.4 | +0.03 |

Our Bethe values equal libDAI's BP to the digits given. On the attractive grids (w in [0,1]) they are
proven lower bounds (Ruozzi, 2012), and labelled so.

| RBM | mean field | tightz, deterministic lower | tightz AIS | reference |
|---|---|---|---|---|
| CD25_500 (784 x 500) | 437.46 | 443.90 (layer summed out), 444.22 with 4 leaves | 451.18 +- 0.17 | 451.28 (published AIS) |
| tiny_15 (784 x 15) | 182 at best of 50 | 216.0613 | 216.07 +- 0.015 | 216.0615 (exact; ours in 0.5 s) |

From above, quadratic elimination gives 727 for the 784 x 500 RBM (tree-reweighted about 9,500) and 236.2
for the other one.

## What peers do not say

libDAI's TRWBP with its default number of trees is plain BP and no upper bound. pyAgrum and pgmpy
multiply plain numbers: with tables as they come, past log Z of about 709 pyAgrum returned NaN, pgmpy and
merlin's exact mode inf; here they were handed tables with largest entry 1. toulbar2's `-logz` is not
within reach of its Python module. Here every value is a natural log, tables are kept in a scaled or
log domain, and couplings of 1e6 are in the tests.
"""


def main(*arguments: str) -> None:
    """From out/peers.json or the named file; "-" takes docs/peers.json as it is."""
    from peers.figure import draw

    source = Path(*arguments) if arguments else ROOT / "out" / "peers.json"
    answer = json.loads((STORED if arguments == ("-",) else source).read_text())
    STORED.write_text(json.dumps(answer, indent=1) + "\n")
    PAGE.write_text(text(answer))
    draw(answer, FIGURE)


def text(answer: dict[str, Any]) -> str:
    parts = [intro(answer), "## Who is first", tables.summary(answer), FIRST, PICTURE]
    for name in NAMES:
        rows = [row for row in answer["rows"] if row["task"] == name]
        if rows:
            parts.append(section(name, rows, answer["truth"]))
    return "\n\n".join([*parts, ELSEWHERE])


FIRST = """First is the smallest error, and among values that are right to 1e-6, or exact, the shortest
time. Where the first place is elsewhere the seconds or errors of both are given, and the section says
why."""

PICTURE = """![CPU seconds against error for every engine and model, a panel a task](images/peers.png)

Every engine on every model. Open marks at the top are runs without a value, or with a wrong one."""


def intro(answer: dict[str, Any]) -> str:
    settings = answer["settings"]
    theirs = ", ".join(f"{k} {v}" for k, v in answer["versions"].items() if k != "tightz")
    loading = sorted(
        row["warmed"] for row in answer["rows"] if row["library"] == "tightz" and "warmed" in row
    )
    return INTRO.format(
        seconds=settings["seconds"], half=settings["seconds"] / 2, memory=settings["memory"] / 2**30,
        cores=settings["cores"], load=settings["load"], machine=settings["machine"],
        python=settings["python"], versions=f"{answer['versions']['tightz']}; {theirs}",
        cold=answer.get("cold", float("nan")), warm=loading[len(loading) // 2],
    )  # fmt: skip


def section(name: str, rows: list[dict[str, Any]], truth: dict[str, Any]) -> str:
    module = task(name)
    parts = [f"## {module.TITLE}", (module.__doc__ or "").strip()]
    if any(row["library"] != "tightz" for row in tables.firsts(rows).values()):
        parts.append(f"**Why we are not always first.** {module.WHY}")
    for model, group in tables.groups(rows).items():
        title = f"**{model}**: {group[0]['title']}" if group[0]["title"] else f"**{model}**"
        parts.append(f"{title}.{known(truth.get(model))}\n\n{tables.table(group)}")
    return "\n\n".join(parts)


def known(truth: dict[str, Any] | None) -> str:
    if truth is None:
        return ""
    others = ", ".join(truth["confirmed"])
    return f" log Z = {truth['log_z']:.9g} ({truth['by']}; {others or 'nobody else'} agrees)"
