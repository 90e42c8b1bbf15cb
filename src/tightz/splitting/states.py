"""A splitting tree over the states of any discrete model: many states, zeros, evidence.

A region leaves each variable some of its states; a split deals one variable's out to two sides.
What zeros rule out there is dropped by propagation, so the sides of a hard model shrink by more
than one variable. A region that elimination sums in small tables is closed; another is bounded by
mini-buckets from above and, from below, by block mean field and, without zeros, by mini-buckets
again. The widest region is split next, so that both ends close in together.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.conditioning import ConditionedElimination, choose_cutset
from tightz.elimination.exact import exact
from tightz.elimination.graph import interaction_graph, scopes_of
from tightz.elimination.order import Order, Orders
from tightz.errors import ResourceError, TightzError
from tightz.families.block import BlockMeanField, block_mean_field
from tightz.judge.domains import DomainCourt, DomainsEvidence, Part, Summed
from tightz.judge.verdict import Evidence, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import per_variable
from tightz.reductions.zeros import possible_states
from tightz.runtime.clock import Clock
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, seed_sequence, stream
from tightz.search.feasible import Feasibility, feasible_state
from tightz.splitting.nodes import log_difference
from tightz.splitting.results import SplittingResult
from tightz.splitting.run import LEAF_ITERATIONS, Splitting
from tightz.uppers.mini_bucket.run import MiniBucket, Run

MAX_LEAVES = 20_000
"""Leaves where the settings name no number: each keeps its domains and its proofs."""

SEARCHED = 0.5
"""Seconds that the search for a state of positive weight in one region may take."""

STARTS = 2
"""Of block mean field in a region without zeros."""

CLOSED = 1e-9
"""Width, relative to the ends themselves, at which the interval counts as closed."""

HALF = 0.5
"""Weight under q of the states on the first side of a split, at least."""


@dataclass(eq=False)
class StateRegion:
    """A node of the tree: the states left of each variable, and what is known about their sum.

    graph     the model there, over the variables with more than one state, `kept`
    q         block mean field of `graph`; None where it was closed or no state was found
    """

    domains: list[NDArray[np.int64]]
    depth: int
    graph: FactorGraph | None = None
    kept: tuple[int, ...] = ()
    q: list[NDArray[np.float64]] | None = None
    proofs: tuple[Evidence, ...] = ()
    own: Verdict = field(default_factory=Verdict)
    exact: bool = False
    lower: float = -math.inf
    upper: float = math.inf
    parent: StateRegion | None = None
    variable: int = -1
    states: tuple[int, ...] = ()
    children: tuple[StateRegion, ...] = ()
    part: Part | None = None

    def refresh(self) -> None:
        """Ends and the judge's record of this node and of all above it."""
        node: StateRegion | None = self
        while node is not None:
            node.lower, node.upper = node.own.lower, node.own.upper
            sides = None
            if node.children:
                one, two = node.children
                node.lower = max(node.lower, float(np.logaddexp(one.lower, two.lower)))
                node.upper = min(node.upper, float(np.logaddexp(one.upper, two.upper)))
                assert one.part is not None
                assert two.part is not None
                sides = one.part, two.part
            node.part = Part(node.proofs, node.variable, node.states, sides)
            node = node.parent

    def leaves(self) -> Iterator[StateRegion]:
        """The regions that make up this one."""
        stack = [self]
        while stack:
            node = stack.pop()
            if node.children:
                stack += reversed(node.children)
            else:
                yield node


