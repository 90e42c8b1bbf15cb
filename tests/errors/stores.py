"""What run stores say: when opened, read, written, resumed and damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np

import tightz as tz
from tests.errors.table import Case
from tightz.errors import FullDiskError, LostStoreError
from tightz.paper.stored import read_estimate
from tightz.runtime.store import BatchRow, RunReader, RunStore, StoreError, TrialColumns
from tightz.runtime.store.salvage import salvage
from tightz.runtime.store.schema import APPLICATION_ID, translated

IDENTITY = {"kind": "estimate", "model_sha256": "0", "seed": {}, "parameters": {"trials": 2}}
TABLE = {"levels": [0], "trials": 2, "restarts": 1, "batch": 1, "statuses": ["CONVERGED"]}


def _store(tmp, **options):
    """A session of a store that holds no batch yet."""
    return RunStore(tmp / "run.db").open(IDENTITY, TABLE, **options)


def _batch(k):
    zero = np.zeros(1, dtype=np.int64)
    columns = TrialColumns(zero, np.array([k]), zero, zero, zero, np.zeros((1, 1)))
    return BatchRow(columns, np.zeros(2), np.zeros(2))


def _change(path, *commands):
    """What another program may do to the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for command in commands:
            db.execute(command)


def _resume(tmp, **change):
    _store(tmp).finish()
    RunStore(tmp / "run.db").open({**IDENTITY, **change}, TABLE, resume=True)


def _open(tmp, content):
    (tmp / "run.db").write_bytes(content)
    _store(tmp)


def _header(application, version):
    head = bytearray(100)
    head[:16] = b"SQLite format 3\x00"
    head[60:64], head[68:72] = version.to_bytes(4), application.to_bytes(4)
    return bytes(head)


def _without_description(tmp):
    _store(tmp).finish()
    _change(tmp / "run.db", "DROP TRIGGER sessions_update", "UPDATE sessions SET record = '{}'")
    return tmp / "run.db"


def _read_meta(tmp):
    with RunReader(_without_description(tmp)) as reader:
        reader.meta()


def _read_absent_batch(tmp):
    _store(tmp).finish()
    with RunReader(tmp / "run.db") as reader:
        reader.batch(1)


def _changed_trial(tmp):
    with _store(tmp) as first:
        first.append_batch(0, _batch(0))
    _change(tmp / "run.db", "DROP TRIGGER trials_update", "UPDATE trials SET trial = 9")
    with RunReader(tmp / "run.db") as reader:
        reader.trials()


def _changed_batch(tmp):
    with _store(tmp) as first:
        first.append_batch(0, _batch(0))
    with _store(tmp, resume=True) as writer:
        _change(tmp / "run.db", "DROP TRIGGER trials_update", "UPDATE trials SET rank = 1")
        writer.batch(0)


def _resumed_elsewhere(tmp):
    with _store(tmp) as old, _store(tmp, resume=True):
        old.append_note("too late")


def _interval_as_a_table(tmp):
    tz.log_partition(tz.ising_grid(2, seed=0), seed=0, store=tmp / "run.db")
    read_estimate(tmp / "run.db")


def _empty_table(tmp):
    _store(tmp).finish()
    read_estimate(tmp / "run.db")


def _in_the_way(tmp):
    (tmp / "run.db.new").mkdir()
    _store(tmp)


def _full(tmp):
    with _store(tmp) as writer:
        writer._connection.execute("PRAGMA max_page_count = 1")
        writer.append_note("x" * 100_000)


