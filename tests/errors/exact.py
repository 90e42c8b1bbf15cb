"""What the ways of exact sums say where they end without an answer."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

import tightz as tz
from tests.errors.table import Case
from tightz.elimination.clauses import counting_plan
from tightz.elimination.exact import plan, ways
from tightz.elimination.exact.elimination import solve
from tightz.elimination.exact.run import Elimination
from tightz.elimination.exact.tables import StoppedError
from tightz.elimination.exact.ways import ByCounting, OnDevice, Summed
from tightz.elimination.refused import Refused
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.judge import RefutedError

GRID = tz.ising_grid(3, seed=0)


def _clauses():
    """Random 3-SAT that takes longer than no time at all."""
    rng = np.random.default_rng(0)
    table = np.zeros((2, 2, 2))
    table[0, 0, 0] = -np.inf
    factors = [(tuple(rng.choice(40, 3, replace=False).tolist()), table) for _ in range(80)]
    return tz.FactorGraph([2] * 40, factors)


def _counted(**options):
    way = ByCounting(counting_plan(_clauses()), 10**8)
    return way.run(**{"marginals": False, "time_limit": np.inf, "stop": lambda: False, **options})


class _Only:
    """A way that knows log Z, and marginals of single variables if it is told to."""

    name, why, seconds, bytes = "magic", "magic", 0.0, 0

    def __init__(self, singles):
        self.singles = singles

    def run(self, **_options):
        return Summed(0.0, 0.0, self.singles)


def _device(patch, planned):
    from tightz.elimination import gpu

    patch.setattr(gpu, "device_bytes", lambda: 1)
    patch.setattr(gpu, "gpu_plan", lambda *_, **__: planned)


def _marginals_on_the_device(patch):
    _device(patch, Refused("too large"))
    OnDevice(GRID, plan(GRID), SimpleNamespace(), None).run(
        marginals=True, time_limit=1.0, stop=bool
    )


def _refused_by_the_device(patch):
    _device(patch, Refused("too large"))
    patch.setattr(ways, "on_device", lambda *_: True)
    tz.exact(GRID, backend="cuda")


def _stopped():
    looks = itertools.count()
    found = plan(GRID)
    way = ways.by_elimination(GRID, found, 10**6, marginals=False)
    solve(GRID, way, max_memory=10**6, marginals=False, stop=lambda: next(looks) > 0)


def _overdue(patch):
    def late(*_, **__):
        raise StoppedError

    patch.setattr(ways.ByElimination, "run", late)
    tz.exact(GRID, time_limit=5.0)


def _lost_table():
    found = plan(GRID)
    buckets = [b._replace(groups=()) if not b.children else b for b in found.buckets]
    Elimination(GRID, replace(found, buckets=tuple(buckets))).run([])


CASES = [
    Case(
        RefutedError,
        "exact: the plan's buckets do not hold every factor exactly once",
        _lost_table,
    ),
    Case(StoppedError, "the sum was stopped before its end", _stopped),
    Case(
        StoppedError,
        "the count was stopped before its end",
        lambda: _counted(time_limit=1e-9, stop=lambda: True),
    ),
    Case(
        ResourceError,
        "model counting: 40 variables (0 auxiliary), ... clauses, 100% of the tables logical: not "
        "finished within time_limit=1e-09 s. tz.log_partition(model) gives ...",
        lambda: _counted(time_limit=1e-9),
    ),
    Case(
        ResourceError,
        "exact sum of FactorGraph(... would take longer than time_limit=0.5 s: elimination of "
        "width ...",
        lambda: tz.exact(tz.ising_grid(26, field=(-1, 1), seed=0), time_limit=0.5),
    ),
    Case(
        ResourceError,
        "exact elimination of FactorGraph(... visits more than 10^10 table entries by every order "
        "tried; max_memory allows 8 GB, time_limit 0.001 s. tz.log_partition(model) gives ...",
        lambda: tz.exact(tz.ising_grid(26, field=(-1, 1), seed=0), time_limit=1e-3),
    ),
    Case(
        ResourceError,
        "exact sum of FactorGraph(... is not finished within time_limit=5 s: elimination of width "
        "3 (...), ... operations, ..., about ... s. tz.log_partition(model) gives ...",
        _overdue,
    ),
    Case(
        ResourceError,
        "exact sum of FactorGraph(... is not finished within time_limit=0 s: elimination of width "
        "3 (...), ... operations, ..., about ... s. tz.log_partition(model) gives ...",
        lambda: tz.exact(GRID, marginals=False)._pair(0, 1, time_limit=0.0),
    ),
    Case(
        UnsupportedModelError,
        "magic gave log Z of FactorGraph(... but not its marginals; tz.log_partition(model) "
        "estimates them",
        lambda: solve(GRID, _Only(None), max_memory=1).marginals,
    ),
    Case(
        UnsupportedModelError,
        "magic gives marginals of single variables only, not of factor 2",
        lambda: solve(GRID, _Only([np.full(2, 0.5)] * 9), max_memory=1).factor_marginal(2),
    ),
    Case(ResourceError, "marginals on the GPU: too large", _marginals_on_the_device),
    Case(
        ResourceError,
        "elimination of FactorGraph(... on the GPU: too large",
        _refused_by_the_device,
    ),
]
