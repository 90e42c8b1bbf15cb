"""Elementary kernels of mini-buckets: views, index maps, vectorised exp and log."""

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

    Written without calls so that it vectorises: x = k ln 2 + r, the polynomial nearest to
    (e^r - 1) / r for |r| <= log(2) / 2 (within 2e-17), and k added to the exponent bits.
    """
    bits = scratch.view(np.int64)
    out_bits = x.view(np.int64)
    for i in range(n):
        a = x[i] if x[i] > _EXP_FLOOR else _EXP_FLOOR
        t = a * _LOG2_E + _ROUND
        scratch[i] = t
        k = t - _ROUND
        r = (a - k * _LN2_HIGH) - k * _LN2_LOW
        p = 2.5105217004720745e-08
        p = p * r + 2.7626371065696354e-07
        p = p * r + 2.7557255400206422e-06
        p = p * r + 2.480150431378554e-05
        p = p * r + 0.00019841269874820627
        p = p * r + 0.001388888893251478
        p = p * r + 0.008333333333326136
        p = p * r + 0.041666666666573066
        p = p * r + 0.1666666666666667
        p = p * r + 0.5000000000000006
        p = p * r + 1.0
        x[i] = p * r + 1.0
    for i in range(n):
        out_bits[i] += bits[i] << 52


@inner(fastmath={"contract"}, error_model="numpy")
def log1p_chunk(x, n, share):
    """x[:n] <- log(1 + x[:n]) for x in [0, 1], and share <- x / (1 + x).

    log(1 + x) = 2 artanh(s), s = x / (2 + x), by the polynomial in s^2 nearest to artanh(s) / s for
    s <= 1/3 (within 5e-17). One division serves both; it is never by 0, and without Python's check
    for that the loop vectorises.
    """
    for i in range(n):
        a, b = 1.0 + x[i], 2.0 + x[i]
        inverse = x[i] / (a * b)
        s = a * inverse
        q = s * s
        p = 0.08890381913056651
        p = p * q + 0.04940394524382393
        p = p * q + 0.06795652742789947
        p = p * q + 0.07681838124445817
        p = p * q + 0.09091429900236955
        p = p * q + 0.11111095430673142
        p = p * q + 0.1428571455582858
        p = p * q + 0.199999999976438
        p = p * q + 0.33333333333341286
        p = p * q + 1.0
        x[i] = 2.0 * s * p
        share[i] = b * inverse
