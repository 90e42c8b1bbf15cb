"""Files as report data: a run store, or the record that a command prints with --json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ModelError
from tightz.models.ends import Ends
from tightz.models.names import names_kept
from tightz.reports.data import LevelTable, ReportData, as_marginals
from tightz.reports.results import (
    best_confident,
    from_estimate,
    from_theorem,
    joint_confidence,
)
from tightz.reports.words import describe

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
    if not isinstance(record, dict) or "command" not in record:
        raise ModelError(
            f"{path} has no field 'command'; expected the record of a tightz command with --json"
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
            f"the record of '{record.get('command')}' is not as this version writes it "
            f"({type(error).__name__} {error}); run the command again with --json"
        ) from error
    if not data.bounds and (data.estimate, data.table, data.marginals) == (None, None, None):
        raise ModelError(
            f"the record of '{record.get('command')}' holds no bound, estimate, table or "
            "marginals; expected one of logz, mfrp, theorem, mean-field, exact, upper, ais, wish "
            "or marginals"
        )
    return data


def _from_record(record: Mapping[str, Any], model: FactorGraph | None, shape: Shape) -> ReportData:
    bounds = [_bound(entry) for entry in record.get("bounds", ())] or _single(record)
    levels = record.get("levels")
    estimate = _number(record, "estimate")
    error = _number(record, "estimate_error", _number(record, "standard_error"))
    if "estimate_error" in record and not math.isfinite(error):
        estimate = math.nan  # logz says the lower end where it reached no estimate
    told = record.get("marginals") or ()
    confident = record.get("confident", {})
    ends = _pair_of(
        *(_listed(one.get("marginal_bounds")) for one in (record, confident))
    )  # fmt: skip
    names = None
    if isinstance(told, Mapping):  # by names
        states = [tuple(row) for row in told.values()]
        told = [list(row.values()) for row in told.values()]
        names = names_kept({"names": tuple(record["marginals"]), "states": states}, told)
    marginals = as_marginals(
        [[float(p) for p in row] for row in told],
        str(record.get("marginal_source", record.get("method", ""))),
        model=model,
        shape=shape,
        names=names,
        ends=ends,
        confidence=_number(confident, "confidence"),
    )
    table = None
    if levels and "log_gammas" in record:
        m = np.array([int(level["m"]) for level in levels])
        gammas = np.array(
            [[[float(g) for g in trial] for trial in row] for row in record["log_gammas"]]
        )
        table = LevelTable(m, gammas.max(axis=2) + LOG_2 * m[:, None])
    return ReportData(
        title="",
        method=str(record["command"]),
        bounds=bounds,
        confident_lower=best_confident(bounds, Side.LOWER),
        confident_upper=best_confident(bounds, Side.UPPER),
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


def _listed(told: Any) -> Ends | None:
    """Ends of marginals as a record has them, by names or in rows."""
    if not told:
        return None
    rows = told.values() if isinstance(told, Mapping) else told
    return [
        np.array(list(row.values()) if isinstance(row, Mapping) else row, dtype=np.float64)
        for row in rows
    ]


def _pair_of(always: Ends | None, confident: Ends | None) -> tuple[Ends, Ends] | None:
    return None if always is None or confident is None else (always, confident)


def _number(record: Mapping[str, Any], key: str, default: float = math.nan) -> float:
    value = record.get(key)
    return default if value is None else float(value)


def _bound(entry: Mapping[str, Any]) -> Bound:
    """The inverse of the command line's record of a bound."""
    return Bound(
        side=Side(entry["side"]),
        log_z=float(entry["log_z"]),
        proof=Proof[entry["proof"]],
        method=str(entry["method"]),
        seconds=float(entry["seconds"]),
        confidence=entry["confidence"],
        why=str(entry["why"]),
    )


def _single(record: Mapping[str, Any]) -> list[Bound]:
    """Bounds of a record that has no list of them."""
    command, seconds = str(record["command"]), _number(record, "seconds", 0.0)
    sure = Proof.DETERMINISTIC
    out = []
    if command == "exact":
        why = f"variable elimination of width {record['width']}"
        out.append(Bound(Side.BOTH, float(record["log_z"]), sure, "exact", seconds, 1.0, why))
    if command == "wish":
        confidence = float(record["confidence"])
        for side, value in zip((Side.LOWER, Side.UPPER), record["band"], strict=True):
            out.append(
                Bound(side, float(value), Proof.CONFIDENCE, "WISH (band)", seconds, confidence)
            )
        return out
    for side, key in ((Side.LOWER, "lower"), (Side.UPPER, "upper")):
        if isinstance(record.get(key), Mapping):
            out.append(_bound(record[key]))
        elif key in record:
            why = str(record.get(f"{key}_proof", record.get("proof", "")))
            out.append(Bound(side, float(record[key]), sure, command, seconds, 1.0, why))
    if "certificate" in record:
        told = record["certificate"]
        if "log_z" in told:
            return [*out, _bound(told)]
        out.append(
            Bound(
                Side.LOWER, float(told["lower"]), Proof.CONFIDENCE, command, seconds,
                float(told["confidence"]), "computed from independent draws",
            )
        )  # fmt: skip
    return out
