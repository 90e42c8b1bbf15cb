"""Small pictures as data addresses: a PNG writer for a page that loads nothing."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SEQUENTIAL = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
"""Dark blue to yellow, even in lightness: readable without colour vision and in grey print."""

DIVERGING = ("#0072b2", "#9ecae1", "#f7f7f7", "#fdb98a", "#d55e00")
"""Blue for negative, vermilion for positive."""

MISSING = "#b0b0b0"


def _ramp(stops: tuple[str, ...]) -> NDArray[np.uint8]:
    """(256, 3): 255 steps through the stops, then the colour of missing values."""
    rgb = np.array([[int(s[i : i + 2], 16) for i in (1, 3, 5)] for s in (*stops, MISSING)])
    at = np.linspace(0, len(stops) - 1, 255)
    steps = [np.interp(at, np.arange(len(stops)), rgb[:-1, c]) for c in range(3)]
    return np.concatenate([np.stack(steps, axis=1).round(), rgb[-1:]]).astype(np.uint8)


def png(values: NDArray[np.float64], low: float, high: float, stops: tuple[str, ...]) -> str:
    """A data address of a palette PNG, one pixel per entry; NaN is grey."""
    span = high - low if high > low else 1.0
    scaled = np.clip((np.asarray(values, dtype=np.float64) - low) / span, 0.0, 1.0) * 254.0
    pixels = np.where(np.isnan(scaled), 255.0, scaled).round().astype(np.uint8)
    rows, cols = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), dtype=np.uint8), pixels], axis=1).tobytes()
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", cols, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", _ramp(stops).tobytes()),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
