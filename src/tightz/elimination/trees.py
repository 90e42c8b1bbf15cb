"""Contraction trees: in which pairs a model's tables are multiplied, found by annealing.

An elimination order sums out one variable at a time, so a table must hold what is summed out next.
A tree of pairwise products sums out all that two tables share at once, and its largest table can be
smaller by orders of magnitude. A tree is improved by rotations, (A B) C -> A (B C), which change
one intermediate table and two products: annealing tries ten million of them a second (the moves are
those of cotengra's simulated annealing; Gray and Kourtis, 2021). Sets of variables are bits.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.graph import Scopes
from tightz.runtime.kernels import inner, kernel, spliced

WRITE = 24.0
"""What an entry of a result costs (written, and read again) beside one product, which costs 1."""

HOT, COLD = 1.0, 0.05
"""Temperatures of the log of what a rotation changes: from nearly free to nearly greedy."""


class Leaves(NamedTuple):
    """Tables that no other holds within its scope, and the factors that each takes in."""

    scopes: list[tuple[int, ...]]
    factors: list[tuple[int, ...]]


class _Kinds(NamedTuple):
    """Variables by their number of states: bits (kinds, words) and log2 states (kinds,)."""

    masks: NDArray[np.uint64]
    bits: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ContractionTree:
    """A binary tree over `leaves`; leaf k is node k, node x >= L multiplies left[x] and right[x].

    `legs` (nodes, words) are the variables of each node's result, as bits.
    """

    leaves: Leaves
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    legs: NDArray[np.uint64]
    kinds: _Kinds

    @property
    def log2_cost(self) -> float:
        """Of products, and of results at WRITE each."""
        return float(_cost(self.left, self.right, self.legs, *self.kinds)[0])

    @property
    def log2_largest(self) -> float:
        """Entries of the largest result."""
        return float(_cost(self.left, self.right, self.legs, *self.kinds)[1])

    def annealed(self, sweeps: int, seed: int) -> ContractionTree:
        """`sweeps` times as many rotations tried as there are leaves, ever colder."""
        left, right, legs = self.left.copy(), self.right.copy(), self.legs.copy()
        if len(self.leaves.scopes) > 2:
            _anneal(left, right, legs, *self.kinds, HOT, COLD, sweeps, seed)
        return ContractionTree(self.leaves, left, right, legs, self.kinds)

    def nodes(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """(children, factors) per product, children first; a leaf is a factor of its product."""
        count = len(self.leaves.scopes)
        if count == 1:
            return [()], [self.leaves.factors[0]]
        listed: list[int] = []
        stack = [2 * count - 2]
        while stack:
            x = stack.pop()
            listed.append(x)
            stack += [int(y) for y in (self.left[x], self.right[x]) if y >= count]
        listed.reverse()
        place = {x: k for k, x in enumerate(listed)}
        pairs = [(int(self.left[x]), int(self.right[x])) for x in listed]
        children = [tuple(place[y] for y in pair if y >= count) for pair in pairs]
        factors = [
            tuple(f for y in pair if y < count for f in self.leaves.factors[y]) for pair in pairs
        ]
        return children, factors


def leaves_of(scopes: Scopes) -> Leaves:
    """Every scope that is not part of another, with the factors inside it; constants left out."""
    ends, members = scopes.ptr.tolist(), scopes.members.tolist()
    sets = [frozenset(members[a:b]) for a, b in itertools.pairwise(ends)]
    kept: list[frozenset[int]] = []
    taken: list[list[int]] = []
    having: dict[int, list[int]] = {}
    for f in sorted(range(len(sets)), key=lambda f: (-len(sets[f]), f)):
        if not sets[f]:
            continue
        rare = min(sets[f], key=lambda v: len(having.get(v, ())))
        home = next((k for k in having.get(rare, ()) if sets[f] <= kept[k]), None)
        if home is None:
            home = len(kept)
            kept.append(sets[f])
            taken.append([])
            for v in sets[f]:
                having.setdefault(v, []).append(home)
        taken[home].append(f)
    return Leaves([tuple(sorted(s)) for s in kept], [tuple(t) for t in taken])


def tree_by_order(
    scopes: Scopes, cardinalities: NDArray[np.integer], order: NDArray[np.int64]
) -> ContractionTree:
    """The tree that multiplies each variable's tables as it comes up, the smallest first."""
    leaves = leaves_of(scopes)
    count = len(leaves.scopes)
    bits = np.log2(cardinalities.astype(np.float64)).tolist()
    left = np.full(max(2 * count - 1, 0), -1, dtype=np.int64)
    right = left.copy()
    held = {k: set(s) for k, s in enumerate(leaves.scopes)}
    near: list[set[int]] = [set() for _ in range(scopes.n)]
    for k, s in held.items():
        for v in s:
            near[v].add(k)
    made = count

    def join(terms: list[int]) -> int:
        nonlocal made
        while len(terms) > 1:
            terms.sort(key=lambda k: (-sum(bits[v] for v in held[k]), -k))
            a, b = terms.pop(), terms.pop()
            left[made], right[made] = a, b
            held[made] = held.pop(a) | held.pop(b)
            terms.append(made)
            made += 1
        return terms[0]

    for v in order.tolist():
        terms = sorted(near[v])
        for k in terms:
            for u in held[k]:
                near[u].discard(k)
        if terms:
            k = join(terms)
            held[k].discard(v)
            for u in held[k]:
                near[u].add(k)
    if held:
        join(sorted(held))
    values = np.unique(cardinalities)
    words = max(1, -(-scopes.n // 64))
    masks = np.zeros((values.size, words), dtype=np.uint64)
    kind = np.searchsorted(values, cardinalities)
    for v in range(scopes.n):
        masks[kind[v], v >> 6] |= np.uint64(1 << (v & 63))
    legs = _legs(leaves, left, right, scopes.n, words)
    return ContractionTree(leaves, left, right, legs, _Kinds(masks, np.log2(values)))


def _legs(
    leaves: Leaves, left: NDArray[np.int64], right: NDArray[np.int64], n: int, words: int
) -> NDArray[np.uint64]:
    """Variables of every node that some leaf outside it has too."""
    uses = [0] * n
    for scope in leaves.scopes:
        for v in scope:
            uses[v] += 1
    legs = np.zeros((left.size, words), dtype=np.uint64)
    inside: dict[int, dict[int, int]] = {}
    for x in range(left.size):
        if x < len(leaves.scopes):
            count = dict.fromkeys(leaves.scopes[x], 1)
        else:
            count = inside.pop(int(left[x]))
            for v, c in inside.pop(int(right[x])).items():
                count[v] = count.get(v, 0) + c
        inside[x] = {v: c for v, c in count.items() if c < uses[v]}
        for v in inside[x]:
            legs[x, v >> 6] |= np.uint64(1 << (v & 63))
    return legs


@spliced
def _ones(x):  # type: ignore[no-untyped-def]
    """How many bits of a word are set."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


@inner
def _log2_size(legs, masks, bits):  # type: ignore[no-untyped-def]
    total = 0.0
    for kind in range(bits.size):
        count = np.uint64(0)
        for w in range(legs.size):
            count += _ones(legs[w] & masks[kind, w])
        total += bits[kind] * count
    return total


@kernel
def _cost(left, right, legs, masks, bits):  # type: ignore[no-untyped-def]
    """log2 of (the whole cost, the largest result)."""
    count = (left.size + 1) // 2
    union = np.empty(legs.shape[1], np.uint64)
    cost, largest = 0.0, 0.0
    for x in range(count, left.size):
        for w in range(union.size):
            union[w] = legs[left[x], w] | legs[right[x], w]
        out = _log2_size(legs[x], masks, bits)
        cost += 2.0 ** _log2_size(union, masks, bits) + WRITE * 2.0**out
        largest = max(largest, out)
    return math.log2(max(cost, 1.0)), largest


@spliced
def _random(state):  # type: ignore[no-untyped-def]
    """64 random bits (splitmix64; Steele, Lea and Flood, 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def _anneal(left, right, legs, masks, bits, hot, cold, sweeps, seed):  # type: ignore[no-untyped-def]
    count = (left.size + 1) // 2
    words = legs.shape[1]
    one, two, new = np.empty((3, words), np.uint64)
    product, result = np.empty(left.size), np.empty(left.size)  # log2 sizes
    for x in range(count, left.size):
        for w in range(words):
            one[w] = legs[left[x], w] | legs[right[x], w]
        product[x], result[x] = _log2_size(one, masks, bits), _log2_size(legs[x], masks, bits)
    state = np.full(1, seed, np.uint64)
    for sweep in range(sweeps):
        temperature = hot * (cold / hot) ** (sweep / max(sweeps - 1, 1))
        for _ in range(count):
            # p = (x, c) with x = (a, b) becomes p = (a, x) with x = (b, c)
            drawn = _random(state)
            p = count + np.int64((drawn >> np.uint64(2)) % np.uint64(count - 1))
            x, c = (left[p], right[p]) if drawn & np.uint64(1) else (right[p], left[p])
            if x < count:
                continue
            a, b = (left[x], right[x]) if drawn & np.uint64(2) else (right[x], left[x])
            for w in range(words):
                one[w] = legs[b, w] | legs[c, w]
                # what b and c have stays if a, or something outside p, has it too
                new[w] = one[w] & (legs[a, w] | legs[p, w])
                two[w] = new[w] | legs[a, w]
            size_one, size_two = _log2_size(one, masks, bits), _log2_size(two, masks, bits)
            size_new = _log2_size(new, masks, bits)
            before = 2.0 ** product[x] + 2.0 ** product[p] + WRITE * 2.0 ** result[x]
            after = 2.0**size_one + 2.0**size_two + WRITE * 2.0**size_new
            if after > before:
                uniform = (_random(state) >> np.uint64(11)) * 2.0**-53
                if uniform >= (before / after) ** (1.0 / temperature):
                    continue
            left[x], right[x], left[p], right[p] = b, c, a, x
            legs[x] = new
            product[x], product[p], result[x] = size_one, size_two, size_new
