"""A state of positive weight in a model with zero potentials, by backtracking and local repair.

Depth-first search with arc consistency after every decision and restarts; the variable decided
next is the one with few states left and many past failures around it (Boussemart et al., 2004).
A search that runs to its end without a state proves that Z = 0. A search that gives up is followed
by a random walk that repairs violated factors, which is better where constraints are loose.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.reductions.zeros import possible_states, state_ptr, supported_states
from tightz.runtime.clock import Clock
from tightz.runtime.kernels import inner, kernel
from tightz.runtime.seeds import Seed, generator
from tightz.search.repair import repair


class Feasibility(enum.Enum):
    """How a search ended; the value advises."""

    FOUND = "a state of positive weight was found"
    IMPOSSIBLE = "proven: no state has weight, Z = 0"
    UNKNOWN = "no state found within the limit; raise time_limit"


_LEAST_BELIEF = 1e-9
"""Beliefs may be wrong: no state is ruled out by them."""

MANY, FEW = 4096, 256
"""Variables above which a decision looks at few of them, and at how many."""

_LIMIT = 100
"""Failures after which the first search gives up."""

_FLIPS = 10
"""Flips a variable that local repair makes at least: fewer never reach them all."""

_ENDINGS = (Feasibility.FOUND, Feasibility.IMPOSSIBLE, Feasibility.UNKNOWN)


@dataclass(frozen=True, eq=False)
class FeasibleState:
    """The outcome of one search: `state` (n,) and its log weight where one was found."""

    status: Feasibility
    state: NDArray[np.int64] | None
    log_weight: float


class _Tables(NamedTuple):
    """The model's arrays as the kernels read them; `touch` lists the hard factors of a variable."""

    ptr: NDArray[np.int64]
    scope_ptr: NDArray[np.int64]
    scope_vars: NDArray[np.int32]
    table_ptr: NDArray[np.int64]
    forbidden: NDArray[np.bool_]
    touch_ptr: NDArray[np.int64]
    touch: NDArray[np.int64]


class _Search(NamedTuple):
    """Where a search stands: the (variable, state) pairs still alive and how many each variable
    has left, the log of what was dropped, for undoing it, and the queue of factors to look at."""

    alive: NDArray[np.bool_]
    left: NDArray[np.int64]
    trail: NDArray[np.int64]
    queue: NDArray[np.int64]
    queued: NDArray[np.bool_]


def feasible_state(
    model: FactorGraph, *, time_limit: float = 10.0, seed: Seed = None
) -> FeasibleState:
    """A state of positive weight, a proof that there is none, or neither within the limit."""
    found = FeasibleState(Feasibility.UNKNOWN, None, -np.inf)
    for found in feasible_states(model, clock=Clock(time_limit), seed=seed):
        if found.status is not Feasibility.UNKNOWN:
            break
    return found


def feasible_states(
    model: FactorGraph,
    *,
    clock: Clock,
    seed: Seed = None,
    beliefs: Sequence[NDArray[np.float64]] | None = None,
) -> Iterator[FeasibleState]:
    """Restart after restart, with states preferred at random in proportion to local weight.

    `beliefs`, one probability vector per variable, take the place of the local weight.
    """
    rng = generator(seed)
    tables = _tables(model)
    alive = possible_states(model)
    if beliefs is None:
        scores = _local_scores(model, tables.ptr)
    else:
        scores = np.log(np.maximum(np.concatenate([np.zeros(0), *beliefs]), _LEAST_BELIEF))
    # Failures counted per factor, over all restarts: later searches decide first what went wrong
    # before. They steer the search and take no part in its proof.
    weights = np.ones(model.n_factors)
    limit = _LIMIT
    while True:
        # The Gumbel trick: the largest perturbed score is a draw in proportion to exp(score).
        wishes = scores + rng.gumbel(size=scores.size)
        state = np.zeros(model.n_variables, dtype=np.int64)
        # Large models are repaired first: that finds a state of loose constraints much sooner.
        early = limit == _LIMIT and model.n_variables > MANY
        ending = 2 if early else _search(tables, alive.copy(), wishes, weights, limit, state)
        status = _ENDINGS[ending]
        if status is Feasibility.UNKNOWN and (early or not clock.expired):
            state = _wished_state(tables.ptr, alive, wishes)
            flips = max(100 * limit, _FLIPS * model.n_variables)
            if repair(tables, alive, state, flips, 0.3, int(rng.integers(2**31))):
                status = Feasibility.FOUND
        weight = -np.inf
        if status is Feasibility.FOUND:
            weight = float(model.log_weight(state)[0])
            if weight == -np.inf:  # a constant factor is zero: no search can mend it
                status = Feasibility.IMPOSSIBLE
        yield FeasibleState(status, state if status is Feasibility.FOUND else None, weight)
        if status is Feasibility.IMPOSSIBLE or clock.expired:
            return
        # Growing limits make the search complete: one of them exceeds the size of the tree, and a
        # tree searched to its end proves that Z = 0.
        limit = limit + limit // 2 if status is Feasibility.UNKNOWN else limit


