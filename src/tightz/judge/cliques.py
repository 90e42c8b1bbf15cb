"""Weighted mini-buckets as evidence: where every factor went, what was shifted, with what weights.

Let rank be a variable's place in the elimination order. Clique c covers a scope of falling rank,
sums out the last variable of it with weight w_c, and hands the result to a clique of a later one:

    F_c = factors placed in c + sum of +-shifts + messages of its children
    m_c(rest) = w_c log sum_v exp(F_c(rest, v) / w_c)

A shift is one table, added to one clique and subtracted from another that both cover its scope, so
whatever its entries the F_c without messages sum to log p~ exactly, as real numbers: cost shifting
cannot drift here. By Hoelder's inequality the sum of the root messages bounds log Z from above when
the weights of every variable are positive and sum to 1, from below when all but one are negative.
With every weight at its limit 0 power sums are maxima, and the same tables bound the heaviest state
(`heaviest`).

Nothing that the maker computed is used except the shifts and weights, for which any numbers do. The
judge forms all tables and messages itself and moves them outward by their rounding, entry by entry
where it matters, so that a huge entry costs nothing elsewhere. Shifts that lie in a device's memory
are judged there (`gpu.cliques`), by the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.judge.clique_zeros import proven_zeros
from tightz.judge.verdict import UNIT, RefutedError, Verdict, log_summation, summation
from tightz.models.factor_graph import FactorGraph

_LEAST_WEIGHT = 1e-12
"""Weights nearer to zero are refused: 1 / w must be far from overflow."""

_DRIFT = 2.0**20 * UNIT
"""Share of the magnitudes by which the maker's own value may differ before it is called broken.

Its tables take a rounding per shift and iteration: thousands, not a million. This is a check of the
maker, nothing rests on it.
"""

_SMALL = 1e-11
"""Nats of rounding per clique up to which its largest entry may stand for all of them."""

_HELD = 500_000
"""Shift entries (4 MB) that a judged evidence keeps, so that it can be judged again."""


@dataclass(eq=False)
class CliquesEvidence:
    """order: free variables, first summed out first; scopes: per clique, own variable last.

    factors[c] are the model's factors placed in clique c, parents[c] is the clique that takes its
    message or -1, weights (C,). Pair p shifts costs between pairs[p] = (i, j) over the variables
    they share (axes as in scope i): entries shift_ptr[p]:shift_ptr[p + 1] of `shifts` are added to
    i and subtracted from j; -inf claims that p~ = 0 there. `claimed` is the maker's own value, by
    its own account good to `tolerance` nats.

    Large shifts are let go once judged; the verdict on that model stays. Those in a device's memory
    are, as the maker left them, an array of numba.cuda.
    """

    order: NDArray[np.int64]
    scopes: Sequence[tuple[int, ...]]
    factors: Sequence[Sequence[int]]
    parents: NDArray[np.int64]
    weights: NDArray[np.float64]
    pairs: NDArray[np.int64]
    shift_ptr: NDArray[np.int64]
    shifts: Any
    claimed: float
    tolerance: float = 0.0
    # of this object alone: a copy with other shifts is judged for itself
    _judged: dict[str, Verdict] = field(default_factory=dict, init=False, repr=False)

    def verdict(self, model: FactorGraph) -> Verdict:
        if model.digest not in self._judged:
            if self.shifts is None:
                raise RefutedError("the tables of this bound were judged on another model and left")
            self._judged[model.digest] = self._judge(model)
            if self.shifts.size > _HELD:
                self.shifts = None
            elif not isinstance(self.shifts, np.ndarray):
                self._fetch()
        return self._judged[model.digest]

    def _judge(self, model: FactorGraph) -> Verdict:
        if isinstance(self.shifts, np.ndarray):
            return _judged(CliqueTree(self, model))
        try:
            return _judged(_DeviceTree(self, model))
        except RefutedError:
            raise
        except Exception:  # of the device, whatever it is: numpy needs none
            self._fetch()
            return _judged(CliqueTree(self, model))

    def _fetch(self) -> None:
        """Bring shifts from a device's memory."""
        assert self.shifts is not None
        self.shifts = self.shifts.copy_to_host().astype(np.float64)


