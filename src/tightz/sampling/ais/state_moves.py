"""Heat-bath moves on states of discrete variables, straight on the factor graph's tables.

Chains lie side by side, x (n, lanes). A site's row is what its tables say about each of its states,
the others as they are; a chain at beta draws the site from exp((1 - beta) base + beta row). Zeros
are softened: an entry of -inf counts as -`depth` here, so that chains can pass through forbidden
states, and whoever uses where a chain ended asks the model itself what the state weighs.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.reductions.zeros import state_ptr
from tightz.runtime.kernels import inner, kernel
from tightz.sampling.ais.kernels import _draw, _effective, _renew, fill_uniform_lanes
from tightz.uppers.mini_bucket.kernels import exp_chunk

SOFT = 10.0
"""Nats by which a softened zero lies below, beside the log of how many tables hold one."""


class Sites(NamedTuple):
    """The tables as seen from each variable.

    ptr          (n + 1) where the states of each variable begin in `fields`
    fields       what tables of one variable say, added up
    touch_ptr    (n + 1) the larger tables of a variable are touches touch_ptr[v]:touch_ptr[v+1]
    row_ptr      (touches,) where the touch's copy of its table begins in `rows`: the variable's own
                 states lie side by side
    other_ptr    (touches + 1) the table's other variables, with how far each state of theirs moves
    others, strides
    first        (touches,) whether it is the one of its table that is counted in log weights
    """

    ptr: NDArray[np.int64]
    fields: NDArray[np.float64]
    touch_ptr: NDArray[np.int64]
    row_ptr: NDArray[np.int64]
    rows: NDArray[np.float64]
    other_ptr: NDArray[np.int64]
    others: NDArray[np.int64]
    strides: NDArray[np.int64]
    first: NDArray[np.bool_]


def soft_depth(model: FactorGraph) -> float:
    """How deep a softened zero lies: few of the soft model's states are then forbidden ones."""
    zeros = np.isneginf(model.log_tables)
    if not zeros.any():
        return 0.0
    hard = int(np.logical_or.reduceat(zeros, model.table_ptr[:-1]).sum())
    return SOFT + math.log(hard)


def softened(model: FactorGraph, depth: float) -> FactorGraph:
    """The model with -inf as `depth` below its table's largest entry; constants stay."""
    logs, starts = model.log_tables, model.table_ptr[:-1]
    if not np.isneginf(logs).any():
        return model
    top = np.maximum.reduceat(logs, starts)
    floor = np.repeat(np.where(np.isneginf(top), 0.0, top) - depth, np.diff(model.table_ptr))
    return FactorGraph.from_arrays(
        model.cardinalities, model.scope_ptr, model.scope_vars, model.table_ptr,
        np.where(np.isneginf(logs), floor, logs),
    )  # fmt: skip


def sites_of(model: FactorGraph) -> Sites:
    """The arrays of a model without evidence and zeros."""
    ptr = state_ptr(model.cardinalities)
    fields = np.zeros(int(ptr[-1]))
    owner: list[NDArray] = []
    sizes: list[NDArray] = []
    rows: list[NDArray] = []
    others: list[NDArray] = []
    strides: list[NDArray] = []
    first: list[NDArray] = []
    for _, scopes, tables in model.batches():
        count, arity = scopes.shape
        if arity == 1:
            np.add.at(fields, ptr[scopes[:, 0]][:, None] + np.arange(tables.shape[1]), tables)
        for axis in range(arity) if arity > 1 else ():
            moved = np.moveaxis(tables, axis + 1, -1)
            steps = np.cumprod([1, *moved.shape[:0:-1]])[::-1][1:-1]  # of the others, own states 1
            owner.append(scopes[:, axis])
            sizes.append(np.full(count, moved[0].size))
            rows.append(moved.reshape(-1))
            others.append(np.delete(scopes, axis, axis=1))
            strides.append(np.tile(steps, (count, 1)))
            first.append(np.full(count, axis == 0))
    return _by_site(model.n_variables, ptr, fields, owner, sizes, rows, others, strides, first)


