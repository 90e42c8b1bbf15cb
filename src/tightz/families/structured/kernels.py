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

from tightz.families.structured.junction import Forest, links_of, marginals
from tightz.families.structured.terms import Terms
from tightz.runtime.clock import leave_if_over
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


BLOCK, LEAST_BLOCK = 4_000_000, 8
"""Table entries that are swept, and sweeps at least, between two looks at the clock."""


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


def ascend(
    f: Forest,
    terms: Terms,
    events: NDArray[np.int64],
    event_ptr: NDArray[np.int64],
    tables: NDArray[np.float64],
    tol: float,
    max_sweeps: int,
    trace: NDArray[np.float64],
) -> int:
    """Sweep over all trees until a sweep gains at most `tol` nats; returns the sweeps done.

    events: per tree t the nodes events[event_ptr[t]:...] in depth-first order, k on the way down
    and ~k on the way up; tables (tab,) in place; trace (max_sweeps,) the objective after each
    sweep. An underflowing product of more than about 1e300 is lost to zero: the step then ignores
    a term whose effect is below rounding.
    """
    pieces, states, slots = terms.fixed.size, int(f.msg_ptr[-1]), int(terms.slot_ptr[-1])
    widest = int(np.diff(f.tab_ptr).max(initial=1))
    most = int(np.diff(terms.node_slot_ptr).max(initial=1))
    q = Sweep(
        tables, np.empty(states), np.empty(states), np.empty(slots), np.empty(slots),
        np.zeros(pieces), np.empty(widest), np.empty(widest), np.empty((most, widest)),
    )  # fmt: skip
    shared = (
        np.zeros(pieces),
        np.zeros(pieces),
        np.empty(terms.theta.size),
        np.empty(terms.theta.size, dtype=np.int64),
    )
    given = (
        (links_of(f), (f.tree_ptr, f.child_ptr, f.child), (events, event_ptr)),
        (terms.tree_piece_ptr, terms.piece_node, terms.piece_mask, terms.piece_top,
         terms.node_piece_ptr, terms.node_piece, terms.fixed),
        (terms.theta, terms.term_piece_ptr, terms.term_piece, terms.piece_term_ptr,
         terms.piece_term),
        (terms.node_slot_ptr, terms.node_slot, terms.slot_node, terms.slot_piece,
         terms.slot_odd, terms.slot_parent, terms.slot_ptr, terms.slot_child_ptr,
         terms.slot_child),
        tuple(q), shared, (float(terms.constant), float(tol)),
    )  # fmt: skip
    block, done = max(LEAST_BLOCK, BLOCK // max(1, tables.size)), 0
    while done < max_sweeps:
        leave_if_over()
        part = trace[done : min(done + block, max_sweeps)]
        made = int(_ascend(*given, part))
        gained = trace[done + made - 1] - trace[max(0, done + made - 2)]
        done += made
        if made < part.size or (done > 1 and gained <= tol):
            break
    return done


@inner
def _enter(links, slots, q, k):  # type: ignore[no-untyped-def]
    """P(S_k) and R_u(S_k) of every slot at k, from the parent and the siblings' messages."""
    parent, _, _, _, msg_ptr, tab_ptr, proj_ptr, proj = links
    node_slot_ptr, node_slot, slot_node, _, slot_odd, slot_parent, slot_ptr, child_ptr, child = (
        slots
    )
    tables, above, _, signed, sent, _, work, _, _ = q
    marginals(links, k, k + 1, tables, above)
    p = parent[k]
    if p < 0:
        return
    size = tab_ptr[p + 1] - tab_ptr[p]
    onto = proj[proj_ptr[k] : proj_ptr[k + 1]]
    table = tables[tab_ptr[p] : tab_ptr[p + 1]]
    for i in range(node_slot_ptr[k], node_slot_ptr[k + 1]):
        s = node_slot[i]
        ps = slot_parent[s]
        if ps < 0:
            continue
        # At the top slot's node nothing of the piece lies above: R is the probability itself.
        if slot_parent[ps] < 0:
            rest = above[msg_ptr[p] : msg_ptr[p + 1]]
        else:
            rest = signed[slot_ptr[ps] : slot_ptr[ps + 1]]
        flip = -1.0 if slot_odd[ps] else 1.0
        for j in range(size >> 1):
            work[2 * j] = rest[j] * table[2 * j]
            work[2 * j + 1] = flip * rest[j] * table[2 * j + 1]
        # The piece's other branches below the parent, each as its signed message.
        for at in range(child_ptr[ps], child_ptr[ps + 1]):
            c = child[at]
            if c != s:
                node = slot_node[c]
                message = sent[slot_ptr[c] : slot_ptr[c + 1]]
                to = proj[proj_ptr[node] : proj_ptr[node + 1]]
                for x in range(size):
                    work[x] *= message[to[x]]
        out = signed[slot_ptr[s] : slot_ptr[s + 1]]
        for j in range(out.size):
            out[j] = 0.0
        for x in range(size):
            out[onto[x]] += work[x]


@inner
def _slot_products(links, slots, q, k):  # type: ignore[no-untyped-def]
    """below[i, x]: for slot i of node k, product of its sign and its children's messages."""
    _, _, _, _, _, tab_ptr, proj_ptr, proj = links
    node_slot_ptr, node_slot, slot_node, _, slot_odd, _, slot_ptr, child_ptr, child = slots
    sent, below = q[4], q[8]
    size = tab_ptr[k + 1] - tab_ptr[k]
    for i in range(node_slot_ptr[k + 1] - node_slot_ptr[k]):
        s = node_slot[node_slot_ptr[k] + i]
        flip = -1.0 if slot_odd[s] else 1.0
        for j in range(size >> 1):
            below[i, 2 * j] = 1.0
            below[i, 2 * j + 1] = flip
        for at in range(child_ptr[s], child_ptr[s + 1]):
            c = child[at]
            node = slot_node[c]
            message = sent[slot_ptr[c] : slot_ptr[c + 1]]
            to = proj[proj_ptr[node] : proj_ptr[node + 1]]
            for x in range(size):
                below[i, x] *= message[to[x]]


@inner
def _send(links, slots, q, k):  # type: ignore[no-untyped-def]
    """sent[s, j] = E[signed product at and below k | S_k = j] for every slot of node k."""
    _, _, _, _, msg_ptr, tab_ptr, _, _ = links
    node_slot_ptr, node_slot, _, _, _, _, slot_ptr, _, _ = slots
    tables, sent, below = q[0], q[4], q[8]
    base = tab_ptr[k]
    for i in range(node_slot_ptr[k + 1] - node_slot_ptr[k]):
        at = slot_ptr[node_slot[node_slot_ptr[k] + i]]
        for j in range(msg_ptr[k + 1] - msg_ptr[k]):
            x = 2 * j
            up, down = tables[base + x], tables[base + x + 1]
            sent[at + j] = up * below[i, x] + down * below[i, x + 1]


@inner
def _add_children(links, child_ptr, child, q, k):  # type: ignore[no-untyped-def]
    """work += the best of everything below k, as each child found it."""
    _, _, _, _, msg_ptr, tab_ptr, proj_ptr, proj = links
    values, work = q[2], q[6]
    size = tab_ptr[k + 1] - tab_ptr[k]
    for i in range(child_ptr[k], child_ptr[k + 1]):
        c = child[i]
        message = values[msg_ptr[c] : msg_ptr[c + 1]]
        to = proj[proj_ptr[c] : proj_ptr[c + 1]]
        for x in range(size):
            work[x] += message[to[x]]


@inner
def _add_slots(links, slots, q, k):  # type: ignore[no-untyped-def]
    """The long pieces of node k, to `work` and `pull`.

    One whose top is here is wholly below and counts like a short one. Any other also hangs on what
    is above: given S_k that part is R / P, a mean of signs, so in [-1, 1] but for rounding. It
    moves the odds (`pull`) but not M: the piece is counted at its top.
    """
    _, _, _, _, msg_ptr, tab_ptr, _, _ = links
    node_slot_ptr, node_slot, _, slot_piece, _, slot_parent, slot_ptr, _, _ = slots
    _, above, _, signed, _, coef, work, pull, below = q
    low, size = msg_ptr[k], tab_ptr[k + 1] - tab_ptr[k]
    for i in range(node_slot_ptr[k + 1] - node_slot_ptr[k]):
        s = node_slot[node_slot_ptr[k] + i]
        c = coef[slot_piece[s]]
        if slot_parent[s] < 0:
            for x in range(size):
                work[x] += c * below[i, x]
            continue
        at = slot_ptr[s]
        for j in range(size >> 1):
            if above[low + j] > 0.0:
                ratio = c * min(1.0, max(-1.0, signed[at + j] / above[low + j]))
                pull[2 * j] += ratio * below[i, 2 * j]
                pull[2 * j + 1] += ratio * below[i, 2 * j + 1]


@inner
def _exit(links, children, pieces, slots, q, k):  # type: ignore[no-untyped-def]
    """Maximise F in the table of node k, then send its messages. values[k] is M over S_k."""
    _, _, _, _, msg_ptr, tab_ptr, _, _ = links
    _, child_ptr, child = children
    _, _, mask, _, piece_ptr, piece, _ = pieces
    tables, _, values, _, _, coef, work, pull, _ = q
    base, low = tab_ptr[k], msg_ptr[k]
    size = tab_ptr[k + 1] - base
    for x in range(size):
        work[x] = 0.0
        pull[x] = 0.0
    # work = the part of G that M carries upwards. First the short pieces of the bucket: their
    # coefficients by mask, transformed, are their energy at every state.
    for i in range(piece_ptr[k], piece_ptr[k + 1]):
        work[mask[piece[i]]] += coef[piece[i]]
    walsh(work, size)
    _add_children(links, child_ptr, child, q, k)
    _slot_products(links, slots, q, k)
    _add_slots(links, slots, q, k)
    # The maximiser per state of S_k: log odds G(+) - G(-); M is its value, entropy included.
    for j in range(size >> 1):
        up, down = work[2 * j], work[2 * j + 1]
        odds = (up - down) + (pull[2 * j] - pull[2 * j + 1])
        t = np.exp(-abs(odds))
        large, small = 1.0 / (1.0 + t), t / (1.0 + t)
        h = np.log1p(t) + (abs(odds) * small if small > 0.0 else 0.0)
        p, r = (large, small) if odds >= 0.0 else (small, large)
        tables[base + 2 * j] = p
        tables[base + 2 * j + 1] = r
        values[low + j] = p * up + r * down + h
    _send(links, slots, q, k)


@inner
def _expect(links, tree_ptr, pieces, piece_term_ptr, slot_ptr, q, t, means):  # type: ignore[no-untyped-def]
    """Separator marginals of tree t, then E[piece] for its pieces that other trees see."""
    _, _, _, _, msg_ptr, tab_ptr, _, _ = links
    tree_piece_ptr, piece_node, piece_mask, piece_top, _, _, _ = pieces
    tables, above, _, _, sent, _, _, _, _ = q
    marginals(links, tree_ptr[t], tree_ptr[t + 1], tables, above)
    for u in range(tree_piece_ptr[t], tree_piece_ptr[t + 1]):
        if piece_term_ptr[u] == piece_term_ptr[u + 1]:
            continue
        k = piece_node[u]
        total = 0.0
        if piece_top[u] >= 0:
            at = slot_ptr[piece_top[u]]
            for j in range(msg_ptr[k + 1] - msg_ptr[k]):
                total += above[msg_ptr[k] + j] * sent[at + j]
        else:
            for x in range(tab_ptr[k + 1] - tab_ptr[k]):
                odd = x & piece_mask[u]
                odd ^= odd >> 16
                odd ^= odd >> 8
                odd ^= odd >> 4
                odd ^= odd >> 2
                odd ^= odd >> 1
                weight = above[msg_ptr[k] + (x >> 1)] * tables[tab_ptr[k] + x]
                total += -weight if odd & 1 else weight
        means[u] = min(1.0, max(-1.0, total))


@inner
def _products(shares, means, product, zeros):  # type: ignore[no-untyped-def]
    """Of each term of several pieces: product of the expectations that are not ~0, and count."""
    theta, term_piece_ptr, term_piece, _, _ = shares
    for a in range(theta.size):
        product[a] = 1.0
        zeros[a] = 0
        for i in range(term_piece_ptr[a], term_piece_ptr[a + 1]):
            mean = means[term_piece[i]]
            if abs(mean) < TINY:
                zeros[a] += 1
            else:
                product[a] *= mean


@inner
def _coefficients(shares, fixed, low, high, shared, coef):  # type: ignore[no-untyped-def]
    """coef[u] = fixed + sum over its terms of theta * E[the other pieces], low <= u < high."""
    theta, _, _, piece_term_ptr, piece_term = shares
    means, _, product, zeros = shared
    for u in range(low, high):
        total = fixed[u]
        small = abs(means[u]) < TINY
        for i in range(piece_term_ptr[u], piece_term_ptr[u + 1]):
            a = piece_term[i]
            if zeros[a] == (1 if small else 0):
                total += theta[a] * (product[a] if small else product[a] / means[u])
        coef[u] = total


@inner
def _replace(shares, low, high, shared):  # type: ignore[no-untyped-def]
    """Carry new expectations of the pieces low <= u < high into the products of their terms."""
    _, _, _, piece_term_ptr, piece_term = shares
    means, old, product, zeros = shared
    for u in range(low, high):
        was, now = abs(old[u]) < TINY, abs(means[u]) < TINY
        for i in range(piece_term_ptr[u], piece_term_ptr[u + 1]):
            a = piece_term[i]
            if was:
                zeros[a] -= 1
            else:
                product[a] /= old[u]
            if now:
                zeros[a] += 1
            else:
                product[a] *= means[u]


@kernel
def _ascend(forest, pieces, shares, slots, q, shared, numbers, trace):  # type: ignore[no-untyped-def]
    """`ascend`; pieces and slots within trees, shares: the terms of several pieces.

    shared: expectations of the pieces, as they were before, products and zeros of the terms.
    """
    links, children, (events, event_ptr) = forest
    tree_ptr, msg_ptr = children[0], links[4]
    tree_piece_ptr, fixed = pieces[0], pieces[6]
    theta, piece_term_ptr = shares[0], shares[3]
    node_slot_ptr, slot_ptr = slots[0], slots[6]
    values, coef = q[2], q[5]
    means, old, product, zeros = shared
    constant, tol = numbers
    # The start: messages of every slot, children first, and the expectations that trees share.
    for t in range(tree_ptr.size - 1):
        for k in range(tree_ptr[t], tree_ptr[t + 1]):
            _slot_products(links, slots, q, k)
            _send(links, slots, q, k)
        _expect(links, tree_ptr, pieces, piece_term_ptr, slot_ptr, q, t, means)
    exact = theta.size == 0 and slots[2].size == 0
    last = -np.inf
    for sweep in range(trace.size):
        _products(shares, means, product, zeros)  # from scratch: no rounding is carried on
        total = constant
        for t in range(tree_ptr.size - 1):
            # With the other trees fixed this one sees linear terms only. Down the tree P and R are
            # brought up to date (needed by long pieces alone), on the way up each table is
            # maximised: what is above a node has not changed since its P and R were formed, and
            # what is below is final.
            first, end = tree_piece_ptr[t], tree_piece_ptr[t + 1]
            _coefficients(shares, fixed, first, end, shared, coef)
            low, high = tree_ptr[t], tree_ptr[t + 1]
            long = node_slot_ptr[high] > node_slot_ptr[low]
            for i in range(event_ptr[t], event_ptr[t + 1]):
                if events[i] < 0:
                    _exit(links, children, pieces, slots, q, ~events[i])
                elif long:
                    _enter(links, slots, q, events[i])
            for u in range(first, end):
                old[u] = means[u]
            _expect(links, tree_ptr, pieces, piece_term_ptr, slot_ptr, q, t, means)
            _replace(shares, first, end, shared)
            # M at the root holds this tree's entropy and energy; its shared terms are taken out
            # and counted once below.
            total += values[msg_ptr[high - 1]]
            for u in range(first, end):
                total -= (coef[u] - fixed[u]) * means[u]
        for a in range(theta.size):
            if zeros[a] == 0:
                total += theta[a] * product[a]
        trace[sweep] = total
        if exact or total - last <= tol:
            return sweep + 1
        last = total
    return trace.size
