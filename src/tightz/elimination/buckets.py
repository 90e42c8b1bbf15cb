"""The bucket tree of an elimination order: which tables meet where, and who receives the result.

A bucket gathers every scope that holds its variable and no variable summed out before; it sums its
variable out of their union and sends the rest to the bucket of the next variable in it (Dechter,
1999). Where that union would be too large a bucket can be cut into mini-buckets, each of which does
the same by itself (Dechter and Rish, 2003). Exact plans, cutset sums, forests of structured mean
field, collapse and mini-bucket bounds all read this one tree.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.elimination.graph import Scopes
from tightz.runtime.kernels import inner, kernel
from tightz.runtime.kernels.loops import largest_first, sort_ints

_SLACK = 1e-9  # log2 of table sizes are sums of floats

_NOTHING, _CLIQUES, _POOL, _HOLDS = 0, 1, 2, 3  # where the room of a `_Filling` is short


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
    filling = _Filling(order.size, scopes.ptr, places, bits)
    complete = filling.run(log2_table + _SLACK, float(log2_total))
    return filling.tree(by_place, complete)


def padded(tree: BucketTree, *, log2_card: NDArray[np.float64], log2_table: float) -> BucketTree:
    """A cut tree whose mini-buckets also hold what their parent and a sibling hold.

    Siblings match costs over what they share, and the parent has a place for a longer message, so
    a variable that both have costs nothing but room: tables grow up to `log2_table`, none else.
    Parents come first, so that what they were given can be handed on.
    """
    if not tree.cut:
        return tree
    scopes, parent, bits = list(tree.scopes), tree.parent.tolist(), log2_card.tolist()
    sizes, limit = tree.log2_sizes.tolist(), log2_table + _SLACK
    ends = tree.bucket_ptr.tolist()
    for low, high in reversed(list(itertools.pairwise(ends))):
        if high - low == 1:
            continue
        held = Counter(itertools.chain.from_iterable(scopes[low:high]))
        for c in range(low, high):
            if parent[c] < 0:
                continue
            wider, mine = scopes[parent[c]], set(scopes[c])
            wanted = [v for v in wider if v not in mine and held[v]]
            for v in sorted(wanted, key=lambda v: -held[v]):  # of equal ones the next summed out
                if sizes[c] + bits[v] <= limit:
                    sizes[c] += bits[v]
                    held[v] += 1
                    mine.add(v)
            scopes[c] = scopes[c][:1] + [v for v in wider if v in mine]
    return replace(
        tree,
        scope_ptr=np.concatenate([[0], np.cumsum([len(s) for s in scopes])]).astype(np.int64),
        scope=np.array(list(itertools.chain.from_iterable(scopes)), dtype=np.int64),
        log2_sizes=np.array(sizes),
    )


def _listed(owner: NDArray[np.int64], count: int) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(count)]
    for k, c in enumerate(owner.tolist()):
        if c >= 0:
            out[c].append(k)
    return out


class _Filling:
    """Buckets as they are filled. The kernel stops where room is short and goes on with more.

    Items are the scopes f (numbered f) and the messages of finished cliques c (numbered F + c); an
    item waits in the linked list of its first place. Members of an item lie in `pool`, ascending:
    first those of all scopes, then those of the cliques, a message being its clique less the first.
    Everything is numbered by place in the order.

    items     number, start and stop (its members in the pool), weight, turn (in which they are
              placed) and choice (of the clique) of what waits in one bucket. Room for as many as
              there are scopes: messages are fewer than what they replace
    cliques   ptr (into the pool), parent and log2 size of those made so far
    """

    def __init__(
        self,
        n_buckets: int,
        ptr: NDArray[np.int64],
        places: NDArray[np.int64],
        bits: NDArray[np.float64],
    ) -> None:
        count, n, room = ptr.size - 1, bits.size, n_buckets + 16
        self.ptr, self.base, self.bits = ptr, places.size, bits
        self.first = np.full(n_buckets, -1, dtype=np.int64)
        self.follow = np.empty(count + room, dtype=np.int64)
        self.home = np.full(count, -1, dtype=np.int64)
        self.pool = np.concatenate([places, np.empty(places.size + n + 16, dtype=np.int64)])
        self.bucket_ptr = np.zeros(n_buckets + 1, dtype=np.int64)
        # Plain tuples: numba takes 20 us at every call to see the type of a named one.
        starts, parent = np.full(room, places.size, dtype=np.int64), np.empty(room, dtype=np.int64)
        self.cliques: tuple[NDArray, ...] = (starts, parent, np.empty(room))
        self.holds = np.empty(4 * n + 16, dtype=np.bool_)
        ints = [np.empty(count, dtype=np.int64) for _ in range(5)]
        self.items = (*ints[:3], np.empty(count), *ints[3:])
        self.universe = np.empty(n, dtype=np.int64)
        self.rank, self.seen = np.empty(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)

    def run(self, limit: float, log2_total: float) -> bool:
        """Fill all buckets, or as many as stay within `log2_total` together: whether it is all."""
        _file_scopes(self.ptr, self.pool, self.first, self.follow)
        b, total = 0, -np.inf
        while True:
            b, total, short = _fill(
                b,
                total,
                (float(limit), log2_total),
                (self.ptr, self.pool, self.bits),
                (self.first, self.follow, self.home, self.bucket_ptr),
                self.cliques,
                self.items,
                (self.universe, self.rank, self.seen, self.holds),
            )
            if short == _CLIQUES:
                self.cliques = tuple(map(_doubled, self.cliques))
                self.follow = _doubled(self.follow)
            elif short == _POOL:
                self.pool = _doubled(self.pool)
            elif short == _HOLDS:
                self.holds = _doubled(self.holds)
            else:
                return not total > log2_total

    def tree(self, by_place: NDArray[np.int64], complete: bool) -> BucketTree:
        """With the variables' own numbers."""
        count, base = int(self.bucket_ptr.max()), self.base
        ptr, parent, sizes = self.cliques
        return BucketTree(
            by_place[: self.first.size],
            self.bucket_ptr,
            ptr[: count + 1] - base,
            by_place[self.pool[base : ptr[count]]],
            parent[:count],
            self.home,
            sizes[:count],
            complete,
        )


