"""Which variables to hold fixed so that the others can be summed out with small tables.

A w-cutset (Rish and Dechter, 2000; Bidyuk and Dechter, 2007), found greedily: eliminate the
variable with the smallest table; when even that is too large, hold the variable that the most
expensive tables share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.game import SIZE, Rules, play
from tightz.elimination.graph import interaction_graph, scopes_of
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
    played = play(
        interaction_graph(scopes_of(model)),
        Rules(SIZE, log2_table=log2_size),
        log2_card=np.log2(model.cardinalities.astype(np.float64)),
        price=np.ones(n) if cost is None else cost,
        noise=np.zeros(n) if noise is None else noise,
    )
    return Cutset(np.flatnonzero(played.held), played.order, played.log2_largest)
