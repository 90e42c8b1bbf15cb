"""Long terms as bit masks over the free spins, one block per projection.

With row r of the reduced [A | b] belonging to pivot i, x_i is the parity of the row's other spins
and b_r. So a term's image is the xor of its pivots' rows and of its own members: every pivot
cancels, and the bit of b is the sign.
"""

from __future__ import annotations

import numpy as np

from tightz.runtime.gpu.device import WIDTH, cuda

ONE = np.uint64(1)


@cuda.jit(cache=True)
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
