"""The streams of bounds that `log_partition` runs, each a generator that watches the clock."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.estimation.certificates import anytime_certificate
from tightz.estimation.dense import DENSE_SWEEPS, is_dense, layers, one_layer
from tightz.estimation.discrete import discrete_lower, first_state
from tightz.estimation.estimate import mean_field
from tightz.estimation.preparation import Prepared, prepare
from tightz.estimation.rising import rising_mini_buckets
from tightz.estimation.splitting import SplittingTree
from tightz.estimation.trials import TrialPlan, all_positions, run_batches
from tightz.estimation.workspace import SEARCH, Workspace, lifted_means
from tightz.families.block import family_for
from tightz.families.structured import StructuredMeanField
from tightz.models.encoding import SpinEncoding, encode
from tightz.models.factor_graph import FactorGraph
from tightz.models.preprocess import has_zeros
from tightz.models.spin_polynomial import MAX_ARITY
from tightz.projections.coset import Coset
from tightz.projections.hashing import DenseParity
from tightz.references.exact import exact, plan
from tightz.references.mini_bucket.order import Order, elimination_order
from tightz.references.mini_bucket.partition import partition
from tightz.references.tree_reweighted import TreeReweighted, tree_reweighted_bounds
from tightz.runtime.clock import Clock
from tightz.runtime.executors import Submits
from tightz.runtime.seeds import Seed, generator, stream

LEVELS = (1, 2, 4, 6, 8, 10)
"""Numbers of parities whose trials feed the certificate; few, since each is paid for."""

WIDTHS = (2, 4, 6, 8, 10)
"""Structured families tried in turn; 10 is also the widest elimination when exact is off."""

_DRAWS = 20_000
"""States drawn for marginals where spins are not the model's variables."""

FLOPS_PER_SECOND = 1.5e8
"""A cautious speed of exact elimination, to decide whether it fits into the time limit."""


@dataclass
class Job:
    """One run: the model, its limits, and what the streams leave for the answer."""

    model: FactorGraph
    clock: Clock
    time_limit: float
    delta: float
    seed: np.random.SeedSequence
    exact: bool
    max_memory: int
    executor: Submits | None = None
    notes: list[str] = field(default_factory=list)
    marginals: list[NDArray[np.float64]] | None = None
    marginal_source: str = ""
    marginal_quality: float = -math.inf
    estimate: tuple[float, float, str] | None = None
    sampler: Callable[..., Any] | None = None

    @cached_property
    def prepared(self) -> Prepared:
        """The model without evidence, what zeros decide, leaves and small components."""
        return prepare(self.model, log2_size=16.0 if self.exact else float(WIDTHS[-1]))

    @property
    def working(self) -> FactorGraph:
        """What the streams run on: the same log Z as `model`, perhaps fewer variables."""
        return self.prepared.reduced

    def offer_marginals(
        self, marginals: list[NDArray[np.float64]], source: str, quality: float
    ) -> None:
        """Keep the marginals of `working` from the q with the best bound (exact: +inf)."""
        if quality > self.marginal_quality:
            self.marginals = self.prepared.lift_marginals(marginals)
            self.marginal_source, self.marginal_quality = source, quality

    def lifted(self, sampler: Callable[..., Any]) -> Callable[..., Any]:
        """A sampler of `working`'s states as one of the model's."""

        def sample(k: int, seed: Seed = None) -> Any:
            drawn = sampler(k, seed)
            return drawn._replace(states=self.prepared.lift_states(drawn.states, stream(seed, 1)))

        return sample

    def share(self, fraction: float) -> Clock:
        """A clock that ends with this one or after a fraction of the time limit."""
        return Clock(
            min(self.clock.left, max(0.0, fraction * self.time_limit - self.clock.elapsed))
        )


Method = Callable[[Job], Iterator[Any]]
"""A stream: it yields bounds (or a Launch) and watches the job's clock."""


def trivial(job: Job) -> Iterator[Bound]:
    """Any state from below, the product of maxima from above: a finite interval at once."""
    model, _ = job.model.condition()
    state = np.zeros((1, model.n_variables), dtype=np.int64)
    weight = float(model.log_weight(state)[0])
    yield _lower(weight, "one state", "the weight of one state is part of Z")
    tops = np.maximum.reduceat(model.log_tables, model.table_ptr[:-1]) if model.n_factors else 0.0
    top = float(np.sum(tops) + np.log(model.cardinalities).sum())
    if top == -math.inf:
        yield Bound(
            Side.BOTH, -math.inf, Proof.DETERMINISTIC, "zero table", confidence=1.0,
            why="a table is zero everywhere, so no state has weight",
        )  # fmt: skip
        return
    yield Bound(
        Side.UPPER, top, Proof.DETERMINISTIC, "largest entries", confidence=1.0,
        why="every state weighs at most the product of the tables' largest entries",
    )  # fmt: skip


class Launch(tuple[Method, ...]):
    """Yielded by a stream that wants other streams started beside it."""


def exact_first(job: Job) -> Iterator[Bound | Launch]:
    """Exact elimination where it fits in memory and time, otherwise both sides at once."""
    yield from first_state(job)
    slow_to_plan = job.working.n_factors > 20_000 or not _narrow(job)
    if slow_to_plan:
        yield Launch((lower, upper))
    if _exact_fits(job):
        yield from exactly(job)
    elif not slow_to_plan:
        yield Launch((lower, upper))


