"""A splitting tree as the judge is shown it: parities, q's and what bounds regions from above."""

from __future__ import annotations

import math

import numpy as np

from tightz.judge import Evidence
from tightz.judge.links import SpinLink
from tightz.judge.parts import Cell, Court, NoStateEvidence, PartsEvidence
from tightz.judge.proofs import Proof
from tightz.judge.spins import SpinTerms
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.encoding import SpinEncoding
from tightz.splitting.nodes import Node
from tightz.splitting.tree import Tree


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
