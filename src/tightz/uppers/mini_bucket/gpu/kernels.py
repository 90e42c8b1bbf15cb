"""The passes of weighted mini-bucket on a device: every kernel treats many cliques at once.

The formulas are those of `tightz.uppers.mini_bucket.passes`, with beliefs kept as logarithms, which
fit into float32 where the numbers themselves would not. One array `pool` holds every table, one
array `plan` says where they lie (see `program`), `reals` has weights, levels, sums and steps.

A launch treats a list of records. Its blocks are dealt out over them in turn, ITEMS entries or rows
to a block, so that small cliques of one level share a launch and large ones fill the device.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import numpy as np

from tightz.runtime.gpu.device import SIMULATED, cuda, device_kernel
from tightz.uppers.mini_bucket.passes import _update_weights

THREADS = 2 if SIMULATED else 128
ITEMS = 4 if SIMULATED else 512
"""Entries or rows of one block."""

_NOWHERE = np.float32(-np.inf)
_NONE, _ONE = np.float32(0.0), np.float32(1.0)
_RARE = np.float32(-85.2)
"""log of the least conditional, and of the least belief: as on the CPU, nothing is ruled out."""
_FAINT = np.float32(-690.0)


@cuda.jit(device=True)
def _record(plan, at):
    """(record, first item) of this block: the launch at `at` lists ends of blocks, then records."""
    count = plan[at]
    low, high = 0, count - 1
    block = cuda.blockIdx.x
    while low < high:
        middle = (low + high) // 2
        if block < plan[at + 1 + middle]:
            high = middle
        else:
            low = middle + 1
    begun = plan[at + low] if low > 0 else 0
    return plan[at + 1 + count + low], (block - begun) * ITEMS


@cuda.jit(device=True)
def _offset(plan, at, k):
    """Where entry k falls in a smaller table: runs of neighbouring axes, (divisor, size, stride).

    A count below zero says that sizes are powers of two: divisors are then shifts, sizes masks. In
    32 bits, which take the device a third of the time; tables have fewer entries.
    """
    runs, out, k = plan[at], np.uint32(0), np.uint32(k)
    for r in range(at + 1, at + 1 + 3 * abs(runs), 3):
        one, two, stride = np.uint32(plan[r]), np.uint32(plan[r + 1]), np.uint32(plan[r + 2])
        if runs < 0:
            digit = np.uint32(np.uint32(k >> (one & np.uint32(31))) & two)
        else:
            digit = np.uint32(np.uint32(k // one) % two)
        out = np.uint32(out + np.uint32(digit * stride))
    return np.int64(out)


@cuda.jit(device=True)
def _entry(plan, pool, reals, at, terms, row, state):
    """F_c at (row, state): its factors, shifts and messages, these less their levels."""
    out = _NONE
    for _ in range(terms):
        place = plan[at] + state * plan[at + 3] + _offset(plan, at + 5, row)
        value = pool[place]
        if plan[at + 2] >= 0:
            value -= np.float32(reals[plan[at + 2]])
        out += value if plan[at + 1] > 0 else -value
        at += plan[at + 4]
    return out


@cuda.jit(device=True)
def _both(plan, pool, reals, at, terms, row):
    """`_entry` of both states of a row, whose place is worked out once."""
    one, two = _NONE, _NONE
    for _ in range(terms):
        place = plan[at] + _offset(plan, at + 5, row)
        first, second = pool[place], pool[place + plan[at + 3]]
        if plan[at + 2] >= 0:
            level = np.float32(reals[plan[at + 2]])
            first -= level
            second -= level
        if plan[at + 1] > 0:
            one += first
            two += second
        else:
            one -= first
            two -= second
        at += plan[at + 4]
    return one, two


@cuda.jit(device=True)
def _summed(plan, pool, reals, at, row, scale):
    """(largest, sum of exp((F - largest) / w), sum of gap exp(gap)) over the states of a row."""
    states, terms = plan[at + 1], plan[at + 4]
    top, total, depth = _NOWHERE, _NONE, _NONE
    for v in range(states):
        x = _entry(plan, pool, reals, at + 6, terms, row, v)
        if x <= top:
            gap = (x - top) * scale
            e = math.exp(gap)
            total += e
            depth += gap * e
        elif top == _NOWHERE:
            top, total = x, _ONE
        else:
            gap = (top - x) * scale
            e = math.exp(gap)
            depth = e * (depth + gap * total)
            total = e * total + _ONE
            top = x
    return top, total, depth


@cuda.jit(device=True)
def _most(value, shared):
    """The largest value of a block, for its first thread."""
    t = cuda.threadIdx.x
    shared[t] = value
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            shared[t] = max(shared[t], shared[t + half])
        cuda.syncthreads()
        half //= 2
    return shared[0]


@cuda.jit(device=True)
def _sum(value, shared):
    """The sum over a block, for its first thread."""
    t = cuda.threadIdx.x
    shared[t] = value
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    found = shared[0]
    cuda.syncthreads()
    return found


@device_kernel
def forward(plan, pool, reals, at):
    """Messages m_c, and their largest entries as levels.

    Record: rows, states, message, weight, terms, level; then the terms.
    """
    shared = cuda.shared.array(THREADS, np.float64)
    at, first = _record(plan, at)
    rows, out, weight = plan[at], plan[at + 2], np.float32(reals[plan[at + 3]])
    largest = _NOWHERE
    scale = np.float32(1.0 / reals[plan[at + 3]])
    for j in range(first + cuda.threadIdx.x, min(first + ITEMS, rows), THREADS):
        if plan[at + 1] == 2:
            one, two = _both(plan, pool, reals, at + 6, plan[at + 4], j)
            top, total = max(one, two), _ONE + math.exp(-abs(one - two) * scale)
        else:
            top, total, _ = _summed(plan, pool, reals, at, j, scale)
        message = top + weight * math.log(total)
        pool[out + j] = message
        largest = max(largest, message)
    most = _most(np.float64(largest), shared)
    if cuda.threadIdx.x == 0:
        cuda.atomic.max(reals, plan[at + 5], most)


@device_kernel
def beliefs(plan, pool, reals, at):
    """log b_c = log r + (F_c - m_c) / w_c; r lies where m_c was.

    Record: that of `forward` (its place), where b goes, whether it is a root, where the sums of r
    and of r times the entropy go, or -1.
    """
    shared = cuda.shared.array(THREADS, np.float64)
    own, first = _record(plan, at)
    at, into, root, sums = plan[own], plan[own + 1], plan[own + 2], plan[own + 3]
    rows, states, source, terms = plan[at], plan[at + 1], plan[at + 2], plan[at + 4]
    scale = np.float32(1.0 / reals[plan[at + 3]])
    mass, entropy = 0.0, 0.0
    for j in range(first + cuda.threadIdx.x, min(first + ITEMS, rows), THREADS):
        r = _NONE if root > 0 else pool[source + j]
        if states == 2:
            one, two = _both(plan, pool, reals, at + 6, terms, j)
            top = max(one, two)
            gap = -abs(one - two) * scale
            e = math.exp(gap)
            total, depth = _ONE + e, gap * e
            log_total = math.log(total)
            one, two = (one - top) * scale - log_total, (two - top) * scale - log_total
            pool[into + 2 * j] = max(r + max(one, _RARE), _FAINT)
            pool[into + 2 * j + 1] = max(r + max(two, _RARE), _FAINT)
        else:
            top, total, depth = _summed(plan, pool, reals, at, j, scale)
            log_total = math.log(total)
            for v in range(states):
                gap = (_entry(plan, pool, reals, at + 6, terms, j, v) - top) * scale
                pool[into + j * states + v] = max(r + max(gap - log_total, _RARE), _FAINT)
        if sums >= 0:
            share = math.exp(r)
            mass += share
            entropy += share * (log_total - depth / total)
    if sums >= 0:
        mass = _sum(mass, shared)
        entropy = _sum(entropy, shared)
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(reals, sums, mass)
            cuda.atomic.add(reals, sums + 1, entropy)


@device_kernel
def gather(plan, pool, reals, at):
    """log sum exp over the axes that a smaller table does not have.

    Record: outputs, source, target, entries summed for each, where these lie (their offsets, or
    below zero minus the place of their runs), place of a sum to divide by or -1; then the runs of
    the outputs.
    """
    at, first = _record(plan, at)
    source, target, count, red = plan[at + 1], plan[at + 2], plan[at + 3], plan[at + 4]
    less = _NONE if plan[at + 5] < 0 else np.float32(math.log(reals[plan[at + 5]]))
    for k in range(first + cuda.threadIdx.x, min(first + ITEMS, plan[at]), THREADS):
        begin = source + _offset(plan, at + 6, k)
        top, total = pool[begin], _ONE
        for s in range(1, count):
            x = pool[begin + (plan[red + s] if red > 0 else _offset(plan, -red, s))]
            if x <= top:
                total += math.exp(x - top)
            else:
                total = total * math.exp(top - x) + _ONE
                top = x
        pool[target + k] = max(top + math.log(total) - less, _FAINT)


@device_kernel
def match(plan, pool, reals, at):
    """delta = step w1 w2 / (w1 + w2) (log b2 - log b1), into the place of log b1 and the shifts.

    Record: entries, log b1, log b2, shifts, weights 1 and 2, step.
    """
    at, first = _record(plan, at)
    one, two, shift = plan[at + 1], plan[at + 2], plan[at + 3]
    w1, w2 = reals[plan[at + 4]], reals[plan[at + 5]]
    rate = np.float32(reals[plan[at + 6]] * w1 * w2 / (w1 + w2))
    for k in range(first + cuda.threadIdx.x, min(first + ITEMS, plan[at]), THREADS):
        delta = rate * (pool[two + k] - pool[one + k])
        pool[one + k] = delta
        pool[shift + k] += delta


@device_kernel
def follow(plan, pool, reals, at):
    """log b_c += +-delta / w_c.  Record: entries, b, delta, sign, weight; runs in delta."""
    at, first = _record(plan, at)
    belief, delta = plan[at + 1], plan[at + 2]
    scale = np.float32(plan[at + 3] / reals[plan[at + 4]])
    for k in range(first + cuda.threadIdx.x, min(first + ITEMS, plan[at]), THREADS):
        moved = scale * pool[delta + _offset(plan, at + 5, k)]
        pool[belief + k] = max(pool[belief + k] + moved, _FAINT)


@device_kernel
def weigh(plan, pool, reals, at):
    """Weights of a bucket by its cliques' mean entropies.

    Record: 1, cliques, first weight, first sum, rate, room for the entropies.
    """
    at, _ = _record(plan, at)
    if cuda.threadIdx.x == 0:
        count, low, sums, room = plan[at + 1], plan[at + 2], plan[at + 3], plan[at + 5]
        for c in range(count):
            reals[room + c] = reals[sums + 2 * c + 1] / reals[sums + 2 * c]
        _update_weights(reals[low : low + count], reals[room : room + count], reals[plan[at + 4]])


@device_kernel
def reset(reals, low, high, value):
    """reals[low:high] = value."""
    for k in range(low + cuda.grid(1), high, cuda.gridsize(1)):
        reals[k] = value


KERNELS = (forward, beliefs, gather, match, follow, weigh)
"""As `program.Kernel` numbers them."""
