"""Elimination along a given order, as evidence that the judge works out by itself.

A clique tree in which no bucket is cut and every weight is 1 bounds log Z from both sides, and the
two differ by rounding alone (`cliques`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.judge.cliques import CliquesEvidence
from tightz.judge.verdict import RefutedError
from tightz.models.factor_graph import FactorGraph

MAX_ENTRIES = 1 << 24
"""An order that needs a larger table is refused."""


def bucket_tree(graph: FactorGraph, order: NDArray[np.int64]) -> CliquesEvidence:
    """Every factor in the bucket of its first variable in `order`, messages likewise."""
    n = graph.n_variables
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise RefutedError("an elimination order does not name every variable once")
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    members: list[set[int]] = [{k} for k in range(n)]  # by rank
    placed: list[list[int]] = [[] for _ in range(n)]
    scopes = np.split(rank[graph.scope_vars], graph.scope_ptr[1:-1])
    for f, scope in enumerate(scopes):
        if scope.size:
            first = int(scope.min())
            placed[first].append(f)
            members[first].update(scope.tolist())
    parents = np.full(n, -1, dtype=np.int64)
    for k in range(n):
        if 2 ** len(members[k]) > MAX_ENTRIES:
            raise RefutedError("an elimination order needs tables beyond what the judge makes")
        # What a bucket leaves behind joins the bucket of its first variable: uncut buckets, so
        # each variable has one clique and weight 1, and Hoelder is an equality.
        rest = members[k] - {k}
        if rest:
            parents[k] = min(rest)
            members[parents[k]] |= rest
    names = order.tolist()
    return CliquesEvidence(
        order=np.asarray(order, dtype=np.int64),
        scopes=[tuple(names[r] for r in sorted(m, reverse=True)) for m in members],
        factors=placed,
        parents=parents,
        weights=np.ones(n),
        pairs=np.zeros((0, 2), dtype=np.int64),
        shift_ptr=np.zeros(1, dtype=np.int64),
        shifts=np.zeros(0),
        claimed=math.inf,  # nothing is claimed
    )
