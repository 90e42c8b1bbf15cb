"""Which buckets one pass does together, and how tables are laid out so that passes run smoothly.

A pass reads its main message and writes its result in blocks (see `passes`): along a row of a block
lie axes that the pass leaves alone, its tile. The result is laid out with the tile as its fastest
axes, so it is written row by row, and the next pass reads row by row unless it needs one of those
axes itself. Then it takes the axes that are summed out last as its new tile: that read is slow,
and many that follow are fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tightz.elimination.exact.passes import (
    LEAST_TILE,
    MOST_ROWS,
    Axes,
    local_rows,
    repeated,
    tile_of,
)
from tightz.elimination.exact.schedule import Bucket

PASS_ENTRIES = 1 << 13
"""Messages from here on are walked block by block."""

CHAIN_ROWS = 32
"""Rows of a block, beyond which a chain does not grow."""

CHAIN_STATES = 256
"""Joint states of all that a chain sums out, beyond which it does not grow.

Variables that come in and go again need no rows. But the audit sums over all states together, and
a sum over them must stay in float64's range.
"""


class Chain(NamedTuple):
    """A pass that ends with some bucket: the buckets before it, and the child it walks over."""

    before: tuple[int, ...]
    main: int


def arrange(
    buckets: Sequence[Bucket], cards: Sequence[int]
) -> tuple[tuple[Bucket, ...], dict[int, Chain]]:
    """The buckets with their messages laid out for the passes, and those by their last bucket.

    A chain whose tile would be too thin (see `pass_layout`) is none.
    """
    chains: dict[int, Chain] = {}
    arranged = list(buckets)
    for b, chain in _chains(buckets, cards).items():  # in order: a chain's main child comes before
        source, scope = arranged[chain.main].scope, buckets[b].scope
        turns = _turns(buckets, chain, b)
        rows = _rows(buckets, chain, b, cards)
        tile = tile_of(source, turns, cards, rows)
        if _entries(tile, cards) < LEAST_TILE:
            continue
        chains[b] = chain
        others = [a for a in source if a in scope and a not in tile]
        new = [a for a in scope if a not in source]
        arranged[b] = buckets[b]._replace(scope=(*new, *others, *tile))
    return tuple(arranged), chains


def _chains(buckets: Sequence[Bucket], cards: Sequence[int]) -> dict[int, Chain]:
    """Every bucket that works on a large message, joined to the one before where blocks stay small.

    Only buckets with few messages: with many, they are multiplied as they come (`schedule`).
    """
    sizes = [_entries(b.scope, cards) for b in buckets]
    chains: dict[int, Chain] = {}
    for b, bucket in enumerate(buckets):
        if len(bucket.children) not in (1, 2) or len(bucket.children) + len(bucket.groups) < 2:
            continue
        main = max(bucket.children, key=lambda c: (sizes[c], c))
        if sizes[main] < PASS_ENTRIES:
            continue
        known = chains.get(main)
        if known is not None and main == b - 1:
            longer = Chain((*known.before, main), known.main)
            states = math.prod(_entries(buckets[c].summed, cards) for c in (*longer.before, b))
            if _rows(buckets, longer, b, cards) <= CHAIN_ROWS and states <= CHAIN_STATES:
                del chains[main]
                chains[b] = longer
                continue
        if _rows(buckets, Chain((), main), b, cards) <= MOST_ROWS:
            chains[b] = Chain((), main)
    return chains


def _entries(axes: Sequence[int], cards: Sequence[int]) -> int:
    return math.prod(cards[a] for a in axes)


def _turns(buckets: Sequence[Bucket], chain: Chain, last: int) -> list[Axes]:
    """Per bucket of a pass what it sums out, and the axes of the tables that it multiplies in."""
    done = {chain.main, *chain.before}
    turns: list[Axes] = []
    for b in (*chain.before, last):
        sides = [buckets[c].scope for c in buckets[b].children if c not in done]
        turns.append((buckets[b].summed, [*sides, *(axes for axes, _ in buckets[b].groups)]))
    return turns


def _rows(buckets: Sequence[Bucket], chain: Chain, last: int, cards: Sequence[int]) -> int:
    """The most rows of a block of the pass over `chain` and the bucket `last`."""
    main, turns = buckets[chain.main].scope, _turns(buckets, chain, last)
    loops = repeated(main, turns, cards)
    rows = ([a for a in axes if a not in loops] for axes in local_rows(main, turns))
    return max(_entries(axes, cards) for axes in rows)