def _busy(tmp):
    with _store(tmp) as writer, closing(sqlite3.connect(tmp / "run.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        writer._connection.execute("PRAGMA busy_timeout = 0")
        try:
            writer.append_note("not now")
        finally:
            other.rollback()


def _twice(tmp):
    with _store(tmp) as writer:
        writer.append_batch(0, _batch(0))
        writer.append_batch(0, _batch(0))


def _table_gone(tmp):
    _store(tmp).finish()
    _change(tmp / "run.db", "DROP TABLE notes")
    with RunReader(tmp / "run.db") as reader:
        reader.notes()


def _sqlite_says(name):
    """An error of SQLite that takes a broken disk or other rights to come by."""

    def act(tmp):
        error = sqlite3.OperationalError("")
        error.sqlite_errorname = name
        with translated(tmp / "run.db"):
            raise error

    return act


OPENED = [
    Case(
        StoreError,
        "TMP: cannot be read (Is a directory); expected the file of a run store: make it "
        "readable, or give another path",
        lambda tmp: RunStore(tmp).open(IDENTITY, TABLE),
    ),
    Case(
        StoreError,
        "TMP/run.db is not a run store (no SQLite header); give --store a path of its own, or, "
        "if this was one, its first page is lost and nothing can be read from it",
        lambda tmp: _open(tmp, b"notes"),
    ),
    Case(
        StoreError,
        "TMP/run.db is another program's SQLite file; give --store a path of its own",
        lambda tmp: _open(tmp, _header(0, 1)),
    ),
    Case(
        StoreError,
        "TMP/run.db has store version 99; this tightz reads 3: upgrade it",
        lambda tmp: _open(tmp, _header(APPLICATION_ID, 99)),
    ),
    Case(
        StoreError,
        "TMP/run.db has store version 1, of an older tightz; this one reads 3: start a new run at "
        "another path",
        lambda tmp: _open(tmp, _header(APPLICATION_ID, 1)),
    ),
    Case(
        StoreError,
        "TMP/run.db/x: cannot be reached (Not a directory); give a path in a folder that is "
        "there and that you may enter",
        lambda tmp: _open(tmp, b"") or RunStore(tmp / "run.db" / "x").check(resume=False),
    ),
    Case(
        StoreError,
        "TMP/run.db already holds a run; continue it with --resume (resume=True), or give "
        "another path",
        lambda tmp: _store(tmp).finish() or _store(tmp),
    ),
    Case(
        StoreError,
        "TMP/run.db holds another run: kind is estimate in the store, theorem given; trials is "
        "2 in the store, 3 given. Give the stored values, or another path",
        lambda tmp: _resume(tmp, kind="theorem", parameters={"trials": 3}),
    ),
]

READ = [
    Case(
        StoreError,
        "TMP/run.db: there is no run store here; expected a file that --store (store=) wrote",
        lambda tmp: RunReader(tmp / "run.db"),
    ),
    Case(
        StoreError,
        "TMP/run.db is damaged where it says which run it holds, so no row can be trusted; "
        "start a new run at another path",
        _read_meta,
    ),
    Case(
        StoreError,
        "TMP/run.db: no record of which run it holds is intact; start a new run at another path",
        lambda tmp: salvage(_without_description(tmp)),
    ),
    Case(
        StoreError,
        "TMP/run.db: a trial is not intact; run again with --resume (resume=True) to compute it",
        _changed_trial,
    ),
    Case(
        StoreError,
        "TMP/run.db: batch 1 is not stored, or not intact; run again with --resume "
        "(resume=True) to compute it",
        _read_absent_batch,
    ),
    Case(
        StoreError,
        "TMP/run.db holds a log_partition run, which has bounds and no table of trials; "
        "expected a run of estimate or theorem. RunReader(path).bounds() reads the bounds",
        _interval_as_a_table,
    ),
    Case(
        StoreError,
        "TMP/run.db holds no trial yet; expected at least one batch. Wait for the run, or go on "
        "with --resume (resume=True)",
        _empty_table,
    ),
]

WRITTEN = [
    Case(
        StoreError,
        "TMP/run.db: batch 0 changed while it was in use; see that nothing else writes there, "
        "then run again with --resume (resume=True)",
        _changed_batch,
    ),
    Case(
        LostStoreError,
        "TMP/run.db: another process resumed this run, so this one stops writing; let that one "
        "go on, or end it and run again with --resume (resume=True)",
        _resumed_elsewhere,
    ),
]

TRANSLATED = [
    Case(
        StoreError,
        "TMP/run.db: cannot be written (TMP/run.db.new: ...); mend that, or give another path",
        _in_the_way,
    ),
    Case(
        FullDiskError,
        "TMP/run.db: the disk is full; what was stored before is intact: free some space, then "
        "--resume",
        _full,
    ),
    Case(
        FullDiskError,
        "TMP/run.db: the disk refused a write (SQLITE_IOERR_WRITE: file-size limit, quota or "
        "failing disk); what was stored before is intact: mend that, then --resume",
        _sqlite_says("SQLITE_IOERR_WRITE"),
    ),
    Case(
        StoreError,
        "TMP/no/run.db: its folder does not exist; create it first",
        lambda tmp: _store(tmp / "no"),
    ),
    Case(
        StoreError,
        "TMP/run.db: is read-only, or its folder is; make both writable or copy the file elsewhere",
        _sqlite_says("SQLITE_READONLY_DIRECTORY"),
    ),
    Case(
        StoreError,
        "TMP/run.db: is in use by another process; wait for it or end it, then --resume",
        _busy,
    ),
    Case(
        StoreError,
        "TMP/run.db: is damaged; run again with --resume to keep its intact part",
        _table_gone,
    ),
    Case(
        StoreError,
        "TMP/run.db: SQLite refuses (UNIQUE constraint failed: trials.batch, trials.place); run "
        "again with --resume, or give another path",
        _twice,
    ),
]

CASES = [*OPENED, *READ, *WRITTEN, *TRANSLATED]
