"""Comparing methods fairly: the same number of coordinate updates, or the same seconds, for all.

Random restarts are work like any other: a method that runs more of them looks better for that
reason alone. Here every contender is run again and again, with fresh seeds, until it has spent
the common budget; its standing is the best value it found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tightz.errors import ParameterError, require_range
from tightz.runtime.seeds import Seed, stream


class Outcome(NamedTuple):
    """One run: its value (larger is better) and the coordinate updates it made."""

    log_z: float
    updates: int


@dataclass(frozen=True)
class Standing:
    """What a contender reached within the budget: best value, runs made, work and time spent."""

    name: str
    log_z: float
    runs: int
    updates: int
    seconds: float


def at_equal_work(
    contenders: Mapping[str, Callable[[np.random.SeedSequence], Outcome]],
    *,
    updates: int | None = None,
    seconds: float | None = None,
    seed: Seed = None,
) -> list[Standing]:
    """Run each contender until it has spent `updates` coordinate updates or `seconds`.

    Exactly one budget is given. A run in progress is finished, so a contender may overshoot by
    less than one run; `Standing` says by how much.
    """
    if (updates is None) == (seconds is None):
        raise ParameterError(
            f"updates is {updates} and seconds is {seconds}; expected one budget and the other None"
        )
    require_range("budget", updates if updates is not None else seconds or 0.0, 1e-9)
    standings = []
    for number, (name, run) in enumerate(contenders.items()):
        best, runs, spent = -np.inf, 0, 0
        start = time.perf_counter()
        while True:
            outcome = run(stream(seed, number, runs))
            best = max(best, outcome.log_z)
            spent += outcome.updates
            runs += 1
            elapsed = time.perf_counter() - start
            if (spent >= updates) if updates is not None else (elapsed >= (seconds or 0.0)):
                break
            if updates is not None and outcome.updates <= 0:
                raise ParameterError(
                    f"{name} reports {outcome.updates} updates for a run; expected at least 1. "
                    "Compare it by seconds"
                )
        standings.append(Standing(name, float(best), runs, spent, elapsed))
    return standings
