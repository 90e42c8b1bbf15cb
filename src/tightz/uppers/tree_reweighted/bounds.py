"""Tree-reweighted upper bounds on log Z (Wainwright, Jaakkola, Willsky 2005), valid at any time.

The tree-reweighted free energy bounds log Z only at a fixed point of the messages. What is
reported here is another function of the same messages, equal to it at a fixed point and an upper
bound everywhere (see `kernels.valid_bound`), so stopping early costs tightness, never validity; the
reported number is the judge's evaluation of it (`tightz.judge.edges`). Edge appearance
probabilities start at those of a uniform spanning tree and are improved by conditional gradient:
the bound's gradient is minus the edges' mutual informations, so each step moves towards a spanning
tree of largest total information.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import require_range
from tightz.judge.edges import EdgesEvidence
from tightz.judge.spanning import Forests
from tightz.models.factor_graph import FactorGraph
from tightz.models.names import Names, numbers_of
from tightz.models.observed import Observed, observe, per_variable
from tightz.models.pairwise import PairwiseModel, pairwise_model
from tightz.results import ByVariable, OneBound
from tightz.runtime.provenance import provenance
from tightz.uppers.tree_reweighted.kernels import (
    EPSILON,
    edge_beliefs,
    node_beliefs,
    rescale,
    sweep,
    valid_bound,
)
from tightz.uppers.tree_reweighted.spanning_trees import (
    INSIDE,
    maximum_spanning_tree,
    starting_forests,
    visiting_order,
)

_PATIENCE = 25
"""Iterations over which the bound must fall by `tol` for the run to go on."""

_SWEEPS_PER_STEP = 3
"""Iterations between two steps of the edge probabilities."""

_JUDGING = 0.2
"""Share of the time that judging the bounds of a stream may take, the first one apart."""

_ANCHOR = 1e-4
"""Share of the starting probabilities that is never given up: no edge vanishes."""


_EXACT = 0.01
"""Nats of rounding up to which a forest's bound is called exact; huge weights leave more."""


class TreeReweightedStatus(enum.Enum):
    """How a run ended; the value is the advice. The bound holds in every case."""

    CONVERGED = "converged: the bound no longer falls by more than tol"
    EXACT = "exact: the graph has no cycle, so the bound is log Z itself"
    ITERATION_LIMIT = "stopped early: the bound is valid; raise max_iterations to tighten it"


@dataclass(frozen=True)
class TreeReweighted:
    """Settings of the tree-reweighted bound.

    An iteration is one sweep forth and one back. The run ends when 25 of them lower the bound by
    less than `tol` (nats). `damping` is the share of the old message that is kept (none on a graph
    without cycles, where one iteration is exact); `edge_updates` is the largest number of steps of
    the edge appearance probabilities (0 keeps those of the uniform spanning tree).
    """

    max_iterations: int = 2000
    tol: float = 1e-3
    damping: float = 0.0
    edge_updates: int = 1000

    def __post_init__(self) -> None:
        require_range("max_iterations", self.max_iterations, 1)
        require_range("tol", self.tol, 0.0)
        require_range("damping", self.damping, 0.0, 0.99)
        require_range("edge_updates", self.edge_updates, 0)


