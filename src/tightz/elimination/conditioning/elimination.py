"""Elimination with some variables held: log of the sum over the others, and samples of them.

Everything that does not depend on the held states is worked out once; a new assignment only moves
the offsets at which tables are read. Tables and messages stay in the log domain, so zeros are -inf
and nothing overflows. Every table has its largest entry taken out, which keeps the rounding error
of an entry in proportion to its depth (see `elimination.exact.precision`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.elimination.conditioning.cutset import Cutset
from tightz.elimination.exact.precision import Error, joined, step_error
from tightz.judge.elimination import second_log_z
from tightz.judge.rounding import UNIT
from tightz.judge.verdict import RefutedError
from tightz.models.factor_graph import FactorGraph


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
        position = np.full(model.n_variables, -1, dtype=np.int64)
        position[cutset.order] = np.arange(cutset.order.size)
        self.rounding = 0.0
        self._build(position.tolist())

    def _build(self, position: list[int]) -> None:
        model, cards = self.model, self.cards.tolist()
        n_buckets = self.cutset.order.size
        order = self.cutset.order.tolist()
        tables = model.log_tables.size
        inputs: list[list[tuple[int, dict[int, int]]]] = [[] for _ in range(n_buckets)]
        meets: list[set[int]] = [set() for _ in range(n_buckets)]
        base = model.table_ptr[:-1].tolist()
        held: list[tuple[int, int, int]] = []
        self._constants: list[int] = []
        for f in range(model.n_factors):
            scope = model.scope_vars[model.scope_ptr[f] : model.scope_ptr[f + 1]].tolist()
            stride, strides = 1, {}
            for v in reversed(scope):
                if position[v] < 0:
                    held.append((f, v, stride))
                else:
                    strides[v] = stride
                stride *= cards[v]
            if strides:
                first = min(position[v] for v in strides)
                inputs[first].append((f, strides))
                meets[first].update(position[v] for v in strides)
            else:
                self._constants.append(f)
        axis_ptr, axes, input_ptr, stride_ptr, all_strides = [0], [], [0], [0], []
        message, source = [], []
        self._roots: list[_Root] = []
        promise = {k: _Promise(Error(0.0, UNIT), 0.0) for k in range(model.n_factors)}
        self.largest = 0
        self.work = 0.0
        at = tables
        for b in range(n_buckets):
            scope_b = sorted(meets[b] - {b})
            message.append(at)
            variables = [order[p] for p in scope_b]
            for k, strides in inputs[b]:
                source.append(k)
                all_strides += [strides.get(v, 0) for v in (*variables, order[b])]
                stride_ptr.append(len(all_strides))
            input_ptr.append(len(source))
            axes += variables
            axis_ptr.append(len(axes))
            size, own = 1, {}
            for v in reversed(variables):
                own[v] = size
                size *= cards[v]
            kept = _after([promise[k] for k, _ in inputs[b]], cards[order[b]])
            promise[len(base)] = kept
            if scope_b:
                meets[scope_b[0]].update(scope_b)
                inputs[scope_b[0]].append((len(base), own))
            else:
                self._roots.append(_Root(at, kept))
            self.largest = max(self.largest, size * cards[order[b]])
            base.append(at)
            at += size
            self.work += float(size) * cards[order[b]] * len(inputs[b])
        self.entries = at - tables
        self._source = np.array(source, dtype=np.int64)
        self._base = np.array(base, dtype=np.int64)
        self._held = (
            _Held(*(np.array(c, dtype=np.int64) for c in zip(*held, strict=True)))
            if (held)
            else _Held(*(np.zeros(0, dtype=np.int64),) * 3)
        )
        self._buckets = _Buckets(
            *(
                np.array(values, dtype=np.int64)
                for values in (order, axis_ptr, axes, input_ptr, stride_ptr, all_strides, message)
            )
        )
        self._data = np.empty(0)

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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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