def _by_site(n, ptr, fields, owner, sizes, rows, others, strides, first) -> Sites:
    """Touches in the order of their variables; the copies of tables stay where they are."""
    owners = np.concatenate([np.zeros(0, np.int64), *owner]).astype(np.int64)
    entries = np.concatenate([np.zeros(0, np.int64), *sizes]).astype(np.int64)
    lengths = np.concatenate(
        [np.zeros(0, np.int64), *(np.full(len(o), o.shape[1]) for o in others)]
    ).astype(np.int64)
    flat = [np.concatenate([np.zeros(0, np.int64), *(o.ravel() for o in each)])
            for each in (others, strides)]  # fmt: skip
    order = np.argsort(owners, kind="stable")
    starts = np.cumsum(lengths) - lengths
    ends = np.cumsum(lengths[order])
    within = np.arange(int(lengths.sum())) - np.repeat(ends - lengths[order], lengths[order])
    places = np.repeat(starts[order], lengths[order]) + within
    counts = np.bincount(owners, minlength=n)
    return Sites(
        ptr,
        fields,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        (np.cumsum(entries) - entries)[order],
        np.concatenate([np.zeros(0), *rows]),
        np.concatenate([[0], ends]).astype(np.int64),
        flat[0][places].astype(np.int64),
        flat[1][places].astype(np.int64),
        np.concatenate([np.zeros(0, bool), *first])[order].astype(np.bool_),
    )


@inner
def fill_rows(sites, v, x, row, here):
    """row (d, lanes) flat <- what the tables of v say about its states; here (lanes,) is scratch.

    Lanes are innermost everywhere, so that the loops over them vectorise.
    """
    start = sites.ptr[v]
    d = sites.ptr[v + 1] - start
    lanes = x.shape[1]
    for s in range(d):
        for c in range(lanes):
            row[s * lanes + c] = sites.fields[start + s]
    rows, others, strides = sites.rows, sites.others, sites.strides
    for e in range(sites.touch_ptr[v], sites.touch_ptr[v + 1]):
        at = sites.row_ptr[e]
        for c in range(lanes):
            here[c] = at
        for k in range(sites.other_ptr[e], sites.other_ptr[e + 1]):
            other, stride = others[k], strides[k]
            for c in range(lanes):
                here[c] += stride * x[other, c]
        for s in range(d):
            for c in range(lanes):
                row[s * lanes + c] += rows[here[c] + s]


@inner
def log_weights(sites, x, out):
    """out (lanes,) <- log weight of each lane's state: every table once."""
    out[:] = 0.0
    for v in range(sites.ptr.size - 1):
        for c in range(out.size):
            out[c] += sites.fields[sites.ptr[v] + x[v, c]]
        for e in range(sites.touch_ptr[v], sites.touch_ptr[v + 1]):
            if not sites.first[e]:
                continue
            for c in range(out.size):
                here = sites.row_ptr[e] + x[v, c]
                for k in range(sites.other_ptr[e], sites.other_ptr[e + 1]):
                    here += sites.strides[k] * x[sites.others[k], c]
                out[c] += sites.rows[here]


@inner
def workspace(sites, lanes):
    """row, odds, scratch (lanes times the most states of a variable), here, top, uniform."""
    most = 1
    for v in range(sites.ptr.size - 1):
        most = max(most, sites.ptr[v + 1] - sites.ptr[v])
    size = lanes * most
    return (
        np.empty(size), np.empty(size), np.empty(size), np.empty(lanes, dtype=np.int64),
        np.empty(lanes), np.empty(lanes),
    )  # fmt: skip


