"""Mean field, Algorithm 1 (MFRP), and its maximum over the number of parities."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ParameterError, require_range
from tightz.estimation.moments import WeightedMoments
from tightz.estimation.results import Estimate, MeanFieldResult
from tightz.estimation.trials import (
    STATUSES,
    TrialBatch,
    TrialPlan,
    all_positions,
    run_batches,
)
from tightz.estimation.workspace import Workspace
from tightz.families.mean_field import MeanField
from tightz.families.projection import Family
from tightz.models.collapse import Collapsed
from tightz.models.encoding import Model, SpinEncoding, encode, model_digest
from tightz.projections.coset import Coset, check_level
from tightz.projections.hashing import DenseParity, HashFamily
from tightz.projections.pivots import FirstColumns, PivotPolicy
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence

DEFAULT_LEVELS = 20
"""The paper's experiments run m = 0..20."""


def mean_field(
    model: Model,
    *,
    restarts: int = 20,
    tol: float = 1e-6,
    max_sweeps: int = 1000,
    seed: Seed = None,
) -> MeanFieldResult:
    """Plain mean field: the best of `restarts` coordinate ascents; a deterministic lower bound."""
    start = time.perf_counter()
    root = seed_sequence(seed)
    family = MeanField(restarts=restarts, tol=tol, max_sweeps=max_sweeps)
    encoding = encode(model, multivalued=True)
    best = family.project(Coset.build(encoding.polynomial), generator(root))
    return MeanFieldResult(
        log_z=best.log_gamma,
        log_zs=best.log_gammas,
        marginals=encoding.marginals(_means_or_nan(best.spin_means(), best.log_gamma)),
        status=best.status,
        sweeps=best.sweeps,
        seconds=time.perf_counter() - start,
        provenance=provenance(root, model_digest(model), family=family),
    )


def mfrp(
    model: Model,
    m: int,
    *,
    trials: int = 5,
    restarts: int = 8,
    tol: float = 1e-6,
    max_sweeps: int = 1000,
    seed: Seed = None,
    pairs: ArrayLike | None = None,
    executor: Executor | None = None,
    threads: int | None = None,
) -> Estimate:
    """Algorithm 1 as printed: 2^m Median_t max_j exp(objective) over T random projections.

    Fair-coin parities, leading variables constrained, J uniform starts, coordinate ascent.
    `log_z` of the result is the estimate's natural log; `trials` its T.
    """
    return estimate(
        model,
        levels=[m],
        trials=trials,
        family=MeanField(restarts=restarts, tol=tol, max_sweeps=max_sweeps),
        hashing=DenseParity(),
        pivots=FirstColumns(),
        collapse=0,
        search_sweeps=0,
        seed=seed,
        pairs=pairs,
        executor=executor,
        threads=threads,
    )


