"""The elimination game: take the cheapest vertex of a graph, join its neighbours, and again.

One game for all who eliminate. What is cheapest, and when the game ends or takes a vertex away
without joining anything, is said by `Rules`:

    exact plans, mini-buckets   SIZE or FILL, to the end or to a total cost
    collapse, structured        DEGREE, until the cheapest touches too many others
    cutsets                     SIZE; where the smallest table is too large a variable is held
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.elimination.graph import Graph
from tightz.runtime.kernels import inner, kernel

SIZE, FILL, DEGREE = 0, 1, 2

_LARGEST = 1000.0  # log2 of a table's entries; as floats they end soon after


class Rules(NamedTuple):
    """cost: SIZE, the log2 of the clique's table; FILL, the weight of the edges that would be new,
    then SIZE; DEGREE, the neighbours, then FILL. The least vertex number breaks ties.

    neighbours: the game ends when the cheapest vertex has more. log2_table (with SIZE): where the
    cheapest clique exceeds it, one of its members is held, that is taken away, instead.
    log2_total: the game ends before the tables of all cliques together exceed it. work: the game
    ends after about so many steps through neighbour lists.
    """

    cost: int
    neighbours: int = 1 << 62
    log2_table: float = np.inf
    log2_total: float = np.inf
    work: float = np.inf


# Kernels get plain tuples of arrays: numba takes long at every call to see the type of a named one.
_Vertices = tuple[
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.bool_],
]


@dataclass(frozen=True, eq=False)
class Played:
    """order: the vertices eliminated; touched: neighbours that each of them had at its turn.

    held (n,): those taken away instead; log2_total and log2_largest of the cliques' tables;
    finished: no vertex was left that may go; work: steps through neighbour lists.
    """

    order: NDArray[np.int64]
    touched: NDArray[np.int64]
    held: NDArray[np.bool_]
    log2_total: float
    log2_largest: float
    finished: bool
    work: float


def play(
    graph: Graph,
    rules: Rules,
    *,
    log2_card: ArrayLike = 1.0,
    weight: ArrayLike = 1.0,
    noise: ArrayLike = 0.0,
    price: ArrayLike = 1.0,
    free: ArrayLike = True,
) -> Played:
    """Play on `graph`; all others are per vertex (n,), or one number for all.

    weight: a new edge between u and v costs weight u times weight v; whole numbers, so that sums
    are exact. noise: added to the costs SIZE and FILL. price > 0: how unwelcome it is to hold a
    vertex. free: which may be eliminated.
    """
    n = graph.n

    # Copies and plain floats: every call has the same types, so the kernel is compiled once.
    def each(values: ArrayLike) -> NDArray[np.float64]:
        out = np.empty(n)
        out[:] = values
        return out

    rules = Rules(int(rules.cost), int(rules.neighbours), *map(float, rules[2:]))
    bits, weights, noises, prices = map(each, (log2_card, weight, noise, price))
    vertices = (bits, weights, noises, prices, each(free).astype(np.bool_))
    return _played(graph, rules, vertices)


def _played(graph: Graph, rules: Rules, vertices: _Vertices) -> Played:
    n = graph.n
    width = 1 + int(np.sqrt(n))
    blocks = -(-n // width)
    start, length, room, mark, where = np.zeros((5, n), np.int64)
    bits, fill, first, second, outer = np.zeros((5, n))
    length[:], first[:] = graph.degrees, np.inf
    moves = np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(n, np.bool_)
    made, total, largest, finished, work = _play(
        tuple(graph),
        (start, length, room),
        (mark, where, np.zeros(1, np.int64)),
        (bits, fill, np.zeros(n, np.bool_), first, second, outer),
        (np.empty(blocks, np.int64), np.ones(blocks, np.bool_), width),
        vertices,
        tuple(rules),
        moves,
    )
    order, touched, held = moves
    return Played(order[:made], touched[:made], held, total, largest, finished, work)


# What the kernels hand on, each array by vertex:
#   lists    start, length and room of its neighbours in `pool`; no room: it has left
#   marks    mark, where, stamp. mark[u] == stamp[0]: u is in the set looked at last. where[u] is
#            2 step for the vertex of this step and its neighbours, 2 step + 1 for others changed
#   costs    bits; fill and whether it is known (if not, there are more neighbours than the rules
#            allow); first and second of the key it is filed under, first inf if it cannot go; and
#            room for `outer`, see `_update_fill`
#   blocks   least and stale, of blocks of so many vertices: see `_cheapest`


@inner
def _mark(lists, pool, marks, v):  # type: ignore[no-untyped-def]
    """Mark the neighbours of v with a new stamp, which is returned."""
    start, length, _ = lists
    mark, _, stamp = marks
    stamp[0] += 1
    for at in range(start[v], start[v] + length[v]):
        mark[pool[at]] = stamp[0]
    return stamp[0]


@inner
def _count_fill(lists, pool, marks, weight, v):  # type: ignore[no-untyped-def]
    """Weight of the pairs of neighbours of v that are not joined, each pair met from both ends."""
    start, length, _ = lists
    mark = marks[0]
    now = _mark(lists, pool, marks, v)
    whole, missing = 0.0, 0.0
    for at in range(start[v], start[v] + length[v]):
        whole += weight[pool[at]]
    for at in range(start[v], start[v] + length[v]):
        u = pool[at]
        joined = weight[u]
        for k in range(start[u], start[u] + length[u]):
            if mark[pool[k]] == now:
                joined += weight[pool[k]]
        missing += weight[u] * (whole - joined)
    return 0.5 * missing


@inner
def _file(lists, pool, marks, costs, blocks, vertices, rules, changed, count):  # type: ignore[no-untyped-def]
    """Put the vertices changed[:count] under their present costs."""
    length = lists[1]
    bits, fill, known, first, second, _ = costs
    _, stale, width = blocks
    _, weight, noise, _, free = vertices
    cost, neighbours, _, _, _ = rules
    for k in range(count):
        v = changed[k]
        if not free[v]:
            continue
        # Sizes are sums carried along: rounded, so that equal ones stay equal.
        size = np.rint(bits[v] * 2.0**20) * 2.0**-20
        one, two = size + noise[v], 0.0
        if cost != SIZE:
            # Past the limit the fill is not wanted: the game ends there.
            if not known[v] and length[v] <= neighbours:
                fill[v] = _count_fill(lists, pool, marks, weight, v)
                known[v] = True
            one, two = fill[v] + noise[v], size
            if cost == DEGREE:
                one, two = float(length[v]), fill[v] if known[v] else 0.0
        if one != first[v] or two != second[v]:
            first[v], second[v] = one, two
            stale[v // width] = True


@inner
def _cheapest(first, second, blocks):  # type: ignore[no-untyped-def]
    """(the filed vertex of least key, -1 if there is none; steps taken).

    Vertices lie in blocks of about sqrt(n), each of which keeps its cheapest until one of its keys
    changes: a few blocks are searched again at each step. At these sizes faster than a heap.
    """
    least, stale, width = blocks
    best, steps = -1, least.size
    for k in range(least.size):
        if stale[k]:
            stale[k] = False
            steps += width
            low, one, two = -1, np.inf, np.inf
            for v in range(k * width, min((k + 1) * width, first.size)):
                if first[v] < one or (first[v] == one and second[v] < two):
                    low, one, two = v, first[v], second[v]
            least[k] = low if one < np.inf else -1
        v = least[k]
        if v >= 0 and (
            best < 0
            or first[v] < first[best]
            or (first[v] == first[best] and second[v] < second[best])
        ):
            best = v
    return best, steps


@inner
def _leave(lists, pool, first, blocks, v, changed):  # type: ignore[no-untyped-def]
    """Take v off the game; its neighbours are written to `changed`: how many."""
    start, length, room = lists
    _, stale, width = blocks
    room[v] = 0
    first[v] = np.inf
    stale[v // width] = True
    for k in range(length[v]):
        changed[k] = pool[start[v] + k]
    return length[v]


@inner
def _drop(lists, pool, a, v):  # type: ignore[no-untyped-def]
    """Take v out of the list of a; the last one takes its place."""
    start, length, _ = lists
    length[a] -= 1
    last = start[a] + length[a]
    for at in range(start[a], last):
        if pool[at] == v:
            pool[at] = pool[last]
            break


@inner
def _with_room(lists, pool, used, ring, reach):  # type: ignore[no-untyped-def]
    """The pool, with room for the lists of all of ring[:reach] when they are joined; entries used.

    Lists of vertices that are gone, and outgrown ones, are left behind when it is too short.
    """
    start, length, room = lists
    more = 0
    for k in range(reach):
        if length[ring[k]] + reach > room[ring[k]]:
            more += 2 * (length[ring[k]] + reach)
    if used + more <= pool.size:
        return pool, used
    live = 0
    for u in range(start.size):
        live += room[u]
    fresh = np.empty(2 * (live + more), np.int64)
    used = 0
    for u in range(start.size):
        if room[u] > 0:
            for k in range(length[u]):
                fresh[used + k] = pool[start[u] + k]
            start[u] = used
            used += room[u]
    return fresh, used


@inner
def _update_fill(lists, pool, marks, fill, outer, weight, v, step, changed, reach):  # type: ignore[no-untyped-def]
    """The fill of every vertex after v is eliminated, from the lists as they are before.

    With R = changed[:reach] the neighbours of v, the pairs of R that are not joined become edges.
    The missing pairs among the neighbours of a vertex change in three ways only:
      (1) w sees both ends of a new edge: that pair is no longer missing;
      (2) a in R loses v, which missed exactly the neighbours of a outside R + {v};
      (3) a in R gains b, which misses the neighbours of a outside R + {v} that it does not see.
    Returns how many vertices changed, R included, all in `changed`, and the steps taken.
    """
    start, length, _ = lists
    mark, where, _ = marks
    where[v] = 2 * step
    for i in range(reach):
        where[changed[i]] = 2 * step
    # outer: weight of the neighbours outside R + {v}
    count, steps = reach, reach * reach
    for i in range(reach):
        a = changed[i]
        outer[i] = 0.0
        steps += 2 * length[a]
        for at in range(start[a], start[a] + length[a]):
            if where[pool[at]] != 2 * step:
                outer[i] += weight[pool[at]]
        fill[a] -= weight[v] * outer[i]  # (2)
    for i in range(reach):
        a = changed[i]
        now = _mark(lists, pool, marks, a)
        for j in range(i + 1, reach):
            b = changed[j]
            if mark[b] == now:
                continue
            common = 0.0  # weight of what both a and b see outside R + {v}
            steps += length[b]
            for at in range(start[b], start[b] + length[b]):
                w = pool[at]
                if mark[w] != now or w == v:
                    continue
                fill[w] -= weight[a] * weight[b]  # (1)
                if where[w] != 2 * step:
                    common += weight[w]
                    if where[w] != 2 * step + 1:
                        where[w] = 2 * step + 1
                        changed[count] = w
                        count += 1
            fill[a] += weight[b] * (outer[i] - common)  # (3)
            fill[b] += weight[a] * (outer[j] - common)
    return count, steps


@inner
def _join(lists, pool, used, marks, bits, log2_card, v, ring, reach):  # type: ignore[no-untyped-def]
    """Take v out of its neighbours' lists, ring[:reach], and join them: (entries used, steps).

    A list that outgrows its room moves to the end of the pool, which is long enough.
    """
    start, length, room = lists
    mark = marks[0]
    steps = 0
    for i in range(reach):
        a = ring[i]
        _drop(lists, pool, a, v)
        steps += length[a] + reach
        now = _mark(lists, pool, marks, a)
        mark[a] = now
        bits[a] -= log2_card[v]
        more = 0
        for j in range(reach):
            more += mark[ring[j]] != now
        if length[a] + more > room[a]:
            for k in range(length[a]):
                pool[used + k] = pool[start[a] + k]
            start[a], room[a] = used, 2 * (length[a] + more)
            used += room[a]
        for j in range(reach):
            b = ring[j]
            if mark[b] != now:
                pool[start[a] + length[a]] = b
                length[a] += 1
                bits[a] += log2_card[b]
    return used, steps


@inner
def _to_hold(lists, pool, vertices, v):  # type: ignore[no-untyped-def]
    """The member of v's clique that most other cliques have, for its price; the last of equals."""
    start, length, _ = lists
    _, _, noise, price, _ = vertices
    best, most = v, (length[v] + noise[v]) / price[v]
    for at in range(start[v], start[v] + length[v]):
        u = pool[at]
        value = (length[u] + noise[u]) / price[u]
        if value > most or (value == most and u > best):
            best, most = u, value
    return best


