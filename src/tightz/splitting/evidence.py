"""A splitting tree as the judge is shown it, and checked with the search's own means.

No bound rests on this: bounds are the judge's (`tightz.judge.parts`). A search that believes more
of its leaves than is true looks in the wrong places, and that is what is found here.
"""

from __future__ import annotations

import math

import numpy as np

from tightz.judge import Evidence
from tightz.judge.links import SpinLink
from tightz.judge.parts import Cell, Court, NoStateEvidence, PartsEvidence
from tightz.judge.regions import Proof
from tightz.judge.spins import SpinTerms
from tightz.judge.verdict import summation
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.encoding import SpinEncoding
from tightz.splitting.nodes import Node
from tightz.splitting.region import CONSTANT, Region
from tightz.splitting.tree import Tree
from tightz.splitting.upper import scale


class Standing:
    """What the judge has accepted of a run so far: both ends, and the evidence of the last one.

    The ends are about the encoded model; where that is a polynomial, about the polynomial.
    """

    def __init__(self, encoding: SpinEncoding, link: SpinLink) -> None:
        self.encoding = encoding
        self.lower, self.upper, self.rounding = -math.inf, math.inf, 0.0
        self.evidence: Evidence | None = None
        self._graph = encoding.model if isinstance(encoding.model, FactorGraph) else None
        self._link = link.encoding
        self._source = SpinTerms.of(encoding.polynomial) if self._link is None else self._link.terms
        self._proofs: list[Proof] = []
        self.court = Court(self._source, encoding.polynomial.n, self._link)

    @property
    def two_sided(self) -> bool:
        """Whether the judge can say anything from above: not where zeros were solved as parities.

        That no state outside their solutions has weight is not shown to it.
        """
        return self._link is None or self._link.chart.n == self._link.chart.n_free

    def collapsed(self, link: SpinLink) -> None:
        """From now on regions and q's are about the collapsed polynomial."""
        self.court = Court(self._source, self.encoding.polynomial.n, self._link, link.collapse)

    def nothing(self) -> None:
        """No state has any weight."""
        self.evidence, self.upper = NoStateEvidence(), -math.inf

    def weigh(self, tree: Tree | None, *found: Proof | None) -> None:
        """Show the judge what is known of the whole space, and the tree as it stands."""
        self._proofs += [proof for proof in found if proof is not None]
        root = Cell(()) if tree is None else cell_of(tree.root)
        cell = Cell((*self._proofs, *root.proofs), root.parity, root.sides)
        verdict = self.court.verdict(cell, self._graph)
        if verdict.lower > self.lower or verdict.upper < self.upper:
            self.evidence, self.rounding = PartsEvidence(self.court, cell), verdict.rounding
        self.improve(verdict.lower, verdict.upper)

    def improve(self, lower: float, upper: float) -> None:
        """Keep the better of each end; refuse ends that contradict each other.

        No tolerance: both ends have moved outward by all the rounding that they can carry.
        """
        low, high = max(self.lower, lower), min(self.upper, upper)
        if low > high:
            raise ArithmeticError(f"lower bound {low!r} above upper bound {high!r}: this is a bug")
        self.lower, self.upper = low, high


def cell_of(root: Node) -> Cell:
    """The judge's record of a tree; what has not changed since last time is the same object."""
    stack = [root]
    while stack:
        node = stack[-1]
        waiting = [child for child in node.children if child.cell is None]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if node.cell is None:
            node.cell = _record(node)
    assert root.cell is not None
    return root.cell


def _record(node: Node) -> Cell:
    """A leaf shows all it has; an inner node its own bounds only where they beat its parts'."""
    if not node.children:
        first = _own(node, "q")
        return Cell((first, *(proof for proof in node.proofs.values() if proof is not first)))
    one, other = node.children
    shown = []
    if node.own_lower > np.logaddexp(one.lower, other.lower):
        shown.append(_own(node, "q"))
    if "upper" in node.proofs and node.own_upper < np.logaddexp(one.upper, other.upper):
        shown.append(_own(node, "upper"))
    assert one.cell is not None
    assert other.cell is not None
    return Cell(tuple(shown), node.parity, (one.cell, other.cell))


def _own(node: Node, kind: str) -> Proof:
    """One object per proof, so that the judge need not look at it twice."""
    if kind not in node.proofs:
        node.proofs[kind] = node.part.q.proof()
    return node.proofs[kind]


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
