"""A projected polynomial cut along the trees of a forest.

The image of a term is split into pieces, one per tree that it meets; under q the expectation of a
term is the product of those of its pieces. A piece is short when one bucket holds all its members
(it is then part of that bucket's energy table) and long otherwise. A long piece is followed
through the nodes between its members and their lowest common ancestor ("slots"), by sign-weighted
messages, so that parities of any length cost no width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ResourceError
from tightz.families.structured.junction import Forest, bucket_mask, images, offsets
from tightz.projections.coset import Coset
from tightz.runtime.kernels import kernel

MAX_ENTRIES = 2**25
"""Most table entries of all slots together (two float64 arrays of this size)."""


class Images(NamedTuple):
    """The distinct terms over free spins, constants left out: CSR members (ascending), theta."""

    constant: float
    ptr: NDArray[np.int64]
    free: NDArray[np.int64]
    theta: NDArray[np.float64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ptr)

    def rows(self, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(term numbers (T,), members (T, length)) of the terms with `length` spins."""
        which = np.flatnonzero(self.lengths == length)
        return which, self.free[self.ptr[which][:, None] + np.arange(length)]


def merged_images(coset: Coset) -> Images:
    """The polynomial after substitution: equal terms added up, those that cancel dropped."""
    poly = coset.polynomial
    ptr, free, signs = images(coset, poly.ptr, poly.spins)
    theta = signs * poly.theta
    lengths = np.diff(ptr)
    constant = poly.constant + float(theta[lengths == 0].sum())
    counts, members, totals = [], [np.zeros(0, np.int64)], [np.zeros(0)]
    for length in np.unique(lengths[lengths > 0]).tolist():
        which = np.flatnonzero(lengths == length)
        rows, inverse = np.unique(
            free[ptr[which][:, None] + np.arange(length)], axis=0, return_inverse=True
        )
        total = np.bincount(inverse.ravel(), theta[which], minlength=len(rows))
        keep = total != 0.0
        counts += [length] * int(keep.sum())
        members.append(rows[keep].ravel().astype(np.int64))
        totals.append(total[keep])
    return Images(
        constant, offsets(np.array(counts, np.int64)), np.concatenate(members),
        np.concatenate(totals),
    )  # fmt: skip


class Terms(NamedTuple):
    """Pieces are distinct products within one tree, sorted by tree; CSR pairs are *_ptr, *.

    fixed        (pieces,) coefficients of the terms that are one piece
    piece_node   (pieces,) the bucket that holds a short piece; the top slot's node of a long one
    piece_mask   (pieces,) members of a short piece as bits of that bucket's index; 0 if long
    piece_top    (pieces,) the slot at a long piece's common ancestor; -1 if short
    tree_piece   pieces of each tree; node_piece: short pieces of each node
    theta        (terms,) coefficients of the terms of several pieces; term_piece: their pieces
    piece_term   the terms of several pieces that each piece is part of
    slot_*       node, piece, whether the node is a member (`slot_odd`), parent slot (-1 at the
                 top), offset of its tables; slot_child: the slots below; node_slot: slots of a node
    """

    constant: float
    fixed: NDArray[np.float64]
    piece_node: NDArray[np.int64]
    piece_mask: NDArray[np.int64]
    piece_top: NDArray[np.int64]
    tree_piece_ptr: NDArray[np.int64]
    node_piece_ptr: NDArray[np.int64]
    node_piece: NDArray[np.int64]
    theta: NDArray[np.float64]
    term_piece_ptr: NDArray[np.int64]
    term_piece: NDArray[np.int64]
    piece_term_ptr: NDArray[np.int64]
    piece_term: NDArray[np.int64]
    slot_node: NDArray[np.int64]
    slot_piece: NDArray[np.int64]
    slot_odd: NDArray[np.bool_]
    slot_parent: NDArray[np.int64]
    slot_ptr: NDArray[np.int64]
    slot_child_ptr: NDArray[np.int64]
    slot_child: NDArray[np.int64]
    node_slot_ptr: NDArray[np.int64]
    node_slot: NDArray[np.int64]


def cut_terms(forest: Forest, work: Images) -> Terms:
    """Split each term into pieces and lay them out; refused if long pieces need too much room."""
    theta = work.theta
    nodes = forest.node_of[work.free]
    owner = np.repeat(np.arange(len(theta)), work.lengths)
    nodes = nodes[np.lexsort((nodes, owner))]
    tree = forest.tree[nodes]
    starts = np.ones(nodes.size, dtype=bool)
    starts[1:] = (np.diff(owner) != 0) | (np.diff(tree) != 0)
    first = np.flatnonzero(starts)
    members_ptr, members, piece = _distinct(nodes, first, forest)
    n_pieces = len(members_ptr) - 1
    piece_tree = forest.tree[members[members_ptr[:-1]]]
    term = owner[first]
    pieces_of = np.bincount(term, minlength=len(theta))
    fixed = np.zeros(n_pieces)
    whole = pieces_of[term] == 1
    np.add.at(fixed, piece[whole], theta[term[whole]])
    split = np.flatnonzero(pieces_of > 1)
    parts = piece[~whole]
    part_term = (np.cumsum(pieces_of > 1) - 1)[term[~whole]]

    node = members[members_ptr[:-1]].copy()
    mask = bucket_masks(forest, members_ptr, members)
    slots = _long_slots(forest, members_ptr, members, mask)
    if slots is None:
        raise ResourceError(
            f"parities across clusters of width {forest.width} need more than {MAX_ENTRIES} table "
            "entries; lower `width`, or take smaller clusters"
        )
    slot_node, slot_piece, slot_odd, slot_parent = slots
    top = np.full(n_pieces, -1, dtype=np.int64)
    tops = np.flatnonzero(slot_parent < 0)
    top[slot_piece[tops]] = tops
    node[slot_piece[tops]] = slot_node[tops]
    short = np.flatnonzero(mask > 0)
    below = np.flatnonzero(slot_parent >= 0)
    return Terms(
        constant=work.constant,
        fixed=fixed,
        piece_node=node,
        piece_mask=mask,
        piece_top=top,
        tree_piece_ptr=offsets(np.bincount(piece_tree, minlength=forest.n_trees)),
        node_piece_ptr=offsets(np.bincount(node[short], minlength=forest.n)),
        node_piece=short[np.argsort(node[short], kind="stable")],
        theta=theta[split],
        term_piece_ptr=offsets(pieces_of[split]),
        term_piece=parts,
        piece_term_ptr=offsets(np.bincount(parts, minlength=n_pieces)),
        piece_term=part_term[np.argsort(parts, kind="stable")],
        slot_node=slot_node,
        slot_piece=slot_piece,
        slot_odd=slot_odd,
        slot_parent=slot_parent,
        slot_ptr=offsets(np.diff(forest.msg_ptr)[slot_node]),
        slot_child_ptr=offsets(np.bincount(slot_parent[below], minlength=len(slot_node))),
        slot_child=below[np.argsort(slot_parent[below], kind="stable")],
        node_slot_ptr=offsets(np.bincount(slot_node, minlength=forest.n)),
        node_slot=np.argsort(slot_node, kind="stable"),
    )


