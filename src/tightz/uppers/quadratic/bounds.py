"""Quadratic elimination: upper bounds on log Z of pairwise models of two-state variables.

Spins are summed out one after the other, and each log 2cosh that this leaves is replaced by a
quadratic above it, so that a pairwise model is left (`elimination`). Any order and any quadratics
give a bound; they are chosen by descent. What is reported is what the judge proves from the order
and the quadratics (`tightz.judge.quadratic`), its own rounding added.

Made for dense couplings (spin glasses, Hopfield networks, Boltzmann machines), where tables of any
size are too small.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import UnsupportedModelError, require_range
from tightz.judge.links import EncodingLink
from tightz.judge.quadratic import MAX_SPINS, MAX_TAIL, QuadraticEvidence
from tightz.judge.spins import SpinMap, SpinTerms
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.encoding import SpinEncoding, encode
from tightz.results import OneBound
from tightz.runtime.provenance import provenance
from tightz.uppers.quadratic.descent import descend
from tightz.uppers.quadratic.elimination import Elimination
from tightz.uppers.quadratic.orders import candidates

Array = NDArray[np.float64]

WHY = "sums over single spins, each log 2cosh replaced by a quadratic above it"

SCOUTING = 8
"""Iterations given to each order before one is kept."""

_PATIENCE = 5
"""Iterations over which the bound must fall by `tol` for the run to go on."""

_JUDGING = 0.2
"""Share of the time that judging the bounds of a stream may take, the first one apart."""

_WORTH = 1e-3
"""Nats that a bound in a stream must gain on the one before."""


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

    The last `tail` spins are summed exactly, which takes 2^tail steps. The run ends after
    `iterations`, or when five of them gain less than `tol` (nats), or after `time_limit` seconds.
    """

    tail: int = 14
    iterations: int = 300
    tol: float = 1e-3
    time_limit: float | None = None

    def __post_init__(self) -> None:
        require_range("tail", self.tail, 0, MAX_TAIL)
        require_range("iterations", self.iterations, 0)
        require_range("tol", self.tol, 0.0)
        if self.time_limit is not None:
            require_range("time_limit", self.time_limit, 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class QuadraticResult(OneBound):
    """An upper bound on log Z from one run of quadratic elimination.

    `log_z` is what the judge proves, rounding included; `bound` carries the evidence. `history` is
    the value of each iterate of the order that was kept, as the optimiser saw it in float64.
    `order` lists the spins as they were summed out.
    """

    bound: Bound
    status: QuadraticStatus
    history: Array
    order: NDArray[np.int64]
    seconds: float
    config: Quadratic
    provenance: dict[str, Any]

    @property
    def log_z(self) -> float:
        return self.bound.log_z

    @property
    def rounding(self) -> float:
        return self.bound.rounding

    def summary(self) -> str:
        return (
            f"log Z <= {self.log_z:.6f} (quadratic elimination, {len(self.history) - 1} "
            f"iterations, {self.seconds:.3g} s)\n{self.status.value}"
        )

    def __repr__(self) -> str:
        return (
            f"QuadraticResult(log_z={self.log_z:.6f}, status={self.status.name}, "
            f"iterations={len(self.history) - 1}, seconds={self.seconds:.3g})"
        )


def quadratic(model: FactorGraph, config: Quadratic | None = None) -> QuadraticResult:
    """An upper bound on log Z of a model of two-state variables with factors of at most two."""
    started = time.perf_counter()
    config = config or Quadratic()
    run = Run(Spins.of(encode(model, multivalued=True)), config, started)
    for _ in run.improvements():
        pass
    bound = run.judged(model)
    return QuadraticResult(
        bound=bound,
        status=run.status if math.isfinite(bound.log_z) else QuadraticStatus.OVERFLOW,
        history=np.array(run.history),
        order=run.order,
        seconds=time.perf_counter() - started,
        config=config,
        provenance=provenance(None, model.digest, method=config),
    )


def quadratic_bounds(encoding: SpinEncoding, config: Quadratic | None = None) -> Iterator[Bound]:
    """Ever lower judged bounds on the model of `encoding`; may be left at any time."""
    assert isinstance(encoding.model, FactorGraph)
    started = time.perf_counter()
    run = Run(Spins.of(encoding), config or Quadratic(), started)
    best, spent, last = math.inf, 0.0, 0.0
    for value in run.improvements():
        begun = time.perf_counter()
        cheap = spent + last <= _JUDGING * (begun - started)
        if value < best - _WORTH and (cheap or run.ended):
            bound = run.judged(encoding.model)
            last = time.perf_counter() - begun
            spent += last
            if bound.log_z < best - _WORTH:
                best = bound.log_z
                yield bound


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
        self.best = math.inf
        self.history: list[float] = []
        self.order = np.arange(spins.fields.size)
        self.points = np.zeros(0)

    def improvements(self) -> Iterator[float]:
        """The best value after each iteration, any of the orders."""
        runs = [_Descent(self.spins, order, self.tail) for order in self._orders()]
        rounds = min(SCOUTING, self.config.iterations)
        for run in runs:
            for _ in range(rounds + 1):
                if self._late() and self.history:
                    break
                if not run.advance():
                    break
                self._keep(run)
                yield self.best
        run = min(runs, key=lambda each: each.value)
        while not self._finished(run):
            run.advance()
            self._keep(run)
            self._finished(run)
            yield self.best

    def _orders(self) -> list[NDArray[np.int64]]:
        return candidates(self.spins.couplings, self.spins.fields, self.tail)

    def _keep(self, run: _Descent) -> None:
        if run.value < self.best or not self.history:
            self.best, self.order, self.points = run.value, run.order, run.points
            self.history = run.history

    def _late(self) -> bool:
        limit = self.config.time_limit
        return limit is not None and time.perf_counter() - self.started > limit

    def _finished(self, run: _Descent) -> bool:
        values = run.history
        settled = len(values) > _PATIENCE and values[-1 - _PATIENCE] - values[-1] < self.config.tol
        if run.stuck or settled:
            self.status = QuadraticStatus.CONVERGED
        elif self._late():
            self.status = QuadraticStatus.TIME_LIMIT
        elif len(values) <= self.config.iterations:
            return False
        self.ended = True
        return True

    def judged(self, model: FactorGraph) -> Bound:
        """What the judge makes of the best iterate."""
        j, h = self.spins.couplings[np.ix_(self.order, self.order)], self.spins.fields[self.order]
        quadratics = [q for p in Elimination(j, h, self.points).panels for q in p.quadratics]
        count = h.size - self.tail
        mu, v = np.zeros(count), np.ones(count)
        mu[: len(quadratics)] = [q.mu for q in quadratics]
        v[: len(quadratics)] = [q.v for q in quadratics]
        evidence = QuadraticEvidence(self.spins.link, self.order, mu, v)
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


class _Descent:
    """One order: its tangent points on their way."""

    def __init__(self, spins: Spins, order: NDArray[np.int64], tail: int) -> None:
        self.order = order
        self._j, self._h = spins.couplings[np.ix_(order, order)], spins.fields[order]
        self._constant = spins.constant
        start = Elimination(self._j, self._h, np.full(order.size - tail, np.nan)).log_at
        self._steps = descend(self._value, np.nan_to_num(start))
        self.points = start
        self.value = math.inf
        self.history: list[float] = []
        self.stuck = False

    def _value(self, points: Array) -> tuple[float, Callable[[], Array]]:
        found = Elimination(self._j, self._h, points)
        return self._constant + found.value, lambda: found.moments()[0]

    def advance(self) -> bool:
        """One iteration; False where there is none."""
        found = next(self._steps, None)
        if found is None:
            self.stuck = True
            return False
        self.value, self.points = found
        self.history.append(self.value)
        return True
