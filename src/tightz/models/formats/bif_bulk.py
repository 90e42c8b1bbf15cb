"""Bayesian networks of BIF and XMLBIF files in bulk: blocks by one pattern, numbers all at once.

Only files as programs write them are read here. Whatever is not quite so, an error or a freedom
that the formats allow, gives None, and the careful reader of `bif` takes the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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

_ROWS = re.compile(r"(?:\s*+\([^();]*+\)[^();]*+;)++\s*+")
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

    def add_rows(self, places: list[int], rows: list[str]) -> None:
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
        column_ptr = pointers(columns)
        places = np.fromiter(chain(*self.places), dtype=np.int64, count=int(column_ptr[-1]))
        states = cards[scope_vars[scope_ptr[:-1]]]
        sizes = states * columns
        owner = np.repeat(np.arange(sizes.size), sizes)
        rank, by_column = ranks(sizes), np.array(self.by_column)[owner]
        column = np.where(by_column, rank // states[owner], rank % columns[owner])
        sums = np.bincount(column_ptr[owner] + column, values, int(column_ptr[-1]))
        if (np.abs(sums - 1.0) > SLACK - 1e-9).any():  # near the edge the order of adding decides
            return None
        state = rank - column * states[owner]
        turned = state * columns[owner] + places[column_ptr[owner] + column]
        table_ptr = pointers(sizes)
        logs = np.full(values.size, np.nan)
        with np.errstate(divide="ignore"):
            logs[table_ptr[owner] + np.where(by_column, turned, rank)] = np.log(values)
        if np.isnan(logs).any():  # a column is there twice, so another one is not
            return None
        return Arrays(cards, scope_ptr, scope_vars, table_ptr, logs)


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


def bif_in_bulk(text: str) -> NetworkArrays | None:
    """The network in a BIF file."""
    if "//" in text or "/*" in text:
        text = _COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
    states: dict[str, list[str]] = {}
    codes: list[dict[str, int]] = []
    number: dict[str, int] = {}
    tables = _Tables([], len(text))
    at = 0
    while block := _BLOCK.match(text, at):
        at = block.end()
        name, count, listed, scope, body = block.groups()
        if name is not None:
            own = _words(listed)
            name = name.strip('"')
            if name in states or not own or count != str(len(own)) or len(set(own)) != len(own):
                return None
            number[name] = len(states)
            states[name] = own
            codes.append({word: k for k, word in enumerate(own)})
            tables.cards.append(len(own))
        elif scope is not None:
            named = [number.get(word, -1) for word in _words(scope) if word != "|"]
            if not named or min(named) < 0 or not _add_table(tables, named, body, codes):
                return None
    if text[at:].strip():
        return None
    arrays = tables.arrays()
    return None if arrays is None else NetworkArrays(states, arrays)


def _words(text: str) -> list[str]:
    """The words of a list, quoted ones without their quotes."""
    if '"' not in text:
        return text.replace(",", " ").replace("|", " ").split()
    found = (word.strip('"') for word in re.findall(f"{_QUOTED}|{_WORD}++", text))
    return [word for word in found if word != ","]


def _add_table(tables: _Tables, scope: list[int], body: str, codes: list[dict[str, int]]) -> bool:
    """Take a table's numbers from its body, or say that they are not as expected."""
    columns = tables.start(scope)
    if '"' in body:
        if any(map(_SIGNS.search, re.findall(_QUOTED, body))):
            return False
        body = body.replace('"', " ")
    body = body.strip()
    if not columns or "[" in body or "]" in body or "|" in body:
        return False
    if body.startswith("table"):
        if not body[5:6].isspace() or body.find(";") != len(body) - 1:
            return False
        tables.add_whole(body[5:-1], by_column=False)
        return True
    if len(scope) == 1 or not _ROWS.fullmatch(body):
        return False
    pieces = body.replace("(", ";").replace(")", ";").split(";")
    words = " ( ".join(pieces[1::3]).replace(",", " ").split()
    stride, rows = len(scope), pieces[2::3]
    if len(rows) != columns or len(words) != stride * columns - 1:
        return False
    if words[stride - 1 :: stride].count("(") != columns - 1:
        return False
    try:
        places = list(map(codes[scope[1]].__getitem__, words[::stride]))
        for j, v in enumerate(scope[2:], start=1):
            states = map(codes[v].__getitem__, words[j::stride])
            d = tables.cards[v]
            places = [place * d + state for place, state in zip(places, states, strict=True)]
    except KeyError:
        return False
    tables.add_rows(places, rows)
    return True


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
