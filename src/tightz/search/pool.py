"""A pool of states from tempering: the heaviest ones, and samples at temperature 1.

The heaviest states are not the best starts on a dense model: what counts is the value that mean
field climbs to, and samples at temperature 1 often climb higher.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ParameterError, require_range
from tightz.families.mean_field import MeanField
from tightz.models.inputs import as_model
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.reductions.encoding import model_digest
from tightz.runtime.backends import Backend
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence
from tightz.search.copies import run_copies
from tightz.search.ladder import Ladder, log_z_by_tempering
from tightz.search.moves import Best
from tightz.search.parallel_tempering import ParallelTempering, Problem, Tempering, tune_ladder
from tightz.search.recombination import recombined


def rank(
    polynomial: SpinPolynomial, states: NDArray[np.int8]
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """One state per optimum of mean field that `states` lead to, best first; the best's means."""
    coset = Coset.build(polynomial)
    climbed = MeanField().ascend_from(coset, states.astype(np.float64))
    order = np.argsort(-climbed.log_gammas, kind="stable")
    values = climbed.log_gammas[order]
    # Many states climb to one optimum: one of them stands for it, so that restarts differ.
    new = np.diff(values, prepend=np.inf) < -1e-5  # equal values: the same optimum
    return states[order[new]], climbed.means


@dataclass(frozen=True, eq=False, repr=False)
class StatePool:
    """What a tempering run found. Spins are +1 or -1.

    states                (B, n) distinct states that no single flip improves, heaviest first
    log_weights           (B,) their log p~
    samples               (S, n) states at temperature 1 after burn-in, correlated in time
    sample_log_weights    (S,) their log p~
    log_z_estimate        log Z along the ladder: an estimate, never a bound
    log_z_error           its standard error, from stretches of the runs; inf when too short
    betas                 (K,) inverse temperatures; flip_rates (K,), swap_rates (K - 1,) measured
    sweeps                per run, of which there were `runs`
    """

    states: NDArray[np.int8]
    log_weights: NDArray[np.float64]
    samples: NDArray[np.int8]
    sample_log_weights: NDArray[np.float64]
    log_z_estimate: float
    log_z_error: float
    betas: NDArray[np.float64]
    flip_rates: NDArray[np.float64]
    swap_rates: NDArray[np.float64]
    cluster_size: float
    sweeps: int
    runs: int
    seconds: float
    provenance: dict[str, Any]

    def spin_means(self) -> NDArray[np.float64]:
        """(n,) average of the samples: an estimate of E[s_i]."""
        if not len(self.samples):
            return np.full(self.samples.shape[1], np.nan)
        means: NDArray[np.float64] = self.samples.mean(axis=0, dtype=np.float64)
        return means

    def __repr__(self) -> str:
        best = f"{self.log_weights[0]:.6f}" if len(self.log_weights) else "none"
        return (
            f"StatePool(best log weight {best}, {len(self.states)} states, "
            f"{len(self.samples)} samples, log_z_estimate={self.log_z_estimate:.4f} "
            f"+- {self.log_z_error:.2g}, {self.runs} x {self.sweeps} sweeps)"
        )


OPENING_WORK = 3e9
"""Work of the search for good states before sampling starts: a second at most, or 300 sweeps."""

ANNEAL_SWEEPS = 2
"""Sweeps at each temperature while every other run is cooled from beta = 0 to its ladder."""

SAMPLER = ParallelTempering(ladder=Ladder(step=1.5, to_zero=True), keep_best=256)


LANES, FEWEST, UNIT_SECONDS = 128, 80, 1.7e-9
"""Replicas at all temperatures of one run, sweeps of pilots and of runs too short to be of use, and
seconds of a unit of work, measured on 3-regular graphs and lattices of 10^4 to 10^5 spins."""


def least_cost(polynomial: SpinPolynomial) -> tuple[float, float]:
    """(seconds on one core, bytes) below which no pool is worth its time."""
    work = 8 * polynomial.n + polynomial.spins.size
    long = int((polynomial.arities > 2).sum())
    return FEWEST * LANES * UNIT_SECONDS * work, 2.0 * LANES * (polynomial.n + 8.0 * long)


