"""Elimination orders: which variable to sum out next, by many cheap heuristics, the best kept.

Costs are in table entries: eliminating v from the clique {v} + N(v) costs prod of its cards.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph, Grid

_MIN_SIZE, _MIN_FILL, _GIVEN = 0, 1, 2
_BITSET_LIMIT = 6000  # variables; beyond this n^2 bits are too many
_WORDS_A_SECOND = 4e8  # of `_eliminate`, roughly
_WORDS_A_FACTOR = 2e4  # what a round of contraction paths costs, in the same currency
_PATH_LIMIT = 20_000  # factors; beyond this contraction paths take seconds


@dataclass(frozen=True)
class OrderChoice:
    """The order chosen, which heuristic found it, and what it costs (log2 of table entries)."""

    order: NDArray[np.int64]
    heuristic: str
    log2_cost: float


def interaction_graph(model: FactorGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(ptr, neighbours): which variables share a factor, as compressed sparse rows, sorted."""
    n = model.n_variables
    keys = [np.zeros(0, dtype=np.int64)]
    for _, scopes, _ in model.batches():
        wide = scopes.astype(np.int64)
        for a, b in itertools.permutations(range(wide.shape[1]), 2):
            keys.append(wide[:, a] * n + wide[:, b])
    edges = np.unique(np.concatenate(keys))
    counts = np.bincount(edges // max(n, 1), minlength=n)
    return np.concatenate([[0], np.cumsum(counts)]), edges % max(n, 1)


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
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


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
def _eliminate(
    bits: NDArray[np.uint64],
    log2_card: NDArray[np.float64],
    rule: int,
    given: NDArray[np.int64],
    noise: NDArray[np.float64],
    cap: float,
    order: NDArray[np.int64],
) -> tuple[float, float]:
    """Play the elimination game on `bits` (n, words), which is consumed; fill `order`.

    Returns how many words were touched, and log2 of sum over steps of prod of the clique's cards; inf once it passes `cap`.
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
        if rule == _GIVEN:
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
                    if rule == _MIN_FILL:
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
                if rule == _MIN_FILL:
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


def _bit_rows(ptr: NDArray[np.int64], neighbours: NDArray[np.int64]) -> NDArray[np.uint64]:
    n = ptr.size - 1
    bits = np.zeros((n, max(1, -(-n // 64))), dtype=np.uint64)
    rows = np.repeat(np.arange(n), np.diff(ptr))
    one = np.left_shift(np.uint64(1), (neighbours % 64).astype(np.uint64))
    np.bitwise_or.at(bits, (rows, neighbours // 64), one)
    return bits


def _breadth_first(ptr: NDArray[np.int64], neighbours: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cuthill-McKee: sweeps the graph from one end to the other, good on strips and lattices."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    n = ptr.size - 1
    graph = csr_matrix((np.ones(neighbours.size), neighbours, ptr), shape=(n, n))
    return np.asarray(reverse_cuthill_mckee(graph, symmetric_mode=True), dtype=np.int64)


def _sweeps(model: FactorGraph) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Orders that follow the numbering, or a lattice's columns and diagonals."""
    n = model.n_variables
    yield "natural", np.arange(n)
    yield "reverse", np.arange(n)[::-1].copy()
    if isinstance(model.layout, Grid) and model.layout.rows * model.layout.cols == n:
        rows, cols = np.divmod(np.arange(n), model.layout.cols)
        yield "columns", np.lexsort((rows, cols))
        yield "diagonals", np.lexsort((rows, rows + cols))


def _symbol(v: int) -> str:
    """cotengrust names an index by one character; surrogates are not characters."""
    return chr(v + 0x100 if v + 0x100 < 0xD800 else v + 0x900)


def _from_contraction_path(model: FactorGraph, trials: int, seed: int) -> NDArray[np.int64]:
    """The order in which a cotengrust contraction path sums variables out."""
    from cotengrust import optimize_random_greedy_track_flops

    n = model.n_variables
    scopes = {model.factor(f).scope for f in range(model.n_factors)}
    inputs = [tuple(_symbol(v) for v in s) for s in sorted(scopes) if s]
    sizes = {_symbol(v): float(c) for v, c in enumerate(model.cardinalities)}
    if not inputs:
        return np.arange(n)
    path, _ = optimize_random_greedy_track_flops(
        inputs, [], sizes, trials, seed=seed, simplify=True, use_ssa=True
    )
    uses = np.zeros(n, dtype=np.int64)
    terms: dict[int, dict[int, int]] = {}  # term -> {variable: inputs below it that hold it}
    for k, scope in enumerate(s for s in sorted(scopes) if s):
        terms[k] = dict.fromkeys(scope, 1)
        uses[list(terms[k])] += 1
    order: list[int] = [v for v in range(n) if uses[v] == 0]
    for new, pair in enumerate(path, start=len(inputs)):
        merged: dict[int, int] = {}
        for k in pair:
            for v, count in terms.pop(k).items():
                merged[v] = merged.get(v, 0) + count
        done = [v for v, count in merged.items() if count == uses[v]]
        order += done
        for v in done:
            del merged[v]
        terms[new] = merged
    left = np.ones(n, dtype=bool)
    left[order] = False
    return np.concatenate([order, np.flatnonzero(left)]).astype(np.int64)


def choose_order(
    model: FactorGraph, *, seconds: float | None = None, log2_cap: float = 100.0
) -> OrderChoice:
    """The cheapest order that the heuristics find in about `seconds`.

    Greedy smallest clique and least fill (Rose, 1972; Kjaerulff, 1990), sweeps along the
    numbering or the lattice, Cuthill-McKee, contraction paths of cotengrust, and noisy repeats
    of the greedy ones. A try stops as soon as it costs more than the best so far or more than
    2^`log2_cap` entries; with none below that the cost is inf. By default the search takes a small
    share of what the elimination itself would, at most 3 s. Time is counted in operations, not
    by a clock: the same model always has the same order.
    """
    n = model.n_variables
    if n == 0:
        return OrderChoice(np.zeros(0, dtype=np.int64), "nothing to eliminate", -np.inf)
    ptr, neighbours = interaction_graph(model)
    log2_card = np.log2(model.cardinalities.astype(np.float64))
    best = OrderChoice(np.arange(n), "none within reach", np.inf)
    quiet = np.zeros(n)
    large = n > _BITSET_LIMIT
    rows = np.zeros((0, 0), dtype=np.uint64) if large else _bit_rows(ptr, neighbours)
    spent = 0.0

    def attempt(name: str, rule: int, given: NDArray[np.int64], noise: NDArray[np.float64]) -> None:
        nonlocal best, spent
        cap = min(log2_cap, best.log2_cost)
        if large:
            order, cost = _eliminate_sets(ptr, neighbours, log2_card, rule, given, cap)
        else:
            order = np.empty(n, dtype=np.int64)
            work, cost = _eliminate(rows.copy(), log2_card, rule, given, noise, cap, order)
            spent += work + rows.size
        if cost < best.log2_cost:
            best = OrderChoice(order, name, float(cost))

    attempt("min-size", _MIN_SIZE, best.order, quiet)
    if not large:
        attempt("min-fill", _MIN_FILL, best.order, quiet)
    for name, order in _sweeps(model):
        attempt(name, _GIVEN, order, quiet)
    sweep = _breadth_first(ptr, neighbours)
    attempt("cuthill-mckee", _GIVEN, sweep, quiet)
    attempt("reverse cuthill-mckee", _GIVEN, sweep[::-1].copy(), quiet)
    if seconds is None:
        # More search than the elimination takes cannot pay; it visits about 1e9 entries a second.
        seconds = min(3.0, 0.05 + 0.1 * 2.0 ** min(best.log2_cost, 60.0) / 1e9)
    rng = np.random.default_rng(0)
    trial = 0
    while spent < seconds * _WORDS_A_SECOND:
        if trial % 8 == 0 and model.n_factors <= _PATH_LIMIT:
            attempt("cotengrust", _GIVEN, _from_contraction_path(model, 8, trial), quiet)
            spent += _WORDS_A_FACTOR * model.n_factors
        if large:
            break
        rule, name = [(_MIN_FILL, "noisy min-fill"), (_MIN_SIZE, "noisy min-size")][trial % 2]
        attempt(name, rule, best.order, rng.uniform(0, 1.5, n))
        spent += n  # the draw itself; also: an empty search must end
        trial += 1
    return best


def _eliminate_sets(
    ptr: NDArray[np.int64],
    neighbours: NDArray[np.int64],
    log2_card: NDArray[np.float64],
    rule: int,
    given: NDArray[np.int64],
    cap: float,
) -> tuple[NDArray[np.int64], float]:
    """`_eliminate` for large sparse graphs, with sets: smallest clique first, or a given order."""
    n = ptr.size - 1
    near = [set(neighbours[ptr[v] : ptr[v + 1]].tolist()) for v in range(n)]
    weight = log2_card.tolist()
    size = [weight[v] + sum(weight[u] for u in near[v]) for v in range(n)]
    heap = [(size[v], v) for v in range(n)] if rule == _MIN_SIZE else []
    heapq.heapify(heap)
    alive = [True] * n
    order: list[int] = []
    entries, limit = 0.0, 2.0**cap
    while len(order) < n:
        if rule == _MIN_SIZE:
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
            if rule == _MIN_SIZE:
                size[u] = weight[u] + sum(weight[x] for x in near[u])
                heapq.heappush(heap, (size[u], u))
    return np.array(order, dtype=np.int64), float(np.log2(entries))
