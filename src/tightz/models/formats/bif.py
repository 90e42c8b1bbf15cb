"""Bayesian networks in BIF (the interchange format of 1998) and XMLBIF files.

Variables are numbered in the order of their declaration, states as listed. Every table must be
a conditional distribution: columns that do not sum to 1 are refused, since a wrong reading order
would show there.
"""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.bif_bulk import (
    MAX_SCOPE,
    SLACK,
    NetworkArrays,
    bif_in_bulk,
    xmlbif_in_bulk,
)
from tightz.models.formats.bif_writer import write_bif, write_xmlbif
from tightz.models.formats.evidence import Evidence, given
from tightz.models.formats.format import Format
from tightz.models.formats.text_files import FilePath, read_bytes

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"|[{}()\[\];,|]|[^\s{}()\[\];,|"]+|"', re.DOTALL)
_ROOM = 1 << 16


@dataclass
class _Network:
    label: str
    states: dict[str, list[str]] = field(default_factory=dict)
    number: dict[str, int] = field(default_factory=dict)
    factors: list[tuple[list[int], NDArray[np.float64]]] = field(default_factory=list)
    children: set[str] = field(default_factory=set)
    entries: int = 0
    size: int = 0

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        where = self.label if line is None else f"{self.label}, line {line}"
        raise ModelError(f"{message} ({where})")

    def declare(self, name: str, states: list[str], line: int | None) -> None:
        if name in self.states:
            self.fail(f"variable {name!r} is declared twice; expected once", line)
        if not states or len(set(states)) != len(states):
            self.fail(f"variable {name!r} has states {states[:8]}; expected distinct names", line)
        self.number[name] = len(self.states)
        self.states[name] = states

    def shape(self, scope: list[str], line: int | None) -> list[int]:
        """States of each variable of a table, which must be known, different and affordable."""
        for name in scope:
            if name not in self.states:
                self.fail(
                    f"a table names {name[:40]!r}, which is not declared; expected one of "
                    f"{list(self.states)[:8]}",
                    line,
                )
        if len(set(scope)) != len(scope):
            self.fail(f"a table names a variable twice: {scope[:8]}; expected once", line)
        if scope[0] in self.children:
            self.fail(f"variable {scope[0]!r} has two tables; expected one", line)
        size = 1
        for name in scope:
            size *= len(self.states[name])
        self.entries += size
        if self.entries > _ROOM + 1024 * self.size:
            self.fail(
                f"the table of {scope[0]!r} brings the tables to {self.entries} entries; a file of "
                f"{self.size} bytes may have {_ROOM + 1024 * self.size}",
                line,
            )
        if len(scope) > MAX_SCOPE:
            self.fail(
                f"{scope[0]!r} has {len(scope) - 1} parents; expected at most {MAX_SCOPE - 1}", line
            )
        return [len(self.states[name]) for name in scope]

    def add(self, scope: list[str], table: NDArray[np.float64], line: int | None) -> None:
        """A table over (child, parents...), axes in that order."""
        if not ((table >= 0.0) & (table < np.inf)).all():
            self.fail(
                f"the table of {scope[0]!r} lacks entries or holds one that is negative or not "
                "finite; expected a probability for every state",
                line,
            )
        if (np.abs(table.sum(axis=0) - 1.0) > SLACK).any():
            sums = table.sum(axis=0).ravel()
            total = float(sums[np.argmax(np.abs(sums - 1.0))])
            self.fail(f"a column of the table of {scope[0]!r} sums to {total:g}; expected 1", line)
        with np.errstate(divide="ignore"):
            self.factors.append(([self.number[name] for name in scope], np.log(table)))
        self.children.add(scope[0])

    def model(self, evidence: Evidence | None) -> FactorGraph:
        missing = [name for name in self.states if name not in self.children]
        if missing:
            self.fail(f"variable {missing[0]!r} has no table; expected one for every variable")
        names, states = list(self.states), list(self.states.values())
        cards = np.array([len(s) for s in states], dtype=np.int64)
        label = Path(self.label).name
        model = FactorGraph(cards, self.factors, name=label, names=names, states=states)
        return given(model, evidence)

    def bulk_model(self, found: NetworkArrays, evidence: Evidence | None) -> FactorGraph:
        names, states = list(found.states), list(found.states.values())
        label = Path(self.label).name
        model = FactorGraph.from_arrays(*found.arrays, name=label, names=names, states=states)
        return given(model, evidence)


