"""A partition laid out as flat arrays for the kernels, and the cliques' own tables."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.runtime.kernels import kernel
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
    cards, cliques, parents = parts.cardinalities.tolist(), parts.cliques, parts.parents.tolist()
    count = len(cliques)
    sizes = parts.table_sizes.astype(np.int64)
    rows = np.array([sizes[c] // cards[s[-1]] for c, s in enumerate(cliques)], dtype=np.int64)
    parent_strides: list[int] = []
    stride_ptr = [0]
    for c in range(count):
        if parents[c] >= 0:
            at = _strides(cliques[c][:-1], cards)
            parent_strides += [at.get(v, 0) for v in cliques[parents[c]]]
        stride_ptr.append(len(parent_strides))
    pair_ptr, pairs, pair_sizes, pair_stride_ptr, pair_strides = [0], [], [], [0], []
    for bucket in parts.pairs:
        for i, j, shared in bucket:
            at = _strides(shared, cards)
            for c in (i, j):
                pair_strides += [at.get(v, 0) for v in cliques[c]]
                pair_stride_ptr.append(len(pair_strides))
            pairs.append((i, j))
            pair_sizes.append(math.prod(cards[v] for v in shared))
        pair_ptr.append(len(pairs))
    own_strides: list[int] = []
    for c, own in enumerate(parts.own_scopes):
        at = _strides(own, cards)
        own_strides += [at.get(v, 0) for v in cliques[c]]
    cut = np.repeat(np.diff(parts.bucket_ptr) > 1, np.diff(parts.bucket_ptr))
    binary = np.array([cards[s[-1]] == 2 for s in cliques], dtype=bool)
    by_parent = np.argsort(parts.parents, kind="stable")
    held = parts.parents[by_parent] >= 0
    return Skeleton(
        parts.bucket_ptr,
        _pointers([len(s) for s in cliques]),
        np.array([cards[v] for s in cliques for v in s], dtype=np.int64),
        _pointers(sizes),
        _pointers([math.prod(cards[v] for v in own) for own in parts.own_scopes]),
        np.array(own_strides, dtype=np.int64),
        _pointers(rows),
        _pointers(np.where(binary, rows, sizes)),
        _pointers(np.where(cut, rows, 0)),
        parts.parents,
        _pointers(np.bincount(parts.parents[by_parent[held]], minlength=count)),
        by_parent[held].astype(np.int64),
        np.array(stride_ptr, dtype=np.int64),
        np.array(parent_strides, dtype=np.int64),
        np.array(pair_ptr, dtype=np.int64),
        np.array(pairs, dtype=np.int64).reshape(-1, 2),
        _pointers(pair_sizes),
        np.array(pair_stride_ptr, dtype=np.int64),
        np.array(pair_strides, dtype=np.int64),
    )


def _strides(axes: tuple[int, ...], cards: list[int]) -> dict[int, int]:
    out, stride = {}, 1
    for v in reversed(axes):
        out[v] = stride
        stride *= cards[v]
    return out


def _pointers(counts: object) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))]).astype(np.int64)


def own_tables(parts: Partition, skel: Skeleton) -> NDArray[np.float64]:
    """Each clique's factors added up, over the axes that they and its shifts have (flat)."""
    model, own = parts.model, np.zeros(int(skel.own_ptr[-1]))
    source_ptr = _pointers([len(s) for s in parts.sources])
    sources = np.array([f for s in parts.sources for f in s], dtype=np.int64)
    members = np.array([v for s in parts.cliques for v in s], dtype=np.int64)
    place = np.full(parts.cardinalities.size, -1, dtype=np.int64)
    offsets = np.empty(int(np.diff(skel.own_ptr).max(initial=1)), dtype=np.int32)
    most = int(np.diff(skel.axis_ptr).max(initial=1))
    scratch = np.empty((3, most), dtype=np.int64)
    _add_factors(
        skel, source_ptr, sources, members, place, scratch, offsets, own,
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
