"""The coordinate-ascent kernel: v_k <- tanh(beta * g_k) over free spins, restarts as SIMD lanes.

g_k is the derivative of the expected log weight in v_k (the paper's gradient proposition). Inside a
sweep the product of a group's members other than k is `before` (members already updated) times
`after` (members still to come), so nothing is divided and a zero mean does no harm; 1 / v_k is
needed only where a group holds k in its linear part too. `before * tail` is the whole product.
"""

from __future__ import annotations

import numpy as np

from tightz.runtime.kernels import kernel, spliced

SMALLEST = 1e-6
"""|v_k| is kept at least this where 1 / v_k is needed: a loss of at most about 1e-12 nats."""


@spliced(error_model="numpy")
def tanh(x):  # type: ignore[no-untyped-def]
    """tanh to a few ulp, branch-free so that it vectorises: exp(-2|x|) by Taylor and squaring."""
    z = min(abs(x), 20.0) * (-2.0 / 64.0)
    e = 1.0 / 479001600.0
    e = e * z + 1.0 / 39916800.0
    e = e * z + 1.0 / 3628800.0
    e = e * z + 1.0 / 362880.0
    e = e * z + 1.0 / 40320.0
    e = e * z + 1.0 / 5040.0
    e = e * z + 1.0 / 720.0
    e = e * z + 1.0 / 120.0
    e = e * z + 1.0 / 24.0
    e = e * z + 1.0 / 6.0
    e = e * z + 1.0 / 2.0
    e = e * z + 1.0
    e = e * z + 1.0
    e *= e
    e *= e
    e *= e
    e *= e
    e *= e
    e *= e
    t = (1.0 - e) / (1.0 + e)
    return t if x > 0.0 else -t


@spliced(error_model="numpy")
def _start_sweep(poly, v, after, before, tail, linear):  # type: ignore[no-untyped-def]
    """From scratch: products of later members per incidence, of all per group; linear parts.

    `after[p]` belongs to incidence p of the in-lists, so a sweep reads it front to back.
    """
    n, lanes = v.shape
    for g in range(poly.coef.size):
        for r in range(lanes):
            before[g, r] = 1.0
            tail[g, r] = 1.0
            linear[g, r] = poly.coef[g]
    for k in range(n - 1, -1, -1):
        if poly.inverse[k]:
            for r in range(lanes):
                if abs(v[k, r]) < SMALLEST:
                    v[k, r] = SMALLEST if v[k, r] >= 0.0 else -SMALLEST
        for p in range(poly.in_ptr[k], poly.in_ptr[k + 1]):
            g = poly.in_group[p]
            theta = poly.in_theta[p]
            if theta != 0.0:
                for r in range(lanes):
                    linear[g, r] += theta / v[k, r]
            for r in range(lanes):
                after[p, r] = tail[g, r]
                tail[g, r] *= v[k, r]
        for p in range(poly.out_ptr[k], poly.out_ptr[k + 1]):
            g = poly.out_group[p]
            theta = poly.out_theta[p]
            for r in range(lanes):
                linear[g, r] += theta * v[k, r]


@spliced(error_model="numpy")
def _local_field(poly, v, k, after, before, tail, linear, field):  # type: ignore[no-untyped-def]
    """field[r] = g_k of lane r: O(degree + groups that hold k)."""
    lanes = v.shape[1]
    for r in range(lanes):
        field[r] = poly.field[k]
    for p in range(poly.adj_ptr[k], poly.adj_ptr[k + 1]):
        j = poly.adj_to[p]
        w = poly.adj_w[p]
        for r in range(lanes):
            field[r] += w * v[j, r]
    for p in range(poly.in_ptr[k], poly.in_ptr[k + 1]):
        g = poly.in_group[p]
        theta = poly.in_theta[p]
        if theta == 0.0:
            for r in range(lanes):
                field[r] += before[g, r] * after[p, r] * linear[g, r]
        else:
            for r in range(lanes):
                rest = linear[g, r] - theta / v[k, r]
                field[r] += before[g, r] * after[p, r] * rest
    for p in range(poly.out_ptr[k], poly.out_ptr[k + 1]):
        g = poly.out_group[p]
        theta = poly.out_theta[p]
        for r in range(lanes):
            field[r] += theta * before[g, r] * tail[g, r]


@spliced(error_model="numpy")
def _commit(poly, v, k, new, after, before, tail, linear):  # type: ignore[no-untyped-def]
    """Put v_k <- new and carry the change into the groups that hold k."""
    lanes = v.shape[1]
    for p in range(poly.in_ptr[k], poly.in_ptr[k + 1]):
        g = poly.in_group[p]
        theta = poly.in_theta[p]
        if theta != 0.0:
            for r in range(lanes):
                linear[g, r] += theta * (1.0 / new[r] - 1.0 / v[k, r])
        for r in range(lanes):
            before[g, r] *= new[r]
            tail[g, r] = after[p, r]
    for p in range(poly.out_ptr[k], poly.out_ptr[k + 1]):
        g = poly.out_group[p]
        theta = poly.out_theta[p]
        for r in range(lanes):
            linear[g, r] += theta * (new[r] - v[k, r])
    for r in range(lanes):
        v[k, r] = new[r]


