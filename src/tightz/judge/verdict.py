"""What the judge is given and what it answers."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from tightz.models.factor_graph import FactorGraph


class Verdict(NamedTuple):
    """lower <= log Z <= upper, both moved outward by `rounding` nats; infinite: no statement."""

    lower: float = -math.inf
    upper: float = math.inf
    rounding: float = 0.0


class Evidence(Protocol):
    """What a bound rests on: arrays that can be checked without trusting who made them."""

    def verdict(self, model: FactorGraph) -> Verdict:
        """What this evidence proves about log Z of `model`; RefutedError where it is not sound."""


class RefutedError(Exception):
    """Evidence that does not hold: a table that does not sum to the model, a q that is none."""
