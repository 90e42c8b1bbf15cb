"""The two passes of weighted mini-bucket: bound on the way up, pseudo-marginals on the way down.

For clique c with table F_c (its own factors and shifts plus the messages it received), weight w_c

    m_c(rest)   = w_c log sum_v exp(F_c(rest, v) / w_c)           the message, sent upwards
    q_c(v|rest) = exp((F_c - m_c) / w_c)                          its conditional
    b_c         = r_c(rest) q_c(v|rest)                           its pseudo-marginal
    r_c(rest)   = sum of b_parent over what c does not have       sent downwards

(Liu and Ihler 2011, "Bounding the partition function using Hoelder's inequality"). The cliques' own
tables always sum to log p~, so whatever the state of the optimisation the forward pass gives a
valid bound. The forward pass keeps the conditionals, so the way down needs no exponentials. Tables
are walked tile by tile: a tile is what the fastest axes span, and stays in the first cache.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import inner, kernel
from tightz.uppers.mini_bucket.kernels import (
    CHUNK,
    exp_chunk,
    fill_offsets,
    head,
    log1p_chunk,
    part,
    part_from,
)
from tightz.uppers.mini_bucket.layout import Skeleton

_LEAST_WEIGHT = 1e-4

_SPENT = 1e5
"""What negative weights of a bucket may add up to: more, and rounding hides that the sum is 1."""

_DEEPEST = -85.0
"""exp of this is still a normal number in float32; what is rarer is never drawn."""

_RARE = 1e-37
"""Conditionals of states that are not ruled out are at least this: still normal in float32."""

_FAINT = 1e-300
"""The same of pseudo-marginals."""


class Tables(NamedTuple):
    """Everything the passes read and write, allocated once.

    own: factors and shifts of each clique; shift: all that each pair has moved from its second
    clique to its first, from which the judge forms own anew; up: messages m; odds: conditionals q,
    for two states that of the rarer one, negative where that is the first; entropy of q a row, in
    cut buckets; down: r; weights per clique. Scratch: work, b of one cut bucket; offsets (tables at
    a clique, tile); starts (tables at a clique); digits; tile, hold and bits (a tile); one and two,
    what a pair shares; axes and steps, of a clique.
    """

    own: NDArray[np.float64]
    shift: NDArray[np.float64]
    up: NDArray[np.float64]
    odds: NDArray[np.float32]
    entropy: NDArray[np.float32]
    down: NDArray[np.float64]
    weights: NDArray[np.float64]
    work: NDArray[np.float64]
    offsets: NDArray[np.int32]
    starts: NDArray[np.int64]
    digits: NDArray[np.int64]
    tile: NDArray[np.float64]
    hold: NDArray[np.float64]
    bits: NDArray[np.float64]
    one: NDArray[np.float64]
    two: NDArray[np.float64]
    spread: NDArray[np.int32]
    axes: NDArray[np.int64]
    steps: NDArray[np.int64]


TILE = 2 * CHUNK
"""Entries of a tile, or one axis where that is longer."""


def allocate(skel: Skeleton, own: NDArray[np.float64], weights: NDArray[np.float64]) -> Tables:
    """Buffers for a skeleton; `own` and `weights` are used in place."""
    sizes = np.diff(skel.table_ptr)
    cut = np.repeat(np.diff(skel.bucket_ptr) > 1, np.diff(skel.bucket_ptr))
    held = np.concatenate([[0], np.cumsum(np.where(cut, sizes, 0))])
    bucket = int(np.diff(held[skel.bucket_ptr]).max(initial=0))
    messages = int(skel.message_ptr[-1])
    states = skel.dims[skel.axis_ptr[1:] - 1]
    tile = max(TILE, int(states.max(initial=1)))
    tables = int(np.diff(skel.child_ptr).max(initial=0)) + 1
    most = int(np.diff(skel.axis_ptr).max(initial=1))
    shared = int(np.diff(skel.shift_ptr).max(initial=1))
    cliques = int(np.diff(skel.bucket_ptr).max(initial=1))  # `hold` has their entropies, too
    return Tables(
        own,
        np.zeros(int(skel.shift_ptr[-1])),
        np.zeros(messages),
        np.zeros(int(skel.odds_ptr[-1]), dtype=np.float32),
        np.zeros(int(skel.cut_ptr[-1]), dtype=np.float32),
        np.zeros(messages),
        weights,
        np.empty(bucket),
        np.empty((tables, tile), dtype=np.int32),
        np.empty(tables, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(tile),
        np.empty(max(tile, cliques)),
        np.empty(tile),
        np.empty(shared),
        np.empty(shared),
        np.empty(max(tile, int(np.diff(skel.own_ptr).max(initial=1))), dtype=np.int32),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
    )


@inner
def _walk(skel, tables, c):
    """Prepare the walk over clique c: (first axis of a tile, entries of a tile).

    Row e of `offsets` says where a tile's entries fall in the message of child e, the last row
    where they fall in the clique's own table.
    """
    low, high = skel.axis_ptr[c], skel.axis_ptr[c + 1]
    first, size = high - 1, skel.dims[high - 1]
    while first > low and size * skel.dims[first - 1] <= TILE:
        first -= 1
        size *= skel.dims[first]
    dims = skel.dims[first:high]
    children = skel.child_ptr[c + 1] - skel.child_ptr[c]
    for e in range(children):
        strides = part(skel.parent_strides, skel.stride_ptr, skel.children[skel.child_ptr[c] + e])
        fill_offsets(dims, strides[first - low :], tables.offsets[e])
    fill_offsets(dims, skel.own_strides[first:high], tables.offsets[children])
    tables.digits[: first - low] = 0
    tables.starts[: children + 1] = 0
    return first, size


@inner
def _next_tile(skel, tables, c, first):
    """Move the digits of the slow axes, and with them the starts, to the next tile."""
    low = skel.axis_ptr[c]
    children = skel.child_ptr[c + 1] - skel.child_ptr[c]
    a = first - 1
    while a >= low:
        d = skel.dims[a]
        tables.digits[a - low] += 1
        back = tables.digits[a - low] == d
        move = 1 - d if back else 1
        for e in range(children):
            child = skel.children[skel.child_ptr[c] + e]
            tables.starts[e] += move * skel.parent_strides[skel.stride_ptr[child] + a - low]
        tables.starts[children] += move * skel.own_strides[a]
        if not back:
            return
        tables.digits[a - low] = 0
        a -= 1


@inner
def _in_step(offsets, size):
    """Whether a tile lies in the smaller table as it is."""
    return offsets[size - 1] == size - 1


@inner
def _assemble(skel, tables, c, size):
    """F_c on a tile, in `tile`."""
    out = head(tables.tile, size)
    children = skel.child_ptr[c + 1] - skel.child_ptr[c]
    own, offsets = tables.own[skel.own_ptr[c] + tables.starts[children] :], tables.offsets[children]
    for k in range(size):
        out[k] = own[offsets[k]]
    for e in range(children):
        child = skel.children[skel.child_ptr[c] + e]
        message = tables.up[skel.message_ptr[child] + tables.starts[e] :]
        offsets = tables.offsets[e]
        if _in_step(offsets, size):
            for k in range(size):
                out[k] += message[k]
        else:
            for k in range(size):
                out[k] += message[offsets[k]]


@inner
def _sum_pairs(table, weight, out, odds, chunk, bits):
    """Messages and conditionals of rows of two states; log(1 + e) is left in `chunk`."""
    scale = 1.0 / abs(weight)
    up = weight > 0.0
    n = out.size
    for i in range(n):
        a, b = table[2 * i], table[2 * i + 1]
        high, low = max(a, b), min(a, b)
        gap = (high - low) * scale
        chunk[i] = -gap if high > -np.inf else 0.0
        out[i] = high if up else low
    exp_chunk(chunk, n, bits)
    log1p_chunk(chunk, n, bits)
    for i in range(n):
        a, b = table[2 * i], table[2 * i + 1]
        q = bits[i] if bits[i] > _RARE else _RARE
        q = q if min(a, b) > -np.inf else 0.0
        odds[i] = q if (b < a) == up else -q
        out[i] += weight * chunk[i]


@inner
def _pair_entropies(table, weight, odds, chunk, entropy):
    """Entropies of the conditionals that `_sum_pairs` left: log(1 + e) + gap q."""
    scale = 1.0 / abs(weight)
    for i in range(entropy.size):
        a, b = table[2 * i], table[2 * i + 1]
        gap = abs(a - b) * scale
        rare = abs(odds[i])
        entropy[i] = chunk[i] + (gap * rare if rare > _RARE else 0.0)


@inner
def _sum_rows(table, states, weight, out, odds, entropy):
    """Messages, conditionals and, where asked for, entropies of rows of any number of states."""
    for j in range(out.size):
        ref = table[j * states]
        for v in range(1, states):
            x = table[j * states + v]
            if (x > ref) == (weight > 0):
                ref = x
        if ref == -np.inf:
            out[j] = ref
            for v in range(states):
                odds[j * states + v] = 0.0
            if entropy.size:
                entropy[j] = 0.0
            continue
        total, depth = 0.0, 0.0
        for v in range(states):
            gap = (table[j * states + v] - ref) / weight
            e = np.exp(gap)
            odds[j * states + v] = e
            total += e
            if gap > -700.0:
                depth += gap * e
        log_total = np.log(total)
        out[j] = ref + weight * log_total
        if entropy.size:
            entropy[j] = log_total - depth / total
        for v in range(states):
            q = odds[j * states + v] / total
            dead = table[j * states + v] == -np.inf
            odds[j * states + v] = 0.0 if dead else max(q, _RARE)


@kernel
def forward(skel, tables):
    """Sum all buckets out in order and return the bound."""
    bound = 0.0
    for b in range(skel.bucket_ptr.size - 1):
        for c in range(skel.bucket_ptr[b], skel.bucket_ptr[b + 1]):
            states = skel.dims[skel.axis_ptr[c + 1] - 1]
            weight = tables.weights[c]
            message, odds = (
                part(tables.up, skel.message_ptr, c),
                part(tables.odds, skel.odds_ptr, c),
            )
            entropy = part(tables.entropy, skel.cut_ptr, c)
            first, size = _walk(skel, tables, c)
            rows = size // states
            table = head(tables.tile, size)
            for at in range(0, message.size, rows):
                _assemble(skel, tables, c, size)
                out, some = message[at : at + rows], head(entropy, 0)
                if entropy.size:
                    some = entropy[at : at + rows]
                if states == 2:
                    odd = odds[at : at + rows]
                    _sum_pairs(table, weight, out, odd, tables.hold, tables.bits)
                    _pair_entropies(table, weight, odd, tables.hold, some)
                else:
                    wide = odds[at * states : (at + rows) * states]
                    _sum_rows(table, states, weight, out, wide, some)
                _next_tile(skel, tables, c, first)
            if skel.parents[c] < 0:
                bound += message[0]
    return bound


@inner
def _scaled(r, scale):
    """scale r, above zero where r is."""
    x = scale * r
    return x if x > _FAINT or r == 0.0 else _FAINT


@inner
def _beliefs(down, odds, states, scale, out):
    """b = r q of a tile; what is not ruled out stays above zero."""
    if states == 2:
        for j in range(down.size):
            r, s = _scaled(down[j], scale), odds[j]
            q = abs(s)
            x = r * q
            x = x if x > _FAINT or q == 0.0 or r == 0.0 else _FAINT
            y = r - x
            y = y if y > _FAINT or r == 0.0 else _FAINT
            flip = np.copysign(np.float32(1.0), s) < 0.0
            out[2 * j] = x if flip else y
            out[2 * j + 1] = y if flip else x
    else:
        for j in range(down.size):
            r = _scaled(down[j], scale)
            for v in range(states):
                q = odds[j * states + v]
                x = r * q
                out[j * states + v] = x if x > _FAINT or q == 0.0 or r == 0.0 else _FAINT


@inner
def _spread(skel, tables, c, belief):
    """Add a tile of beliefs to the children's r."""
    size = belief.size
    for e in range(skel.child_ptr[c + 1] - skel.child_ptr[c]):
        child = skel.children[skel.child_ptr[c] + e]
        down = tables.down[skel.message_ptr[child] + tables.starts[e] :]
        offsets = tables.offsets[e]
        if _in_step(offsets, size):
            for k in range(size):
                down[k] += belief[k]
        else:
            for k in range(size):
                down[offsets[k]] += belief[k]


