"""Components of what is still open, found by walking through it (numba kernels)."""

from __future__ import annotations

import numpy as np

from tightz.elimination.clauses import arrays as a
from tightz.runtime.kernels import inner


@inner
def _walk(formula, value, parts, clauses, root, mark, tail):  # type: ignore[no-untyped-def]
    """Everything connected to variable `root`: marks it, queues its variables from `tail` on.

    (the queue's new end, open long clauses met). A satisfied clause gets the mark -mark. `often`
    becomes the number of open clauses of each literal.
    """
    part_of, clause_of, often = parts.part_of, parts.clause_of, parts.often
    parts.queue[tail] = root
    part_of[root] = mark
    head, tail, n_clauses = tail, tail + 1, 0
    while head < tail:
        v = np.int64(parts.queue[head])
        head += 1
        for literal in (2 * v, 2 * v + 1):
            count = 0
            for i in range(
                formula.implied_ptr[literal ^ 1], formula.implied_ptr[(literal ^ 1) + 1]
            ):
                u = formula.implied[i] >> 1
                if value[u] < 0:
                    count += 1
                    if part_of[u] != mark:
                        part_of[u] = mark
                        parts.queue[tail] = u
                        tail += 1
            often[literal] = count
        for i in range(formula.occurs_ptr[v], formula.occurs_ptr[v + 1]):
            c = formula.occurs[i] >> 1
            if clause_of[c] == -mark:
                continue
            low = clauses.start[c]
            high = low + clauses.length[c]
            if clause_of[c] != mark:
                satisfied = False
                for k in range(low, high):
                    m = clauses.pool[k]
                    if value[m >> 1] == (m & 1):
                        satisfied = True
                        break
                if satisfied:
                    clause_of[c] = -mark
                    continue
                clause_of[c] = mark
                n_clauses += 1
                for k in range(low, high):
                    u = clauses.pool[k] >> 1
                    if value[u] < 0 and part_of[u] != mark:
                        part_of[u] = mark
                        parts.queue[tail] = u
                        tail += 1
            often[2 * v + (formula.occurs[i] & 1)] += 1
    return tail, n_clauses


@inner
def _by_size(sizes, count):  # type: ignore[no-untyped-def]
    """Components, the largest first; there are few, mostly in order."""
    rank = np.empty(count, np.int64)
    for k in range(count):
        at = k
        while at > 0 and sizes[2 * rank[at - 1]] < sizes[2 * k]:
            rank[at] = rank[at - 1]
            at -= 1
        rank[at] = k
    return rank


@inner
def split(r, formula, value, parts, clauses, free, part):  # type: ignore[no-untyped-def]
    """Find the components of what is open of component `part` and push them, largest first.

    Variables without an open clause go on the stack of free ones. How many were pushed.
    """
    low, high = parts.var_ptr[part], parts.var_ptr[part + 1]
    # Marks grow for ever, so that none has to be taken back.
    base = r[a.STAMP]
    found, tail = 0, np.int64(0)
    for i in range(low, high):
        v = parts.variables[i]
        if value[v] >= 0 or parts.part_of[v] > base:
            continue
        begin = tail
        tail, n_clauses = _walk(formula, value, parts, clauses, np.int64(v), base + found + 1, tail)
        if tail == begin + 1:  # a clause of one open variable would have been propagated
            free[r[a.FREE]] = v
            r[a.FREE] += 1
            parts.part_of[v] = base
            tail = begin
            continue
        parts.sizes[2 * found] = tail - begin
        parts.sizes[2 * found + 1] = n_clauses
        found += 1
    r[a.STAMP] = base + found + 1
    if found == 0:
        return 0
    # Where each begins on the stack; the last one pushed is counted first: the smallest.
    top = r[a.PARTS]
    rank = _by_size(parts.sizes, found)
    var_at = np.empty(found, np.int64)
    clause_at = np.empty(found, np.int64)
    at, clause_pos = parts.var_ptr[top], parts.clause_ptr[top]
    for k in range(found):
        j = rank[k]
        var_at[j] = at
        clause_at[j] = clause_pos
        at += parts.sizes[2 * j]
        clause_pos += parts.sizes[2 * j + 1]
        parts.var_ptr[top + k + 1] = at
        parts.clause_ptr[top + k + 1] = clause_pos
    # The parent's lists are ascending, so are these.
    for i in range(low, high):
        v = parts.variables[i]
        if value[v] < 0 and parts.part_of[v] > base:
            j = parts.part_of[v] - base - 1
            parts.variables[var_at[j]] = v
            var_at[j] += 1
    for i in range(parts.clause_ptr[part], parts.clause_ptr[part + 1]):
        c = parts.clauses[i]
        if parts.clause_of[c] > base:
            j = parts.clause_of[c] - base - 1
            parts.clauses[clause_at[j]] = c
            clause_at[j] += 1
    r[a.PARTS] = top + found
    return found
