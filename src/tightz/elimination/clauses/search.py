"""The count itself: decide, propagate, split into components, look them up (numba kernels).

A search of the kind of Cachet (Sang and others, 2004) and sharpSAT (Thurley, 2006) without
recursion: every level of the stack counts one component of the level below, its first branch with
the decision literal true and its second with it false. The value of a branch is the product of the
weights of its assigned literals, of the sums of both weights of its free variables, and of its
components; the value of a level is the sum of its branches. Values are mantissa * 2^exponent with
a bound on their relative error in units of 2^-53: a product of two has the sum of their errors and
one more, a sum of two the mean of their errors, by their sizes, and one more.
"""

from __future__ import annotations

import math

import numpy as np

from tightz.elimination.clauses import arrays as a
from tightz.elimination.clauses.cache import look_up, serial, store, withdraw
from tightz.elimination.clauses.components import split
from tightz.elimination.clauses.implications import (
    FACT,
    FLIP,
    NO_CONFLICT,
    NOTHING_LEFT,
    analyse,
    assign,
    learn,
    propagate,
    undo,
)
from tightz.runtime.kernels import inner, kernel

ENTER, FOLLOW, NEXT_PART, BRANCH_DONE, BRANCH_EMPTY, DONE, LEAVE = range(7)
RUNNING, FINISHED, NEED_PARTS, NEED_TRACE, NEED_LEARNED = 0, 1, 2, 3, 4
PRODUCT = 2  # column of the running product beside the two branches


@inner
def _times(values, d, mantissa, exponent, error):  # type: ignore[no-untyped-def]
    """Multiply the running product of level d; values: mantissa, exponent, error of `Levels`."""
    m, shift = math.frexp(values[0][d, PRODUCT] * mantissa)
    values[0][d, PRODUCT] = m
    values[1][d, PRODUCT] += exponent + shift
    values[2][d, PRODUCT] += error + (1.0 if mantissa != 0.5 else 0.0)  # 2^k is exact


@kernel
def add_values(x, y):  # type: ignore[no-untyped-def]
    """The sum of two values (mantissa, exponent, error), both >= 0."""
    if x[0] == 0.0:
        return y
    if y[0] == 0.0:
        return x
    if x[1] < y[1]:
        x, y = y, x
    # A summand 2^-1100 below the other is less than a unit of it: the one more covers it.
    gap = x[1] - y[1]
    small = math.ldexp(y[0], -min(gap, 1100))
    m, shift = math.frexp(x[0] + small)
    error = (x[0] * x[2] + small * y[2]) / (x[0] + small)
    return m, x[1] + shift, error * (1.0 + 1e-12) + 2.0


# Each function takes the groups it uses, not all of `Work`: an array is seven values at every call.


@inner
def _begin_branch(r, levels, stored, d):  # type: ignore[no-untyped-def]
    """Note where the stacks stand and start the product of a branch at level d.

    stored: cache.base and cache.filled.
    """
    levels.trail[d] = r[a.TRAIL]
    levels.free[d] = r[a.FREE]
    levels.kids[d] = r[a.KIDS]
    levels.serial[d] = serial(r, stored)
    levels.found[d] = 0
    levels.mantissa[d, PRODUCT] = 0.5
    levels.exponent[d, PRODUCT] = 1
    levels.error[d, PRODUCT] = 0.0


@inner
def _give_back(parts, owner, part, d):  # type: ignore[no-untyped-def]
    """The variables of a component belong to level d."""
    for i in range(parts.var_ptr[part], parts.var_ptr[part + 1]):
        owner[parts.variables[i]] = d


@inner
def _drop_branch(r, levels, parts, trail, d):  # type: ignore[no-untyped-def]
    """Take back all that the branch at level d did, and every level above it."""
    for above in range(r[a.LEVEL], d, -1):
        _give_back(parts, trail.owner, levels.part[above], above - 1)
    r[a.LEVEL] = d
    undo(r, trail, levels.trail[d])
    r[a.FREE] = levels.free[d]
    r[a.KIDS] = levels.kids[d]
    r[a.PARTS] = levels.part[d] + 1


@inner
def _choose(priority, trail, parts, part):  # type: ignore[no-untyped-def]
    """The decision literal of a component: guidance, activity and number of open clauses."""
    often, activity = parts.often, trail.activity
    scale = 1.0 / trail.bump[0]
    best, score = -1, -1.0
    for i in range(parts.var_ptr[part], parts.var_ptr[part + 1]):
        v = parts.variables[i]
        now = priority[v] + often[2 * v] + often[2 * v + 1] + activity[v] * scale
        if now > score:
            best, score = v, now
    return 2 * best + (1 if often[2 * best + 1] >= often[2 * best] else 0)


@inner
def _enter(r, priority, trail, parts, levels, stored):  # type: ignore[no-untyped-def]
    """A new level for the component on top of the stack."""
    part = r[a.PARTS] - 1
    r[a.LEVEL] += 1
    d = r[a.LEVEL]
    levels.part[d] = part
    levels.uses[d] = r[a.USES]
    _give_back(parts, trail.owner, part, d)
    literal = np.int64(_choose(priority, trail, parts, part))
    levels.literal[d] = literal
    levels.branch[d] = 0
    for b in range(2):
        levels.mantissa[d, b] = 0.0
        levels.record[d, b] = -1
    _begin_branch(r, levels, stored, d)
    assign(r, trail, literal, np.int64(-1))
    r[a.DECISIONS] += 1


