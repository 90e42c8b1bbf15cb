"""Collapse: sum spins with few neighbours out of a polynomial exactly, and find them again.

With f(x) the factor of s_i in the polynomial, sum_{s_i} exp(s_i f(x)) = exp(log 2cosh f(x)), a
function of the neighbours of i alone. Its Walsh expansion replaces the terms that held i, so Z is
unchanged and a polynomial over fewer spins remains. In reverse order p(s_i = +1 | x) =
1 / (1 + exp(-2 f(x))) gives the eliminated spins back. (Variable elimination: Bertele and
Brioschi, 1972; minimum degree with least fill to break ties: Rose, 1972.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, ParameterError, require_range
from tightz.judge.verdict import LIBRARY, UNIT
from tightz.models.inputs import as_model
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.collapse_kernels import (
    Tables,
    eliminate,
    lift_joint,
    lift_state,
)
from tightz.reductions.collapse_plan import Plan, eliminable, plan_elimination, terms_left

MAX_NEIGHBOURS = 20
"""Largest k: one elimination then makes a table of 2^20 entries."""

AUTO_NEIGHBOURS = 10
"""Largest k that k=None picks."""

NOISE = 2.0**-52
"""A coefficient below this fraction of the largest value in its table is rounding error."""

Expectations = Callable[[NDArray[np.int64], NDArray[np.int32]], NDArray[np.float64]]


@dataclass(frozen=True, eq=False, repr=False)
class Collapsed:
    """A polynomial with the same Z over fewer spins, and the record of what was summed out.

    polynomial    over the kept spins, renumbered 0..len(kept)-1
    kept          (kept,) their numbers in `original`, ascending
    k             eliminated spins had at most k neighbours when their turn came
    order         (E,) eliminated spins, first to last
    scope_ptr, scope   CSR: the neighbours of order[e], kept or eliminated later, ascending
    fields        entry table_ptr[e] + x is f of order[e] at state x of its neighbours (bit b of x
                  set: neighbour b has spin -1)
    next_use      (E,) the elimination that consumed the table of e, or E if all of it was kept
    dropped       at every state of the kept spins, `polynomial` is within this many nats of the log
                  of the sum over the others: terms left out and float64 rounding (see `_rounding`).
                  So log Z, and the sum over any set of kept states, moves by no more
    """

    original: SpinPolynomial
    polynomial: SpinPolynomial
    kept: NDArray[np.int64]
    k: int
    order: NDArray[np.int64]
    scope_ptr: NDArray[np.int64]
    scope: NDArray[np.int32]
    table_ptr: NDArray[np.int64]
    fields: NDArray[np.float64]
    next_use: NDArray[np.int64]
    dropped: float

    def lift_states(
        self, spins: ArrayLike, rng: np.random.Generator | None = None
    ) -> NDArray[np.int8]:
        """All spins (S, n) of the original for each row of kept `spins` (S, kept), entries +-1.

        With `rng` the eliminated spins are drawn from their exact conditional distribution given
        the kept ones; without, they are set to their joint heaviest state given the kept ones.
        """
        kept = np.atleast_2d(np.asarray(spins))
        if kept.shape[1] != self.kept.size or not (np.abs(kept) == 1).all():
            raise ModelError(
                f"states have shape {kept.shape} for {self.kept.size} kept spins; expected rows of "
                f"{self.kept.size} entries, each +1 or -1"
            )
        out = np.ones((len(kept), self.original.n), dtype=np.int8)
        out[:, self.kept] = kept
        drawn = rng is not None
        uniform = rng.random((len(kept), self.order.size)) if rng is not None else np.zeros((0, 0))
        fields = self.fields if drawn else self._hard_fields
        lift_state(
            self.order, self.scope_ptr, self.scope, self.table_ptr, fields, uniform, drawn, out
        )
        return out

    def lift_means(self, q: ArrayLike | Expectations) -> NDArray[np.float64]:
        """E[s_i] of all n original spins under q(kept) * p(eliminated | kept), exactly.

        `q` is the vector of means (kept,) of a product distribution, or a function
        (ptr, spins) -> E_q[prod of spins[ptr[a]:ptr[a+1]]] for any q, for a coset say
        `lambda ptr, spins: coset.expectations(ptr, spins, means)[:, 0]`.

        Exact because the neighbours of an eliminated spin lie, but for the next of them to be
        eliminated, among that one's neighbours: its joint table is a marginal of theirs.
        """
        chi = _product(q, self.kept.size) if not callable(q) else q
        means = np.empty(self.original.n)
        ptr, spins = np.arange(self.kept.size + 1), np.arange(self.kept.size, dtype=np.int32)
        means[self.kept] = chi(ptr, spins)
        joints = np.zeros(2 * int(self.table_ptr[-1]))
        roots = np.flatnonzero(self.next_use == self.order.size)
        number = np.full(self.original.n, -1, dtype=np.int32)
        number[self.kept] = spins
        for degree, group in _by_size(np.diff(self.scope_ptr), roots):
            # Walsh coefficients of the joint distribution of a root's neighbours, all kept.
            rows = number[self.scope[self.scope_ptr[group][:, None] + np.arange(degree)]]
            at = self.table_ptr[group]
            for subset, columns in _subsets(degree):
                chosen = rows[:, columns]
                values = chi(len(columns) * np.arange(len(group) + 1), chosen.ravel())
                joints[2 * at + subset] = np.asarray(values, dtype=np.float64)
        cliques = self.order, self.scope_ptr, self.scope, self.table_ptr
        widest = int(np.diff(self.scope_ptr).max(initial=0))
        bits, image = np.empty(64, dtype=np.int64), np.empty(2 << widest, dtype=np.int64)
        lift_joint(cliques, self.fields, self.next_use, joints, means, bits, image)
        return means

    @cached_property
    def _hard_fields(self) -> NDArray[np.float64]:
        """The fields when spins are maximised out, not summed out."""
        plan = plan_elimination(self.original, self.order)
        return _eliminate(self.original, plan, hard=True).fields

    def __repr__(self) -> str:
        return (
            f"Collapsed({self.original.n} -> {self.kept.size} spins with k = {self.k}, "
            f"{self.original.n_terms} -> {self.polynomial.n_terms} terms)"
        )


def collapse(
    polynomial: SpinPolynomial,
    k: int | None = None,
    *,
    keep: ArrayLike = (),
    max_terms: int | None = None,
    most: int = AUTO_NEIGHBOURS,
) -> Collapsed:
    """Eliminate, least neighbours first, every spin that touches at most k others at its turn.

    keep        spins that must stay (their joint marginals are wanted, say)
    k           None: the largest k up to `most` for which the result has at most `max_terms` terms
    max_terms   for k=None only; default 4 times the model's own terms, and at least 4,000: the
                time of a sweep grows with it
    """
    as_model(polynomial, "collapse", only="SpinPolynomial")
    protected = np.zeros(polynomial.n, dtype=bool)
    numbers = np.asarray(keep, dtype=np.int64).ravel()
    outside = numbers[(numbers < 0) | (numbers >= polynomial.n)]
    if outside.size:
        raise ParameterError(
            f"keep names spin {outside[0]}; the model has spins 0 to {polynomial.n - 1}"
        )
    protected[numbers] = True
    if k is None:
        require_range("most", most, 0, MAX_NEIGHBOURS)
        plan, k = _affordable(polynomial, protected, max_terms, most)
    else:
        require_range("k", k, 0, MAX_NEIGHBOURS)
        plan = plan_elimination(polynomial, eliminable(polynomial, int(k), protected)[0])
    tables = _eliminate(polynomial, plan, hard=False)
    kept = np.setdiff1d(np.arange(polynomial.n), plan.order)
    remainder, dropped = _remainder(polynomial, plan, tables, kept)
    return Collapsed(
        original=polynomial,
        polynomial=remainder,
        kept=kept,
        k=int(k),
        order=plan.order,
        scope_ptr=plan.scope_ptr,
        scope=plan.scope,
        table_ptr=plan.table_ptr,
        fields=tables.fields,
        next_use=plan.table_use,
        dropped=dropped,
    )


def _affordable(
    poly: SpinPolynomial, protected: NDArray[np.bool_], max_terms: int | None, most: int
) -> tuple[Plan, int]:
    """The plan for the largest k whose result stays within `max_terms`, and k."""
    budget = max(4_000, 4 * poly.n_terms) if max_terms is None else max_terms
    require_range("max_terms", budget, 0)
    order, ends = eliminable(poly, most, protected)
    for k in range(most, -1, -1):
        plan = plan_elimination(poly, order[: ends[k]])
        if k == 0 or terms_left(plan) <= budget:
            break
    return plan, k


def _eliminate(poly: SpinPolynomial, plan: Plan, *, hard: bool) -> Tables:
    """Carry the plan out; `hard` maximises where it would sum."""
    count, entries = plan.order.size, int(plan.table_ptr[-1])
    tables = Tables(
        np.zeros(entries),
        np.zeros(entries),
        np.zeros(count),
        np.zeros((count, 2)),
        np.zeros(count),
    )
    eliminate(poly, plan, hard, tables)
    return tables


def _rounding(plan: Plan, tables: Tables) -> float:
    """Nats that float64 arithmetic can move the collapsed polynomial at any state.

    Elimination e of a spin with d neighbours, a tables and its own terms consumed:

    * f is a sum of coefficients, at most a + 1 to one entry, then d rounds of the transform: within
      (a + 1 + d) UNIT sums[e, 0] of the true value, sums holding the absolute values added up.
    * log 2cosh has slope at most 1, so f's error passes through it; it costs 2 LIBRARY (exp, log1p)
      and UNIT of its value, at most scale[e].
    * The transform back is orthogonal up to a power of two, so its d rounds err by d UNIT rms(log
      2cosh f) in the 2-norm of the 2^d coefficients: by 2^(d/2) d UNIT scale[e] at any state.
    * Adding the consumed messages' other coefficients: (a + 1) UNIT sums[e, 1].

    Summing a spin out never enlarges an error in the largest norm, so the errors of all
    eliminations add up. Twice their sum covers the second order.
    """
    count = plan.order.size
    degree = np.diff(plan.scope_ptr).astype(np.float64)
    consumed = np.bincount(plan.table_use, minlength=count + 1)[:count] + 1.0
    units = (consumed + degree) * tables.sums[:, 0] + consumed * tables.sums[:, 1]
    units += (1.0 + np.exp2(degree / 2) * degree) * tables.scale
    return 2.0 * float(UNIT * units.sum() + 2.0 * LIBRARY * count)


def _remainder(
    poly: SpinPolynomial, plan: Plan, tables: Tables, kept: NDArray[np.int64]
) -> tuple[SpinPolynomial, float]:
    """The polynomial over the kept spins, and how far any of its values can be off."""
    count = plan.order.size
    number = np.full(poly.n, -1, dtype=np.int64)
    number[kept] = np.arange(kept.size)
    blocks: list[tuple[NDArray, NDArray]] = []
    for arity, group in _by_size(poly.arities, np.flatnonzero(plan.term_use == count)):
        rows = poly.spins[poly.ptr[group][:, None] + np.arange(arity)]
        blocks.append((number[rows], poly.theta[group]))
    dropped = _rounding(plan, tables)
    left = np.flatnonzero(plan.table_use == count)
    for degree, group in _by_size(np.diff(plan.scope_ptr), left):
        rows = number[plan.scope[plan.scope_ptr[group][:, None] + np.arange(degree)]]
        theta = tables.messages[plan.table_ptr[group][:, None] + np.arange(2**degree)]
        noise = np.abs(theta) <= NOISE * tables.scale[group][:, None]
        dropped += float(np.abs(theta[noise]).sum())
        theta[noise] = 0.0
        for subset, columns in _subsets(degree):
            some = theta[:, subset] != 0.0
            if some.any():
                blocks.append((rows[some][:, columns], theta[some, subset]))
    constant = math.fsum([poly.constant, *tables.constants.tolist()])
    if count:
        # Equal terms are added: at most one of the polynomial's own and one of each table there.
        sharing = plan.scope[_spans(plan.scope_ptr, left)]
        equal = 1 + int(np.bincount(sharing).max(initial=0))
        added = math.fsum(float(np.abs(theta).sum()) for _, theta in blocks)
        finite = abs(constant) if math.isfinite(constant) else 0.0
        dropped += 2.0 * UNIT * (equal * added + finite)
    return SpinPolynomial.from_blocks(kept.size, constant, blocks), dropped


def _spans(ptr: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the members' entries of a CSR lie."""
    return np.concatenate(
        [np.arange(ptr[m], ptr[m + 1]) for m in members] + [np.zeros(0, np.int64)]
    )


def _by_size(sizes: NDArray, members: NDArray) -> Iterable[tuple[int, NDArray[np.int64]]]:
    """(size, members of that size) for the sizes that occur."""
    for size in np.unique(sizes[members]).tolist():
        yield size, members[sizes[members] == size]


def _subsets(degree: int) -> Iterable[tuple[int, list[int]]]:
    """(bit mask, positions) of all subsets of `degree` things."""
    for mask in range(2**degree):
        yield mask, [b for b in range(degree) if mask >> b & 1]


def _product(means: ArrayLike, n: int) -> Expectations:
    """Expectations of parities under independent spins."""
    v = np.asarray(means, dtype=np.float64)
    if v.shape != (n,) or not (np.abs(v) <= 1.0).all():
        raise ModelError(f"means have shape {v.shape}; expected ({n},) entries in [-1, 1]")

    def chi(ptr: NDArray[np.int64], spins: NDArray[np.int32]) -> NDArray[np.float64]:
        factors = np.insert(v[spins], ptr[:-1], 1.0)
        starts = ptr[:-1] + np.arange(len(ptr) - 1)
        return np.multiply.reduceat(factors, starts) if len(starts) else np.zeros(0)

    return chi
