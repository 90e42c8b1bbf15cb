"""One certificate for all streams of weights, from both sides, at any stopping time.

Draws W >= 0 with E[W] = Z, independent of all before them, are bets against candidate values z:

    against Z <= z    factors 1 + c (W / z - 1),                    0 <= c <= 1
    against Z >= z    factors 1 + c (1 - W / z),                    0 <= c <= z / (cap - z), W <= cap

Where the hypothesis is true each factor has conditional mean at most 1, so products of them are
nonnegative supermartingales, and so are mixtures over stakes c and over tracks with weights fixed
before the draws, and products over sources that follow each other. By Ville's inequality the
mixture ever reaches 2 / delta with probability at most delta / 2. Every z at which it does is
rejected; what is left is an interval that holds with confidence 1 - delta, whenever it is read.

Stakes are chosen by the source's pilot, whose draws do not count. For draws of relative spread s
that will be N in number the bound that they can reach is about 3 s / sqrt(N) from the mean, and the
stake that gets there is c = 3 / (s sqrt(N)): most of the mixture's weight is on it.

Both kinds of factors are concave in W for every z and c. A draw between two edges of a bin may
therefore be replaced by a share at either edge with the same mean: wealth only falls, by a second
order of the bin's width. A million draws cost what a few hundred bins cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.errors import require_probability
from tightz.workspace.findings import Draws, Source

LEVELS = (1, 2, 4, 6, 8, 10)
"""Numbers of parities whose trials bet; few, since each is paid for."""

SHARES: Mapping[str, float] = {
    "mini-bucket": 0.68,
    "mini-bucket leaves": 0.06,
    "annealing: uniform": 0.05,
    "annealing: product": 0.05,
    "annealing: forest": 0.04,
    **{f"projections: {m}": 0.07 / len(LEVELS) for m in LEVELS},
}
"""Weights of the tracks in the mixture from below, the same in all runs.

The k-th other track to be opened has 1 / (k (k + 1)) of what is left.
"""

CAPPED_SHARES: Mapping[str, float] = {"mini-bucket": 0.86, "mini-bucket leaves": 0.10}
"""The same from above, where only capped sources can bet."""

MAIN = 0.7
"""Weight of the stake that the pilot predicts; the other stakes share the rest."""

REACH = 3.0
"""sqrt(2 log(40 / weights)): standard errors between the mean and the end of the interval."""

DEPTH = 60.0
"""Nats below the top that bins cover; weights below count between the last edge and zero."""

HEADROOM = 40.0
"""Nats above a source's level that bins cover where there is no cap; larger weights count less."""

FINEST, COARSEST = 1e-4, 1.0 / 32.0
"""Widths of bins in nats; a sixteenth of the spread is lost to less than 0.01 of the width."""

FARTHEST = 1e5
"""Nats below the mean at which the search for a rejected z gives up."""

SLACK = 1e-6
"""Nats added to what wealth must reach, for the rounding of sums over bins."""

PRECISION = 1e-7
"""Nats to which an end is worked out, always on the safe side."""


def stakes_of(source: Source) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(c, weights): the predicted stake and a geometric grid around it, in case it is wrong."""
    grid = 2.0 ** -np.arange(0.0, 24.0, 2.0)
    if not (source.spread > 0.0 and source.expected >= 1.0):
        return grid, np.full(grid.size, 1.0 / grid.size)
    best = min(1.0, REACH / (source.spread * math.sqrt(source.expected)))
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


Record = tuple[dict[str, Any], NDArray[np.float64]]
"""An account as it is stored: numbers by name, and (2, k) places and counts of its bins."""


@dataclass(eq=False)
class Account:
    """The draws of one source, binned: counts at edges exp(top - k step), and at zero."""

    source: Source
    top: float
    step: float
    counts: NDArray[np.float64]
    zeros: float = 0.0
    drawn: int = 0
    void: bool = False

    @classmethod
    def of(cls, source: Source) -> Account:
        capped = math.isfinite(source.log_cap)
        top = source.log_cap if capped else source.level + HEADROOM
        spread = source.spread if source.spread > 0.0 else 1.0
        step = float(np.clip(spread / 16.0, FINEST, COARSEST))
        depth = max(DEPTH, top - source.level + DEPTH / 2.0)
        return cls(source, top, step, np.zeros(int(depth / step) + 2))

    def add(self, log_weights: NDArray[np.float64]) -> None:
        """Count draws; one above the top counts as the top (a cap holds up to rounding)."""
        logs = np.asarray(log_weights, dtype=np.float64)
        # Every draw counts and this one cannot: the track's wealth is taken away, for good.
        self.void = self.void or bool(np.isnan(logs).any())
        self.drawn += logs.size
        self.zeros += _bin(np.minimum(logs - self.top, 0.0), self.step, self.counts)

    @property
    def capped(self) -> bool:
        return math.isfinite(self.source.log_cap)

    def record(self) -> Record:
        """Everything that a later session needs: numbers in words, and the bins that are used."""
        used = np.flatnonzero(self.counts)
        told = {
            "source": vars(self.source), "top": self.top, "step": self.step,
            "size": self.counts.size, "zeros": self.zeros, "drawn": self.drawn, "void": self.void,
        }  # fmt: skip
        return told, np.stack([used, self.counts[used]])

    @classmethod
    def from_record(cls, told: Mapping[str, Any], bins: NDArray[np.float64]) -> Account:
        """The inverse of `record`; infinities and NaN may come as text, as JSON has them."""
        source: dict[str, Any] = dict(told["source"])
        source |= {k: float(v) for k, v in source.items() if k != "track"}
        counts = np.zeros(int(told["size"]))
        counts[bins[0].astype(np.int64)] = bins[1]
        return cls(
            Source(**source), float(told["top"]), float(told["step"]), counts,
            float(told["zeros"]), int(told["drawn"]), bool(told["void"]),
        )  # fmt: skip

    def bins(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(log edges, counts) of the bins that are not empty."""
        used = np.flatnonzero(self.counts)
        return self.top - self.step * used, self.counts[used]

    def log_mean(self) -> float:
        edges, counts = self.bins()
        if not edges.size:
            return -math.inf
        high = float(edges.max())
        return high + math.log(float(counts @ np.exp(edges - high)) / self.drawn)