@inner
def _second_branch(r, levels, trail, stored, d, reason):  # type: ignore[no-untyped-def]
    levels.branch[d] = 1
    _begin_branch(r, levels, stored, d)
    assign(r, trail, np.int64(levels.literal[d]) ^ 1, reason)


@inner
def _resolve(r, trail, clauses, parts, levels, cache, conflict):  # type: ignore[no-untyped-def]
    """Backtrack from a conflict; the next mode."""
    r[a.CONFLICTS] += 1
    if r[a.LEVEL] == 0:
        return DONE
    if r[a.LEARNING] == 0:
        return BRANCH_EMPTY
    outcome, d, size, first = analyse(r, trail, clauses, levels.branch, conflict)
    _drop_branch(r, levels, parts, trail, d)  # level 0 if nothing is left
    if outcome == NOTHING_LEFT:
        return DONE
    withdraw(r, cache, levels.serial[d])
    reason = np.int64(FACT)
    if outcome == FLIP and size > 1:
        reason = learn(r, trail, clauses, trail.clause, size)
    cut = learn(r, trail, clauses, trail.first_cut, first)  # -1 if there is none
    if outcome != FLIP:
        return BRANCH_EMPTY
    _second_branch(r, levels, trail, (cache.base, cache.filled), d, reason)
    r[a.USES] += 1
    if cut >= 0:
        literal = trail.first_cut[0]
        unit = trail.value[literal >> 1] < 0 and trail.owner[literal >> 1] == d
        for i in range(1, first):
            unit = unit and trail.value[trail.first_cut[i] >> 1] == 1 - (trail.first_cut[i] & 1)
        if unit:
            assign(r, trail, np.int64(literal), cut)
    return FOLLOW


@inner
def _expand(r, formula, trail, clauses, parts, levels, free):  # type: ignore[no-untyped-def]
    """After propagation: weights of what was set, free variables, components; how many."""
    d, values = r[a.LEVEL], (levels.mantissa, levels.exponent, levels.error)
    for i in range(levels.trail[d], r[a.TRAIL]):
        x = trail.literals[i]
        _times(values, d, formula.mantissa[x], formula.exponent[x], formula.error[x])
    found = split(r, formula, trail.value, parts, clauses, free, levels.part[d])
    for i in range(levels.free[d], r[a.FREE]):
        v = free[i]
        _times(
            values, d, formula.either_mantissa[v], formula.either_exponent[v],
            formula.either_error[v],
        )  # fmt: skip
    return found


@inner
def _recall(r, parts, levels, cache, kids, found):  # type: ignore[no-untyped-def]
    """Known components are multiplied in, the others close ranks on the stack; the next mode."""
    d, values = r[a.LEVEL], (levels.mantissa, levels.exponent, levels.error)
    top = r[a.PARTS]
    kept = top - found
    for part in range(top - found, top):
        g, i = look_up(r, parts, cache, part)
        if i >= 0:
            r[a.HITS] += 1
            if not cache.pure[g, i]:
                r[a.USES] += 1
            if cache.mantissa[g, i] == 0.0:
                return BRANCH_EMPTY
            _times(values, d, cache.mantissa[g, i], cache.exponent[g, i], cache.error[g, i])
            kids[r[a.KIDS]] = cache.node[g, i]
            r[a.KIDS] += 1
            continue
        if kept < part:
            _move_part(parts, part, kept)
        kept += 1
    r[a.PARTS] = kept
    levels.found[d] = found
    return NEXT_PART


@inner
def _move_part(parts, source, target):  # type: ignore[no-untyped-def]
    """Copy a component down the stack to place `target`, whose beginning is already right."""
    at = parts.var_ptr[target]
    for i in range(parts.var_ptr[source], parts.var_ptr[source + 1]):
        parts.variables[at] = parts.variables[i]
        at += 1
    clause_at = parts.clause_ptr[target]
    for i in range(parts.clause_ptr[source], parts.clause_ptr[source + 1]):
        parts.clauses[clause_at] = parts.clauses[i]
        clause_at += 1
    parts.var_ptr[target + 1] = at
    parts.clause_ptr[target + 1] = clause_at


@inner
def _record(r, levels, literals, trace, d):  # type: ignore[no-untyped-def]
    """Write the finished branch of level d into the trace; its number."""
    if r[a.TRACING] == 0:
        return -1
    k, at = r[a.RECORDS], r[a.TRACE]
    for i in range(levels.trail[d], r[a.TRAIL]):
        trace.items[at] = literals[i]
        at += 1
    trace.ends[k, 0] = at
    for i in range(levels.free[d], r[a.FREE]):
        trace.items[at] = trace.free[i]
        at += 1
    trace.ends[k, 1] = at
    for i in range(levels.kids[d], r[a.KIDS]):
        trace.items[at] = trace.kids[i]
        at += 1
    trace.ends[k, 2] = at
    r[a.RECORDS] += 1
    r[a.TRACE] = at
    return k


