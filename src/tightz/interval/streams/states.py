"""Lower ends on states themselves: any cardinality, zeros welcome."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.families.block import BlockMeanField, block_mean_field
from tightz.families.clustered import ClusterMeanField, cluster_labels
from tightz.families.priced import freest_first, priced
from tightz.interval.streams.cutset_sum import CutsetSum
from tightz.interval.streams.first import KEY, one_state
from tightz.judge import Audited
from tightz.propagation import BetheStatus, bethe
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import generator, stream
from tightz.sampling.capped.tightening import DENSE, FIRST, MANY
from tightz.sampling.state_search import search_states
from tightz.search.feasible import Feasibility, feasible_states
from tightz.search.ground_state import Search
from tightz.uppers.mini_bucket.run import MAX_IBOUND, MiniBucket, Run, cutting, wider
from tightz.workspace.findings import Finding, Marginals, PointEstimate
from tightz.workspace.working import LARGE, Working

_GIBBS_STARTS = 4

_MANY_FACTORS = 100_000
"""Above this belief propagation is left out, and cutsets: to choose one takes 20 s."""

_FIRST_SWEEPS, _SWEEPS = 5, 0.3
"""Sweeps of the first ascent on a large model, and the part of the time left for the second."""

_FEW_PRICES, _GROWTH, _MANY_PRICES = 8, 4, 512
"""Sweeps with zeros at a price: at first, times that with each round, at most."""

_OPENING, _SETTLING = 0.05, 20
"""Part of the time left for a state that agrees with them; sweeps of opening it."""

TEMPERED, _MOST_TEMPERED = 0.05, 2.0
"""Part of the time left, and seconds at most, for a heavy state to start cutset sums from."""

_ROUGH, _WORTHWHILE, _LITTLE = 8, 0.4, 1e-3
"""Of mini-buckets from below: iterations before tables grow, part of the time left that the next
ones may be expected to take, and nats that as many iterations must gain for an ascent to go on."""

_CLUSTER_SIZES = (10.0, 14.0, 17.0, 20.0)
"""log2 of the tables inside clusters, phase by phase."""


def blocks(working: Working, clock: Clock) -> Iterator[Finding]:
    """A table per variable, then tables per cluster, each started from the last marginals."""
    graph = working.graph
    if not _beyond_spins(working):
        return
    if graph.has_zeros:
        yield from _opened(working, clock)
        return
    seed = stream(working.seed, KEY, 1)
    config = BlockMeanField(restarts=2)
    if graph.n_factors > LARGE:
        # A few sweeps for a first end, then as many as the time allows: no step may hold a worker
        # for long.
        begun = clock.elapsed
        config = BlockMeanField(restarts=1, max_sweeps=_FIRST_SWEEPS, annealing=0)
        r = block_mean_field(graph, config=config, seed=seed)
        yield Finding(r.bound, Marginals(r.marginals, "block mean field", r.log_z))
        pace = (clock.elapsed - begun) / _FIRST_SWEEPS
        more = int(min(_SWEEPS * clock.left / max(pace, 1e-9), config.max_sweeps * 100))
        if more <= 2 * _FIRST_SWEEPS:
            return
        config = BlockMeanField(restarts=1, max_sweeps=more, annealing=min(30, more // 4))
    r = block_mean_field(graph, config=config, seed=seed)
    yield Finding(r.bound, Marginals(r.marginals, "block mean field", r.log_z))
    if graph.n_factors > LARGE:
        return
    if graph.arities.max(initial=0) == 2:
        yield from _clusters(working, clock, r.marginals)


def _opened(working: Working, clock: Clock) -> Iterator[Finding]:
    """A table per variable between zeros: what zeros at a price leave free, opened from a state."""
    graph, sweeps = working.graph, _FEW_PRICES
    for number in itertools.count():
        begun = clock.elapsed
        tables: list[NDArray[np.float64]] = []
        for settled in priced(graph, sweeps, stream(working.seed, KEY, 6, number)):
            tables = settled
            if clock.expired:
                return
            if number:  # the first bound before all else
                yield Finding()
        pace = (clock.elapsed - begun) / sweeps
        states = feasible_states(
            graph,
            clock=Clock(_OPENING * clock.left),
            seed=stream(working.seed, KEY, 7, number),
            beliefs=tables,
        )
        for found in states:
            if found.status is not Feasibility.UNKNOWN:
                break
            yield Finding()
        if found.state is None:
            return
        r = block_mean_field(
            graph,
            config=BlockMeanField(restarts=0, max_sweeps=_SETTLING),
            states=found.state,
            order=freest_first(tables),
        )
        yield Finding(r.bound, Marginals(r.marginals, "block mean field", r.log_z))
        more = min(_GROWTH * sweeps, _MANY_PRICES, int(_SWEEPS * clock.left / max(pace, 1e-9)))
        if more < 2 * sweeps:
            return
        sweeps = more


def reversed_tables(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """Mini-buckets from below: tables as large as the time allows, in orders made for their cuts.

    Zeros leave nothing under a negative power, and where couplings are dense all buckets are cut.
    """
    if working.graph.has_zeros or not working.graph.n_variables:
        return
    if working.graph.n_factors > max(MANY, DENSE * working.graph.n_variables):
        return
    run, last = _reversed_run(working, FIRST, 0), None
    while run is not None:
        begun, last = clock.elapsed, run
        yield from _ascent(run, _ROUGH)
        seconds = clock.elapsed - begun
        run = _reversed_run(working, wider(working.graph, run.config.ibound)[0], 0)
        growth = run.entries / last.entries if run is not None else 1.0
        if last.exact or growth * seconds > _WORTHWHILE * clock.left:
            break
    trials = itertools.count(1)
    while last is not None and not last.exact:
        yield from _ascent(last)
        par = last.history[: _ROUGH + 1][-1]
        run = _reversed_run(working, last.config.ibound, next(trials))
        while run is not None:
            yield from _silent(run, _ROUGH)
            if run.history[-1] > par:
                break
            run = _reversed_run(working, last.config.ibound, next(trials))
        last = run


def _reversed_run(working: Working, ibound: int, trial: int) -> Run | None:
    """One order of tables from below; None where they do not fit, or are exact: others do that."""
    if ibound > MAX_IBOUND:
        return None
    memory = working.max_memory // 8
    config = MiniBucket(ibound, iterations=10**6, side=Side.LOWER, max_memory=memory)
    try:
        tried = cutting(working.orders, ibound, [trial])
        run = Run(working.orders, config, time.perf_counter(), tried)
    except ResourceError:
        return None
    return None if run.candidates[0][1].exact else run


def _ascent(run: Run, iterations: int = 10**6) -> Iterator[Finding | Bound]:
    """So many iterations, or until eight gain little; judged at the end and on the way."""
    for _ in _silent(run, iterations):
        turns = len(run.history)
        yield run.judged() if turns > _ROUGH + 1 and turns.bit_count() == 1 else Finding()
    yield run.judged()


def _silent(run: Run, iterations: int) -> Iterator[Finding]:
    for value in itertools.islice(run.steps, iterations):
        yield Finding()
        if len(run.history) > _ROUGH and value - run.history[-_ROUGH - 1] < _LITTLE:
            return


def cutset_sums(working: Working, clock: Clock) -> Iterator[Finding | Bound]:
    """Sums over a cutset's states that block Gibbs sampling met, the rest eliminated exactly; on
    models with zeros, where families come no nearer."""
    graph = working.graph
    if not graph.has_zeros:
        return
    state = yield from _feasible(working, clock)
    beliefs = yield from _beliefs(working)
    if state is None or graph.n_factors > _MANY_FACTORS:
        return
    tempered = _tempered(working, clock)
    if len(tempered) and graph.log_weight(tempered[0])[0] > graph.log_weight(state)[0]:
        state = tempered[0]
        yield one_state(state, float(graph.log_weight(state)[0]))
    run = CutsetSum(
        graph,
        state,
        generator(working.seed, KEY, 2),
        clock,
        working.max_memory // 8,
        _fresh_states(working, clock, beliefs),
    )
    yield from run.burn_in()
    if run.pool:
        yield from _block_from_samples(working, run)
    for bound in run.sums(whole=working.exact):
        yield Finding(bound, Marginals(run.marginals, "block Gibbs samples", bound.log_z))


def _tempered(working: Working, clock: Clock) -> NDArray[np.int64]:
    """Heavy states, heaviest first: sums that start from one meet heavy assignments sooner."""
    limit = min(TEMPERED * clock.left, _MOST_TEMPERED)
    seed = stream(working.seed, KEY, 4)
    found = search_states(working.graph, Search(runs=1), seed, time_limit=limit)
    states: NDArray[np.int64] = found.states
    return states


def _beyond_spins(working: Working) -> bool:
    """Whether spins are not the variables themselves: many states, or zeros."""
    try:
        return bool(working.graph.n_variables) and not working.encoding.direct
    except UnsupportedModelError:
        return True


def _clusters(
    working: Working, clock: Clock, marginals: list[NDArray[np.float64]]
) -> Iterator[Finding]:
    """Clustered mean field of growing width, each started from the last one's marginals."""
    for log2_size in _CLUSTER_SIZES:
        begun = clock.elapsed
        labels = cluster_labels(working.graph, log2_size)
        if not working.exact and not labels.any():  # one cluster is the whole model
            return
        try:
            clusters = ClusterMeanField(working.graph, labels, marginals)
            for bound in clusters.bounds(clock):
                now = [q.copy() for q in clusters.marginals]
                yield Finding(bound, Marginals(now, "clustered mean field", bound.log_z))
        except ResourceError as error:
            yield Finding(note=f"clustered mean field: {error}")
            return
        marginals = clusters.marginals
        if len(clusters.members) == 1 or 3.0 * (clock.elapsed - begun) > clock.left:
            return


