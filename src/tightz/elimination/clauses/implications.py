"""Unit propagation with watched literals, and what a conflict teaches (numba kernels).

Learned clauses follow from the model's clauses by resolution. Two things keep them sound for
counting (Sang and others, "Combining Component Caching and Clause Learning for Effective Model
Counting", SAT 2004): a learned clause sets no variable outside the component that is being counted,
and whatever was counted with the help of learned clauses is withdrawn from the cache when a
component beside it turns out to have no model (`cache.withdraw`), because in an inconsistent
neighbourhood everything follows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tightz.elimination.clauses import arrays as a

NO_CONFLICT = -1
FACT = -(1 << 30)  # the reason of a literal that follows from the clauses alone
FLIP, CLOSE, NOTHING_LEFT = 0, 1, 2


@njit(cache=True, nogil=True)
def assign(work, literal, reason):  # type: ignore[no-untyped-def]
    trail, r = work.trail, work.registers
    v = literal >> 1
    trail.value[v] = literal & 1
    trail.reason[v] = reason
    trail.level[v] = r[a.LEVEL]
    trail.literals[r[a.TRAIL]] = literal
    r[a.TRAIL] += 1


@njit(cache=True, nogil=True)
def undo(work, size):  # type: ignore[no-untyped-def]
    """Shorten the trail to `size`."""
    trail, r = work.trail, work.registers
    for i in range(size, r[a.TRAIL]):
        trail.value[trail.literals[i] >> 1] = -1
    r[a.TRAIL] = size
    r[a.QUEUE] = size


@njit(cache=True, nogil=True)
def propagate(work):  # type: ignore[no-untyped-def]
    """Follow implications to the end; NO_CONFLICT, or where it went wrong.

    A conflict in clause c is returned as c; one in an implication leaves its two literals in
    trail.clause and returns -2.
    """
    formula, trail, clauses, r = work.formula, work.trail, work.clauses, work.registers
    value, pool, follow, head = trail.value, clauses.pool, clauses.follow, clauses.head
    own, level = clauses.own[0], r[a.LEVEL]
    while r[a.QUEUE] < r[a.TRAIL]:
        p = trail.literals[r[a.QUEUE]]
        r[a.QUEUE] += 1
        for i in range(formula.implied_ptr[p], formula.implied_ptr[p + 1]):
            m = formula.implied[i]
            if value[m >> 1] < 0:
                assign(work, m, -2 - p)
            elif value[m >> 1] != (m & 1):
                trail.clause[0] = m
                trail.clause[1] = p ^ 1
                return -2
        false = p ^ 1
        before, watch = -1, head[false]
        while watch >= 0:
            c, k = watch >> 1, watch & 1
            after, s = follow[watch], clauses.start[c]
            other = pool[s + 1 - k]
            moved = False
            if value[other >> 1] != (other & 1):
                for i in range(s + 2, s + clauses.length[c]):
                    m = pool[i]
                    if value[m >> 1] < 0 or value[m >> 1] == (m & 1):
                        pool[i] = false
                        pool[s + k] = m
                        if before < 0:
                            head[false] = after
                        else:
                            follow[before] = after
                        follow[watch] = head[m]
                        head[m] = watch
                        moved = True
                        break
                if not moved:
                    if value[other >> 1] >= 0:
                        if c >= own:
                            r[a.USES] += 1
                        return c
                    if c < own:
                        assign(work, other, c)
                    elif trail.owner[other >> 1] == level:
                        r[a.USES] += 1
                        assign(work, other, c)
            if not moved:
                before = watch
            watch = after
    return NO_CONFLICT


@njit(cache=True, nogil=True)
def _meet(work, literal, count):  # type: ignore[no-untyped-def]
    """Note the false `literal` of a clause that is being resolved; facts of level 0 are left out."""
    trail = work.trail
    v = literal >> 1
    if trail.seen[v] == 0 and trail.level[v] > 0:
        trail.seen[v] = 1
        trail.met[count] = v
        count += 1
        trail.activity[v] += trail.bump[0]
    return count


@njit(cache=True, nogil=True)
def _meet_clause(work, c, skip, count):  # type: ignore[no-untyped-def]
    clauses = work.clauses
    clauses.use[c] += work.trail.bump[1]
    for i in range(clauses.start[c], clauses.start[c] + clauses.length[c]):
        if clauses.pool[i] >> 1 != skip:
            count = _meet(work, clauses.pool[i], count)
    return count


@njit(cache=True, nogil=True)
def _cut(work, count, out):  # type: ignore[no-untyped-def]
    """The clause of all met and unresolved variables, the one assigned last first; its length."""
    trail = work.trail
    size = 0
    for i in range(count):
        v = trail.met[i]
        if trail.seen[v] == 1:
            out[size] = 2 * v + 1 - trail.value[v]
            size += 1
    return size


@njit(cache=True, nogil=True)
def analyse(work, conflict):  # type: ignore[no-untyped-def]
    """Resolve a conflict backwards along the trail until a decision is reached.

    (outcome, level, length of trail.clause, length of trail.first_cut). FLIP: the first branch at
    `level` has no model, trail.clause says why. CLOSE: nor has the second branch there, whose
    literal stands for counted models on the other side. NOTHING_LEFT: there is no model at all.
    The first cut is the clause at the first unique implication point (Marques-Silva, Sakallah,
    1999), 0 when it is the same as trail.clause.
    """
    trail, r = work.trail, work.registers
    if conflict >= 0:
        count = _meet_clause(work, conflict, -1, 0)
    else:
        count = _meet(work, trail.clause[0], 0)
        count = _meet(work, trail.clause[1], count)
    here = r[a.LEVEL]
    first, outcome, level, size = 0, NOTHING_LEFT, 0, 0
    open_here = 0
    for i in range(count):
        open_here += trail.level[trail.met[i]] == here
    for at in range(r[a.TRAIL] - 1, -1, -1):
        v = trail.literals[at] >> 1
        if trail.seen[v] != 1:
            continue
        if first == 0 and open_here == 1 and trail.level[v] == here:
            first = _cut(work, count, trail.first_cut)
            for i in range(first):  # its asserting literal goes to the front
                if trail.first_cut[i] >> 1 == v:
                    trail.first_cut[i], trail.first_cut[0] = (
                        trail.first_cut[0],
                        trail.first_cut[i],
                    )
        if trail.reason[v] == -1:
            level = trail.level[v]
            outcome = FLIP if work.levels.branch[level] == 0 else CLOSE
            size = _cut(work, count, trail.clause)
            if first and level == here and trail.first_cut[0] >> 1 == v:
                first = 0
            break
        trail.seen[v] = 2
        before = count
        if trail.reason[v] >= 0:
            count = _meet_clause(work, trail.reason[v], v, count)
        elif trail.reason[v] != FACT:
            count = _meet(work, (-2 - trail.reason[v]) ^ 1, count)
        open_here -= trail.level[v] == here
        for i in range(before, count):
            open_here += trail.level[trail.met[i]] == here
    for i in range(count):
        trail.seen[trail.met[i]] = 0
    trail.bump[0] *= 1.0 / 0.95
    trail.bump[1] *= 1.0 / 0.999
    if trail.bump[0] > 1e100:
        trail.activity[:] *= 1e-100
        trail.bump[0] *= 1e-100
    if trail.bump[1] > 1e100:
        work.clauses.use[:] *= 1e-100
        trail.bump[1] *= 1e-100
    return outcome, level, size, first


@njit(cache=True, nogil=True)
def attach(work, c):  # type: ignore[no-untyped-def]
    clauses = work.clauses
    for k in range(2):
        literal = clauses.pool[clauses.start[c] + k]
        clauses.follow[2 * c + k] = clauses.head[literal]
        clauses.head[literal] = 2 * c + k


@njit(cache=True, nogil=True)
def learn(work, literals, size):  # type: ignore[no-untyped-def]
    """Keep a clause of two or more literals; its number, or -1 where there is no room.

    Call it after backtracking. Watched are the literals that were falsified last, open ones before
    all: so the watches are the first to be freed again.
    """
    clauses, trail, r = work.clauses, work.trail, work.registers
    c, s = r[a.CLAUSES], r[a.POOL]
    if size < 2 or c >= clauses.start.size or s + size > clauses.pool.size:
        return -1
    clauses.start[c] = s
    clauses.length[c] = size
    for i in range(size):
        clauses.pool[s + i] = literals[i]
    for k in range(2):
        best, rank = s + k, np.int64(-1)
        for i in range(s + k, s + size):
            v = clauses.pool[i] >> 1
            now = np.int64(1 << 40) if trail.value[v] < 0 else np.int64(trail.level[v])
            if now > rank:
                best, rank = i, now
        clauses.pool[s + k], clauses.pool[best] = clauses.pool[best], clauses.pool[s + k]
    clauses.use[c] = trail.bump[1]
    r[a.CLAUSES] += 1
    r[a.POOL] += size
    attach(work, c)
    return c


@njit(cache=True, nogil=True)
def reduce_learned(work):  # type: ignore[no-untyped-def]
    """Drop the half of the learned clauses that helped least; reasons of assignments stay."""
    clauses, trail, r = work.clauses, work.trail, work.registers
    own, n = clauses.own[0], r[a.CLAUSES]
    locked = np.zeros(n, np.bool_)
    for i in range(r[a.TRAIL]):
        why = trail.reason[trail.literals[i] >> 1]
        if why >= own:
            locked[why] = True
    middle = np.median(clauses.use[own:n])
    number = np.empty(n, np.int32)
    kept = own
    end = clauses.start[own] if n > own else r[a.POOL]
    for c in range(own):
        number[c] = c
    for c in range(own, n):
        if locked[c] or clauses.length[c] <= 3 or clauses.use[c] > middle:
            size, s = clauses.length[c], clauses.start[c]
            for i in range(size):
                clauses.pool[end + i] = clauses.pool[s + i]
            clauses.start[kept] = end
            clauses.length[kept] = size
            clauses.use[kept] = clauses.use[c]
            number[c] = kept
            kept += 1
            end += size
    for i in range(r[a.TRAIL]):
        v = trail.literals[i] >> 1
        if trail.reason[v] >= own:
            trail.reason[v] = number[trail.reason[v]]
    r[a.CLAUSES] = kept
    r[a.POOL] = end
    r[a.REDUCTIONS] += 1
    clauses.head[:] = -1
    for c in range(kept):
        attach(work, c)
