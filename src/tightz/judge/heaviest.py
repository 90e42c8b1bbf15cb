"""A bound on the largest weight of a state, from cliques whose tables add up to the model's.

With sum_c F_c = log p~ as in `cliques`, every clique takes the maximum over its own variable: the
sum of the root messages is then at least every log weight, whatever was cut and shifted, and the
largest of them where nothing was cut.

States given beside the cliques sharpen it. Any other state leaves them at some variable, going
from the last of the order to the first: it agrees with one of them up to there and then differs.
What such a branch can weigh is known from the messages, the rest being at its best, so the largest
of the branches bounds all states but the given ones. Searches prove so that they missed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tightz.judge.cliques import CliquesEvidence, CliqueTree
from tightz.judge.verdict import UNIT, RefutedError, allowed, log_weight
from tightz.models.factor_graph import FactorGraph


def weights_of(model: FactorGraph, states: NDArray[np.int64]) -> NDArray[np.float64]:
    """(K,) log p~ of each row, rounded once; RefutedError for a row that is no state."""
    if not all(allowed(model, row) for row in states):
        raise RefutedError("a state handed in as a heavy one is not a state of the model")
    return np.array([log_weight(model, row)[0] for row in states], dtype=np.float64)


def largest_entries(model: FactorGraph) -> float:
    """The sum of the tables' largest entries, rounded up: no state weighs more."""
    starts = model.table_ptr[:-1]
    tops = np.maximum.reduceat(model.log_tables, starts).tolist() if starts.size else []
    if -math.inf in tops:
        return -math.inf
    total = math.fsum(tops)
    return total + 2.0 * UNIT * abs(total)


def heaviest(
    cliques: CliquesEvidence,
    model: FactorGraph,
    beside: NDArray[np.int64] | None = None,
    *,
    stop: Callable[[float], bool] = lambda entries: False,
) -> float:
    """A number that the log weight of no state exceeds, rows of `beside` left out.

    -inf: there is none, or all weigh nothing. inf: nothing could be said, or `stop(entries)` was
    true before a table of so many entries.
    """
    if cliques.shifts is None:
        raise RefutedError("the tables of this bound were judged before and left")
    with np.errstate(over="ignore", invalid="ignore"):
        tree = CliqueTree(cliques, model)
        try:
            messages = tree.messages(+1.0, np.zeros(len(tree.scopes)), stop=stop)
        except TimeoutError:
            return math.inf
        parts = [*tree.constants, *tree.roots(messages)]
        if any(math.isnan(x) or x == math.inf for x in parts):
            return math.inf
        if -math.inf in parts:
            return -math.inf
        whole = math.fsum(parts)
        whole += 2.0 * UNIT * abs(whole)
        if beside is None or not len(beside):
            return whole
        if not all(allowed(model, row) for row in beside):
            raise RefutedError("a state handed in as a heavy one is not a state of the model")
        return _branches(tree, messages, whole, beside, stop)


def _branches(
    tree: CliqueTree,
    messages: dict[int, NDArray[np.float64]],
    whole: float,
    states: NDArray[np.int64],
    stop: Callable[[float], bool],
) -> float:
    """The most that a state can weigh which is none of `states`."""
    of_variable: dict[int, list[int]] = {}
    for c in tree.visits:
        of_variable.setdefault(tree.scopes[c][-1], []).append(c)
    value = np.full(len(states), whole)
    # rows of the same number agree in all variables seen so far
    group = np.zeros(len(states), dtype=np.int64)
    most = -math.inf
    for v, cliques in reversed(of_variable.items()):
        count = int(tree.model.cardinalities[v])
        if stop(float(len(states) * count)):
            return math.inf
        worth = np.zeros((len(states), count))
        promised, size = np.zeros(len(states)), np.zeros((len(states), count))
        for c in cliques:
            row, rounding = _rows(tree, messages, c, states)
            own = tuple(states[:, u] for u in tree.scopes[c][:-1])
            before = np.broadcast_to(messages[c].reshape(tree.shapes[c][:-1])[own], len(states))
            worth += row
            promised += before
            size += rounding + UNIT * (np.abs(row) + np.abs(before)[:, None])
        # What was promised for this variable gives way to what its states bring; both are the
        # numbers that were added, so only these sums round.
        dead = np.isneginf(worth) | np.isneginf(value)[:, None]
        worth = value[:, None] - promised[:, None] + worth
        worth += 4.0 * (len(cliques) + 2) * (size + UNIT * np.abs(value)[:, None])
        worth[dead] = -np.inf
        if not (worth < np.inf).all():  # sums beyond float64
            return math.inf
        taken = np.zeros((int(group.max()) + 1, count), dtype=bool)
        taken[group, states[:, v]] = True
        most = max(most, float(np.where(taken[group], -np.inf, worth).max()))
        value = worth[np.arange(len(states)), states[:, v]]
        _, group = np.unique(group * count + states[:, v], return_inverse=True)
    return most


def _rows(
    tree: CliqueTree, messages: dict[int, NDArray[np.float64]], c: int, states: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """F_c for every state of its own variable, the others as in `states`; and its rounding."""
    count = tree.shapes[c][-1]
    row, size = np.zeros((len(states), count)), np.zeros((len(states), count))
    terms = tree.terms(c, messages)
    for term in terms:
        at = [states[:, u] if n > 1 else 0 for u, n in zip(tree.scopes[c], term.shape, strict=True)]
        picked = np.broadcast_to(term[(*at[:-1], slice(None))], row.shape)
        row += picked
        size += tree.sizes(np.array(picked))
    if tree.zeros is not None:
        dead = tree.zeros[c][tuple(states[:, u] for u in tree.scopes[c][:-1])]
        row[np.broadcast_to(dead, row.shape)] = -np.inf
    return row, (len(terms) + 1) * UNIT * size
