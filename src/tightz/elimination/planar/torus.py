"""A square or triangular lattice that closes on itself in both directions: four Pfaffians.

On a torus the signs of `embedding` can be chosen in four ways that differ by flips across the two
seams. Each Pfaffian counts a set S of edges with (-1)^q, where q depends only on how often S winds
around: q(row), q(column), and q(row + column) = q(row) + q(column) + 1. The one choice that has
q(row) = q(column) = 1 enters with a minus, the others with a plus (Kasteleyn 1961; Arf 1941):

    sum over S = 1/2 sum over choices of (-1)^(q(row) q(column)) Pf K / Pf W.

At the critical point of a ferromagnet one of the four vanishes and has no relative precision. Pf is
linear in every link: such a one is the mean of the two with one link doubled and cut.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.planar.embedding import (
    Embedding,
    genus,
    lattice_embedding,
    signs,
    turn_of,
)
from tightz.elimination.planar.spins import SpinGraph


class Torus(NamedTuple):
    """Its embedding, the edges on its seams, and four choices: (coefficient, signs of edges)."""

    embedding: Embedding
    seam: NDArray[np.bool_]
    choices: list[tuple[float, NDArray[np.float64]]]


def find_torus(graph: SpinGraph, rows: int = 0, cols: int = 0) -> Torus | None:
    """The torus that `graph` is, numbered row by row; sides are guessed if not given."""
    degree = 2 * graph.n_edges // max(graph.n, 1)  # 4 on the square lattice, 6 on the triangular
    if graph.ghost or degree not in (4, 6):
        return None
    for c in [cols] if rows * cols else _widths(graph):
        embedding = lattice_embedding(graph, graph.n // c, c)
        if embedding is None or not (np.diff(embedding.ptr) == degree).all():
            continue
        if genus(embedding) == 1:
            return _torus(embedding, graph.n // c, c)
    return None


def _widths(graph: SpinGraph) -> list[int]:
    """A row's length is among the differences of numbers along edges, of which there are few."""
    steps = np.unique(np.abs(graph.first - graph.second)).tolist()
    return [s for s in steps if s > 2 and graph.n % s == 0] if len(steps) <= 8 else []


def _torus(embedding: Embedding, rows: int, cols: int) -> Torus:
    # Around every vertex: right, (right and down,) down, left, (left and up,) up.
    halves = embedding.around.reshape(rows, cols, -1)
    half = halves.shape[2] // 2
    row, column = halves[0, :, 0].tolist(), halves[:, 0, half - 1].tolist()
    across, along = np.ones(embedding.n_edges), np.ones(embedding.n_edges)
    across[halves[:, -1, : half - 1] // 2] = -1.0  # all that leave the last column to the right
    along[halves[-1, :, 1:half] // 2] = -1.0
    base = signs(embedding)
    choices = []
    for flip in (np.ones(embedding.n_edges), across, along, across * along):
        sign = base * flip
        both = turn_of(embedding, sign, row) == 1 and turn_of(embedding, sign, column) == 1
        choices.append((-0.5 if both else 0.5, sign))
    return Torus(embedding, (across < 0.0) | (along < 0.0), choices)