class _Tokens:
    def __init__(self, network: _Network, text: str) -> None:
        self.network = network
        self.items = [
            (m[0], m.start()) for m in _TOKEN.finditer(text) if m[0][:2] not in ("//", "/*")
        ]
        self.at = 0
        self.newlines = [m.start() for m in re.finditer("\n", text)]

    @property
    def line(self) -> int:
        if not self.items:
            return 1
        return bisect(self.newlines, self.items[min(self.at, len(self.items) - 1)][1]) + 1

    @property
    def peek(self) -> str:
        return self.items[self.at][0] if self.at < len(self.items) else ""

    def take(self, what: str = "") -> str:
        token = self.peek
        if not token or (what and token.lower() != what):
            found = repr(token[:30]) if token else "the end of the file"
            self.network.fail(f"found {found}; expected {what or 'more'}", self.line)
        self.at += 1
        return token.strip('"') if token[0] == '"' and len(token) > 1 else token

    def until(self, end: str) -> list[str]:
        """Tokens up to `end`, commas left out."""
        out = []
        while self.peek != end:
            token = self.take()
            if token != ",":
                out.append(token)
        self.take(end)
        return out

    def skip_statement(self) -> None:
        """To the end of a property: its semicolon, or the closing brace before it."""
        while self.peek not in (";", "}", ""):
            self.at += 1
        if self.peek == ";":
            self.at += 1


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")  # older files; names only, numbers are ASCII


def read_bif(path: FilePath, evidence: Evidence | None = None) -> FactorGraph:
    """The network in a BIF file; `evidence` may name variables and states.

    `table` lists the child's states slowest and the last parent's fastest; `(states) values;`
    gives one column, `default` all columns not given.
    """
    data = read_bytes(path)
    network = _Network(str(path), size=len(data))
    text = _decoded(data)
    found = bif_in_bulk(text)
    if found is not None:
        return network.bulk_model(found, evidence)
    _read_bif_carefully(network, text)
    return network.model(evidence)


def _read_bif_carefully(network: _Network, text: str) -> None:
    """Word by word, which finds the first thing that is wrong."""
    tokens = _Tokens(network, text)
    while tokens.peek:
        word = tokens.take().lower()
        if word == "network":
            while tokens.peek not in ("{", ""):
                tokens.take()
            tokens.take("{")
            while tokens.peek != "}":
                if not tokens.peek:
                    tokens.take("}")
                tokens.skip_statement()
            tokens.take("}")
        elif word == "variable":
            _bif_variable(network, tokens)
        elif word == "probability":
            _bif_table(network, tokens)
        elif word == "property":
            tokens.skip_statement()
        else:
            tokens.at -= 1
            network.fail(f"found {word[:30]!r}; expected variable or probability", tokens.line)


def _bif_variable(network: _Network, tokens: _Tokens) -> None:
    line, name = tokens.line, tokens.take()
    tokens.take("{")
    states: list[str] | None = None
    while tokens.peek != "}":
        if tokens.peek.lower() == "type":
            tokens.take()
            tokens.take("discrete")
            tokens.take("[")
            announced = tokens.take()
            tokens.take("]")
            tokens.take("{")
            states = tokens.until("}")
            if announced != str(len(states)):
                network.fail(
                    f"variable {name!r} announces {announced[:30]!r} states and lists "
                    f"{len(states)}; expected the same number",
                    line,
                )
            if tokens.peek == ";":
                tokens.take()
        elif tokens.peek:
            tokens.skip_statement()
        else:
            tokens.take("}")
    tokens.take("}")
    if states is None:
        network.fail(
            f"variable {name!r} has no type; expected `type discrete [ N ] {{ states }};`", line
        )
    network.declare(name, states, line)


def _numbers(network: _Network, words: list[str], line: int) -> NDArray[np.float64]:
    try:
        return np.array([float(w.replace("_", "?")) for w in words])
    except ValueError:
        network.fail(f"found {' '.join(words)[:40]!r}; expected numbers", line)


