"""Every network in a folder beside a peer: `python -m benchmarks networks [FOLDER or FILE ...]`.

Reads each .bif, .xml, .uai and .cnf file, by default those of $TIGHTZ_DATA/bnlearn. A Bayesian
network without evidence must have log Z = 0, as far as the digits of its tables allow; under random
evidence, drawn with the network itself, log P(evidence) and all posterior marginals are compared by
the names of variables and states with pyAgrum's LazyPropagation (which reads the file itself), or
pgmpy's variable elimination where pyAgrum is not installed. The last lines say what disagreed, and
the exit status is then 1.

Environment: TIGHTZ_NETWORK_SECONDS per model (60), TIGHTZ_NETWORK_TRIALS sets of evidence (3),
TIGHTZ_NETWORK_PEER pyagrum or pgmpy.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

import tightz as tz
from tightz.models.formats.bif_writer import Cpt, network_tables

AGREE = 1e-6
COLUMNS = 0.01
"""Columns of tables sum to 1 within this, as the readers ask."""

MOST_ENTRIES = 2**22
"""Of a clique of the peer's junction tree."""

SINGLE = 6e-8
"""pyAgrum reads numbers in single precision: each table may move log P(evidence) by this much."""

ENDINGS = (".bif", ".xml", ".xmlbif", ".uai", ".cnf")
OBSERVED = 4
"""Variables observed in each set of evidence, at most."""

Posterior = dict[str, dict[str, float]]


@dataclass
class Row:
    """One file's outcome; `trouble` lists what is wrong."""

    name: str
    variables: int = 0
    entries: int = 0
    read: float = math.nan
    log_z: str = "-"
    log_p: float = math.nan
    marginals: float = math.nan
    ours: float = 0.0
    theirs: float = 0.0
    peer: str = "-"
    trouble: list[str] = field(default_factory=list)

    @property
    def cells(self) -> list[str]:
        return [
            self.name, str(self.variables), str(self.entries), f"{self.read:.2f}", self.log_z,
            _short(self.log_p), _short(self.marginals), f"{self.ours:.2f}",
            f"{self.theirs:.2f}" if self.peer != "-" else "-", self.peer,
            "; ".join(self.trouble) or "agrees" if self.peer != "-" else "; ".join(self.trouble),
        ]  # fmt: skip


HEAD = (
    "file", "variables", "entries", "read s", "log Z", "log P(e) off", "marginals off", "tightz s",
    "peer s", "peer", "",
)  # fmt: skip


class Agrum:
    """pyAgrum, with the network as it reads the file; from our tables where it cannot."""

    def __init__(self, path: Path, model: tz.FactorGraph, tables: list[Cpt]) -> None:
        import pyagrum as gum

        self.gum, self.label = gum, "pyAgrum"
        try:
            # A .uai file has no names, and pyAgrum takes XMLBIF by another ending.
            if path.suffix != ".bif":
                raise OSError
            self.network = gum.loadBN(str(path))
            if set(self.network.names()) != set(model.names or ()):
                raise OSError
        except Exception:
            self.label = "pyAgrum (our tables)"
            self.network = _in_agrum(gum, model, tables)

    def posterior(self, evidence: dict[str, str]) -> tuple[float, Posterior]:
        """All variables by one junction tree; where that is too large, one by one."""
        names = sorted(self.network.names())
        engine = self._engine(evidence, ())
        log_p = math.log(engine.evidenceProbability()) if self._fits(engine) else math.nan
        engine = self._engine(evidence, names)
        if self._fits(engine):
            return log_p, {name: self._of(engine, name) for name in names}
        found: Posterior = {}
        for name in names:
            engine = self._engine(evidence, (name,))
            if self._fits(engine):
                found[name] = self._of(engine, name)
        self.label = f"pyAgrum ({len(found)} variables)"
        return log_p, found

    def _engine(self, evidence: dict[str, str], targets: Iterable[str]) -> Any:
        engine = self.gum.LazyPropagation(self.network)
        engine.eraseAllTargets()
        for name in targets:
            engine.addTarget(name)
        engine.setEvidence(evidence)
        return engine

    def _fits(self, engine: Any) -> bool:
        """Whether its cliques are small, so that the peer does not take all memory."""
        tree, size = engine.junctionTree(), self.network.variable
        cliques = [tree.clique(c) for c in tree.nodes()]
        return all(math.prod(size(v).domainSize() for v in c) <= MOST_ENTRIES for c in cliques)

    def _of(self, engine: Any, name: str) -> dict[str, float]:
        values = engine.posterior(name)[:].tolist()
        return dict(zip(self.network.variable(name).labels(), values, strict=True))


def _in_agrum(gum: Any, model: tz.FactorGraph, tables: list[Cpt]) -> Any:
    network, naming = gum.BayesNet(), model.naming
    for v in range(model.n_variables):
        labels = list(naming.state_labels(v))
        network.add(gum.LabelizedVariable(naming.label(v), naming.label(v), labels))
    for (child, *parents), _ in tables:
        for parent in parents:
            network.addArc(naming.label(parent), naming.label(child))
    for scope, table in tables:
        cpt = network.cpt(naming.label(scope[0]))
        place = [naming.label(v) for v in scope]
        axes = [place.index(name) for name in reversed(cpt.names)]
        cpt[:] = np.ascontiguousarray(table.transpose(axes))
    return network