@njit(cache=True, nogil=True)
def _bin(logs, step, counts):  # type: ignore[no-untyped-def]
    """Share every draw between the edges around it so that its mean stays; returns zero's share."""
    zero = 0.0
    last = counts.size - 1
    low = math.exp(-step * last)
    width = math.expm1(step)
    for x in logs:
        place = -x / step
        if not place < last:
            share = math.exp(x) / low if x > -np.inf else 0.0
            share = min(1.0, share)
            counts[last] += share
            zero += 1.0 - share
            continue
        k = int(place)
        # between edge k + 1 (lower) and edge k
        share = math.expm1(min(step, max(0.0, x + step * (k + 1)))) / width
        share = min(1.0, share)
        counts[k] += share
        counts[k + 1] += 1.0 - share
    return zero


@njit(cache=True, nogil=True)
def _log_wealth(edges, counts, zeros, stakes, weights, log_cap, log_z, upper):  # type: ignore[no-untyped-def]
    """log of the mixture over stakes of the product of factors at candidate z."""
    limit = 1.0
    if upper:
        if log_z >= log_cap:
            return np.inf
        limit = math.exp(log_z - log_cap) / -math.expm1(log_z - log_cap)
    top = -np.inf
    wealth = np.empty(stakes.size)
    ratios = np.exp(np.minimum(edges - log_z, 700.0))
    sign = -1.0 if upper else 1.0
    for j in range(stakes.size):
        c = min(stakes[j], limit)
        total = 0.0
        if zeros > 0.0:
            at_zero = 1.0 - sign * c
            total = zeros * math.log(at_zero) if at_zero > 0.0 else -np.inf
        for k in range(edges.size):
            factor = sign * c * (ratios[k] - 1.0)
            if factor <= -1.0:
                total = -np.inf
                break
            total += counts[k] * math.log1p(factor)
        wealth[j] = total + math.log(weights[j])
        top = max(top, wealth[j])
    if top == -np.inf:
        return -np.inf
    return top + math.log(np.exp(wealth - top).sum())


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
            account = Account.of(self._planned(draws.source))
            self._open[draws.source] = account
            self.accounts.append(account)
        account.add(draws.log_weights)
        return account

    def _planned(self, source: Source) -> Source:
        """The source with stakes for all draws that its track will then have.

        They are to move an end that earlier draws have brought close already: bets for a few new
        draws alone would be too bold and only lose. Each old draw is worth (spread / its spread)^2
        new ones. Known before the first draw of `source`, so free to choose.
        """
        worth = sum(
            a.drawn * (source.spread / a.source.spread) ** 2
            for a in self.accounts
            if a.source.track == source.track and a.source.spread > 0.0 and source.spread > 0.0
        )
        return replace(source, expected=source.expected + worth)

    def shares(self, *, upper: bool) -> dict[str, float]:
        """The mixture's weight of every track seen so far; they never change once given."""
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

    def _bets(self, *, upper: bool) -> list[tuple[str, float, list[tuple[Any, ...]]]]:
        """(track, log share, arguments of `_log_wealth` for each of its sources)."""
        return [
            (track, math.log(share), [
                (*a.bins(), a.zeros, *stakes_of(a.source), a.source.log_cap)
                for a in self.accounts
                if a.source.track == track and (a.capped or not upper)
            ])
            for track, share in self.shares(upper=upper).items()
            if not any(a.void for a in self.accounts if a.source.track == track)
        ]  # fmt: skip

    def log_wealths(self, log_z: float, *, upper: bool) -> dict[str, float]:
        """log of each track's part of the mixture at candidate z, its share included."""
        return _wealths(self._bets(upper=upper), log_z, upper)

    def lower(self) -> float:
        """The largest rejected z from below; -inf where nothing is rejected."""
        # Every factor is concave in W, so no bet wins at or above the mean of its own draws.
        high = max((a.log_mean() for a in self.accounts), default=-math.inf)
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
        return low - max(a.source.rounding for a in self.accounts)

    def upper(self) -> float:
        """The smallest rejected z from above, at most the smallest cap; inf without a cap."""
        capped = [a for a in self.accounts if a.capped]
        if not capped:
            return math.inf
        high = min(a.source.log_cap for a in capped)
        low = min(a.log_mean() for a in capped)
        low = high - 2.0 * DEPTH if low == -math.inf else min(low, high)
        _, high = self._bisect(self._bets(upper=True), low, high, True)
        return high + max(a.source.rounding for a in capped)

    def _rejects(self, bets: list[Any], log_z: float, upper: bool) -> bool:
        values = np.array(list(_wealths(bets, log_z, upper).values()))
        top = float(values.max(initial=-math.inf))
        if not math.isfinite(top):
            return top > 0.0
        return top + math.log(float(np.exp(values - top).sum())) >= self.target

    def _bisect(self, bets: list[Any], low: float, high: float, upper: bool) -> tuple[float, float]:
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


def _wealths(bets: list[Any], log_z: float, upper: bool) -> dict[str, float]:
    return {
        track: log_share + sum(_log_wealth(*each, log_z, upper) for each in sources)
        for track, log_share, sources in bets
    }