@inner
def _leave(r, levels, owner, parts, cache, trace):  # type: ignore[no-untyped-def]
    """Both branches of the top level are done: its value goes to the cache and one level down."""
    d = r[a.LEVEL]
    mantissa, exponent, error = values = levels.mantissa, levels.exponent, levels.error
    value = add_values(
        (mantissa[d, 0], exponent[d, 0], error[d, 0]), (mantissa[d, 1], exponent[d, 1], error[d, 1])
    )
    pure = r[a.USES] == levels.uses[d]
    part = levels.part[d]
    node = np.int64(-1)
    if value[0] > 0.0 and r[a.TRACING]:
        node = r[a.NODES]
        r[a.NODES] += 1
        for b in range(2):
            k = levels.record[d, b]
            trace.records[node, b] = k
            if k >= 0:
                gap = exponent[d, b] - value[1]
                trace.share[k] = math.ldexp(mantissa[d, b] / value[0], max(gap, -1100))
    if value[0] > 0.0 or pure:
        store(r, parts, cache, part, value, node, pure)
    # The component leaves the stack, its variables are the parent's again.
    _give_back(parts, owner, part, d - 1)
    r[a.LEVEL] = d - 1
    r[a.PARTS] = part
    if value[0] == 0.0:
        return BRANCH_EMPTY
    _times(values, d - 1, value[0], value[1], value[2])
    trace.kids[r[a.KIDS]] = node
    r[a.KIDS] += 1
    return NEXT_PART


@inner
def _end_branch(r, levels, trail, parts, cache, trace):  # type: ignore[no-untyped-def]
    """Close the branch of the top level; the next mode, LEAVE if it was the second."""
    d = r[a.LEVEL]
    b = np.int64(levels.branch[d])
    if r[a.MODE] == BRANCH_EMPTY:
        if r[a.LEARNING]:
            withdraw(r, cache, levels.serial[d])
        levels.mantissa[d, b], levels.exponent[d, b], levels.error[d, b] = 0.0, 0, 0.0
    else:
        levels.record[d, b] = _record(r, levels, trail.literals, trace, d)
        levels.mantissa[d, b] = levels.mantissa[d, PRODUCT]
        levels.exponent[d, b] = levels.exponent[d, PRODUCT]
        levels.error[d, b] = levels.error[d, PRODUCT]
    if d == 0:
        return DONE
    _drop_branch(r, levels, parts, trail, d)
    if b == 0:
        _second_branch(r, levels, trail, (cache.base, cache.filled), d, np.int64(-1))
        return FOLLOW
    return LEAVE


@inner
def _missing(r, parts, trace, n):  # type: ignore[no-untyped-def]
    """Which stack has no room for another step, if any."""
    top = r[a.PARTS]
    clauses_here = parts.clause_ptr[top] - parts.clause_ptr[top - 1]
    if (
        parts.var_ptr[top] + n > parts.variables.size
        or parts.clause_ptr[top] + clauses_here > parts.clauses.size
    ):
        return NEED_PARTS
    if r[a.TRACING] and (
        r[a.TRACE] + 3 * n > trace.items.size
        or r[a.RECORDS] + 2 > trace.share.size
        or r[a.NODES] + 2 > trace.records.shape[0]
    ):
        return NEED_TRACE
    return RUNNING


@kernel
def advance(work, steps):  # type: ignore[no-untyped-def]
    """Take up to `steps` steps; RUNNING, FINISHED, or what has to grow first."""
    r, formula, trail, clauses, parts, levels, cache, trace = work
    stored, n = (cache.base, cache.filled), trail.value.size
    for _ in range(steps):
        if r[a.MODE] == DONE:
            return FINISHED
        need = _missing(r, parts, trace, n)
        if need != RUNNING:
            return need
        if r[a.CLAUSES] + 2 > clauses.start.size or r[a.POOL] + 2 * n > clauses.pool.size:
            return NEED_LEARNED
        if r[a.MODE] == ENTER:
            _enter(r, formula.priority, trail, parts, levels, stored)
            r[a.MODE] = FOLLOW
        elif r[a.MODE] == FOLLOW:
            conflict = propagate(r, formula, trail, clauses)
            if conflict == NO_CONFLICT:
                found = _expand(r, formula, trail, clauses, parts, levels, trace.free)
                r[a.MODE] = _recall(r, parts, levels, cache, trace.kids, found)
            else:
                r[a.MODE] = _resolve(r, trail, clauses, parts, levels, cache, conflict)
        elif r[a.MODE] == NEXT_PART:
            if r[a.PARTS] > levels.part[r[a.LEVEL]] + 1:
                r[a.MODE] = ENTER
            else:
                r[a.MODE] = BRANCH_DONE
        else:
            r[a.MODE] = _end_branch(r, levels, trail, parts, cache, trace)
            if r[a.MODE] == LEAVE:
                r[a.MODE] = _leave(r, levels, trail.owner, parts, cache, trace)
    return FINISHED if r[a.MODE] == DONE else RUNNING