@dataclass(frozen=True, eq=False, repr=False)
class TreeReweightedResult(ByVariable, OneBound):
    """An upper bound on log Z and the pseudo-marginals behind it.

    `log_z` is what the judge proves at the smallest entry of `history`, which holds the bound after
    each iteration as computed on the way; `bound` carries the evidence.
    `marginals` has one vector per variable. `edges` (E, 2) and `edge_probabilities` (E,) describe
    the pairs that remain once evidence and impossible states are taken out; `edge_marginals`
    lists one table per pair. All belong to the iteration with the smallest bound.
    """

    bound: Bound
    status: TreeReweightedStatus
    iterations: int
    history: NDArray[np.float64]
    marginals: list[NDArray[np.float64]]
    edges: NDArray[np.int64]
    edge_probabilities: NDArray[np.float64]
    seconds: float
    config: TreeReweighted
    provenance: dict[str, Any]
    _pair_tables: Callable[[], list[NDArray[np.float64]]]

    @property
    def naming(self) -> Names:
        return numbers_of(self.marginals)

    @cached_property
    def edge_marginals(self) -> list[NDArray[np.float64]]:
        return self._pair_tables()

    @property
    def log_z(self) -> float:
        return self.bound.log_z

    @property
    def rounding(self) -> float:
        return self.bound.rounding

    def summary(self) -> str:
        return (
            f"log Z <= {self.log_z:.6f} (tree-reweighted, {self.iterations} iterations, "
            f"{self.seconds:.3g} s)\n{self.status.value}"
        )

    def __repr__(self) -> str:
        return (
            f"TreeReweightedResult(log_z={self.log_z:.6f}, status={self.status.name}, "
            f"iterations={self.iterations}, seconds={self.seconds:.3g})"
        )


def tree_reweighted(
    model: FactorGraph, config: TreeReweighted | None = None
) -> TreeReweightedResult:
    """An upper bound on log Z of a model whose factors touch at most two variables each."""
    started = time.perf_counter()
    config = config or TreeReweighted()
    observed = observe(model, single_states=False)
    free, numbers = observed.reduced, observed.kept
    flat = pairwise_model(free)
    run = _Run(flat, free, numbers, config)
    history = [_with_constant(flat, value) for value in run.values()]
    arrays, rho, messages = flat.arrays, run.best_rho, run.best_messages
    bound = _judged(model, run, started)
    status = run.status
    if bound.side is Side.BOTH:
        status = TreeReweightedStatus.EXACT
    return TreeReweightedResult(
        bound=bound,
        status=status,
        iterations=run.iterations,
        history=np.array(history),
        marginals=_full_marginals(observed, flat, run),
        edges=numbers[np.stack([arrays.first, arrays.second], axis=1)],
        edge_probabilities=rho,
        seconds=time.perf_counter() - started,
        config=config,
        provenance=provenance(None, model.digest, method=config),
        _pair_tables=partial(_full_pair_tables, free, flat, rho, messages),
    )


def tree_reweighted_bounds(
    model: FactorGraph, config: TreeReweighted | None = None
) -> Iterator[Bound]:
    """The best judged upper bound so far after each iteration; may be left at any time.

    The same bound comes again where judging an improvement would take too large a share.
    """
    started = time.perf_counter()
    observed = observe(model, single_states=False)
    free, numbers = observed.reduced, observed.kept
    flat = pairwise_model(free)
    run = _Run(flat, free, numbers, config or TreeReweighted())
    bound: Bound | None = None
    spent = last = 0.0
    seen = np.inf
    for _ in run.values():
        begun = time.perf_counter()
        cheap = spent + last <= _JUDGING * (begun - started)
        if bound is None or run.ended or (cheap and run.best < seen):
            fresh = _judged(model, run, started)
            bound = fresh if bound is None or fresh.log_z < bound.log_z else bound
            if seen < np.inf:  # the first judgement also verified the start of the mixture, once
                last = time.perf_counter() - begun
                spent += last
            seen = run.best
        yield bound


