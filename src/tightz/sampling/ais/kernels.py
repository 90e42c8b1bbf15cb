"""Annealed importance sampling kernels: block Gibbs on two layers, single-site Gibbs on spins.

A chain starts from an independent base, follows the path log p_beta = (1 - beta) log p_0 +
beta log p~ through the given betas and gathers log w = sum_k log p~_{k+1}(x_k) - log p~_k(x_k)
(Neal 2001). Random numbers are xoshiro256+ (Blackman and Vigna 2018), one state per chain.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import inner, kernel, spliced
from tightz.uppers.mini_bucket.kernels import exp_chunk

_TO_UNIT = 2.0**-53


@inner
def fill_uniform(state, out, n):
    """out[:n] <- uniform [0, 1); `state` holds 4 words and is advanced."""
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    for i in range(n):
        # The low bits of s0 + s3 are the weak ones of xoshiro256+; the upper 53 make a double.
        out[i] = np.float64((s0 + s3) >> np.uint64(11)) * _TO_UNIT
        t = s1 << np.uint64(17)
        s2 ^= s0
        s3 ^= s1
        s1 ^= s2
        s0 ^= s3
        s2 ^= t
        s3 = (s3 << np.uint64(45)) | (s3 >> np.uint64(19))
    state[0], state[1], state[2], state[3] = s0, s1, s2, s3


@spliced
def _draw(states, lane):
    """A uniform of one lane; `states` (4, lanes) is advanced."""
    s0, s1, s2, s3 = states[0, lane], states[1, lane], states[2, lane], states[3, lane]
    t = s1 << np.uint64(17)
    drawn = np.float64((s0 + s3) >> np.uint64(11)) * _TO_UNIT
    s2 ^= s0
    s3 ^= s1
    states[1, lane] = s1 ^ s2
    states[0, lane] = s0 ^ s3
    states[2, lane] = s2 ^ t
    states[3, lane] = (s3 << np.uint64(45)) | (s3 >> np.uint64(19))
    return drawn


@inner
def fill_uniform_lanes(states, out):
    """One uniform per lane; `states` is (4, lanes)."""
    for lane in range(out.size):
        out[lane] = _draw(states, lane)


@inner
def _resample(units, field, uniform, decay, weights, other_field):
    """units[i] ~ Bernoulli(sigmoid(field[i])); flips go into the other layer's field.

    `decay` holds exp(-|field|); rows of `weights` belong to these units. Returns nothing.
    """
    for i in range(units.size):
        # sigmoid(t) is 1 / (1 + e^-|t|) for t >= 0 and e^-|t| / (1 + e^-|t|) below: comparing
        # uniform times the denominator needs no division and never overflows.
        top = 1.0 if field[i] >= 0.0 else decay[i]
        new = 1.0 if uniform[i] * (1.0 + decay[i]) < top else 0.0
        # Most units keep their value between neighbouring temperatures, so the other layer's field
        # is updated by the rows of those that flipped instead of a matrix product.
        if new != units[i]:
            sign = new - units[i]
            units[i] = new
            row = weights[i]
            for j in range(other_field.size):
                other_field[j] += sign * row[j]


class Layers(NamedTuple):
    """A two-layer model of units in {0, 1}, the second layer summed out, and the base of a path.

    weights (A, B) and its transpose; kept, kept_base (A,) and summed, summed_base (B,) are biases
    of the target and of the base:
    log p_beta(x) = ((1-beta) kept_base + beta kept)'x
                    + sum_j softplus((1-beta) summed_base_j + beta (summed_j + (x W)_j)).
    """

    weights: NDArray[np.float64]
    weights_t: NDArray[np.float64]
    kept: NDArray[np.float64]
    kept_base: NDArray[np.float64]
    summed: NDArray[np.float64]
    summed_base: NDArray[np.float64]


@kernel
def layer_chain(layers, betas, state, slopes, x):
    """One chain from the base through `betas`, moved by block Gibbs; returns log w.

    With slopes of size K - 1, slopes[k] is d log p~_beta / d beta at step k.
    """
    weights, weights_t, kept, kept_base, summed, summed_base = layers
    a, b = weights.shape
    x[:] = 0.0
    y = np.zeros(b)
    into_x, into_y = np.zeros(a), np.zeros(b)
    t_x, t_y, e_x, e_y, e_old = np.empty(a), np.empty(b), np.empty(a), np.empty(b), np.empty(b)
    uniform, scratch = np.empty(max(a, b)), np.empty(max(a, b))
    log_w = 0.0
    # Draw x from the base. Its units are independent, so the draw is exact and the chain's weight
    # starts at the base's own partition function, which the caller adds.
    for i in range(a):
        t_x[i] = kept_base[i]
        e_x[i] = -abs(t_x[i])
    exp_chunk(e_x, a, scratch)
    fill_uniform(state, uniform, a)
    _resample(x, t_x, uniform, e_x, weights, into_y)
    for k in range(1, betas.size):
        # The weight's factor p~_k(x) / p~_{k-1}(x), taken before x moves (Neal 2001). The
        # summed-out layer enters as softplus(t) = max(t, 0) + log(1 + e^-|t|), so the two logs
        # need one exponential each.
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
        # One logarithm for 512 units instead of one each: a product of factors in [1, 2] stays
        # below 2^512, far from overflow.
        for start in range(0, b, 512):  # products of at most 512 factors in [1, 2]
            above, below = 1.0, 1.0
            for j in range(start, min(b, start + 512)):
                above *= 1.0 + e_y[j]
                below *= 1.0 + e_old[j]
            log_w += np.log(above / below)
        # d log p~_beta / d beta at the new beta: its spread over pilot chains says where
        # temperatures should be dense.
        if slopes.size:
            slope = linear
            for j in range(b):
                top = 1.0 if t_y[j] >= 0.0 else e_y[j]
                slope += (summed[j] + into_y[j] - summed_base[j]) * top / (1.0 + e_y[j])
            slopes[k - 1] = slope
        if k == betas.size - 1:
            break
        # A block Gibbs step that leaves p_beta invariant: y given x, then x given y. Drawing y
        # brings the summed-out layer back for one step; it is forgotten with the next.
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

    ptr, spins, theta are the terms. Spin i is in the terms site_terms[q], q from site_ptr[i] to
    site_ptr[i + 1], together with the spins others[other_ptr[q]:other_ptr[q + 1]].
    """

    ptr: NDArray[np.int64]
    spins: NDArray[np.int64]
    theta: NDArray[np.float64]
    site_ptr: NDArray[np.int64]
    site_terms: NDArray[np.int64]
    other_ptr: NDArray[np.int64]
    others: NDArray[np.int64]
    fields: NDArray[np.float64]


