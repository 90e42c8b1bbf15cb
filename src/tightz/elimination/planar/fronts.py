"""The order of elimination: which halves meet in which front, and which leave there.

The matrix K = D A D + W (`embedding`) has D = 1 at the first and tanh(J) at the second half of an
edge. Every region of a dissection has a front: the halves on its edge to the outside after all
others of the region are eliminated. Those halves are the only ones it shares with the rest, and the
entry between two of them is, up to sign and D, the correlation of their spins in the region cut
free: at most 1. Both halves of an edge leave in the smallest region that holds both; edges across
the seams of a torus only at the end, because a ring of spins closed with a wrong sign can have a
Pfaffian of nearly zero where the whole torus has not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.planar.embedding import Embedding
from tightz.elimination.planar.regions import Regions, dissect


class Front(NamedTuple):
    """One region: halves that leave (pairs 2e, 2e+1), halves that stay, its children, its cell.

    `places` are those of the children's staying halves among (leaves, stays), first child first;
    a region that is not cut lists its vertices in `cell` instead.
    """

    leaves: NDArray[np.int64]
    stays: NDArray[np.int64]
    children: tuple[int, ...]
    places: tuple[NDArray[np.int64], ...]
    cell: NDArray[np.int64]

    @property
    def size(self) -> int:
        return self.leaves.size + self.stays.size


def make_fronts(embedding: Embedding, seam: NDArray[np.bool_] | None = None) -> list[Front]:
    """Children before parents; the last front is the whole graph's, and nothing stays in it.

    `seam` (E,) marks edges that leave in the last one.
    """
    vertex = embedding.vertex
    late = np.zeros(vertex.size, dtype=bool) if seam is None else np.repeat(seam, 2)
    early = ~late[embedding.around]
    ptr = np.concatenate([[0], np.cumsum(early)])[embedding.ptr]
    regions = dissect(ptr, vertex[embedding.around[early] ^ 1])
    rank = np.empty(embedding.n, dtype=np.int64)
    rank[regions.order] = np.arange(embedding.n)
    rank_of_half = rank[vertex]
    place = np.empty(vertex.size, dtype=np.int64)
    fronts: list[Front] = []
    # An edge of the seam has its other end nowhere until the last region asks.
    beside = np.where(late, -1, rank_of_half[np.arange(vertex.size) ^ 1])
    last = regions.low.size - 1
    for k in range(last + 1):
        other = beside if k < last else np.zeros(vertex.size, dtype=np.int64)
        fronts.append(_front(embedding, regions, k, fronts, other, place))
    return fronts


def _front(
    embedding: Embedding,
    regions: Regions,
    k: int,
    fronts: list[Front],
    beside: NDArray[np.int64],
    place: NDArray[np.int64],
) -> Front:
    low, high = int(regions.low[k]), int(regions.high[k])
    children: tuple[int, ...] = ()
    cell = np.zeros(0, dtype=np.int64)
    if regions.left[k] >= 0:
        children = (int(regions.left[k]), int(regions.right[k]))
        met = np.concatenate([fronts[c].stays for c in children])
    else:
        cell = regions.order[low:high]
        ptr, around = embedding.ptr, embedding.around
        met = np.concatenate(
            [np.zeros(0, dtype=np.int64), *(around[ptr[v] : ptr[v + 1]] for v in cell.tolist())]
        )
    other = beside[met]
    inside = (other >= low) & (other < high)
    even = met[inside & (met % 2 == 0)]
    leaves = np.stack([even, even + 1], axis=1).ravel()
    stays = met[~inside]
    place[leaves] = np.arange(leaves.size)
    place[stays] = leaves.size + np.arange(stays.size)
    places = tuple(place[fronts[c].stays] for c in children)
    return Front(leaves, stays, children, places, cell)


def work(fronts: list[Front]) -> tuple[float, int]:
    """(multiplications of one elimination, bytes of all kept parts)."""
    flops, entries = 0.0, 0
    for front in fronts:
        pairs, size = front.leaves.size // 2, front.size
        rest = size - 2 * pairs
        flops += (size**3 - rest**3) / 6.0
        entries += front.leaves.size * size + rest * rest
    return flops, 8 * entries