def _bif_table(network: _Network, tokens: _Tokens) -> None:
    line = tokens.line
    tokens.take("(")
    scope = [w for w in tokens.until(")") if w != "|"]
    if not scope:
        network.fail("a table names no variable; expected ( child | parents )", line)
    shape = network.shape(scope, line)
    table = np.full(shape, np.nan)
    tokens.take("{")
    while tokens.peek != "}":
        at = tokens.line
        word = tokens.take()
        if word == "(":
            parents = tokens.until(")")
            if len(parents) != len(scope) - 1:
                network.fail(
                    f"{len(parents)} states are given for the {len(scope) - 1} parents of "
                    f"{scope[0]!r}; expected one each",
                    at,
                )
            index: list[int] = []
            for name, state in zip(scope[1:], parents, strict=True):
                if state not in network.states[name]:
                    known = network.states[name][:8]
                    network.fail(f"{name!r} has no state {state[:30]!r}; it has {known}", at)
                index.append(network.states[name].index(state))
            column = _sized(network, tokens.until(";"), shape[0], scope[0], at)
            np.moveaxis(table, 0, -1)[tuple(index)] = column
        elif word.lower() == "table":
            table = _sized(network, tokens.until(";"), table.size, scope[0], at).reshape(shape)
        elif word.lower() == "default":
            column = _sized(network, tokens.until(";"), shape[0], scope[0], at)
            filled = column.reshape(-1, *(1,) * (len(shape) - 1))
            table = np.where(np.isnan(table), filled, table)
        elif word.lower() == "property":
            tokens.skip_statement()
        else:
            network.fail(
                f"found {word[:30]!r} in the table of {scope[0]!r}; expected table, default or "
                "( states )",
                at,
            )
    tokens.take("}")
    network.add(scope, table, line)


def _sized(
    network: _Network, words: list[str], size: int, name: str, line: int
) -> NDArray[np.float64]:
    if len(words) != size:
        network.fail(f"{len(words)} numbers are listed for {name!r}; expected {size}", line)
    return _numbers(network, words, line)


def read_xmlbif(path: FilePath, evidence: Evidence | None = None) -> FactorGraph:
    """The network in an XMLBIF file; `evidence` may name variables and states.

    TABLE lists the child's states fastest, then the last GIVEN. Files that declare entities are
    refused: no model needs them, and they can expand without limit.
    """
    from xml.etree import ElementTree

    data = read_bytes(path)
    network = _Network(str(path), size=len(data))
    if b"<!entity" in data.lower() or b"\0" in data:
        network.fail("the file declares entities or is not plain text; expected XMLBIF")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        network.fail(f"not well-formed XML: {error}")
    for variable in root.iter("VARIABLE"):
        name = (variable.findtext("NAME") or "").strip()
        if not name:
            network.fail("a VARIABLE has no NAME; expected one")
        states = [(o.text or "").strip() for o in variable.iter("OUTCOME")]
        states += [(o.text or "").strip() for o in variable.iter("VALUE")]
        network.declare(name, states, None)
    found = xmlbif_in_bulk(root, network.states, network.number, len(data))
    if found is not None:
        return network.bulk_model(found, evidence)
    _read_xmlbif_carefully(network, root)
    return network.model(evidence)


def _read_xmlbif_carefully(network: _Network, root: Element) -> None:
    """Table by table, which finds the first thing that is wrong."""
    for table in (*root.iter("DEFINITION"), *root.iter("PROBABILITY")):
        child = [(e.text or "").strip() for e in table.iter("FOR")]
        parents = [(e.text or "").strip() for e in table.iter("GIVEN")]
        if len(child) != 1:
            network.fail(f"a DEFINITION has {len(child)} FOR; expected one")
        shape = network.shape([*child, *parents], None)
        text = table.find("TABLE")
        words = "".join(text.itertext()).split() if text is not None else []
        values = _sized(network, words, int(np.prod(shape, dtype=np.int64)), child[0], 1)
        by_parents = values.reshape(*shape[1:], shape[0])
        network.add([*child, *parents], np.moveaxis(by_parents, -1, 0), None)
    if not network.states:
        network.fail("the file has no VARIABLE; expected XMLBIF")


BIF = Format(("bif",), read_bif, write_bif, "Bayesian networks of 1998's interchange format")
XMLBIF = Format(("xml", "xmlbif"), read_xmlbif, write_xmlbif, "Bayesian networks in XML")
