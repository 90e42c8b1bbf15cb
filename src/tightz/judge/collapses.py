"""Spins summed out of a polynomial, done again: tables in plain numpy, compared at the end.

Each spin in `order` is summed out of the terms and tables that hold it, which leaves a table over
its neighbours; what is over the kept spins alone at the end is expanded and compared coefficient by
coefficient with the collapsed polynomial (see `expansion`). The difference, and the rounding of the
sums made here, is how far log Z of the two can be apart.

Rounding, u = 2^-53: a bucket of c terms over d spins costs (c + d + 1) u sum |theta| (merges and
butterflies), u max |table| for each table added, and the log of two exponentials u |m| + 16 u.
Errors of tables add up, since log sum exp moves by no more than its arguments, and each table is
used once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tightz.judge.expansion import Residual, far_off, walsh, walsh_error
from tightz.judge.spins import SpinTerms
from tightz.judge.verdict import UNIT, RefutedError, log_summation

MAX_NEIGHBOURS = 24
"""A spin with more neighbours at its turn is refused: its table would not fit."""


@dataclass(frozen=True, eq=False)
class CollapseLink:
    """`terms` over the kept spins has the sum of another polynomial with `order` summed out.

    `kept` (K,) numbers the kept spins in the other polynomial.
    """

    terms: SpinTerms
    kept: NDArray[np.int64]
    order: NDArray[np.int64]
    _done: list[tuple[SpinTerms, float]] = field(default_factory=list, init=False, repr=False)

    def rounding(self, original: SpinTerms) -> float:
        """How far log sums of `terms` over any states can be from those of `original`."""
        for known, error in self._done:
            if known is original:
                return error
        error = check_collapse(original, self.terms, self.kept, self.order)
        self._done.append((original, error))
        return error


def check_collapse(
    original: SpinTerms, terms: SpinTerms, kept: NDArray[np.int64], order: NDArray[np.int64]
) -> float:
    """Nats by which `terms` can be off at any state of the kept spins; RefutedError if far."""
    n = kept.size + order.size
    both = np.concatenate([kept, order])
    if not np.array_equal(np.sort(both), np.arange(n)):
        raise RefutedError("kept and eliminated spins are not all spins, each once")
    if original.spins.max(initial=-1) >= n or terms.spins.max(initial=-1) >= kept.size:
        raise RefutedError("a term names a spin that does not exist")
    original.check()
    terms.check()
    if original.impossible or terms.impossible:
        return 0.0 if terms.impossible else np.inf
    buckets = _Buckets(original, n, order)
    residual = Residual()
    number = np.full(n, -1, dtype=np.int64)
    number[kept] = np.arange(kept.size)
    for e in range(order.size):
        buckets.eliminate(e)
    derived = buckets.error
    for scope, table in buckets.left:
        theta = walsh(table[None, :])[0]
        derived += walsh_error(np.abs(table).max(keepdims=True), max(len(scope), 1))
        spins = number[np.array(scope, dtype=np.int64)]
        for rows, masks in _subsets(len(scope)):
            residual.add(spins[rows], theta[masks])
    # Terms over kept spins alone were never touched: they must reappear unchanged.
    residual.add_terms(original, buckets.untouched, number, 1.0)
    residual.add(np.zeros((1, 0), np.int64), np.array([original.constant]))
    residual.subtract(terms)
    error, rounding = residual.bound()
    derived += rounding
    if far_off(error, derived, terms):
        raise RefutedError(f"a collapsed polynomial is {error:.3g} nats away from its original")
    return error + derived


class _Buckets:
    """Terms and tables by the first of their spins to be eliminated."""

    def __init__(self, terms: SpinTerms, n: int, order: NDArray[np.int64]) -> None:
        self.terms, self.order = terms, order
        self.turn = np.full(n, order.size, dtype=np.int64)
        self.turn[order] = np.arange(order.size)
        arity = np.diff(terms.ptr)
        owner = np.repeat(np.arange(terms.theta.size), arity)
        first = np.full(terms.theta.size, order.size, dtype=np.int64)
        np.minimum.at(first, owner, self.turn[terms.spins])
        by_turn = np.argsort(first, kind="stable")
        edges = np.searchsorted(first[by_turn], np.arange(order.size + 1))
        self.own = np.split(by_turn, edges[1:]) if order.size else [by_turn]
        self.untouched = by_turn[edges[order.size] :] if order.size else by_turn
        self.tables: list[list[tuple[list[int], NDArray[np.float64]]]] = [[] for _ in order]
        self.left: list[tuple[list[int], NDArray[np.float64]]] = []
        self.error = 0.0

    def eliminate(self, e: int) -> None:
        """Sum spin order[e] out of its bucket; the table goes to the next bucket it belongs to."""
        terms, spin = self.terms, int(self.order[e])
        own = [terms.spins[terms.ptr[a] : terms.ptr[a + 1]].tolist() for a in self.own[e].tolist()]
        theta = terms.theta[self.own[e]]
        members = {i for row in own for i in row}
        members.update(i for scope, _ in self.tables[e] for i in scope)
        members.discard(spin)
        scope = sorted(members)
        if len(scope) > MAX_NEIGHBOURS:
            raise RefutedError(f"spin {spin} has {len(scope)} neighbours when it is summed out")
        place = {spin: 0, **{i: j + 1 for j, i in enumerate(scope)}}
        theta_of = np.zeros(2 << len(scope))
        masks = np.zeros(len(own), dtype=np.int64)
        for a, row in enumerate(own):
            for i in row:
                masks[a] ^= 1 << place[i]
        # Coefficients by subset; the transform turns them into the sum of the bucket's terms at
        # every state of its spins.
        np.add.at(theta_of, masks, theta)
        total = walsh(theta_of[None, :])[0] * float(theta_of.size)
        self.error += UNIT * (len(own) + len(scope) + 2.0) * float(np.abs(theta).sum())
        index = np.arange(total.size)
        for inner, table in self.tables[e]:
            at = np.zeros(total.size, dtype=np.int64)
            for j, i in enumerate(inner):
                at |= ((index >> place[i]) & 1) << j
            total = total + table[at]
            self.error += UNIT * float(np.abs(total).max())
        self.tables[e] = []
        # The spin that goes is bit 0: even entries have it at +1, odd ones at -1.
        message = np.logaddexp(total[0::2], total[1::2])
        self.error += UNIT * float(np.abs(message).max()) + log_summation(2)
        turn = min((int(self.turn[i]) for i in scope), default=self.order.size)
        (self.left if turn == self.order.size else self.tables[turn]).append((scope, message))


@cache
def _subsets(width: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(positions (T, size), masks (T,)) of all subsets of `width` things, by size."""
    masks = np.arange(1 << width)
    bits = (masks[:, None] >> np.arange(width)) & 1
    sizes = bits.sum(axis=1)
    out = []
    for size in range(width + 1):
        mine = masks[sizes == size]
        out.append((np.nonzero(bits[mine])[1].reshape(len(mine), size), mine))
    return out
