"""Text files: read as words with their lines, by array operations; written whole or not at all.

Memory stays within a constant times the size of a file. Every error is a ModelError that names
the cause, the file and the line.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import secrets
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.formats.bulk import NotANumberError, Numbers, as_numbers, word_edges
from tightz.models.inputs import shown

FilePath = str | os.PathLike[str]

_DIGITS = 18
"""Of a count, at most."""


def file_name(path: FilePath) -> str:
    """A path as text; anything else that came in its place is refused."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ModelError(f"the path is {shown(path)}; expected the name of a file, a str or a Path")
    return os.fspath(path)


def read_bytes(path: FilePath) -> bytes:
    """What a file holds; a ModelError says why it cannot be read."""
    label = file_name(path)
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{label} does not exist") from None
    except IsADirectoryError:
        raise ModelError(f"{label} is a directory; expected a file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot read {label}: {reason}") from None


class Words:
    """The whitespace-separated words of a text file, and where each stands.

    With `comment`, everything from that sign to the end of its line is left out.
    """

    def __init__(self, path: FilePath, *, comment: bytes = b"") -> None:
        self.label = file_name(path)
        self.data = read_bytes(path).removeprefix(codecs.BOM_UTF8)
        if comment and comment in self.data:
            pattern = re.escape(comment) + rb"[^\n]*"
            self.data = re.sub(pattern, lambda found: b" " * len(found[0]), self.data)
        junk = self.data.find(b"\0")
        if junk < 0 and not self.data.isascii():
            try:
                self.data.decode()
            except UnicodeDecodeError as error:
                junk = error.start
        if junk >= 0:
            line = self.data.count(b"\n", 0, junk) + 1
            raise ModelError(
                f"byte {junk} is {self.data[junk : junk + 1]!r}, which no text holds; expected a "
                f"text file ({self.label}, line {line})"
            )
        self._starts, self._ends = word_edges(self.data)

    def __len__(self) -> int:
        return int(self._starts.size)

    def raw(self, i: int) -> bytes:
        return self.data[self._starts[i] : self._ends[i]]

    def shown(self, i: int) -> str:
        """Word `i` for a message, shortened."""
        text = self.raw(i).decode(errors="replace")
        return repr(text if len(text) <= 30 else text[:27] + "...")

    def fail(self, message: str, i: int = 0) -> NoReturn:
        """Raise a ModelError that places `message` at word `i`, or at the last word there is."""
        line = 1
        if len(self):
            start = self._starts[min(i, len(self) - 1)]
            line += self.data.count(b"\n", 0, int(start))
        raise ModelError(f"{message} ({self.label}, line {line})")

    def having(self, letters: bytes) -> NDArray[np.bool_]:
        """Per word, whether it has one of `letters`."""
        if not len(self):
            return np.zeros(0, dtype=bool)
        table = bytes(byte in letters for byte in range(256))
        wanted = np.frombuffer(self.data.translate(table), dtype=bool)
        # A stretch from one word to the next includes spaces, which never count.
        found: NDArray[np.bool_] = np.logical_or.reduceat(wanted, self._starts)
        return found

    @cached_property
    def _numbers(self) -> Numbers:
        """Of every word after the first, which may be a keyword."""
        try:
            return as_numbers(self.data, self._starts[1:], self._ends[1:])
        except NotANumberError as error:
            bad = 1 + error.word
            self.fail(f"{self.shown(bad)} is not a number; expected numbers here", bad)

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Every word after the first as a double (NaN stands for the first, a keyword)."""
        return np.concatenate([[np.nan] * (len(self) > 0), self._numbers.values])

    @cached_property
    def whole(self) -> NDArray[np.bool_]:
        """Per word after the first, whether it has nothing but digits."""
        return np.concatenate([[False] * (len(self) > 0), self._numbers.whole])

    @cached_property
    def exact(self) -> NDArray[np.bool_]:
        """Per word after the first, whether its value is the word itself up to one rounding."""
        return np.concatenate([[False] * (len(self) > 0), self._numbers.exact])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Per word after the first what `count` says of it; -1 where that fails or is above 2^53.

        All are -1 in a file with a word that is no number: let `count` find what is wrong.
        """
        try:
            fits = self.whole & (self._ends - self._starts <= _DIGITS) & (self.values <= 2.0**53)
        except ModelError:
            return np.full(len(self), -1)
        return np.where(fits, self.values, -1.0).astype(np.int64)

    def count(self, i: int, what: str) -> int:
        """Word `i` as a whole number; `what` names it in messages."""
        if i >= len(self):
            self.fail(f"the file ends where {what} was expected", i)
        word = self.raw(i)
        if not word.isdigit() or len(word) > _DIGITS:
            self.fail(
                f"{what} is {self.shown(i)}; expected a whole number of at most {_DIGITS} digits", i
            )
        return int(word)

    def require_keyword(self, *keywords: str) -> None:
        expected = " or ".join(keywords)
        if not len(self):
            self.fail(f"the file is empty; expected {expected} and numbers")
        if self.raw(0).decode().upper() not in keywords:
            self.fail(f"the file begins with {self.shown(0)}; expected {expected}")

    def require_end(self, at: int, what: str) -> None:
        if at < len(self):
            self.fail(f"{self.shown(at)} follows {what}; the file should end there", at)


def write_atomically(files: Iterable[tuple[FilePath, bytes]]) -> None:
    """Write every file or none: each goes beside its destination, then all move into place.

    Devices and pipes are written directly: they cannot be replaced.
    """
    staged: list[tuple[FilePath, str, str]] = []
    path: FilePath = ""
    try:
        for path, data in files:
            file_name(path)
            if os.path.exists(path) and not os.path.isfile(path):
                Path(path).write_bytes(data)
                continue
            target = os.path.realpath(path)
            if os.path.exists(target) and not os.access(target, os.W_OK):
                raise ValueError("the file is read-only; choose another path")
            if any(target == other for _, _, other in staged):
                raise ValueError("two files would be written there; give each its own path")
            folder = os.path.dirname(target)
            staged.append((path, os.path.join(folder, f".{secrets.token_hex(8)}.tmp"), target))
            with open(staged[-1][1], "xb") as out:
                out.write(data)
        for original, temporary, target in staged:
            path = original
            os.replace(temporary, target)
    except ModelError:
        raise
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError too
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, FileNotFoundError):
            reason = "its folder does not exist; create it first"
        raise ModelError(f"cannot write {os.fspath(path)}: {reason}") from error
    finally:
        for _, temporary, _ in staged:
            with contextlib.suppress(OSError):
                os.remove(temporary)
