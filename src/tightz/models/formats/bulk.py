"""Words of a text as numbers, all at once, and the arrays that readers make of them.

Readers go over a file in bulk, by array operations. One that finds anything amiss gives up and
leaves the file to its careful twin, which goes word by word and says what is wrong where.

A word of digits and one dot is an integer over a power of ten. Where the integer is at most 2^53,
both are doubles and IEEE division rounds their quotient as float() rounds the word. Up to 2^63 the
quotient is formed in extended precision, where both are exact too, and rounded once more, which
gives the same double unless the first rounding ended halfway between two: half of the numbers that
Python prints are such. All other words go through float() one by one: the same bits at ten times
the price.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPACES = b" \t\n\r\v\f"
_CHUNK = 1 << 16
_DECIMALS = 22
"""10^22 is the last power of ten that is a double."""

_EXACT = 2**53
_TENS = np.cumprod(np.array([1, *[10] * _DECIMALS], dtype=np.longdouble))
_EXTENDED = np.finfo(np.longdouble).nmant >= 63
"""Whether long doubles hold every int64."""

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
    """Per word: its value; whether it is digits alone; whether it was read as integer / 10^k."""

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


def potentials(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(logs), or a double beside it whose log is that very number: written, it reads the same.

    Logs of doubles have one within two units; of other numbers there may be none.
    """
    values: NDArray[np.float64] = np.exp(logs)
    with np.errstate(divide="ignore"):
        off = np.flatnonzero(np.log(values.ravel()) != logs.ravel())
        near, wanted = values.ravel()[off], logs.ravel()[off]
        for steps in (1, -1, 2, -2):
            tried = near
            for _ in range(abs(steps)):
                tried = np.nextafter(tried, np.inf if steps > 0 else 0.0)
            hit = np.log(tried) == wanted
            values.reshape(-1)[off[hit]] = tried[hit]
    return values


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
    exact = (lengths <= _DECIMALS + 1) & (whole | (lengths > 1))
    exact[owner[kinds[marks] == _OTHER]] = False
    exact[owner[1:][owner[1:] == owner[:-1]]] = False
    decimals = np.zeros(len(starts), dtype=np.int8)
    decimals[owner] = np.minimum(ends[owner] - marks - 1, _DECIMALS)  # more are not exact
    values = np.empty(len(starts))
    easy = np.flatnonzero(exact)
    if easy.size:
        left = text if easy.size == exact.size else _without(text, starts[~exact], ends[~exact])
        integers = np.fromstring(left.translate(None, b"."), dtype=np.int64, sep=" ")
        values[easy], sure = _quotients(integers, decimals[easy])
        exact[easy[~sure]] = False
    if not exact.all():
        # float takes 1_000 for a number; no other program does.
        text = text.replace(b"_", b"?")
        hard = np.flatnonzero(~exact)
        edges = zip(starts[hard].tolist(), ends[hard].tolist(), strict=True)
        words = [text[start:end] for start, end in edges]
        try:
            values[hard] = np.fromiter(map(float, words), dtype=np.float64, count=hard.size)
        except ValueError:
            bad = next(k for k, word in enumerate(words) if not _is_number(word))
            raise NotANumberError(int(hard[bad])) from None
    return Numbers(values, whole, exact)


def _quotients(
    integers: NDArray[np.int64], decimals: NDArray[np.int8]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """integers / 10^decimals, and whether each is rounded as it should be."""
    values = _TENS.astype(np.float64)[decimals]
    np.divide(integers, values, out=values)
    sure = integers <= _EXACT
    large = np.flatnonzero(~sure)
    if _EXTENDED and large.size:
        # Integers that are too large for an int64 were read as the largest one.
        quotients = integers[large].astype(np.longdouble) / _TENS[decimals[large]]
        rounded = quotients.astype(np.float64)
        gap, ulp = np.abs(quotients - rounded), np.spacing(rounded)
        # Half of a unit; a quarter of one below a power of two, where units are smaller.
        halfway = (gap == ulp / 2) | (gap == ulp / 4)
        values[large] = rounded
        sure[large] = ~halfway & (integers[large] < np.iinfo(np.int64).max)
    return values, sure


def _without(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> bytes:
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
