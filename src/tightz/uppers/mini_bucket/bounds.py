"""Weighted mini-bucket bounds on log Z (Liu and Ihler 2011), for any discrete factor graph.

Variables are summed out one by one; where the table this needs would be too large it is cut into
mini-buckets, and Hoelder's inequality bounds the sum of a product by a product of power sums:

    sum_v prod_c f_c(v) <= prod_c (sum_v f_c(v)^(1/w_c))^w_c,    w_c > 0, sum_c w_c = 1,

reversed when all weights but one are negative. The bound holds for every split of the model's
tables among the cliques and for every choice of weights, so both are optimised and each iterate is
valid. What is reported is not the optimiser's float64 value but what the judge proves from its
shifts and weights (`tightz.judge.cliques`), moved outward by the rounding of its sums.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Side
from tightz.elimination.order import Order, Orders
from tightz.errors import ParameterError, ResourceError, require_range
from tightz.models.factor_graph import FactorGraph
from tightz.results import OneBound
from tightz.runtime.cores import usable_cores
from tightz.runtime.memory import MAX_MEMORY
from tightz.runtime.provenance import provenance
from tightz.uppers.mini_bucket.run import MAX_IBOUND, MiniBucket, MiniBucketStatus, Run

_WORTH = 1e-3
"""Nats that a bound in a stream must gain on the one before."""


@dataclass(frozen=True, eq=False, repr=False)
class MiniBucketResult(OneBound):
    """A bound on log Z from one mini-bucket run.

    `log_z` bounds log Z on the side asked for, rounding included; `side` BOTH: log Z is within
    `rounding` of it. `bound` carries the evidence. `history` is the best value after each
    iteration, `iterates` the value of each iterate itself, as the optimiser saw them in float64.
    `peak_bytes` was predicted before anything was allocated.
    """

    bound: Bound
    status: MiniBucketStatus
    history: NDArray[np.float64]
    iterates: NDArray[np.float64]
    ibound: int
    order: Order
    cliques: int
    peak_bytes: int
    seconds: float
    config: MiniBucket
    provenance: dict[str, Any]

    @property
    def log_z(self) -> float:
        return self.bound.log_z

    @property
    def side(self) -> Side:
        return self.bound.side

    @property
    def rounding(self) -> float:
        return self.bound.rounding

    def summary(self) -> str:
        return (
            f"log Z {_SIGN[self.side]} {self.log_z:.6f} (weighted mini-bucket, ibound "
            f"{self.ibound}, {len(self.history) - 1} iterations, {self.seconds:.3g} s)\n"
            f"{self.status.value}"
        )

    def __repr__(self) -> str:
        return (
            f"MiniBucketResult(log_z={self.log_z:.6f}, side={self.side.name}, "
            f"status={self.status.name}, ibound={self.ibound}, seconds={self.seconds:.3g})"
        )


_SIGN = {Side.UPPER: "<=", Side.LOWER: ">=", Side.BOTH: "="}


def mini_bucket(
    model: FactorGraph, config: MiniBucket | None = None, *, orders: Orders | None = None
) -> MiniBucketResult:
    """A weighted mini-bucket bound on log Z; see `MiniBucket` for the settings.

    `orders`: the elimination orders of `model`, where they are known from an earlier call.
    Raises ResourceError, before anything is allocated, when the tables would not fit in
    `max_memory`.
    """
    config = config or MiniBucket()
    start = time.perf_counter()
    run = Run(orders_of(model, orders), config, start, threads=usable_cores())
    for _ in run.improvements():
        pass
    bound = run.judged()
    assert run.descent is not None
    return MiniBucketResult(
        bound=bound,
        status=run.status if math.isfinite(bound.log_z) else _infinite(bound),
        history=np.array(run.history),
        iterates=np.array(run.descent.iterates),
        ibound=config.ibound,
        order=run.order,
        cliques=len(run.descent.parts.cliques),
        peak_bytes=run.peak_bytes,
        seconds=time.perf_counter() - start,
        config=config,
        provenance=provenance(None, model.digest, method=config),
    )


def orders_of(model: FactorGraph, orders: Orders | None) -> Orders:
    """The orders given, or new ones to be worked out as they are needed."""
    if orders is not None and orders.source is not model:
        raise ParameterError(
            f"orders are of {orders.source!r}; expected Orders(model) of {model!r}"
        )
    return orders or Orders(model)


def _infinite(bound: Bound) -> MiniBucketStatus:
    if bound.side is Side.BOTH:
        return MiniBucketStatus.EXACT
    return MiniBucketStatus.VACUOUS if bound.log_z < 0 else MiniBucketStatus.OVERFLOW


def mini_bucket_bounds(
    model: FactorGraph,
    *,
    ibounds: Iterable[int] | None = None,
    time_limit: float | None = None,
    max_memory: str | int = MAX_MEMORY,
    side: Side = Side.UPPER,
    iterations: int = 60,
    orders: Orders | None = None,
) -> Iterator[Bound]:
    """An anytime stream of ever tighter bounds with growing `ibounds` (default 2, 4, 6, ...).

    Ends when a bound is exact (its side is then BOTH), when the next ibound would not fit in
    `max_memory` or is not expected to finish one pass in the time left. Raises ResourceError only
    when not even the first ibound fits.

    Judging a bound takes about as long as an iteration or two, so improvements on the way are
    judged while that takes less than a fifth of the time, and the last of every ibound always.
    `orders`: as for `mini_bucket`.
    """
    if time_limit is not None:
        require_range("time_limit", time_limit, 0.0)
    start = time.perf_counter()
    orders = orders_of(model, orders)
    sign = -1.0 if side is Side.LOWER else 1.0
    best = np.inf * sign
    pace = 0.0  # seconds per table entry of the first, unavoidable pass
    for number, ibound in enumerate(range(2, MAX_IBOUND + 1, 2) if ibounds is None else ibounds):
        left = None if time_limit is None else start + time_limit - time.perf_counter()
        if number and left is not None and left <= 0.0:
            return
        limit = None if left is None else max(0.0, left)
        config = MiniBucket(ibound, iterations, side=side, max_memory=max_memory, time_limit=limit)
        try:
            run = Run(orders, config, start)
        except ResourceError:
            if number:
                return
            raise
        if number and left is not None and pace * run.entries > left:
            return
        begun = time.perf_counter()
        for value in run.improvements():
            worth = sign * value < sign * best - _WORTH
            if worth and ((not number and not run.judging) or run.may_judge()):
                bound = run.judged()
                if sign * bound.log_z < sign * best - _WORTH:
                    best = bound.log_z
                    yield bound
        if run.entries:
            pace = (time.perf_counter() - begun) / run.passes / run.entries
        bound = run.judged()
        if bound.side is Side.BOTH or sign * bound.log_z < sign * best - _WORTH:
            best = bound.log_z
            yield bound
        if bound.side is Side.BOTH:
            return
