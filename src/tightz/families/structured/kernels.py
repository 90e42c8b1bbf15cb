"""Coordinate ascent over the conditional tables of a structured q.

F(q) = sum_a theta_a E_q[chi_a] + sum_k E_q[H(q(y_k | y_S_k))] is, in one table q(y_k | y_S_k) with
all else fixed, q(y_S_k) times (linear + entropy), so its maximiser is in closed form:

    log q(+|S) - log q(-|S) = G(+, S) - G(-, S),
    G(y_k, S) = E[log weight + entropies below | y_k, S]   (Saul and Jordan, 1996, by tables).

Visiting nodes from leaves to root, G of the short pieces is the bucket's energy plus the messages
M of the children, which is exact variable elimination: with short pieces only, one pass is the
exact optimum of the tree. A long piece u adds c_u * (signed product below) * R_u / P, with P the
probability of the separator and R_u its probability signed by the rest of u. Every step maximises
F exactly in one table, hence the ascent is monotone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import inner, kernel

TINY = 1e-100
"""Expectations below this count as zero in products over pieces (they are divided out later)."""


class Sweep(NamedTuple):
    """q and what a sweep knows of it; the last three are scratch for one node.

    tables           q(y_k | S_k), laid out by tab_ptr; above: q(S_k), by msg_ptr
    values           M over S_k: the best of everything below k, by msg_ptr
    signed, sent     of every slot: R_u(S_k) from above, and the signed product at and below k
    coef             (pieces,) theta times the expectations of a term's other pieces
    """

    tables: NDArray[np.float64]
    above: NDArray[np.float64]
    values: NDArray[np.float64]
    signed: NDArray[np.float64]
    sent: NDArray[np.float64]
    coef: NDArray[np.float64]
    work: NDArray[np.float64]
    pull: NDArray[np.float64]
    below: NDArray[np.float64]


@inner
def walsh(table, size):  # type: ignore[no-untyped-def]
    """In place: table[x] <- sum_mask table[mask] * (-1)^popcount(mask & x)."""
    step = 1
    while step < size:
        for start in range(0, size, 2 * step):
            for x in range(start, start + step):
                low, high = table[x], table[x + step]
                table[x] = low + high
                table[x + step] = low - high
        step *= 2


@inner
def _enter(f, terms, q, k):  # type: ignore[no-untyped-def]
    """P(S_k) and R_u(S_k) of every slot at k, from the parent and the siblings' messages."""
    p = f.parent[k]
    low, high = f.msg_ptr[k], f.msg_ptr[k + 1]
    if p < 0:
        q.above[low] = 1.0
        return
    size = f.tab_ptr[p + 1] - f.tab_ptr[p]
    proj = f.proj[f.proj_ptr[k] : f.proj_ptr[k + 1]]
    table = q.tables[f.tab_ptr[p] : f.tab_ptr[p + 1]]
    over = q.above[f.msg_ptr[p] : f.msg_ptr[p + 1]]
    q.above[low:high] = 0.0
    for x in range(size):
        q.above[low + proj[x]] += over[x >> 1] * table[x]
    for s in terms.node_slot[terms.node_slot_ptr[k] : terms.node_slot_ptr[k + 1]]:
        ps = terms.slot_parent[s]
        if ps < 0:
            continue
        # At the top slot's node nothing of the piece lies above: R is the probability itself.
        if terms.slot_parent[ps] < 0:
            rest = over
        else:
            rest = q.signed[terms.slot_ptr[ps] : terms.slot_ptr[ps + 1]]
        flip = -1.0 if terms.slot_odd[ps] else 1.0
        for j in range(size >> 1):
            q.work[2 * j] = rest[j] * table[2 * j]
            q.work[2 * j + 1] = flip * rest[j] * table[2 * j + 1]
        # The piece's other branches below the parent, each as its signed message.
        for c in terms.slot_child[terms.slot_child_ptr[ps] : terms.slot_child_ptr[ps + 1]]:
            if c != s:
                node = terms.slot_node[c]
                message = q.sent[terms.slot_ptr[c] : terms.slot_ptr[c + 1]]
                to = f.proj[f.proj_ptr[node] : f.proj_ptr[node + 1]]
                for x in range(size):
                    q.work[x] *= message[to[x]]
        out = q.signed[terms.slot_ptr[s] : terms.slot_ptr[s + 1]]
        out[:] = 0.0
        for x in range(size):
            out[proj[x]] += q.work[x]


