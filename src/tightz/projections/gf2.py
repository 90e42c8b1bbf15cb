"""Linear algebra over GF(2) on rows packed 64 columns to a word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import kernel


def pack(bits: NDArray) -> NDArray[np.uint64]:
    """(rows, n) of 0/1 -> (rows, ceil(n / 64)) words, column j in bit j % 64 of word j // 64."""
    rows, n = bits.shape
    padded = np.zeros((rows, max(1, -(-n // 64)) * 64), dtype=np.uint8)
    padded[:, :n] = bits
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def unpack(words: NDArray[np.uint64], n: int) -> NDArray[np.uint8]:
    """The inverse of `pack`: (rows, words) -> (rows, n) of 0/1."""
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :n]


@kernel
def row_reduce(rows, rhs, order, pivots):  # type: ignore[no-untyped-def]
    """Reduce [rows | rhs] in place to row-echelon form; pivot columns are sought along `order`.

    rows (m, words) uint64, rhs (m,) uint8, order (n,) columns. Row r of the first `rank` rows ends
    with a single one among the pivot columns, in column pivots[r]. Returns the rank.
    """
    m, words = rows.shape
    rank = 0
    for column in order:
        if rank == m:
            break
        word = column >> 6
        bit = np.uint64(column & 63)
        # Columns in the caller's order: the first that still has a one below `rank` becomes a
        # pivot. Clearing it in all other rows, above too, makes the form reduced, hence unique for
        # the order.
        found = -1
        for r in range(rank, m):
            if (rows[r, word] >> bit) & np.uint64(1):
                found = r
                break
        if found < 0:
            continue
        if found != rank:
            for w in range(words):
                rows[rank, w], rows[found, w] = rows[found, w], rows[rank, w]
            rhs[rank], rhs[found] = rhs[found], rhs[rank]
        for r in range(m):
            if r != rank and (rows[r, word] >> bit) & np.uint64(1):
                for w in range(words):
                    rows[r, w] ^= rows[rank, w]
                rhs[r] ^= rhs[rank]
        pivots[rank] = column
        rank += 1
    return rank
