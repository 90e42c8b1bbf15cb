"""The coset sum: log Z bounded below by all 2^m right-hand sides of one parity matrix.

For a fixed A of rank r the cosets {x : A x = b} of the feasible b partition the space, so
Z = sum_b Z(A, b) >= sum_b gamma(A, b) with no probability at all, whatever A and however it was
chosen. (The paper draws one b and speaks of expectations.)
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError, require_range
from tightz.families.mean_field import MeanField
from tightz.families.projection import Family, IProjection
from tightz.judge import Verdict
from tightz.judge.cosets import CosetQ, CosetsEvidence, coset_value
from tightz.judge.links import SpinLink
from tightz.judge.spins import SpinTerms
from tightz.models.factor_graph import FactorGraph
from tightz.models.given import ModelOrPath, given_model
from tightz.models.names import Names, numbers_of
from tightz.models.prepared import prepared
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.paper.setup import Projections
from tightz.paper.trials import WeightedMoments
from tightz.projections.coset import Coset, check_level
from tightz.projections.gf2 import pack, row_reduce
from tightz.projections.hashing import HashFamily, Parities, PivotPolicy
from tightz.reductions.collapse import Collapsed
from tightz.reductions.encoding import Model, model_digest
from tightz.results import ByVariable, OneBound
from tightz.runtime.executors import Submits, map_ordered
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence
from tightz.workspace.workspace import Workspace, lifted_means

MAX_HELD = 2**27
"""Bytes of q's that a sum keeps as its evidence; of more it keeps what the judge said of each."""

MAX_LEVEL = 20
"""2^20 cosets are the most that one sum visits."""


@dataclass(frozen=True, eq=False, repr=False)
class CosetSum(ByVariable, OneBound):
    """log_z = logsumexp(log_gammas) <= log Z, one entry per right-hand side of `matrix`.

    All values are the judge's: evaluated from the cosets' q's alone and moved down by `rounding`.

    matrix       (r, n) independent parities over the working model's spins
    rhs          (2^r, r) right-hand sides; log_gammas (2^r,) their bounds
    marginals    (variables, 2) of the mixture of the cosets' q's; NaN where Z = 0
    updates      coordinate steps made in all
    """

    bound: Bound
    matrix: NDArray[np.uint8]
    rhs: NDArray[np.uint8]
    log_gammas: NDArray[np.float64]
    marginals: NDArray[np.float64]
    updates: int
    seconds: float
    provenance: dict[str, Any] = field(repr=False)

    @property
    def naming(self) -> Names:
        return numbers_of(self.marginals)

    @property
    def log_z(self) -> float:
        return self.bound.log_z

    @property
    def rounding(self) -> float:
        return self.bound.rounding

    def __repr__(self) -> str:
        return (
            f"CosetSum(log_z={self.log_z:.6f}, {len(self.log_gammas)} cosets, "
            f"seconds={self.seconds:.3g})"
        )


