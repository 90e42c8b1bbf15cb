"""Variables with at most one neighbour, summed out exactly before any method runs.

Summing a leaf v out of its tables leaves a table on its neighbour u. Z is unchanged, and
p(v | u) gives v back: its marginal is p(v | u) times the marginal of u. Repeated, this takes
whole trees away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Leaf:
    """One variable summed out: `conditional` (states of v, states of u), or (states, 1) alone."""

    variable: int
    neighbour: int
    conditional: NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Leaves:
    """`reduced` has the same log Z as `model` over the variables `kept`."""

    model: FactorGraph
    reduced: FactorGraph
    kept: NDArray[np.int64]
    leaves: list[Leaf]

    def lift_marginals(self, marginals: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Marginals of the reduced model's variables as marginals of the model's."""
        out = [np.ones(1)] * self.model.n_variables
        for v, marginal in zip(self.kept.tolist(), marginals, strict=True):
            out[v] = np.asarray(marginal)
        for leaf in reversed(self.leaves):
            given = out[leaf.neighbour] if leaf.neighbour >= 0 else np.ones(1)
            out[leaf.variable] = leaf.conditional @ given
        return out

    def lift_states(self, states: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Rows of states of the reduced model as the model's; leaves are drawn given the rest."""
        out = np.zeros((len(states), self.model.n_variables), dtype=np.int64)
        out[:, self.kept] = states
        for leaf in reversed(self.leaves):
            given = out[:, leaf.neighbour] if leaf.neighbour >= 0 else np.zeros(len(out), np.int64)
            steps = np.cumsum(leaf.conditional, axis=0)[:, given]
            drawn = (rng.random(len(out)) * steps[-1] >= steps).sum(axis=0)
            out[:, leaf.variable] = np.minimum(drawn, len(steps) - 1)
        return out

    def __repr__(self) -> str:
        return f"Leaves({self.reduced!r}, {len(self.leaves)} variables summed out)"


def sum_out_leaves(model: FactorGraph) -> Leaves:
    """Sum out variables with at most one neighbour until none is left. No evidence allowed."""
    order = _peel(model)
    if not order:
        return Leaves(model, model, np.arange(model.n_variables), [])
    leaving = np.zeros(model.n_variables, dtype=bool)
    leaving[[v for v, _ in order]] = True
    own: dict[int, NDArray[np.float64]] = {}
    shared: dict[tuple[int, int], NDArray[np.float64]] = {}
    parent = dict(order)
    factors: list[tuple[Sequence[int], NDArray[np.float64]]] = []
    for scope, table in model.factors:
        gone = [v for v in scope if leaving[v]]
        if not gone:
            factors.append((scope, table))
        elif len(scope) == 1:
            own[scope[0]] = own.get(scope[0], 0.0) + table
        else:
            v = gone[0] if parent[gone[0]] in scope else gone[1]  # the one that goes first
            u = parent[v]
            turned = table if scope[0] == v else table.T
            shared[v, u] = shared.get((v, u), 0.0) + turned
    leaves = []
    constants = []
    for v, u in order:
        weights = own.pop(v, np.zeros(int(model.cardinalities[v])))[:, None]
        if u >= 0:
            weights = weights + shared[v, u]
        top = np.maximum(weights.max(axis=0), -1e300)  # finite where a column is all zero
        share = np.exp(weights - top)
        total = share.sum(axis=0)
        with np.errstate(divide="ignore"):
            message = top + np.log(total)
        message[total == 0.0] = -np.inf
        leaves.append(Leaf(v, u, share / np.where(total > 0.0, total, 1.0)))
        if u < 0:
            constants.append(float(message[0]))
        else:
            own[u] = own.get(u, 0.0) + message
    kept = np.flatnonzero(~leaving)
    number = np.cumsum(~leaving) - 1
    factors += [((u,), table) for u, table in own.items()]
    factors += [((), np.array(value)) for value in constants]
    renamed = [([int(number[v]) for v in scope], table) for scope, table in factors]
    reduced = FactorGraph(model.cardinalities[kept], renamed, name=model.name)
    return Leaves(model, reduced, kept, leaves)


def _peel(model: FactorGraph) -> list[tuple[int, int]]:
    """(variable, its neighbour or -1) in the order of summing out."""
    n = model.n_variables
    arity = model.arities
    blocked = np.zeros(n, dtype=bool)  # in a table over three variables or more
    blocked[model.scope_vars[np.repeat(arity > 2, arity)]] = True
    at = model.scope_ptr[:-1][arity == 2]
    ends = model.scope_vars[at].astype(np.int64), model.scope_vars[at + 1].astype(np.int64)
    keys = np.unique(np.minimum(*ends) * n + np.maximum(*ends))
    pairs = np.stack(np.divmod(keys, max(n, 1)), axis=1)
    degree = np.bincount(pairs.ravel(), minlength=n)
    degree[blocked] += 2
    if (degree > 1).all():
        return []
    neighbours: list[list[int]] = [[] for _ in range(n)]
    for u, v in pairs.tolist():
        neighbours[u].append(v)
        neighbours[v].append(u)
    order: list[tuple[int, int]] = []
    gone = np.zeros(n, dtype=bool)
    waiting = np.flatnonzero(degree <= 1).tolist()
    while waiting:
        v = waiting.pop()
        if gone[v]:
            continue
        gone[v] = True
        left = [u for u in neighbours[v] if not gone[u]]
        order.append((v, left[0] if left else -1))
        for u in left:
            degree[u] -= 1
            if degree[u] <= 1:
                waiting.append(u)
    return order