@inner
def _slot_products(f, terms, q, k):  # type: ignore[no-untyped-def]
    """below[i, x]: for slot i of node k, product of its sign and its children's messages."""
    size = f.tab_ptr[k + 1] - f.tab_ptr[k]
    first = terms.node_slot_ptr[k]
    for i in range(terms.node_slot_ptr[k + 1] - first):
        s = terms.node_slot[first + i]
        flip = -1.0 if terms.slot_odd[s] else 1.0
        for j in range(size >> 1):
            q.below[i, 2 * j] = 1.0
            q.below[i, 2 * j + 1] = flip
        for c in terms.slot_child[terms.slot_child_ptr[s] : terms.slot_child_ptr[s + 1]]:
            node = terms.slot_node[c]
            message = q.sent[terms.slot_ptr[c] : terms.slot_ptr[c + 1]]
            to = f.proj[f.proj_ptr[node] : f.proj_ptr[node + 1]]
            for x in range(size):
                q.below[i, x] *= message[to[x]]


@inner
def _send(f, terms, q, k):  # type: ignore[no-untyped-def]
    """sent[s, j] = E[signed product at and below k | S_k = j] for every slot of node k."""
    base = f.tab_ptr[k]
    first = terms.node_slot_ptr[k]
    for i in range(terms.node_slot_ptr[k + 1] - first):
        at = terms.slot_ptr[terms.node_slot[first + i]]
        for j in range(f.msg_ptr[k + 1] - f.msg_ptr[k]):
            x = 2 * j
            up, down = q.tables[base + x], q.tables[base + x + 1]
            q.sent[at + j] = up * q.below[i, x] + down * q.below[i, x + 1]


@inner
def _exit(f, terms, q, k):  # type: ignore[no-untyped-def]
    """Maximise F in the table of node k, then send its messages. values[k] is M over S_k."""
    base, low = f.tab_ptr[k], f.msg_ptr[k]
    size = f.tab_ptr[k + 1] - base
    for x in range(size):
        q.work[x] = 0.0
        q.pull[x] = 0.0
    # work = the part of G that M carries upwards. First the short pieces of the bucket: their
    # coefficients by mask, transformed, are their energy at every state.
    for u in terms.node_piece[terms.node_piece_ptr[k] : terms.node_piece_ptr[k + 1]]:
        q.work[terms.piece_mask[u]] += q.coef[u]
    walsh(q.work, size)
    # Then the best of everything below, as each child found it.
    for c in f.child[f.child_ptr[k] : f.child_ptr[k + 1]]:
        message = q.values[f.msg_ptr[c] : f.msg_ptr[c + 1]]
        to = f.proj[f.proj_ptr[c] : f.proj_ptr[c + 1]]
        for x in range(size):
            q.work[x] += message[to[x]]
    # Long pieces. One whose top is here is wholly below and counts like a short one. Any other
    # also hangs on what is above: given S_k that part is R / P, a mean of signs, so in [-1, 1] but
    # for rounding. It moves the odds (`pull`) but not M: the piece is counted at its top.
    _slot_products(f, terms, q, k)
    first = terms.node_slot_ptr[k]
    for i in range(terms.node_slot_ptr[k + 1] - first):
        s = terms.node_slot[first + i]
        c = q.coef[terms.slot_piece[s]]
        if terms.slot_parent[s] < 0:
            for x in range(size):
                q.work[x] += c * q.below[i, x]
            continue
        at = terms.slot_ptr[s]
        for j in range(size >> 1):
            if q.above[low + j] > 0.0:
                ratio = c * min(1.0, max(-1.0, q.signed[at + j] / q.above[low + j]))
                q.pull[2 * j] += ratio * q.below[i, 2 * j]
                q.pull[2 * j + 1] += ratio * q.below[i, 2 * j + 1]
    # The maximiser per state of S_k: log odds G(+) - G(-); M is its value, entropy included.
    for j in range(size >> 1):
        up, down = q.work[2 * j], q.work[2 * j + 1]
        odds = (up - down) + (q.pull[2 * j] - q.pull[2 * j + 1])
        t = np.exp(-abs(odds))
        large, small = 1.0 / (1.0 + t), t / (1.0 + t)
        h = np.log1p(t) + (abs(odds) * small if small > 0.0 else 0.0)
        p, r = (large, small) if odds >= 0.0 else (small, large)
        q.tables[base + 2 * j] = p
        q.tables[base + 2 * j + 1] = r
        q.values[low + j] = p * up + r * down + h
    _send(f, terms, q, k)


