"""Bounds in float64 from the final means, by a path of their own, and the averages of q.

Nothing here reads the images or products that the ascent worked on: expectations start from the
model's terms and the reduced rows, as `families.projection.evaluate` does on the CPU.
"""

from __future__ import annotations

import math

import numpy as np

from tightz.runtime.gpu.device import THREADS, cuda, device_kernel

ONE = np.uint64(1)


@cuda.jit(device=True)
def _expectation(products, a, cosets, p, means):  # type: ignore[no-untyped-def]
    """E_q[prod of the spins of product a] (Proposition 1) on coset p; means (n,) of the free
    spins."""
    ptr, spins = products
    m, base, rows, pivot_row = cosets[0][p], cosets[1][p], cosets[2], cosets[3][p]
    n = pivot_row.size
    # Without constrained members the image is the term itself: the bit sets are not needed.
    held = False
    for i in range(ptr[a], ptr[a + 1]):
        held |= pivot_row[spins[i]] >= 0
    value = 1.0
    if not held:
        for i in range(ptr[a], ptr[a + 1]):
            value *= np.float64(means[spins[i]])
        return value
    for w in range((n >> 6) + 1):
        bits = np.uint64(0)
        for i in range(ptr[a], ptr[a + 1]):
            row = pivot_row[spins[i]]
            if row >= 0:
                bits ^= rows[base + w * m + row]
            if spins[i] >> 6 == w:
                bits ^= ONE << np.uint64(spins[i] & 63)
        k = w << 6
        while bits:
            if bits & ONE:
                # Bit n is the sign of the image.
                value *= np.float64(means[k]) if k < n else -1.0
            bits >>= ONE
            k += 1
    return value


@cuda.jit(device=True)
def _entropy(mean):  # type: ignore[no-untyped-def]
    """In nats, of a spin with this mean; NaN for what is no mean."""
    # NaN, not an error: a kernel cannot raise, and the host refuses a NaN bound.
    if not abs(mean) <= 1.0:
        return math.nan
    up, down = (1.0 + mean) / 2.0, (1.0 - mean) / 2.0
    h = 0.0
    if up > 0.0:
        h -= up * math.log(up)
    if down > 0.0:
        h -= down * math.log(down)
    return h


@device_kernel
def evaluate(model, constant, cosets, feasible, v, log_gammas):  # type: ignore[no-untyped-def]
    """log_gammas[p, restart] = theta . E_q[chi] + entropy; -inf where no state is left."""
    part = cuda.shared.array(THREADS, np.float64)
    ptr, spins, theta = model
    p, t, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    restarts, n = v.shape[1], v.shape[2]
    pivot_row = cosets[3]
    for restart in range(restarts):
        total = 0.0
        if feasible[p]:
            means = v[p, restart]
            for a in range(t, theta.size, size):
                total += theta[a] * _expectation((ptr, spins), a, cosets, p, means)
            for k in range(t, n, size):
                if pivot_row[p, k] < 0:
                    total += _entropy(np.float64(means[k]))
        # A tree sum over the threads, in the same order on every run: bounds are reproducible bit
        # for bit.
        part[t] = total
        cuda.syncthreads()
        half = size >> 1
        while half:
            if t < half:
                part[t] += part[t + half]
            half >>= 1
            cuda.syncthreads()
        if t == 0:
            log_gammas[p, restart] = constant + part[0] if feasible[p] else -math.inf
        cuda.syncthreads()


@device_kernel
def best_expectations(products, cosets, v, log_gammas, values):  # type: ignore[no-untyped-def]
    """values[p, a] = E_q of product a under the best restart's q; untouched where log gamma is
    -inf. products (ptr, spins)."""
    p, t, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    # The first of equals, as numpy's argmax takes it on the CPU.
    best = 0
    for restart in range(v.shape[1]):
        if log_gammas[p, restart] > log_gammas[p, best]:
            best = restart
    if log_gammas[p, best] == -math.inf:
        return
    for a in range(t, products[0].size - 1, size):
        values[p, a] = _expectation(products, a, cosets, p, v[p, best])


@device_kernel
def batch_moments(log_weights, values, batch, packed):  # type: ignore[no-untyped-def]
    """Block b: moments of values[b * batch : (b + 1) * batch] as `WeightedMoments.to_array`."""
    b, t, size = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    first, last = b * batch, min((b + 1) * batch, log_weights.size)
    width = values.shape[1]
    # Weights relative to the largest of the batch: 2^m gamma overflows as such.
    scale = -math.inf
    for p in range(first, last):
        scale = max(scale, log_weights[p])
    if t == 0:
        packed[b, 0] = scale
        packed[b, 1] = 0.0
        for p in range(first, last):
            if log_weights[p] > -math.inf:
                packed[b, 1] += math.exp(log_weights[p] - scale)
    for i in range(t, width, size):
        total, squares = 0.0, 0.0
        for p in range(first, last):
            if log_weights[p] > -math.inf:
                w = math.exp(log_weights[p] - scale)
                total += w * values[p, i]
                squares += w * values[p, i] * values[p, i]
        packed[b, 2 + i] = total
        packed[b, 2 + width + i] = squares
