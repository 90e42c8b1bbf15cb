"""The nodes of a splitting tree and how their bounds travel to the root.

A node's lower bound is the larger of its own and its children's sum, its upper bound the smaller:
both hold because the children partition the node's region, and the root's can only improve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.families.projection import IProjection
from tightz.judge.parts import Cell
from tightz.judge.regions import Proof
from tightz.splitting.region import Parity, Region
from tightz.splitting.upper import Ceiling


class Part(NamedTuple):
    """A region with its q, as found by a look-ahead; members are rows of the pool."""

    region: Region
    q: IProjection
    members: NDArray[np.int64]


class Opening(NamedTuple):
    """A region about to be fitted: its parent's q given it, and pool `states` to start from too."""

    part: Part
    states: NDArray[np.int8]


class Split(NamedTuple):
    """A split about to be tried: the parity and its two sides."""

    parity: Parity
    sides: tuple[Opening, Opening]


class Plan(NamedTuple):
    """A split that was tried: the parity, its two parts and the sum of their lower bounds."""

    parity: Parity
    parts: tuple[Part, Part]
    log_sum: float
    ceilings: tuple[Ceiling, Ceiling] | None = None


@dataclass(eq=False)
class Node:
    """A region of the tree. `own_*` are its own bounds, `lower` and `upper` those of its subtree.

    bounded   whether an upper bound was computed for this region itself
    exact     own bounds are the region's log Z, up to rounding
    hope      relative gain expected of a look-ahead: the parent's
    parity    what the children are the two sides of
    proofs    what the judge is shown of the region itself: its "q", its "upper" bound, and how it
              is eliminated ("exact")
    cell      the judge's record of the subtree; None since something below has changed
    """

    number: int
    part: Part
    parent: Node | None
    depth: int
    own_lower: float
    own_upper: float = math.inf
    lower: float = -math.inf
    upper: float = math.inf
    bounded: bool = False
    exact: bool = False
    dead: bool = False
    hope: float = 1.0
    plan: Plan | None = None
    core: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    children: tuple[Node, ...] = ()
    parity: Parity = ()
    proofs: dict[str, Proof] = field(default_factory=dict)
    cell: Cell | None = None

    def refresh(self) -> None:
        """Recompute the bounds of this node and of all above it."""
        node: Node | None = self
        while node is not None:
            low, high = node.own_lower, node.own_upper
            if node.children:
                first, second = node.children
                low = max(low, float(np.logaddexp(first.lower, second.lower)))
                high = min(high, float(np.logaddexp(first.upper, second.upper)))
            node.lower, node.upper = low, high
            node.cell = None
            node = node.parent

    def accept(self, ceiling: Ceiling) -> None:
        """Take an upper bound; an exact one closes the node and whatever lies below it."""
        self.bounded = True
        if ceiling.proof is not None and (ceiling.exact or ceiling.upper <= self.own_upper):
            self.proofs["exact" if ceiling.exact else "upper"] = ceiling.proof
        self.own_upper = min(self.own_upper, ceiling.upper)
        self.core = ceiling.core
        if ceiling.exact:
            self.own_lower = max(self.own_lower, ceiling.lower)
            self.exact = True
            for below in self.subtree():
                below.dead = below is not self
            self.children = ()
            self.plan = None
        self.refresh()

    def subtree(self) -> Iterator[Node]:
        """This node and all below, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)

    def leaves(self) -> Iterator[Node]:
        """The nodes that partition this region."""
        return (node for node in self.subtree() if not node.children)

    def upper_frontier(self) -> Iterator[Node]:
        """Nodes with an upper bound of their own whose children do not both have one."""
        stack = [self]
        while stack:
            node = stack.pop()
            if node.children and all(c.bounded for c in node.children):
                stack += reversed(node.children)
            else:
                yield node


def log_difference(high: float, low: float) -> float:
    """log(exp(high) - exp(low)); -inf where high <= low."""
    if not high > low:
        return -math.inf
    return high + math.log(-math.expm1(low - high)) if low > -math.inf else high
