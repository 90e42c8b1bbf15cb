"""What one run leaves to the next on a model of the same factors with other numbers.

Plans and orders depend on scopes and states alone; heavy states at one temperature are starts at
another. Nothing here is believed: states are weighed afresh, and no bound is carried over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.ways import Way
from tightz.elimination.order import Order, Orders
from tightz.models.factor_graph import FactorGraph

Array = NDArray[np.int64]

OVERHEAD = 0.05
"""Seconds of a sum that say nothing about its pace."""


@dataclass(eq=False)
class Shared:
    """Plans, orders and heavy states by the factors of the model that they are of.

    pace   by the name of an exact method, seconds that it took for each one predicted; by "" the
           same of the last sum by any, which tells how busy the machine is
    """

    plans: dict[str, EliminationPlan | None] = field(default_factory=dict)
    orders: dict[str, tuple[dict[Order, Array], dict[tuple[float, int], Array]]] = field(
        default_factory=dict
    )
    states: dict[str, NDArray[np.int8]] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)

    def predicted(self, way: Way) -> float:
        """Seconds for log Z, by what sums of this kind took so far."""
        return way.seconds * self.pace.get(way.name, self.pace.get("", 1.0))

    def took(self, way: Way, seconds: float) -> None:
        """It has done its sum; never believed to be faster than predicted."""
        self.pace[way.name] = self.pace[""] = max(1.0, seconds / (way.seconds + OVERHEAD))

    def gave_up(self, way: Way, seconds: float) -> None:
        """It did not come to its end in so many seconds: it is believed to take twice as many."""
        known = self.predicted(way)
        self.pace[way.name] = 2.0 * max(seconds, known) / max(way.seconds, OVERHEAD)

    def plan(
        self, graph: FactorGraph, make: Callable[[], EliminationPlan | None]
    ) -> EliminationPlan | None:
        """The plan of an earlier run on such factors, or `make()`."""
        key = factors_of(graph)
        if key not in self.plans:
            self.plans[key] = make()
        return self.plans[key]

    def with_orders(self, orders: Orders) -> Orders:
        """The same, knowing what earlier runs found; what it finds is known to later ones."""
        known = self.orders.setdefault(factors_of(orders.source), ({}, {}))
        orders.share(*known)
        return orders


def factors_of(graph: FactorGraph) -> str:
    """A digest of states, scopes and what is observed: models with the same one share their plans.

    Not of the numbers in the tables.
    """
    h = hashlib.sha256()
    for array in (graph.cardinalities, graph.scope_ptr, graph.scope_vars):
        h.update(np.ascontiguousarray(array).tobytes())
    h.update(repr(sorted(graph.evidence)).encode())
    return h.hexdigest()
