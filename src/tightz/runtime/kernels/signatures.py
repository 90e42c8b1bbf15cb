"""Types of arguments as text: what the registry lists and file names are made of.

float64   int64   bool   none           scalars, by numba's names
float64[2C]   uint64[1A]   int64[1Cr]   arrays: rank, layout, r where read-only
(int64,float64)                         tuples
module:Name(field=int64,...)        named tuples
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

from numba.core import types


def to_text(arguments: Sequence[types.Type]) -> str:
    """A signature's arguments."""
    return ", ".join(_text(t) for t in arguments)


def _text(t: Any) -> str:
    if isinstance(t, types.Array) and t.aligned:
        return f"{t.dtype}[{t.ndim}{t.layout}{'' if t.mutable else 'r'}]"
    parts: Any = getattr(t, "types", ())
    if isinstance(t, types.BaseNamedTuple):
        named: Any = t
        cls = named.instance_class
        fields = ",".join(f"{f}={_text(x)}" for f, x in zip(named.fields, parts, strict=True))
        return f"{cls.__module__}:{cls.__qualname__}({fields})"
    if isinstance(t, types.BaseTuple):
        return f"({','.join(_text(x) for x in parts)})"
    return str(t)


_TOKEN = re.compile(r"\s*([A-Za-z_][\w.:]*|\[\d+[ACF]r?\]|[(),=])")


def from_text(text: str) -> tuple[types.Type, ...]:
    """The arguments that `to_text` wrote. ValueError where the text is none of its."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s", "", text):
        raise ValueError(f"not a signature: {text!r}")
    return tuple(_sequence([*tokens, ")"]))


def _sequence(tokens: list[str]) -> list[Any]:
    """The types up to the closing bracket, which is taken off."""
    out = []
    while tokens[0] != ")":
        out.append(_type(tokens))
        if tokens[0] == ",":
            tokens.pop(0)
    tokens.pop(0)
    return out


def _type(tokens: list[str]) -> Any:
    word = tokens.pop(0)
    if word == "(":
        return types.Tuple(_sequence(tokens))
    if tokens[0] == "=":  # a field's name
        tokens.pop(0)
        return _type(tokens)
    if ":" in word:
        module, _, name = word.partition(":")
        cls = importlib.import_module(module)
        for part in name.split("."):
            cls = getattr(cls, part)
        tokens.pop(0)
        parts = _sequence(tokens)
        if parts and all(p == parts[0] for p in parts):
            return types.NamedUniTuple(parts[0], len(parts), cls)
        return types.NamedTuple(parts, cls)
    scalar = getattr(types, word)
    if tokens[0].startswith("["):
        shape = tokens.pop(0)
        match = re.fullmatch(r"\[(\d+)([ACF])(r?)\]", shape)
        assert match is not None
        layout: Any = match[2]
        return types.Array(scalar, int(match[1]), layout, readonly=bool(match[3]))
    return scalar
