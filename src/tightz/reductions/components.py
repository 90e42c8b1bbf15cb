"""Parts of a model that share no table, the small ones solved by themselves.

log Z of a model is the sum over its components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact import exact
from tightz.elimination.graph import joined, scopes_of
from tightz.models.ends import Ends, around
from tightz.models.factor_graph import FactorGraph
from tightz.models.selection import selected
from tightz.reductions.reduction import Vectors

_MAX_COMPONENTS = 1000
"""Small components solved apart; more of them are left in the model."""


@dataclass(frozen=True, eq=False)
class Component:
    """One part solved exactly: its variables, their marginals, and its joint distribution."""

    variables: NDArray[np.int64]
    marginals: list[NDArray[np.float64]]
    model: FactorGraph


@dataclass(frozen=True, eq=False)
class Components:
    """`reduced` is the model without the parts that were solved, their log Z a constant."""

    model: FactorGraph
    reduced: FactorGraph
    kept: NDArray[np.int64]
    solved: list[Component]
    rounding: float = 0.0

    def lift_marginals(self, marginals: Sequence[NDArray[np.float64]]) -> Vectors:
        """Marginals of the reduced model's variables as marginals of the model's."""
        out = [np.ones(1)] * self.model.n_variables
        parts = [(self.kept, marginals), *((c.variables, c.marginals) for c in self.solved)]
        for variables, vectors in parts:
            for v, marginal in zip(variables.tolist(), vectors, strict=True):
                out[v] = np.asarray(marginal)
        return out

    def lift_ends(self, ends: Ends) -> Ends:
        out: Ends = [np.ones((1, 2))] * self.model.n_variables
        for v, found in zip(self.kept.tolist(), ends, strict=True):
            out[v] = found
        for part in self.solved:
            for v, marginal in zip(part.variables.tolist(), part.marginals, strict=True):
                out[v] = around(np.asarray(marginal), 8.0 * self.rounding)
        return out

    def lift_states(self, states: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Rows of states of the reduced model as rows of the model's; solved parts are drawn."""
        out = np.zeros((len(states), self.model.n_variables), dtype=np.int64)
        out[:, self.kept] = states
        for part in self.solved:
            cards = tuple(part.model.cardinalities.tolist())
            every = np.stack(np.unravel_index(np.arange(math.prod(cards)), cards), axis=1)
            logs = part.model.log_weight(every)
            weights = np.exp(logs - logs.max())
            drawn = rng.choice(len(every), size=len(out), p=weights / weights.sum())
            out[:, part.variables] = every[drawn]
        return out


def solve_components(model: FactorGraph, log2_size: float) -> Components:
    """Solve the small components of a model that has several; no evidence allowed."""
    n = model.n_variables
    label = joined(scopes_of(model))
    count = int(label.max(initial=-1)) + 1
    sizes = np.bincount(label, np.log2(model.cardinalities), minlength=count)
    small = np.flatnonzero(sizes <= log2_size)[:_MAX_COMPONENTS]
    if count < 2 or not small.size:
        return Components(model, model, np.arange(n), [])
    chosen = np.isin(label, small)
    kept, taken = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    inside = np.zeros(model.n_factors, dtype=bool)  # a constant is no component's
    named = model.arities > 0
    inside[named] = chosen[model.scope_vars[model.scope_ptr[:-1][named]]]
    parts = selected(model, taken, inside)
    home = label[taken][parts.scope_vars[parts.scope_ptr[:-1]]]
    rest: list[tuple[tuple[int, ...], NDArray[np.float64]]] = []
    solved = []
    rounding = 0.0
    for c in small.tolist():
        members = np.flatnonzero(label[taken] == c)
        part = selected(parts, members, home == c)
        result = exact(part)
        rest.append(((), np.array(result.log_z)))
        rounding += result.rounding
        solved.append(Component(taken[members], result.marginals, part))
    reduced = selected(model, kept, ~inside, rest)
    return Components(model, reduced, kept, solved, rounding)
