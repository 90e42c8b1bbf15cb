"""The streams of bounds that `log_partition` runs, each a generator that watches the clock."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.exact import ExactResult, exact, plan
from tightz.elimination.order import choose_order
from tightz.errors import ModelError, ResourceError, UnsupportedModelError
from tightz.families.block import family_for
from tightz.families.evidence import JENSEN, lower_bound_of
from tightz.families.structured import StructuredMeanField
from tightz.interval.dense import DENSE_SWEEPS, is_dense, layers, one_layer
from tightz.interval.discrete import discrete_lower, first_state
from tightz.judge import Audited, LargestEntries, StatesEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import MAX_ARITY
from tightz.paper.estimate import mean_field
from tightz.paper.trials import TrialPlan, all_positions, run_batches
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity
from tightz.reductions.encoding import SpinEncoding
from tightz.runtime.seeds import Seed, generator, stream
from tightz.sampling.annealed import annealed
from tightz.sampling.certificates import anytime_certificate
from tightz.splitting import SplittingTree
from tightz.uppers.rising import rising_mini_buckets
from tightz.uppers.tree_reweighted import TreeReweighted, tree_reweighted_bounds
from tightz.workspace.findings import Finding, Marginals, Mixing, PointEstimate
from tightz.workspace.job import NARROW, Job, Launch
from tightz.workspace.samples import Samples
from tightz.workspace.workspace import SEARCH, Workspace, lifted_means

LEVELS = (1, 2, 4, 6, 8, 10)
"""Numbers of parities whose trials feed the certificate; few, since each is paid for."""

WIDTHS = (2, 4, 6, 8, NARROW)
"""Structured families tried in turn."""

_DRAWS = 20_000
"""States drawn for marginals where spins are not the model's variables."""

FLOPS_PER_SECOND = 1.5e8
"""A cautious speed of exact elimination, to decide whether it fits into the time limit."""


def trivial(model: FactorGraph) -> Iterator[Bound]:
    """Any state from below, the product of maxima from above: a finite interval at once."""
    state = np.zeros((1, model.n_variables), dtype=np.int64)
    for v, observed in model.evidence.items():
        state[0, v] = observed
    weight = float(model.log_weight(state)[0])
    yield Bound(
        Side.LOWER, weight, Proof.DETERMINISTIC, "one state", confidence=1.0,
        why="the weight of one state is part of Z", evidence=StatesEvidence(state),
    )  # fmt: skip
    top = LargestEntries().verdict(model).upper
    if top == -math.inf:
        yield Bound(
            Side.BOTH, -math.inf, Proof.DETERMINISTIC, "zero table", confidence=1.0,
            why="a table is zero everywhere, so no state has weight", evidence=LargestEntries(),
        )  # fmt: skip
        return
    yield Bound(
        Side.UPPER, top, Proof.DETERMINISTIC, "largest entries", confidence=1.0,
        why="every state weighs at most the product of the tables' largest entries",
        evidence=LargestEntries(),
    )  # fmt: skip


def exact_first(job: Job) -> Iterator[Finding | Bound | Launch]:
    """Exact elimination where it fits in memory and time, otherwise both sides at once."""
    yield from first_state(job)
    slow_to_plan = job.working.n_factors > 20_000 or not _narrow(job)
    if slow_to_plan:
        yield Launch((lower, upper, annealed))
    if _exact_fits(job):
        try:
            yield from exactly(job)
            return
        except UnsupportedModelError as error:  # weights beyond what exact sums can carry
            yield Finding(note=str(error))
    if not slow_to_plan:
        yield Launch((lower, upper, annealed))


def _narrow(job: Job) -> bool:
    """Whether a quick elimination order stays in memory; a slower search may still find one."""
    choice = choose_order(job.working, seconds=0.0)
    return choice.log2_largest <= math.log2(job.max_memory) - 3  # 8 bytes an entry


