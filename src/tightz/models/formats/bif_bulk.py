"""Bayesian networks of BIF and XMLBIF files in bulk: blocks by one pattern, numbers all at once.

Only files as programs write them are read here. Whatever is not quite so, an error or a freedom
that the formats allow, gives None, and the careful reader of `bif` takes the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.formats.bulk import Arrays, as_numbers, pointers, ranks, word_edges

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SLACK = 0.01
"""How far a column may be from summing to 1: files hold rounded numbers."""

MAX_SCOPE = 60
"""numpy arrays have 64 axes at most."""

_WORD = r'[^\s{}()\[\];,|"]'
_QUOTED = r'"[^"\n]*+"'
_END = f"(?!{_WORD})"


def _stretch(without: str) -> str:
    """Any text without these signs, but for what is quoted."""
    plain = f'[^{re.escape(without)}"]*+'
    return f"{plain}(?:{_QUOTED}{plain})*+"


_SCOPE = _stretch("{}()[];")
_STATES = _stretch("{}()[];|")
_INSIDE = _stretch("{}")
_PROPERTIES = rf"(?:property{_END}{_stretch(';{}')};\s*+)*+"
_BLOCK = re.compile(
    r"\s*+(?:"
    rf"variable\s++({_WORD}++|{_QUOTED})\s*+\{{\s*+{_PROPERTIES}"
    rf"type\s++discrete\s*+\[\s*+(\d++)\s*+\]\s*+\{{({_STATES})\}}\s*+;?\s*+{_PROPERTIES}\}}"
    rf"|probability\s*+\(({_SCOPE})\)\s*+\{{({_INSIDE})\}}"
    rf"|network{_END}{_INSIDE}\{{{_INSIDE}\}}"
    r")"
)
"""A variable's name, number of states and states; or a table's scope and body; or the network."""

_COMMENTED = rf"/(?:/[^\n]*+|\*(?:.*?\*/|{_WORD}*+))"
_COMMENT = re.compile(rf"{_QUOTED}|(?=/)(?<!{_WORD})(?:{_COMMENTED})++", re.DOTALL)
"""A comment begins where a word could; another may follow it at once."""

_SIGNS = re.compile(r"[\s{}()\[\];,|]")


class NetworkArrays(NamedTuple):
    """What a network is made of."""

    states: Mapping[str, list[str]]
    arrays: Arrays


@dataclass
class _Tables:
    """Tables as they are listed in a file; `cards` are the states of each variable.

    Per table: its scope (child first), its number of columns, whether it is listed column by
    column. `places` are the columns in their order; `pieces` are stretches of text with as many
    numbers as `expected` says.
    """

    cards: list[int]
    limit: int
    scopes: list[list[int]] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    by_column: list[bool] = field(default_factory=list)
    places: list[Iterable[int]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    children: set[int] = field(default_factory=set)

    def start(self, scope: list[int]) -> int:
        """The number of columns of the next table; 0 where it cannot be right."""
        size = 1
        for v in scope:
            size *= self.cards[v]
        wrong = scope[0] in self.children or len(set(scope)) != len(scope)
        if wrong or len(scope) > MAX_SCOPE or size > self.limit:
            return 0
        self.children.add(scope[0])
        self.scopes.append(scope)
        self.columns.append(size // self.cards[scope[0]])
        return self.columns[-1]

    def add_whole(self, text: str, *, by_column: bool) -> None:
        """The numbers of the table just started, in one stretch."""
        columns = self.columns[-1]
        self.by_column.append(by_column)
        self.places.append(range(columns))
        self.pieces.append(text)
        self.expected.append(columns * self.cards[self.scopes[-1][0]])

    def add_rows(self, places: list[int], rows: Sequence[str]) -> None:
        """The numbers of the table just started, one stretch a column."""
        self.by_column.append(True)
        self.places.append(places)
        self.pieces += rows
        self.expected += [self.cards[self.scopes[-1][0]]] * len(rows)

    def arrays(self) -> Arrays | None:
        if len(self.scopes) != len(self.cards):
            return None
        values = _values(";".join(self.pieces), self.expected)
        if values is None or not ((values >= 0.0) & (values < np.inf)).all():
            return None
        cards = np.array(self.cards, dtype=np.int64)
        scope_ptr = pointers(np.array([len(scope) for scope in self.scopes]))
        scope_vars = np.fromiter(chain(*self.scopes), dtype=np.int64, count=int(scope_ptr[-1]))
        columns = np.array(self.columns, dtype=np.int64)
        table_ptr = pointers(cards[scope_vars[scope_ptr[:-1]]] * columns)
        column, place = self._positions(cards[scope_vars[scope_ptr[:-1]]], columns, table_ptr)
        sums = np.bincount(column, values)
        if (np.abs(sums - 1.0) > SLACK - 1e-9).any():  # near the edge the order of adding decides
            return None
        logs = np.full(values.size, np.nan)
        with np.errstate(divide="ignore"):
            logs[place] = np.log(values)
        if np.isnan(logs).any():  # a column is there twice, so another one is not
            return None
        return Arrays(cards, scope_ptr, scope_vars, table_ptr, logs)

    def _positions(
        self, states: NDArray[np.int64], columns: NDArray[np.int64], table_ptr: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Per number its column, counted through all tables, and its place among all entries.

        A table is so many runs of equal length: its columns, or the entries of a child's state.
        """
        column_ptr = pointers(columns)
        places = np.fromiter(chain(*self.places), dtype=np.int64, count=int(column_ptr[-1]))
        by_column = np.array(self.by_column)
        runs = np.where(by_column, columns, states)
        table, run = np.repeat(np.arange(runs.size), runs), ranks(runs)
        standing = by_column[table]
        length = np.where(standing, states[table], columns[table])
        nth = np.where(standing, run, 0)
        first = np.where(standing, places[column_ptr[table] + nth], run * columns[table])
        step = np.where(standing, columns[table], 1)
        rank = ranks(length)
        column = np.repeat(column_ptr[table] + nth, length) + rank * np.repeat(~standing, length)
        place = np.repeat(table_ptr[table] + first, length) + rank * np.repeat(step, length)
        return column, place