@inner
def _expect(f, terms, q, t, means):  # type: ignore[no-untyped-def]
    """Separator marginals of tree t, then E[piece] for its pieces that other trees see."""
    for k in range(f.tree_ptr[t + 1] - 1, f.tree_ptr[t] - 1, -1):
        p = f.parent[k]
        low = f.msg_ptr[k]
        if p < 0:
            q.above[low] = 1.0
            continue
        q.above[low : f.msg_ptr[k + 1]] = 0.0
        for x in range(f.tab_ptr[p + 1] - f.tab_ptr[p]):
            to = f.proj[f.proj_ptr[k] + x]
            q.above[low + to] += q.above[f.msg_ptr[p] + (x >> 1)] * q.tables[f.tab_ptr[p] + x]
    for u in range(terms.tree_piece_ptr[t], terms.tree_piece_ptr[t + 1]):
        if terms.piece_term_ptr[u] == terms.piece_term_ptr[u + 1]:
            continue
        k = terms.piece_node[u]
        total = 0.0
        if terms.piece_top[u] >= 0:
            at = terms.slot_ptr[terms.piece_top[u]]
            for j in range(f.msg_ptr[k + 1] - f.msg_ptr[k]):
                total += q.above[f.msg_ptr[k] + j] * q.sent[at + j]
        else:
            for x in range(f.tab_ptr[k + 1] - f.tab_ptr[k]):
                odd = x & terms.piece_mask[u]
                odd ^= odd >> 16
                odd ^= odd >> 8
                odd ^= odd >> 4
                odd ^= odd >> 2
                odd ^= odd >> 1
                weight = q.above[f.msg_ptr[k] + (x >> 1)] * q.tables[f.tab_ptr[k] + x]
                total += -weight if odd & 1 else weight
        means[u] = min(1.0, max(-1.0, total))


@inner
def _products(terms, means, product, zeros):  # type: ignore[no-untyped-def]
    """Of each term of several pieces: product of the expectations that are not ~0, and count."""
    for a in range(terms.theta.size):
        product[a] = 1.0
        zeros[a] = 0
        for u in terms.term_piece[terms.term_piece_ptr[a] : terms.term_piece_ptr[a + 1]]:
            if abs(means[u]) < TINY:
                zeros[a] += 1
            else:
                product[a] *= means[u]


@inner
def _coefficients(terms, means, product, zeros, t, coef):  # type: ignore[no-untyped-def]
    """coef[u] = fixed + sum over its terms of theta * E[the other pieces], for tree t."""
    for u in range(terms.tree_piece_ptr[t], terms.tree_piece_ptr[t + 1]):
        total = terms.fixed[u]
        small = abs(means[u]) < TINY
        for a in terms.piece_term[terms.piece_term_ptr[u] : terms.piece_term_ptr[u + 1]]:
            if zeros[a] == (1 if small else 0):
                total += terms.theta[a] * (product[a] if small else product[a] / means[u])
        coef[u] = total