def _distinct(
    nodes: NDArray, first: NDArray, forest: Forest
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(ptr, members, number) of the distinct pieces, sorted by their first member."""
    lengths = np.diff(np.append(first, nodes.size))
    number = np.zeros(len(first), dtype=np.int64)
    found: list[NDArray] = []
    count = 0
    for length in np.unique(lengths):
        which = np.flatnonzero(lengths == length)
        rows, inverse = np.unique(
            nodes[first[which][:, None] + np.arange(length)], axis=0, return_inverse=True
        )
        number[which] = inverse.ravel() + count
        found += list(rows)
        count += len(rows)
    order = np.argsort(np.array([row[0] for row in found], dtype=np.int64), kind="stable")
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    ordered = [found[i] for i in order]
    members = np.concatenate(ordered) if ordered else np.zeros(0, np.int64)
    return offsets(np.array([len(r) for r in ordered], dtype=np.int64)), members, place[number]


def _long_slots(
    forest: Forest, ptr: NDArray[np.int64], members: NDArray[np.int64], mask: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]] | None:
    """(node, piece, odd, parent) of the slots of every long piece; None past MAX_ENTRIES."""
    f, n = forest, forest.n
    links = f.parent, f.tree, f.tree_ptr, f.child_ptr, f.child, f.msg_ptr
    uses, slot = np.zeros(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    out: tuple[NDArray, ...] = (*np.empty((3, n), np.int64), np.empty(n, np.bool_))
    u = used = entries = 0
    while True:
        u, used, entries = _slots(
            links, ptr, members, mask, (uses, slot), out, (u, used, entries, MAX_ENTRIES)
        )
        if entries > MAX_ENTRIES:
            return None
        if u == mask.size:
            node, piece, parent, odd = (values[:used] for values in out)
            return node, piece, odd, parent
        out = tuple(np.concatenate([values, np.empty_like(values)]) for values in out)


def bucket_masks(
    forest: Forest, ptr: NDArray[np.int64], members: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Per row of nodes (CSR, ascending): its bits in the table of the first; 0 if not all there."""
    mask = np.zeros(len(ptr) - 1, dtype=np.int64)
    _masks(forest.sep_ptr, forest.sep, ptr, members, mask)
    return mask


@kernel
def _masks(sep_ptr, sep, ptr, members, mask):  # type: ignore[no-untyped-def]
    for u in range(mask.size):
        if ptr[u] < ptr[u + 1]:
            mask[u] = bucket_mask(sep_ptr, sep, members, ptr[u], ptr[u + 1])


@kernel
def _slots(links, ptr, members, mask, work, out, at):  # type: ignore[no-untyped-def]
    """Nodes from the members of each long piece up to their common ancestor, parents first.

    at: the piece to go on with, slots and table entries so far, and the most of these. Ends before
    a piece that may not find room; returns the first three anew.
    """
    up, tree, tree_ptr, child_ptr, child, msg_ptr = links
    uses, slot = work  # uses: members and marked children at or right below a node
    node, piece, parent, odd = out
    u, used, entries, limit = at
    while u < mask.size and entries <= limit and used + up.size <= node.size:
        if mask[u] > 0:
            u += 1
            continue
        for p in range(ptr[u], ptr[u + 1]):
            k = members[p]
            new = uses[k] == 0
            uses[k] += 2  # a member counts twice: the descent below may not pass it
            while new and up[k] >= 0:
                k = up[k]
                new = uses[k] == 0
                uses[k] += 1
        top = tree_ptr[tree[members[ptr[u]]] + 1] - 1
        while uses[top] == 1:
            for i in range(child_ptr[top], child_ptr[top + 1]):
                if uses[child[i]] > 0:
                    uses[top] = 0
                    top = child[i]
                    break
        for k in range(top, members[ptr[u]] - 1, -1):
            if uses[k] == 0:
                continue
            slot[k] = used
            entries += msg_ptr[k + 1] - msg_ptr[k]
            node[used], piece[used], odd[used] = k, u, False
            parent[used] = slot[up[k]] if k != top else -1
            uses[k] = 0
            used += 1
        for p in range(ptr[u], ptr[u + 1]):
            odd[slot[members[p]]] = True
        u += 1
    return u, used, entries
