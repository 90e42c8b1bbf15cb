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

ENTER, FOLLOW, NEXT_PART, BRANCH_DONE, BRANCH_EMPTY, DONE = range(6)
RUNNING, FINISHED, NEED_PARTS, NEED_TRACE, NEED_LEARNED = 0, 1, 2, 3, 4
PRODUCT = 2  # column of the running product beside the two branches


@inner
def _times(levels, d, mantissa, exponent, error):  # type: ignore[no-untyped-def]
    """Multiply the running product of level d."""
    m, shift = math.frexp(levels.mantissa[d, PRODUCT] * mantissa)
    levels.mantissa[d, PRODUCT] = m
    levels.exponent[d, PRODUCT] += exponent + shift
    levels.error[d, PRODUCT] += error + (1.0 if mantissa != 0.5 else 0.0)  # 2^k is exact


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


@inner
def _value(levels, d, column):  # type: ignore[no-untyped-def]
    return levels.mantissa[d, column], levels.exponent[d, column], levels.error[d, column]


@inner
def _begin_branch(work, d):  # type: ignore[no-untyped-def]
    """Note where the stacks stand and start the product of a branch at level d."""
    levels, r = work.levels, work.registers
    levels.trail[d] = r[a.TRAIL]
    levels.free[d] = r[a.FREE]
    levels.kids[d] = r[a.KIDS]
    levels.serial[d] = serial(work.registers, work.cache)
    levels.found[d] = 0
    levels.mantissa[d, PRODUCT] = 0.5
    levels.exponent[d, PRODUCT] = 1
    levels.error[d, PRODUCT] = 0.0


@inner
def _drop_branch(work, d):  # type: ignore[no-untyped-def]
    """Take back all that the branch at level d did, and every level above it."""
    levels, r, parts, owner = work.levels, work.registers, work.parts, work.trail.owner
    for above in range(r[a.LEVEL], d, -1):
        part = levels.part[above]
        for i in range(parts.var_ptr[part], parts.var_ptr[part + 1]):
            owner[parts.variables[i]] = above - 1
    r[a.LEVEL] = d
    undo(r, work.trail, levels.trail[d])
    r[a.FREE] = levels.free[d]
    r[a.KIDS] = levels.kids[d]
    r[a.PARTS] = levels.part[d] + 1


@inner
def _choose(formula, trail, parts, part):  # type: ignore[no-untyped-def]
    """The decision literal of a component: guidance, activity and number of open clauses."""
    often, activity = parts.often, trail.activity
    scale = 1.0 / trail.bump[0]
    best, score = -1, -1.0
    for i in range(parts.var_ptr[part], parts.var_ptr[part + 1]):
        v = parts.variables[i]
        now = formula.priority[v] + often[2 * v] + often[2 * v + 1] + activity[v] * scale
        if now > score:
            best, score = v, now
    return 2 * best + (1 if often[2 * best + 1] >= often[2 * best] else 0)


@inner
def _enter(work):  # type: ignore[no-untyped-def]
    """A new level for the component on top of the stack."""
    levels, r, parts = work.levels, work.registers, work.parts
    part = r[a.PARTS] - 1
    r[a.LEVEL] += 1
    d = r[a.LEVEL]
    levels.part[d] = part
    levels.uses[d] = r[a.USES]
    for i in range(parts.var_ptr[part], parts.var_ptr[part + 1]):
        work.trail.owner[parts.variables[i]] = d
    literal = np.int64(_choose(work.formula, work.trail, parts, part))
    levels.literal[d] = literal
    levels.branch[d] = 0
    levels.mantissa[d, :2] = 0.0
    levels.record[d, :] = -1
    _begin_branch(work, d)
    assign(work.registers, work.trail, literal, np.int64(-1))
    r[a.DECISIONS] += 1


@inner
def _second_branch(work, d, reason):  # type: ignore[no-untyped-def]
    levels = work.levels
    levels.branch[d] = 1
    _begin_branch(work, d)
    assign(work.registers, work.trail, np.int64(levels.literal[d]) ^ 1, reason)


@inner
def _resolve(work, conflict):  # type: ignore[no-untyped-def]
    """Backtrack from a conflict; the next mode."""
    levels, trail, r = work.levels, work.trail, work.registers
    r[a.CONFLICTS] += 1
    if r[a.LEVEL] == 0:
        return DONE
    if r[a.LEARNING] == 0:
        return BRANCH_EMPTY
    outcome, d, size, first = analyse(r, trail, work.clauses, levels.branch, conflict)
    if outcome == NOTHING_LEFT:
        _drop_branch(work, np.int64(0))
        return DONE
    _drop_branch(work, d)
    withdraw(r, work.cache, levels.serial[d])
    if outcome != FLIP:
        learn(r, trail, work.clauses, trail.first_cut, first)
        return BRANCH_EMPTY
    reason = learn(r, trail, work.clauses, trail.clause, size) if size > 1 else np.int64(FACT)
    cut = learn(r, trail, work.clauses, trail.first_cut, first) if first else np.int64(-1)
    _second_branch(work, d, reason)
    r[a.USES] += 1
    if cut >= 0:
        literal = trail.first_cut[0]
        unit = trail.value[literal >> 1] < 0 and trail.owner[literal >> 1] == d
        for i in range(1, first):
            unit = unit and trail.value[trail.first_cut[i] >> 1] == 1 - (trail.first_cut[i] & 1)
        if unit:
            assign(work.registers, work.trail, np.int64(literal), cut)
    return FOLLOW


