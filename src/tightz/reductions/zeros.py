"""What follows from zero potentials: impossible states, forced variables, tied variables.

Generalised arc consistency on the tables (Mackworth, 1977; Mohr and Masini, 1988): a state of a
variable is impossible when some table gives it weight zero whatever the possible states of its
other variables. Dropping impossible states leaves Z and every other marginal as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.models.ends import Ends
from tightz.models.factor_graph import FactorGraph
from tightz.models.selection import naming, selected
from tightz.runtime.kernels import inner, kernel


@dataclass(frozen=True, eq=False, repr=False)
class Simplified:
    """A model without evidence, impossible states, forced variables and tied variables.

    `reduced` has the same log Z as `model`. Variable v of the model is in state `fixed[v]`, or,
    where that is -1, in state `maps[v][x]` when variable `source[v]` of `reduced` is in state x.
    A contradiction leaves no variables and one table, -inf.
    """

    model: FactorGraph
    reduced: FactorGraph
    source: NDArray[np.int64]
    maps: list[NDArray[np.int64]]
    fixed: NDArray[np.int64]
    rounding: float = 0.0

    @property
    def contradiction(self) -> bool:
        """Whether propagation alone shows that no state has weight."""
        return not self.reduced.n_variables and bool((self.reduced.log_tables == -np.inf).any())

    def lift_marginals(self, marginals: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Marginals of the reduced model's variables as marginals of the model's."""
        out = [np.zeros(int(c)) for c in self.model.cardinalities]
        for v, state in enumerate(self.fixed):
            if state >= 0:
                out[v][state] = 1.0
            else:
                out[v][self.maps[v]] = marginals[self.source[v]]
        return out

    def lift_ends(self, ends: Ends) -> Ends:
        out = [np.zeros((int(c), 2)) for c in self.model.cardinalities]
        for v, state in enumerate(self.fixed):
            if state >= 0:
                out[v][state] = 1.0
            else:
                out[v][self.maps[v]] = ends[self.source[v]]
        return out

    def lift_states(
        self, states: NDArray[np.int64], rng: np.random.Generator | None = None
    ) -> NDArray[np.int64]:
        """Rows of states of the reduced model as rows of states of the model: nothing is drawn."""
        out: NDArray[np.int64] = np.tile(self.fixed, (len(states), 1))
        for v in np.flatnonzero(self.fixed < 0):
            out[:, v] = self.maps[v][states[:, self.source[v]]]
        return out

    @property
    def removed(self) -> int:
        """How many variables are observed, forced, or tied to another."""
        return self.model.n_variables - self.reduced.n_variables

    def __repr__(self) -> str:
        return f"Simplified({self.reduced!r}, {self.removed} variables taken out)"


def simplify(model: FactorGraph) -> Simplified:
    """Observe the evidence, propagate zeros, drop what is impossible, merge what is tied.

    Two variables are tied when a table over both allows each state of one with exactly one state
    of the other (equality, negation, a permutation). Repeated until nothing changes.
    """
    n = model.n_variables
    source = np.arange(n)
    fixed = np.full(n, -1, dtype=np.int64)
    every = {int(d): np.arange(int(d)) for d in np.unique(model.cardinalities)}
    maps = [every[d] for d in model.cardinalities.tolist()]
    current = model
    while True:
        kept = _kept_states(current)
        if kept is None:
            nothing = FactorGraph([], [((), -np.inf)], name=model.name)
            fixed[:] = 0
            fixed[list(model.evidence)] = list(model.evidence.values())
            return Simplified(model, nothing, source, maps, fixed)
        # Variables that lose nothing, by far the most, cost no step of their own.
        single = np.zeros(current.n_variables, dtype=bool)
        single[[u for u, states in kept.items() if states.size == 1]] = True
        number = np.cumsum(~single) - 1
        cut = np.zeros(current.n_variables, dtype=bool)
        cut[list(kept)] = True
        live = np.flatnonzero(fixed < 0)  # the source of a fixed variable is of an earlier round
        for v in live[cut[source[live]]].tolist():
            u = int(source[v])
            if single[u]:
                fixed[v] = maps[v][kept[u][0]]
            else:
                maps[v] = maps[v][kept[u]]
        live = live[fixed[live] < 0]
        source[live] = number[source[live]]
        current = _restricted(current, kept, cut, single)
        ties = _ties(current)
        if not ties:
            return Simplified(model, current, source, maps, fixed)
        current = _merged(current, ties)
        tied = np.zeros(current.n_variables, dtype=bool)
        tied[list(ties)] = True
        for v in live[tied[source[live]]].tolist():
            # the merged variable stays behind with one state
            source[v], states = ties[int(source[v])]
            maps[v] = maps[v][states]


