"""Which variables to hold fixed so that the others can be summed out with small tables.

A w-cutset (Rish and Dechter, 2000; Bidyuk and Dechter, 2007), found greedily: eliminate the
variable with the smallest table; when even that is too large, hold the variable that the most
expensive tables share.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.order import interaction_graph
from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False, repr=False)
class Cutset:
    """`held` variables are conditioned on; `order` sums out all others, tables <= 2^`log2_size`."""

    held: NDArray[np.int64]
    order: NDArray[np.int64]
    log2_size: float

    def __repr__(self) -> str:
        return (
            f"Cutset({self.held.size} held, {self.order.size} summed out, tables up to "
            f"2^{self.log2_size:.1f} entries)"
        )


def choose_cutset(
    model: FactorGraph,
    log2_size: float,
    *,
    cost: NDArray[np.float64] | None = None,
    noise: NDArray[np.float64] | None = None,
) -> Cutset:
    """A greedy cutset: no table met while summing out the rest exceeds 2^`log2_size` entries.

    `cost` (n,) > 0 says how unwelcome it is to hold a variable, such as its entropy: what is lost
    by holding it at one state. `noise` (n,) is added to the variables' scores, so that repeats give
    different cutsets. The model has no evidence.
    """
    n = model.n_variables
    ptr, flat = interaction_graph(model)
    near = [set(flat[ptr[v] : ptr[v + 1]].tolist()) for v in range(n)]
    bits = np.log2(model.cardinalities.astype(np.float64)).tolist()
    price = [1.0] * n if cost is None else cost.tolist()
    jitter = [0.0] * n if noise is None else noise.tolist()
    size = [bits[v] + sum(bits[u] for u in near[v]) for v in range(n)]
    heap = [(size[v] + jitter[v], v) for v in range(n)]
    heapq.heapify(heap)
    left = [True] * n
    order: list[int] = []
    held: list[int] = []
    largest = 0.0

    def rescore(v: int) -> None:
        size[v] = bits[v] + sum(bits[u] for u in near[v])
        heapq.heappush(heap, (size[v] + jitter[v], v))

    while len(order) + len(held) < n:
        score, v = heapq.heappop(heap)
        if not left[v] or score != size[v] + jitter[v]:
            continue  # an outdated entry
        if size[v] <= log2_size or not near[v]:
            left[v] = False
            order.append(v)
            largest = max(largest, size[v])
            around = near[v]
            for u in around:
                near[u] |= around
                near[u] -= {u, v}
            for u in around:
                rescore(u)
        else:
            heapq.heappush(heap, (score, v))
            # The neighbour (or v itself) that most other tables hold, for its price.
            u = max((*near[v], v), key=lambda w: ((len(near[w]) + jitter[w]) / price[w], w))
            left[u] = False
            held.append(u)
            for w in near[u]:
                near[w].discard(u)
                rescore(w)
    return Cutset(np.array(sorted(held), dtype=np.int64), np.array(order, dtype=np.int64), largest)
