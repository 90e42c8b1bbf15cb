"""Where edges lie around a vertex, and signs that make every term of a Pfaffian positive.

An edge e has two halves, 2e at its first and 2e + 1 at its second end. An embedding is the cyclic
order of the halves at every vertex. Write the halves of a vertex in that order from any start, and
let A[h, k] = 1 for h before k (and -1 after): the Pfaffian of A over any even set of halves is 1.
With W[2e, 2e+1] = sign_e the Pfaffian of A + W then sums, over every set S of edges that has an
even number at each vertex, a sign; and these are all equal if around every face

    prod over corners of A[in, out] * prod over edges of W[out, in] = -1                        (*)

(Kasteleyn 1967; with A as the city of a vertex, Fisher 1966). At a corner `out` follows `in`, so
that A is 1 except past the end of the list. Euler's formula makes (*) solvable: the product over
all faces is (-1)^(V+E) = (-1)^F. In the plane (*) determines Pf; on a torus there are four ways.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.planar.spins import SpinGraph
from tightz.elimination.refused import Refused
from tightz.judge.verdict import RefutedError
from tightz.runtime.kernels import kernel

MOST = 6
"""Halves at one vertex; a vertex with more becomes a chain, joined by infinite couplings."""


_EDGE_SECONDS = 8e-5


class Embedding(NamedTuple):
    """Halves around vertex v: around[ptr[v]:ptr[v+1]], cyclic. coupling[e] may be inf (a chain).

    The first edges are those of the graph, in its order; chains follow.
    """

    ptr: NDArray[np.int64]
    around: NDArray[np.int64]
    coupling: NDArray[np.float64]

    @property
    def n(self) -> int:
        return self.ptr.size - 1

    @property
    def n_edges(self) -> int:
        return self.coupling.size

    @property
    def vertex(self) -> NDArray[np.int64]:
        """(2E,) the vertex at which a half is."""
        at = np.empty(self.around.size, dtype=np.int64)
        at[self.around] = np.repeat(np.arange(self.n), np.diff(self.ptr))
        return at


def planar_embedding(
    graph: SpinGraph, rows: int = 0, cols: int = 0, *, time_limit: float = math.inf
) -> Embedding | Refused:
    """An embedding in the plane (rows x cols: try that lattice first), or why there is none."""
    lattice = lattice_embedding(graph, rows, cols) if rows * cols else None
    if lattice is not None and genus(lattice) == 0:
        return lattice
    seen = np.unique(np.concatenate([graph.first, graph.second])).size
    if graph.n_edges > max(3 * seen - 6, 2 * seen):
        fields = " (a field counts as an edge to one more vertex)" if graph.ghost else ""
        return Refused(
            f"{graph.n_edges} edges on {seen} vertices are too many for the plane{fields}"
        )
    crowd = _crowded_fields(graph) if graph.ghost else ""
    if crowd:
        return Refused(crowd)
    if _EDGE_SECONDS * graph.n_edges > time_limit:
        return Refused(
            f"testing {graph.n_edges} edges for planarity would take about "
            f"{_EDGE_SECONDS * graph.n_edges:.2g} s of {time_limit:g} s"
        )
    return _by_planarity_test(graph)


def _crowded_fields(graph: SpinGraph) -> str:
    """Why the spins with fields do not lie around one face, where counting edges tells; or "".

    They and the edges among them would be outerplanar: at most 2 h - 3 edges, and (3 h - 4) / 2
    without odd cycles. This spares a lattice with fields everywhere the test of planarity.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    ghost = graph.n - 1
    held = np.zeros(graph.n, dtype=bool)
    held[graph.first[graph.second == ghost]] = True
    among = held[graph.first] & held[graph.second]
    a, b, h = graph.first[among], graph.second[among], int(held.sum())
    pieces = [
        connected_components(
            coo_matrix((np.ones(x.size), (x, y)), shape=(size, size)), directed=False
        )[0]
        for x, y, size in (
            (a, b, graph.n),
            (np.append(a, a + graph.n), np.append(b + graph.n, b), 2 * graph.n),
        )
    ]
    even = pieces[1] == 2 * pieces[0]  # every piece has two colours
    if h > 1 and a.size > ((3 * h - 4) / 2 if even else 2 * h - 3):
        return f"{h} spins with fields and {a.size} edges among them do not lie around one face"
    return ""