def _kept_states(model: FactorGraph) -> dict[int, NDArray[np.int64]] | None:
    """The possible states of variables that lose some or have one; None for a contradiction."""
    cards = model.cardinalities
    ptr = state_ptr(cards)
    alive = possible_states(model)
    counts = np.add.reduceat(alive, ptr[:-1], dtype=np.int64) if cards.size else cards
    # Tables without a variable are beyond propagation; one of them may be zero all the same.
    lone = model.log_tables[model.table_ptr[:-1][model.arities == 0]]
    if (lone == -np.inf).any() or (counts == 0).any():
        return None
    fewer = np.flatnonzero((counts < cards) | (counts == 1)).tolist()
    return {v: np.flatnonzero(alive[ptr[v] : ptr[v + 1]]) for v in fewer}


def _restricted(
    model: FactorGraph,
    kept: dict[int, NDArray[np.int64]],
    cut: NDArray[np.bool_],
    single: NDArray[np.bool_],
) -> FactorGraph:
    """The model over the kept states; variables with a single one are sliced away."""
    if not kept:
        return model
    cards = model.cardinalities.astype(np.int64)
    cards[list(kept)] = [states.size for states in kept.values()]
    touched = naming(model, cut)
    sliced = []
    for f in np.flatnonzero(touched).tolist():
        scope, table = model.factor(f)
        for axis, v in enumerate(scope):
            if cut[v]:
                table = np.take(table, kept[v], axis=axis)
        rest = [v for v in scope if not single[v]]
        sliced.append((rest, table.reshape([int(cards[v]) for v in rest])))
    return selected(model, np.flatnonzero(~single), ~touched, sliced, cardinalities=cards)


def _ties(model: FactorGraph) -> dict[int, tuple[int, NDArray[np.int64]]]:
    """{j: (i, states)}: x_j = states[x_i]; no variable is in two ties of one round."""
    found: dict[int, tuple[int, NDArray[np.int64]]] = {}
    if not model.has_zeros:
        return found
    taken: set[int] = set()
    for _, scopes, tables in model.batches():
        if scopes.shape[1] != 2 or tables.shape[1] != tables.shape[2]:
            continue
        positive = tables > -np.inf
        # A table with one entry a row and a column is a permutation: one variable is a relabelling
        # of the other.
        tied = (positive.sum(axis=1) == 1).all(axis=1) & (positive.sum(axis=2) == 1).all(axis=1)
        for f in np.flatnonzero(tied):
            i, j = (int(v) for v in scopes[f])
            if not taken & {i, j}:
                taken |= {i, j}
                found[j] = (i, positive[f].argmax(axis=1))
    return found


def _merged(model: FactorGraph, ties: dict[int, tuple[int, NDArray[np.int64]]]) -> FactorGraph:
    """The model with x_j written as a function of x_i; j stays as a variable forced to state 0."""
    tied = np.zeros(model.n_variables, dtype=bool)
    tied[list(ties)] = True
    touched = naming(model, tied)
    factors: list[tuple[list[int], NDArray[np.float64]]] = []
    for f in np.flatnonzero(touched).tolist():
        scope, table = model.factor(f)
        named = list(scope)
        for j in [v for v in scope if v in ties]:
            i, states = ties[j]
            axis = named.index(j)
            table = np.take(table, states, axis=axis)
            named[axis] = i
            # The factor named both: only its diagonal is consistent with the tie.
            if named.count(i) == 2:
                first, second = (k for k, v in enumerate(named) if v == i)
                table = np.moveaxis(np.diagonal(table, axis1=first, axis2=second), -1, first)
                del named[second]
        factors.append((named, table))
    for j in ties:
        only = np.full(int(model.cardinalities[j]), -np.inf)
        only[0] = 0.0
        factors.append(([j], only))
    return selected(model, np.arange(model.n_variables), ~touched, factors)


