"""Cliques that bound the heaviest state: weighted mini-buckets of the model at a low temperature.

log Z of p~^beta, divided by beta, falls to the largest log weight as beta grows, and the cost
shifts that tighten its bound tighten that of the maximum. So the descent for log Z runs on tables
multiplied by beta, and its shifts divided by beta are what the judge takes maxima with
(`tightz.judge.heaviest`). Measured on a 20 x 20 Potts grid and linkage_11: beta from 16 to 64 times
the inverse of a table's spread, lower ones leave entropy in the bound, higher ones converge slowly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tightz.elimination.order import Orders
from tightz.errors import ResourceError
from tightz.judge.cliques import CliquesEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket.run import MiniBucket, Run

COLD = (32.0, 96.0)
"""beta times the mean spread of a table: in turn, one for each size of tables."""

FIRST, STEP, LAST = 6, 4, 30
"""ibounds: the first, their step, the last."""

UNTIMED, UNTIMED_SECONDS = 14, 60.0
"""The last one, and the seconds, where no time limit says when to stop."""

A_FACTOR = 3e-4
"""Seconds for each factor that walks and the judge need at least, in plain numpy."""


def heavy_cliques(
    model: FactorGraph,
    *,
    time_limit: float,
    max_memory: int,
    iterations: int = 40,
    stop: Callable[[], bool] = bool,
) -> Iterator[CliquesEvidence]:
    """Cliques of ever larger tables, for `model` itself; it has no evidence.

    Ends when the next ones would not fit into the time (inf: at ibound UNTIMED) or the memory, or
    once `stop()` says so.
    """
    start = time.perf_counter()
    spread = _spread(model)
    if not spread or A_FACTOR * model.n_factors > min(time_limit, UNTIMED_SECONDS):
        return
    pace = 0.0
    last = LAST if time_limit < math.inf else UNTIMED
    for number, ibound in enumerate(range(FIRST, last + 1, STEP)):
        beta = COLD[number % len(COLD)] / spread
        colder = FactorGraph.from_arrays(
            model.cardinalities, model.scope_ptr, model.scope_vars, model.table_ptr,
            beta * model.log_tables,
        )  # fmt: skip
        left = start + time_limit - time.perf_counter()
        limit = None if left == math.inf else max(0.0, left)
        config = MiniBucket(ibound, iterations, max_memory=max_memory, time_limit=limit)
        try:
            run = Run(Orders(colder), config, time.perf_counter())
        except ResourceError:
            return
        if number and pace * run.entries > left:
            return
        begun = time.perf_counter()
        for _ in run.improvements():
            if stop():
                return
        pace = (time.perf_counter() - begun) / max(1, run.passes) / max(1.0, run.entries)
        if run.descent is not None and run.descent.best < math.inf:
            found = run.descent.evidence(run.numbers)
            yield replace(found, shifts=found.shifts / beta, claimed=math.inf)
        if run.exact:
            return


def _spread(model: FactorGraph) -> float:
    """Mean over tables of largest less smallest finite entry; 0: no table tells states apart."""
    logs, starts = model.log_tables, model.table_ptr[:-1]
    if not logs.size:
        return 0.0
    high = np.maximum.reduceat(logs, starts)
    low = np.minimum.reduceat(np.where(np.isneginf(logs), np.inf, logs), starts)
    known = np.isfinite(high) & np.isfinite(low)
    spread = float((high[known] - low[known]).mean()) if known.any() else 0.0
    # Zeros alone: any temperature is as good as any other.
    return spread if spread > 0.0 or not model.has_zeros else 1.0
