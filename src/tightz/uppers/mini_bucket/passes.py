"""The two passes of weighted mini-bucket: bound on the way up, pseudo-marginals on the way down.

For clique c with table F_c (its own log table plus the messages it received) and weight w_c

    m_c(rest)  = w_c log sum_v exp(F_c(rest, v) / w_c)            the message, sent upwards
    log b_c    = r_c(rest) + (F_c - m_c) / w_c                    its pseudo-marginal
    r_c(rest)  = log sum of b_parent over what c does not have    sent downwards

(Liu and Ihler 2011, "Bounding the partition function using Hoelder's inequality"). The tables in
`theta` always sum to log p~, so whatever the state of the optimisation the forward pass gives a
valid bound.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import inner, kernel
from tightz.uppers.mini_bucket.kernels import (
    CHUNK,
    beliefs,
    binary_entropy,
    fill_offsets,
    head,
    log_marginal,
    log_sums,
    part,
    part_from,
    power_sum,
)
from tightz.uppers.mini_bucket.partition import Skeleton

_LEAST_WEIGHT = 1e-4

_DEEPEST = -85.0
"""exp of this is still a normal number in float32; what is rarer is never drawn."""


class Tables(NamedTuple):
    """Everything the passes read and write, allocated once.

    theta: clique tables; shift: all that each pair has moved from its second clique to its first,
    from which the judge forms theta anew; up: messages m; down: r - m / w; weights per clique;
    work: F of one bucket; belief, top, total, other: scratch of the largest table; offsets: index
    scratch. positive: no table has zeros (-inf), so the fast kernels serve.
    """

    theta: NDArray[np.float64]
    shift: NDArray[np.float64]
    up: NDArray[np.float64]
    down: NDArray[np.float64]
    weights: NDArray[np.float64]
    work: NDArray[np.float64]
    belief: NDArray[np.float64]
    top: NDArray[np.float64]
    total: NDArray[np.float64]
    other: NDArray[np.float64]
    chunk: NDArray[np.float64]
    chunk_bits: NDArray[np.float64]
    offsets: NDArray[np.int32]
    positive: bool


def allocate(skel: Skeleton, theta: NDArray[np.float64], weights: NDArray[np.float64]) -> Tables:
    """Buffers for a skeleton; `theta` and `weights` are used in place."""
    sizes = np.diff(skel.table_ptr)
    largest = int(sizes.max(initial=1))
    bucket = int(np.diff(skel.table_ptr[skel.bucket_ptr]).max(initial=1))
    messages = int(skel.message_ptr[-1])
    return Tables(
        theta,
        np.zeros(int(skel.shift_ptr[-1])),
        np.zeros(messages),
        np.zeros(messages),
        weights,
        np.empty(bucket),
        np.empty(largest),
        np.empty(largest),
        np.empty(max(largest, CHUNK)),
        np.empty(largest),
        np.empty(CHUNK),
        np.empty(CHUNK),
        np.empty(largest, dtype=np.int32),
        bool(np.isfinite(theta).all()),
    )


@inner
def _assemble(skel, tables, c, out):
    """out = theta_c + messages from the children of c."""
    theta = part(tables.theta, skel.table_ptr, c)
    dims = part(skel.dims, skel.axis_ptr, c)
    offsets = tables.offsets
    for k in range(out.size):
        out[k] = theta[k]
    for e in range(skel.child_ptr[c], skel.child_ptr[c + 1]):
        child = skel.children[e]
        message = part(tables.up, skel.message_ptr, child)
        fill_offsets(dims, part(skel.parent_strides, skel.stride_ptr, child), offsets)
        for k in range(out.size):
            out[k] += message[offsets[k]]


@inner
def _log_belief(table, down, weight, out):
    """out = table / w + down, down broadcast over the last axis; -inf wherever either is."""
    states = table.size // down.size
    scale = 1.0 / weight
    for j in range(down.size):
        for v in range(states):
            k = j * states + v
            dead = table[k] == -np.inf or down[j] == -np.inf
            out[k] = -np.inf if dead else table[k] * scale + down[j]


@inner
def _pair_marginal(skel, tables, side, c, table, out):
    """log marginal of clique c's belief over what a pair shares; leaves the offsets in place."""
    down = part(tables.down, skel.message_ptr, c)
    belief, offsets = head(tables.belief, table.size), tables.offsets
    strides = part(skel.pair_strides, skel.pair_stride_ptr, side)
    fill_offsets(part(skel.dims, skel.axis_ptr, c), strides, offsets)
    if tables.positive:
        top = beliefs(table, down, tables.weights[c], belief, tables.chunk_bits)
        log_sums(belief, offsets, top, out)
    else:
        _log_belief(table, down, tables.weights[c], belief)
        log_marginal(belief, offsets, out, tables.total, tables.chunk, tables.chunk_bits)


