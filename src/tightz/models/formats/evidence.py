"""Evidence that comes with a model: a UAI evidence file, or a mapping variable -> state.

Where a format has names, variables and states may be given by name or by number.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.text_files import FilePath, Words
from tightz.models.inputs import shown

Evidence = FilePath | Mapping[Any, Any]


def given(model: FactorGraph, evidence: Evidence | None) -> FactorGraph:
    """The model with evidence from a file or a mapping, beside what it has; None: itself.

    A UAI evidence file is `k v1 s1 ... vk sk`, or the number of samples, which must be 1, and then
    the same. The number of words tells them apart: it is 1 + 2k, odd, in the first dialect and
    2 + 2k, even, in the second, so no file fits both. An empty file, `0` and `1 0` hold no
    evidence; several samples are refused.
    """
    if evidence is None:
        return model
    if isinstance(evidence, str | os.PathLike):
        evidence = _from_file(evidence, model.cardinalities)
    if not isinstance(evidence, Mapping):
        raise ModelError(
            f"evidence is {shown(evidence)}; expected the name of a file or a mapping of variables "
            "to states, such as {3: 1}" + (" or {'rain': 'yes'}" if model.names else "")
        )
    return model.with_evidence(evidence) if evidence else model


def _from_file(path: FilePath, cards: NDArray) -> dict[int, int]:
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
