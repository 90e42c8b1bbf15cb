"""The simplest evidence: some states. The weights of different states are disjoint parts of Z."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.judge.rounding import LIBRARY, UNIT
from tightz.judge.verdict import RefutedError, Verdict
from tightz.judge.weights import allowed, log_weight
from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False)
class StatesEvidence:
    """states (k, variables) of the model; repeated rows count once."""

    states: NDArray[np.int64]

    def verdict(self, model: FactorGraph) -> Verdict:
        rows = np.unique(np.atleast_2d(np.asarray(self.states, dtype=np.int64)), axis=0)
        if not all(allowed(model, row) for row in rows):
            raise RefutedError("a state handed in as evidence is not a state of the model")
        weights = [log_weight(model, row) for row in rows]
        top = max(value for value, _ in weights)
        if top == -math.inf:
            return Verdict()
        spread = math.log(math.fsum(math.exp(value - top) for value, _ in weights))
        value = top + spread
        rounding = max(error for _, error in weights)
        rounding += 2 * UNIT * (abs(value) + len(weights)) + LIBRARY * (1.0 + spread)
        return Verdict(lower=value - rounding, rounding=rounding)
