"""Which spins to eliminate, in which order: greedy minimum degree, least fill to break ties."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ResourceError
from tightz.models.spin_polynomial import SpinPolynomial

MAX_TABLE_ENTRIES = 2**25
"""Entries of all tables of one collapse together (256 MiB each for fields and messages)."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which spins go, in which order, and their neighbours at that time (CSR, ascending)."""

    order: NDArray[np.int64]
    scope_ptr: NDArray[np.int64]
    scope: NDArray[np.int32]

    def first(self, count: int) -> Plan:
        end = self.scope_ptr[count]
        return Plan(self.order[:count], self.scope_ptr[: count + 1], self.scope[:end])

    def uses(self, ptr: NDArray, spins: NDArray, n: int) -> NDArray[np.int64]:
        """For each set of spins (CSR) the first elimination of a member, or E if there is none."""
        when = np.full(n, self.order.size, dtype=np.int64)
        when[self.order] = np.arange(self.order.size)
        # A sentinel per set keeps reduceat right for empty sets.
        padded = np.insert(when[spins], ptr[:-1], self.order.size)
        starts = ptr[:-1] + np.arange(len(ptr) - 1)
        return np.minimum.reduceat(padded, starts) if len(starts) else np.zeros(0, np.int64)


def _neighbours(
    poly: SpinPolynomial, k: int, protected: NDArray[np.bool_]
) -> list[set[int]] | None:
    """The spins that share a term with each spin; None where no spin has at most k of them."""
    pairs = [np.zeros(0, dtype=np.int64)]
    for arity, rows, _ in poly.by_arity():
        for a, b in combinations(range(arity), 2):
            pairs.append(rows[:, a].astype(np.int64) * poly.n + rows[:, b])
    low, high = np.divmod(np.unique(np.concatenate(pairs)), max(poly.n, 1))
    ends = np.concatenate([low, high])
    degrees = np.bincount(ends, minlength=poly.n)
    if not ((degrees <= k) & ~protected).any():
        return None
    others = np.concatenate([high, low])[np.argsort(ends, kind="stable")]
    return [set(part.tolist()) for part in np.split(others, np.cumsum(degrees)[:-1])]


def minimum_degree(
    poly: SpinPolynomial, k: int, protected: NDArray[np.bool_]
) -> tuple[Plan, dict[int, int]]:
    """The greedy order, and for each j <= k how many eliminations have at most j neighbours.

    The order for a smaller k is a beginning of the order for a larger one.
    """
    adjacent = _neighbours(poly, k, protected)
    if adjacent is None:
        nothing = Plan(np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int32))
        return nothing, dict.fromkeys(range(k + 1), 0)

    def entry(i: int) -> tuple[int, int, int]:
        near = adjacent[i]
        degree = len(near)
        if degree > k:
            return degree, 0, i
        inside = sum(len(adjacent[j] & near) for j in near)
        return degree, degree * (degree - 1) - inside, i

    current = {i: entry(i) for i in np.flatnonzero(~protected).tolist()}
    heap = list(current.values())
    heapq.heapify(heap)
    order: list[int] = []
    scopes: list[list[int]] = []
    ends: dict[int, int] = {}
    entries = 0
    while heap:
        item = heapq.heappop(heap)
        degree, _, i = item
        if current.get(i) != item:
            continue
        for j in range(len(ends), min(degree, k + 1)):
            ends[j] = len(order)
        if degree > k:
            break
        entries += 2**degree
        if entries > MAX_TABLE_ENTRIES:
            raise ResourceError(
                f"collapse with k = {k} needs tables of more than {MAX_TABLE_ENTRIES} entries; "
                "lower k"
            )
        del current[i]
        near = adjacent[i]
        order.append(i)
        scopes.append(sorted(near))
        touched = set(near)
        for j in near:
            adjacent[j] |= near
            adjacent[j] -= {i, j}
            if len(adjacent[j]) <= 2 * k:
                touched |= adjacent[j]
        for j in touched:
            if j in current:
                fresh = entry(j)
                if fresh != current[j]:
                    current[j] = fresh
                    heapq.heappush(heap, fresh)
    for j in range(len(ends), k + 1):
        ends[j] = len(order)
    sizes = np.array([len(s) for s in scopes], dtype=np.int64)
    plan = Plan(
        np.array(order, dtype=np.int64),
        np.concatenate([[0], np.cumsum(sizes)]),
        np.array([j for s in scopes for j in s], dtype=np.int32),
    )
    return plan, ends


def terms_left(poly: SpinPolynomial, plan: Plan) -> int:
    """At most this many terms remain: every subset of the tables left over, and untouched terms."""
    count = plan.order.size
    left = plan.uses(plan.scope_ptr, plan.scope, poly.n) == count
    terms = int((plan.uses(poly.ptr, poly.spins, poly.n) == count).sum())
    return terms + int(np.exp2(np.diff(plan.scope_ptr)[left]).sum())
