"""Exact log Z of one model at many temperatures: planned once, summed at each, differentiated."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tightz.elimination.exact import plan
from tightz.elimination.exact.elimination import ExactResult, solve
from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.tables import StoppedError
from tightz.elimination.exact.ways import MARGINALS, choose_way
from tightz.errors import ModelError, ResourceError, UnsupportedModelError
from tightz.judge.convexity import scaling_slack
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import observe
from tightz.models.temperature import at_beta
from tightz.runtime.backends import Backend
from tightz.runtime.clock import Clock
from tightz.workspace.shared import Shared

PLANNING = 0.05
"""Part of the time that the search for a plan may take."""

STEP = 0.03
"""Of a derivative, in units of the scale on which log Z bends; truncation is about 1e-8 then."""

WEIGHTS = np.array([-1.0, 16.0, -30.0, 16.0, -1.0]) / 12.0
"""Second derivative by five points a step apart; the sum of the magnitudes is 16/3."""


@dataclass(frozen=True, eq=False)
class Summed:
    """log Z at `beta` within [low, high], rounding of tables and sums included.

    energy      <E>, exact up to the rounding of float64 sums; NaN where the way gives no marginals
    spread      <(E - <E>)^2> as if factors were independent: an order of magnitude
    spins       mean of s = 1 - 2x over free variables of two states; NaN where unknown
    """

    beta: float
    result: ExactResult
    low: float
    high: float
    energy: float = math.nan
    spread: float = math.nan
    spins: float = math.nan

    @property
    def radius(self) -> float:
        return 0.5 * (self.high - self.low)


@dataclass(frozen=True, eq=False)
class ExactSums:
    """Sums `model` at any beta; `ResourceError` where no way is within reach of the time.

    What one sum shows about the seconds that its method takes is known to the next.
    """

    model: FactorGraph
    clock: Clock
    max_memory: int
    shared: Shared
    backend: Backend = "auto"
    helpers: list[Summed] = field(default_factory=list)

    @cached_property
    def plan(self) -> EliminationPlan | None:
        """The same at every temperature: it depends on scopes and states only."""
        try:
            return plan(self.model, most_seconds=PLANNING * self.clock.left)
        except ResourceError:
            return None

    def at(
        self, beta: float, seconds: float, *, most: float = 0.0, marginals: bool = True
    ) -> Summed:
        """log Z at `beta`, with `marginals` the energy too.

        `ResourceError` where that is predicted to take longer than `seconds` and `most`. It is
        given up after `seconds`, or twice as long as predicted, `most` at most.
        """
        scaled = at_beta(self.model, beta)
        result = self._sum(scaled, seconds, max(seconds, most), marginals)
        assert result.bound.evidence is not None
        verdict = result.bound.evidence.verdict(scaled)
        slack = scaling_slack(scaled)
        found = Summed(beta, result, verdict.lower - slack, verdict.upper + slack)
        return self._with_means(found) if marginals and result.log_z > -math.inf else found

    def _sum(self, model: FactorGraph, seconds: float, most: float, marginals: bool) -> ExactResult:
        """By the way of least time, the plan being known."""
        observed, shared = observe(model), self.shared
        more = MARGINALS if marginals else 1.0
        way = choose_way(
            observed.reduced, observed.kept, self.max_memory, marginals=False,
            backend=self.backend, time_limit=most / more, asked=model, plan=self.plan,
            hopeless=self.plan is None, predicted=shared.predicted,
        )  # fmt: skip
        clock = self.clock.child(max(seconds, min(most, 2.0 * more * shared.predicted(way))))
        try:
            result = solve(
                model, way, max_memory=self.max_memory, marginals=marginals,
                time_limit=clock.left, stop=lambda: clock.expired,
            )  # fmt: skip
        except (StoppedError, ResourceError, UnsupportedModelError):
            if not marginals:
                shared.gave_up(way, clock.elapsed)
            raise
        if not marginals:
            shared.took(way, result.seconds)
        return result

    def _with_means(self, found: Summed) -> Summed:
        """What exact marginals say, where the sum gave any."""
        result, weights = found.result, self.model.log_tables
        if result._beliefs is None:
            return found
        try:
            energy = 0.0 - result.mean_of(weights)
            shares = result._tables.factors
            vectors = result.marginals
        except (ModelError, UnsupportedModelError):  # marginals without digits, or of no factor
            return found
        assert shares is not None
        some = shares > 0.0
        starts = self.model.table_ptr[:-1]
        spread = 0.0
        if starts.size:
            used = np.where(some, weights, 0.0)
            with np.errstate(over="ignore", invalid="ignore"):  # of squares; a scale, no result
                first = np.add.reduceat(shares * used, starts)
                second = np.add.reduceat(shares * used * used, starts)
                spread = float(np.maximum(second - first * first, 0.0).sum())
        free = self.model.free_variables
        spins = math.nan
        if free.size and (self.model.cardinalities[free] == 2).all():
            spins = float(np.mean([vectors[v][0] - vectors[v][1] for v in free.tolist()]))
        return Summed(found.beta, result, found.low, found.high, energy, spread, spins)

    @cached_property
    def step(self) -> float:
        """1 / the most that one variable can change log p~: log Z bends on no smaller scale."""
        model = self.model
        if not model.n_factors:
            return math.inf
        starts = model.table_ptr[:-1]
        finite = np.isfinite(model.log_tables)
        top = np.maximum.reduceat(np.where(finite, model.log_tables, -np.inf), starts)
        low = np.minimum.reduceat(np.where(finite, model.log_tables, np.inf), starts)
        reach = np.where(top > -np.inf, top - low, 0.0)
        total = np.bincount(
            model.scope_vars, np.repeat(reach, model.arities), minlength=model.n_variables
        )
        most = float(total.max(initial=0.0))
        return 1.0 / most if most > 0.0 else math.inf

    def help(self, beta: float, seconds: float, most: float = 0.0) -> Summed | None:
        """A sum beside the temperatures asked for; None where it fails. Kept in `helpers`."""
        try:
            found = self.at(beta, seconds, most=most, marginals=False)
        except (ModelError, ResourceError, StoppedError):
            return None
        self.helpers.append(found)
        return found

    def narrow_energy(self, point: Summed, seconds: float, most: float) -> None:
        """Two sums beside `point`, as near as rounding allows: chords to them bound the energy.

        A chord over a step h is off by f'' h / 2 and by two roundings over h: least where these
        are equal.
        """
        least = STEP / self.step
        bend = max(point.spread, least * least)  # inf where it overflows; a power would raise
        if not bend > 0.0:  # a model without energies
            return
        h = _power(2.0 * math.sqrt(point.radius / bend), point.beta)
        for side in (-1.0, 1.0):
            self.help(point.beta + side * h, 0.5 * seconds, 0.5 * most)

    def curvature(self, point: Summed, seconds: float) -> tuple[float, float]:
        """(f'', its error) at `point`; (NaN, inf) where a sum fails."""
        if self.step == math.inf:
            return 0.0, 0.0
        guess = point.spread
        value, error = math.nan, math.inf
        for _ in range(2):
            scale = STEP * min(self.step, guess**-0.5 if guess > 0.0 else math.inf)
            h = _power(scale, point.beta)
            around = [self.help(point.beta + k * h, 0.1 * seconds) for k in (-2, -1, 1, 2)]
            if any(one is None for one in around):
                return value, error
            sums = [s for s in around if s is not None]
            sums.insert(2, point)
            # Relative to the middle: what all have in common would cancel with rounding.
            values = np.array([s.result.log_z - point.result.log_z for s in sums])
            value = float(WEIGHTS @ values) / h / h
            three = float(values[1] + values[3]) / h / h
            rounding = 16.0 / 3.0 * max(s.radius for s in sums) / h / h
            error = 0.1 * abs(value - three) + rounding
            if not value > 4.0 * guess or value * self.step * self.step < 1.0:
                break
            guess = value  # factors move together here: log Z bends on a smaller scale
        return max(0.0, value), error


def _power(h: float, beta: float) -> float:
    """A power of two near h, large enough that beta + h is exact."""
    least = 2.0**-30 * abs(beta)
    return 2.0 ** round(math.log2(min(max(h, least, 1e-200), 1e200)))
