"""Where compiled kernels are kept, one file for each kernel and signature.

The folder is named after the version and a hash of all kernel sources, so that code compiled from
other sources is never found: numba's own cache looks only at the file that defines a kernel, not at
the functions it calls. One file for each signature, written aside and renamed, needs no index that
processes could overwrite for each other; a checksum tells a damaged file from a good one.

Nothing here raises because of the disk: what cannot be read is compiled, what cannot be written is
kept in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tightz.runtime.kernels.registry import sources
from tightz.version import __version__

PACKAGE = Path(__file__).resolve().parents[2]

ENDING = ".kernel"
KEPT = 4
"""Folders of other versions that stay, the last used ones: installations may share a user."""

IDLE = 3600.0
"""Seconds since its last use after which the folder of another version may go."""

PATIENCE = 120.0
"""Seconds to wait for another process that is compiling the same kernel."""

_FOLDER = re.compile(r"\d[\w.+]*-[0-9a-f]{16}")
_CHECK = hashlib.sha256().digest_size


@cache
def fingerprint() -> str | None:
    """A hash of what decides the code of kernels; None where their sources cannot be read."""
    import llvmlite
    import numba
    import numpy as np

    seen = hashlib.sha256(
        repr(
            (sys.version_info[:3], numba.__version__, llvmlite.__version__, np.__version__)
        ).encode()
    )
    try:
        for source in sources():
            text = (PACKAGE / source).read_bytes()
            seen.update(f"{source} {len(text)}\n".encode())
            seen.update(text)
    except OSError:
        return None
    return seen.hexdigest()[:16]


CHOSEN = "NUMBA_CACHE_DIR"
"""The variable by which a user chooses the folder."""


def _bases() -> Iterator[Path]:
    """Folders that may hold folders of versions, best first."""
    chosen = os.environ.get(CHOSEN)
    if chosen:
        yield Path(chosen).absolute() / "tightz"
    else:
        import platformdirs

        with contextlib.suppress(RuntimeError, KeyError):
            # without a home the path is relative: it would land wherever the user stands
            if (path := platformdirs.user_cache_path("tightz")).is_absolute():
                yield path
    with contextlib.suppress(OSError):
        user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
        yield Path(tempfile.gettempdir()).absolute() / f"tightz-{user}"


@cache
def places() -> tuple[Path, ...]:
    """This version's folders, best first: all are read, the first that takes a file is written.

    They are made when a file is written, so the later ones only where the earlier take none.
    """
    name = fingerprint()
    return () if name is None else tuple(base / f"{__version__}-{name}" for base in _bases())


_sound: set[Path] = set()


def _readable(folder: Path) -> bool:
    """Whether the folder is there and nobody else writes it; found out once."""
    if folder in _sound:
        return True
    try:
        if not _trusted(folder):
            return False
    except OSError:
        return False
    _stamp(folder)
    _sound.add(folder)
    return True


def _trusted(folder: Path) -> bool:
    """Whether no other user could have put code there, which would be executed."""
    if not folder.is_dir():
        return False
    if os.environ.get(CHOSEN) or not hasattr(os, "getuid"):
        return True
    for place in (folder, folder.parent):
        state = place.stat()
        if state.st_uid not in (os.getuid(), 0) or state.st_mode & 0o002:
            return False
    return True


def _stamp(folder: Path) -> None:
    """Note that the folder is in use, at most a few times an hour."""
    with contextlib.suppress(OSError):
        if time.time() - folder.stat().st_mtime > IDLE / 4:
            os.utime(folder)


def _clean(base: Path, current: Path) -> None:
    """Remove folders of other versions that nobody has used for a while."""
    with contextlib.suppress(OSError):
        others = [
            (entry.stat().st_mtime, entry)
            for entry in base.iterdir()
            if _FOLDER.fullmatch(entry.name) and entry != current
        ]
        for used, folder in sorted(others, reverse=True)[KEPT:]:
            if time.time() - used > IDLE:
                shutil.rmtree(folder, ignore_errors=True)


# Files --------------------------------------------------------------------------------------


_full: set[Path] = set()


def writable() -> bool:
    """Whether a file could be kept when that was last tried."""
    return any(place not in _full for place in places())


def takes_files(folder: Path) -> bool:
    """Whether a file can be made there, tried."""
    try:
        _write(folder / f"try-{os.getpid()}", b"x" * 4096)
        (folder / f"try-{os.getpid()}").unlink()
    except OSError:
        return False
    return True


def has(name: str) -> bool:
    """Whether a file of that name is kept, sound or not."""
    return any((place / (name + ENDING)).exists() for place in places() if _readable(place))


def read(name: str) -> bytes | None:
    """What was written under this name; None where nothing was, or it is damaged."""
    for place in filter(_readable, places()):
        with contextlib.suppress(OSError):
            data = (place / (name + ENDING)).read_bytes()
            if hashlib.sha256(data[_CHECK:]).digest() == data[:_CHECK]:
                return data[_CHECK:]
    return None


def write(name: str, data: bytes) -> bool:
    """Keep the bytes under this name, all or nothing; False where no folder takes them."""
    for place in places():
        if place in _full:
            continue
        try:
            _write(place / (name + ENDING), hashlib.sha256(data).digest() + data)
            return True
        except OSError:  # full, read-only or gone: not asked again in this process
            _full.add(place)
    return False


def _make(folder: Path) -> None:
    """The folder, with those of old versions cleared away when it is new."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clean(folder.parent, folder)
    if not _readable(folder):
        raise PermissionError(f"{folder} can be written by others")


def _write(path: Path, data: bytes) -> None:
    _make(path.parent)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


# One compiles, the others wait --------------------------------------------------------------

_held: dict[str, Any] = {}
_holding = threading.Lock()


def claim(name: str) -> None:
    """Wait while another process compiles this kernel; afterwards it is ours to compile.

    The lock is the operating system's, so a process that dies releases it. Where locks do not work
    two processes may compile the same, which costs time and nothing else.
    """
    from filelock import FileLock, Timeout

    with _holding:
        if name in _held:
            return
    for place in places():
        if place in _full:
            continue
        lock = FileLock(place / (name + ".lock"), thread_local=False)
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            _make(place)
            lock.acquire(timeout=PATIENCE)
            with _holding:
                _held[name] = lock
        return


def release(name: str) -> None:
    """Let the others go on."""
    with _holding:
        lock = _held.pop(name, None)
    if lock is not None:
        with contextlib.suppress(OSError):
            lock.release()
            os.unlink(lock.lock_file)
