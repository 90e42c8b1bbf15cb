"""The referee of equal-work comparisons."""

from __future__ import annotations

import pytest

import tightz as tz
from tightz.paper.equal_work import Outcome, at_equal_work


def test_cheap_and_dear_contenders_get_the_same_updates():
    seen = {"cheap": [], "dear": []}

    def contender(name, cost):
        def run(seed):
            seen[name].append(seed.spawn_key)
            return Outcome(log_z=float(len(seen[name])), updates=cost)

        return run

    cheap, dear = at_equal_work(
        {"cheap": contender("cheap", 10), "dear": contender("dear", 45)}, updates=100, seed=0
    )
    assert (cheap.runs, cheap.updates, cheap.log_z) == (10, 100, 10.0)
    assert (dear.runs, dear.updates, dear.log_z) == (3, 135, 3.0)
    assert len(set(seen["cheap"])) == 10  # every run has a seed of its own


def test_seconds_budget_stops():
    (standing,) = at_equal_work({"a": lambda seed: Outcome(1.0, 0)}, seconds=0.01)
    assert standing.runs >= 1
    assert standing.seconds >= 0.01


def test_bad_budgets():
    run = {"a": lambda seed: Outcome(0.0, 0)}
    with pytest.raises(tz.errors.ParameterError, match="one budget"):
        at_equal_work(run)
    with pytest.raises(tz.errors.ParameterError, match="one budget"):
        at_equal_work(run, updates=1, seconds=1.0)
    with pytest.raises(tz.errors.ParameterError, match="reports 0 updates for a run"):
        at_equal_work(run, updates=5)


def test_updates_count_every_coordinate_step():
    model = tz.ising_grid(4, seed=0)
    e = tz.estimate(
        model,
        projections=tz.Projections(collapse=0, search_sweeps=0),
        levels=[0, 3],
        trials=2,
        seed=0,
        family=tz.MeanField(restarts=5, tol=0.0, max_sweeps=7),
    )
    assert e.updates == 2 * 5 * 7 * (16 + 13)