@inner
def _replace(terms, old, means, product, zeros, t):  # type: ignore[no-untyped-def]
    """Carry new expectations of tree t's pieces into the products of their terms."""
    for u in range(terms.tree_piece_ptr[t], terms.tree_piece_ptr[t + 1]):
        was, now = abs(old[u]) < TINY, abs(means[u]) < TINY
        for a in terms.piece_term[terms.piece_term_ptr[u] : terms.piece_term_ptr[u + 1]]:
            if was:
                zeros[a] -= 1
            else:
                product[a] /= old[u]
            if now:
                zeros[a] += 1
            else:
                product[a] *= means[u]


@kernel
def ascend(f, terms, events, event_ptr, tables, tol, max_sweeps, trace):  # type: ignore[no-untyped-def]
    """Sweep over all trees until a sweep gains at most `tol` nats; returns the sweeps done.

    f Forest, terms Terms, events: per tree t the nodes events[event_ptr[t]:...] in depth-first
    order, k on the way down and ~k on the way up; tables (tab,) in place; trace (max_sweeps,) the
    objective after each sweep. An underflowing product of more than about 1e300 is lost to zero:
    the step then ignores a term whose effect is below rounding.
    """
    n, trees = f.parent.size, f.tree_ptr.size - 1
    widest, most = 1, 1
    for k in range(n):
        widest = max(widest, f.tab_ptr[k + 1] - f.tab_ptr[k])
        most = max(most, terms.node_slot_ptr[k + 1] - terms.node_slot_ptr[k])
    coef = np.zeros(terms.fixed.size)
    q = Sweep(
        tables, np.empty(f.msg_ptr[n]), np.empty(f.msg_ptr[n]), np.empty(terms.slot_ptr[-1]),
        np.empty(terms.slot_ptr[-1]), coef, np.empty(widest), np.empty(widest),
        np.empty((most, widest)),
    )  # fmt: skip
    means, old = np.zeros(terms.fixed.size), np.zeros(terms.fixed.size)
    product, zeros = np.empty(terms.theta.size), np.empty(terms.theta.size, dtype=np.int64)
    # The start: messages of every slot, children first, and the expectations that trees share.
    for t in range(trees):
        for k in range(f.tree_ptr[t], f.tree_ptr[t + 1]):
            _slot_products(f, terms, q, k)
            _send(f, terms, q, k)
        _expect(f, terms, q, t, means)
    exact = terms.theta.size == 0 and terms.slot_node.size == 0
    last = -np.inf
    for sweep in range(max_sweeps):
        _products(terms, means, product, zeros)  # from scratch: no rounding is carried on
        total = terms.constant
        for t in range(trees):
            # With the other trees fixed this one sees linear terms only. Down the tree P and R are
            # brought up to date (needed by long pieces alone), on the way up each table is
            # maximised: what is above a node has not changed since its P and R were formed, and
            # what is below is final.
            _coefficients(terms, means, product, zeros, t, coef)
            low, high = f.tree_ptr[t], f.tree_ptr[t + 1]
            long = terms.node_slot_ptr[high] > terms.node_slot_ptr[low]
            for event in events[event_ptr[t] : event_ptr[t + 1]]:
                if event < 0:
                    _exit(f, terms, q, ~event)
                elif long:
                    _enter(f, terms, q, event)
            first, end = terms.tree_piece_ptr[t], terms.tree_piece_ptr[t + 1]
            old[first:end] = means[first:end]
            _expect(f, terms, q, t, means)
            _replace(terms, old, means, product, zeros, t)
            # M at the root holds this tree's entropy and energy; its shared terms are taken out
            # and counted once below.
            total += q.values[f.msg_ptr[high - 1]]
            for u in range(first, end):
                total -= (coef[u] - terms.fixed[u]) * means[u]
        for a in range(terms.theta.size):
            if zeros[a] == 0:
                total += terms.theta[a] * product[a]
        trace[sweep] = total
        if exact or total - last <= tol:
            return sweep + 1
        last = total
    return max_sweeps
