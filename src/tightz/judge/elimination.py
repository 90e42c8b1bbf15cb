"""Elimination as the judge does it: log Z a second time, single messages, a given order.

For models that some maker has summed exactly and that are small enough to sum again. Every table is
kept as logs with its largest entry taken out, so all entries are <= 0 and a table's error is at
most a + r |entry| nats: sums of entries <= 0 do not cancel, a sum over q states keeps a and r (its
top is then log q), and taking out a largest entry T moves r (log q - T) into a. The result has one
entry, its own largest.

A message is m(ctx) = w log sum_v exp(F(v, ctx) / w), F being the sum of the tables that meet in the
bucket; w = 1 is exact elimination. Whoever made the messages, each must satisfy this at every
context; wrong indices, wrong or stale kernels and lost states show at sampled ones.

A clique tree in which no bucket is cut and every weight is 1 bounds log Z from both sides, and the
two differ by rounding alone (`cliques`).
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.cliques import CliquesEvidence
from tightz.judge.verdict import UNIT, RefutedError, log_summation
from tightz.models.factor_graph import FactorGraph


class _Table(NamedTuple):
    axes: tuple[int, ...]
    logs: NDArray[np.float64]
    absolute: float
    relative: float


def second_log_z(model: FactorGraph, max_entries: int) -> tuple[float, float] | None:
    """(log Z, a bound on its rounding error); None where a table would pass `max_entries`.

    Evidence is respected. -inf comes with rounding 0: zeros are exact.
    """
    scales: list[float] = []
    held: dict[int, list[_Table]] = {v: [] for v in range(model.n_variables)}
    for table in _given(model, scales):
        for v in table.axes:
            held[v].append(table)
    near = {v: {u for t in ts for u in t.axes} | {v} for v, ts in held.items()}
    for v in model.evidence:
        del near[v]
    cards = model.cardinalities.tolist()
    heap = [(_size(near[v], cards), v) for v in near]
    heapq.heapify(heap)
    error = 0.0
    while heap:
        # Least table first, by an order of its own: a second route that shares neither order nor
        # kernels with the first.
        size, v = heapq.heappop(heap)
        if v not in near or size != _size(near[v], cards):
            continue  # an outdated entry
        if size > max_entries:
            return None
        scope = tuple(sorted(near.pop(v) - {v}))
        message = _message(v, scope, held[v], cards, scales)
        for u in scope:
            held[u] = [t for t in held[u] if v not in t.axes] + [message]
            near[u] |= set(scope)
            near[u].discard(v)
        for u in scope:
            heapq.heappush(heap, (_size(near[u], cards), u))
        # A component is done: its error joins the total, its value is among the scales.
        if not scope:
            error += message.absolute
    if -math.inf in scales:
        return -math.inf, 0.0
    value = math.fsum(scales)
    return value, (1.0 + 2.0**-10) * (error + UNIT * abs(value))


def _given(model: FactorGraph, scales: list[float]) -> list[_Table]:
    """The model's tables at its evidence, largest entries moved to `scales`."""
    tables = []
    for scope, table in model.factors:
        logs = table[tuple(model.evidence.get(v, slice(None)) for v in scope)]
        axes = tuple(v for v in scope if v not in model.evidence)
        top = float(np.max(logs))
        scales.append(top)
        if axes and top > -math.inf:
            tables.append(_Table(axes, logs - top, 0.0, UNIT))
    return tables


def _size(scope: set[int], cards: list[int]) -> int:
    return math.prod(cards[v] for v in scope)


