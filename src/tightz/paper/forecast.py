"""What a run of trials will cost, from a short measured pilot."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz.bounds import Bound
from tightz.paper.batches import run_batches
from tightz.paper.setup import Setup, Where
from tightz.paper.trials import TrialPlan
from tightz.results import Result
from tightz.runtime.cores import usable_cores
from tightz.runtime.memory import format_bytes
from tightz.runtime.provenance import provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES = 5
"""Levels that the pilot measures, evenly spaced; the cost between them is interpolated."""

TRIAL_BYTES = 24
"""Memory of a trial besides its restarts: sweeps, rank, status."""

STORED_BYTES = 32
"""What a stored trial takes besides its restarts, measured."""


@dataclass(frozen=True)
class LevelCost:
    """Seconds a trial at level m, averaged over `measured` trials."""

    m: int
    seconds: float
    measured: int


@dataclass(frozen=True, eq=False)
class Forecast(Result):
    """The cost of a run: `levels` x `trials` projections with `restarts` ascents each.

    costs          seconds a trial as they were measured, on the executor and backend of the run
    seconds        all trials together, by the clock, nothing stored yet: a forecast, not spent
    core_seconds   `seconds` times the workers, where these are cores of this machine
    memory         bytes of the table and the averages
    store          bytes of the run store when the run is complete
    """

    n: int
    levels: int
    trials: int
    restarts: int
    costs: tuple[LevelCost, ...]
    seconds: float
    core_seconds: float | None
    memory: int
    store: int
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def bounds(self) -> list[Bound]:
        """None: a cost says nothing about log Z."""
        return []

    @property
    def total(self) -> int:
        """Projections in all."""
        return self.levels * self.trials

    def summary(self) -> str:
        """The forecast as a few lines of text."""
        lines = [
            f"n = {self.n}: {self.trials} trials at each of {self.levels} levels, "
            f"{self.total:,} projections, {self.restarts} restarts each"
        ]
        lines += [
            f"  level {c.m:>5}: {1e3 * c.seconds:10.3f} ms a trial  ({c.measured} measured)"
            for c in self.costs
        ]
        cores = "" if self.core_seconds is None else f" ({self.core_seconds:,.0f} core-seconds)"
        lines.append(
            f"forecast: {duration(self.seconds)}{cores}, {format_bytes(self.memory)} of memory, "
            f"{format_bytes(self.store)} in a store"
        )
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Seconds a trial against the level; returns the axes."""
        from tightz.plots import plot_line

        rows = [(c.m, c.seconds) for c in self.costs]
        return plot_line(rows, "parity constraints m", "seconds a trial", ax=ax)


def forecast(setup: Setup, where: Where, *, seconds: float = 2.0) -> Forecast:
    """Measure trials at a few levels for about `seconds` in all and add up the run.

    The pilot's trials are of the run itself, so nothing but time depends on them.
    """
    chosen = sorted(setup.levels)
    at = np.unique(np.linspace(0, len(chosen) - 1, min(CLASSES, len(chosen))).round().astype(int))
    limit = seconds / (2 * len(at))

    def measure(m: int, batch: int) -> float:
        size = max(1, batch // (4 * usable_cores()))
        places = [(m, t) for t in range(batch)]
        start = time.perf_counter()
        for _ in run_batches(setup.plan, places, batch=size, **where._asdict()):
            pass
        return time.perf_counter() - start

    costs = []
    for m in (chosen[i] for i in at.tolist()):
        batch = 1  # the first trial compiles, or wakes the workers up
        while True:
            spent = measure(m, batch)
            if batch > 1 and (spent > limit or batch >= setup.trials):
                spent = min(spent, measure(m, batch))  # a larger batch may have compiled, too
                if spent > limit or batch >= setup.trials:
                    break
            batch = min(4 * batch, max(setup.trials, 2))
        costs.append(LevelCost(m, spent / batch, batch))
    by_level = np.interp(chosen, [c.m for c in costs], [c.seconds for c in costs])
    total = setup.trials * float(by_level.sum())
    restarts, count = setup.plan.family.restarts, len(chosen) * setup.trials
    moments = 16 * (1 + setup.work.original.n) + 16 * (1 + len(setup.plan.pairs))
    here = where.executor is None
    local = here and not (where.backend != "cpu" and _gpu_can_run(setup.plan))
    return Forecast(
        n=setup.plan.polynomial.n,
        levels=len(chosen),
        trials=setup.trials,
        restarts=restarts,
        costs=tuple(costs),
        seconds=total,
        core_seconds=total * (where.threads or usable_cores()) if local else None,
        memory=count * (8 * restarts + TRIAL_BYTES) + moments,
        store=count * (8 * restarts + STORED_BYTES) + -(-count // setup.batch) * moments,
        provenance=provenance(setup.plan.seed, setup.digest, **setup.parameters),
    )


def _gpu_can_run(plan: TrialPlan) -> bool:
    """Whether a GPU is here that takes this plan."""
    from tightz.paper.gpu.availability import why_not

    return not why_not(plan, simulator=False)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
