"""Regions of the spins' space, derived from parities alone, and what can be said about one.

A region is never believed: the judge starts at the whole space and takes one side of a parity of
one or two free spins at a time. The two sides of a parity are disjoint and make up what was split,
so leaves derived this way partition the space, whatever the maker recorded with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.judge.elimination import bucket_tree
from tightz.judge.expansion import Residual, walsh, walsh_error
from tightz.judge.forests import ForestQ
from tightz.judge.products import same_shapes
from tightz.judge.spins import ProductQ, SpinMap, SpinTerms
from tightz.judge.verdict import UNIT, Evidence, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph

if TYPE_CHECKING:
    from tightz.judge.parts import Court


FIXED = -1


class Region(NamedTuple):
    """s_i = sign_i * s_rep_i, or s_i = sign_i where rep_i is FIXED; rep_i = i: spin i is free."""

    rep: NDArray[np.int64]
    sign: NDArray[np.int8]

    @property
    def free(self) -> NDArray[np.int64]:
        """The spins that are still free, ascending."""
        return np.flatnonzero(self.rep == np.arange(self.rep.size))

    @property
    def key(self) -> int:
        """Tells regions apart: a part recorded in one place is not taken for another's."""
        return hash((self.rep.tobytes(), self.sign.tobytes()))

    def chart(self) -> SpinMap:
        """Every spin as a signed free one, or as a sign."""
        place = np.zeros(self.rep.size, dtype=np.int64)
        place[self.free] = np.arange(self.free.size)
        copies = self.rep != FIXED
        ptr = np.concatenate([[0], np.cumsum(copies)]).astype(np.int64)
        return SpinMap(self.free.size, ptr, place[self.rep[copies]], self.sign.astype(np.float64))


def whole(n: int) -> Region:
    """All states of n spins."""
    return Region(np.arange(n, dtype=np.int64), np.ones(n, dtype=np.int8))


def halves(region: Region, parity: tuple[int, ...]) -> tuple[Region, Region]:
    """The sides where the product of the spins of `parity` is +1 and -1."""
    n = region.rep.size
    # Only free spins of this region: a parity of spins that are fixed or tied already would have
    # an empty side, and the other would be the whole counted as a half.
    distinct = len(set(parity)) == len(parity) and len(parity) in (1, 2)
    if not distinct or any(not 0 <= i < n or region.rep[i] != i for i in parity):
        raise RefutedError(f"{parity} is no parity of one or two free spins of the region it cuts")
    # The last spin, and all tied to it, follow the first (or become fixed). The two results differ
    # in the sign of what moved: disjoint, and together the region.
    moved = region.rep == parity[-1]
    rep = np.where(moved, parity[0] if len(parity) == 2 else FIXED, region.rep)
    return Region(rep, region.sign), Region(rep, np.where(moved, -region.sign, region.sign))


def lifted(region: Region, kept: NDArray[np.int64], n: int) -> Region:
    """The same region in a model of n spins of which `kept` are these."""
    rep, sign = whole(n)
    rep[kept] = np.where(region.rep == FIXED, FIXED, kept[np.maximum(region.rep, 0)])
    sign[kept] = region.sign
    return Region(rep, sign)


def restricted(terms: SpinTerms, region: Region) -> tuple[FactorGraph, float]:
    """(the model on the region over its free spins, +1 being state 0; rounding of its log p~).

    Every term stays a factor of its own with entries +-theta, so nothing but the sum of the terms
    that became constants is rounded.
    """
    owner, spin, signs = region.chart().images(terms)
    order = np.lexsort((spin, owner))
    spin, values = spin[order], terms.theta * signs
    length = np.bincount(owner, minlength=values.size)
    first = np.cumsum(length) - length
    constant = math.fsum([terms.constant, *values[length == 0].tolist()])
    scopes, tables = [np.zeros(0, np.int64)], []
    sizes, entries = [0], [0]
    for count in np.unique(length[length > 0]).tolist():
        some = np.flatnonzero(length == count)
        states = np.arange(2**count)
        # A term as a table over its spins: theta times the parity of the states, exact in float64.
        chi = 1.0 - 2.0 * (np.bitwise_count(states) & 1)
        scopes.append(spin[first[some][:, None] + np.arange(count)].ravel())
        tables.append(np.outer(values[some], chi).ravel())
        sizes += [count] * some.size
        entries += [2**count] * some.size
    graph = FactorGraph.from_arrays(
        np.full(region.free.size, 2),
        np.cumsum([*sizes, 0]),
        np.concatenate(scopes),
        np.cumsum([*entries, 1]),
        np.concatenate([*tables, [constant]]),
    )
    return graph, UNIT * abs(constant)


def distance(graph: FactorGraph, terms: SpinTerms, region: Region) -> float:
    """How far log p~ of `graph` can be from the terms on the region, at any state of either.

    Variable i of the graph is to be free spin i of the region, +1 being state 0. The graph's tables
    are expanded by the judge and compared with the terms coefficient by coefficient.
    """
    chart = region.chart()
    if graph.cardinalities.shape != (chart.n_free,) or (graph.cardinalities != 2).any():
        raise RefutedError("a region's model does not have one binary variable per free spin")
    if graph.evidence or not np.isfinite(graph.log_tables).all():
        raise RefutedError("a region's model has observed variables or zeros")
    # The graph's expansion minus the terms on the region: what is left bounds the difference at
    # every state, so a bound on the one holds for the other within it.
    rest, error = Residual(), 0.0
    for scopes, tables in same_shapes(graph):
        count, arity = scopes.shape
        flat = tables.reshape(count, -1)
        theta = walsh(flat)
        error += walsh_error(np.abs(flat).max(axis=1), arity)
        for subset in range(2**arity):
            columns = [j for j in range(arity) if subset >> (arity - 1 - j) & 1]
            rest.add(scopes[:, columns], theta[:, subset])
    row, spin, signs = chart.images(terms)
    rest.add_images(row, spin, -terms.theta * signs)
    rest.add(np.zeros((1, 0), np.int64), np.array([-terms.constant]))
    off, rounding = rest.bound()
    return off + rounding + error


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
    _judged: tuple[SpinTerms, int, Verdict] | None = field(default=None, init=False, repr=False)

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
