"""Reading a run store, also while the run goes on and from a damaged file."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound
from tightz.errors import StoreError
from tightz.runtime.store.records import (
    Answer,
    BatchRow,
    RunMeta,
    Session,
    TrialColumns,
    bound_from_text,
    text_checksum,
)
from tightz.runtime.store.schema import (
    TABLES,
    TEXT_TABLES,
    UNREADABLE,
    check_header,
    connect,
    exists,
    is_damage,
    translated,
)

CHUNK = 1 << 14
"""Rows fetched at a time, so that reading a long table does not double its memory."""

Ends = list[NDArray[np.float64]]


class RunReader:
    """A run store opened for reading; each call sees what is committed at that moment."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not exists(self.path):
            raise StoreError(
                f"{self.path}: there is no run store here; expected a file that --store (store=) "
                "wrote"
            )
        check_header(self.path)
        with translated(self.path):
            self._connection = connect(self.path, write=False)
        self._meta: RunMeta | None = None

    def meta(self) -> RunMeta:
        """What the run is about, as its first session wrote it."""
        if self._meta is None:
            with translated(self.path):
                self._meta = read_meta(self._connection)
        if self._meta is None:
            self.close()
            raise StoreError(
                f"{self.path} is damaged where it says which run it holds, so no row can be "
                "trusted; start a new run at another path"
            )
        return self._meta

    def progress(self) -> tuple[int, int]:
        """(done, total) trials; total is 0 where the run is not made of trials."""
        meta = self.meta()
        (last,) = self._rows("SELECT count(*), max(batch) FROM batches")
        total = len(meta.levels) * meta.trials
        # All batches are full but the last of the run.
        done = last[0] * meta.batch
        if last[0] and last[1] == (total - 1) // meta.batch:
            done -= -total % meta.batch
        return done, total

    def trials(self) -> TrialColumns:
        """Every trial, in the order of the run's positions."""
        meta = self.meta()
        with translated(self.path):
            try:
                found = read_columns(self._connection, "", (), meta.restarts)
            except (ValueError, TypeError):
                found = None
        if (
            found is None
            or not np.isin(found.levels, meta.levels).all()
            or ((found.trials < 0) | (found.trials >= meta.trials)).any()
        ):
            raise StoreError(
                f"{self.path}: a trial is not intact; run again with --resume (resume=True) to "
                "compute it"
            )
        return found

    def table(self) -> NDArray[np.float64]:
        """(L, T, J) log gammas; NaN where a trial has not been computed."""
        meta = self.meta()
        out = np.full((len(meta.levels), meta.trials, meta.restarts), np.nan)
        row = {level: i for i, level in enumerate(meta.levels)}
        done = self.trials()
        out[[row[m] for m in done.levels.tolist()], done.trials] = done.log_gammas
        return out

    def batch(self, batch: int) -> BatchRow:
        """One batch as it was committed; refused where it is damaged."""
        with translated(self.path):
            found = read_batch(self._connection, self.meta(), batch)
        if found is None:
            raise StoreError(
                f"{self.path}: batch {batch} is not stored, or not intact; run again with --resume "
                "(resume=True) to compute it"
            )
        return found

    def stored_batches(self) -> list[int]:
        """Numbers of the batches that are there."""
        return [b for (b,) in self._rows("SELECT batch FROM batches ORDER BY batch")]

    def moments(self) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
        """(batch, spin moments, pair moments), packed as by `WeightedMoments.to_array`."""
        for batch in self.stored_batches():
            found = self.batch(batch)
            yield batch, found.spins, found.pairs

    def bounds(self) -> list[Bound]:
        """Every bound in order of arrival; seconds count on through the sessions."""
        return [bound_from_text(record) for _, _, record in self._intact("bounds")]

    def answer(self) -> Answer | None:
        """What the latest session that ended in order concluded."""
        found = self._intact("answers")
        if not found:
            return None
        _, _, seconds, record, marginals, spread, ends = found[-1]
        told = json.loads(record)
        states = told.get("cardinalities", [])
        always, confident = _ends(ends, states)
        return Answer(
            record=told,
            marginals=_split(marginals, states),
            always=always,
            confident=confident,
            spread=None if spread is None else np.frombuffer(spread),
            seconds=seconds,
        )

    def accounts(self) -> dict[int, tuple[dict[str, Any], NDArray[np.float64]]]:
        """The certificate's accounts as last written: numbers by name, and (2, k) points."""
        return {
            account: (json.loads(record), np.frombuffer(points).reshape(2, -1).copy())
            for account, _, record, points in self._intact("accounts")
        }

    def marginals(self) -> list[NDArray[np.float64]] | None:
        """One probability vector per variable, from the latest answer that has any."""
        answer = self.answer()
        return None if answer is None else answer.marginals

    def sessions(self) -> list[Session]:
        """The processes that worked on this run, in order."""
        ends = {session: rest for session, *rest in self._intact("ends")}
        out = []
        for session, started, record in self._intact("sessions"):
            told = json.loads(record)
            ended, seconds, state = ends.get(session, ("", 0.0, "killed or still running"))
            out.append(
                Session(session, started, ended, state, seconds, told["versions"], told["options"])
            )
        return out

    def notes(self) -> list[str]:
        """Remarks of the sessions, in order."""
        return [text for _, _, text in self._intact("notes")]

    def seconds(self) -> float:
        """Time worked so far, all sessions together; a killed one counts to its last record."""
        # A killed session has no end record: its last batch or bound says how far it came.
        ended = [seconds for _, _, seconds, _ in self._intact("ends")]
        worked = self._rows("SELECT seconds FROM batches ORDER BY batch DESC LIMIT 1")
        last = [bound_from_text(record).seconds for _, _, record in self._intact("bounds")[-1:]]
        numbers = (s for (s,) in worked if isinstance(s, float) and math.isfinite(s))
        return max([0.0, *ended, *last, *numbers])

    def verify(self) -> list[str]:
        """Structure of the file, checksum of every row, positions of every trial: what is wrong."""
        try:
            # First the file as SQLite sees it, then every row against its own checksum, then
            # batches against their trials.
            found = self._connection.execute("PRAGMA integrity_check(20)").fetchall()
            problems = [f"file structure: {line}" for (line,) in found if line != "ok"]
            for table in TEXT_TABLES:
                for row in self._connection.execute(f"SELECT * FROM {table}"):
                    if not is_intact(table, row):
                        problems.append(f"{table} {row[0]}: checksum does not match")
            problems += self._verify_batches()
        except (*UNREADABLE, StoreError) as error:
            return [f"file structure: {error}"]
        return problems

    def _verify_batches(self) -> list[str]:
        meta, stored = self.meta(), self.stored_batches()
        problems = [
            f"batch {batch}: checksum or positions do not match"
            for batch in stored
            if read_batch(self._connection, meta, batch) is None
        ]
        owned = {batch for (batch,) in self._rows("SELECT DISTINCT batch FROM trials")}
        lost = sorted(owned - set(stored), key=repr)  # a damaged number may be of any type
        return problems + [f"batch {batch}: trials without their batch record" for batch in lost]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with translated(self.path):
            return self._connection.execute(query).fetchall()

    def _intact(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a table in order, without their checksums; not those that are damaged."""
        found = self._rows(f"SELECT * FROM {table} ORDER BY 1")
        return [row[:-1] for row in found if is_intact(table, row)]

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RunReader({str(self.path)!r})"


def read_meta(connection: sqlite3.Connection) -> RunMeta | None:
    """The first intact session record; each holds the whole description of the run."""
    try:
        for row in connection.execute("SELECT * FROM sessions"):
            if is_intact("sessions", row):
                _, started, record, _ = row
                told = json.loads(record)
                return RunMeta(told["identity"], told["description"], told["versions"], started)
    except UNREADABLE as error:
        if not is_damage(error):
            raise
    return None


def is_intact(table: str, row: Sequence[Any]) -> bool:
    """Whether a row of a text table has its columns and is what its checksum was made of."""
    return len(row) == len(TABLES[table].split(",")) and text_checksum(*row[:-1]) == row[-1]


def read_columns(
    connection: sqlite3.Connection, where: str, arguments: tuple[int, ...], restarts: int
) -> TrialColumns:
    """Trials as arrays, in the order of the run's positions."""
    cursor = connection.execute(
        "SELECT level, trial, rank, sweeps, status, log_gammas FROM trials "
        f"{where} ORDER BY batch, place",
        arguments,
    )
    numbers: list[NDArray[np.int64]] = [np.zeros((0, 5), dtype=np.int64)]
    values: list[NDArray[np.float64]] = [np.zeros((0, restarts))]
    while rows := cursor.fetchmany(CHUNK):
        numbers.append(np.array([row[:5] for row in rows], dtype=np.int64))
        packed = b"".join([row[5] for row in rows])
        values.append(np.frombuffer(packed).reshape(len(rows), restarts))
    level, trial, rank, sweeps, status = np.concatenate(numbers).T.copy()
    return TrialColumns(level, trial, rank, sweeps, status, np.concatenate(values))


def read_batch(connection: sqlite3.Connection, meta: RunMeta, batch: int) -> BatchRow | None:
    """Batch number `batch` with its trials; None where it is absent or not intact."""
    found = connection.execute("SELECT * FROM batches WHERE batch = ?", (batch,)).fetchone()
    if found is None:
        return None
    try:
        _, session, seconds, spins, pairs, crc = found
        columns = read_columns(connection, "WHERE batch = ?", (batch,), meta.restarts)
        row = BatchRow(columns, np.frombuffer(spins), np.frombuffer(pairs))
    except (ValueError, TypeError, OverflowError):
        return None
    levels, trials = positions(meta, batch)
    placed = np.array_equal(columns.levels, levels) and np.array_equal(columns.trials, trials)
    return row if placed and row.checksum(batch, session, seconds) == crc else None


def positions(meta: RunMeta, batch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(levels, trials) of a batch: repetition by repetition, each sweeping the levels."""
    levels = np.array(meta.levels, dtype=np.int64)
    total = levels.size * meta.trials
    place = np.arange(batch * meta.batch, min((batch + 1) * meta.batch, total))
    return levels[place % max(levels.size, 1)], place // max(levels.size, 1)


def _split(packed: bytes | None, cardinalities: list[int]) -> list[NDArray[np.float64]] | None:
    if packed is None:
        return None
    return np.split(np.frombuffer(packed), np.cumsum(cardinalities)[:-1])


def _ends(packed: bytes | None, cardinalities: list[int]) -> tuple[Ends | None, Ends | None]:
    """Those that hold always and those with confidence, as `append_answer` packed them."""
    if packed is None:
        return None, None
    cuts = np.cumsum([*cardinalities, *cardinalities])[:-1]
    parts = np.split(np.frombuffer(packed).reshape(-1, 2), cuts) if cardinalities else []
    return parts[: len(cardinalities)], parts[len(cardinalities) :]
