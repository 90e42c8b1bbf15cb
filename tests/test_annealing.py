"""The annealing stream's certificate: coverage over many seeds, inflated weights as control."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

import tightz as tz
from tests.streams import drawn
from tightz.models.factor_graph import FactorGraph
from tightz.sampling import annealed as module
from tightz.sampling import annealed_rounds
from tightz.sampling.annealed import TRACKS, Annealing
from tightz.sampling.annealed_rounds import FEWEST, shape_of
from tightz.sampling.ledger import SHARES, Ledger
from tightz.workspace.workspace import Workspace

RUNS, DELTA = 150, 0.05


def dense(n: int, strength: float, seed: int) -> FactorGraph:
    rng = np.random.default_rng(seed)
    pairs = {(a, b): strength * rng.normal() for a in range(n) for b in range(a + 1, n)}
    return tz.ising(pairs, 0.3 * rng.normal(size=n))


def small_rbm(seed: int) -> FactorGraph:
    rng = np.random.default_rng(seed)
    return tz.rbm(rng.normal(size=(7, 5)), rng.normal(size=7), rng.normal(size=5))


def triples(n: int, seed: int) -> FactorGraph:
    """Factors of three spins and of one, none of two."""
    rng = np.random.default_rng(seed)
    signs = np.array([1.0, -1.0])
    cube = np.einsum("a,b,c->abc", signs, signs, signs)
    scopes = itertools.combinations(range(n), 3)
    fields = [([v], rng.normal() * signs) for v in range(n)]
    return FactorGraph([2] * n, [(list(s), 0.5 * rng.normal() * cube) for s in scopes] + fields)


MODELS = {
    "weak": dense(10, 0.3, 0),
    "strong": dense(10, 2.0, 1),
    "zero field": tz.ising({(a, b): -0.4 for a in range(9) for b in range(a)}, np.zeros(9)),
    "collapsed": tz.ising_grid(5, coupling=(-3, 3), field=(-1, 1), periodic=True, seed=2),
    "rbm": small_rbm(3),
}


@pytest.fixture(autouse=True)
def ticking(monkeypatch):
    """A clock that says 0.08 s between any two looks: the machine's pace decides nothing."""
    ticks = itertools.count()
    clock = SimpleNamespace(thread_time=lambda: 0.08 * next(ticks))
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(annealed_rounds, "time", clock)


def runs(model: FactorGraph, steps: int, count: int = 1, work: float = 10_000.0, hands: int = 1):
    """For every seed a run and its draws, step by step, each of about so much work."""
    space = Workspace.build(model, seed=0, collapse=4)
    for seed in range(count):
        run = Annealing.of(space, np.random.default_rng(seed))
        assert run is not None
        draws = []
        for _ in range(steps):
            run.pace = 0.08 / work
            draws.append(drawn(run, hands))
        assert None not in draws
        yield run, draws


@pytest.mark.parametrize(("name", "hands"), [*((name, 1) for name in MODELS), ("weak", 3)])
def test_the_lower_end_holds_at_every_stopping_time(name, hands):
    model = MODELS[name]
    truth = tz.exact(model).log_z
    best = np.full(RUNS, -math.inf)
    work = (1000.0 if name == "rbm" else 15_000.0) / hands
    for seed, (_, draws) in enumerate(runs(model, 4, RUNS, work, hands)):
        ledger = Ledger(DELTA)
        for step, each in enumerate(draws):  # somebody who reads now and then, and keeps the best
            ledger.add(each)
            if step % 2:
                best[seed] = max(best[seed], ledger.lower())
    limit = binom.ppf(0.9999, RUNS, DELTA / 2.0)
    assert (best > truth).sum() <= limit
    if name in ("weak", "zero field", "strong"):  # the control: weights 5% too large are caught
        assert (best + math.log(1.05) > truth).sum() > limit


@pytest.mark.parametrize("model", [MODELS["weak"], triples(8, 4)], ids=["pairs", "triples"])
def test_both_starts_bet_and_all_draws_are_handed_over(model):
    ((run, draws),) = runs(model, 7)
    assert {d.source.track for d in draws} == set(TRACKS.values()) <= set(SHARES)
    for start, track in TRACKS.items():
        drawn = [d.log_weights for d in draws if d.source.track == track]
        booked = [r.groups for r in run.rounds if r.start == start]
        assert np.sort(np.concatenate(drawn)) == pytest.approx(np.sort(np.concatenate(booked)))


def test_a_plan_does_not_change_while_its_round_lasts():
    ((run, draws),) = runs(MODELS["strong"], 9)
    sources = list(dict.fromkeys(id(d.source) for d in draws))
    assert len(sources) < len(draws)
    assert len(run.rounds) == len(sources)


def test_groups_are_sized_for_many_draws_of_little_scatter():
    plenty = shape_of(200.0, 1e7, 1e9, resampled=True)
    assert plenty is not None
    assert plenty.work == pytest.approx(800.0, rel=0.02)  # variance 1/4 each
    scarce = shape_of(200.0, 5e3, 1e9, resampled=True)
    assert scarce is not None
    assert scarce.work < plenty.work  # rather more draws of more scatter
    assert shape_of(200.0, 1e7, 8.0 * FEWEST - 1.0, resampled=True) is None
    long = shape_of(1e6, 1e9, 1e9, resampled=True)
    assert long is not None
    assert long.size > plenty.size
    alone = shape_of(200.0, 1e7, 1e9, resampled=False)
    assert alone is not None
    assert alone.size == 1


def test_a_model_without_structure_has_one_start():
    """Layers at zero field: the fitted product is the uniform start again."""
    model = tz.rbm(np.full((3, 4), 0.5), np.full(3, -1.0), np.full(4, -0.75))
    ((run, _),) = runs(model, 4)
    assert run.starts == ["fields"]
    assert {r.start for r in run.rounds} == {"fields"}
