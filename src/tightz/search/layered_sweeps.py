"""Sweeps of bipartite models layer by layer: given one layer the other's spins are independent.

All local fields of a layer, in all lanes, are one matrix product (block Gibbs sampling, as for
restricted Boltzmann machines).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.families.ascent import tanh
from tightz.projections.grouped import GroupedPolynomial
from tightz.search.randomness import GOLDEN, uniform


class Layers(NamedTuple):
    """Spins `one` and `two`, couplings (|one|, |two|) between them, and the transpose."""

    one: NDArray[np.int64]
    two: NDArray[np.int64]
    couplings: NDArray[np.float64]
    transposed: NDArray[np.float64]


def find_layers(poly: GroupedPolynomial, dense_above: float) -> Layers:
    """The two layers of a pairwise bipartite model of which `dense_above` of all pairs exist.

    Empty arrays where the model is not of this kind.
    """
    n = poly.n
    none = np.zeros(0, dtype=np.int64)
    nothing = Layers(none, none, np.zeros((0, 0)), np.zeros((0, 0)))
    if poly.coef.size or n < 2 or poly.adj_to.size < n:
        return nothing
    colour = np.full(n, -1, dtype=np.int8)
    if not _two_colour(poly.adj_ptr, poly.adj_to, colour):
        return nothing
    one, two = np.flatnonzero(colour == 0), np.flatnonzero(colour == 1)
    if poly.adj_to.size / 2 < dense_above * one.size * two.size:
        return nothing
    position = np.zeros(n, dtype=np.int64)
    position[one], position[two] = np.arange(one.size), np.arange(two.size)
    owner = np.repeat(np.arange(n), np.diff(poly.adj_ptr))
    mine = colour[owner] == 0
    couplings = np.zeros((one.size, two.size))
    couplings[position[owner[mine]], position[poly.adj_to[mine]]] = poly.adj_w[mine]
    return Layers(one, two, couplings, np.ascontiguousarray(couplings.T))


@njit(cache=True, nogil=True)
def _two_colour(ptr, neighbours, colour):  # type: ignore[no-untyped-def]
    """Colour the graph with 0 and 1, every component from 0; False if it has an odd cycle."""
    n = colour.size
    queue = np.empty(n, dtype=np.int64)
    for root in range(n):
        if colour[root] >= 0:
            continue
        colour[root] = 0
        queue[0] = root
        size = 1
        head = 0
        while head < size:
            i = queue[head]
            head += 1
            for p in range(ptr[i], ptr[i + 1]):
                j = neighbours[p]
                if colour[j] < 0:
                    colour[j] = 1 - colour[i]
                    queue[size] = j
                    size += 1
                elif colour[j] == colour[i]:
                    return False
    return True


@njit(cache=True, nogil=True, fastmath={"contract"})
def _multiply(couplings, others, fields):  # type: ignore[no-untyped-def]
    """fields (rows, lanes) = couplings (rows, inner) @ others (inner, lanes), on this thread only.

    BLAS would start threads of its own under every run; four terms at a time come close to it.
    """
    rows, inner = couplings.shape
    lanes = others.shape[1]
    for k in range(rows):
        out = fields[k]
        out[:] = 0.0
        for j in range(0, inner - 3, 4):
            a, b = couplings[k, j], couplings[k, j + 1]
            c, d = couplings[k, j + 2], couplings[k, j + 3]
            p, q, s, t = others[j], others[j + 1], others[j + 2], others[j + 3]
            for r in range(lanes):
                out[r] += a * p[r] + b * q[r] + c * s[r] + d * t[r]
        for j in range(inner - inner % 4, inner):
            for r in range(lanes):
                out[r] += couplings[k, j] * others[j, r]


@njit(cache=True, nogil=True, error_model="numpy")
def _update_layer(field, mine, theirs, couplings, rep, moved):  # type: ignore[no-untyped-def]
    """Heat bath of the spins `mine` given `theirs`: P(s_i = +1) = (1 + tanh(beta h_i)) / 2."""
    lanes = rep.beta.size
    energy, beta, keys = rep.energy, rep.beta, rep.keys
    new = np.empty(lanes)
    others = np.empty((theirs.size, lanes))
    for j in range(theirs.size):
        for r in range(lanes):
            others[j, r] = rep.spins[theirs[j], r]
    fields = np.empty((mine.size, lanes))
    _multiply(couplings, others, fields)
    for k in range(mine.size):
        i = mine[k]
        local = fields[k]
        start = field[i]
        for r in range(lanes):
            local[r] += start
        rep.clock[0] += GOLDEN
        position = rep.clock[0]
        for r in range(lanes):
            coin = 2.0 * uniform(keys[r] + position) - 1.0
            new[r] = 1.0 if coin < tanh(beta[r] * local[r]) else -1.0
        spins = rep.spins[i]
        for r in range(lanes):
            step = new[r] - spins[r]
            energy[r] += step * local[r]
            moved[r] += 0.5 * abs(step)
        for r in range(lanes):
            spins[r] = np.int8(new[r])


@njit(cache=True, nogil=True)
def sweep_layers(poly, layers, rep, moved):  # type: ignore[no-untyped-def]
    """One heat-bath sweep, layer one then layer two; moved (lanes,) counts flips."""
    moved[:] = 0.0
    _update_layer(poly.field, layers.one, layers.two, layers.couplings, rep, moved)
    _update_layer(poly.field, layers.two, layers.one, layers.transposed, rep, moved)
