"""Annealed importance sampling kernels: block Gibbs on two layers, single-site Gibbs on spins.

A chain starts from an independent base, follows the path log p_beta = (1 - beta) log p_0 +
beta log p~ through the given betas and gathers log w = sum_k log p~_{k+1}(x_k) - log p~_k(x_k)
(Neal 2001). Random numbers are xoshiro256+ (Blackman and Vigna 2018), one state per chain.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.uppers.mini_bucket.kernels import exp_chunk

_TO_UNIT = 2.0**-53


@njit(cache=True, nogil=True)
def _rotate(x, k):
    return (x << np.uint64(k)) | (x >> np.uint64(64 - k))


@njit(cache=True, nogil=True)
def fill_uniform(state, out, n):
    """out[:n] <- uniform [0, 1); `state` holds 4 words and is advanced."""
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    for i in range(n):
        out[i] = np.float64((s0 + s3) >> np.uint64(11)) * _TO_UNIT
        t = s1 << np.uint64(17)
        s2 ^= s0
        s3 ^= s1
        s1 ^= s2
        s0 ^= s3
        s2 ^= t
        s3 = _rotate(s3, 45)
    state[0], state[1], state[2], state[3] = s0, s1, s2, s3


@njit(cache=True, nogil=True)
def fill_uniform_lanes(states, out):
    """One uniform per lane; `states` is (4, lanes)."""
    for lane in range(out.size):
        s0, s1, s2, s3 = states[0, lane], states[1, lane], states[2, lane], states[3, lane]
        out[lane] = np.float64((s0 + s3) >> np.uint64(11)) * _TO_UNIT
        t = s1 << np.uint64(17)
        s2 ^= s0
        s3 ^= s1
        states[1, lane] = s1 ^ s2
        states[0, lane] = s0 ^ s3
        states[2, lane] = s2 ^ t
        states[3, lane] = _rotate(s3, 45)


@njit(cache=True, nogil=True)
def _resample(units, field, uniform, decay, weights, other_field):
    """units[i] ~ Bernoulli(sigmoid(field[i])); flips go into the other layer's field.

    `decay` holds exp(-|field|); rows of `weights` belong to these units. Returns nothing.
    """
    for i in range(units.size):
        top = 1.0 if field[i] >= 0.0 else decay[i]
        new = 1.0 if uniform[i] * (1.0 + decay[i]) < top else 0.0
        if new != units[i]:
            sign = new - units[i]
            units[i] = new
            row = weights[i]
            for j in range(other_field.size):
                other_field[j] += sign * row[j]


@njit(cache=True, nogil=True)
def layer_chain(weights, weights_t, kept, kept_base, summed, summed_base, betas, state, slopes, x):
    """One chain on a two-layer model with the second layer summed out; returns log w.

    weights (A, B); kept, kept_base (A,) and summed, summed_base (B,) are biases of the target and
    of the base. With slopes of size K - 1, slopes[k] is d log p~_beta / d beta at step k.
    log p_beta(x) = ((1-beta) kept_base + beta kept)'x
                    + sum_j softplus((1-beta) summed_base_j + beta (summed_j + (x W)_j)).
    """
    a, b = weights.shape
    x[:] = 0.0
    y = np.zeros(b)
    into_x, into_y = np.zeros(a), np.zeros(b)
    t_x, t_y, e_x, e_y, e_old = np.empty(a), np.empty(b), np.empty(a), np.empty(b), np.empty(b)
    uniform, scratch = np.empty(max(a, b)), np.empty(max(a, b))
    log_w = 0.0
    for i in range(a):
        t_x[i] = kept_base[i]
        e_x[i] = -abs(t_x[i])
    exp_chunk(e_x, a, scratch)
    fill_uniform(state, uniform, a)
    _resample(x, t_x, uniform, e_x, weights, into_y)
    for k in range(1, betas.size):
        old, beta = betas[k - 1], betas[k]
        linear = 0.0
        for i in range(a):
            linear += (kept[i] - kept_base[i]) * x[i]
        positive = 0.0
        for j in range(b):
            step = summed[j] + into_y[j] - summed_base[j]
            t0 = summed_base[j] + old * step
            t1 = summed_base[j] + beta * step
            positive += max(t1, 0.0) - max(t0, 0.0)
            t_y[j] = t1
            e_old[j] = -abs(t0)
            e_y[j] = -abs(t1)
        exp_chunk(e_old, b, scratch)
        exp_chunk(e_y, b, scratch)
        log_w += (beta - old) * linear + positive
        for start in range(0, b, 512):  # products of at most 512 factors in [1, 2]
            above, below = 1.0, 1.0
            for j in range(start, min(b, start + 512)):
                above *= 1.0 + e_y[j]
                below *= 1.0 + e_old[j]
            log_w += np.log(above / below)
        if slopes.size:
            slope = linear
            for j in range(b):
                top = 1.0 if t_y[j] >= 0.0 else e_y[j]
                slope += (summed[j] + into_y[j] - summed_base[j]) * top / (1.0 + e_y[j])
            slopes[k - 1] = slope
        if k == betas.size - 1:
            break
        fill_uniform(state, uniform, b)
        _resample(y, t_y, uniform, e_y, weights_t, into_x)
        for i in range(a):
            t_x[i] = kept_base[i] + beta * (kept[i] + into_x[i] - kept_base[i])
            e_x[i] = -abs(t_x[i])
        exp_chunk(e_x, a, scratch)
        fill_uniform(state, uniform, a)
        _resample(x, t_x, uniform, e_x, weights, into_y)
    return log_w


class Terms(NamedTuple):
    """log p~ = sum_i fields_i s_i + sum_a theta_a prod_{i in a} s_i; terms of arity 2 or more.

    ptr, spins, theta are the terms, site_ptr, site_terms the terms of each spin.
    """

    ptr: NDArray[np.int64]
    spins: NDArray[np.int64]
    theta: NDArray[np.float64]
    site_ptr: NDArray[np.int64]
    site_terms: NDArray[np.int64]
    fields: NDArray[np.float64]


@njit(cache=True, nogil=True)
def draw_independent(base, states, s):
    """s (n, lanes) <- independent spins in the fields `base` (n,); `states` (4, lanes) advance."""
    uniform = np.empty(s.shape[1])
    for i in range(base.size):
        up = 1.0 / (1.0 + np.exp(-2.0 * base[i])) if base[i] > -300.0 else 0.0
        fill_uniform_lanes(states, uniform)
        for c in range(uniform.size):
            s[i, c] = 1.0 if uniform[c] < up else -1.0


@njit(cache=True, nogil=True)
def _renew(log_w, uniform, s, slope, ancestors, row):
    """Copy lanes in proportion to their weights (systematic); returns log mean weight, log_w <- 0.

    Each lane's expected number of copies is its share of the weight, so the product of the
    returned means has expectation Z (Del Moral 2004): resampling costs no bias.
    """
    lanes = log_w.size
    top = log_w.max()
    total = 0.0
    for c in range(lanes):
        total += np.exp(log_w[c] - top)
    source = np.empty(lanes, dtype=np.int64)
    at, reached = 0, np.exp(log_w[0] - top)
    for c in range(lanes):
        while (c + uniform) * total > reached * lanes and at < lanes - 1:
            at += 1
            reached += np.exp(log_w[at] - top)
        source[c] = at
    for i in range(s.shape[0]):
        for c in range(lanes):
            row[c] = s[i, source[c]]
        s[i] = row
    ancestors[:] = ancestors[source]
    for c in range(lanes):
        row[c] = slope[source[c]]
    slope[:] = row
    log_w[:] = 0.0
    return top + np.log(total / lanes)


@njit(cache=True, nogil=True)
def _effective(log_w):
    """(sum w)^2 / sum w^2 (Kish)."""
    top = log_w.max()
    total, squares = 0.0, 0.0
    for c in range(log_w.size):
        w = np.exp(log_w[c] - top)
        total += w
        squares += w * w
    return total * total / squares


@njit(cache=True, nogil=True)
def spin_chains(terms, base, betas, states, s, log_w, slopes, renewal, ancestors):
    """Chains in lanes from the states s (n, lanes) through `betas`, moved by single-site Gibbs.

    log p_beta = (1 - beta) base's + beta terms' log weight. log_w (lanes,) out, slopes
    (K - 1, lanes) out or empty; s ends at the states that the weights belong to. Betas may fall:
    sweeps then visit the sites backwards, which is the exact reversal of a rising chain.
    renewal > 0 makes the lanes one population (Hukushima and Iba 2003): it is resampled where
    fewer than that share of its lanes is effective, and only its mean weight is unbiased;
    ancestors (lanes,) follow the lanes' copies.
    """
    shared = 0.0
    ptr, spins, theta, site_ptr, site_terms, fields = terms
    n, lanes = fields.size, log_w.size
    slope, local, prod = np.zeros(lanes), np.empty(lanes), np.empty(lanes)
    decay, uniform, scratch = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    log_w[:] = 0.0
    for i in range(n):
        for c in range(lanes):
            slope[c] += (fields[i] - base[i]) * s[i, c]
    for t in range(theta.size):
        prod[:] = theta[t]
        for e in range(ptr[t], ptr[t + 1]):
            for c in range(lanes):
                prod[c] *= s[spins[e], c]
        for c in range(lanes):
            slope[c] += prod[c]
    backwards = betas[0] > betas[-1]
    for k in range(1, betas.size):
        beta = betas[k]
        for c in range(lanes):
            log_w[c] += (beta - betas[k - 1]) * slope[c]
        if slopes.size:
            slopes[k - 1] = slope
        if k == betas.size - 1:
            break
        if renewal > 0.0 and _effective(log_w) < renewal * lanes:
            fill_uniform_lanes(states, uniform)
            shared += _renew(log_w, uniform[0], s, slope, ancestors, prod)
        for site in range(n):
            i = n - 1 - site if backwards else site
            local[:] = fields[i] - base[i]
            for q in range(site_ptr[i], site_ptr[i + 1]):
                t = site_terms[q]
                prod[:] = theta[t]
                for e in range(ptr[t], ptr[t + 1]):
                    j = spins[e]
                    if j != i:
                        for c in range(lanes):
                            prod[c] *= s[j, c]
                for c in range(lanes):
                    local[c] += prod[c]
            for c in range(lanes):
                prod[c] = 2.0 * (base[i] + beta * local[c])
                decay[c] = -abs(prod[c])
            exp_chunk(decay, lanes, scratch)
            fill_uniform_lanes(states, uniform)
            for c in range(lanes):
                top = 1.0 if prod[c] >= 0.0 else decay[c]
                new = 1.0 if uniform[c] * (1.0 + decay[c]) < top else -1.0
                slope[c] += (new - s[i, c]) * local[c]
                s[i, c] = new
    for c in range(lanes):
        log_w[c] += shared


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _log_partition_of_layer(t, decay, scratch):
    """sum_j softplus(t_j)."""
    total = 0.0
    for j in range(t.size):
        total += max(t[j], 0.0)
        decay[j] = -abs(t[j])
    exp_chunk(decay, t.size, scratch)
    for start in range(0, t.size, 512):
        product = 1.0
        for j in range(start, min(t.size, start + 512)):
            product *= 1.0 + decay[j]
        total += np.log(product)
    return total


@njit(cache=True, nogil=True)
def collapsed_chain(weights, kept, kept_base, summed, summed_base, betas, state, slopes, x):
    """As `layer_chain`, moved by single-site Gibbs on the kept layer, the other one summed out.

    A sweep costs A * B instead of a few rows, and mixes where block Gibbs is stuck: a change of
    one kept unit need not fit the present state of the other layer.
    """
    a, b = weights.shape
    x[:] = 0.0
    field = summed - summed_base  # field: summed + xW - summed_base
    t, trial, decay, scratch = np.empty(b), np.empty(b), np.empty(b), np.empty(b)
    uniform = np.empty(a)
    log_w = 0.0
    fill_uniform(state, uniform, a)
    for i in range(a):
        if uniform[i] * (1.0 + np.exp(-max(kept_base[i], -700.0))) < 1.0:
            x[i] = 1.0
            field += weights[i]
    for k in range(1, betas.size):
        old, beta = betas[k - 1], betas[k]
        linear = 0.0
        for i in range(a):
            linear += (kept[i] - kept_base[i]) * x[i]
        for j in range(b):
            trial[j] = summed_base[j] + old * field[j]
            t[j] = summed_base[j] + beta * field[j]
        before = _log_partition_of_layer(trial, decay, scratch)
        now = _log_partition_of_layer(t, decay, scratch)
        log_w += (beta - old) * linear + (now - before)
        if slopes.size:
            slope = linear
            for j in range(b):
                top = 1.0 if t[j] >= 0.0 else decay[j]
                slope += field[j] * top / (1.0 + decay[j])
            slopes[k - 1] = slope
        if k == betas.size - 1:
            break
        fill_uniform(state, uniform, a)
        for i in range(a):
            sign = 1.0 - 2.0 * x[i]
            row = weights[i]
            for j in range(b):
                trial[j] = t[j] + beta * sign * row[j]
            other = _log_partition_of_layer(trial, decay, scratch)
            bias = kept_base[i] + beta * (kept[i] - kept_base[i])
            gain = sign * bias + other - now
            if gain >= 0.0 or gain > -700.0:
                flip = uniform[i] * (1.0 + np.exp(-min(gain, 700.0))) < 1.0
                if flip:
                    x[i] += sign
                    now = other
                    for j in range(b):
                        field[j] += sign * row[j]
                        t[j] = trial[j]
    return log_w
