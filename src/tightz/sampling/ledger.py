"""One certificate for all streams of weights, from both sides, at any stopping time.

Draws W >= 0 with E[W] = Z, independent of all before them, are bets against candidate values z:

    against Z <= z    factors 1 + c (W / z - 1),    0 <= c <= 1
    against Z >= z    factors 1 + c (1 - W / z),    0 <= c <= z / (cap - z), where W <= cap

Where the hypothesis is true each factor has conditional mean at most 1, so products of them are
nonnegative supermartingales, and so are mixtures over stakes c with weights fixed before the draws,
and products over sources that follow each other. A track is a sequence of draws in an order that
was settled before them. By Ville's inequality the mixture of a track of share w ever reaches
2 / (w delta) with probability at most w delta / 2. Every z at which one does is rejected; the
shares sum to at most 1, so what is left is an interval that holds with confidence 1 - delta,
whenever it is read.

Tracks are not mixed with each other: whose draws come first may depend on what they are, where a
small weight takes longer to make, and by waiting for the right moment of each of several tracks
their sum can be made too large (docs/theory.md has a case).

Stakes are chosen by the source's pilot, whose draws do not count. For draws of relative spread s
that will be N in number the bound that they can reach is about 3 s / sqrt(N) from the mean, and the
stake that gets there is c = 3 / (s sqrt(N)): most of the mixture's weight is on it.

The log of either kind of factor is concave in W for every z and c. A draw between two others may
therefore be replaced by a share at each of them with the same mean: wealth only falls, by a second
order of their distance. An account keeps a few hundred points whatever the number of draws; which
ones may depend on the draws, since wealth falls on every path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import require_probability
from tightz.runtime.kernels import kernel
from tightz.workspace.findings import Draws, Source

SHARES: Mapping[str, float] = {
    "mini-bucket": 0.81,
    "annealing": 0.06,
    "annealing, fitted start": 0.08,
}
"""Shares of the tracks in delta from below, the same in all runs.

The k-th other track to be opened has 1 / (k (k + 1)) of what is left.
"""

CAPPED_SHARES: Mapping[str, float] = {"mini-bucket": 0.94}
"""The same from above, where only capped sources can bet."""

MAIN = 0.7
"""Weight of the stake that the pilot predicts; the other stakes share the rest."""

REACH = 3.0
"""sqrt(2 log(40 / weights)): standard errors between the mean and the end of the interval."""

MOST_WORTH = 1e3
"""Bounds the square root of what an old draw counts for in new ones."""

POINTS = 256
"""Points to which an account is thinned when it has twice as many: widths grow by 0.1%."""

DEEPEST = 700.0
"""Nats between numbers whose ratio is still a float."""

FARTHEST = 1e5
"""Nats below the mean at which the search for a rejected z gives up."""

SLACK = 1e-6
"""Nats added to what wealth must reach, for the rounding of sums over bins."""

PRECISION = 1e-7
"""Nats to which an end is worked out, always on the safe side."""

MARGIN, MARGIN_PER_NAT = 1e-9, 2e-15
"""Nats by which ends are moved outward for the rounding of log W - log z, and by which a draw may
exceed its cap: weights that are wrong by a factor move the ends by no more than that factor."""


def stakes_of(source: Source) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(c, weights): the predicted stake and a geometric grid around it, in case it is wrong."""
    grid = 2.0 ** -np.arange(0.0, 24.0, 2.0)
    reach = source.spread * math.sqrt(max(0.0, source.expected))
    if not 0.0 <= reach < math.inf:
        return grid, np.full(grid.size, 1.0 / grid.size)
    best = REACH / max(REACH, reach)
    near = best * np.array([0.25, 0.5, 2.0, 4.0])
    near = near[near <= 1.0]
    stakes = np.concatenate([[best], near, grid])
    weights = np.concatenate(
        [
            [MAIN],
            np.full(near.size, 0.7 * (1.0 - MAIN) / max(1, near.size)),
            np.full(grid.size, 0.3 * (1.0 - MAIN) / grid.size),
        ]
    )
    return stakes, weights / weights.sum()


_Bet = tuple[str, float, list[Any]]


Record = tuple[dict[str, Any], NDArray[np.float64]]
"""An account as it is stored: numbers by name, and (2, k) points and counts."""


