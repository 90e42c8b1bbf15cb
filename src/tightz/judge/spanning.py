"""Edge probabilities that random forests attain: explicit trees, and the uniform spanning forest.

A vector rho is attained when rho <= sum_k w_k 1[tree k] + w_0 P(edge in a uniform spanning forest)
with w >= 0 and sum w <= 1: edges may be dropped from forests at random. P(edge e in the uniform
forest) is the effective resistance R_e of the graph (Kirchhoff), and by Dirichlet's principle

    R_e >= (f_i - f_j)^2 / sum over edges ab of (f_a - f_b)^2

for ANY numbers f on the vertices: whoever solved for f, the right side is a proof.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import UNIT, RefutedError

MOST_VERTICES = 1500
"""Vertices up to which the uniform spanning forest is judged: it takes their number cubed."""

_MARGIN = 1e-10
"""Relative distance that rho must keep from what is attained: the rounding of the mixture."""

_DIRECT = 4000
"""Edges up to which every edge's potential is put into Dirichlet's principle as it stands."""

_CHUNK = 2**20


class Forests:
    """A growing list of forests of one graph, each checked once, with the start of the mixture.

    edges (E, 2). `start` None stands for the uniform spanning forest, else (T, E) booleans, equally
    likely forests.
    """

    def __init__(self, edges: NDArray[np.int64], start: NDArray[np.bool_] | None) -> None:
        self.edges = edges
        self._start = None if start is None else np.packbits(start, axis=1)
        self._trees: list[NDArray[np.uint8]] = []
        self._checked = 0
        self._first: NDArray[np.float64] | None = None

    def add(self, tree: NDArray[np.bool_]) -> None:
        self._trees.append(np.packbits(tree))

    def check(self, rho: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """RefutedError unless weights (1 + K,) on the start and the first K trees attain rho."""
        trees = self._trees[: weights.size - 1]
        if len(trees) != weights.size - 1 or not (weights >= 0.0).all():
            raise RefutedError("weights of forests are negative, or there are more than forests")
        # A sum below 1 is allowed: the rest may go to any of the forests, which only raises what is
        # attained.
        if math.fsum(weights.tolist()) > 1.0 + 1e-12 or rho.shape != (len(self.edges),):
            raise RefutedError("weights of forests sum to more than one")
        if len(trees) > self._checked:
            self._require_forests(np.array(trees[self._checked :]))
            self._checked = len(trees)
        attained = weights[0] * self._attained_first()
        always = self._attained_first() == 1.0
        for weight, bits in zip(weights[1:].tolist(), trees, strict=True):
            tree = self._unpacked(bits)
            attained += weight * tree
            always &= tree
        # Inside by a margin that covers the rounding of the mixture; or an edge that every member
        # of the mixture holds, which is then in the forest for certain.
        within = (rho > 0.0) & ((rho <= attained * (1.0 - _MARGIN)) | (always & (rho <= 1.0)))
        if not within.all():
            e = int(np.argmin(within))
            raise RefutedError(f"edge {e} has probability {rho[e]}; forests give {attained[e]}")

    def _attained_first(self) -> NDArray[np.float64]:
        if self._first is None:
            if self._start is None:
                self._first = uniform_forest(self.edges)
            else:
                self._require_forests(self._start)
                self._first = self._unpacked(self._start).mean(axis=0)
        return self._first

    def _unpacked(self, bits: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return np.unpackbits(bits, axis=-1, count=len(self.edges)).astype(bool)

    def _require_forests(self, packed: NDArray[np.uint8]) -> None:
        vertices, ends = np.unique(self.edges, return_inverse=True)
        ends = ends.reshape(-1, 2)
        rows = max(1, _CHUNK // max(1, len(ends)))
        for at in range(0, len(packed), rows):
            tree, edge = np.nonzero(self._unpacked(packed[at : at + rows]))
            copies = min(rows, len(packed) - at)
            # Trees side by side in one graph: without a cycle if every edge joins two parts.
            u, v = (ends[edge, k] + tree * vertices.size for k in (0, 1))
            parts = np.unique(components(copies * vertices.size, u, v)).size
            if parts != copies * vertices.size - edge.size:
                raise RefutedError("a forest in the mixture has a cycle")


def components(n: int, u: NDArray[np.int64], v: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) the least vertex joined to each: roots hook to lesser ones, then paths shrink."""
    root = np.arange(n)
    # Every round hooks each root to a lesser one across some edge and halves all paths: edges
    # inside one component drop out, and the number of rounds is logarithmic.
    while u.size:
        least = np.minimum(root[u], root[v])
        np.minimum.at(root, root[u], least)
        np.minimum.at(root, root[v], least)
        while (root != root[root]).any():
            root = root[root]
        apart = root[u] != root[v]
        u, v = u[apart], v[apart]
    return root


