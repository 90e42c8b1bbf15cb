"""What can be said about one region of a splitting tree, and how each kind is judged."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tightz.judge.forests import ForestQ
from tightz.judge.regions import FIXED, Region, lifted, restricted
from tightz.judge.spins import ProductQ, SpinMap
from tightz.judge.verdict import Evidence, RefutedError, Verdict

if TYPE_CHECKING:
    from tightz.judge.parts import Court

FIRST = 8
"""Eliminations that are repeated whatever they cost, within reason."""

STRIDE = 16
"""After the first, one in this many is repeated."""

HEAVY = 3.0
"""An elimination within this many nats of the heaviest so far is repeated, too."""

SHARE = 0.1
"""Share of the time since the first elimination that repeating the others may take."""

AUDIT_ENTRIES = 1 << 22
"""Larger tables are not made by the second route."""


@dataclass(frozen=True, eq=False)
class Product:
    """Independent spins with these means; `spins` (k,) says whose they are.

    Only means of the region's free spins are read; all others follow by the region. So q puts no
    weight outside, and whatever the means are this is a lower bound on the region's log Z. Where
    no spin is free the region is one state, and its weight is the upper bound as well.
    """

    spins: NDArray[np.int64]
    means: NDArray[np.float64]

    def judge(self, court: Court, region: Region) -> Verdict:
        """Evaluated in full."""
        v = np.full(region.rep.size, np.nan)
        if self.means.shape != self.spins.shape:
            raise RefutedError("a q does not have one mean per spin")
        v[self.spins] = self.means
        free = region.free
        value, rounding = ProductQ(region.chart(), v[free]).value(court.working)
        rounding += court.gap
        upper = value + rounding if free.size == 0 else math.inf
        return Verdict(value - rounding, upper, rounding)


@dataclass(frozen=True, eq=False)
class Conditionals:
    """A structured q: conditional tables on a forest over all working spins; see `ForestQ`."""

    spin_of: NDArray[np.int64]
    sep_ptr: NDArray[np.int64]
    sep: NDArray[np.int64]
    tables: NDArray[np.float64]

    def judge(self, court: Court, region: Region) -> Verdict:
        """Evaluated in full, after a look at whether fixed spins are certain."""
        n = region.rep.size
        q = ForestQ(SpinMap.identity(n), self.spin_of, self.sep_ptr, self.sep, self.tables)
        value, rounding = q.value(court.working)
        self._stays_in(region)
        rounding += court.gap
        return Verdict(value - rounding, math.inf, rounding)

    def _stays_in(self, region: Region) -> None:
        """RefutedError where q puts weight outside the region."""
        fixed = region.rep == FIXED
        if not (fixed | (region.rep == np.arange(fixed.size))).all():
            raise RefutedError("a structured q cannot follow tied spins")
        starts = 2 * np.concatenate([[0], np.cumsum(1 << np.diff(self.sep_ptr))])
        owner = np.repeat(self.spin_of, np.diff(starts) // 2)
        pairs = self.tables.reshape(-1, 2)
        outside = np.where(region.sign[owner] > 0, pairs[:, 1], pairs[:, 0])
        inside = np.where(region.sign[owner] > 0, pairs[:, 0], pairs[:, 1])
        if (fixed[owner] & ~((outside == 0.0) & (inside > 0.0))).any():
            raise RefutedError("a q puts weight outside its region")


@dataclass(frozen=True, eq=False)
class Ceiling:
    """An upper bound on the source restricted to the region, with evidence about that model."""

    evidence: Evidence

    def judge(self, court: Court, region: Region) -> Verdict:
        """Through the evidence's own verdict on the model as the judge restricts it."""
        graph, rounding = restricted(court.source, lifted(region, court.kept, court.n))
        found = self.evidence.verdict(graph)
        return Verdict(-math.inf, found.upper + rounding, found.rounding + rounding)


@dataclass(frozen=True, eq=False)
class Eliminated:
    """The region's log Z as elimination gave it, and how far rounding may have moved that.

    Taken at its word unless `Audits` picks it: then eliminated again by the second route.
    """

    value: float
    rounding: float

    def judge(self, court: Court, region: Region) -> Verdict:
        """By sample; one that differs refutes the tree."""
        if not math.isfinite(self.value) or not 0.0 <= self.rounding < math.inf:
            raise RefutedError("an elimination ended in no number")
        if court.audits.wanted(self.value):
            begun = time.perf_counter()
            self._repeat(court, region)
            court.audits.seconds += time.perf_counter() - begun
        return Verdict(self.value - self.rounding, self.value + self.rounding, self.rounding)

    def _repeat(self, court: Court, region: Region) -> None:
        from tightz.judge.elimination import second_log_z

        graph, rounding = restricted(court.source, lifted(region, court.kept, court.n))
        found = second_log_z(graph, AUDIT_ENTRIES)
        if found is None:
            return
        value, error = found
        court.audits.done += 1
        if not abs(value - self.value) <= error + rounding + self.rounding:
            raise RefutedError(
                f"a region eliminated to {self.value!r} +- {self.rounding:.2g}; the second route "
                f"says {value!r}"
            )


@dataclass
class Audits:
    """Which eliminations are repeated: the first, the heaviest, and a regular sample."""

    seen: int = 0
    done: int = 0
    seconds: float = 0.0
    heaviest: float = -math.inf
    opened: float = field(default_factory=time.perf_counter)

    def wanted(self, value: float) -> bool:
        """Whether the next elimination, of this value, is to be repeated."""
        self.seen += 1
        heavy = value > self.heaviest - HEAVY
        self.heaviest = max(self.heaviest, value)
        affordable = self.seconds <= SHARE * (time.perf_counter() - self.opened)
        return self.seen == 1 or (
            affordable and (self.seen <= FIRST or heavy or self.seen % STRIDE == 0)
        )
