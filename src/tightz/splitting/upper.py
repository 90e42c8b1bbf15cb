"""Upper bounds on regions: exact where the restricted model is narrow, else mini-buckets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.order import Order, Orders
from tightz.errors import ResourceError
from tightz.judge import regions
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.collapse import Collapsed, collapse
from tightz.reductions.collapse_plan import eliminable, plan_elimination
from tightz.splitting.region import Region, as_factor_graph
from tightz.uppers.mini_bucket import MiniBucket, mini_bucket

ROUNDING = 2.0**-48
"""Relative slack that an exact value is given on both sides."""

MAX_MEMORY = "2GB"


class Ceiling(NamedTuple):
    """lower <= log Z of a region <= upper; `core` are the original spins too dear to eliminate.

    `proof` is what the judge is shown; None: the bound is for the search alone.
    """

    lower: float
    upper: float
    exact: bool
    core: NDArray[np.int64]
    order: Order
    proof: regions.Proof | None = None


@dataclass(frozen=True)
class UpperBounder:
    """`poly`: the original model; nothing wider than `width` is eliminated."""

    poly: SpinPolynomial
    width: int
    iterations: int

    def exact(self, region: Region) -> Ceiling | None:
        """The region's log Z by elimination, or None where that is wider than `width`."""
        poly = self._restricted(region)
        order, _ = eliminable(poly, self.width)
        return self._exact(poly) if order.size == poly.n else None

    def bound(
        self,
        region: Region,
        order: Order,
        iterations: int | None = None,
        time_limit: float | None = None,
        ibound: int | None = None,
    ) -> Ceiling:
        """The exact value, or a mini-bucket bound and the spins that stand in the way.

        iterations = 0 or less: no bound is computed where the value is not exact.
        """
        poly = self._restricted(region)
        gone, _ = eliminable(poly, self.width)
        if gone.size == poly.n:
            return self._exact(poly)
        left = np.ones(poly.n, dtype=bool)
        left[gone] = False
        touched = np.bincount(plan_elimination(poly, gone).scope, minlength=poly.n)
        rest = np.flatnonzero(left)
        core = region.free[rest[np.argsort(-touched[rest], kind="stable")]]
        iterations = self.iterations if iterations is None else iterations
        if iterations <= 0:
            return Ceiling(-math.inf, math.inf, False, core, order)
        limit = None if time_limit is None else max(0.0, time_limit)
        config = MiniBucket(
            ibound=max(1, ibound or self.width), iterations=iterations, order=order,
            max_memory=MAX_MEMORY, time_limit=limit,
        )  # fmt: skip
        graph, orders = self._whole if poly is self.poly else (as_factor_graph(poly), None)
        try:
            result = mini_bucket(graph, config, orders=orders)
        except ResourceError:
            return Ceiling(-math.inf, math.inf, False, core, order)
        slack = ROUNDING * scale(poly)
        evidence = result.bound.evidence
        proof = None if evidence is None else regions.Ceiling(graph, evidence)
        return Ceiling(-math.inf, result.log_z + slack, False, core, result.order, proof)

    def _exact(self, poly: SpinPolynomial) -> Ceiling:
        done = collapse(poly, self.width)
        slack = done.dropped + ROUNDING * scale(poly)
        value = done.polynomial.constant
        return Ceiling(
            value - slack, value + slack, True, np.zeros(0, np.int64), Order.MIN_FILL,
            regions.Eliminated(done.order),
        )  # fmt: skip

    @cached_property
    def _whole(self) -> tuple[FactorGraph, Orders]:
        """The whole space, which is bounded several times: its orders are found once."""
        graph = as_factor_graph(self.poly)
        return graph, Orders(graph)

    def _restricted(self, region: Region) -> SpinPolynomial:
        return self.poly if region.free.size == self.poly.n else region.restricted(self.poly)

    def summed_out(self, region: Region) -> Collapsed:
        """The elimination of a region that `exact` accepts: its exact distribution."""
        return collapse(self._restricted(region), self.width)


def scale(poly: SpinPolynomial) -> float:
    """The size of the numbers that a log weight is summed from."""
    return 1.0 + abs(poly.constant) + float(np.abs(poly.theta).sum())
