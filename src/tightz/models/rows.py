"""Rows of observations of a model, from whatever holds them: arrays, tables, mappings, a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_graph import Bipartite, FactorGraph
from tightz.models.inputs import real_array, shown
from tightz.models.written_rows import Cells, Records

BLOCK = 4096
"""Rows of an array that are looked at together."""


@dataclass(frozen=True, eq=False)
class Rows:
    """states (rows, columns) of `variables`, -1 where one is not observed.

    problems   {row: why it could not be read}; nothing is observed in such a row
    """

    variables: NDArray[np.int64]
    states: NDArray[np.int32]
    problems: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.states)

    def evidence(self, row: int) -> dict[int, int]:
        """What a row observes, by numbers."""
        pairs = zip(self.variables.tolist(), self.states[row].tolist(), strict=True)
        return {v: state for v, state in pairs if state >= 0}


def rows_of(
    model: FactorGraph,
    data: Any,
    visible: Any = None,
    *,
    what: str = "data",
    strict: bool = True,
) -> Rows:
    """The rows that `data` holds.

    data      an array (rows, columns) of numbers of states, nan where nothing is observed; a
              DataFrame or a file, by names or numbers; a sequence of mappings variable -> state
    visible   the variables of an array's columns; by default all, or the visible units of an RBM
    strict    whether the first row that cannot be read is an error, or each has its problem told
    """
    if isinstance(data, Rows):
        return data
    if isinstance(data, str | os.PathLike):
        from tightz.models.formats.row_files import read_rows

        digits = (name.isdecimal() for own in model.states or () for name in own or ())
        data = read_rows(data, words=any(digits))
    if isinstance(data, Mapping):
        data = [data]
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        data = Records(data, [f"{what}[{k}]" for k in range(len(data))], False)
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        cells = data.to_numpy(dtype=object, na_value=None).tolist()
        data = Cells(list(data.columns), cells, [f"{what}[{k}]" for k in range(len(cells))], False)
    if isinstance(data, Records):
        found = _from_records(model, data)
    elif isinstance(data, Cells):
        found = _from_cells(model, data, visible, what)
    else:
        found = _from_array(model, data, visible, what)
    if strict and found.problems:
        raise ModelError(found.problems[min(found.problems)])
    return found


def _columns(model: FactorGraph, count: int, visible: Any, what: str) -> NDArray[np.int64]:
    """The variables of `count` columns without names."""
    layers = model.layout
    if visible is not None:
        listed = [visible] if isinstance(visible, str | int) else list(visible)
        chosen = np.array([model.naming.index(v, "visible") for v in listed], dtype=np.int64)
    elif isinstance(layers, Bipartite) and count == layers.visible:
        chosen = np.arange(layers.visible)
    else:
        chosen = np.arange(model.n_variables)
    if len(np.unique(chosen)) < len(chosen):
        raise ModelError("visible names a variable twice; expected each once")
    if len(chosen) != count:
        some = f", or {layers.visible} visible ones" if isinstance(layers, Bipartite) else ""
        said = f"visible lists {len(chosen)}" if visible is not None else (
            f"the model has {len(chosen)}{some}"
        )  # fmt: skip
        raise ModelError(
            f"{what} has {count} columns and {said}; expected one for each variable, in order, or "
            "visible=[...] with the variables of the columns"
        )
    return chosen


def _from_array(model: FactorGraph, data: Any, visible: Any, what: str) -> Rows:
    if isinstance(data, np.ma.MaskedArray):
        data = np.where(np.ma.getmaskarray(data), np.nan, np.ma.getdata(data))
    values = data if isinstance(data, np.ndarray) and data.dtype.kind in "biu" else None
    if values is None:
        values = real_array(data, what)
    if values.ndim != 2:
        raise ModelError(
            f"{what} has shape {values.shape}; expected rows x columns: one row is x[None, :], "
            "images are x.reshape(len(x), -1)"
        )
    variables = _columns(model, values.shape[1], visible, what)
    cards = model.cardinalities[variables]
    states = np.empty(values.shape, dtype=np.int32)
    problems: dict[int, str] = {}
    for start in range(0, len(values), BLOCK):
        some = values[start : start + BLOCK]
        missing = np.isnan(some)
        with np.errstate(invalid="ignore"):
            wrong = ((some != np.rint(some)) | (some >= cards) | (some < 0)) & ~missing
            states[start : start + BLOCK] = np.where(missing | wrong, -1, some)
        for row in np.flatnonzero(wrong.any(axis=1)).tolist():
            column = int(np.argmax(wrong[row]))
            v = int(variables[column])
            problems[start + row] = (
                f"{what}[{start + row}, {column}] is {some[row, column]:g}; "
                f"{model.naming.said(v)} has states 0 to {cards[column] - 1}, and nan is for what "
                "is not observed"
            )
            if cards[column] == 2:
                option = ", or --threshold" if what == "data" else ""  # of `tightz likelihood`
                problems[start + row] += f". Of grey values {what} > 0.5 makes such{option}"
            states[start + row] = -1
    return Rows(variables, states, problems)


def _from_cells(model: FactorGraph, data: Cells, visible: Any, what: str) -> Rows:
    width = len(data.header if data.header is not None else data.cells[0] if data.cells else ())
    if data.header is None or visible is not None:
        variables = _columns(model, width, visible, what)
    else:
        names = [model.naming.index(word, what, text=data.text) for word in data.header]
        variables = np.array(names, dtype=np.int64)
        if len(set(names)) < len(names):
            twice = next(v for k, v in enumerate(names) if v in names[:k])
            raise ModelError(f"{what} has two columns for {model.naming.said(twice)}; expected one")
    states = np.full((len(data.cells), width), -1, dtype=np.int32)
    problems: dict[int, str] = {}
    known: list[dict[Any, int]] = [{} for _ in range(width)]
    for row, (cells, place) in enumerate(zip(data.cells, data.places, strict=True)):
        if len(cells) != width:
            problems[row] = f"{len(cells)} cells; expected {width}, as many as columns ({place})"
            continue
        try:
            for column, cell in enumerate(cells):
                if cell not in known[column]:
                    v = int(variables[column])
                    known[column][cell] = _cell(model, v, cell, text=data.text)
                states[row, column] = known[column][cell]
        except ModelError as error:
            problems[row] = f"{error} ({place})"
            states[row] = -1
    return Rows(variables, states, problems)


def _cell(model: FactorGraph, v: int, cell: Any, *, text: bool) -> int:
    """The state of a cell, -1 for one that is empty."""
    if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):
        return -1
    word = cell.strip() if text else cell
    if isinstance(word, str) and word in model.naming.state_labels(v):
        return model.naming.state_labels(v).index(word)
    return model.naming.state(v, word, "a cell", text=text)


def _from_records(model: FactorGraph, data: Records) -> Rows:
    found: list[dict[int, int]] = []
    problems: dict[int, str] = {}
    for row, (record, place) in enumerate(zip(data.records, data.places, strict=True)):
        found.append({})
        if not isinstance(record, Mapping):
            wrong = f"a row is {shown(record)}; expected a mapping variable -> state"
            problems[row] = f"{record if isinstance(record, str) else wrong} ({place})"
            continue
        given = {v: state for v, state in record.items() if state is not None}
        try:
            found[row] = model.naming.numbered(given, text=data.text)
        except ModelError as error:
            problems[row] = f"{error} ({place})"
    variables = sorted({v for seen in found for v in seen})
    place_of = {v: k for k, v in enumerate(variables)}
    states = np.full((len(found), len(variables)), -1, dtype=np.int32)
    for row, seen in enumerate(found):
        for v, state in seen.items():
            states[row, place_of[v]] = state
    return Rows(np.array(variables, dtype=np.int64), states, problems)
