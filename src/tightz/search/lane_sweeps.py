"""Parallel tempering with each spin updated in all lanes at once (SIMD).

Local fields are summed afresh from the neighbours, four at a time. On dense models too this beats
keeping fields and updating them on a flip (784 x 500 RBM, 112 lanes: about 2x) and is on a par
with a matrix product per layer, because many lanes share each coupling that is loaded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.families.ascent import tanh
from tightz.runtime.kernels import inner, kernel
from tightz.search.moves import (
    MAX_DESCENT,
    Replicas,
    exchange,
    extreme,
    flip_gain,
    flip_spin,
    offer,
    recombine,
    swap_clusters,
)
from tightz.search.randomness import GOLDEN, uniform


@kernel(error_model="numpy")
def sweep_lanes(poly, rep, field, new, moved):  # type: ignore[no-untyped-def]
    """One heat-bath sweep: P(s_i = +1) = (1 + tanh(beta h_i)) / 2 in every lane.

    field, new, moved (lanes,) are scratch, moved counting flips. The loops over lanes are kept
    short of pointers: the compiler vectorises only what it can check for overlap.
    """
    spins, energy, beta, keys, clock = rep.spins, rep.energy, rep.beta, rep.keys, rep.clock
    products, adj_to, adj_w = rep.products, poly.adj_to, poly.adj_w
    n, lanes = spins.shape
    moved[:] = 0.0
    for i in range(n):
        start = poly.field[i]
        for r in range(lanes):
            field[r] = start
        first, end = poly.adj_ptr[i], poly.adj_ptr[i + 1]
        rest = end - (end - first) % 4
        for p in range(first, rest, 4):
            wa, wb, wc, wd = adj_w[p], adj_w[p + 1], adj_w[p + 2], adj_w[p + 3]
            a, b = spins[adj_to[p]], spins[adj_to[p + 1]]
            c, d = spins[adj_to[p + 2]], spins[adj_to[p + 3]]
            for r in range(lanes):
                field[r] += wa * a[r] + wb * b[r] + wc * c[r] + wd * d[r]
        for p in range(rest, end):
            w = adj_w[p]
            a = spins[adj_to[p]]
            for r in range(lanes):
                field[r] += w * a[r]
        # products[g] holds theta_g chi_g with s_i in it; times s_i once more takes it out (s_i^2 =
        # 1).
        for p in range(poly.in_ptr[i], poly.in_ptr[i + 1]):
            g = poly.in_group[p]
            for r in range(lanes):
                field[r] += products[g, r] * spins[i, r]
        # A counter-based stream: the number depends on the lane's key and the position alone, so
        # lanes draw independently and results do not depend on how they are split over threads.
        clock[0] += GOLDEN
        position = clock[0]
        for r in range(lanes):
            coin = 2.0 * uniform(keys[r] + position) - 1.0
            new[r] = 1.0 if coin < tanh(beta[r] * field[r]) else -1.0
        for r in range(lanes):
            # The energy follows each flip; it is recomputed from the spins every few slices, so
            # rounding never builds up.
            step = new[r] - spins[i, r]
            energy[r] += step * field[r]
            moved[r] += 0.5 * abs(step)
        if poly.in_ptr[i] < poly.in_ptr[i + 1]:
            for r in range(lanes):
                field[r] = new[r] * spins[i, r]
            for p in range(poly.in_ptr[i], poly.in_ptr[i + 1]):
                g = poly.in_group[p]
                for r in range(lanes):
                    products[g, r] *= field[r]
        for r in range(lanes):
            spins[i, r] = np.int8(new[r])


@inner
def quench_lane(poly, rep, lane, x, products):  # type: ignore[no-untyped-def]
    """A lane's state after single flips that raise its weight until none does; returns its energy.

    x (n, 1) and products (groups, 1) hold the state.
    """
    for i in range(x.shape[0]):
        x[i, 0] = rep.spins[i, lane]
    for g in range(products.shape[0]):
        products[g, 0] = rep.products[g, lane]
    only = np.int64(0)  # as a literal it would have all that it is passed to compiled again
    total = 0.0
    for _ in range(MAX_DESCENT):
        gain = 0.0
        for i in range(x.shape[0]):
            change = flip_gain(poly, x, products, i, only)
            if change > 0.0:
                gain += change
                flip_spin(poly, x, products, i, only)
        if gain == 0.0:
            break
        total += gain
    return rep.energy[lane] + total


@inner
def keep_quenched(poly, best, sparse, x, products, energy, differs, queue):  # type: ignore[no-untyped-def]
    """Offer a quenched state, and its child with the best state where that is heavier."""
    # Quenched states are starts and candidates only: their weights are evaluated anew before
    # anything is claimed from them.
    state = x[:, 0]
    offer(best, state, energy)
    if sparse and best.size[0] > 1:
        top = extreme(best.energy, best.size[0], 1.0)
        gain = recombine(poly, x, best.spins[top], products, differs, queue)
        if gain > 0.0:
            offer(best, state, energy + gain)


class Scratch(NamedTuple):
    """Room for `temper`: lanes (3, lanes), a state x (n, 1) with its products (groups, 1), and the
    spins in which two states differ (n,) with a queue (n,) of them."""

    lanes: NDArray[np.float64]
    x: NDArray[np.int8]
    products: NDArray[np.float64]
    differs: NDArray[np.bool_]
    queue: NDArray[np.int64]

    @classmethod
    def of(cls, rep: Replicas) -> Scratch:
        n, lanes = rep.spins.shape
        return cls(
            np.empty((3, lanes)),
            np.empty((n, 1), dtype=np.int8),
            np.empty((len(rep.products), 1)),
            np.zeros(n, dtype=np.bool_),
            np.empty(n, dtype=np.int64),
        )


@kernel
def temper(poly, rep, best, tally, sweeps, first, plan, scratch):  # type: ignore[no-untyped-def]
    """`sweeps` sweeps, numbered from `first`, each followed by exchanges; see `Plan` for the rest.

    Two replicas of one temperature exchange clusters, quenched states go to `best`, states at
    beta = 1 to the tally.
    """
    n = rep.spins.shape[0]
    replicas, temperatures = rep.lane_of.shape
    field, new, moved = scratch.lanes[0], scratch.lanes[1], scratch.lanes[2]
    x, products, differs, queue = scratch.x, scratch.products, scratch.differs, scratch.queue
    for t in range(sweeps):
        number = first + t
        sweep_lanes(poly, rep, field, new, moved)
        for a in range(replicas):
            for k in range(temperatures):
                tally.flips[k] += np.int64(moved[rep.lane_of[a, k]])
        # Even and odd pairs in turn: exchanges of one turn share no temperature, so they commute.
        exchange(rep, number % 2, tally.swaps)
        # Which replicas are paired alternates by a fixed rule, not by their state: a choice that
        # looked at the states would break detailed balance.
        if plan.sparse and plan.cluster_every > 0 and number % plan.cluster_every == 0:
            shift = (number // plan.cluster_every) % 2  # pairs (0, 1), (2, 3), then (1, 2), (3, 0)
            for k in range(plan.cluster_from, temperatures):
                for a in range(0, replicas - 1, 2):
                    one = rep.lane_of[(a + shift) % replicas, k]
                    two = rep.lane_of[(a + 1 + shift) % replicas, k]
                    swap_clusters(poly, rep, one, two, differs, queue, tally.clusters)
        if number == 1 or number % plan.quench_every == 0:
            # The coldest states, each recombined with the best.
            for a in range(replicas):
                for k in range(plan.quench_from, temperatures):
                    energy = quench_lane(poly, rep, rep.lane_of[a, k], x, products)
                    keep_quenched(poly, best, plan.sparse, x, products, energy, differs, queue)
        for a in range(replicas):
            for k in range(temperatures):
                tally.trace[t, a, k] = rep.energy[rep.lane_of[a, k]]
            if plan.sample_every > 0 and number % plan.sample_every == 0:
                for i in range(n):
                    tally.samples[tally.size[0], i] = rep.spins[i, rep.lane_of[a, plan.unit]]
                tally.size[0] += 1
