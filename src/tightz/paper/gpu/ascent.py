"""Coordinate ascent on the device: WIDTH lanes share one ascent, its long terms in registers.

Lane l keeps the signed products Q_a = theta_a prod_{k in image(a)} v_k of the long terms a = j *
WIDTH + l, j < slots. A step adds those that hold k, divides by v_k, adds the plain pairs and the
field (g_k, the paper's gradient), sets v_k <- tanh(beta g_k) and carries the ratio of new to old
v_k into the products. float32 throughout; `evaluation` judges the result.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from tightz.runtime.gpu.device import SIMULATED, WIDTH, cuda, device_kernel

SMALLEST = np.float32(1e-6)
"""|v_k| is kept at least this, since v_k is divided by: a loss of at most about 1e-12 nats."""

FAINT = np.float32(1e-25)
"""A product below this may have underflowed and could not grow back by ratios alone. Then products
are built anew when half of the sweep is left, a quarter, and so on: what is left to visit shrinks
by ratios of two, so a product is caught before it matters again."""

SHORTEST = 32
"""Steps left below which nothing is built anew."""

SLOTS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96)
"""Long terms per lane that kernels are compiled for, on demand."""

ZERO, HALF, ONE, TINY = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(1e-30)

if SIMULATED:

    @cuda.jit(device=True)
    def lane_sum(value):  # type: ignore[no-untyped-def]
        """The sum over the lanes of an ascent, for every lane (the simulator has no shuffles)."""
        cell = cuda.shared.array(WIDTH, np.float32)
        cell[cuda.threadIdx.x] = value
        cuda.syncthreads()
        total = ZERO
        for lane in range(WIDTH):
            total += cell[lane]
        cuda.syncthreads()
        return total

else:

    @cuda.jit(device=True)
    def lane_sum(value):  # type: ignore[no-untyped-def]
        """The sum over the lanes of an ascent, for every lane, bit for bit the same."""
        offset = WIDTH >> 1
        while offset:
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, offset)
            offset >>= 1
        return value


@cache
def ascent_kernel(slots: int, crowded: bool) -> Any:
    """The kernel for up to slots * WIDTH long terms, compiled on first use.

    crowded: whether some spin has more than WIDTH partners in two-spin terms.
    """
    words = (slots + 31) // 32

    def ascend(which, model, lists, long_terms, betas, tol, max_sweeps, out):  # type: ignore[no-untyped-def]
        """Ascents of projections which[...], restarts side by side; v (P, restarts, n) in place.

        long_terms (coefs, mask_at, masks) as `substitute` leaves them; out (v, sweeps, gains).
        """
        near, weight, field = model
        free, n_free = lists[0], lists[1]
        coefs, mask_at, masks = long_terms
        v, sweeps, gains = out
        restarts = v.shape[1]
        ascent = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        if ascent >= which.size * restarts:
            return
        number, restart = ascent // restarts, ascent % restarts
        p, start = which[number], coefs[number]
        # No free spin: q is one state, and there is nothing to ascend.
        sweeps[p, restart], gains[p, restart] = 1, ZERO
        if n_free[p] == 0:
            return
        # Unsigned indices: a signed one costs a test for negative values at every use.
        lane = np.uint64(cuda.threadIdx.x)
        means, spins = v[p, restart], free[p]
        count, at = n_free[p], np.uint64(mask_at[p]) + lane
        degree = np.uint64(near.shape[1])
        q = cuda.local.array(slots, np.float32)
        word = cuda.local.array(words, np.uint32)
        coming = cuda.local.array(words, np.uint32)
        done = max_sweeps
        gain = ZERO
        for sweep in range(max_sweeps):
            beta = betas[sweep] if sweep < betas.size else ONE
            gain = ZERO
            due = count
            # A step's own data (all but its neighbours' means) is loaded one step ahead.
            next_k = spins[0]
            next_old, next_field = means[next_k], field[next_k]
            next_near = near[next_k, lane] if lane < degree else next_k
            next_weight = weight[next_k, lane] if lane < degree else ZERO
            for u in range(words):
                coming[u] = masks[at + np.uint64(u * WIDTH)]
            for idx in range(count):
                # Products from scratch, all lanes at once: once per sweep, and again where one has
                # become so small that ratios could not bring it back (see FAINT).
                if count - idx == due:
                    for j in range(slots):
                        q[j] = start[lane + np.uint64(j * WIDTH)]
                    place = at
                    for other in range(count):
                        value = means[spins[np.uint64(other)]]
                        for u in range(words):
                            word[u] = masks[place + np.uint64(u * WIDTH)]
                        place += np.uint64(words * WIDTH)
                        for j in range(slots):
                            if word[j >> 5] & np.uint32(1 << (j & 31)):
                                q[j] *= value
                    low = ONE
                    for j in range(slots):
                        low = min(low, abs(q[j]))
                    faint = lane_sum(ONE if low < FAINT else ZERO) > ZERO
                    due = due >> 1 if faint and due > 2 * SHORTEST else 0
                k, old, g_plain = next_k, next_old, next_field
                g = next_weight * means[next_near]
                for u in range(words):
                    word[u] = coming[u]
                ahead = np.uint64(min(idx + 1, count - 1))
                next_k = spins[ahead]
                next_old, next_field = means[next_k], field[next_k]
                next_near = near[next_k, lane] if lane < degree else next_k
                next_weight = weight[next_k, lane] if lane < degree else ZERO
                for u in range(words):
                    coming[u] = masks[at + ahead * np.uint64(words * WIDTH) + np.uint64(u * WIDTH)]
                # The first WIDTH partners were loaded ahead; the others, on crowded models only,
                # are read here.
                if crowded:
                    for i in range(lane + np.uint64(WIDTH), degree, np.uint64(WIDTH)):
                        g += weight[k, i] * means[near[k, i]]
                total = ZERO
                for j in range(slots):
                    if word[j >> 5] & np.uint32(1 << (j & 31)):
                        total += q[j]
                # The gradient of a product that holds v_k is the product divided by v_k: hence
                # |v_k| >= SMALLEST.
                inverse = ONE / old
                g = lane_sum(g + total * inverse) + g_plain
                new = np.float32(math.tanh(beta * g))
                if abs(new) < SMALLEST:
                    new = SMALLEST if g >= ZERO else -SMALLEST
                ratio = new * inverse
                for j in range(slots):
                    if word[j >> 5] & np.uint32(1 << (j & 31)):
                        q[j] *= ratio
                change = abs(new - old)
                # The gain of a coordinate step is a Kullback-Leibler divergence between spins of
                # the new and old mean; this is its second-order form, never zero while something
                # moves.
                gain += HALF * change * change / max(ONE - new * new, change, TINY)
                means[k] = new  # every lane writes the same value, so each sees its own
            if sweep + 1 >= betas.size and gain <= tol:
                done = sweep + 1
                break
        if lane == 0:
            sweeps[p, restart] = done
            gains[p, restart] = gain

    return device_kernel(ascend)
