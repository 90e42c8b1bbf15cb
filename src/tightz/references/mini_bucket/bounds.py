"""Weighted mini-bucket bounds on log Z (Liu and Ihler 2011), for any discrete factor graph.

Variables are summed out one by one; where the table this needs would be too large it is cut into
mini-buckets, and Hoelder's inequality bounds the sum of a product by a product of power sums:

    sum_v prod_c f_c(v) <= prod_c (sum_v f_c(v)^(1/w_c))^w_c,    w_c > 0, sum_c w_c = 1,

reversed when all weights but one are negative. The bound holds for every split of the model's
tables among the cliques and for every choice of weights, so both are optimised and each iterate is
valid. Values are float64: a bound may be off by rounding, about 1e-15 of the largest partial sum.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError, ResourceError, require_range
from tightz.models.factor_graph import FactorGraph
from tightz.references.mini_bucket.descent import Descent, predicted_bytes
from tightz.references.mini_bucket.order import Order, elimination_order
from tightz.references.mini_bucket.partition import Partition, partition
from tightz.runtime.memory import format_bytes, parse_memory

_SCOUT_ITERATIONS = 4
"""Iterations given to each elimination order before one is kept."""

_PATIENCE = 5
"""Iterations over which the bound must move by `tol` for the run to go on."""

_MANY_FACTORS = 50_000
"""Above this, cutting buckets is slow itself and AUTO takes min-fill alone."""

MAX_IBOUND = 40


class MiniBucketStatus(enum.Enum):
    """How a run ended; the value is the advice. The bound holds in every case."""

    EXACT = "exact: no bucket was cut, so the bound is log Z itself"
    CONVERGED = "converged: raise ibound for a tighter bound"
    ITERATION_LIMIT = "stopped early: raise iterations for a tighter bound"
    TIME_LIMIT = "stopped by the time limit: raise time_limit for a tighter bound"
    VACUOUS = "no information: zero potentials force this lower bound to -inf; raise ibound"


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
    max_memory: str | int = "2GB"
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


@dataclass(frozen=True, eq=False, repr=False)
class MiniBucketResult:
    """A bound on log Z from one mini-bucket run.

    `log_z` bounds log Z on the side `side` (BOTH: it is log Z). `history` is the best bound after
    each iteration, `iterates` the bound of each iterate itself: every one of them is valid.
    `peak_bytes` was predicted before anything was allocated.
    """

    log_z: float
    side: Side
    status: MiniBucketStatus
    history: NDArray[np.float64]
    iterates: NDArray[np.float64]
    ibound: int
    order: Order
    cliques: int
    peak_bytes: int
    seconds: float
    config: MiniBucket
    model_digest: str

    @property
    def bound(self) -> Bound:
        return _bound(self.log_z, self.side, self.ibound, self.seconds)

    def summary(self) -> str:
        return (
            f"log Z {_SIGN[self.side]} {self.log_z:.6f} (weighted mini-bucket, ibound "
            f"{self.ibound}, {len(self.history) - 1} iterations, {self.seconds:.3g} s)\n"
            f"{self.status.value}"
        )

    def _repr_html_(self) -> str:
        from tightz.reports.notebook import result_html

        return result_html(self)

    def __repr__(self) -> str:
        return (
            f"MiniBucketResult(log_z={self.log_z:.6f}, side={self.side.name}, "
            f"status={self.status.name}, ibound={self.ibound}, seconds={self.seconds:.3g})"
        )


_SIGN = {Side.UPPER: "<=", Side.LOWER: ">=", Side.BOTH: "="}


def mini_bucket(model: FactorGraph, config: MiniBucket | None = None) -> MiniBucketResult:
    """A weighted mini-bucket bound on log Z; see `MiniBucket` for the settings.

    Raises ResourceError, before anything is allocated, when the tables would not fit in
    `max_memory`.
    """
    run = _Run(model, config or MiniBucket(), time.perf_counter())
    for _ in run.improvements():
        pass
    return run.result()


def mini_bucket_bounds(
    model: FactorGraph,
    *,
    ibounds: Iterable[int] | None = None,
    time_limit: float | None = None,
    max_memory: str | int = "2GB",
    side: Side = Side.UPPER,
    iterations: int = 60,
) -> Iterator[Bound]:
    """An anytime stream of ever tighter bounds with growing `ibounds` (default 2, 4, 6, ...).

    Ends when a bound is exact (its side is then BOTH), when the next ibound would not fit in
    `max_memory` or is not expected to finish one pass in the time left. Raises ResourceError only
    when not even the first ibound fits.
    """
    if time_limit is not None:
        require_range("time_limit", time_limit, 0.0)
    start = time.perf_counter()
    sign = -1.0 if side is Side.LOWER else 1.0
    best = np.inf * sign
    pace = 0.0  # seconds per table entry of the first, unavoidable pass
    for number, ibound in enumerate(range(2, MAX_IBOUND + 1, 2) if ibounds is None else ibounds):
        left = None if time_limit is None else start + time_limit - time.perf_counter()
        if number and left is not None and left <= 0.0:
            return
        limit = None if left is None else max(0.0, left)
        config = MiniBucket(ibound, iterations, side=side, max_memory=max_memory, time_limit=limit)
        try:
            run = _Run(model, config, start)
        except ResourceError:
            if number:
                return
            raise
        if number and left is not None and pace * run.entries > left:
            return
        begun = time.perf_counter()
        for value in run.improvements():
            if run.exact or sign * value < sign * best - 1e-3:
                best = value
                yield _bound(value, run.side, ibound, time.perf_counter() - start)
        if run.entries:
            pace = (time.perf_counter() - begun) / run.passes / run.entries
        if run.exact:
            return


class _Run:
    """One ibound: candidate orders weighed against the memory, the best one taken to its end."""

    def __init__(self, model: FactorGraph, config: MiniBucket, start: float) -> None:
        self.config = config
        self.start = start
        self.digest = model.digest
        self.model, _ = model.condition()
        self.candidates = _candidates(self.model, config)
        costs = sorted((predicted_bytes(p) for _, p in self.candidates), reverse=True)
        self.peak_bytes = int(sum(costs[:2]))
        self.entries = float(sum(p.table_sizes.sum() for _, p in self.candidates))
        self.passes = 0
        self.history: list[float] = []
        self.iterates: list[float] = []
        self.order = self.candidates[0][0]
        self.descent: Descent | None = None
        self.status = MiniBucketStatus.ITERATION_LIMIT

    @property
    def exact(self) -> bool:
        """Whether the bound is log Z: nothing was cut, or an upper bound says that Z = 0."""
        if self.descent is None:
            return False
        empty = self.config.side is Side.UPPER and self.descent.best == -np.inf
        return self.descent.parts.exact or empty

    @property
    def side(self) -> Side:
        return Side.BOTH if self.exact else self.config.side

    def improvements(self) -> Iterator[float]:
        """The best bound after each iteration."""
        lower = self.config.side is Side.LOWER
        sign = -1.0 if lower else 1.0
        for order, parts in self.candidates:
            if self.history and self._late():
                break
            rival = Descent(self.model, parts, lower=lower)
            rounds = min(_SCOUT_ITERATIONS, self.config.iterations)
            for _ in range(rounds if len(self.candidates) > 1 else 0):
                if rival.exhausted or self._late():
                    break
                rival.advance()
            self.passes += len(rival.iterates)
            if self.descent is None or sign * rival.best < sign * self.descent.best:
                self.order, self.descent = order, rival
            del rival
            self.history.append(self.descent.best)
            yield self.descent.best
        descent = self.descent
        assert descent is not None
        while not self._finished(descent):
            self.history.append(descent.advance())
            self.passes += 1
            yield descent.best

    def _late(self) -> bool:
        limit = self.config.time_limit
        return limit is not None and time.perf_counter() - self.start > limit

    def _finished(self, descent: Descent) -> bool:
        done = len(descent.iterates) - 1
        recent = self.history[-_PATIENCE - 1 :]
        settled = done > _PATIENCE and abs(recent[0] - recent[-1]) < self.config.tol
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

    def result(self) -> MiniBucketResult:
        assert self.descent is not None
        return MiniBucketResult(
            log_z=self.descent.best,
            side=self.side,
            status=self.status,
            history=np.array(self.history),
            iterates=np.array(self.descent.iterates),
            ibound=self.config.ibound,
            order=self.order,
            cliques=len(self.descent.parts.cliques),
            peak_bytes=self.peak_bytes,
            seconds=time.perf_counter() - self.start,
            config=self.config,
            model_digest=self.digest,
        )


def _candidates(model: FactorGraph, config: MiniBucket) -> list[tuple[Order, Partition]]:
    """Orders worth a try, cheapest first; one alone when it is exact or memory allows no more."""
    kinds = [config.order]
    if config.order is Order.AUTO:
        kinds = [Order.MIN_FILL, Order.MIN_DEGREE, Order.BREADTH_FIRST, Order.AS_NUMBERED]
        if model.n_factors > _MANY_FACTORS:
            del kinds[1:]
    seen: dict[bytes, tuple[Order, Partition]] = {}
    for kind in kinds:
        order = elimination_order(model, kind)
        if order.tobytes() not in seen:
            seen[order.tobytes()] = (kind, partition(model, order, config.ibound))
    found = sorted(seen.values(), key=lambda item: predicted_bytes(item[1]))
    allowed = parse_memory(config.max_memory)
    needed = predicted_bytes(found[0][1])
    if needed > allowed:
        raise ResourceError(
            f"mini-bucket with ibound {config.ibound} needs {format_bytes(needed)}; max_memory "
            f"allows {format_bytes(allowed)}. {_remedy(model, found[0][1], config, allowed)}"
        )
    exact = [item for item in found if item[1].exact]
    if exact:
        return exact[:1]
    while len(found) > 1 and sum(predicted_bytes(p) for _, p in found[-2:]) > allowed:
        found.pop()
    return found


def _remedy(model: FactorGraph, parts: Partition, config: MiniBucket, allowed: int) -> str:
    for ibound in range(config.ibound - 1, 0, -1):
        if predicted_bytes(partition(model, parts.order, ibound)) <= allowed:
            return f"ibound {ibound} would fit"
    return "Its largest factors alone need more: raise max_memory"


def _bound(value: float, side: Side, ibound: int, seconds: float) -> Bound:
    why = {
        Side.UPPER: "Hoelder's inequality over mini-buckets",
        Side.LOWER: "reversed Hoelder inequality over mini-buckets",
        Side.BOTH: "exact: no bucket was cut",
    }[side]
    return Bound(
        side=side,
        log_z=float(value),
        proof=Proof.DETERMINISTIC,
        method=f"mini-bucket, ibound {ibound}",
        seconds=seconds,
        confidence=1.0,
        why=why,
    )
