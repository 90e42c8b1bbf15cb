"""A run store as report data, finished, interrupted or still running."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz.reports.data import LevelTable, ReportData, as_marginals
from tightz.reports.results import best_certified, from_estimate, from_theorem

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph
    from tightz.runtime.store import RunMeta, RunReader

DELTA = 0.05
"""For a run that does not say which confidence it wants."""

Shape = tuple[int, int] | None


def from_store(path: Path, *, model: FactorGraph | None = None, shape: Shape = None) -> ReportData:
    """What the store holds at this moment; reading does not disturb a run that goes on."""
    from tightz.runtime.store import RunReader

    with RunReader(path) as reader:
        meta = reader.meta()
        told = meta.shape
        if shape is None and told is not None and len(told) == 2:
            shape = told[0], told[1]
        if meta.levels:
            data = _table(path, reader, meta, model, shape)
        else:
            data = _stream(reader, model, shape)
        sessions = reader.sessions()
        state = sessions[-1].state if sessions else "finished"
        return replace(
            data,
            method=meta.kind,
            notes=[*reader.notes(), *_unfinished(state)],
            interrupted=state == "interrupted",
            seconds=reader.seconds(),
            provenance=_provenance(meta, reader),
        )


def _unfinished(state: str) -> list[str]:
    if state in ("finished", "interrupted"):
        return []
    return [f"the last session has no end in order ({state}); the page shows what is stored"]


def _stream(reader: RunReader, model: FactorGraph | None, shape: Shape) -> ReportData:
    """A log_partition run: its bounds, and what its latest session concluded."""
    bounds, answer = reader.bounds(), reader.answer()
    told: dict[str, Any] = {} if answer is None else answer.record
    estimate = float(told.get("estimate", math.nan))
    error = float(told.get("estimate_error", math.nan))
    marginals = None if answer is None else answer.marginals
    return ReportData(
        title="",
        method="",
        bounds=bounds,
        certified=best_certified(bounds),
        estimate=estimate if math.isfinite(error) and not math.isnan(estimate) else None,
        estimate_error=error,
        estimate_source=str(told.get("estimate_source", "")),
        marginals=as_marginals(
            marginals, str(told.get("marginal_source", "")), model=model, shape=shape
        ),
    )


def _table(
    path: Path, reader: RunReader, meta: RunMeta, model: FactorGraph | None, shape: Shape
) -> ReportData:
    """A run of trials: its table, cut to whole repetitions, and what follows from it."""
    from tightz.paper.stored import read_estimate
    from tightz.paper.theorem_run import statements

    planned = len(meta.levels), meta.trials
    if reader.progress()[0] == 0:
        empty = np.full((len(meta.levels), 1), np.nan)
        table = LevelTable(np.array(meta.levels), empty, planned=math.prod(planned))
        return ReportData(title="", method="", bounds=(), table=table)
    made = read_estimate(path)
    delta = float({**meta.parameters, **meta.detail}.get("delta", DELTA))
    if meta.kind == "theorem":
        return from_theorem(statements(made, delta, planned), model=model, shape=shape)
    data = from_estimate(made, delta=delta, model=model, shape=shape)
    assert data.table is not None
    return replace(data, table=replace(data.table, planned=math.prod(planned)))


def _provenance(meta: RunMeta, reader: RunReader) -> dict[str, Any]:
    out: dict[str, Any] = {
        "model_sha256": meta.model_sha256,
        "seed": meta.seed,
        "parameters": meta.parameters,
        "versions": meta.versions,
        "created": meta.created,
    }
    for session in reader.sessions():
        ended = session.ended or "no end recorded"
        text = f"{session.started} to {ended}, {session.state}, {session.seconds:.2f} s in all"
        out[f"session {session.session}"] = f"{text}; {session.options}"
    if meta.detail:
        out["detail"] = meta.detail
    return out