def uniform_forest(edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lower bounds on P(edge in a uniform spanning forest); exactly 1 for bridges."""
    vertices, ends = np.unique(edges, return_inverse=True)
    ends, n = ends.reshape(-1, 2), vertices.size
    if n > MOST_VERTICES:
        raise RefutedError("the uniform spanning forest of so many vertices is not judged")
    root = components(n, ends[:, 0], ends[:, 1])
    laplacian = np.zeros((n, n))
    np.add.at(laplacian, (ends.ravel(), ends.ravel()), 1.0)
    np.add.at(laplacian, (ends[:, 0], ends[:, 1]), -1.0)
    np.add.at(laplacian, (ends[:, 1], ends[:, 0]), -1.0)
    grounded = root == np.arange(n)
    laplacian[grounded] = 0.0
    laplacian[:, grounded] = 0.0
    laplacian[grounded, grounded] = 1.0
    # A solver's answer, not trusted: whatever f it gives, Dirichlet's principle makes a valid
    # lower bound on the resistance of it.
    inverse: NDArray[np.float64] = np.linalg.inv(laplacian).astype(np.float64)
    inverse[grounded] = 0.0
    inverse[:, grounded] = 0.0
    least = np.empty(len(ends))
    step = max(1, _CHUNK // max(1, len(ends)))
    for at in range(0, len(ends), step) if len(ends) <= _DIRECT else ():
        i, j = ends[at : at + step].T
        f = inverse[i] - inverse[j]
        # The energy of f over all edges, straight from the edges and not from the matrix that was
        # inverted.
        energy = ((f[:, ends[:, 0]] - f[:, ends[:, 1]]) ** 2).sum(axis=1)
        drop = f[np.arange(i.size), i] - f[np.arange(i.size), j]
        least[at : at + step] = drop**2 / energy * (1.0 - 8.0 * UNIT * (len(ends) + 4))
    if len(ends) > _DIRECT:
        least = _by_residual(laplacian, inverse, grounded, ends)
    # An edge on a cycle has resistance at most 1 - 1/n; parallel edges were merged.
    return np.where(least > 1.0 - 0.5 / max(1, n), 1.0, least)


def _by_residual(
    laplacian: NDArray[np.float64],
    inverse: NDArray[np.float64],
    grounded: NDArray[np.bool_],
    ends: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Dirichlet's principle for f = G (1_i - 1_j), without a sum over edges for every edge.

    The energy of f is f' L f = f' (1_i - 1_j) + f' (L G - I)(1_i - 1_j), at most the drop of f plus
    2 |f|_1 max |L G - I|. The product is computed with error n u max (|L| |G|), charged twice.
    """
    n = len(laplacian)
    off = laplacian @ inverse
    off[np.arange(n), np.arange(n)] -= ~grounded
    worst = np.abs(laplacian).sum(axis=1).max() * np.abs(inverse).max()
    residual = np.abs(off).max() + 2.0 * (n + 2) * UNIT * worst
    least = np.empty(len(ends))
    step = max(1, _CHUNK // n)
    for at in range(0, len(ends), step):
        i, j = ends[at : at + step].T
        f = inverse[i] - inverse[j]
        drop = f[np.arange(i.size), i] - f[np.arange(i.size), j]
        energy = drop + 2.0 * np.abs(f).sum(axis=1) * residual
        least[at : at + step] = drop**2 / energy * (1.0 - 8.0 * UNIT * (n + 4))
    return least
