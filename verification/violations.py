"""Bounds on the wrong side of the truth, hunted over random models by every method.

Each model is enumerated. A method that refuses a model (by an error of tightz) is counted as
refusing; what it does return must lie on its side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

import tightz as tz
from tightz.search.feasible import feasible_state
from verification.models import KINDS, enumerated_log_z, random_model
from verification.rows import Row
from verification.workers import spread

MODELS = 100_000
STRETCH = 140
CONTROL = "control"

Ends = list[tuple[str, float]]
Method = Callable[[tz.FactorGraph, int], Ends]


def mean_field(model: tz.FactorGraph, seed: int) -> Ends:
    return [("lower", tz.mean_field(model, restarts=2, seed=seed).log_z)]


def structured(model: tz.FactorGraph, seed: int) -> Ends:
    family = tz.StructuredMeanField(width=2, restarts=1)
    table = tz.estimate(model, levels=[0], trials=1, family=family, seed=seed, **BARE).log_gammas
    return [("lower", float(table.max()))]


def collapsed(model: tz.FactorGraph, seed: int) -> Ends:
    e = tz.estimate(model, levels=[0], trials=1, collapse=2, search_sweeps=0, seed=seed, threads=1)
    return [("lower", float(e.log_gammas.max()))]


def coset_sum(model: tz.FactorGraph, seed: int) -> Ends:
    m = 1 + seed % 3
    return [("lower", tz.coset_sum(model, m, seed=seed, search_sweeps=0, threads=1).log_z)]


def layer(model: tz.FactorGraph, seed: int) -> Ends:
    return [("lower", tz.layer_mean_field(model, restarts=2, seed=seed).log_z)]


def block(model: tz.FactorGraph, seed: int) -> Ends:
    found = feasible_state(model.condition()[0], seed=seed)
    states = None if found.state is None else found.state[None, :]
    return [("lower", tz.block_mean_field(model.condition()[0], states=states, seed=seed).log_z)]


def splitting(model: tz.FactorGraph, seed: int) -> Ends:
    tree = tz.split(model, max_splits=seed % 5, seed=seed, threads=1)
    return [("lower", tree.lower), ("upper", tree.upper)]


def tree_reweighted(model: tz.FactorGraph, seed: int) -> Ends:
    config = tz.TreeReweighted(max_iterations=1 + seed % 12)
    return [("upper", tz.upper_bound(model, method=config).log_z)]


def mini_bucket(model: tz.FactorGraph, seed: int) -> Ends:
    ends: Ends = []
    for side in (tz.Side.UPPER, tz.Side.LOWER):
        config = tz.MiniBucket(ibound=1 + seed % 3, iterations=seed % 4, side=side)
        ends.append((side.value, tz.upper_bound(model, method=config).log_z))
    return ends


def exact(model: tz.FactorGraph, seed: int) -> Ends:
    return [("both", tz.exact(model, marginals=False).log_z)]


def portfolio(model: tz.FactorGraph, seed: int) -> Ends:
    r = tz.log_partition(model, time_limit=0.2, exact=bool(seed % 2), seed=seed)
    return [("lower", r.lower), ("upper", r.upper)]


def not_a_bound(model: tz.FactorGraph, seed: int) -> Ends:
    """The negative control: the best of several projections, scaled up, passed off as a bound."""
    e = tz.estimate(model, levels=[1], trials=4, restarts=1, seed=seed, **BARE)
    return [("lower", float(e.log_g.max()))]


BARE = {"collapse": 0, "search_sweeps": 0, "threads": 1}
EVERY: dict[str, tuple[Method, int]] = {
    "mean field": (mean_field, 1),
    "structured mean field": (structured, 2),
    "mean field, collapsed": (collapsed, 2),
    "coset sum": (coset_sum, 2),
    "layer mean field": (layer, 2),
    "block mean field": (block, 1),
    "tree-reweighted": (tree_reweighted, 1),
    "mini-bucket": (mini_bucket, 1),
    "exact": (exact, 4),
    "splitting tree": (splitting, 20),
    "log_partition": (portfolio, 20),
    CONTROL: (not_a_bound, 20),
}
"""method -> every how many models it runs; the slow ones see fewer."""


@dataclass
class Tally:
    """What a stretch of models showed, per method."""

    cases: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def merge(self, other: Tally) -> None:
        self.cases += other.cases
        self.failed += other.failed
        self.refused += other.refused
        self.first = {**other.first, **self.first}


def violation(side: str, value: float, log_z: float) -> float:
    """How far `value` is on the wrong side, beyond rounding; 0 where it is not."""
    if math.isnan(value):
        return math.inf
    if value == log_z:
        return 0.0
    excess = {"lower": value - log_z, "upper": log_z - value, "both": abs(value - log_z)}[side]
    return max(0.0, excess - (1e-9 * max(1.0, abs(log_z)) if math.isfinite(log_z) else 0.0))


def examine(numbers: range) -> Tally:
    """All methods on the models with these numbers."""
    tally = Tally()
    for i in numbers:
        kind = KINDS[i % len(KINDS)]
        model = random_model(np.random.default_rng([20261115, i]), kind)
        log_z = enumerated_log_z(model)
        for name, (method, every) in EVERY.items():
            if i // len(KINDS) % every:
                continue
            try:
                ends = method(model, i)
            except tz.TightzError:
                tally.refused[name] += 1
                continue
            except Exception as error:  # a crash is a failure too; the hunt goes on
                ends = [("both", math.nan)]
                tally.first.setdefault(name, f"model {i} ({kind}): {error!r}")
            tally.cases[name] += 1
            if any(violation(side, value, log_z) > 0.0 for side, value in ends):
                tally.failed[name] += 1
                tally.first.setdefault(name, f"model {i} ({kind}): {ends} against {log_z!r}")
    return tally


def hunt(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """Rows per method over 100,000 * scale models."""
    models = max(20 * len(KINDS), int(MODELS * scale))
    stretches = [range(at, min(at + STRETCH, models)) for at in range(0, models, STRETCH)]
    tally = Tally()
    for done, part in enumerate(spread(examine, stretches, workers), start=1):
        tally.merge(part)
        wrong = sum(count for name, count in tally.failed.items() if name != CONTROL)
        progress(f"{min(done * STRETCH, models)} of {models} models, {wrong} violations")
    caught = tally.failed[CONTROL] > 0
    for name in EVERY:
        if name != CONTROL:
            refused = f"refused {tally.refused[name]}" if tally.refused[name] else ""
            detail = tally.first.get(name, refused)
            yield Row(f"bounds: {name}", tally.cases[name], tally.failed[name], detail, caught)
