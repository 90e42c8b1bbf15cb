"""A partition laid out as flat arrays for the kernels, and the cliques' own tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.selection import ranges
from tightz.runtime.kernels import kernel
from tightz.uppers.mini_bucket.flat import pointers, strides
from tightz.uppers.mini_bucket.kernels import fill_offsets, part
from tightz.uppers.mini_bucket.partition import Partition


class Skeleton(NamedTuple):
    """Cliques in elimination order as flat arrays, ready for the kernels.

    Clique c has axes `axis_ptr[c]:axis_ptr[c+1]` with sizes `dims`; its own variable is the last
    axis (stride 1), so its message has the same axes without the last one. Strides say where an
    entry of a clique's table falls in a smaller table over part of its axes: `own_strides` (as
    `dims`) in that of its factors and shifts, `parent_strides` in a child's message, the pair
    strides in what a pair shares. Bucket b holds cliques `bucket_ptr[b]:bucket_ptr[b+1]` and pairs
    `pair_ptr[b]:pair_ptr[b+1]` of cliques that may shift costs over what they share; pair p has the
    entries `shift_ptr[p]:shift_ptr[p+1]` of the shifts. `odds_ptr`: a clique's conditionals;
    `cut_ptr`: entropies, one a row, where its bucket was cut.
    """

    bucket_ptr: NDArray[np.int64]
    axis_ptr: NDArray[np.int64]
    dims: NDArray[np.int64]
    table_ptr: NDArray[np.int64]
    own_ptr: NDArray[np.int64]
    own_strides: NDArray[np.int64]
    message_ptr: NDArray[np.int64]
    odds_ptr: NDArray[np.int64]
    cut_ptr: NDArray[np.int64]
    parents: NDArray[np.int64]
    child_ptr: NDArray[np.int64]
    children: NDArray[np.int64]
    stride_ptr: NDArray[np.int64]
    parent_strides: NDArray[np.int64]
    pair_ptr: NDArray[np.int64]
    pairs: NDArray[np.int64]
    shift_ptr: NDArray[np.int64]
    pair_stride_ptr: NDArray[np.int64]
    pair_strides: NDArray[np.int64]


def skeleton(parts: Partition) -> Skeleton:
    """Lay a partition out as flat arrays."""
    flat, cards, parents = parts.flat, parts.cardinalities, parts.parents
    lengths = np.diff(flat.ptr)
    sizes, dims = parts.table_sizes.astype(np.int64), cards[flat.members]
    last = flat.ptr[1:] - 1
    rows = sizes // dims[last]
    # The message of a clique has its axes without the last one.
    inner = dims.copy()
    inner[last] = 1
    steps = strides(flat.ptr, inner)
    steps[last] = 0
    sends = np.flatnonzero(parents >= 0)
    above = np.where(parents >= 0, lengths[parents], 0) if parents.size else lengths
    stride_ptr = pointers(above)
    parent_strides = np.zeros(int(stride_ptr[-1]), dtype=np.int64)
    # Where a clique's members stand in its parent; its own variable is not there.
    sender = np.repeat(sends, lengths[sends] - 1)
    child = ranges(flat.ptr[sends], lengths[sends] - 1)
    home = flat.find(parents[sender], flat.members[child])
    parent_strides[stride_ptr[sender] + home - flat.ptr[parents[sender]]] = steps[child]
    own_dims = np.where(flat.own, dims, 1)
    own_steps = strides(flat.ptr, own_dims)
    pair_stride_ptr = pointers(lengths[flat.pairs].ravel())
    pair_strides = np.zeros(int(pair_stride_ptr[-1]), dtype=np.int64)
    shared_dims = cards[flat.shared]
    shared_steps = strides(flat.shared_ptr, shared_dims)
    pair = np.repeat(np.arange(len(flat.pairs)), np.diff(flat.shared_ptr))
    for side in (0, 1):
        within = flat.at[:, side] - flat.ptr[flat.pairs[pair, side]]
        pair_strides[pair_stride_ptr[2 * pair + side] + within] = shared_steps
    cut = np.repeat(np.diff(parts.bucket_ptr) > 1, np.diff(parts.bucket_ptr))
    by_parent = np.argsort(parents, kind="stable")
    held = parents[by_parent] >= 0
    return Skeleton(
        parts.bucket_ptr,
        flat.ptr,
        dims,
        pointers(sizes),
        pointers(own_steps[flat.ptr[:-1]] * own_dims[flat.ptr[:-1]]),
        np.where(flat.own, own_steps, 0),
        pointers(rows),
        pointers(np.where(dims[last] == 2, rows, sizes)),
        pointers(np.where(cut, rows, 0)),
        parents,
        pointers(np.bincount(parents[by_parent[held]], minlength=parents.size)),
        by_parent[held].astype(np.int64),
        stride_ptr,
        parent_strides,
        flat.pair_ptr,
        flat.pairs,
        pointers(shared_steps[flat.shared_ptr[:-1]] * shared_dims[flat.shared_ptr[:-1]]),
        pair_stride_ptr,
        pair_strides,
    )


def own_tables(parts: Partition, skel: Skeleton) -> NDArray[np.float64]:
    """Each clique's factors added up, over the axes that they and its shifts have (flat)."""
    model, own = parts.model, np.zeros(int(skel.own_ptr[-1]))
    placed = np.flatnonzero(parts.tree.home >= 0)
    homes = parts.tree.home[placed]
    source_ptr = pointers(np.bincount(homes, minlength=parts.parents.size))
    sources = placed[np.argsort(homes, kind="stable")]
    place = np.full(parts.cardinalities.size, -1, dtype=np.int64)
    offsets = np.empty(int(np.diff(skel.own_ptr).max(initial=1)), dtype=np.int32)
    most = int(np.diff(skel.axis_ptr).max(initial=1))
    scratch = np.empty((3, most), dtype=np.int64)
    _add_factors(
        skel, source_ptr, sources, parts.flat.members, place, scratch, offsets, own,
        model.scope_ptr.astype(np.int64), model.scope_vars.astype(np.int64),
        model.table_ptr.astype(np.int64), model.log_tables,
    )  # fmt: skip
    return own


@kernel
def _add_factors(  # type: ignore[no-untyped-def]
    skel, source_ptr, sources, members, place, scratch, offsets, own,
    scope_ptr, scopes, table_ptr, logs,
):  # fmt: skip
    """Add every factor's log table to that of its clique, over whose axes it is spread.

    place (variables,), scratch (3, most axes) and offsets (largest own table) are scratch.
    """
    strides, own_dims, own_steps = scratch[0], scratch[1], scratch[2]
    for c in range(source_ptr.size - 1):
        low, high = skel.axis_ptr[c], skel.axis_ptr[c + 1]
        dims, where = part(skel.dims, skel.axis_ptr, c), part(skel.own_strides, skel.axis_ptr, c)
        for a in range(low, high):
            place[members[a]] = a - low
        table = part(own, skel.own_ptr, c)
        for e in range(source_ptr[c], source_ptr[c + 1]):
            f = sources[e]
            strides[:] = 0
            stride = 1
            for a in range(scope_ptr[f + 1] - 1, scope_ptr[f] - 1, -1):
                at = place[scopes[a]]
                strides[at] = stride
                stride *= dims[at]
            axes = 0
            for a in range(dims.size):
                if where[a] > 0:
                    own_dims[axes], own_steps[axes] = dims[a], strides[a]
                    axes += 1
            fill_offsets(own_dims[:axes], own_steps[:axes], offsets)
            entries = part(logs, table_ptr, f)
            for k in range(table.size):
                table[k] += entries[offsets[k]]
