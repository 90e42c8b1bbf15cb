"""The heaviest scopes that an elimination of bounded width can hold, taken one after the other.

Whether one more scope fits is asked of the elimination trees of those kept so far. It can change
the separators of its members and of what lies above them, and of nothing else: the rest stays
eliminated, each tree that hangs below as a clique over its separator. So only these nodes play the
elimination game again (least degree first, then least height, which keeps paths short), and a scope
costs the depth of the trees, not their size.

The game is greedy and may fail where an order exists. One does exist where a scope meets another
tree in one spin: a tree can be eliminated with any of its spins last, and then hangs below the rest
of the scope (`_hang`). Trees left apart see each other through means alone, which costs most.

All scopes are tried at a small width first, those refused again at larger ones. Early games that
may spend the whole width do, and what they spend is not there for later scopes: on a 100x100 grid,
w = 1, in one pass a width of 5 kept less than one of 3, and q of width 6 stayed 8.9 nats below
log Z, by stages 6.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.graph import Scopes, interaction_graph
from tightz.runtime.kernels import inner, kernel

MAX_PLAYED = 1024
"""Nodes that play again for one scope; where there would be more it is refused."""

FIRST, STEP = 3, 2
"""The width of the first stage, and what each stage adds."""

_OPEN, _KEPT, _REFUSED = 0, 1, 2


def keep_heaviest(scopes: Scopes, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(order, kept): each scope in turn that leaves an order within `width`, which must be >= 1.

    Stage by stage: a scope that fits only with more width than the stage has, or than its own size
    asks for, waits for the next.
    """
    n, count = scopes.n, scopes.ptr.size - 1
    graph = interaction_graph(scopes)
    size = min(MAX_PLAYED, max(n, 1))
    kept = np.zeros(count, dtype=np.bool_)
    trees = (
        np.full(n, -1, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.full(n, -1, dtype=np.int64),
        np.full(n, -1, dtype=np.int64),
        np.zeros((n, width), dtype=np.int64),
        np.zeros(n, dtype=np.int64),
    )
    edges = graph.ptr, graph.neighbours, np.zeros(graph.neighbours.size, dtype=np.int8)
    region = np.empty(size, dtype=np.int64), np.full(n, -1, dtype=np.int64), np.empty(n, np.int64)
    game = (
        np.zeros((size, -(-size // _BITS)), dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        np.zeros((size, width), dtype=np.int64),
        np.zeros(size, dtype=np.int64),
    )
    caps = np.array([*range(FIRST, width, STEP), width])
    _keep(scopes.ptr, scopes.members, caps, trees, edges, region, game, kept)
    return np.argsort(trees[1], kind="stable"), np.flatnonzero(kept)


_BITS = 32
"""Of a word that are used: half of it, so that no shift meets the sign."""


@inner
def _ones(x):  # type: ignore[no-untyped-def]
    """Set bits of a word."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24) & 0xFF


@inner
def _edge(ptr, neighbours, u, v):  # type: ignore[no-untyped-def]
    """Where v stands in the row of u."""
    for e in range(ptr[u], ptr[u + 1]):
        if neighbours[e] == v:
            return e
    return -1


@inner
def _edges_of(edges, members, low, high):  # type: ignore[no-untyped-def]
    """(edges of a scope that are not kept yet, whether one was refused, ends of the last)."""
    ptr, neighbours, state = edges
    new, barred, one, two = 0, False, -1, -1
    for i in range(low, high):
        for j in range(i + 1, high):
            e = _edge(ptr, neighbours, members[i], members[j])
            if state[e] != _KEPT:
                new, one, two = new + 1, members[i], members[j]
                barred |= state[e] == _REFUSED
    return new, barred, one, two


@inner
def _chains(parent, members, low, high, nodes, place):  # type: ignore[no-untyped-def]
    """The members and all above them, to `nodes` and numbered by `place`; -1: they are too many."""
    size = 0
    for i in range(low, high):
        k = members[i]
        while k >= 0 and place[k] < 0:
            if size == nodes.size:
                for j in range(size):
                    place[nodes[j]] = -1
                return -1
            place[k] = size
            nodes[size] = k
            size += 1
            k = parent[k]
    return size


@inner
def _join(bits, i, j):  # type: ignore[no-untyped-def]
    bits[i, j >> 5] |= 1 << (j & 31)
    bits[j, i >> 5] |= 1 << (i & 31)


@inner
def _lay_out(trees, edges, members, low, high, region, size, game):  # type: ignore[no-untyped-def]
    """The graph that is played on: kept edges, the new scope, and what hangs below as cliques.

    Returns how many trees hang below.
    """
    _, height, child, sibling, sep, sep_size = trees
    ptr, neighbours, state = edges
    nodes, place, hanging = region
    bits, degree, turn, tall, _, _ = game
    words = (size + 31) >> 5
    for i in range(size):
        tall[i], turn[i] = 0, -1
        for w in range(words):
            bits[i, w] = 0
    count = 0
    for i in range(size):
        u = nodes[i]
        c = child[u]
        while c >= 0:
            if place[c] < 0:
                hanging[count] = c
                count += 1
                for a in range(sep_size[c]):
                    x = place[sep[c, a]]
                    tall[x] = max(tall[x], height[c] + 1)
                    for b in range(a):
                        _join(bits, x, place[sep[c, b]])
            c = sibling[c]
        for e in range(ptr[u], ptr[u + 1]):
            if state[e] == _KEPT and place[neighbours[e]] >= 0:
                _join(bits, i, place[neighbours[e]])
    for a in range(low, high):
        for b in range(low, a):
            _join(bits, place[members[a]], place[members[b]])
    for i in range(size):
        degree[i] = 0
        for w in range(words):
            degree[i] += _ones(bits[i, w])
    return count


@inner
def _play(size, width, game):  # type: ignore[no-untyped-def]
    """Eliminate all nodes; False where the least degree exceeds the width."""
    bits, degree, turn, tall, after, after_size = game
    words = (size + 31) >> 5
    for step in range(size):
        best = -1
        for i in range(size):
            if turn[i] < 0 and (
                best < 0
                or degree[i] < degree[best]
                or (degree[i] == degree[best] and tall[i] < tall[best])
            ):
                best = i
        if degree[best] > width:
            return False
        turn[best] = step
        count = 0
        for w in range(words):
            left = bits[best, w]
            while left:
                one = left & -left
                after[best, count] = (w << 5) + _ones(one - 1)
                count += 1
                left ^= one
        after_size[best] = count
        for a in range(count):
            i = after[best, a]
            tall[i] = max(tall[i], tall[best] + 1)
            degree[i] = 0
            for w in range(words):
                bits[i, w] |= bits[best, w]
            bits[i, i >> 5] &= ~(1 << (i & 31))
            bits[i, best >> 5] &= ~(1 << (best & 31))
            for w in range(words):
                degree[i] += _ones(bits[i, w])
    return True


@inner
def _adopt(trees, region, size, hanging_count, game):  # type: ignore[no-untyped-def]
    """The trees as the game left them; what hangs below goes to the first of its separator."""
    parent, height, child, sibling, sep, sep_size = trees
    nodes, place, hanging = region
    _, _, turn, tall, after, after_size = game
    for i in range(size):
        u = nodes[i]
        child[u] = -1
        height[u], sep_size[u] = tall[i], after_size[i]
        for a in range(after_size[i]):
            sep[u, a] = nodes[after[i, a]]
    for i in range(size + hanging_count):
        u = nodes[i] if i < size else hanging[i - size]
        first = -1
        for a in range(sep_size[u]):
            if first < 0 or turn[place[sep[u, a]]] < turn[place[first]]:
                first = sep[u, a]
        parent[u] = first
        if first >= 0:
            sibling[u] = child[first]
            child[first] = u


@inner
def _root(parent, k):  # type: ignore[no-untyped-def]
    while parent[k] >= 0:
        k = parent[k]
    return k


@inner
def _lone(trees, members, low, high):  # type: ignore[no-untyped-def]
    """(the only member in a tree of its own, the first taken of the others): -1, -1 if not so.

    The others have to lie in one bucket. Of two single spins the one less deep is taken: its tree
    is turned.
    """
    parent, height, _, _, sep, sep_size = trees
    lone, count = -1, 0
    for i in range(low, high):
        mates = 0
        for j in range(low, high):
            mates += _root(parent, members[i]) == _root(parent, members[j])
        if mates == 1:
            count += 1
            if lone < 0 or _depth(parent, members[i]) < _depth(parent, members[lone]):
                lone = i
    if lone < 0 or (count > 1 and high - low > 2):
        return -1, -1
    first = -1
    for i in range(low, high):
        k = members[i]
        if i != lone and (first < 0 or height[k] < height[first]):
            first = k
    for i in range(low, high):
        k = members[i]
        found = i == lone or k == first
        for a in range(sep_size[first]):
            found = found or sep[first, a] == k
        if not found:
            return -1, -1
    return members[lone], first


@inner
def _depth(parent, k):  # type: ignore[no-untyped-def]
    depth = 0
    while parent[k] >= 0:
        k = parent[k]
        depth += 1
    return depth


@inner
def _fill(trees, region, size, game):  # type: ignore[no-untyped-def]
    """The edges that elimination adds between the nodes of one chain: their graph is chordal."""
    _, _, _, _, sep, sep_size = trees
    nodes, place, _ = region
    for i in range(size):
        u = nodes[i]
        for a in range(sep_size[u]):
            _join(game[0], i, place[sep[u, a]])


@inner
def _turn(size, game):  # type: ignore[no-untyped-def]
    """Eliminate a chordal graph without new edges, node 0 last (Tarjan and Yannakakis, 1984).

    Each next node is the one with most neighbours among those numbered; backwards this is an order
    without fill, and the neighbours numbered before a node are its separator.
    """
    bits, marks, turn, tall, after, after_size = game
    for i in range(size):
        marks[i], turn[i] = 0, -1
    for step in range(size):
        best = 0
        if step > 0:
            best = -1
            for i in range(size):
                if turn[i] < 0 and (best < 0 or marks[i] > marks[best]):
                    best = i
        turn[best] = size - 1 - step
        after_size[best] = 0
        for i in range(size):
            if bits[best, i >> 5] >> (i & 31) & 1:
                if turn[i] < 0:
                    marks[i] += 1
                else:
                    after[best, after_size[best]] = i
                    after_size[best] += 1
    # Heights, children first: by now `marks` is free for who has which turn.
    for i in range(size):
        marks[turn[i]] = i
    for step in range(size):
        i = marks[step]
        for a in range(after_size[i]):
            tall[after[i, a]] = max(tall[after[i, a]], tall[i] + 1)


@inner
def _hang(trees, edges, members, low, high, region, game):  # type: ignore[no-untyped-def]
    """Turn the tree of the scope's lone spin so that this comes last; hang it below the others."""
    parent, height, child, sibling, sep, sep_size = trees
    nodes, place, _ = region
    lone, first = _lone(trees, members, low, high)
    if lone < 0:
        return False
    size = 0
    k = lone
    while k >= 0:
        if size == nodes.size:
            size = -1
            break
        place[k], nodes[size] = size, k
        size += 1
        k = parent[k]
    if size < 0:
        for j in range(nodes.size):
            place[nodes[j]] = -1
        return False
    count = _lay_out(trees, edges, members, low, low, region, size, game)
    _fill(trees, region, size, game)
    _turn(size, game)
    _adopt(trees, region, size, count, game)
    for j in range(size):
        place[nodes[j]] = -1
    for i in range(low, high):
        if members[i] != lone:
            sep[lone, sep_size[lone]] = members[i]
            sep_size[lone] += 1
    parent[lone], sibling[lone], child[first] = first, child[first], lone
    least, k = height[lone] + 1, first
    while k >= 0 and height[k] < least:
        height[k] = least
        least, k = least + 1, parent[k]
    return True


@kernel
def _keep(scope_ptr, members, caps, trees, edges, region, game, kept):  # type: ignore[no-untyped-def]
    """kept[s]: whether scope s was taken in; see `keep_heaviest`. caps: the stages' widths.

    trees: parent, height, first child, next sibling, separator and its size of every node; edges:
    the graph of all scopes with the state of each edge; region: the nodes that play, their numbers
    and what hangs below them; game: neighbours as bits, degree, turn, height, separator, its size.
    """
    nodes, place, _ = region
    ptr, neighbours, state = edges
    for cap in caps:
        for e in range(state.size):
            state[e] = _OPEN if state[e] == _REFUSED else state[e]
        for s in range(kept.size):
            low, high = scope_ptr[s], scope_ptr[s + 1]
            if kept[s]:
                continue
            new, barred, one, two = _edges_of(edges, members, low, high)
            # An edge that did not fit once will not fit into a larger graph either, or so rarely
            # that the game is not worth it before the next stage.
            if new == 0 or barred:
                kept[s] = new == 0
                continue
            size = _chains(trees[0], members, low, high, nodes, place)
            if size >= 0:
                count = _lay_out(trees, edges, members, low, high, region, size, game)
                kept[s] = _play(size, max(cap, high - low - 1), game)
                if kept[s]:
                    _adopt(trees, region, size, count, game)
                for i in range(size):
                    place[nodes[i]] = -1
            kept[s] = kept[s] or _hang(trees, edges, members, low, high, region, game)
            if kept[s]:
                for i in range(low, high):
                    for j in range(low, high):
                        if i != j:
                            state[_edge(ptr, neighbours, members[i], members[j])] = _KEPT
            elif new == 1:
                state[_edge(ptr, neighbours, one, two)] = _REFUSED
                state[_edge(ptr, neighbours, two, one)] = _REFUSED
