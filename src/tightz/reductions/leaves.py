"""Variables with at most one neighbour, summed out exactly before any method runs.

Summing a leaf v out of its tables leaves a table on its neighbour u. Z is unchanged, and
p(v | u) gives v back: its marginal is p(v | u) times the marginal of u. Repeated, this takes
whole trees away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import UNIT, log_summation, log_weight
from tightz.models.ends import Ends, around, through
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import per_variable
from tightz.models.selection import naming, selected


@dataclass(frozen=True, eq=False)
class Leaf:
    """One variable summed out: `conditional` (states of v, states of u), or (states, 1) alone."""

    variable: int
    neighbour: int
    conditional: NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Leaves:
    """`reduced` has the same log Z as `model` over the variables `kept`, within `rounding` nats."""

    model: FactorGraph
    reduced: FactorGraph
    kept: NDArray[np.int64]
    leaves: list[Leaf]
    rounding: float = 0.0

    def lift_marginals(self, marginals: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Marginals of the reduced model's variables as marginals of the model's."""
        out = [np.ones(1)] * self.model.n_variables
        for v, marginal in zip(self.kept.tolist(), marginals, strict=True):
            out[v] = np.asarray(marginal)
        for leaf in reversed(self.leaves):
            given = out[leaf.neighbour] if leaf.neighbour >= 0 else np.ones(1)
            out[leaf.variable] = leaf.conditional @ given
        return out

    def lift_ends(self, ends: Ends) -> Ends:
        out: Ends = [np.ones((1, 2))] * self.model.n_variables
        for v, found in zip(self.kept.tolist(), ends, strict=True):
            out[v] = found
        if not self.leaves:
            return out
        shapes = [leaf.conditional.shape for leaf in self.leaves]
        every = np.concatenate([leaf.conditional.ravel() for leaf in self.leaves])
        tables = per_variable(
            around(every, 8.0 * self.rounding), np.array(list(map(math.prod, shapes)))
        )
        for leaf, table, shape in reversed([*zip(self.leaves, tables, shapes, strict=True)]):
            given = out[leaf.neighbour] if leaf.neighbour >= 0 else np.ones((1, 2))
            out[leaf.variable] = through(table.reshape(*shape, 2), given)
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
    own: dict[int, _Table] = {}
    shared: dict[tuple[int, int], _Table] = {}
    parent = dict(order)
    tops: list[float] = []
    touched = naming(model, leaving)
    for f in np.flatnonzero(touched).tolist():
        scope, table = model.factor(f)
        gone = [v for v in scope if leaving[v]]
        if len(scope) == 1:
            own[scope[0]] = _below_top(table, tops).joined(own.get(scope[0]))
        else:
            v = gone[0] if parent[gone[0]] in scope else gone[1]  # the one that goes first
            u = parent[v]
            turned = _below_top(table if scope[0] == v else table.T, tops)
            shared[v, u] = turned.joined(shared.get((v, u)))
    leaves = []
    for v, u in order:
        states = int(model.cardinalities[v])
        alone = own.pop(v, _Table(np.zeros(states)))
        weights = alone._replace(logs=alone.logs[:, None]).joined(shared.get((v, u)))
        message, conditional = _sum_out(weights, tops)
        leaves.append(Leaf(v, u, conditional))
        if u >= 0:
            own[u] = message.joined(own.get(u))
        else:  # one number: 0, its value being among the tops, or -inf
            own[-1] = message.joined(own.get(-1))
    constant = own.pop(-1, _Table(np.zeros(1)))
    kept = np.flatnonzero(~leaving)
    value = math.fsum(tops) + float(constant.logs[0])
    added = [*(((u,), table.logs) for u, table in own.items()), ((), np.array(value))]
    reduced = selected(model, kept, ~touched, added)
    rounding = _rounding(reduced, [*own.values(), constant])
    if math.isfinite(value):
        rounding += UNIT * abs(value)
    return Leaves(model, reduced, kept, leaves, rounding)


