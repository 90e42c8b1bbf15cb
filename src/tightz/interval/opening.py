"""How `log_partition` opens: a trivial interval, then the exact answer where it is within reach.

Kept apart from the portfolio, so that a model that is summed at once loads none of its streams.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

from tightz.bounds import Bound, Proof, Side
from tightz.interval.streams.exact import alone, barren_marginals, exactly, takes_long
from tightz.interval.streams.first import first_state, solved
from tightz.judge import LargestEntries, StatesEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import observe
from tightz.runtime.clock import Clock
from tightz.workspace.findings import Finding
from tightz.workspace.working import LARGE, Launch, Method, Working, name_of


def opening(working: Working, clock: Clock) -> Iterator[Finding | Bound | Launch]:
    """The exact answer where it is within reach, with all streams beside it where not soon."""
    early = False
    if working.model.n_factors > LARGE:
        for state in first_state(working, clock, early=True):
            early = True
            yield state
    yield from solved(working, clock)
    if not working.graph.n_variables:
        yield from barren_marginals(working, clock)
        return
    if not early:
        yield from first_state(working, clock)
    large = working.graph.n_factors > LARGE
    if large:
        yield quick()
    relieved = threading.Event()
    yield Launch((Overdue(relieved, alone(clock)),))
    if large or takes_long(working, clock):
        relieved.set()
        yield side_by_side()
    done = False
    for found in exactly(working, clock):
        done = done or isinstance(found, Bound)
        if done:
            relieved.set()
        yield found
    if not done:
        relieved.set()
        yield side_by_side()


@dataclass(frozen=True, eq=False)
class Overdue:
    """Starts the other streams beside an exact sum, or its planning, that takes too long.

    It holds a worker until it is relieved, which nobody else needs before.
    """

    relieved: threading.Event
    seconds: float

    __name__ = "overdue"

    def __call__(self, working: Working, clock: Clock) -> Iterator[Launch]:
        until = clock.spent + self.seconds
        while not self.relieved.wait(LOOK):
            if clock.expired:
                return
            if clock.spent > until:
                yield side_by_side()
                return


LOOK = 0.05
"""Seconds between two looks at an exact sum that runs alone."""


FIRST = ("capped", "annealing", "annealed")
"""Streams whose kernels are compiled first: capped draws give both ends."""

FIRST_DENSE = ("annealing", "annealed", "capped")
"""On dense models: no cap is near there, and annealing compiles in seconds."""

AFTER = {
    "annealing": ("annealed",),
    "elimination": ("quadratic",),
    "tempering": ("layers", "structured", "splitting"),
}
"""What a stream may launch, by names: the portfolio need not be loaded to know its kernels."""


def reached(methods: Sequence[Method], kind: str) -> list[str]:
    """The streams and those that they may launch, in the order to compile their kernels.

    Not those of `opening`: where it finds the answer they are never needed.
    """
    found = [name_of(method) for method in methods]
    for name in found:  # grows while it is read
        found += [later for later in AFTER.get(name, ()) if later not in found]
    first = FIRST_DENSE if kind == "dense" else FIRST
    return sorted(found, key=lambda name: first.index(name) if name in first else len(first))


def quick() -> Launch:
    """Streams whose first step is short: on large models before those with promises of time."""
    from tightz.interval.portfolio import QUICK

    return Launch(QUICK)


def side_by_side() -> Launch:
    """The streams of the portfolio, which is loaded here."""
    from tightz.interval.portfolio import SIDE_BY_SIDE

    return Launch(SIDE_BY_SIDE)


def load_streams() -> None:
    """Import the portfolio, and of scipy what its streams use: half a second, not on the clock."""
    import tightz.interval.portfolio  # noqa: F401

    for part in ("special", "sparse.csgraph", "optimize"):
        import_module(f"scipy.{part}")


def trivial(model: FactorGraph) -> Iterator[Bound]:
    """Any state from below, the product of maxima from above: a finite interval at once."""
    state = observe(model).only_state[None, :]
    one = StatesEvidence(state)
    yield Bound(  # the judge's number: sums of huge entries in plain float64 may be far from it
        Side.LOWER, one.verdict(model).lower, Proof.DETERMINISTIC, "one state", confidence=1.0,
        why="the weight of one state is part of Z", evidence=one,
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