def _doubled(values: NDArray) -> NDArray:
    return np.concatenate([values, np.empty_like(values)])


@kernel
def _file_scopes(ptr, pool, first, follow):  # type: ignore[no-untyped-def]
    """Every scope waits in the bucket of its first variable, unless that stays."""
    for f in range(ptr.size - 2, -1, -1):
        if ptr[f] < ptr[f + 1] and pool[ptr[f]] < first.size:
            p = pool[ptr[f]]
            follow[f] = first[p]
            first[p] = f


@inner
def _waiting(b, ptr, first, follow, clique_ptr, number, start, stop):  # type: ignore[no-untyped-def]
    """The items of bucket b as they were filed, scopes first: (how many, all their members)."""
    n_scopes = ptr.size - 1
    count, whole = 0, 0
    item = first[b]
    while item >= 0:
        count += 1
        item = follow[item]
    item = first[b]
    for k in range(count - 1, -1, -1):
        number[k] = item
        if item < n_scopes:
            start[k], stop[k] = ptr[item], ptr[item + 1]
        else:
            start[k] = clique_ptr[item - n_scopes] + 1
            stop[k] = clique_ptr[item - n_scopes + 1]
        whole += stop[k] - start[k]
        item = follow[item]
    return count, whole


@inner
def _unite(b, start, stop, count, pool, universe, seen):  # type: ignore[no-untyped-def]
    """All variables that occur in bucket b, in any order; how many."""
    universe[0] = b
    seen[b] = b
    found = 1
    for k in range(count):
        for at in range(start[k], stop[k]):
            v = pool[at]
            if seen[v] != b:
                seen[v] = b
                universe[found] = v
                found += 1
    return found