class Pgmpy:
    """pgmpy, with our tables: its own readers are slow."""

    label = "pgmpy (our tables)"

    def __init__(self, path: Path, model: tz.FactorGraph, tables: list[Cpt]) -> None:
        self.network = tz.to_pgmpy(model)

    def posterior(self, evidence: dict[str, str]) -> tuple[float, Posterior]:
        from pgmpy.inference import VariableElimination

        engine, found = VariableElimination(self.network), {}
        for name in self.network.nodes():
            if name in evidence:
                found[name] = {evidence[name]: 1.0}
                continue
            table = engine.query([name], evidence=evidence, show_progress=False)
            found[name] = dict(zip(table.state_names[name], table.values.tolist(), strict=True))
        return math.nan, found


def peer_class() -> Any:
    wanted = os.environ.get("TIGHTZ_NETWORK_PEER", "")
    for module, peer in (("pyagrum", Agrum), ("pgmpy", Pgmpy)):
        if wanted in ("", module) and importlib.util.find_spec(module):
            return peer
    return None


def files(arguments: list[str]) -> list[Path]:
    if not arguments:
        arguments = [str(Path(os.environ.get("TIGHTZ_DATA", "data")) / "bnlearn")]
    found: list[Path] = []
    for name in arguments:
        path = Path(name)
        if not path.exists():
            sys.exit(f"{name} does not exist; expected a folder of networks, or a file")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [p for p in inside if p.suffix.lower() in ENDINGS]
    return found


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


def run(path: Path, limit: float, trials: int, peer: Any) -> Row:
    row = Row(path.name)
    start = time.process_time()
    try:
        model = tz.read(path)
    except tz.TightzError as error:
        row.trouble.append(str(error))
        return row
    row.read = time.process_time() - start
    row.variables, row.entries = model.n_variables, model.log_tables.size
    start = time.process_time()
    whole = tz.log_partition(model, time_limit=limit, marginals=False, seed=0)
    row.ours = time.process_time() - start
    row.log_z = (
        f"{whole.estimate:.2e}" if whole.is_exact else f"[{whole.lower:.4g}, {whole.upper:.4g}]"
    )
    tables = network_tables(model, slack=COLUMNS)
    if isinstance(tables, str):
        row.log_z = f"{whole.estimate:.6f}" if whole.is_exact else row.log_z
        return row
    slack = digits(tables) + 1e-9
    if whole.lower > slack or whole.upper < -slack:
        row.trouble.append(f"log Z is not 0 within {slack:.1e}")
    if peer is not None:
        compare(row, path, model, tables, limit, trials, peer)
    return row


def compare(
    row: Row, path: Path, model: tz.FactorGraph, tables: list[Cpt], limit: float, trials: int,
    peer: Any,
) -> None:  # fmt: skip
    naming = model.naming
    other = peer(path, model, tables)
    row.marginals = 0.0
    for evidence in evidence_sets(tables, trials):
        start = time.process_time()
        result = tz.log_partition(model.with_evidence(evidence), time_limit=limit, seed=0)
        row.ours += time.process_time() - start
        named = {naming.label(v): naming.state_labels(v)[s] for v, s in evidence.items()}
        start = time.process_time()
        log_p, posterior = other.posterior(named)
        row.theirs += time.process_time() - start
        row.peer = other.label
        if not math.isnan(log_p):
            row.log_p = np.fmax(row.log_p, abs(result.estimate - log_p))
        for v, vector in enumerate(result.marginals):
            labels, theirs = naming.state_labels(v), posterior.get(naming.label(v))
            if theirs is None:
                continue
            if not set(theirs) <= set(labels):
                row.trouble.append(f"states of {naming.label(v)!r}: {list(theirs)[:4]}")
                return
            off = max(abs(p - theirs.get(s, 0.0)) for s, p in zip(labels, vector, strict=True))
            row.marginals = max(row.marginals, float(off))
    if row.marginals > AGREE:
        row.trouble.append("marginals differ")
    if row.log_p > max(AGREE, SINGLE * len(tables)):
        row.trouble.append("P(evidence) differs")


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0e}"


def main(*arguments: str) -> None:
    limit = float(os.environ.get("TIGHTZ_NETWORK_SECONDS", "60"))
    trials = int(os.environ.get("TIGHTZ_NETWORK_TRIALS", "3"))
    peer = peer_class()
    if peer is None:
        print("no peer to compare with: pip install pyagrum, or pgmpy")
    print("| " + " | ".join(HEAD) + " |")
    print("|" + " --- |" * len(HEAD), flush=True)
    rows = []
    for path in files(list(arguments)):
        rows.append(run(path, limit, trials, peer))
        print("| " + " | ".join(rows[-1].cells) + " |", flush=True)
    wrong = [row for row in rows if row.trouble]
    print(f"\n{len(rows)} files, {len(rows) - len(wrong)} without trouble")
    if wrong:
        sys.exit("trouble with " + ", ".join(row.name for row in wrong))