def _by_planarity_test(graph: SpinGraph) -> Embedding | Refused:
    import networkx as nx

    pairs = list(zip(graph.first.tolist(), graph.second.tolist(), strict=True))
    net = nx.Graph(pairs)
    planar, found = nx.check_planarity(net)
    if not planar:
        return Refused(f"not planar{_obstacle(net, graph)}")
    half = {}
    for e, (u, v) in enumerate(pairs):
        half[u, v], half[v, u] = 2 * e, 2 * e + 1
    lists: list[list[int]] = [[] for _ in range(graph.n)]
    for u, neighbours in found.get_data().items():
        lists[u] = [half[u, v] for v in neighbours]
    made = _from_lists(lists, graph.coupling)
    if genus(made) != 0:
        raise RefutedError("planar: the embedding found does not satisfy Euler's formula")
    return made


def _obstacle(net: object, graph: SpinGraph) -> str:
    """Where the plane is left: the corners of a subdivided K5 or K3,3, in small graphs."""
    import networkx as nx

    ghost = "; without fields it may be" if graph.ghost else ""
    if graph.n_edges > 100:  # the search tests planarity once per edge
        return ghost
    _, kuratowski = nx.check_planarity(net, counterexample=True)
    corners = sorted(v for v, degree in kuratowski.degree() if degree > 2)
    names = ["the field" if graph.ghost and v == graph.n - 1 else str(v) for v in corners]
    kind = "K5" if len(corners) == 5 else "K3,3"
    return f": variables {', '.join(names)} are the corners of a subdivided {kind}{ghost}"


def _from_lists(lists: list[list[int]], coupling: NDArray[np.float64]) -> Embedding:
    """With vertices of more than MOST halves cut into chains of as many as fit."""
    cut: list[list[int]] = []
    links = 0
    edges = coupling.size
    for halves in lists:
        back: list[int] = []
        rest = halves
        while len(rest) + len(back) > MOST:
            taken = MOST - 1 - len(back)
            forward = 2 * (edges + links)
            cut.append([*back, *rest[:taken], forward])
            back, rest, links = [forward + 1], rest[taken:], links + 1
        cut.append([*back, *rest])
    ptr = np.concatenate([[0], np.cumsum([len(c) for c in cut])]).astype(np.int64)
    around = np.array([h for c in cut for h in c], dtype=np.int64)
    return Embedding(ptr, around, np.concatenate([coupling, np.full(links, np.inf)]))


def lattice_embedding(graph: SpinGraph, rows: int, cols: int) -> Embedding | None:
    """A lattice with any of its wrapped edges and diagonals (r, c) - (r+1, c+1); None if not one.

    Halves right, right and down, down, left, left and up, up. In the plane this has genus 0, with
    wrapped edges 1; `genus` tells.
    """
    if graph.n != rows * cols:
        return None
    row, col = np.divmod(np.stack([graph.first, graph.second]), cols)
    down, right = row[1] - row[0], col[1] - col[0]
    # An edge from the first to the last column leaves to the left; so for rows.
    if rows > 2:
        down = np.where(down == rows - 1, -1, down)
    if cols > 2:
        right = np.where(np.abs(right) == cols - 1, -np.sign(right), right)
    direction = np.full(graph.n_edges, -1)
    for k, step in enumerate(((0, 1), (1, 1), (1, 0), (0, -1), (-1, -1), (-1, 0))):
        direction[(down == step[0]) & (right == step[1])] = k
    if (direction < 0).any():
        return None
    slot = np.full((graph.n, 6), -1, dtype=np.int64)
    edges = np.arange(graph.n_edges)
    slot[graph.first, direction] = 2 * edges
    slot[graph.second, (direction + 3) % 6] = 2 * edges + 1
    there = slot >= 0
    ptr = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int64)
    return Embedding(ptr, slot[there], graph.coupling)


