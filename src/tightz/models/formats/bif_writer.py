"""Bayesian networks written as BIF and XMLBIF files.

The model must be a network: every variable has exactly one table that is its distribution given
the table's other variables, without a cycle. Numbers are written in full: reading the file gives
the same tables to the bit where they are logs of doubles, as in networks that were read, and up to
one rounding of exp and log elsewhere. Names are written in quotes (BIF, where they need them) or
escaped (XMLBIF); the few that a format cannot hold even so are refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.bulk import potentials
from tightz.models.formats.text_files import FilePath, write_atomically
from tightz.models.inputs import as_model

_SLACK = 1e-6
_PLAIN = re.compile(r"(?!(?:default|discrete|network|probability|property|table|type|variable)\Z)"
                    r"[A-Za-z_][A-Za-z0-9_]*")  # fmt: skip
_QUOTABLE = re.compile(r'(?![,|]?\Z)[^"\n\ud800-\udfff]*')
_ESCAPABLE = re.compile(r"(?!\s)[^\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]+(?<!\s)")

Cpt = tuple[list[int], NDArray[np.float64]]
"""Scope (child, parents...) and the table, child first."""


def write_bif(
    model: FactorGraph,
    path: FilePath,
    *,
    names: Sequence[str] | None = None,
    states: Sequence[Sequence[str]] | None = None,
) -> None:
    """Write a network as a BIF file, atomically.

    `names` and `states` default to the model's own, and to x0, x1, ... and s0, s1, ... where it
    has none. Only those that need it are quoted in the file: pyAgrum reads no quotes.
    """
    as_model(model, "write", only="FactorGraph")
    labels, outcomes = _labels(model, names, states)
    for word in itertools.chain(labels, *outcomes):
        if not _QUOTABLE.fullmatch(word):
            raise ModelError(
                f"the name {word!r} is empty, a comma or a bar, or holds a quote or a line end, "
                "which BIF cannot write; choose another by names= or states= (.npz holds any)"
            )
    lines = ["network unknown {", "}"]
    for name, kinds in zip(labels, outcomes, strict=True):
        listed = ", ".join(map(_word, kinds))
        lines.append(
            f"variable {_word(name)} {{\n  type discrete [ {len(kinds)} ] {{ {listed} }};\n}}"
        )
    for scope, table in _tables(model):
        child, parents = labels[scope[0]], [labels[v] for v in scope[1:]]
        given = " | " + ", ".join(map(_word, parents)) if parents else ""
        lines.append(f"probability ( {_word(child)}{given} ) {{")
        lines.append(f"  table {', '.join(map(repr, table.ravel().tolist()))};\n}}")
    write_atomically([(path, ("\n".join(lines) + "\n").encode())])


def _word(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f'"{name}"'


def write_xmlbif(
    model: FactorGraph,
    path: FilePath,
    *,
    names: Sequence[str] | None = None,
    states: Sequence[Sequence[str]] | None = None,
) -> None:
    """Write a network as an XMLBIF file, atomically; names as in `write_bif`."""
    as_model(model, "write", only="FactorGraph")
    labels, outcomes = _labels(model, names, states)
    for word in itertools.chain(labels, *outcomes):
        if not _ESCAPABLE.fullmatch(word):
            raise ModelError(
                f"the name {word!r} is empty, begins or ends with a space, or holds a sign that "
                "XML cannot write; choose another by names= or states= (.npz holds any)"
            )
    labels = [_escaped(name) for name in labels]
    outcomes = [[_escaped(state) for state in kinds] for kinds in outcomes]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<BIF VERSION="0.3">', "<NETWORK>"]
    lines.append("<NAME>unknown</NAME>")
    for name, kinds in zip(labels, outcomes, strict=True):
        listed = "".join(f"<OUTCOME>{k}</OUTCOME>" for k in kinds)
        lines.append(f'<VARIABLE TYPE="nature"><NAME>{name}</NAME>{listed}</VARIABLE>')
    for scope, table in _tables(model):
        given = "".join(f"<GIVEN>{labels[v]}</GIVEN>" for v in scope[1:])
        values = " ".join(map(repr, np.moveaxis(table, 0, -1).ravel().tolist()))
        lines.append(f"<DEFINITION><FOR>{labels[scope[0]]}</FOR>{given}")
        lines.append(f"<TABLE>{values}</TABLE></DEFINITION>")
    lines += ["</NETWORK>", "</BIF>"]
    write_atomically([(path, ("\n".join(lines) + "\n").encode())])


def _escaped(word: str) -> str:
    return escape(word, {"\r": "&#13;"})  # a parser makes line feeds of bare returns


def _labels(
    model: FactorGraph, names: Sequence[str] | None, states: Sequence[Sequence[str]] | None
) -> tuple[list[str], list[list[str]]]:
    """What variables and states are called in the file: as asked, as in the model, by number."""
    cards = model.cardinalities.tolist()
    numbered = [[f"s{k}" for k in range(d)] for d in cards]
    labels = list(model.names or [f"x{v}" for v in range(len(cards))] if names is None else names)
    known = list(model.states or numbered if states is None else states)
    outcomes = [list(own or other) for own, other in zip(known, numbered, strict=False)]
    if not len(labels) == len(known) == len(cards) or [len(own) for own in outcomes] != cards:
        raise ModelError(
            f"{len(labels)} names and {len(known)} lists of states do not fit {model!r}; "
            "expected one name a variable and one a state"
        )
    for group in (labels, *outcomes):
        odd = [word for word in group if not isinstance(word, str)]
        if odd or len(set(group)) != len(group):
            raise ModelError(
                f"the names {(odd or group)[:8]} are repeated, or no text; expected distinct names"
            )
    return labels, outcomes


def _tables(model: FactorGraph) -> list[Cpt]:
    """One table per variable on the ordinary scale, in the order of the model's factors."""
    if model.evidence:
        raise ModelError("the model has evidence; a network file holds none. Write it without")
    if ((model.log_tables < -708.0) & (model.log_tables > -np.inf)).any():
        raise ModelError("a log potential is below -708, beyond doubles; expected probabilities")
    found = network_tables(model)
    if isinstance(found, str):
        raise ModelError(f"the model is no Bayesian network: {found}. A .uai file holds any model")
    return found


def network_tables(model: FactorGraph, *, slack: float = _SLACK) -> list[Cpt] | str:
    """One table per variable, its own first, or why the model is no Bayesian network."""
    found = _children(model, 0, slack)
    again = _children(model, -1, slack) if isinstance(found, str) else found  # as in UAI files
    return found if isinstance(again, str) else again


def _children(model: FactorGraph, axis: int, slack: float) -> list[Cpt] | str:
    """The tables with the child at this place of each scope, or why there are none."""
    tables: dict[int, Cpt] = {}
    for f, (scope, log_table) in enumerate(model.factors):
        if not scope:
            return f"factor {f} has no variable; expected one table a variable"
        child = scope[axis]
        table = np.moveaxis(potentials(log_table), axis, 0)
        if child in tables:
            return f"variable {child} has two tables; expected one, its own variable first"
        if (np.abs(table.sum(axis=0) - 1.0) > slack).any():
            return f"factor {f} does not sum to 1 over variable {child}, its own by position"
        tables[child] = [child, *(v for v in scope if v != child)], table
    missing = [v for v in range(model.n_variables) if v not in tables]
    if missing:
        return f"variable {missing[0]} has no table of its own"
    try:
        TopologicalSorter({v: scope[1:] for v, (scope, _) in tables.items()}).prepare()
    except CycleError as error:
        return f"variables {error.args[1][:8]} depend on each other in a cycle"
    return list(tables.values())
