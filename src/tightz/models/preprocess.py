"""What follows from zero potentials: impossible states dropped, forced variables taken out.

Generalised arc consistency on the tables (Mackworth, 1977; Mohr and Masini, 1988): a state of a
variable is impossible when some table gives it weight zero whatever the possible states of its
other variables. Dropping impossible states leaves Z and every other marginal as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False, repr=False)
class Simplified:
    """A model without evidence, impossible states and variables that have one state left.

    `reduced` has the same log Z as `model`. State k of its variable i is state `states[i][k]` of
    variable `variables[i]`; `fixed` holds the one state left to each of the other variables
    (-1: still a variable). A contradiction leaves no variables and one table, -inf.
    """

    model: FactorGraph
    reduced: FactorGraph
    variables: NDArray[np.int64]
    states: list[NDArray[np.int64]]
    fixed: NDArray[np.int64]

    @property
    def contradiction(self) -> bool:
        """Whether propagation alone shows that no state has weight."""
        return not self.reduced.n_variables and bool((self.reduced.log_tables == -np.inf).any())

    def lift_marginals(self, marginals: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Marginals of the reduced model's variables as marginals of the model's."""
        out = [np.zeros(int(c)) for c in self.model.cardinalities]
        for v, state in enumerate(self.fixed):
            if state >= 0:
                out[v][state] = 1.0
        for v, kept, marginal in zip(self.variables, self.states, marginals, strict=True):
            out[v][kept] = marginal
        return out

    def lift_states(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of states of the reduced model as rows of states of the model."""
        out: NDArray[np.int64] = np.tile(self.fixed, (len(states), 1))
        for i, (v, kept) in enumerate(zip(self.variables, self.states, strict=True)):
            out[:, v] = kept[states[:, i]]
        return out

    @cached_property
    def removed(self) -> int:
        """How many variables are forced or observed."""
        return self.model.n_variables - self.reduced.n_variables

    def __repr__(self) -> str:
        return f"Simplified({self.reduced!r}, {self.removed} variables taken out)"


def has_zeros(model: FactorGraph) -> bool:
    """Whether a table holds a zero potential."""
    return bool((model.log_tables == -np.inf).any())


def simplify(model: FactorGraph) -> Simplified:
    """Observe the evidence, propagate zeros to a fixed point, and drop what became impossible."""
    n = model.n_variables
    ptr = state_ptr(model.cardinalities)
    alive = possible_states(model)
    left = np.add.reduceat(alive, ptr[:-1]) if n else np.zeros(0, dtype=np.int64)
    # Tables without a variable are beyond propagation; one of them may be zero all the same.
    lone = model.log_tables[model.table_ptr[:-1][model.arities == 0]]
    fixed = np.full(n, -1, dtype=np.int64)
    if (left == 0).any() or (lone == -np.inf).any():
        nothing = FactorGraph([], [((), -np.inf)], name=model.name)
        fixed[:] = 0
        for v, state in model.evidence.items():
            fixed[v] = state
        return Simplified(model, nothing, np.zeros(0, dtype=np.int64), [], fixed)
    kept = [np.flatnonzero(alive[ptr[v] : ptr[v + 1]]) for v in range(n)]
    single = left == 1
    fixed[single] = [kept[v][0] for v in np.flatnonzero(single)]
    if not single.any() and alive.all():
        return Simplified(model, model, np.arange(n), kept, fixed)
    number = np.cumsum(~single) - 1
    factors = []
    for scope, table in model.factors:
        cut = table[np.ix_(*(kept[v] for v in scope))] if scope else table
        rest = [v for v in scope if not single[v]]
        factors.append(([int(number[v]) for v in rest], cut.reshape([left[v] for v in rest])))
    variables = np.flatnonzero(~single)
    reduced = FactorGraph(left[variables], factors, name=model.name)
    return Simplified(model, reduced, variables, [kept[v] for v in variables], fixed)


def state_ptr(cardinalities: NDArray) -> NDArray[np.int64]:
    """Where each variable's states begin in an array with one entry per (variable, state)."""
    return np.concatenate([[0], np.cumsum(cardinalities, dtype=np.int64)]).astype(np.int64)


def possible_states(model: FactorGraph) -> NDArray[np.bool_]:
    """Per (variable, state), whether arc consistency leaves it possible; evidence included."""
    ptr = state_ptr(model.cardinalities)
    alive = np.ones(int(ptr[-1]), dtype=np.bool_)
    for v, state in model.evidence.items():
        alive[ptr[v] : ptr[v + 1]] = False
        alive[ptr[v] + state] = True
    forbidden = model.log_tables == -np.inf
    if forbidden.any():
        changed = np.ones(model.n_variables, dtype=np.bool_)
        _propagate(
            ptr, model.scope_ptr, model.scope_vars, model.table_ptr, forbidden, alive, changed
        )
    return alive


@njit(cache=True, nogil=True)
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
    dead = 0  # axes whose digit is not alive
    for a in range(arity):
        if not alive[ptr[scope_vars[first + a]]]:
            dead += 1
    for e in range(table_ptr[f], table_ptr[f + 1]):
        if dead == 0 and not forbidden[e]:
            for a in range(arity):
                support[starts[a] + digits[a]] = True
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


@njit(cache=True, nogil=True)
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