@inner
def _send_down(skel, tables, c, work, held):
    """r of the children of c, from its beliefs, which lie in `work` where they are `held`."""
    for e in range(skel.child_ptr[c], skel.child_ptr[c + 1]):
        part(tables.down, skel.message_ptr, skel.children[e])[:] = 0.0
    if skel.child_ptr[c] == skel.child_ptr[c + 1]:
        return
    states = skel.dims[skel.axis_ptr[c + 1] - 1]
    down, odds = part(tables.down, skel.message_ptr, c), part(tables.odds, skel.odds_ptr, c)
    first, size = _walk(skel, tables, c)
    rows = size // states
    wide = 1 if states == 2 else states
    for at in range(0, down.size, rows):
        if held:
            belief = work[at * states : at * states + size]
        else:
            belief = head(tables.tile, size)
            _beliefs(
                down[at : at + rows], odds[at * wide : (at + rows) * wide], states, 1.0, belief
            )
        _spread(skel, tables, c, belief)
        _next_tile(skel, tables, c, first)


@inner
def _hold_beliefs(skel, tables, c, belief):
    """b of a whole clique, normalised; returns the entropy of its own variable under it."""
    states = skel.dims[skel.axis_ptr[c + 1] - 1]
    down, odds = part(tables.down, skel.message_ptr, c), part(tables.odds, skel.odds_ptr, c)
    entropy = part(tables.entropy, skel.cut_ptr, c)
    total, mean = 0.0, 0.0
    for j in range(down.size):
        total += down[j]
        mean += down[j] * entropy[j]
    if total == 0.0:
        belief[:] = 0.0
        return 0.0
    _beliefs(down, odds, states, 1.0 / total, belief)
    return mean / total


