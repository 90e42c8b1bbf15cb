"""Kernels of belief propagation on factor graphs with tables of any arity and parity factors.

Messages are log messages from factors to variables; log beliefs are unary potentials plus all
messages. A state whose message falls to -inf is impossible for good (supports only shrink), so
`alive` marks it once and finite numbers are kept everywhere else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.propagation.arrays import BetheArrays, BetheState
from tightz.propagation.parity import (
    add_odds,
    box_plus,
    cavity_norm,
    cavity_odds,
    softplus,
    update_parity,
)
from tightz.runtime.kernels import inner, kernel


@kernel
def propagate(
    model: BetheArrays, state: BetheState, keep: float, cap: float, widest: int, backward: bool
) -> tuple[float, bool]:
    """One sweep over all factors. Returns (largest relative message change, contradiction found).

    `keep` is the damping; `cap` bounds messages, which hard constraints on a cycle could drive to
    infinity; `widest` is the largest sum of state numbers over one scope.
    """
    _rebuild_beliefs(model, state)
    cavity = np.empty(widest)
    top = np.empty(widest)
    mass = np.empty(widest)
    largest = 0.0
    count = model.scope_ptr.size - 1
    # Factors in turn, each seeing the newest beliefs. Alternating directions carry news both ways
    # along a chain.
    for step in range(count):
        f = count - 1 - step if backward else step
        change = _update_table(model, state, f, keep, cap, cavity, top, mass)
        if change < 0.0:
            return largest, True
        largest = max(largest, change)
    for p in range(model.parity_ptr.size - 1):
        change = update_parity(model, state, p, keep, cap)
        if change < 0.0:
            return largest, True
        largest = max(largest, change)
    return largest, False


@kernel
def bethe_log_z(model: BetheArrays, state: BetheState, widest: int) -> float:
    """sum_f log Z_f + sum_v (1 - degree_v) log Z_v, stationary at fixed points."""
    _rebuild_beliefs(model, state)
    n = model.var_ptr.size - 1
    degree = np.zeros(n)
    for v in model.scope_vars:
        degree[v] += 1.0
    for v in model.parity_vars:
        degree[v] += 1.0
    # The Bethe free energy counts every factor's region once and corrects variables that were
    # counted degree times (Yedidia, Freeman and Weiss 2005). Its value is exact on trees and an
    # estimate otherwise: it is never offered as a bound.
    total = 0.0
    for v in range(n):
        total += (1.0 - degree[v]) * _log_norm(model, state, v)
    cavity = np.empty(widest)
    for f in range(model.scope_ptr.size - 1):
        _gather(model, state, f, cavity)
        total += _log_sum_joint(model, f, cavity)
    for p in range(model.parity_ptr.size - 1):
        # A parity factor sums half of the joint states: with odds o_k = log p(0) / p(1), the odds
        # of their xor come from box_plus, and the share of states with the right parity is
        # -softplus.
        joint = np.inf
        for k in range(model.parity_ptr[p], model.parity_ptr[p + 1]):
            v = model.parity_vars[k]
            odds = cavity_odds(model, state, k)
            total += cavity_norm(model, state, v, state.odds[k])
            joint = box_plus(joint, odds)
        total -= softplus(joint if model.parity_bits[p] == 1 else -joint)
    return total


@inner
def _rebuild_beliefs(model: BetheArrays, state: BetheState) -> None:
    for k in range(model.unary.size):
        state.beliefs[k] = model.unary[k] if state.alive[k] else -np.inf
    for k in range(model.scope_vars.size):
        start = model.var_ptr[model.scope_vars[k]]
        for x in range(model.message_ptr[k + 1] - model.message_ptr[k]):
            state.beliefs[start + x] += state.messages[model.message_ptr[k] + x]
    for k in range(model.parity_vars.size):
        start = model.var_ptr[model.parity_vars[k]]
        add_odds(state, start, state.odds[k], 1.0)


@inner
def _update_table(
    model: BetheArrays,
    state: BetheState,
    f: int,
    keep: float,
    cap: float,
    cavity: NDArray,
    top: NDArray,
    mass: NDArray,
) -> float:
    """New messages from factor f to all its variables; -1 when a variable has no state left."""
    # The message to a slot needs the sum over all entries that hold its state, without the slot's
    # own cavity: sum with all cavities once, subtract the slot's own afterwards, so all messages
    # of a factor cost one pass over its table.
    width = _gather(model, state, f, cavity)
    top[:width] = -np.inf
    mass[:width] = 0.0
    if model.scope_ptr[f + 1] - model.scope_ptr[f] == 2:
        _sum_pair(model, f, cavity, width, top, mass)
    else:
        _sum_joint(model, f, cavity, width, top, mass)
    largest = 0.0
    at = 0
    for k in range(model.scope_ptr[f], model.scope_ptr[f + 1]):
        start = model.var_ptr[model.scope_vars[k]]
        states = model.message_ptr[k + 1] - model.message_ptr[k]
        best = -np.inf
        for x in range(states):
            if state.alive[start + x] and top[at + x] > -np.inf:
                mass[at + x] = top[at + x] + np.log(mass[at + x]) - cavity[at + x]
                best = max(best, mass[at + x])
            # No entry supports this state any more. Supports only shrink under exact propagation
            # of zeros, so it is dead in every solution, and a change of 1 keeps the iteration from
            # stopping.
            elif state.alive[start + x]:
                state.alive[start + x] = False
                state.beliefs[start + x] = -np.inf
                state.messages[model.message_ptr[k] + x] = 0.0
                largest = 1.0
        if best == -np.inf:
            return -1.0
        for x in range(states):
            if state.alive[start + x]:
                old = state.messages[model.message_ptr[k] + x]
                # Messages are kept relative to their largest entry and above -cap; the belief
                # follows by the same change, which saves a rebuild but lets rounding build up:
                # each sweep starts from rebuilt beliefs.
                change = (1.0 - keep) * (max(mass[at + x] - best, -cap) - old)
                state.messages[model.message_ptr[k] + x] = old + change
                state.beliefs[start + x] = cavity[at + x] + old + change
                largest = max(largest, abs(change) / max(1.0, abs(old)))
        at += states
    return largest


@inner
def _gather(model: BetheArrays, state: BetheState, f: int, cavity: NDArray) -> int:
    """Messages from the variables of factor f to it, slot after slot; returns their length."""
    at = 0
    for k in range(model.scope_ptr[f], model.scope_ptr[f + 1]):
        start = model.var_ptr[model.scope_vars[k]]
        for x in range(model.message_ptr[k + 1] - model.message_ptr[k]):
            cavity[at] = state.beliefs[start + x] - state.messages[model.message_ptr[k] + x]
            at += 1
    return at


@inner
def _entry(model: BetheArrays, f: int, index: int, cavity: NDArray, at: NDArray) -> float:
    """Log weight of one table entry under the cavities; `at` receives its place in each slot."""
    lo, hi = model.scope_ptr[f], model.scope_ptr[f + 1]
    value = model.tables[model.table_ptr[f] + index]
    end = model.message_ptr[hi] - model.message_ptr[lo]
    for k in range(hi - 1, lo - 1, -1):
        states = model.message_ptr[k + 1] - model.message_ptr[k]
        end -= states
        at[k - lo] = end + index % states
        index //= states
        value += cavity[at[k - lo]]
    return value


@inner
def _sum_joint(
    model: BetheArrays, f: int, cavity: NDArray, width: int, top: NDArray, mass: NDArray
) -> None:
    """For each state of each slot, the sum of entry weights that hold it: exp(top) * mass."""
    at = np.empty(model.scope_ptr[f + 1] - model.scope_ptr[f], dtype=np.int64)
    entries = model.table_ptr[f + 1] - model.table_ptr[f]
    # Two passes: the largest entry for each state first, then sums relative to it. Where one
    # common scale serves (almost always), an entry is exponentiated once instead of once a slot.
    for index in range(entries):
        value = _entry(model, f, index, cavity, at)
        for place in at:
            top[place] = max(top[place], value)
    highest = _share_scale(top, width)
    for index in range(entries):
        value = _entry(model, f, index, cavity, at)
        if value > -np.inf:
            shared = np.exp(value - highest)
            for place in at:
                same = top[place] == highest
                mass[place] += shared if same else np.exp(value - top[place])


@inner
def _sum_pair(
    model: BetheArrays, f: int, cavity: NDArray, width: int, top: NDArray, mass: NDArray
) -> None:
    """`_sum_joint` for a factor of two variables, the common case."""
    k = model.scope_ptr[f]
    rows = model.message_ptr[k + 1] - model.message_ptr[k]
    start = model.table_ptr[f]
    at = start
    for x in range(rows):
        for y in range(rows, width):
            value = model.tables[at] + cavity[x] + cavity[y]
            top[x] = max(top[x], value)
            top[y] = max(top[y], value)
            at += 1
    highest = _share_scale(top, width)
    at = start
    for x in range(rows):
        for y in range(rows, width):
            value = model.tables[at] + cavity[x] + cavity[y]
            at += 1
            if value > -np.inf:
                shared = np.exp(value - highest)
                mass[x] += shared if top[x] == highest else np.exp(value - top[x])
                mass[y] += shared if top[y] == highest else np.exp(value - top[y])


@inner
def _share_scale(top: NDArray, width: int) -> float:
    """One scale for all states that exp can reach from the highest, so that they share it."""
    highest = -np.inf
    for place in range(width):
        highest = max(highest, top[place])
    for place in range(width):
        # exp reaches down to about -745: within 600 of the highest nothing that matters
        # underflows.
        if top[place] > highest - 600.0:
            top[place] = highest
    return highest


@inner
def _log_sum_joint(model: BetheArrays, f: int, cavity: NDArray) -> float:
    at = np.empty(model.scope_ptr[f + 1] - model.scope_ptr[f], dtype=np.int64)
    entries = model.table_ptr[f + 1] - model.table_ptr[f]
    top = -np.inf
    for index in range(entries):
        top = max(top, _entry(model, f, index, cavity, at))
    if top == -np.inf:
        return top
    mass = 0.0
    for index in range(entries):
        mass += np.exp(_entry(model, f, index, cavity, at) - top)
    return top + np.log(mass)


@inner
def _log_norm(model: BetheArrays, state: BetheState, v: int) -> float:
    top = -np.inf
    for k in range(model.var_ptr[v], model.var_ptr[v + 1]):
        top = max(top, state.beliefs[k])
    if top == -np.inf:
        return top
    mass = 0.0
    for k in range(model.var_ptr[v], model.var_ptr[v + 1]):
        mass += np.exp(state.beliefs[k] - top)
    return top + np.log(mass)