def estimate(
    model: Model,
    *,
    levels: Sequence[int] | None = None,
    trials: int = 5,
    restarts: int = 8,
    seed: Seed = None,
    family: Family | None = None,
    hashing: HashFamily | None = None,
    pivots: PivotPolicy | None = None,
    collapse: int | None = None,
    search_sweeps: int | None = None,
    pairs: ArrayLike | None = None,
    executor: Executor | None = None,
    threads: int | None = None,
    on_batch: Callable[[TrialBatch], None] | None = None,
) -> Estimate:
    """max over m of MFRP with everything that tightens it, every (level, trial, restart) kept.

    levels          numbers of parities m; default 0..20, or 0..n for smaller models
    trials          random projections per level (T); restarts: starts per projection (J)
    family          the I-projection, default MeanField(restarts); restarts is ignored if given
    hashing         how parities are drawn, default DenseParity()
    pivots          which spins are constrained; default the least reliable ones where a search was
                    made (Reliability), else FirstColumns()
    collapse        sum out exactly every spin with at most this many neighbours first; None picks
                    by cost, 0 switches it off. n, cosets and the theory then speak of the
                    collapsed model; log Z and the marginals are the model's own
    search_sweeps   parallel-tempering sweeps that look for starts; None picks by cost, 0 is off.
                    With a search, mean field also tries annealed starts and, in every coset, a
                    second basis whose constrained spins are the weakest of the solution so far
    pairs           rows (i, j) of model variables whose joint marginals are wanted (collapse is
                    then off unless given, in which case the pair must survive it)
    on_batch        called with each TrialBatch as it completes, in a fixed order

    The trial at (level, trial) depends on the seed and its position only, so the numbers are the
    same serial, threaded or on any executor. `mfrp` is the paper's algorithm without the aids.
    """
    start = time.perf_counter()
    require_range("trials", trials, 1)
    family = MeanField(restarts=restarts) if family is None else family
    hashing = DenseParity() if hashing is None else hashing
    root = seed_sequence(seed)
    work = Workspace.build(
        model,
        seed=root,
        collapse=0 if pairs is not None and collapse is None else collapse,
        search_sweeps=search_sweeps,
        at_least=max(levels, default=0) if levels is not None else 0,
    )
    encoding, collapsed = work.encoding, work.collapsed
    chosen = _checked_levels(levels, work.polynomial.n)
    model_pairs = _spin_pairs(encoding, pairs)
    spin_pairs = _kept_pairs(model_pairs, collapsed)
    policy = work.pivots(pivots)
    plan = TrialPlan(
        polynomial=work.polynomial,
        family=family,
        hashing=hashing,
        pivots=policy,
        seed=root,
        pairs=spin_pairs,
        states=work.states,
        collapsed=collapsed,
        polish=work.guide is not None and isinstance(family, MeanField),
    )

    row = np.zeros(max(chosen) + 1, dtype=np.int64)
    row[chosen] = np.arange(len(chosen))
    log_gammas = np.full((len(chosen), trials, family.restarts), np.nan)
    sweeps = np.zeros((len(chosen), trials), dtype=np.int64)
    ranks = np.zeros((len(chosen), trials), dtype=np.int64)
    statuses = np.empty((len(chosen), trials), dtype=object)
    singles, joint = WeightedMoments(work.original.n), WeightedMoments(len(spin_pairs))
    places = all_positions(chosen, trials)
    for done in run_batches(plan, places, executor=executor, threads=threads):
        at = row[done.levels], done.trials
        log_gammas[at] = done.log_gammas
        sweeps[at], ranks[at] = done.sweeps, done.ranks
        statuses[at] = [STATUSES[code] for code in done.statuses]
        singles.merge(done.spins)
        joint.merge(done.pairs)
        if on_batch is not None:
            on_batch(done)
    return Estimate(
        levels=np.array(chosen, dtype=np.int64),
        log_gammas=log_gammas,
        sweeps=sweeps,
        ranks=ranks,
        statuses=statuses,
        n=work.polynomial.n,
        marginals=encoding.marginals(singles.mean),
        marginal_spread=encoding.spread(singles.spread),
        pairs=np.asarray(pairs if pairs is not None else np.zeros((0, 2)), dtype=np.int64),
        pair_marginals=_pair_tables(singles.mean, joint.mean, model_pairs),
        pair_spread=joint.spread / 4.0,
        strongly_universal=hashing.strongly_universal,
        seconds=time.perf_counter() - start,
        provenance=provenance(
            root,
            model_digest(model),
            levels=list(chosen),
            trials=trials,
            family=family,
            hashing=hashing,
            pivots=type(policy).__name__,
            collapse=work.k,
            search_sweeps=work.search_sweeps,
        ),
    )


def _kept_pairs(pairs: NDArray[np.int64], collapsed: Collapsed | None) -> NDArray[np.int64]:
    """Pairs of the model's spins as spins of the working polynomial."""
    if collapsed is None:
        return pairs
    number = np.full(collapsed.original.n, -1, dtype=np.int64)
    number[collapsed.kept] = np.arange(collapsed.kept.size)
    if (number[pairs] < 0).any():
        raise ParameterError("a pair's variable was summed out; use collapse=0 with pairs")
    return number[pairs]


def _means_or_nan(means: NDArray[np.float64], log_gamma: float) -> NDArray[np.float64]:
    """Marginals of a model with Z = 0 do not exist."""
    return np.full_like(means, np.nan) if log_gamma == -np.inf else means


def _checked_levels(levels: Sequence[int] | None, n: int) -> list[int]:
    if levels is None:
        return list(range(min(DEFAULT_LEVELS, n) + 1))
    chosen = [check_level(int(m), n) for m in levels]
    if not chosen or len(set(chosen)) != len(chosen):
        raise ParameterError(f"levels are {chosen}; expected distinct numbers of parities")
    return chosen


def _spin_pairs(encoding: SpinEncoding, pairs: ArrayLike | None) -> NDArray[np.int64]:
    """Model variables -> spins; only unobserved binary variables have exactly one."""
    if pairs is None:
        return np.zeros((0, 2), dtype=np.int64)
    rows = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    named, first, spins = np.unique(encoding.variables, return_index=True, return_counts=True)
    spin_of = dict(zip(named[spins == 1].tolist(), first[spins == 1].tolist(), strict=True))
    for i, j in rows.tolist():
        if i not in spin_of or j not in spin_of or i == j:
            raise ParameterError(
                f"pair ({i}, {j}): expected two different unobserved binary variables of the model"
            )
    return np.array([[spin_of[i], spin_of[j]] for i, j in rows.tolist()]).reshape(-1, 2)


def _pair_tables(
    s: NDArray[np.float64], ss: NDArray[np.float64], pairs: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(pairs, 2, 2) joint probabilities from E s_i, E s_j and E s_i s_j."""
    si, sj = s[pairs[:, 0]], s[pairs[:, 1]]
    signs = np.array([1.0, -1.0])
    return (
        1.0
        + signs[None, :, None] * si[:, None, None]
        + signs[None, None, :] * sj[:, None, None]
        + signs[None, :, None] * signs[None, None, :] * ss[:, None, None]
    ) / 4.0
