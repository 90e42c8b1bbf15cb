"""Upper ends of positive pairwise models: tree-reweighted bounds and quadratic elimination."""

from __future__ import annotations

from collections.abc import Iterator

from tightz.bounds import Bound
from tightz.errors import UnsupportedModelError
from tightz.runtime.clock import Clock
from tightz.uppers.quadratic import quadratic_bounds
from tightz.uppers.tree_reweighted import TreeReweighted, tree_reweighted_bounds
from tightz.workspace.working import Working


def tree_reweighted(working: Working, clock: Clock) -> Iterator[Bound]:
    """A convex upper bound, iteration by iteration."""
    graph = working.graph
    if graph.arities.max(initial=0) <= 2 and not graph.has_zeros:
        yield from tree_reweighted_bounds(graph, TreeReweighted())


def quadratic(working: Working, clock: Clock) -> Iterator[Bound]:
    """Quadratic elimination of spins: where couplings are dense nothing else comes near."""
    try:
        yield from quadratic_bounds(working.encoding)
    except UnsupportedModelError:  # zeros, products of three spins, too many spins
        return
