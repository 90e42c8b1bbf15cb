"""Bounds that add up parts of a model's states: a tree over subsets of variables' states.

The evidence is a tree of `Part`s. An inner one says which states of which variable make up its
first side; the judge derives every part's domains from these alone, starting at all states that
agree with the evidence, so no part can be missing, counted twice or larger than it is. After each
cut states that some table gives weight zero, whatever the states left of its other variables, are
dropped (generalised arc consistency): they weigh nothing, and what is left at the end is the same
in whatever order it is found, so maker and judge need not exchange it.

The proofs of a part are about `within(model, domains)`: the model's tables at the states left, one
factor for each, variables with a single state sliced away. Nothing in it is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tightz.judge.elimination import second_log_z
from tightz.judge.parts import added, joined
from tightz.judge.verdict import UNIT, Evidence, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph

Domains = list[NDArray[np.int64]]
"""The states left of each variable, ascending."""

NOTHING = Verdict(-math.inf, -math.inf)


@dataclass(frozen=True, eq=False)
class Part:
    """A part's proofs and, where it was cut, the states of `variable` on its first side."""

    proofs: tuple[Evidence, ...]
    variable: int = -1
    states: tuple[int, ...] = ()
    sides: tuple[Part, Part] | None = None


@dataclass(frozen=True)
class Summed:
    """log Z by elimination, which the judge does itself in tables of `max_entries` at most."""

    max_entries: int

    def verdict(self, model: FactorGraph) -> Verdict:
        found = second_log_z(model, self.max_entries)
        if found is None:
            raise RefutedError(f"a sum needs tables of more than {self.max_entries} entries")
        value, rounding = found
        if value == -math.inf:
            return NOTHING
        rounding += 2.0 * UNIT * abs(value)
        return Verdict(value - rounding, value + rounding, rounding)


class _Kept(NamedTuple):
    """A verdict and the domains it is about."""

    key: int
    verdict: Verdict


class DomainCourt:
    """Judges the parts of one tree, which may grow, each once."""

    def __init__(self, model: FactorGraph) -> None:
        self.model = model
        self._parts: WeakKeyDictionary[Part, _Kept] = WeakKeyDictionary()
        self._hard = [f for f, (_, table) in enumerate(model.factors) if np.isneginf(table).any()]
        self._of: list[list[int]] = [[] for _ in range(model.n_variables)]  # of each variable
        for f in self._hard:
            for v in model.factor(f)[0]:
                self._of[v].append(f)

    def verdict(self, root: Part) -> Verdict:
        """What the tree proves about log Z: sides before what they are sides of, by a stack."""
        everything = self.consistent(whole(self.model), self._hard)
        stack: list[tuple[Part, Domains | None, bool]] = [(root, everything, False)]
        while stack:
            part, domains, sides_done = stack.pop()
            key = _key(domains)
            if self._known(part, key) is not None:
                continue
            if domains is None:
                self._parts[part] = _Kept(key, NOTHING)
                continue
            if part.sides is None:
                self._parts[part] = _Kept(key, self._proven(part, domains))
                continue
            sides = [self._side(domains, part, first) for first in (True, False)]
            if not sides_done:
                stack.append((part, domains, True))
                stack += [(s, d, False) for s, d in zip(part.sides, sides, strict=True)]
                continue
            found = [self._known(s, _key(d)) for s, d in zip(part.sides, sides, strict=True)]
            # Verdicts are kept with the domains they are about: one object as both sides has been
            # judged on one of the two only.
            if found[0] is None or found[1] is None:
                raise RefutedError("one part stands for both sides of a cut: it is counted twice")
            own = [] if not part.proofs else [self._proven(part, domains)]
            self._parts[part] = _Kept(key, joined([added(found[0], found[1]), *own]))
        answer = self._known(root, _key(everything))
        assert answer is not None
        return answer

    def _side(self, domains: Domains, part: Part, first: bool) -> Domains | None:
        """One side of a cut: both are proper parts of the variable's states."""
        v = part.variable
        if not 0 <= v < len(domains):
            raise RefutedError(f"a part is cut at variable {v}; the model has no such variable")
        inside = np.isin(domains[v], part.states)
        if inside.all() or not inside.any() or not set(part.states) <= set(domains[v].tolist()):
            raise RefutedError(f"{part.states} are no proper part of the states of variable {v}")
        cut = list(domains)
        cut[v] = domains[v][inside if first else ~inside]
        return self.consistent(cut, self._of[v])

    def consistent(self, domains: Domains, factors: Iterable[int]) -> Domains | None:
        """Domains without the states that tables rule out; None where a variable has none left.

        factors: tables with zeros that may rule out something new.
        """
        waiting = dict.fromkeys(factors)
        while waiting:
            f = next(iter(waiting))
            del waiting[f]
            scope, table = self.model.factor(f)
            allowed = ~np.isneginf(table[np.ix_(*(domains[v] for v in scope))])
            for axis, v in enumerate(scope):
                others = tuple(a for a in range(allowed.ndim) if a != axis)
                supported = allowed.any(axis=others)
                if supported.all():
                    continue
                if not supported.any():
                    return None
                domains[v] = domains[v][supported]
                waiting.update(dict.fromkeys(self._of[v]))
        return None if _zero_constant(self.model) else domains

    def _proven(self, part: Part, domains: Domains) -> Verdict:
        if not part.proofs:
            return Verdict()
        graph = within(self.model, domains)
        return joined([proof.verdict(graph) for proof in part.proofs])

    def _known(self, part: Part, key: int) -> Verdict | None:
        found = self._parts.get(part)
        return found.verdict if found is not None and found.key == key else None


@dataclass(frozen=True, eq=False)
class DomainsEvidence:
    """A tree of parts as it stood, and the court that knows it."""

    court: DomainCourt
    root: Part

    def verdict(self, model: FactorGraph) -> Verdict:
        """What the tree proves about log Z of `model`."""
        if model.digest != self.court.model.digest:
            raise RefutedError("a tree of states is about another model")
        return self.court.verdict(self.root)


def whole(model: FactorGraph) -> Domains:
    """All states that agree with the evidence."""
    seen = model.evidence
    return [
        np.array([seen[v]]) if v in seen else np.arange(d)
        for v, d in enumerate(model.cardinalities.tolist())
    ]


def within(model: FactorGraph, domains: Sequence[NDArray[np.int64]]) -> FactorGraph:
    """The model at the states left, over the variables that have more than one."""
    kept = [v for v, states in enumerate(domains) if states.size > 1]
    number = {v: k for k, v in enumerate(kept)}
    factors = []
    for scope, table in model.factors:
        rest = [v for v in scope if v in number]
        cut = table[np.ix_(*(domains[v] for v in scope))] if scope else table
        factors.append(([number[v] for v in rest], cut.reshape([domains[v].size for v in rest])))
    return FactorGraph([domains[v].size for v in kept], factors)


def _zero_constant(model: FactorGraph) -> bool:
    """Whether a table without a variable is zero."""
    alone = model.table_ptr[:-1][np.diff(model.scope_ptr) == 0]
    return bool(np.isneginf(model.log_tables[alone]).any())


def _key(domains: Domains | None) -> int:
    """Tells parts apart: one recorded in one place is not taken for another's."""
    if domains is None:
        return 0
    return hash(tuple(states.tobytes() for states in domains))