class Forest(NamedTuple):
    """The base of a path: log p_0 = sum_i fields_i s_i + sum_a theta_a prod s_i, theta (T,) zero
    except at pairs without a cycle.

    Drawn along `order`, parents first (-1: a root): P(s_i = 1 | parent) is the sigmoid of
    2 (pull_i + link_i s_parent). Without pairs it is a product.
    """

    fields: NDArray[np.float64]
    theta: NDArray[np.float64]
    order: NDArray[np.int64]
    parent: NDArray[np.int64]
    link: NDArray[np.float64]
    pull: NDArray[np.float64]


class Lanes(NamedTuple):
    """Chains side by side: spins (n, lanes), log weights (lanes,), slopes (K - 1, lanes) or empty,
    and the start (lanes,) that each stems from; `source` (lanes,) is scratch."""

    spins: NDArray[np.float64]
    log_w: NDArray[np.float64]
    slopes: NDArray[np.float64]
    ancestors: NDArray[np.int64]
    source: NDArray[np.int64]


@kernel
def draw_forest(base, states, s):
    """s (n, lanes) <- spins of the base; `states` (4, lanes) advance."""
    uniform = np.empty(s.shape[1])
    for i in base.order:
        above = base.parent[i]
        fill_uniform_lanes(states, uniform)
        # The guard keeps exp from overflowing where the probability is below 1e-260.
        up = 1.0 / (1.0 + np.exp(-2.0 * max(-300.0, base.pull[i] + base.link[i])))
        down = 1.0 / (1.0 + np.exp(-2.0 * max(-300.0, base.pull[i] - base.link[i])))
        for c in range(uniform.size):
            bound = up if above < 0 or s[above, c] > 0.0 else down
            s[i, c] = 1.0 if uniform[c] < bound else -1.0


@inner
def _effective(log_w, low, high):
    """(sum w)^2 / sum w^2 (Kish) of the lanes low..high; with their largest log weight."""
    top = log_w[low]
    for c in range(low + 1, high):
        top = max(top, log_w[c])
    total, squares = 0.0, 0.0
    for c in range(low, high):
        w = math.exp(log_w[c] - top)
        total += w
        squares += w * w
    return total * total / squares, top, total


