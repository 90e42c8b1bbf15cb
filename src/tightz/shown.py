"""How models, bounds and results show themselves in a notebook.

Their HTML is drawn by `reports`, which stands on all of them and which none of them may import:
the package's roof (`tightz/__init__.py`) says where it is drawn, and `Shown` asks there.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any


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
