"""The tables of a run store, how its file is opened, and what SQLite's errors mean to a user."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from tightz.errors import FullDiskError, StoreError, is_full

APPLICATION_ID = 0x7469677A
""""tigz": written into the SQLite header, so that other databases are told apart."""

VERSION = 3

TABLES = {
    "sessions": "session INTEGER PRIMARY KEY, started TEXT, record TEXT, crc INTEGER",
    "ends": "session INTEGER PRIMARY KEY, ended TEXT, seconds REAL, state TEXT, crc INTEGER",
    "batches": "batch INTEGER PRIMARY KEY, session INTEGER, seconds REAL, spins BLOB, pairs BLOB, "
    "crc INTEGER",
    "trials": "batch INTEGER, place INTEGER, level INTEGER, trial INTEGER, rank INTEGER, "
    "sweeps INTEGER, status INTEGER, log_gammas BLOB, PRIMARY KEY (batch, place)",
    "bounds": "bound INTEGER PRIMARY KEY, session INTEGER, record TEXT, crc INTEGER",
    "notes": "note INTEGER PRIMARY KEY, session INTEGER, text TEXT, crc INTEGER",
    "answers": "answer INTEGER PRIMARY KEY, session INTEGER, seconds REAL, record TEXT, "
    "marginals BLOB, spread BLOB, ends BLOB, crc INTEGER",
    "accounts": "account INTEGER PRIMARY KEY, session INTEGER, record TEXT, points BLOB, "
    "crc INTEGER",
}

NUMBERED = ("sessions", "ends", "batches", "bounds", "notes", "answers", "accounts")
"""Tables whose rows say which session wrote them."""

TEXT_TABLES = ("sessions", "ends", "bounds", "notes", "answers", "accounts")
"""Tables whose rows stand alone: key first, checksum last."""

COUNTERS = ("accounts",)
"""Tables whose rows are replaced as they count on; all others are append-only."""


UNREADABLE = (sqlite3.Error, UnicodeDecodeError, OverflowError)
"""What sqlite3 raises for a damaged file: it decodes names and messages of SQLite itself."""


def create_tables(connection: sqlite3.Connection) -> None:
    """All but counters append-only: SQLite itself refuses to change or delete a row."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for table, columns in TABLES.items():
        tail = " WITHOUT ROWID" if table == "trials" else ""
        connection.execute(f"CREATE TABLE {table} ({columns}){tail}")
        if table not in COUNTERS:
            create_triggers(connection, table)


def create_triggers(connection: sqlite3.Connection, table: str) -> None:
    """Have SQLite refuse every change of a row of this table."""
    for action in ("UPDATE", "DELETE"):
        connection.execute(
            f"CREATE TRIGGER IF NOT EXISTS {table}_{action.lower()} BEFORE {action} ON {table} "
            "BEGIN SELECT RAISE(ABORT, 'a run store is append-only'); END"
        )


def check_header(path: Path) -> None:
    """Refuse a file that is not a run store of a version we know, before SQLite touches it."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read ({error.strerror}); expected the file of a run store: make it "
            "readable, or give another path"
        ) from None
    if len(head) < 100 or head[:16] != b"SQLite format 3\x00":
        raise StoreError(
            f"{path} is not a run store (no SQLite header); give --store a path of its own, or, "
            "if this was one, its first page is lost and nothing can be read from it"
        )
    version, application = struct.unpack(">I4xI", head[60:72])
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is another program's SQLite file; give --store a path of its own")
    if version > VERSION:
        raise StoreError(
            f"{path} has store version {version}; this tightz reads {VERSION}: upgrade it"
        )
    if version < VERSION:
        raise StoreError(
            f"{path} has store version {version}, of an older tightz; this one reads {VERSION}: "
            "start a new run at another path"
        )


def exists(path: Path) -> bool:
    """Whether there is a file with anything in it."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be reached ({error.strerror}); give a path in a folder that is there "
            "and that you may enter"
        ) from None


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Autocommit connection. A reader reads on where the file is shorter than its header says."""
    if write:
        return _open(path, "rw")
    connection = _open(path, "ro")
    try:
        _touch(connection)
    except sqlite3.OperationalError as error:
        if not _name(error).startswith("SQLITE_READONLY"):
            raise
        # a process was killed inside a transaction; undoing it takes the right to write
        connection.close()
        with closing(_open(path, "rw")) as mender:
            _touch(mender)
        connection = _open(path, "ro")
    connection.execute("PRAGMA writable_schema = ON")
    # of a damaged text there is a text, which its checksum tells from the one that was written
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


def _open(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=30.0,
        check_same_thread=False,
    )


def _touch(connection: sqlite3.Connection) -> None:
    """Read anything, which makes SQLite finish what a killed process left; damage is no matter."""
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors as one line that says what to do."""
    try:
        yield
    except (*UNREADABLE, OSError) as error:
        kind = FullDiskError if _is_full(error) else StoreError
        raise kind(f"{path}: {_advice(path, error)}") from error


def _is_full(error: Exception) -> bool:
    """Whether the disk took no more: it is full, or a limit or quota of it is reached."""
    if isinstance(error, OSError):
        return is_full(error)
    name = _name(error)
    return name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR")


def _name(error: Exception) -> str:
    return getattr(error, "sqlite_errorname", "") or ""


def is_damage(error: Exception) -> bool:
    """Whether SQLite found the file itself broken; a table that is missing is damage too."""
    if isinstance(error, UnicodeDecodeError | OverflowError):
        return True
    return _name(error).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "no such table" in str(
        error
    )


def _advice(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        at = f"{error.filename}: " if error.filename else ""
        return f"cannot be written ({at}{error.strerror}); mend that, or give another path"
    name = _name(error)
    if name == "SQLITE_FULL":
        return "the disk is full; what was stored before is intact: free some space, then --resume"
    if name.startswith("SQLITE_IOERR"):
        return (
            f"the disk refused a write ({name}: file-size limit, quota or failing disk); what was "
            "stored before is intact: mend that, then --resume"
        )
    if not path.parent.is_dir():
        return "its folder does not exist; create it first"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return "is read-only, or its folder is; make both writable or copy the file elsewhere"
    if name.startswith("SQLITE_BUSY"):
        return "is in use by another process; wait for it or end it, then --resume"
    if is_damage(error):
        return "is damaged; run again with --resume to keep its intact part"
    return f"SQLite refuses ({error}); run again with --resume, or give another path"
