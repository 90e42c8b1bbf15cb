"""Mean field, Algorithm 1 (MFRP), and its maximum over the number of parities."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.families.block import family_for
from tightz.families.evidence import lower_bound_of, mean_field_bound, on_model
from tightz.families.mean_field import MeanField
from tightz.families.projection import Family
from tightz.judge.links import SpinLink
from tightz.models.inputs import as_model
from tightz.paper.batches import run_batches
from tightz.paper.results import Estimate, MeanFieldResult
from tightz.paper.setup import Setup, set_up
from tightz.paper.stored import Store, open_table, opened, through_store
from tightz.paper.trials import Position, TrialBatch, all_positions
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity, HashFamily
from tightz.projections.pivots import FirstColumns, PivotPolicy
from tightz.reductions.encoding import Model, encode, model_digest
from tightz.runtime.backends import Backend
from tightz.runtime.executors import Submits
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence
from tightz.runtime.store import RunStore


def mean_field(
    model: Model,
    *,
    restarts: int = 20,
    tol: float = 1e-6,
    max_sweeps: int = 1000,
    seed: Seed = None,
    link: SpinLink | None = None,
) -> MeanFieldResult:
    """Plain mean field: the best of `restarts` coordinate ascents; a deterministic lower bound.

    `log_z` is what the judge makes of the q found. `link` is for a polynomial that stands for
    another model (`families.evidence.link_of`): the bound can then be judged on that one.
    """
    as_model(model, "mean_field")
    start = time.perf_counter()
    root = seed_sequence(seed)
    encoding = encode(model, multivalued=True)
    family = family_for(encoding.polynomial, restarts=restarts, tol=tol, max_sweeps=max_sweeps)
    best = family.project(Coset.build(encoding.polynomial), generator(root))
    ptr, spins, signs = encoding.products
    products = signs * best.expectations(ptr, spins)
    marginals = encoding.from_products(_means_or_nan(products, best.log_gamma))
    bound = mean_field_bound(encoding, best, marginals, link)
    return MeanFieldResult(
        log_z=bound.log_z,
        log_zs=best.log_gammas,
        marginals=marginals,
        status=best.status,
        sweeps=best.sweeps,
        seconds=time.perf_counter() - start,
        provenance=provenance(root, model_digest(model), family=family),
        rounding=bound.rounding,
        evidence=bound.evidence,
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
    executor: Submits | None = None,
    threads: int | None = None,
    backend: Backend = "auto",
) -> Estimate:
    """Algorithm 1 as printed: 2^m Median_t max_j exp(objective) over T random projections.

    Fair-coin parities, leading variables constrained, J uniform starts, coordinate ascent.
    `log_z` of the result is the estimate's natural log; `trials` its T.
    """
    as_model(model, "mfrp")
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
        backend=backend,
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
    executor: Submits | None = None,
    threads: int | None = None,
    backend: Backend = "auto",
    on_batch: Callable[[TrialBatch], None] | None = None,
    store: Store | None = None,
    resume: bool = False,
    partial: bool = False,
) -> Estimate:
    """max over m of MFRP with everything that tightens it, every (level, trial, restart) kept.

    levels          numbers of parities m; default 0..20, or 0..n for smaller models
    trials          random projections per level (T); restarts: starts per projection (J)
    family          the I-projection, default MeanField(restarts), or for variables of more than two
                    states BlockMeanField(restarts); restarts is ignored if given
    hashing         how parities are drawn, default DenseParity()
    pivots          which spins are constrained; default the least reliable ones where a search was
                    made (Reliability), else FirstColumns()
    collapse        sum out exactly every spin with at most this many neighbours first; None picks
                    by cost, 0 switches it off. n, cosets and the theory then speak of the
                    collapsed model; log Z and the marginals are the model's own (variables of
                    more than two states: their bits are then taken as independent)
    search_sweeps   parallel-tempering sweeps that look for starts; None picks by cost, 0 is off.
                    With a search, mean field also tries annealed starts and, in every coset, a
                    second basis whose constrained spins are the weakest of the solution so far
    pairs           rows (i, j) of model variables whose joint marginals are wanted (collapse is
                    then off unless given, in which case the pair must survive it)
    executor        where trials run: a concurrent.futures.Executor, a dask client, an MPI pool;
                    default threads of this process (`threads`, all cores unless given)
    backend         "cpu", "cuda", or "auto": a GPU where one is usable and can run this plan
                    (plain or annealed mean field, no search, no collapse)
    on_batch        called with each TrialBatch as it completes, in a fixed order
    store           a path (or RunStore) that keeps every batch as it completes
    resume          take up the run that `store` holds: same model and parameters, or it is refused.
                    Stored batches are loaded, the others computed; the result is the same
    partial         Ctrl-C returns the whole repetitions made so far instead of raising

    The trial at (level, trial) depends on the seed and its position only, so the numbers are the
    same serial, threaded or on any executor, and close to them on a GPU. `mfrp` is the paper's
    algorithm without the aids.
    """
    as_model(model, "estimate")
    start = time.perf_counter()
    kept, root = (None, seed_sequence(seed)) if store is None else opened(store, seed, resume)
    setup = set_up(
        model,
        levels=levels,
        trials=trials,
        family=family,
        restarts=restarts,
        hashing=DenseParity() if hashing is None else hashing,
        pivots=pivots,
        collapse=collapse,
        search_sweeps=search_sweeps,
        pairs=pairs,
        seed=root,
    )
    return run_setup(
        setup,
        executor=executor,
        threads=threads,
        backend=backend,
        on_batch=on_batch,
        store=kept,
        resume=resume,
        partial=partial,
        start=start,
    )


def run_setup(
    setup: Setup,
    *,
    executor: Submits | None,
    threads: int | None,
    backend: Backend,
    on_batch: Callable[[TrialBatch], None] | None,
    store: RunStore | None,
    resume: bool,
    partial: bool,
    start: float,
) -> Estimate:
    """Run or resume the trials of `setup` and gather them; the arguments are those of `estimate`.

    `start` is when the work began, on `time.perf_counter`.
    """

    def compute(places: Iterable[Position], size: int) -> Iterator[TrialBatch]:
        return run_batches(
            setup.plan, places, executor=executor, threads=threads, batch=size, backend=backend
        )

    table = setup.empty_table()
    with ExitStack() as stack:
        writer = None
        if store is None:
            batches = compute(all_positions(setup.levels, setup.trials), setup.batch)
        else:
            options = {"threads": threads, "executor": _name(executor), "backend": backend}
            writer = open_table(store, setup, resume=resume, options=options)
            batches = through_store(stack.enter_context(writer), compute)
        try:
            for done in batches:
                table.take(done)
                if on_batch is not None:
                    on_batch(done)
        except KeyboardInterrupt:
            if not partial or table.done == 0:
                raise
        complete = table.done == len(setup.levels) * setup.trials
        table.cut()
        seconds = time.perf_counter() - start if writer is None else writer.seconds
        lower = _best_coset(setup, table.levels, table.log_gammas)
        result = Estimate(
            levels=table.levels,
            log_gammas=table.log_gammas,
            sweeps=table.sweeps,
            ranks=table.ranks,
            statuses=table.statuses,
            planned_levels=table.planned_levels,
            planned_trials=table.planned_trials,
            n=setup.plan.polynomial.n,
            marginals=setup.work.encoding.from_products(table.singles.mean),
            marginal_spread=setup.work.encoding.spread(table.singles.spread),
            pairs=setup.pairs,
            pair_marginals=_pair_tables(
                table.singles.mean[setup.work.encoding.product_of_spin],
                table.joint.mean,
                setup.spin_pairs,
            ),
            pair_spread=table.joint.spread / 4.0,
            strongly_universal=setup.plan.hashing.strongly_universal,
            lower=replace(lower, seconds=seconds),
            seconds=seconds,
            provenance=provenance(setup.plan.seed, setup.digest, **setup.parameters),
        )
        if writer is not None:
            writer.append_answer(
                {"estimate": result.log_z, "lower": result.lower.log_z, "complete": complete},
                list(result.marginals),
                result.marginal_spread,
            )
            writer.finish("finished" if complete else "interrupted")
    return result


def _best_coset(setup: Setup, levels: NDArray[np.int64], log_gammas: NDArray[np.float64]) -> Bound:
    """gamma <= Z(A, b) <= Z in every trial: the best one, made again for its q, and judged."""
    method, why = "best coset", "a coset's partition function is part of Z"
    best = np.nan_to_num(log_gammas.max(axis=2), nan=-np.inf)
    level, trial = (int(i) for i in np.unravel_index(int(np.argmax(best)), best.shape))
    if best[level, trial] == -np.inf:
        return Bound(Side.LOWER, -np.inf, Proof.DETERMINISTIC, method, 0.0, 1.0, why)
    projection = setup.plan.project((int(levels[level]), trial))
    bound = lower_bound_of(projection, method, why, setup.work.link)
    return on_model(bound, setup.work.encoding.model)


def _name(executor: Submits | None) -> str | None:
    return None if executor is None else type(executor).__name__


def _means_or_nan(means: NDArray[np.float64], log_gamma: float) -> NDArray[np.float64]:
    """Marginals of a model with Z = 0 do not exist."""
    return np.full_like(means, np.nan) if log_gamma == -np.inf else means


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
