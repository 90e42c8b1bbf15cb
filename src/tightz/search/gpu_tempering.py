"""Parallel tempering on the GPU: many independent runs, one block a run, one thread a lane.

The moves are those of `tightz.search.moves`, compiled for the device from the same source, with
the same counter-based random numbers: a run on the device is the run on the CPU up to the rounding
of local fields (and until a coin falls within that rounding).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tightz.families.ascent import tanh
from tightz.runtime.gpu.device import arrays_to_device, cuda
from tightz.search.lane_sweeps import keep_quenched, quench_lane
from tightz.search.moves import Best, Replicas, Tally, exchange, swap_clusters
from tightz.search.parallel_tempering import Tempering
from tightz.search.randomness import GOLDEN, uniform


class Scratch(NamedTuple):
    """Per run: moved (lanes,) flips of the sweep; clusters (lanes, 2); differs, queue (lanes, n)
    for growing clusters; quenched (coldest, n, 1), products (coldest, groups, 1) and energy
    (coldest,) of the states being quenched.
    """

    moved: Any
    clusters: Any
    differs: Any
    queue: Any
    quenched: Any
    products: Any
    energy: Any


@cuda.jit(device=True)
def _sweep_lane(poly, rep, r, clock):  # type: ignore[no-untyped-def]
    """One heat-bath sweep of lane r, with the coins of `sweep_lanes`; returns the flips."""
    spins, products = rep.spins, rep.products
    flips = 0
    position = clock
    for i in range(spins.shape[0]):
        mine = spins[i, r]
        field = poly.field[i]
        for p in range(poly.adj_ptr[i], poly.adj_ptr[i + 1]):
            field += poly.adj_w[p] * spins[poly.adj_to[p], r]
        for p in range(poly.in_ptr[i], poly.in_ptr[i + 1]):
            field += products[poly.in_group[p], r] * mine
        # The counter is a local copy: all lanes of a run read the same clock, and thread 0
        # advances it once after the sweep.
        position += GOLDEN
        coin = 2.0 * uniform(rep.keys[r] + position) - 1.0
        new = 1 if coin < tanh(rep.beta[r] * field) else -1
        if new != mine:
            flips += 1
            rep.energy[r] += 2.0 * new * field
            spins[i, r] = new
            for p in range(poly.in_ptr[i], poly.in_ptr[i + 1]):
                products[poly.in_group[p], r] = -products[poly.in_group[p], r]
    return flips


@cuda.jit(device=True)
def _swap_pair(poly, rep, r, number, plan, scratch):  # type: ignore[no-untyped-def]
    """Thread r exchanges clusters of the r-th pair of lanes at cold temperatures."""
    replicas, temperatures = rep.lane_of.shape
    pairs = replicas // 2
    # One thread a pair: pairs of one turn share no lane, so nobody else writes what this one
    # reads.
    k = plan.cluster_from + r // pairs
    if k < temperatures:
        a = 2 * (r % pairs) + (number // plan.cluster_every) % 2
        one = rep.lane_of[a % replicas, k]
        two = rep.lane_of[(a + 1) % replicas, k]
        swap_clusters(
            poly, rep, one, two, scratch.differs[r], scratch.queue[r], scratch.clusters[r]
        )


@cuda.jit(device=True)
def _collect(poly, rep, best, r, plan, scratch):  # type: ignore[no-untyped-def]
    """Quench the coldest states side by side; the first thread offers them in order."""
    replicas, temperatures = rep.lane_of.shape
    coldest = temperatures - plan.quench_from
    if r < replicas * coldest:
        lane = rep.lane_of[r // coldest, plan.quench_from + r % coldest]
        # Side by side, since quenches are independent; offering is sequential and in the CPU's
        # order, so that the list of best states is the same.
        scratch.energy[r] = quench_lane(poly, rep, lane, scratch.quenched[r], scratch.products[r])
    cuda.syncthreads()
    if r == 0:
        for q in range(replicas * coldest):
            keep_quenched(
                poly, best, plan.sparse, scratch.quenched[q], scratch.products[q],
                scratch.energy[q], scratch.differs[0], scratch.queue[0],
            )  # fmt: skip


@cuda.jit(device=True)
def _record(rep, tally, t, number, plan, r):  # type: ignore[no-untyped-def]
    """Energies by temperature, and the states at beta = 1 when their sweep has come."""
    replicas, temperatures = rep.lane_of.shape
    tally.trace[t, r // temperatures, r % temperatures] = rep.energy[
        rep.lane_of[r // temperatures, r % temperatures]
    ]
    if plan.sample_every > 0 and number % plan.sample_every == 0:
        start = tally.size[0]
        for a in range(replicas):
            for i in range(r, rep.spins.shape[0], replicas * temperatures):
                tally.samples[start + a, i] = rep.spins[i, rep.lane_of[a, plan.unit]]
        cuda.syncthreads()
        if r == 0:
            tally.size[0] = start + replicas


@cuda.jit
def _temper(poly, reps, bests, tallies, sweeps, first, plan, scratches):  # type: ignore[no-untyped-def]
    """`temper` of tightz.search.lane_sweeps for run blockIdx.x; arrays have a leading run axis."""
    c, r = cuda.blockIdx.x, cuda.threadIdx.x
    rep = Replicas(
        reps.spins[c], reps.energy[c], reps.beta[c], reps.keys[c], reps.clock[c],
        reps.lane_of[c], reps.betas[c], reps.products[c],
    )  # fmt: skip
    best = Best(bests.spins[c], bests.energy[c], bests.hash[c], bests.size[c])
    tally = Tally(
        tallies.trace[c], tallies.flips[c], tallies.swaps[c], tallies.clusters[c],
        tallies.samples[c], tallies.size[c],
    )  # fmt: skip
    scratch = Scratch(
        scratches.moved[c], scratches.clusters[c], scratches.differs[c], scratches.queue[c],
        scratches.quenched[c], scratches.products[c], scratches.energy[c],
    )  # fmt: skip
    replicas, temperatures = rep.lane_of.shape
    for t in range(sweeps):
        number = first + t
        # Lanes never read each other within a sweep, so no barrier is needed inside it.
        scratch.moved[r] = _sweep_lane(poly, rep, r, rep.clock[0])
        cuda.syncthreads()
        if r == 0:
            rep.clock[0] += np.uint64(rep.spins.shape[0]) * GOLDEN
            for lane in range(replicas * temperatures):
                tally.flips[lane % temperatures] += scratch.moved[
                    rep.lane_of[lane // temperatures, lane % temperatures]
                ]
            exchange(rep, number % 2, tally.swaps)
        cuda.syncthreads()
        if plan.sparse and plan.cluster_every > 0 and number % plan.cluster_every == 0:
            _swap_pair(poly, rep, r, number, plan, scratch)
            cuda.syncthreads()
        if number == 1 or number % plan.quench_every == 0:
            _collect(poly, rep, best, r, plan, scratch)
            cuda.syncthreads()
        _record(rep, tally, t, number, plan, r)
        cuda.syncthreads()
    if r == 0:
        for lane in range(replicas * temperatures):
            tally.clusters[0] += scratch.clusters[lane, 0]
            tally.clusters[1] += scratch.clusters[lane, 1]


def advance_on_device(runs: Sequence[Tempering], sweeps: int) -> None:
    """`run.advance(sweeps)` for all the runs at once; they share a problem, ladder and sweep count.

    States travel to the device and back; a slice should be long enough to pay for it.
    """
    first = runs[0]
    reps, bests = [run.rep for run in runs], [run.best for run in runs]
    slices = [run.new_tally(sweeps) for run in runs]
    on_reps, on_bests, on_tallies = _stacked(reps), _stacked(bests), _stacked(slices)
    lanes = first.rep.beta.size
    poly = arrays_to_device(first.problem.grouped)
    plan = first.plan()
    _temper[len(runs), lanes](
        poly, on_reps, on_bests, on_tallies, sweeps, first.sweeps + 1, plan,
        _scratch(first, len(runs), plan.quench_from),
    )  # fmt: skip
    for target, source in ((reps, on_reps), (bests, on_bests), (slices, on_tallies)):
        for i, name in enumerate(source._fields):
            values = source[i].copy_to_host()
            for c, one in enumerate(target):
                if name != "betas":  # shared by all runs and never written
                    one[i][...] = values[c]
    for run, tally in zip(runs, slices, strict=True):
        run.take(tally, sweeps)


def _scratch(run: Tempering, copies: int, quench_from: int) -> Scratch:
    n, lanes = run.rep.spins.shape
    groups = run.rep.products.shape[0]
    coldest = run.rep.lane_of.shape[0] * (run.rep.betas.size - quench_from)

    def room(*shape: int, dtype: Any) -> Any:
        return cuda.device_array((copies, *shape), dtype=dtype)

    return Scratch(
        moved=room(lanes, dtype=np.int64),
        clusters=cuda.to_device(np.zeros((copies, lanes, 2), dtype=np.int64)),
        differs=room(lanes, n, dtype=np.bool_),
        queue=room(lanes, n, dtype=np.int64),
        quenched=room(coldest, n, 1, dtype=np.int8),
        products=room(coldest, groups, 1, dtype=np.float64),
        energy=room(coldest, dtype=np.float64),
    )


def _stacked(records: Sequence[Any]) -> Any:
    """One NamedTuple of arrays on the device with a leading axis over the records."""
    return arrays_to_device(
        type(records[0])(*(np.stack(column) for column in zip(*records, strict=True)))
    )