@dataclass(eq=False)
class Account:
    """The draws of one source: zeros, and sorted points log W - origin with how many lie there."""

    source: Source
    points: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    counts: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    origin: float = 0.0
    zeros: int = 0
    drawn: int = 0
    void: str = ""

    def __post_init__(self) -> None:
        if self.capped:
            self.origin = self.source.log_cap

    @property
    def capped(self) -> bool:
        return math.isfinite(self.source.log_cap)

    @property
    def margin(self) -> float:
        """Nats by which log W and the cap may be wrong: declared, and by arithmetic here."""
        return self.source.rounding + MARGIN + MARGIN_PER_NAT * abs(self.origin)

    def add(self, log_weights: ArrayLike) -> None:
        """Count draws. Every one counts; one that cannot takes the track's wealth away for good."""
        logs = np.asarray(log_weights, dtype=np.float64).ravel()
        positive = logs[logs > -math.inf]
        points, counts, origin, void = self.points, self.counts, self.origin, self.void
        if not (np.isfinite(logs) | (logs == -math.inf)).all():
            void = void or "a weight that is no number"
        elif positive.size:
            if not self.capped and not points.size:
                origin = float(positive[0])
            if self.capped and positive.max() > origin + self.margin:
                void = void or f"a weight above its cap by {positive.max() - origin:.3g}"
            where = positive - origin
            if self.capped:
                where = np.minimum(where, 0.0)
            points, counts = _merged(points, counts, where)
        zeros, drawn = self.zeros + int((logs == -math.inf).sum()), self.drawn + logs.size
        # All at once: between two assignments Ctrl-C would leave zeros that count without the
        # draws beside them, or the reverse.
        vars(self).update(
            points=points, counts=counts, origin=origin, zeros=zeros, drawn=drawn, void=void
        )

    def record(self) -> Record:
        """Everything that a later session needs to go on with this wealth."""
        names = ("origin", "zeros", "drawn", "void")
        told = {"source": vars(self.source)} | {name: getattr(self, name) for name in names}
        return told, np.stack([self.points, self.counts])

    @classmethod
    def from_record(cls, told: Mapping[str, Any], points: NDArray[np.float64]) -> Account:
        """The inverse of `record`; infinities and NaN may come as text, as JSON has them."""
        source: dict[str, Any] = dict(told["source"])
        source |= {k: float(v) for k, v in source.items() if k != "track"}
        rest = {k: v for k, v in told.items() if k != "source"}
        return cls(Source(**source), points[0], points[1], **rest)

    def log_mean(self) -> float:
        if not self.points.size:
            return -math.inf
        high = float(self.points[-1])
        mean = float(self.counts @ np.exp(self.points - high)) / self.drawn
        return self.origin + high + math.log(mean)