@inner
def _pair_offsets(skel, tables, side, c):
    """Where the entries of clique c's table fall in what a pair shares: (first axis, entries).

    As `_walk`, for one table.
    """
    low, high = skel.axis_ptr[c], skel.axis_ptr[c + 1]
    first, size = high - 1, skel.dims[high - 1]
    while first > low and size * skel.dims[first - 1] <= TILE:
        first -= 1
        size *= skel.dims[first]
    strides = part(skel.pair_strides, skel.pair_stride_ptr, side)
    fill_offsets(skel.dims[first:high], strides[first - low :], tables.spread)
    tables.digits[: first - low] = 0
    return first, size


@inner
def _next_start(skel, tables, side, c, first, start):
    """As `_next_tile`, for one table."""
    low = skel.axis_ptr[c]
    strides = part(skel.pair_strides, skel.pair_stride_ptr, side)
    a = first - 1
    while a >= low:
        d = skel.dims[a]
        tables.digits[a - low] += 1
        if tables.digits[a - low] < d:
            return start + strides[a - low]
        start += (1 - d) * strides[a - low]
        tables.digits[a - low] = 0
        a -= 1
    return start


@inner
def _pair_marginal(skel, tables, side, c, belief, out):
    """Marginal of clique c's belief over what a pair shares."""
    out[:] = 0.0
    first, size = _pair_offsets(skel, tables, side, c)
    offsets, start = tables.spread, 0
    for at in range(0, belief.size, size):
        tile, into = belief[at : at + size], out[start:]
        for k in range(size):
            into[offsets[k]] += tile[k]
        start = _next_start(skel, tables, side, c, first, start)