class StateTree:
    """An anytime run: `run` yields bounds as they improve, `result` reads off what is known."""

    def __init__(
        self,
        model: FactorGraph,
        settings: Splitting | None = None,
        *,
        clock: Clock | None = None,
        seed: Seed = None,
    ) -> None:
        self.model, self.settings = model, settings or Splitting()
        self.clock, self.seed = Clock() if clock is None else clock, seed_sequence(seed)
        self.court = DomainCourt(model)
        self.history: list[Bound] = []
        self.lower, self.upper = -math.inf, math.inf
        self.splits = 0
        self.root: StateRegion | None = None
        self._ptr = np.concatenate([[0], np.cumsum(model.cardinalities)]).astype(np.int64)
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, StateRegion]] = []

    @property
    def closed(self) -> bool:
        """Both ends agree up to rounding."""
        return _closed(self.lower, self.upper)

    def run(self) -> Iterator[Bound | None]:
        """Bounds as they improve, None after a split that moved neither end."""
        alive = possible_states(self.model)
        self.root = self._region(alive, 0)
        self._bound(self.root)
        self._push(self.root)
        yield from self._news()
        most = self.settings.max_leaves or MAX_LEAVES
        limit = math.inf if self.settings.max_splits is None else self.settings.max_splits
        while self._heap and not self.closed and not self.clock.expired:
            if self.splits >= limit or self.splits + 1 >= most:
                return
            self._split(heapq.heappop(self._heap)[-1])
            self.splits += 1
            news = list(self._news())
            yield from news
            if not news:
                yield None

    def _region(self, alive: NDArray[np.bool_], depth: int) -> StateRegion:
        sides = per_variable(alive, self.model.cardinalities)
        return StateRegion([np.flatnonzero(states) for states in sides], depth)

    def _push(self, node: StateRegion) -> None:
        gap = log_difference(node.own.upper, node.own.lower)
        if not node.exact and node.kept and gap > -math.inf:
            heapq.heappush(self._heap, (-gap, next(self._numbers), node))

    # --- Bounds -------------------------------------------------------------------------------

    def _bound(self, node: StateRegion) -> None:
        """What is proven about a region, each statement by the judge."""
        if any(states.size == 0 for states in node.domains):
            node.own, node.exact = Verdict(-math.inf, -math.inf), True
        else:
            node.graph = _restricted(self.model, node.domains)
            node.kept = tuple(v for v, d in enumerate(node.domains) if d.size > 1)
            self._judge(node)
        node.refresh()

    def _judge(self, node: StateRegion) -> None:
        graph = node.graph
        assert graph is not None
        try:
            summed = Summed(2 ** (self.settings.exact_width + 1))
            node.own, node.proofs, node.exact = summed.verdict(graph), (summed,), True
            return
        except RefutedError:  # too wide
            pass
        proofs = [*self._from_below(node, graph)]
        if self.settings.upper:
            proofs += self._tables(graph, Side.UPPER)
        verdicts = [proof.verdict(graph) for proof in proofs]
        low = max([v.lower for v in verdicts], default=-math.inf)
        high = min([v.upper for v in verdicts], default=math.inf)
        shown = [
            proof
            for proof, v in zip(proofs, verdicts, strict=True)
            if (v.lower == low and math.isfinite(low)) or (v.upper == high and high < math.inf)
        ]
        node.own, node.proofs = Verdict(low, high), tuple(shown)
        node.exact = _closed(low, high)  # tables without a cut, or no state at all

    def _from_below(self, node: StateRegion, graph: FactorGraph) -> Iterator[Evidence]:
        number = next(self._numbers)
        states, config = None, BlockMeanField(restarts=STARTS)
        if graph.has_zeros:
            seconds = min(SEARCHED, max(0.01, self.clock.left))
            found = feasible_state(graph, time_limit=seconds, seed=stream(self.seed, 1, number))
            if found.status is Feasibility.IMPOSSIBLE or found.state is None:
                return
            states, config = found.state, replace(config, restarts=0)
        fit = block_mean_field(
            graph, config=config, states=states, seed=stream(self.seed, 2, number)
        )
        if math.isfinite(fit.bound.log_z):
            node.q = list(fit.marginals)
            assert fit.bound.evidence is not None
            yield fit.bound.evidence
        if not graph.has_zeros:
            yield from self._tables(graph, Side.LOWER)

    def _tables(self, graph: FactorGraph, side: Side) -> list[Evidence]:
        """Mini-buckets of one order after a few iterations."""
        ibound = max(1, self.settings.exact_width)
        config = MiniBucket(ibound, LEAF_ITERATIONS, order=Order.MIN_FILL, side=side)
        try:
            run = Run(Orders(graph), config, time.perf_counter())
        except ResourceError:
            return []
        for _ in run.steps:
            pass
        assert run.descent is not None
        return [run.descent.evidence(run.numbers)]

    # --- Splits -------------------------------------------------------------------------------

    def _split(self, node: StateRegion) -> None:
        """Deal the states of one variable out to two sides: the likelier ones on the first."""
        assert node.graph is not None
        at = _widest(node.graph)
        v = node.kept[at]
        domain = node.domains[v]
        order = np.arange(domain.size) if node.q is None else np.argsort(-node.q[at], kind="stable")
        first = 1
        if node.q is not None:
            first = int(np.searchsorted(np.cumsum(node.q[at][order]), HALF)) + 1
        chosen = np.sort(domain[order[: min(first, domain.size - 1)]])
        node.variable, node.states = v, tuple(chosen.tolist())
        children = []
        for states in (chosen, np.setdiff1d(domain, chosen)):
            alive = np.zeros(int(self._ptr[-1]), dtype=bool)
            for u, left in enumerate(node.domains):
                alive[self._ptr[u] + (states if u == v else left)] = True
            side = self._region(possible_states(self.model, alive), node.depth + 1)
            self._bound(side)
            side.parent = node
            children.append(side)
        node.children = tuple(children)
        node.graph = None
        node.refresh()
        for side in children:
            self._push(side)

    def _news(self) -> Iterator[Bound]:
        """The ends as the judge has them, where one moved."""
        assert self.root is not None
        assert self.root.part is not None
        evidence = DomainsEvidence(self.court, self.root.part)
        verdict = self.court.verdict(self.root.part)
        count = self.splits + 1
        if verdict.lower > self.lower:
            self.lower = verdict.lower
            yield self._record(Side.LOWER, verdict.lower, verdict.rounding, evidence, count)
        if verdict.upper < self.upper:
            self.upper = verdict.upper
            yield self._record(Side.UPPER, verdict.upper, verdict.rounding, evidence, count)

    def _record(
        self, side: Side, value: float, rounding: float, evidence: Evidence, leaves: int
    ) -> Bound:
        bound = Bound(
            side, value, Proof.DETERMINISTIC, f"splitting states, {leaves} leaves",
            self.clock.elapsed, 1.0, "Z is the sum over the leaves", rounding=rounding,
            evidence=evidence,
        )  # fmt: skip
        self.history.append(bound)
        return bound

    def result(self) -> SplittingResult:
        """What is known now."""
        leaves = [] if self.root is None else list(self.root.leaves())
        leaves.sort(key=lambda leaf: -leaf.lower)
        limit = self.clock.limit
        return SplittingResult(
            lower=self.lower,
            upper=self.upper,
            log_lowers=np.array([leaf.lower for leaf in leaves]),
            log_uppers=np.array([leaf.upper for leaf in leaves]),
            depths=np.array([leaf.depth for leaf in leaves], dtype=np.int64),
            exact=np.array([leaf.exact for leaf in leaves], dtype=bool),
            splits=self.splits,
            closed=self.closed,
            history=tuple(self.history),
            seconds=self.clock.elapsed,
            provenance=provenance(
                self.seed, self.model.digest,
                time_limit=None if limit == math.inf else limit, settings=self.settings,
            ),
            mixture=StateMixture(self.model, tuple(leaves)),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class StateMixture:
    """The distribution sum over leaves of weight * q_leaf; exact leaves have their own p."""

    model: FactorGraph
    leaves: tuple[StateRegion, ...]

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """(leaves,) exp(lower bound), normalised; NaN where Z = 0 or nothing was found."""
        logs = np.array([leaf.lower if leaf.exact or leaf.q else -np.inf for leaf in self.leaves])
        if not len(logs) or logs.max() == -np.inf:
            return np.full(len(logs), np.nan)
        weights = np.exp(logs - logs.max())
        return weights / weights.sum()

    def marginals(self) -> list[NDArray[np.float64]]:
        """State probabilities of every variable under the mixture; NaN where nothing is known."""
        cards = self.model.cardinalities.tolist()
        if np.isnan(self.weights).any() or not self.leaves:
            return [np.full(d, np.nan) for d in cards]
        out = [np.zeros(d) for d in cards]
        for leaf, weight in zip(self.leaves, self.weights.tolist(), strict=True):
            if weight == 0.0:
                continue
            q = leaf.q
            if leaf.exact and leaf.graph is not None and leaf.kept:
                q = exact(leaf.graph).marginals
            vectors = dict(zip(leaf.kept, q or [], strict=True))
            for v, states in enumerate(leaf.domains):
                out[v][states] += weight * vectors.get(v, np.ones(1))
        return out

    def states(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(states (count, n), log p~ - log q); refuses where nothing is known."""
        if np.isnan(self.weights).any() or not self.leaves:
            raise TightzError(
                "there is nothing to draw from: the run ended before it had its first q. Give it "
                "more time (time_limit)"
            )
        out = np.zeros((count, self.model.n_variables), dtype=np.int64)
        logs = np.full(count, -np.inf)
        home = rng.choice(len(self.leaves), size=count, p=self.weights)
        for i in np.unique(home).tolist():
            at = np.flatnonzero(home == i)
            leaf = self.leaves[i]
            rows, excess = _drawn(leaf, at.size, rng)
            for v, domain in enumerate(leaf.domains):
                out[at, v] = domain[0]
            for k, v in enumerate(leaf.kept):
                out[at, v] = leaf.domains[v][rows[:, k]]
            logs[at] = excess - math.log(self.weights[i])
        return out, logs


def _closed(lower: float, upper: float) -> bool:
    return upper == -math.inf or upper - lower <= CLOSED * (1.0 + abs(upper))


def _drawn(
    leaf: StateRegion, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """States of a leaf's graph, and log p~ - log q of each."""
    graph = leaf.graph
    assert graph is not None
    rows = np.zeros((count, len(leaf.kept)), dtype=np.int64)
    if leaf.exact:
        everything = choose_cutset(graph, math.inf)
        summed = ConditionedElimination(graph, everything)
        start = np.zeros(len(leaf.kept), dtype=np.int64)
        log_z = summed.log_z(start)
        for row in range(count if leaf.kept else 0):
            rows[row] = summed.sample(start, rng)
        return rows, np.full(count, log_z)
    log_q = np.zeros(count)
    for k, q in enumerate(leaf.q or []):
        rows[:, k] = rng.choice(q.size, size=count, p=q / q.sum())
        log_q += np.log(q[rows[:, k]] / q.sum())
    return rows, graph.log_weight(rows) - log_q


def _restricted(model: FactorGraph, domains: list[NDArray[np.int64]]) -> FactorGraph:
    """The model at the states left: every factor in its place, single states sliced away."""
    left = [states.size for states in domains]
    number = np.cumsum(np.array(left) > 1) - 1
    factors = []
    for scope, table in model.factors:
        for axis, v in enumerate(scope):
            if left[v] < table.shape[axis]:
                table = np.take(table, domains[v], axis=axis)
        rest = [v for v in scope if left[v] > 1]
        factors.append(([int(number[v]) for v in rest], table.reshape([left[v] for v in rest])))
    return FactorGraph([size for size in left if size > 1], factors)


def _widest(graph: FactorGraph) -> int:
    """The variable that most others meet, in states: what elimination suffers from most."""
    met = interaction_graph(scopes_of(graph))
    bits = np.log2(graph.cardinalities.astype(np.float64))
    ptr, near = met.ptr, met.neighbours
    total = np.concatenate([[0.0], np.cumsum(bits[near])])
    return int(np.argmax(total[ptr[1:]] - total[ptr[:-1]]))
