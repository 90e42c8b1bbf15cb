"""Local repair: change one variable of a violated factor at a time until no factor is zero.

A random walk in the manner of WalkSAT (Selman, Kautz and Cohen, 1994), for tables over variables
of any number of states.
"""

from __future__ import annotations

import numpy as np

from tightz.runtime.kernels import inner, kernel
from tightz.search.randomness import draw


@inner
def _is_zero(t, strides, state, f):  # type: ignore[no-untyped-def]
    at = t.table_ptr[f]
    for k in range(t.scope_ptr[f], t.scope_ptr[f + 1]):
        at += strides[k] * state[t.scope_vars[k]]
    return t.forbidden[at]


@inner
def _moved_zeros(t, strides, state, v, x):  # type: ignore[no-untyped-def]
    """How many factors of v are zero once v is in state x."""
    old = state[v]
    state[v] = x
    count = 0
    for k in range(t.touch_ptr[v], t.touch_ptr[v + 1]):
        if _is_zero(t, strides, state, t.touch[k]):
            count += 1
    state[v] = old
    return count


@kernel
def repair(t, alive, state, flips, noise, seed):  # type: ignore[no-untyped-def]
    """Walk from `state` (changed in place) until no table reads zero; True when that is reached.

    `t` are the arrays of `tightz.search.feasible._Tables`; states not `alive` are never entered.
    """
    clock = np.full(2, seed, dtype=np.uint64)
    count = t.scope_ptr.size - 1
    # Place of an entry in a factor's table: sum of stride times state, last variable fastest.
    strides = np.ones(t.scope_vars.size, dtype=np.int64)
    for f in range(count):
        for k in range(t.scope_ptr[f + 1] - 2, t.scope_ptr[f] - 1, -1):
            u = t.scope_vars[k + 1]
            strides[k] = strides[k + 1] * (t.ptr[u + 1] - t.ptr[u])
    place = np.full(count, -1, dtype=np.int64)  # where a violated factor stands in the list
    violated = np.empty(count, dtype=np.int64)
    number = 0
    for f in range(count):
        if _is_zero(t, strides, state, f):
            place[f] = number
            violated[number] = f
            number += 1
    for _ in range(flips):
        if number == 0:
            return True
        f = violated[int(draw(clock) * number)]
        arity = t.scope_ptr[f + 1] - t.scope_ptr[f]
        if arity == 0:
            return False
        best_v, best_x, best, ties = -1, -1, 1 << 60, 0
        # A random variable of a violated factor moves with probability `noise`, else the move that
        # violates fewest factors; ties are broken evenly by reservoir sampling, one coin each.
        if draw(clock) < noise:
            v = t.scope_vars[t.scope_ptr[f] + int(draw(clock) * arity)]
            for x in range(t.ptr[v + 1] - t.ptr[v]):
                if x != state[v] and alive[t.ptr[v] + x]:
                    ties += 1
                    if draw(clock) * ties < 1.0:
                        best_v, best_x = v, x
        else:
            for k in range(t.scope_ptr[f], t.scope_ptr[f + 1]):
                v = t.scope_vars[k]
                now = _moved_zeros(t, strides, state, v, state[v])
                for x in range(t.ptr[v + 1] - t.ptr[v]):
                    if x == state[v] or not alive[t.ptr[v] + x]:
                        continue
                    change = _moved_zeros(t, strides, state, v, x) - now
                    if change < best:
                        best_v, best_x, best, ties = v, x, change, 1
                    elif change == best:
                        ties += 1
                        if draw(clock) * ties < 1.0:
                            best_v, best_x = v, x
        if best_v < 0:
            continue
        state[best_v] = best_x
        for k in range(t.touch_ptr[best_v], t.touch_ptr[best_v + 1]):
            g = t.touch[k]
            # Only factors of the moved variable can have changed. The list of violated ones is
            # kept dense by moving its last into the gap.
            zero = _is_zero(t, strides, state, g)
            if zero and place[g] < 0:
                place[g] = number
                violated[number] = g
                number += 1
            elif not zero and place[g] >= 0:
                number -= 1
                moved = violated[number]
                violated[place[g]] = moved
                place[moved] = place[g]
                place[g] = -1
    return number == 0