@inner
def _renew(walkers, low, high, top, total, uniform, slope, row):
    """Copy lanes low..high in proportion to their weights (systematic); their log_w <- 0.

    Each lane's expected number of copies is its share of the weight, so the product of the
    mean weights has expectation Z (Del Moral 2004): resampling costs no bias.
    """
    s, log_w, ancestors, source = walkers.spins, walkers.log_w, walkers.ancestors, walkers.source
    lanes = high - low
    # Systematic resampling: one uniform number lays a comb of equal teeth over the cumulated
    # weights, so a lane with share w gets floor or ceil of lanes * w copies. `at < high - 1`
    # catches the last tooth when rounding leaves the total short.
    at, reached = low, np.exp(log_w[low] - top)
    for c in range(lanes):
        while (c + uniform) * total > reached * lanes and at < high - 1:
            at += 1
            reached += np.exp(log_w[at] - top)
        source[c] = at
    # Spins, slopes and ancestry follow the copies; the weights start anew at the mean, which keeps
    # the product of means unbiased.
    for i in range(s.shape[0]):
        for c in range(lanes):
            row[c] = s[i, source[c]]
        for c in range(lanes):
            s[i, low + c] = row[c]
    for c in range(lanes):
        row[c] = slope[source[c]]
    # Teeth and lanes both rise, so a copy may come from a lane on either side: out of place.
    for c in range(lanes):
        slope[low + c] = row[c]
        source[c] = ancestors[source[c]]
        log_w[low + c] = 0.0
    for c in range(lanes):
        ancestors[low + c] = source[c]


@inner
def _first_slopes(terms, base, s, slope, prod):
    """slope (lanes,) <- log p~_1 - log p~_0 of each lane's spins."""
    slope[:] = 0.0
    for i in range(base.fields.size):
        added = terms.fields[i] - base.fields[i]
        for c in range(slope.size):
            slope[c] += added * s[i, c]
    for t in range(terms.theta.size):
        prod[:] = terms.theta[t] - base.theta[t]
        for e in range(terms.ptr[t], terms.ptr[t + 1]):
            j = terms.spins[e]
            for c in range(slope.size):
                prod[c] *= s[j, c]
        for c in range(slope.size):
            slope[c] += prod[c]


@spliced
def _local_fields(members, couplings, low, high, s, prod, still, local):
    """still + beta local (lanes,) is a spin's field at beta: its terms low..high, itself left out.

    `couplings` are those of the base and of the target.
    """
    owners, ptr, others = members
    start, goal = couplings
    for q in range(low, high):
        t = owners[q]
        first, last = ptr[q], ptr[q + 1] - 1
        j = others[first]
        theta = goal[t] - start[t]
        # Pairs and triples are nearly all terms: they need no product in memory.
        if last == first and start[t] == 0.0:
            for c in range(local.size):
                local[c] += theta * s[j, c]
        elif last == first + 1:
            k = others[last]
            for c in range(local.size):
                local[c] += theta * (s[j, c] * s[k, c])
        else:
            for c in range(local.size):
                prod[c] = s[j, c]
            for e in range(first + 1, last + 1):
                k = others[e]
                for c in range(local.size):
                    prod[c] *= s[k, c]
            for c in range(local.size):
                local[c] += theta * prod[c]
                still[c] += start[t] * prod[c]


