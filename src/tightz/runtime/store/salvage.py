"""What is left of a damaged run store, moved into a sound one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tightz.errors import StoreError
from tightz.runtime.store.reader import is_intact, read_batch, read_meta
from tightz.runtime.store.records import RunMeta
from tightz.runtime.store.schema import (
    TEXT_TABLES,
    UNREADABLE,
    connect,
    create_tables,
    create_triggers,
)

BLIND = 10_000
"""Rows looked for one by one in a table whose size can no longer be read."""


def salvage(path: Path) -> list[str]:
    """Replace the store at `path` by its intact rows; the damaged file stays beside it.

    Rows are fetched one by one by their keys, so a bad page costs the rows on it and no others.
    Returns what was lost, in words.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with (
        closing(connect(path, write=False)) as old,
        closing(sqlite3.connect(fresh, isolation_level=None)) as new,
    ):
        meta = read_meta(old)
        if meta is None:
            raise StoreError(
                f"{path}: no record of which run it holds is intact; start a new run at "
                "another path"
            )
        new.execute("BEGIN")
        create_tables(new)
        gone = {table: _copy_rows(old, new, table) for table in TEXT_TABLES}
        if gone["accounts"]:
            _drop_confident(new)
            gone["accounts"] += " (with all ends that held with confidence)"
        lost = [text for text in gone.values() if text]
        lost += [text for text in [_copy_batches(old, new, meta)] if text]
        new.execute("COMMIT")
    kept = _aside(path)
    os.replace(fresh, path)
    return [
        f"{path.name} was damaged and is kept as {kept.name}: {', '.join(lost) or 'no row'} lost"
    ]


def _copy_rows(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> str:
    """Copy the rows that stand alone; those whose checksum fails are dropped."""
    lost = 0
    for row in _by_key(old, table, TEXT_KEYS[table]):
        if row is None or not is_intact(table, row):
            lost += 1
        else:
            new.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)
    return f"{lost} of {table}" if lost else ""


def _drop_confident(new: sqlite3.Connection) -> None:
    """Take back the bounds that rest on draws of which some are lost.

    What is left of the draws may go on betting, but as another certificate: both together would
    spend the probability of error twice.
    """
    new.execute("DROP TRIGGER bounds_delete")
    new.execute('DELETE FROM bounds WHERE record LIKE \'%"proof":"CONFIDENCE"%\'')
    create_triggers(new, "bounds")


TEXT_KEYS = {
    "sessions": "session",
    "ends": "session",
    "bounds": "bound",
    "notes": "note",
    "answers": "answer",
    "accounts": "account",
}


def _by_key(old: sqlite3.Connection, table: str, key: str) -> Iterator[tuple[Any, ...] | None]:
    """Each row of a table with keys 1, 2, ...; None for one that cannot be read."""
    try:
        (last,) = old.execute(f"SELECT max({key}) FROM {table}").fetchone()
        blind = False
    except UNREADABLE:
        last, blind = BLIND, True
    for number in range(1, (last or 0) + 1):
        try:
            row = old.execute(f"SELECT * FROM {table} WHERE {key} = {number}").fetchone()
        except UNREADABLE:
            if not blind:
                yield None
            continue
        if row is not None:
            yield row
    if blind:
        yield None  # at least the row that ended the table


def _copy_batches(old: sqlite3.Connection, new: sqlite3.Connection, meta: RunMeta) -> str:
    """Copy the batches that are intact, trials and all."""
    total = -(-len(meta.levels) * meta.trials // meta.batch)
    lost = 0
    for batch in range(total):
        try:
            if read_batch(old, meta, batch) is None:
                found = old.execute("SELECT 1 FROM trials WHERE batch = ?", (batch,)).fetchone()
                lost += found is not None
                continue
            trials = old.execute("SELECT * FROM trials WHERE batch = ?", (batch,)).fetchall()
            row = old.execute("SELECT * FROM batches WHERE batch = ?", (batch,)).fetchone()
        except UNREADABLE:
            lost += 1
            continue
        new.execute("INSERT INTO batches VALUES (?,?,?,?,?,?)", row)
        new.executemany("INSERT INTO trials VALUES (?,?,?,?,?,?,?,?)", trials)
    return f"{lost} batches of {meta.batch} trials (to be computed again)" if lost else ""


def _aside(path: Path) -> Path:
    """Keep the damaged file, with its log, under a name that is free."""
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged{number}")).exists():
        number += 1
    shutil.copy2(path, kept)
    # a log left beside the sound file would be replayed into it
    for tail in ("-wal", "-shm", "-journal"):
        beside = path.with_name(path.name + tail)
        if beside.exists():
            os.replace(beside, kept.with_name(kept.name + tail))
    return kept