def _beliefs(working: Working) -> Generator[Finding, None, list[NDArray[np.float64]] | None]:
    """Belief propagation: marginals to search by, and where it converges the point estimate."""
    if working.graph.n_factors > _MANY_FACTORS:
        return None
    r = bethe(working.graph, max_iterations=300, starts=1)
    if r.status is BetheStatus.CONVERGED:
        source = "Bethe estimate (belief propagation)"
        # No error: the Bethe value is off by an unknown amount on any graph with cycles.
        yield Finding(estimate=PointEstimate(r.log_z, math.inf, source, "bethe"))
    usable = all(np.isfinite(q).all() for q in r.marginals)
    return r.marginals if usable else None


def _feasible(
    working: Working, clock: Clock
) -> Generator[Finding | Bound, None, NDArray[np.int64] | None]:
    """Search for a state of positive weight; it is the value of the stream, None if none."""
    for found in feasible_states(working.graph, clock=clock, seed=stream(working.seed, KEY, 0)):
        if found.status is Feasibility.IMPOSSIBLE:
            yield Bound(
                Side.BOTH, -math.inf, Proof.DETERMINISTIC, "backtracking", confidence=1.0,
                why="a complete search found no state of positive weight",
                evidence=Audited(-math.inf),
            )  # fmt: skip
            return None
        if found.state is not None:
            yield one_state(found.state, found.log_weight)
            return found.state
    yield Finding(note="lower bound: " + Feasibility.UNKNOWN.value)
    return None


def _fresh_states(
    working: Working, clock: Clock, beliefs: list[NDArray[np.float64]] | None
) -> Iterator[NDArray[np.int64]]:
    for found in feasible_states(
        working.graph, clock=clock, seed=stream(working.seed, KEY, 3), beliefs=beliefs
    ):
        if found.state is not None:
            yield found.state


def _block_from_samples(working: Working, run: CutsetSum) -> Iterator[Finding]:
    """Block mean field from states that the sampler met: zeros allow no other starts."""
    for state in run.pool[:: max(1, len(run.pool) // _GIBBS_STARTS)]:
        r = block_mean_field(working.graph, config=BlockMeanField(restarts=0), states=state)
        yield Finding(r.bound, Marginals(r.marginals, "block mean field", r.log_z))
