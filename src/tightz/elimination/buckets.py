"""The bucket tree of an elimination order: which tables meet where, and who receives the result.

A bucket gathers every scope that holds its variable and no variable summed out before; it sums its
variable out of their union and sends the rest to the bucket of the next variable in it (Dechter,
1999). Where that union would be too large a bucket can be cut into mini-buckets, each of which does
the same by itself (Dechter and Rish, 2003). Exact plans, cutset sums, forests of structured mean
field, collapse and mini-bucket bounds all read this one tree.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.elimination.graph import Scopes
from tightz.runtime.kernels import inner, kernel

_SLACK = 1e-9  # log2 of table sizes are sums of floats


@dataclass(frozen=True, eq=False)
class BucketTree:
    """Cliques in elimination order; those of the b-th variable are bucket_ptr[b]:bucket_ptr[b+1].

    order        (E,) the variables summed out; others of the scopes stay
    scope_ptr, scope   clique c is scope[scope_ptr[c]:scope_ptr[c+1]]: its own variable, then the
                 others as they are summed out, then those that stay (ascending)
    parent       (C,) the clique that receives the message of c, -1 where no variable of it is
                 summed out later
    home         (F,) the clique that each scope falls to, -1 where all of its variables stay
    log2_sizes   (C,) of the cliques' tables
    complete     False: the tables together passed `log2_total`, and the rest was left undone
    """

    order: NDArray[np.int64]
    bucket_ptr: NDArray[np.int64]
    scope_ptr: NDArray[np.int64]
    scope: NDArray[np.int64]
    parent: NDArray[np.int64]
    home: NDArray[np.int64]
    log2_sizes: NDArray[np.float64]
    complete: bool

    @property
    def cut(self) -> bool:
        """Whether some bucket has more than one clique."""
        return self.parent.size > self.order.size

    @property
    def width(self) -> int:
        """The largest number of variables that one message joins."""
        return int(np.diff(self.scope_ptr).max(initial=1)) - 1

    @property
    def log2_total(self) -> float:
        """Of the entries of all tables."""
        return float(np.logaddexp2.reduce(self.log2_sizes)) if self.log2_sizes.size else -np.inf

    @cached_property
    def scopes(self) -> list[list[int]]:
        """`scope` per clique."""
        flat, ends = self.scope.tolist(), self.scope_ptr.tolist()
        return [flat[a:b] for a, b in itertools.pairwise(ends)]

    @cached_property
    def sources(self) -> list[list[int]]:
        """The scopes that each clique is home to, ascending."""
        return _listed(self.home, self.parent.size)

    @cached_property
    def children(self) -> list[list[int]]:
        """The cliques whose message each clique receives, ascending."""
        return _listed(self.parent, self.parent.size)

    def post_order(self) -> NDArray[np.int64]:
        """The same elimination with each subtree's cliques together: fewer messages wait at a time.

        Subtrees that need most beyond what they leave behind go first (Liu, 1987); width stands in
        for size here. Returns clique numbers; uncut trees only.
        """
        sizes = np.diff(self.scope_ptr).tolist()
        children, parent = self.children, self.parent.tolist()
        need = list(sizes)
        for c, up in enumerate(parent):
            if up >= 0:
                need[up] = max(need[up], need[c])
        visited: list[int] = []
        stack = [(c, False) for c in range(len(parent) - 1, -1, -1) if parent[c] < 0]
        while stack:
            c, done = stack.pop()
            if done:
                visited.append(c)
                continue
            stack.append((c, True))
            stack += [
                (k, False) for k in sorted(children[c], key=lambda k: (need[k] - sizes[k], need[k]))
            ]
        return np.array(visited, dtype=np.int64)


def bucket_tree(
    scopes: Scopes,
    order: NDArray[np.int64],
    *,
    log2_card: ArrayLike = 1.0,
    log2_table: float = np.inf,
    log2_total: float = np.inf,
) -> BucketTree:
    """The bucket tree of `scopes` when the variables of `order` are summed out one by one.

    log2_table: a clique takes on a further scope only up to this size (one scope alone may exceed
    it); each bucket is cut greedily, largest tables first, into the clique that grows least.
    log2_total: the tree is given up as soon as all tables together exceed it.
    """
    n = scopes.n
    place = np.full(n, -1, dtype=np.int64)
    place[order] = np.arange(order.size)
    stays = np.flatnonzero(place < 0)
    place[stays] = order.size + np.arange(stays.size)
    by_place = np.concatenate([order, stays]).astype(np.int64)
    # Members of each scope as they are summed out: one sort by (scope, place).
    owner = np.repeat(np.arange(scopes.ptr.size - 1), np.diff(scopes.ptr))
    places = np.sort(owner * max(n, 1) + place[scopes.members]) % max(n, 1)
    bits = np.broadcast_to(np.asarray(log2_card, np.float64), n)[by_place]
    bucket_ptr, scope_ptr, members, *rest = _fill(
        order.size, scopes.ptr, places, bits, log2_table + _SLACK, float(log2_total)
    )
    return BucketTree(by_place[: order.size], bucket_ptr, scope_ptr, by_place[members], *rest)


def _listed(owner: NDArray[np.int64], count: int) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(count)]
    for k, c in enumerate(owner.tolist()):
        if c >= 0:
            out[c].append(k)
    return out


@inner
def _grown(values, needed):  # type: ignore[no-untyped-def]
    if needed <= values.size:
        return values
    out = np.empty(2 * needed, values.dtype)
    out[: values.size] = values
    return out


@inner
def _assign(items, start, stop, members, rank, bits, universe, limit):  # type: ignore[no-untyped-def]
    """Which clique of a bucket each item joins: (choice per item, cliques' variables, log2 sizes).

    holds[m, r]: whether clique m has the variable universe[r]. Largest items first; the first
    clique that has all of an item takes it, else the one that grows least within the limit.
    """
    count = items.size
    weights = np.empty(count)
    for k in range(count):
        weights[k] = bits[members[start[k] : stop[k]]].sum()
    turn = np.arange(count)
    if limit < np.inf:
        turn = np.argsort(-weights, kind="mergesort")
    holds = np.zeros((1, universe.size), np.bool_)
    sizes = np.zeros(1)
    used = 0
    choice = np.empty(count, np.int64)
    for k in turn:
        best, least = -1, np.inf
        for m in range(used):
            growth, inside = 0.0, True
            for at in range(start[k], stop[k]):
                if not holds[m, rank[members[at]]]:
                    growth += bits[members[at]]
                    inside = False
            if inside:
                best, least = m, 0.0
                break
            if growth < least and sizes[m] + growth <= limit:
                best, least = m, growth
        if best < 0:
            best, least = used, weights[k]
            if used == sizes.size:
                wider = np.zeros((2 * used, universe.size), np.bool_)
                wider[:used] = holds
                holds = wider
                sizes = np.concatenate((sizes, np.zeros(used)))
            used += 1
        sizes[best] += least
        for at in range(start[k], stop[k]):
            holds[best, rank[members[at]]] = True
        choice[k] = best
    return choice, holds[:used], sizes[:used]


@kernel
def _fill(n_buckets, ptr, places, bits, limit, log2_total):  # type: ignore[no-untyped-def]
    """Fill the buckets one by one; everything is numbered by place in the order.

    Items are the scopes f (numbered f) and the messages of finished cliques c (numbered F + c); an
    item waits in the linked list of its first place. Members of an item lie in `pool`, ascending:
    first those of all scopes, then those of the cliques, a message being its clique less the first.
    """
    n_scopes = ptr.size - 1
    first = np.full(n_buckets, -1, np.int64)
    follow = np.empty(n_scopes + 16, np.int64)
    home = np.full(n_scopes, -1, np.int64)
    for f in range(n_scopes - 1, -1, -1):
        if ptr[f] < ptr[f + 1] and places[ptr[f]] < n_buckets:
            p = places[ptr[f]]
            follow[f] = first[p]
            first[p] = f
    base = places.size
    pool = np.empty(2 * base + 16, np.int64)
    pool[:base] = places
    bucket_ptr = np.zeros(n_buckets + 1, np.int64)
    clique_ptr = np.full(n_buckets + 16, base, np.int64)
    parent = np.empty(n_buckets + 16, np.int64)
    sizes = np.empty(n_buckets + 16)
    rank = np.zeros(bits.size, np.int64)
    seen = np.full(bits.size, -1, np.int64)
    cliques, total = 0, -np.inf
    for b in range(n_buckets):
        # The items that wait here, as they were filed: scopes first, then messages as they came.
        count = 0
        item = first[b]
        while item >= 0:
            count += 1
            item = follow[item]
        items = np.empty(count, np.int64)
        item = first[b]
        for k in range(count):
            items[count - 1 - k] = item
            item = follow[item]
        start, stop = np.empty(count, np.int64), np.empty(count, np.int64)
        for k in range(count):
            item = items[k]
            if item < n_scopes:
                start[k], stop[k] = ptr[item], ptr[item + 1]
            else:
                start[k] = clique_ptr[item - n_scopes] + 1
                stop[k] = clique_ptr[item - n_scopes + 1]
        # All variables that occur here, ascending: b itself is the first.
        universe = np.empty(1 + (stop - start).sum(), np.int64)
        universe[0] = b
        seen[b] = b
        found = 1
        for k in range(count):
            for at in range(start[k], stop[k]):
                if seen[pool[at]] != b:
                    seen[pool[at]] = b
                    universe[found] = pool[at]
                    found += 1
        universe = np.sort(universe[:found])
        for r in range(found):
            rank[universe[r]] = r
        choice, holds, own = _assign(items, start, stop, pool, rank, bits, universe, limit)
        if count == 0:
            holds, own = np.ones((1, 1), np.bool_), bits[b : b + 1]
        for k in range(count):
            if items[k] < n_scopes:
                home[items[k]] = cliques + choice[k]
            else:
                parent[items[k] - n_scopes] = cliques + choice[k]
        # The cliques themselves; each files its message in the bucket of its second variable.
        for m in range(own.size):
            at = clique_ptr[cliques]
            pool = _grown(pool, at + found)
            for r in range(found):
                if holds[m, r]:
                    pool[at] = universe[r]
                    at += 1
            clique_ptr = _grown(clique_ptr, cliques + 2)
            parent = _grown(parent, cliques + 1)
            sizes = _grown(sizes, cliques + 1)
            follow = _grown(follow, n_scopes + cliques + 1)
            clique_ptr[cliques + 1] = at
            parent[cliques] = -1
            sizes[cliques] = own[m]
            high = max(total, own[m])
            total = high + np.log2(2.0 ** (total - high) + 2.0 ** (own[m] - high))
            if at - clique_ptr[cliques] > 1:
                p = pool[clique_ptr[cliques] + 1]
                if p < n_buckets:
                    follow[n_scopes + cliques] = first[p]
                    first[p] = n_scopes + cliques
            cliques += 1
        bucket_ptr[b + 1] = cliques
        if total > log2_total:
            break
    return (
        bucket_ptr,
        clique_ptr[: cliques + 1] - base,
        pool[base : clique_ptr[cliques]],
        parent[:cliques],
        home,
        sizes[:cliques],
        not total > log2_total,
    )
