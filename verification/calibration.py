"""Point estimates: log Z within 2 errors in 9 of 10 runs at least, never more than 6 away.

Beside it the interval of the same runs that holds with confidence, as the main job reports it; the
errors of `tz.ais` where it calls them meaningful; and those of energies and heat capacities so cold
that hardly a draw is excited.

Exact answers are forbidden and time is short, so that most models stay open; log Z comes from
`tz.exact`. The control is the mixture of a splitting tree with the error of its own draws, which
cannot see the modes that the tree missed: it has to be caught.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

import tightz as tz
from tightz.sampling.ais import AisStatus
from verification.rows import Row

RUNS = 200
SECONDS = 3.0
CONTROL_RUNS, CONTROL_SECONDS = 4, 6.0
WITHIN, WORST, UNKNOWN = 0.90, 6.0, 0.20
DELTA = 0.05
STEADY, COLD = 0.05, 0.05
"""Parts of the runs that may lie beyond 2 errors: of annealing, of cold energies."""

SLACK = 1e-7
"""Nats that rounding may add to an exact answer's error of 0."""

CRITICAL = 0.5 * math.log(1.0 + math.sqrt(2.0))


class Outcome(NamedTuple):
    """One run: how far off in nats, the error it declared, log Z - lower and upper - log Z."""

    kind: str
    off: float
    error: float
    above_lower: float = math.inf
    below_upper: float = math.inf

    @property
    def errors_off(self) -> float:
        return 0.0 if self.off <= SLACK else self.off / max(self.error, SLACK)


Estimator = Callable[[tz.FactorGraph, int], tuple[float, float, float, float]]
"""(model, seed) -> (estimate, error, confident lower, confident upper)."""


def grid(rng: np.random.Generator, i: int) -> tuple[str, tz.FactorGraph]:
    size, strength = int(rng.integers(8, 21)), (1, 3, 10)[i % 3]
    model = tz.ising_grid(
        size, coupling=(-strength, strength), field=(-1, 1), seed=int(rng.integers(2**31))
    )
    return f"grid, w = {strength}", model


def ferromagnet(rng: np.random.Generator, i: int) -> tuple[str, tz.FactorGraph]:
    coupling = (0.25, CRITICAL, 0.6)[i % 3]
    model = tz.ising_grid(
        int(rng.integers(8, 21)), coupling=(coupling, coupling), field=(0, 0), seed=i
    )
    return "ferromagnet, zero field", model


def all_pairs(rng: np.random.Generator, i: int) -> tuple[str, tz.FactorGraph]:
    """Sherrington and Kirkpatrick's model, hot to cold, without and with fields."""
    n, beta = int(rng.integers(12, 21)), (0.5, 1.0, 2.0)[i % 3]
    couplings = {
        (a, b): beta * rng.normal() / math.sqrt(n) for a in range(n) for b in range(a + 1, n)
    }
    return "all pairs", tz.ising(couplings, (i % 2) * 0.3 * rng.normal(size=n))


def machine(rng: np.random.Generator, i: int) -> tuple[str, tz.FactorGraph]:
    hidden, visible = int(rng.integers(12, 17)), int(rng.integers(20, 61))
    scale = (0.3, 0.7, 1.5)[i % 3]
    weights = scale * rng.normal(size=(visible, hidden))
    return "rbm", tz.rbm(weights, rng.normal(size=visible), rng.normal(size=hidden))


def sparse(rng: np.random.Generator, i: int) -> tuple[str, tz.FactorGraph]:
    """A cycle and a random matching over it: three neighbours each."""
    n, strength = 2 * int(rng.integers(20, 36)), (0.5, 1.5, 4.0)[i % 3]
    matching = rng.permutation(n).reshape(-1, 2)
    edges = [*((v, (v + 1) % n) for v in range(n)), *matching.tolist()]
    pairs = {tuple(sorted(map(int, e))) for e in edges if e[0] != e[1]}
    couplings = {e: float(rng.uniform(-strength, strength)) for e in sorted(pairs)}
    return "three neighbours", tz.ising(couplings, (i % 2) * rng.normal(size=n))


