"""The moves of parallel tempering that do not depend on how spins are swept.

Replicas live in lanes: spins[i, r] is spin i of lane r, energy[r] = log weight - constant (larger
is better), and lane_of[replica, k] says which lane sits at inverse temperature betas[k].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import inner, kernel
from tightz.search.randomness import GOLDEN, draw, mix, state_hash, uniform

MAX_DESCENT = 1000
"""Most zero-temperature sweeps of one quench; a handful is usual, rounding might never end."""


class Replicas(NamedTuple):
    """The state of one tempering run.

    spins (n, lanes) int8; energy, beta (lanes,); keys (lanes,) random streams; clock (2,) their
    position and that of the scalar stream; lane_of (replicas, temperatures); betas ascending;
    products (groups, lanes): theta_a * chi_a of the terms longer than pairs.
    """

    spins: NDArray[np.int8]
    energy: NDArray[np.float64]
    beta: NDArray[np.float64]
    keys: NDArray[np.uint64]
    clock: NDArray[np.uint64]
    lane_of: NDArray[np.int64]
    betas: NDArray[np.float64]
    products: NDArray[np.float64]


class Plan(NamedTuple):
    """What happens besides sweeps and exchanges, and after how many sweeps (0: never).

    Clusters are exchanged at temperatures from `cluster_from` on, states quenched from
    `quench_from` on (after sweep 1 too, so that there always is a best state), and samples taken
    at temperature `unit`, where beta = 1. In a model that is not `sparse` one cluster would hold
    nearly all spins: none is built.
    """

    cluster_every: int
    cluster_from: int
    quench_every: int
    quench_from: int
    sample_every: int
    unit: int
    sparse: bool


class Best(NamedTuple):
    """Distinct heavy states: spins (capacity, n), energy, hash (capacity,), size (1,)."""

    spins: NDArray[np.int8]
    energy: NDArray[np.float64]
    hash: NDArray[np.uint64]
    size: NDArray[np.int64]


class Tally(NamedTuple):
    """What a slice records: trace (sweeps, replicas, temperatures) energies; flips (temperatures,)
    spins flipped; swaps (2, temperatures - 1) accepted and tried; clusters (2,) flipped and their
    spins; samples (count, n) states at temperature 1 and size (1,) how many.
    """

    trace: NDArray[np.float64]
    flips: NDArray[np.int64]
    swaps: NDArray[np.int64]
    clusters: NDArray[np.int64]
    samples: NDArray[np.int8]
    size: NDArray[np.int64]


@kernel
def reweigh(poly, spins, products, energy):  # type: ignore[no-untyped-def]
    """energy (lanes,) and products (groups, lanes) of the states spins (n, lanes), from scratch."""
    n, lanes = spins.shape
    energy[:] = 0.0
    for i in range(n):
        for r in range(lanes):
            energy[r] += poly.field[i] * spins[i, r]
        for p in range(poly.adj_ptr[i], poly.adj_ptr[i + 1]):
            j = poly.adj_to[p]
            if j > i:
                w = poly.adj_w[p]
                for r in range(lanes):
                    energy[r] += w * (spins[i, r] * spins[j, r])
    for g in range(poly.coef.size):
        products[g] = poly.coef[g]
        for p in range(poly.base_ptr[g], poly.base_ptr[g + 1]):
            j = poly.base_spins[p]
            for r in range(lanes):
                products[g, r] *= spins[j, r]
        for r in range(lanes):
            energy[r] += products[g, r]


@inner
def exchange(rep, parity, swaps):  # type: ignore[no-untyped-def]
    """Try to exchange neighbouring temperatures (k, k + 1), k = parity, parity + 2, ...

    Accepted with probability min(1, exp((beta_k - beta_k+1)(E_k+1 - E_k))), E the energy as above.
    """
    replicas, temperatures = rep.lane_of.shape
    for a in range(replicas):
        for k in range(parity, temperatures - 1, 2):
            low, high = rep.lane_of[a, k], rep.lane_of[a, k + 1]
            # The ratio of joint weights after and before: detailed balance for the product of all
            # temperatures' distributions. Temperatures move between lanes, not spins.
            gain = (rep.betas[k] - rep.betas[k + 1]) * (rep.energy[high] - rep.energy[low])
            swaps[1, k] += 1
            coin = draw(rep.clock)  # always: rounding of equal energies must not shift the stream
            if gain >= 0.0 or coin < math.exp(gain):
                swaps[0, k] += 1
                rep.lane_of[a, k], rep.lane_of[a, k + 1] = high, low
                rep.beta[low], rep.beta[high] = rep.betas[k + 1], rep.betas[k]


@inner
def flip_gain(poly, spins, products, i, r):  # type: ignore[no-untyped-def]
    """Change of energy if spin i of lane r flips: -2 s_i h_i; products (groups, lanes)."""
    field = poly.field[i]
    for p in range(poly.adj_ptr[i], poly.adj_ptr[i + 1]):
        field += poly.adj_w[p] * spins[poly.adj_to[p], r]
    # Fields and pairs change sign with s_i; a long term that holds s_i changes from products[g] to
    # its negative.
    gain = -2.0 * spins[i, r] * field
    for p in range(poly.in_ptr[i], poly.in_ptr[i + 1]):
        gain -= 2.0 * products[poly.in_group[p], r]
    return gain


@inner
def flip_spin(poly, spins, products, i, r):  # type: ignore[no-untyped-def]
    """Flip spin i of lane r, and the long terms' values with it."""
    for p in range(poly.in_ptr[i], poly.in_ptr[i + 1]):
        products[poly.in_group[p], r] = -products[poly.in_group[p], r]
    spins[i, r] = -spins[i, r]