def _exact_fits(job: Job) -> bool:
    """Whether exact elimination stays within memory and about half of the time left."""
    if not job.exact:
        return False
    try:
        elimination = plan(job.working)
    except ResourceError:  # too wide for any memory
        return False
    if not elimination.fits(job.max_memory):
        return False
    return elimination.flops / FLOPS_PER_SECOND < 0.5 * job.clock.left


def exactly(job: Job) -> Iterator[Finding | Bound]:
    """Exact elimination, marginals afterwards if time is left."""
    result = exact(job.working, max_memory=job.max_memory, marginals=False)
    yield result.bound
    if result.log_z > -math.inf and 4 * result.seconds < job.clock.left:
        yield from exact_marginals(result)


def exact_marginals(result: ExactResult) -> Iterator[Finding]:
    """Marginals that nothing replaces; a note where the model's scale leaves them no digits."""
    try:
        vectors = result.marginals
    except ModelError as error:
        yield Finding(note=str(error))
        return
    yield Finding(marginals=Marginals(vectors, "exact", math.inf, Mixing.EXACT))


def upper(job: Job) -> Iterator[Finding | Bound]:
    """Tree-reweighted bounds for positive pairwise models, then mini-buckets of rising size."""
    if job.working.arities.max(initial=0) <= 2 and not job.working.has_zeros:
        clock = job.share(0.25)
        for bound in tree_reweighted_bounds(job.working, TreeReweighted()):
            yield bound
            if clock.expired:
                break
    widest = 30 if job.exact else NARROW
    try:
        for bound in rising_mini_buckets(
            job.working, job.clock, widest=widest, max_memory=job.max_memory // 2
        ):
            yield bound
            if bound.side is Side.BOTH and bound.log_z > -math.inf:  # narrow: marginals are cheap
                yield from exact_marginals(exact(job.working, max_memory=job.max_memory))
    except ResourceError as error:
        yield Finding(note=f"mini-bucket: {error}")


def lower(job: Job) -> Iterator[Finding | Bound | Launch]:
    """Mean field, structured mean field on the collapsed model, projections, splitting."""
    try:
        encoding = job.encoding
    except UnsupportedModelError:
        yield from discrete_lower(job)
        return
    if encoding.reason:
        yield Bound(
            Side.BOTH, -math.inf, Proof.DETERMINISTIC, "linear algebra", confidence=1.0,
            why=encoding.reason, evidence=Audited(-math.inf),
        )  # fmt: skip
        return
    if not encoding.direct:
        yield Launch((discrete_lower,))
    if encoding.bits is None:  # otherwise discrete_lower begins with a table per variable
        yield from _plain(job, encoding)
    dense = is_dense(encoding.polynomial)
    if dense:
        yield from one_layer(job, encoding, restarts=1)
    aided = Workspace.build(
        encoding,
        seed=job.seed,
        search_sweeps=DENSE_SWEEPS if dense else None,
        time_limit=0.2 * job.clock.left,
    )
    if job.clock.expired:
        return
    if dense:
        yield from layers(job, encoding, aided.original_states())
    yield from _structured(job, aided)
    yield from _projections(job, aided)
    # The tree's upper bounds tabulate every term; parities may have made long ones.
    if encoding.bits is None and encoding.polynomial.degree <= MAX_ARITY:
        yield from _splitting(job, encoding)


def _plain(job: Job, encoding: SpinEncoding) -> Iterator[Finding]:
    for restarts in (1, 8):
        r = mean_field(
            encoding.polynomial, restarts=restarts, seed=stream(job.seed, restarts), link=job.link
        )
        marginals = list(encoding.marginals(1.0 - 2.0 * r.marginals[:, 1]))
        yield Finding(r.bound, Marginals(marginals, "mean field", r.log_z))
        if job.clock.expired:
            return