def _judged(tree: CliqueTree) -> Verdict:
    evidence = tree.evidence
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        upper = tree.value(+1.0) if tree.all_positive else math.inf
        lower = tree.value(-1.0) if tree.one_positive else -math.inf
    best = upper if tree.all_positive else lower
    # The maker's own number decides nothing: the verdict is what was computed here. A claim far
    # from it is a defect of the maker, and is said so rather than passed over.
    slack = _DRIFT * (tree.magnitude + 1.0) + evidence.tolerance
    if math.isfinite(best):
        off = best - evidence.claimed if tree.all_positive else evidence.claimed - best
        if not off <= slack:
            raise RefutedError(f"a bound of {evidence.claimed!r} is claimed, {best!r} is proven")
    if math.isfinite(lower) and math.isfinite(upper):
        return Verdict(lower, upper, 0.5 * (upper - lower))
    return Verdict(lower, upper, abs(best - evidence.claimed) if math.isfinite(best) else 0.0)


class CliqueTree:
    """The structure of a `CliquesEvidence`, checked against the model it is said to describe.

    shifted[c]: (sign, first entry of the shift, the other clique).
    """

    on_device = False

    def __init__(self, evidence: CliquesEvidence, model: FactorGraph) -> None:
        assert evidence.shifts is not None
        self.model, self.evidence, self.shifts = model, evidence, evidence.shifts
        self.scopes, self.parents = evidence.scopes, evidence.parents.tolist()
        self.weights = evidence.weights.tolist()
        self.magnitude = 0.0
        # Lists: single numbers out of arrays are slow, and there is one table per factor.
        self._cards, self._variables = model.cardinalities.tolist(), model.scope_vars.tolist()
        self._scope_ends, self._table_ends = model.scope_ptr.tolist(), model.table_ptr.tolist()
        self.has_zeros = bool(np.isneginf(model.log_tables).any())
        free = [v for v in range(model.n_variables) if v not in model.evidence]
        order = evidence.order.tolist()
        # Each free variable summed out once, none forgotten: otherwise the result would bound
        # another sum.
        if sorted(order) != free:
            raise RefutedError("the elimination order is not one of the model's free variables")
        self.rank = {v: k for k, v in enumerate(order)}
        self.axes = [{v: a for a, v in enumerate(s)} for s in self.scopes]
        self._check_scopes()
        self.shapes = [tuple(self._cards[v] for v in s) for s in self.scopes]
        self.children: list[list[int]] = [[] for _ in self.scopes]
        for c, parent in enumerate(self.parents):
            if parent >= 0:
                self.children[parent].append(c)
        self.constants = self._check_factors()
        self.all_positive, self.one_positive = self._check_weights()
        self.pairs = self._check_pairs()
        self.visits = sorted(range(len(self.scopes)), key=lambda c: self.rank[self.scopes[c][-1]])

    def _check_scopes(self) -> None:
        """Falling ranks, messages that fit their receivers, receivers of later variables."""
        if not len(self.scopes) == len(self.parents) == len(self.weights):
            raise RefutedError("scopes, parents and weights of cliques differ in number")
        for c, scope in enumerate(self.scopes):
            ranks = [self.rank.get(v, -1) for v in scope]
            # Falling ranks put the variable that is summed out last, so it occurs in no message
            # that this clique sends on; a parent of a later variable makes the cliques a forest
            # that can be visited in order.
            falling = all(a > b for a, b in pairwise(ranks))
            if not scope or min(ranks) < 0 or not falling:
                raise RefutedError(f"clique {c} has scope {scope}, which the order does not allow")
            parent = self.parents[c]
            if parent < 0:
                fits = len(scope) == 1
            else:
                fits = parent < len(self.scopes) and set(scope[:-1]) <= self.axes[parent].keys()
                fits = fits and self.rank[self.scopes[parent][-1]] > ranks[-1]
            if not fits:
                raise RefutedError(f"the message of clique {c} does not fit clique {parent}")

    def _check_factors(self) -> list[float]:
        """Every factor of a free variable in exactly one clique; the values of the others."""
        model, seen = self.model, set[int]()
        if len(self.evidence.factors) != len(self.scopes):
            raise RefutedError("the placed factors do not list one entry per clique")
        # A factor placed twice would count twice, one left out would drop a term of log p~: either
        # breaks the identity sum_c F_c = log p~ on which everything rests.
        for c, placed in enumerate(self.evidence.factors):
            for f in placed:
                known = 0 <= f < model.n_factors and f not in seen
                scope = [v for v in self._scope(f) if v not in model.evidence] if known else []
                if not scope or not set(scope) <= self.axes[c].keys():
                    raise RefutedError(f"factor {f} is placed twice, or not inside clique {c}")
                seen.add(f)
        constants = []
        for f in set(range(model.n_factors)) - seen:
            scope = self._scope(f)
            if any(v not in model.evidence for v in scope):
                raise RefutedError(f"factor {f} is in no clique")
            constants.append(float(self._sliced(f, scope)))
        return constants

    def _scope(self, f: int) -> list[int]:
        return self._variables[self._scope_ends[f] : self._scope_ends[f + 1]]

    def _sliced(self, f: int, scope: list[int]) -> NDArray[np.float64]:
        """The table of factor f over its free variables."""
        seen = self.model.evidence
        flat = self.model.log_tables[self._table_ends[f] : self._table_ends[f + 1]]
        table = flat.reshape([self._cards[v] for v in scope])
        return table[tuple(seen.get(v, slice(None)) for v in scope)] if seen else table

    def _check_weights(self) -> tuple[bool, bool]:
        """(all positive, exactly one positive per variable); rounding of their sums is charged."""
        by_variable: dict[int, list[float]] = {v: [] for v in self.rank}
        for scope, weight in zip(self.scopes, self.weights, strict=True):
            by_variable[scope[-1]].append(weight)
        self.weight_sums = {}
        for v, weights in by_variable.items():
            # Hoelder needs the weights of a variable to sum to 1. What is missing by rounding is
            # charged in `value`; more than that is refused.
            total = math.fsum(weights)
            if not (weights and min(map(abs, weights)) > _LEAST_WEIGHT and abs(total - 1) < 1e-9):
                raise RefutedError(f"weights {weights} of variable {v} are not those of Hoelder")
            self.weight_sums[v] = total
        # All positive: Hoelder from above. Exactly one positive and the rest negative: the reverse
        # inequality, from below. Anything else proves nothing.
        counts = [sum(w > 0 for w in weights) for weights in by_variable.values()]
        lengths = [len(weights) for weights in by_variable.values()]
        positive, single = counts == lengths, all(k == 1 for k in counts)
        if not positive and not single:
            raise RefutedError("weights of mixed signs bound neither side")
        return positive, single

    def _check_pairs(self) -> list[list[tuple[float, tuple[int, ...], NDArray[np.float64]]]]:
        """Per clique its shifts as (sign, shape to broadcast by, entries)."""
        held: list[list[tuple[float, tuple[int, ...], NDArray[np.float64]]]]
        held = [[] for _ in self.scopes]
        self.links: list[tuple[int, int, NDArray[np.float64]]] = []
        self.shifted: list[list[tuple[int, int, int]]] = [[] for _ in self.scopes]
        ends = self.evidence.shift_ptr.tolist()
        whole = ends[:1] == [0] and ends[-1] == self.shifts.size
        if len(ends) != len(self.evidence.pairs) + 1 or not whole:
            raise RefutedError("shifts and pairs differ in number")
        for p, (i, j) in enumerate(self.evidence.pairs.tolist()):
            if i == j or not 0 <= min(i, j) <= max(i, j) < len(self.scopes):
                raise RefutedError(f"shift {p} is between cliques {i} and {j}")
            shapes = self.shared_shape(i, j), self.shared_shape(j, i)
            if not all(math.prod(shape) == ends[p + 1] - ends[p] for shape in shapes):
                raise RefutedError(f"shift {p} does not fit cliques {i} and {j}")
            self.shifted[i].append((+1, ends[p], j))
            self.shifted[j].append((-1, ends[p], i))
            if self.on_device:  # entries are looked at where they lie
                continue
            entries = self.shifts[ends[p] : ends[p + 1]]
            if np.isnan(entries).any() or np.isposinf(entries).any():
                raise RefutedError(f"shift {p} holds numbers that are none")
            # The same numbers with opposite signs, taken from one array: that the shift cancels
            # needs no check.
            held[i].append((+1.0, shapes[0], entries))
            held[j].append((-1.0, shapes[1], entries))
            # -inf added to one side and subtracted from the other does not cancel. It is a claim
            # that p~ = 0 there, proven separately in `clique_zeros` before it is used.
            if np.isneginf(entries).any():
                self.links.append((i, j, entries))
        return held

    def shared_shape(self, c: int, other: int) -> tuple[int, ...]:
        """The shape in which a table over what c shares with `other` broadcasts over c.

        Axes fall in rank in both, so they come in the same order.
        """
        return tuple(
            size if v in self.axes[other] else 1
            for v, size in zip(self.scopes[c], self.shapes[c], strict=True)
        )

    def factor_tables(self, c: int) -> list[NDArray[np.float64]]:
        """The tables placed in clique c, ready to broadcast over it."""
        tables, at = [], self.axes[c]
        for f in self.evidence.factors[c]:
            scope = self._scope(f)
            table = self._sliced(f, scope)
            places = [at[v] for v in scope if v not in self.model.evidence]
            shape = [1] * len(at)
            for place, size in zip(places, table.shape, strict=True):
                shape[place] = size
            if len(places) > 1:
                table = table.transpose(sorted(range(len(places)), key=places.__getitem__))
            tables.append(table.reshape(shape))
        return tables

    @cached_property
    def zeros(self) -> list[NDArray[np.bool_]] | None:
        """States of each clique that are shown to have p~ = 0, where shifts claim any."""
        return proven_zeros(self) if self.links else None

    def value(self, side: float) -> float:
        """The bound on side +1 (upper) or -1 (lower); infinite on that side where none holds."""
        self.magnitude = sum(abs(x) for x in self.constants if x > -math.inf)
        return self.total(side, self._root_messages(side))

    def total(self, side: float, roots: list[float]) -> float:
        """The bound that root messages add up to."""
        # A side on which some part overflowed or is no number says nothing.
        parts = [*self.constants, *roots]
        if any(math.isnan(x) or x == math.inf for x in parts):
            return side * math.inf
        if -math.inf in parts:
            return -math.inf
        for v, total in self.weight_sums.items():
            # d/dw of w log sum exp(F / w) is an entropy: mending the sum costs at most log states.
            missing = max(0.0, side * (1.0 - total)) + 2.0 * UNIT * (total != 1.0)
            parts.append(side * 1.01 * missing * math.log(self.model.cardinalities[v]))
        try:
            total = math.fsum(parts)
        except OverflowError:  # of finite parts
            return side * math.inf
        return total + side * summation(2, abs(total))

    def _root_messages(self, side: float) -> list[float]:
        roots: list[float] = []
        messages: dict[int, NDArray[np.float64]] = {}
        for c in self.visits:
            sent = self.message(c, messages, side, self.weights[c])
            for child in self.children[c]:
                del messages[child]
            if self.parents[c] < 0:
                roots.append(float(sent[0]))
            else:
                messages[c] = sent
        return roots

    def terms(self, c: int, messages: dict[int, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """What adds up to F_c, each ready to broadcast: factors, shifts, messages of children."""
        terms = self.own_terms(c)
        for child in self.children[c]:
            terms.append(messages[child].reshape(self.shared_shape(c, child)))
        return terms

    def own_terms(self, c: int) -> list[NDArray[np.float64]]:
        """The factors and shifts of clique c."""
        terms = self.factor_tables(c)
        for sign, shape, entries in self.pairs[c]:
            live = np.where(np.isneginf(entries), 0.0, entries) if self.links else entries
            terms.append((live if sign > 0 else -live).reshape(shape))
        return terms

    def message(
        self, c: int, messages: dict[int, NDArray[np.float64]], side: float, weight: float
    ) -> NDArray[np.float64]:
        """m_c from the messages of its children, moved to `side` by all rounding."""
        return power_sum(*self.summed(c, self.terms(c, messages), side), weight, side)

    def summed(
        self, c: int, terms: list[NDArray[np.float64]], side: float
    ) -> tuple[NDArray[np.float64], float]:
        """(F_c, what to add to all of it), moved to `side` by rounding together.

        A term may have an axis before those of the clique: F_c then has it too.
        """
        table = np.zeros(np.broadcast_shapes(self.shapes[c], *(term.shape for term in terms)))
        for term in terms:
            table += term
        if self.zeros is not None:
            table[..., self.zeros[c]] = -np.inf
        # A sum of n terms is off by (n - 1) u times their sizes; moving it rounds once more.
        # Rounding is charged entry by entry where it matters: a single huge entry must not loosen
        # all the others. Where even the largest charge is negligible one number serves for the
        # table.
        share = side * summation(len(terms) + 1, 1.0)
        sizes = [self.sizes(term) for term in terms]
        largest = sum(float(size.max()) for size in sizes)
        self.magnitude += largest
        if abs(share) * largest <= _SMALL:
            return table, share * largest
        for size in sizes:
            table += share * size
        return table, 0.0

    def sizes(self, term: NDArray[np.float64]) -> NDArray[np.float64]:
        size: NDArray[np.float64] = np.abs(term)
        if self.has_zeros:
            size[size == np.inf] = 0.0
        return size


class _DeviceTree(CliqueTree):
    """The tables in a device's memory: upper bounds of models without zeros."""

    on_device = True

    def __init__(self, evidence: CliquesEvidence, model: FactorGraph) -> None:
        super().__init__(evidence, model)
        if self.has_zeros or not self.all_positive:
            raise ValueError("zeros and lower bounds are judged by numpy")

    def factor_place(self, f: int) -> tuple[int, dict[int, int]]:
        """Where the table of f over its free variables begins, and their strides in it."""
        at, strides, stride = self._table_ends[f], {}, 1
        for v in reversed(self._scope(f)):
            if v in self.model.evidence:
                at += stride * self.model.evidence[v]
            else:
                strides[v] = stride
            stride *= self._cards[v]
        return at, strides

    def _root_messages(self, side: float) -> list[float]:
        from tightz.judge.gpu.cliques import root_messages

        return root_messages(self, side)


def power_sum(
    table: NDArray[np.float64], shift: float, weight: float, side: float
) -> NDArray[np.float64]:
    """shift + w log sum_v exp(table / w) over the last axis, moved to `side` by its rounding.

    w = 0: the largest entry, which rounds only when it is moved.
    The last sums round by u of the result, the others as `log_summation` says.
    """
    states = table.shape[-1]
    if weight == 0.0:
        out: NDArray[np.float64] = table.reshape(-1, states).max(axis=1)
        out += shift + side * summation(2, np.abs(np.where(np.isneginf(out), 0.0, out)))
        return out
    columns = table.reshape(-1, states).T.copy()  # sums over a short last axis are slow
    top = columns.max(axis=0) if weight > 0 else columns.min(axis=0)
    empty = top == -np.inf
    if empty.any():
        top[empty] = 0.0
    columns -= top
    columns /= weight
    np.exp(columns, out=columns)
    out = top + weight * np.log(columns.sum(axis=0))
    pad = log_summation(states, weight)
    out += shift + side * (pad + summation(2, np.abs(out)))
    out[empty] = -np.inf
    return out
