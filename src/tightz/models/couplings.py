"""Couplings and fields in the forms they come in: matrices, tables, mappings, graphs.

A label is what the caller calls a variable: its number, or anything else (a name, coordinates of a
lattice, a node of a graph), which becomes its name.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError, require_finite
from tightz.models.inputs import (
    as_index,
    as_number,
    is_sparse,
    other_library,
    real_array,
    shown,
    vector,
)


class Coupled(NamedTuple):
    """n variables, pairs (E, 2) with i < j and the weight of each.

    labels   what the variables are called, in their order; None where they are numbers
    listed   whether a mapping listed the pairs, so that fields may name further variables
    fields   those that came with the pairs, label -> field: the nodes of a graph have some
    """

    n: int
    pairs: NDArray[np.int64]
    weights: NDArray[np.float64]
    labels: list[Any] | None = None
    listed: bool = False
    fields: Mapping[Any, Any] | None = None

    @property
    def names(self) -> list[str] | None:
        return None if self.labels is None else names_of(self.labels)


def coupled(couplings: Any) -> Coupled:
    """The pairs of a matrix (dense, sparse, a DataFrame), a graph or a mapping (i, j) -> weight."""
    if is_graph(couplings):
        return coupled_graph(couplings)
    if is_sparse(couplings):  # before mappings: one of scipy's is a dictionary
        _require_square(couplings.shape)
        entries = couplings.tocoo(copy=True)
        entries.sum_duplicates()
        values = real_array(entries.data, "couplings")
        return _matrix(couplings.shape[0], entries.row, entries.col, values)
    if isinstance(couplings, Mapping):
        return _listed(couplings)
    if isinstance(couplings, str | os.PathLike):
        raise ModelError(
            f"couplings are {shown(couplings)}; expected a matrix, a mapping or a graph: "
            "tz.read(path) makes a model of a file"
        )
    labels = _table_labels(couplings)
    matrix = real_array(couplings, "couplings")
    _require_square(matrix.shape)
    rows, columns = np.nonzero(matrix)
    return _matrix(len(matrix), rows, columns, matrix[rows, columns])._replace(labels=labels)


def is_graph(value: Any) -> bool:
    """Whether it is a graph of networkx, told without importing it."""
    return all(hasattr(value, name) for name in ("nodes", "edges", "is_directed"))


def coupled_graph(
    graph: Any, coupling: str | float | None = None, field: str | None = "field"
) -> Coupled:
    """The edges of a networkx graph; parallel ones add up.

    coupling   the attribute of the edges, or one number for all; None: `coupling`, else `weight`
    field      the attribute of the nodes; None: they have no fields
    """
    if graph.is_directed():
        network = other_library(graph) if hasattr(graph, "get_cpds") else ""
        raise ModelError(
            f"the graph is {shown(graph)}, whose edges have a direction; expected an undirected "
            f"one, since couplings have none: {network or 'graph.to_undirected() is one'}"
        )
    nodes = list(graph.nodes)
    number = {node: v for v, node in enumerate(nodes)}
    numbers_only = all(type(node) is int and 0 <= node < len(nodes) for node in nodes)
    if numbers_only:
        number = {node: node for node in nodes}
    sums: dict[tuple[int, int], float] = {}
    for a, b, data in graph.edges(data=True):
        _require_two(a, b)
        i, j = sorted((number[a], number[b]))
        sums[i, j] = sums.get((i, j), 0.0) + _edge_weight(a, b, data, coupling)
    own = {node: data[field] for node, data in graph.nodes(data=True) if field in data}
    return Coupled(
        len(nodes),
        np.array(list(sums), dtype=np.int64).reshape(-1, 2),
        np.array(list(sums.values()), dtype=np.float64),
        None if numbers_only else nodes,
        fields=own or None,
    )


def _edge_weight(a: Any, b: Any, data: Mapping[str, Any], coupling: str | float | None) -> float:
    if coupling is not None and not isinstance(coupling, str):
        return as_number(coupling, "coupling")
    names = ["coupling", "weight"] if coupling is None else [coupling]
    for name in names:
        if name in data:
            return as_number(data[name], f"the {name} of the edge {(a, b)!r}")
    raise ModelError(
        f"the edge {(a, b)!r} has no attribute {' or '.join(names)}; expected a number on every "
        "edge: tz.from_networkx(graph, coupling=1.0) takes one for all, coupling='J' another "
        "attribute"
    )


def fields_of(
    found: Coupled, fields: Any, states: int | None = None
) -> tuple[Coupled, NDArray[np.float64]]:
    """A field for each variable, (n,), or with `states` a row of so many, (n, states).

    One number (one row) stands for all. Fields may bring further variables to pairs that were
    listed, so the variables come back with them.
    """
    shape = () if states is None else (states,)
    if fields is None:
        fields = found.fields
    elif found.fields:
        raise ModelError(
            f"fields are given, and nodes such as {next(iter(found.fields))!r} have their own; "
            "expected one of the two: tz.from_networkx(graph, field='f') takes another attribute "
            "of the nodes, field=0.5 one number for all"
        )
    if fields is None:
        return found, np.zeros((found.n, *shape))
    if hasattr(fields, "items") and hasattr(fields, "index"):
        fields = dict(fields.items())  # a pandas Series: by its labels, not by position
    if isinstance(fields, Mapping) and not is_sparse(fields):
        return _listed_fields(found, fields, shape)
    array = real_array(fields, "fields")
    require_finite("fields", array)
    if array.shape == shape:
        return found, np.broadcast_to(array, (found.n, *shape))
    if found.listed and found.labels is not None:
        axes = array.ndim - len(shape)
        if not _are_coordinates(found.labels, axes):
            raise ModelError(
                f"fields are {shown(fields)}, and the couplings name variables such as "
                f"{found.labels[0]!r}, in no order; expected a mapping such as "
                f"{{{found.labels[0]!r}: 0.5}}, or one number for all"
            )
        sites = np.ndindex(array.shape[:axes])
        return _listed_fields(found, {site: array[site] for site in sites}, shape)
    array = vector(array, "fields") if states is None else array
    if array.ndim != 1 + len(shape) or array.shape[1:] != shape:
        raise ModelError(
            f"fields have shape {array.shape}; expected (variables, {states}), or one row of "
            f"{states} for all variables"
        )
    if found.listed:
        found = found._replace(n=max(found.n, len(array)))
    if len(array) != found.n:
        raise ModelError(
            f"{len(array)} fields for {found.n} variables; expected one for each, or one number "
            "for all"
        )
    return found, array


def names_of(labels: Sequence[Any]) -> list[str]:
    """Labels as text; two that read the same are refused."""
    names = [_name(label) for label in labels]
    if len(set(names)) != len(names):
        first: dict[str, Any] = {}
        for name, label in zip(names, labels, strict=True):
            if name in first:
                raise ModelError(
                    f"the variables {first[name]!r} and {label!r} would both be called {name!r}; "
                    "expected names that differ"
                )
            first[name] = label
    return names


def _name(label: Any) -> str:
    if isinstance(label, tuple):  # numpy's numbers inside would show their type
        label = tuple(v.item() if isinstance(v, np.generic) else v for v in label)
    return str(label)


def numbered(labels: Iterable[Hashable]) -> dict[Hashable, int] | None:
    """Labels that are all whole numbers >= 0, as variable numbers; None where none is a number.

    Numbers and others together are refused: nothing tells which number is left for a name.
    """
    distinct = list(dict.fromkeys(labels))
    if not any(v is None or isinstance(v, numbers.Number | np.ndarray) for v in distinct):
        return None if distinct else {}
    return {
        v: as_index(v, "a variable of the couplings", "Name all variables by number, or none")
        for v in distinct
    }


def _ordered(labels: Iterable[Hashable]) -> list[Any]:
    """As they appear; coordinates row by row."""
    distinct: list[Any] = list(dict.fromkeys(labels))
    first = distinct[0] if distinct else None
    if isinstance(first, tuple) and _are_coordinates(distinct, len(first)):
        return sorted(distinct)
    return distinct


def _are_coordinates(labels: Sequence[Any], axes: int) -> bool:
    return all(
        isinstance(v, tuple) and len(v) == axes and all(isinstance(x, int | np.integer) for x in v)
        for v in labels
    )


def _listed(couplings: Mapping[Any, Any]) -> Coupled:
    ends = []
    for key in couplings:
        if isinstance(key, str) or not isinstance(key, Iterable) or len(both := tuple(key)) != 2:
            raise ModelError(f"couplings name {key!r}; expected pairs of variables such as (0, 1)")
        ends.append(both)
    number = numbered(v for both in ends for v in both)
    labels = None if number is not None else _ordered(v for both in ends for v in both)
    known = number if number is not None else {v: k for k, v in enumerate(labels or [])}
    named: dict[tuple[int, int], Any] = {}
    weights = []
    for (key, weight), (a, b) in zip(couplings.items(), ends, strict=True):
        _require_two(a, b)
        i, j = sorted((known[a], known[b]))
        if (i, j) in named:
            raise ModelError(
                f"couplings name the pair {named[i, j]!r} again as {key!r}; expected each pair "
                "once, since a symmetric matrix counts it once (tz.from_ising adds the two up)"
            )
        named[i, j] = key
        weights.append(as_number(weight, f"coupling {key!r}"))
    pairs = np.array(list(named), dtype=np.int64).reshape(-1, 2)
    n = max(known.values(), default=-1) + 1
    return Coupled(n, pairs, np.array(weights, dtype=np.float64), labels, True)


def _require_two(a: Any, b: Any) -> None:
    if a == b:
        raise ModelError(
            f"coupling of variable {a!r} with itself; expected pairs of different variables: a "
            f"variable always agrees with itself, so leave ({a!r}, {a!r}) out"
        )


def _listed_fields(
    found: Coupled, fields: Mapping[Any, Any], shape: tuple[int, ...]
) -> tuple[Coupled, NDArray[np.float64]]:
    n, labels = found.n, found.labels
    if labels is None and not n and found.listed:  # no coupling at all: fields say what there is
        labels = None if numbered(fields) is not None else []
    if labels is None:
        number = {k: as_index(k, "a variable of the fields") for k in fields}
        top = max(number.values(), default=-1)
        if found.listed:
            n = max(n, top + 1)
        elif top >= n:
            raise ModelError(
                f"fields name variable {top}; the couplings have variables 0 to {n - 1}"
            )
    else:
        number = {label: v for v, label in enumerate(labels)}
        new = [label for label in fields if label not in number]
        if new and not found.listed:
            raise ModelError(
                f"fields name {new[0]!r}; expected variables of the couplings, such as "
                f"{labels[0]!r}"
            )
        if new:
            return _listed_fields(_with_labels(found._replace(labels=labels), new), fields, shape)
    array = np.zeros((n, *shape))
    for label, value in fields.items():
        what = f"fields[{label!r}]"
        if not shape:
            array[number[label]] = as_number(value, what)
            continue
        row = vector(value, what)
        require_finite(what, row)
        if row.shape != shape:
            raise ModelError(f"{what} has {row.size} numbers; expected one a state, {shape[0]}")
        array[number[label]] = row
    return found._replace(n=n, labels=labels), array


def _with_labels(found: Coupled, new: list[Any]) -> Coupled:
    """With further variables, which have no coupling."""
    before: list[Any] = list(found.labels or [])
    labels = _ordered([*before, *new])
    place = {label: v for v, label in enumerate(labels)}
    moved = np.array([place[label] for label in before], dtype=np.int64)
    pairs = np.sort(moved[found.pairs], axis=1) if len(found.pairs) else found.pairs
    return found._replace(n=len(labels), pairs=pairs, labels=labels)


def _require_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ModelError(
            f"couplings have shape {shape}; expected a square matrix, or a mapping such as "
            "{(0, 1): 0.5}"
        )


def _matrix(n: int, rows: Any, columns: Any, values: NDArray) -> Coupled:
    """The pairs of a square matrix from its entries, each place listed once."""
    rows, columns = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
    rows, columns, values = (a[values != 0.0] for a in (rows, columns, values))
    bad = ~np.isfinite(values)
    if bad.any():
        k = int(np.argmax(bad))
        raise ModelError(
            f"couplings[{rows[k]}, {columns[k]}] is {values[k]}; expected a finite number"
        )
    if (rows == columns).any():
        k = int(np.argmax(rows == columns))
        raise ModelError(
            f"couplings[{rows[k]}, {rows[k]}] is {values[k]}; expected 0 on the diagonal, since a "
            "variable always agrees with itself: np.fill_diagonal(J, 0) or J.setdiag(0) clears it"
        )
    keys = np.minimum(rows, columns) * n + np.maximum(rows, columns)
    distinct, place = np.unique(keys, return_inverse=True)
    halves = np.zeros((2, len(distinct)))
    halves[(rows > columns).astype(np.int64), place] = values
    above, below = halves
    if above.any() and below.any() and (above != below).any():
        k = int(np.argmax(above != below))
        i, j = divmod(int(distinct[k]), n)
        raise ModelError(
            f"couplings[{i}, {j}] is {above[k]} and couplings[{j}, {i}] is {below[k]}: the matrix "
            "is neither symmetric nor a triangle; expected each pair once or the same value at "
            "both places: np.triu(J, 1) or scipy.sparse.triu(J, 1) keeps the upper half"
        )
    pairs = np.stack([distinct // max(n, 1), distinct % max(n, 1)], axis=1)
    return Coupled(n, pairs, above if above.any() else below)


def _table_labels(couplings: Any) -> list[Any] | None:
    """The columns of a pandas DataFrame, which must be its rows too."""
    if not (hasattr(couplings, "columns") and hasattr(couplings, "index")):
        return None
    labels = list(couplings.columns)
    if list(couplings.index) != labels:
        raise ModelError(
            "couplings are a DataFrame whose rows are not labelled as its columns; expected the "
            "same labels in the same order: J.loc[J.columns]"
        )
    return None if labels == list(range(len(labels))) else labels
