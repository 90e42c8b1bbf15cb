"""Cutset conditioning: some variables held at given states, the others summed out exactly.

A w-cutset (Rish and Dechter, 2000; Bidyuk and Dechter, 2007), found greedily: eliminate the
variable with the smallest table; when even that is too large, hold the variable that the most
expensive tables share.

Everything that does not depend on the held states is worked out once; a new assignment only moves
the offsets at which tables are read. Tables and messages stay in the log domain, so zeros are -inf
and nothing overflows. Every table has its largest entry taken out, which keeps the rounding error
of an entry in proportion to its depth (see `elimination.exact.precision`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import BucketTree, bucket_tree
from tightz.elimination.exact.precision import Error, joined, step_error
from tightz.elimination.game import SIZE, Rules, play
from tightz.elimination.graph import interaction_graph, scopes_of
from tightz.judge.elimination import second_log_z
from tightz.judge.verdict import UNIT, RefutedError
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.kernels import kernel


@dataclass(frozen=True, eq=False, repr=False)
class Cutset:
    """`held` variables are conditioned on; `order` sums out all others, tables <= 2^`log2_size`."""

    held: NDArray[np.int64]
    order: NDArray[np.int64]
    log2_size: float

    def __repr__(self) -> str:
        return (
            f"Cutset({self.held.size} held, {self.order.size} summed out, tables up to "
            f"2^{self.log2_size:.1f} entries)"
        )


def choose_cutset(
    model: FactorGraph,
    log2_size: float,
    *,
    cost: NDArray[np.float64] | None = None,
    noise: NDArray[np.float64] | None = None,
) -> Cutset:
    """A greedy cutset: no table met while summing out the rest exceeds 2^`log2_size` entries.

    `cost` (n,) > 0 says how unwelcome it is to hold a variable, such as its entropy: what is lost
    by holding it at one state. `noise` (n,) is added to the variables' scores, so that repeats give
    different cutsets. The model has no evidence.
    """
    n = model.n_variables
    played = play(
        interaction_graph(scopes_of(model)),
        Rules(SIZE, log2_table=log2_size),
        log2_card=np.log2(model.cardinalities.astype(np.float64)),
        price=np.ones(n) if cost is None else cost,
        noise=np.zeros(n) if noise is None else noise,
    )
    return Cutset(np.flatnonzero(played.held), played.order, played.log2_largest)


class _Buckets(NamedTuple):
    """Bucket b sums out variables[b]; its message covers axes[axis_ptr[b]:axis_ptr[b+1]].

    Input i of a bucket is read from data[base[i] + strides . digits]: one stride per axis of the
    bucket and, last, one for the variable itself, at strides[stride_ptr[i]:stride_ptr[i+1]].
    The base of a factor's table moves with the held states: see `_Held`.
    """

    variables: NDArray[np.int64]
    axis_ptr: NDArray[np.int64]
    axes: NDArray[np.int64]
    input_ptr: NDArray[np.int64]
    stride_ptr: NDArray[np.int64]
    strides: NDArray[np.int64]
    message: NDArray[np.int64]


class _Held(NamedTuple):
    """Held variable `variable[k]` moves table `table[k]` by stride[k] a state."""

    table: NDArray[np.int64]
    variable: NDArray[np.int64]
    stride: NDArray[np.int64]


class _Promise(NamedTuple):
    """`error` and `high` of a table, as in `elimination.exact.precision`."""

    error: Error
    high: float


class _Root(NamedTuple):
    """Where a message without axes lies, and its promise."""

    at: int
    kept: _Promise


def _table_strides(
    model: FactorGraph, is_held: NDArray[np.bool_]
) -> tuple[tuple[list[int], list[int], list[int]], list[dict[int, int]]]:
    """How far a state moves in each factor's table: by held variables (see `_Held`), by others."""
    held: tuple[list[int], list[int], list[int]] = ([], [], [])
    free: list[dict[int, int]] = []
    cards = model.cardinalities.tolist()
    members, ends = model.scope_vars.tolist(), model.scope_ptr.tolist()
    for f in range(model.n_factors):
        stride = 1
        free.append({})
        for v in reversed(members[ends[f] : ends[f + 1]]):
            if is_held[v]:
                for column, value in zip(held, (f, v, stride), strict=True):
                    column.append(value)
            else:
                free[f][v] = stride
            stride *= cards[v]
    return held, free


