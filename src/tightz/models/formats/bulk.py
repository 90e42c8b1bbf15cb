"""Words of a text as numbers, all at once, and the arrays that readers make of them.

Readers go over a file in bulk, by array operations. One that finds anything amiss gives up and
leaves the file to its careful twin, which goes word by word and says what is wrong where.

A word of at most 18 digits and one dot is an integer over a power of ten. Where the integer is at
most 2^53 both are doubles, and IEEE division rounds their quotient as float() rounds the word: the
same bits at a tenth of the time. All other words go through float() one by one.
"""

from __future__ import annotations

from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPACES = b" \t\n\r\v\f"
_CHUNK = 1 << 16
_DIGITS = 18
_EXACT = 2**53
_TENS = np.array([10.0**k for k in range(_DIGITS + 1)])

_INSIDE = bytes(byte not in SPACES for byte in range(256))
_DOT = 1
_OTHER = 2
_KINDS = bytes(
    0 if chr(byte) in "0123456789" or byte in SPACES else _DOT if byte == ord(".") else _OTHER
    for byte in range(256)
)


class NotANumberError(ValueError):
    """Word number `word` is none."""

    def __init__(self, word: int) -> None:
        super().__init__(f"word {word} is not a number")
        self.word = word


class Numbers(NamedTuple):
    """Per word: its value; whether it is digits alone; whether it is exactly integer / 10^k."""

    values: NDArray[np.float64]
    whole: NDArray[np.bool_]
    exact: NDArray[np.bool_]


class Arrays(NamedTuple):
    """A factor graph's own arrays, in the order of `FactorGraph.from_arrays`."""

    cardinalities: NDArray[np.int64]
    scope_ptr: NDArray[np.int64]
    scope_vars: NDArray[np.int64]
    table_ptr: NDArray[np.int64]
    log_tables: NDArray[np.float64]


def pointers(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of consecutive stretches begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)])


def ranks(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ..., count - 1 for each count, one after another."""
    first = pointers(counts)
    return np.arange(first[-1]) - np.repeat(first[:-1], counts)


def word_edges(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each word of a text starts, and where the space after it does."""
    inside = np.zeros(len(data) + 2, dtype=np.int8)
    inside[1:-1] = np.frombuffer(data.translate(_INSIDE), dtype=np.int8)
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    return edges[::2], edges[1::2]


def as_numbers(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Numbers:
    """The words of `data` as doubles; a NotANumberError names the first that is none."""
    count = len(starts)
    found = Numbers(np.empty(count), np.empty(count, dtype=bool), np.empty(count, dtype=bool))
    for low in range(0, count, _CHUNK):
        high = min(low + _CHUNK, count)
        base = int(starts[low])
        try:
            part = _chunk(
                data[base : ends[high - 1]], starts[low:high] - base, ends[low:high] - base
            )
        except NotANumberError as error:
            raise NotANumberError(low + error.word) from None
        for whole, piece in zip(found, part, strict=True):
            whole[low:high] = piece
    return found


def _chunk(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Numbers:
    kinds = np.frombuffer(text.translate(_KINDS), dtype=np.uint8)
    marks = np.flatnonzero(kinds)
    owner = np.searchsorted(ends, marks, side="right")
    whole = np.ones(len(starts), dtype=bool)
    whole[owner] = False
    lengths = ends - starts
    # Other letters, two dots in a word, a dot alone, too many digits: none of these is exact.
    exact = lengths <= _DIGITS + ~whole
    exact[owner[kinds[marks] == _OTHER]] = False
    exact[owner[1:][owner[1:] == owner[:-1]]] = False
    exact &= whole | (lengths > 1)
    decimals = np.zeros(len(starts), dtype=np.int64)
    decimals[owner] = ends[owner] - marks - 1
    values = np.empty(len(starts))
    if exact.any():
        easy = np.flatnonzero(exact)
        digits = (
            text.translate(None, b".")
            if easy.size == exact.size
            else _only(text, starts[~exact], ends[~exact]).translate(None, b".")
        )
        integers = np.fromstring(digits, dtype=np.int64, sep=" ")
        values[easy] = integers / _TENS[decimals[easy]]
        exact[easy[integers > _EXACT]] = False
    if not exact.all():
        # float takes 1_000 for a number; no other program does.
        words = text.replace(b"_", b"?").split()
        try:
            values[~exact] = np.fromiter(map(float, compress(words, ~exact)), dtype=np.float64)
        except ValueError:
            raise NotANumberError(
                next(k for k, word in enumerate(words) if not _is_number(word))
            ) from None
    return Numbers(values, whole, exact)


def _only(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> bytes:
    """`text` with these words blanked."""
    steps = np.zeros(len(text) + 1, dtype=np.int8)
    steps[starts] = 1
    steps[ends] = -1
    hidden = np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
    return np.where(hidden, np.uint8(32), np.frombuffer(text, dtype=np.uint8)).tobytes()


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
