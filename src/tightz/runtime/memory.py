"""Amounts of memory as people write them ("8GB") and as machines count them (bytes)."""

from __future__ import annotations

import math
import operator
import re

from tightz.errors import ParameterError

MAX_MEMORY = "8GB"
"""What every `max_memory` is unless given."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]I?)?B?\s*", re.IGNORECASE)


def parse_memory(value: str | int) -> int:
    """Bytes in `value`: an int is bytes; "8GB", "500MB", "1.5 GiB" are what they say.

    KB, MB, GB, TB are powers of ten; KiB, MiB, GiB, TiB are powers of two.
    """
    if isinstance(value, str):
        match = _PATTERN.fullmatch(value)
        if match is None:
            raise ParameterError(
                f'memory is {value!r}; expected a number with a unit such as "8GB", "500MB" or '
                '"2GiB", or an int of bytes'
            )
        unit = (match[2] or "").upper()
        size = round(float(match[1]) * (_UNITS.get(unit) or _BINARY_UNITS[unit]))
    else:
        try:
            if isinstance(value, bool):
                raise TypeError
            size = operator.index(value)
        except TypeError:
            raise ParameterError(
                f'memory is {value!r}; expected an int of bytes or text such as "8GB"'
            ) from None
    if size <= 0:
        raise ParameterError(f'memory is {value!r}; expected more than 0 bytes, such as "8GB"')
    return size


def format_bytes(size: float) -> str:
    """`size` in the largest decimal unit that leaves at least 1, with three digits."""
    if not math.isfinite(size) or size >= 1e18:
        return f"10^{math.log10(size):.0f} B" if math.isfinite(size) else "more than 10^308 B"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
