"""The coset sum: log Z bounded below by all 2^m right-hand sides of one parity matrix.

For a fixed A of rank r the cosets {x : A x = b} of the feasible b partition the space, so
Z = sum_b Z(A, b) >= sum_b gamma(A, b) with no probability at all, whatever A and however it was
chosen. (The paper draws one b and speaks of expectations.)
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError, require_range
from tightz.estimation.guide import build_guide, search_effort
from tightz.estimation.moments import WeightedMoments
from tightz.families.mean_field import MeanField
from tightz.families.projection import Family, IProjection
from tightz.models.collapse import Collapsed
from tightz.models.collapse import collapse as collapse_polynomial
from tightz.models.encoding import Model, encode, model_digest
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset, check_level
from tightz.projections.gf2 import pack, row_reduce
from tightz.projections.hashing import DenseParity, HashFamily, Parities
from tightz.projections.pivots import FirstColumns, PivotPolicy, Reliability
from tightz.runtime.executors import map_ordered
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence, stream

MAX_LEVEL = 20
"""2^20 cosets are the most that one sum visits."""


@dataclass(frozen=True, eq=False, repr=False)
class CosetSum:
    """log_z = logsumexp(log_gammas) <= log Z, one entry per right-hand side of `matrix`.

    matrix       (r, n) independent parities over the working model's spins
    rhs          (2^r, r) right-hand sides; log_gammas (2^r,) their bounds
    marginals    (variables, 2) of the mixture of the cosets' q's; NaN where Z = 0
    """

    log_z: float
    matrix: NDArray[np.uint8]
    rhs: NDArray[np.uint8]
    log_gammas: NDArray[np.float64]
    marginals: NDArray[np.float64]
    seconds: float
    provenance: dict[str, Any] = field(repr=False)

    @property
    def bound(self) -> Bound:
        """The sum as a record."""
        return Bound(
            Side.LOWER, self.log_z, Proof.DETERMINISTIC, "coset sum", self.seconds, 1.0,
            "the cosets of one matrix partition the space, so their bounds add up",
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"CosetSum(log_z={self.log_z:.6f}, {len(self.log_gammas)} cosets, "
            f"seconds={self.seconds:.3g})"
        )


def coset_sum(
    model: Model,
    m: int,
    *,
    family: Family | None = None,
    seed: Seed = None,
    matrix: ArrayLike | None = None,
    hashing: HashFamily | None = None,
    pivots: PivotPolicy | None = None,
    collapse: int | None = 0,
    search_sweeps: int | None = None,
    executor: Executor | None = None,
    threads: int | None = None,
) -> CosetSum:
    """logsumexp over b of log gamma(A, b) for one m x n matrix A: a deterministic lower bound.

    family          the I-projection of each coset, default MeanField()
    matrix          A itself, over the collapsed model's spins; default drawn from `hashing`
                    (DenseParity()). Rows that depend on others add nothing and are dropped
    pivots          default: the least reliable spins where a search was made, else FirstColumns()
    collapse        sum out spins with at most this many neighbours first (None picks, 0 is off)
    search_sweeps   tempering sweeps for starts; None picks by cost, 0 is off
    """
    start = time.perf_counter()
    root = seed_sequence(seed)
    chosen: Family = MeanField() if family is None else family
    encoding = encode(model)
    original = encoding.polynomial
    working, collapsed = _collapsed(original, collapse)
    check_level(m, working.n)
    require_range("m", m, 0, MAX_LEVEL)
    rows = _rows(matrix, m, working.n, hashing or DenseParity(), generator(root, 0))
    sweeps = search_effort(original) if search_sweeps is None else search_sweeps
    require_range("search_sweeps", sweeps, 0)
    guide = None
    if sweeps:
        guide = build_guide(original, collapsed, sweeps=sweeps, seed=stream(root, 1))
    if pivots is None:
        pivots = FirstColumns() if guide is None else Reliability(guide.reliability)
    policy = pivots
    states = None if guide is None else guide.states
    rhs = (np.arange(2 ** len(rows))[:, None] >> np.arange(len(rows)) & 1).astype(np.uint8)

    def project(number: int) -> tuple[float, NDArray[np.float64]]:
        coset = Coset.build(working, Parities(rows, rhs[number]), policy)
        best = chosen.project(coset, generator(root, 2, number), states)
        return best.log_gamma, _means(best, collapsed)

    log_gammas = np.empty(len(rhs))
    moments = WeightedMoments(original.n)
    found = map_ordered(project, range(len(rhs)), executor=executor, threads=threads)
    for number, (log_gamma, means) in enumerate(found):
        log_gammas[number] = log_gamma
        moments.add(log_gamma, means)
    return CosetSum(
        log_z=float(logsumexp(log_gammas)) if log_gammas.max() > -math.inf else -math.inf,
        matrix=rows,
        rhs=rhs,
        log_gammas=log_gammas,
        marginals=encoding.marginals(moments.mean),
        seconds=time.perf_counter() - start,
        provenance=provenance(
            root, model_digest(model), m=m, family=chosen, pivots=type(pivots).__name__,
            collapse=0 if collapsed is None else collapsed.k, search_sweeps=sweeps,
        ),
    )  # fmt: skip


def _collapsed(poly: SpinPolynomial, k: int | None) -> tuple[SpinPolynomial, Collapsed | None]:
    """The collapsed model, its constant lowered by the rounding it declares."""
    if k == 0 or poly.n == 0 or poly.constant == -np.inf:
        return poly, None
    done = collapse_polynomial(poly, k)
    safe = replace(done.polynomial, constant=done.polynomial.constant - done.dropped)
    return safe, replace(done, polynomial=safe)


def _rows(
    matrix: ArrayLike | None, m: int, n: int, hashing: HashFamily, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Independent rows of A: dependent ones would make every other coset empty."""
    rows = hashing.draw(m, n, rng).matrix if matrix is None else np.asarray(matrix)
    if rows.shape != (m, n) or not np.isin(rows, (0, 1)).all():
        raise ParameterError(
            f"matrix has shape {rows.shape}; expected {m} x {n} entries 0 or 1 (m parities over "
            "the working model's spins)"
        )
    rows = rows.astype(np.uint8)
    kept: list[int] = []
    for r in range(len(rows)):
        trial = pack(rows[[*kept, r]])
        pivots = np.full(len(kept) + 1, -1, dtype=np.int64)
        rank = row_reduce(trial, np.zeros(len(kept) + 1, np.uint8), np.arange(n), pivots)
        if rank == len(kept) + 1:
            kept.append(r)
    return rows[kept]


def _means(best: IProjection, collapsed: Collapsed | None) -> NDArray[np.float64]:
    """Means of all the model's spins under the coset's q."""
    if collapsed is None:
        return best.spin_means()
    if best.log_gamma == -np.inf:
        return np.full(collapsed.original.n, np.nan)
    return collapsed.lift_means(best.expectations)
