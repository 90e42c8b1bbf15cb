"""Names of a model's variables and of their states, and the numbers that they stand for.

A str is a name and an int is a number, always: names are given where people read and write, all
work is done on numbers. Only in text, from a file or a command line, may a word of digits be a
number, and there too only where no name looks like one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.inputs import as_index, as_state, shown, told

States = tuple[tuple[str, ...] | None, ...]
"""For each variable the names of its states, None where they have numbers only."""

SHOWN = 8
"""Names that a message lists."""


@dataclass(frozen=True, eq=False)
class Names:
    """What a model's variables and states are called; `variables` and `states` may be None.

    `origin` is where the names come from, for messages: the model's name or its file. In each
    method `by` is who gives a name, for messages, and `text` says that all came as text.
    """

    cardinalities: NDArray
    variables: tuple[str, ...] | None = None
    states: States | None = None
    origin: str = ""

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: v for v, name in enumerate(self.variables or ())}

    @property
    def _place(self) -> str:
        return f" ({self.origin})" if self.origin else ""

    def label(self, variable: int) -> str:
        """What a variable is called: its name, or its number where it has none."""
        return str(variable) if self.variables is None else self.variables[variable]

    def state_labels(self, variable: int) -> tuple[str, ...]:
        """What the states of a variable are called: names, or numbers where they have none."""
        named = None if self.states is None else self.states[variable]
        return named or tuple(map(str, range(int(self.cardinalities[variable]))))

    def said(self, variable: int) -> str:
        """A variable in a sentence."""
        return f"variable {variable}" if self.variables is None else repr(self.variables[variable])

    def index(self, variable: Any, by: str = "lookup", *, text: bool = False) -> int:
        """The number of a variable given by name or number."""
        if isinstance(variable, tuple) and self.variables:  # coordinates that became a name
            variable = str(variable)
        if isinstance(variable, str):
            variable = _meant(variable, self._number, text=text)
        if isinstance(variable, str) and (self.variables or not variable.isdecimal()):
            known = _closest(variable, self.variables, "numbers for names")
            raise ModelError(f"{by} names {variable[:40]!r}; the model has {known}{self._place}")
        v = as_index(variable, f"a variable of the {by}")
        if v >= self.cardinalities.size:
            last = self.cardinalities.size - 1
            known = f"variables 0 to {last}" if last >= 0 else "no variables"
            raise ModelError(f"{by} names variable {v}; the model has {known}{self._place}")
        return v

    def state(self, variable: Any, state: Any, by: str = "lookup", *, text: bool = False) -> int:
        """The number of a state given by name or number, of a variable given likewise."""
        v = self.index(variable, by, text=text)
        count = int(self.cardinalities[v])
        named = None if self.states is None else self.states[v]
        if isinstance(state, bool | np.bool_) and named:  # 'true' may well be listed first
            state = next((name for name in named if name.lower() == str(state).lower()), str(state))
        if isinstance(state, str):
            state = _meant(state, {name: s for s, name in enumerate(named or ())}, text=text)
        if isinstance(state, str) and (named or not state.isdecimal()):
            raise ModelError(
                f"{by} puts {self.said(v)} in state {state[:40]!r}; it has "
                f"{_closest(state, named, 'states without names')}{self._place}"
            )
        s = as_state(state, f"{by} on {self.said(v)}")
        if s >= count:
            raise ModelError(
                f"{by} puts {self.said(v)} in state {s}; it has states 0 to {count - 1}"
                f"{self._place}"
            )
        return s

    def numbered(self, evidence: Any, *, text: bool = False) -> dict[int, int]:
        """Evidence {variable: state}, by names or numbers, as numbers of both."""
        if evidence is None or (isinstance(evidence, Mapping) and not evidence):
            return {}
        if not isinstance(evidence, Mapping):
            raise ModelError(
                f"evidence is {shown(evidence)}; expected a mapping variable -> state, such as "
                + ("{'rain': 'yes'}" if self.variables else "{0: 1}")
            )
        if self._are_numbers(evidence):
            return dict(evidence)
        found: dict[int, int] = {}
        for variable, given in evidence.items():
            v = self.index(variable, "evidence", text=text)
            state = self.state(v, given, "evidence", text=text)
            if found.setdefault(v, state) != state:
                raise ModelError(
                    f"evidence puts {self.said(v)} in two states, the second being {told(given)}; "
                    f"expected one{self._place}"
                )
        return found

    def _are_numbers(self, evidence: Mapping[Any, Any]) -> bool:
        """Whether all is as the engine itself observes variables: plain numbers that exist."""
        if {*map(type, evidence), *map(type, evidence.values())} != {int}:
            return False
        try:
            keys, states = (np.fromiter(x, np.int64) for x in (evidence, evidence.values()))
        except OverflowError:
            return False
        if keys.min() < 0 or keys.max() >= self.cardinalities.size or states.min() < 0:
            return False
        return bool((states < self.cardinalities[keys]).all())

    def assignment(self, states: Iterable[int]) -> dict[str, str]:
        """A state of the model, {variable: state}, in the words of the model."""
        rows = enumerate(states)
        return {self.label(v): self.state_labels(v)[int(state)] for v, state in rows}

    def distribution(self, variable: int, probabilities: Iterable[float]) -> dict[str, float]:
        """A marginal, {state: probability}."""
        return dict(zip(self.state_labels(variable), map(float, probabilities), strict=True))

    def by_variable(self, rows: Iterable[Any]) -> dict[str, dict[str, Any]]:
        """A value for each state of each variable, {variable: {state: value}}."""
        return {self.label(v): self.by_state(v, row) for v, row in enumerate(rows)}

    def by_state(self, variable: int, row: Any) -> dict[str, Any]:
        """A value for each state of a variable, {state: value}."""
        return dict(zip(self.state_labels(variable), np.asarray(row).tolist(), strict=True))

    def observed(self, evidence: Mapping[int, int]) -> dict[str, str]:
        """What is observed, {variable: state}, in the words of the model."""
        return {self.label(v): self.state_labels(v)[s] for v, s in evidence.items()}

    @property
    def given(self) -> bool:
        """Whether anything has a name."""
        return self.variables is not None or self.states is not None

    def record(self) -> dict[str, Any]:
        """As JSON values, for `names_kept`."""
        return {"names": self.variables, "states": self.states}

    def of(self, variables: NDArray[np.int64]) -> tuple[tuple[str, ...] | None, States | None]:
        """Names and states of some of the variables, in that order."""
        names, states, chosen = self.variables, self.states, variables.tolist()
        return (
            None if names is None else tuple([names[v] for v in chosen]),
            None if states is None else tuple([states[v] for v in chosen]),
        )


def names_kept(record: Mapping[str, Any], vectors: Sequence[Any]) -> Names | None:
    """The names that a run kept, of variables with these marginals; None where it kept none."""
    known, cards = record.get("names"), numbers_of(vectors).cardinalities
    if known is None and record.get("states") is None:
        return None
    names = checked_names(known, len(cards))
    return Names(cards, names, checked_states(record.get("states"), names, cards))


def numbers_of(vectors: Iterable[Any]) -> Names:
    """The names of variables that have none, by their vectors of probabilities."""
    return Names(np.array([len(vector) for vector in vectors], dtype=np.int64))


def checked_names(names: Any, n: int) -> tuple[str, ...] | None:
    """One name for each of n variables, all different."""
    if names is None:
        return None
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Iterable):
        raise ModelError(
            f"names are {shown(names)}; expected a sequence of {n} strings, one for each variable"
        )
    return _distinct(tuple(names), n, "names", "variables")


def checked_states(states: Any, names: tuple[str, ...] | None, cards: NDArray) -> States | None:
    """For each variable None or one name for each of its states; a mapping goes by variable."""
    if states is None:
        return None
    if isinstance(states, Mapping):
        by_number: list[Any] = [None] * len(cards)
        known = Names(cards, names)
        for variable, listed in states.items():
            by_number[known.index(variable, "mapping states")] = listed
        states = by_number
    if isinstance(states, str | bytes) or not isinstance(states, Iterable):
        raise ModelError(
            f"states are {shown(states)}; expected for each variable the names of its states, such "
            "as [('no', 'yes'), ('no', 'yes')]"
        )
    every = list(states)
    if len(every) != len(cards):
        raise ModelError(
            f"states of {len(every)} variables are given and the model has {len(cards)}; expected "
            "names or None for each"
        )
    seen: dict[tuple[Any, ...], tuple[str, ...]] = {}  # many variables share few sets of states
    out: list[tuple[str, ...] | None] = []
    for v, (own, count) in enumerate(zip(every, cards.tolist(), strict=True)):
        if own is None:
            out.append(None)
            continue
        if isinstance(own, str | bytes | Mapping) or not isinstance(own, Iterable):
            raise ModelError(
                f"the states of {Names(cards, names).said(v)} are {shown(own)}; expected a "
                f"sequence of {count} strings"
            )
        key = tuple(own)
        if len(key) != count or key not in seen:
            what = f"the states of {Names(cards, names).said(v)}"
            seen[key] = _distinct(key, count, what, "states")
        out.append(seen[key])
    return tuple(out)


def _distinct(words: tuple[Any, ...], count: int, what: str, things: str) -> tuple[str, ...]:
    if len(words) != count:
        raise ModelError(f"{what} are {len(words)}; expected one for each of {count} {things}")
    first: dict[str, int] = {}
    for at, word in enumerate(words):
        if not isinstance(word, str):
            raise ModelError(f"{what}: the entry {at} is {shown(word)}; expected a str of it")
        if first.setdefault(word, at) != at:
            raise ModelError(
                f"{what}: the entries {first[word]} and {at} are both {word!r}; expected distinct "
                "names"
            )
    return words


def _meant(word: str, number: Mapping[str, int], *, text: bool) -> int | str:
    """The number of that name; in text, digits where no name has any; else the word itself."""
    if word in number:
        return number[word]
    digits = text and word.isdecimal() and not any(map(str.isdecimal, number))
    return int(word) if digits else word


def _closest(word: str, known: Sequence[str] | None, otherwise: str) -> str:
    """What may have been meant: names close to `word`, or the first ones there are."""
    if not known:
        return otherwise
    near = [name for name in known if name.lower() == word.lower()]
    if not near:
        near = [name for name in known if abs(len(name) - len(word)) <= SHOWN]
        near = difflib.get_close_matches(word, near, n=3, cutoff=0.6)
    if near:
        return f"no such: did you mean {' or '.join(repr(name) for name in near[:3])}?"
    more = f", ... ({len(known)} in all)" if len(known) > SHOWN else ""
    return f"{', '.join(repr(name) for name in known[:SHOWN])}{more}"
