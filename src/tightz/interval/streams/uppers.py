"""Upper ends: tree-reweighted bounds of positive pairwise models, mini-buckets of rising size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tightz.bounds import Bound, Side
from tightz.elimination.exact import exact
from tightz.errors import ResourceError
from tightz.interval.streams.exact import exact_marginals
from tightz.runtime.clock import Clock
from tightz.uppers.tree_reweighted import TreeReweighted, tree_reweighted_bounds
from tightz.uppers.upper_bound import rising_mini_buckets
from tightz.workspace.findings import Finding
from tightz.workspace.working import NARROW, Working

WIDEST = 30
"""The largest ibound; memory ends most runs before it."""


def tree_reweighted(working: Working, clock: Clock) -> Iterator[Bound]:
    """A convex upper bound, iteration by iteration."""
    graph = working.graph
    if graph.arities.max(initial=0) <= 2 and not graph.has_zeros:
        yield from tree_reweighted_bounds(graph, TreeReweighted())


def mini_buckets(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """Weighted mini-buckets; exact where the tables suffice."""
    widest = WIDEST if working.exact else NARROW
    memory = working.max_memory
    try:
        for bound in rising_mini_buckets(
            working.graph, clock, widest=widest, max_memory=memory // 2, orders=working.orders
        ):
            yield bound
            if bound.side is Side.BOTH and bound.log_z > -math.inf:  # narrow: marginals are cheap
                yield from exact_marginals(
                    exact(working.graph, max_memory=memory, plan=working.plan)
                )
    except ResourceError as error:
        yield Finding(note=f"mini-bucket: {error}")
