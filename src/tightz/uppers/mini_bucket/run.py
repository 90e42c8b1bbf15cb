"""One run of weighted mini-buckets at one ibound: settings, candidate orders, a judged bound."""

from __future__ import annotations

import enum
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.order import Order, Orders
from tightz.errors import ParameterError, ResourceError, require_range
from tightz.judge.cliques import CliquesEvidence
from tightz.judge.verdict import UNIT, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.backends import Backend
from tightz.runtime.gpu import DEVICE
from tightz.runtime.memory import MAX_MEMORY, format_bytes, parse_memory
from tightz.runtime.switching import LAUNCHES, switching
from tightz.uppers.mini_bucket.descent import Steps, predicted_bytes
from tightz.uppers.mini_bucket.partition import Partition, partition
from tightz.uppers.mini_bucket.places import WORTH, Place, choose_place, main_memory

MAX_IBOUND = 40


class MiniBucketStatus(enum.Enum):
    """How a run ended; the value is the advice. The bound holds in every case."""

    EXACT = "exact: no bucket was cut, so the bound is log Z itself"
    CONVERGED = "converged: raise ibound for a tighter bound"
    ITERATION_LIMIT = "stopped early: raise iterations for a tighter bound"
    TIME_LIMIT = "stopped by the time limit: raise time_limit for a tighter bound"
    VACUOUS = "no information: zero potentials force this lower bound to -inf; raise ibound"
    OVERFLOW = "no information: the potentials are too large for sums in float64; rescale the model"


@dataclass(frozen=True)
class MiniBucket:
    """Settings of the weighted mini-bucket bound.

    `ibound`: clique tables hold at most 2^(ibound + 1) entries, that is ibound + 1 binary
    variables (a factor that is larger by itself is kept whole). `side` is UPPER or LOWER. The run
    ends after `iterations`, or when five of them gain less than `tol` (nats), or after
    `time_limit` seconds (looked at between iterations). `order` AUTO tries several elimination
    orders for a few iterations each and keeps the tightest.
    """

    ibound: int = 10
    iterations: int = 100
    tol: float = 1e-3
    order: Order = Order.AUTO
    side: Side = Side.UPPER
    max_memory: str | int = MAX_MEMORY
    time_limit: float | None = None

    def __post_init__(self) -> None:
        require_range("ibound", self.ibound, 1, MAX_IBOUND)
        require_range("iterations", self.iterations, 0)
        require_range("tol", self.tol, 0.0)
        if self.side not in (Side.UPPER, Side.LOWER):
            raise ParameterError(f"side is {self.side}; expected Side.UPPER or Side.LOWER")
        if self.time_limit is not None:
            require_range("time_limit", self.time_limit, 0.0)
        parse_memory(self.max_memory)


SCOUT_ITERATIONS = 6
"""Iterations given to each elimination order before one is kept."""

_PATIENCE = 5
"""Iterations over which the bound must move by `tol` for the run to go on."""

_MANY_FACTORS = 50_000
"""Above this, cutting buckets is slow itself and AUTO takes one order."""

_TRIALS = 4
"""Orders made for cuts that AUTO tries."""

_JUDGING = 0.2
"""Share of the time that judgements before the last one may take."""


class Tried(NamedTuple):
    """An order, and how it was found."""

    kind: Order
    order: NDArray[np.int64]


class Scouted(NamedTuple):
    """What an order came to in a few iterations: its bound, or minus that of a lower one."""

    value: float
    tried: Tried


