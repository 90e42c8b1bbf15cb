"""Megabytes a second of every reader, in CPU seconds of one core, the model included.

Files are made here, a few megabytes each, and taken from TIGHTZ_DATA where it has networks. Each
figure is the best of TIGHTZ_READERS_RUNS (5) in a process of its own. TIGHTZ_BEFORE names the tree
of another commit (`git worktree add`, or `git archive`): it reads the same files, once each, and
the last column says how many times faster this tree is. Both must find the same model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import tightz as tz

RUNS = int(os.environ.get("TIGHTZ_READERS_RUNS", "5"))
ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ("diabetes", "pathfinder", "link")

READ = """
import json, sys, time
import tightz as tz
path, evidence, runs = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
seconds = []
for _ in range(runs):
    begun = time.process_time()
    model = tz.read(path, evidence)
    seconds.append(time.process_time() - begun)
print(json.dumps([min(seconds), model.digest]))
"""


def network(rng: np.random.Generator, n: int) -> tz.FactorGraph:
    """A network of n variables, tables of a few hundred entries with four decimals."""
    cards = rng.integers(2, 8, size=n)
    factors = []
    for v in range(n):
        parents = rng.permutation(np.arange(max(0, v - 20), v))[:3].tolist()
        shape = [int(cards[u]) for u in (v, *parents)]
        whole = rng.multinomial(10_000, np.ones(shape[0]) / shape[0], size=shape[1:])
        with np.errstate(divide="ignore"):
            factors.append(([v, *parents], np.log(np.moveaxis(whole, -1, 0) / 10_000)))
    return tz.FactorGraph(cards, factors)


def by_rows(model: tz.FactorGraph) -> str:
    """A BIF file with a row for every column of a table, as most programs write it."""
    lines = ["network rows {", "}"]
    for v, d in enumerate(model.cardinalities.tolist()):
        listed = ", ".join(f"s{k}" for k in range(d))
        lines.append(f"variable x{v} {{\n  type discrete [ {d} ] {{ {listed} }};\n}}")
    for (child, *parents), table in model.factors:
        given = " | " + ", ".join(f"x{v}" for v in parents) if parents else ""
        lines.append(f"probability ( x{child}{given} ) {{")
        for column in np.ndindex(table.shape[1:]):
            head = f"({', '.join(f's{k}' for k in column)})" if parents else "table"
            numbers = ", ".join(f"{p:.4f}" for p in np.exp(table[(slice(None), *column)]))
            lines.append(f"  {head} {numbers};")
        lines.append("}")
    return "\n".join(lines) + "\n"


def clauses(rng: np.random.Generator, n: int, *, weighted: bool) -> str:
    """A random 3-SAT formula at 4.2 clauses a variable."""
    count = int(4.2 * n)
    literals = rng.integers(1, n + 1, size=(count, 3)) * rng.choice([-1, 1], size=(count, 3))
    lines = [f"p cnf {n} {count}"]
    if weighted:
        for v, w in enumerate(rng.random(n).tolist(), start=1):
            lines += [f"c p weight {v} {w!r} 0", f"c p weight {-v} {1 - w!r} 0"]
    lines += [f"{a} {b} {c} 0" for a, b, c in literals.tolist()]
    return "\n".join(lines) + "\n"


def files(folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """Model files, and evidence to read with them."""
    rng = np.random.default_rng(0)
    (folder / "rows.bif").write_text(by_rows(network(rng, 250)))
    net = network(rng, 1_000)
    tz.write(net, folder / "tables.bif")
    tz.write(net, folder / "tables.xml")
    tz.write(net, folder / "tables.uai")
    tz.write(net, folder / "tables.fg")
    grid = tz.ising_grid(150, seed=0)
    seen = grid.with_evidence({v: v % 2 for v in range(0, grid.n_variables, 7)})
    tz.write(seen, folder / "grid.uai", evidence_path=folder / "grid.uai.evid")
    tz.write(grid, folder / "grid.fg")
    (folder / "plain.cnf").write_text(clauses(rng, 60_000, weighted=False))
    (folder / "weighted.cnf").write_text(clauses(rng, 60_000, weighted=True))
    for path in sorted(folder.iterdir(), key=lambda path: (path.suffix, path.name)):
        if path.suffix != ".evid":
            evidence = path.with_name(path.name + ".evid")
            yield path, evidence if evidence.exists() else None
    data = os.environ.get("TIGHTZ_DATA")
    for name in NETWORKS if data else ():
        if (found := Path(str(data)) / "bnlearn" / f"{name}.bif").exists():
            yield found, None


def read(tree: str, path: Path, evidence: Path | None, runs: int) -> tuple[float, str]:
    """CPU seconds, and the digest of the model, by the tightz of that tree."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), str(evidence or ""), str(runs)],
        env={**os.environ, "PYTHONPATH": str(Path(tree) / "src")},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    seconds, digest = json.loads(done.stdout)
    return seconds, digest


def main() -> None:
    before = os.environ.get("TIGHTZ_BEFORE")
    print(
        f"{'file':16} {'MB':>6} {'s':>8} {'MB/s':>7}" + f"{'before':>9} {'ratio':>7}" * bool(before)
    )
    with tempfile.TemporaryDirectory() as folder:
        for path, evidence in files(Path(folder)):
            size = path.stat().st_size / 1e6 + (evidence.stat().st_size / 1e6 if evidence else 0.0)
            seconds, digest = read(str(ROOT), path, evidence, RUNS)
            line = f"{path.name:16} {size:6.2f} {seconds:8.3f} {size / seconds:7.1f}"
            if before:
                earlier, known = read(before, path, evidence, 1)
                if known != digest:
                    raise SystemExit(f"{path.name}: another model than {before} reads")
                line += f" {size / earlier:8.2f} {earlier / seconds:6.1f}x"
            print(line, flush=True)


if __name__ == "__main__":
    main()
