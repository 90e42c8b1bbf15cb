"""Whether a model is a sum that Pfaffians do, what that costs, and the sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.planar.balls import FIRST_BITS, MOST_BITS, ball_sum, product_seconds
from tightz.elimination.planar.embedding import Embedding, frustration, planar_embedding, signs
from tightz.elimination.planar.fronts import Front, make_fronts, work
from tightz.elimination.planar.pfaffian import (
    Pfaffian,
    Problem,
    Sum,
    edge_correlations,
    pfaffian,
)
from tightz.elimination.planar.spins import SpinGraph, spin_graph
from tightz.elimination.planar.torus import find_torus
from tightz.elimination.refused import Refused
from tightz.errors import UnsupportedModelError
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError
from tightz.models.factor_graph import FactorGraph, Grid
from tightz.runtime.clock import Clock

GOOD = 1e-6
"""Nats (or 1e-10 of log Z): above this rounding, balls are tried in place of float64."""

BLURRED = 1e-4
"""The same for correlations: their true errors were at most 1e-4 of `blur` on 118 random models."""

USEFUL = 1e-2
"""Nats: where balls take too long, float64 may still answer with a rounding up to this."""

Means = NDArray[np.float64] | None

_FRONT_SECONDS, _FLOP_SECONDS = 5e-4, 1e-8

COLD = 1.6
"""Root mean square of the couplings around frustrated faces from which float64 has too few digits:
its rounding grows by exp(10) for each unit, on lattices of all sizes."""

FEW = 15.0
"""Sum of the weakest couplings around frustrated faces up to which float64 is enough all the same:
no more nats than that cancel."""

_BITS, _TORUS_BITS = 11.0, 16.5
"""Bits of balls, beside the first, for J sqrt(frustrated faces): J as in COLD."""

_BALL_MARGINALS = 3.0
"""Times as long as log Z alone."""


@dataclass(frozen=True, eq=False)
class PlanarSum:
    """log Z within `rounding`; marginals NaN where no edge tells them, None if not asked for.

    `factor_marginals` is laid out as the model's log_tables. `bits` is 53 for float64.
    """

    log_z: float
    rounding: float
    bits: int
    correlations: NDArray[np.float64] | None = None
    marginals: list[NDArray[np.float64]] | None = None
    factor_marginals: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class PlanarPlan:
    """A model that is planar (one term) or a torus (four), and the order of its elimination."""

    model: FactorGraph
    graph: SpinGraph
    embedding: Embedding
    terms: list[tuple[float, NDArray[np.float64]]]
    seam: NDArray[np.bool_] | None = None

    @cached_property
    def fronts(self) -> list[Front]:
        return make_fronts(self.embedding, self.seam)

    @cached_property
    def problems(self) -> list[tuple[float, Problem]]:
        """(coefficient, Pfaffian) of every term of the sum."""
        return [(c, Problem(self.embedding, self.fronts, sign)) for c, sign in self.terms]

    @cached_property
    def _work(self) -> tuple[float, int]:
        return work(self.fronts)

    @property
    def seconds(self) -> float:
        """Predicted on one core: log Z and marginals in float64, or log Z in balls."""
        if self.bits:
            return self.ball_seconds(self.bits)
        return len(self.terms) * (_FRONT_SECONDS * len(self.fronts) + _FLOP_SECONDS * self._work[0])

    def ball_seconds(self, bits: int, *, marginals: bool = False) -> float:
        """Predicted for one sum in balls of so many bits."""
        products = len(self.terms) * self._work[0] * (_BALL_MARGINALS if marginals else 1.0)
        return _FRONT_SECONDS * len(self.terms) * len(self.fronts) + products * product_seconds(
            bits
        )

    @cached_property
    def bits(self) -> int:
        """That balls are predicted to need; 0 where float64 is predicted to have digits left."""
        faces, coupling, weakest = frustration(self.embedding)
        if coupling <= COLD or weakest <= FEW:
            return 0
        scale = _BITS if len(self.terms) == 1 else _TORUS_BITS
        return FIRST_BITS + int(scale * coupling * math.sqrt(faces))

    @property
    def bytes(self) -> int:
        """Predicted, of everything kept for marginals and of the largest front."""
        largest = max((f.size for f in self.fronts), default=0)
        entry = 1 + (512 + self.bits) // 64 if self.bits else 1
        return (2 * self._work[1] + 64 * largest**2) * entry

    def describe(self) -> str:
        shape = "torus, four Pfaffians" if len(self.terms) > 1 else "planar, one Pfaffian"
        fields = ", fields on a ghost spin" if self.graph.ghost else ""
        largest = max((f.size for f in self.fronts), default=0)
        balls = f", about {self.bits} bits" if self.bits else ""
        return (
            f"{shape}{fields}: {self.graph.n_edges} edges, {len(self.fronts)} fronts of at most "
            f"{largest} rows{balls}, about {self.seconds:.2g} s and {self.bytes / 1e6:.3g} MB"
        )

    def solve(
        self,
        *,
        marginals: bool = True,
        time_limit: float = 60.0,
        stop: Callable[[], bool] = bool,
    ) -> PlanarSum:
        """log Z, certified, and marginals; balls only where they are predicted to fit the time.

        UnsupportedModelError where neither float64 nor balls in that time give any digits, or
        `stop()` asks them to end.
        """
        clock = Clock(time_limit)
        prefactor, error = self.graph.log_prefactor()
        over: Callable[[], bool] = lambda: clock.expired or stop()  # noqa: E731
        found = self._in_balls(self.bits, marginals, clock.left, over) if self.bits else None
        if found is None:
            found = _float_sum(self, marginals)
            good = max(GOOD, 1e-10 * abs(prefactor))
            few = not found.rounding <= good or (marginals and not found.blur <= BLURRED)
            if few and not self.bits:
                found = self._in_balls(2 * FIRST_BITS, marginals, clock.left, over) or found
        if not found.rounding <= USEFUL:
            raise UnsupportedModelError(
                "planar: the model is frustrated and cold, its terms cancel beyond float64, and "
                f"more bits take longer than the {time_limit:.3g} s that there were (predicted: "
                f"{self.ball_seconds(self.bits, marginals=marginals):.2g} s)"
            )
        log_z = prefactor + found.log
        rounding = error + found.rounding + 2.0 * UNIT * abs(log_z)
        if found.correlations is None or not found.blur <= 1e-3:
            return PlanarSum(log_z, rounding, found.bits)
        means = np.clip(found.correlations[: self.graph.n_edges], -1.0, 1.0)
        singles = self._singles(means)
        return PlanarSum(
            log_z, rounding, found.bits, means, singles, self._factor_marginals(means, singles)
        )

    def _in_balls(
        self, bits: int, marginals: bool, seconds: float, stop: Callable[[], bool]
    ) -> Sum | None:
        """With so many bits, or twice as many each time; None where that does not fit the time."""
        clock = Clock(seconds)
        while bits <= MOST_BITS and self.ball_seconds(bits, marginals=marginals) <= clock.left:
            found = ball_sum(self.problems, bits, correlations=marginals, stop=stop)
            if found is not None:
                return found
            bits *= 2
        return None

    def _singles(self, means: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """1/2 without fields; else the correlation with the ghost, where an edge tells it."""
        n = self.model.n_variables
        mean = np.zeros(n)
        if self.graph.ghost:
            mean = np.where(self._ghost_side(), np.nan, 0.0)
            field = self.graph.second == n
            mean[self.graph.first[field]] = means[field]
        return list(np.stack([0.5 * (1.0 + mean), 0.5 * (1.0 - mean)], axis=1))

    def _ghost_side(self) -> NDArray[np.bool_]:
        """(n,) whether a variable is connected to the ghost."""
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        graph = self.graph
        ends = (np.ones(graph.n_edges), (graph.first, graph.second))
        _, piece = connected_components(coo_matrix(ends, shape=(graph.n, graph.n)), directed=False)
        return piece[:-1] == piece[-1]

    def _factor_marginals(
        self, means: NDArray[np.float64], singles: list[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """p(x, y) = (1 + m_x s_x + m_y s_y + c s_x s_y) / 4, never below 0."""
        model = self.model
        out = np.ones(model.log_tables.size)
        mean = np.array([p[0] - p[1] for p in singles])
        s = np.array([1.0, -1.0])
        for batch in model.batches():
            scopes = batch.scopes.astype(np.int64)
            size = 2 ** scopes.shape[1]
            if size == 2:
                table = 0.5 * (1.0 + mean[scopes[:, :1]] * s)
            elif size == 4:
                c = means[self.graph.pair_of[batch.indices]]
                first, second = mean[scopes[:, 0]], mean[scopes[:, 1]]
                table = 1.0 + first[:, None, None] * s[:, None] + second[:, None, None] * s
                table = 0.25 * (table + c[:, None, None] * s[:, None] * s)
                table = np.maximum(table, 0.0).reshape(-1, 4)
            else:
                continue
            at = model.table_ptr[batch.indices][:, None] + np.arange(size)
            out[at] = table
        return out


def planar_plan(model: FactorGraph, *, time_limit: float = 60.0) -> PlanarPlan | Refused:
    """A plan, or why Pfaffians do not sum this model.

    A graph that is no lattice takes a test of planarity, 1 s for 12,000 edges; not above the limit.
    """
    graph = spin_graph(model)
    if isinstance(graph, Refused):
        return graph
    layout = model.layout if isinstance(model.layout, Grid) else Grid(0, 0)
    torus = find_torus(graph, layout.rows, layout.cols)
    if torus is not None:
        return PlanarPlan(model, graph, torus.embedding, torus.choices, torus.seam)
    embedding = planar_embedding(graph, layout.rows, layout.cols, time_limit=time_limit)
    if isinstance(embedding, Refused):
        return embedding
    return PlanarPlan(model, graph, embedding, [(1.0, signs(embedding))])


def _float_sum(plan: PlanarPlan, correlations: bool) -> Sum:
    parts = []
    for coefficient, problem in plan.problems:
        found = _float_term(problem, correlations)
        if not found[0].blur <= BLURRED and len(plan.terms) > 1:
            # One of the four vanishes, or nearly: the mean of two that differ in one link.
            for altered in problem.split():
                parts.append((0.5 * coefficient, *_float_term(altered, correlations)))
        else:
            parts.append((coefficient, *found))
    return _total(parts)


def _float_term(problem: Problem, correlations: bool) -> tuple[Pfaffian, Means]:
    kept: list[NDArray[np.float64]] | None = [] if correlations else None
    found = pfaffian(problem, kept)
    if kept is None or not found.rounding < math.inf:
        return found, None
    return found, edge_correlations(problem, kept)


def _total(parts: list[tuple[float, Pfaffian, Means]]) -> Sum:
    """The sum of signed terms, which is positive; errors of terms add up, each with its size."""
    nothing = Sum(-math.inf, math.inf, math.inf, None, 53)
    if any(p.rounding == math.inf for _, p, _ in parts):
        return nothing
    top = max(p.log for _, p, _ in parts)
    weights = [c * p.sign * math.exp(p.log - top) for c, p, _ in parts]
    total = math.fsum(weights)
    error = math.fsum(
        abs(w) * (math.expm1(p.rounding) + (2.0 * LIBRARY + 4.0 * UNIT) * (1.0 + top - p.log))
        for w, (_, p, _) in zip(weights, parts, strict=True)
    )
    if total <= -error:
        raise RefutedError(f"planar: the signed sum of Pfaffians is {total!r}, below zero")
    if len(parts) == 1:
        only = parts[0][1]
        return Sum(only.log, only.rounding, only.blur, parts[0][2], 53)
    if total <= 2.0 * error:
        return nothing
    shares = [w / total for w in weights]
    blur = math.fsum(abs(w) * p.blur for w, (_, p, _) in zip(shares, parts, strict=True))
    means = [w * m for w, (_, _, m) in zip(shares, parts, strict=True) if m is not None]
    rounding = error / (total - error) + 2.0 * LIBRARY * (1.0 + abs(math.log(total)))
    whole = np.sum(means, axis=0) if means else None
    return Sum(top + math.log(total), rounding, blur, whole, 53)
