"""Upper ends: tree-reweighted, quadratic, planar models with weak fields, tables on a device."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator

from tightz.bounds import Bound, Side
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.runtime.backends import on_device
from tightz.runtime.clock import Clock
from tightz.runtime.gpu import why_no_device
from tightz.uppers.mini_bucket.run import MAX_IBOUND, MiniBucket, Run, cutting
from tightz.uppers.planar_fields import planar_field_bounds
from tightz.uppers.quadratic import Quadratic, quadratic_bounds
from tightz.uppers.tree_reweighted import TreeReweighted, tree_reweighted_bounds
from tightz.workspace.findings import Finding
from tightz.workspace.working import Working, is_dense


def tree_reweighted(working: Working, clock: Clock) -> Iterator[Bound]:
    """A convex upper bound, iteration by iteration."""
    graph = working.graph
    if graph.arities.max(initial=0) <= 2 and not graph.has_zeros:
        yield from tree_reweighted_bounds(graph, TreeReweighted())


def planar_fields(working: Working, clock: Clock) -> Iterator[Bound | Finding]:
    """Both ends of a planar spin model from its exact sum without fields, where these are weak."""
    for found in planar_field_bounds(
        working.graph, time_limit=clock.left, max_memory=working.max_memory // 4
    ):
        yield Finding() if found is None else found


SPARSE, DENSE = 600, 3000
"""Spins up to which quadratic elimination is tried: it takes n^3 steps whatever the couplings, and
where they are few and the model large, tables do better."""


def quadratic(working: Working, clock: Clock) -> Iterator[Bound]:
    """Quadratic elimination of spins: where couplings are dense nothing else comes near."""
    try:
        encoding = working.encoding
    except UnsupportedModelError:
        return
    polynomial = encoding.polynomial
    most = DENSE if is_dense(polynomial) else SPARSE
    if encoding.coset is None and polynomial.degree <= 2 and polynomial.n <= most:
        yield from quadratic_bounds(encoding, Quadratic(iterations=10**6, time_limit=clock.left))


WIDE, WIDER, TIMES = 14, 2, 5.0
"""The first ibound on a device, the step to the next, and how many times as long that may take."""

WORTHWHILE = 0.4
"""Part of the time left that the next descent on a device may be expected to take."""

SLIGHT = 1e-3
"""Nats that eight iterations must gain for a descent to go on."""


def wide_tables(working: Working, clock: Clock) -> Iterator[Bound | Finding]:
    """Mini-buckets in a device's memory, wider than a core can sum: wider while the time allows it,
    then other orders. The draws stay with the tables of this machine.
    """
    if working.backend == "cpu" or not on_device(working.backend, why_no_device):
        return
    ibound, seconds = WIDE, 0.0
    for trial in itertools.count():
        if seconds > WORTHWHILE * clock.left:
            return
        begun = time.perf_counter()
        run = _wide_run(working, ibound, trial)
        if run is None:
            return
        yield Finding()
        for _ in run.steps:
            gained = run.history[-9] - run.history[-1] if len(run.history) > 8 else math.inf
            late = time.perf_counter() - begun > WORTHWHILE * clock.left
            if gained < SLIGHT or late or not run.place.device:
                break
            yield Finding()
        bound = run.judged()
        if run.note:
            yield Finding(note=run.note)
        yield bound
        if bound.side is Side.BOTH or not run.place.device:
            return
        seconds = time.perf_counter() - begun
        if TIMES * seconds < WORTHWHILE * clock.left and ibound + WIDER <= MAX_IBOUND:
            ibound += WIDER


def _wide_run(working: Working, ibound: int, trial: int) -> Run | None:
    """One order on the device; None where its tables do not belong there, or would be exact."""
    config = MiniBucket(ibound, iterations=10**6, max_memory=working.max_memory // 4)
    tried = cutting(working.orders, ibound, [trial])
    try:
        run = Run(working.orders, config, time.perf_counter(), tried, backend="auto")
    except ResourceError:
        return None
    exact = run.candidates[0][1].exact and not working.exact
    return run if run.place.device and not exact else None
