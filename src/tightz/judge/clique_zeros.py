"""Which states of cliques have weight zero, inferred from the model's own zero potentials.

An entry of a clique is dead when p~(x) = 0 for every x that agrees with it: its factors say so, or
all entries of another clique that agree with it on the shared variables are dead. Repeating the
second step along the links of a clique tree reaches a fixed point; each step is a proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import RefutedError

if TYPE_CHECKING:
    from tightz.judge.cliques import CliqueTree


def proven_zeros(tree: CliqueTree) -> list[NDArray[np.bool_]]:
    """Per clique the dead entries; RefutedError if a zero that some shift claims is not among them.

    Stops as soon as all claims are proven.
    """
    dead = []
    for c, shape in enumerate(tree.shapes):
        mask = np.zeros(shape, dtype=bool)
        # The start: an entry where some factor of the model is zero.
        for table in tree.factor_tables(c):
            mask |= np.isneginf(table)
        dead.append(mask)
    # Any two cliques that share variables may pass zeros on; the links of the tree and of the
    # shifts are those that claims are about.
    links = [(c, p) for c, p in enumerate(tree.parents) if p >= 0]
    links += [(i, j) for i, j in tree.evidence.pairs.tolist()]
    links.sort(key=lambda link: min(tree.rank[tree.scopes[c][-1]] for c in link))
    known = -1
    while not _claims_hold(tree, dead):
        count = sum(int(mask.sum()) for mask in dead)
        # A fixed point without the claim: it does not follow from the model's zeros, and is
        # refused.
        if count == known:
            raise RefutedError("a shift claims zeros that the model's tables do not imply")
        known = count
        for i, j in [*links, *reversed(links)]:
            _spread(tree, dead, i, j)
    for i, j, _ in tree.links:
        _spread(tree, dead, i, j)
    return dead


def _projected(tree: CliqueTree, dead: list[NDArray[np.bool_]], i: int, j: int) -> NDArray:
    """Flat over the variables shared by i and j: whether all entries of i are dead."""
    others = tuple(a for a, v in enumerate(tree.scopes[i]) if v not in tree.axes[j])
    return dead[i].all(axis=others).ravel()


def _spread(tree: CliqueTree, dead: list[NDArray[np.bool_]], i: int, j: int) -> None:
    # If every entry of i that agrees with a shared state is dead, no x with that state has weight,
    # so the entries of j that agree with it are dead too; and the other way round.
    gone = _projected(tree, dead, i, j) | _projected(tree, dead, j, i)
    dead[i] |= gone.reshape(tree.shared_shape(i, j))
    dead[j] |= gone.reshape(tree.shared_shape(j, i))


def _claims_hold(tree: CliqueTree, dead: list[NDArray[np.bool_]]) -> bool:
    return all(
        bool(
            (_projected(tree, dead, i, j) | _projected(tree, dead, j, i))[
                np.isneginf(entries)
            ].all()
        )
        for i, j, entries in tree.links
    )