@inner
def _add_shift(skel, tables, side, c, table, shift):
    """Add `shift` (over the pair's shared variables) to theta_c and to F_c."""
    offsets = tables.offsets
    strides = part(skel.pair_strides, skel.pair_stride_ptr, side)
    fill_offsets(part(skel.dims, skel.axis_ptr, c), strides, offsets)
    theta = part(tables.theta, skel.table_ptr, c)
    for k in range(table.size):
        moved = shift[offsets[k]]
        theta[k] += moved
        table[k] += moved


@inner
def _match_pair(skel, tables, pair, base, step):
    """Shift costs so that two cliques agree on what they share.

    delta = step w1 w2 / (w1 + w2) (log b2 - log b1) goes to the first and is taken from the second:
    the weighted geometric mean of Liu and Ihler 2011 when step = 1. A shared state that one clique
    rules out (belief 0 under positive weights) has p~ = 0, so the other may rule it out too.
    """
    first, second = skel.pairs[pair, 0], skel.pairs[pair, 1]
    start = skel.shift_ptr[pair]
    size = skel.shift_ptr[pair + 1] - start
    table1 = part_from(tables.work, skel.table_ptr, first, base)
    table2 = part_from(tables.work, skel.table_ptr, second, base)
    log_b1, log_b2, kept = head(tables.top, size), head(tables.other, size), tables.shift
    _pair_marginal(skel, tables, 2 * pair, first, table1, log_b1)
    _pair_marginal(skel, tables, 2 * pair + 1, second, table2, log_b2)
    w1, w2 = tables.weights[first], tables.weights[second]
    rate = step * w1 * w2 / (w1 + w2)
    for t in range(size):
        if log_b1[t] > -np.inf and log_b2[t] > -np.inf:
            log_b1[t] = rate * (log_b2[t] - log_b1[t])
            log_b2[t] = -log_b1[t]
        elif w1 > 0.0 and w2 > 0.0:
            log_b1[t], log_b2[t] = -np.inf, -np.inf
        else:
            log_b1[t], log_b2[t] = 0.0, 0.0
        kept[start + t] += log_b1[t]
    _add_shift(skel, tables, 2 * pair, first, table1, log_b1)
    _add_shift(skel, tables, 2 * pair + 1, second, table2, log_b2)


@inner
def _entropy(table, down, weight):
    """Conditional entropy of the clique's own variable under its belief (d bound / d w_c)."""
    states = table.size // down.size
    top = -np.inf
    for j in range(down.size):
        if down[j] > -np.inf:
            for v in range(states):
                if table[j * states + v] > -np.inf:
                    top = max(top, table[j * states + v] / weight + down[j])
    if top == -np.inf:
        return 0.0
    mass, sum_h = 0.0, 0.0
    for j in range(down.size):
        if down[j] == -np.inf:
            continue
        row, mean = 0.0, 0.0
        best = -np.inf
        for v in range(states):
            if table[j * states + v] > -np.inf:
                best = max(best, table[j * states + v] / weight)
        if best == -np.inf or best + down[j] - top < -40.0:
            continue
        for v in range(states):
            gap = table[j * states + v] / weight - best
            if table[j * states + v] > -np.inf and gap > -700.0:
                p = np.exp(gap)
                row += p
                mean += p * gap
        share = np.exp(best + down[j] - top) * row
        mass += share
        sum_h += share * (np.log(row) - mean / row)
    return sum_h / mass


@inner
def _update_weights(skel, tables, bucket, base, rate):
    """Exponentiated gradient on the weights of one bucket; they keep their signs and sum to 1."""
    low, high = skel.bucket_ptr[bucket], skel.bucket_ptr[bucket + 1]
    entropies = np.empty(high - low)
    for c in range(low, high):
        table = part_from(tables.work, skel.table_ptr, c, base)
        down = part(tables.down, skel.message_ptr, c)
        if tables.positive and table.size == 2 * down.size:
            entropies[c - low] = binary_entropy(
                table, down, tables.weights[c], tables.chunk, tables.total, tables.chunk_bits
            )
        else:
            entropies[c - low] = _entropy(table, down, tables.weights[c])
    weights = part(tables.weights, skel.bucket_ptr, bucket)
    signed, lead, mean = False, 0, 0.0
    for i in range(high - low):
        signed = signed or weights[i] < 0.0
        lead = i if weights[i] > weights[lead] else lead
        mean += weights[i] * entropies[i]
    if not signed:
        total = 0.0
        for i in range(high - low):
            gain = -rate * weights[i] * (entropies[i] - mean)
            weights[i] = max(_LEAST_WEIGHT, weights[i] * np.exp(min(2.0, max(-2.0, gain))))
            total += weights[i]
        for i in range(high - low):
            weights[i] /= total
    else:
        spent = 0.0
        for i in range(high - low):
            if i != lead:
                gain = rate * weights[i] * (entropies[i] - entropies[lead])
                weights[i] *= np.exp(min(1.0, max(-1.0, gain)))
                weights[i] = min(weights[i], -_LEAST_WEIGHT)
                spent += weights[i]
        weights[lead] = 1.0 - spent


