"""A model as arrays, for any library: what the peers' interpreter reads. Needs numpy alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

PROBABILITIES = 1e-5
"""A table whose sums over one variable are this close is its conditional probability."""


class Refused(Exception):
    """The engine does not do this model, and says so."""


class Model(NamedTuple):
    """Tables with largest entry 1, the sum of the logs taken out, and evidence."""

    cards: list[int]
    scopes: list[tuple[int, ...]]
    tables: list[np.ndarray]
    log_scale: float
    evidence: dict[int, int]

    def conditioned(self) -> tuple[list[tuple[int, ...]], list[np.ndarray], float]:
        """Scopes and tables with the evidence applied, and the log of what they leave out.

        A free variable that no factor holds counts there too.
        """
        scopes, tables, scale = [], [], self.log_scale
        for scope, table in zip(self.scopes, self.tables, strict=True):
            part = table[tuple(self.evidence.get(v, slice(None)) for v in scope)]
            if part.ndim == 0:
                scale += math.log(part) if part > 0.0 else -math.inf
                continue
            scopes.append(tuple(v for v in scope if v not in self.evidence))
            tables.append(np.ascontiguousarray(part))
        held = {v for scope in scopes for v in scope}
        free = (c for v, c in enumerate(self.cards) if v not in held and v not in self.evidence)
        return scopes, tables, scale + math.fsum(map(math.log, free))

    def log_weight(self, state: list[int]) -> float:
        """log p~ of one state; -inf where it contradicts the evidence."""
        if any(state[v] != s for v, s in self.evidence.items()):
            return -math.inf
        with np.errstate(divide="ignore"):
            logs = [
                float(np.log(table[tuple(state[v] for v in scope)]))
                for scope, table in zip(self.scopes, self.tables, strict=True)
            ]
        return math.fsum([self.log_scale, *logs]) if -math.inf not in logs else -math.inf


class Budget(NamedTuple):
    """Seconds for methods that stop when told: of CPU time, and what these take on the wall clock.

    The two are apart where other processes have the cores as well.
    """

    cpu: float
    wall: float


class Case(NamedTuple):
    """A folder with model.npz, and where there are any model.uai, .bif, .cnf and rbm.npz."""

    folder: Path

    def model(self) -> Model:
        return load(self.folder / "model.npz")

    def file(self, ending: str) -> str:
        path = self.folder / f"model.{ending}"
        if not path.exists():
            raise Refused(f"needs a .{ending} file")
        return str(path)


def load(path: str | Path) -> Model:
    with np.load(path) as file:
        cards, ends, members = (file[k].tolist() for k in ("cards", "scope_ptr", "scope_vars"))
        starts, logs, evidence = file["table_ptr"].tolist(), file["log_tables"], file["evidence"]
    scopes, tables, tops = [], [], []
    for f in range(len(ends) - 1):
        scope = tuple(members[ends[f] : ends[f + 1]])
        log = logs[starts[f] : starts[f + 1]].reshape([cards[v] for v in scope])
        top = float(log.max())
        tops.append(top if math.isfinite(top) else 0.0)
        scopes.append(scope)
        tables.append(np.exp(log - tops[-1]))
    return Model(cards, scopes, tables, math.fsum(tops), dict(evidence.tolist()))


def conditionals(model: Model, tolerance: float = PROBABILITIES) -> dict[int, int]:
    """Variable -> the factor that is its conditional probability; acyclic, none for some.

    Files list a table's own variable last, or first: whichever explains more tables.
    """
    ways = [_conditionals(model, tolerance, step) for step in (-1, 1)]
    return max(ways, key=len)


def _conditionals(model: Model, tolerance: float, step: int) -> dict[int, int]:
    found: dict[int, int] = {}
    parents: dict[int, set[int]] = {}

    def above(v: int) -> set[int]:
        seen, stack = {v}, [v]
        while stack:
            for u in parents.get(stack.pop(), ()):
                if u not in seen:
                    seen.add(u)
                    stack.append(u)
        return seen

    for f, (scope, table) in enumerate(zip(model.scopes, model.tables, strict=True)):
        for k in range(len(scope))[::step]:
            sums, v = table.sum(axis=k), scope[k]
            if v in found or sums.max() - sums.min() > tolerance * sums.max():
                continue
            others = set(scope) - {v}
            if not any(v in above(u) for u in others):
                found[v], parents[v] = f, others
                break
    return found


def ising(model: Model) -> tuple[np.ndarray, dict[tuple[int, int], float], float]:
    """(fields, couplings, constant) of log p~ over spins -1, +1; state 1 is the spin +1."""
    fields, couplings = np.zeros(len(model.cards)), {}
    constant = model.log_scale
    if model.evidence or any(c != 2 for c in model.cards):
        raise Refused("takes binary variables, no evidence")
    for scope, table in zip(model.scopes, model.tables, strict=True):
        if len(scope) > 2 or table.min() <= 0.0:
            raise Refused("takes positive tables over pairs")
        log = np.log(table)
        constant += float(log.mean())
        if len(scope) == 1:
            fields[scope[0]] += (log[1] - log[0]) / 2
        elif len(scope) == 2:
            rows, columns = log.mean(axis=1), log.mean(axis=0)
            fields[scope[0]] += (rows[1] - rows[0]) / 2
            fields[scope[1]] += (columns[1] - columns[0]) / 2
            pair = (min(scope), max(scope))
            even = (log[0, 0] + log[1, 1] - log[0, 1] - log[1, 0]) / 4
            couplings[pair] = couplings.get(pair, 0.0) + float(even)
    return fields, couplings, constant
