"""The deterministic upper bounds under one name, and mini-buckets of rising size.

Measured on the UAI-2014 models: the first iterations bring most of what an ibound can give, and a
larger ibound brings more than further iterations or summing bounds over the states of a few
variables held. So a few iterations each, at ibounds as large as the time left allows, then the
largest one to its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tightz.bounds import Bound, Side
from tightz.elimination.order import Order, Orders
from tightz.errors import ParameterError, ResourceError
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_model
from tightz.runtime.clock import Clock
from tightz.uppers.mini_bucket import MiniBucket, MiniBucketResult, mini_bucket, mini_bucket_bounds
from tightz.uppers.mini_bucket.bounds import orders_of
from tightz.uppers.mini_bucket.partition import partition
from tightz.uppers.mini_bucket.run import SCOUT_ITERATIONS
from tightz.uppers.tree_reweighted import (
    TreeReweighted,
    TreeReweightedResult,
    tree_reweighted,
)

_ROUGH = 8
"""Iterations at each ibound on the way up."""

_FIRST, _SETTLED = 6, 12
"""The first step, and the ibound from which the best elimination order so far is kept.

The order that is best at a small ibound need not be so at a large one (linkage_11: 8 nats).
"""

_STEP, _LAST = 0.1, 0.4
"""Shares of the time left that a step on the way, or the last step, may be expected to take."""


def rising_mini_buckets(
    model: FactorGraph,
    clock: Clock,
    *,
    widest: int,
    max_memory: int,
    orders: Orders | None = None,
) -> Iterator[Bound]:
    """Upper bounds until the clock ends, ibound `widest` is done, or a bound is exact.

    `orders`: the elimination orders of `model`, where they are known already.
    Raises ResourceError when not even the smallest tables fit in `max_memory`.
    """
    orders = orders_of(model, orders)
    yield from mini_bucket_bounds(
        model, ibounds=[2], iterations=4, time_limit=max(0.01, clock.left), max_memory=max_memory,
        orders=orders,
    )  # fmt: skip
    reached, ibound = 2, min(_FIRST, widest)
    order = Order.AUTO
    while ibound > reached and not clock.expired:
        begun = time.perf_counter()
        config = MiniBucket(
            ibound, _ROUGH, order=order, max_memory=max_memory, time_limit=0.98 * clock.left
        )
        try:
            result = mini_bucket(model, config, orders=orders)
        except ResourceError:
            break
        yield result.bound
        if result.side is Side.BOTH:
            return
        taken = time.perf_counter() - begun
        tries, passes = _effort(order, orders, len(result.history))
        reached, known = ibound, result.order
        begun = time.perf_counter()
        sequence = orders[known]
        entries = float(partition(orders.model, sequence, reached).table_sizes.sum())
        cutting = time.perf_counter() - begun
        pace = max(taken - tries * cutting, 0.1 * taken) / max(passes * entries, 1.0)
        open_order = known if reached >= _SETTLED else Order.AUTO
        for order, share in ((open_order, _STEP), (known, _LAST)):
            tries, passes = _effort(order, orders, _ROUGH)
            allowed = (share * clock.left - tries * cutting) / (passes * pace)
            while ibound < widest:
                larger = min(ibound + 2, widest)
                if partition(orders.model, sequence, larger).table_sizes.sum() > allowed:
                    break
                ibound = larger
            if ibound > reached:
                break
    if not clock.expired:
        yield from mini_bucket_bounds(
            model, ibounds=[reached], iterations=200, time_limit=clock.left, max_memory=max_memory,
            orders=orders,
        )  # fmt: skip


def _effort(order: Order, orders: Orders, iterations: int) -> tuple[int, int]:
    """(orders cut, passes made): AUTO gives each order a few iterations before it chooses."""
    tries = len(orders.kinds) if order is Order.AUTO else 1
    return tries, iterations + SCOUT_ITERATIONS * (tries if tries > 1 else 0)


def upper_bound(
    model: FactorGraph, *, method: TreeReweighted | MiniBucket | None = None
) -> TreeReweightedResult | MiniBucketResult:
    """A deterministic upper bound on log Z; `.log_z` of the result is valid converged or not.

    It is the judge's value, with `.rounding` (nats) already added; `.bound.evidence` proves it.

    `method` is `TreeReweighted()` (pairwise models) or `MiniBucket(ibound=10)` (any model, the
    default).
    """
    as_model(model, "upper_bound", only="FactorGraph")
    if isinstance(method, TreeReweighted):
        return tree_reweighted(model, method)
    if method is None or isinstance(method, MiniBucket):
        return mini_bucket(model, method)
    raise ParameterError(f"method is {method!r}; expected TreeReweighted(...) or MiniBucket(...)")