def pigeons(rng: np.random.Generator, i: int) -> tuple[str, tz.FactorGraph]:
    """One pigeon more than holes, a penalty for each two in one: draws miss classes of states."""
    holes, penalty = int(rng.integers(5, 8)), (20.0, 8.0, 12.0)[i % 3]
    pairs = itertools.combinations(range(holes + 1), 2)
    tables = [(pair, -penalty * np.eye(holes)) for pair in pairs]
    return "soft pigeon holes", tz.FactorGraph([holes] * (holes + 1), tables)


def colouring(rng: np.random.Generator, i: int) -> tuple[str, tz.FactorGraph]:
    """A chain of cliques with a colour too few, each sharing a variable with the next."""
    size, penalty = int(rng.integers(4, 7)), float(rng.uniform(3.0, 15.0))
    firsts = range(0, 3 * (size - 1), size - 1)
    pairs = [p for f in firsts for p in itertools.combinations(range(f, f + size), 2)]
    n, colours = 3 * (size - 1) + 1, size - 1
    tables = [(pair, -penalty * np.eye(colours)) for pair in pairs]
    fields = [((v,), 0.3 * (i % 2) * rng.normal(size=colours)) for v in range(n)]
    return "soft colourings of cliques", tz.FactorGraph([colours] * n, [*tables, *fields])


KINDS = (grid, ferromagnet, pigeons, grid, all_pairs, machine, colouring, sparse)


def log_partition(model: tz.FactorGraph, seed: int) -> tuple[float, float, float, float]:
    """What is promised: the library's own estimate and interval."""
    r = tz.log_partition(model, exact=False, time_limit=SECONDS, seed=seed, delta=DELTA)
    return r.estimate, r.estimate_error, r.confident.lower, r.confident.upper


def naive_tree(model: tz.FactorGraph, seed: int) -> tuple[float, float]:
    """The control: importance samples from a tree's mixture with their own standard error."""
    found = tz.split(model, time_limit=CONTROL_SECONDS, seed=seed).sampled_log_z(1000, seed)
    return found.log_z, found.error