class Run:
    """One ibound: candidate orders weighed against the memory, the best one taken to its end.

    `tried`: the orders to try; those of the settings by default. `scouted`: what they came to.
    `threads`: how many are tried at a time; that changes no number. `backend`: "auto" puts large
    tables into a device's memory where there is one; if that fails the run goes on here, with
    smaller tables, and `note` says so. `layout`: of the one order tried, for a device.
    """

    def __init__(
        self,
        orders: Orders,
        config: MiniBucket,
        start: float,
        tried: Sequence[Tried] = (),
        threads: int = 1,
        backend: Backend = "cpu",
        layout: Any = None,
    ) -> None:
        self.config = config
        self.note = ""
        self.start = start
        self.begun = time.perf_counter()
        self.source, self.model, self.numbers = orders.source, orders.model, orders.numbers
        self.candidates, self.place = _candidates(orders, config, list(tried), backend)
        if layout is not None and self.place.device:
            self.place = self.place._replace(make=partial(self.place.make, layout=layout))
        self.scouted: list[Scouted] = []
        costs = sorted((self.place.cost(p) for _, p in self.candidates), reverse=True)
        together = sum(costs[: threads + 1])  # those at work, and the best so far
        alone = self.place.device or together > self.place.allowed
        self.threads = 1 if alone else threads
        self.peak_bytes = int(sum(costs[: self.threads + 1]))
        self.entries = float(sum(p.table_sizes.sum() for _, p in self.candidates))
        self.passes = 0
        self.history: list[float] = []
        self.order = self.candidates[0][0]
        self.descent: Steps | None = None
        self.status = MiniBucketStatus.ITERATION_LIMIT
        self.judging = 0.0
        self.judgement = 0.0
        self._bound: Bound | None = None
        self._judged_at = math.nan
        self.steps = self.improvements()
        """The one generator of this run, for those who stop and go on."""

    @property
    def exact(self) -> bool:
        """Whether the bound is log Z: nothing was cut, or an upper bound says that Z = 0."""
        if self.descent is None:
            return False
        empty = self.config.side is Side.UPPER and self.descent.best == -np.inf
        return self.descent.parts.exact or empty

    def improvements(self) -> Iterator[float]:
        """The best bound after each iteration."""
        try:
            yield from self._improvements()
        except RefutedError:
            raise
        except Exception as error:
            if not self.place.device:
                raise
            self._leave_device(error)
            yield from self._on()

    def _improvements(self) -> Iterator[float]:
        sign = -1.0 if self.config.side is Side.LOWER else 1.0
        for order, rival in self._scouts():
            self.passes += len(rival.iterates)
            self.scouted.append(Scouted(sign * rival.best, Tried(order, rival.parts.order)))
            if self.descent is None or sign * rival.best < sign * self.descent.best:
                self.order, self.descent = order, rival
            del rival
            self.history.append(self.descent.best)
            yield self.descent.best
            if self._late():
                break
        yield from self._on()

    def _on(self) -> Iterator[float]:
        """The chosen order, until it is finished."""
        while self.descent is not None and not self._finished(self.descent):
            self.history.append(self.descent.advance())
            self.passes += 1
            yield self.descent.best

    def _leave_device(self, error: Exception) -> None:
        """Go on with tables that a CPU can sum: the device may be gone, and all on it."""
        self.note = f"mini-buckets left the GPU: {type(error).__name__}: {error}"
        self.place = main_memory(parse_memory(self.config.max_memory))
        self.descent = None
        order = self.candidates[0][1].order
        for ibound in range(self.config.ibound, 0, -1):
            parts = partition(self.model, order, ibound)
            small = parts.table_sizes.sum() <= WORTH * parts.table_sizes.size
            if (small and self.place.cost(parts) <= self.place.allowed) or ibound == 1:
                break
        self.config = replace(self.config, ibound=ibound)
        self.candidates = [(self.candidates[0][0], parts)]
        self.descent = self._scout(parts)
        self.history.append(self.descent.best)

    def _scouts(self) -> Iterator[tuple[Order, Steps]]:
        """Every candidate after a few iterations, in their order; `threads` of them at a time."""
        if self.threads == 1:
            for order, parts in self.candidates:
                yield order, self._scout(parts)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            waiting = deque(self.candidates)
            ahead: deque[tuple[Order, Future[Steps]]] = deque()
            while waiting or ahead:
                while waiting and len(ahead) < self.threads:
                    order, parts = waiting.popleft()
                    ahead.append((order, pool.submit(self._scout, parts)))
                order, future = ahead.popleft()
                yield order, future.result()

    def _scout(self, parts: Partition) -> Steps:
        rival = self.place.make(self.model, parts, lower=self.config.side is Side.LOWER)
        rounds = min(SCOUT_ITERATIONS, self.config.iterations) if len(self.candidates) > 1 else 0
        for _ in range(rounds):
            if rival.exhausted or self._late():
                break
            rival.advance()
        return rival

    def _late(self) -> bool:
        limit = self.config.time_limit
        return limit is not None and time.perf_counter() - self.start > limit

    def _finished(self, descent: Steps) -> bool:
        done = len(descent.iterates) - 1
        # Its own iterates: the history before them is that of the orders tried beside it.
        best = max if self.config.side is Side.LOWER else min
        before = best(descent.iterates[:-_PATIENCE], default=math.inf)
        settled = done > _PATIENCE and abs(before - descent.best) < self.config.tol
        if self.exact:
            self.status = MiniBucketStatus.EXACT
        elif descent.best == -np.inf:
            self.status = MiniBucketStatus.VACUOUS
        elif descent.exhausted or settled:
            self.status = MiniBucketStatus.CONVERGED
        elif done >= self.config.iterations:
            self.status = MiniBucketStatus.ITERATION_LIMIT
        elif self._late():
            self.status = MiniBucketStatus.TIME_LIMIT
        else:
            return False
        return True

    def may_judge(self) -> bool:
        """Whether one more judgement keeps them below their share of the time."""
        spent = time.perf_counter() - self.begun
        return self.judging + self.judgement <= _JUDGING * spent

    def judged(self) -> Bound:
        """The best bound so far as the judge sees it, rounded outward, with its evidence."""
        try:
            return self._judge()
        except RefutedError:
            raise
        except Exception as error:
            if not self.place.device:
                raise
            self._leave_device(error)
            return self._judge()

    def _judge(self) -> Bound:
        assert self.descent is not None
        if self._bound is None or self._judged_at != self.descent.best:
            begun = time.perf_counter()
            evidence = self.descent.evidence(self.numbers)
            if self.place.device:  # tables on a device are judged there
                with DEVICE, switching(LAUNCHES):
                    verdict = evidence.verdict(self.source)
            else:
                verdict = evidence.verdict(self.source)
            self.judgement = time.perf_counter() - begun
            self.judging += self.judgement
            self._judged_at = self.descent.best
            self._bound = _bound(verdict, evidence, self.config, time.perf_counter() - self.start)
        return self._bound


