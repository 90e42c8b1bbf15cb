"""Exact log Z of square Ising grids by a transfer matrix on a GPU: truths for `certified`.

    python -m benchmarks.transfer FILE 30 101 5      # side, first seed, number of seeds

Needs cupy and 8 * 2^side bytes on the GPU.

One vector over the spins of a row, one site at a time, in place: each site replaces its old spin by
the new one. Shares nothing with the library but the model's couplings.
"""

from __future__ import annotations

import json
import math
import sys

import numpy as np

from benchmarks.certified import grid

_KERNEL = r"""
extern "C" __global__ void site(double* v, const int bit, const double ju, const double jl,
                                const double h, const unsigned long long half) {
    unsigned long long i = (unsigned long long) blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= half) return;
    unsigned long long low = i & ((1ULL << bit) - 1ULL);
    unsigned long long at = ((i ^ low) << 1) | low;
    double a = v[at], b = v[at | (1ULL << bit)];
    double left = (bit > 0 && (low >> (bit - 1) & 1ULL)) ? -1.0 : 1.0;
    double side = h + (bit > 0 ? jl * left : 0.0);
    double top = fabs(ju) + fabs(jl) + fabs(h);
    v[at] = a * exp(ju + side - top) + b * exp(-ju + side - top);
    v[at | (1ULL << bit)] = a * exp(-ju - side - top) + b * exp(ju - side - top);
}
"""


def log_z(side: int, right: np.ndarray, down: np.ndarray, field: np.ndarray) -> float:
    """right (side, side - 1), down (side - 1, side), field (side, side): couplings of spins."""
    import cupy

    kernel = cupy.RawKernel(_KERNEL, "site")
    half = 1 << (side - 1)
    v = cupy.full(1 << side, 1.0)
    total = -side * math.log(2.0)
    for r in range(side):
        for c in range(side):
            ju = float(down[r - 1, c]) if r else 0.0
            jl = float(right[r, c - 1]) if c else 0.0
            h = float(field[r, c])
            kernel(
                ((half + 255) // 256,), (256,),
                (v, np.int32(c), np.float64(ju), np.float64(jl), np.float64(h), np.uint64(half)),
            )  # fmt: skip
            total += abs(ju) + abs(jl) + abs(h)
            if c % 5 == 4 or c == side - 1:
                top = float(v.max())
                v /= top
                total += math.log(top)
    return total + math.log(float(v.sum()))


def main() -> None:
    path, (side, first, seeds) = sys.argv[1], map(int, sys.argv[2:5])
    found = {}
    for name in ("w1", "w01", "w10"):
        for seed in range(first, first + seeds):
            found[f"{name} {side} {seed}"] = log_z(side, *grid(side, name, seed)[1])
            print(name, side, seed, found[f"{name} {side} {seed}"], flush=True)
    with open(path, "w") as out:
        json.dump(found, out, indent=1)


if __name__ == "__main__":
    main()
