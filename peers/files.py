"""Every model file in a folder, solved and cross-checked: `python -m peers files [FOLDER or FILE]`.

Reads each .bif, .xml, .uai, .fg and .cnf file (with NAME.evid as evidence), by default those of
$TIGHTZ_DATA/bnlearn. A Bayesian network without evidence must have log Z = 0, as far as the digits
of its tables allow; under random evidence, drawn with the network itself, log P(evidence) and all
posterior marginals are compared by the names of variables and states with pyAgrum's lazy
propagation (which reads the file itself), else with pgmpy's elimination. Of any other model log
Z, or the interval that holds always, is held to NAME.PR where that is there, and to the first peer
that has a value: pyganak for clauses, cotengra and pyAgrum for tables. The last lines say what
disagreed, and the exit status is then 1.

Environment: PEERS_FILE_SECONDS for each model (60), PEERS_FILE_TRIALS sets of evidence (3), and
TIGHTZ_PEERS; a peer that our own interpreter has is taken from there.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

import tightz as tz
from peers import cases, runner
from peers.settings import INTERPRETER, MEMORY
from tightz.models.formats.bif_writer import Cpt, network_tables

AGREE = 1e-6
COLUMNS = 0.01
"""Columns of tables sum to 1 within this, as the readers ask."""

REFERENCE = 1e-3
"""Reference files have few digits: within this, relative, or absolute below 1."""

SINGLE = 6e-8
"""pyAgrum reads numbers in single precision: each table may move log P(evidence) by this much."""

ENDINGS = (".bif", ".xml", ".xmlbif", ".uai", ".fg", ".cnf")
OBSERVED = 4
"""Variables observed in each set of evidence, at most."""

NETWORKS = (
    ("pyAgrum", "pyagrum", "peers.engines.agrum:posteriors"),
    ("pgmpy", "pgmpy", "peers.engines.pgm:posteriors"),
)
TABLES = (
    ("cotengra", "cotengra", "peers.engines.contraction:greedy"),
    ("pyAgrum", "pyagrum", "peers.engines.agrum:exact"),
)
CLAUSES = (("pyganak", "pyganak", "peers.engines.counters:ganak"), *TABLES)

Peers = tuple[tuple[str, str, str], ...]


@dataclass
class Row:
    """One file's outcome; `trouble` lists what is wrong."""

    name: str
    variables: int = 0
    entries: int = 0
    read: float = math.nan
    log_z: str = "-"
    off: float = math.nan
    marginals: float = math.nan
    ours: float = 0.0
    theirs: float = math.nan
    peer: str = "-"
    reference: str = "-"
    trouble: list[str] = field(default_factory=list)

    @property
    def cells(self) -> list[str]:
        agrees = "agrees" if "-" not in (self.peer, self.reference) or self.peer != "-" else ""
        return [
            self.name, str(self.variables), str(self.entries), f"{self.read:.2f}", self.log_z,
            self.reference, _short(self.off), _short(self.marginals), f"{self.ours:.2f}",
            "-" if math.isnan(self.theirs) else f"{self.theirs:.2f}", self.peer,
            "; ".join(self.trouble) or agrees,
        ]  # fmt: skip


HEAD = (
    "file", "variables", "entries", "read s", "log Z", "reference off", "log Z or log P(e) off",
    "marginals off", "tightz s", "peer s", "peer", "",
)  # fmt: skip


def main(*arguments: str) -> None:
    limit = float(os.environ.get("PEERS_FILE_SECONDS", "60"))
    trials = int(os.environ.get("PEERS_FILE_TRIALS", "3"))
    print("| " + " | ".join(HEAD) + " |")
    print("|" + " --- |" * len(HEAD), flush=True)
    rows = []
    for path in found(list(arguments)):
        rows.append(run(path, limit, trials))
        print("| " + " | ".join(rows[-1].cells) + " |", flush=True)
    wrong = [row for row in rows if row.trouble]
    alone = sum(row.peer == "-" and row.reference == "-" for row in rows)
    print(f"\n{len(rows)} files, {len(wrong)} with trouble, {alone} that nobody else could check")
    if wrong:
        sys.exit("trouble with " + ", ".join(row.name for row in wrong))


def found(arguments: list[str]) -> list[Path]:
    if not arguments:
        arguments = [str(Path(os.environ.get("TIGHTZ_DATA", "data")) / "bnlearn")]
    files: list[Path] = []
    for name in arguments:
        path = Path(name)
        if not path.exists():
            sys.exit(f"{name} does not exist; expected a folder of model files, or a file")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        files += [p for p in inside if p.suffix.lower() in ENDINGS]
    return files


def run(path: Path, limit: float, trials: int, networks: Peers = NETWORKS) -> Row:
    row = Row(path.name)
    start = time.process_time()
    try:
        model = tz.read(path, evidence=_evidence(path))
    except tz.TightzError as error:
        row.trouble.append(str(error))
        return row
    row.read = time.process_time() - start
    row.variables, row.entries = model.n_variables, model.log_tables.size
    start = time.process_time()
    whole = tz.log_partition(model, time_limit=limit, marginals=False, seed=0)
    row.ours = time.process_time() - start
    row.log_z = (
        f"{whole.estimate:.6g}" if whole.is_exact else f"[{whole.lower:.6g}, {whole.upper:.6g}]"
    )
    _refer(row, path, whole)
    tables = network_tables(model, slack=COLUMNS) if not model.evidence else "evidence"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if isinstance(tables, str):
            _total(row, path, model, whole, limit, folder)
        else:
            slack = digits(tables) + 1e-9
            if whole.lower > slack or whole.upper < -slack:
                row.trouble.append(f"log Z is not 0 within {slack:.1e}")
            _posteriors(row, path, model, tables, limit, trials, networks, folder)
    return row


