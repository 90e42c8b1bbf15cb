"""The arrays that a count works on, in groups, and the registers that its kernels share.

Literal 2 v + s says "variable v is in state s"; l ^ 1 is its negation. A clause of two literals is
kept as two implications, a longer one in the pool of `Clauses`, with its two watched literals first
(Moskewicz and others, 2001). Learned clauses follow the model's own in the same pool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Registers: one int64 each.
LEVEL, TRAIL, QUEUE, CLAUSES, POOL, PARTS, PART_VARS, PART_CLAUSES = range(8)
FREE, KIDS, NODES, RECORDS, TRACE, USES, MODE, GENERATION = range(8, 16)
DECISIONS, CONFLICTS, HITS, LOOKUPS, STORED, STAMP, LEARNING, TRACING = range(16, 24)
EVICTIONS, REDUCTIONS, BLIND = range(24, 27)
N_REGISTERS = 27
# BLIND leaves clauses out of cache keys: wrong, for a test that shows it is noticed.


class Formula(NamedTuple):
    """What does not change: implications by literal, occurrences by variable, weights, guidance.

    implied[implied_ptr[l]:implied_ptr[l+1]] are the literals that follow from l; `occurs` lists the
    long clauses of each variable. A literal's weight is mantissa * 2^exponent with a relative error
    of `error` units; `either` is the same for the sum of a variable's two weights. `priority` is
    added to a variable's score when a decision is made.
    """

    implied_ptr: NDArray[np.int32]
    implied: NDArray[np.int32]
    occurs_ptr: NDArray[np.int32]
    occurs: NDArray[np.int32]
    mantissa: NDArray[np.float64]
    exponent: NDArray[np.int64]
    error: NDArray[np.float64]
    either_mantissa: NDArray[np.float64]
    either_exponent: NDArray[np.int64]
    either_error: NDArray[np.float64]
    priority: NDArray[np.float64]


class Trail(NamedTuple):
    """Assignments in the order made. value -1: open. reason -1: a decision; c >= 0: clause c;
    -2 - q: the literal q implies it. owner: the level whose component a variable belongs to."""

    literals: NDArray[np.int32]
    value: NDArray[np.int8]
    reason: NDArray[np.int32]
    level: NDArray[np.int32]
    owner: NDArray[np.int32]
    seen: NDArray[np.int8]
    met: NDArray[np.int32]
    clause: NDArray[np.int32]
    first_cut: NDArray[np.int32]
    activity: NDArray[np.float64]
    bump: NDArray[np.float64]


class Clauses(NamedTuple):
    """Clause c: pool[start[c]:start[c] + length[c]]; watches of a literal are a linked list of
    2 c + (0 or 1) from `head` through `follow`. The first own[0] are the formula's."""

    pool: NDArray[np.int32]
    start: NDArray[np.int64]
    length: NDArray[np.int32]
    head: NDArray[np.int32]
    follow: NDArray[np.int32]
    use: NDArray[np.float64]
    own: NDArray[np.int64]


class Parts(NamedTuple):
    """A stack of components: variables and open long clauses of each, ascending.

    part_of and clause_of are marks of the search for components, `often` counts a literal's open
    clauses, `queue` is its queue.
    """

    var_ptr: NDArray[np.int64]
    clause_ptr: NDArray[np.int64]
    variables: NDArray[np.int32]
    clauses: NDArray[np.int32]
    part_of: NDArray[np.int64]
    clause_of: NDArray[np.int64]
    often: NDArray[np.int32]
    queue: NDArray[np.int32]
    sizes: NDArray[np.int64]


class Levels(NamedTuple):
    """One row per decision: its component, its literal, which branch it is in, where the stacks
    stood when that branch began, and the values of the two branches and of the running product."""

    literal: NDArray[np.int32]
    branch: NDArray[np.int8]
    part: NDArray[np.int64]
    trail: NDArray[np.int64]
    free: NDArray[np.int64]
    kids: NDArray[np.int64]
    serial: NDArray[np.int64]
    uses: NDArray[np.int64]
    found: NDArray[np.int64]
    mantissa: NDArray[np.float64]
    exponent: NDArray[np.int64]
    error: NDArray[np.float64]
    record: NDArray[np.int64]


class Cache(NamedTuple):
    """Two generations of stored components; the older one is emptied when the newer is full.

    Entry i of generation g has its key at words[g, at[g, i]:+length[g, i]]; length -1: withdrawn.
    """

    head: NDArray[np.int32]
    follow: NDArray[np.int32]
    hash: NDArray[np.uint64]
    at: NDArray[np.int64]
    length: NDArray[np.int32]
    mantissa: NDArray[np.float64]
    exponent: NDArray[np.int64]
    error: NDArray[np.float64]
    node: NDArray[np.int64]
    pure: NDArray[np.int8]
    words: NDArray[np.uint64]
    filled: NDArray[np.int64]
    used: NDArray[np.int64]
    base: NDArray[np.int64]
    key: NDArray[np.uint64]


class Trace(NamedTuple):
    """What was counted, as a graph: node i has two branches, records[i], each a run of `items`.

    A record lists literals, then free variables, then nodes; ends[r] are the three ends, share its
    part of the node's value. Nodes come after the nodes they refer to.
    """

    records: NDArray[np.int64]
    ends: NDArray[np.int64]
    share: NDArray[np.float64]
    items: NDArray[np.int32]
    free: NDArray[np.int32]
    kids: NDArray[np.int64]


class Work(NamedTuple):
    """All of it, as the kernels take it."""

    registers: NDArray[np.int64]
    formula: Formula
    trail: Trail
    clauses: Clauses
    parts: Parts
    levels: Levels
    cache: Cache
    trace: Trace