@inner
def _expand(work):  # type: ignore[no-untyped-def]
    """After propagation: weights of what was set, free variables, components; the next mode."""
    formula, levels, r, trace, trail = (
        work.formula, work.levels, work.registers, work.trace, work.trail,
    )  # fmt: skip
    d = r[a.LEVEL]
    for i in range(levels.trail[d], r[a.TRAIL]):
        x = trail.literals[i]
        _times(levels, d, formula.mantissa[x], formula.exponent[x], formula.error[x])
    found = split(r, formula, trail.value, work.parts, work.clauses, trace.free, levels.part[d])
    for i in range(levels.free[d], r[a.FREE]):
        v = trace.free[i]
        _times(
            levels, d, formula.either_mantissa[v], formula.either_exponent[v],
            formula.either_error[v],
        )  # fmt: skip
    # Known components are multiplied in, the others close ranks on the stack.
    parts, cache = work.parts, work.cache
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
            _times(levels, d, cache.mantissa[g, i], cache.exponent[g, i], cache.error[g, i])
            trace.kids[r[a.KIDS]] = cache.node[g, i]
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
def _record(work, d):  # type: ignore[no-untyped-def]
    """Write the finished branch of level d into the trace; its number."""
    levels, r, trace, trail = work.levels, work.registers, work.trace, work.trail
    if r[a.TRACING] == 0:
        return -1
    k, at = r[a.RECORDS], r[a.TRACE]
    for i in range(levels.trail[d], r[a.TRAIL]):
        trace.items[at] = trail.literals[i]
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
def _leave(work):  # type: ignore[no-untyped-def]
    """Both branches of the top level are done: its value goes to the cache and one level down."""
    levels, r, trace = work.levels, work.registers, work.trace
    d = r[a.LEVEL]
    value = add_values(_value(levels, d, 0), _value(levels, d, 1))
    pure = r[a.USES] == levels.uses[d]
    part = levels.part[d]
    node = -1
    if value[0] > 0.0 and r[a.TRACING]:
        node = r[a.NODES]
        r[a.NODES] += 1
        for b in range(2):
            k = levels.record[d, b]
            trace.records[node, b] = k
            if k >= 0:
                gap = levels.exponent[d, b] - value[1]
                trace.share[k] = math.ldexp(levels.mantissa[d, b] / value[0], max(gap, -1100))
    if value[0] > 0.0 or pure:
        store(r, work.parts, work.cache, part, value, node, pure)
    # The component leaves the stack, its variables are the parent's again.
    parts = work.parts
    for i in range(parts.var_ptr[part], parts.var_ptr[part + 1]):
        work.trail.owner[parts.variables[i]] = d - 1
    r[a.LEVEL] = d - 1
    r[a.PARTS] = part
    if value[0] == 0.0:
        return BRANCH_EMPTY
    _times(levels, d - 1, value[0], value[1], value[2])
    trace.kids[r[a.KIDS]] = node
    r[a.KIDS] += 1
    return NEXT_PART


@inner
def _end_branch(work, empty):  # type: ignore[no-untyped-def]
    """Close the branch of the top level; the next mode."""
    levels, r = work.levels, work.registers
    d = r[a.LEVEL]
    b = levels.branch[d]
    if empty:
        if r[a.LEARNING]:
            withdraw(r, work.cache, levels.serial[d])
        levels.mantissa[d, b], levels.exponent[d, b], levels.error[d, b] = 0.0, 0, 0.0
    else:
        levels.record[d, b] = _record(work, d)
        m, x, e = _value(levels, d, PRODUCT)
        levels.mantissa[d, b], levels.exponent[d, b], levels.error[d, b] = m, x, e
    if d == 0:
        return DONE
    _drop_branch(work, d)
    if b == 0:
        _second_branch(work, d, np.int64(-1))
        return FOLLOW
    return _leave(work)


@inner
def _missing(work):  # type: ignore[no-untyped-def]
    """Which stack has no room for another step, if any."""
    parts, trace, r = work.parts, work.trace, work.registers
    n = work.trail.value.size
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
    r, clauses = work.registers, work.clauses
    for _ in range(steps):
        if r[a.MODE] == DONE:
            return FINISHED
        need = _missing(work)
        if need != RUNNING:
            return need
        if r[a.CLAUSES] + 2 > clauses.start.size or (
            r[a.POOL] + 2 * work.trail.value.size > clauses.pool.size
        ):
            return NEED_LEARNED
        if r[a.MODE] == ENTER:
            _enter(work)
            r[a.MODE] = FOLLOW
        elif r[a.MODE] == FOLLOW:
            conflict = propagate(r, work.formula, work.trail, clauses)
            r[a.MODE] = _expand(work) if conflict == NO_CONFLICT else _resolve(work, conflict)
        elif r[a.MODE] == NEXT_PART:
            if r[a.PARTS] > work.levels.part[r[a.LEVEL]] + 1:
                r[a.MODE] = ENTER
            else:
                r[a.MODE] = BRANCH_DONE
        else:
            r[a.MODE] = _end_branch(work, r[a.MODE] == BRANCH_EMPTY)
    return FINISHED if r[a.MODE] == DONE else RUNNING
