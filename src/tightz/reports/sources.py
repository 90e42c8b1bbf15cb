"""Files as report data: a run store, or the record that a command prints with --json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ModelError
from tightz.models.ends import Ends
from tightz.models.names import Names, names_kept
from tightz.reports.data import LevelTable, ReportData, as_marginals
from tightz.reports.results import (
    best_confident,
    from_estimate,
    from_theorem,
    joint_confidence,
)
from tightz.reports.words import describe
from tightz.shown import from_json

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
        confident_lower=best_confident(bounds, Side.LOWER),
        confident_upper=best_confident(bounds, Side.UPPER),
        together=joint_confidence(bounds),
        estimate=estimate if math.isfinite(error) and not math.isnan(estimate) else None,
        estimate_error=error,
        estimate_source=str(told.get("estimate_source", "")),
        marginals=as_marginals(
            marginals,
            str(told.get("marginal_source", "")),
            model=model,
            shape=shape,
            names=None if marginals is None else names_kept(reader.meta().description, marginals),
            ends=None if answer is None else _pair_of(answer.always, answer.confident),
            confidence=_number(told.get("confident", {}), "confidence"),
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


SQLITE = b"SQLite format 3\x00"
LOG_2 = math.log(2.0)


def from_file(path: Path, *, model: FactorGraph | None = None, shape: Shape = None) -> ReportData:
    """A run store or a JSON record, told apart by the first bytes."""
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; expected a run store or a JSON record") from None
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); expected a run store or a JSON record"
        ) from error
    if start == SQLITE:
        data = from_store(path, model=model, shape=shape)
    else:
        data = from_record(_record(path), model=model, shape=shape)
    if model is not None:
        return replace(data, title=model.name or path.name, model=describe(model))
    return data if data.title else replace(data, title=path.name)


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(
            f"{path} is neither a run store nor a JSON record ({error}); make one with "
            "`tightz logz MODEL --store run.db` or `tightz logz MODEL --json > run.json`"
        ) from None
    if not isinstance(record, dict) or not {"command", "result"} & record.keys():
        raise ModelError(
            f"{path} has no field 'command' or 'result'; expected the record of a tightz command "
            "with --json, or what to_json() of a result wrote"
        )
    return record


def from_record(
    record: Mapping[str, Any], *, model: FactorGraph | None = None, shape: Shape = None
) -> ReportData:
    """The JSON record of logz, mfrp or another command."""
    try:
        data = _from_record(record, model, shape)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"the record of '{_made_by(record)}' is not as this version writes it "
            f"({type(error).__name__} {error}); run the command again with --json"
        ) from error
    if not data.bounds and (data.estimate, data.table, data.marginals) == (None, None, None):
        raise ModelError(
            f"the record of '{_made_by(record)}' holds no bound, estimate, table or "
            "marginals; expected one of logz, mfrp, theorem, mean-field, exact, upper, ais, wish "
            "or marginals"
        )
    return data


def _from_record(record: Mapping[str, Any], model: FactorGraph | None, shape: Shape) -> ReportData:
    bounds = _bounds(record)
    said = [bound for bound in bounds if bound.side is not Side.ESTIMATE]
    estimate, error = _estimate(record, closed=any(bound.side is Side.BOTH for bound in said))
    confident = record.get("confident") or {}
    always, likely = _rows(record, "marginal_bounds"), _rows(confident, "marginal_bounds")
    marginals = as_marginals(
        _rows(record, "marginals") or (),
        str(record.get("marginal_source", record.get("method", ""))),
        model=model,
        shape=shape,
        names=_names(record.get("marginals") or {}),
        ends=_pair_of(always, likely),
        confidence=_number(confident, "confidence"),
    )
    table = None
    if "log_gammas" in record:
        m = np.array(record["levels"], dtype=np.int64)
        gammas = np.array(from_json(record, "log_gammas"), dtype=np.float64)
        table = LevelTable(m, gammas.max(axis=2) + LOG_2 * m[:, None])
    return ReportData(
        title="",
        method=_made_by(record),
        bounds=said,
        confident_lower=best_confident(said, Side.LOWER),
        confident_upper=best_confident(said, Side.UPPER),
        together=_number(confident, "confidence"),
        estimate=None if math.isnan(estimate) else estimate,
        estimate_error=error,
        estimate_source=str(record.get("estimate_source", "")),
        table=table,
        marginals=marginals,
        notes=[str(note) for note in record.get("notes", ())],
        interrupted=bool(record.get("interrupted", False)),
        seconds=_number(record, "seconds"),
        provenance=record.get("provenance") or {},
    )


def _made_by(record: Mapping[str, Any]) -> str:
    return str(record.get("command", record.get("result")))


def _bounds(record: Mapping[str, Any]) -> list[Bound]:
    """Those of a record; of several certificates the one that the command printed."""
    bounds = [_bound(entry) for entry in record.get("bounds", ())]
    chosen = record.get("band") or [record[name] for name in ("certificate",) if name in record]
    if not chosen:
        return bounds
    sure = [bound for bound in bounds if bound.proof is not Proof.CONFIDENCE]
    return [*sure, *map(_bound, chosen)]


def _estimate(record: Mapping[str, Any], *, closed: bool) -> tuple[float, float]:
    """The value that is not proven, and its error; NaN where there is none."""
    if "estimate_error" in record:  # where it is inf the value is an end
        error = _number(record, "estimate_error")
        return (_number(record, "estimate") if math.isfinite(error) else math.nan), error
    value = math.nan if closed else _number(record, "log_z")
    return value, _number(record, "standard_error")


def _rows(record: Mapping[str, Any], key: str) -> list[NDArray[np.float64]] | None:
    """A vector, or the ends, of each variable; None where the record has none."""
    if not record.get(key):
        return None
    told = from_json(record, key).values()
    return [np.array(list(row.values()), dtype=np.float64) for row in told]


def _names(told: Mapping[str, Mapping[str, Any]]) -> Names | None:
    """What the variables of a record's marginals are called; None where they have numbers."""
    names, states = tuple(told), [tuple(row) for row in told.values()]
    if _numbers(names) and all(map(_numbers, states)):
        return None
    return names_kept({"names": names, "states": states}, states)


def _numbers(labels: tuple[str, ...]) -> bool:
    return labels == tuple(map(str, range(len(labels))))


def _pair_of(always: Ends | None, confident: Ends | None) -> tuple[Ends, Ends] | None:
    return None if always is None or confident is None else (always, confident)


def _number(record: Mapping[str, Any], key: str, default: float = math.nan) -> float:
    """A number; NaN, or `default`, where there is none."""
    value = from_json(record, key) if key in record else None
    return default if value is None else float(value)


def _bound(entry: Mapping[str, Any]) -> Bound:
    """The inverse of a bound's record."""
    return Bound(
        side=Side[entry["side"]],
        log_z=_number(entry, "log_z"),
        proof=Proof[entry["proof"]],
        method=str(entry["method"]),
        seconds=float(entry["seconds"]),
        confidence=entry["confidence"],
        why=str(entry["why"]),
        rounding=float(entry["rounding"]),
    )
