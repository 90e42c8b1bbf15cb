"""Tree-reweighted upper bounds on log Z (Wainwright, Jaakkola, Willsky 2005), valid at any time."""

from tightz.uppers.tree_reweighted.bounds import (
    TreeReweighted,
    TreeReweightedResult,
    TreeReweightedStatus,
    tree_reweighted,
    tree_reweighted_bounds,
)

__all__ = [
    "TreeReweighted",
    "TreeReweightedResult",
    "TreeReweightedStatus",
    "tree_reweighted",
    "tree_reweighted_bounds",
]
