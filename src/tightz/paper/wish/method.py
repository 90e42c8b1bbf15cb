"""WISH: Z from the heaviest states of random cosets, level by level (the paper's Theorem 2)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tightz.errors import ParameterError, require_range
from tightz.families.mean_field import PointMass
from tightz.families.projection import Status
from tightz.judge.links import check_encoding
from tightz.judge.spins import SpinMap, SpinTerms
from tightz.judge.verdict import LIBRARY
from tightz.models.given import ModelOrPath, given_model
from tightz.models.observed import observe
from tightz.models.prepared import prepared
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.paper.theorems import required_trials
from tightz.paper.wish.results import WishResult, WishTrial
from tightz.projections.coset import Coset, check_level
from tightz.projections.hashing import DenseParity, Parities
from tightz.reductions.bits import to_bits
from tightz.reductions.encoding import Model, model_digest
from tightz.runtime.executors import Submits, map_ordered
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence
from tightz.search.exact_mpe import (
    Bars,
    ExactPointMass,
    StateTable,
    rounding,
    weight_ceiling,
    without_zeros,
)

TABLE_SPINS = 24
"""Up to here all 2^n weights are tabulated once (128 MiB) and every trial is a search in them."""

BLOCK = 128
"""Trials of one level per task."""


@prepared("wish")
def wish(
    model: ModelOrPath,
    *,
    delta: float = 0.05,
    levels: Sequence[int] | None = None,
    trials: int | None = None,
    family: ExactPointMass | PointMass | None = None,
    time_limit: float | None = None,
    seed: Seed = None,
    executor: Submits | None = None,
    threads: int | None = None,
    on_trial: Callable[[WishTrial], None] | None = None,
) -> WishResult:
    """Theorem 2 (WISH; Ermon et al. 2013): a factor-32 interval on Z with confidence 1 - delta.

    delta          the theorem's; with n = 16 and delta = 0.05 it takes 1,374 trials at each level
    levels, trials default 0..n and ceil(ln(n / delta) / 0.0042); fewer trials leave Theorem 2
                   unestablished, the result says so, and its `band` still holds
    time_limit     seconds for the whole run: CP-SAT problems share it, and problems not started in
                   time are left at one feasible state and a trivial upper bound
    family         default ExactPointMass(); PointMass proves nothing beyond its enumeration
    on_trial       called with each WishTrial, level by level; level 0 is one problem and one call

    Any discrete model: variables of several states are written in bits, whose codes share Z among
    them (n is then the number of bits, M_i the heaviest code), and zeros are constraints of the
    search. Models of at most 24 bits are tabulated once and every trial is a search in the table.
    Numbers depend on the seed and the position (level, trial) only, unless time runs out.
    """
    model = given_model(model, "wish")
    start = time.perf_counter()
    if time_limit is not None:
        require_range("time_limit", time_limit, 0.0)
    root = seed_sequence(seed)
    poly, bars, error = _on_bits(model)
    needed = required_trials(max(poly.n, 1), delta)
    count = needed if trials is None else int(trials)
    require_range("trials", count, 1)
    chosen = _checked_levels(levels, poly.n)
    plan = _Plan(poly, family or ExactPointMass(), root, StateTable(poly, bars))
    deadline = math.inf if time_limit is None else start + time_limit
    if plan.tabulated and executor is None:
        plan.table.prepare()  # once, before threads share it
    tasks = _tasks(chosen, count, deadline, plan.tabulated)

    row = {level: i for i, level in enumerate(chosen)}
    log_maxima = np.full((len(chosen), count), np.nan)
    log_uppers = np.full((len(chosen), count), np.nan)
    statuses = np.empty((len(chosen), count), dtype=object)
    for block in map_ordered(plan.run, tasks, executor=executor, threads=threads):
        for one in block:
            # Level 0 has no parity: one problem stands for all of its trials.
            at = (row[one.level], slice(None) if one.level == 0 else one.trial)
            log_maxima[at], log_uppers[at] = one.log_max, one.log_upper
            statuses[at] = one.status
            if on_trial is not None:
                on_trial(one)
    ceiling = weight_ceiling(poly) + error
    log_uppers += error
    if 0 in row:
        ceiling = min(ceiling, float(log_uppers[row[0], 0]))
    return WishResult(
        levels=np.array(chosen, dtype=np.int64),
        log_maxima=log_maxima,
        log_uppers=np.minimum(log_uppers, ceiling),  # no coset outweighs the whole space
        statuses=statuses,
        n=poly.n,
        delta=delta,
        log_ceiling=ceiling,
        rounding=0.0 if poly.constant == -math.inf else error + rounding(poly),
        seconds=time.perf_counter() - start,
        provenance=provenance(
            root, model_digest(model), delta=delta, levels=chosen, trials=count, family=plan.family,
            time_limit=time_limit,
        ),
    )  # fmt: skip


def _on_bits(model: Model) -> tuple[SpinPolynomial, Bars, float]:
    """The model's log weights over bits, the codes whose weight is 0 instead, and the error.

    Tables that cancel leave coefficients much smaller than what they were summed from: how far
    these are off is the judge's to say.
    """
    if isinstance(model, SpinPolynomial):
        return model, Bars(), 0.0
    reduced = observe(model).reduced
    many = bool((reduced.cardinalities > 2).any())
    finite, bars = without_zeros(to_bits(reduced).binary if many else reduced)
    poly = SpinPolynomial.from_factor_graph(finite)
    error = check_encoding(finite, SpinTerms.of(poly), SpinMap.identity(poly.n))
    return poly, bars, error + LIBRARY * reduced.n_variables * many  # logs of shared codes


def _checked_levels(levels: Sequence[int] | None, n: int) -> list[int]:
    if levels is None:
        return list(range(n + 1))
    chosen = [check_level(int(m), n) for m in levels]
    if not chosen or len(set(chosen)) != len(chosen):
        raise ParameterError(f"levels are {chosen}; expected distinct numbers of parities")
    return chosen


def _tasks(
    levels: list[int], trials: int, deadline: float, tabulated: bool
) -> Iterator[tuple[int, int, int, float]]:
    """(level, first, last, seconds per problem); the time left is shared as tasks are taken."""
    size = BLOCK if tabulated else 1
    left = sum(1 if level == 0 else trials for level in levels)
    for level in levels:
        many = 1 if level == 0 else trials
        for first in range(0, many, size):
            last = min(many, first + size)
            yield level, first, last, max(0.0, deadline - time.perf_counter()) / left
            left -= last - first


@dataclass(frozen=True, eq=False)
class _Plan:
    """Everything a worker needs to run any block of trials."""

    polynomial: SpinPolynomial
    family: ExactPointMass | PointMass
    seed: np.random.SeedSequence
    table: StateTable

    @property
    def tabulated(self) -> bool:
        return (
            isinstance(self.family, ExactPointMass)
            and self.family.time_limit > 0.0
            and self.polynomial.n <= min(TABLE_SPINS, self.family.enumerate_up_to)
            and self.polynomial.constant > -np.inf
        )

    def draw(self, level: int, trial: int) -> Parities:
        """The same (A, b) as `estimate` draws at this position."""
        return DenseParity().draw(
            level, self.polynomial.n, generator(self.seed, level, trial, 0)
        )  # fmt: skip

    def run(self, task: tuple[int, int, int, float]) -> list[WishTrial]:
        """The trials first..last-1 of one level."""
        level, first, last, seconds = task
        systems = [self.draw(level, t) for t in range(first, last)]
        if not self.tabulated or seconds == 0.0:
            return [
                self._solve(level, first + k, system, seconds) for k, system in enumerate(systems)
            ]
        values, _ = self.table.heaviest(
            np.stack([s.matrix for s in systems]), np.stack([s.rhs for s in systems])
        )
        slack = 3.0 * rounding(self.polynomial)
        return [
            WishTrial(
                level, first + k, value, value + slack,
                Status.OPTIMAL if value > -math.inf else Status.INFEASIBLE,
            )
            for k, value in enumerate(values.tolist())
        ]  # fmt: skip

    def _solve(self, level: int, trial: int, system: Parities, seconds: float) -> WishTrial:
        coset = Coset.build(self.polynomial, system)
        rng = generator(self.seed, level, trial, 1)
        # Past the deadline nothing is solved: one feasible state and a trivial bound.
        solver = self.family if seconds > 0.0 else ExactPointMass(time_limit=0.0)
        if isinstance(solver, ExactPointMass):
            solver = replace(solver, time_limit=min(solver.time_limit, seconds))
            best = solver.project(coset, rng, bars=self.table.bars)
            return WishTrial(level, trial, best.log_gamma, best.log_upper, best.status)
        local = solver.project(coset, rng)
        proven = local.status in (Status.OPTIMAL, Status.INFEASIBLE)
        top = local.log_gamma + 3.0 * rounding(self.polynomial) if proven else math.inf
        value, status = local.log_gamma, local.status
        if (
            coset.feasible
            and not self.table.bars.allow(local.coset.spins_from_free(local.means))[0]
        ):
            value, status = -math.inf, Status.NOT_CONVERGED  # what it found weighs nothing
        return WishTrial(level, trial, value, top, status)
