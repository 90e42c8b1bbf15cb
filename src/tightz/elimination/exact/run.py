"""Carrying out an elimination plan: messages forward for log Z, beliefs backward for marginals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact import kernels as kernels
from tightz.elimination.exact import tables
from tightz.elimination.exact.adjoints import MeetLayout, meet_layout, run_meet
from tightz.elimination.exact.audit import Audit, check_singles
from tightz.elimination.exact.passes import PassLayout, Turn, pass_layout, run_pass
from tightz.elimination.exact.planning import EliminationPlan, tile_axes
from tightz.elimination.exact.precision import Error, Scale, add_scales, joined, step_error
from tightz.elimination.exact.schedule import (
    BACKWARD,
    FORWARD,
    MERGE,
    BucketLayout,
    Placed,
    Step,
    bucket_layout,
)
from tightz.elimination.exact.tables import LIMIT, LOG_COST, Table, TableSpace, go_on_unless
from tightz.judge.claims import total_scale
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError
from tightz.models.factor_graph import FactorGraph

MEET = 1 << 16
"""Products of a bucket of two tables from which on its backward step goes by `adjoints`."""

PRIVATE = 1 << 16
"""Entries of a table that every worker may have a copy of."""


class Elimination:
    """One pass over a schedule. After `run`, log_z and (if scheduled) marginals are there.

    `rounding` bounds |log_z - log Z of the tables as given| (see `precision`). Every message is
    audited at sampled contexts, every recorded joint must sum to 1, and the marginals of a variable
    from different factors must agree: judge.RefutedError otherwise.
    """

    def __init__(self, model: FactorGraph, plan: EliminationPlan) -> None:
        self.model = model
        self.plan = plan
        self.cards: list[int] = plan.cardinalities.tolist()
        self._place: list[int] = np.argsort(plan.order).tolist()
        self.scale = Scale()  # log Z to twice float64's precision; `log_z` is its first part
        self.log_z = 0.0
        self.rounding = 0.0
        self.marginals: list[NDArray[np.float64]] = [np.zeros(0)] * model.n_variables
        self.factor_marginals = np.zeros(model.log_tables.size)
        self._slack = np.zeros(model.n_variables)
        self._sizes = plan.sizes()
        self._messages: dict[int, Table] = {}
        self._beliefs: dict[int, Table] = {}

    def run(self, steps: Sequence[Step], stop: Callable[[], bool] = bool) -> None:
        """Follow the schedule; all large memory is taken here, at once, as planned.

        `StoppedError` as soon as `stop()` says so, between two blocks of a table.
        """
        constant = np.flatnonzero(self.model.arities == 0)
        logs = self.model.log_tables[self.model.table_ptr[constant]].tolist()
        roots: dict[int, tuple[list[float], float]] = {}
        self.factor_marginals[self.model.table_ptr[constant]] = 1.0  # their one state is certain
        entries = self.plan.peak_bytes(steps) // 8
        self._space = TableSpace(entries, self.plan.reserved_entries, stop)
        self._audit = Audit(self.model, self.plan, self._space)
        complete = False
        try:
            for kind, b, into, chain in steps:
                go_on_unless(stop)
                if kind == FORWARD:
                    if b not in self.plan.chains or not self._pass((*chain, b)):
                        self._one_by_one((*chain, b))
                    if not self.plan.buckets[b].scope:
                        roots.setdefault(b, self._space.root(self._messages[b]))
                elif kind == BACKWARD:
                    if _log_product(logs, roots).high == -math.inf:
                        break  # no state has weight: there is nothing to share out
                    self._backward(b)
                    complete = True
                elif kind == MERGE:
                    self._merge(self._messages.pop(b), self._messages[into])
                elif b in self._messages:  # not forgotten with its chain
                    self._space.release(self._messages.pop(b))
        finally:
            self._space.close()
        self._audit.finish()
        self.scale = _log_product(logs, roots)
        self.log_z = self.scale.high
        if self.log_z > -math.inf:
            self.rounding = math.fsum(error for _, error in roots.values())
            self.rounding += UNIT * abs(self.log_z)
        if complete:
            check_singles(self.model, self.marginals, self.factor_marginals, self._slack)

    def _take(self, b: int) -> Table:
        return self._space.take(self._sizes[b], self.plan.buckets[b].scope)

    def _group_tables(self, b: int, start: int = 0, *, spread: bool = True) -> list[Table]:
        """The bucket's merged factors as normalised log tables, from the arena's `start` on."""
        bucket = self.plan.buckets[b]
        stored_as = self.plan.group_axes(bucket) if spread else [axes for axes, _ in bucket.groups]
        tables = []
        for (axes, members), stored in zip(bucket.groups, stored_as, strict=True):
            log, scales, error = self._merged(axes, members)
            top = float(log.max())
            finite = log[log > -np.inf]
            if -math.inf < top < 0.0:
                log = log - top
                scales.append(top)
                error = error.lowered(-top).plus(0.0, UNIT)
            size = self.plan.entries(stored)
            shape = [self.cards[a] if a in axes else 1 for a in stored]
            out = self._space.arena[start : start + size].reshape([self.cards[a] for a in stored])
            out[...] = log.reshape(shape)
            low = float(finite.min()) - top if finite.size else 0.0
            scale = add_scales(scales)
            tables.append(
                Table(start, size, stored, scale, low, is_log=True, tight=True, error=error)
            )
            start += size
        return tables

    def _merged(
        self, axes: tuple[int, ...], members: tuple[int, ...]
    ) -> tuple[NDArray[np.float64], list[float], Error]:
        """The sum of the members, each less its largest entry, and those largest entries.

        Taking them out first keeps every rounding error in proportion to the depth of an entry.
        """
        total = np.zeros([1] * len(axes))
        tops = []
        for f in members:
            scope, table = self.model.factor(f)
            places = [self._place[v] for v in scope]
            shape = [self.cards[a] if a in places else 1 for a in axes]
            order = sorted(range(len(scope)), key=places.__getitem__)
            top = float(table.max())
            if top > -math.inf:
                tops.append(top)
                table = table - top
            total = total + table.transpose(order).reshape(shape)
        whole = np.broadcast_to(total, [self.cards[a] for a in axes])
        return whole, tops, Error(0.0, len(members) * UNIT)

    def _one_by_one(self, buckets: tuple[int, ...]) -> None:
        """The buckets of a chain by themselves; what each was made of is forgotten at once.

        So two tables of the chain are held at a time, as in a pass (see `peak_bytes`).
        """
        for b in buckets:
            self._forward(b)
            for c in self.plan.buckets[b].children if len(buckets) > 1 else ():
                if c in self._messages:
                    self._space.release(self._messages.pop(c))

    def _pass(self, buckets: tuple[int, ...]) -> bool:
        """The buckets of a chain in one pass; False where their tables leave the ordinary scale."""
        plan, reserved = self.plan, self.plan.reserved_entries
        source = self._messages[plan.chains[buckets[-1]].main]
        sides: list[list[Table]] = []
        groups: list[Table] = []
        for b in buckets:
            bucket = plan.buckets[b]
            start = groups[-1].start + groups[-1].size if groups else 0
            own = self._group_tables(b, start, spread=False)
            groups += own
            others = [self._messages[c] for c in bucket.children if c in self._messages]
            sides.append([t for t in others if t is not source] + own)
            self._audit.groups(b, own)
        inputs = [source, *(t for tables in sides for t in tables)]
        messages = [source, *(t for tables in sides for t in tables if t.start >= reserved)]
        if self._space.agree(groups, messages):
            return False
        out = self._take(buckets[-1])
        turns = [
            Turn(plan.buckets[b].summed, tuple(Placed(t.start, t.axes) for t in tables))
            for b, tables in zip(buckets, sides, strict=True)
        ]
        layout = pass_layout(
            Placed(source.start, source.axes), turns, Placed(out.start, out.axes), self.cards
        )
        if layout is None:
            self._space.release(out)
            return False
        summed = tuple(a for turn in turns for a in turn.summed)
        self._describe(out, inputs, plan.entries(summed))
        out.own_error = Error(
            math.fsum(
                step_error(len(t.sides) + 1, plan.entries(t.summed), 0.0, logarithmic=False)[0]
                for t in turns
            )
        )
        out.error = joined(t.error for t in inputs).plus(*out.own_error)
        cost = source.size * len(turns)
        workers = self._space.workers
        call: Callable[[int, int], None] = partial(run_pass, self._space.arena, layout)
        each = cost / layout.n_outer
        workers.run([workers.blocks(call, *r, each) for r in workers.ranges(layout.n_outer, cost)])
        self._audit.message(buckets[-1], out, inputs, summed)
        self._messages[buckets[-1]] = out
        return True

    def _describe(self, out: Table, inputs: list[Table], states: int) -> None:
        """Scale and range of a sum over `states` of the product of `inputs`."""
        out.scale = add_scales(part for t in inputs for part in t.scale)
        out.low = sum(t.low for t in inputs) - 1e-9
        out.high = sum(t.high for t in inputs) + math.log(states) + 1e-9

    def _forward(self, b: int) -> None:
        bucket = self.plan.buckets[b]
        groups = self._group_tables(b)
        self._audit.groups(b, groups)
        messages = [self._messages[c] for c in bucket.children if c in self._messages]
        is_log = self._space.agree(groups, messages)
        inputs = messages + groups
        out = self._take(b)
        states = self.plan.entries(bucket.summed)
        self._describe(out, inputs, states)
        out.is_log = is_log
        self._set_error(out, inputs, states)
        self._sum_product(bucket.summed, out, inputs)
        self._audit.message(b, out, inputs, bucket.summed)
        self._messages[b] = out

    def _set_error(self, out: Table, inputs: list[Table], states: int) -> None:
        high = sum(t.high for t in inputs)
        out.own_error = step_error(len(inputs), states, high, logarithmic=out.is_log)
        out.error = joined(t.error for t in inputs).plus(*out.own_error)

    def _sum_product(self, summed: tuple[int, ...], out: Table, inputs: list[Table]) -> None:
        """out(S) = sum over `summed` of the product of inputs, all on the scale of `out`."""
        states = self.plan.entries(summed)
        n_tile = tile_axes(out.axes, self.cards)
        placed = [Placed(t.start, t.axes) for t in inputs]
        layout = bucket_layout(summed, out.axes, n_tile, self.cards, [placed])
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
        workers, each = self._space.workers, cost / layout.n_outer
        workers.run([workers.blocks(call, *r, each) for r in workers.ranges(layout.n_outer, cost)])

    def _merge(self, message: Table, onto: Table) -> None:
        """onto *= message, in place; the message's axes are among those of `onto`."""
        self._space.agree([], [onto, message])
        self._set_error(onto, [onto, message], 1)
        before = self._audit.product([onto, message], onto)
        self._sum_product((), onto, [onto, message])
        onto.scale = add_scales([*onto.scale, *message.scale])
        onto.low += message.low
        onto.high += message.high
        onto.tight = False
        self._audit.merged(onto, before)
        self._space.release(message)

    def _backward(self, b: int) -> None:
        """p(v, S) = p(S) * inputs(v, S) / message(S): beliefs of children and of factors.

        p is a distribution and inputs / message one over v: each p(v, S) is at most 1, and passing
        it on never lets an error in it grow. On the ordinary scale every quantity met on the way is
        within exp(+-LIMIT) (see `within_limit`), so that what underflows is below exp(-745 + LIMIT)
        of the whole; where that is not certain the work is done in logs.
        """
        bucket = self.plan.buckets[b]
        message = self._messages.pop(b)
        belief = self._beliefs.pop(b, None)
        if belief is None:
            belief = self._take(b)
            self._space.values(belief)[:] = 1.0
        states = self.plan.entries(bucket.summed)
        pair = len(bucket.children) + len(bucket.groups) == 2 and states * message.size >= MEET
        groups = self._group_tables(b, spread=not pair)
        messages = [self._messages[c] for c in bucket.children]
        inputs = messages + groups
        is_log = self._space.agree(groups, messages)
        is_log = is_log or not self._space.to_linear(message)
        shift = math.fsum([*(x for t in inputs for x in t.scale), *(-x for x in message.scale)])
        is_log = is_log or abs(shift) > LIMIT
        if is_log:
            for table in inputs:
                self._space.to_log(table)
        local = self._divide(belief, message, shift, is_log)
        high = sum(t.high for t in inputs)
        depth = local + math.log(states) + abs(shift) + high + message.high
        slack = belief.slack + message.own_error.at(message.drop + depth)
        slack += (len(inputs) + 4) * UNIT + 4 * LIBRARY + UNIT * abs(shift)
        if is_log:
            slack += (LIBRARY + (len(inputs) + 3) * UNIT) * depth
        children = [self._take(c) for c in bucket.children]
        self._beliefs.update(zip(bucket.children, children, strict=True))
        for table in children:
            table.slack = slack + UNIT * states * belief.size / table.size
        scale = math.exp(shift) if belief.is_ratio and not is_log else 1.0
        sums = self._meet(belief, inputs, children, scale) if pair and not is_log else None
        if sums is None:
            sums = self._spread(b, belief, message, inputs, groups, children, shift, is_log, scale)
        self._record(b, groups, sums, slack + UNIT * states * belief.size)
        self._space.release(belief)
        self._space.release(message)

    def _spread(
        self, b: int, belief: Table, message: Table, inputs: list[Table], groups: list[Table],
        children: list[Table], shift: float, is_log: bool, scale: float,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Add p(v, S) onto the children's beliefs and onto the sums returned, one per group."""
        scope, summed = self.plan.buckets[b].scope, self.plan.buckets[b].summed
        states = self.plan.entries(summed)
        first = message if is_log else belief
        starts = np.cumsum([0] + [table.size for table in groups]).tolist()
        layout = bucket_layout(
            summed,
            scope,
            tile_axes(scope, self.cards),
            self.cards,
            [
                [Placed(t.start, t.axes) for t in (first, *inputs)],
                [Placed(t.start, t.axes) for t in children],
                [Placed(start, t.axes) for start, t in zip(starts, groups, strict=False)],
            ],
            disjoint=1,
        )
        workers, arena = self._space.workers, self._space.arena
        cost = states * belief.size * (LOG_COST if is_log else 1)
        grain, each = layout.grain, cost / (states * layout.n_outer)
        ranges = workers.ranges(states * layout.n_outer, cost, grain)
        private = np.zeros((len(ranges), starts[-1]))
        if not is_log and _one_in_step(layout):
            children[0].is_ratio = True
            ratio: Callable[..., None] = kernels.spread_ratio
            call = partial(ratio, arena, layout)
            kept: tuple[Any, ...] = (scale,)
        else:
            if scale != 1.0:
                self._space.each(tables.scale_in_place, belief, scale)
            for table in children:
                self._space.values(table)[:] = 0.0
            spread: Callable[..., None] = kernels.spread_belief
            call = partial(spread, arena, belief.start, layout)
            kept = (shift, is_log)
        workers.run(
            [
                workers.blocks(partial(call, private[k], *kept), *r, each, grain)
                for k, r in enumerate(ranges)
            ]
        )
        total: NDArray[np.float64] = private.sum(axis=0)
        return total

    def _meet(
        self, ratio: Table, inputs: list[Table], children: list[Table], scale: float
    ) -> NDArray[np.float64] | None:
        """`_spread` where two tables met: each gets the other times p / message (see `adjoints`).

        Children receive p over their own message, zero where that is zero: there it says nothing,
        and it could leave float64's range. None where the tables do not fit the kernels.
        """
        arena, workers = self._space.arena, self._space.workers
        placed = Placed(ratio.start, ratio.axes)
        work: list[tuple[Table, Table | None, PassLayout | MeetLayout]] = []
        if not set(inputs[0].axes) ^ set(inputs[1].axes) <= set(ratio.axes):
            return None  # one table alone has a variable that is summed out
        for k, (table, other) in enumerate(zip(inputs, reversed(inputs), strict=True)):
            child = children[k] if k < len(children) else None
            partner = Placed(other.start, other.axes)
            layout: PassLayout | MeetLayout | None
            if child is not None and table.size >= other.size:
                gone = tuple(a for a in ratio.axes if a not in table.axes)
                onto = Placed(child.start, child.axes)
                layout = pass_layout(placed, [Turn(gone, (partner,))], onto, self.cards)
            else:
                layout = meet_layout(partner, placed, table.axes, self.cards)
            if layout is None:
                return None
            work.append((table, child, layout))
        if scale != 1.0:
            self._space.each(tables.scale_in_place, ratio, scale)
        sums = [np.zeros(0)]
        for table, child, layout in work:
            if isinstance(layout, PassLayout):
                call: Callable[[int, int], None] = partial(run_pass, arena, layout)
                ranges = workers.ranges(layout.n_outer, ratio.size)
                each = ratio.size / layout.n_outer
                workers.run([workers.blocks(call, *r, each) for r in ranges])
            else:  # a child's belief is summed where it will lie: no room is planned beside it
                found = np.zeros(table.size) if child is None else self._space.values(child)
                found[:] = 0.0
                self._add_meet(layout, found, ratio.size)
                if child is None:
                    sums.append(found * self._space.values(table))
            if child is not None:
                child.is_ratio = True
                self._space.each(tables.zero_in_place, child, self._space.values(table))
        return np.concatenate(sums)

    def _add_meet(self, layout: MeetLayout, onto: NDArray[np.float64], cost: int) -> None:
        """`run_meet` by all workers, each onto its own copy, unless those would be large."""
        workers, kernel = self._space.workers, partial(run_meet, self._space.arena, layout)
        ranges = workers.ranges(layout.n_outer, cost if onto.size <= PRIVATE else 0)
        copies = [onto, *(np.zeros(onto.size) for _ in ranges[1:])]
        each = cost / layout.n_outer
        workers.run(
            [
                workers.blocks(partial(kernel, copy), *r, each)
                for copy, r in zip(copies, ranges, strict=True)
            ]
        )
        for copy in copies[1:]:
            onto += copy

    def _divide(self, belief: Table, message: Table, shift: float, is_log: bool) -> float:
        """Prepare p / message: in place of p, or in logs -message in place of the message.

        `shift` is the log scale of the bucket's inputs less the message's, as they are now. Returns
        how deep the message lies below 0 where p is (no deeper than its lowest entry).
        """
        bottom = self._space.values(message)
        if not is_log:
            if not belief.is_ratio:
                self._space.each(tables.divide_in_place, belief, bottom, math.exp(-shift))
            return -message.low
        if belief.is_ratio:
            self._space.each(tables.multiply_in_place, belief, bottom)
        self._space.to_log(message)
        workers = self._space.workers
        ranges = workers.ranges(message.size, message.size)
        found = np.empty((len(ranges), 2))
        weights = self._space.values(belief)
        kernel: Callable[..., None] = tables.mean_depth
        workers.run([partial(kernel, bottom, *r, weights, found[k]) for k, r in enumerate(ranges)])
        self._space.each(tables.negate_in_place, message)
        total, depth = found.sum(axis=0).tolist()
        return float(depth / total) if total > 0.0 else 0.0

    @cached_property
    def _blur(self) -> float:
        """Nats that sums of entries of this size lose, whatever the depth of an entry.

        Above 1e-3 log weights keep hardly a digit behind the point, and a belief that does not sum
        to 1 is no sign of a defect: it is not known, and says so by NaN.
        """
        return 16.0 * UNIT * total_scale(self.model)

    def _record(self, b: int, groups: list[Table], sums: NDArray[np.float64], slack: float) -> None:
        """Marginals of the bucket's factors, and of their variables where not known yet.

        They sum to 1 but for `slack` nats of rounding, or something is wrong.
        """
        for k, ((_, members), table) in enumerate(
            zip(self.plan.buckets[b].groups, groups, strict=True)
        ):
            shape = [self.cards[a] for a in table.axes]
            joint = sums[table.start : table.start + table.size].reshape(shape)
            total = float(joint.sum())
            off = abs(math.log(total)) if total > 0.0 else math.inf
            if not off <= 2.0 * slack and self._blur > 1e-3 and not off <= 1e-9:
                joint, total = np.full(shape, np.nan), 1.0  # `ExactResult.marginals` refuses
            elif not off <= 2.0 * slack and self._blur <= 1e-3:
                raise RefutedError(
                    f"exact: the belief of bucket {b} ({self.plan.named(b)}, group {k}) "
                    f"sums to {total!r}; expected 1 within {slack:.1g}"
                )
            joint = joint / total
            for j, v in enumerate(self.plan.order[list(table.axes)].tolist()):
                self._slack[v] = max(self._slack[v], slack)
                if not self.marginals[v].size:
                    others = tuple(i for i in range(len(shape)) if i != j)
                    self.marginals[v] = joint.sum(axis=others)
            for f in members:
                scope = self.model.scope_vars[self.model.scope_ptr[f] : self.model.scope_ptr[f + 1]]
                places = [self._place[v] for v in scope.tolist()]
                drop = tuple(j for j, a in enumerate(table.axes) if a not in places)
                back = np.argsort(np.argsort(places))
                own = joint.sum(axis=drop).transpose(back)
                first = self.model.table_ptr[f]
                self.factor_marginals[first : first + own.size] = own.ravel()


def _one_in_step(layout: BucketLayout) -> bool:
    """Whether `spread_ratio` applies: one message, one factor, no axis of the child summed."""
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
        and np.unique(targets.state_offset).size == targets.state_offset.size
    )


def _log_product(logs: list[float], roots: dict[int, tuple[list[float], float]]) -> Scale:
    terms = [*logs, *(x for parts, _ in roots.values() for x in parts)]
    return Scale(-math.inf) if -math.inf in terms else add_scales(terms)
