"""Parities and starts on the device: numpy's PCG64 draws, and heavy states repaired.

PCG64 is a 128-bit congruential generator (O'Neill, 2014), so any thread can jump to its place in
the stream in O(log place) steps.

The device's form of `families.projection.heaviest_in_coset`: states as bits (1 for s = -1), keep
the free spins, let the constrained ones follow, weigh, and take the heaviest distinct ones.
"""

from __future__ import annotations

import math

import numpy as np

from tightz.runtime.gpu.device import THREADS, cuda, device_kernel
from tightz.runtime.gpu.streams import MASK_32, MASK_64, PCG_MULTIPLIER

M_HIGH, M_LOW = np.uint64(PCG_MULTIPLIER >> 64), np.uint64(PCG_MULTIPLIER & MASK_64)
LOW_32 = np.uint64(MASK_32)
ZERO, ONE = np.uint64(0), np.uint64(1)
TO_UNIT = 1.0 / 9007199254740992.0


@cuda.jit(device=True)
def _mul_high(a, b):  # type: ignore[no-untyped-def]
    half = np.uint64(32)
    a_low, a_high, b_low, b_high = a & LOW_32, a >> half, b & LOW_32, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & LOW_32)
    return a_high * b_high + (middle >> half) + (other >> half)


@cuda.jit(device=True)
def _mul_add(a_high, a_low, b_high, b_low, c_high, c_low):  # type: ignore[no-untyped-def]
    """a * b + c modulo 2^128, as (high, low)."""
    product = a_low * b_low
    low = product + c_low
    carry = ONE if low < product else ZERO
    high = _mul_high(a_low, b_low) + a_high * b_low + a_low * b_high + c_high + carry
    return high, low


@cuda.jit(device=True)
def _jump(state, place):  # type: ignore[no-untyped-def]
    """(high, low) after `place` steps from state [high, low, increment high, increment low]."""
    scale_high, scale_low, shift_high, shift_low = ZERO, ONE, ZERO, ZERO
    m_high, m_low, inc_high, inc_low = M_HIGH, M_LOW, state[2], state[3]
    left = place
    while left > 0:
        if left & 1:
            scale_high, scale_low = _mul_add(scale_high, scale_low, m_high, m_low, ZERO, ZERO)
            shift_high, shift_low = _mul_add(
                shift_high, shift_low, m_high, m_low, inc_high, inc_low
            )
        inc_high, inc_low = _mul_add(m_high, m_low, inc_high, inc_low, inc_high, inc_low)
        m_high, m_low = _mul_add(m_high, m_low, m_high, m_low, ZERO, ZERO)
        left >>= 1
    return _mul_add(scale_high, scale_low, state[0], state[1], shift_high, shift_low)


@cuda.jit(device=True)
def _output(high, low):  # type: ignore[no-untyped-def]
    """XSL-RR: the state's halves xored and rotated by its top six bits."""
    word = high ^ low
    turn = high >> np.uint64(58)
    return (word >> turn) | (word << ((np.uint64(64) - turn) & np.uint64(63)))


@cuda.jit(device=True)
def _word(state, place):  # type: ignore[no-untyped-def]
    """Output number `place` of the stream."""
    high, low = _jump(state, place + 1)
    return _output(high, low)


@device_kernel
def draw_rows(levels, states, n, density, row_at, rows):  # type: ignore[no-untyped-def]
    """Each block the parities of one projection, as the hash families draw them on the CPU.

    Row r of projection p has bit j of A in bit j % 64 of rows[row_at[p] + (j // 64) * m + r] and
    b_r as bit n. density < 0: fair coins (m, n + 1) from the top bits of bytes; else entries
    below `density` among (m, n) uniforms, then m coins.
    """
    p = cuda.blockIdx.x
    m = levels[p]
    state = states[p]
    high, low = ZERO, ZERO
    for r in range(cuda.threadIdx.x, m, cuda.blockDim.x):
        place = r * (n + 1) if density < 0.0 else r * n
        coin = place & 7
        if density < 0.0:
            place >>= 3
        high, low = _jump(state, place + 1)
        word = _output(high, low)
        packed = ZERO
        for j in range(n + 1):
            if density < 0.0:
                if coin == 8:
                    high, low = _mul_add(high, low, M_HIGH, M_LOW, state[2], state[3])
                    word = _output(high, low)
                    coin = 0
                bit = (word >> np.uint64(8 * coin + 7)) & ONE
                coin += 1
            elif j < n:
                bit = ONE if (word >> np.uint64(11)) * TO_UNIT < density else ZERO
                high, low = _mul_add(high, low, M_HIGH, M_LOW, state[2], state[3])
                word = _output(high, low)
            else:
                bit = (_word(state, m * n + (r >> 3)) >> np.uint64(8 * (r & 7) + 7)) & ONE
            packed |= bit << np.uint64(j & 63)
            if j & 63 == 63 or j == n:
                rows[row_at[p] + (j >> 6) * m + r] = packed
                packed = ZERO


