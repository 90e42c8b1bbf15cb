"""Writing a run store: every append is one transaction; only counters are ever replaced."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound
from tightz.errors import LostStoreError, StoreError
from tightz.runtime.store.reader import RunReader, read_batch
from tightz.runtime.store.records import (
    BatchRow,
    RunMeta,
    bound_to_text,
    canonical,
    computed_by,
    plain,
    text_checksum,
)
from tightz.runtime.store.salvage import salvage
from tightz.runtime.store.schema import (
    NUMBERED,
    check_header,
    connect,
    create_tables,
    exists,
    translated,
)

GROUP_SECONDS = 0.2
"""Batches that come faster than this share a transaction; a kill costs no more work than this."""


@dataclass(frozen=True)
class RunStore:
    """Where a run is kept, and what the caller wants written down beside it.

    path     the SQLite file; a new run needs a path that does not exist
    kind     what to call the run; None leaves it to the function that runs
    shape    rows and columns of a grid or an image, for reports
    detail   anything else worth keeping, as JSON values
    """

    path: str | Path
    kind: str | None = None
    shape: Sequence[int] | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def check(self, resume: bool, identity: dict[str, Any] | None = None) -> RunMeta | None:
        """Refuse a path that cannot serve, before any work; the run stored there, if any.

        With an `identity`, a stored run of another one is refused too.
        """
        path = Path(self.path)
        if not exists(path):
            return None
        check_header(path)
        if not resume:
            raise StoreError(
                f"{path} already holds a run; continue it with --resume (resume=True), or give "
                "another path"
            )
        with RunReader(path) as reader:
            meta = reader.meta()
        if identity is not None:
            _refuse_difference(path, meta.identity, plain(self._named(identity)))
        return meta

    def open(
        self,
        identity: dict[str, Any],
        description: dict[str, Any],
        *,
        resume: bool = False,
        options: dict[str, Any] | None = None,
    ) -> RunWriter:
        """Start the run, or a further session of it.

        `identity` (kind, model_sha256, seed, parameters) must be the stored one on resume;
        `description` is for readers; `options` (threads, limits) belong to this session only.
        With `resume` and no file yet, the run starts. A damaged file is replaced by its intact
        part and kept beside it under another name.
        """
        path, identity = Path(self.path), self._named(identity)
        meta = self.check(resume, identity)
        if meta is None:
            shape = self.shape if self.shape is not None else description.get("shape")
            described = {**description, "shape": shape, "detail": self.detail}
            with translated(path):
                _create(path, _record(identity, described, options))
            return RunWriter(path, session=1)
        # Every row carries a checksum. What is damaged is left behind, counted and computed again.
        with RunReader(path) as reader:
            problems = reader.verify()
        lost: list[str] = []
        if problems:
            with translated(path):
                lost = salvage(path)
        writer = RunWriter(path, lost=lost)
        writer.begin(_record(meta.identity, meta.description, options))
        return writer

    def _named(self, identity: dict[str, Any]) -> dict[str, Any]:
        return {**identity, "kind": self.kind or identity["kind"]}


class RunWriter:
    """One session's connection to its run; use it as a context manager.

    session  its number, from 1
    meta     what the run is about, as the first session wrote it
    before   seconds that earlier sessions worked
    stored   numbers of the batches that were there when this session began
    lost     what damage took away, in words; empty for a sound file
    """

    def __init__(self, path: Path, *, session: int = 0, lost: Sequence[str] = ()) -> None:
        self.path, self.lost, self.session = path, tuple(lost), session
        with RunReader(path) as reader:
            self.meta, self.before = reader.meta(), reader.seconds()
            self.stored = frozenset(reader.stored_batches())
        self._start = self._committed = time.perf_counter()
        self._ended = False
        with translated(path), _closed_on_error(connect(path, write=True)) as self._connection:
            # readers never wait for a write-ahead log, nor it for them; where the file system has
            # no shared memory SQLite stays with its rollback journal, which is as atomic
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def begin(self, record: str) -> None:
        """Open a further session; an older process that still writes is shut out by it."""
        with _closed_on_error(self._connection), self._transaction():
            # Rows may outlive the record of their session where a file was damaged. A number never
            # comes twice: its random streams would, beside the draws of them that are stored.
            every = " UNION ALL ".join(f"SELECT session FROM {table}" for table in NUMBERED)
            (last,) = self._connection.execute(f"SELECT max(session) FROM ({every})").fetchone()
            self.session = last + 1
            row = (self.session, _now(), record)
            self._insert("sessions", *row, text_checksum(*row))
        for text in self.lost:
            self.append_note(text)

    @property
    def seconds(self) -> float:
        """Time worked on the run, earlier sessions included."""
        return self.before + time.perf_counter() - self._start

    def batch(self, batch: int) -> BatchRow:
        """A batch that an earlier session stored."""
        with translated(self.path):
            found = read_batch(self._connection, self.meta, batch)
        if found is None:
            raise StoreError(
                f"{self.path}: batch {batch} changed while it was in use; see that nothing else "
                "writes there, then run again with --resume (resume=True)"
            )
        return found

    def append_batch(self, batch: int, row: BatchRow) -> None:
        """Store a batch: its trials, moments and checksum, all or nothing.

        It is committed at once, or with the next one where they come faster than GROUP_SECONDS.
        """
        c, seconds = row.columns, self.seconds
        numbers = (c.levels, c.trials, c.ranks, c.sweeps, c.statuses)
        lists = [np.asarray(column, dtype=np.int64).tolist() for column in numbers]
        values = np.ascontiguousarray(c.log_gammas, dtype=np.float64)
        blobs = [one.tobytes() for one in values]
        trials = zip([batch] * len(c), range(len(c)), *lists, blobs, strict=True)
        spins, pairs = row.spins.tobytes(), row.pairs.tobytes()
        # Over all numbers of the batch: a torn write cannot pass for a result.
        crc = row.checksum(batch, self.session, seconds)
        with self._transaction(group=True):
            self._connection.executemany("INSERT INTO trials VALUES (?,?,?,?,?,?,?,?)", trials)
            self._insert("batches", batch, self.session, seconds, spins, pairs, crc)

    def append_bound(self, bound: Bound) -> None:
        """Commit a bound; its seconds are those of the whole run."""
        self._append("bounds", bound_to_text(bound))

    def write_accounts(
        self, records: Mapping[int, tuple[dict[str, Any], NDArray[np.float64]]]
    ) -> None:
        """Commit the certificate's accounts with these numbers (from 1), all or none of them.

        Each replaces what was stored under its number: the only rows that change.
        """
        with self._transaction():
            for number, (told, points) in records.items():
                packed = np.ascontiguousarray(points, dtype=np.float64).tobytes()
                row = (number, self.session, canonical(told), packed)
                self._connection.execute(
                    "INSERT OR REPLACE INTO accounts VALUES (?,?,?,?,?)",
                    (*row, text_checksum(*row)),
                )

    def append_note(self, text: str) -> None:
        """Commit a remark."""
        self._append("notes", text)

    def append_answer(
        self,
        record: dict[str, Any],
        marginals: Sequence[NDArray[np.float64]] | None = None,
        spread: NDArray[np.float64] | None = None,
        ends: Sequence[Sequence[NDArray[np.float64]]] | None = None,
    ) -> None:
        """Commit what this session concluded; marginals as one vector per variable.

        `ends`: those that hold always and those with confidence, one (states, 2) array per variable
        each.
        """
        sized = marginals if ends is None else ends[0]
        told = {**record, "cardinalities": [] if sized is None else [len(p) for p in sized]}
        packed = None if marginals is None else np.concatenate([*marginals, []]).tobytes()
        deviations = None if spread is None else np.asarray(spread, dtype=np.float64).tobytes()
        both = None
        if ends is not None:
            both = np.concatenate([np.zeros((0, 2)), *ends[0], *ends[1]]).tobytes()
        self._append("answers", self.seconds, canonical(told), packed, deviations, both)

    def finish(self, state: str = "finished") -> None:
        """Say how the session ended, and leave one plain file behind where no reader is on it."""
        if self._ended:
            return
        self._ended = True
        row = (self.session, _now(), self.seconds, state)
        try:
            with self._transaction():
                self._insert("ends", *row, text_checksum(*row))
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA busy_timeout = 0")
                # Folds the log back into the file, so that one file can be copied; a reader on it
                # forbids that, and then the log simply stays.
                self._connection.execute("PRAGMA journal_mode = DELETE")
        finally:
            self._connection.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        elif not issubclass(kind, Exception):
            self.finish("interrupted")
        else:
            with suppress(StoreError):  # the first error is the one to tell
                self.finish(f"failed: {error}")

    def _append(self, table: str, *values: object) -> None:
        """The next row of a table whose rows are numbered 1, 2, ... and stand alone."""
        with self._transaction():
            (last,) = self._connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()
            row = ((last or 0) + 1, self.session, *values)
            self._insert(table, *row, text_checksum(*row))

    def _insert(self, table: str, *row: object) -> None:
        marks = ",".join("?" * len(row))
        self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)

    @contextmanager
    def _transaction(self, *, group: bool = False) -> Iterator[None]:
        """Commit what the block writes; with `group` perhaps only together with the next block."""
        with translated(self.path):
            try:
                if not self._connection.in_transaction:
                    self._connection.execute("BEGIN IMMEDIATE")
                    self._check_alone()
                yield
                now = time.perf_counter()
                if not group or now - self._committed >= GROUP_SECONDS:
                    self._connection.execute("COMMIT")
                    self._committed = now
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def _check_alone(self) -> None:
        (last,) = self._connection.execute("SELECT max(session) FROM sessions").fetchone()
        # Sessions fence each other: a resumed run has a larger number, and the older process stops
        # here instead of interleaving its batches.
        if self.session not in (0, last):
            raise LostStoreError(
                f"{self.path}: another process resumed this run, so this one stops writing; let "
                "that one go on, or end it and run again with --resume (resume=True)"
            )

    def __repr__(self) -> str:
        return f"RunWriter({str(self.path)!r}, session {self.session})"


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Let go of the file where the block fails."""
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


