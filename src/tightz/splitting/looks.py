"""What is looked for in a leaf: the best split, an upper bound. By threads here or elsewhere.

A look depends on the leaf and on what all looks share, on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.order import Order
from tightz.families.mean_field import MeanField
from tightz.families.projection import IProjection, Refines
from tightz.projections.coset import Coset
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import generator
from tightz.splitting.candidates import Effort, propose
from tightz.splitting.luggage import Luggage
from tightz.splitting.nodes import Opening, Part, Plan, Split
from tightz.splitting.region import Parity, Region
from tightz.splitting.upper import Ceiling, UpperBounder

PRODUCT_EFFORT = Effort(disagreeing=4, cut=0, pairs=2, random=1)
TREE_EFFORT = Effort(disagreeing=2, cut=1, pairs=0, random=0)
POOR_EFFORT = Effort(disagreeing=1, cut=1, pairs=0, random=0)
"""For regions that hold almost no pool member."""

RARE = 0.1
"""Below this probability under q a side is also started from a pool member."""

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
    hands: int = 1  # how many look at leaves at a time
    ahead: bool = False  # whether a round is handed out before the last one is taken
    travels: bool = False  # whether other processes do them


class Look(Enum):
    """What to do with a leaf."""

    SPLIT = "look for a split that raises the lower bound"
    BOUND = "bound it from above"
    SPLIT_FOR_UPPER = "look for a split that lowers the upper bound"


class Leaf(NamedTuple):
    """What a look needs to know of a node; `share` (k, of): only every of-th candidate, from k."""

    number: int
    part: Part
    core: NDArray[np.int64]
    plan: Plan | None
    share: tuple[int, int] = (0, 1)


@dataclass(frozen=True, eq=False)
class Looker:
    """Looks at leaves of one tree.

    `coset` and `core` are the root's, `strength` what its q cannot follow, spin by spin: parts keep
    the shape.
    """

    setting: Setting
    order: Order
    coset: Coset
    core: NDArray[np.int64]
    strength: NDArray[np.float64]

    def __call__(self, task: tuple[Look, Leaf]) -> Plan | Ceiling | None:
        look, leaf = task
        if look is Look.BOUND:
            return self.bound(leaf)
        return self.look(leaf) if look is Look.SPLIT else self.split_for_upper(leaf)

    def look(self, leaf: Leaf) -> Plan | Ceiling | None:
        """Try a few splits and keep the best; or find that the region is narrow enough."""
        found = self._solved(leaf.part)
        if found is not None:
            return found
        best: Plan | None = None
        for split in self._openings(leaf):
            best = better(best, self._plan(split))
            if self.setting.clock.expired:
                break
        return best

    def look_on_device(self, leaves: Sequence[Leaf]) -> list[Plan | Ceiling | None]:
        """`_look` for all the nodes, the ascents of those on the root's coset in one launch."""
        solved = [self._solved(leaf.part) for leaf in leaves]
        rest = [leaf for leaf, found in zip(leaves, solved, strict=True) if found is None]
        splits = {leaf.number: self._openings(leaf) for leaf in rest}
        coset = self.coset
        sides = [o for found in splits.values() for split in found for o in split.sides]
        batched = [o for o in sides if o.part.q.coset is coset]
        done: dict[int, IProjection] = {}
        family = self.setting.family
        if batched and isinstance(family, MeanField):
            found_qs = family.refine_on_device([(o.part.q, o.states) for o in batched])
            done = dict(zip(map(id, batched), found_qs, strict=True))
        out: list[Plan | Ceiling | None] = []
        for leaf, found in zip(leaves, solved, strict=True):
            best: Plan | None = None
            for split in splits.get(leaf.number, ()):
                best = better(best, self._plan(split, done))
            out.append(best if found is None else found)
        return out

    def _solved(self, part: Part) -> Ceiling | None:
        """The region's log Z where elimination is cheap by now."""
        if not self._nearly_narrow(part.region):
            return None
        return self.setting.bounder.exact(self._original(part.region))

    def _openings(self, leaf: Leaf) -> list[Split]:
        """The splits worth a look, each with both sides ready to be refined."""
        part = leaf.part
        members = self.setting.states[part.members]
        effort = PRODUCT_EFFORT if self.is_product else TREE_EFFORT
        if len(members) < 2 and leaf.number:
            effort = POOR_EFFORT
        rng = generator(self.setting.seed, 1, leaf.number)
        proposed = propose(part.q, part.region.free, members, self.strength, effort, rng)
        share, of = leaf.share
        splits = [self._split(part, parity) for parity in proposed[share::of]]
        return [split for split in splits if split is not None]

    @property
    def is_product(self) -> bool:
        """Whether a look-ahead is cheap: more parities and more starts are then tried."""
        return isinstance(self.setting.family, MeanField)

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
        count = 3 if self.is_product else int(rare)
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
        left = int(free[self.core].sum())
        return left <= 2 * self.setting.bounder.width and self.core.size > 0

    def _left(self) -> float | None:
        left = self.setting.clock.left
        return None if left == math.inf else left

    def bound(self, leaf: Leaf) -> Ceiling:
        return self._ceiling(leaf.part.region)

    def _ceiling(self, region: Region) -> Ceiling:
        bounder = self.setting.bounder
        return bounder.bound(self._original(region), self.order, bounder.iterations, self._left())

    def split_for_upper(self, leaf: Leaf) -> Plan | None:
        """Split on the spin that lowers the upper bound most, among a few."""
        region = leaf.part.region
        number = np.full(self.setting.bounder.poly.n, -1, dtype=np.int64)
        number[self.setting.kept[region.free]] = region.free
        core = number[leaf.core]
        candidates: list[Parity] = [(int(i),) for i in core[core >= 0]]
        if leaf.plan is not None:
            candidates.insert(0, leaf.plan.parity)
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
        plan = leaf.plan
        if plan is None or plan.parity != parity:
            split = self._split(leaf.part, parity)
            plan = None if split is None else self._plan(split)
        return None if plan is None else plan._replace(ceilings=ceilings)


@dataclass(frozen=True, eq=False)
class Traveller:
    """A looker for other processes: tasks and results go without what all of them share."""

    looker: Looker
    luggage: Luggage

    @classmethod
    def of(cls, looker: Looker, q: IProjection) -> Traveller:
        # Another process knows no deadline; looks are short.
        away = replace(looker, setting=looker.setting._replace(clock=Clock()))
        shape = [getattr(q, part) for part in ("forest", "pinnable") if hasattr(q, part)]
        return cls(away, Luggage((looker.coset, looker.coset.polynomial, *shape)))

    def __call__(self, packed: bytes) -> bytes:
        return self.luggage.pack(self.looker(self.luggage.unpack(packed)))


def better(best: Plan | None, plan: Plan) -> Plan:
    """The plan with the larger sum of lower bounds; the first where they are equal."""
    return plan if best is None or plan.log_sum > best.log_sum else best


def region_states(
    states: NDArray[np.int8], rows: NDArray[np.int64], count: int
) -> NDArray[np.int8]:
    """`count` of the pool members `rows`: the first (heaviest) and others evenly spaced."""
    if rows.size <= count:
        return states[rows]
    return states[rows[np.linspace(0, rows.size - 1, count).astype(np.int64)]]
