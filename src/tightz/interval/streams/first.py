"""What is known before anything is planned: an answer that the reductions leave, a first state."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.judge import Audited, StatesEvidence
from tightz.judge.verdict import UNIT
from tightz.models.observed import observe
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import stream
from tightz.workspace.findings import Finding, Marginals, Mixing
from tightz.workspace.working import Working

KEY = 6_000_000
"""Key of the random numbers of streams on states; levels and widths never reach it."""


def solved(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """The answer where the reductions have left nothing to do, or shown that Z = 0."""
    graph = working.graph
    if graph.n_variables:
        return
    value = -math.inf if working.reduction.contradiction else math.fsum(graph.log_tables)
    yield Bound(
        Side.BOTH, value, Proof.DETERMINISTIC, "reductions", confidence=1.0,
        why="evidence, zeros and exact sums leave no variable, or contradict each other",
        evidence=Audited(value, 0.0 if value == -math.inf else UNIT * abs(value)),
    )  # fmt: skip
    if value > -math.inf and working.marginals:
        yield Finding(marginals=Marginals([], "exact", math.inf, Mixing.EXACT, 0.0))


def first_state(working: Working, clock: Clock, *, early: bool = False) -> Iterator[Finding]:
    """A state of positive weight at once where zeros hide them: before anything is planned.

    early: before the model is reduced, which may take longer.
    """
    seen = observe(working.model) if early else None
    graph = working.graph if seen is None else seen.reduced
    if not graph.n_variables or not graph.has_zeros:
        return
    from tightz.search.feasible import feasible_state

    # A small part of the time: a state is worth little beside a bound, but where zeros hide them
    # it is the difference between -inf and a number.
    found = feasible_state(graph, time_limit=0.05 * clock.left, seed=stream(working.seed, KEY, 0))
    if found.state is not None:
        state = found.state if seen is None else seen.lift_states(found.state[None])[0]
        yield Finding(bound=one_state(state, found.log_weight), of_model=early)


def one_state(state: NDArray[np.int64], log_weight: float) -> Bound:
    return Bound(
        Side.LOWER, log_weight, Proof.DETERMINISTIC, "one state", confidence=1.0,
        why="the weight of one state is part of Z", evidence=StatesEvidence(state[None, :]),
    )  # fmt: skip
