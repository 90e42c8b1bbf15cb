"""Bounds that add up disjoint parts: a splitting tree judged cell by cell.

The evidence is a tree of `Cell`s. An inner cell says by which parity it was cut; the judge derives
every region from the parities, starting at the whole space (`regions`), so that no leaf can be
missing, counted twice or larger than it is: a leaf without a proof adds nothing to the lower end
and leaves the upper end to the cells above it. A cell's proofs are statements about its region:

    Product, Conditionals   a q, evaluated in full
    Ceiling                 mini-bucket tables, through their own evidence's check, on a model that
                            is compared with the region term by term
    Eliminated              an elimination order: the judge eliminates the region afresh

Nothing is judged by sample, and no claim of the maker about a q or about a sum is read. A proof or
a cell once judged keeps its verdict, so a new bound of a growing tree costs its new cells only.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tightz.judge.claims import log_add
from tightz.judge.collapses import CollapseLink
from tightz.judge.links import EncodingLink
from tightz.judge.regions import Proof, Region, halves, whole
from tightz.judge.spins import SpinTerms
from tightz.judge.verdict import UNIT, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Cell:
    """A region's proofs and, where it was cut, the parity and its sides (product +1, then -1)."""

    proofs: tuple[Proof, ...]
    parity: tuple[int, ...] = ()
    sides: tuple[Cell, Cell] | None = None


def added(one: Verdict, other: Verdict) -> Verdict:
    """The bounds of two disjoint parts together."""
    lower, down = log_add(one.lower, other.lower)
    upper, up = log_add(one.upper, other.upper)
    rounding = max(one.rounding, other.rounding) + max(down, up)
    return Verdict(lower - down, upper + up, rounding)


def joined(verdicts: list[Verdict]) -> Verdict:
    """The best of several verdicts on the same region; RefutedError where they contradict."""
    lower = max(verdicts, key=lambda v: v.lower, default=Verdict())
    upper = min(verdicts, key=lambda v: v.upper, default=Verdict())
    # Two proofs about one region that contradict each other: one is false, and nobody can tell
    # which, so neither stands.
    if lower.lower > upper.upper:
        raise RefutedError(
            f"a region's lower bound {lower.lower!r} exceeds its upper bound {upper.upper!r}"
        )
    return Verdict(lower.lower, upper.upper, max(lower.rounding, upper.rounding))


def _outward(lower: float, upper: float, rounding: float) -> Verdict:
    """Ends just computed by one operation each, moved by what that rounds and the move itself."""
    down, up = (2.0 * UNIT * abs(e) if math.isfinite(e) else 0.0 for e in (lower, upper))
    return Verdict(lower - down, upper + up, rounding + max(down, up))


class _Kept(NamedTuple):
    """A verdict and the region it is about."""

    key: int
    verdict: Verdict


