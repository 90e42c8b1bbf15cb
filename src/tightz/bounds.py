"""A bound on log Z: which side, what kind of proof, and who found it when."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tightz.shown import Shown

if TYPE_CHECKING:
    from tightz.judge import Evidence


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
class Bound(Shown):
    """One number about log Z (natural log). Every method is a stream of these.

    `confidence` is 1.0 for a deterministic proof, 1 - delta for a CONFIDENCE one, and None where
    no probability statement is made. `why` is the proof in words.

    `rounding` is the error in nats that the sums behind the number can have. A lower or an upper
    bound was already moved outward by it; with side BOTH, log Z lies within `rounding` of `log_z`.
    `evidence` is what the judge re-evaluates; it does not travel into results and stores.
    """

    side: Side
    log_z: float
    proof: Proof
    method: str
    seconds: float = 0.0
    confidence: float | None = None
    why: str = ""
    rounding: float = 0.0
    evidence: Evidence | None = field(default=None, repr=False, compare=False)

    @property
    def low(self) -> float:
        """What this says log Z is at least; -inf where it says nothing."""
        if self.side is Side.UPPER:
            return -math.inf
        return self.log_z - self.rounding if self.side is Side.BOTH else self.log_z

    @property
    def high(self) -> float:
        """What this says log Z is at most; inf where it says nothing."""
        if self.side is Side.LOWER:
            return math.inf
        return self.log_z + self.rounding if self.side is Side.BOTH else self.log_z