def _create(path: Path, record: str) -> None:
    """A complete store with its first session appears at `path` at once, or nothing does."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    connection = sqlite3.connect(new, isolation_level=None)
    try:
        connection.execute("BEGIN")
        create_tables(connection)
        row = (1, _now(), record)
        connection.execute("INSERT INTO sessions VALUES (?,?,?,?)", (*row, text_checksum(*row)))
        connection.execute("COMMIT")
    except sqlite3.Error:
        connection.close()
        new.unlink(missing_ok=True)
        raise
    connection.close()
    # Atomic on one file system: readers see no store or a whole one.
    os.replace(new, path)


def _record(
    identity: dict[str, Any], description: dict[str, Any], options: dict[str, Any] | None
) -> str:
    return canonical(
        {
            "identity": identity,
            "description": description,
            "versions": computed_by(),
            "options": options or {},
        }
    )


def _refuse_difference(path: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    """Name every field in which a run to be resumed differs from the stored one."""
    before, now = _flat(stored), _flat(given)
    changed = [
        f"{name} is {_short(before.get(name))} in the store, {_short(now.get(name))} given"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise StoreError(
            f"{path} holds another run: {'; '.join(changed)}. Give the stored values, or another "
            "path"
        )


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in identity.items() if k != "parameters"}, **identity["parameters"]}


def _short(value: Any, most: int = 80) -> str:
    text = value if isinstance(value, str) else canonical(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
