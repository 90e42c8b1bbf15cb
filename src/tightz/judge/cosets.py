"""A coset sum as evidence: for one matrix A, a q on {x : A x = b} for each of several b.

The cosets of different b are disjoint whatever the rank of A, and a q whose free spins make every
row of A the parity that b says puts no weight outside its own. Every q is evaluated, in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tightz.judge.claims import log_sum
from tightz.judge.forests import ForestQ
from tightz.judge.layers import LayerQ
from tightz.judge.links import SpinLink
from tightz.judge.spins import ProductQ, SpinTerms
from tightz.judge.verdict import RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph

CosetQ = ProductQ | ForestQ | LayerQ
"""What is known to live on its chart's states alone."""


def coset_value(
    terms: SpinTerms, matrix: NDArray[np.uint8], rhs: NDArray[np.uint8], q: CosetQ
) -> tuple[float, float]:
    """(the bound of q, its rounding, not yet subtracted); RefutedError where q leaves the coset."""
    rows, columns = np.nonzero(matrix)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(matrix)))])
    parities = SpinTerms(0.0, ptr.astype(np.int64), columns, np.zeros(len(matrix)))
    q.chart.check()
    # Every row of A, as a product of spins, must become a constant on q's chart (no free spin is
    # left) with the sign that b says: then all of q's states satisfy A x = b.
    row, _, signs = q.chart.images(parities)
    if matrix.shape[1] != q.chart.n or row.size or not np.array_equal(signs < 0.0, rhs == 1):
        raise RefutedError("a q does not stay in its coset")
    return q.value(terms)


@dataclass(frozen=True, eq=False)
class CosetsEvidence:
    """matrix (m, n) and rhs (K, m) over the link's spins, entries 0 or 1; one q per row of rhs.

    Where the q's were too many to be kept (None), `values` and `roundings` are what `coset_value`
    said of them when they were made.
    """

    link: SpinLink
    matrix: NDArray[np.uint8]
    rhs: NDArray[np.uint8]
    values: NDArray[np.float64]
    roundings: NDArray[np.float64]
    qs: Sequence[CosetQ | None] | None = None
    _judged: list[tuple[float, float]] = field(default_factory=list, init=False, repr=False)

    def log_sum(self) -> tuple[float, float]:
        """(a lower bound on log Z of the link's terms, the rounding already taken off)."""
        if not self._judged:
            # Different b have disjoint cosets; one b twice would count its coset twice.
            if len(np.unique(self.rhs, axis=0)) != len(self.values) or self.rhs.max(initial=0) > 1:
                raise RefutedError("a coset is counted twice")
            lowers = [self._lower(k) for k in range(len(self.values))]
            value, rounding = log_sum(lowers)
            self._judged.append((value - rounding, rounding + float(self.roundings.max())))
        return self._judged[0]

    def _lower(self, k: int) -> float:
        if self.qs is None:
            value, rounding = float(self.values[k]), float(self.roundings[k])
        else:
            q = self.qs[k]
            if q is None:
                return -math.inf
            value, rounding = coset_value(self.link.terms, self.matrix, self.rhs[k], q)
        return value - rounding

    def verdict(self, model: FactorGraph) -> Verdict:
        """The sum on the model, all roundings taken off."""
        value, rounding = self.log_sum()
        if value == -math.inf:
            return Verdict()
        lower = float(np.nextafter(value - self.link.rounding(model), -math.inf))
        return Verdict(lower=lower, rounding=rounding + value - lower)
