"""The bound of a product over a model's variables, on the model's own tables.

    log Z >= sum_f E_q[log t_f] + sum_v H(q_v),     q(x) = prod_v q_v(x_v)          (Jensen).

Tables are averaged one variable after the other. Where q is 0 a table may hold anything, -inf and
stand-ins for it (-1e30) included: 0 * -inf counts 0. Where q is not, -inf gives no bound at all.

Rounding (u = 2^-53, first order, doubled at the end). q is the weights handed in divided by their
exact sum; what is below 1e-300 of a variable's largest becomes 0 first. Over d states the computed
q is within delta = (d + 2) u relatively. Averaging a table over one variable costs
delta + (d + 1) u of the average of its absolute values, so a factor costs the sum of that over its
scope, times E_q |log t|. The entropy costs delta (H + 1) for q and (LIBRARY + 2 u) H for its own
evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.judge.spins import TINY, exact_sum, plogp
from tightz.judge.verdict import UNIT, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph

NEGLIGIBLE = 1e-300
"""Weights below this fraction of the largest count as 0, so that no q is subnormal."""

_MAX_ENTRIES = 1 << 22
"""Table entries averaged at a time."""


@dataclass(frozen=True, eq=False)
class ProductEvidence:
    """One non-negative vector of weights per variable; the judge normalises it."""

    marginals: Sequence[NDArray[np.float64]]

    def verdict(self, model: FactorGraph) -> Verdict:
        """The bound of this product on `model`, rounding taken off."""
        value, rounding = product_of_tables(model, self.marginals)
        if value == -math.inf:
            return Verdict()
        return Verdict(lower=value - rounding, rounding=rounding)


def product_of_tables(
    model: FactorGraph, marginals: Sequence[NDArray[np.float64]]
) -> tuple[float, float]:
    """(bound, its rounding, not yet subtracted); -inf where q supports a zero."""
    ptr, q = normalised(model, marginals)
    delta = UNIT * (model.cardinalities + 2.0)
    values, magnitudes, relative = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
    for scopes, tables in same_shapes(model):
        mean, magnitude = _averages(tables, scopes, ptr, q)
        # q gives weight to a state that a table forbids: E log t = -inf, a bound that says
        # nothing.
        if np.isneginf(mean).any():
            return -math.inf, 0.0
        values.append(mean)
        magnitudes.append(magnitude)
        each = delta[scopes] + UNIT * (model.cardinalities[scopes] + 1.0)
        relative.append(each.sum(axis=1) + UNIT)
    parts, entropy_error = plogp(q)
    entropies = np.add.reduceat(parts, ptr[:-1]) if q.size else np.zeros(0)
    value = exact_sum(*values, parts)
    if not math.isfinite(value):
        return -math.inf, 0.0
    rounding = UNIT * abs(value) + entropy_error + float((delta * (entropies + 1.0)).sum())
    rounding += float((np.concatenate(relative) * np.concatenate(magnitudes)).sum())
    return value, 2.0 * rounding + TINY * float(model.log_tables.size)


def normalised(
    model: FactorGraph, marginals: Sequence[NDArray[np.float64]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(offsets, q flat); RefutedError unless there is one distribution for each variable."""
    sizes = model.cardinalities.astype(np.int64)
    vectors = [np.asarray(w, dtype=np.float64).ravel() for w in marginals]
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    if [w.size for w in vectors] != sizes.tolist():
        raise RefutedError("a product needs one weight for each state of every variable")
    if not vectors:
        return ptr, np.zeros(0)
    q = np.concatenate(vectors)
    if not ((q >= 0.0) & (q < np.inf)).all():
        raise RefutedError("a weight of a product is negative, infinite or no number")
    top = np.maximum.reduceat(q, ptr[:-1])
    if (top == 0.0).any():
        raise RefutedError("a variable has no state of positive weight in a product")
    # By the largest first: the sum of scaled weights lies between 1 and d, whatever came in.
    q = q / np.repeat(top, sizes)
    q[q < NEGLIGIBLE] = 0.0
    # Z sums over the states that agree with evidence; weight elsewhere would count states that are
    # not in it.
    for v, state in model.evidence.items():
        if (np.flatnonzero(q[ptr[v] : ptr[v + 1]]) != state).any():
            raise RefutedError(f"a product gives weight to states of variable {v} never observed")
    return ptr, q / np.repeat(np.add.reduceat(q, ptr[:-1]), sizes)


def same_shapes(model: FactorGraph) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """(scopes (F, r), log tables (F, d_1, ..., d_r)) of factors of one shape, in blocks."""
    arity = np.diff(model.scope_ptr)
    for r in np.unique(arity).tolist():
        factors = np.flatnonzero(arity == r)
        scopes = model.scope_vars[model.scope_ptr[factors][:, None] + np.arange(r)].astype(np.int64)
        cards = model.cardinalities[scopes]
        for mine in equal_rows(cards):
            shape = cards[mine[0]].tolist()
            size = math.prod(shape)
            step = max(1, _MAX_ENTRIES // size)
            for low in range(0, mine.size, step):
                block = mine[low : low + step]
                start = model.table_ptr[factors[block]]
                flat = model.log_tables[start[:, None] + np.arange(size)]
                yield scopes[block], flat.reshape(len(block), *shape)


def equal_rows(rows: NDArray) -> Iterator[NDArray[np.int64]]:
    """Groups of the numbers of equal rows; only one group is the common case."""
    if not len(rows) or (rows == rows[0]).all():
        yield np.arange(len(rows))
        return
    order = np.lexsort(rows.T)
    ordered = rows[order]
    starts = np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1
    for group in np.split(order, starts):
        yield np.sort(group)


def _averages(
    tables: NDArray[np.float64],
    scopes: NDArray[np.int64],
    ptr: NDArray[np.int64],
    q: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(E_q[log t], E_q |log t|) of each table, the last variable averaged first."""
    mean, size = tables, np.abs(tables)
    for axis in range(scopes.shape[1] - 1, -1, -1):
        states = mean.shape[-1]
        part = q[ptr[scopes[:, axis]][:, None] + np.arange(states)]
        part = part.reshape(len(part), *(1,) * axis, states)
        with np.errstate(invalid="ignore"):  # 0 * inf, replaced
            # 0 times -inf counts 0: where q is 0 the table may say anything.
            mean = np.where(part > 0.0, mean * part, 0.0).sum(axis=-1)
            size = np.where(part > 0.0, size * part, 0.0).sum(axis=-1)
    return mean, size
