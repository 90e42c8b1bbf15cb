"""Row reduction over GF(2), and the lists and bit masks that follow, one block per projection.

Kernels take what belongs together as one tuple of arrays, the same in all of these modules:
cosets (levels, row_at, rows, pivot_row) and lists (free, n_free, long_terms, n_long).

With row r of the reduced [A | b] belonging to pivot i, x_i is the parity of the row's other spins
and b_r. So a term's image is the xor of its pivots' rows and of its own members: every pivot
cancels, and the bit of b is the sign.
"""

from __future__ import annotations

import numpy as np

from tightz.runtime.gpu.device import THREADS, WIDTH, cuda, device_kernel

ONE = np.uint64(1)


@cuda.jit(device=True)
def _offsets(counts, mine):  # type: ignore[no-untyped-def]
    """Turn each thread's count into where its items start; returns (start, total)."""
    t = cuda.threadIdx.x
    counts[t] = mine
    cuda.syncthreads()
    # Every thread adds up the counts itself: a scan without barriers, cheap for the few threads of
    # a block.
    start = 0
    total = 0
    for i in range(cuda.blockDim.x):
        if i == t:
            start = total
        total += counts[i]
    cuda.syncthreads()
    return start, total


@device_kernel
def reduce_rows(cosets, order, taken, ranks, feasible):  # type: ignore[no-untyped-def]
    """Reduced row-echelon form of [A | b] in place, pivots sought along `order`.

    rows as `draw_rows` leaves them. pivot_row[p, i] is the row whose pivot is spin i, -1 for a
    free spin; taken[p, r] tells which rows have a pivot. The form is unique, so the choice of row
    for a pivot (the first) does not matter.
    """
    levels, row_at, rows, pivot_row = cosets
    n = pivot_row.shape[1]
    found = cuda.shared.array(2, np.int32)
    bad = cuda.shared.array(1, np.int32)
    p, t, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    m, base = levels[p], row_at[p]
    words = (n >> 6) + 1
    for i in range(t, n, size):
        pivot_row[p, i] = -1
    for r in range(t, m, size):
        taken[p, r] = 0
    if t == 0:
        found[0], found[1], bad[0] = m, m, 0
    cuda.syncthreads()
    rank = 0
    for step in range(n):
        if rank == m:
            break
        column = order[step]
        at = base + (column >> 6) * m
        bit = np.uint64(column & 63)
        # Two cells in turn: while this step's threads look for their pivot in one, thread 0 resets
        # the other for the next step, which saves a barrier.
        turn = step & 1
        # The last column of a row is its right-hand side. A row left without a pivot reads 0 = b:
        # one with b = 1 makes the system infeasible, which counts as Z(A, b) = 0.
        for r in range(t, m, size):
            if taken[p, r] == 0 and (rows[at + r] >> bit) & ONE:
                cuda.atomic.min(found, turn, r)
                break
        cuda.syncthreads()
        chosen = found[turn]
        if t == 0:
            found[1 - turn] = m
        # A thread changes its own rows only and reads the chosen one, which nobody changes: no
        # race.
        if chosen < m:
            for r in range(t, m, size):
                if r == chosen:
                    taken[p, r] = 1
                    pivot_row[p, column] = r
                elif (rows[at + r] >> bit) & ONE:
                    for w in range(words):
                        rows[base + w * m + r] ^= rows[base + w * m + chosen]
            rank += 1
        cuda.syncthreads()
    for r in range(t, m, size):
        if taken[p, r] == 0 and (rows[base + (n >> 6) * m + r] >> np.uint64(n & 63)) & ONE:
            bad[0] = 1
    cuda.syncthreads()
    if t == 0:
        ranks[p] = rank
        feasible[p] = 1 - bad[0]


