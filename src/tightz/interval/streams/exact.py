"""Exact elimination, where it fits in memory and time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tightz.bounds import Bound
from tightz.elimination.exact import exact, plan
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.runtime.clock import Clock
from tightz.workspace.findings import Finding, Marginals, Mixing, exact_marginals
from tightz.workspace.working import Working

FLOPS_PER_SECOND = 1.5e8
"""A cautious speed of exact elimination, to decide whether it fits into the time limit."""


def exactly(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """log Z exactly if that takes at most half of the time left, marginals if time remains."""
    found = working.plan if working.exact else None
    if found is None or not found.fits(working.max_memory):
        return
    # Half of the time: a wrong forecast then still leaves a run for the other streams.
    if found.flops / FLOPS_PER_SECOND >= 0.5 * clock.left:
        return
    try:
        result = exact(working.graph, max_memory=working.max_memory, marginals=False, plan=found)
    except UnsupportedModelError as error:  # weights beyond what exact sums can carry
        yield Finding(note=str(error))
        return
    yield result.bound
    if result.log_z > -math.inf and 4 * result.seconds < clock.left:
        yield from exact_marginals(result)
        yield from _barren_marginals(working, clock)


def _barren_marginals(working: Working, clock: Clock) -> Iterator[Finding]:
    """Exact marginals of barren variables with several parents need the model with them in it."""
    full = working.with_barren
    if full is None:
        return
    try:
        wanted = plan(full.reduced)
    except ResourceError:
        return
    fits = wanted.fits(working.max_memory)
    if fits and wanted.flops / FLOPS_PER_SECOND < 0.25 * clock.left:
        for found in exact_marginals(
            exact(full.reduced, max_memory=working.max_memory, plan=wanted)
        ):
            vectors = found.marginals and full.lift_marginals(found.marginals.vectors)
            if vectors:
                yield Finding(
                    marginals=Marginals(vectors, "exact", math.inf, Mixing.EXACT), of_model=True
                )
