"""Lower bounds for models that the spin methods do not reach: zero potentials, any cardinality."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.estimation.cutset_sum import CutsetSum
from tightz.families.block import BlockMeanField, block_mean_field
from tightz.models.preprocess import has_zeros
from tightz.runtime.seeds import generator, stream
from tightz.search.feasible import Feasibility, feasible_states

if TYPE_CHECKING:
    from tightz.estimation.portfolio import Job

_KEY = 6_000_000
"""Key of these streams' random numbers; levels and widths never reach it."""

_GIBBS_STARTS = 4

_NARROW = (6, 8, 10)
"""log2 of the tables of cutset sums where wide elimination is forbidden."""


def discrete_lower(job: Job) -> Iterator[Bound]:
    """One state, block mean field, then cutset sums fed by block Gibbs sampling."""
    model = job.working
    if not model.n_variables:
        return
    state: NDArray[np.int64] | None
    if has_zeros(model):
        state = yield from _feasible(job)
    else:
        r = block_mean_field(
            model, config=BlockMeanField(restarts=2), seed=stream(job.seed, _KEY, 1)
        )
        yield r.bound
        job.offer_marginals(r.marginals, "block mean field", r.log_z)
        state = np.array([int(q.argmax()) for q in r.marginals])
    if state is None or job.clock.expired:
        return
    run = CutsetSum(
        model,
        state,
        generator(job.seed, _KEY, 2),
        job.clock,
        job.max_memory // 8,
        _fresh_states(job) if has_zeros(model) else None,
    )
    yield from run.burn_in()
    if run.pool and not job.clock.expired:
        yield from _block_from_samples(job, run)
    for bound in run.sums() if job.exact else run.sums(_NARROW):
        yield bound
        if bound.log_z > job.marginal_quality:
            job.offer_marginals(run.marginals, "block Gibbs samples", bound.log_z)


def _feasible(job: Job) -> Generator[Bound, None, NDArray[np.int64] | None]:
    """Search for a state of positive weight; it is the value of the stream, None if none."""
    for found in feasible_states(job.working, clock=job.clock, seed=stream(job.seed, _KEY, 0)):
        if found.status is Feasibility.IMPOSSIBLE:
            yield Bound(
                Side.BOTH, -math.inf, Proof.DETERMINISTIC, "backtracking", confidence=1.0,
                why="a complete search found no state of positive weight",
            )  # fmt: skip
            return None
        if found.state is not None:
            yield Bound(
                Side.LOWER, found.log_weight, Proof.DETERMINISTIC, "one state", confidence=1.0,
                why="the weight of one state is part of Z",
            )  # fmt: skip
            return found.state
    job.notes.append("lower bound: " + Feasibility.UNKNOWN.value)
    return None


def _fresh_states(job: Job) -> Iterator[NDArray[np.int64]]:
    for found in feasible_states(job.working, clock=job.clock, seed=stream(job.seed, _KEY, 3)):
        if found.state is not None:
            yield found.state


def _block_from_samples(job: Job, run: CutsetSum) -> Iterator[Bound]:
    """Block mean field from states that the sampler met: zeros allow no other starts."""
    for state in run.pool[:: max(1, len(run.pool) // _GIBBS_STARTS)]:
        r = block_mean_field(job.working, config=BlockMeanField(restarts=0), states=state)
        yield r.bound
        job.offer_marginals(r.marginals, "block mean field", r.log_z)
        if job.share(0.2).expired:
            return
