"""Carrying out an elimination plan: messages forward for log Z, beliefs backward for marginals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.references.exact import kernels as kernels
from tightz.references.exact import table_kernels
from tightz.references.exact.layout import BucketLayout, Placed, bucket_layout
from tightz.references.exact.planning import EliminationPlan, tile_axes
from tightz.references.exact.schedule import BACKWARD, FORWARD, MERGE, Step
from tightz.references.exact.tables import LOG_COST, Table, TableSpace


class Elimination:
    """One pass over a schedule. After `run`, log_z and (if scheduled) marginals are there."""

    def __init__(self, model: FactorGraph, plan: EliminationPlan) -> None:
        self.model = model
        self.plan = plan
        self.cards: list[int] = plan.cardinalities.tolist()
        self._place: list[int] = np.argsort(plan.order).tolist()
        self.log_z = 0.0
        self.marginals: list[NDArray[np.float64]] = [np.zeros(0)] * model.n_variables
        self.factor_marginals = np.zeros(model.log_tables.size)
        self._sizes = plan.sizes()
        self._messages: dict[int, Table] = {}
        self._beliefs: dict[int, Table] = {}

    def run(self, steps: Sequence[Step]) -> None:
        """Follow the schedule; all large memory is taken here, at once, as planned."""
        constant = np.flatnonzero(self.model.arities == 0)
        logs = self.model.log_tables[self.model.table_ptr[constant]].tolist()
        roots: dict[int, float] = {}
        self.factor_marginals[self.model.table_ptr[constant]] = 1.0  # their one state is certain
        entries = self.plan.peak_bytes(steps) // 8
        self._space = TableSpace(entries, self.plan.reserved_entries())
        try:
            for kind, b, into in steps:
                if kind == FORWARD:
                    self._forward(b)
                    if not self.plan.buckets[b].scope:
                        roots.setdefault(b, self._space.value(self._messages[b]))
                elif kind == BACKWARD:
                    if _log_product(logs, roots) == -math.inf:
                        break  # no state has weight: there is nothing to share out
                    self._backward(b)
                elif kind == MERGE:
                    self._merge(self._messages.pop(b), self._messages[into])
                else:
                    self._space.release(self._messages.pop(b))
        finally:
            self._space.close()
        self.log_z = _log_product(logs, roots)

    def _take(self, b: int) -> Table:
        return self._space.take(self._sizes[b], self.plan.buckets[b].scope)

    def _group_tables(self, b: int) -> list[Table]:
        """The bucket's merged factors as normalised log tables at the arena's start."""
        bucket = self.plan.buckets[b]
        start = 0
        tables = []
        for (axes, members), stored in zip(
            bucket.groups, self.plan.group_axes(b, bucket), strict=True
        ):
            log = self._merged(axes, members)
            top = float(log.max())
            finite = log[log > -np.inf]
            if top > -math.inf:
                log = log - top
            size = self.plan.entries(stored)
            shape = [self.cards[a] if a in axes else 1 for a in stored]
            out = self._space.arena[start : start + size].reshape([self.cards[a] for a in stored])
            out[...] = log.reshape(shape)
            low = float(finite.min()) - top if finite.size else 0.0
            scale = top if top > -math.inf else 0.0
            tables.append(Table(start, size, stored, scale, low, 0.0, is_log=True, tight=True))
            start += size
        return tables

    def _merged(self, axes: tuple[int, ...], members: tuple[int, ...]) -> NDArray[np.float64]:
        total = np.zeros([1] * len(axes))
        for f in members:
            scope, table = self.model.factor(f)
            places = [self._place[v] for v in scope]
            shape = [self.cards[a] if a in places else 1 for a in axes]
            order = sorted(range(len(scope)), key=places.__getitem__)
            total = total + table.transpose(order).reshape(shape)
        return np.broadcast_to(total, [self.cards[a] for a in axes])

    def _forward(self, b: int) -> None:
        bucket = self.plan.buckets[b]
        groups = self._group_tables(b)
        messages = [self._messages[c] for c in bucket.children if c in self._messages]
        is_log = self._space.agree(groups, messages)
        inputs = messages + groups
        out = self._take(b)
        out.log_scale = math.fsum(t.log_scale for t in inputs)
        out.low = sum(t.low for t in inputs) - 1e-9
        out.high = sum(t.high for t in inputs) + math.log(self.cards[b]) + 1e-9
        out.is_log = is_log
        self._sum_product(b, self.cards[b], out, inputs)
        self._messages[b] = out

    def _sum_product(self, variable: int, states: int, out: Table, inputs: list[Table]) -> None:
        """out(S) = sum over `variable` of the product of inputs, all on the scale of `out`."""
        n_tile = tile_axes(out.axes, self.cards)
        placed = [Placed(t.start, t.axes) for t in inputs]
        layout = bucket_layout(variable, out.axes, n_tile, self.cards, [placed])
        kernel: Callable[..., None] = kernels.sum_product
        cost = states * out.size
        if out.is_log:
            kernel, cost = kernels.log_sum_product, LOG_COST * cost
        call = partial(
            kernel,
            self._space.arena,
            out.start,
            states,
            layout.dims,
            layout.tile,
            layout.operands[0],
        )
        workers = self._space.workers
        workers.run([partial(call, *r) for r in workers.ranges(layout.n_outer, cost)])

    def _merge(self, message: Table, onto: Table) -> None:
        """onto *= message, in place; the message's axes are among those of `onto`."""
        self._space.agree([], [onto, message])
        self._sum_product(-1, 1, onto, [onto, message])
        onto.log_scale += message.log_scale
        onto.low += message.low
        onto.high += message.high
        onto.tight = False
        self._space.release(message)

    def _backward(self, b: int) -> None:
        """p(v, S) = p(S) * inputs(v, S) / message(S): beliefs of children and of factors."""
        bucket = self.plan.buckets[b]
        message = self._messages.pop(b)
        belief = self._beliefs.pop(b, None)
        if belief is None:
            belief = self._take(b)
            self._space.values(belief)[:] = 1.0
        groups = self._group_tables(b)
        messages = [self._messages[c] for c in bucket.children]
        is_log = self._space.agree(groups, messages)
        if not is_log and not self._space.to_linear(message):
            is_log = True
            for table in groups + messages:
                self._space.to_log(table)
        inputs = messages + groups
        shift = math.fsum([*(t.log_scale for t in inputs), -message.log_scale])
        self._divide(belief, message, shift, is_log)
        children = [self._take(c) for c in bucket.children]
        self._beliefs.update(zip(bucket.children, children, strict=True))
        first = message if is_log else belief
        starts = np.cumsum([0] + [table.size for table in groups]).tolist()
        layout = bucket_layout(
            b,
            bucket.scope,
            tile_axes(bucket.scope, self.cards),
            self.cards,
            [
                [Placed(t.start, t.axes) for t in (first, *inputs)],
                [Placed(t.start, t.axes) for t in children],
                [Placed(start, t.axes) for start, t in zip(starts, groups, strict=False)],
            ],
            disjoint=1,
        )
        states = self.cards[b]
        ranges = self._space.workers.ranges(
            states * layout.n_outer,
            states * belief.size * (LOG_COST if is_log else 1),
            layout.grain,
        )
        private = np.zeros((len(ranges), starts[-1]))
        arena = self._space.arena
        if not is_log and _one_in_step(layout):
            children[0].is_ratio = True
            factor = math.exp(-messages[0].drift)
            ratio: Callable[..., None] = kernels.spread_ratio
            call = partial(ratio, arena, layout.dims, layout.tile, *layout.operands)
            calls = [partial(call, private[k], factor, *r) for k, r in enumerate(ranges)]
        else:
            for table in children:
                self._space.values(table)[:] = 0.0
            spread: Callable[..., None] = kernels.spread_belief
            call = partial(spread, arena, belief.start, states, layout.dims, layout.tile)
            calls = [
                partial(call, *layout.operands, private[k], shift, is_log, *r)
                for k, r in enumerate(ranges)
            ]
        self._space.workers.run(calls)
        self._record(b, groups, private.sum(axis=0))
        self._space.release(belief)
        self._space.release(message)

    def _divide(self, belief: Table, message: Table, shift: float, is_log: bool) -> None:
        """Prepare p / message: in place of p, or in logs -message in place of the message.

        `shift` is the log scale of the bucket's inputs less the message's, as they are now.
        """
        bottom = self._space.values(message)
        if is_log:
            if belief.is_ratio:
                self._space.each(
                    table_kernels.multiply_in_place, belief, bottom, math.exp(message.drift)
                )
            self._space.to_log(message)
            self._space.each(table_kernels.negate_in_place, message)
        elif not belief.is_ratio:
            self._space.each(table_kernels.divide_in_place, belief, bottom, math.exp(-shift))
        elif abs(shift + message.drift) > 1.0:  # inputs recomputed on another scale
            self._space.each(table_kernels.scale_in_place, belief, math.exp(shift + message.drift))

    def _record(self, b: int, groups: list[Table], sums: NDArray[np.float64]) -> None:
        """Marginals of the bucket's variable and of its factors, each normalised."""
        for k, ((_, members), table) in enumerate(
            zip(self.plan.buckets[b].groups, groups, strict=True)
        ):
            shape = [self.cards[a] for a in table.axes]
            joint = sums[table.start : table.start + table.size].reshape(shape)
            joint = joint / joint.sum()
            if k == 0:
                single = joint.reshape(self.cards[b], -1).sum(axis=1)
                self.marginals[int(self.plan.order[b])] = single
            for f in members:
                scope = self.model.scope_vars[self.model.scope_ptr[f] : self.model.scope_ptr[f + 1]]
                places = [self._place[v] for v in scope.tolist()]
                drop = tuple(j for j, a in enumerate(table.axes) if a not in places)
                back = np.argsort(np.argsort(places))
                own = joint.sum(axis=drop).transpose(back)
                first = self.model.table_ptr[f]
                self.factor_marginals[first : first + own.size] = own.ravel()


def _one_in_step(layout: BucketLayout) -> bool:
    """Whether `spread_ratio` applies: one message, one merged factor, no outer axis summed."""
    inputs, targets, sums = layout.operands
    return (
        inputs.base.size == 3
        and targets.base.size == 1
        and sums.base.size == 1
        and inputs.mode[0] == inputs.mode[2] == kernels.CONTIGUOUS
        and (
            inputs.mode[1] == kernels.CONTIGUOUS
            or (inputs.mode[1] == kernels.REPEAT and inputs.repeat[1] == 2)
        )
        and bool((targets.outer_stride != 0).all())
    )


def _log_product(logs: list[float], roots: dict[int, float]) -> float:
    terms = [*logs, *roots.values()]
    return -math.inf if -math.inf in terms else math.fsum(terms)