@kernel
def forward(skel, tables, step, weight_rate):
    """Sum all buckets out in order and return the bound; improves the tables on the way.

    `step` > 0 matches the cliques of each bucket before their messages leave, `weight_rate` > 0
    moves their weights; both need the `down` messages of an earlier `backward`.
    """
    bound = 0.0
    for b in range(skel.bucket_ptr.size - 1):
        low, high = skel.bucket_ptr[b], skel.bucket_ptr[b + 1]
        base = skel.table_ptr[low]
        for c in range(low, high):
            _assemble(skel, tables, c, part_from(tables.work, skel.table_ptr, c, base))
        if step > 0.0:
            for pair in range(skel.pair_ptr[b], skel.pair_ptr[b + 1]):
                _match_pair(skel, tables, pair, base, step)
        if weight_rate > 0.0 and high - low > 1:
            _update_weights(skel, tables, b, base, weight_rate)
        for c in range(low, high):
            table = part_from(tables.work, skel.table_ptr, c, base)
            message = part(tables.up, skel.message_ptr, c)
            states = skel.dims[skel.axis_ptr[c + 1] - 1]
            power_sum(table, states, tables.weights[c], message, tables.chunk, tables.chunk_bits)
            if skel.parents[c] < 0:
                bound += message[0]
    return bound


@kernel
def backward(skel, tables, step):
    """Send pseudo-marginals down the order reversed, matching cliques on the way (`step` > 0).

    Stores down_c = r_c - m_c / w_c, so that a belief is table / w + down.
    """
    for b in range(skel.bucket_ptr.size - 2, -1, -1):
        low, high = skel.bucket_ptr[b], skel.bucket_ptr[b + 1]
        base = skel.table_ptr[low]
        for c in range(low, high):
            _assemble(skel, tables, c, part_from(tables.work, skel.table_ptr, c, base))
            if skel.parents[c] < 0:
                m = tables.up[skel.message_ptr[c]]
                tables.down[skel.message_ptr[c]] = (
                    -m / tables.weights[c] if m > -np.inf else -np.inf
                )
        if step > 0.0:
            for pair in range(skel.pair_ptr[b], skel.pair_ptr[b + 1]):
                _match_pair(skel, tables, pair, base, step)
        for c in range(low, high):
            if skel.child_ptr[c] == skel.child_ptr[c + 1]:
                continue
            table = part_from(tables.work, skel.table_ptr, c, base)
            belief, offsets = head(tables.belief, table.size), tables.offsets
            dims = part(skel.dims, skel.axis_ptr, c)
            own = part(tables.down, skel.message_ptr, c)
            top = 0.0
            if tables.positive:
                top = beliefs(table, own, tables.weights[c], belief, tables.chunk_bits)
            else:
                _log_belief(table, own, tables.weights[c], belief)
            for e in range(skel.child_ptr[c], skel.child_ptr[c + 1]):
                child = skel.children[e]
                up = part(tables.up, skel.message_ptr, child)
                down = part(tables.down, skel.message_ptr, child)
                fill_offsets(dims, part(skel.parent_strides, skel.stride_ptr, child), offsets)
                if tables.positive:
                    log_sums(belief, offsets, top, down)
                else:
                    log_marginal(
                        belief, offsets, down, tables.total, tables.chunk, tables.chunk_bits
                    )
                scale = 1.0 / tables.weights[child]
                for j in range(down.size):
                    down[j] = -np.inf if up[j] == -np.inf else down[j] - up[j] * scale


@kernel
def apply_shifts(skel, tables):
    """Add the kept shifts to clean clique tables: what all moves together have done, once."""
    for pair in range(skel.pairs.shape[0]):
        shift, offsets = part(tables.shift, skel.shift_ptr, pair), tables.offsets
        for side in range(2):
            c = skel.pairs[pair, side]
            theta = part(tables.theta, skel.table_ptr, c)
            strides = part(skel.pair_strides, skel.pair_stride_ptr, 2 * pair + side)
            fill_offsets(part(skel.dims, skel.axis_ptr, c), strides, offsets)
            sign = 1.0 - 2.0 * side
            for k in range(theta.size):
                moved = shift[offsets[k]]
                theta[k] = -np.inf if moved == -np.inf else theta[k] + sign * moved


@kernel
def conditionals(skel, tables, out):
    """out = exp(F_c - m_c), at most 1, after a forward pass; 0 where the message rules it out.

    Returns the sum over cliques of the largest finite magnitude in F_c: what rounding scales with.
    """
    magnitude = 0.0
    for c in range(skel.parents.size):
        table = head(tables.belief, skel.table_ptr[c + 1] - skel.table_ptr[c])
        drawn = part(out, skel.table_ptr, c)
        _assemble(skel, tables, c, table)
        message = part(tables.up, skel.message_ptr, c)
        states = table.size // message.size
        largest = 0.0
        for j in range(message.size):
            m = message[j]
            for v in range(states):
                value = table[j * states + v]
                gap = value - m if m > -np.inf else -np.inf
                drawn[j * states + v] = np.exp(gap) if gap > _DEEPEST else 0.0
                if value > -np.inf:
                    largest = max(largest, abs(value))
        magnitude += largest
    return magnitude
