"""The splitting tree: split where most is to be gained, by look-ahead, on both sides.

Rounds of a fixed number of tasks run on threads and are applied in a fixed order, so the tree
depends on the seed and the number of rounds only, not on the threads.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.order import Order
from tightz.families.mean_field import MeanField
from tightz.families.projection import IProjection, Refines
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import generator
from tightz.splitting.candidates import Effort, propose
from tightz.splitting.nodes import Node, Opening, Part, Plan, Split, log_difference
from tightz.splitting.region import Parity, Region
from tightz.splitting.upper import Ceiling, UpperBounder, scale

BATCH = 2
"""Upper-bound tasks per round, and look-aheads where one is dear."""

CHEAP = 400_000
"""A look-ahead by mean field costs about its incidences; this many of them fill a round."""

DEVICE_BATCH = 512
"""Look-aheads per round on a GPU."""

PRODUCT_EFFORT = Effort(disagreeing=4, cut=0, pairs=2, random=1)
TREE_EFFORT = Effort(disagreeing=2, cut=1, pairs=0, random=0)
POOR_EFFORT = Effort(disagreeing=1, cut=1, pairs=0, random=0)
"""For regions that hold almost no pool member."""

RARE = 0.1
"""Below this probability under q a side is also started from a pool member."""

FAINT = 1e-12
"""A relative gain below this counts as this: such leaves wait until nothing else is left."""

CLOSED = 1e-11
"""An interval of this width, relative to the numbers it is summed from, is closed."""

UPPER_CANDIDATES = 3

NOTHING: Mapping[int, IProjection] = MappingProxyType({})


class Setting(NamedTuple):
    """What the tree works on: `kept` are the working model's spins in the original.

    `device`: mean field of a round's look-aheads runs side by side on a GPU.
    """

    family: Refines
    clock: Clock
    bounder: UpperBounder
    kept: NDArray[np.int64]
    states: NDArray[np.int8]
    seed: np.random.SeedSequence
    upper: bool
    max_leaves: int
    max_splits: int | None
    device: bool = False


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

    def advance(self, pool: Executor | None) -> bool:
        """One round of look-aheads and upper bounds; False when the deadline cut it short."""
        before = self.splits
        tasks: list[tuple[Callable[[Node], object], Node]] = []
        lower = self._choose_lower()
        if self.setting.device:
            try:
                found_there = self._look_on_device(lower)
            except Exception as error:  # a device that fails costs time, not the tree
                self.setting = self.setting._replace(device=False)
                self.trouble = f"leaves go on without the GPU: {type(error).__name__}: {error}"
            else:
                for node, found in zip(lower, found_there, strict=True):
                    self._apply(node, found)
                lower = []
        tasks += [(self._look, node) for node in lower]
        if self.setting.upper:
            looking = {node.number for _, node in tasks}
            tasks += self._choose_upper(looking)
        self.stalled = not tasks and not self._heap and self.splits == before
        if pool is None:
            for work, node in tasks:
                if self.setting.clock.expired:
                    return False
                self._apply(node, work(node))
            return True
        futures = [pool.submit(work, node) for work, node in tasks]
        for (_, node), future in zip(tasks, futures, strict=True):
            if not _wait(future, self.setting.clock):
                for other in futures:
                    other.cancel()
                return False
            self._apply(node, future.result())
        return True

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
        batch = BATCH
        if self._is_product:
            size = max(1, self.root.part.q.coset.polynomial.spins.size)
            batch = int(np.clip(CHEAP // size, BATCH, 64))
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

    def _look(self, node: Node) -> Plan | Ceiling | None:
        """Try a few splits and keep the best; or find that the region is narrow enough."""
        found = self._solved(node.part)
        if found is not None:
            return found
        best: Plan | None = None
        for split in self._openings(node):
            best = _better(best, self._plan(split))
            if self.setting.clock.expired:
                break
        return best

    def _look_on_device(self, nodes: Sequence[Node]) -> list[Plan | Ceiling | None]:
        """`_look` for all the nodes, the ascents of those on the root's coset in one launch."""
        solved = [self._solved(node.part) for node in nodes]
        rest = [node for node, found in zip(nodes, solved, strict=True) if found is None]
        splits = {node.number: self._openings(node) for node in rest}
        coset = self.root.part.q.coset
        sides = [o for found in splits.values() for split in found for o in split.sides]
        batched = [o for o in sides if o.part.q.coset is coset]
        done: dict[int, IProjection] = {}
        family = self.setting.family
        if batched and isinstance(family, MeanField):
            found_qs = family.refine_on_device([(o.part.q, o.states) for o in batched])
            done = dict(zip(map(id, batched), found_qs, strict=True))
        out: list[Plan | Ceiling | None] = []
        for node, found in zip(nodes, solved, strict=True):
            best: Plan | None = None
            for split in splits.get(node.number, ()):
                best = _better(best, self._plan(split, done))
            out.append(best if found is None else found)
        return out

    def _solved(self, part: Part) -> Ceiling | None:
        """The region's log Z where elimination is cheap by now."""
        if not self._nearly_narrow(part.region):
            return None
        return self.setting.bounder.exact(self._original(part.region))

    def _openings(self, node: Node) -> list[Split]:
        """The splits worth a look, each with both sides ready to be refined."""
        part = node.part
        members = self.setting.states[part.members]
        effort = PRODUCT_EFFORT if self._is_product else TREE_EFFORT
        if len(members) < 2 and node.number:
            effort = POOR_EFFORT
        rng = generator(self.setting.seed, 1, node.number)
        proposed = propose(part.q, part.region.free, members, self._strength, effort, rng)
        splits = [self._split(part, parity) for parity in proposed]
        return [split for split in splits if split is not None]

    @property
    def _is_product(self) -> bool:
        """Whether a look-ahead is cheap: more parities and more starts are then tried."""
        return isinstance(self.setting.family, MeanField)

    @cached_property
    def _strength(self) -> NDArray[np.float64]:
        """What q's of the root's shape cannot follow, spin by spin; parts keep the shape."""
        return self.root.part.q.unfollowed()

    def _split(self, part: Part, parity: Parity) -> Split | None:
        plus, minus = self._open(part, parity, 1), self._open(part, parity, -1)
        return None if plus is None or minus is None else Split(parity, (plus, minus))

    def _open(self, part: Part, parity: Parity, sign: int) -> Opening | None:
        """One side of a split: started from the parent's q given that side, and from the pool."""
        q = part.q.condition(parity, sign)
        if q is None:
            return None
        pool = self.setting.states
        members = part.members[pool[part.members][:, list(parity)].prod(axis=1) == sign]
        mean = float(part.q.means[part.q.coset.free_index[parity[0]]])
        rare = (1.0 + sign * mean) / 2.0 < RARE
        count = 3 if self._is_product else int(rare)
        chosen = region_states(pool, members, count)
        return Opening(Part(part.region.restrict(parity, sign), q, members), chosen)

    def _plan(self, split: Split, done: Mapping[int, IProjection] = NOTHING) -> Plan:
        """The split with both sides refined; `done` by the id of the side where that was made."""
        plus, minus = (
            side.part._replace(
                q=done.get(id(side)) or self.setting.family.refine(side.part.q, side.states)
            )
            for side in split.sides
        )
        total = float(np.logaddexp(plus.q.log_gamma, minus.q.log_gamma))
        return Plan(split.parity, (plus, minus), total)

    def _original(self, region: Region) -> Region:
        return region.lifted(self.setting.kept, self.setting.bounder.poly.n)

    def _nearly_narrow(self, region: Region) -> bool:
        """Whether few enough of the root's core spins are left for elimination to have a chance."""
        free = np.zeros(self.setting.bounder.poly.n, dtype=bool)
        free[self.setting.kept[region.free]] = True
        left = int(free[self.root.core].sum())
        return left <= 2 * self.setting.bounder.width and self.root.core.size > 0

    # --- Upper side ---------------------------------------------------------------------------

    def _choose_upper(self, looking: set[int]) -> list[tuple[Callable[[Node], object], Node]]:
        """The regions with the widest gap that carry the upper bound now.

        A leaf that is just being looked at waits: the split found may serve both sides.
        """
        nodes = sorted(
            ((-log_difference(n.upper, n.lower), n.number, n) for n in self.root.upper_frontier()),
            key=lambda item: item[:2],
        )
        tasks: list[tuple[Callable[[Node], object], Node]] = []
        for gap, _, node in nodes[:BATCH]:
            if gap == math.inf or node.exact:
                continue
            if node.children:
                tasks += [(self._bound, c) for c in node.children if not c.bounded]
            elif node.number not in looking:
                tasks.append((self._split_for_upper, node))
        return tasks

    def _left(self) -> float | None:
        left = self.setting.clock.left
        return None if left == math.inf else left

    def _bound(self, node: Node) -> Ceiling:
        return self._ceiling(node.part.region)

    def _ceiling(self, region: Region) -> Ceiling:
        bounder = self.setting.bounder
        return bounder.bound(self._original(region), self.order, bounder.iterations, self._left())

    def _split_for_upper(self, node: Node) -> Plan | None:
        """Split on the spin that lowers the upper bound most, among a few."""
        region = node.part.region
        number = np.full(self.setting.bounder.poly.n, -1, dtype=np.int64)
        number[self.setting.kept[region.free]] = region.free
        core = number[node.core]
        candidates: list[Parity] = [(int(i),) for i in core[core >= 0]]
        if node.plan is not None:
            candidates.insert(0, node.plan.parity)
        candidates = candidates or [(int(i),) for i in region.free[:1]]
        best: tuple[float, Parity, tuple[Ceiling, Ceiling]] | None = None
        for parity in list(dict.fromkeys(candidates))[:UPPER_CANDIDATES]:
            first = self._ceiling(region.restrict(parity, 1))
            second = self._ceiling(region.restrict(parity, -1))
            total = float(np.logaddexp(first.upper, second.upper))
            if best is None or total < best[0]:
                best = total, parity, (first, second)
            if self.setting.clock.expired:
                break
        if best is None:
            return None
        _, parity, ceilings = best
        plan = node.plan
        if plan is None or plan.parity != parity:
            split = self._split(node.part, parity)
            plan = None if split is None else self._plan(split)
        return None if plan is None else plan._replace(ceilings=ceilings)

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


def _better(best: Plan | None, plan: Plan) -> Plan:
    return plan if best is None or plan.log_sum > best.log_sum else best


def region_states(
    states: NDArray[np.int8], rows: NDArray[np.int64], count: int
) -> NDArray[np.int8]:
    """`count` of the pool members `rows`: the first (heaviest) and others evenly spaced."""
    if rows.size <= count:
        return states[rows]
    return states[rows[np.linspace(0, rows.size - 1, count).astype(np.int64)]]


def _wait(future: Future[object], clock: Clock) -> bool:
    """Whether the future was done in time; its own errors are left for `result`."""
    left = clock.left
    return bool(wait([future], timeout=None if left == math.inf else left).done)
