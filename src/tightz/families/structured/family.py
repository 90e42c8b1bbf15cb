"""Structured mean field: clusters of bounded treewidth, exact inside, mean field between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ParameterError, require_range
from tightz.families.projection import (
    START,
    Drawn,
    IProjection,
    Status,
    as_start,
    chart_of,
    check_states,
    heaviest_in_coset,
    holding,
    weight_at_spins,
)
from tightz.families.structured import conditionals
from tightz.families.structured.conditionals import Pinnable, outside, pin
from tightz.families.structured.junction import (
    Forest,
    build_forest,
    expectations,
    images,
    structured_bound,
)
from tightz.families.structured.kernels import ascend
from tightz.families.structured.shape import Shape, auto_shapes, given_shape, product_tables
from tightz.families.structured.terms import Images, Terms, merged_images
from tightz.judge.forests import ForestQ
from tightz.judge.regions import Conditionals
from tightz.projections.coset import Coset


@dataclass(frozen=True, eq=False)
class StructuredProjection(IProjection):
    """The best structured q found: the forest that shapes it and its conditional tables.

    `log_gamma` is evaluated from these two alone; `trace` is the optimiser's objective per sweep.
    `shape` is the coset's polynomial cut along the forest: made when a part is first refined, and
    shared by all parts.
    """

    forest: Forest
    tables: NDArray[np.float64]
    trace: NDArray[np.float64]
    shape: Pinnable | None = field(default=None, kw_only=True, repr=False)

    @cached_property
    def pinnable(self) -> Pinnable:
        """`shape`, made where it is not there yet."""
        return self.shape or conditionals.pinnable(self.coset, self.forest)

    def evaluated(self) -> float:
        """log_gamma afresh, from q alone."""
        return structured_bound(self.coset, self.forest, self.tables)

    def with_tables(self, tables: NDArray[np.float64]) -> StructuredProjection:
        """The q of the same forest with other tables, not evaluated."""
        n = self.coset.n_free
        means = expectations(self.forest, tables, np.arange(n + 1), np.arange(n))
        return as_start(replace(self, tables=tables, means=means, trace=np.zeros(0)))

    def condition(self, parity: tuple[int, ...], sign: int) -> StructuredProjection | None:
        """q given the sign of one free spin; None for more: a tie would change the forest."""
        if len(parity) != 1:
            return None
        at = int(self.coset.free_index[parity[0]])
        tables = self.tables.copy()
        node = int(self.forest.node_of[at])
        conditionals.condition(self.forest, self.tables, node, 0 if sign > 0 else 1, tables)
        half = replace(self, held=holding(self, at, sign), shape=self.pinnable)
        return half.with_tables(tables)

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        """`count` independent states of q: each spin given its separator, ancestors first."""
        check_states(self)
        y, log_q = np.ones((count, self.forest.n)), np.zeros(count)
        uniform = rng.random((count, self.forest.n))
        conditionals.draw(self.forest, self.tables, uniform, y, log_q)
        return Drawn(self.coset.spins_from_free(y[:, self.forest.node_of]), log_q)

    def distribution(self) -> ForestQ:
        """q over the spins of the coset's polynomial, explicitly, for the judge."""
        forest = self.forest
        return ForestQ(
            chart_of(self.coset), forest.spin_of, forest.sep_ptr, forest.sep, self.tables
        )

    def proof(self) -> Conditionals:
        """q as the judge is shown it for a region without ties."""
        forest = self.forest
        return Conditionals(
            self.coset.free[forest.spin_of], forest.sep_ptr, forest.sep, self.tables
        )

    def unfollowed(self) -> NDArray[np.float64]:
        """(n,) sum of |theta| over the terms at each spin that lie in no one bucket."""
        poly = self.coset.polynomial
        ptr, free, _ = images(self.coset, poly.ptr, poly.spins)
        return weight_at_spins(self.coset, np.abs(poly.theta) * outside(self.forest, ptr, free))

    @property
    def nbytes(self) -> int:
        """Memory that q's own numbers take."""
        return self.means.nbytes + self.tables.nbytes

    def expectations(self, ptr: NDArray, spins: NDArray) -> NDArray[np.float64]:
        """E_q[prod of spins[ptr[a]:ptr[a+1]]] for each a; NaN where Z(A, b) = 0."""
        if not self.coset.feasible:
            return np.full(len(ptr) - 1, np.nan)
        image_ptr, free, signs = images(self.coset, ptr, spins)
        return signs * expectations(self.forest, self.tables, image_ptr, free)

    def __repr__(self) -> str:
        return (
            f"StructuredProjection(log_gamma={self.log_gamma:.6f}, {self.forest.n_trees} clusters "
            f"of width up to {self.forest.width}, {self.status.name})"
        )