def _merged(
    points: NDArray[np.float64], counts: NDArray[np.float64], where: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draws as points of their own beside those that are there, thinned."""
    merged, places = np.unique(np.concatenate([points, where]), return_inverse=True)
    sums = np.zeros(merged.size)
    np.add.at(sums, places, np.concatenate([counts, np.ones(where.size)]))
    return _thinned(merged, sums) if merged.size > 2 * POINTS else (merged, sums)


def _thinned(
    points: NDArray[np.float64], counts: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most POINTS points; those of least consequence are shared between their neighbours.

    To second order the log of a factor falls by c^2 (b - a)(d - b) / 2 (z + c (W - z))^2 for each
    draw at b that is shared between a and d: little where b is small or where its share is.
    """
    high = float(points[-1])
    log_mean = high + math.log(float(counts @ np.exp(points - high) / counts.sum()))
    while points.size > POINTS:
        w = np.exp(np.clip(points - log_mean, -300.0, 300.0))
        a, b, d = w[:-2], w[1:-1], w[2:]
        loss = counts[1:-1] * ((b - a) / (1.0 + b)) * ((d - b) / (1.0 + b))
        bar = float(np.partition(loss, points.size - POINTS - 1)[points.size - POINTS - 1])
        counts = counts.copy()
        kept = np.ones(points.size, dtype=np.bool_)
        _share(points, counts, loss <= bar, kept)
        points, counts = points[kept], counts[kept]
    return points, counts


@kernel
def _share(points, counts, drop, kept):  # type: ignore[no-untyped-def]
    """Inner points to drop, no two neighbours at once: counts go to both sides, means stay."""
    for i in range(1, points.size - 1):
        if drop[i - 1] and kept[i - 1]:
            kept[i] = False
            a, b, d = points[i - 1], points[i], points[i + 1]
            share = math.exp(b - d) * math.expm1(a - b) / math.expm1(a - d)
            share = min(1.0, share)
            counts[i + 1] += share * counts[i]
            counts[i - 1] += (1.0 - share) * counts[i]


@kernel
def _log_wealth(log_z, upper, points, counts, zeros, stakes, weights):  # type: ignore[no-untyped-def]
    """log of the mixture over stakes of the product of factors at z; from above the cap is at 0."""
    room = 1.0
    if upper:
        if log_z >= 0.0:
            return np.inf
        if log_z < -DEEPEST:
            return 0.0
        room = math.expm1(-log_z)  # (cap - z) / z
    top = -np.inf
    wealth, ratios = np.empty(stakes.size), np.empty(points.size)
    for k in range(points.size):
        ratios[k] = math.exp(min(points[k] - log_z, DEEPEST))
    sign = -1.0 if upper else 1.0
    for j in range(stakes.size):
        c = min(stakes[j], 1.0 / room) if room > 0.0 else stakes[j]
        spare = 1.0 / stakes[j] - room if c == stakes[j] else 0.0
        total = 0.0
        if zeros > 0:
            total = zeros * math.log1p(-sign * c) if sign * c < 1.0 else -np.inf
        for k in range(points.size):
            gain = sign * c * (ratios[k] - 1.0)
            if gain > -0.5:
                total += counts[k] * math.log1p(gain)
                continue
            # Near zero the sum would lose its digits: terms that are at least zero instead.
            if upper:
                factor = c * (spare - math.expm1(points[k]) * (1.0 + room))
            else:
                factor = (1.0 - c) + c * ratios[k]
            if factor <= 0.0:
                total = -np.inf
                break
            total += counts[k] * math.log(factor)
        wealth[j] = total + math.log(weights[j])
        top = max(top, wealth[j])
    if top == -np.inf:
        return -np.inf
    total = 0.0
    for j in range(stakes.size):
        total += math.exp(wealth[j] - top)
    return top + math.log(total)


@dataclass(eq=False)
class Ledger:
    """All draws of a run, and the interval that they prove with confidence 1 - delta.

    A run may take many sessions: `records` go into its store, `from_records` goes on betting with
    the same wealth at the same delta. Accounts of earlier sessions stay as they are; a later
    session's sources open accounts of their own, which multiply on within their track.

    Wealth that goes on from a stored state is still a supermartingale as long as what made the
    session end did not depend on draws that the state lacks. Somebody who saw draws go badly and
    then had them forgotten would choose among draws, and no fixed charge per lost session pays for
    that: where coins double or lose the wealth, going back after every loss at the price of one
    half multiplies it by 4/3 on average, each time. So the state is written BEFORE anything that
    rests on it is shown or recorded (`Board.secure`): what a killed session loses, nobody has seen.
    """

    delta: float
    accounts: list[Account] = field(default_factory=list)
    _open: dict[Source, Account] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_probability("delta", self.delta)

    @property
    def target(self) -> float:
        """log of the wealth at which a candidate is rejected, on either side."""
        return math.log(2.0 / self.delta) + SLACK

    def add(self, draws: Draws) -> Account:
        """Count a batch; the first batch of a source opens its account."""
        account = self._open.get(draws.source)
        if account is None:
            account = Account(self._planned(draws.source))
            self._open[draws.source] = account
            self.accounts.append(account)
        account.add(draws.log_weights)
        return account

    def _planned(self, source: Source) -> Source:
        """The source with stakes that count its track's draws of earlier sessions.

        They are to move an end that those draws have brought close already: bets for the new draws
        alone would be too bold and only lose. Each old draw is worth (spread / its spread)^2 new
        ones. Known before the first draw of `source`, so free to choose. Draws of this session its
        stream knows itself.
        """
        ours = set(self._open.values())
        worth = sum(
            a.drawn * min(source.spread / a.source.spread, MOST_WORTH) ** 2
            for a in self.accounts
            if a not in ours and a.source.track == source.track
            if a.source.spread > 0.0 and source.spread > 0.0
        )
        return replace(source, expected=source.expected + worth)

    def shares(self, *, upper: bool) -> dict[str, float]:
        """The share in delta of every track seen so far; they never change once given."""
        fixed = CAPPED_SHARES if upper else SHARES
        spare = 1.0 - sum(fixed.values())
        out: dict[str, float] = {}
        others = 0
        for account in self.accounts:
            track = account.source.track
            if track in out or (upper and not account.capped):
                continue
            if track in fixed:
                out[track] = fixed[track]
            else:
                others += 1
                out[track] = spare / (others * (others + 1.0))
        return out

    def _sound(self, *, upper: bool) -> list[Account]:
        """The accounts that bet: with a cap from above, and of tracks where no draw was void."""
        void = {a.source.track for a in self.accounts if a.void}
        return [
            a
            for a in self.accounts
            if a.drawn and a.source.track not in void and (a.capped or not upper)
        ]

    def _bets(self, *, upper: bool) -> list[_Bet]:
        """(track, log share, [(origin, lost, arguments of `_log_wealth`) of its sources])."""
        sound = self._sound(upper=upper)
        return [
            (track, math.log(share), [
                (a.origin, a.source.log_lost, (a.points, a.counts, a.zeros, *stakes_of(a.source)))
                for a in sound
                if a.source.track == track
            ])
            for track, share in self.shares(upper=upper).items()
            if any(a.source.track == track for a in sound)
        ]  # fmt: skip

    def log_wealths(self, log_z: float, *, upper: bool) -> dict[str, float]:
        """log of each track's wealth at candidate z, times its share."""
        return _wealths(self._bets(upper=upper), log_z, upper)

    def lower(self) -> float:
        """The largest rejected z from below; -inf where nothing is rejected."""
        sound = self._sound(upper=False)
        # The log of a factor is concave in W: no bet wins at or above the mean of its own draws.
        high = max((a.log_mean() for a in sound), default=-math.inf)
        if high == -math.inf:
            return -math.inf
        bets = self._bets(upper=False)
        step = 1e-3
        low = high - step
        while not self._rejects(bets, low, False):
            high, step = low, 4.0 * step
            low -= step
            if step > FARTHEST:
                return -math.inf
        low, _ = self._bisect(bets, low, high, False)
        return low - max(a.margin for a in sound)

    def upper(self) -> float:
        """The smallest rejected z from above, at most the smallest cap; inf without a cap."""
        sound = self._sound(upper=True)
        if not sound:
            return math.inf
        high = min(a.source.log_cap for a in sound)
        # No bet wins at or below the mean of its own draws, nor where its stake has no digits.
        low = min(high, max(high - DEEPEST, min(a.log_mean() for a in sound)))
        _, high = self._bisect(self._bets(upper=True), low, high, True)
        return high + max(a.margin for a in sound)

    def _rejects(self, bets: list[_Bet], log_z: float, upper: bool) -> bool:
        return max(_wealths(bets, log_z, upper).values(), default=-math.inf) >= self.target

    def _bisect(
        self, bets: list[_Bet], low: float, high: float, upper: bool
    ) -> tuple[float, float]:
        """Narrow [low, high] to where rejection changes; its safe end is always a rejected z."""
        while high - low > PRECISION + 4e-16 * abs(high):
            middle = low + 0.5 * (high - low)
            if self._rejects(bets, middle, upper) == upper:
                high = middle
            else:
                low = middle
        return low, high

    def leader(self, log_z: float, *, upper: bool) -> str:
        """The track whose bets carry the rejection of z."""
        values = self.log_wealths(log_z, upper=upper)
        return max(values, key=lambda track: values[track]) if values else ""

    def records(self) -> list[Record]:
        """All accounts, in the order in which they were opened."""
        return [account.record() for account in self.accounts]

    @classmethod
    def from_records(cls, delta: float, records: Iterable[Record]) -> Ledger:
        """The ledger of a run that goes on."""
        return cls(delta, [Account.from_record(*each) for each in records])


def _wealths(bets: list[_Bet], log_z: float, upper: bool) -> dict[str, float]:
    out = {}
    for track, log_share, sources in bets:
        logs = [
            _log_wealth(_mean_at(log_z, lost, upper) - origin, upper, *each)
            for origin, lost, each in sources
        ]
        # Beyond a cap nothing else is needed, not even where another source lost everything.
        out[track] = math.inf if math.inf in logs else log_share + sum(logs)
    return out


def _mean_at(log_z: float, log_lost: float, upper: bool) -> float:
    """log of the least mean that a source's draws can have if Z is at least z (from above)."""
    if not upper or log_lost == -math.inf:
        return log_z
    gap = log_lost - log_z
    return log_z + math.log1p(-math.exp(gap)) if gap < 0.0 else -math.inf
