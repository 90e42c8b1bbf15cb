"""Kernels of tree-reweighted message passing: sweeps, the valid bound, and beliefs.

Notation: theta_s, theta_st are log potentials, rho_e edge appearance probabilities, M log messages.
Node beliefs  log b_s = theta_s + sum_t rho_st M_ts; edge beliefs
log b_st = theta_st / rho_st + (log b_s - M_ts) + (log b_t - M_st)   (Wainwright et al. 2005).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.models.pairwise import PairwiseArrays
from tightz.runtime.kernels import inner, kernel

EPSILON = 2.0**-52
"""Spacing of float64 numbers at one."""


@inner
def add_compensated(total: float, carry: float, term: float) -> tuple[float, float]:
    """One step of compensated summation (Neumaier 1974); the sum is total + carry."""
    new = total + term
    # What the addition lost, recovered exactly from the larger of the two.
    if abs(total) >= abs(term):
        return new, carry + ((total - new) + term)
    return new, carry + ((term - new) + total)


_CAP = 1e15
"""Largest log message: zero potentials on a cycle can drive messages off without end."""


@kernel
def sweep(
    model: PairwiseArrays,
    rho: NDArray,
    messages: NDArray,
    order: NDArray,
    rank: NDArray,
    keep: float,
    widest: int,
) -> float:
    """Visit variables in `order`; each sends M_ts = log sum_t exp(theta_st/rho + log b_t - M_st).

    Only to variables visited later (`rank` is the inverse of `order`): the others will have heard
    newer news before they speak. `keep` is the damping: the share of the old message that stays.
    Returns the largest change of a message entry.
    """
    belief = np.empty(widest)
    cavity = np.empty(widest)
    fresh = np.empty(widest)
    largest = 0.0
    for t in order:
        states = model.var_ptr[t + 1] - model.var_ptr[t]
        # One belief serves all messages that t sends, since none of them is heard by t itself.
        _node_belief(model, rho, messages, t, belief)
        for k in range(model.incident_ptr[t], model.incident_ptr[t + 1]):
            e = model.incident[k]
            t_is_first = model.first[e] == t
            s = model.second[e] if t_is_first else model.first[e]
            if rank[s] < rank[t]:
                continue
            others = model.var_ptr[s + 1] - model.var_ptr[s]
            into_t = model.message_ptr[2 * e + (0 if t_is_first else 1)]
            into_s = model.message_ptr[2 * e + (1 if t_is_first else 0)]
            # The cavity leaves one whole message out although the belief counts it rho times: that
            # is the reweighted update, M_ts = log sum_t exp(theta_st / rho_st + log b_t - M_st).
            for x in range(states):
                cavity[x] = belief[x] - messages[into_t + x]
            step_t, step_s = (others, 1) if t_is_first else (1, states)
            start = model.edge_ptr[e]
            inverse = 1.0 / rho[e]
            top = -np.inf
            for y in range(others):
                fresh[y] = _log_sum_row(
                    model.tables, start + y * step_s, step_t, inverse, cavity, states
                )
                top = max(top, fresh[y])
            for y in range(others):
                # Only differences between entries matter to the bound: messages are kept with
                # largest entry 0.
                change = (1.0 - keep) * (max(fresh[y] - top, -_CAP) - messages[into_s + y])
                messages[into_s + y] += change
                largest = max(largest, abs(change))
    return largest


@kernel
def valid_bound(model: PairwiseArrays, rho: NDArray, messages: NDArray, widest: int) -> float:
    """An upper bound on log Z at any messages, if rho is attained by random spanning forests.

    The beliefs reparameterise the model exactly, so log Z <= E_T log Z_T (Jensen) with
    p_T(x) = prod_s b_s prod_{st in T} b_st / (b_s b_t). Scale b_s to sum to one and b_st so that
    sum_{x_t} b_st <= b_s and sum_{x_s} b_st <= b_t pointwise; then eliminating T from its leaves
    gives Z_T <= 1, and what the scaling cost is the bound. At a fixed point nothing is lost.
    The result is rounded up by a bound on the evaluation error.
    """
    n = model.var_ptr.size - 1
    beliefs = np.empty(model.unary.size)
    log_norm = np.empty(n)
    total, carry, slack = 0.0, 0.0, 0.0
    along = np.int64(1)  # a literal step would have `_log_sum_row` compiled twice
    # Part one: log sums of the node beliefs, what normalising every b_s to 1 costs.
    for s in range(n):
        start = model.var_ptr[s]
        states = model.var_ptr[s + 1] - start
        own = beliefs[start : start + states]
        size, load = _node_belief(model, rho, messages, s, own)
        log_norm[s] = _log_sum(own)
        degree = model.incident_ptr[s + 1] - model.incident_ptr[s]
        slack += (degree + 4.0) * (size + 1.0) * (1.0 + load)
        total, carry = add_compensated(total, carry, log_norm[s])
    # Part two: for each edge the smallest scaling after which both sums of b_st lie below the
    # normalised b_s and b_t. `fresh - message` is log(sum_t b_st / b_s): at a fixed point it is
    # the same for all states and nothing is lost.
    fresh_first = np.empty(widest)
    cavity_first = np.empty(widest)
    cavity_second = np.empty(widest)
    for e in range(model.first.size):
        i, j = model.first[e], model.second[e]
        rows = model.var_ptr[i + 1] - model.var_ptr[i]
        cols = model.var_ptr[j + 1] - model.var_ptr[j]
        into_i, into_j = model.message_ptr[2 * e], model.message_ptr[2 * e + 1]
        size = 0.0
        for x in range(rows):
            cavity_first[x] = beliefs[model.var_ptr[i] + x] - messages[into_i + x]
            size = max(size, abs(cavity_first[x]) + abs(messages[into_i + x]))
        for y in range(cols):
            cavity_second[y] = beliefs[model.var_ptr[j] + y] - messages[into_j + y]
            size = max(size, abs(cavity_second[y]) + abs(messages[into_j + y]))
        start = model.edge_ptr[e]
        inverse = 1.0 / rho[e]
        excess_first, excess_second = -np.inf, -np.inf
        for x in range(rows):
            fresh_first[x] = _log_sum_row(
                model.tables, start + x * cols, along, inverse, cavity_second, cols
            )
            excess_first = max(excess_first, fresh_first[x] - messages[into_i + x])
            size = max(size, abs(fresh_first[x]))
        for y in range(cols):
            fresh = _log_sum_row(model.tables, start + y, cols, inverse, cavity_first, rows)
            excess_second = max(excess_second, fresh - messages[into_j + y])
            size = max(size, abs(fresh))
        # max(excess_first + log_norm[i], excess_second + log_norm[j]) - log_norm[i] - log_norm[j]
        cost = max(excess_first - log_norm[j], excess_second - log_norm[i])
        total, carry = add_compensated(total, carry, rho[e] * cost)
        magnitude = 0.0
        for k in range(start, model.edge_ptr[e + 1]):
            if model.tables[k] > -np.inf:
                magnitude = max(magnitude, abs(model.tables[k]))
        # Forward error of the sums above, in units of the last place: every quantity that was
        # added contributes its magnitude. The bound is raised by it, so rounding cannot make it
        # false.
        slack += 8.0 * magnitude
        slack += 8.0 * rho[e] * (2.0 * size + abs(log_norm[i]) + abs(log_norm[j]) + rows + cols)
    return total + carry + EPSILON * slack


@kernel
def edge_beliefs(
    model: PairwiseArrays,
    rho: NDArray,
    messages: NDArray,
    widest: int,
    beliefs: NDArray,
    information: NDArray,
) -> None:
    """Normalised edge beliefs (laid out as `tables`) and their mutual informations (E,)."""
    nodes = np.empty(model.unary.size)
    for s in range(model.var_ptr.size - 1):
        _node_belief(model, rho, messages, s, nodes[model.var_ptr[s] : model.var_ptr[s + 1]])
    first, second = np.empty(widest), np.empty(widest)
    for e in range(model.first.size):
        i, j = model.first[e], model.second[e]
        rows = model.var_ptr[i + 1] - model.var_ptr[i]
        cols = model.var_ptr[j + 1] - model.var_ptr[j]
        start = model.edge_ptr[e]
        top = -np.inf
        for x in range(rows):
            for y in range(cols):
                value = (
                    model.tables[start + x * cols + y] / rho[e]
                    + (nodes[model.var_ptr[i] + x] - messages[model.message_ptr[2 * e] + x])
                    + (nodes[model.var_ptr[j] + y] - messages[model.message_ptr[2 * e + 1] + y])
                )
                beliefs[start + x * cols + y] = value
                top = max(top, value)
        mass = 0.0
        for k in range(start, start + rows * cols):
            beliefs[k] = np.exp(beliefs[k] - top)
            mass += beliefs[k]
        for x in range(widest):
            first[x], second[x] = 0.0, 0.0
        for x in range(rows):
            for y in range(cols):
                p = beliefs[start + x * cols + y] / mass
                beliefs[start + x * cols + y] = p
                first[x] += p
                second[y] += p
        # The mutual information of an edge is minus the derivative of the bound by rho_e: the
        # conditional gradient step puts weight on the tree where it is largest.
        shared = 0.0
        for x in range(rows):
            for y in range(cols):
                p = beliefs[start + x * cols + y]
                if p > 0.0:
                    shared += p * (np.log(p) - np.log(first[x]) - np.log(second[y]))
        information[e] = max(0.0, shared)


@kernel
def node_beliefs(model: PairwiseArrays, rho: NDArray, messages: NDArray, beliefs: NDArray) -> None:
    """Normalised node beliefs, laid out as `unary`."""
    for s in range(model.var_ptr.size - 1):
        out = beliefs[model.var_ptr[s] : model.var_ptr[s + 1]]
        _node_belief(model, rho, messages, s, out)
        norm = _log_sum(out)
        for x in range(out.size):
            out[x] = np.exp(out[x] - norm)


@kernel
def rescale(model: PairwiseArrays, old: NDArray, new: NDArray, messages: NDArray) -> None:
    """Keep rho * M, what an edge tells a variable, when rho changes."""
    for e in range(model.first.size):
        # The node beliefs hear rho * M; keeping that product keeps them when rho moves, so the
        # iteration goes on from where it was.
        ratio = old[e] / new[e]
        for k in range(model.message_ptr[2 * e], model.message_ptr[2 * e + 2]):
            messages[k] *= ratio


@inner
def _node_belief(
    model: PairwiseArrays, rho: NDArray, messages: NDArray, s: int, out: NDArray
) -> tuple[float, float]:
    """log b_s into `out`; also the largest sum of absolute terms, and sum of rho at s."""
    start = model.var_ptr[s]
    states = model.var_ptr[s + 1] - start
    size = 0.0
    for x in range(states):
        out[x] = model.unary[start + x]
        size = max(size, abs(out[x]))
    load = 0.0
    for k in range(model.incident_ptr[s], model.incident_ptr[s + 1]):
        e = model.incident[k]
        into = model.message_ptr[2 * e + (0 if model.first[e] == s else 1)]
        load += rho[e]
        widest = 0.0
        for x in range(states):
            out[x] += rho[e] * messages[into + x]
            widest = max(widest, abs(messages[into + x]))
        size += rho[e] * widest
    return size, load


@inner
def _log_sum(values: NDArray) -> float:
    top = values[0]
    for x in range(1, values.size):
        top = max(top, values[x])
    mass = 0.0
    for x in range(values.size):
        mass += np.exp(values[x] - top)
    return top + np.log(mass)


@inner
def _log_sum_row(
    tables: NDArray, start: int, step: int, scale: float, shift: NDArray, count: int
) -> float:
    """log sum_x exp(scale * tables[start + x * step] + shift[x]); at least one term is finite."""
    if count == 2:
        a = scale * tables[start] + shift[0]
        b = scale * tables[start + step] + shift[1]
        if a < b:
            a, b = b, a
        return a + np.log1p(np.exp(b - a))
    top = -np.inf
    for x in range(count):
        top = max(top, scale * tables[start + x * step] + shift[x])
    mass = 0.0
    for x in range(count):
        mass += np.exp(scale * tables[start + x * step] + shift[x] - top)
    return top + np.log(mass)