def outcome(i: int, estimator: Estimator, root: int = 6) -> Outcome:
    """Run number i: a model of the kind whose turn it is."""
    rng = np.random.default_rng([root, i])
    kind, model = KINDS[i % len(KINDS)](rng, i // len(KINDS))
    value, error, low, high = estimator(model, i)
    log_z = tz.exact(model).log_z
    return Outcome(kind, abs(value - log_z), error, log_z - low, high - log_z)


def misled(outcomes: list[Outcome]) -> str:
    """What breaks the promise, in words; empty if nothing does."""
    known = [o for o in outcomes if math.isfinite(o.error)]
    within = np.mean([o.errors_off <= 2.0 for o in known]) if known else 0.0
    worst = max((o for o in known), key=lambda o: o.errors_off, default=None)
    broken = []
    if within < WITHIN:
        broken.append(f"{within:.0%} within 2 errors")
    if worst is not None and worst.errors_off > WORST:
        broken.append(f"{worst.kind}: {worst.errors_off:.1f} errors off")
    if len(outcomes) - len(known) > UNKNOWN * len(outcomes):
        broken.append(f"{len(outcomes) - len(known)} of {len(outcomes)} without an error")
    return "; ".join(broken)


def calibration(scale: float, progress: Callable[[str], None]) -> Iterator[Row]:
    """The share within 2 errors, the worst run, how small errors are; the same of intervals."""
    runs = max(12, int(RUNS * scale))
    outcomes = []
    for i in range(runs):
        progress(f"{i} of {runs} runs")
        outcomes.append(outcome(i, log_partition))
    progress("control")
    control = [_control(i) for i in range(CONTROL_RUNS)]
    known = [o for o in outcomes if math.isfinite(o.error)]
    within = sum(o.errors_off <= 2.0 for o in known)
    detail = (
        f"{within} of {len(known)} within 2 errors, worst "
        f"{max((o.errors_off for o in known), default=0.0):.1f} errors, "
        f"{len(outcomes) - len(known)} without an error, median error "
        f"{np.median([o.error for o in outcomes]):.2g} nats"
    )
    broken = misled(outcomes)
    yield Row(
        "estimates: log Z within 2 errors",
        runs,
        int(bool(broken)),
        f"{broken}; {detail}" if broken else detail,
        control_caught=bool(misled(control)),
    )
    missed = sum(min(o.above_lower, o.below_upper) < -SLACK for o in outcomes)
    widths = [o.above_lower + o.below_upper for o in outcomes]
    limit = int(binom.ppf(0.9999, runs, DELTA))
    yield Row(
        "estimates: the confident interval of the main job",
        runs,
        max(0, missed - limit),
        f"{missed} missed, {limit} allowed at delta {DELTA}, median width {np.median(widths):.2g} "
        f"nats, widest {max(widths):.2g}",
    )

    progress("annealing")
    yield _told("ais: log Z within 2 errors where weights agree", list(_annealed(runs)), STEADY)
    progress("cold energies")
    yield _told("free energies: within 2 errors", list(_cold(max(8, runs // 10))), COLD)


def _told(name: str, outcomes: list[Outcome], beyond: float) -> Row:
    """How many lie beyond 2 errors, of which a share of `beyond` may."""
    off = [o.errors_off for o in outcomes if math.isfinite(o.error)]
    many, limit = sum(z > 2.0 for z in off), int(binom.ppf(0.9999, max(1, len(off)), beyond))
    return Row(
        name, len(outcomes), max(0, many - limit),
        f"{many} of {len(off)} with an error beyond 2 of them, {limit} allowed, worst "
        f"{max(off, default=0.0):.1f}",
    )  # fmt: skip


def _annealed(runs: int) -> Iterator[Outcome]:
    """Grids at w = 1, 3 and 10 and all pairs; no error where it is not called meaningful."""
    for i in range(runs):
        rng = np.random.default_rng([8, i])
        strength = (3, 1, 3, 10)[i % 4]
        model = tz.ising_grid(20, coupling=(-strength, strength), field=(-1, 1), seed=i)
        kind = f"grid, w = {strength}"
        if i % 8 == 1:
            kind, model = all_pairs(rng, i // 8)
        found = tz.ais(model, temperatures=(300, 1000, 2000)[i % 3], seed=i)
        steady = found.status is AisStatus.STEADY
        error = found.standard_error if steady else math.inf
        yield Outcome(kind, abs(found.log_z - tz.exact(model).log_z), error)


def _cold(runs: int) -> Iterator[Outcome]:
    """16 spins at temperatures where about one draw in a thousand is excited."""
    for i in range(runs):
        couplings = (tz.PlusMinus(1.0), (-1.0, 1.0))[i % 2]
        model = tz.ising_lattice((4, 4), coupling=couplings, periodic=True, seed=i)
        betas = [float(1.5 + i % 3)]
        drawn = tz.free_energy(model, betas=betas, exact=False, time_limit=SECONDS, seed=i)
        truth = tz.free_energy(model, betas=betas)
        for name in ("log_zs", "energy", "entropy", "heat_capacity"):
            one, other = getattr(drawn, name), getattr(truth, name)
            if not math.isnan(one.value[0]):
                yield Outcome(name, abs(one.value[0] - other.value[0]), float(one.error[0]))


def _control(i: int) -> Outcome:
    """The naive error where it is known to mislead: strong couplings, many modes."""
    model = tz.ising_grid(20, coupling=(-10, 10), field=(-1, 1), seed=i)
    value, error = naive_tree(model, i)
    return Outcome("control", abs(value - tz.exact(model).log_z), error)