@inner
def heat_bath(sites, base, betas, x, slope, words, work):
    """One sweep over all sites in order, lane c at betas[c]; slope (log p~ - base) follows."""
    row, odds, scratch, here, top, uniform = work
    lanes = x.shape[1]
    for v in range(sites.ptr.size - 1):
        start = sites.ptr[v]
        d = sites.ptr[v + 1] - start
        fill_rows(sites, v, x, row, here)
        top[:] = -np.inf
        for s in range(d):
            still = base[start + s]
            for c in range(lanes):
                value = still + betas[c] * (row[s * lanes + c] - still)
                odds[s * lanes + c] = value
                top[c] = max(top[c], value)
        for s in range(d):
            for c in range(lanes):
                odds[s * lanes + c] -= top[c]
        exp_chunk(odds, lanes * d, scratch)
        # Cumulated odds: the new state is how many of them a uniform share of the whole passes.
        for s in range(1, d):
            for c in range(lanes):
                odds[s * lanes + c] += odds[(s - 1) * lanes + c]
        fill_uniform_lanes(words, uniform)
        for c in range(lanes):
            uniform[c] *= odds[(d - 1) * lanes + c]
            here[c] = 0
        for s in range(d - 1):
            for c in range(lanes):
                here[c] += 1 if odds[s * lanes + c] <= uniform[c] else 0
        for c in range(lanes):
            new, old = here[c], x[v, c]
            slope[c] += row[new * lanes + c] - row[old * lanes + c]
            slope[c] -= base[start + new] - base[start + old]
            x[v, c] = new


@kernel
def temper(sites, betas, order, x, energy, words, best_x, best, sweeps):
    """Sweeps of all lanes with swaps between neighbouring betas; the heaviest of each lane is kept.

    betas (lanes,) are exchanged instead of states, `order` sorts them. best_x (n, lanes) and best
    (lanes,) are of the soft model.
    """
    lanes = x.shape[1]
    work = workspace(sites, lanes)
    base = np.zeros(sites.fields.size)
    log_weights(sites, x, energy)
    for sweep in range(sweeps):
        heat_bath(sites, base, betas, x, energy, words, work)
        for c in range(lanes):
            if energy[c] > best[c]:
                best[c] = energy[c]
                for v in range(x.shape[0]):
                    best_x[v, c] = x[v, c]
        for i in range(sweep % 2, lanes - 1, 2):
            a, b = order[i], order[i + 1]
            gain = (betas[b] - betas[a]) * (energy[a] - energy[b])
            if gain >= 0.0 or _draw(words, a) < math.exp(gain):
                betas[a], betas[b] = betas[b], betas[a]
                order[i], order[i + 1] = b, a


class Walkers(NamedTuple):
    """As `ais.kernels.Lanes`, with states (n, lanes) instead of spins."""

    spins: NDArray[np.int32]
    log_w: NDArray[np.float64]
    slopes: NDArray[np.float64]
    ancestors: NDArray[np.int64]
    source: NDArray[np.int64]


@kernel
def state_chains(sites, base, betas, words, walkers, size, renewal, begin):
    """Chains drawn from `base` through `betas`, moved by heat bath; as `ais.kernels.spin_chains`.

    base: log probabilities of each variable's states, all finite; the start is their product, or
    where the walkers are if not `begin`.
    """
    x, log_w, slopes = walkers.spins, walkers.log_w, walkers.slopes
    n, lanes = x.shape[0], log_w.size
    slope, shared, prod = np.empty(lanes), np.zeros(lanes), np.empty(lanes)
    for v in range(n if begin else 0):
        start = sites.ptr[v]
        d = sites.ptr[v + 1] - start
        for c in range(lanes):
            left, new = _draw(words, c), d - 1
            for s in range(d):
                left -= math.exp(base[start + s])
                if left < 0.0:
                    new = s
                    break
            x[v, c] = new
    work = workspace(sites, lanes)
    log_weights(sites, x, slope)
    for v in range(n):
        for c in range(lanes):
            slope[c] -= base[sites.ptr[v] + x[v, c]]
    here = np.empty(lanes)
    for k in range(1, betas.size):
        for c in range(lanes):
            log_w[c] += (betas[k] - betas[k - 1]) * slope[c]
        if slopes.size:
            for c in range(lanes):
                slopes[k - 1, c] = slope[c]
        if k == betas.size - 1:
            break
        if renewal > 0.0:
            for low in range(0, lanes, size):
                high = min(lanes, low + size)
                effective, top, total = _effective(log_w, low, high)
                if effective < renewal * (high - low):
                    _renew(walkers, low, high, top, total, _draw(words, low), slope, prod)
                    mean = top + np.log(total / (high - low))
                    for c in range(low, high):
                        shared[c] += mean
        here[:] = betas[k]
        heat_bath(sites, base, here, x, slope, words, work)
    for c in range(lanes):
        log_w[c] += shared[c]
