"""Upper ends: tree-reweighted bounds of positive pairwise models."""

from __future__ import annotations

from collections.abc import Iterator

from tightz.bounds import Bound
from tightz.runtime.clock import Clock
from tightz.uppers.tree_reweighted import TreeReweighted, tree_reweighted_bounds
from tightz.workspace.working import Working


def tree_reweighted(working: Working, clock: Clock) -> Iterator[Bound]:
    """A convex upper bound, iteration by iteration."""
    graph = working.graph
    if graph.arities.max(initial=0) <= 2 and not graph.has_zeros:
        yield from tree_reweighted_bounds(graph, TreeReweighted())
