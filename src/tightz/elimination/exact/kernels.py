"""Kernels of bucket elimination: products of tables, summed over some variables, tile by tile.

All tables live in one flat `arena`. A bucket's result has axes S; its last axes form a tile of
contiguous entries, the rest are `outer` axes. Each operand says how it meets a tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import inner, kernel

CONSTANT, CONTIGUOUS, REPEAT, GATHER = 0, 1, 2, 3


class Operands(NamedTuple):
    """K tables as seen from the bucket's axes: base + state's offset + outer . digits + tile.

    base (K,), state_offset (K, states summed), outer_stride (K, A); `mode` (K,) says how the tile
    is read: one entry, in step, each entry `repeat` times, or through `gather` (K, tile).
    """

    base: NDArray[np.int64]
    state_offset: NDArray[np.int64]
    outer_stride: NDArray[np.int64]
    mode: NDArray[np.int64]
    repeat: NDArray[np.int64]
    gather: NDArray[np.int64]


class BucketLayout(NamedTuple):
    """Outer dims (merged where possible), tile size, and per list of tables its operands.

    `grain` is the number of outer tiles that must stay with one worker so that no two workers
    add to the same entry of a target.
    """

    dims: NDArray[np.int64]
    tile: int
    operands: tuple[Operands, ...]
    grain: int

    @property
    def n_outer(self) -> int:
        return int(np.prod(self.dims))


@inner
def _digits(number: int, dims: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    for a in range(dims.size - 1, -1, -1):
        out[a] = number % dims[a]
        number //= dims[a]


@inner
def _position(ops: Operands, k: int, state: int, digits: NDArray[np.int64]) -> int:
    at = ops.base[k] + ops.state_offset[k, state]
    for a in range(digits.size):
        at += ops.outer_stride[k, a] * digits[a]
    return at


# Below, tables are sliced before they are walked: an index that numba cannot prove non-negative
# keeps LLVM from vectorising.


@inner
def _load(
    buf: NDArray[np.float64], arena: NDArray[np.float64], at: int, ops: Operands, k: int
) -> None:
    mode, size, r = ops.mode[k], buf.size, ops.repeat[k]
    if mode == CONTIGUOUS:
        buf[:] = arena[at : at + size]
    elif mode == CONSTANT:
        buf[:] = arena[at]
    elif mode == REPEAT:
        part = arena[at : at + size // r]
        if r == 2:
            for j in range(part.size):
                buf[2 * j] = part[j]
                buf[2 * j + 1] = part[j]
        else:
            for j in range(part.size):
                buf[j * r : (j + 1) * r] = part[j]
    else:
        part, index = arena[at:], ops.gather[k]
        for t in range(size):
            buf[t] = part[index[t]]


@inner
def _multiply(
    buf: NDArray[np.float64], arena: NDArray[np.float64], at: int, ops: Operands, k: int
) -> None:
    mode, size, r = ops.mode[k], buf.size, ops.repeat[k]
    if mode == CONTIGUOUS:
        part = arena[at : at + size]
        for t in range(size):
            buf[t] *= part[t]
    elif mode == CONSTANT:
        x = arena[at]
        for t in range(size):
            buf[t] *= x
    elif mode == REPEAT:
        part = arena[at : at + size // r]
        if r == 2:
            for j in range(part.size):
                buf[2 * j] *= part[j]
                buf[2 * j + 1] *= part[j]
        else:
            for j in range(part.size):
                row = buf[j * r : (j + 1) * r]
                for t in range(r):
                    row[t] *= part[j]
    else:
        part, index = arena[at:], ops.gather[k]
        for t in range(size):
            buf[t] *= part[index[t]]


@inner
def _add(
    buf: NDArray[np.float64], arena: NDArray[np.float64], at: int, ops: Operands, k: int
) -> None:
    mode, size, r = ops.mode[k], buf.size, ops.repeat[k]
    if mode == CONTIGUOUS:
        part = arena[at : at + size]
        for t in range(size):
            buf[t] += part[t]
    elif mode == CONSTANT:
        x = arena[at]
        for t in range(size):
            buf[t] += x
    elif mode == REPEAT:
        part = arena[at : at + size // r]
        for j in range(part.size):
            row = buf[j * r : (j + 1) * r]
            for t in range(r):
                row[t] += part[j]
    else:
        part, index = arena[at:], ops.gather[k]
        for t in range(size):
            buf[t] += part[index[t]]


@inner
def _scatter(
    buf: NDArray[np.float64], arena: NDArray[np.float64], at: int, ops: Operands, k: int
) -> None:
    """Add the tile to table k: the transpose of `_load`."""
    mode, size, r = ops.mode[k], buf.size, ops.repeat[k]
    if mode == CONTIGUOUS:
        part = arena[at : at + size]
        for t in range(size):
            part[t] += buf[t]
    elif mode == CONSTANT:
        # Four partial sums: a single running sum would wait for each addition.
        a = b = c = d = 0.0
        for t in range(size // 4):
            a += buf[4 * t]
            b += buf[4 * t + 1]
            c += buf[4 * t + 2]
            d += buf[4 * t + 3]
        for t in range(size - size % 4, size):
            a += buf[t]
        arena[at] += (a + b) + (c + d)
    elif mode == REPEAT:
        part = arena[at : at + size // r]
        if r == 2:
            for j in range(part.size):
                part[j] += buf[2 * j] + buf[2 * j + 1]
        else:
            for j in range(part.size):
                x = 0.0
                row = buf[j * r : (j + 1) * r]
                for t in range(r):
                    x += row[t]
                part[j] += x
    else:
        part, index = arena[at:], ops.gather[k]
        for t in range(size):
            part[index[t]] += buf[t]


@inner
def _sum_pair(
    result: NDArray[np.float64],
    a0: NDArray[np.float64],
    a1: NDArray[np.float64],
    f0: NDArray[np.float64],
    f1: NDArray[np.float64],
) -> None:
    """result = a0 f0 + a1 f1, where each entry of a0 and a1 serves one or two of f0 and f1."""
    if a0.size == result.size:
        for t in range(result.size):
            result[t] = a0[t] * f0[t] + a1[t] * f1[t]
    else:
        for j in range(a0.size):
            result[2 * j] = a0[j] * f0[2 * j] + a1[j] * f1[2 * j]
            result[2 * j + 1] = a0[j] * f0[2 * j + 1] + a1[j] * f1[2 * j + 1]


@kernel
def sum_product(
    arena: NDArray[np.float64],
    out: int,
    states: int,
    dims: NDArray[np.int64],
    tile: int,
    ops: Operands,
    low: int,
    high: int,
) -> None:
    """out(S) = sum_v prod_k A_k(v, S) for the outer tiles low <= o < high."""
    digits = np.empty(dims.size, np.int64)
    buf = np.empty(tile)
    last = ops.base.size - 1
    in_step = ops.mode[0] == CONTIGUOUS or (ops.mode[0] == REPEAT and ops.repeat[0] == 2)
    # One message and one merged factor, binary: nearly every bucket of a lattice.
    simple = states == 2 and last == 1 and in_step and ops.mode[1] == CONTIGUOUS
    for o in range(low, high):
        _digits(o, dims, digits)
        result = arena[out + o * tile : out + (o + 1) * tile]
        if simple:
            wide = tile // ops.repeat[0]
            a, f = _position(ops, 0, 0, digits), _position(ops, 1, 0, digits)
            b, g = a + ops.state_offset[0, 1], f + ops.state_offset[1, 1]
            _sum_pair(
                result,
                arena[a : a + wide],
                arena[b : b + wide],
                arena[f : f + tile],
                arena[g : g + tile],
            )
            continue
        for state in range(states):
            _load(buf, arena, _position(ops, 0, state, digits), ops, 0)
            for k in range(1, last + 1):
                _multiply(buf, arena, _position(ops, k, state, digits), ops, k)
            if state == 0:
                result[:] = buf
            else:
                for t in range(tile):
                    result[t] += buf[t]


@kernel
def log_sum_product(
    arena: NDArray[np.float64],
    out: int,
    states: int,
    dims: NDArray[np.int64],
    tile: int,
    ops: Operands,
    low: int,
    high: int,
) -> None:
    """out(S) = log sum_v exp sum_k A_k(v, S), with a running maximum; -inf is a zero."""
    digits = np.empty(dims.size, np.int64)
    buf = np.empty(tile)
    total = np.empty(tile)
    for o in range(low, high):
        _digits(o, dims, digits)
        top = arena[out + o * tile : out + (o + 1) * tile]
        for state in range(states):
            _load(buf, arena, _position(ops, 0, state, digits), ops, 0)
            for k in range(1, ops.base.size):
                _add(buf, arena, _position(ops, k, state, digits), ops, k)
            if state == 0:
                top[:] = buf
                total[:] = 1.0
                continue
            for t in range(tile):
                x, m = buf[t], top[t]
                if x > m:
                    # m may be -inf: exp(-inf) = 0 drops the 1 that stood for it.
                    total[t] = 1.0 + (total[t] * np.exp(m - x) if m - x > -745.0 else 0.0)
                    top[t] = x
                elif x - m > -745.0:
                    total[t] += np.exp(x - m)
        for t in range(tile):
            if top[t] > -np.inf:
                top[t] += np.log(total[t])


@inner
def _ratio_pair(
    ratio: NDArray[np.float64],
    a: NDArray[np.float64],
    f: NDArray[np.float64],
    child: NDArray[np.float64],
    total: NDArray[np.float64],
    scale: float,
) -> None:
    """total += scale ratio a f, and child = scale sum ratio f over the repeat of a (0 where a is).

    scale * ratio * f is p / a, at most 1 / a: in range, as a is.
    """
    if a.size == ratio.size:
        for t in range(ratio.size):
            x = scale * ratio[t] * f[t]
            total[t] += x * a[t]
            child[t] = x if a[t] > 0.0 else 0.0
    else:
        for j in range(a.size):
            x = scale * ratio[2 * j] * f[2 * j]
            y = scale * ratio[2 * j + 1] * f[2 * j + 1]
            total[2 * j] += x * a[j]
            total[2 * j + 1] += y * a[j]
            child[j] = x + y if a[j] > 0.0 else 0.0


@kernel
def spread_ratio(
    arena: NDArray[np.float64],
    layout: BucketLayout,
    private: NDArray[np.float64],
    scale: float,
    low: int,
    high: int,
) -> None:
    """`spread_belief` for ratio, one message and one merged factor, where no outer axis is summed.

    The child receives p / message instead of p: no division, and every entry is set once. `scale`
    takes the ratio from its message's scale to that of the inputs.
    """
    dims, tile = layout.dims, layout.tile
    ops, targets, sums = layout.operands
    digits = np.empty(dims.size, np.int64)
    n_outer = 1
    for a in range(dims.size):
        n_outer *= dims[a]
    wide = tile // ops.repeat[1]
    for w in range(low, high):
        state, o = w // n_outer, w % n_outer
        _digits(o, dims, digits)
        r, m = _position(ops, 0, state, digits), _position(ops, 1, state, digits)
        f, c = _position(ops, 2, state, digits), _position(targets, 0, state, digits)
        t = _position(sums, 0, state, digits)
        _ratio_pair(
            arena[r : r + tile],
            arena[m : m + wide],
            arena[f : f + tile],
            arena[c : c + wide],
            private[t : t + tile],
            scale,
        )


@kernel
def spread_belief(
    arena: NDArray[np.float64],
    belief: int,
    layout: BucketLayout,
    private: NDArray[np.float64],
    shift: float,
    logarithmic: bool,
    low: int,
    high: int,
) -> None:
    """B(v, S) = prod_k A_k, or p(S) exp(shift + sum_k A_k) in logs; add B onto every target.

    The layout's operands are the inputs A, the targets and the sums. Work runs over (state, outer
    tile) pairs low <= w < high, state slowest. Targets lie in the arena and are disjoint between
    ranges; sums are small and lie in this range's `private`.
    """
    dims, tile = layout.dims, layout.tile
    ops, targets, sums = layout.operands
    digits = np.empty(dims.size, np.int64)
    buf = np.empty(tile)
    n_outer = 1
    for a in range(dims.size):
        n_outer *= dims[a]
    for w in range(low, high):
        state, o = w // n_outer, w % n_outer
        _digits(o, dims, digits)
        # The tile of B. In logs p may be 0 where the inputs are -inf: no exp of nan is formed.
        _load(buf, arena, _position(ops, 0, state, digits), ops, 0)
        if logarithmic:
            for k in range(1, ops.base.size):
                _add(buf, arena, _position(ops, k, state, digits), ops, k)
            p = arena[belief + o * tile : belief + (o + 1) * tile]
            for t in range(tile):
                buf[t] = p[t] * np.exp(buf[t] + shift) if p[t] > 0.0 else 0.0
        else:
            for k in range(1, ops.base.size):
                _multiply(buf, arena, _position(ops, k, state, digits), ops, k)
        # Each target sums B over the axes that it lacks: the transpose of how it would be read.
        for k in range(targets.base.size):
            _scatter(buf, arena, _position(targets, k, state, digits), targets, k)
        for k in range(sums.base.size):
            _scatter(buf, private, _position(sums, k, state, digits), sums, k)
