"""What the search believes about its tree, checked with the search's own means.

No bound rests on this: bounds are the judge's (`tightz.judge.parts`). A search that believes more
of its leaves than is true looks in the wrong places, and that is what is found here.
"""

from __future__ import annotations

import math

import numpy as np

from tightz.judge.rounding import summation
from tightz.splitting.nodes import Node
from tightz.splitting.region import CONSTANT, Region
from tightz.splitting.tree import Tree
from tightz.splitting.upper import scale

CERTAIN = 1e-9
"""A fixed spin's mean may differ from its sign by this."""


def check_tree(tree: Tree, *, known: float = -math.inf) -> None:
    """Raise ArithmeticError unless every split is a partition and every leaf keeps its word.

    A leaf may claim what its q attains by the families' own evaluators, or, where it is closed,
    what elimination gives afresh. `known` is a bound on the whole that the root may hold besides.
    """
    poly = tree.setting.bounder.poly
    count = poly.n_terms + tree.root.part.q.coset.polynomial.n_terms + poly.n
    allowance = summation(count, scale(poly))
    for node in tree.root.subtree():
        if node.children:
            parts = [child.part.region for child in node.children]
            if not _partitions(node.part.region, parts[0], parts[1]):
                raise ArithmeticError(f"the parts of node {node.number} do not partition it")
            continue
        attained = _attained(node, tree)
        if node is tree.root:
            attained = max(attained, known)
        if node.own_lower > attained + allowance:
            raise ArithmeticError(
                f"leaf {node.number} claims {node.own_lower}; its q attains {attained}"
            )


def _partitions(whole: Region, one: Region, other: Region) -> bool:
    """Whether `one` and `other` are the two sides of one parity of `whole`."""
    moved = one.rep != whole.rep
    spins = np.unique(whole.rep[moved])
    if spins.size != 1 or not np.array_equal(one.rep, other.rep):
        return False
    target = np.unique(one.rep[moved])
    valid = target.size == 1 and (target[0] == CONSTANT or target[0] in whole.free)
    together = np.array_equal(moved, whole.rep == spins[0])
    # Relative to the whole, a side turns all the moved spins or none; the other does the opposite.
    turns = [np.unique(part.sign[moved] * whole.sign[moved]).tolist() for part in (one, other)]
    kept = all(np.array_equal(p.sign[~moved], whole.sign[~moved]) for p in (one, other))
    return bool(valid and together and kept and sorted(turns) == [[-1], [1]])


def _attained(leaf: Node, tree: Tree) -> float:
    """The leaf's lower bound computed afresh; -inf where its q puts weight outside its region."""
    region = leaf.part.region
    if leaf.exact and region.free.size:
        bounder = tree.setting.bounder
        found = bounder.exact(region.lifted(tree.setting.kept, bounder.poly.n))
        return -math.inf if found is None else found.upper
    q = leaf.part.q
    held = np.concatenate([region.pinned, region.copies])
    constant = region.rep[held] == CONSTANT
    pairs = np.stack([held, np.where(constant, held, region.rep[held])], axis=1)
    single = q.expectations(np.arange(held.size + 1), held)
    joint = q.expectations(2 * np.arange(held.size + 1), pairs.ravel())
    sure = np.where(constant, single, joint) * region.sign[held]
    if not (np.abs(sure - 1.0) < CERTAIN).all():
        return -math.inf
    return q.evaluated()