@kernel(error_model="numpy")
def ascend(poly, v, betas, tol, max_sweeps, gains):  # type: ignore[no-untyped-def]
    """Sweep until no lane gains more than `tol` nats in a sweep; returns the sweeps done.

    poly GroupedPolynomial, v (n, lanes) in place, betas: inverse temperatures of the first sweeps
    (then 1), gains (lanes,) the last sweep's gain per lane, to second order (exact at a maximum).
    """
    n, lanes = v.shape
    groups = poly.coef.size
    after = np.empty((poly.base_spins.size, lanes))
    before = np.empty((groups, lanes))
    tail = np.empty((groups, lanes))
    linear = np.empty((groups, lanes))
    field = np.empty(lanes)
    new = np.empty(lanes)
    for sweep in range(max_sweeps):
        beta = betas[sweep] if sweep < betas.size else 1.0
        _start_sweep(poly, v, after, before, tail, linear)
        gains[:] = 0.0
        for k in range(n):
            _local_field(poly, v, k, after, before, tail, linear, field)
            for r in range(lanes):
                new[r] = tanh(beta * field[r])
            if poly.inverse[k]:
                for r in range(lanes):
                    if abs(new[r]) < SMALLEST:
                        new[r] = SMALLEST if field[r] >= 0.0 else -SMALLEST
            for r in range(lanes):
                change = abs(new[r] - v[k, r])
                room = max(1.0 - new[r] * new[r], change, 1e-300)
                gains[r] += 0.5 * change * change / room
            _commit(poly, v, k, new, after, before, tail, linear)
        steady = sweep + 1 >= betas.size
        for r in range(lanes):
            steady = steady and gains[r] <= tol
        if steady:
            return sweep + 1
    return max_sweeps


@kernel(error_model="numpy")
def descend_to_vertex(poly, v, max_sweeps):  # type: ignore[no-untyped-def]
    """Zero-temperature sweeps y_k <- sign(g_k) from spins v (n, lanes); returns sweeps done.

    Stops when no single flip of a free spin raises the weight in any lane.
    """
    n, lanes = v.shape
    groups = poly.coef.size
    after = np.empty((poly.base_spins.size, lanes))
    before = np.empty((groups, lanes))
    tail = np.empty((groups, lanes))
    linear = np.empty((groups, lanes))
    field = np.empty(lanes)
    new = np.empty(lanes)
    for sweep in range(max_sweeps):
        _start_sweep(poly, v, after, before, tail, linear)
        changed = False
        for k in range(n):
            _local_field(poly, v, k, after, before, tail, linear, field)
            for r in range(lanes):
                new[r] = v[k, r]
                if field[r] * v[k, r] < 0.0:
                    new[r] = -v[k, r]
                    changed = True
            _commit(poly, v, k, new, after, before, tail, linear)
        if not changed:
            return sweep + 1
    return max_sweeps


@kernel(error_model="numpy")
def best_vertex(poly, best):  # type: ignore[no-untyped-def]
    """The heaviest of all 2^n states by Gray code; fills best (n,) and returns its log weight.

    Each step flips one spin at a cost of O(degree + groups that hold it).
    """
    n = best.size
    groups = poly.coef.size
    y, product, linear = np.empty(n), np.empty(groups), np.empty(groups)
    for g in range(groups):
        product[g], linear[g] = 1.0, poly.coef[g]
    total = poly.constant
    for k in range(n):
        y[k], best[k] = 1.0, 1.0
        total += poly.field[k]
        for p in range(poly.adj_ptr[k], poly.adj_ptr[k + 1]):
            total += 0.5 * poly.adj_w[p]
        for p in range(poly.in_ptr[k], poly.in_ptr[k + 1]):
            linear[poly.in_group[p]] += poly.in_theta[p]
        for p in range(poly.out_ptr[k], poly.out_ptr[k + 1]):
            linear[poly.out_group[p]] += poly.out_theta[p]
    shared = 0.0
    for g in range(groups):
        shared += linear[g]
    total += shared
    top = total
    for code in range(1, 1 << n):
        k = 0
        while not (code >> k) & 1:
            k += 1
        field = poly.field[k]
        for p in range(poly.adj_ptr[k], poly.adj_ptr[k + 1]):
            field += poly.adj_w[p] * y[poly.adj_to[p]]
        for p in range(poly.in_ptr[k], poly.in_ptr[k + 1]):
            g = poly.in_group[p]
            rest = linear[g] - poly.in_theta[p] * y[k]
            field += product[g] * y[k] * rest
            linear[g] = rest - poly.in_theta[p] * y[k]
            product[g] = -product[g]
        for p in range(poly.out_ptr[k], poly.out_ptr[k + 1]):
            g = poly.out_group[p]
            field += poly.out_theta[p] * product[g]
            linear[g] -= 2.0 * poly.out_theta[p] * y[k]
        total -= 2.0 * y[k] * field
        y[k] = -y[k]
        if total > top:
            top = total
            for i in range(n):
                best[i] = y[i]
    return top
