"""Where findings meet: the best of each kind, kept in one thread, contradictions set aside."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import StoreError
from tightz.judge import RefutedError
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.clock import Clock
from tightz.sampling.calibration import combine
from tightz.sampling.ledger import Ledger
from tightz.workspace.findings import (
    Clamped,
    Draws,
    Finding,
    Marginals,
    Mixing,
    PointEstimate,
    Samples,
)
from tightz.workspace.shares import Shares

UNKNOWN_LOWER = Bound(Side.LOWER, -math.inf, Proof.DETERMINISTIC, "nothing yet", confidence=1.0)
UNKNOWN_UPPER = Bound(Side.UPPER, math.inf, Proof.DETERMINISTIC, "nothing yet", confidence=1.0)

CLAIM = 0.5
"""Nats by which a maker may claim more than the judge finds before that is reported."""

NEWS, READING = 1.1, 0.05
"""The ledger is read when a track has this many times the draws of the last reading, and for no
more than this part of the time."""

CALIBRATED = 0.95
"""Share of runs in which the truth lies within two errors of the estimate: an interval that holds
with this confidence bounds the error. One that holds less often only moves the estimate."""

SECURE_EVERY = 3.0
"""Seconds after which draws that nobody has asked about are written to the store."""

BETS = "a mixture of bets over streams and stakes reached 2/delta (Ville)"

_TRUST = {
    Mixing.EXACT: 3,
    Mixing.ROUNDED: 3,
    Mixing.MIXED: 2,
    Mixing.VARIATIONAL: 1,
    Mixing.NOT_MIXED: 0,
}


@dataclass(frozen=True)
class Quarantined:
    """A bound that was refused, and why: a defect of tightz (or of a user's stream)."""

    bound: Bound
    reason: str

    def __str__(self) -> str:
        b = self.bound
        return f"{b.method}: {b.side.value} {b.log_z!r} was refused: {self.reason}"


@dataclass(frozen=True)
class Ends:
    """What is proven at one moment; streams read it to skip what would be no news."""

    lower: float = -math.inf
    upper: float = math.inf

    def improved_by(self, bound: Bound) -> bool:
        """Whether `bound` would move an end, taken at its word."""
        if bound.side is Side.LOWER and bound.proof is Proof.DETERMINISTIC:
            return not bound.log_z <= self.lower
        if bound.side is Side.UPPER:
            return not bound.log_z >= self.upper
        return True


@dataclass(frozen=True)
class Doubt:
    """What is still open: both proven ends, the confident interval, the estimate's error."""

    lower: float
    upper: float
    confident: tuple[float, float]
    error: float

    def narrowed_to(self, later: Doubt) -> float:
        """The part of the doubt that is gone by `later`: 1 for each number that became finite.

        Shares, not nats: the last tenth of a nat is as hard to come by as the first hundred. A
        proven end counts by its distance from the middle of the confident interval: otherwise a far
        lower end would hide what an upper one gains.
        """
        middle = 0.5 * (later.confident[0] + later.confident[1])
        if not self.lower < middle < self.upper:
            middle = later.upper  # all of the interval is then below
        return (
            0.5 * _lost(middle - self.lower, middle - later.lower)
            + 0.5 * _lost(self.upper - middle, later.upper - middle)
            + 0.5 * _lost(_width(self.confident), _width(later.confident))
            + 0.5 * _lost(self.error, later.error)
        )


def _width(ends: tuple[float, float]) -> float:
    return ends[1] - ends[0]


def _lost(old: float, new: float) -> float:
    if not old > 0.0 or old == new or math.isnan(new):  # nothing was open, or it still is
        return 0.0
    return 1.0 if math.isinf(old) else max(0.0, 1.0 - new / old)


def judged(bound: Bound, model: FactorGraph, slack: float = 0.0) -> Bound:
    """The bound as the judge finds it from its evidence; RefutedError where there is none.

    `slack` is the rounding of the reductions between `model` and the model that was asked about.
    A confidence bound or an estimate claims no proof of this kind and passes as it is.
    """
    if math.isnan(bound.log_z):
        raise RefutedError("it is not a number")
    if bound.proof is not Proof.DETERMINISTIC:
        return bound
    if bound.evidence is None:
        raise RefutedError(
            "a bound that holds always needs evidence; Bound(evidence=...) takes any of "
            "tightz.judge, such as StatesEvidence(states) or ProductEvidence(marginals)"
        )
    # From here on the maker's number is gone: the value that is kept is the judge's.
    found = bound.evidence.verdict(model)
    rounding = found.rounding + slack
    low, high = found.lower - slack, found.upper + slack
    if bound.side is Side.BOTH:
        if low == high == -math.inf:
            return replace(bound, log_z=-math.inf, rounding=0.0, evidence=None)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RefutedError(f"its evidence proves {low} <= log Z <= {high}, not a value")
        middle = low + (high - low) / 2.0
        return replace(
            bound, log_z=middle, rounding=max(high - middle, middle - low), evidence=None
        )
    value = low if bound.side is Side.LOWER else high
    # Rounding moves the judge's value outward a little. A claim far beyond that means that the
    # maker computed something else: refused, so that the defect is seen.
    excess = bound.log_z - value if bound.side is Side.LOWER else value - bound.log_z
    if excess > CLAIM + rounding + 1e-12 * abs(value):
        raise RefutedError(f"its evidence gives {value}")
    return replace(bound, log_z=value, rounding=rounding, evidence=None)


@dataclass
class Board:
    """The best of each side so far. Only the driver's thread calls its methods."""

    clock: Clock
    on_bound: Callable[[Bound], None] | None = None
    keep: Callable[[Bound], None] | None = None
    before: float = 0.0
    session: int = 0  # of a stored run, from 1 on
    lost: StoreError | None = None  # why its store takes no more
    bounds: list[Bound] = field(default_factory=list)
    lower: Bound = UNKNOWN_LOWER
    upper: Bound = UNKNOWN_UPPER
    confident_lower: Bound = UNKNOWN_LOWER
    confident_upper: Bound = UNKNOWN_UPPER
    ledger: Ledger = field(default_factory=lambda: Ledger(0.05))
    keep_ledger: Callable[[Ledger], None] | None = None
    slack: Callable[[], float] = float  # nats of rounding between the draws' model and the model
    marginals: Marginals | None = None
    clamped: Clamped | None = None  # of the working graph, the best of all
    earlier: list[NDArray[np.float64]] | None = None  # always ends of the model's marginals
    shares: dict[str, Shares] = field(default_factory=dict)  # by track, the last of each
    estimates: dict[str, PointEstimate] = field(default_factory=dict)
    sampler: Callable[..., Samples] | None = None
    sampler_mixed: bool = False
    notes: list[str] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _read: dict[int, int] = field(default_factory=dict)
    _reading: float = 0.0
    _unkept: bool = False
    _kept_at: float = 0.0
    _foreign: dict[str, float] = field(default_factory=dict)
    _said: set[Side] = field(default_factory=set)

    @property
    def closed(self) -> bool:
        return self.lower.side is Side.BOTH

    @property
    def settled(self) -> bool:
        """Whether little is left to find: proven ends apart by rounding, marginals with ends."""
        width = self.ends.upper - self.ends.lower
        digits = 4.0 * (self.lower.rounding + self.upper.rounding) + 1e-13 * abs(self.ends.upper)
        good = self.marginals is not None and _TRUST[self.marginals.mixing] >= 2
        return self.closed or (width <= digits and good and self.clamped is not None)

    @property
    def ends(self) -> Ends:
        return Ends(self.lower.low, self.upper.high)

    @property
    def doubt(self) -> Doubt:
        """What the run is about to reduce; what a stream takes away from it is its merit."""
        confident = self.confident_lower.low, self.confident_upper.high
        return Doubt(self.ends.lower, self.ends.upper, confident, self.point_estimate().error)

    @property
    def confidence(self) -> float:
        """With which both confident ends hold together.

        The ledger's hold at 1 - delta. A certificate that a stream of its own makes spends error
        beside it, whichever of them carries the end: the shares add up (union bound).
        """
        return max(0.0, 1.0 - self.ledger.delta - sum(self._foreign.values()))

    @property
    def marginal_delta(self) -> float:
        """For the bets on marginals, which begin anew with every session of a stored run.

        Who looks at a session's ends may go on or stop: all sessions together spend delta.
        """
        k = self.session
        return self.ledger.delta / (k * (k + 1.0)) if k else self.ledger.delta

    @property
    def seconds(self) -> float:
        """Since the start of the run, earlier sessions included."""
        return self.clock.elapsed + self.before

    @property
    def knows_marginals(self) -> bool:
        """Whether they are summed, and nothing better is to come."""
        return self.marginals is not None and _TRUST[self.marginals.mixing] == 3

    def merge(self, finding: Finding) -> None:
        """Take what is better than what is there; bounds have been judged before."""
        if finding.bound is not None:
            self.take(finding.bound)
        if finding.marginals is not None:
            self._offer(finding.marginals)
        if finding.estimate is not None:
            self.estimates[finding.estimate.family] = finding.estimate
        if finding.draws is not None:
            self._count(finding.draws)
        if finding.clamped is not None:
            self._clamp(finding.clamped)
        if finding.shares is not None:
            self.shares[finding.shares.track] = finding.shares
        if finding.sampler is not None:
            mixed = finding.marginals is not None and finding.marginals.mixing is Mixing.MIXED
            if mixed or not self.sampler_mixed:
                self.sampler, self.sampler_mixed = finding.sampler, mixed
        if finding.note and finding.note not in self.notes:
            self.notes.append(finding.note)

    def _clamp(self, found: Clamped) -> None:
        """Keep the better of the ends, entry by entry."""
        old = self.clamped
        if old is None:
            self.clamped = found
            return
        lower, upper = np.maximum(old.lower, found.lower), np.minimum(old.upper, found.upper)
        new = (lower > old.lower).any() or (upper < old.upper).any()
        sources = old.source.split(", ")
        if new and found.source not in sources:
            sources.append(found.source)
        self.clamped = Clamped(lower, upper, ", ".join(sources))

    def _count(self, draws: Draws) -> None:
        """Enter a batch into the ledger; read the interval when there is enough news."""
        self._unkept = True  # before them: Ctrl-C may come between
        account = self.ledger.add(draws)
        if self.clock.elapsed - self._kept_at > SECURE_EVERY:
            self.secure()
        source = id(account.source)
        if account.drawn >= NEWS * self._read.get(source, 0) + 1 and (
            self._reading <= READING * self.clock.elapsed
        ):
            self._read[source] = account.drawn
            self.read()

    def secure(self) -> None:
        """Have the ledger written down. Comes before whatever its draws lead to is shown.

        Then a session that is killed loses only draws that nobody has seen, its end did not depend
        on them, and the wealth that is stored may be bet on (see `Ledger`).
        """
        if self._unkept and self.keep_ledger is not None:
            self._store(self.keep_ledger, self.ledger)
        self._unkept, self._kept_at = False, self.clock.elapsed

    def read(self) -> None:
        """Both ends of the confident interval as the ledger has them now.

        When to look is free to choose: the certificate holds at any stopping time.
        """
        self.secure()
        if self.lost is not None:
            return
        begun = time.thread_time()
        slack = self.slack() if self.ledger.accounts else 0.0
        low, high = self.ledger.lower() - slack, self.ledger.upper() + slack
        for side, value in ((Side.LOWER, low), (Side.UPPER, high)):
            if not math.isfinite(value):
                continue
            track = self.ledger.leader(value, upper=side is Side.UPPER)
            drawn = sum(a.drawn for a in self.ledger.accounts if a.source.track == track)
            self._take(
                Bound(
                    side, value, Proof.CONFIDENCE, f"{track}, {drawn:,} draws",
                    confidence=1.0 - self.ledger.delta, why=BETS,
                )
            )  # fmt: skip
        self._reading += time.thread_time() - begun

    def recall(self, bounds: list[Bound]) -> None:
        """Take over the records of earlier sessions as they are."""
        for bound in bounds:
            if self._is_news(bound):
                self._record(bound)

    def take(self, bound: Bound) -> None:
        """Record a stream's bound if it is news; set it aside if it contradicts what is proven."""
        if bound.proof is Proof.CONFIDENCE:
            share = 1.0 - (bound.confidence or 0.0)
            self._foreign[bound.method] = max(share, self._foreign.get(bound.method, 0.0))
        self.secure()  # a bound may have come from states that were drawn
        self._take(bound)

    def _take(self, bound: Bound) -> None:
        bound = replace(bound, seconds=self.seconds)
        reason = self._contradiction(bound)
        if reason and bound.proof is Proof.DETERMINISTIC:
            self.refuse(bound, reason)
        elif reason:  # fails with probability delta, and then this is how it shows
            self._failed(bound, f"dropped, {reason}")
        elif self._is_news(bound):
            if self.keep is not None:  # before it is shown: whoever was shown it may end the run
                self._store(self.keep, bound)
            if self.lost is None or bound.proof is Proof.DETERMINISTIC:
                self._record(bound)

    def _store(self, write: Callable[[Any], None], what: Any) -> None:
        """Write it down. Where that fails the run ends, and what rests on draws is shown no more: a
        later session would bet with a wealth that does not know of them."""
        try:
            write(what)
        except StoreError as error:
            self.lost, self.keep, self.keep_ledger = error, None, None

    def _failed(self, bound: Bound, what: str) -> None:
        """Say once for each side that a certificate failed; it will go on being wrong."""
        if bound.side not in self._said:
            self._said.add(bound.side)
            self.notes.append(f"{bound.method}: {bound.log_z!r} {what}")

    def refuse(self, bound: Bound, reason: str) -> None:
        """Set a bound aside: the run goes on, the result says so."""
        self.quarantined.append(Quarantined(replace(bound, evidence=None), reason))

    def _contradiction(self, bound: Bound) -> str:
        """Why `bound` cannot hold beside what is proven; "" where it can. Rounding is in both."""
        low, high = bound.low, bound.high
        if low > self.ends.upper:
            return f"log Z <= {self.ends.upper!r} is proven ({self.upper.method})"
        if high < self.ends.lower:
            return f"log Z >= {self.ends.lower!r} is proven ({self.lower.method})"
        if bound.proof is Proof.CONFIDENCE:
            below, above = self.confident_lower, self.confident_upper
            if low > above.high or high < below.low:
                return f"[{below.low!r}, {above.high!r}] was certified before"
        return ""

    def _is_news(self, bound: Bound) -> bool:
        """Whether it moves an end."""
        proven = bound.proof is Proof.DETERMINISTIC
        if self.closed or bound.side is Side.ESTIMATE:
            return False
        if bound.side is Side.BOTH:
            return proven
        if bound.side is Side.UPPER:
            known = (
                max(self.upper.log_z, self.confident_upper.log_z)
                if proven
                else (self.confident_upper.log_z)
            )
            return bound.log_z < known
        known = (
            min(self.lower.log_z, self.confident_lower.log_z)
            if proven
            else (self.confident_lower.log_z)
        )
        return bound.log_z > known

    def _record(self, bound: Bound) -> None:
        """Take what is news."""
        proven = bound.proof is Proof.DETERMINISTIC
        if bound.side is Side.BOTH:
            self.lower = self.upper = bound
            self.confident_lower = self.confident_upper = bound
        elif bound.side is Side.UPPER:
            if proven and bound.log_z < self.upper.log_z:
                self.upper = bound
            if bound.log_z < self.confident_upper.log_z:
                self.confident_upper = bound
        else:
            if proven and bound.log_z > self.lower.log_z:
                self.lower = bound
            if bound.log_z > self.confident_lower.log_z:
                self.confident_lower = bound
        if proven and self.confident_lower.low > self.confident_upper.high:
            wrong = self.confident_upper if bound.side is Side.LOWER else self.confident_lower
            likely = wrong.confidence or 0.0
            self._failed(
                wrong,
                f"was certified with confidence {likely:g} and is refuted by {bound.method}: up to "
                f"{1.0 - likely:.2g} of such certificates may fail",
            )
            self.confident_lower, self.confident_upper = self.lower, self.upper
        self.bounds.append(bound)
        if self.on_bound is not None:
            self.on_bound(bound)

    def _offer(self, offered: Marginals) -> None:
        """Exact ones first, then samplers that mixed, then the q with the best bound."""
        if not all(_is_distribution(q) for q in offered.vectors):
            self.failures.append(f"{offered.source}: marginals that are no distributions, dropped")
            return
        old = self.marginals
        if old is None or _rank(offered) > _rank(old):
            self.marginals = offered

    def point_estimate(self) -> PointEstimate:
        """Exact, or what the streams' estimates and the interval together allow to say."""
        if self.closed:
            return PointEstimate(self.lower.log_z, self.lower.rounding, "exact", "exact")
        low, high = self.confident_lower.low, self.confident_upper.high
        calibrated = self.confidence >= CALIBRATED
        point = combine(
            list(self.estimates.values()), self.ends.lower, self.ends.upper,
            (low, high) if calibrated else None,
        )  # fmt: skip
        if low <= point.log_z <= high:
            return point
        inside = min(max(point.log_z, low), high)
        return replace(point, log_z=inside, error=math.hypot(point.error, inside - point.log_z))


def _rank(marginals: Marginals) -> tuple[float, float]:
    """Draws that are many but may have missed a part come before a q, and after those that mixed.

    (Soft pigeon holes: half of the states missed are 0.1 off in a marginal, a q is 0.9.)
    """
    trust = float(_TRUST[marginals.mixing])
    if marginals.mixing is Mixing.NOT_MIXED and marginals.quality > -math.inf:
        trust = 1.5
    return trust, marginals.quality


def _is_distribution(q: NDArray[np.float64]) -> bool:
    # Loose: marginals carry no proof, but a vector that is no distribution must not reach a user.
    return bool(np.isfinite(q).all() and (q >= -1e-12).all() and abs(float(q.sum()) - 1.0) < 1e-6)
