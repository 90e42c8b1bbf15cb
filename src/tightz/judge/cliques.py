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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.judge.clique_terms import FACTOR, MESSAGE, SHIFT, Terms, states_of, strides_of
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

_TOGETHER = 1 << 18
"""Entries of tables that are summed together, roughly."""

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


ALONE = 1 << 10
"""Entries of a clique's table from which it is summed by itself: smaller ones of the same shape are
summed together, since a call of numpy costs as much as a thousand additions."""


class CliqueTree:
    """The structure of a `CliquesEvidence`, checked against the model it is said to describe."""

    on_device = False

    def __init__(self, evidence: CliquesEvidence, model: FactorGraph) -> None:
        assert evidence.shifts is not None
        self.model, self.evidence, self.shifts = model, evidence, evidence.shifts
        if not self.on_device:  # whatever their type and layout, both cliques see the same numbers
            self.shifts = np.ravel(np.asarray(evidence.shifts, dtype=np.float64))
        self.scopes, self.parents = evidence.scopes, evidence.parents.astype(np.int64).tolist()
        self.weights = evidence.weights.tolist()
        self.magnitude = 0.0
        self._cards = model.cardinalities.astype(np.int64)
        self.has_zeros = bool(np.isneginf(model.log_tables).any())
        free = [v for v in range(model.n_variables) if v not in model.evidence]
        order = evidence.order.tolist()
        # Each free variable summed out once, none forgotten: otherwise the result would bound
        # another sum.
        if sorted(order) != free:
            raise RefutedError("the elimination order is not one of the model's free variables")
        self.rank = {v: k for k, v in enumerate(order)}
        self._read_scopes()
        sizes = self._sizes.tolist()
        self.shapes = [tuple(row[: len(s)]) for row, s in zip(sizes, self.scopes, strict=True)]
        self.children: list[list[int]] = [[] for _ in self.scopes]
        for c, parent in enumerate(self.parents):
            if parent >= 0:
                self.children[parent].append(c)
        self.all_positive, self.one_positive = self._check_weights()
        self.terms_of = self._sorted(self._messages(), self._factors(), self._shifts())
        self.visits = sorted(range(len(self.scopes)), key=lambda c: self.rank[self.scopes[c][-1]])

    def _read_scopes(self) -> None:
        """Falling ranks, messages that fit their receivers, receivers of later variables."""
        if not len(self.scopes) == len(self.parents) == len(self.weights):
            raise RefutedError("scopes, parents and weights of cliques differ in number")
        lengths = np.fromiter(map(len, self.scopes), np.int64, len(self.scopes))
        members = np.array([v for scope in self.scopes for v in scope], dtype=np.int64)
        # (cliques, longest) the variables and their numbers of states; -1 and 1 beyond the scope
        inside = np.arange(int(lengths.max(initial=1))) < lengths[:, None]
        self._members: NDArray[np.int64] = np.full(inside.shape, -1, dtype=np.int64)
        self._members[inside] = members
        ranks = np.full(self.model.n_variables + 1, -1, dtype=np.int64)
        ranks[self.evidence.order.astype(np.int64)] = np.arange(len(self.rank))
        known = (self._members >= 0) & (self._members < self.model.n_variables)
        rank = np.where(known, ranks[np.where(known, self._members, -1)], -1)
        # Falling ranks put the variable that is summed out last, so it occurs in no message that
        # this clique sends on; a parent of a later variable makes the cliques a forest that can be
        # visited in order.
        falling = ((rank[:, :-1] > rank[:, 1:]) | ~inside[:, 1:]).all(axis=1)
        good = (lengths > 0) & ((rank >= 0) | ~inside).all(axis=1) & falling
        if not good.all():
            c = int(np.argmin(good))
            raise RefutedError(
                f"clique {c} has scope {self.scopes[c]}, which the order does not allow"
            )
        self._sizes: NDArray[np.int64] = np.ones(inside.shape, dtype=np.int64)
        self._sizes[inside] = self._cards[members]
        self._lengths = lengths
        n, count = self.model.n_variables, len(self.scopes)
        keys = (np.repeat(np.arange(count), lengths) * n + members).astype(np.int64)
        self._by_key = np.argsort(keys)
        self._keys = keys[self._by_key]
        self._firsts = np.cumsum(lengths) - lengths
        parents = np.array(self.parents, dtype=np.int64)
        child = np.flatnonzero(parents >= 0)
        fits = (parents >= 0) | (lengths == 1)
        fits[child[parents[child] >= count]] = False
        child = child[parents[child] < count]
        sent = inside[child] & (np.arange(inside.shape[1]) < lengths[child, None] - 1)
        own = rank[np.arange(count), lengths - 1] if count else rank[:, 0]
        inherited = self._axes_in(parents[child], self._members[child]) >= 0
        fits[child] = (inherited | ~sent).all(axis=1) & (own[parents[child]] > own[child])
        if not fits.all():
            c = int(np.argmin(fits))
            raise RefutedError(f"the message of clique {c} does not fit clique {self.parents[c]}")

    def _axes_in(
        self, cliques: NDArray[np.int64], variables: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """(k, m) the axis that each variable has in clique k; -1 where it has none."""
        wanted = cliques[:, None] * self.model.n_variables + variables
        at = np.minimum(np.searchsorted(self._keys, wanted), max(0, self._keys.size - 1))
        found = (variables >= 0) & (self._keys[at] == wanted)
        return np.where(found, self._by_key[at] - self._firsts[cliques][:, None], -1)

    def _messages(self) -> Terms:
        """Messages as terms of their receivers, with the axes of the sender's scope but one."""
        parents = np.array(self.parents, dtype=np.int64)
        child = np.flatnonzero(parents >= 0)
        sent = np.arange(self._members.shape[1]) < self._lengths[child, None] - 1
        sizes = np.where(sent, self._sizes[child], 1)
        axes = self._axes_in(parents[child], self._members[child])
        return Terms(
            parents[child], np.full(child.size, MESSAGE), np.ones(child.size), child,
            self._placed(axes, np.where(sent, strides_of(sizes), 0)),
        )  # fmt: skip

    def _placed(self, axes: NDArray[np.int64], strides: NDArray[np.int64]) -> NDArray[np.int64]:
        """Strides of a term's own axes at the axes of its clique."""
        out = np.zeros((len(axes), self._members.shape[1]), dtype=np.int64)
        row, column = np.nonzero(strides)
        out[row, axes[row, column]] = strides[row, column]
        return out

    def _factors(self) -> Terms:
        """Every factor of a free variable in exactly one clique; the values of the others."""
        model, placed = self.model, self.evidence.factors
        if len(placed) != len(self.scopes):
            raise RefutedError("the placed factors do not list one entry per clique")
        clique = np.repeat(np.arange(len(placed)), [len(each) for each in placed])
        factor = np.array([f for each in placed for f in each], dtype=np.int64)
        # (factors, most variables) which, how far apart their states are in the table; -1 and 0
        # for observed ones, whose states say where it begins
        arity = np.diff(model.scope_ptr).astype(np.int64)
        inside = np.arange(int(arity.max(initial=1))) < arity[:, None]
        variables = np.full(inside.shape, -1, dtype=np.int64)
        variables[inside] = model.scope_vars
        sizes = np.where(inside, np.append(self._cards, 1)[variables], 1)
        strides = np.where(inside, strides_of(sizes), 0)
        seen = np.full(model.n_variables + 1, -1, dtype=np.int64)
        for v, state in model.evidence.items():
            seen[v] = state
        observed = seen[variables] >= 0
        start = model.table_ptr[:-1] + np.where(observed, seen[variables] * strides, 0).sum(axis=1)
        is_free = inside & ~observed
        # A factor placed twice would count twice, one left out would drop a term of log p~: either
        # breaks the identity sum_c F_c = log p~ on which everything rests.
        known = (factor >= 0) & (factor < model.n_factors)
        times = np.bincount(factor[known], minlength=model.n_factors)
        safe = np.where(known, factor, 0)
        good = known.copy()
        if model.n_factors:
            axes = self._axes_in(clique, np.where(is_free, variables, -1)[safe])
            good &= (times[safe] == 1) & is_free[safe].any(axis=1)
            good &= ((axes >= 0) | ~is_free[safe]).all(axis=1)
        if not good.all():
            k = int(np.argmin(good))
            raise RefutedError(
                f"factor {factor[k]} is placed twice, or not inside clique {clique[k]}"
            )
        if (left := np.flatnonzero((times == 0) & is_free.any(axis=1))).size:
            raise RefutedError(f"factor {left[0]} is in no clique")
        self.constants: list[float] = model.log_tables[start[times == 0]].tolist()
        if not factor.size:
            return Terms(factor, factor, np.ones(0), factor, self._members[:0])
        # a variable of one state may have any stride: it is not an axis
        own = np.where(is_free & (sizes > 1), strides, 0)[factor]
        return Terms(
            clique, np.full(factor.size, FACTOR), np.ones(factor.size), start[factor],
            self._placed(axes, own),
        )  # fmt: skip

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
            if total != 1.0:
                self.weight_sums[v] = total
        # All positive: Hoelder from above. Exactly one positive and the rest negative: the reverse
        # inequality, from below. Anything else proves nothing.
        counts = [sum(w > 0 for w in weights) for weights in by_variable.values()]
        lengths = [len(weights) for weights in by_variable.values()]
        positive, single = counts == lengths, all(k == 1 for k in counts)
        if not positive and not single:
            raise RefutedError("weights of mixed signs bound neither side")
        return positive, single

    def _shifts(self) -> Terms:
        """The same numbers as terms of two cliques, with opposite signs: that they cancel needs no
        check.
        """
        ends = self.evidence.shift_ptr.astype(np.int64)
        pairs = np.asarray(self.evidence.pairs, dtype=np.int64).reshape(-1, 2)
        whole = ends.size and ends[0] == 0 and ends[-1] == self.shifts.size
        whole = whole and (ends[1:] >= ends[:-1]).all()
        if ends.size != len(pairs) + 1 or not whole:
            raise RefutedError("shifts and pairs differ in number")
        low, high = pairs.min(axis=1, initial=len(self.scopes)), pairs.max(axis=1, initial=-1)
        good = (low >= 0) & (high < len(self.scopes)) & (low != high)
        if not good.all():
            p = int(np.argmin(good))
            raise RefutedError(f"shift {p} is between cliques {pairs[p, 0]} and {pairs[p, 1]}")
        strides = []
        for side in (0, 1):
            # Axes fall in rank in both cliques, so those that they share come in the same order.
            shared = self._axes_in(pairs[:, 1 - side], self._members[pairs[:, side]]) >= 0
            sizes = np.where(shared, self._sizes[pairs[:, side]], 1)
            strides.append(np.where(shared & (sizes > 1), strides_of(sizes), 0))
            # in floats, which do not wrap around
            fits = np.prod(sizes, axis=1, dtype=np.float64) == np.diff(ends)
            if not fits.all():
                p = int(np.argmin(fits))
                raise RefutedError(
                    f"shift {p} does not fit cliques {pairs[p, 0]} and {pairs[p, 1]}"
                )
        self.links: list[tuple[int, int, NDArray[np.float64]]] = []
        if not self.on_device:  # there entries are inspected where they lie
            self._check_entries(pairs, ends)
        sign = np.repeat([1.0, -1.0], len(pairs))
        return Terms(
            pairs.T.ravel(), np.full(2 * len(pairs), SHIFT), sign, np.tile(ends[:-1], 2),
            np.concatenate(strides),
        )  # fmt: skip

    def _check_entries(self, pairs: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        bad = np.isnan(self.shifts) | np.isposinf(self.shifts)
        if bad.any():
            p = int(np.searchsorted(ends, np.argmax(bad), side="right")) - 1
            raise RefutedError(f"shift {p} holds numbers that are none")
        # -inf added to one side and subtracted from the other does not cancel. It is a claim that
        # p~ = 0 there, proven separately in `clique_zeros` before it is used.
        claims = np.isneginf(self.shifts)
        if claims.any():
            for p in np.unique(np.searchsorted(ends, np.flatnonzero(claims), side="right") - 1):
                i, j = pairs[p].tolist()
                self.links.append((i, j, self.shifts[ends[p] : ends[p + 1]]))
            self.shifts = np.where(claims, 0.0, self.shifts)

    def _sorted(self, *parts: Terms) -> Terms:
        """All terms, those of a clique together."""
        clique, *rest = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(clique, kind="stable")
        ptr = np.searchsorted(clique[order], np.arange(len(self.scopes) + 1))
        kind, sign, start, strides = (column[order] for column in rest)
        return Terms(ptr, kind, sign, start, strides.astype(np.int64))

    @cached_property
    def axes(self) -> list[dict[int, int]]:
        """Per clique the axis of each of its variables."""
        return [{v: a for a, v in enumerate(s)} for s in self.scopes]

    def shared_shape(self, c: int, other: int) -> tuple[int, ...]:
        """The shape in which a table over what c shares with `other` broadcasts over c.

        Axes fall in rank in both, so they come in the same order.
        """
        return tuple(
            size if v in self.axes[other] else 1
            for v, size in zip(self.scopes[c], self.shapes[c], strict=True)
        )

    def _views(self, c: int, kind: int, source: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """The terms of c that are parts of `source`, each ready to broadcast over c."""
        terms, shape = self.terms_of, self.shapes[c]
        views = []
        for t in range(terms.ptr[c], terms.ptr[c + 1]):
            if terms.kind[t] == kind:
                strides = terms.strides[t, : len(shape)].tolist()
                sizes = [size if stride else 1 for size, stride in zip(shape, strides, strict=True)]
                whole = source[terms.start[t] :]
                view = np.lib.stride_tricks.as_strided(
                    whole, sizes, [stride * whole.itemsize for stride in strides]
                )
                views.append(view if terms.sign[t] > 0 else -view)
        return views

    def factor_tables(self, c: int) -> list[NDArray[np.float64]]:
        """The tables placed in clique c, ready to broadcast over it."""
        return self._views(c, FACTOR, self.model.log_tables)

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
            missing = max(0.0, side * (1.0 - total)) + 2.0 * UNIT
            parts.append(side * 1.01 * missing * math.log(self.model.cardinalities[v]))
        try:
            total = math.fsum(parts)
        except OverflowError:  # of finite parts
            return side * math.inf
        return total + side * summation(2, abs(total))

    def _root_messages(self, side: float) -> list[float]:
        messages = self.messages(side, np.array(self.weights), keep=False)
        return self.roots(messages)

    def roots(self, messages: Mapping[int, NDArray[np.float64]]) -> list[float]:
        return [float(messages[c][0]) for c in self.visits if self.parents[c] < 0]

    def messages(
        self,
        side: float,
        weights: NDArray[np.float64],
        *,
        keep: bool = True,
        stop: Callable[[float], bool] = lambda entries: False,
    ) -> dict[int, NDArray[np.float64]]:
        """The message of every clique, flat, moved to `side` by all rounding.

        keep: also those of large cliques that are not needed any more. TimeoutError where
        `stop(entries)` is true before tables of so many entries.
        """
        levels = [0] * len(self.scopes)
        for c in self.visits:
            parent = self.parents[c]
            if parent >= 0:
                levels[parent] = max(levels[parent], levels[c] + 1)
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for c, level in enumerate(levels):
            groups.setdefault((level, self.shapes[c]), []).append(c)
        rows = np.array([math.prod(shape[:-1]) for shape in self.shapes], dtype=np.int64)
        small = [math.prod(shape) <= ALONE for shape in self.shapes]
        # messages that small cliques take lie in one array
        within = np.array([s or small[p] for s, p in zip(small, self.parents, strict=True)], bool)
        starts = np.cumsum(np.where(within, rows, 0)) - np.where(within, rows, 0)
        flat = np.empty(int(rows[within].sum()))
        sent: dict[int, NDArray[np.float64]] = {}
        for (_, shape), cliques in sorted(groups.items()):
            size = math.prod(shape)
            if stop(float(size)):
                raise TimeoutError
            if size > ALONE:
                for c in cliques:
                    sent[c] = self.message(c, sent, side, weights[c])
                    if within[c]:
                        flat[starts[c] : starts[c] + rows[c]] = sent[c]
                    for child in () if keep else self.children[c]:
                        del sent[child]
                continue
            step = max(1, _TOGETHER // (size * 8))
            for k in range(0, len(cliques), step):
                some = np.array(cliques[k : k + step])
                table, shift = self._tables(some, shape, flat, starts, side)
                out = power_sum(table, shift[:, None], weights[some, None], side)
                flat[starts[some][:, None] + np.arange(out.shape[1])] = out
                for c, row in zip(some.tolist(), out, strict=True):
                    sent[c] = row
        return sent

    def _tables(
        self,
        cliques: NDArray[np.int64],
        shape: tuple[int, ...],
        flat: NDArray[np.float64],
        starts: NDArray[np.int64],
        side: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(tables, what to add to each) as `summed` has them, for small cliques of one shape.

        The messages that they take begin at `starts` in `flat`.
        """
        terms, size = self.terms_of, math.prod(shape)
        counts = terms.ptr[cliques + 1] - terms.ptr[cliques]
        first = np.cumsum(counts) - counts
        t = np.repeat(terms.ptr[cliques] - first, counts) + np.arange(counts.sum())
        kind, start = terms.kind[t], terms.start[t]
        start = np.where(kind == MESSAGE, starts[np.where(kind == MESSAGE, start, 0)], start)
        places = start[:, None] + terms.strides[t, : len(shape)] @ states_of(shape)
        values = np.empty(places.shape)
        for which, source in enumerate((self.model.log_tables, self.shifts, flat)):
            rows = kind == which
            values[rows] = source[places[rows]]
        values *= terms.sign[t, None]
        table: NDArray[np.float64] = np.zeros((len(cliques), size))
        charge = np.zeros((len(cliques), size))
        some = counts > 0
        if t.size:
            table[some] = np.add.reduceat(values, first[some], axis=0)
        if self.zeros is not None:
            table[np.stack([self.zeros[c].ravel() for c in cliques])] = -np.inf
        share = side * summation(1, counts + 1.0)
        sizes = self.sizes(values)
        largest = np.zeros(len(cliques))
        if t.size:
            largest[some] = np.add.reduceat(sizes.max(axis=1), first[some])
            charge[some] = np.add.reduceat(sizes, first[some], axis=0)
        self.magnitude += float(largest.sum())
        little = np.abs(share) * largest <= _SMALL
        table += np.where(little, 0.0, share)[:, None] * charge
        table = table.reshape(len(cliques), -1, shape[-1])
        return table, np.where(little, share * largest, 0.0)

    def terms(
        self, c: int, messages: Mapping[int, NDArray[np.float64]]
    ) -> list[NDArray[np.float64]]:
        """What adds up to F_c, each ready to broadcast: factors, shifts, messages of children."""
        terms = self.own_terms(c)
        for child in self.children[c]:
            terms.append(messages[child].reshape(self.shared_shape(c, child)))
        return terms

    def own_terms(self, c: int) -> list[NDArray[np.float64]]:
        """The factors and shifts of clique c."""
        return [*self.factor_tables(c), *self._views(c, SHIFT, self.shifts)]

    def message(
        self, c: int, messages: Mapping[int, NDArray[np.float64]], side: float, weight: float
    ) -> NDArray[np.float64]:
        """m_c from the messages of its children, moved to `side` by all rounding."""
        return power_sum(*self.summed(c, self.terms(c, messages), side), weight, side).ravel()

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
        # Charges are added first: where numbers overflow they do, and the sum is none.
        table += share * sum(sizes)
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

    def _root_messages(self, side: float) -> list[float]:
        from tightz.judge.gpu.cliques import root_messages

        return root_messages(self, side)


def power_sum(
    table: NDArray[np.float64], shift: ArrayLike, weight: ArrayLike, side: float
) -> NDArray[np.float64]:
    """shift + w log sum_v exp(table / w) over the last axis, moved to `side` by its rounding.

    w = 0, then for all: the largest entry, which rounds only when it is moved.
    The last sums round by u of the result, the others as `log_summation` says.
    """
    table, weight = np.atleast_2d(table), np.asarray(weight, dtype=np.float64)
    states = table.shape[-1]
    if not weight.any():
        out: NDArray[np.float64] = table.max(axis=-1)
        out += shift + side * summation(2, np.abs(np.where(np.isneginf(out), 0.0, out)))
        return out
    columns = np.moveaxis(table, -1, 0).copy()  # sums over a short last axis are slow
    if weight.min() > 0:
        top = columns.max(axis=0)
    else:
        top = np.where(weight > 0, columns.max(axis=0), columns.min(axis=0))
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