@inner
def assign(items, count, pool, bits, rank, holds, found, sizes, first, limit):  # type: ignore[no-untyped-def]
    """Which clique of a bucket each item joins: how many cliques, -1 where `holds` is too short.

    holds[m * found + r]: whether clique m has the r-th variable. Largest items first; the first
    clique that has all of an item takes it, else the one that grows least within the limit. The
    size of clique m is sizes[first + m].
    """
    _, start, stop, weight, turn, choice = items
    for k in range(count):
        whole = 0.0
        for at in range(start[k], stop[k]):
            whole += bits[pool[at]]
        weight[k] = whole
        turn[k] = k
    if limit < np.inf:
        largest_first(weight, turn, count)
    used = 0
    for i in range(count):
        k = turn[i]
        best, least = -1, np.inf
        for m in range(used):
            growth, inside = 0.0, True
            for at in range(start[k], stop[k]):
                v = pool[at]
                if not holds[m * found + rank[v]]:
                    growth += bits[v]
                    inside = False
            if inside:
                best, least = m, 0.0
                break
            if growth < least and sizes[first + m] + growth <= limit:
                best, least = m, growth
        if best < 0:
            best, least = used, weight[k]
            used += 1
            if used * found > holds.size:
                return -1
            sizes[first + best] = 0.0
            for r in range(best * found, used * found):
                holds[r] = False
        sizes[first + best] += least
        for at in range(start[k], stop[k]):
            holds[best * found + rank[pool[at]]] = True
        choice[k] = best
    return used


@kernel
def _fill(b, total, limits, scopes, lists, cliques, items, work):  # type: ignore[no-untyped-def]
    """Fill the buckets from b on: (the next bucket, log2 of all tables, what room was short)."""
    limit, log2_total = limits
    ptr, pool, bits = scopes
    first, follow, home, bucket_ptr = lists
    universe, rank, seen, holds = work
    clique_ptr, parent, sizes = cliques
    number, start, stop, _, _, choice = items
    n_buckets, n_scopes = first.size, ptr.size - 1
    c = bucket_ptr[b]
    while b < n_buckets:
        count, whole = _waiting(b, ptr, first, follow, clique_ptr, number, start, stop)
        if c + max(count, 1) >= clique_ptr.size:
            return b, total, _CLIQUES
        if clique_ptr[c] + max(whole, 1) > pool.size:
            return b, total, _POOL
        found = _unite(b, start, stop, count, pool, universe, seen)
        sort_ints(universe, found)  # b itself is the first
        for r in range(found):
            rank[universe[r]] = r
        own = assign(items, count, pool, bits, rank, holds, found, sizes, c, limit)
        if own < 0:
            for r in range(found):  # the bucket is looked at once more
                seen[universe[r]] = -1
            return b, total, _HOLDS
        if count == 0:
            own, holds[0], sizes[c] = 1, True, bits[b]
        for k in range(count):
            if number[k] < n_scopes:
                home[number[k]] = c + choice[k]
            else:
                parent[number[k] - n_scopes] = c + choice[k]
        # The cliques themselves; each files its message in the bucket of its second variable.
        for m in range(own):
            at = clique_ptr[c]
            for r in range(found):
                if holds[m * found + r]:
                    pool[at] = universe[r]
                    at += 1
            clique_ptr[c + 1] = at
            parent[c] = -1
            size = sizes[c]
            high = max(total, size)
            total = high + np.log2(2.0 ** (total - high) + 2.0 ** (size - high))
            if at - clique_ptr[c] > 1:
                p = pool[clique_ptr[c] + 1]
                if p < n_buckets:
                    follow[n_scopes + c] = first[p]
                    first[p] = n_scopes + c
            c += 1
        b += 1
        bucket_ptr[b] = c
        if total > log2_total:
            break
    return b, total, _NOTHING
