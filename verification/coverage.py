"""Statements with confidence 1 - delta: how often they fail over independent runs.

A certificate may exceed log Z in at most a delta share of runs; more than the binomial's 99.99%
quantile is a failure. The control multiplies every gamma by 30: it has to be noticed. These are
real runs; `verification.stopping` has draws that strain the certificates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from scipy.stats import binom

import tightz as tz
from tightz.sampling.certificates import anytime_certificate
from verification.models import enumerated_log_z, random_model
from verification.rows import Row
from verification.stopping import worst
from verification.workers import spread

RUNS = 20_000
STRETCH = 100
DELTA = 0.2
KINDS = ("anytime", "mean", "median", "product")
SLACK = 1e-9


def examine(numbers: range) -> Counter[str]:
    """Misses of every statement over the runs with these numbers."""
    misses: Counter[str] = Counter()
    for i in numbers:
        rng = np.random.default_rng([4, i])
        model = random_model(rng, ("pairwise", "higher order", "rbm")[i % 3])
        while model.n_variables < 2:
            model = random_model(rng, "pairwise")
        log_z = enumerated_log_z(model)
        e = tz.estimate(
            model,
            projections=tz.Projections(
                hashing=tz.SparseParity(0.2) if i % 2 else tz.DenseParity(),
                collapse=0,
                search_sweeps=50 if i % 4 == 0 else 0,
            ),
            levels=range(1, min(6, model.n_variables) + 1),
            trials=6,
            seed=i,
            threads=1,
            family=tz.PointMass(restarts=1) if i % 5 == 0 else tz.MeanField(restarts=2),
        )
        for kind in KINDS:
            misses[kind] += e.certificate(DELTA, kind=kind).log_z > log_z + SLACK
        misses["control"] += anytime_certificate(e.log_g + math.log(30.0), DELTA) > log_z + SLACK
        misses["adversary"] += worst(e.log_g, DELTA, "anytime") > log_z + SLACK
    return misses


def ais_misses(numbers: range) -> Counter[str]:
    """Misses of the AIS certificate, and of the control, over real chains."""
    misses: Counter[str] = Counter()
    for i in numbers:
        model = tz.ising_grid(2, 3, coupling=(-4, 4), seed=i)
        r = tz.ais(model, chains=8, temperatures=2 + i % 10, seed=i, threads=1)
        log_z = enumerated_log_z(model)
        misses["ais"] += r.certificate(DELTA).log_z > log_z + SLACK
        inflated = replace(r, log_weights=r.log_weights + math.log(30.0))
        misses["control"] += inflated.certificate(DELTA).log_z > log_z + SLACK
    return misses


def wish_misses(numbers: range) -> int:
    """Runs of Theorem 2 at its own T whose interval misses log Z."""
    misses = 0
    for i in numbers:
        model = tz.ising_grid(2, 3, coupling=(-4, 4), seed=i)
        r = tz.wish(model, delta=DELTA, seed=i, threads=1)
        misses += not r.lower - SLACK <= enumerated_log_z(model) <= r.upper + SLACK
    return misses


def coverage(scale: float, workers: int, progress: Callable[[str], None]) -> Iterator[Row]:
    """One row per certificate of projections, AIS, and Theorem 2."""
    runs = max(300, int(RUNS * scale))
    stretches = [range(at, min(at + STRETCH, runs)) for at in range(0, runs, STRETCH)]
    misses: Counter[str] = Counter()
    for done, part in enumerate(spread(examine, stretches, workers), start=1):
        misses += part
        progress(f"{min(done * STRETCH, runs)} of {runs} runs")
    limit = int(binom.ppf(0.9999, runs, DELTA))
    caught = misses["control"] > limit
    for kind in (*KINDS, "adversary"):
        name = "anytime, stopped at the worst moment" if kind == "adversary" else kind
        detail = f"{misses[kind]} misses, {limit} allowed at delta {DELTA}"
        yield Row(
            f"coverage: {name}", runs, max(0, misses[kind] - limit), detail, control_caught=caught
        )
    runs = max(100, int(2000 * scale))
    stretches = [range(at, min(at + STRETCH, runs)) for at in range(0, runs, STRETCH)]
    found = sum(spread(ais_misses, stretches, workers), Counter())
    limit = int(binom.ppf(0.9999, runs, DELTA))
    detail = f"{found['ais']} misses, {limit} allowed at delta {DELTA}"
    caught = bool(found["control"] > limit)
    yield Row("coverage: AIS", runs, max(0, found["ais"] - limit), detail, control_caught=caught)
    runs = max(20, int(200 * scale))
    stretches = [range(at, min(at + 10, runs)) for at in range(0, runs, 10)]
    missed = sum(spread(wish_misses, stretches, workers))
    limit = int(binom.ppf(0.9999, runs, DELTA))
    detail = f"{missed} misses, {limit} allowed at delta {DELTA}"
    yield Row("coverage: WISH (Theorem 2)", runs, max(0, missed - limit), detail)