@prepared("coset_sum")
def coset_sum(
    model: ModelOrPath,
    m: int,
    *,
    family: Family | None = None,
    projections: Projections | None = None,
    matrix: ArrayLike | None = None,
    seed: Seed = None,
    executor: Submits | None = None,
    threads: int | None = None,
) -> CosetSum:
    """logsumexp over b of log gamma(A, b) for one m x n matrix A: a deterministic lower bound.

    family        the I-projection of each coset, default MeanField(restarts)
    projections   how A is drawn and the model prepared; default Projections(collapse=0)
    matrix        A itself, over the collapsed model's spins; rows that depend on others add
                  nothing and are dropped
    """
    model = given_model(model, "coset_sum")
    start = time.perf_counter()
    root = seed_sequence(seed)
    how = projections or Projections(collapse=0)
    chosen: Family = MeanField(how.restarts) if family is None else family
    work = Workspace.build(model, seed=root, collapse=how.collapse, search_sweeps=how.search_sweeps)
    check_level(m, work.polynomial.n)
    require_range("m", m, 0, MAX_LEVEL)
    rows = _rows(matrix, m, work.polynomial.n, how.hashing, generator(root, 0))
    policy = work.pivots(how.pivots)
    # All right-hand sides: independent rows make every one of them feasible, and their cosets are
    # the whole space.
    rhs = (np.arange(2 ** len(rows))[:, None] >> np.arange(len(rows)) & 1).astype(np.uint8)

    link = work.link
    project = _Project(
        work.polynomial, rows, rhs, policy, chosen, root, work.states, link, work.collapsed
    )
    judged: list[_Judged] = []
    held = 8 * work.polynomial.n * len(rhs) <= MAX_HELD
    moments = WeightedMoments(work.original.n)
    updates = 0
    found = map_ordered(project, range(len(rhs)), executor=executor, threads=threads)
    for one, means, steps in found:
        judged.append(one if held else one._replace(q=None))
        updates += steps
        moments.add(one.value, means)
    evidence, verdict = _evidence(link, rows, rhs, judged, held, model)
    seconds = time.perf_counter() - start
    bound = Bound(
        Side.LOWER, verdict.lower, Proof.DETERMINISTIC, "coset sum", seconds, 1.0,
        "the cosets of one matrix partition the space, so their bounds add up",
        rounding=verdict.rounding, evidence=evidence,
    )  # fmt: skip
    return CosetSum(
        bound=bound,
        matrix=rows,
        rhs=rhs,
        log_gammas=evidence.values - verdict.rounding,
        marginals=work.encoding.marginals(moments.mean),
        updates=updates,
        seconds=seconds,
        provenance=provenance(
            root, model_digest(model), m=m, family=chosen, pivots=type(policy).__name__,
            collapse=work.k, search_sweeps=work.search_sweeps,
        ),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Project:
    """What workers do: q on the coset of one right-hand side, judged."""

    polynomial: SpinPolynomial
    rows: NDArray[np.uint8]
    rhs: NDArray[np.uint8]
    pivots: PivotPolicy
    family: Family
    root: np.random.SeedSequence
    states: NDArray[np.int8] | None
    link: SpinLink
    collapsed: Collapsed | None

    def __call__(self, number: int) -> tuple[_Judged, NDArray[np.float64], int]:
        coset = Coset.build(self.polynomial, Parities(self.rows, self.rhs[number]), self.pivots)
        best = self.family.project(coset, generator(self.root, 2, number), self.states)
        judged = _judge(self.link, best, self.rows, self.rhs[number])
        return judged, lifted_means(best, self.collapsed), best.sweeps * coset.n_free


class _Judged(NamedTuple):
    """What the judge says of one coset's q; the q itself where all of them are kept."""

    value: float
    rounding: float
    q: CosetQ | None


def _judge(
    link: SpinLink, best: IProjection, rows: NDArray[np.uint8], rhs: NDArray[np.uint8]
) -> _Judged:
    if not best.coset.feasible or best.log_gamma == -math.inf:
        return _Judged(-math.inf, 0.0, None)
    q = best.distribution()
    return _Judged(*coset_value(link.terms, rows, rhs, q), q)


def _evidence(
    link: SpinLink,
    rows: NDArray[np.uint8],
    rhs: NDArray[np.uint8],
    judged: list[_Judged],
    held: bool,
    model: Model,
) -> tuple[CosetsEvidence, Verdict]:
    """The evidence and what it proves of the model."""
    values = np.array([one.value for one in judged])
    roundings = np.array([one.rounding for one in judged])
    qs = [one.q for one in judged] if held else None
    evidence = CosetsEvidence(link, rows, rhs, values, roundings, qs)
    if values.max() == -math.inf:
        return evidence, Verdict()
    if isinstance(model, FactorGraph):
        return evidence, evidence.verdict(model)
    value, rounding = evidence.log_sum()
    rounding += 0.0 if link.collapse is None else link.collapse.rounding(SpinTerms.of(model))
    return evidence, Verdict(
        lower=float(np.nextafter(value - rounding, -math.inf)), rounding=rounding
    )


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
    # A dependent row would leave half of the right-hand sides empty and the other half unchanged.
    kept: list[int] = []
    for r in range(len(rows)):
        trial = pack(rows[[*kept, r]])
        pivots = np.full(len(kept) + 1, -1, dtype=np.int64)
        rank = row_reduce(trial, np.zeros(len(kept) + 1, np.uint8), np.arange(n), pivots)
        if rank == len(kept) + 1:
            kept.append(r)
    return rows[kept]
