"""Lower bounds for models that the spin methods do not reach: zero potentials, any cardinality."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ResourceError
from tightz.families.block import BlockMeanField, block_mean_field
from tightz.families.clustered import ClusterMeanField, cluster_labels
from tightz.interval.cutset_sum import CutsetSum
from tightz.judge import Audited, StatesEvidence
from tightz.judge.rounding import UNIT
from tightz.propagation import bethe
from tightz.propagation.propagation import BetheStatus
from tightz.runtime.seeds import generator, stream
from tightz.search.feasible import Feasibility, feasible_state, feasible_states
from tightz.workspace.findings import Finding, Marginals, PointEstimate

if TYPE_CHECKING:
    from tightz.workspace.job import Job

_KEY = 6_000_000
"""Key of these streams' random numbers; levels and widths never reach it."""

_GIBBS_STARTS = 4

_MANY_FACTORS = 100_000
"""Above this belief propagation is left out."""

_CLUSTER_SIZES = (10.0, 14.0, 17.0, 20.0)
"""log2 of the tables inside clusters, phase by phase; only the first where exact is off."""

_NARROW = (6, 8, 10)
"""log2 of the tables of cutset sums where wide elimination is forbidden."""


def discrete_lower(job: Job) -> Iterator[Finding | Bound]:
    """One state, block mean field, then cutset sums fed by block Gibbs sampling."""
    model = job.working
    if not model.n_variables:
        value = -math.inf if job.prepared.contradiction else math.fsum(model.log_tables)
        yield Bound(
            Side.BOTH, value, Proof.DETERMINISTIC, "propagation", confidence=1.0,
            why="zeros and evidence leave every variable one state, or contradict each other",
            evidence=Audited(value, 0.0 if value == -math.inf else UNIT * abs(value)),
        )  # fmt: skip
        return
    state: NDArray[np.int64] | None
    if model.has_zeros:
        state = yield from _feasible(job)
    else:
        r = block_mean_field(
            model, config=BlockMeanField(restarts=2), seed=stream(job.seed, _KEY, 1)
        )
        yield Finding(r.bound, Marginals(r.marginals, "block mean field", r.log_z))
        state = np.array([int(q.argmax()) for q in r.marginals], dtype=np.int64)
        if model.arities.max(initial=0) == 2:
            yield from _clusters(job, r.marginals)
    if state is None or job.clock.expired:
        return
    beliefs = yield from _beliefs(job)
    run = CutsetSum(
        model,
        state,
        generator(job.seed, _KEY, 2),
        job.clock,
        job.max_memory // 8,
        _fresh_states(job, beliefs) if model.has_zeros else None,
    )
    yield from run.burn_in()
    if run.pool and not job.clock.expired:
        yield from _block_from_samples(job, run)
    for bound in run.sums() if job.exact else run.sums(_NARROW):
        yield Finding(bound, Marginals(run.marginals, "block Gibbs samples", bound.log_z))


def _clusters(job: Job, marginals: list[NDArray[np.float64]]) -> Iterator[Finding]:
    """Clustered mean field of growing width, each started from the last one's marginals."""
    clock = job.share(0.6)
    for log2_size in _CLUSTER_SIZES if job.exact else _CLUSTER_SIZES[:1]:
        begun = clock.elapsed
        try:
            clusters = ClusterMeanField(
                job.working, cluster_labels(job.working, log2_size), marginals
            )
            for bound in clusters.bounds(clock):
                now = [q.copy() for q in clusters.marginals]
                yield Finding(bound, Marginals(now, "clustered mean field", bound.log_z))
        except ResourceError as error:
            yield Finding(note=f"clustered mean field: {error}")
            return
        marginals = clusters.marginals
        if len(clusters.members) == 1 or 3.0 * (clock.elapsed - begun) > clock.left:
            return


def first_state(job: Job) -> Iterator[Bound]:
    """A state of positive weight at once where zeros hide them: before anything is planned."""
    model = job.working
    if not model.n_variables or not model.has_zeros:
        return
    found = feasible_state(model, time_limit=0.05 * job.time_limit, seed=stream(job.seed, _KEY, 0))
    if found.state is not None:
        yield _one_state(found.state, found.log_weight)


def _one_state(state: NDArray[np.int64], log_weight: float) -> Bound:
    return Bound(
        Side.LOWER, log_weight, Proof.DETERMINISTIC, "one state", confidence=1.0,
        why="the weight of one state is part of Z", evidence=StatesEvidence(state[None, :]),
    )  # fmt: skip


def _beliefs(job: Job) -> Generator[Finding, None, list[NDArray[np.float64]] | None]:
    """Belief propagation: marginals to search by, and where it converges the point estimate."""
    if job.working.n_factors > _MANY_FACTORS:
        return None
    r = bethe(job.working, max_iterations=300)
    if r.status is BetheStatus.CONVERGED:
        source = "Bethe estimate (belief propagation)"
        yield Finding(estimate=PointEstimate(r.log_z, math.inf, source, "bethe"))
    usable = all(np.isfinite(q).all() for q in r.marginals)
    return r.marginals if usable else None


def _feasible(job: Job) -> Generator[Finding | Bound, None, NDArray[np.int64] | None]:
    """Search for a state of positive weight; it is the value of the stream, None if none."""
    for found in feasible_states(job.working, clock=job.clock, seed=stream(job.seed, _KEY, 0)):
        if found.status is Feasibility.IMPOSSIBLE:
            yield Bound(
                Side.BOTH, -math.inf, Proof.DETERMINISTIC, "backtracking", confidence=1.0,
                why="a complete search found no state of positive weight",
                evidence=Audited(-math.inf),
            )  # fmt: skip
            return None
        if found.state is not None:
            yield _one_state(found.state, found.log_weight)
            return found.state
    yield Finding(note="lower bound: " + Feasibility.UNKNOWN.value)
    return None


def _fresh_states(
    job: Job, beliefs: list[NDArray[np.float64]] | None
) -> Iterator[NDArray[np.int64]]:
    for found in feasible_states(
        job.working, clock=job.clock, seed=stream(job.seed, _KEY, 3), beliefs=beliefs
    ):
        if found.state is not None:
            yield found.state


def _block_from_samples(job: Job, run: CutsetSum) -> Iterator[Finding]:
    """Block mean field from states that the sampler met: zeros allow no other starts."""
    for state in run.pool[:: max(1, len(run.pool) // _GIBBS_STARTS)]:
        r = block_mean_field(job.working, config=BlockMeanField(restarts=0), states=state)
        yield Finding(r.bound, Marginals(r.marginals, "block mean field", r.log_z))
        if job.share(0.2).expired:
            return