def state_ptr(cardinalities: NDArray) -> NDArray[np.int64]:
    """Where each variable's states begin in an array with one entry per (variable, state)."""
    return np.concatenate([[0], np.cumsum(cardinalities, dtype=np.int64)]).astype(np.int64)


def possible_states(
    model: FactorGraph, among: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Per (variable, state), whether arc consistency leaves it possible; evidence included.

    `among`: those that are possible at all; every one by default.
    """
    ptr = state_ptr(model.cardinalities)
    alive = np.ones(int(ptr[-1]), dtype=np.bool_) if among is None else among.copy()
    for v, state in model.evidence.items():
        seen = alive[ptr[v] + state]
        alive[ptr[v] : ptr[v + 1]] = False
        alive[ptr[v] + state] = seen
    forbidden = model.log_tables == -np.inf
    if forbidden.any():
        changed = np.ones(model.n_variables, dtype=np.bool_)
        _propagate(
            ptr, model.scope_ptr, model.scope_vars, model.table_ptr, forbidden, alive, changed
        )
    return alive


@inner
def supported_states(ptr, scope_ptr, scope_vars, table_ptr, forbidden, alive, f, support):  # type: ignore[no-untyped-def]
    """Mark in `support` (flat over the scope's states) what factor f allows; alive states only."""
    first, arity = scope_ptr[f], scope_ptr[f + 1] - scope_ptr[f]
    starts = np.empty(arity, dtype=np.int64)
    sizes = np.empty(arity, dtype=np.int64)
    digits = np.zeros(arity, dtype=np.int64)
    total = 0
    for a in range(arity):
        v = scope_vars[first + a]
        starts[a] = total
        sizes[a] = ptr[v + 1] - ptr[v]
        total += sizes[a]
    for k in range(total):
        support[k] = False
    # Entries are visited in table order by an odometer; `dead` counts axes that stand on a dead
    # state, so an entry is skipped without looking at its axes again.
    dead = 0  # axes whose digit is not alive
    for a in range(arity):
        if not alive[ptr[scope_vars[first + a]]]:
            dead += 1
    for e in range(table_ptr[f], table_ptr[f + 1]):
        if dead == 0 and not forbidden[e]:
            for a in range(arity):
                support[starts[a] + digits[a]] = True
        # The last digit turns, and carries: about one axis per entry is touched on average.
        for a in range(arity - 1, -1, -1):
            base = ptr[scope_vars[first + a]]
            if not alive[base + digits[a]]:
                dead -= 1
            digits[a] += 1
            carry = digits[a] == sizes[a]
            if carry:
                digits[a] = 0
            if not alive[base + digits[a]]:
                dead += 1
            if not carry:
                break
    return total


@kernel
def _propagate(ptr, scope_ptr, scope_vars, table_ptr, forbidden, alive, changed):  # type: ignore[no-untyped-def]
    """Sweep the factors that have zeros until no state is dropped; `changed` flags variables."""
    count = scope_ptr.size - 1
    hard = np.zeros(count, dtype=np.bool_)
    widest = 1
    for f in range(count):
        for e in range(table_ptr[f], table_ptr[f + 1]):
            if forbidden[e]:
                hard[f] = True
                break
        width = 0
        for k in range(scope_ptr[f], scope_ptr[f + 1]):
            width += ptr[scope_vars[k] + 1] - ptr[scope_vars[k]]
        widest = max(widest, width)
    support = np.zeros(widest, dtype=np.bool_)
    again = True
    while again:
        again = False
        # Only factors of a variable that lost a state need a second look; states die and never
        # return, so this ends after at most as many rounds as there are states.
        now = changed.copy()
        changed[:] = False
        for f in range(count):
            if not hard[f]:
                continue
            touched = False
            for k in range(scope_ptr[f], scope_ptr[f + 1]):
                if now[scope_vars[k]] or changed[scope_vars[k]]:
                    touched = True
            if not touched:
                continue
            supported_states(ptr, scope_ptr, scope_vars, table_ptr, forbidden, alive, f, support)
            at = 0
            for k in range(scope_ptr[f], scope_ptr[f + 1]):
                v = scope_vars[k]
                for s in range(ptr[v], ptr[v + 1]):
                    if alive[s] and not support[at]:
                        alive[s] = False
                        changed[v] = True
                        again = True
                    at += 1