@kernel
def spin_chains(terms, base, betas, states, walkers, size, renewal):
    """Chains in lanes from their spins through `betas`, moved by single-site Gibbs.

    log p_beta = (1 - beta) base's + beta terms' log weight. The spins end at the states that the
    weights belong to. Betas may fall: sweeps then visit the sites backwards, which is the exact
    reversal of a rising chain.
    renewal > 0 makes every `size` lanes a population (Hukushima and Iba 2003): it is resampled
    where fewer than that share of its lanes is effective, and only its mean weight is unbiased;
    the ancestors follow the lanes' copies. What log_w holds at the start counts on.
    """
    s, log_w, slopes = walkers.spins, walkers.log_w, walkers.slopes
    n, lanes = base.fields.size, log_w.size
    fields, base_fields, site_ptr = terms.fields, base.fields, terms.site_ptr
    members = terms.site_terms, terms.other_ptr, terms.others
    couplings = base.theta, terms.theta
    # `slope` is log p~_1 - log p~_0 of each lane's present state, kept up to date flip by flip:
    # the path is linear in beta, so a weight's factor is the step in beta times the slope.
    # Arrays of their own: as rows of one array the loops over lanes run 15% slower.
    slope, shared = np.empty(lanes), np.empty(lanes)
    local, still, prod = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    decay, uniform, scratch = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    shared[:] = 0.0
    _first_slopes(terms, base, s, slope, prod)
    # A sweep in order i = 1..n reversed in time is one in order n..1: both leave p_beta invariant,
    # and the reversed kernel is what makes a falling chain the exact time reversal of a rising
    # one.
    backwards = betas[0] > betas[-1]
    for k in range(1, betas.size):
        beta = betas[k]
        for c in range(lanes):
            log_w[c] += (beta - betas[k - 1]) * slope[c]
        if slopes.size:
            for c in range(lanes):
                slopes[k - 1, c] = slope[c]
        if k == betas.size - 1:
            break
        # Resampling at a random time is allowed: the decision depends on the past only, and the
        # mean weight handed on is a martingale.
        if renewal > 0.0:
            for low in range(0, lanes, size):
                high = min(lanes, low + size)
                effective, top, total = _effective(log_w, low, high)
                if effective < renewal * (high - low):
                    _renew(walkers, low, high, top, total, _draw(states, low), slope, prod)
                    mean = top + np.log(total / (high - low))
                    for c in range(low, high):
                        shared[c] += mean
        for site in range(n):
            i = n - 1 - site if backwards else site
            still[:] = base_fields[i]
            local[:] = fields[i] - base_fields[i]
            _local_fields(members, couplings, site_ptr[i], site_ptr[i + 1], s, prod, still, local)
            for c in range(lanes):
                # Heat bath: P(s_i = +1) = sigmoid(2 h_i), h_i at this beta. A flip changes the
                # slope by (new - old) times the field that beta multiplies.
                prod[c] = 2.0 * (still[c] + beta * local[c])
                decay[c] = -abs(prod[c])
            exp_chunk(decay, lanes, scratch)
            fill_uniform_lanes(states, uniform)
            for c in range(lanes):
                top = 1.0 if prod[c] >= 0.0 else decay[c]
                new = 1.0 if uniform[c] * (1.0 + decay[c]) < top else -1.0
                slope[c] += (new - s[i, c]) * local[c]
                s[i, c] = new
    for c in range(lanes):
        log_w[c] += shared[c]


@inner(fastmath={"contract", "reassoc"})
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


@kernel
def collapsed_chain(layers, betas, state, slopes, x):
    """As `layer_chain`, moved by single-site Gibbs on the kept layer, the other one summed out.

    A sweep costs A * B instead of a few rows, and mixes where block Gibbs is stuck: a change of
    one kept unit need not fit the present state of the other layer.
    """
    weights, _, kept, kept_base, summed, summed_base = layers
    a, b = weights.shape
    x[:] = 0.0
    # `field` is what beta multiplies in the summed-out layer; t below is the field itself at beta.
    field = np.empty(b)  # field: summed + xW - summed_base
    for j in range(b):
        field[j] = summed[j] - summed_base[j]
    t, trial, decay, scratch = np.empty(b), np.empty(b), np.empty(b), np.empty(b)
    uniform = np.empty(a)
    log_w = 0.0
    fill_uniform(state, uniform, a)
    for i in range(a):
        if uniform[i] * (1.0 + np.exp(-max(kept_base[i], -700.0))) < 1.0:
            x[i] = 1.0
            for j in range(b):
                field[j] += weights[i, j]
    for k in range(1, betas.size):
        old, beta = betas[k - 1], betas[k]
        linear = 0.0
        for i in range(a):
            linear += (kept[i] - kept_base[i]) * x[i]
        for j in range(b):
            trial[j] = summed_base[j] + old * field[j]
            t[j] = summed_base[j] + beta * field[j]
        # `before` and `now` are the summed-out layer's log partition functions at the old and the
        # new beta, for the same x.
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
            # Metropolis-free: the flip is taken with its heat-bath probability sigmoid(gain), gain
            # the change of log p_beta with the other layer summed out in both states.
            sign = 1.0 - 2.0 * x[i]
            row = weights[i]
            for j in range(b):
                trial[j] = t[j] + beta * sign * row[j]
            other = _log_partition_of_layer(trial, decay, scratch)
            bias = kept_base[i] + beta * (kept[i] - kept_base[i])
            gain = sign * bias + other - now
            if gain >= 0.0 or gain > -700.0:
                # exp(-gain) is capped at e^700: such a flip has a probability below 1e-300 either
                # way.
                flip = uniform[i] * (1.0 + np.exp(-min(gain, 700.0))) < 1.0
                if flip:
                    x[i] += sign
                    now = other
                    for j in range(b):
                        field[j] += sign * row[j]
                        t[j] = trial[j]
    return log_w