def _values(text: str, expected: list[int]) -> NDArray[np.float64] | None:
    """The numbers of pieces that are parted by semicolons, each with as many as expected."""
    if not text.isascii():
        return None
    data = text.encode()
    ends = np.flatnonzero(np.frombuffer(data + b";", dtype=np.uint8) == ord(";"))
    data = data.replace(b";", b" ").replace(b",", b" ")
    starts, stops = word_edges(data)
    if not np.array_equal(np.diff(np.searchsorted(starts, ends), prepend=0), expected):
        return None
    try:
        return as_numbers(data, starts, stops).values
    except ValueError:
        return None


@dataclass
class _Bif:
    """A BIF file as far as it was read.

    `codes` has for each variable the numbers of its states, one mapping for all variables with
    the same states. Tables of a network are much alike: `orders` remembers the columns' order.
    """

    tables: _Tables
    states: dict[str, list[str]] = field(default_factory=dict)
    number: dict[str, int] = field(default_factory=dict)
    codes: list[dict[str, int]] = field(default_factory=list)
    kinds: dict[tuple[str, ...], dict[str, int]] = field(default_factory=dict)
    orders: dict[tuple[object, ...], list[int]] = field(default_factory=dict)

    def add_variable(self, name: str, count: str, states: list[str]) -> bool:
        distinct = len(set(states)) == len(states) > 0
        if name in self.states or not distinct or count != str(len(states)):
            return False
        self.number[name] = len(self.states)
        self.states[name] = states
        kind = {state: k for k, state in enumerate(states)}
        self.codes.append(self.kinds.setdefault(tuple(states), kind))
        self.tables.cards.append(len(states))
        return True

    def add_table(self, names: list[str], body: str) -> bool:
        scope = [self.number.get(name, -1) for name in names]
        if not scope or min(scope) < 0 or not self.tables.start(scope):
            return False
        if '"' in body:
            if '""' in body or any(map(_SIGNS.search, re.findall(_QUOTED, body))):
                return False
            body = body.replace('"', " ")
        body = body.strip()
        if "[" in body or "]" in body or "|" in body:
            return False
        if body.startswith("table"):
            if not body[5:6].isspace() or body.find(";") != len(body) - 1:
                return False
            self.tables.add_whole(body[5:-1], by_column=False)
            return True
        return self.add_rows(scope[1:], body)

    def add_rows(self, parents: list[int], body: str) -> bool:
        """Rows `(states) numbers;`, one for every column of the table just started."""
        rows = body.split(";")
        if not parents or rows.pop() or len(rows) != self.tables.columns[-1]:
            return False
        if not body.count("(") == body.count(")") == len(rows):
            return False
        heads, ends, numbers = zip(*(row.partition(")") for row in rows), strict=True)
        codes = [self.codes[v] for v in parents]
        key = (";".join(heads), *map(id, codes))
        if key not in self.orders:
            order = _order(heads, codes)
            if order is None:
                return False
            self.orders[key] = order
        self.tables.add_rows(self.orders[key], numbers)
        return ends.count(")") == len(rows)


