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
import stat
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


_states: dict[str, tuple[int, ...]] = {}
"""The sources' files as they were when the first kernel was declared."""


def _state(source: str) -> tuple[int, ...]:
    try:
        found = (PACKAGE / source).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def unchanged(source: str | None = None) -> bool:
    """Whether this source, or all of them, are still the files that they were at first.

    A process that runs through an upgrade has read some before and some after it: what it compiles
    belongs to neither version.
    """
    if not _states:
        _states.update({each: _state(each) for each in sources()})
    return all(_state(each) == _states[each] for each in ([source] if source else _states))


@cache
def fingerprint() -> str | None:
    """A hash of what decides the code of kernels; None where their sources cannot be read."""
    import numba
    import numpy as np

    seen = hashlib.sha256(repr((sys.version_info[:3], numba.__version__, np.__version__)).encode())
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
        with contextlib.suppress(OSError):  # relative, and the working folder is gone
            yield Path(chosen).absolute() / "tightz"
    else:
        with contextlib.suppress(ImportError, RuntimeError, KeyError):
            import platformdirs

            # without a home the path is relative: it would land wherever the user stands
            if (path := platformdirs.user_cache_path("tightz")).is_absolute():
                yield path
    with contextlib.suppress(OSError):
        # Python's last resort is the working folder: nobody wants kernels there
        if tempfile.gettempdir() == os.getcwd() != os.environ.get("TMPDIR"):
            return
        user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
        yield Path(tempfile.gettempdir()).absolute() / f"tightz-{user}"


@cache
def places() -> tuple[Path, ...]:
    """This version's folders, best first: all are read, the first that takes a file is written.

    They are made when a file is written, so the later ones only where the earlier take none.
    """
    name = fingerprint()
    if not unchanged():
        return ()
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
    if _chosen(folder) or not hasattr(os, "getuid"):
        return True
    for place in (folder, folder.parent):
        # of a link both ends: its owner may turn it to another folder at any time
        for state in (place.lstat(), place.stat()):
            if state.st_uid not in (os.getuid(), 0):
                return False
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    above = folder.parent.parent.stat().st_mode
    return not above & stat.S_IWOTH or bool(above & stat.S_ISVTX)


def _chosen(folder: Path) -> bool:
    """Whether the user named it, so that it is neither the cache folder nor the temporary one."""
    chosen = os.environ.get(CHOSEN)
    return bool(chosen) and folder.is_relative_to(Path(str(chosen)).absolute())


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


def tried() -> bool:
    """Whether a file can be kept, tried now: said before others compile what nobody can keep."""
    for place in places():
        if place not in _full and takes_files(place):
            return True
        _full.add(place)
    return False


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


def bring(name: str) -> None:
    """Have it in the best folder, where another holds it."""
    if places() and not (places()[0] / (name + ENDING)).exists():
        data = read(name)
        if data is not None:
            write(name, data)


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
        # a folder that was chosen may be meant for others to read, as in an image
        mode = 0o777 if _chosen(folder) else 0o700
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(mode=mode, exist_ok=True)
        folder.mkdir(mode=mode, exist_ok=True)
        _clean(folder.parent, folder)
    if not _readable(folder):
        raise PermissionError(f"{folder} can be written by others")


def _write(path: Path, data: bytes) -> None:
    _make(path.parent)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(aside, 0o644)  # the folder says who may read it
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
        with contextlib.suppress(OSError, NotImplementedError):  # the next folder may do
            _make(place)
            with contextlib.suppress(Timeout):
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


def _forget() -> None:
    """In a forked process: what was claimed is the parent's."""
    global _holding
    _holding = threading.Lock()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
