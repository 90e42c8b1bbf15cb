"""Trials in batches on the device: what `tightz.paper.batches.run_batches` does, by the thousand.

Positions are taken in chunks that fill the device. Only tables of bounds and one vector of
averages per batch come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tightz.families.projection import Status
from tightz.paper.gpu.chunk import Chunk
from tightz.paper.gpu.model import DeviceModel
from tightz.paper.trials import (
    LOG_2,
    STATUSES,
    Position,
    TrialBatch,
    TrialPlan,
    WeightedMoments,
    run_batch,
)
from tightz.runtime.gpu.device import cuda, free_bytes

MOST_BYTES = 16 * 2**30
"""Device memory that a chunk may take, where that much is free."""

MOST_PROJECTIONS = 2**16
"""Projections in a chunk: enough to fill the device many times over."""

CONVERGED, NOT_CONVERGED, INFEASIBLE = (
    STATUSES.index(s) for s in (Status.CONVERGED, Status.NOT_CONVERGED, Status.INFEASIBLE)
)


def run_batches_cuda(
    plan: TrialPlan, positions: Iterable[Position], *, batch: int, fall_back: bool = False
) -> Iterator[TrialBatch]:
    """All the positions' trials in batches of `batch`, in the order of the positions.

    The draws are those of the CPU, trial by trial; bounds agree with it but for float32's effect on
    the path of an ascent. A batch with more long terms than the largest kernel holds is run on the
    CPU with `fall_back`, refused without.
    """
    model = DeviceModel.build(plan)
    for levels, trials in _chunks(model, positions, batch):
        if fall_back and not model.holds(int(levels.max())):
            places = list(zip(levels.tolist(), trials.tolist(), strict=True))
            yield from (
                run_batch(plan, places[i : i + batch]) for i in range(0, len(places), batch)
            )
        else:
            chunk = Chunk(model, levels, trials)
            chunk.run()
            yield from batches_of(chunk, batch)


def _chunks(
    model: DeviceModel, positions: Iterable[Position], batch: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Levels and trials of whole batches, as many as fit the device."""
    budget = min(MOST_BYTES, free_bytes() // 2)
    source = iter(positions)
    pending: list[NDArray[np.int64]] = []
    used = held = 0
    while part := list(islice(source, batch)):
        places = np.array(part, dtype=np.int64)
        # Whole batches only: averages over a batch must not depend on how chunks were cut.
        cost = int(model.bytes_by_level[places[:, 0]].sum())
        if pending and (used + cost > budget or held + len(places) > MOST_PROJECTIONS):
            yield _columns(pending)
            pending, used, held = [], 0, 0
        pending.append(places)
        used, held = used + cost, held + len(places)
    if pending:
        yield _columns(pending)


def _columns(parts: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    levels, trials = np.concatenate(parts).T.copy()
    return levels, trials


def batches_of(chunk: Chunk, batch: int) -> Iterator[TrialBatch]:
    """The outcomes of a chunk that has run, `batch` at a time."""
    model, levels, trials = chunk.model, chunk.levels, chunk.trials
    log_weights = cuda.to_device(chunk.log_gammas.max(axis=1) + levels * LOG_2)
    spins = chunk.moments(model.singles, log_weights, batch)
    pairs = chunk.moments(model.wanted, log_weights, batch)
    sweeps = chunk.sweeps.sum(axis=1, dtype=np.int64)
    statuses = _statuses(chunk, model.family.tol)
    for number, first in enumerate(range(0, len(levels), batch)):
        part = slice(first, first + batch)
        yield TrialBatch(
            levels=levels[part],
            trials=trials[part],
            log_gammas=chunk.log_gammas[part],
            ranks=chunk.ranks[part].astype(np.int64),
            sweeps=sweeps[part],
            statuses=statuses[part],
            spins=WeightedMoments.from_array(spins[number]),
            pairs=WeightedMoments.from_array(pairs[number]),
        )


def _statuses(chunk: Chunk, tol: float) -> NDArray[np.int8]:
    # As on the CPU: a trial has converged when its slowest restart has.
    converged = chunk.gains.max(axis=1) <= np.float32(tol)
    codes = np.where(converged, CONVERGED, NOT_CONVERGED)
    return np.where(chunk.feasible, codes, INFEASIBLE).astype(np.int8)
