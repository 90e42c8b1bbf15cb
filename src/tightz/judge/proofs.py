"""What can be said about one region of a splitting tree, and how each kind is judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.judge.buckets import bucket_tree
from tightz.judge.forests import ForestQ
from tightz.judge.regions import FIXED, Region, distance, lifted, restricted
from tightz.judge.rounding import UNIT
from tightz.judge.spins import ProductQ, SpinMap, SpinTerms
from tightz.judge.verdict import Evidence, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph

if TYPE_CHECKING:
    from tightz.judge.parts import Court


class Proof(Protocol):
    """A statement about one region's log Z that can be checked."""

    def judge(self, court: Court, region: Region) -> Verdict:
        """What it proves; RefutedError where it does not hold."""


@dataclass(frozen=True, eq=False)
class Product:
    """Independent spins with these means; `spins` (k,) says whose they are.

    Only means of the region's free spins are read; all others follow by the region. So q puts no
    weight outside, and whatever the means are this is a lower bound on the region's log Z.
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
        return _of_q(value, rounding + court.gap, region)


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
        return _of_q(value, rounding + court.gap, region)

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


def _of_q(value: float, rounding: float, region: Region) -> Verdict:
    """Where no spin is free the region is one state, and its weight is the upper bound as well."""
    upper = value + rounding if region.free.size == 0 else math.inf
    return Verdict(value - rounding, upper, rounding)


@dataclass(eq=False)
class Ceiling:
    """An upper bound on `graph`, which is the source on the region over its free spins.

    Its variable i is free spin i of the region, in ascending order, +1 being state 0. Tables are
    large and a tree has many of them: they are let go once judged, and the verdict stays.
    """

    graph: FactorGraph | None
    evidence: Evidence | None
    _judged: tuple[SpinTerms, int, Verdict] | None = field(default=None, repr=False)

    def judge(self, court: Court, region: Region) -> Verdict:
        """Through the evidence's own verdict; how far the graph is from the region is paid for."""
        where = lifted(region, court.kept, court.n)
        if self._judged is not None:
            source, key, verdict = self._judged
            if source is court.source and key == where.key:
                return verdict
        if self.graph is None or self.evidence is None:
            raise RefutedError("an upper bound was judged on one region and is shown for another")
        found = self.evidence.verdict(self.graph)
        off = distance(self.graph, court.source, where)
        verdict = Verdict(-math.inf, found.upper + off, found.rounding + off)
        self._judged = court.source, where.key, verdict
        self.graph = self.evidence = None
        return verdict


@dataclass(frozen=True, eq=False)
class Eliminated:
    """The region's log Z by elimination of its free spins, positions in `order` first to last.

    The order is all that is taken from the maker: the judge eliminates afresh, outward.
    """

    order: NDArray[np.int64]

    def judge(self, court: Court, region: Region) -> Verdict:
        """Eliminated in full."""
        graph, rounding = restricted(court.source, lifted(region, court.kept, court.n))
        found = bucket_tree(graph, self.order).verdict(graph)
        rounding += 2.0 * UNIT * max(map(abs, found[:2]))
        return Verdict(found.lower - rounding, found.upper + rounding, found.rounding + rounding)