def _wished_state(
    ptr: NDArray[np.int64], alive: NDArray[np.bool_], wishes: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Each variable's possible state with the largest wish."""
    masked, first = np.where(alive, wishes, -np.inf), ptr[:-1]
    if not first.size:
        return np.zeros(0, dtype=np.int64)
    best = np.repeat(np.maximum.reduceat(masked, first), np.diff(ptr))
    places = np.flatnonzero(masked == best)
    return places[np.searchsorted(places, first)] - first


def _tables(model: FactorGraph) -> _Tables:
    forbidden = model.log_tables == -np.inf
    hard = np.zeros(model.n_factors, dtype=bool)
    if forbidden.any():
        hard = np.logical_or.reduceat(forbidden, model.table_ptr[:-1])
    owner = np.repeat(np.arange(model.n_factors), model.arities)
    keep = hard[owner]
    by_variable = np.argsort(model.scope_vars[keep], kind="stable")
    counts = np.bincount(model.scope_vars[keep], minlength=model.n_variables)
    return _Tables(
        state_ptr(model.cardinalities),
        model.scope_ptr,
        model.scope_vars,
        model.table_ptr,
        forbidden,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        owner[keep][by_variable].astype(np.int64),
    )


def _local_scores(model: FactorGraph, ptr: NDArray[np.int64]) -> NDArray[np.float64]:
    """Per (variable, state): mean over its factors of how much of the factor's weight it holds."""
    scores = np.zeros(int(ptr[-1]))
    for _, scopes, tables in model.batches():
        # A table of zeros alone has no largest entry: any shift serves, none must be -inf.
        top = tables.reshape(len(tables), -1).max(axis=1)
        top = np.where(top > -np.inf, top, 0.0)
        flat = np.exp(tables - top.reshape(-1, *(1,) * (tables.ndim - 1)))
        for axis in range(scopes.shape[1]):
            others = tuple(a + 1 for a in range(scopes.shape[1]) if a != axis)
            share = flat.sum(axis=others)
            with np.errstate(divide="ignore"):
                share = np.maximum(np.log(share), -50.0)
            share -= share.max(axis=1, keepdims=True)
            np.add.at(scores, ptr[scopes[:, axis]][:, None] + np.arange(share.shape[1]), share)
    return scores


@inner
def _settle(t, now, v, weights, used):  # type: ignore[no-untyped-def]
    """Propagate from variable v; returns (consistent, trail length). Dropped states are logged."""
    alive, left, trail, queue, queued = now
    head, tail = 0, 0
    size = queue.size
    # The queue is a ring with one place per factor. `queued` keeps a factor from standing in it
    # twice, so it cannot overflow.
    for k in range(t.touch_ptr[v], t.touch_ptr[v + 1]):
        queue[tail % size] = t.touch[k]
        queued[t.touch[k]] = True
        tail += 1
    consistent = True
    widest = 1
    while head < tail:
        f = queue[head % size]
        head += 1
        queued[f] = False
        if not consistent:
            continue  # only clear the flags
        # A state of a scope variable stays alive only if some entry of the factor allows it
        # together with states that are alive in the others (generalised arc consistency). What is
        # dropped takes part in no solution below the decisions made so far, so nothing is lost.
        widest = 0
        for k in range(t.scope_ptr[f], t.scope_ptr[f + 1]):
            widest += t.ptr[t.scope_vars[k] + 1] - t.ptr[t.scope_vars[k]]
        support = np.empty(widest, dtype=np.bool_)
        supported_states(
            t.ptr, t.scope_ptr, t.scope_vars, t.table_ptr, t.forbidden, alive, f, support
        )
        at = 0
        for k in range(t.scope_ptr[f], t.scope_ptr[f + 1]):
            u = t.scope_vars[k]
            dropped = False
            for s in range(t.ptr[u], t.ptr[u + 1]):
                if alive[s] and not support[at]:
                    alive[s] = False
                    left[u] -= 1
                    trail[used] = s
                    used += 1
                    dropped = True
                at += 1
            if dropped:
                # A variable without states: contradiction. The factor that caused it is blamed.
                if left[u] == 0:
                    weights[f] += 1.0
                    consistent = False
                    break
                for j in range(t.touch_ptr[u], t.touch_ptr[u + 1]):
                    g = t.touch[j]
                    if not queued[g]:
                        queued[g] = True
                        queue[tail % size] = g
                        tail += 1
    return consistent, used


@inner
def _undo(owner, alive, left, trail, used, mark):  # type: ignore[no-untyped-def]
    for k in range(mark, used):
        alive[trail[k]] = True
        left[owner[trail[k]]] += 1


@inner
def _next_variable(t, left, weights, after):  # type: ignore[no-untyped-def]
    """The undecided variable with the least (states left) / (failures around it); -1 if none.

    In large models of the next FEW undecided ones after `after`: looking at all of them for every
    decision is quadratic.
    """
    best, best_score, seen = -1, np.inf, 0
    n = left.size
    few = n if n <= MANY else FEW
    first = 0 if n <= MANY else after + 1
    for k in range(first, first + n):
        v = k % n
        if left[v] <= 1:
            continue
        seen += 1
        if seen > few:
            break
        # The small start decides by the number of states where nothing has failed yet.
        blame = 1e-3
        for k in range(t.touch_ptr[v], t.touch_ptr[v + 1]):
            blame += weights[t.touch[k]]
        if left[v] / blame < best_score:
            best, best_score = v, left[v] / blame
    return best


@kernel
def _search(t, alive, wishes, weights, limit, state):  # type: ignore[no-untyped-def]
    """Depth-first search; 0: found (in `state`), 1: the whole tree failed, 2: `limit` failures."""
    n = t.ptr.size - 1
    total = t.ptr[n]
    owner = np.empty(total, dtype=np.int64)
    left = np.zeros(n, dtype=np.int64)
    for v in range(n):
        for s in range(t.ptr[v], t.ptr[v + 1]):
            owner[s] = v
            if alive[s]:
                left[v] += 1
        if left[v] == 0:
            return 1
    queue = np.empty(weights.size + 1, dtype=np.int64)
    queued = np.zeros(weights.size, dtype=np.bool_)
    trail = np.empty(total, dtype=np.int64)
    now = _Search(alive, left, trail, queue, queued)
    marks = np.empty(n + 1, dtype=np.int64)
    decided = np.empty(n + 1, dtype=np.int64)
    used, level, failures, v = 0, 0, 0, -1
    while True:
        # Every variable has one state left and propagation found no contradiction: each hard
        # factor allows the one tuple that remains, so this is a state of positive weight.
        v = _next_variable(t, left, weights, v)
        if v < 0:
            for u in range(n):
                for s in range(t.ptr[u], t.ptr[u + 1]):
                    if alive[s]:
                        state[u] = s - t.ptr[u]
            return 0
        chosen = -1
        for s in range(t.ptr[v], t.ptr[v + 1]):
            if alive[s] and (chosen < 0 or wishes[s] > wishes[chosen]):
                chosen = s
        # Decide: drop the other states, logging them, so that undoing to the mark restores exactly
        # what this decision and its propagation removed.
        marks[level] = used
        decided[level] = chosen
        level += 1
        for s in range(t.ptr[v], t.ptr[v + 1]):
            if alive[s] and s != chosen:
                alive[s] = False
                trail[used] = s
                used += 1
        left[v] = 1
        consistent, used = _settle(t, now, v, weights, used)
        while not consistent:
            # Go back. A refuted decision leaves its state impossible at the level above, which is
            # itself propagated there; once no level is left the whole tree has failed.
            failures += 1
            if level == 0:
                return 1
            if failures > limit:
                return 2
            level -= 1
            _undo(owner, alive, left, trail, used, marks[level])
            used = marks[level]
            # The other branch: the state tried is impossible given the decisions above.
            s = decided[level]
            v = owner[s]
            alive[s] = False
            left[v] -= 1
            trail[used] = s
            used += 1
            if left[v] == 0:
                consistent = False
            else:
                consistent, used = _settle(t, now, v, weights, used)