def sample_pool(
    polynomial: SpinPolynomial,
    *,
    sweeps: int | None = None,
    time_limit: float | None = None,
    seed: Seed = None,
    samples: int = 1000,
    runs: int = 2,
    threads: int | None = None,
    backend: Backend = "auto",
) -> StatePool:
    """Temper `runs` independent copies for `sweeps` sweeps each, or until `time_limit` seconds.

    With neither, 2000 sweeps. `sweeps` alone gives the same pool for the same seed, whatever the
    machine and `threads`; a time limit cuts that run short. About `samples` states at
    temperature 1 are returned, evenly spaced after a burn-in of a quarter of the run. Within the
    burn-in the even runs restart from the best states found and the odd ones from slow cooling.
    A GPU (`backend`) pays for many runs: "auto" takes one from 32 on.
    """
    as_model(polynomial, "sample_pool", only="SpinPolynomial")
    sweeps = _checked_limits(sweeps, time_limit, samples, runs)
    start = time.perf_counter()
    root = seed_sequence(seed)
    config = replace(SAMPLER, keep_samples=-(-samples // runs))
    origin = provenance(
        root, model_digest(polynomial), sweeps=sweeps, time_limit=time_limit, runs=runs,
        samples=samples, method=SAMPLER,
    )  # fmt: skip
    if polynomial.constant == -np.inf:
        return _empty_pool(polynomial.n, runs, start, origin)
    problem = Problem.build(polynomial)
    # The ladder comes from pilot runs with random numbers of their own and stays fixed from here
    # on: adapting it while sampling would break detailed balance.
    betas = tune_ladder(problem, config, root)
    copies = [Tempering(problem, config, betas, root, 1, c) for c in range(runs)]
    deadline = None if time_limit is None else start + time_limit
    opening = int(np.clip(OPENING_WORK / max(1, problem.work * copies[0].rep.beta.size), 1, 300))
    opening = opening if sweeps is None else min(opening, sweeps // 4)
    run_copies(copies, sweeps=opening, deadline=deadline, threads=threads, backend=backend)
    for c, copy in enumerate(copies):  # starts differ, so that runs stuck in different phases show
        if c % 2:
            copy.anneal(ANNEAL_SWEEPS)
        elif copy.sweeps:
            copy.adopt_best(generator(root, 2, c))
    run_copies(copies, sweeps=sweeps, deadline=deadline, threads=threads, backend=backend)

    # The running energies drift; whatever leaves this function is weighed afresh.
    states, log_weights = merge_best(polynomial, [c.best for c in copies], config.keep_best)
    kept = [thin(c.samples[c.settled(c.sample_at)], config.keep_samples) for c in copies]
    drawn = np.concatenate(kept)[:samples]
    states, log_weights = _topped(polynomial, states, drawn, config.keep_best)
    # Only what came after the burn-in, in which states were adopted and cooled by hand.
    traces = [c.trace[c.settled(c.trace_at)] for c in copies]
    log_z, error = log_z_by_tempering(betas, traces, polynomial.n, polynomial.constant)
    lanes = runs * config.replicas * copies[0].sweeps
    accepted, tried = np.sum([c.swaps for c in copies], axis=0)
    flipped, members = np.sum([c.clusters for c in copies], axis=0)
    return StatePool(
        states=states,
        log_weights=log_weights,
        samples=drawn,
        sample_log_weights=polynomial.log_weight(drawn),
        log_z_estimate=log_z,
        log_z_error=error,
        betas=betas,
        flip_rates=np.sum([c.flips for c in copies], axis=0) / max(1, lanes * polynomial.n),
        swap_rates=accepted / np.maximum(tried, 1),
        cluster_size=float(members / max(flipped, 1)),
        sweeps=copies[0].sweeps,
        runs=runs,
        seconds=time.perf_counter() - start,
        provenance=origin,
    )


def joined(polynomial: SpinPolynomial, pools: Sequence[StatePool], samples: int) -> StatePool:
    """Pools of independent runs as one: the heaviest states of all, samples of each."""
    if len(pools) == 1:
        return pools[0]
    first = pools[0]
    drawn = np.concatenate([thin(pool.samples, -(-samples // len(pools))) for pool in pools])
    rows = np.concatenate([pool.states for pool in pools])
    states, weights = _topped(polynomial, rows, drawn, SAMPLER.keep_best)
    # Each has its own error; the best known stands for all.
    best = min(pools, key=lambda pool: pool.log_z_error)
    return replace(
        first,
        states=states,
        log_weights=weights,
        samples=drawn,
        sample_log_weights=polynomial.log_weight(drawn),
        log_z_estimate=best.log_z_estimate,
        log_z_error=best.log_z_error,
        runs=sum(pool.runs for pool in pools),
    )


def with_states(polynomial: SpinPolynomial, pool: StatePool, known: NDArray[np.int8]) -> StatePool:
    """The pool with the heaviest of its own states and the known ones; samples stay as they are."""
    rows = np.concatenate([pool.states, known])
    states, weights = _topped(polynomial, rows, pool.samples, SAMPLER.keep_best)
    return replace(pool, states=states, log_weights=weights)


def _topped(
    polynomial: SpinPolynomial, states: NDArray[np.int8], samples: NDArray[np.int8], capacity: int
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """The heaviest of the distinct states, and the one put together from all, heaviest first."""
    every = np.concatenate([states, samples])
    if not len(every):
        return states, np.zeros(0)
    rows = distinct(np.concatenate([states, recombined(polynomial, every)[None]]))
    weights = polynomial.log_weight(rows)
    order = np.argsort(-weights, kind="stable")[:capacity]
    return rows[order], weights[order]


def merge_best(
    polynomial: SpinPolynomial, lists: list[Best], capacity: int
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """The distinct states of several lists, heaviest first, weighed afresh in float64."""
    states = np.concatenate([b.spins[: b.size[0]] for b in lists])
    if not len(states):
        return states, np.zeros(0)
    states = distinct(states)
    log_weights = polynomial.log_weight(states)
    order = np.argsort(-log_weights, kind="stable")[:capacity]
    return states[order], log_weights[order]


def distinct(rows: NDArray[np.int8]) -> NDArray[np.int8]:
    """The distinct rows of spins, ascending; numpy's `unique` takes 10 us a column for each."""
    if not rows.shape[1]:
        return rows[:1]
    # offset binary: bytes in the order of the signed numbers
    keys = np.ascontiguousarray(rows, dtype=np.int8).view(np.uint8) ^ 0x80
    found = dict(zip([row.tobytes() for row in keys], range(len(rows)), strict=True))
    return rows[[found[key] for key in sorted(found)]]


def thin(rows: NDArray, count: int) -> NDArray:
    """At most `count` of the rows, evenly spaced."""
    if len(rows) <= count:
        return rows
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


def _checked_limits(
    sweeps: int | None, time_limit: float | None, samples: int, runs: int
) -> int | None:
    require_range("samples", samples, 0)
    require_range("runs", runs, 1)
    if sweeps is not None:
        require_range("sweeps", sweeps, 1)
    if time_limit is not None and not time_limit > 0.0:
        raise ParameterError(f"time_limit is {time_limit}; expected a positive number of seconds")
    return 2000 if sweeps is None and time_limit is None else sweeps


def _empty_pool(n: int, runs: int, start: float, origin: dict[str, Any]) -> StatePool:
    """Every state has weight zero: nothing to keep, and log Z = -inf is known."""
    none, nothing = np.zeros((0, n), dtype=np.int8), np.zeros(0)
    return StatePool(
        none, nothing, none, nothing, -np.inf, 0.0, np.ones(1), np.zeros(1), nothing, 0.0, 0, runs,
        time.perf_counter() - start, origin,
    )  # fmt: skip