@inner
def grow_cluster(poly, differs, start, queue):  # type: ignore[no-untyped-def]
    """The spins joined to `start` through shared terms inside `differs`, which they leave.

    differs (n,) bool in place, queue (n,); returns the size: the cluster is queue[:size].
    """
    # Breadth first. Spins leave `differs` when they enter the queue, so each is visited once and
    # clusters of one pair of states do not overlap.
    queue[0] = start
    differs[start] = False
    size = 1
    head = 0
    while head < size:
        i = queue[head]
        head += 1
        for p in range(poly.adj_ptr[i], poly.adj_ptr[i + 1]):
            j = poly.adj_to[p]
            if differs[j]:
                differs[j] = False
                queue[size] = j
                size += 1
        for p in range(poly.in_ptr[i], poly.in_ptr[i + 1]):
            g = poly.in_group[p]
            for c in range(poly.base_ptr[g], poly.base_ptr[g + 1]):
                j = poly.base_spins[c]
                if differs[j]:
                    differs[j] = False
                    queue[size] = j
                    size += 1
    return size


@inner
def swap_clusters(poly, rep, a, b, differs, queue, clusters):  # type: ignore[no-untyped-def]
    """Exchange clusters of differing spins between lanes a and b, each with probability 1/2.

    The coins are lane a's own, hashed with the sweep's clock, so pairs may work side by side.

    Houdayer (2001); isoenergetic as in Zhu, Ochoa and Katzgraber (2015). Where the lanes differ,
    s_a = -s_b, so exchanging is flipping in both. A term that meets a cluster an odd number of
    times has opposite values in the two lanes, so E_a + E_b stays what it was, fields and long
    terms included; which spins differ stays too, so the move is its own reverse and is always
    accepted between lanes of one temperature.
    """
    n = differs.size
    position = mix(rep.keys[a] ^ mix(rep.clock[0]))
    for i in range(n):
        differs[i] = rep.spins[i, a] != rep.spins[i, b]
    for start in range(n):
        if not differs[start]:
            continue
        size = grow_cluster(poly, differs, start, queue)
        position += GOLDEN
        if uniform(position) < 0.5:
            continue
        change = 0.0
        for c in range(size):
            change += flip_gain(poly, rep.spins, rep.products, queue[c], a)
            flip_spin(poly, rep.spins, rep.products, queue[c], a)
            flip_spin(poly, rep.spins, rep.products, queue[c], b)
        rep.energy[a] += change
        rep.energy[b] -= change
        clusters[0] += 1
        clusters[1] += size


@inner
def recombine(poly, x, other, products, differs, queue):  # type: ignore[no-untyped-def]
    """Give x (n, 1) every cluster of `other` (n,) that makes it heavier; returns the gain.

    Clusters share no term, so their gains add up and the child is at least as heavy as both
    parents (partition crossover; Tinos, Whitley and Chicano, 2015).
    """
    n = differs.size
    only = np.int64(0)  # not a literal, which would compile what it is passed to again
    for i in range(n):
        differs[i] = x[i, 0] != other[i]
    total = 0.0
    for start in range(n):
        if not differs[start]:
            continue
        size = grow_cluster(poly, differs, start, queue)
        # Flip the whole cluster, adding the changes as they come: the sum is exact whatever the
        # order, terms inside the cluster included. If it does not pay, flip it back.
        gain = 0.0
        for c in range(size):
            gain += flip_gain(poly, x, products, queue[c], only)
            flip_spin(poly, x, products, queue[c], only)
        if gain > 0.0:
            total += gain
        else:
            for c in range(size):
                flip_spin(poly, x, products, queue[c], only)
    return total


@inner
def extreme(values, size, sign):  # type: ignore[no-untyped-def]
    """The first position of the largest of sign * values[:size]."""
    top = 0
    for c in range(1, size):
        if sign * values[c] > sign * values[top]:
            top = c
    return top


@inner
def offer(best, x, energy):  # type: ignore[no-untyped-def]
    """Keep state x (n,) if it is new and among the heaviest that fit; returns whether it was."""
    capacity = best.energy.size
    size = best.size[0]
    at = size
    if size == capacity:
        at = extreme(best.energy, size, -1.0)
        if energy <= best.energy[at]:
            return False
    # Equal hashes are taken for equal states: a collision would lose one state of a list, nothing
    # that a bound rests on.
    h = state_hash(x)
    for c in range(size):
        if best.hash[c] == h:
            return False
    for i in range(x.size):
        best.spins[at, i] = x[i]
    best.energy[at] = energy
    best.hash[at] = h
    best.size[0] = max(size, at + 1)
    return True