@inner
def _deal(ptr, neighbours, lists, bits, log2_card, rules, changed, pool):  # type: ignore[no-untyped-def]
    """The lists, with room to grow (most stay where they are), and the sizes: (used, work).

    Work past the rules' is the end of the game: the rest is not looked at then.
    """
    start, length, room = lists
    cost, most, _, _, limit = rules
    used = 0
    for v in range(start.size):
        start[v], room[v] = used, 2 * length[v] + 2
        for k in range(length[v]):
            pool[used + k] = neighbours[ptr[v] + k]
        used += room[v]
    work = float(start.size + used)
    for v in range(start.size):
        changed[v] = v
        bits[v] = log2_card[v]
        for at in range(start[v], start[v] + length[v]):
            bits[v] += log2_card[pool[at]]
            if cost != SIZE and length[v] <= most:
                work += length[pool[at]]
        if work > limit:
            break
    return used, work


@kernel
def _play(graph, lists, marks, costs, blocks, vertices, rules, moves):  # type: ignore[no-untyped-def]
    """(moves made, log2 of all tables, log2 of the largest, whether it was finished, work)."""
    ptr, neighbours = graph
    length = lists[1]
    bits, fill, _, first, second, outer = costs
    log2_card, weight, _, _, _ = vertices
    cost, most_neighbours, log2_table, log2_total, most_work = rules
    order, touched, held = moves
    n = length.size
    changed = np.empty(n, np.int64)
    pool = np.empty(4 * (neighbours.size + n), np.int64)
    used, work = _deal(ptr, neighbours, lists, bits, log2_card, rules, changed, pool)
    if work > most_work:
        return 0, -np.inf, 0.0, False, work
    made, step, largest = 0, np.int64(0), 0.0
    entries, most = 0.0, 2.0 ** min(log2_total, _LARGEST)
    count, finished = n, False
    while True:
        _file(lists, pool, marks, costs, blocks, vertices, rules, changed, count)
        v, steps = _cheapest(first, second, blocks)
        work += steps
        if v < 0:
            finished = True
            break
        if length[v] > most_neighbours or work > most_work:
            break
        step += 1
        if bits[v] > log2_table and length[v] > 0:
            u = _to_hold(lists, pool, vertices, v)
            held[u] = True
            count = _leave(lists, pool, first, blocks, u, changed)
            for k in range(count):
                _drop(lists, pool, changed[k], u)
                bits[changed[k]] -= log2_card[u]
            continue
        entries += 2.0 ** min(bits[v], _LARGEST)
        if entries > most:
            break
        largest = max(largest, bits[v])
        count = reach = _leave(lists, pool, first, blocks, v, changed)
        order[made], touched[made] = v, reach
        made += 1
        if cost != SIZE:
            count, steps = _update_fill(
                lists, pool, marks, fill, outer, weight, v, step, changed, reach
            )
            work += steps
        pool, used = _with_room(lists, pool, used, changed, reach)
        used, steps = _join(lists, pool, used, marks, bits, log2_card, v, changed, reach)
        work += steps
    return made, np.log2(entries), largest, finished, work