class _Run:
    """Messages and edge probabilities on their way; `values` yields the bound as they move."""

    def __init__(
        self, flat: PairwiseModel, free: FactorGraph, numbers: NDArray, config: TreeReweighted
    ) -> None:
        arrays = flat.arrays
        n = arrays.var_ptr.size - 1
        self.flat, self.free, self.arrays, self.config, self.n = flat, free, arrays, config, n
        self.widest = int(np.diff(arrays.var_ptr).max(initial=1))
        order = visiting_order(n, arrays.incident_ptr, arrays.incident, arrays.first, arrays.second)
        self.start, trees = starting_forests(n, arrays.first, arrays.second, order)
        self.forests = Forests(numbers[np.stack([arrays.first, arrays.second], axis=1)], trees)
        self.mixture = self.best_mixture = np.ones(1)
        self.certain = self.start == 1.0
        self.rho = self.start.copy()
        self.best = np.inf
        self.messages = np.zeros(int(arrays.message_ptr[-1]))
        self.best_rho, self.best_messages = self.rho, self.messages.copy()
        rank = np.argsort(order)
        # Leaves of a forest speak first, then the roots answer: exact after one iteration.
        self.passes = ((order[::-1].copy(), n - 1 - rank), (order, rank))
        self.is_forest = bool(self.certain.all())
        self.status = TreeReweightedStatus.ITERATION_LIMIT
        self.iterations = 0
        self.moves = 0

    @property
    def ended(self) -> bool:
        limit = self.iterations == self.config.max_iterations
        return limit or self.status is not TreeReweightedStatus.ITERATION_LIMIT

    def values(self) -> Iterator[float]:
        best: list[float] = []
        previous, keep = np.inf, 0.0 if self.is_forest else self.config.damping
        for iteration in range(1, self.config.max_iterations + 1):
            self.iterations = iteration
            for order, rank in self.passes:
                sweep(self.arrays, self.rho, self.messages, order, rank, keep, self.widest)
            # Valid at any messages, so the best iterate so far can be kept whatever happens later;
            # a bound read off the free energy would hold at convergence only.
            value = float(valid_bound(self.arrays, self.rho, self.messages, self.widest))
            if not best or value < best[-1]:
                self.best_rho, self.best_messages = self.rho, self.messages.copy()
                self.best_mixture, self.best = self.mixture, value
            best.append(min(value, best[-1]) if best else value)
            if self.is_forest:
                # The judge has the last word on EXACT: huge numbers may leave a gap.
                self.status = TreeReweightedStatus.CONVERGED
            elif len(best) > _PATIENCE and best[-1 - _PATIENCE] - best[-1] < self.config.tol:
                self.status = TreeReweightedStatus.CONVERGED
            yield value
            if self.status is not TreeReweightedStatus.ITERATION_LIMIT:
                return
            # Messages that swing make the bound rise at fixed rho: damp them for a while.
            keep = (
                min(0.9, 0.5 + keep / 2)
                if value > previous
                else max(self.config.damping, 0.8 * keep)
            )
            previous = value
            if iteration % _SWEEPS_PER_STEP == 0 and self.moves < self.config.edge_updates:
                self._move_edges()
                previous = np.inf

    def _move_edges(self) -> None:
        """One step of conditional gradient (Frank and Wolfe 1956), of length about 2/k.

        Fixed step lengths beat a line search here: the optimum mixes many trees, and exact
        steps zigzag between them.
        """
        a = self.arrays
        self.moves += 1
        tree = maximum_spanning_tree(self.n, a.first, a.second, self._information())
        self.forests.add(tree == 1.0)
        # Bridges are in every tree; an edge that merely was in all so far loses its certainty.
        self.certain = self.certain & (tree == 1.0)
        # Shrunk inside the polytope, so that rounding cannot carry rho out of what forests attain;
        # bridges are in every spanning tree and stay at exactly 1.
        vertex = np.where(self.certain, 1.0, INSIDE * tree)
        target = (1.0 - _ANCHOR) * vertex + _ANCHOR * self.start
        step = 2.0 / (self.moves + 6.0 + self.rho.size / self.n)
        rho = (1.0 - step) * self.rho + step * target
        rho = np.where(self.certain, 1.0, np.minimum(rho, INSIDE))
        rescale(a, self.rho, rho, self.messages)
        self.rho = rho
        # The weights of the trees seen so far, for the judge: rho is theirs by construction, and
        # it recomputes the sum itself.
        self.mixture = np.append((1.0 - step) * self.mixture, (1.0 - _ANCHOR) * step)
        self.mixture[0] += _ANCHOR * step

    def evidence(self) -> EdgesEvidence:
        """The best iterate for the judge: messages over all states, those taken out at zero."""
        a, cards = self.arrays, self.free.cardinalities.astype(np.int64)
        full_ptr = np.concatenate([[0], np.cumsum(cards)])
        full = []
        for k, ends in enumerate((a.first, a.second)):
            owner = np.repeat(np.arange(ends.size), cards[ends])
            start = np.concatenate([[0], np.cumsum(cards[ends])])[owner]
            live = self.flat.live[full_ptr[ends[owner]] + np.arange(owner.size) - start]
            sizes = a.message_ptr[k + 1 :: 2] - a.message_ptr[k:-1:2]
            slots = np.repeat(a.message_ptr[k:-1:2] - np.cumsum(sizes) + sizes, sizes)
            full.append(np.zeros(owner.size))
            full[k][live] = self.best_messages[slots + np.arange(slots.size)]
        return EdgesEvidence(self.best_rho, self.forests, self.best_mixture, full[0], full[1])

    def _information(self) -> NDArray[np.float64]:
        information = np.empty(self.rho.size)
        beliefs = np.empty(self.arrays.tables.size)
        edge_beliefs(self.arrays, self.rho, self.messages, self.widest, beliefs, information)
        return information


