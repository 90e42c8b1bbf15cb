"""The splitting tree: split where most is to be gained, by look-ahead, on both sides.

Rounds of a fixed number of tasks are done by others and applied in a fixed order, so the tree
depends on the seed and the number of rounds only, not on who did them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tightz.elimination.order import Order
from tightz.families.projection import IProjection
from tightz.splitting.looks import Leaf, Look, Looker, Setting, Traveller, better
from tightz.splitting.nodes import Node, Part, Plan, log_difference
from tightz.splitting.region import Region
from tightz.splitting.upper import Ceiling, scale
from tightz.workspace.working import Handout

BATCH = 2
"""Upper-bound tasks per round, and look-aheads where one is dear."""

MOST_SHARES = 4
"""Pieces that the candidates of a leaf are cut into where a round has fewer leaves than hands."""

CHEAP = 400_000
"""A look-ahead by mean field costs about its incidences; this many of them fill a round."""

DEVICE_BATCH = 512
"""Look-aheads per round on a GPU."""

FAINT = 1e-12
"""A relative gain below this counts as this: such leaves wait until nothing else is left."""

CLOSED = 1e-11
"""An interval of this width, relative to the numbers it is summed from, is closed."""


@dataclass(eq=False)
class Tree:
    """A tree over the regions of the working model; see `advance`."""

    setting: Setting
    root: Node
    order: Order
    splits: int = 0
    n_leaves: int = 1
    stalled: bool = False
    trouble: str = ""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _heap: list[tuple[float, int, Node]] = field(default_factory=list)

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

    def round(self) -> Generator[Handout, list[Any], None]:
        """One round of look-aheads and upper bounds, by whoever takes them."""
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
        tasks = [(Look.SPLIT, node) for node in lower]
        if self.setting.upper:
            tasks += self._choose_upper({node.number for node in lower})
        self.stalled = not tasks and not self._heap and self.splits == before
        if not tasks:
            return
        # Results are applied in the order of the tasks: the tree does not depend on who did them.
        of = self.setting.batch // len(tasks)
        pieces = [(look, node, k) for look, node in tasks for k in range(_shares(look, of))]
        results = yield self._handout(
            [(look, _leaf(node, k, _shares(look, of))) for look, node, k in pieces]
        )
        by_node: dict[tuple[Look, int], Plan | Ceiling | None] = {}
        for (look, node, _), result in zip(pieces, results, strict=True):
            best, key = self._unpacked(result), (look, node.number)
            if isinstance(old := by_node.get(key), Plan) and isinstance(best, Plan):
                best = better(old, best)
            by_node[key] = best or old
        for look, node in tasks:
            self._apply(node, by_node[look, node.number])

    @cached_property
    def looker(self) -> Looker:
        q = self.root.part.q
        return Looker(self.setting, self.order, q.coset, self.root.core, q.unfollowed())

    @cached_property
    def _traveller(self) -> Traveller:
        return Traveller.of(self.looker, self.root.part.q)

    def _handout(self, tasks: list[tuple[Look, Leaf]]) -> Handout:
        if not self.setting.travels:
            return Handout(self.looker, tasks)
        return Handout(self._traveller, [self._traveller.luggage.pack(task) for task in tasks])

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
        batch = self.setting.batch
        if self.looker.is_product:
            size = max(1, self.root.part.q.coset.polynomial.spins.size)
            batch = max(batch, int(np.clip(CHEAP // size, BATCH, 64)))
            batch = DEVICE_BATCH if self.setting.device else batch
        while len(chosen) < batch and self._heap and not self.finished:
            _, _, node = heapq.heappop(self._heap)
            if node.dead or node.exact or node.children:
                continue
            if node.plan is None:
                chosen.append(node)
            else:
                self._commit(node, node.plan)
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

    def _choose_upper(self, looking: set[int]) -> list[tuple[Look, Node]]:
        """The regions with the widest gap that carry the upper bound now.

        A leaf that is just being looked at waits: the split found may serve both sides.
        """
        nodes = sorted(
            ((-log_difference(n.upper, n.lower), n.number, n) for n in self.root.upper_frontier()),
            key=lambda item: item[:2],
        )
        tasks: list[tuple[Look, Node]] = []
        for gap, _, node in nodes[: self.setting.batch]:
            if gap == math.inf or node.exact:
                continue
            if node.children:
                tasks += [(Look.BOUND, c) for c in node.children if not c.bounded]
            elif node.number not in looking:
                tasks.append((Look.SPLIT_FOR_UPPER, node))
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


def _leaf(node: Node, k: int = 0, of: int = 1) -> Leaf:
    return Leaf(node.number, node.part, node.core, node.plan, (k, of))


def _shares(look: Look, of: int) -> int:
    """How many look at one leaf where a round has fewer leaves than hands."""
    return max(1, min(of, MOST_SHARES)) if look is Look.SPLIT else 1