@inner
def _move(skel, tables, side, c, belief, shift, weight):
    """Add `shift` (over what a pair shares) to clique c; its belief follows: b e^(shift / w)."""
    low, high = skel.axis_ptr[c], skel.axis_ptr[c + 1]
    strides = part(skel.pair_strides, skel.pair_stride_ptr, side)
    own = part(tables.own, skel.own_ptr, c)
    axes = 0
    for a in range(low, high):
        if skel.own_strides[a] > 0:
            tables.axes[axes], tables.steps[axes] = skel.dims[a], strides[a - low]
            axes += 1
    fill_offsets(head(tables.axes, axes), head(tables.steps, axes), tables.spread)
    for k in range(own.size):
        own[k] += shift[tables.spread[k]]
    for t in range(shift.size):
        moved = shift[t] / weight
        shift[t] = np.exp(max(-600.0, min(600.0, moved))) if shift[t] > -np.inf else 0.0
    first, size = _pair_offsets(skel, tables, side, c)
    offsets, start = tables.spread, 0
    for at in range(0, belief.size, size):
        tile, factor = belief[at : at + size], shift[start:]
        for k in range(size):
            b, f = tile[k], factor[offsets[k]]
            # 0 by underflow would pass for a state that the model rules out: b and f are 0 or above
            # _FAINT
            tile[k] = max(b * f, min(_FAINT, min(b, f)))
        start = _next_start(skel, tables, side, c, first, start)


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
    belief1 = part_from(tables.work, skel.table_ptr, first, base)
    belief2 = part_from(tables.work, skel.table_ptr, second, base)
    one, two, kept = head(tables.one, size), head(tables.two, size), tables.shift
    _pair_marginal(skel, tables, 2 * pair, first, belief1, one)
    _pair_marginal(skel, tables, 2 * pair + 1, second, belief2, two)
    w1, w2 = tables.weights[first], tables.weights[second]
    rate = step * w1 * w2 / (w1 + w2)
    for t in range(size):
        if one[t] > 0.0 and two[t] > 0.0:
            one[t] = rate * (np.log(two[t]) - np.log(one[t]))
            two[t] = -one[t]
        elif w1 > 0.0 and w2 > 0.0:
            one[t], two[t] = -np.inf, -np.inf
        else:
            one[t], two[t] = 0.0, 0.0
        kept[start + t] += one[t]
    _move(skel, tables, 2 * pair, first, belief1, one, w1)
    _move(skel, tables, 2 * pair + 1, second, belief2, two, w2)


