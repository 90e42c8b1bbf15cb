"""How models, bounds and results show themselves: in a notebook, and as JSON.

Their HTML is drawn by `reports`, which stands on all of them and which none of them may import:
the package's roof (`tightz/__init__.py`) says where it is drawn, and `Shown` asks there.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from html import escape
from typing import Any, ClassVar


def _plain(thing: Any) -> str:
    return f"<pre>{escape(repr(thing))}</pre>"


_draw: Callable[[Any], str] = _plain


def draw_html_by(function: Callable[[Any], str]) -> None:
    """From now on `function(thing)` makes the HTML of everything that is `Shown`."""
    global _draw
    _draw = function


class Shown:
    """Base of what a notebook cell shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _draw(self)


NULLS = {"infinity": math.inf, "-infinity": -math.inf, "not a number": math.nan, "none": None}
"""What a null in JSON stands for, by the reason beside it."""


class Members(dict[str, Any]):
    """What a thing says of itself, {name: value}; any other mapping is one value."""


ASIDE = {"aside": True}
"""Metadata of a dataclass field that is no part of the JSON: what the result computes with."""


class Recorded:
    """Base of what can be written as JSON: its public fields, and the properties named in `_also`.

    JSON has no infinities and no NaN. Such a number is `null`, and so is None; beside the member
    that holds any, `NAME_null` says which they are: "infinity", "-infinity", "not a number" or
    "none", or a list of these in reading order where they differ.
    """

    __slots__ = ()
    _also: ClassVar[tuple[str, ...]] = ()

    def members(self) -> Members:
        """What is written, not yet as JSON."""
        told = _public(self)
        return Members({**told, **{name: getattr(self, name) for name in self._also}})

    def record(self) -> dict[str, Any]:
        """As JSON values, after `results.schema.json`; `result` names the type."""
        return as_json({"result": type(self).__name__, **self.members()})

    def to_json(self, indent: int | None = None) -> str:
        """One JSON object with everything but the model, after `results.schema.json`."""
        return json.dumps(self.record(), allow_nan=False, indent=indent)


def as_json(members: Mapping[str, Any]) -> dict[str, Any]:
    """Members as JSON values, each null with its reason beside it."""
    out: dict[str, Any] = {}
    for name, value in members.items():
        reasons: list[str] = []
        out[name] = _json(value, reasons)
        if reasons:
            out[f"{name}_null"] = reasons[0] if len(set(reasons)) == 1 else reasons
    return out


def from_json(members: Mapping[str, Any], name: str) -> Any:
    """A member of a JSON object as it was, its nulls infinities, NaN or None again."""
    told = members.get(f"{name}_null")
    reasons = itertools.repeat(told) if isinstance(told, str) else iter(told or ())

    def back(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: back(one) for key, one in value.items()}
        if isinstance(value, list):
            return [back(one) for one in value]
        return NULLS[next(reasons)] if value is None else value

    return back(members[name])


def _json(value: Any, reasons: list[str]) -> Any:
    """A value as JSON has them; the reason for each null is added to `reasons`."""
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        word = "infinity" if value > 0.0 else "-infinity"
        reasons.append("not a number" if math.isnan(value) else word)
        return None
    if isinstance(value, str | bool | int):
        return value
    if value is None:
        reasons.append("none")
        return None
    if isinstance(value, Recorded):
        return as_json(value.members())
    if isinstance(value, Members):
        return as_json(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Exception):
        return str(value)
    if is_dataclass(value):
        return as_json(_public(value))
    if isinstance(value, Mapping):
        return {str(key): _json(one, reasons) for key, one in value.items()}
    if hasattr(value, "tolist"):  # of numpy
        return value.tolist() if value.dtype.kind in "biu" else _json(value.tolist(), reasons)
    if isinstance(value, list | tuple):
        return [_json(one, reasons) for one in value]
    raise TypeError(
        f"{type(value).__name__} has no JSON; expected numbers, text, arrays or dataclasses, or a "
        "field with metadata=ASIDE"
    )


def _public(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass that are neither private nor set aside."""
    return {
        f.name: getattr(thing, f.name)
        for f in fields(thing)
        if not f.name.startswith("_") and f.metadata != ASIDE
    }
