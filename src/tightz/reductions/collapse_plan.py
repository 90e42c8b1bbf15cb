"""Which spins to eliminate, in which order: greedy minimum degree, least fill to break ties."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import bucket_tree
from tightz.elimination.game import DEGREE, Rules, play
from tightz.elimination.graph import interaction_graph, scopes_of
from tightz.errors import ResourceError
from tightz.models.spin_polynomial import SpinPolynomial

MAX_TABLE_ENTRIES = 2**25
"""Entries of all tables of one collapse together (256 MiB each for fields and messages)."""


class Plan(NamedTuple):
    """Which spins go, in which order, and what each elimination meets.

    order, scope_ptr, scope: as in `Collapsed`. Elimination e consumes the terms
    term_of[term_ptr[e]:term_ptr[e+1]] and the tables of the eliminations
    table_in[table_in_ptr[e]:table_in_ptr[e+1]]; term_use and table_use say the same from the other
    side, E where a term or table is left over.
    """

    order: NDArray[np.int64]
    scope_ptr: NDArray[np.int64]
    scope: NDArray[np.int32]
    table_ptr: NDArray[np.int64]
    term_use: NDArray[np.int64]
    term_ptr: NDArray[np.int64]
    term_of: NDArray[np.int64]
    table_use: NDArray[np.int64]
    table_in_ptr: NDArray[np.int64]
    table_in: NDArray[np.int64]


def eliminable(
    poly: SpinPolynomial, k: int, protected: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], list[int]]:
    """The greedy order, and for each j <= k how many eliminations come before one of more than j.

    An elimination touches at most k others. The order for a smaller k is a beginning of the order
    for a larger one.
    """
    # A clique holds the spin itself beside the neighbours that its table is over.
    rules = Rules(DEGREE, neighbours=k, log2_total=1.0 + np.log2(MAX_TABLE_ENTRIES))
    free = np.ones(poly.n, dtype=bool) if protected is None else ~protected
    played = play(interaction_graph(scopes_of(poly)), rules, free=free)
    if played.log2_total > rules.log2_total:
        raise ResourceError(
            f"collapse with k = {k} needs tables of more than {MAX_TABLE_ENTRIES} entries; lower k"
        )
    highest = np.maximum.accumulate(played.touched)
    return played.order, [int(np.searchsorted(highest, j, side="right")) for j in range(k + 1)]


def plan_elimination(poly: SpinPolynomial, order: NDArray[np.int64]) -> Plan:
    """The bucket tree of `order`: each table is over its spin's neighbours, ascending."""
    tree = bucket_tree(scopes_of(poly), order)
    count = order.size
    owner = np.repeat(np.arange(count), np.diff(tree.scope_ptr))
    others = np.delete(np.arange(tree.scope.size), tree.scope_ptr[:-1])  # the spin itself is first
    scope = np.sort(owner[others] * max(poly.n, 1) + tree.scope[others]) % max(poly.n, 1)
    scope_ptr = tree.scope_ptr - np.arange(count + 1)
    term_use = np.where(tree.home < 0, count, tree.home)
    table_use = np.where(tree.parent < 0, count, tree.parent)
    return Plan(
        order,
        scope_ptr,
        scope.astype(np.int32),
        np.concatenate([[0], np.cumsum(2 ** np.diff(scope_ptr))]),
        term_use,
        *_grouped(term_use, count),
        table_use,
        *_grouped(table_use, count),
    )


def terms_left(plan: Plan) -> int:
    """At most this many terms remain: every subset of the tables left over, and untouched terms."""
    count = plan.order.size
    degrees = np.diff(plan.scope_ptr)[plan.table_use == count]
    return int((plan.term_use == count).sum()) + int(np.exp2(degrees).sum())


def _grouped(use: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """CSR: the members whose use is 0, 1, ..., count - 1."""
    ptr = np.concatenate([[0], np.cumsum(np.bincount(use, minlength=count + 1)[:count])])
    return ptr, np.argsort(use, kind="stable")[: ptr[-1]]
