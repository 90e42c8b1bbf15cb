"""Kernels of collapse: eliminate in order, then draw or average the eliminated spins backward.

Tables are indexed by bit masks over a spin's neighbours (ascending, bit 0 first). In a message the
mask is a subset (Walsh coefficient), in a field a state (bit set: spin -1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.collapse_plan import Plan
from tightz.runtime.kernels import inner, kernel


@kernel
def walsh_hadamard(table):  # type: ignore[no-untyped-def]
    """table[x] <- sum_m (-1)^popcount(m & x) table[m], in place; table (2^d,)."""
    half = 1
    while half < table.size:
        for block in range(0, table.size, 2 * half):
            for i in range(block, block + half):
                a, b = table[i], table[i + half]
                table[i] = a + b
                table[i + half] = a - b
        half *= 2


@inner
def _image(bits, count, out):  # type: ignore[no-untyped-def]
    """out[mask] = union of bits[b] over the bits b of mask, for masks below 2^count."""
    out[0] = 0
    for b in range(count):
        for mask in range(1 << b):
            out[mask + (1 << b)] = out[mask] | bits[b]


class Tables(NamedTuple):
    """What the elimination leaves behind; see `Collapsed` for the layout of fields and messages.

    scale (E,): the largest |log 2cosh f|; sums (E, 2): the absolute values of what was added up for
    the field and for the message; constants (E,): the message's constant part.
    """

    fields: NDArray[np.float64]
    messages: NDArray[np.float64]
    scale: NDArray[np.float64]
    sums: NDArray[np.float64]
    constants: NDArray[np.float64]


def eliminate(poly: SpinPolynomial, plan: Plan, hard: bool, tables: Tables) -> None:
    """Fill fields (values) and messages (Walsh coefficients) of all eliminations.

    message = Walsh(log 2cosh f) + what the consumed messages hold without the spin; its constant
    part goes to constants[e]. `hard`: |f| in place of log 2cosh f.
    """
    widest = int(np.diff(plan.scope_ptr).max(initial=0))
    highest = max(plan.order.max(initial=0), plan.scope.max(initial=0))
    bits, bit_of = np.empty(64, dtype=np.int64), np.zeros(highest + 1, dtype=np.int64)
    _eliminate(
        (poly.ptr, poly.spins, poly.theta, plan.term_ptr, plan.term_of),
        (plan.order, plan.scope_ptr, plan.scope, plan.table_ptr),
        (plan.table_in_ptr, plan.table_in),
        hard,
        tuple(tables),
        (np.empty(1 << widest), np.empty(2 << widest, dtype=np.int64), bits, bit_of),
    )


@inner
def _gather_terms(terms, e, own, bit_of, field):  # type: ignore[no-untyped-def]
    """Add the terms that elimination e consumes to its field; returns their absolute sum.

    A term s_i prod_b s_b adds theta to the coefficient of {b}: its mask less the spin's own bit.
    """
    ptr, spins, theta, term_ptr, term_of = terms
    total = 0.0
    for p in range(term_ptr[e], term_ptr[e + 1]):
        a = term_of[p]
        mask = 0
        for t in range(ptr[a], ptr[a + 1]):
            mask |= bit_of[spins[t]]
        field[mask ^ own] += theta[a]
        total += abs(theta[a])
    return total


@inner
def _gather_tables(  # type: ignore[no-untyped-def]
    cliques, incoming, e, messages, field, message, sums, bit_of, bits, image
):
    """Add the messages that elimination e consumes to its field (with the spin) or its message.

    Masks over a message's own neighbours become masks over those of e (`_image`).
    """
    order, scope_ptr, scope, table_ptr = cliques
    in_ptr, table_in = incoming
    own = bit_of[order[e]]
    for p in range(in_ptr[e], in_ptr[e + 1]):
        c = table_in[p]
        width = scope_ptr[c + 1] - scope_ptr[c]
        for b in range(width):
            bits[b] = bit_of[scope[scope_ptr[c] + b]]
        _image(bits, width, image)
        for mask in range(1, 1 << width):  # entry 0 went into the constant
            to = image[mask]
            part = messages[table_ptr[c] + mask]
            if to & own:
                field[to ^ own] += part
                sums[e, 0] += abs(part)
            else:
                message[to] += part
                sums[e, 1] += abs(part)


@kernel
def _eliminate(terms, cliques, incoming, hard, tables, work):  # type: ignore[no-untyped-def]
    order, scope_ptr, scope, table_ptr = cliques
    fields, messages, scale, sums, constants = tables
    values, image, bits, bit_of = work
    for e in range(order.size):
        degree = scope_ptr[e + 1] - scope_ptr[e]
        size = 1 << degree
        field = fields[table_ptr[e] : table_ptr[e + 1]]
        message = messages[table_ptr[e] : table_ptr[e + 1]]
        # Everything that holds the spin lies over it (the highest bit) and its neighbours, so bits
        # of other spins, left from earlier eliminations, are never looked up.
        bit_of[order[e]] = size
        for b in range(degree):
            bit_of[scope[scope_ptr[e] + b]] = 1 << b
        # The polynomial in s_i is c + s_i f: coefficients of f to the field, of c to the message.
        sums[e, 0] += _gather_terms(terms, e, size, bit_of, field)
        _gather_tables(cliques, incoming, e, messages, field, message, sums, bit_of, bits, image)
        # f at every state of the neighbours; then log sum_s exp(s f) = log 2cosh f there.
        walsh_hadamard(field)
        table = values[:size]
        for x in range(size):
            f = abs(field[x])
            t = f if hard else f + np.log1p(np.exp(-2.0 * f))
            scale[e] = max(scale[e], t)
            table[x] = t / size
        # Back to coefficients: the transform is its own inverse up to the factor 2^degree above.
        walsh_hadamard(table)
        for x in range(size):
            message[x] += table[x]
            sums[e, 1] += abs(table[x])
        constants[e] = message[0]
        message[0] = 0.0


@kernel
def lift_state(order, scope_ptr, scope, table_ptr, fields, uniform, drawn, spins):  # type: ignore[no-untyped-def]
    """Fill the eliminated columns of spins (S, n): s = +1 iff uniform < 1 / (1 + exp(-2 f)).

    Not `drawn`: s = sign(f). uniform (S, E).
    """
    for row in range(spins.shape[0]):
        for e in range(order.size - 1, -1, -1):
            x = 0
            for p in range(scope_ptr[e], scope_ptr[e + 1]):
                if spins[row, scope[p]] < 0:
                    x |= 1 << (p - scope_ptr[e])
            f = fields[table_ptr[e] + x]
            up = uniform[row, e] < 1.0 / (1.0 + np.exp(-2.0 * f)) if drawn else f >= 0.0
            spins[row, order[e]] = 1 if up else -1


@kernel
def lift_joint(cliques, fields, next_use, joints, means, bits, image):  # type: ignore[no-untyped-def]
    """means[i] = E[tanh f_i] for all eliminated i, last to first.

    joints holds, per e, 2^(degree+1) entries at 2 table_ptr[e]. In: for eliminations whose
    neighbours are all kept (next_use = E), E[chi_a] for every subset a of them in the lower half.
    Out: the joint distribution of the neighbours and of the spin itself (highest bit). Room: bits
    (64,), image (2 << the largest degree,).
    """
    order, scope_ptr, scope, table_ptr = cliques
    for e in range(order.size - 1, -1, -1):
        degree = scope_ptr[e + 1] - scope_ptr[e]
        size = 1 << degree
        low = joints[2 * table_ptr[e] : 2 * table_ptr[e] + size]
        high = joints[2 * table_ptr[e] + size : 2 * table_ptr[e + 1]]
        c = next_use[e]
        if c == order.size:
            walsh_hadamard(low)
            for x in range(size):
                low[x] = max(low[x] / size, 0.0)
        else:
            width = scope_ptr[c + 1] - scope_ptr[c]
            for b in range(width + 1):
                spin = order[c] if b == width else scope[scope_ptr[c] + b]
                bits[b] = 0
                for p in range(scope_ptr[e], scope_ptr[e + 1]):
                    if scope[p] == spin:
                        bits[b] = 1 << (p - scope_ptr[e])
            _image(bits, width + 1, image)
            for x in range(2 << width):
                low[image[x]] += joints[2 * table_ptr[c] + x]
        mean = 0.0
        for x in range(size):
            f = fields[table_ptr[e] + x]
            mean += low[x] * np.tanh(f)
            high[x] = low[x] / (1.0 + np.exp(2.0 * f))
            low[x] /= 1.0 + np.exp(-2.0 * f)
        means[order[e]] = min(max(mean, -1.0), 1.0)