def genus(embedding: Embedding) -> int:
    """By Euler's formula; 0 is the plane."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    vertex, degrees = embedding.vertex, np.diff(embedding.ptr)
    n, edges = embedding.n, embedding.n_edges
    ends = (np.ones(edges), (vertex[0::2], vertex[1::2]))
    pieces, _ = connected_components(coo_matrix(ends, shape=(n, n)), directed=False)
    alone = int((degrees == 0).sum())
    after, _ = _rotation(embedding.ptr, embedding.around)
    faces = int(_faces(after).max(initial=-1)) + 1
    return (2 * (pieces - alone) - (n - alone) + edges - faces) // 2


def signs(embedding: Embedding) -> NDArray[np.float64]:
    """(E,) signs with (*) at every face."""
    after, place = _rotation(embedding.ptr, embedding.around)
    return _oriented(after, place, _faces(after))


def frustration(embedding: Embedding) -> tuple[int, float, float]:
    """(frustrated faces, root mean square of the couplings around them, sum of each one's weakest).

    A face is frustrated where the product of its couplings is negative: no state satisfies all.
    """
    after, _ = _rotation(embedding.ptr, embedding.around)
    face = _faces(after)
    coupling = np.repeat(embedding.coupling, 2)
    odd = np.bincount(face, coupling < 0.0).astype(np.int64) % 2 == 1
    weakest = np.full(odd.size, np.inf)
    np.minimum.at(weakest, face, np.abs(coupling))
    around = coupling[odd[face] & np.isfinite(coupling)]
    if not around.size:
        return 0, 0.0, 0.0
    size = float(np.abs(around).max())  # squares of huge couplings overflow
    mean = size * math.sqrt(float(np.mean((around / size) ** 2))) if size else 0.0
    return int(odd.sum()), mean, float(weakest[odd].sum())


def turn_of(embedding: Embedding, sign: NDArray[np.float64], halves: list[int]) -> int:
    """The left side of (*) along a closed walk that leaves its vertices by `halves`, in order."""
    _, place = _rotation(embedding.ptr, embedding.around)
    product = 1
    for h, out in zip(halves, [*halves[1:], halves[0]], strict=True):
        product *= int(sign[h // 2]) * (1 if h % 2 == 0 else -1)
        product *= 1 if place[out] > place[h ^ 1] else -1
    return product


@kernel
def _rotation(ptr, around):  # type: ignore[no-untyped-def]
    """after[h]: the half that follows h; place[h]: its place in its vertex's list."""
    after = np.empty(around.size, dtype=np.int64)
    place = np.empty(around.size, dtype=np.int64)
    for v in range(ptr.size - 1):
        for k in range(ptr[v], ptr[v + 1]):
            follows = k + 1 if k + 1 < ptr[v + 1] else ptr[v]
            after[around[k]] = around[follows]
            place[around[k]] = k - ptr[v]
    return after, place


@kernel
def _faces(after):  # type: ignore[no-untyped-def]
    """face[h]: the face beside half h when leaving by it."""
    face = np.full(after.size, -1, dtype=np.int64)
    count = 0
    for start in range(after.size):
        if face[start] >= 0:
            continue
        h = start
        while face[h] < 0:
            face[h] = count
            h = after[h ^ 1]
        count += 1
    return face


@kernel
def _oriented(after, place, face):  # type: ignore[no-untyped-def]
    """Faces in the order of a search over edges; each but the first flips the edge it came by."""
    n_faces = face.max() + 1 if face.size else 0
    wrong = np.ones(n_faces, dtype=np.int64)  # 1: the product is +1
    first = np.full(n_faces, -1, dtype=np.int64)
    for h in range(after.size):
        out = after[h ^ 1]
        odd = (h & 1) ^ (0 if place[out] > place[h ^ 1] else 1)
        wrong[face[h]] ^= odd
        first[face[h]] = h
    came_by = np.full(n_faces, -1, dtype=np.int64)
    seen = np.zeros(n_faces, dtype=np.bool_)
    queue = np.empty(n_faces, dtype=np.int64)
    filled = 0
    for root in range(n_faces):
        if seen[root]:
            continue
        seen[root] = True
        at = filled
        queue[filled] = root
        filled += 1
        while at < filled:
            h = first[queue[at]]
            at += 1
            start = h
            while True:
                other = face[h ^ 1]
                if not seen[other]:
                    seen[other] = True
                    came_by[other] = h
                    queue[filled] = other
                    filled += 1
                h = after[h ^ 1]
                if h == start:
                    break
    sign = np.ones(after.size // 2)
    for k in range(n_faces - 1, -1, -1):
        f = queue[k]
        h = came_by[f]
        if h >= 0 and wrong[f] == 1:
            sign[h // 2] = -1.0
            wrong[f] ^= 1
            wrong[face[h]] ^= 1
    return sign
