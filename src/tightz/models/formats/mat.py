"""MATLAB files of versions 4 to 7.2: the numeric arrays, every length checked before it is used.

scipy's reader takes the whole interpreter down on some damaged files (a segmentation fault, found
by fuzzing), so this small one reads what weights need: full real numeric matrices. Anything else is
named and empty, of a type that no reader takes for numbers. Formats as in "MAT-File Format" (The
MathWorks).
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
"""Data types of version 5 that hold numbers, as numpy names them."""

OLD_NUMBERS = ("f8", "f4", "i4", "i2", "u2", "u1")
"""Precisions of version 4, by their digit."""

MATRIX, COMPRESSED = 14, 15
FULL_CLASSES = range(6, 16)
"""Array classes that are full numeric matrices: double, single and the integers."""

COMPLEX = 0x0800
MOST_RATIO = 1100
"""No stream of zlib's grows by more than about 1,030 times."""


OTHER = np.zeros(0, dtype="V1")
"""In place of texts, cells, structs, sparse and complex arrays, which are not read."""


class DamagedError(ValueError):
    """The bytes are not those of a MATLAB file."""


class _Element(NamedTuple):
    kind: int
    data: memoryview
    end: int


def read_matrices(content: bytes) -> dict[str, NDArray]:
    """The full numeric arrays by name; others are named and `OTHER`."""
    if len(content) >= 128 and content[126:128] in (b"MI", b"IM"):
        return dict(_version_5(content))
    return dict(_version_4(content))


def _version_5(content: bytes) -> Iterator[tuple[str, NDArray]]:
    order = "<" if content[126:128] == b"IM" else ">"
    body = memoryview(content)
    at = 128
    while at < len(body):
        element = _element(body, at, order, padded=False)
        at = element.end
        if element.kind == COMPRESSED:
            inflate = zlib.decompressobj()
            try:
                plain = inflate.decompress(element.data, MOST_RATIO * (len(element.data) + 1))
            except zlib.error as error:
                raise DamagedError(str(error)) from None
            element = _element(memoryview(plain), 0, order)
        if element.kind == MATRIX:
            yield _matrix(element.data, order)


def _matrix(data: memoryview, order: str) -> tuple[str, NDArray]:
    flags = _element(data, 0, order)
    shape = _element(data, flags.end, order)
    name = _element(data, shape.end, order)
    if len(flags.data) != 8 or shape.kind != 5 or len(shape.data) % 4:
        raise DamagedError("an array's flags or dimensions are not as they should be")
    (flag,) = struct.unpack(order + "I", flags.data[:4])
    label = bytes(name.data).decode("latin-1")
    if flag & 0xFF not in FULL_CLASSES or flag & COMPLEX:
        return label, OTHER
    sides = struct.unpack(f"{order}{len(shape.data) // 4}i", shape.data)
    values = _element(data, name.end, order)
    if values.kind not in NUMBERS:
        raise DamagedError(f"an array's data type is {values.kind}, which is not one of numbers")
    array = _shaped(values.data, order + NUMBERS[values.kind], sides)
    return label, array


def _element(data: memoryview, at: int, order: str, *, padded: bool = True) -> _Element:
    """The element at `at`: a tag of type and length, then the bytes; short ones share the tag."""
    if at + 8 > len(data):
        raise DamagedError("the file ends in the middle of an element")
    kind, size = struct.unpack(order + "II", data[at : at + 8])
    start, end = at + 8, at + 8 + size
    if kind >> 16:
        kind, size = kind & 0xFFFF, kind >> 16
        if size > 4:
            raise DamagedError("a short element is longer than its tag")
        start, end = at + 4, at + 8
        return _Element(kind, data[start : start + size], end)
    if end > len(data):
        raise DamagedError("an element is longer than what is left of the file")
    return _Element(kind, data[start:end], end + (-size % 8 if padded else 0))


def _version_4(content: bytes) -> Iterator[tuple[str, NDArray]]:
    body = memoryview(content)
    at = 0
    while at < len(body):
        if at + 20 > len(body):
            raise DamagedError("the file ends in the middle of a header")
        order = "<"
        kind, rows, columns, imaginary, length = struct.unpack("<5i", body[at : at + 20])
        if not 0 <= kind < 1000:
            order = ">"
            kind, rows, columns, imaginary, length = struct.unpack(">5i", body[at : at + 20])
            kind -= 1000
        precision, form = kind // 10 % 10, kind % 10
        if not 0 <= kind < 100 or precision >= len(OLD_NUMBERS) or length < 1:
            raise DamagedError("it starts with neither a version 5 nor a version 4 header")
        start = at + 20 + length
        dtype = np.dtype(order + OLD_NUMBERS[precision])
        size = rows * columns * dtype.itemsize
        if min(rows, columns) < 0 or start + size * (1 + bool(imaginary)) > len(body):
            raise DamagedError("an array is longer than what is left of the file")
        name = bytes(body[at + 20 : start]).split(b"\0")[0].decode("latin-1")
        plain = form == 0 and not imaginary
        values = body[start : start + size]
        yield name, _shaped(values, dtype.str, (rows, columns)) if plain else OTHER
        at = start + size * (1 + bool(imaginary))


def _shaped(data: memoryview, dtype: str, sides: tuple[int, ...]) -> NDArray:
    """The bytes as an array, first index fastest as MATLAB stores it."""
    if min(sides, default=0) < 0 or math.prod(sides) * np.dtype(dtype).itemsize != len(data):
        raise DamagedError(f"an array of {len(data)} bytes cannot have the dimensions {sides}")
    return np.frombuffer(data, dtype=dtype).reshape(sides, order="F")
