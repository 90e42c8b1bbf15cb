"""Messages of parity factors: log odds combined by the tanh rule, without saturation."""

from __future__ import annotations

import numpy as np

from tightz.propagation.arrays import BetheArrays, BetheState
from tightz.runtime.kernels import inner


@inner
def update_parity(model: BetheArrays, state: BetheState, p: int, keep: float, cap: float) -> float:
    """The tanh rule: tanh(odds/2) to a bit is (+-) the product over the other bits (Gallager)."""
    lo, hi = model.parity_ptr[p], model.parity_ptr[p + 1]
    # Products over all but one: suffix products first, then prefixes on the way, so a parity of k
    # bits costs 2k combinations and no division (which would fail at odds 0).
    after = np.empty(hi - lo + 1)
    after[hi - lo] = np.inf
    for k in range(hi - 1, lo - 1, -1):
        after[k - lo] = box_plus(after[k - lo + 1], cavity_odds(model, state, k))
    before = np.inf
    largest = 0.0
    for k in range(lo, hi):
        start = model.var_ptr[model.parity_vars[k]]
        own = cavity_odds(model, state, k)
        fresh = box_plus(before, after[k - lo + 1])
        if model.parity_bits[p] == 1:
            fresh = -fresh
        before = box_plus(before, own)
        old = state.odds[k]
        # All other bits are decided: this one is forced, and its other state is dead for good.
        if np.isinf(fresh):
            dead = start + 1 if fresh > 0.0 else start
            if state.alive[dead]:
                state.alive[dead] = False
                state.beliefs[dead] = -np.inf
                add_odds(state, start, old, -1.0)
                state.odds[k] = 0.0
                largest = 1.0
            if not (state.alive[start] or state.alive[start + 1]):
                return -1.0
        elif state.alive[start] and state.alive[start + 1]:
            change = (1.0 - keep) * (min(max(fresh, -cap), cap) - old)
            state.odds[k] = old + change
            add_odds(state, start, old, -1.0)
            add_odds(state, start, old + change, 1.0)
            largest = max(largest, abs(change) / max(1.0, abs(old)))
    return largest


@inner
def cavity_odds(model: BetheArrays, state: BetheState, k: int) -> float:
    """log p(0)/p(1) sent to parity slot k; infinite when one state is dead."""
    start = model.var_ptr[model.parity_vars[k]]
    if not state.alive[start + 1]:
        return np.inf
    if not state.alive[start]:
        return -np.inf
    return state.beliefs[start] - state.beliefs[start + 1] - state.odds[k]


@inner
def cavity_norm(model: BetheArrays, state: BetheState, v: int, odds: float) -> float:
    start = model.var_ptr[v]
    zero = state.beliefs[start] + softplus(-odds)
    one = state.beliefs[start + 1] + softplus(odds)
    top = max(zero, one)
    return top + np.log(np.exp(zero - top) + np.exp(one - top))


@inner
def add_odds(state: BetheState, start: int, odds: float, sign: float) -> None:
    state.beliefs[start] -= sign * softplus(-odds)
    state.beliefs[start + 1] -= sign * softplus(odds)


@inner
def softplus(x: float) -> float:
    return max(x, 0.0) + np.log1p(np.exp(-abs(x)))


@inner
def box_plus(a: float, b: float) -> float:
    """2 atanh(tanh(a/2) tanh(b/2)) without saturation; +inf is the neutral element."""
    if np.isinf(a):
        return b if a > 0.0 else -b
    if np.isinf(b):
        return a if b > 0.0 else -a
    # The tanh rule in the log domain: sign product, smaller magnitude, and two corrections that
    # are never large. tanh itself would saturate at odds of about 37.
    small = min(abs(a), abs(b))
    value = small if (a < 0.0) == (b < 0.0) else -small
    return value + np.log1p(np.exp(-abs(a + b))) - np.log1p(np.exp(-abs(a - b)))
