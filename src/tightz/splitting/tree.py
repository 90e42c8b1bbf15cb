"""The splitting tree: split where most is to be gained, by look-ahead, on both sides.

Rounds of tasks are done by others and applied in a fixed order. A tree that works `ahead` hands out
the next round before it takes the last one's results: nobody waits for the slowest look, nor for
what is done here in between. The tree depends on the seed, these settings and the number of rounds
only, not on who did them or when.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tightz.elimination.order import Order
from tightz.families.projection import IProjection
from tightz.splitting.looks import Leaf, Look, Looker, Setting, Traveller, better
from tightz.splitting.nodes import Node, Part, Plan, log_difference
from tightz.splitting.region import Region
from tightz.splitting.upper import Ceiling, scale
from tightz.workspace.working import Handout

BATCH = 2
"""Look-aheads a round at least, where a round ends before the next begins."""

SHARES = 4
"""Pieces that the candidates of a leaf are cut into where too few leaves are under way."""

CHEAP = 400_000
"""A look-ahead by mean field costs about its incidences; this many of them fill a round."""

MOST_CHEAP = 64
"""Look-aheads by mean field in a round, where hands are fewer."""

DEVICE_BATCH = 512
"""Look-aheads per round on a GPU."""

FAINT = 1e-12
"""A relative gain below this counts as this: such leaves wait until nothing else is left."""

CLOSED = 1e-11
"""An interval of this width, relative to the numbers it is summed from, is closed."""


@dataclass(eq=False)
class Tree:
    """A tree over the regions of the working model; see `hand_out`."""

    setting: Setting
    root: Node
    order: Order
    splits: int = 0
    n_leaves: int = 1
    stalled: bool = False
    trouble: str = ""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _heap: list[tuple[float, int, Node]] = field(default_factory=list)
    _out: Round = field(default_factory=lambda: Round())  # handed out, to be taken next
    _next: Round = field(default_factory=lambda: Round())  # handed out after it

    @classmethod
    def plant(cls, setting: Setting, q: IProjection, lower: float, ceiling: Ceiling) -> Tree:
        """A tree of one node: the whole space, with a bound known from elsewhere besides."""
        region = Region.whole(q.coset.polynomial.n)
        part = Part(region, q, np.arange(len(setting.states)))
        root = Node(0, part, None, 0, max(q.log_gamma, lower))
        root.accept(ceiling)
        tree = cls(setting, root, ceiling.order)
        tree._push(root)
        return tree

    @property
    def finished(self) -> bool:
        """Closed, full, or out of splits."""
        limit = self.setting.max_splits
        full = self.n_leaves >= self.setting.max_leaves
        spent = limit is not None and self.splits >= limit
        return full or spent or self.stalled or self.closed

    @property
    def closed(self) -> bool:
        """Both ends agree up to rounding."""
        width = self.root.upper - self.root.lower
        return self.root.exact or bool(width <= CLOSED * scale(self.setting.bounder.poly))

    def hand_out(self) -> Generator[Handout, list[Any], None]:
        """Choose a round of look-aheads and upper bounds for others; `take` has the results."""
        before = self.splits
        lower = self._choose_lower()
        if self.setting.device:
            try:
                found = self.looker.look_on_device([_leaf(node) for node in lower])
            except Exception as error:  # a device that fails costs time, not the tree
                self.setting = self.setting._replace(device=False)
                self.trouble = f"leaves go on without the GPU: {type(error).__name__}: {error}"
            else:
                for node, result in zip(lower, found, strict=True):
                    self._apply(node, result)
                lower = []
        looking = len(self._out.numbers(Look.SPLIT)) + len(lower)
        of = SHARES if looking < self._abreast else 1
        tasks = [Task(Look.SPLIT, node, k, of) for node in lower for k in range(of)]
        if self.setting.upper:
            tasks += self._choose_upper({node.number for node in lower})
        self._next = Round(tuple(tasks))
        idle = not tasks and not self._out.tasks
        self.stalled = idle and not self._heap and self.splits == before
        yield self._handout(tasks, keep=len(self._out.tasks) + len(tasks))

    def take(self) -> Generator[Handout, list[Any], None]:
        """Apply the results of a round, in the order of its tasks.

        Ahead of it, this is the round before the last.
        """
        done, self._out, self._next = self._out, self._next, Round()
        if not self.setting.ahead:
            done, self._out = self._out, Round()
        if not done.tasks:
            return
        results = yield self._handout([], keep=len(self._out.tasks))
        by_task: dict[tuple[Look, int], Plan | Ceiling | None] = {}
        for task, result in zip(done.tasks, results, strict=True):
            best, key = self._unpacked(result), (task.look, task.node.number)
            if isinstance(old := by_task.get(key), Plan) and isinstance(best, Plan):
                best = better(old, best)
            by_task[key] = best or old
        nodes = {(task.look, task.node.number): task.node for task in done.tasks}
        for key, node in nodes.items():
            self._apply(node, by_task[key])

    @property
    def _looks(self) -> int:
        """Look-aheads a round, where they are dear."""
        return self.setting.hands if self.setting.ahead else max(BATCH, self.setting.hands)

    @property
    def _abreast(self) -> int:
        """Look-aheads under way at a time."""
        return 2 * self._looks if self.setting.ahead else self._looks

    @cached_property
    def looker(self) -> Looker:
        q = self.root.part.q
        return Looker(self.setting, self.order, q.coset, self.root.core, q.unfollowed())

    @cached_property
    def _traveller(self) -> Traveller:
        return Traveller.of(self.looker, self.root.part.q)

    def _handout(self, tasks: Sequence[Task], keep: int) -> Handout:
        looks = [(task.look, _leaf(task.node, task.share, task.of)) for task in tasks]
        if not self.setting.travels:
            return Handout(self.looker, looks, keep=keep)
        luggage = self._traveller.luggage
        return Handout(self._traveller, [luggage.pack(look) for look in looks], keep=keep)

    def _unpacked(self, result: Any) -> Plan | Ceiling | None:
        if not self.setting.travels:
            return result
        found: Plan | Ceiling | None = self._traveller.luggage.unpack(result)
        return found

    # --- Lower side ---------------------------------------------------------------------------

    def _push(self, node: Node) -> None:
        if node.exact or node.dead or node.children:
            return
        gain = node.hope
        if node.plan is not None:
            gain = math.expm1(min(700.0, node.plan.log_sum - node.own_lower))
        priority = node.own_lower + math.log(max(gain, FAINT))
        heapq.heappush(self._heap, (-priority, node.number, node))

    def _choose_lower(self) -> list[Node]:
        """The leaves to look at next; those already looked at are split on the way."""
        chosen: list[Node] = []
        count = self._looks
        if self.looker.is_product:
            size = max(1, self.root.part.q.coset.polynomial.spins.size)
            count = max(count, min(MOST_CHEAP, CHEAP // size))
            count = DEVICE_BATCH if self.setting.device else count
        splitting = self._out.numbers(Look.SPLIT_FOR_UPPER)
        later = []
        while len(chosen) < count and self._heap and not self.finished:
            item = heapq.heappop(self._heap)
            node = item[-1]
            if node.dead or node.exact or node.children:
                continue
            if node.number in splitting:  # it is about to be split, with bounds on both parts
                later.append(item)
            elif node.plan is None:
                chosen.append(node)
            else:
                self._commit(node, node.plan)
        for item in later:
            heapq.heappush(self._heap, item)
        return chosen

    def _commit(self, node: Node, plan: Plan) -> None:
        gain = math.expm1(min(700.0, plan.log_sum - node.own_lower))
        children = []
        for part, ceiling in zip(plan.parts, plan.ceilings or (None, None), strict=True):
            number = next(self._numbers)
            child = Node(number, part, node, node.depth + 1, part.q.log_gamma, hope=gain)
            child.refresh()
            children.append(child)
            if ceiling is not None:
                child.accept(ceiling)
            if part.region.free.size == 0:
                child.accept(self._single_state(part))
        node.children = tuple(children)
        node.parity = plan.parity
        node.plan = None
        node.refresh()
        self.splits += 1
        self.n_leaves += 1
        for child in children:
            self._push(child)

    def _single_state(self, part: Part) -> Ceiling:
        """A region of one working state: its weight is known."""
        slack = 4.0 * scale(self.setting.bounder.poly) * 2.0**-48
        value = part.q.log_gamma
        return Ceiling(value, value + slack, True, np.zeros(0, np.int64), self.order)

    # --- Upper side ---------------------------------------------------------------------------

    def _choose_upper(self, looking: set[int]) -> list[Task]:
        """The regions with the widest gap that carry the upper bound now.

        A leaf that is just being looked at waits: the split found may serve both sides.
        """
        looking = looking | self._out.numbers(Look.SPLIT) | self._out.numbers(Look.SPLIT_FOR_UPPER)
        bounding = self._out.numbers(Look.BOUND)
        nodes = sorted(
            (-log_difference(node.upper, node.lower), node.number, node)
            for node in self.root.upper_frontier()
        )
        tasks: list[Task] = []
        # What is under way counts among the widest: others would be split for less.
        for gap, _, node in nodes[: self._abreast]:
            if gap == math.inf or node.exact:
                continue
            if node.children:
                new = [c for c in node.children if not c.bounded and c.number not in bounding]
                tasks += [Task(Look.BOUND, child) for child in new]
            elif node.number not in looking:
                tasks.append(Task(Look.SPLIT_FOR_UPPER, node))
        return tasks

    def _apply(self, node: Node, result: object) -> None:
        """Take a task's result, unless the node was split or closed in the meantime."""
        if node.dead or node.exact:
            return
        if isinstance(result, Ceiling):
            node.accept(result)
        elif node.children:
            return
        elif isinstance(result, Plan) and result.ceilings is not None:
            self._commit(node, result)
        elif isinstance(result, Plan):
            node.plan = result
            self._push(node)


class Task(NamedTuple):
    """A look at a node, or a share of it."""

    look: Look
    node: Node
    share: int = 0
    of: int = 1


class Round(NamedTuple):
    """What was handed out at once."""

    tasks: tuple[Task, ...] = ()

    def numbers(self, look: Look) -> set[int]:
        """The nodes that are looked at so."""
        return {task.node.number for task in self.tasks if task.look is look}


def _leaf(node: Node, share: int = 0, of: int = 1) -> Leaf:
    return Leaf(node.number, node.part, node.core, node.plan, (share, of))