@device_kernel
def draw_starts(states, free, n_free, spread, smallest, v):  # type: ignore[no-untyped-def]
    """v[p, restart, k] uniform on [-spread, spread] for free spins, row by row as numpy does.

    Constrained spins get 0, so that they drop out of the plain pairs; |v| is at least `smallest`.
    """
    p = cuda.blockIdx.x
    restarts, n = v.shape[1], v.shape[2]
    for i in range(cuda.threadIdx.x, restarts * n, cuda.blockDim.x):
        v[p, i // n, i % n] = np.float32(0.0)
    cuda.syncthreads()
    count = n_free[p]
    for i in range(cuda.threadIdx.x, restarts * count, cuda.blockDim.x):
        unit = (_word(states[p], i) >> np.uint64(11)) * TO_UNIT
        value = np.float32(-spread + 2.0 * spread * unit)
        if abs(value) < smallest:
            value = smallest if value >= 0.0 else -smallest
        v[p, i // count, free[p, i % count]] = value


@device_kernel
def weigh_repaired(model, constant, states, cosets, feasible, repaired, weights):  # type: ignore[no-untyped-def]
    """repaired[p, :, s]: state s of `states` (words, S) made to satisfy the parities;
    weights[p, s]: its log weight, summed in the CPU's order, so that ties fall the same way."""
    ptr, spins, theta = model
    levels, row_at, rows, pivot_row = cosets
    p = cuda.blockIdx.x
    if feasible[p] == 0:
        return
    n, m = pivot_row.shape[1], levels[p]
    words = states.shape[0]
    for s in range(cuda.threadIdx.x, states.shape[1], cuda.blockDim.x):
        for w in range(words):
            repaired[p, w, s] = states[w, s]
        for i in range(n):
            row = pivot_row[p, i]
            if row >= 0:
                # A constrained spin is the parity of its row's other spins and of b: clear its own
                # bit, count the rest. Bit n of the state words is 1, so that b takes part in the
                # count.
                own = ONE << np.uint64(i & 63)
                repaired[p, i >> 6, s] &= ~own
                odd = np.uint64(0)
                for w in range(words):
                    odd ^= rows[row_at[p] + w * m + row] & repaired[p, w, s]
                if cuda.popc(odd) & 1:
                    repaired[p, i >> 6, s] |= own
        total = constant
        for a in range(theta.size):
            odd = np.uint64(0)
            for i in range(ptr[a], ptr[a + 1]):
                odd ^= repaired[p, spins[i] >> 6, s] >> np.uint64(spins[i] & 63)
            total += -theta[a] if odd & ONE else theta[a]
        weights[p, s] = total


@device_kernel
def start_from_heaviest(repaired, weights, pivot_row, feasible, most, v):  # type: ignore[no-untyped-def]
    """v[p, r] for the first restarts: the heaviest distinct repaired states, at most `most`, among
    the 4 * most heaviest. Overwrites `weights`."""
    best = cuda.shared.array(THREADS, np.float64)
    holder = cuda.shared.array(THREADS, np.int32)
    p, t, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    if feasible[p] == 0:
        return
    count = repaired.shape[2]
    kept = 0
    for _ in range(min(4 * most, count)):
        best[t], holder[t] = -math.inf, count
        for s in range(t, count, size):
            if weights[p, s] > best[t]:
                best[t], holder[t] = weights[p, s], s
        cuda.syncthreads()
        # All threads find the same winner; ties go to the lower number, as a stable sort does on
        # the CPU.
        winner, top = count, -math.inf
        for i in range(size):
            if best[i] > top or (best[i] == top and holder[i] < winner):
                winner, top = holder[i], best[i]
        cuda.syncthreads()
        if t == winner % size:
            weights[p, winner] = -math.inf
        # States that agree on all free spins repair to the same state of the coset: one start for
        # them.
        distinct = True
        for r in range(kept):
            agree = np.int32(1)
            for k in range(t, pivot_row.shape[1], size):
                if pivot_row[p, k] < 0:
                    down = (repaired[p, k >> 6, winner] >> np.uint64(k & 63)) & ONE
                    if (v[p, r, k] < 0.0) != (down == ONE):
                        agree = np.int32(0)
            if cuda.syncthreads_and(agree):
                distinct = False
        if distinct:
            for k in range(t, pivot_row.shape[1], size):
                if pivot_row[p, k] < 0:
                    down = (repaired[p, k >> 6, winner] >> np.uint64(k & 63)) & ONE
                    v[p, kept, k] = np.float32(-1.0) if down else np.float32(1.0)
            kept += 1
            if kept == most:
                break
        cuda.syncthreads()
