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

from tightz.elimination.graph import Graph, Scopes
from tightz.runtime.kernels import inner, kernel, spliced

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


class _Vertices(NamedTuple):
    log2_card: NDArray[np.float64]
    weight: NDArray[np.float64]
    noise: NDArray[np.float64]
    price: NDArray[np.float64]
    free: NDArray[np.bool_]


class _Moves(NamedTuple):
    order: NDArray[np.int64]
    touched: NDArray[np.int64]
    held: NDArray[np.bool_]


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
    vertices = _Vertices(
        each(log2_card), each(weight), each(noise), each(price), each(free).astype(np.bool_)
    )
    moves = _Moves(np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(n, np.bool_))
    made, total, largest, finished, work = _play(
        graph.neighbours, _new_state(graph.ptr), vertices, rules, moves
    )
    return Played(
        moves.order[:made], moves.touched[:made], moves.held, total, largest, finished, work
    )


class _State(NamedTuple):
    """Per vertex: where its list lies, its length and room; its costs; the key it is filed under.

    A vertex whose `fill` is not known has more neighbours than the rules allow. mark[u] == stamp[0]
    says that u is in the set looked at last, ring[u] == step that it is the vertex of this step or
    its neighbour, seen[u] == step that it is already among the changed ones. `first` is inf for a
    vertex that cannot go. `least` and `stale` are of blocks of `width` vertices: see `_cheapest`.
    """

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    room: NDArray[np.int64]
    bits: NDArray[np.float64]
    fill: NDArray[np.float64]
    known: NDArray[np.bool_]
    left: NDArray[np.bool_]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    mark: NDArray[np.int64]
    stamp: NDArray[np.int64]
    ring: NDArray[np.int64]
    seen: NDArray[np.int64]
    width: NDArray[np.int64]
    least: NDArray[np.int64]
    stale: NDArray[np.bool_]


