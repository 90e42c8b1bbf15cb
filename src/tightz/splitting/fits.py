"""Lower bounds on regions: one q per region, shaped at the root and pinned region by region.

A spin is pinned by a field that outweighs everything else, so all regions share the index work of
one `Shape`; the pinned q puts no weight outside its region, and the bound is evaluated without the
field by the families' own evaluators.

Conditioning never loses. Let q on region R split into q(.|+) and q(.|-) by a spin s with
q(s = +-1) = w+-. With F the bound of a q, F(q) = sum_b w_b (F(q(.|b)) - log w_b) because the
entropy of q is that of s plus the mean entropy of the conditionals. By Gibbs' inequality this is
at most log sum_b exp F(q(.|b)). Both shapes below are closed under conditioning on a spin, and
their ascents start at the conditionals and never descend: children's bounds add up to at least
their parent's. A pair of spins has no such conditional in the family; there the tree keeps the
parent's bound where the children's sum is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.families.ascent import ascend as ascend_means
from tightz.families.mean_field import MeanField
from tightz.families.projection import evaluate
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.projections.hashing import Parities
from tightz.projections.pivots import Reliability
from tightz.splitting.region import Region

START = 0.95
"""Means of a start at a state: close to its corner, yet free to leave it."""


class Fit(NamedTuple):
    """A bound on a region's log Z, and the q (means or tables) that attains it."""

    log_gamma: float
    q: NDArray[np.float64]


