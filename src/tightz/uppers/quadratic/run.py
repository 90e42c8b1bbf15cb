"""One run of quadratic elimination: orders compared, then rounds of descent and of new cuts."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import UnsupportedModelError, require_range
from tightz.judge.links import EncodingLink
from tightz.judge.quadratic import MAX_SPINS, MAX_TAIL, QuadraticEvidence
from tightz.judge.spins import SpinMap, SpinTerms
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.encoding import SpinEncoding
from tightz.uppers.quadratic.cuts import Added, Cuts, broken
from tightz.uppers.quadratic.descent import descend
from tightz.uppers.quadratic.elimination import Elimination
from tightz.uppers.quadratic.orders import candidates

Array = NDArray[np.float64]

WHY = "sums over single spins, each log 2cosh replaced by a quadratic above it"

SCOUTING = 8
"""Iterations given to an order before one is kept; fewer where it falls behind another."""

EVEN = 2
"""Iterations before which orders are not compared."""

FIRST = 20
"""Iterations before the first look for inequalities that are broken."""

ROUND = 40
"""Iterations between two looks for inequalities that are broken."""

_PATIENCE = 5
"""Iterations over which the bound must fall by `tol` for a round to go on."""


class QuadraticStatus(enum.Enum):
    """How a run ended; the value is the advice. The bound holds in every case."""

    CONVERGED = (
        "converged: the bound no longer falls by more than tol; raise tail for a tighter one"
    )
    ITERATION_LIMIT = "stopped early: raise iterations for a tighter bound"
    TIME_LIMIT = "stopped by the time limit: raise time_limit for a tighter bound"
    OVERFLOW = "no information: the couplings are too large for sums in float64; rescale the model"


@dataclass(frozen=True)
class Quadratic:
    """Settings of quadratic elimination.

    The last `tail` spins are summed exactly, which takes 2^tail steps. `cuts`: whether
    inequalities among two and three spins are added where they tighten the bound. The run ends
    after `iterations`, or when these gain less than `tol` (nats), or after `time_limit` seconds.
    """

    tail: int = 14
    iterations: int = 1000
    cuts: bool = True
    tol: float = 1e-3
    time_limit: float | None = None

    def __post_init__(self) -> None:
        require_range("tail", self.tail, 0, MAX_TAIL)
        require_range("iterations", self.iterations, 0)
        require_range("tol", self.tol, 0.0)
        if self.time_limit is not None:
            require_range("time_limit", self.time_limit, 0.0)


@dataclass(frozen=True, eq=False)
class Spins:
    """log p~(s) = constant + h's + s'Js / 2, and how that stands for the model."""

    constant: float
    couplings: Array
    fields: Array
    link: EncodingLink

    @classmethod
    def of(cls, encoding: SpinEncoding) -> Spins:
        """UnsupportedModelError where it is no such model."""
        p = encoding.polynomial
        if encoding.coset is not None:
            raise UnsupportedModelError(
                "quadratic elimination sums over all states of spins, but tables of this model "
                "have zeros; use tz.MiniBucket(), which takes any factor graph"
            )
        if p.degree > 2:
            raise UnsupportedModelError(
                f"quadratic elimination takes couplings of pairs of spins, but this model has "
                f"products of {p.degree}; use tz.MiniBucket(), which takes any factor graph"
            )
        if p.n > MAX_SPINS:
            raise UnsupportedModelError(
                f"quadratic elimination keeps all pairs of spins, at most {MAX_SPINS} spins, but "
                f"this model has {p.n}; use tz.MiniBucket(), which takes sparse models of any size"
            )
        j, h = np.zeros((p.n, p.n)), np.zeros(p.n)
        for arity, spins, theta in p.by_arity():
            if arity == 1:
                np.add.at(h, spins[:, 0], theta)
            elif arity == 2:
                np.add.at(j, (spins[:, 0], spins[:, 1]), theta)
        link = EncodingLink(SpinTerms.of(p), SpinMap.identity(p.n))
        return cls(p.constant, j + j.T, h, link)


class Run:
    """Orders compared, the best one taken to its end."""

    def __init__(self, spins: Spins, config: Quadratic, started: float) -> None:
        self.spins, self.config, self.started = spins, config, started
        self.tail = min(config.tail, spins.fields.size)
        self.status = QuadraticStatus.ITERATION_LIMIT
        self.ended = False
        self.reserve = 0.0  # seconds before the limit that are not for iterations
        self.best: Path | None = None

    def improvements(self) -> Iterator[float]:
        """The best value after each iteration, any of the orders."""
        paths = []
        for order in candidates(self.spins.couplings, self.spins.fields, self.tail):
            path = Path(self.spins, order, self.tail)
            paths.append(path)
            for _ in range(min(SCOUTING, self.config.iterations) + 1):
                if (self.best is not None and self._late()) or not path.advance():
                    break
                if self.best is None or path.value < self.best.value:
                    self.best = path
                yield self.best.value
                if self._behind(path):
                    break
        path = self.best = min(paths, key=lambda each: each.value)
        while not self._over(path):
            path.advance()
            yield path.value
        self.ended = True
        yield path.value

    def _behind(self, path: Path) -> bool:
        """Whether the best order so far was further after as many iterations."""
        assert self.best is not None
        at = len(path.history) - 1
        return EVEN <= at < len(self.best.history) and self.best.history[at] < path.value

    def _late(self) -> bool:
        limit = self.config.time_limit
        return limit is not None and time.perf_counter() - self.started > limit - self.reserve

    def _over(self, path: Path) -> bool:
        """Whether the run ends here; begins a new round where one is due."""
        if self._late():
            self.status = QuadraticStatus.TIME_LIMIT
            return True
        if path.stuck or path.gained(_PATIENCE) < self.config.tol:
            # Where a whole round of new cuts gained nothing, neither will the next one.
            settled = path.rounds and path.gained(path.done) < self.config.tol
            if settled or not self.config.cuts or not path.cut():
                self.status = QuadraticStatus.CONVERGED
                return True
        elif self.config.cuts and path.done >= (ROUND if path.rounds else FIRST):
            path.cut()
        return len(path.history) > self.config.iterations

    def judged(self, model: FactorGraph) -> Bound:
        """What the judge makes of the best iterate."""
        assert self.best is not None
        evidence = self.best.evidence()
        verdict = evidence.verdict(model)
        return Bound(
            side=Side.UPPER,
            log_z=verdict.upper,
            proof=Proof.DETERMINISTIC,
            method="quadratic elimination",
            seconds=time.perf_counter() - self.started,
            confidence=1.0,
            why=WHY,
            rounding=verdict.rounding,
            evidence=evidence,
        )


class Path:
    """One order: tangent points and multipliers of cuts on their way."""

    def __init__(self, spins: Spins, order: NDArray[np.int64], tail: int) -> None:
        self.order, self.spins, self.tail = order, spins, tail
        self._j, self._h = spins.couplings[np.ix_(order, order)], spins.fields[order]
        first = Elimination(self._j, self._h, np.full(order.size - tail, np.nan))
        self.points = np.nan_to_num(first.log_at)
        self._layer = first.layer
        self.value = math.inf
        self.history: list[float] = []
        self.rounds = -1
        self._begin(Cuts.none(order.size), np.zeros(0))

    def _begin(self, cuts: Cuts, weights: Array) -> None:
        """A round with these cuts, from where the last one ended."""
        self.cuts, self.weights, self._added = cuts, weights, Added(cuts)
        floor = np.zeros(self.points.size + weights.size)
        floor[: self.points.size] = -np.inf
        self._steps = descend(self._value, np.concatenate([self.points, weights]), floor)
        self.rounds += 1
        self.done = -1
        self.stuck = False
        if self.history:
            next(self._steps)  # where it is already
            self.done = 0

    def _value(self, x: Array) -> tuple[float, Callable[[], Array]]:
        points, weights = np.split(x, [self.points.size])
        j, h, constant = self._added.to(self._j, self._h, weights)
        found = Elimination(j, h, points)

        def gradient() -> Array:
            by_point, means, pairs = found.moments()
            return np.concatenate([by_point, self._added.slopes(means, pairs)])

        return self.spins.constant + constant + found.value, gradient

    def advance(self) -> bool:
        """One iteration; False where there is none."""
        found = next(self._steps, None)
        if found is None:
            self.stuck = True
            return False
        self.value, x = found
        self.points, self.weights = np.split(x, [self.points.size])
        self.history.append(self.value)
        self.done += 1
        return True

    def gained(self, iterations: int) -> float:
        """Nats gained by the last so many iterations of this round; inf where they are fewer."""
        if self.done < iterations:
            return math.inf
        return self.history[-1 - iterations] - self.history[-1]

    def cut(self) -> bool:
        """Begin a round with the cuts in use and those broken now; False where there are none."""
        if not math.isfinite(self.value):
            return False
        found = self._eliminated()
        _, means, pairs = found.moments()
        used = self.cuts.chosen(self.weights > 0.0)
        cuts = used.joined(broken(means, pairs, self._layer))
        weights = np.zeros(cuts.size)
        weights[: used.size] = self.weights[self.weights > 0.0]
        self._begin(cuts, weights)
        return cuts.size > used.size

    def _eliminated(self) -> Elimination:
        j, h, _ = self._added.to(self._j, self._h, self.weights)
        return Elimination(j, h, self.points)

    def evidence(self) -> QuadraticEvidence:
        """What the judge needs: numbers of spins are those of the model."""
        mu, v = np.zeros(self.points.size), np.ones(self.points.size)
        for panel in self._eliminated().panels:
            mu[panel.start : panel.stop], v[panel.start : panel.stop] = panel.mu, panel.v
        used = self.cuts.chosen(self.weights > 0.0)
        return QuadraticEvidence(
            self.spins.link,
            self.order,
            mu,
            v,
            np.append(self.order, self.order.size)[used.spins],
            used.signs,
            self.weights[self.weights > 0.0],
        )