class _Table(NamedTuple):
    """Logs <= 0, each within absolute + relative * |log| of the real number it stands for."""

    logs: NDArray[np.float64]
    absolute: float = 0.0
    relative: float = 0.0

    def joined(self, other: _Table | None) -> _Table:
        """The product. Numbers <= 0 do not cancel: one rounding more, of the result."""
        if other is None:
            return self
        return _Table(
            self.logs + other.logs,
            self.absolute + other.absolute,
            max(self.relative, other.relative) + UNIT,
        )


def _below_top(logs: NDArray[np.float64], tops: list[float]) -> _Table:
    """The table less its largest entry, which goes to `tops`; all zero: as it is."""
    top = float(logs.max())
    if top == -math.inf:
        return _Table(logs)
    tops.append(top)
    return _Table(logs - top, 0.0, UNIT)


def _sum_out(weights: _Table, tops: list[float]) -> tuple[_Table, NDArray[np.float64]]:
    """log sum over the first axis, its largest entry moved to `tops`, and p(v | u).

    The sum keeps the table's error, its top being log q (`elimination.exact.precision` says
    why); exp, the sum, log and two additions come on top.
    """
    logs = weights.logs
    top = np.maximum(logs.max(axis=0), -1e300)  # finite where a column is all zero
    share = np.exp(logs - top)
    total = share.sum(axis=0)
    with np.errstate(divide="ignore"):
        message = top + np.log(total)
    message[total == 0.0] = -np.inf
    count = math.log(len(logs))
    relative = weights.relative + 2.0 * UNIT
    absolute = weights.absolute + log_summation(len(logs)) + 2.0 * count * UNIT
    largest = float(message.max())
    if largest > -math.inf:
        tops.append(largest)
        message = message - largest
        absolute += relative * max(count - largest, 0.0)
    conditional = share / np.where(total > 0.0, total, 1.0)
    return _Table(message, absolute, relative), conditional


def _rounding(reduced: FactorGraph, tables: list[_Table]) -> float:
    """How far log Z of `reduced` can be from the model's, given the errors of its new tables.

    A state's log weight errs by a + r depth, depth being the sum of |logs| of these tables there.
    No state is deeper than the tables' smallest entries. And depth <= top - log weight, where top
    is the sum of all tables' largest entries; as in `elimination.exact.precision`, log Z then errs
    by a + r (top - log Z + log N) over N states, where any one state's weight may stand for Z:
    tables of pseudo-zeros cost nothing if that state avoids them.
    """
    absolute = math.fsum(t.absolute for t in tables)
    relative = max((t.relative for t in tables), default=0.0)
    finite = [t.logs[t.logs > -np.inf] for t in tables]
    depth = math.fsum(-float(logs.min(initial=0.0)) for logs in finite)
    state = np.zeros(reduced.n_variables, dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(reduced.cardinalities)])[:-1]
    fields = np.zeros(int(reduced.cardinalities.sum()))
    for _, scopes, unary in reduced.batches():
        if scopes.shape[1] == 1:
            np.add.at(fields, first[scopes] + np.arange(unary.shape[1]), unary)
    if state.size:
        tops = np.repeat(np.maximum.reduceat(fields, first), reduced.cardinalities)
        owner = np.repeat(np.arange(state.size), reduced.cardinalities)
        heaviest = np.flatnonzero(fields == tops)
        state[owner[heaviest]] = heaviest - first[owner[heaviest]]
    weight, error = log_weight(reduced, state)
    if weight > -math.inf:
        tops = np.maximum.reduceat(reduced.log_tables, reduced.table_ptr[:-1])
        count = float(np.log(reduced.cardinalities.astype(np.float64)).sum())
        # the weight is rounded: beside a constant of 1e20 the difference may come out below 0
        depth = min(depth, max(0.0, math.fsum([*tops.tolist(), -weight, count])) + error)
    return (1.0 + 2.0**-10) * (absolute + relative * depth)


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