@inner
def _update_weights(weights, entropies, rate):
    """Exponentiated gradient on the weights of one bucket; they keep their signs and sum to 1."""
    signed, lead, mean = False, 0, 0.0
    for i in range(weights.size):
        signed = signed or weights[i] < 0.0
        lead = i if weights[i] > weights[lead] else lead
        mean += weights[i] * entropies[i]
    if not signed:
        total = 0.0
        for i in range(weights.size):
            gain = -rate * weights[i] * (entropies[i] - mean)
            weights[i] = max(_LEAST_WEIGHT, weights[i] * math.exp(min(2.0, max(-2.0, gain))))
            total += weights[i]
        for i in range(weights.size):
            weights[i] /= total
    else:
        spent = 0.0
        for i in range(weights.size):
            if i != lead:
                gain = rate * weights[i] * (entropies[i] - entropies[lead])
                weights[i] *= math.exp(min(1.0, max(-1.0, gain)))
                weights[i] = max(-_SPENT / weights.size, min(weights[i], -_LEAST_WEIGHT))
                spent += weights[i]
        weights[lead] = 1.0 - spent


@kernel
def backward(skel, tables, step, weight_rate):
    """Send pseudo-marginals down the order reversed, after a forward pass.

    On the way the cliques of each cut bucket are matched and their weights moved.
    """
    for b in range(skel.bucket_ptr.size - 2, -1, -1):
        low, high = skel.bucket_ptr[b], skel.bucket_ptr[b + 1]
        base = skel.table_ptr[low]
        for c in range(low, high):
            if skel.parents[c] < 0:
                alive = tables.up[skel.message_ptr[c]] > -np.inf
                tables.down[skel.message_ptr[c]] = 1.0 if alive else 0.0
        if high - low > 1:
            entropies = head(tables.hold, high - low)
            for c in range(low, high):
                belief = part_from(tables.work, skel.table_ptr, c, base)
                entropies[c - low] = _hold_beliefs(skel, tables, c, belief)
            weights = part(tables.weights, skel.bucket_ptr, b)
            for pair in range(skel.pair_ptr[b], skel.pair_ptr[b + 1]):
                _match_pair(skel, tables, pair, base, step)
            _update_weights(weights, entropies, weight_rate)
        for c in range(low, high):
            held = high - low > 1
            work = part_from(tables.work, skel.table_ptr, c, base) if held else tables.work
            _send_down(skel, tables, c, work, held)


@kernel
def apply_shifts(skel, tables):
    """Add the kept shifts to clean own tables: what all moves together have done, once."""
    for pair in range(skel.pairs.shape[0]):
        shift = part(tables.shift, skel.shift_ptr, pair)
        for side in range(2):
            c = skel.pairs[pair, side]
            low, high = skel.axis_ptr[c], skel.axis_ptr[c + 1]
            strides = part(skel.pair_strides, skel.pair_stride_ptr, 2 * pair + side)
            own = part(tables.own, skel.own_ptr, c)
            axes = 0
            for a in range(low, high):
                if skel.own_strides[a] > 0:
                    tables.axes[axes], tables.steps[axes] = skel.dims[a], strides[a - low]
                    axes += 1
            fill_offsets(head(tables.axes, axes), head(tables.steps, axes), tables.spread)
            sign = 1.0 - 2.0 * side
            for k in range(own.size):
                moved = shift[tables.spread[k]]
                own[k] = -np.inf if moved == -np.inf else own[k] + sign * moved


@kernel
def conditionals(skel, tables, out):
    """out = exp(F_c - m_c), at most 1, after a forward pass; 0 where the message rules it out.

    Returns the sum over cliques of the largest finite magnitude in F_c: what rounding scales with.
    """
    magnitude = 0.0
    for c in range(skel.parents.size):
        drawn = part(out, skel.table_ptr, c)
        message = part(tables.up, skel.message_ptr, c)
        states = skel.dims[skel.axis_ptr[c + 1] - 1]
        first, size = _walk(skel, tables, c)
        table = head(tables.tile, size)
        largest = 0.0
        for at in range(0, drawn.size, size):
            _assemble(skel, tables, c, size)
            into, messages = drawn[at : at + size], message[at // states :]
            for j in range(size // states):
                m = messages[j]
                for v in range(states):
                    value = table[j * states + v]
                    gap = value - m if m > -np.inf else -np.inf
                    into[j * states + v] = np.exp(gap) if gap > _DEEPEST else 0.0
                    if value > -np.inf:
                        largest = max(largest, abs(value))
            _next_tile(skel, tables, c, first)
        magnitude += largest
    return magnitude