def _message(
    v: int, scope: tuple[int, ...], tables: list[_Table], cards: list[int], scales: list[float]
) -> _Table:
    """log sum over v of exp of the tables that hold it, its largest entry moved to `scales`."""
    axes = (v, *scope)
    total = np.zeros([cards[v]] + [1] * len(scope))
    for table in tables:
        order = sorted(range(len(table.axes)), key=lambda k: axes.index(table.axes[k]))
        shape = [cards[a] if a in table.axes else 1 for a in axes]
        total = total + table.logs.transpose(order).reshape(shape)
    total = np.broadcast_to(total, [cards[a] for a in axes])
    top = total.max(axis=0)
    safe = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        logs = safe + np.log(np.exp(total - safe).sum(axis=0))
    largest = float(logs.max())
    scales.append(largest)
    count = math.log(cards[v])
    steps = len(tables) + 2  # additions, top + log(sum), less the largest
    relative = max((t.relative for t in tables), default=0.0) + steps * UNIT
    if largest == -math.inf:
        return _Table(scope, logs, 0.0, relative)
    # How errors travel: tables in log form add, log sum exp moves by no more than its arguments,
    # and what is relative becomes absolute when the largest entry is taken out.
    absolute = math.fsum(t.absolute for t in tables) + relative * (count - min(largest, count))
    absolute += log_summation(cards[v]) + steps * UNIT * count
    return _Table(scope, logs - largest, absolute, relative)


def power_sums(inputs: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """(K,) w log sum_v exp(inputs[:, v] / w) in extended precision; -inf where all are."""
    # Extended precision, so that a difference is the message's and not this check's.
    scaled = inputs.astype(np.longdouble) / np.longdouble(weight)
    top = scaled.max(axis=1)
    safe = np.where(np.isneginf(top), np.longdouble(0.0), top)
    with np.errstate(divide="ignore"):
        logs = safe + np.log(np.exp(scaled - safe[:, None]).sum(axis=1))
    return (np.longdouble(weight) * logs).astype(np.float64)


def check_messages(
    inputs: NDArray[np.float64],
    messages: NDArray[np.float64],
    weight: float,
    tolerance: float,
    place: str,
) -> None:
    """RefutedError unless messages (K,) are the power sums of inputs (K, states)."""
    expected = power_sums(inputs, weight)
    same = (expected == messages) | (np.abs(expected - messages) <= tolerance)
    if not same.all():
        k = int(np.argmin(same))
        raise RefutedError(
            f"{place}: a message says {messages[k]} where its tables sum to {expected[k]}"
        )


MAX_ENTRIES = 1 << 24
"""An order that needs a larger table is refused."""


def bucket_tree(graph: FactorGraph, order: NDArray[np.int64]) -> CliquesEvidence:
    """Every factor in the bucket of its first variable in `order`, messages likewise."""
    n = graph.n_variables
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise RefutedError("an elimination order does not name every variable once")
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    members: list[set[int]] = [{k} for k in range(n)]  # by rank
    placed: list[list[int]] = [[] for _ in range(n)]
    scopes = np.split(rank[graph.scope_vars], graph.scope_ptr[1:-1])
    for f, scope in enumerate(scopes):
        if scope.size:
            first = int(scope.min())
            placed[first].append(f)
            members[first].update(scope.tolist())
    parents = np.full(n, -1, dtype=np.int64)
    for k in range(n):
        if 2 ** len(members[k]) > MAX_ENTRIES:
            raise RefutedError("an elimination order needs tables beyond what the judge makes")
        # What a bucket leaves behind joins the bucket of its first variable: uncut buckets, so
        # each variable has one clique and weight 1, and Hoelder is an equality.
        rest = members[k] - {k}
        if rest:
            parents[k] = min(rest)
            members[parents[k]] |= rest
    names = order.tolist()
    return CliquesEvidence(
        order=np.asarray(order, dtype=np.int64),
        scopes=[tuple(names[r] for r in sorted(m, reverse=True)) for m in members],
        factors=placed,
        parents=parents,
        weights=np.ones(n),
        pairs=np.zeros((0, 2), dtype=np.int64),
        shift_ptr=np.zeros(1, dtype=np.int64),
        shifts=np.zeros(0),
        claimed=math.inf,  # nothing is claimed
    )