@device_kernel
def list_members(ptr, spins, pivot_row, lists):  # type: ignore[no-untyped-def]
    """Free spins, ascending, and long terms: those that hold a constrained spin or three spins."""
    free, n_free, long_terms, n_long = lists
    counts = cuda.shared.array(THREADS, np.int32)
    p, t, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    n = pivot_row.shape[1]
    # Each thread takes a contiguous share, so that writing in order of threads keeps the list
    # ascending, as the CPU has it: sums then run in the same order.
    share = (n + size - 1) // size
    first, last = min(n, t * share), min(n, (t + 1) * share)
    mine = 0
    for i in range(first, last):
        mine += pivot_row[p, i] < 0
    start, total = _offsets(counts, mine)
    for i in range(first, last):
        if pivot_row[p, i] < 0:
            free[p, start] = i
            start += 1
    if t == 0:
        n_free[p] = total
    terms = ptr.size - 1
    share = (terms + size - 1) // size
    first, last = min(terms, t * share), min(terms, (t + 1) * share)
    mine = 0
    for a in range(first, last):
        mine += _is_long(ptr, spins, pivot_row, p, a)
    start, total = _offsets(counts, mine)
    for a in range(first, last):
        if _is_long(ptr, spins, pivot_row, p, a):
            long_terms[p, start] = a
            start += 1
    if t == 0:
        n_long[p] = total


@cuda.jit(device=True)
def _is_long(ptr, spins, pivot_row, p, a):  # type: ignore[no-untyped-def]
    held = ptr[a + 1] - ptr[a] > 2
    for i in range(ptr[a], ptr[a + 1]):
        held |= pivot_row[p, spins[i]] >= 0
    return held


@device_kernel
def substitute(which, model, cosets, lists, image_at, images, mask_words, out):  # type: ignore[no-untyped-def]
    """Images of the long terms of projections which[...], and `out`: coefs, mask_at, masks.

    images: bit k of term a in images[image_at[p] + (k // 64) * A + a], A = n_long[p]. coefs[i, a],
    p = which[i]: signed theta, 1 in slots that stay empty. masks: bit j of word masks[mask_at[p] +
    (idx * mask_words + u) * WIDTH + lane] tells whether free spin number idx is in the image of
    long term (32 u + j) * WIDTH + lane.
    """
    ptr, spins, theta = model
    levels, row_at, rows, pivot_row = cosets
    free, n_free, long_terms, n_long = lists
    coefs, mask_at, masks = out
    p, t, size = which[cuda.blockIdx.x], cuda.threadIdx.x, cuda.blockDim.x
    n, m, count = pivot_row.shape[1], levels[p], n_long[p]
    words = (n >> 6) + 1
    for a in range(t, count, size):
        term = long_terms[p, a]
        bits = np.uint64(0)
        for w in range(words):
            bits = np.uint64(0)
            for i in range(ptr[term], ptr[term + 1]):
                spin = spins[i]
                row = pivot_row[p, spin]
                if row >= 0:
                    bits ^= rows[row_at[p] + w * m + row]
                if spin >> 6 == w:
                    bits ^= ONE << np.uint64(spin & 63)
            # A pivot's own bit is in its row and among the members: it cancels, and what is left
            # are free spins. Bit n, the right-hand side, gives the sign.
            images[image_at[p] + w * count + a] = bits
        flip = (bits >> np.uint64(n & 63)) & ONE
        coefs[cuda.blockIdx.x, a] = -theta[term] if flip else theta[term]
    for a in range(count + t, coefs.shape[1], size):
        coefs[cuda.blockIdx.x, a] = np.float32(1.0)
    cuda.syncthreads()
    # Transpose: the ascent asks, for one free spin, which of its lane's terms hold it.
    for i in range(t, n_free[p] * mask_words * WIDTH, size):
        lane = i % WIDTH
        u = i // WIDTH % mask_words
        k = free[p, i // (WIDTH * mask_words)]
        at = image_at[p] + (k >> 6) * count
        bit = np.uint64(k & 63)
        word = np.uint64(0)
        for j in range(32):
            a = (32 * u + j) * WIDTH + lane
            if a >= count:
                break
            word |= ((images[at + a] >> bit) & ONE) << np.uint64(j)
        masks[mask_at[p] + i] = np.uint32(word)