@kernel
def _new_state(ptr):  # type: ignore[no-untyped-def]
    n = ptr.size - 1
    degrees = ptr[1:] - ptr[:-1]
    width = 1 + int(np.sqrt(n))
    blocks = -(-n // width)
    return _State(
        ptr[:-1].copy(),
        degrees,
        degrees.copy(),
        np.zeros(n),
        np.zeros(n),
        np.zeros(n, np.bool_),
        np.ones(n, np.bool_),
        np.full(n, np.inf),
        np.zeros(n),
        np.zeros(n, np.int64),
        np.zeros(1, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.full(1, width),
        np.full(blocks, -1),
        np.ones(blocks, np.bool_),
    )


@spliced
def _near(state, pool, v):  # type: ignore[no-untyped-def]
    return pool[state.start[v] : state.start[v] + state.length[v]]


@spliced
def _mark(state, members):  # type: ignore[no-untyped-def]
    state.stamp[0] += 1
    for u in members:
        state.mark[u] = state.stamp[0]


@inner
def _count_fill(state, pool, weight, v):  # type: ignore[no-untyped-def]
    """Weight of the pairs of neighbours of v that are not joined, each pair met from both ends."""
    near = _near(state, pool, v)
    _mark(state, near)
    whole = weight[near].sum()
    missing = 0.0
    for u in near:
        joined = weight[u]
        for x in _near(state, pool, u):
            if state.mark[x] == state.stamp[0]:
                joined += weight[x]
        missing += weight[u] * (whole - joined)
    return 0.5 * missing


@spliced
def _file(state, pool, vertices, rules, v):  # type: ignore[no-untyped-def]
    """Put v under its present costs."""
    if not vertices.free[v]:
        return
    degree = state.length[v]
    # Sizes are sums carried along: rounded, so that equal ones stay equal.
    size = np.rint(state.bits[v] * 2.0**20) * 2.0**-20
    if rules.cost == SIZE:
        first, second = size + vertices.noise[v], 0.0
    else:
        # Past the limit the fill is not wanted: the game ends there.
        if not state.known[v] and degree <= rules.neighbours:
            state.fill[v] = _count_fill(state, pool, vertices.weight, v)
            state.known[v] = True
        if rules.cost == FILL:
            first, second = state.fill[v] + vertices.noise[v], size
        else:
            first, second = float(degree), state.fill[v] if state.known[v] else 0.0
    if first != state.first[v] or second != state.second[v]:
        state.first[v], state.second[v] = first, second
        state.stale[v // state.width[0]] = True


@spliced
def _leave(state, v):  # type: ignore[no-untyped-def]
    state.left[v] = False
    state.first[v] = np.inf
    state.stale[v // state.width[0]] = True


@spliced
def _cheapest(state):  # type: ignore[no-untyped-def]
    """(the filed vertex of least key, -1 if there is none; steps taken).

    Vertices lie in blocks of about sqrt(n), each of which keeps its cheapest until one of its keys
    changes: a few blocks are searched again at each step. At these sizes faster than a heap.
    """
    first, second, width = state.first, state.second, state.width[0]
    best, steps = -1, state.least.size
    for k in range(state.least.size):
        if state.stale[k]:
            state.stale[k] = False
            steps += width
            low, one, two = -1, np.inf, np.inf
            for v in range(k * width, min((k + 1) * width, first.size)):
                if first[v] < one or (first[v] == one and second[v] < two):
                    low, one, two = v, first[v], second[v]
            state.least[k] = low if one < np.inf else -1
        v = state.least[k]
        if v >= 0 and (
            best < 0
            or first[v] < first[best]
            or (first[v] == first[best] and second[v] < second[best])
        ):
            best = v
    return best, steps


@inner
def _with_room(state, pool, used, v, more):  # type: ignore[no-untyped-def]
    """Move the list of v to where it has room for `more`: (pool, entries used), grown at need."""
    room = 2 * (state.length[v] + more)
    if used + room > pool.size:
        # Lists of vertices that are gone, and outgrown ones, are left behind.
        live = 0
        for u in range(state.start.size):
            live += state.room[u] if state.left[u] else 0
        fresh = np.empty(2 * (live + room), np.int64)
        used = 0
        for u in range(state.start.size):
            if state.left[u]:
                fresh[used : used + state.length[u]] = _near(state, pool, u)
                state.start[u] = used
                used += state.room[u]
        pool = fresh
    pool[used : used + state.length[v]] = _near(state, pool, v)
    state.start[v], state.room[v] = used, room
    return pool, used + room


@spliced
def _drop(state, pool, a, v):  # type: ignore[no-untyped-def]
    near = _near(state, pool, a)
    for k in range(near.size):
        if near[k] == v:
            near[k] = near[near.size - 1]
            break
    state.length[a] -= 1


@inner
def _update_fill(state, pool, weight, v, step, changed):  # type: ignore[no-untyped-def]
    """The fill of every vertex after v is eliminated, from the lists as they are before.

    With R the neighbours of v, the pairs of R that are not joined become edges. The missing pairs
    among the neighbours of a vertex change in three ways only:
      (1) w sees both ends of a new edge: that pair is no longer missing;
      (2) a in R loses v, which missed exactly the neighbours of a outside R + {v};
      (3) a in R gains b, which misses the neighbours of a outside R + {v} that it does not see.
    Returns how many vertices outside R changed, written to `changed`, and the steps taken.
    """
    ring = _near(state, pool, v)
    state.ring[v] = step
    for a in ring:
        state.ring[a] = step
    outer = np.zeros(ring.size)  # weight of the neighbours outside R + {v}
    count, steps = 0, ring.size * ring.size
    for i in range(ring.size):
        near = _near(state, pool, ring[i])
        steps += 2 * near.size
        for x in near:
            if state.ring[x] != step:
                outer[i] += weight[x]
        state.fill[ring[i]] -= weight[v] * outer[i]  # (2)
    for i in range(ring.size):
        a = ring[i]
        _mark(state, _near(state, pool, a))
        for j in range(i + 1, ring.size):
            b = ring[j]
            if state.mark[b] == state.stamp[0]:
                continue
            common = 0.0  # weight of what both a and b see outside R + {v}
            near = _near(state, pool, b)
            steps += near.size
            for w in near:
                if state.mark[w] != state.stamp[0] or w == v:
                    continue
                state.fill[w] -= weight[a] * weight[b]  # (1)
                if state.ring[w] != step:
                    common += weight[w]
                    if state.seen[w] != step:
                        state.seen[w] = step
                        changed[count] = w
                        count += 1
            state.fill[a] += weight[b] * (outer[i] - common)  # (3)
            state.fill[b] += weight[a] * (outer[j] - common)
    return count, steps


@spliced
def _join(state, pool, used, log2_card, v, ring):  # type: ignore[no-untyped-def]
    """Take v out of its neighbours' lists (`ring`, a copy) and join them; (pool, used, steps)."""
    steps = 0
    for a in ring:
        _drop(state, pool, a, v)
        near = _near(state, pool, a)
        steps += near.size + ring.size
        _mark(state, near)
        state.mark[a] = state.stamp[0]
        state.bits[a] -= log2_card[v]
        more = 0
        for b in ring:
            more += state.mark[b] != state.stamp[0]
        if more == 0:
            continue
        if state.length[a] + more > state.room[a]:
            pool, used = _with_room(state, pool, used, a, more)
        for b in ring:
            if state.mark[b] != state.stamp[0]:
                pool[state.start[a] + state.length[a]] = b
                state.length[a] += 1
                state.bits[a] += log2_card[b]
    return pool, used, steps


@inner
def _to_hold(state, pool, vertices, v):  # type: ignore[no-untyped-def]
    """The member of v's clique that most other cliques have, for its price; the last of equals."""
    best, most = v, (state.length[v] + vertices.noise[v]) / vertices.price[v]
    for u in _near(state, pool, v):
        value = (state.length[u] + vertices.noise[u]) / vertices.price[u]
        if value > most or (value == most and u > best):
            best, most = u, value
    return best


@kernel
def _play(neighbours, state, vertices, rules, moves):  # type: ignore[no-untyped-def]
    """(moves made, log2 of all tables, log2 of the largest, whether it was finished, work)."""
    n = state.start.size
    pool, used = np.empty(4 * (neighbours.size + n), np.int64), 0
    for v in range(n):  # with room to grow: most lists stay where they are
        pool[used : used + state.length[v]] = neighbours[state.start[v] :][: state.length[v]]
        state.start[v], state.room[v] = used, 2 * state.length[v] + 2
        used += state.room[v]
    changed = np.empty(n, np.int64)
    work = float(n + used)
    for v in range(n):
        near = _near(state, pool, v)
        state.bits[v] = vertices.log2_card[v]
        for u in near:
            state.bits[v] += vertices.log2_card[u]
            if rules.cost != SIZE and near.size <= rules.neighbours:
                work += state.length[u]
        if work > rules.work:
            return 0, -np.inf, 0.0, False, work
        _file(state, pool, vertices, rules, v)
    made, step, largest = 0, 0, 0.0
    entries, most = 0.0, 2.0 ** min(rules.log2_total, _LARGEST)
    while True:
        v, steps = _cheapest(state)
        work += steps
        if v < 0:
            return made, np.log2(entries), largest, True, work
        if state.length[v] > rules.neighbours or work > rules.work:
            return made, np.log2(entries), largest, False, work
        step += 1
        if state.bits[v] > rules.log2_table and state.length[v] > 0:
            u = _to_hold(state, pool, vertices, v)
            moves.held[u] = True
            _leave(state, u)
            for a in _near(state, pool, u):
                _drop(state, pool, a, u)
                state.bits[a] -= vertices.log2_card[u]
                _file(state, pool, vertices, rules, a)
            continue
        entries += 2.0 ** min(state.bits[v], _LARGEST)
        if entries > most:
            return made, np.log2(entries), largest, False, work
        largest = max(largest, state.bits[v])
        ring = _near(state, pool, v).copy()
        moves.order[made], moves.touched[made] = v, ring.size
        made += 1
        _leave(state, v)
        others = 0
        if rules.cost != SIZE:
            others, steps = _update_fill(state, pool, vertices.weight, v, step, changed)
            work += steps
        pool, used, steps = _join(state, pool, used, vertices.log2_card, v, ring)
        work += steps
        for a in ring:
            _file(state, pool, vertices, rules, a)
        for k in range(others):
            _file(state, pool, vertices, rules, changed[k])


def widen(scopes: Scopes, neighbours: int, most_trials: int) -> NDArray[np.int64]:
    """The scopes that, added in turn, leave a game of least SIZE within `neighbours`.

    Blocks are tried together: a block grows when it fits and is halved when it does not. After
    `most_trials` games what is left is not tried. The vertices have two states.
    """
    n = scopes.n
    vertices = _Vertices(np.ones(n), np.ones(n), np.zeros(n), np.ones(n), np.ones(n, np.bool_))
    rules = Rules(SIZE, int(neighbours), np.inf, np.inf, np.inf)
    kept: NDArray[np.int64] = _widen(scopes.ptr, scopes.members, vertices, rules, most_trials)
    return kept


@kernel
def _widen(ptr, members, vertices, rules, most_trials):  # type: ignore[no-untyped-def]
    n, count = vertices.weight.size, ptr.size - 1
    kept = np.empty(count, np.int64)
    used, at, block, trials = 0, 0, n, 0
    joined = np.zeros((n, n), np.bool_)  # the graph of the scopes kept
    trial = np.zeros((n, n), np.bool_)
    refused = np.zeros((n, n), np.bool_)  # edges that did not fit by themselves
    while at < count and trials < most_trials:
        trial[:] = joined
        end = min(at + block, count)
        new, barred, one, two = 0, False, 0, 0
        for f in range(at, end):
            row = members[ptr[f] : ptr[f + 1]]
            for u in row:
                for v in row:
                    if u < v and not trial[u, v]:
                        trial[u, v] = trial[v, u] = True
                        new, one, two = new + 1, u, v
                        barred |= refused[u, v]
        # Without a new edge the graph is what it was. An edge that did not fit once will not fit
        # into a larger graph either, or so rarely that the game is not worth it.
        fits = new == 0
        if new > 0 and not barred:
            trials += 1
            fits = _fits(trial, vertices, rules)
        if fits:
            joined[:] = trial
            for f in range(at, end):
                kept[used] = f
                used += 1
            at = end
            block *= 2
        elif block > 1:
            block //= 2
        else:
            if new == 1:
                refused[one, two] = refused[two, one] = True
            at += 1
    return kept[:used].copy()


@inner
def _fits(adjacency, vertices, rules):  # type: ignore[no-untyped-def]
    """Whether the game on a graph, given as a matrix, can be finished."""
    n = len(adjacency)
    ptr = np.zeros(n + 1, np.int64)
    neighbours = np.empty(adjacency.sum(), np.int64)
    for v in range(n):
        ptr[v + 1] = ptr[v]
        for u in range(n):
            if adjacency[v, u]:
                neighbours[ptr[v + 1]] = u
                ptr[v + 1] += 1
    moves = _Moves(np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(n, np.bool_))
    return _play(neighbours, _new_state(ptr), vertices, rules, moves)[3]