class Court:
    """Judges the cells of one tree, which may grow, each once.

    source    terms over n spins; `encoding` says how they stand for a model
    collapse  where spins of the source were summed out: regions and q's are then about the terms
              that are left, `working` over the spins `kept`
    """

    def __init__(
        self,
        source: SpinTerms,
        n: int,
        encoding: EncodingLink | None = None,
        collapse: CollapseLink | None = None,
    ) -> None:
        self.source, self.n, self.encoding, self.collapse = source, n, encoding, collapse
        self.working = source if collapse is None else collapse.terms
        self.kept = np.arange(n) if collapse is None else collapse.kept
        self.seconds = 0.0
        self._cells: WeakKeyDictionary[Cell, _Kept] = WeakKeyDictionary()
        self._proofs: WeakKeyDictionary[Proof, _Kept] = WeakKeyDictionary()
        self._offset = math.nan

    def verdict(self, root: Cell, model: FactorGraph | None = None) -> Verdict:
        """What the tree proves about log Z of the model; without one, of the source itself.

        Where the encoding leaves out states (those that zeros forbid), what is proven from above
        is about the others only, so nothing is said about the model.
        """
        begun = time.perf_counter()
        try:
            found = self._shifted(self._judged(root), -1.0)
            if model is None:
                return found
            link = self.encoding
            if link is None or link.terms is not self.source or link.chart.n_free != self.n:
                raise RefutedError("a tree over spins came without the model it is about")
            error = link.rounding(model)
            # With fewer free spins than bits the encoding leaves out states, those that zeros
            # forbid. They weigh nothing as far as the maker says, but that was not judged: no
            # upper end then.
            upper = found.upper + error if link.chart.n == self.n else math.inf
            return _outward(found.lower - error, upper, found.rounding + error)
        finally:
            self.seconds += time.perf_counter() - begun

    @cached_property
    def gap(self) -> float:
        """How far log sums of `working` can be from those of the source, on any region."""
        return 0.0 if self.collapse is None else self.collapse.rounding(self.source)

    def _judged(self, root: Cell) -> Verdict:
        """Sides before what they are sides of, by a stack: trees may be deep."""
        # Regions are derived here, from the parities alone, from the whole space down: a maker
        # cannot shrink or move one.
        everything = whole(self.kept.size)
        stack = [(root, everything, False)]
        while stack:
            cell, region, sides_done = stack.pop()
            if self._recall(self._cells, cell, region) is not None:
                continue
            if cell.sides is not None and not sides_done:
                parts = halves(region, cell.parity)
                stack.append((cell, region, True))
                stack += [(s, part, False) for s, part in zip(cell.sides, parts, strict=True)]
                continue
            # A cell's own proofs and the sum of its sides are statements about the same region:
            # the best of each end counts.
            verdicts = [self._proven(proof, region) for proof in cell.proofs]
            if cell.sides is not None:
                verdicts.append(self._summed(cell, region))
            self._cells[cell] = _Kept(region.key, joined(verdicts))
        found = self._recall(self._cells, root, everything)
        assert found is not None
        return found

    def _summed(self, cell: Cell, region: Region) -> Verdict:
        found = [
            self._recall(self._cells, side, part)
            for side, part in zip(cell.sides or (), halves(region, cell.parity), strict=True)
        ]
        # Verdicts are kept per cell and region. One object as both sides would have been judged on
        # one of the two regions only.
        if found[0] is None or found[1] is None:
            raise RefutedError("one cell stands for both sides of a parity: it is counted twice")
        return added(found[0], found[1])

    def _proven(self, proof: Proof, region: Region) -> Verdict:
        verdict = self._recall(self._proofs, proof, region)
        if verdict is None:
            verdict = self._shifted(proof.judge(self, region), 1.0)
            self._proofs[proof] = _Kept(region.key, verdict)
        return verdict

    def _shifted(self, verdict: Verdict, sign: float) -> Verdict:
        """Less (or plus) an offset that all parts share: sums of small numbers round less."""
        if math.isnan(self._offset):
            ends = [end for end in verdict[:2] if math.isfinite(end)]
            if not ends:
                return verdict
            self._offset = ends[0]
        lower, upper = verdict.lower - sign * self._offset, verdict.upper - sign * self._offset
        return _outward(lower, upper, verdict.rounding)

    @staticmethod
    def _recall(kept: WeakKeyDictionary, thing: Cell | Proof, region: Region) -> Verdict | None:
        """The verdict on this cell or proof if it was about this region."""
        found = kept.get(thing)
        return found.verdict if found is not None and found.key == region.key else None


@dataclass(frozen=True, eq=False)
class PartsEvidence:
    """A splitting tree as it stood: the cell of the whole space, and the court that knows it."""

    court: Court
    root: Cell

    def verdict(self, model: FactorGraph) -> Verdict:
        """What the tree proves about log Z of `model`."""
        return self.court.verdict(self.root, model)


class NoStateEvidence:
    """Z = 0 because some table, at the states observed, is zero throughout."""

    def verdict(self, model: FactorGraph) -> Verdict:
        for scope, table in model.factors:
            seen = tuple(model.evidence.get(v, slice(None)) for v in scope)
            if np.isneginf(table[seen]).all():
                return Verdict(-math.inf, -math.inf)
        raise RefutedError("no table of the model is zero throughout: Z need not be 0")
