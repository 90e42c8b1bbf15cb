"""The elimination game on a graph: remove a vertex, join its neighbours, and again."""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit
from numpy.typing import NDArray

MIN_SIZE, MIN_FILL, GIVEN = 0, 1, 2


@njit(cache=True, nogil=True)
def degeneracy(ptr: NDArray[np.int64], neighbours: NDArray[np.int64]) -> int:
    """The largest minimum degree of any subgraph: a lower bound on the width of every order."""
    n = ptr.size - 1
    degree = np.empty(n, np.int64)
    for v in range(n):
        degree[v] = ptr[v + 1] - ptr[v]
    gone = np.zeros(n, np.bool_)
    # Bucket queue (Matula and Beck, 1983): vertices by degree, lazily re-filed.
    head = np.full(n + 1, -1, np.int64)
    follow = np.full(n + neighbours.size, -1, np.int64)
    item = np.empty(n + neighbours.size, np.int64)
    used = 0
    for v in range(n):
        item[used] = v
        follow[used] = head[degree[v]]
        head[degree[v]] = used
        used += 1
    best, level, left = 0, 0, n
    while left > 0:
        while head[level] < 0:
            level += 1
        entry = head[level]
        head[level] = follow[entry]
        v = item[entry]
        if gone[v] or degree[v] != level:
            continue
        gone[v] = True
        left -= 1
        best = max(best, level)
        for at in range(ptr[v], ptr[v + 1]):
            u = neighbours[at]
            if not gone[u]:
                degree[u] -= 1
                item[used] = u
                follow[used] = head[degree[u]]
                head[degree[u]] = used
                used += 1
        level = max(level - 1, 0)
    return best


@njit(cache=True, nogil=True)
def _count_bits(x: np.uint64) -> int:
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True, nogil=True)
def _members(row: NDArray[np.uint64], out: NDArray[np.int64]) -> int:
    """Write the numbers of the bits set in `row` to `out`; return how many."""
    count = 0
    for w in range(row.size):
        word = row[w]
        while word != np.uint64(0):
            low = word & (~word + np.uint64(1))
            out[count] = 64 * w + _count_bits(low - np.uint64(1))
            count += 1
            word ^= low
    return count


@njit(cache=True, nogil=True)
def eliminate_bits(
    bits: NDArray[np.uint64],
    log2_card: NDArray[np.float64],
    rule: int,
    given: NDArray[np.int64],
    noise: NDArray[np.float64],
    cap: float,
    order: NDArray[np.int64],
) -> tuple[float, float]:
    """Play the elimination game on `bits` (n, words), which is consumed; fill `order`.

    Returns how many words were touched, and log2 of the sum over steps of the clique's prod of
    cards; inf once that passes `cap`.
    """
    n, words = bits.shape
    alive = np.ones(n, np.bool_)
    dirty = np.ones(n, np.bool_)
    score = np.empty(n)
    size = np.empty(n)
    ring = np.empty(n, np.int64)
    second = np.empty(n, np.int64)
    total, work = -np.inf, 0.0
    for step in range(n):
        work += n
        if rule == GIVEN:
            best = given[step]
        else:
            best = -1
            for v in range(n):
                if not alive[v]:
                    continue
                if dirty[v]:
                    dirty[v] = False
                    count = _members(bits[v], ring)
                    size[v] = log2_card[v]
                    for j in range(count):
                        size[v] += log2_card[ring[j]]
                    score[v] = size[v]
                    work += words
                    if rule == MIN_FILL:
                        work += 4 * count * words
                        fill = 0
                        for j in range(count):
                            row = bits[ring[j]]
                            for w in range(words):
                                fill += _count_bits(bits[v, w] & ~row[w])
                        score[v] = fill - count + 1e-3 * size[v]
                    score[v] += noise[v]
                if best < 0 or score[v] < score[best]:
                    best = v
        count = _members(bits[best], ring)
        work += 2 * count * words
        here = log2_card[best]
        for j in range(count):
            here += log2_card[ring[j]]
        high = max(total, here)
        total = high + np.log2(2.0 ** (total - high) + 2.0 ** (here - high))
        if total > cap:
            return work, np.inf
        order[step] = best
        alive[best] = False
        word, mask = best // 64, ~(np.uint64(1) << np.uint64(best % 64))
        bits[best, word] &= mask
        for j in range(count):
            a = ring[j]
            dirty[a] = True
            bits[a, word] &= mask
        for j in range(count):
            a = ring[j]
            for w in range(words):
                extra = bits[best, w] & ~bits[a, w]
                if w == a // 64:
                    extra &= ~(np.uint64(1) << np.uint64(a % 64))
                if extra == np.uint64(0):
                    continue
                bits[a, w] |= extra
                if rule == MIN_FILL:
                    # A new edge (a, b) changes the fill of whoever is next to both.
                    while extra != np.uint64(0):
                        low = extra & (~extra + np.uint64(1))
                        b = 64 * w + _count_bits(low - np.uint64(1))
                        bits[b, a // 64] |= np.uint64(1) << np.uint64(a % 64)
                        extra ^= low
                        for u in range(_members(bits[a] & bits[b], second)):
                            dirty[second[u]] = True
                        work += 4 * words
    return work, total


def bit_rows(ptr: NDArray[np.int64], neighbours: NDArray[np.int64]) -> NDArray[np.uint64]:
    n = ptr.size - 1
    bits = np.zeros((n, max(1, -(-n // 64))), dtype=np.uint64)
    rows = np.repeat(np.arange(n), np.diff(ptr))
    one = np.left_shift(np.uint64(1), (neighbours % 64).astype(np.uint64))
    np.bitwise_or.at(bits, (rows, neighbours // 64), one)
    return bits


def eliminate_sets(
    ptr: NDArray[np.int64],
    neighbours: NDArray[np.int64],
    log2_card: NDArray[np.float64],
    rule: int,
    given: NDArray[np.int64],
    cap: float,
) -> tuple[NDArray[np.int64], float]:
    """`eliminate_bits` with sets, for large sparse graphs: smallest clique first, or as given."""
    n = ptr.size - 1
    near = [set(neighbours[ptr[v] : ptr[v + 1]].tolist()) for v in range(n)]
    weight = log2_card.tolist()
    size = [weight[v] + sum(weight[u] for u in near[v]) for v in range(n)]
    heap = [(size[v], v) for v in range(n)] if rule == MIN_SIZE else []
    heapq.heapify(heap)
    alive = [True] * n
    order: list[int] = []
    entries, limit = 0.0, 2.0**cap
    while len(order) < n:
        if rule == MIN_SIZE:
            claimed, v = heapq.heappop(heap)
            if not alive[v] or claimed != size[v]:
                continue
        else:
            v = int(given[len(order)])
            size[v] = weight[v] + sum(weight[u] for u in near[v])
        entries += 2.0 ** min(size[v], 1000.0)
        if entries > limit:
            return np.arange(n), np.inf
        order.append(v)
        alive[v] = False
        ring = near[v]
        near[v] = set()
        for u in ring:
            near[u] |= ring
            near[u] -= {u, v}
            if rule == MIN_SIZE:
                size[u] = weight[u] + sum(weight[x] for x in near[u])
                heapq.heappush(heap, (size[u], u))
    return np.array(order, dtype=np.int64), float(np.log2(entries))
