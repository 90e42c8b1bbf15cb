"""Tree-reweighted bounds as evidence: edge probabilities, what forests attain them, and messages.

With edge probabilities rho and any messages M let, as real numbers,

    B_s = theta_s + sum over edges e at s of rho_e M_es,   W_e = theta_e / rho_e - M_ei - M_ej.

Then log p~(x) = sum_s B_s + sum_e rho_e W_e, the mean over random forests T (P(e in T) = rho_e) of
sum_s B_s + sum_{e in T} W_e, so by Jensen log Z <= E_T log Z_T (Wainwright, Jaakkola, Willsky
2005). For any N_s >= log sum_x exp B_s(x) and any k_e with, pointwise,

    log sum_{x_j} exp(W_e + B_j) <= k_e - N_i   and   log sum_{x_i} exp(W_e + B_i) <= k_e - N_j,

eliminating a forest from its leaves gives log Z_T <= sum_s N_s + sum_{e in T} (k_e - N_i - N_j).
B may be replaced by anything larger, so all of it is rounded upward entry by entry. Where the graph
is a forest itself, all signs turned around give a lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.judge.pairwise import Pairs, Sums, pairs_of
from tightz.judge.spanning import Forests
from tightz.judge.verdict import RefutedError, Verdict, log_summation, summation
from tightz.models.factor_graph import FactorGraph

_LARGEST = 1e300
"""Sums of log potentials from here on may overflow on their way: nothing is said about them."""


@dataclass(eq=False)
class EdgesEvidence:
    """rho (E,) for the model's edges as `judge.pairwise` finds them, listed in `forests`.

    `weights` (1 + K,) mix the start and the first K forests of `forests` into at least rho.
    `into_first` and `into_second` hold a message per edge, one entry per state of that end, states
    that cannot be included (any number).
    """

    rho: NDArray[np.float64]
    forests: Forests
    weights: NDArray[np.float64]
    into_first: NDArray[np.float64]
    into_second: NDArray[np.float64]
    _judged: dict[str, Verdict] = field(default_factory=dict, init=False, repr=False)

    def verdict(self, model: FactorGraph) -> Verdict:
        if model.digest not in self._judged:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                self._judged[model.digest] = self._judge(pairs_of(model))
        return self._judged[model.digest]

    def _judge(self, pairs: Pairs) -> Verdict:
        if not float(pairs.unary.size.sum() + pairs.tables.size.sum()) < _LARGEST:
            return Verdict()
        if pairs.empty:
            return Verdict(upper=-math.inf)
        if not np.array_equal(self.forests.edges, pairs.edges):
            raise RefutedError("the forests are not made of the model's edges")
        sizes = pairs.cards[pairs.edges].sum(axis=0)
        if self.into_first.shape != (sizes[0],) or self.into_second.shape != (sizes[1],):
            raise RefutedError("messages do not fit the states of the edges' ends")
        if not (np.isfinite(self.into_first).all() and np.isfinite(self.into_second).all()):
            raise RefutedError("a message is not a number")
        # Jensen needs a distribution over forests whose edge probabilities are at least rho:
        # smaller rho than attained is fine, since a forest may lose edges.
        self.forests.check(self.rho, self.weights)
        upper, plain = _bound(self, pairs, 1.0), _bound(self, pairs, 0.0)
        if not math.isfinite(upper):
            return Verdict()
        # Probability 1 for every edge passed the check above: they form a forest.
        lower = _bound(self, pairs, -1.0) if (self.rho == 1.0).all() else -math.inf
        return Verdict(lower, upper, max(0.0, upper - plain))


def _bound(evidence: EdgesEvidence, pairs: Pairs, outward: float) -> float:
    """The bound with `outward` times its rounding; -1 is for the lower bound of a forest."""
    unary = pairs.unary
    beliefs = Sums(unary.value.copy(), unary.size.copy(), unary.terms.copy())
    ends = pairs.cards[pairs.edges]
    places = []
    for k, messages in ((0, evidence.into_first), (1, evidence.into_second)):
        owner = np.repeat(np.arange(len(ends)), ends[:, k])
        starts = np.concatenate([[0], np.cumsum(ends[:, k])]).astype(np.int64)
        state = pairs.var_ptr[pairs.edges[owner, k]] + np.arange(owner.size) - starts[owner]
        beliefs.add(state, evidence.rho[owner] * messages, rounded=1)
        places.append(starts)
    up = Sums(beliefs.value + outward * beliefs.error(), beliefs.size, beliefs.terms)
    norms = _node_norms(pairs, up.value, outward)
    terms = [*pairs.constants, *norms.tolist()]
    charged = 0.0
    for rows, columns, edges in pairs.shapes() if len(pairs.edges) else []:
        first = evidence.into_first[places[0][edges][:, None] + np.arange(rows)]
        second = evidence.into_second[places[1][edges][:, None] + np.arange(columns)]
        cost = _edge_costs(evidence.rho, pairs, edges, (first, second), up.value, norms, outward)
        products = evidence.rho[edges] * cost
        charged += summation(1, float(np.abs(products).sum()))
        terms += products.tolist()
    if not np.isfinite(terms).all():
        return math.copysign(math.inf, outward)
    total = math.fsum(terms)
    return total + outward * (charged + summation(2, abs(total)))


def _node_norms(pairs: Pairs, beliefs: NDArray[np.float64], outward: float) -> NDArray[np.float64]:
    out = np.empty(pairs.cards.size)
    for states in np.unique(pairs.cards):
        which = np.flatnonzero(pairs.cards == states)
        rows = beliefs[pairs.var_ptr[which][:, None] + np.arange(states)]
        out[which] = log_sum(rows, outward)
    return out


def _edge_costs(
    rho: NDArray[np.float64],
    pairs: Pairs,
    edges: NDArray[np.int64],
    messages: tuple[NDArray[np.float64], NDArray[np.float64]],
    beliefs: NDArray[np.float64],
    norms: NDArray[np.float64],
    outward: float,
) -> NDArray[np.float64]:
    """k_e - N_i - N_j for edges of one shape."""
    first, second = messages
    i, j = pairs.edges[edges].T
    shape = (edges.size, first.shape[1], second.shape[1])
    at = pairs.entries(edges)
    table = pairs.tables.value[at].reshape(shape)
    size = pairs.tables.size[at].reshape(shape)
    terms = pairs.tables.terms[at].reshape(shape)
    share = rho[edges][:, None, None]
    belief_i = beliefs[pairs.var_ptr[i][:, None] + np.arange(shape[1])]
    belief_j = beliefs[pairs.var_ptr[j][:, None] + np.arange(shape[2])]
    # W_e of the module's text, with the sizes that its rounding is charged by.
    shift = table / share - first[:, :, None] - second[:, None, :]
    size = size / share + np.abs(first)[:, :, None] + np.abs(second)[:, None, :]
    # Both inequalities that k_e must satisfy; it is the larger of what they ask, so one number
    # serves both ends of the edge.
    excess = []
    for other, axis in ((belief_j[:, None, :], 2), (belief_i[:, :, None], 1)):
        weight = shift + other
        known = np.where(np.isneginf(other), 0.0, np.abs(other))
        error = summation(1, (terms + 5) * (size + known))
        dead = np.isneginf(table) | np.isneginf(other)
        weight = np.where(dead, -np.inf, weight + outward * error)
        sums = log_sum(np.moveaxis(weight, axis, -1), outward)
        if outward < 0.0:  # a state that cannot be has no say
            sums[np.isneginf(sums)] = np.inf
        excess.append(sums.max(axis=1) if outward >= 0.0 else sums.min(axis=1))
    costs = []
    for value, norm in ((excess[0], norms[j]), (excess[1], norms[i])):
        costs.append(value - norm + outward * summation(2, np.abs(value) + np.abs(norm)))
    return np.maximum(*costs) if outward >= 0.0 else np.minimum(*costs)


def log_sum(values: NDArray[np.float64], outward: float) -> NDArray[np.float64]:
    """log sum exp over the last axis, rounded outward by `log_summation` and by the last sum."""
    top = values.max(axis=-1)
    safe = np.where(np.isneginf(top), 0.0, top)
    out = safe + np.log(np.exp(values - safe[..., None]).sum(axis=-1))
    padded = out + outward * (log_summation(values.shape[-1]) + summation(2, np.abs(out)))
    return np.where(np.isneginf(top), -np.inf, padded)