_EVEN = 1e-9
"""Of a variable: tables of whole variables fill some ibounds exactly."""


def wider(model: FactorGraph, ibound: int, count: int = 1) -> list[int]:
    """The next `count` ibounds at which tables hold a variable more, of as many states as most."""
    bits = max(1.0, math.log2(np.median(model.cardinalities))) if model.n_variables else 1.0
    held = int((ibound + 1) / bits + _EVEN)
    return [math.ceil(bits * (held + k) - _EVEN) - 1 for k in range(1, count + 1)]


def cutting(orders: Orders, ibound: int, trials: Iterable[int]) -> list[Tried]:
    """Orders made for cuts at this size."""
    return [Tried(Order.CUTS, orders.cutting(ibound + 1.0, trial)) for trial in trials]


def _candidates(
    orders: Orders, config: MiniBucket, tried: list[Tried], backend: Backend
) -> tuple[list[tuple[Order, Partition]], Place]:
    """Orders worth a try, cheapest first; one alone when it is exact or memory allows no more."""
    model = orders.model
    if config.order is Order.CUTS:
        tried = cutting(orders, config.ibound, [0])
    elif config.order is not Order.AUTO:
        tried = [Tried(config.order, orders[config.order])]
    elif not tried:
        tried = cutting(orders, config.ibound, range(_TRIALS))
        kinds = [kind for kind in orders.kinds if kind is not Order.CUTS]
        tried += [Tried(kind, orders[kind]) for kind in kinds]
        del tried[1 if model.n_factors > _MANY_FACTORS else len(tried) :]
    seen: dict[bytes, tuple[Order, Partition]] = {}
    for kind, order in tried:
        if order.tobytes() not in seen:
            seen[order.tobytes()] = (kind, partition(model, order, config.ibound))
    allowed = parse_memory(config.max_memory)
    place = choose_place(backend, model, [p for _, p in seen.values()], config.side, allowed)
    cost, allowed = place.cost, int(place.allowed)
    found = sorted(seen.values(), key=lambda item: cost(item[1]))
    needed = cost(found[0][1])
    if needed > allowed:
        raise ResourceError(
            f"mini-bucket with ibound {config.ibound} needs {format_bytes(needed)}; max_memory "
            f"allows {format_bytes(allowed)}. {_remedy(model, found[0][1], config, allowed)}"
        )
    exact = [item for item in found if item[1].exact]
    if exact:
        return exact[:1], place
    while len(found) > 1 and sum(cost(p) for _, p in found[-2:]) > allowed:
        found.pop()
    return found, place


def _remedy(model: FactorGraph, parts: Partition, config: MiniBucket, allowed: int) -> str:
    for ibound in range(config.ibound - 1, 0, -1):
        if predicted_bytes(partition(model, parts.order, ibound)) <= allowed:
            return f"ibound {ibound} would fit"
    return "Its largest factors alone need more: raise max_memory"


_EXACT = 0.01
"""Nats of rounding up to which a bound without cuts is called exact; huge weights leave more."""


def _bound(
    verdict: Verdict, evidence: CliquesEvidence, config: MiniBucket, seconds: float
) -> Bound:
    side, rounding = config.side, verdict.rounding
    finite = math.isfinite(verdict.upper) and math.isfinite(verdict.lower)
    exact = finite and verdict.upper - verdict.lower <= _EXACT
    if exact or verdict.upper == -math.inf:
        width = verdict.upper - verdict.lower if exact else 0.0
        side, rounding = Side.BOTH, width + 2.0 * UNIT * width
    why = {
        Side.UPPER: "Hoelder's inequality over mini-buckets",
        Side.LOWER: "reversed Hoelder inequality over mini-buckets",
        Side.BOTH: "exact: no bucket was cut" if exact else "zero potentials leave no state",
    }[side]
    return Bound(
        side=side,
        log_z=verdict.upper if config.side is Side.UPPER else verdict.lower,
        proof=Proof.DETERMINISTIC,
        method=f"mini-bucket, ibound {config.ibound}",
        seconds=seconds,
        confidence=1.0,
        why=why,
        rounding=rounding,
        evidence=evidence,
    )