def _evidence(path: Path) -> Path | None:
    beside = path.with_name(path.name + ".evid")
    return beside if beside.exists() and len(beside.read_text().split()) > 1 else None


def _refer(row: Row, path: Path, whole: Any) -> None:
    """The value in NAME.PR, where there is one."""
    beside = path.with_name(path.name + ".PR")
    if not beside.exists():
        return
    known = float(tz.read(beside))
    off = 0.0 if whole.lower <= known <= whole.upper else min(
        abs(known - whole.lower), abs(known - whole.upper)
    )  # fmt: skip
    row.reference = _short(off)
    if off > REFERENCE * max(1.0, abs(known)):
        row.trouble.append("the reference is outside")


def _total(
    row: Row, path: Path, model: tz.FactorGraph, whole: Any, limit: float, folder: Path
) -> None:
    """log Z, or our interval, beside the first peer that has a value."""
    cases.save(model, folder / "model.npz")
    if path.suffix.lower() == ".cnf":
        tz.write(model, folder / "model.cnf")
    for label, module, engine in CLAUSES if path.suffix.lower() == ".cnf" else TABLES:
        answer = _asked(module, engine, folder, limit)
        if "failure" in answer:
            continue
        row.peer, row.theirs, value = label, answer["seconds"], answer["value"]
        slack = AGREE * max(1.0, abs(value))
        row.off = max(whole.lower - value, value - whole.upper, 0.0)
        if whole.is_exact:
            row.off = abs(whole.estimate - value)
        if row.off > slack:
            row.trouble.append("log Z differs")
        return


def _asked(module: str, engine: str, folder: Path, limit: float) -> dict[str, Any]:
    python = sys.executable if importlib.util.find_spec(module) else INTERPRETER
    return runner.run(python, engine, folder, seconds=limit, memory=MEMORY)


def _posteriors(
    row: Row, path: Path, model: tz.FactorGraph, tables: list[Cpt], limit: float, trials: int,
    networks: Peers, folder: Path,
) -> None:  # fmt: skip
    naming = model.naming
    observed = list(evidence_sets(tables, trials))
    names = [naming.label(v) for v in range(model.n_variables)]
    states = [list(naming.state_labels(v)) for v in range(model.n_variables)]
    asked = {
        "source": str(path.resolve()), "names": names, "states": states,
        "evidence": [sorted(seen.items()) for seen in observed],
    }  # fmt: skip
    cases.save(model, folder / "model.npz")
    (folder / "asked.json").write_text(json.dumps(asked))
    for label, module, engine in networks:
        answer = _asked(module, engine, folder, limit)
        if "failure" not in answer:
            row.peer, row.theirs = f"{label}{answer['note']}", answer["seconds"]
            break
    for k, seen in enumerate(observed):
        start = time.process_time()
        result = tz.log_partition(model.with_evidence(seen), time_limit=limit, seed=0)
        row.ours += time.process_time() - start
        if row.peer != "-":
            _compare(row, answer["found"][k], result, names, states)
    if row.marginals > AGREE:
        row.trouble.append("marginals differ")
    if row.off > max(AGREE, SINGLE * len(tables)):
        row.trouble.append("P(evidence) differs")


def _compare(
    row: Row, theirs: dict[str, Any], result: Any, names: list[str], states: list[list[str]]
) -> None:
    if theirs["log_p"] is not None:
        row.off = float(np.fmax(row.off, abs(result.estimate - theirs["log_p"])))
    for name, labels, vector in zip(names, states, result.marginals, strict=True):
        known = theirs["posterior"].get(name)
        if known is None:
            continue
        if not set(known) <= set(labels):
            row.trouble.append(f"states of {name!r}: {list(known)[:4]}")
            return
        off = max(abs(p - known.get(s, 0.0)) for s, p in zip(labels, vector, strict=True))
        row.marginals = float(np.fmax(row.marginals, off))


def digits(tables: list[Cpt]) -> float:
    """How far log Z may be from 0: each column's sum is a factor, and Z a mean of products."""
    return math.fsum(float(np.abs(np.log(table.sum(axis=0))).max()) for _, table in tables)


def drawn(tables: list[Cpt], rng: np.random.Generator) -> dict[int, int]:
    """A state of the whole network, parents first: its evidence has positive probability."""
    by_child = {scope[0]: (scope, table) for scope, table in tables}
    state: dict[int, int] = {}
    for v in TopologicalSorter({v: scope[1:] for v, (scope, _) in by_child.items()}).static_order():
        scope, table = by_child[v]
        column = table[(slice(None), *(state[p] for p in scope[1:]))]
        state[v] = int(rng.choice(len(column), p=column / column.sum()))
    return state


def evidence_sets(tables: list[Cpt], trials: int) -> Iterator[dict[int, int]]:
    rng = np.random.default_rng(0)
    for _ in range(trials):
        state = drawn(tables, rng)
        chosen = rng.choice(len(state), size=min(OBSERVED, len(state) // 2), replace=False)
        yield {int(v): state[int(v)] for v in chosen}


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0e}"
