"""The bound of a network over a model's variables: one conditional table per variable.

q(x) = prod_k q(x_k | x_{S_k}) over nodes k in an order where every member of S_k comes after k: a
Bayesian network, normalised once each column over x_k is divided by its sum (the judge does that:
q *is* the normalised network). S_k must lie in the bucket {p} + S_p of its first member p; a
network of several trees is a product of independent clusters. Then

    log Z >= sum_f E_q[log t_f] + sum_k E_q[H(q(x_k | x_{S_k}))],

where a factor needs, for each tree that it meets, a bucket that holds its variables there.

Rounding (u = 2^-53, first order, doubled at the end): probabilities are sums and products of
non-negative numbers, so relative errors add up: a normalised entry (d + 2) u over d states, a joint
u more, a sum over N entries N u; a factor's mean costs the relative errors of its joint tables, u a
product and N u for the sum over its N entries, all of E_q |log t|; an entropy the same and
LIBRARY for its logarithms, and (d + 2) u for q's own error.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.products import NEGLIGIBLE
from tightz.judge.spins import TINY, exact_sum
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph


class Marginal(NamedTuple):
    """q over some nodes, ascending, and the relative error of its entries."""

    nodes: tuple[int, ...]
    table: NDArray[np.float64]
    error: float


@dataclass(frozen=True, eq=False)
class NetworkEvidence:
    """Node k is variable order[k]; scopes[k] are its parents, later nodes, ascending.

    tables[k] has axes (k, *scopes[k]); any non-negative numbers: columns over k are normalised.
    """

    order: NDArray[np.int64]
    scopes: Sequence[tuple[int, ...]]
    tables: Sequence[NDArray]
    _done: list[tuple[FactorGraph, Verdict]] = field(default_factory=list, init=False, repr=False)

    def verdict(self, model: FactorGraph) -> Verdict:
        """The bound of this network on `model`, rounding taken off; worked out once."""
        if not self._done or self._done[0][0] is not model:
            self._done[:] = [(model, self._verdict(model))]
        return self._done[0][1]

    def _verdict(self, model: FactorGraph) -> Verdict:
        self._check(model)
        wanted, groups = self._requests(model)
        found: dict[tuple[int, ...], Marginal] = {}
        entropies, error = self._walk(wanted, found)
        values = []
        for f in range(model.n_factors):
            # If q supports a state that some table forbids the bound is -inf: valid, and of no
            # use.
            mean, rounding = _mean(model, f, self.order, [found[g] for g in groups[f]])
            if mean == -math.inf:
                return Verdict()
            values.append(mean)
            error += rounding
        value = exact_sum(values, entropies)
        if not math.isfinite(value):
            return Verdict()
        # What underflows in a product of conditionals, n of them at most, is worth at most this.
        lost = TINY * model.n_variables * (1.0 + _finite_size(model))
        rounding = 2.0 * (error + UNIT * abs(value)) + lost
        low = float(np.nextafter(value - rounding, -math.inf))
        return Verdict(lower=low, rounding=value - low)

    def _check(self, model: FactorGraph) -> None:
        """RefutedError unless this is a network over the model's variables with a bucket each."""
        n = model.n_variables
        if not np.array_equal(np.sort(self.order), np.arange(n)) or model.evidence:
            raise RefutedError("the nodes of a network are not the variables, each once")
        if len(self.scopes) != n or len(self.tables) != n:
            raise RefutedError("a network needs parents and a table for every node")
        cards = model.cardinalities[self.order].tolist()
        for k, scope in enumerate(self.scopes):
            if any(a >= b for a, b in zip((k, *scope), (*scope, n), strict=True)):
                raise RefutedError("parents of a node are not later nodes in ascending order")
            # The running intersection property: without it the joint of a separator would not be a
            # sum over the parent's bucket, and the marginals computed here would not be q's.
            if scope and not set(scope[1:]) <= set(self.scopes[scope[0]]):
                raise RefutedError("parents of a node do not lie in the bucket of the first")
            table = self.tables[k]
            if table.shape != tuple(cards[i] for i in (k, *scope)):
                raise RefutedError("a conditional table has the wrong shape")
            if not ((table >= 0.0) & (table < np.inf)).all():
                raise RefutedError("a conditional table holds a number that is no weight")

    def _requests(
        self, model: FactorGraph
    ) -> tuple[dict[int, set[tuple[int, ...]]], list[list[tuple[int, ...]]]]:
        """(what each bucket is asked for, the nodes of each factor by tree)."""
        node = np.empty(model.n_variables, dtype=np.int64)
        node[self.order] = np.arange(self.order.size)
        root = list(range(self.order.size))
        for k in range(len(root) - 1, -1, -1):
            if self.scopes[k]:
                root[k] = root[self.scopes[k][0]]
        wanted: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        of_factor = []
        for f in range(model.n_factors):
            scope = model.scope_vars[model.scope_ptr[f] : model.scope_ptr[f + 1]]
            by_tree: dict[int, list[int]] = defaultdict(list)
            for k in node[scope].tolist():
                by_tree[root[k]].append(k)
            groups = [tuple(members) for members in by_tree.values()]
            for group in groups:
                # The bucket of the first node holds it and its parents: the only place where a
                # joint over the group may be found.
                home = min(group)
                if not set(group) - {home} <= set(self.scopes[home]):
                    raise RefutedError("a factor joins variables that no bucket of q holds")
                wanted[home].add(group)
            of_factor.append(groups)
        return wanted, of_factor

    def _walk(
        self, wanted: dict[int, set[tuple[int, ...]]], found: dict[tuple[int, ...], Marginal]
    ) -> tuple[list[float], float]:
        """From the roots down: entropies, their error, and the marginals that are wanted."""
        children: dict[int, list[int]] = defaultdict(list)
        for k, scope in enumerate(self.scopes):
            if scope:
                children[scope[0]].append(k)
        above: dict[int, tuple[NDArray[np.float64], float]] = {}
        entropies, error = [], 0.0
        for k in range(len(self.scopes) - 1, -1, -1):
            # From the roots down, each joint is the separator's marginal times a conditional; only
            # what is asked for is kept, so memory stays that of one path.
            outer, eps = above.pop(k, (np.ones(()), 0.0))
            table = normalised_columns(self.tables[k])
            delta = UNIT * (table.shape[0] + 2.0)
            h = -(table * np.log(np.where(table > 0.0, table, 1.0))).sum(axis=0)
            entropy = float((outer * h).sum())
            entropies.append(entropy)
            relative = eps + LIBRARY + UNIT * (table.shape[0] + 3.0 + outer.size) + delta
            error += relative * entropy + delta + UNIT
            joint = Marginal((k, *self.scopes[k]), table * outer, eps + delta + UNIT)
            for group in wanted.get(k, ()):
                found[group] = _summed(joint, group)
            for child in children[k]:
                part = _summed(joint, self.scopes[child])
                above[child] = part.table, part.error
        return entropies, error


