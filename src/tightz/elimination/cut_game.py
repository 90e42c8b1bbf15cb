"""The elimination game of mini-buckets: buckets are cut while the order is chosen.

An order for exact elimination expects the neighbours of a variable to be joined by its message.
Where the bucket is cut only those within one mini-bucket are, so the graph stays sparser, and what
comes next should be chosen on it. Here each vertex costs the edges that its messages would really
add, and a price for each cut.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.elimination.buckets import assign
from tightz.elimination.graph import Scopes
from tightz.runtime.kernels import inner, kernel

_SLACK = 1e-9  # log2 of table sizes are sums of floats
_BLOCK = 64  # vertices of which the cheapest is kept
_MOST_HELD = 1 << 24  # mini-buckets x variables of one bucket; with more the game ends


def play_with_cuts(
    scopes: Scopes,
    *,
    log2_card: ArrayLike,
    log2_table: float,
    cut: float,
    noise: ArrayLike = 0.0,
    work: float = np.inf,
) -> NDArray[np.int64]:
    """The vertices in the order that they are taken; those left after `work` steps are not in it.

    The cheapest vertex goes first: the new edges that its mini-buckets (tables of at most
    2^log2_table entries) make, `cut` for each of them after the first, and its `noise` (n,).
    """
    n = scopes.n
    bits = np.array(np.broadcast_to(log2_card, n), dtype=np.float64)
    # A variable of one state costs nothing at any time. Without them a message has no more members
    # than a table of the limit, or than the largest scope, which may be larger by itself.
    single = np.flatnonzero(bits == 0.0)
    scopes = scopes.without(bits == 0.0)
    sizes = np.diff(scopes.ptr)
    width = int(max(sizes.max(initial=1), min(log2_table / bits[bits > 0].min(initial=1.0) + 1, n)))
    ptr = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(scopes.members, minlength=n), out=ptr[1:])
    most = int(np.diff(ptr).max(initial=1))
    ints = [np.empty(max(most, 1), dtype=np.int64) for _ in range(5)]
    order = np.empty(n, dtype=np.int64)
    order[: single.size] = single
    taken = _play(
        (scopes.ptr, scopes.members),
        (np.empty(sizes.size * width, dtype=np.int64), np.zeros(sizes.size, dtype=np.int64), width),
        (ptr, np.empty(scopes.members.size, dtype=np.int64), np.zeros(n, dtype=np.int64)),
        (bits, np.array(np.broadcast_to(noise, n), dtype=np.float64)),
        (float(log2_table) + _SLACK, float(cut), float(work)),
        (*ints[:3], np.empty(max(most, 1)), *ints[3:]),
        (
            np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.int64),
            np.empty(min(max(most, 1) * n, _MOST_HELD), dtype=np.bool_), np.empty(max(most, 1)),
        ),
        (
            np.empty(n), np.zeros(n, dtype=np.int64), np.empty(n, dtype=np.int64),
            np.full(n // _BLOCK + 1 + n // _BLOCK**2 + 1, -1, dtype=np.int64),
        ),
        order,
        single.size,
    )  # fmt: skip
    return order[:taken]


@inner
def _put(item, items, lists):
    """Enter an item in the lists of its members."""
    slots, length, width = items
    ptr, near, degree = lists
    for at in range(item * width, item * width + length[item]):
        v = slots[at]
        near[ptr[v] + degree[v]] = item
        degree[v] += 1


@inner
def _drop(item, items, lists):
    """Take an item out of the lists of its members."""
    slots, length, width = items
    ptr, near, degree = lists
    for at in range(item * width, item * width + length[item]):
        v = slots[at]
        for k in range(ptr[v], ptr[v] + degree[v]):
            if near[k] == item:
                degree[v] -= 1
                near[k] = near[ptr[v] + degree[v]]
                break
    length[item] = 0


@inner
def _cut_bucket(v, items, lists, bits, limit, waiting, space, clock):
    """The mini-buckets of v: (how many, how many variables, v itself the first, steps)."""
    slots, length, width = items
    ptr, near, degree = lists
    universe, rank, seen, holds, sizes = space
    number, start, stop, _, _, choice = waiting
    universe[0], rank[v], found, steps, whole = v, 0, 1, 0, bits[v]
    seen[v] = clock
    count = degree[v]
    for k in range(count):
        item = near[ptr[v] + k]
        number[k], start[k], stop[k] = item, item * width, item * width + length[item]
        steps += length[item]
        for at in range(start[k], stop[k]):
            u = slots[at]
            if seen[u] != clock:
                seen[u] = clock
                rank[u] = found
                universe[found] = u
                whole += bits[u]
                found += 1
    if whole <= limit or count <= 1:
        for k in range(count):
            choice[k] = 0
        for r in range(found):
            holds[r] = True
        return 1, found, steps
    used = assign(waiting, count, slots, bits, rank, holds, found, sizes, 0, limit)
    return used, found, 2 * steps


@inner
def _new_edges(used, found, items, lists, space, clock):
    """Pairs of variables, not neighbours yet, that some mini-bucket holds: (pairs, steps)."""
    slots, length, width = items
    ptr, near, degree = lists
    universe, _, seen, holds, _ = space
    new, steps = 0, 0
    for r in range(1, found):
        x = universe[r]
        clock += 1
        for k in range(ptr[x], ptr[x] + degree[x]):
            item = near[k]
            steps += length[item]
            for at in range(item * width, item * width + length[item]):
                seen[slots[at]] = clock
        for m in range(used):
            if holds[m * found + r]:
                for s in range(r + 1, found):
                    if holds[m * found + s] and seen[universe[s]] != clock:
                        seen[universe[s]] = clock  # counted once
                        new += 1
    return new, steps + used * found * found // 2


@inner
def _within(one, two, items):
    """Whether all members of item one are members of item two."""
    slots, length, width = items
    if length[one] > length[two]:
        return False
    for a in range(one * width, one * width + length[one]):
        found = False
        for b in range(two * width, two * width + length[two]):
            found = found or slots[b] == slots[a]
        if not found:
            return False
    return True


@inner
def _settle(item, items, lists):
    """File an item unless another one holds it; those that it holds go."""
    slots, length, width = items
    ptr, near, degree = lists
    if length[item] == 0:
        return
    v = slots[item * width]
    for at in range(item * width + 1, item * width + length[item]):
        v = slots[at] if degree[slots[at]] < degree[v] else v
    for k in range(degree[v] - 1, -1, -1):
        other = near[ptr[v] + k]
        if _within(item, other, items):
            length[item] = 0
            return
        if _within(other, item, items):
            _drop(other, items, lists)
    _put(item, items, lists)


@inner
def _cheapest(block, cost, mark, low):
    """Find the cheapest vertex of a block that is not taken; the least number breaks ties.

    `low` has it for each block of vertices, then for each block of blocks: a look at all blocks for
    every vertex taken would be quadratic.
    """
    best = -1
    for v in range(block * _BLOCK, min(cost.size, (block + 1) * _BLOCK)):
        if mark[v] >= 0 and (best < 0 or cost[v] < cost[best]):
            best = v
    low[block] = best
    blocks = cost.size // _BLOCK + 1
    above, best = block // _BLOCK, -1
    for b in range(above * _BLOCK, min(blocks, (above + 1) * _BLOCK)):
        v = low[b]
        if v >= 0 and (best < 0 or cost[v] < cost[best]):
            best = v
    low[blocks + above] = best


@kernel
def _play(scopes, items, lists, prices, limits, waiting, space, scores, order, taken):
    """Fill `order`, which begins with `taken` vertices; returns how many it has in the end.

    Item f has the members slots[f * width : f * width + length[f]]: a scope, later a message in the
    place of one that it replaces. A vertex is never in more items than at the start, so its list in
    `near` is long enough. space: universe, rank, seen (n,), holds and sizes as for `assign`.
    scores: cost (n,), mark (n,) of when a vertex was last to be scored (-1: taken), those to score
    (n,), the cheapest of each block and of each block of blocks.
    """
    first, members = scopes
    slots, length, width = items
    ptr, near, degree = lists
    bits, noise = prices
    limit, cut, work = limits
    universe, _, _, holds, _ = space
    number, _, _, _, _, choice = waiting
    cost, mark, stale, low = scores
    n, clock, spent = bits.size, 0, 0.0
    for f in range(first.size - 1):
        length[f] = first[f + 1] - first[f]
        for at in range(length[f]):
            slots[f * width + at] = members[first[f] + at]
        _settle(f, items, lists)
    for k in range(taken):
        mark[order[k]] = -1
    count = 0
    for v in range(n):
        if mark[v] >= 0:
            stale[count] = v
            count += 1
    while True:
        for k in range(count):
            v = stale[k]
            clock += 1
            used, found, steps = _cut_bucket(v, items, lists, bits, limit, waiting, space, clock)
            spent += steps
            if used < 0 or spent > work:
                return taken
            new, steps = _new_edges(used, found, items, lists, space, clock)
            clock += found
            spent += steps
            cost[v] = new + cut * (used - 1) + noise[v]
        if taken == n:
            return taken
        for k in range(count):
            block = stale[k] // _BLOCK
            if k == 0 or block != stale[k - 1] // _BLOCK:
                _cheapest(block, cost, mark, low)
        v = -1
        for above in range(n // _BLOCK + 1, low.size):
            u = low[above]
            if u >= 0 and (v < 0 or cost[u] < cost[v]):
                v = u
        spent += low.size - n // _BLOCK
        order[taken] = v
        taken += 1
        mark[v] = -1
        _cheapest(v // _BLOCK, cost, mark, low)
        # The bucket is cut, and each mini-bucket's message takes the place of one of its items.
        clock += 1
        used, found, _ = _cut_bucket(v, items, lists, bits, limit, waiting, space, clock)
        held = degree[v]
        for k in range(held):
            _drop(number[k], items, lists)
        for m in range(used if held > 0 else 0):
            item = -1
            for k in range(held):
                if choice[k] == m:
                    item = number[k]
                    break
            for r in range(1, found):
                if holds[m * found + r]:
                    slots[item * width + length[item]] = universe[r]
                    length[item] += 1
            _settle(item, items, lists)
        # What lies within two steps of v may cost something else now.
        count = 0
        for r in range(1, found):
            stale[count] = universe[r]
            mark[universe[r]] = taken
            count += 1
        for s in range(count):
            x = stale[s]
            for k in range(ptr[x], ptr[x] + degree[x]):
                item = near[k]
                for at in range(item * width, item * width + length[item]):
                    u = slots[at]
                    if mark[u] >= 0 and mark[u] != taken:
                        mark[u] = taken
                        stale[count] = u
                        count += 1