def _with_constant(flat: PairwiseModel, value: float) -> float:
    """The bound of the whole model, rounded up."""
    if flat.constant == -np.inf:
        return -np.inf
    return flat.constant + value + 8.0 * EPSILON * abs(flat.constant)


def _judged(model: FactorGraph, run: _Run, started: float) -> Bound:
    """What the judge makes of the best iterate; BOTH where no more than rounding is left open."""
    evidence = run.evidence()
    verdict = evidence.verdict(model)
    width = (verdict.upper - verdict.lower) * (1.0 + EPSILON)
    exact = verdict.upper == -np.inf or width <= min(8.0 * verdict.rounding, _EXACT)
    return Bound(
        side=Side.BOTH if exact else Side.UPPER,
        log_z=verdict.upper,
        proof=Proof.DETERMINISTIC,
        method="tree-reweighted",
        seconds=time.perf_counter() - started,
        confidence=1.0,
        why="Jensen's inequality over spanning trees of an exact reparameterisation",
        rounding=verdict.rounding if not exact else 0.0 if np.isneginf(verdict.upper) else width,
        evidence=evidence,
    )


def _full_marginals(
    observed: Observed, flat: PairwiseModel, run: _Run
) -> list[NDArray[np.float64]]:
    """Node beliefs over all states of all variables; uniform where Z = 0."""
    if flat.constant == -np.inf:
        return [np.full(c, 1.0 / c) for c in observed.model.cardinalities.tolist()]
    compact = np.empty(flat.arrays.unary.size)
    node_beliefs(flat.arrays, run.best_rho, run.best_messages, compact)
    beliefs = np.zeros(flat.live.size)
    beliefs[flat.live] = compact
    return observed.lift_marginals(per_variable(beliefs, observed.reduced.cardinalities))


def _full_pair_tables(
    free: FactorGraph, flat: PairwiseModel, rho: NDArray, messages: NDArray
) -> list[NDArray[np.float64]]:
    a = flat.arrays
    beliefs, information = np.empty(a.tables.size), np.empty(rho.size)
    widest = int(np.diff(a.var_ptr).max(initial=1))
    edge_beliefs(a, rho, messages, widest, beliefs, information)
    live = per_variable(flat.live, free.cardinalities)
    tables = []
    for e, (i, j) in enumerate(zip(a.first.tolist(), a.second.tolist(), strict=True)):
        table = np.zeros((live[i].size, live[j].size))
        table[np.ix_(live[i], live[j])] = beliefs[a.edge_ptr[e] : a.edge_ptr[e + 1]].reshape(
            int(live[i].sum()), -1
        )
        tables.append(table)
    return tables
