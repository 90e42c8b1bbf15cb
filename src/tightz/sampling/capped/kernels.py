"""Exact draws from the geometric mini-bucket proposal, many at a time.

Variables are drawn in reverse elimination order. For variable i with mini-buckets r = 1..R and
D_r = F_r - m_r (see `tightz.uppers.mini_bucket.passes`)

    q(v | context) = prod_r exp(D_r(v)) / S_i,    S_i = sum_v prod_r exp(D_r(v)) <= 1 (Hoelder)

and p~(x) / q(x) = U prod_i S_i. Where a bucket was not cut S_i = 1 and no weight is lost.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tightz.runtime.kernels import kernel, spliced

_FLUSH = 1e-120


@spliced
def _next(words, lane):
    """One step of splitmix64 per lane: 64 random bits as a number in (0, 1], exact near zero.

    Small values keep all their digits, so that rare states are drawn as often as they should.
    """
    words[lane] += np.uint64(0x9E3779B97F4A7C15)
    z = words[lane]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (np.float64(z >> np.uint64(1)) + 1.0) * 2.0**-63


@kernel
def draw(skel, scopes, tables, words, states, index, mass, product, log_x):
    """One state per lane: states (variables, lanes), log_x (lanes,) = log prod_i S_i.

    scopes: variables of every clique's axes, as `skel.dims`. index (lanes,), mass (most states,
    lanes) and product (lanes,) are scratch.
    """
    lanes = log_x.size
    log_x[:] = 0.0
    product[:] = 1.0
    for b in range(skel.bucket_ptr.size - 2, -1, -1):
        low, high = skel.bucket_ptr[b], skel.bucket_ptr[b + 1]
        last = skel.axis_ptr[low + 1] - 1
        variable, d = scopes[last], skel.dims[last]
        for c in range(low, high):
            index[:] = 0
            stride = d
            for a in range(skel.axis_ptr[c + 1] - 2, skel.axis_ptr[c] - 1, -1):
                row = states[scopes[a]]
                step = np.int32(stride)
                for t in range(lanes):
                    index[t] += np.int32(row[t]) * step
                stride *= skel.dims[a]
            table = tables[skel.table_ptr[c] : skel.table_ptr[c + 1]]
            if c == low:
                for v in range(d):
                    part = mass[v]
                    for t in range(lanes):
                        part[t] = table[index[t] + v]
            else:
                for v in range(d):
                    part = mass[v]
                    for t in range(lanes):
                        part[t] *= table[index[t] + v]
        chosen = states[variable]
        if d == 2:
            for t in range(lanes):
                e0, e1 = mass[0, t], mass[1, t]
                total = e0 + e1
                u = _next(words, t) * total
                # the rarer state is the one that a small u picks
                if e0 < e1:
                    chosen[t] = 0 if u <= e0 else 1
                else:
                    chosen[t] = 1 if u <= e1 else 0
                mass[0, t] = total
        else:
            for t in range(lanes):
                rest = 0.0
                for v in range(d):
                    rest += mass[v, t]
                total = rest
                pick = d - 1
                for v in range(d - 1):
                    e = mass[v, t]
                    other = 0.0
                    for w in range(v + 1, d):
                        other += mass[w, t]
                    u = _next(words, t) * (e + other)
                    hit = u <= e if e < other else u > other
                    if hit:
                        pick = v
                        break
                chosen[t] = pick
                mass[0, t] = total
        if high - low > 1:
            for t in range(lanes):
                product[t] *= mass[0, t]
                if product[t] < _FLUSH:
                    log_x[t] += np.log(product[t]) if product[t] > 0.0 else -np.inf
                    product[t] = 1.0
        else:
            # a sum of 0 is a dead end; otherwise it is 1 up to rounding
            for t in range(lanes):
                if mass[0, t] <= 0.0:
                    log_x[t] = -np.inf
    for t in range(lanes):
        log_x[t] += np.log(product[t])


@kernel
def tally(states, order, edges, card_ptr, counts):
    """counts[card_ptr[i] + x_i, k] += 1 for every variable and lane, k the lane's point.

    order: lanes sorted by point; those at k are order[edges[k] : edges[k + 1]], the rest are at 0.
    """
    points = counts.shape[1]
    row = np.empty(order.size, dtype=states.dtype)
    for i in range(states.shape[0]):
        base = card_ptr[i]
        for t in range(edges[points]):
            row[t] = states[i, order[t]]
        if card_ptr[i + 1] - base == 2:
            for k in range(points):
                ones = np.int64(0)
                for t in range(edges[k], edges[k + 1]):
                    ones += row[t]
                counts[base + 1, k] += ones
                counts[base, k] += edges[k + 1] - edges[k] - ones
        else:
            for k in range(points):
                for t in range(edges[k], edges[k + 1]):
                    counts[base + row[t], k] += 1
