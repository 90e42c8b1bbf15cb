"""Evidence on a model: a mapping variable -> state, the text `rain=yes`, or a file.

A file is a UAI evidence file, a JSON object, or a line `name=state` for each variable observed.
Variables and states go by name where the model has names, and by number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.text_files import FilePath, Words, read_bytes
from tightz.models.inputs import shown

Evidence = FilePath | Mapping[Any, Any]


def given(model: FactorGraph, evidence: Evidence | None) -> FactorGraph:
    """The model with evidence beside what it has; None: itself.

    evidence   {"rain": "yes"}, "rain=yes", or the name of a file: a UAI evidence file, a JSON
               object, or lines `rain=yes` (empty ones do not count, nor those that begin
               with #, unless a variable is called so). What `tightz map` prints for one state is
               such a file, with and without --json

    A UAI evidence file is `k v1 s1 ... vk sk`, or the number of samples, which must be 1, and then
    the same. The number of words tells them apart: it is 1 + 2k, odd, in the first dialect and
    2 + 2k, even, in the second, so no file fits both. An empty file, `0` and `1 0` hold no
    evidence; several samples are refused.
    """
    if evidence is None:
        return model
    if isinstance(evidence, str | os.PathLike):
        text = os.fspath(evidence)
        if not os.path.exists(text) and ("=" in str(text) or text in (model.names or ())):
            return model.with_evidence(dict([_pair(model, str(text))]))
        evidence = _from_file(evidence, model)
    if not isinstance(evidence, Mapping):
        raise ModelError(
            f"evidence is {shown(evidence)}; expected the name of a file or a mapping of variables "
            "to states, such as {3: 1}" + (" or {'rain': 'yes'}" if model.names else "")
        )
    return model.with_evidence(evidence) if evidence else model


def _from_file(path: FilePath, model: FactorGraph) -> dict[int, int]:
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] == b"{":
        return _from_json(path, data, model)
    if b"=" not in data:
        return _from_uai(path, model.cardinalities)
    found: dict[int, int] = {}
    known = set(model.names or ())
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        remark = line.lstrip()[:1] == "#" and not any(part[0] in known for part in _parts(line))
        if not line.strip() or remark:
            continue
        try:
            v, state = _pair(model, line)
            if found.setdefault(v, state) != state:
                raise ModelError(
                    f"evidence puts {model.naming.said(v)} in a second state; expected one"
                )
        except ModelError as error:
            raise ModelError(f"{error} ({path}, line {number})") from None
    return found


def _parts(text: str) -> list[tuple[str, str]]:
    """What stands before and after each = of a text."""
    return [(text[:k].strip(), text[k + 1 :].strip()) for k, c in enumerate(text) if c == "="]


def _pair(model: FactorGraph, text: str) -> tuple[int, int]:
    """`name=state` as numbers; names may hold = themselves."""
    known = model.names or ()
    parts = _parts(text)
    if not parts:
        name = text.strip()[:40]
        like = name if name in known else "rain"
        state = model.naming.state_labels(model.index(name))[0] if name in known else "yes"
        raise ModelError(f"evidence is {name!r}; expected a pair such as {like}={state}")
    named = [part for part in parts if part[0] in known]
    whole = [part for part in named if part[1] in model.naming.state_labels(model.index(part[0]))]
    if len(whole) > 1:
        (one, its), (two, other) = whole[:2]
        raise ModelError(
            f"evidence is {text.strip()[:40]!r}, which may put {one!r} in state {its!r} or {two!r} "
            f"in state {other!r}; expected one of them, as a mapping or a JSON object"
        )
    name, state = (whole or named or parts)[0]
    ((v, found),) = model.naming.numbered({name: state}, text=True).items()
    return v, found


def _from_json(path: FilePath, data: bytes, model: FactorGraph) -> dict[int, int]:
    try:
        told = json.loads(data, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f'the evidence is no JSON object such as {{"rain": "yes"}}: {error} ({path})'
        ) from None
    if isinstance(told.get("state"), dict):  # what `tightz map --json` printed
        told = told["state"]
    try:
        return model.naming.numbered(told, text=True)
    except ModelError as error:
        raise ModelError(f"{error} ({path})") from None


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a name that it has twice the first would be lost."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise ValueError(f"{name[:40]!r} stands in it twice")
    return found


def _from_uai(path: FilePath, cards: NDArray) -> dict[int, int]:
    words = Words(path)
    if not len(words):
        return {}
    listed, at = words.count(0, "the number of observed variables"), 1
    if listed == 1 and len(words) % 2 == 0:
        listed, at = words.count(1, "the number of observed variables"), 2
    if len(words) - at != 2 * listed:
        words.fail(
            f"evidence on {listed} variables is announced and {len(words) - at} words follow; "
            f"expected {2 * listed}, a variable and a state each (of one sample)"
        )
    vs, states = words.counts[at::2], words.counts[at + 1 :: 2]
    if ((vs >= 0) & (vs < cards.size) & (states >= 0)).all() and (states < cards[vs]).all():
        evidence = dict(zip(vs.tolist(), states.tolist(), strict=True))
        if len(evidence) == listed:
            return evidence
    evidence = {}
    for i in range(at, len(words), 2):
        v = words.count(i, "an observed variable")
        if v >= cards.size:
            known = f"variables 0 to {cards.size - 1}" if cards.size else "no variables"
            words.fail(f"evidence names variable {v}; the model has {known}", i)
        state = words.count(i + 1, f"the observed state of variable {v}")
        if state >= cards[v]:
            words.fail(
                f"evidence puts variable {v} in state {state}; it has states 0 to {cards[v] - 1}",
                i + 1,
            )
        if evidence.setdefault(v, state) != state:
            words.fail(f"evidence puts variable {v} in state {evidence[v]} and in {state}", i + 1)
    return evidence
