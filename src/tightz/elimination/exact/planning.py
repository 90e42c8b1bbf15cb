"""What eliminating in a given order does and costs, worked out before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.chains import Chain, arrange
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
from tightz.elimination.exact.skeleton import LOG2_STATES, Skeleton, by_order, nodes_of
from tightz.elimination.graph import Scopes, scopes_of
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.memory import format_bytes, parse_memory

GROUP_ENTRIES = 4096  # factors of a bucket are merged while their union stays this small
TILE_ENTRIES = 1024

# Seconds on two cores, measured by benchmarks/exact.py: for looking after a bucket; for an entry of
# the message that a pass walks over, and a product in it; for a product outside of passes; for a
# byte of memory when it is used first (much more where the machine has to find it).
BUCKET_SECONDS = 3e-4
WALK, PRODUCT, SLOW_PRODUCT = 1.5e-9, 0.15e-9, 0.8e-9
TOUCH = 0.25e-9
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
    chains: dict[int, Chain] = field(default_factory=dict)

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
        cards = self._cards
        return math.prod([cards[a] for a in axes])

    @cached_property
    def _cards(self) -> list[int]:
        return [int(c) for c in self.cardinalities.tolist()]

    def named(self, b: int) -> str:
        """The variables that bucket b sums out, for messages."""
        names = ", ".join(str(v) for v in self.order[list(self.buckets[b].summed)])
        return f"variable {names}" if names else "a product"

    @property
    def seconds(self) -> float:
        """Predicted for log Z, on two cores."""
        return self.table_seconds + BUCKET_SECONDS * len(self.buckets)

    @cached_property
    def table_seconds(self) -> float:
        """The part of `seconds` that goes into tables, and not into looking after buckets."""
        chains = self.in_place.chains
        passes = {b: last for last, chain in chains.items() for b in (*chain.before, last)}
        sizes = self.sizes()
        total = math.fsum(WALK * sizes[chain.main] for chain in chains.values())
        total += TOUCH * self.log_z_bytes
        for b, bucket in enumerate(self.buckets):
            inputs = len(bucket.groups) + len(bucket.children)
            price = PRODUCT if b in passes else SLOW_PRODUCT * inputs
            total += price * float(self.entries(bucket.axes))
        return total

    def log_z_schedule(self) -> list[Step]:
        """For `in_place`."""
        return list(
            forward_steps(self.buckets, {b: c.before for b, c in self.in_place.chains.items()})
        )

    @cached_property
    def in_place(self) -> EliminationPlan:
        """The same plan with `chains`, and tables laid out for them: see `arrange`."""
        buckets, chains = arrange(self.buckets, self.cardinalities.tolist())
        return replace(self, buckets=buckets, chains=chains)

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
        """Largest work space while following `steps`, chains as passes or bucket by bucket."""
        whole = self._peak_entries(steps, apart=False)
        apart = self._peak_entries(steps, apart=True) if any(s.chain for s in steps) else 0
        return 8 * max(whole, apart)

    def _peak_entries(self, steps: Sequence[Step], *, apart: bool) -> int:
        """`apart`: as `Elimination` does it where the tables of every chain need logs."""
        sizes = self.sizes()
        reserved = self.reserved_entries
        arena = Arena(reserved)
        messages: dict[int, int] = {}
        beliefs: dict[int, int] = {}
        for kind, b, _, chain in steps:
            if kind == FORWARD:
                for c in (*chain, b) if chain and apart else (b,):
                    messages[c] = arena.take(sizes[c])
                    for d in self.buckets[c].children if chain and apart else ():
                        arena.give_back(messages.pop(d), sizes[d])
            elif kind in (FREE, MERGE):
                if b in messages:
                    arena.give_back(messages.pop(b), sizes[b])
            else:
                if b not in beliefs:  # a root: its belief is the number 1
                    beliefs[b] = arena.take(sizes[b])
                for c in self.buckets[b].children:
                    beliefs[c] = arena.take(sizes[c])
                arena.give_back(beliefs.pop(b), sizes[b])
                arena.give_back(messages.pop(b), sizes[b])
        return arena.peak

    @cached_property
    def reserved_entries(self) -> int:
        """Room at the arena's start for one bucket's merged factors."""
        worst = 0
        for bucket in self.buckets:
            worst = max(worst, sum(self.entries(s) for s in self.group_axes(bucket)))
        for last, chain in self.chains.items():
            groups = [axes for b in (*chain.before, last) for axes, _ in self.buckets[b].groups]
            worst = max(worst, sum(self.entries(axes) for axes in groups))
        return -(-worst // ALIGN) * ALIGN

    def group_axes(self, bucket: Bucket) -> list[tuple[int, ...]]:
        """Axes of each merged factor as stored: spread along the tile where that is cheap."""
        count = tile_axes(bucket.scope, self._cards)
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
    *,
    one_by_one: bool = False,
) -> EliminationPlan:
    """Follow an order of all variables, or a skeleton, symbolically; the model has no evidence.

    `numbers`: what the variables are called in the model that this one was conditioned from.
    `one_by_one`: no bucket sums out two variables; by an order, bucket b then is that of the b-th.
    """
    n = model.n_variables
    scopes = scopes_of(model)
    skeleton = how if isinstance(how, Skeleton) else by_order(scopes, how)
    log2_card = np.log2(model.cardinalities.astype(np.float64))
    nodes = nodes_of(skeleton, scopes, log2_card, 0.0 if one_by_one else LOG2_STATES)
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
        # A table of ones: a variable in no factor has a marginal too, and the GPU reads that of
        # each variable off a table of its own bucket.
        if one_by_one and not any(first in axes for axes, _ in groups):
            groups = (*groups, ((first,), ()))
        elif not groups and not node.children:
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
    log_z_bytes = draft.in_place.peak_bytes(draft.log_z_schedule())
    marginal_bytes = draft.peak_bytes(list(checkpointed_steps(draft.buckets, draft.sizes(), ())))
    flops = math.fsum(
        (len(b.groups) + len(b.children)) * float(draft.entries(b.axes)) for b in buckets
    )
    known: dict[str, Any] = {
        "flops": flops,
        "log_z_bytes": log_z_bytes,
        "marginal_bytes": marginal_bytes,
    }
    final = replace(draft, **known)
    # `replace` drops what the draft has worked out: a tenth of all planning on a lattice
    final.__dict__["in_place"] = replace(draft.in_place, **known)
    return final


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
            if union == axes or math.prod([int(cards[a]) for a in union]) <= GROUP_ENTRIES:
                axes |= union
                members.append(f)
                break
        else:
            groups.append((set(scope), [f]))
    return tuple((tuple(sorted(axes)), tuple(members)) for axes, members in groups)
