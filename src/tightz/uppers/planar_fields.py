"""Bounds for planar spin models whose fields are weak: the model without them is summed exactly.

A field on every spin makes a planar model as hard as any. Without fields it is one Pfaffian, so let
J be the couplings and h the fields. log Z is convex (Hoelder), and for every share 0 < w < 1

    log Z(J, h) <= (1 - w) log Z(J, 0) + w U(J, h / w),        log Z(J, h) >= log Z(J, 0),

U being a mini-bucket bound. If U is A nats too high, and fields raise log Z by B, about B / w^2 at
h / w, the excess over log Z(J, 0) is w A + B / w: at its best 2 sqrt(A B) instead of A + B, and
never more, since w = 1 is U itself. That minimum is flat: a share twice too large or too small
costs a quarter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.order import Orders
from tightz.elimination.planar import PlanarPlan, planar_plan
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.judge import Audited
from tightz.judge.fields import FieldsEvidence, Part
from tightz.models.factor_graph import FactorGraph
from tightz.uppers.mini_bucket import MiniBucket
from tightz.uppers.mini_bucket.run import MAX_IBOUND, Run, Tried, cutting

PLANNING, SUMMING = 0.1, 0.3
"""Parts of the time that a test of planarity, and a sum in balls, may be predicted to take."""

TYPICAL = 0.01
"""Nats a spin that mini-buckets of small tables are too high: where the search begins."""

WEAK, STRONG = 0.3, 2.0
"""First shares up to which mixtures are tried, and both ends are given: on 64x64 grids mini-buckets
in the same time win from fields of about 0.1 on, which is 0.4."""

LEAST, MOST = 2.0**-12, 0.7
"""Shares looked at; above, mini-buckets of the model itself are as good."""

SEARCHED, SCOUTING = 6, 8
"""The ibound at which shares are compared, and the iterations each of them gets."""

FIRST, STEP = 10, 2
"""The least ibound after that, and the steps from there on."""

TRIALS = 4
"""Orders compared at larger ibounds."""

JUMP, PASSES = 0.25, 16
"""The first ibound after that: so many iterations are predicted to take this part of the time."""

SHRINK = 0.9
"""What a step of the ibound leaves of the gap of mini-buckets; the best share goes by its root."""

WORTH = 0.98
"""A bound on the way is judged where it leaves no more than this of the excess."""

SETTLED = 0.01
"""Part of the excess that five iterations must gain for a run to go on."""


def planar_field_bounds(
    model: FactorGraph, *, time_limit: float = math.inf, max_memory: int = 2 * 10**9
) -> Iterator[Bound | None]:
    """Both ends from the planar part, then ever lower upper ends; None between steps.

    Nothing where the model without fields is no planar spin model, or fields are strong or none;
    the ends alone where they are not weak.
    """
    start = time.perf_counter()
    fields = _fields(model)
    if fields is None or fields.first_share > STRONG:
        return
    plan = planar_plan(fields.even, time_limit=PLANNING * time_limit)
    if not isinstance(plan, PlanarPlan) or plan.bytes > max_memory:
        return
    if plan.seconds > time_limit:  # predicted with marginals: three times what log Z takes
        return
    yield None
    try:
        found = plan.solve(marginals=False, time_limit=SUMMING * time_limit)
    except UnsupportedModelError:
        return
    mixtures = _Mixtures(
        fields, Audited(found.log_z, found.rounding), start, start + time_limit, max_memory
    )
    yield from mixtures.ends()
    if fields.first_share <= WEAK:
        yield from mixtures.search()
        yield from mixtures.tighten()


@dataclass(frozen=True, eq=False)
class _Fields:
    """A model cut in two: what a flip of all spins leaves as it is, and what changes its sign."""

    model: FactorGraph
    even: FactorGraph
    odd: NDArray[np.float64]

    @property
    def first_share(self) -> float:
        """sqrt(B / A) with what is typical for A, and B of spins without couplings."""
        fields = np.maximum.reduceat(self.odd, self.model.table_ptr[:-1])
        raised = float(np.minimum(0.5 * fields * fields, fields).sum())
        return math.sqrt(raised / (TYPICAL * self.model.n_variables))

    def strengthened(self, share: float) -> FactorGraph:
        return _with_tables(self.model, self.even.log_tables + self.odd / share)


def _fields(model: FactorGraph) -> _Fields | None:
    """None where there are no spins, no fields, or zeros."""
    logs = model.log_tables
    spins = model.n_variables and (model.cardinalities == 2).all() and (model.arities <= 2).all()
    if not spins or model.evidence or not np.isfinite(logs).all():
        return None
    flipped = logs.copy()
    for batch in model.batches():
        size = 2 ** batch.scopes.shape[1]
        at = model.table_ptr[batch.indices][:, None] + np.arange(size)
        flipped[at] = logs[at[:, ::-1]]
    odd = 0.5 * (logs - flipped)
    if not odd.any():
        return None
    return _Fields(model, _with_tables(model, 0.5 * (logs + flipped)), odd)


def _with_tables(model: FactorGraph, logs: NDArray[np.float64]) -> FactorGraph:
    return FactorGraph.from_arrays(
        model.cardinalities, model.scope_ptr, model.scope_vars, model.table_ptr, logs,
        layout=model.layout,
    )  # fmt: skip


class _Mixtures:
    """Shares tried and what they came to; the best share goes on to larger tables."""

    def __init__(
        self, fields: _Fields, sum_: Audited, start: float, until: float, max_memory: int
    ) -> None:
        self.fields, self.start, self.until, self.max_memory = fields, start, until, max_memory
        self.log_z = sum_.log_z
        self.even = Part(fields.even, sum_)
        self.tried: dict[int, list[Tried]] = {}  # orders by ibound: the scopes are always the same
        self.share = 2.0 ** round(math.log2(min(0.5, max(LEAST, fields.first_share))))
        self.best = math.inf
        self.pace = 0.0  # seconds of an iteration at the last ibound

    def ends(self) -> Iterator[Bound]:
        """log Z of the planar part from below, with all fields at their largest from above."""
        evidence = FieldsEvidence(self.even)
        verdict = evidence.verdict(self.fields.model)
        self.best = verdict.upper - self.log_z
        lower = "fields raise the sum over a state and its flip"
        upper = "no state gains more than the sizes of all fields"
        for side, why in ((Side.LOWER, lower), (Side.UPPER, upper)):
            value = verdict.lower if side is Side.LOWER else verdict.upper
            yield self._bound(side, value, "planar part", why, verdict.rounding, evidence)

    def search(self) -> Generator[Bound | None, None, None]:
        """Shares by factors of two, downhill; leaves the best in `share`."""
        found: dict[float, tuple[float, Run]] = {}
        tried = [self.share, 2.0 * self.share, 0.5 * self.share]
        while tried:
            share = tried.pop(0)
            if share in found or not LEAST <= share <= MOST:
                continue
            run = self._run(share, SEARCHED, SCOUTING)
            if run is None:
                return
            yield from self._iterate(run, share)
            assert run.descent is not None
            excess = share * (run.descent.best - self.log_z)
            best = min((value for value, _ in found.values()), default=math.inf)
            found[share] = excess, run
            if excess < best:
                self.share = share
                if len(found) > 1:  # on in this direction; the other one has been seen
                    tried = [share * (2.0 if share > min(found) else 0.5)]
        if found:
            yield from self._news(found[self.share][1], self.share)

    def tighten(self) -> Generator[Bound | None, None, None]:
        """Larger tables, as far as memory and time go."""
        searched, ibound = self.share, self._jump()
        while ibound <= MAX_IBOUND:
            self.share = searched * SHRINK ** (-0.5 * (ibound - SEARCHED))
            run = self._run(self.share, ibound) if self.share <= MOST else None
            if run is None or time.perf_counter() + 2.0**STEP * self.pace > self.until:
                return
            yield from self._iterate(run, self.share)
            yield from self._news(run, self.share)
            ibound += STEP

    def _jump(self) -> int:
        """The ibound to go on with, tables doubling with each; the first where time is no limit."""
        fair = JUMP * (self.until - time.perf_counter()) / (PASSES * max(self.pace, 1e-6))
        if not 1.0 < fair < math.inf:
            return FIRST
        return min(MAX_IBOUND, max(FIRST, SEARCHED + int(math.log2(fair))))

    def _run(self, share: float, ibound: int, iterations: int = 10**6) -> Run | None:
        config = MiniBucket(ibound, iterations, tol=0.0, max_memory=self.max_memory)
        if ibound not in self.tried:
            trials = range(1 if ibound <= SEARCHED else TRIALS)
            self.tried[ibound] = cutting(Orders(self.fields.model), ibound, trials)
        orders = Orders(self.fields.strengthened(share))
        try:
            return Run(orders, config, time.perf_counter(), self.tried[ibound])
        except ResourceError:
            return None

    def _iterate(self, run: Run, share: float) -> Iterator[Bound | None]:
        """Until five iterations gain little of what the bound is too high."""
        begun, spent, ibound = time.perf_counter(), 0.0, run.config.ibound
        for value in run.steps:
            spent += time.perf_counter() - begun
            self.pace = spent / run.passes
            news = ibound > SEARCHED and share * (value - self.log_z) < WORTH * self.best
            news = news and run.may_judge()
            yield from self._news(run, share) if news else (None,)
            begun = time.perf_counter()  # the stream waits between its steps
            past = run.history[-6:]
            if len(past) == 6 and past[0] - value < SETTLED * (value - self.log_z):
                return
            if begun + self.pace + 2.0 * run.judgement > self.until:
                return

    def _news(self, run: Run, share: float) -> Iterator[Bound]:
        """The judged mixture, where it is lower than all before."""
        strong = run.judged()
        assert strong.evidence is not None
        evidence = FieldsEvidence(self.even, Part(run.source, strong.evidence), share)
        verdict = evidence.verdict(self.fields.model)
        if verdict.upper - self.log_z < self.best:
            self.best = verdict.upper - self.log_z
            method = f"planar part and mini-bucket, ibound {run.config.ibound}"
            why = f"Hoelder's inequality; {share:.2g} of the fields' model, the rest without fields"
            yield self._bound(Side.UPPER, verdict.upper, method, why, verdict.rounding, evidence)

    def _bound(
        self, side: Side, value: float, method: str, why: str, rounding: float,
        evidence: FieldsEvidence,
    ) -> Bound:  # fmt: skip
        return Bound(
            side=side,
            log_z=value,
            proof=Proof.DETERMINISTIC,
            method=method,
            seconds=time.perf_counter() - self.start,
            confidence=1.0,
            why=why,
            rounding=rounding,
            evidence=evidence,
        )
