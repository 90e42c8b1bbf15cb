"""Spins by colour, so that many can be drawn at once: those of one colour share no term.

Slices of LANES spins of one colour lie side by side, entry by entry, as the lanes of a warp read
them. Spins of a slice have about the same terms; where one has fewer, terms of weight 0 fill up.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba.core import config
from numpy.typing import NDArray

from tightz.sampling.ais.kernels import Forest, Terms

LANES = 8 if config.ENABLE_CUDASIM else 32  # type: ignore[attr-defined]
"""Spins of a slice: a warp."""


class Phases(NamedTuple):
    """A sweep: colours (C + 1,) are the slices of each; sites (S, LANES), -1 where none is left.

    Slice a has the parts parts_ptr[a] to parts_ptr[a + 1], one for each number part_others of other
    spins in a term: terms q from part_ptr[p] to part_ptr[p + 1], whose others are the rows of
    `others` (R, LANES) from part_rows[p] on. A coupling at beta is still + beta moving (Q, LANES).
    """

    colours: NDArray[np.int32]
    sites: NDArray[np.int32]
    parts_ptr: NDArray[np.int32]
    part_others: NDArray[np.int32]
    part_ptr: NDArray[np.int32]
    part_rows: NDArray[np.int32]
    others: NDArray[np.uint32]
    still: NDArray[np.float64]
    moving: NDArray[np.float64]
    fields: NDArray[np.float64]
    base_fields: NDArray[np.float64]


def coloured(terms: Terms) -> NDArray[np.int64]:
    """(n,) a colour for each spin, greedily, those of most neighbours first."""
    n = terms.fields.size
    counts = np.diff(terms.other_ptr[terms.site_ptr])
    found = np.full(n, -1, dtype=np.int64)
    for i in np.argsort(-counts, kind="stable").tolist():
        near = terms.others[
            terms.other_ptr[terms.site_ptr[i]] : terms.other_ptr[terms.site_ptr[i + 1]]
        ]
        taken = set(found[near].tolist())
        colour = 0
        while colour in taken:
            colour += 1
        found[i] = colour
    return found


def phases_of(terms: Terms, base: Forest) -> Phases:
    """The sweep of a path's target and base."""
    n = terms.fields.size
    site = np.repeat(np.arange(n), np.diff(terms.site_ptr))
    sizes = np.diff(terms.other_ptr)
    kinds, kind = np.unique(sizes, return_inverse=True)
    by_kind = np.lexsort((kind, site))  # a spin's terms, those of few others first
    counts = np.zeros((n, kinds.size), dtype=np.int64)
    np.add.at(counts, (site, kind), 1)
    starts = terms.site_ptr[:-1, None] + np.cumsum(counts, axis=1) - counts
    colour = coloured(terms)
    order = np.lexsort((*counts.T, colour))
    cuts = np.searchsorted(colour[order], np.arange(colour.max(initial=-1) + 2))
    still = np.append(base.theta[terms.site_terms], 0.0)
    moving = np.append((terms.theta - base.theta)[terms.site_terms], 0.0)
    colours, sites, parts_ptr = [0], [], [0]
    part_others, part_ptr, part_rows = [], [0], [0]
    near, pinned, free = [], [], []
    for low, high in pairwise(cuts.tolist()):
        for first in range(low, high, LANES):
            chosen = order[first : min(first + LANES, high)]
            slice_sites = np.full(LANES, -1, dtype=np.int64)
            slice_sites[: chosen.size] = chosen
            sites.append(slice_sites)
            for which in np.flatnonzero(counts[chosen].any(axis=0)):
                many, others = int(counts[chosen, which].max()), int(kinds[which])
                turn = np.arange(many)[:, None]
                there = (turn < counts[slice_sites, which]) & (slice_sites >= 0)
                place = np.where(there, starts[slice_sites, which] + turn, 0)
                q = np.where(there, by_kind[place], site.size)
                begin = np.where(there, terms.other_ptr[np.minimum(q, site.size - 1)], 0)
                members = terms.others[begin[:, None, :] + np.arange(others)[None, :, None]]
                near.append(members.reshape(many * others, LANES))
                pinned.append(still[q])
                free.append(moving[q])
                part_others.append(others)
                part_ptr.append(part_ptr[-1] + many)
                part_rows.append(part_rows[-1] + many * others)
            parts_ptr.append(len(part_others))
        colours.append(len(sites))
    small, none = np.int32, np.zeros((0, LANES))
    return Phases(
        np.array(colours, small),
        np.array(sites, small).reshape(-1, LANES),
        np.array(parts_ptr, small),
        np.array(part_others, small),
        np.array(part_ptr, small),
        np.array(part_rows, small),
        np.concatenate([none, *near]).astype(np.uint32),
        np.concatenate([none, *pinned]),
        np.concatenate([none, *free]),
        terms.fields - base.fields,
        base.fields,
    )
