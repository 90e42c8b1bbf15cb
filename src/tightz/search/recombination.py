"""The heaviest state that can be put together from given ones.

Where two states differ, the spins that do fall into clusters that no term joins. What a cluster
adds to log p~ does not depend on the others, so each is taken from the heavier side (partition
crossover, `moves.recombine`: tempering does it with the few states it keeps). In a large sparse
model states are wrong here and there: of many that are each wrong somewhere, one that is right
nearly everywhere can be put together. 100x100 grid, w = 10: the heaviest of 1024 draws under a
mini-bucket cap has log weight 79,136, eleven of them put together 79,226, tempering's best 78,684.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.runtime.kernels import kernel
from tightz.search.moves import MAX_DESCENT, flip_gain, flip_spin, recombine, reweigh

WORK = 3e7
"""Incidences that are looked at in all, a quarter of a second: of large models fewer states."""


def recombined(polynomial: SpinPolynomial, states: NDArray[np.int8]) -> NDArray[np.int8]:
    """(n,) a state at least as heavy as each of `states` (S, n), of which there is at least one.

    The heaviest is joined with the others in turn, heaviest first, and after that flipped where a
    single spin gains: between clusters of different states there may be some.
    """
    states = np.asarray(states, dtype=np.int8)
    order = np.argsort(-polynomial.log_weight(states), kind="stable")
    most = max(2, int(WORK / max(1, 2 * polynomial.spins.size)))
    grouped, n = Coset.build(polynomial).grouped, polynomial.n
    x = states[order[0]].reshape(n, 1).copy()
    products = np.empty((grouped.coef.size, 1))
    reweigh(grouped, x, products, np.empty(1))
    rows = np.ascontiguousarray(states[order[1:most]])
    _join(grouped, rows, x, products, np.empty(n, dtype=np.bool_), np.empty(n, dtype=np.int64))
    return x[:, 0].copy()


@kernel
def _join(poly, rows, x, products, differs, queue):  # type: ignore[no-untyped-def]
    """x (n, 1) takes from each of the rows (S, n) what gains, then flips while a spin gains."""
    for s in range(rows.shape[0]):
        recombine(poly, x, rows[s], products, differs, queue)
    only = np.int64(0)  # as a literal it would have all that it is passed to compiled again
    for _ in range(MAX_DESCENT):
        gained = False
        for i in range(x.shape[0]):
            if flip_gain(poly, x, products, i, only) > 0.0:
                flip_spin(poly, x, products, i, only)
                gained = True
        if not gained:
            return
