"""A bound on log Z: which side, what kind of proof, and who found it when."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Side(enum.Enum):
    """What a number says about log Z."""

    LOWER = "lower"
    UPPER = "upper"
    BOTH = "both"
    ESTIMATE = "estimate"


class Proof(enum.Enum):
    """Why a number holds; the value is the sentence shown to people."""

    DETERMINISTIC = "holds always"
    CONFIDENCE = "holds with the stated confidence over its random draws"
    IN_EXPECTATION = "holds for the expectation over random draws, not for one value"
    NONE = "an estimate: nothing is proven"


@dataclass(frozen=True)
class Bound:
    """One number about log Z (natural log). Every method is a stream of these.

    `confidence` is 1.0 for a deterministic proof, 1 - delta for a CONFIDENCE one, and None where
    no probability statement is made. `why` is the proof in words.
    """

    side: Side
    log_z: float
    proof: Proof
    method: str
    seconds: float = 0.0
    confidence: float | None = None
    why: str = ""

    def _repr_html_(self) -> str:
        from tightz.reports.notebook import bound_html

        return bound_html(self)