def _finite_size(model: FactorGraph) -> float:
    """The sum of all finite |log t|."""
    return float(np.abs(np.where(np.isneginf(model.log_tables), 0.0, model.log_tables)).sum())


def normalised_columns(table: NDArray) -> NDArray[np.float64]:
    """The table over axis 0 divided by its sums; a column of zeros becomes uniform."""
    weights = np.asarray(table, dtype=np.float64)
    top = weights.max(axis=0)
    scaled = np.where(top > 0.0, weights / np.where(top > 0.0, top, 1.0), 1.0)
    # q is defined after this step: dropping tiny weights changes q, not the validity of its bound.
    scaled[scaled < NEGLIGIBLE] = 0.0
    return np.asarray(scaled / scaled.sum(axis=0))


def _summed(joint: Marginal, nodes: tuple[int, ...]) -> Marginal:
    """The marginal of `nodes`, in the order given."""
    drop = tuple(j for j, k in enumerate(joint.nodes) if k not in nodes)
    left = [k for k in joint.nodes if k in nodes]
    table = joint.table.sum(axis=drop) if drop else joint.table
    summed = joint.table.size // max(table.size, 1)
    table = table.transpose([left.index(k) for k in nodes])
    return Marginal(nodes, table, joint.error + UNIT * (summed if drop else 0))


def _mean(
    model: FactorGraph, f: int, order: NDArray[np.int64], groups: list[Marginal]
) -> tuple[float, float]:
    """(E_q[log t] of factor f, its error); -inf where q supports a zero."""
    scope, log_table = model.factor(f)
    axes = [scope.index(int(order[k])) for group in groups for k in group.nodes]
    log_table = log_table.transpose(axes)
    weight, relative = np.ones(()), UNIT * (log_table.size + 2.0)
    for group in groups:
        weight = np.multiply.outer(weight, group.table)
        relative += group.error + UNIT
    supported = weight > 0.0
    if np.isneginf(log_table[supported]).any():
        return -math.inf, 0.0
    terms = np.where(supported, weight * np.where(supported, log_table, 0.0), 0.0)
    return float(terms.sum()), relative * float(np.abs(terms).sum())
