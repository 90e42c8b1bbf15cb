"""Rows of observations as they were written, before a model says what their words mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Cells(NamedTuple):
    """Rows of cells in columns that may have names, as a table of text or a DataFrame has them.

    places   where each row stands, for messages; text: whether all cells were written as text
    """

    header: Sequence[Any] | None
    cells: Sequence[Sequence[Any]]
    places: Sequence[str]
    text: bool


class Records(NamedTuple):
    """Mappings variable -> state, one for each row; in place of one, what is wrong with it."""

    records: Sequence[Mapping[Any, Any] | str]
    places: Sequence[str]
    text: bool
