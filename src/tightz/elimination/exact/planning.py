"""What eliminating in a given order does and costs, worked out before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.passes import MOST_ROWS, local_rows
from tightz.elimination.exact.schedule import (
    ALIGN,
    CUTS,
    FORWARD,
    FREE,
    MERGE,
    Arena,
    Bucket,
    Step,
    checkpointed_steps,
    forward_steps,
)
from tightz.elimination.exact.skeleton import Skeleton, by_order, nodes_of
from tightz.elimination.graph import Scopes, scopes_of
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.memory import format_bytes, parse_memory

GROUP_ENTRIES = 4096  # factors of a bucket are merged while their union stays this small
TILE_ENTRIES = 1024
PASS_ENTRIES = 1 << 13  # messages from here on are walked block by block (see `passes`)
CHAIN_ROWS = 32
BUCKET_SECONDS = 4e-4
FLOPS_A_SECOND = 1e9
SPREAD_ENTRIES = 1 << 15  # a merged factor is copied along the tile while it stays this small


@dataclass(frozen=True, repr=False, eq=False)
class EliminationPlan:
    """An order with its width, operations and bytes, before any table exists.

    It is made once and handed on: `exact(model, plan=plan)` follows it, and `variables` is an order
    that mini-bucket bounds can start from (`Orders(model, plan.variables)`).

    `order` numbers the variables that are neither observed nor of one state, `variables` calls them
    by the model's own numbers; `cardinalities` and `buckets` go by place in the order. `width` is
    one less than the most variables that meet in one product; `flops` counts multiplications and
    additions for log Z; `log_z_bytes` and `marginal_bytes` are the peaks of the work space (keeping
    every message; less is possible by recomputing them).
    """

    order: NDArray[np.int64]
    heuristic: str
    numbers: NDArray[np.int64]
    skeleton: Skeleton
    scopes: Scopes
    cardinalities: NDArray[np.int64]
    buckets: tuple[Bucket, ...]
    width: int
    flops: float
    log_z_bytes: int = 0
    marginal_bytes: int = 0

    @property
    def variables(self) -> NDArray[np.int64]:
        """The order in the numbers of the model that was planned for."""
        return self.numbers[self.order]

    def is_of(self, model: FactorGraph, numbers: NDArray[np.int64]) -> bool:
        """Whether this is a plan of `model` (no evidence), `numbers` being what it was cut from."""
        ours, theirs = self.scopes, scopes_of(model)
        return (
            np.array_equal(self.numbers, numbers)
            and np.array_equal(self.cardinalities, model.cardinalities[self.order])
            and np.array_equal(ours.ptr, theirs.ptr)
            and np.array_equal(ours.members, theirs.members)
        )

    def fits(self, max_memory: str | int, *, marginals: bool = False) -> bool:
        """Whether log Z (or also every marginal, at need by recomputing) stays in `max_memory`."""
        allowed = parse_memory(max_memory)
        if not marginals:
            return self.log_z_bytes <= allowed
        return self.marginal_bytes <= allowed or self.marginal_schedule(allowed) is not None

    def sizes(self) -> list[int]:
        """Entries of each bucket's message."""
        return self._sizes

    @cached_property
    def _sizes(self) -> list[int]:
        return [self.entries(b.scope) for b in self.buckets]

    def entries(self, axes: Iterable[int]) -> int:
        size = 1
        for a in axes:
            size *= int(self.cardinalities[a])
        return size

    def named(self, b: int) -> str:
        """The variables that bucket b sums out, for messages."""
        names = ", ".join(str(v) for v in self.order[list(self.buckets[b].summed)])
        return f"variable {names}" if names else "a product"

    @property
    def seconds(self) -> float:
        """Predicted for log Z, on two cores (see docs/decisions.md for how far off it is)."""
        return len(self.buckets) * BUCKET_SECONDS + self.flops / FLOPS_A_SECOND

    def log_z_schedule(self) -> list[Step]:
        return list(forward_steps(self.buckets, self.chains))

    @cached_property
    def chains(self) -> dict[int, tuple[int, ...]]:
        """Buckets that one pass over a large message does together: the last -> those before."""
        chains: dict[int, tuple[int, ...]] = {}
        sizes = self.sizes()
        for b, bucket in enumerate(self.buckets):
            if len(bucket.children) not in (1, 2) or len(bucket.children) + len(bucket.groups) < 2:
                continue
            main = max(bucket.children, key=lambda c: (sizes[c], c))
            if sizes[main] < PASS_ENTRIES:
                continue
            before = chains.get(main)
            if before is not None and main == b - 1:
                longer = (*before, main)
                if self._rows(longer, b) <= CHAIN_ROWS:
                    del chains[main]
                    chains[b] = longer
                    continue
            if self._rows((), b) <= MOST_ROWS:
                chains[b] = ()
        return chains

    def in_place(self) -> EliminationPlan:
        """The same plan with tables laid out for passes: what comes in lies where it replaces.

        Otherwise axes are in the order in which they are summed out, and a pass would read at one
        end of a table's axes and write at the other: it would transpose.
        """
        if not self.chains:
            return self
        buckets: list[Bucket] = []
        for b, bucket in enumerate(self.buckets):
            scope = bucket.scope
            if b in self.chains or any(b in chain for chain in self.chains.values()):
                main = buckets[self.main_child(b)].scope
                new = [a for a in scope if a not in main]
                kept: list[int] = []
                for a in main:
                    if a in scope:
                        kept.append(a)
                    elif new and self.cardinalities[new[0]] == self.cardinalities[a]:
                        kept.append(new.pop(0))
                scope = (*new, *kept)
            buckets.append(bucket._replace(scope=scope))
        return replace(self, buckets=tuple(buckets))

    def main_child(self, b: int) -> int:
        """The child of bucket b with the largest message."""
        sizes = self.sizes()
        return max(self.buckets[b].children, key=lambda c: (sizes[c], c))

    def _rows(self, chain: tuple[int, ...], last: int) -> int:
        """The most rows of a block of the pass over `chain` and `last`."""
        buckets = [self.buckets[b] for b in (*chain, last)]
        main = self.main_child((*chain, last)[0])
        known = {main, *chain}
        turns = [
            (
                b.summed,
                [*(self.buckets[c].scope for c in b.children if c not in known)]
                + [axes for axes, _ in b.groups],
            )
            for b in buckets
        ]
        return max(self.entries(axes) for axes in local_rows(self.buckets[main].scope, turns))

    def marginal_schedule(self, max_bytes: int) -> list[Step] | None:
        """The schedule with least recomputation that fits, or None.

        Messages are kept at cuts only and recomputed between them, on up to three levels
        (checkpointing: Griewank, 1992).
        """
        for cuts in CUTS:
            if max(cuts, default=1) > max(1, len(self.buckets)):
                continue
            steps = list(checkpointed_steps(self.buckets, self.sizes(), cuts))
            if self.peak_bytes(steps) <= max_bytes:
                return steps
        return None

    def peak_bytes(self, steps: Sequence[Step]) -> int:
        """Largest work space while following `steps`."""
        sizes = self.sizes()
        reserved = self.reserved_entries
        arena = Arena(reserved)
        messages: dict[int, int] = {}
        beliefs: dict[int, int] = {}
        for kind, b, *_ in steps:
            if kind == FORWARD:
                messages[b] = arena.take(sizes[b])
            elif kind in (FREE, MERGE):
                arena.give_back(messages.pop(b), sizes[b])
            else:
                if b not in beliefs:  # a root: its belief is the number 1
                    beliefs[b] = arena.take(sizes[b])
                for c in self.buckets[b].children:
                    beliefs[c] = arena.take(sizes[c])
                arena.give_back(beliefs.pop(b), sizes[b])
                arena.give_back(messages.pop(b), sizes[b])
        return 8 * arena.peak

    @cached_property
    def reserved_entries(self) -> int:
        """Room at the arena's start for one bucket's merged factors."""
        worst = 0
        for bucket in self.buckets:
            worst = max(worst, sum(self.entries(s) for s in self.group_axes(bucket)))
        for last, chain in self.chains.items():
            groups = [axes for b in (*chain, last) for axes, _ in self.buckets[b].groups]
            worst = max(worst, sum(self.entries(axes) for axes in groups))
        return -(-worst // ALIGN) * ALIGN

    def group_axes(self, bucket: Bucket) -> list[tuple[int, ...]]:
        """Axes of each merged factor as stored: spread along the tile where that is cheap."""
        count = tile_axes(bucket.scope, self.cardinalities)
        tile = bucket.scope[len(bucket.scope) - count :]
        stored = []
        for axes, _ in bucket.groups:
            spread = tuple(sorted(set(axes) | set(tile)))
            touches = any(a in tile for a in axes)
            stored.append(spread if touches and self.entries(spread) <= SPREAD_ENTRIES else axes)
        return stored

    def __repr__(self) -> str:
        return (
            f"EliminationPlan({len(self.order)} variables, width {self.width} by {self.heuristic}, "
            f"{self.flops:.3g} flops, log Z in {format_bytes(self.log_z_bytes)}, "
            f"marginals in {format_bytes(self.marginal_bytes)})"
        )


def tile_axes(scope: tuple[int, ...], cards: Sequence[int] | NDArray[np.int64]) -> int:
    """How many of the last axes of a message form its tile."""
    size, count = 1, 0
    for a in reversed(scope):
        size *= int(cards[a])
        if count and size > TILE_ENTRIES:
            break
        count += 1
    return count


def build_plan(
    model: FactorGraph,
    how: NDArray[np.int64] | Skeleton,
    heuristic: str,
    numbers: NDArray[np.int64] | None = None,
) -> EliminationPlan:
    """Follow an order of all variables, or a skeleton, symbolically; the model has no evidence.

    `numbers`: what the variables are called in the model that this one was conditioned from.
    """
    n = model.n_variables
    scopes = scopes_of(model)
    skeleton = how if isinstance(how, Skeleton) else by_order(scopes, how)
    nodes = nodes_of(skeleton, scopes, np.log2(model.cardinalities.astype(np.float64)))
    order = np.array([v for node in nodes for v in node.summed], dtype=np.int64)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    places = position.tolist()
    cards = model.cardinalities[order].astype(np.int64)
    parent = [-1] * len(nodes)
    for b, node in enumerate(nodes):
        for c in node.children:
            parent[c] = b
    buckets = []
    first = 0
    for b, node in enumerate(nodes):
        scope = tuple(sorted(places[v] for v in node.scope))
        groups = _merge_factors(model, position, cards, node.factors)
        if not groups and not node.children:  # in no factor: its marginal is known all the same
            groups = (((first,), ()),)
        summed = tuple(range(first, first + len(node.summed)))
        buckets.append(Bucket(summed, scope, groups, node.children, parent[b]))
        first += len(summed)
    draft = EliminationPlan(
        order=order,
        heuristic=heuristic,
        numbers=np.arange(n) if numbers is None else numbers,
        skeleton=skeleton,
        scopes=scopes,
        cardinalities=cards,
        buckets=tuple(buckets),
        width=max((len(b.axes) for b in buckets), default=1) - 1,
        flops=0.0,
    )
    log_z_bytes = draft.peak_bytes(draft.log_z_schedule())
    marginal_bytes = draft.peak_bytes(list(checkpointed_steps(draft.buckets, draft.sizes(), ())))
    flops = math.fsum(
        (len(b.groups) + len(b.children)) * float(draft.entries(b.axes)) for b in buckets
    )
    return replace(draft, flops=flops, log_z_bytes=log_z_bytes, marginal_bytes=marginal_bytes)


def _merge_factors(
    model: FactorGraph,
    position: NDArray[np.int64],
    cards: NDArray[np.int64],
    factors: Sequence[int],
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Greedy unions of the bucket's factors, each up to GROUP_ENTRIES or one factor alone."""
    groups: list[tuple[set[int], list[int]]] = []
    ptr, scope_vars = model.scope_ptr, model.scope_vars
    scopes = [(tuple(position[scope_vars[ptr[f] : ptr[f + 1]]].tolist()), f) for f in factors]
    for scope, f in sorted(scopes, key=lambda pair: (-len(pair[0]), sorted(pair[0]))):
        for axes, members in groups:
            union = axes.union(scope)
            if union == axes or np.prod(cards[list(union)].astype(np.float64)) <= GROUP_ENTRIES:
                axes |= union
                members.append(f)
                break
        else:
            groups.append((set(scope), [f]))
    return tuple((tuple(sorted(axes)), tuple(members)) for axes, members in groups)
