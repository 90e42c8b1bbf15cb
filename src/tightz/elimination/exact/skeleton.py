"""Which tables are multiplied where, before sizes, places or numbers: the skeleton of a plan.

An elimination order and a contraction tree say the same kind of thing. A node multiplies the
results of its children and some factors; a variable is summed out at the first node below which all
its factors lie. So a node may sum out several variables at once, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import bucket_tree
from tightz.elimination.graph import Scopes
from tightz.elimination.trees import ContractionTree

LOG2_STATES = 8.0
"""Of the joint states that a node sums out at once."""


class Skeleton(NamedTuple):
    """Per node its children, all listed before it, and the factors that it takes in."""

    children: tuple[tuple[int, ...], ...]
    factors: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tree: ContractionTree) -> Skeleton:
        children, factors = tree.nodes()
        return cls(tuple(children), tuple(factors))


class Node(NamedTuple):
    """A node with the variables that its product sums out, and those that it hands on."""

    children: tuple[int, ...]
    factors: tuple[int, ...]
    summed: tuple[int, ...]
    scope: tuple[int, ...]


def by_order(scopes: Scopes, order: NDArray[np.int64]) -> Skeleton:
    """One node per variable, as its bucket.

    A factor over one variable goes where the variable is first met: in its own bucket it would keep
    the variable in every table up to there.
    """
    tree = bucket_tree(scopes, order)
    size = np.diff(scopes.ptr)
    first = np.full(scopes.n, tree.parent.size)
    np.minimum.at(first, scopes.members, np.repeat(tree.home, size))
    home, alone = tree.home.copy(), size == 1
    home[alone] = first[scopes.members[scopes.ptr[:-1][alone]]]
    factors: list[list[int]] = [[] for _ in tree.children]
    for f, node in enumerate(home.tolist()):
        if node >= 0:
            factors[node].append(f)
    return Skeleton(tuple(map(tuple, tree.children)), tuple(map(tuple, factors)))


def nodes_of(
    skeleton: Skeleton,
    scopes: Scopes,
    log2_card: NDArray[np.float64],
    log2_states: float = LOG2_STATES,
) -> list[Node]:
    """The nodes that have something to do, children first, small results held as short as possible.

    A node that would only hand on its one child's result is left out. Variables that no factor has
    get a node each.
    """
    ends, members = scopes.ptr.tolist(), scopes.members.tolist()
    uses = np.bincount(scopes.members, minlength=scopes.n).tolist()
    nodes: list[Node] = []
    # Per node of the skeleton the node that holds its result, -1 where that is a number: numbers
    # are multiplied at the very end.
    stands_for: list[int] = []
    bits = log2_card.tolist()
    inside: list[dict[int, int]] = []  # per node: its scope's variables, and factors below
    for children, factors in zip(skeleton.children, skeleton.factors, strict=True):
        below = tuple(k for c in children if (k := stands_for[c]) >= 0)
        # A slice turns tables into numbers, which `Elimination.run` multiplies in itself.
        factors = tuple(f for f in factors if ends[f] < ends[f + 1])
        held: dict[int, int] = dict(inside[below[0]]) if below else {}
        for k in below[1:]:
            for v, count in inside[k].items():
                held[v] = held.get(v, 0) + count
        for f in factors:
            for v in members[ends[f] : ends[f + 1]]:
                held[v] = held.get(v, 0) + 1
        summed = tuple(v for v, count in held.items() if count == uses[v])
        if not factors and not summed and len(below) <= 1:
            stands_for.append(below[0] if below else -1)
            continue
        # Very many states are not summed out at once: products first, then sums of the result.
        for part in _parts(summed, bits, log2_states):
            for v in part:
                del held[v]
            inside.append(dict(held))
            nodes.append(Node(below, factors, part, tuple(held)))
            below, factors = (len(nodes) - 1,), ()
        stands_for.append(len(nodes) - 1 if held else -1)
    nodes += [Node((), (), (v,), ()) for v, count in enumerate(uses) if not count]
    return _post_order(nodes, log2_card)


def _parts(summed: tuple[int, ...], bits: Sequence[float], most: float) -> list[tuple[int, ...]]:
    """`summed` cut into parts of up to `most` bits of joint states each; at least one part."""
    parts: list[list[int]] = [[]]
    used = 0.0
    for v in summed:
        if parts[-1] and used + bits[v] > most:
            parts.append([])
            used = 0.0
        parts[-1].append(v)
        used += bits[v]
    return [tuple(part) for part in parts]


def _post_order(nodes: list[Node], log2_card: NDArray[np.float64]) -> list[Node]:
    """Each subtree's nodes together, those that need most beyond what they leave go first.

    (Liu, 1987.) Fewer results wait at a time.
    """
    bits = log2_card.tolist()
    sizes = [sum(bits[v] for v in node.scope) for node in nodes]
    need = [
        size + sum(bits[v] for v in node.summed) for node, size in zip(nodes, sizes, strict=True)
    ]
    child_of = [False] * len(nodes)
    for k, node in enumerate(nodes):
        for c in node.children:
            need[k] = max(need[k], need[c])
            child_of[c] = True
    place: dict[int, int] = {}
    ordered: list[Node] = []
    stack = [(k, False) for k in range(len(nodes) - 1, -1, -1) if not child_of[k]]
    while stack:
        k, done = stack.pop()
        node = nodes[k]
        if done:
            place[k] = len(ordered)
            ordered.append(node._replace(children=tuple(sorted(place[c] for c in node.children))))
            continue
        stack.append((k, True))
        stack += [
            (c, False) for c in sorted(node.children, key=lambda c: (need[c] - sizes[c], need[c]))
        ]
    return ordered