def _structured(job: Job, aided: Workspace) -> Iterator[Finding]:
    """Mean field from the states found, then families of growing width."""
    clock = job.share(0.2)
    coset = Coset.build(aided.polynomial)
    best = -math.inf
    restarts = 4 if aided.polynomial.n_terms < 20_000 else 1
    for width in (0, *WIDTHS):
        family = (
            StructuredMeanField(width=width, restarts=restarts)
            if width
            else family_for(aided.polynomial, restarts=4 * restarts)
        )
        q = family.project(coset, generator(job.seed, SEARCH, width), aided.states)
        name = f"structured mean field, width {width}" if width else "mean field, tempering starts"
        offered = None
        if q.log_gamma > best:
            best = q.log_gamma
            if aided.collapsed is None:
                marginals = aided.encoding.marginals_of(q.expectations)
            else:
                marginals = aided.encoding.marginals(lifted_means(q, aided.collapsed))
            offered = Marginals(list(marginals), name, best)
        yield Finding(lower_bound_of(q, name, JENSEN, aided.link), offered)
        if clock.expired:
            return


def _projections(job: Job, aided: Workspace) -> Iterator[Bound]:
    """Trials round by round, read through the anytime certificate at growing intervals."""
    n = aided.polynomial.n
    levels = [m for m in LEVELS if m <= n]
    if not levels or job.clock.expired:
        return
    clock = job.share(0.4)
    plan_ = TrialPlan(
        polynomial=aided.polynomial,
        family=family_for(aided.polynomial, restarts=8),
        hashing=DenseParity(),
        pivots=aided.pivots(),
        seed=job.seed,
        pairs=np.zeros((0, 2), dtype=np.int64),
        states=aided.states,
        lift=False,
    )
    endless = all_positions(levels, sys.maxsize)
    values: list[float] = []
    next_look = 1
    for trial in run_batches(plan_, endless, executor=job.executor, threads=1, batch=1):
        m, log_gamma = int(trial.levels[0]), float(trial.log_gamma[0])
        values.append(log_gamma + m * math.log(2.0))
        rounds, begun = divmod(len(values), len(levels))
        if begun:
            continue
        if rounds >= next_look:
            next_look = math.ceil(1.3 * rounds) + 1
            table = np.array(values).reshape(rounds, -1).T
            yield Bound(
                Side.LOWER, anytime_certificate(table, job.delta), Proof.CONFIDENCE,
                f"projections, {rounds} trials at {len(levels)} levels",
                confidence=1.0 - job.delta,
                why="a mixture of bets over stakes and levels reached 1/delta (Ville)",
            )  # fmt: skip
        if clock.expired:  # one round at least
            return


def _splitting(job: Job, encoding: SpinEncoding) -> Iterator[Finding | Bound]:
    """The splitting tree to the end of the time; its mixture gives estimate, marginals, samples."""
    if job.clock.expired:
        return
    tree = SplittingTree(
        encoding,
        time_limit=0.95 * job.clock.left,
        seed=stream(job.seed, SEARCH, 1),
        exact_width=NARROW,
    )
    yield from tree.run()
    result = tree.result()
    if result.lower == -math.inf:
        return
    sample = _decoded(result.sample, encoding)
    value, error = result.estimate(1000, stream(job.seed, SEARCH, 2))
    effective = result.sample(1000, stream(job.seed, SEARCH, 2)).effective_size
    source = "importance samples from the splitting tree's mixture"
    if encoding.direct:
        marginals = list(encoding.marginals(1.0 - 2.0 * result.marginals[:, 1]))
    else:  # a spin that follows from others has no mean of its own
        states = sample(_DRAWS, stream(job.seed, SEARCH, 3)).states
        cards = job.working.cardinalities
        counts = (np.bincount(x, minlength=d) for x, d in zip(states.T, cards, strict=True))
        marginals = [count / _DRAWS for count in counts]
    yield Finding(
        marginals=Marginals(marginals, "splitting tree", result.lower),
        estimate=PointEstimate(value, error, source, "tree", effective),
        sampler=sample,
    )


def _decoded(sample: Callable[..., Samples], encoding: SpinEncoding) -> Callable[..., Samples]:
    """A sampler of the polynomial's states as one of the encoded model's."""

    def decoded(k: int, seed: Seed = None) -> Samples:
        drawn = sample(k, seed)
        return replace(drawn, states=encoding.lift_states(1 - 2 * drawn.states))

    return decoded