def _after(inputs: list[_Promise], states: int) -> _Promise:
    """The promise of a message in logs; it holds for every assignment of the cutset."""
    high = math.fsum(p.high for p in inputs)
    own = step_error(max(len(inputs), 1), states, high, logarithmic=True)
    return _Promise(joined(p.error for p in inputs).plus(*own), high + math.log(states))


class ConditionedElimination:
    """Sums over the variables outside a cutset, for any states of the cutset.

    The model has no evidence. Work space is `entries` float64 numbers beside the model's tables;
    `work` is how many numbers one evaluation reads. `rounding` bounds the error of the last `log_z`
    against the tables as given, in nats.
    """

    def __init__(self, model: FactorGraph, cutset: Cutset) -> None:
        self.model, self.cutset = model, cutset
        self.cards = model.cardinalities.astype(np.int64)
        self.rounding = 0.0
        is_held = np.zeros(model.n_variables, dtype=bool)
        is_held[cutset.held] = True
        tree = bucket_tree(scopes_of(model).without(is_held), cutset.order)
        self._constants: list[int] = np.flatnonzero(tree.home < 0).tolist()
        held, strides = _table_strides(model, is_held)
        self._held = _Held(*(np.array(c, dtype=np.int64) for c in held))
        self._place(tree, strides)
        self._data = np.empty(0)

    def _place(self, tree: BucketTree, strides: list[dict[int, int]]) -> None:
        """Where every message lies and how its inputs are read; `strides`: of the factors' tables.

        A message is numbered after the factors and is, like them, an input of one bucket.
        """
        cards, order = self.cards.tolist(), tree.order.tolist()
        n_factors, tables = self.model.n_factors, self.model.log_tables.size
        base = self.model.table_ptr[:-1].tolist()
        axis_ptr, axes, input_ptr, stride_ptr = [0], [], [0], [0]
        all_strides: list[int] = []
        source: list[int] = []
        self._roots: list[_Root] = []
        promises = [_Promise(Error(0.0, UNIT), 0.0)] * n_factors
        self.largest = 0
        self.work = 0.0
        at = tables
        for b, v in enumerate(order):
            inputs = [*tree.sources[b], *(n_factors + c for c in tree.children[b])]
            rest = tree.scopes[b][1:]
            for k in inputs:
                all_strides += [strides[k].get(u, 0) for u in (*rest, v)]
                stride_ptr.append(len(all_strides))
            source += inputs
            input_ptr.append(len(source))
            axes += rest
            axis_ptr.append(len(axes))
            size, own = 1, {}
            for u in reversed(rest):
                own[u] = size
                size *= cards[u]
            strides.append(own)
            promises.append(_after([promises[k] for k in inputs], cards[v]))
            if not rest:
                self._roots.append(_Root(at, promises[-1]))
            self.largest = max(self.largest, size * cards[v])
            base.append(at)
            at += size
            self.work += float(size) * cards[v] * len(inputs)
        self.entries = at - tables
        self._source = np.array(source, dtype=np.int64)
        self._base = np.array(base, dtype=np.int64)
        message = base[n_factors:]
        self._buckets = _Buckets(
            *(
                np.array(values, dtype=np.int64)
                for values in (order, axis_ptr, axes, input_ptr, stride_ptr, all_strides, message)
            )
        )

    def _fill(self) -> None:
        """Copy the tables, each less its largest entry, and remember those."""
        model = self.model
        self._data = np.empty(model.log_tables.size + self.entries)
        tops = np.maximum.reduceat(model.log_tables, model.table_ptr[:-1])
        tops[np.isneginf(tops)] = 0.0
        self._tops: list[float] = tops.tolist()
        sizes = np.diff(model.table_ptr)
        self._data[: model.log_tables.size] = model.log_tables - np.repeat(tops, sizes)

    def log_z(self, state: NDArray[np.int64]) -> float:
        """log of the sum of p~ over all states that agree with `state` (n,) on the cutset."""
        if not self._data.size:
            self._fill()
        self._where = self._base.copy()
        np.add.at(self._where, self._held.table, self._held.stride * state[self._held.variable])
        _forward(self._buckets, self._where[self._source], self.cards, self._data)
        constants = [float(self._data[self._where[f]]) for f in self._constants]
        roots = [float(self._data[r.at]) for r in self._roots]
        self.rounding = 0.0
        if min([*constants, *roots], default=0.0) == -math.inf:
            return -math.inf
        value = math.fsum([*constants, *roots, *self._tops])
        errors = [r.kept.error.at(r.kept.high - x) for r, x in zip(self._roots, roots, strict=True)]
        own = UNIT * (abs(value) + math.fsum(map(abs, constants)))
        self.rounding = math.fsum(errors) + own
        return value

    def audit(self, state: NDArray[np.int64]) -> bool:
        """Sum the same assignment a second way; RefutedError where the two differ.

        False where the judge's own order would need tables 64 times those met here.
        """
        value, rounding = self.log_z(state), self.rounding
        fixed = {int(v): int(state[v]) for v in self.cutset.held}
        second = second_log_z(self.model.with_evidence(fixed), max(1 << 16, 64 * self.largest))
        if second is None:
            return False
        if value != second[0] and not abs(value - second[0]) <= rounding + second[1]:
            raise RefutedError(
                f"conditioning: an assignment sums to {value!r}; a second elimination finds "
                f"{second[0]!r}"
            )
        return True

    def sample(self, state: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """A state drawn from p given the cutset's states; call right after `log_z(state)`."""
        out: NDArray[np.int64] = np.array(state, dtype=np.int64)
        uniforms = rng.random(self.cutset.order.size)
        _backward(self._buckets, self._where[self._source], self.cards, self._data, uniforms, out)
        return out


@kernel
def _forward(buckets, base, cards, data):  # type: ignore[no-untyped-def]
    """message_b(axes) = log sum_v exp(sum of inputs), bucket by bucket, into `data`."""
    row = np.empty(cards.max() if cards.size else 1)
    for b in range(buckets.variables.size):
        first, last = buckets.input_ptr[b], buckets.input_ptr[b + 1]
        a0, count = buckets.axis_ptr[b], buckets.axis_ptr[b + 1] - buckets.axis_ptr[b]
        here = base[first:last].copy()
        digits = np.zeros(count, dtype=np.int64)
        states = cards[buckets.variables[b]]
        size = 1
        for a in range(count):
            size *= cards[buckets.axes[a0 + a]]
        for e in range(size):
            top = -np.inf
            for x in range(states):
                total = 0.0
                for i in range(last - first):
                    own = buckets.strides[buckets.stride_ptr[first + i] + count]
                    total += data[here[i] + x * own]
                row[x] = total
                top = max(top, total)
            if top > -np.inf:
                total = 0.0
                for x in range(states):
                    total += np.exp(row[x] - top)
                top += np.log(total)
            data[buckets.message[b] + e] = top
            for a in range(count - 1, -1, -1):
                length = cards[buckets.axes[a0 + a]]
                digits[a] += 1
                carry = digits[a] == length
                if carry:
                    digits[a] = 0
                for i in range(last - first):
                    stride = buckets.strides[buckets.stride_ptr[first + i] + a]
                    here[i] += stride - length * stride if carry else stride
                if not carry:
                    break


@kernel
def _backward(buckets, base, cards, data, uniforms, state):  # type: ignore[no-untyped-def]
    """Draw the variables from the last bucket to the first, each given those drawn before."""
    row = np.empty(cards.max() if cards.size else 1)
    for b in range(buckets.variables.size - 1, -1, -1):
        first, last = buckets.input_ptr[b], buckets.input_ptr[b + 1]
        a0, count = buckets.axis_ptr[b], buckets.axis_ptr[b + 1] - buckets.axis_ptr[b]
        v = buckets.variables[b]
        top = -np.inf
        for x in range(cards[v]):
            total = 0.0
            for i in range(first, last):
                at = base[i] + x * buckets.strides[buckets.stride_ptr[i] + count]
                for a in range(count):
                    stride = buckets.strides[buckets.stride_ptr[i] + a]
                    at += stride * state[buckets.axes[a0 + a]]
                total += data[at]
            row[x] = total
            top = max(top, total)
        if top == -np.inf:
            continue
        total = 0.0
        for x in range(cards[v]):
            row[x] = np.exp(row[x] - top)
            total += row[x]
        threshold = uniforms[b] * total
        chosen = -1
        for x in range(cards[v]):
            if row[x] > 0.0:
                chosen = x
                threshold -= row[x]
                if threshold < 0.0:
                    break
        state[v] = chosen
