"""Algorithm 1 (MFRP), and its maximum over the number of parities."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.families.evidence import lower_bound_of, on_model
from tightz.families.mean_field import MeanField
from tightz.families.projection import Family
from tightz.models.given import ModelOrPath, given_model
from tightz.models.prepared import prepared
from tightz.paper.batches import run_batches
from tightz.paper.results import Estimate
from tightz.paper.setup import Projections, Setup, Where, set_up
from tightz.paper.stored import Store, open_table, opened, through_store
from tightz.paper.trials import Position, TrialBatch, all_positions
from tightz.runtime.backends import Backend
from tightz.runtime.executors import Submits, require_executor
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.runtime.store import RunStore


@prepared("mfrp")
def mfrp(
    model: ModelOrPath,
    m: int,
    *,
    trials: int = 5,
    family: Family | None = None,
    seed: Seed = None,
    executor: Submits | None = None,
    threads: int | None = None,
    backend: Backend = "auto",
) -> Estimate:
    """Algorithm 1 as printed: 2^m Median_t max_j exp(objective) over T random projections.

    Fair-coin parities, leading variables constrained, J uniform starts, coordinate ascent.
    `median` of the result is its natural log, `log_z` is no less than what the trials prove;
    `trials` is its T, and J the restarts of `family`, MeanField(restarts=8) by default.
    """
    model = given_model(model, "mfrp")
    return estimate(
        model,
        levels=[m],
        trials=trials,
        family=family or MeanField(),
        projections=Projections.as_printed(),
        seed=seed,
        executor=executor,
        threads=threads,
        backend=backend,
    )


@prepared("estimate")
def estimate(
    model: ModelOrPath,
    *,
    levels: Sequence[int] | None = None,
    trials: int = 5,
    family: Family | None = None,
    projections: Projections | None = None,
    seed: Seed = None,
    executor: Submits | None = None,
    threads: int | None = None,
    backend: Backend = "auto",
    store: Store | None = None,
    resume: bool = False,
    on_batch: Callable[[TrialBatch], None] | None = None,
) -> Estimate:
    """max over m of MFRP with everything that tightens it, every (level, trial, restart) kept.

    levels          numbers of parities m; default 0..20, or 0..n for smaller models
    trials          random projections per level (T)
    family          the I-projection, default MeanField(restarts), or for variables of more than two
                    states BlockMeanField(restarts), with the restarts of `projections`
    projections     how parities are drawn, pivots chosen, the model prepared: Projections()
    executor        where trials run: a concurrent.futures.Executor, a dask client, an MPI pool;
                    default threads of this process (`threads`, all cores unless given)
    backend         "cpu", "cuda", or "auto": a GPU where one is usable and can run this plan
                    (plain or annealed mean field, no search, no collapse)
    store           a path (or RunStore) that keeps every batch as it completes
    resume          take up the run that `store` holds: same model and parameters, or it is refused.
                    Stored batches are loaded, the others computed; the result is the same
    on_batch        called with each TrialBatch as it completes, in a fixed order

    The trial at (level, trial) depends on the seed and its position only, so the numbers are the
    same serial, threaded or on any executor, and close to them on a GPU. `mfrp` is the paper's
    algorithm without the aids. Ctrl-C raises; with a `store` the run can be resumed.
    """
    model = given_model(model, "estimate")
    require_executor(executor)
    start = time.perf_counter()
    kept, root = (None, seed_sequence(seed)) if store is None else opened(store, seed, resume)
    setup = set_up(
        model,
        levels=levels,
        trials=trials,
        family=family,
        projections=projections or Projections(),
        seed=root,
    )
    where = Where(executor, threads, backend)
    return run_setup(setup, where, on_batch=on_batch, store=kept, resume=resume, start=start)


def run_setup(
    setup: Setup,
    where: Where,
    *,
    on_batch: Callable[[TrialBatch], None] | None = None,
    store: RunStore | None = None,
    resume: bool = False,
    partial: bool = False,
    start: float,
) -> Estimate:
    """Run or resume the trials of `setup` and gather them; the arguments are those of `estimate`.

    partial   Ctrl-C returns the whole repetitions made so far instead of raising
    start     when the work began, on `time.perf_counter`
    """

    def compute(places: Iterable[Position], size: int) -> Iterator[TrialBatch]:
        return run_batches(setup.plan, places, batch=size, **where._asdict())

    table = setup.empty_table()
    with ExitStack() as stack:
        writer = None
        if store is None:
            batches = compute(all_positions(setup.levels, setup.trials), setup.batch)
        else:
            writer = open_table(store, setup, resume=resume, options=where.record)
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
            lower_proof=replace(lower, seconds=seconds),
            seconds=seconds,
            provenance=provenance(setup.plan.seed, setup.digest, **setup.parameters),
            named=getattr(setup.model, "naming", None),
        )
        if writer is not None:
            writer.append_answer(
                {"estimate": result.log_z, "lower": result.lower, "complete": complete},
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
