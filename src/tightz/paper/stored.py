"""Between the trials of a run and its store: what is stored is loaded, the rest is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tightz.bounds import Bound
from tightz.families.projection import Status
from tightz.models.factor_graph import FactorGraph, Grid
from tightz.models.names import names_kept
from tightz.paper.batches import TrialTable
from tightz.paper.results import UNJUDGED, Estimate
from tightz.paper.setup import Setup
from tightz.paper.trials import STATUSES, Position, TrialBatch, WeightedMoments, all_positions
from tightz.reductions.encoding import Model
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.runtime.store import (
    Answer,
    BatchRow,
    RunReader,
    RunStore,
    RunWriter,
    StoreError,
    TrialColumns,
)

Store = str | Path | RunStore
"""What `store=` takes: a path, or a RunStore that says more."""


def as_store(store: Store) -> RunStore:
    """A path as a store that says nothing more."""
    return store if isinstance(store, RunStore) else RunStore(store)


def opened(store: Store, seed: Seed, resume: bool) -> tuple[RunStore, np.random.SeedSequence]:
    """The store, refused at once where it cannot serve, and the seed: the stored one by default."""
    chosen = as_store(store)
    meta = chosen.check(resume)
    if meta is None or seed is not None:
        return chosen, seed_sequence(seed)
    stored = meta.seed
    return chosen, np.random.SeedSequence(stored["entropy"], spawn_key=tuple(stored["spawn_key"]))


def seed_record(root: np.random.SeedSequence) -> dict[str, Any]:
    """A seed as JSON values."""
    return {"entropy": root.entropy, "spawn_key": list(root.spawn_key)}


def model_shape(model: Model) -> tuple[int, int] | None:
    """Rows and columns of a lattice whose variables are numbered row by row, else None."""
    if not isinstance(model, FactorGraph):
        return None
    if isinstance(model.layout, Grid):
        return model.layout.rows, model.layout.cols
    if model.n_factors == 0 or model.arities.max() != 2:
        return None
    first = model.scope_ptr[:-1][model.arities == 2]
    ends = np.sort(np.stack([model.scope_vars[first], model.scope_vars[first + 1]]), axis=0)
    step = ends[1] - ends[0]
    cols = int(step.max())
    rows, rest = divmod(model.n_variables, cols)
    along = ends[0][step == 1]
    lattice = rest == 0 and rows > 1 and cols > 1 and set(step.tolist()) == {1, cols}
    return (rows, cols) if lattice and (along % cols < cols - 1).all() else None


def table_identity(setup: Setup) -> dict[str, Any]:
    """What a stored table must agree in to be resumed by `setup`."""
    return {
        "kind": "estimate",
        "model_sha256": setup.digest,
        "seed": seed_record(setup.plan.seed),
        "parameters": {**setup.parameters, "pairs": setup.pairs},
    }


def open_table(
    store: RunStore, setup: Setup, *, resume: bool, options: dict[str, Any]
) -> RunWriter:
    """A session of the store for the table of `setup`."""
    plan = setup.plan
    return store.open(
        table_identity(setup),
        {
            "n": plan.polynomial.n,
            "levels": setup.levels,
            "trials": setup.trials,
            "restarts": plan.family.restarts,
            "batch": setup.batch,
            "statuses": [status.name for status in STATUSES],
            "strongly_universal": plan.hashing.strongly_universal,
            "shape": model_shape(setup.model),
            "spins_are_variables": setup.spins_are_variables,
            **(setup.model.naming.record() if isinstance(setup.model, FactorGraph) else {}),
        },
        resume=resume,
        options=options,
    )


def through_store(
    writer: RunWriter,
    run: Callable[[Iterable[Position], int], Iterator[TrialBatch]],
) -> Iterator[TrialBatch]:
    """All batches of the run in order; those not stored are computed by `run(positions, batch)`.

    A batch is stored before it is handed on. Batches are the same pieces of `all_positions`
    whoever computes them and when, so a resumed run ends in the same numbers, averages included.
    """
    meta = writer.meta
    size, total = meta.batch, len(meta.levels) * meta.trials
    absent = [k for k in range(-(-total // size)) if k not in writer.stored]
    fresh = run(_positions(meta.levels, meta.trials, size, absent), size)
    for k in range(-(-total // size)):
        if k in writer.stored:
            yield _from_row(writer.batch(k))
            continue
        done = next(fresh)
        writer.append_batch(k, _to_row(done))
        yield done


def _positions(
    levels: list[int], trials: int, size: int, batches: Iterable[int]
) -> Iterator[Position]:
    source, at = all_positions(levels, trials), 0
    for k in batches:
        yield from islice(source, k * size - at, (k + 1) * size - at)
        at = (k + 1) * size


def _to_row(batch: TrialBatch) -> BatchRow:
    columns = TrialColumns(
        levels=batch.levels,
        trials=batch.trials,
        ranks=batch.ranks,
        sweeps=batch.sweeps,
        statuses=batch.statuses.astype(np.int64),
        log_gammas=batch.log_gammas,
    )
    return BatchRow(columns, batch.spins.to_array(), batch.pairs.to_array())


def _from_row(row: BatchRow) -> TrialBatch:
    c = row.columns
    return TrialBatch(
        levels=c.levels,
        trials=c.trials,
        log_gammas=c.log_gammas,
        ranks=c.ranks,
        sweeps=c.sweeps,
        statuses=c.statuses.astype(np.int8),
        spins=WeightedMoments.from_array(row.spins),
        pairs=WeightedMoments.from_array(row.pairs),
    )


def read_estimate(path: str | Path) -> Estimate:
    """The table of a stored run, finished or not, cut to whole repetitions of its levels.

    Marginals are those of the last session that ended in order. Before that they are the averages
    of the model's spins where those are its variables (all binary, none observed), else there are
    none. Joint marginals of pairs are not read back.
    """
    with RunReader(path) as reader:
        meta, answer = reader.meta(), reader.answer()
        if not meta.levels:
            raise StoreError(
                f"{path} holds a {meta.kind} run, which has bounds and no table of trials; "
                "expected a run of estimate or theorem. RunReader(path).bounds() reads the bounds"
            )
        codes = [STATUSES.index(Status[name]) for name in meta.statuses]
        table: TrialTable | None = None
        for k in reader.stored_batches():
            batch = _from_row(reader.batch(k))
            batch = replace(batch, statuses=np.array(codes, dtype=np.int8)[batch.statuses])
            if table is None:
                spins, pairs = (m.to_array().size // 2 - 1 for m in (batch.spins, batch.pairs))
                table = TrialTable(
                    meta.levels, meta.trials, meta.restarts, spins=spins, pairs=pairs
                )
            if table.done != k * meta.batch:
                break
            table.take(batch)
        seconds = reader.seconds()
    if table is None:
        raise StoreError(
            f"{path} holds no trial yet; expected at least one batch. Wait for the run, or go on "
            "with --resume (resume=True)"
        )
    table.cut()
    means, spread = table.singles.mean, table.singles.spread
    if not meta.description.get("spins_are_variables"):
        means = spread = np.zeros(0)
    marginals: Any = np.stack([(1 + means) / 2, (1 - means) / 2], axis=1)
    spread = spread / 2.0
    if answer is not None and answer.marginals is not None and answer.spread is not None:
        marginals, spread = answer.marginals, answer.spread
    return Estimate(
        levels=table.levels,
        log_gammas=table.log_gammas,
        sweeps=table.sweeps,
        ranks=table.ranks,
        statuses=table.statuses,
        planned_levels=table.planned_levels,
        planned_trials=table.planned_trials,
        n=meta.n,
        marginals=marginals,
        marginal_spread=spread,
        pairs=np.zeros((0, 2), dtype=np.int64),
        pair_marginals=np.zeros((0, 2, 2)),
        pair_spread=np.zeros(0),
        strongly_universal=bool(meta.description["strongly_universal"]),
        lower_proof=_stored_lower(answer),
        seconds=seconds,
        provenance={**meta.versions, **meta.identity},
        named=names_kept(meta.description, marginals) if len(marginals) else None,
    )


def _stored_lower(answer: Answer | None) -> Bound:
    """The best coset as it was judged at the end of a session; here the model is not at hand."""
    if answer is None:
        return UNJUDGED
    why = "a coset's partition function is part of Z"
    return replace(UNJUDGED, log_z=float(answer.record["lower"]), why=why)
