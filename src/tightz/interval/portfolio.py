"""Which streams `log_partition` runs, and in what order they start.

Adding one is a function (working, clock) in `streams/` and an entry here. The driver gives the time
to those that narrow the interval fastest (`race.py`), so an entry costs little where it is no use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tightz.bounds import Bound, Proof, Side
from tightz.interval.streams.exact import COUNTING, counting, exactly, takes_long
from tightz.interval.streams.spins import (
    contradiction,
    encoding_of,
    first_layer,
    layers,
    plain_mean_field,
    projections,
    splitting,
    structured,
)
from tightz.interval.streams.states import blocks, cutset_sums, first_state, solved
from tightz.interval.streams.uppers import tree_reweighted
from tightz.judge import LargestEntries, StatesEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import observe
from tightz.runtime.clock import Clock
from tightz.sampling.annealed import annealed
from tightz.sampling.capped.stream import capped
from tightz.workspace.findings import Finding
from tightz.workspace.working import Launch, Method, Planned, Working, is_dense, name_of

LARGE = 20_000
"""Factors above which the other streams do not wait for a plan: it takes seconds there."""


def opening(working: Working, clock: Clock) -> Iterator[Finding | Bound | Launch]:
    """The exact answer where it is within reach, with all streams beside it where not soon."""
    yield from solved(working, clock)
    if not working.graph.n_variables:
        return
    yield from first_state(working, clock)
    beside = working.graph.n_factors > LARGE or takes_long(working, clock)
    if beside:
        yield Launch(SIDE_BY_SIDE)
    done = False
    for found in exactly(working, clock):
        done = done or isinstance(found, Bound)
        yield found
    if not done and not beside:
        yield Launch(SIDE_BY_SIDE)


ANNEALING, DENSE_ANNEALING = 0.3, 0.5
"""Parts of the workers' time for annealing; on dense models nothing else says much."""


def annealing(working: Working, clock: Clock) -> Iterator[Launch]:
    """Annealing, with the time it is promised."""
    encoding = encoding_of(working)
    if encoding is not None:
        share = DENSE_ANNEALING if is_dense(encoding.polynomial) else ANNEALING
        yield Launch((Planned(annealed, share),))


def tempering(working: Working, clock: Clock) -> Iterator[Launch]:
    """The search for heavy states, and after it the streams that start from them."""
    if encoding_of(working) is not None:
        _ = working.spins.states
        yield Launch(FROM_STATES)


LOWER: tuple[Method, ...] = (
    solved,
    plain_mean_field,
    first_layer,
    contradiction,
    blocks,
    tempering,
    cutset_sums,
)
AT_ONCE = 1.0
"""Promised to openers, which only launch a stream with a promise of its own."""

UPPER: tuple[Method, ...] = (tree_reweighted, Planned(capped, AT_ONCE))
SIDE_BY_SIDE: tuple[Method, ...] = (
    Planned(annealing, AT_ONCE),
    Planned(counting, COUNTING),
    *LOWER,
    *UPPER,
)
"""Started together where exact elimination does not fit; quick ones first. Annealing is the very
first: a run of a second has its estimate and certificate before anything else. It keeps a share,
since its rounds pay at their end, and a far upper end hides what a lower one gains."""

FROM_STATES: tuple[Method, ...] = (layers, structured, projections, splitting)
"""Started when tempering has found states."""


FIRST = ("annealing", "annealed")
"""Streams whose kernels are compiled first: they take seconds, and give both ends."""

AFTER: dict[str, tuple[Method, ...]] = {
    "opening": SIDE_BY_SIDE,
    "annealing": (annealed,),
    "tempering": FROM_STATES,
}
"""What a stream may launch, by its name."""


def all_of(methods: Sequence[Method]) -> list[Method]:
    """The streams and those that they may launch, soonest first."""
    found = list(methods)
    for method in found:  # grows while it is read
        found += [m for m in AFTER.get(name_of(method), ()) if m not in found]
    return found


def trivial(model: FactorGraph) -> Iterator[Bound]:
    """Any state from below, the product of maxima from above: a finite interval at once."""
    state = observe(model).only_state[None, :]
    weight = float(model.log_weight(state)[0])
    yield Bound(
        Side.LOWER, weight, Proof.DETERMINISTIC, "one state", confidence=1.0,
        why="the weight of one state is part of Z", evidence=StatesEvidence(state),
    )  # fmt: skip
    top = LargestEntries().verdict(model).upper
    if top == -math.inf:
        yield Bound(
            Side.BOTH, -math.inf, Proof.DETERMINISTIC, "zero table", confidence=1.0,
            why="a table is zero everywhere, so no state has weight", evidence=LargestEntries(),
        )  # fmt: skip
        return
    yield Bound(
        Side.UPPER, top, Proof.DETERMINISTIC, "largest entries", confidence=1.0,
        why="every state weighs at most the product of the tables' largest entries",
        evidence=LargestEntries(),
    )  # fmt: skip
