"""A bound on log Z: which side, what kind of proof, and who found it when."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tightz.shown import ASIDE, Recorded, Shown

if TYPE_CHECKING:
    from tightz.judge import Evidence


class Side(enum.Enum):
    """What a number says about log Z."""

    LOWER = "lower"
    UPPER = "upper"
    BOTH = "both"
    ESTIMATE = "estimate"

    @property
    def sign(self) -> str:
        """What stands between log Z and the number."""
        return {"lower": ">=", "upper": "<=", "both": "=", "estimate": "~"}[self.value]


class Proof(enum.Enum):
    """Why a number holds; the value is the sentence shown to people."""

    DETERMINISTIC = "holds always"
    CONFIDENCE = "holds with the stated confidence over its random draws"
    IN_EXPECTATION = "holds for the expectation over random draws, not for one value"
    NONE = "an estimate: nothing is proven"


@dataclass(frozen=True)
class Bound(Recorded, Shown):
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
    evidence: Evidence | None = field(metadata=ASIDE, default=None, repr=False, compare=False)

    @property
    def low(self) -> float:
        """What this says log Z is at least; -inf where it says nothing."""
        if self.side in (Side.UPPER, Side.ESTIMATE):
            return -math.inf
        return self.log_z - self.rounding if self.side is Side.BOTH else self.log_z

    @property
    def high(self) -> float:
        """What this says log Z is at most; inf where it says nothing."""
        if self.side in (Side.LOWER, Side.ESTIMATE):
            return math.inf
        return self.log_z + self.rounding if self.side is Side.BOTH else self.log_z

    @property
    def holds(self) -> str:
        """In which sense it holds, in a few words."""
        if self.proof is Proof.DETERMINISTIC:
            return "holds always"
        if self.proof is Proof.CONFIDENCE:
            return f"with confidence {self.confidence:g}"
        if self.proof is Proof.IN_EXPECTATION:
            return "holds in expectation only"
        return "estimate, not proven"

    def summary(self) -> str:
        """`log Z >= 12.3   (holds always: mean field)`, the style of every summary()."""
        how = f"{self.holds}: {self.method}"
        if self.side is Side.BOTH:
            how = f"exact: {self.why or self.method}"
        return f"log Z {self.side.sign} {figure(self.log_z)}   ({how})"


def figure(value: float | None, digits: int = 6) -> str:
    """A value for people; infinities and missing values are said, never left blank."""
    if value is None or math.isnan(value):
        return "none"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return no_minus(f"{value:.{digits}f}")


def at_most(error: float) -> str:
    """An error for people, to one digit and never smaller than it is."""
    text = f"{error:.0e}"
    if not float(text) < error:
        return text
    digit, power = text.split("e")
    return f"{float(f'{int(digit) + 1}e{power}'):.0e}"


def no_minus(text: str) -> str:
    """A number that was rounded to nothing has no sign: 0.000, not -0.000."""
    return text.removeprefix("-") if not text.strip("-0.") else text
