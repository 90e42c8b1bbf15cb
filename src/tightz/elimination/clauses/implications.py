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

from tightz.elimination.clauses import arrays as a
from tightz.runtime.kernels import inner

NO_CONFLICT = -1
FACT = -(1 << 30)  # the reason of a literal that follows from the clauses alone
FLIP, CLOSE, NOTHING_LEFT = 0, 1, 2


@inner
def assign(r, trail, literal, reason):  # type: ignore[no-untyped-def]
    v = literal >> 1
    trail.value[v] = literal & 1
    trail.reason[v] = reason
    trail.level[v] = r[a.LEVEL]
    trail.literals[r[a.TRAIL]] = literal
    r[a.TRAIL] += 1


@inner
def undo(r, trail, size):  # type: ignore[no-untyped-def]
    """Shorten the trail to `size`."""
    for i in range(size, r[a.TRAIL]):
        trail.value[trail.literals[i] >> 1] = -1
    r[a.TRAIL] = size
    r[a.QUEUE] = size


@inner
def propagate(r, formula, trail, clauses):  # type: ignore[no-untyped-def]
    """Follow implications to the end; NO_CONFLICT, or where it went wrong.

    A conflict in clause c is returned as c; one in an implication leaves its two literals in
    trail.clause and returns -2.
    """
    value, pool, follow, head = trail.value, clauses.pool, clauses.follow, clauses.head
    own, level = clauses.own[0], r[a.LEVEL]
    while r[a.QUEUE] < r[a.TRAIL]:
        p = trail.literals[r[a.QUEUE]]
        r[a.QUEUE] += 1
        for i in range(formula.implied_ptr[p], formula.implied_ptr[p + 1]):
            m = formula.implied[i]
            if value[m >> 1] < 0:
                assign(r, trail, np.int64(m), np.int64(-2 - p))
            elif value[m >> 1] != (m & 1):
                trail.clause[0] = m
                trail.clause[1] = p ^ 1
                return np.int64(-2)
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
                        return np.int64(c)
                    if c < own:
                        assign(r, trail, np.int64(other), np.int64(c))
                    elif trail.owner[other >> 1] == level:
                        r[a.USES] += 1
                        assign(r, trail, np.int64(other), np.int64(c))
            if not moved:
                before = watch
            watch = after
    return np.int64(NO_CONFLICT)


@inner
def _meet(trail, literal, count):  # type: ignore[no-untyped-def]
    """Note a false literal of a clause that is being resolved; facts of level 0 are left out."""
    v = literal >> 1
    if trail.seen[v] == 0 and trail.level[v] > 0:
        trail.seen[v] = 1
        trail.met[count] = v
        count += 1
        trail.activity[v] += trail.bump[0]
    return count


@inner
def _meet_clause(trail, clauses, c, skip, count):  # type: ignore[no-untyped-def]
    clauses.use[c] += trail.bump[1]
    for i in range(clauses.start[c], clauses.start[c] + clauses.length[c]):
        if clauses.pool[i] >> 1 != skip:
            count = _meet(trail, np.int64(clauses.pool[i]), count)
    return count


@inner
def _cut(trail, count, out):  # type: ignore[no-untyped-def]
    """The clause of all met and unresolved variables, the one assigned last first; its length."""
    size = 0
    for i in range(count):
        v = trail.met[i]
        if trail.seen[v] == 1:
            out[size] = 2 * v + 1 - trail.value[v]
            size += 1
    return size


@inner
def analyse(r, trail, clauses, branch, conflict):  # type: ignore[no-untyped-def]
    """Resolve a conflict backwards along the trail until a decision is reached.

    (outcome, level, length of trail.clause, length of trail.first_cut). FLIP: the first branch at
    `level` has no model, trail.clause says why. CLOSE: nor has the second branch there, whose
    literal stands for counted models on the other side. NOTHING_LEFT: there is no model at all.
    The first cut is the clause at the first unique implication point (Marques-Silva, Sakallah,
    1999), 0 when it is the same as trail.clause.
    """
    if conflict >= 0:
        count = _meet_clause(trail, clauses, np.int64(conflict), np.int64(-1), np.int64(0))
    else:
        count = _meet(trail, np.int64(trail.clause[0]), np.int64(0))
        count = _meet(trail, np.int64(trail.clause[1]), count)
    here = r[a.LEVEL]
    first, outcome, level, size = 0, NOTHING_LEFT, np.int64(0), 0
    open_here = 0
    for i in range(count):
        open_here += trail.level[trail.met[i]] == here
    for at in range(r[a.TRAIL] - 1, -1, -1):
        v = trail.literals[at] >> 1
        if trail.seen[v] != 1:
            continue
        if first == 0 and open_here == 1 and trail.level[v] == here:
            first = _cut(trail, count, trail.first_cut)
            for i in range(first):  # its asserting literal goes to the front
                if trail.first_cut[i] >> 1 == v:
                    trail.first_cut[i], trail.first_cut[0] = (
                        trail.first_cut[0],
                        trail.first_cut[i],
                    )
        if trail.reason[v] == -1:
            level = np.int64(trail.level[v])
            outcome = FLIP if branch[level] == 0 else CLOSE
            size = _cut(trail, count, trail.clause)
            if first and level == here and trail.first_cut[0] >> 1 == v:
                first = 0
            break
        trail.seen[v] = 2
        before = count
        if trail.reason[v] >= 0:
            count = _meet_clause(trail, clauses, np.int64(trail.reason[v]), np.int64(v), count)
        elif trail.reason[v] != FACT:
            count = _meet(trail, np.int64(-2 - trail.reason[v]) ^ 1, count)
        open_here -= trail.level[v] == here
        for i in range(before, count):
            open_here += trail.level[trail.met[i]] == here
    for i in range(count):
        trail.seen[trail.met[i]] = 0
    trail.bump[0] *= 1.0 / 0.95
    trail.bump[1] *= 1.0 / 0.999
    if trail.bump[0] > 1e100:
        for v in range(trail.activity.size):
            trail.activity[v] *= 1e-100
        trail.bump[0] *= 1e-100
    if trail.bump[1] > 1e100:
        for c in range(r[a.CLAUSES]):
            clauses.use[c] *= 1e-100
        trail.bump[1] *= 1e-100
    return outcome, level, size, first


@inner
def learn(r, trail, clauses, literals, size):  # type: ignore[no-untyped-def]
    """Keep a clause of two or more literals; its number, or -1 where there is no room.

    Call it after backtracking. Watched are the literals that were falsified last, open ones before
    all: so the watches are the first to be freed again.
    """
    c, s = r[a.CLAUSES], r[a.POOL]
    if size < 2 or c >= clauses.start.size or s + size > clauses.pool.size:
        return np.int64(-1)
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
    for k in range(2):
        literal = clauses.pool[s + k]
        clauses.follow[2 * c + k] = clauses.head[literal]
        clauses.head[literal] = 2 * c + k
    return c
