"""A splitting tree as the judge is shown it: parities, q's and what bounds regions from above."""

from __future__ import annotations

import numpy as np

from tightz.estimation.splitting.fits import Fit, Fitter
from tightz.estimation.splitting.forest import TreeFitter
from tightz.estimation.splitting.nodes import Node
from tightz.judge.parts import Cell
from tightz.judge.proofs import Conditionals, Product, Proof


def proof_of(fitter: Fitter, fit: Fit) -> Proof:
    """The q of a fit, explicitly."""
    if isinstance(fitter, TreeFitter):
        forest = fitter.shape.forest
        return Conditionals(forest.spin_of, forest.sep_ptr, forest.sep, fit.q)
    return Product(fitter.coset.free, fit.q)


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
        node.proofs[kind] = proof_of(node.part.fitter, node.part.fit)
    return node.proofs[kind]
