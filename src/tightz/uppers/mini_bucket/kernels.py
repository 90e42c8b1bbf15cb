"""Elementary log-domain kernels: index maps, vectorised exp and log, power sums, log marginals."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tightz.runtime.kernels import inner

CHUNK = 512
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer kept in the low bits
_EXP_FLOOR = -708.0


@inner
def part(array, ptr, i):
    """The i-th part of a flat array, a view: one function, since every slice is code of its own."""
    return array[ptr[i] : ptr[i + 1]]


@inner
def part_from(array, ptr, i, base):
    """As `part`, of a copy that begins at `base`."""
    return array[ptr[i] - base : ptr[i + 1] - base]


@inner
def head(array, size):
    """The first entries, a view."""
    return array[:size]


@inner
def fill_offsets(dims, strides, out):
    """out[k] = sum_a digit_a(k) strides[a], digits of k in the mixed radix `dims` (C order)."""
    out[0] = 0
    size = 1
    for a in range(dims.size - 1, -1, -1):
        for digit in range(1, dims[a]):
            shift = np.int32(digit * strides[a])
            for k in range(size):
                out[digit * size + k] = out[k] + shift
        size *= dims[a]


@inner(fastmath={"contract"})
def exp_chunk(x, n, scratch):
    """x[:n] <- exp(x[:n]) for x <= 0, values below -708 as e^-708; error below 1e-15 relative.

    Written without calls so that it vectorises: x = k ln 2 + r, a polynomial in r, and k added to
    the exponent bits.
    """
    bits = scratch.view(np.int64)
    out_bits = x.view(np.int64)
    for i in range(n):
        a = x[i] if x[i] > _EXP_FLOOR else _EXP_FLOOR
        t = a * _LOG2_E + _ROUND
        scratch[i] = t
        k = t - _ROUND
        r = (a - k * _LN2_HIGH) - k * _LN2_LOW
        p = 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * r + 1.0
        x[i] = p * r + 1.0
    for i in range(n):
        out_bits[i] += bits[i] << 52


@inner(fastmath={"contract"}, error_model="numpy")
def log1p_chunk(x, n):
    """x[:n] <- log(1 + x[:n]) for x in [0, 1], by 2 artanh(x / (2 + x)) as a series.

    The divisor is never 0: without Python's check for that the loop vectorises.
    """
    for i in range(n):
        s = x[i] / (2.0 + x[i])
        q = s * s
        p = 1.0 / 33.0
        p = p * q + 1.0 / 31.0
        p = p * q + 1.0 / 29.0
        p = p * q + 1.0 / 27.0
        p = p * q + 1.0 / 25.0
        p = p * q + 1.0 / 23.0
        p = p * q + 1.0 / 21.0
        p = p * q + 1.0 / 19.0
        p = p * q + 1.0 / 17.0
        p = p * q + 1.0 / 15.0
        p = p * q + 1.0 / 13.0
        p = p * q + 1.0 / 11.0
        p = p * q + 1.0 / 9.0
        p = p * q + 1.0 / 7.0
        p = p * q + 1.0 / 5.0
        p = p * q + 1.0 / 3.0
        p = p * q + 1.0
        x[i] = 2.0 * s * p


@inner
def power_sum(table, states, weight, out, chunk, scratch):
    """out[j] = w log sum_v exp(table[j * states + v] / w); -inf stays -inf, w may be negative."""
    rows = table.size // states
    if states == 1:
        for j in range(rows):
            out[j] = table[j]
    elif states == 2:
        scale = -1.0 / abs(weight)
        for start in range(0, rows, CHUNK):
            n = min(CHUNK, rows - start)
            for i in range(n):
                a, b = table[2 * (start + i)], table[2 * (start + i) + 1]
                high, low = max(a, b), min(a, b)
                gap = (high - low) * scale
                chunk[i] = gap if high > -np.inf else 0.0
                out[start + i] = high if weight > 0 else low
            exp_chunk(chunk, n, scratch)
            log1p_chunk(chunk, n)
            for i in range(n):
                out[start + i] += weight * chunk[i]
    else:
        for j in range(rows):
            ref = table[j * states]
            for v in range(1, states):
                x = table[j * states + v]
                if (x > ref) == (weight > 0):
                    ref = x
            if ref > -np.inf:
                total = 0.0
                for v in range(states):
                    total += np.exp((table[j * states + v] - ref) / weight)
                ref += weight * np.log(total)
            out[j] = ref


@inner
def log_marginal(logs, offsets, out, total, chunk, scratch):
    """out[t] = log sum over k with offsets[k] = t of exp(logs[k])."""
    for t in range(out.size):
        out[t] = -np.inf
        total[t] = 0.0
    for k in range(logs.size):
        t = offsets[k]
        if logs[k] > out[t]:
            out[t] = logs[k]
    for start in range(0, logs.size, CHUNK):
        n = min(CHUNK, logs.size - start)
        for i in range(n):
            x = logs[start + i]
            chunk[i] = x - out[offsets[start + i]] if x > -np.inf else -np.inf
        exp_chunk(chunk, n, scratch)
        for i in range(n):
            total[offsets[start + i]] += chunk[i]
    for t in range(out.size):
        if out[t] > -np.inf:
            out[t] += np.log(total[t])


@inner
def beliefs(table, down, weight, out, scratch):
    """out <- exp(table / w + down - top), down broadcast over the last axis; returns top.

    For tables without -inf. What is below e^-708 of the largest counts as that much: beliefs steer
    the optimiser, no bound rests on them.
    """
    states = table.size // down.size
    scale = 1.0 / weight
    top = -np.inf
    if states == 2:
        for j in range(down.size):
            a = table[2 * j] * scale + down[j]
            b = table[2 * j + 1] * scale + down[j]
            out[2 * j] = a
            out[2 * j + 1] = b
            high = a if a > b else b
            top = high if high > top else top
    else:
        for j in range(down.size):
            for v in range(states):
                k = j * states + v
                out[k] = table[k] * scale + down[j]
                top = max(top, out[k])
    for start in range(0, out.size, CHUNK):
        part = out[start : start + CHUNK]
        for i in range(part.size):
            part[i] -= top
        exp_chunk(part, part.size, scratch)
    return top


@inner
def log_sums(values, offsets, top, out):
    """out[t] = top + log sum of values[k] over k with offsets[k] = t, values positive."""
    out[:] = 0.0
    for k in range(values.size):
        out[offsets[k]] += values[k]
    for t in range(out.size):
        out[t] = top + np.log(out[t])


@inner
def binary_entropy(table, down, weight, chunk, other, scratch):
    """Mean entropy of a two-state variable under weights table / w + down, rows by belief."""
    scale = 1.0 / weight
    top = -np.inf
    for j in range(down.size):
        a, b = table[2 * j] * scale, table[2 * j + 1] * scale
        high = (a if a > b else b) + down[j]
        top = high if high > top else top
    mass, total = 0.0, 0.0
    for start in range(0, down.size, CHUNK):
        n = min(CHUNK, down.size - start)
        for i in range(n):
            j = start + i
            a, b = table[2 * j] * scale, table[2 * j + 1] * scale
            chunk[i] = -abs(a - b)
            other[i] = (a if a > b else b) + down[j] - top
        exp_chunk(chunk, n, scratch)
        exp_chunk(other, n, scratch)
        for i in range(n):
            e = chunk[i]
            j = start + i
            gap = abs(table[2 * j] - table[2 * j + 1]) * abs(scale)
            other[i] *= 1.0 + e
            mass += other[i]
            total += other[i] * gap * e / (1.0 + e)
        log1p_chunk(chunk, n)
        for i in range(n):
            total += other[i] * chunk[i]
    return total / mass
