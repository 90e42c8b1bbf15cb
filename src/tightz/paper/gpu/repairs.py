"""Starts from known heavy states, repaired to satisfy each projection's parities.

The device's form of `families.projection.heaviest_in_coset`: states as bits (1 for s = -1), keep
the free spins, let the constrained ones follow, weigh, and take the heaviest distinct ones.
"""

from __future__ import annotations

import math

import numpy as np

from tightz.runtime.gpu.device import THREADS, cuda

ONE = np.uint64(1)


@cuda.jit(cache=True)
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


@cuda.jit(cache=True)
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