def _order(heads: Sequence[str], codes: list[dict[str, int]]) -> list[int] | None:
    """The columns of texts `(states`, one for each parent; None where one is not as it should."""
    if not all(head.lstrip().startswith("(") for head in heads):
        return None
    words = "".join(heads).replace("(", " ( ").replace(",", " ").split()
    stride = 1 + len(codes)
    if len(words) != stride * len(heads) or words[::stride].count("(") != len(heads):
        return None
    order = [0] * len(heads)
    try:
        for j, code in enumerate(codes, start=1):
            states = map(code.__getitem__, words[j::stride])
            order = [at * len(code) + state for at, state in zip(order, states, strict=True)]
    except KeyError:
        return None
    return order


def bif_in_bulk(text: str) -> NetworkArrays | None:
    """The network in a BIF file."""
    if "//" in text or "/*" in text:
        text = _COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
    bif = _Bif(_Tables([], len(text)))
    at = 0
    while block := _BLOCK.match(text, at):
        at = block.end()
        name, count, states, scope, body = block.groups()
        if name and not bif.add_variable(name.strip('"'), count, _words(states)):
            return None
        if body and not bif.add_table([word for word in _words(scope) if word != "|"], body):
            return None
    arrays = None if text[at:].strip() else bif.tables.arrays()
    return None if arrays is None else NetworkArrays(bif.states, arrays)


def _words(text: str) -> list[str]:
    """The words of a list, quoted ones without their quotes."""
    if '"' not in text:
        return text.replace(",", " ").replace("|", " ").split()
    found = (word.strip('"') for word in re.findall(f"{_QUOTED}|{_WORD}++", text))
    return [word for word in found if word != ","]


def xmlbif_in_bulk(
    root: Element, states: Mapping[str, list[str]], number: Mapping[str, int], limit: int
) -> NetworkArrays | None:
    """The network in a tree of XMLBIF whose variables are known; `limit` is the file's length."""
    tables = _Tables([len(own) for own in states.values()], limit)
    for table in (*root.iter("DEFINITION"), *root.iter("PROBABILITY")):
        child = [(e.text or "").strip() for e in table.iter("FOR")]
        parents = [(e.text or "").strip() for e in table.iter("GIVEN")]
        scope = [number.get(name, -1) for name in (*child, *parents)]
        listed = table.find("TABLE")
        if len(child) != 1 or min(scope) < 0 or listed is None or not tables.start(scope):
            return None
        text = "".join(listed.itertext())
        if ";" in text or "," in text:
            return None
        tables.add_whole(text, by_column=True)
    arrays = tables.arrays()
    return None if arrays is None else NetworkArrays(states, arrays)