class Fitter(Protocol):
    """A family of q on a coset of the working model, with any further free spins pinned."""

    @property
    def coset(self) -> Coset:
        """The coset that the q's live on, before any pin."""

    def fit(
        self, region: Region, parent: NDArray[np.float64] | None, states: NDArray[np.int8]
    ) -> Fit:
        """The best q on `region` found from the parent's (already conditioned) q and `states`."""

    def condition(self, q: NDArray[np.float64], spin: int, sign: int) -> NDArray[np.float64]:
        """q given that the free spin `spin` is `sign`."""

    def expectations(
        self, q: NDArray[np.float64], ptr: NDArray, spins: NDArray
    ) -> NDArray[np.float64]:
        """E_q[prod of spins[ptr[a]:ptr[a+1]]] for each a."""

    def draw(
        self, q: NDArray[np.float64], count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        """(states (count, n), log q of each)."""

    def tied(self, region: Region, parity: tuple[int, int]) -> Fitter | None:
        """A fitter where the two spins of `parity` are tied as `region` says; None: no support."""


Start = tuple[Region, NDArray[np.float64] | None, NDArray[np.int8]]
"""What a fit starts from: the region, the parent's q given that region, states of the pool."""


class _Pinned(NamedTuple):
    """Starts (n_free, lanes), the field that pins, and the pinned positions with their signs."""

    starts: NDArray[np.float64]
    field: NDArray[np.float64]
    at: NDArray[np.int64]
    pins: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ProductFitter:
    """Mean field on a coset; pinned spins have means +-1."""

    coset: Coset
    family: MeanField

    @classmethod
    def build(cls, poly: SpinPolynomial, family: MeanField) -> ProductFitter:
        return cls(Coset.build(poly), family)

    def fit(
        self, region: Region, parent: NDArray[np.float64] | None, states: NDArray[np.int8]
    ) -> Fit:
        pinned = self._pinned(region, parent, states)
        v = pinned.starts.copy()
        held = self.coset.grouped._replace(field=pinned.field)
        gains = np.zeros(v.shape[1])
        ascend_means(held, v, np.zeros(0), self.family.tol, self.family.max_sweeps, gains)
        v = _ended(pinned, v)
        return _best(v, evaluate(self.coset, v))

    def fit_on_device(self, tasks: Sequence[Start]) -> list[Fit]:
        """`fit` of each (region, parent, states), all ascents side by side on the GPU."""
        from tightz.families.gpu_leaves import ascend_on_device

        pinned = [self._pinned(*task) for task in tasks]
        starts = [p.starts for p in pinned]
        counts = [start.shape[1] for start in starts]
        v = np.concatenate(starts, axis=1)
        fields = np.repeat(np.stack([p.field for p in pinned], axis=1), counts, axis=1)
        ascend_on_device(self.coset.grouped, fields, v, self.family.tol, self.family.max_sweeps)
        parts = np.split(v, _offsets(starts), axis=1)
        ends = [_ended(p, part) for p, part in zip(pinned, parts, strict=True)]
        values = np.split(evaluate(self.coset, np.concatenate(ends, axis=1)), _offsets(ends))
        return [_best(end, value) for end, value in zip(ends, values, strict=True)]

    def _pinned(
        self, region: Region, parent: NDArray[np.float64] | None, states: NDArray[np.int8]
    ) -> _Pinned:
        coset = self.coset
        at, pins = pins_of(coset, region)
        starts = [START * states[:, coset.free].astype(np.float64)]
        if parent is not None:
            starts.insert(0, parent[None, :])
        v = np.ascontiguousarray(np.concatenate(starts).T)
        if v.shape[1] == 0:
            v = np.zeros((coset.n_free, 1))
        v[at] = pins[:, None]
        field = coset.grouped.field.copy()
        field[at] = pins * (1e3 + 2.0 * np.abs(coset.polynomial.theta).sum())
        return _Pinned(v, field, at, pins)

    def condition(self, q: NDArray[np.float64], spin: int, sign: int) -> NDArray[np.float64]:
        out = q.copy()
        out[self.coset.free_index[spin]] = sign
        return out

    def expectations(
        self, q: NDArray[np.float64], ptr: NDArray, spins: NDArray
    ) -> NDArray[np.float64]:
        return self.coset.expectations(ptr, spins, q)[:, 0]

    def draw(
        self, q: NDArray[np.float64], count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        up = (1.0 + q) / 2.0
        y = np.where(rng.random((count, q.size)) < up, 1.0, -1.0)
        log_q = np.log((1.0 + y * q) / 2.0).sum(axis=1)  # a state of probability 0 is not drawn
        return self.coset.spins_from_free(y), log_q

    def tied(self, region: Region, parity: tuple[int, int]) -> ProductFitter:
        """The coset with one more parity; pivots are the copies, so free spins stay free."""
        poly = self.coset.polynomial
        held = region.copies
        matrix = np.zeros((held.size, poly.n), dtype=np.uint8)
        rows = np.arange(held.size)
        matrix[rows, held] = 1
        matrix[rows, region.rep[held]] = 1
        rank = np.ones(poly.n)
        rank[held] = 0.0
        parities = Parities(matrix, (region.sign[held] < 0).astype(np.uint8))
        return ProductFitter(Coset.build(poly, parities, Reliability(rank)), self.family)


def _ended(pinned: _Pinned, v: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ascents' ends and the first start: that counts too, so conditioning never loses."""
    v = np.column_stack([v, pinned.starts[:, 0]])
    v[pinned.at] = pinned.pins[:, None]
    return v


def _best(v: NDArray[np.float64], values: NDArray[np.float64]) -> Fit:
    best = int(np.argmax(values))
    return Fit(float(values[best]), v[:, best].copy())


def _offsets(ends: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Where each but the first begins when they are put side by side."""
    return np.cumsum([end.shape[1] for end in ends])[:-1]


def pins_of(coset: Coset, region: Region) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(positions among the coset's free spins, signs) of the spins that the region pins."""
    index = coset.free_index[region.pinned]
    return index[index >= 0], region.sign[region.pinned][index >= 0].astype(np.float64)


def region_states(
    states: NDArray[np.int8], rows: NDArray[np.int64], count: int
) -> NDArray[np.int8]:
    """`count` of the pool members `rows`: the first (heaviest) and others evenly spaced."""
    if rows.size <= count:
        return states[rows]
    return states[rows[np.linspace(0, rows.size - 1, count).astype(np.int64)]]