def _narrow(job: Job) -> bool:
    """Whether a quick elimination order stays in memory; a slower search may still find one."""
    order = elimination_order(job.working, Order.MIN_FILL)
    ibound = max(1, int(math.log2(job.max_memory)) - 3)  # 8 bytes an entry
    return partition(job.working, order, ibound).exact


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


def exactly(job: Job) -> Iterator[Bound]:
    """Exact elimination, marginals afterwards if time is left."""
    result = exact(job.working, max_memory=job.max_memory, marginals=False)
    yield result.bound
    if result.log_z > -math.inf and 4 * result.seconds < job.clock.left:
        job.offer_marginals(result.marginals, "exact", math.inf)


def upper(job: Job) -> Iterator[Bound]:
    """Tree-reweighted bounds for positive pairwise models, then mini-buckets of rising size."""
    if job.working.arities.max(initial=0) <= 2 and not has_zeros(job.working):
        clock = job.share(0.25)
        for bound in tree_reweighted_bounds(job.working, TreeReweighted()):
            yield bound
            if clock.expired:
                break
    widest = 30 if job.exact else WIDTHS[-1]
    try:
        for bound in rising_mini_buckets(
            job.working, job.clock, widest=widest, max_memory=job.max_memory // 2
        ):
            yield bound
            if bound.side is Side.BOTH and bound.log_z > -math.inf:  # narrow: marginals are cheap
                found = exact(job.working, max_memory=job.max_memory).marginals
                job.offer_marginals(found, "exact", math.inf)
    except ResourceError as error:
        job.notes.append(f"mini-bucket: {error}")


def lower(job: Job) -> Iterator[Bound | Launch]:
    """Mean field, structured mean field on the collapsed model, projections, splitting."""
    try:
        encoding = encode(job.working, multivalued=True)
    except UnsupportedModelError:
        yield from discrete_lower(job)
        return
    if encoding.reason:
        yield Bound(
            Side.BOTH, -math.inf, Proof.DETERMINISTIC, "linear algebra", confidence=1.0,
            why=encoding.reason,
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


def _plain(job: Job, encoding: SpinEncoding) -> Iterator[Bound]:
    for restarts in (1, 8):
        r = mean_field(encoding.polynomial, restarts=restarts, seed=stream(job.seed, restarts))
        job.offer_marginals(
            list(encoding.marginals(1.0 - 2.0 * r.marginals[:, 1])), "mean field", r.log_z
        )
        yield r.bound
        if job.clock.expired:
            return


def _structured(job: Job, aided: Workspace) -> Iterator[Bound]:
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
        yield _lower(
            q.log_gamma, name, "every distribution q gives a lower bound on log Z (paper, eq. 2)"
        )
        if q.log_gamma > best and q.log_gamma > -math.inf:
            best = q.log_gamma
            if aided.collapsed is None:
                marginals = aided.encoding.marginals_of(q.expectations)
            else:
                marginals = aided.encoding.marginals(lifted_means(q, aided.collapsed))
            job.offer_marginals(list(marginals), name, best)
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
        yield _lower(log_gamma, f"one coset, m = {m}", "Z(A, b) is part of Z")
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


def _splitting(job: Job, encoding: SpinEncoding) -> Iterator[Bound]:
    """The splitting tree to the end of the time; its mixture gives estimate, marginals, samples."""
    if job.clock.expired:
        return
    tree = SplittingTree(
        job.working if encoding.direct else encoding.polynomial,
        time_limit=0.95 * job.clock.left,
        seed=stream(job.seed, SEARCH, 1),
        exact_width=WIDTHS[-1],
    )
    yield from tree.run()
    result = tree.result()
    if result.lower > -math.inf:
        sample = _decoded(result.sample, encoding)
        job.sampler = job.lifted(sample)
        value, error = result.estimate(1000, stream(job.seed, SEARCH, 2))[:2]
        job.estimate = (value, error, "importance samples from the splitting tree's mixture")
        marginals = list(result.marginals)
        if not encoding.direct:  # a spin that follows from others has no mean of its own
            states = sample(_DRAWS, stream(job.seed, SEARCH, 3)).states
            cards = job.working.cardinalities
            counts = (np.bincount(x, minlength=d) for x, d in zip(states.T, cards, strict=True))
            marginals = [count / _DRAWS for count in counts]
        job.offer_marginals(marginals, "splitting tree", result.lower)


def _decoded(sample: Callable[..., Any], encoding: SpinEncoding) -> Callable[..., Any]:
    """A sampler of the polynomial's states as one of the encoded model's."""
    if encoding.direct:
        return sample

    def decoded(k: int, seed: Seed = None) -> Any:
        drawn = sample(k, seed)
        return drawn._replace(states=encoding.lift_states(1 - 2 * drawn.states))

    return decoded


def _lower(value: float, method: str, why: str) -> Bound:
    return Bound(Side.LOWER, value, Proof.DETERMINISTIC, method, confidence=1.0, why=why)


def stamped(bound: Bound, seconds: float) -> Bound:
    """The same record with the time since the start of the whole run."""
    return replace(bound, seconds=seconds)
