"""Heavy states by a few iterations of mini-buckets: for those who start from them.

One draw is wrong in many places of a large model, each draw in others: see `search.recombination`.
"""

from __future__ import annotations

import time
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ResourceError
from tightz.models.observed import observe
from tightz.runtime.seeds import generator
from tightz.sampling.capped.proposal import MOST_STATES, Proposal
from tightz.uppers.mini_bucket import MiniBucket
from tightz.uppers.mini_bucket.descent import Descent
from tightz.uppers.mini_bucket.run import Run, cutting
from tightz.workspace.findings import Finding
from tightz.workspace.working import Working

IBOUND, ITERATIONS = 10, 8
"""Of the tables: a second and a half on a 100x100 grid."""

DRAWS = 256
"""States that are drawn."""

KEY = 2**31 + 11
"""Key of the random numbers."""


def heavy_states(working: Working) -> Generator[Finding, None, NDArray[np.int64] | None]:
    """(S, variables) states of `working.graph`; None where tables do not fit, or nothing is cut."""
    graph = working.graph
    if graph.has_zeros or graph.cardinalities.max(initial=1) > MOST_STATES:
        return None
    config = MiniBucket(IBOUND, ITERATIONS, max_memory=working.max_memory // 8)
    try:
        tried = cutting(working.orders, IBOUND, [0])
        run = Run(working.orders, config, time.perf_counter(), tried)
    except ResourceError:
        return None
    if run.candidates[0][1].exact:
        return None
    for _ in run.steps:
        yield Finding()
    if not isinstance(run.descent, Descent):
        return None
    words = generator(working.seed, KEY).integers(2**64, size=DRAWS, dtype=np.uint64)
    drawing = Proposal.of(run.model, run.descent).drawing(words)
    drawing.batch()
    return observe(graph, single_states=False).lift_states(drawing.states.T)
