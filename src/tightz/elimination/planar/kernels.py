"""Elimination of the first rows of a front, with a running bound on its rounding errors.

A matrix lives in its upper triangle. Beside it grows `noise`, in units of UNIT: the computed rest
is what exact elimination would leave of a front that differs from the given one by at most
UNIT * noise[i, j] in entry (i, j) (backward errors entry by entry; Higham 2002, section 3.3).
"""

from __future__ import annotations

import numpy as np

from tightz.runtime.kernels import inner, kernel


@kernel
def eliminate_skew(matrix, noise, leaves, pivots):  # type: ignore[no-untyped-def]
    """Pairs k, k+1 < leaves leave: a_ij <- a_ij + t_j v_i - t_i v_j, t = a_.k / p, v = a_.k+1.

    `pivots` (leaves / 2,) are the p, signed so that their product is the Pfaffian of the leaving
    part. -> False where one is zero.
    """
    size = matrix.shape[0]
    t, v = np.empty(size), np.empty(size)
    for k in range(0, leaves, 2):
        q = k + 1
        for j in range(k + 2, leaves):
            if abs(matrix[k, j]) > abs(matrix[k, q]):
                q = j
        swapped = q != k + 1
        if swapped:
            _swap_skew(matrix, k, k + 1, q)
            _swap_noise(noise, k + 1, q)
        p = matrix[k, k + 1]
        pivots[k // 2] = -p if swapped else p
        if p == 0.0:
            return False
        for i in range(k + 2, size):
            t[i] = -matrix[k, i] / p
            v[i] = -matrix[k + 1, i]
        for i in range(k + 2, size):
            ti, vi = t[i], v[i]
            if ti == 0.0 and vi == 0.0:
                continue
            for j in range(i + 1, size):
                a, b = t[j] * vi, ti * v[j]
                new = matrix[i, j] + (a - b)
                matrix[i, j] = new
                noise[i, j] += 5.0 * (abs(a) + abs(b)) + 2.0 * abs(new)
    return True


@kernel
def eliminate_hermitian(matrix, noise, leaves):  # type: ignore[no-untyped-def]
    """The same for i K - c: -> whether every 2 x 2 pivot has one eigenvalue on each side of 0.

    a_ij <- a_ij - x_i a_kj - y_i a_k+1,j with (x_i, y_i) = (a_ik, a_i,k+1) pivot^-1; the noise
    takes every product of two numbers at 32 units, their own roundings included, where the
    determinant of the pivot is at most half cancelled.
    """
    size = matrix.shape[0]
    row, next_row = np.empty(size, dtype=np.complex128), np.empty(size, dtype=np.complex128)
    size_row, size_next = np.empty(size), np.empty(size)
    for k in range(0, leaves, 2):
        q = k + 1
        largest = abs(matrix[k, q])
        for j in range(k + 2, leaves):
            if abs(matrix[k, j]) > largest:
                q, largest = j, abs(matrix[k, j])
        if q != k + 1:
            _swap_hermitian(matrix, k, k + 1, q)
            _swap_noise(noise, k + 1, q)
        a, b, z = matrix[k, k].real, matrix[k + 1, k + 1].real, matrix[k, k + 1]
        z2 = z.real * z.real + z.imag * z.imag
        if not 2.0 * abs(a * b) < z2:
            return False
        det = a * b - z2
        absz = np.sqrt(z2)
        for i in range(k + 2, size):
            row[i], next_row[i] = matrix[k, i], matrix[k + 1, i]
            size_row[i], size_next[i] = abs(row[i]), abs(next_row[i])
        for i in range(k + 2, size):
            if size_row[i] == 0.0 and size_next[i] == 0.0:
                continue
            hk, hn = row[i].conjugate(), next_row[i].conjugate()
            x = (hk * b - hn * z.conjugate()) / det
            y = (hn * a - hk * z) / det
            size_x = 32.0 * (size_row[i] * abs(b) + size_next[i] * absz) / -det
            size_y = 32.0 * (size_next[i] * abs(a) + size_row[i] * absz) / -det
            for j in range(i, size):
                new = matrix[i, j] - (x * row[j] + y * next_row[j])
                matrix[i, j] = new
                noise[i, j] += (
                    size_x * size_row[j]
                    + size_y * size_next[j]
                    + 2.0 * (abs(new.real) + abs(new.imag))
                )
            matrix[i, i] = matrix[i, i].real
    return True


@inner
def _swap_skew(matrix, k, p, q):  # type: ignore[no-untyped-def]
    """Exchange p < q of what is left from row k < p on."""
    matrix[k, p], matrix[k, q] = matrix[k, q], matrix[k, p]
    for j in range(p + 1, q):
        matrix[p, j], matrix[j, q] = -matrix[j, q], -matrix[p, j]
    matrix[p, q] = -matrix[p, q]
    for j in range(q + 1, matrix.shape[0]):
        matrix[p, j], matrix[q, j] = matrix[q, j], matrix[p, j]


@inner
def _swap_hermitian(matrix, k, p, q):  # type: ignore[no-untyped-def]
    matrix[k, p], matrix[k, q] = matrix[k, q], matrix[k, p]
    for j in range(p + 1, q):
        old = matrix[p, j]
        matrix[p, j] = matrix[j, q].conjugate()
        matrix[j, q] = old.conjugate()
    matrix[p, p], matrix[q, q] = matrix[q, q], matrix[p, p]
    matrix[p, q] = matrix[p, q].conjugate()
    for j in range(q + 1, matrix.shape[0]):
        matrix[p, j], matrix[q, j] = matrix[q, j], matrix[p, j]


@inner
def _swap_noise(noise, p, q):  # type: ignore[no-untyped-def]
    for i in range(p):
        noise[i, p], noise[i, q] = noise[i, q], noise[i, p]
    for j in range(p + 1, q):
        noise[p, j], noise[j, q] = noise[j, q], noise[p, j]
    noise[p, p], noise[q, q] = noise[q, q], noise[p, p]
    for j in range(q + 1, noise.shape[0]):
        noise[p, j], noise[q, j] = noise[q, j], noise[p, j]


@kernel
def measure(noise):  # type: ignore[no-untyped-def]
    """(bound on the 2-norm, Frobenius norm) of the symmetric matrix with this upper triangle."""
    size = noise.shape[0]
    rows = np.zeros(size)
    squares = 0.0
    for i in range(size):
        rows[i] += noise[i, i]
        squares += noise[i, i] * noise[i, i]
        for j in range(i + 1, size):
            rows[i] += noise[i, j]
            rows[j] += noise[i, j]
            squares += 2.0 * noise[i, j] * noise[i, j]
    frobenius = np.sqrt(squares)
    largest = rows.max() if size else 0.0
    return min(largest, frobenius), frobenius


@kernel
def fill_cell(matrix, noise, cell, ptr, around, place, weight, unit):  # type: ignore[no-untyped-def]
    """unit d_h d_k between halves h before k of one vertex, in a front where h is at place[h].

    A weight comes from tanh: 8 units each, and one for their product; 1e-200 covers underflow.
    """
    for v in cell:
        for first in range(ptr[v], ptr[v + 1]):
            h = around[first]
            for second in range(first + 1, ptr[v + 1]):
                k = around[second]
                entry = weight[h] * weight[k]
                i, j = place[h], place[k]
                if i > j:
                    i, j, entry = j, i, -entry
                matrix[i, j] = unit * entry
                if weight[h] != 0.0 and weight[k] != 0.0:
                    noise[i, j] = 18.0 * abs(entry) + 1e-200


@kernel
def scatter(matrix, rest, at, mirror):  # type: ignore[no-untyped-def]
    """A child's rest into its parent's front: rows go to `at`, in any order."""
    for i in range(at.size):
        for j in range(i, at.size):
            if at[i] <= at[j]:
                matrix[at[i], at[j]] = rest[i, j]
            else:
                matrix[at[j], at[i]] = mirror * np.conj(rest[i, j])


@kernel
def add_slopes(inverse, cell, ptr, around, place, weight, slopes):  # type: ignore[no-untyped-def]
    """slope_e = sum_k A[h, k] d_k inverse[k, h], h the second half of e, k the others beside it."""
    for v in cell:
        for first in range(ptr[v], ptr[v + 1]):
            h = around[first]
            if h % 2 == 0:
                continue
            total = 0.0
            for second in range(ptr[v], ptr[v + 1]):
                k = around[second]
                term = weight[k] * inverse[place[k], place[h]]
                if second > first:
                    total += term
                elif second < first:
                    total -= term
            slopes[h // 2] = total