@dataclass(frozen=True)
class StructuredMeanField:
    """q(y) = prod over clusters of q_c(y_c), each q_c any distribution of bounded treewidth.

    width        largest separator inside a cluster; time and memory grow as 2^width
    restarts     starts per projection; they go round the candidate partitions
    tol          stop when a sweep gains less than this many nats
    max_sweeps   give up (with a valid bound) after this many sweeps
    partition    "auto", or clusters as lists of model spins: disjoint; spins that are not listed
                 stand alone, constrained spins are passed over. A cluster wider than `width`
                 keeps its heaviest terms; the others count in expectation.

    "auto" cuts a lattice into strips of at most `width` lines where the couplings are weakest, in
    both directions, and grows clusters on any other graph. Width 0 is plain mean field, width 1
    gives forests.

    D stays inside Q. q_c is a product of conditional tables q(y_k | y_S_k) along an elimination
    order, free of any other restriction, and tables of zeros and ones are members of the family,
    not only its limits: choosing q(y_k | .) = [y_k = state_k] for all k is the point mass at any
    state of the coset. So the bound is at least the weight of the heaviest state, which is all
    that Theorem 1 asks of Q; and Q contains all products, so it is at least mean field's.

    At m > 0 a term's image may cover half of the free spins. Its expectation needs no larger
    width: a sign-weighted elimination multiplies each member's spin into that spin's own table
    (Saul and Jordan, 1996, optimise such families by coordinate ascent; here each conditional
    table is maximised in closed form, parities included, so every step raises the bound).
    """

    width: int = 8
    restarts: int = 4
    tol: float = 1e-6
    max_sweeps: int = 500
    partition: str | Sequence[Sequence[int]] = "auto"

    def __post_init__(self) -> None:
        require_range("width", self.width, 0, 24)
        require_range("restarts", self.restarts, 1)
        require_range("tol", self.tol, 0.0)
        require_range("max_sweeps", self.max_sweeps, 1)
        if isinstance(self.partition, str):
            if self.partition != "auto":
                raise ParameterError(
                    f"partition is {self.partition!r}; expected 'auto' or a list of clusters"
                )
        else:  # a tuple, so that the config is hashable and cannot change under us
            frozen = tuple(tuple(int(i) for i in c) for c in self.partition)
            object.__setattr__(self, "partition", frozen)

    def project(
        self, coset: Coset, rng: np.random.Generator, states: NDArray | None = None
    ) -> StructuredProjection:
        """The best of `restarts` ascents from means drawn uniformly on [-1, 1].

        With `states`, up to half of the ascents start from the heaviest of these states repaired
        to satisfy the parities: exact steps inside clusters leave less to be gained by a start.
        """
        starts = rng.uniform(-1.0, 1.0, size=(self.restarts, coset.n_free))
        if states is not None and len(states) and coset.feasible:
            known = heaviest_in_coset(coset, states, -(-self.restarts // 2))
            starts[: len(known)] = known
        return self.ascend_from(coset, starts, rng)

    def ascend_from(
        self,
        coset: Coset,
        starts: NDArray[np.float64],
        rng: np.random.Generator | None = None,
    ) -> StructuredProjection:
        """Ascend from the product with each row of `starts` (restarts, n_free); keep the best.

        Restarts go round the candidate shapes; `rng` varies these (default: a fixed stream).
        """
        means = np.atleast_2d(np.asarray(starts, dtype=np.float64))
        fits = means.ndim == 2 and means.shape[0] > 0 and means.shape[1] == coset.n_free
        if not fits or not (np.abs(means) <= 1.0).all():
            raise ParameterError(
                f"starts have shape {np.shape(starts)}; expected at least one row of "
                f"{coset.n_free} means, each in [-1, 1]"
            )
        if not coset.feasible or coset.polynomial.constant == -np.inf:
            return _nothing(coset, len(means))
        work = merged_images(coset)
        shapes = self._shapes(coset, work, len(means), rng or np.random.default_rng(0))
        return self._ascend(coset, shapes, means)

    def refit(
        self,
        q: IProjection,
        rng: np.random.Generator | None = None,
        *,
        shaped: NDArray[np.float64] | None = None,
        start: NDArray[np.float64] | None = None,
    ) -> StructuredProjection:
        """Ascend from q's means on a shape made for q: it keeps the terms that fluctuate under q.

        Not always better than q: a new shape follows other terms. `rng` varies it. `shaped` and
        `start` are other means to make the shape for and to start from: those of a sampler know
        more than one valley.
        """
        shaped = q.means if shaped is None else shaped
        return self.fit(q.coset, shaped, q.means if start is None else start, rng)

    def fit(
        self,
        coset: Coset,
        shaped: NDArray[np.float64],
        start: NDArray[np.float64],
        rng: np.random.Generator | None = None,
    ) -> StructuredProjection:
        """Ascend from the product with the means `start` on a shape made for the means `shaped`."""
        if not coset.feasible or coset.polynomial.constant == -np.inf:
            return _nothing(coset, 1)
        work = merged_images(coset)
        shapes = self._shapes(coset, work, 1, rng, np.clip(shaped, -1.0, 1.0))
        return self._ascend(coset, shapes, np.clip(start, -1.0, 1.0)[None, :])

    def _ascend(
        self, coset: Coset, shapes: Sequence[Shape], means: NDArray[np.float64]
    ) -> StructuredProjection:
        """The best of the ascents from each row of `means`, going round the shapes."""
        log_gammas = np.full(len(means), -np.inf)
        best = None
        sweeps, converged = 0, True
        for r, start in enumerate(means):
            shape = shapes[r % len(shapes)]
            tables = product_tables(shape.forest, start)
            trace = np.empty(self.max_sweeps)
            done = ascend(*shape, tables, self.tol, self.max_sweeps, trace)
            sweeps += done
            converged &= settled(trace[:done], self.tol, shape.terms)
            log_gammas[r] = structured_bound(coset, shape.forest, tables)
            if best is None or log_gammas[r] > log_gammas[:r].max():
                best = shape.forest, tables, trace[:done].copy()
        assert best is not None
        forest, tables, trace = best
        n = coset.n_free
        return StructuredProjection(
            coset,
            float(log_gammas.max()),
            log_gammas,
            expectations(forest, tables, np.arange(n + 1), np.arange(n)),
            sweeps,
            Status.CONVERGED if converged else Status.NOT_CONVERGED,
            forest,
            tables,
            trace,
        )

    def refine(self, q: IProjection, states: NDArray[np.int8]) -> StructuredProjection:
        """The best q on q's region and forest, from q itself and from `states`; never below q:

        no step of the ascent descends.
        """
        assert isinstance(q, StructuredProjection)
        shape, piece = q.pinnable
        forest = q.forest
        at = np.zeros(0, dtype=np.int64) if q.held is None else np.flatnonzero(q.held)
        signs = np.zeros(0, dtype=np.int8) if q.held is None else q.held[at]
        fixed = shape.terms.fixed.copy()
        fixed[piece[at]] += signs * (1e3 + 4.0 * np.abs(q.coset.polynomial.theta).sum())
        held = shape._replace(terms=shape.terms._replace(fixed=fixed))
        means = START * states[:, q.coset.free].astype(np.float64)
        best, reached = q.tables, np.zeros(0)
        for tables in [q.tables.copy(), *(product_tables(forest, row) for row in means)]:
            pin(forest, tables, forest.node_of[at], signs)
            trace = np.empty(self.max_sweeps)
            done = ascend(*held, tables, self.tol, self.max_sweeps, trace)
            # Compared by the ascent's own value, which the pins shift alike.
            if not reached.size or trace[done - 1] > reached[-1]:
                best, reached = tables, trace[:done].copy()
        pin(forest, best, forest.node_of[at], signs)
        found = replace(q, shape=q.pinnable).with_tables(best)
        value = found.evaluated()
        return replace(
            found, log_gamma=value, log_gammas=np.array([value]), sweeps=reached.size,
            trace=reached,
        )  # fmt: skip

    def _shapes(
        self,
        coset: Coset,
        work: Images,
        count: int,
        rng: np.random.Generator | None,
        means: NDArray[np.float64] | None = None,
    ) -> list[Shape]:
        if isinstance(self.partition, str):
            return auto_shapes(coset, work, self.width, count, rng, means)
        clusters = tuple(tuple(c) for c in self.partition)
        _check_clusters(clusters, coset.polynomial.n)
        return [given_shape(coset, work, clusters, self.width)]


def settled(trace: NDArray[np.float64], tol: float, terms: Terms) -> bool:
    """Whether an ascent ended because it had nothing left to gain."""
    if terms.theta.size == 0 and terms.slot_node.size == 0:
        return True  # one pass is the optimum
    return len(trace) > 1 and bool(trace[-1] - trace[-2] <= tol)


def _nothing(coset: Coset, restarts: int) -> StructuredProjection:
    """Z(A, b) = 0: no q has a finite bound."""
    forest = build_forest(coset.n_free, range(coset.n_free), [])
    means = np.zeros(coset.n_free)
    status = Status.CONVERGED if coset.feasible else Status.INFEASIBLE
    return StructuredProjection(
        coset, -np.inf, np.full(restarts, -np.inf), means, 0, status,
        forest, product_tables(forest, means), np.zeros(0),
    )  # fmt: skip


def _check_clusters(clusters: Sequence[Sequence[int]], n: int) -> None:
    seen: set[int] = set()
    for number, cluster in enumerate(clusters):
        for i in cluster:
            if not 0 <= i < n:
                raise ParameterError(
                    f"cluster {number} names spin {i}; the model has spins 0 to {n - 1}"
                )
            if i in seen:
                raise ParameterError(
                    f"cluster {number} names spin {i} again; clusters must be disjoint"
                )
            seen.add(i)
