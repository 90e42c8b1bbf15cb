"""Deterministic bounds on log Z by splitting the space, two-sided and anytime.

The space is cut into regions by parities of one or two spins; each region has an I-projection as
its lower bound and elimination or mini-buckets as its upper bound. Z is the sum over regions, so
both sides add up, with no probability involved (the coset sum of Hsu, Achim and Ermon's setting,
with the parities chosen; anytime search trees for Z: Lou, Dechter and Ihler, 2017).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError, require_range
from tightz.estimation.guide import search_effort
from tightz.estimation.splitting_check import check_tree
from tightz.estimation.splitting_fits import Fit, Fitter, ProductFitter, TreeFitter
from tightz.estimation.splitting_nodes import Node
from tightz.estimation.splitting_region import Region
from tightz.estimation.splitting_results import Mixture, SplittingResult
from tightz.estimation.splitting_tree import Setting, Tree
from tightz.estimation.splitting_upper import Ceiling, UpperBounder, scale
from tightz.families.mean_field import MeanField
from tightz.families.structured import StructuredMeanField
from tightz.models.collapse import Collapsed
from tightz.models.collapse import collapse as collapse_polynomial
from tightz.models.encoding import Model, encode, model_digest
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.references.mini_bucket.order import Order
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence, stream
from tightz.search.pool import sample_pool

Family = MeanField | StructuredMeanField

STRUCTURED = StructuredMeanField(width=8, restarts=3, tol=1e-4, max_sweeps=30)
PRODUCT = MeanField(restarts=8, tol=1e-6, max_sweeps=200)

MAX_UPPER_TERMS = 20_000
"""Models of more terms get no upper bound here: mini-buckets say little about them."""

MAX_POOL = 4000
"""Pool states kept for guidance."""

LEAF_BYTES = 2**30
"""Memory for the leaves' q's when max_leaves is not given."""

Result = TypeVar("Result")


def splitting_bounds(
    model: Model,
    *,
    time_limit: float | None = None,
    seed: Seed = None,
    collapse: int | None = None,
    family: Family | None = None,
    upper: bool = True,
    exact_width: int = 10,
    threads: int | None = None,
    max_leaves: int | None = None,
    max_splits: int | None = None,
) -> Iterator[Bound]:
    """A stream of ever tighter deterministic bounds on log Z; see `SplittingTree`."""
    tree = SplittingTree(
        model, time_limit=time_limit, seed=seed, collapse=collapse, family=family, upper=upper,
        exact_width=exact_width, threads=threads, max_leaves=max_leaves, max_splits=max_splits,
    )  # fmt: skip
    return tree.run()


def split(
    model: Model,
    *,
    time_limit: float | None = None,
    seed: Seed = None,
    collapse: int | None = None,
    family: Family | None = None,
    upper: bool = True,
    exact_width: int = 10,
    threads: int | None = None,
    max_leaves: int | None = None,
    max_splits: int | None = None,
) -> SplittingResult:
    """Both ends of log Z by splitting, with the leaves and their mixture; see `SplittingTree`.

    With no limit at all it runs until the interval is closed.
    """
    tree = SplittingTree(
        model, time_limit=time_limit, seed=seed, collapse=collapse, family=family, upper=upper,
        exact_width=exact_width, threads=threads, max_leaves=max_leaves, max_splits=max_splits,
    )  # fmt: skip
    for _ in tree.run():
        pass
    return tree.result()


class SplittingTree:
    """An anytime splitting run: `run` yields bounds, `result` reads off what is known.

    time_limit    seconds; None: until closed, max_leaves or max_splits
    collapse      sum out spins with at most this many neighbours first; None picks, 0 is off
    family        MeanField or StructuredMeanField for the leaves; None: structured where the
                  model is sparse and small enough for it, else mean field. Pairs of spins are
                  split on with MeanField only
    upper         whether to bound from above, too
    exact_width   regions that elimination with at most this many neighbours solves are closed;
                  also the mini-buckets' ibound
    max_splits    with no time limit the same seed gives the same tree

    Both ends are monotone: a region keeps its own bound where its parts add up to less.
    """

    def __init__(
        self,
        model: Model,
        *,
        time_limit: float | None = None,
        seed: Seed = None,
        collapse: int | None = None,
        family: Family | None = None,
        upper: bool = True,
        exact_width: int = 10,
        threads: int | None = None,
        max_leaves: int | None = None,
        max_splits: int | None = None,
    ) -> None:
        if time_limit is not None and not time_limit > 0.0:
            raise ParameterError(f"time_limit is {time_limit}; expected positive seconds, or None")
        if family is not None and not isinstance(family, MeanField | StructuredMeanField):
            raise ParameterError(
                f"family is {family!r}; splitting takes MeanField or StructuredMeanField"
            )
        require_range("exact_width", exact_width, 0, 20)
        require_range("max_leaves", 1 if max_leaves is None else max_leaves, 1)
        require_range("max_splits", 0 if max_splits is None else max_splits, 0)
        self.model = model
        self.time_limit = time_limit
        self.seed = seed_sequence(seed)
        self.family = family
        self.collapse = collapse
        self.threads = threads or os.cpu_count() or 1
        self.max_leaves, self.max_splits = max_leaves, max_splits
        self.encoding = encode(model)
        poly = self.encoding.polynomial
        self.want_upper = upper and poly.n_terms <= MAX_UPPER_TERMS
        self.bounder = UpperBounder(poly, exact_width, 12)
        self.collapsed: Collapsed | None = None
        self.tree: Tree | None = None
        self.history: list[Bound] = []
        self.lower, self.upper = -math.inf, math.inf
        self._start = time.perf_counter()
        self._deadline = math.inf

    def run(self) -> Iterator[Bound]:
        """Yield each improvement; ends when closed, at a limit, or when the iterator is closed."""
        self._start = time.perf_counter()
        if self.time_limit is not None:
            self._deadline = self._start + self.time_limit
        pool = ThreadPoolExecutor(self.threads)
        try:
            for _ in self._stages(pool):
                yield from self._news()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _news(self) -> Iterator[Bound]:
        """What the tree's root has gained since last time."""
        ends = ((Side.LOWER, self.lower), (Side.UPPER, self.upper))
        told = {bound.side for bound in self.history}
        for side, value in ends:
            old = [b.log_z for b in self.history if b.side is side]
            better = not old or (value > old[-1] if side is Side.LOWER else value < old[-1])
            known = value > -math.inf if side is Side.LOWER else value < math.inf
            if not better or not (known or (self.upper == -math.inf and side not in told)):
                continue
            why = "disjoint regions of the space, each bounded, add up to Z"
            bound = Bound(
                side, value, Proof.DETERMINISTIC, "splitting", time.perf_counter() - self._start,
                1.0, why,
            )  # fmt: skip
            self.history.append(bound)
            yield bound

    def _stages(self, pool: Executor) -> Iterator[None]:
        """From the cheapest bound to the tree's last round; yields where news may have come."""
        poly = self.encoding.polynomial
        whole = Region.whole(poly.n)
        if poly.constant == -np.inf:
            self.upper = -math.inf
            yield
            return
        family = self.family or choose_family(poly, self.time_limit)
        ceiling = self._call(pool, self.bounder.bound, whole, Order.MIN_FILL, 0)
        if ceiling is None:
            return
        self._improve(ceiling.lower, ceiling.upper)
        yield
        working = self._working(family, ceiling.exact)
        kept = np.arange(poly.n) if self.collapsed is None else self.collapsed.kept
        plain = ProductFitter.build(working, PRODUCT if ceiling.exact else _product(family))
        found = self._call(pool, _first_fit, plain, generator(self.seed, 2), ceiling.exact)
        if found is None:
            return
        self._improve(found.log_gamma, math.inf)
        self._plant(plain, found, ceiling, kept, np.zeros((0, working.n), np.int8))
        yield
        if ceiling.exact or working.n == 0 or self.max_splits == 0:
            return
        if self.want_upper:
            for ibound, iterations in ((min(4, self.bounder.width), 2), (None, 40)):
                new = self._call(
                    pool, self.bounder.bound, whole, Order.AUTO, iterations,
                    None if self.time_limit is None else 0.15 * self.time_limit, ibound,
                )  # fmt: skip
                if new is None:
                    return
                ceiling = new._replace(upper=min(new.upper, ceiling.upper), core=ceiling.core)
                self._improve(ceiling.lower, ceiling.upper)
                yield
        states = self._pool_states(working, kept)
        fitter: Fitter = plain
        if isinstance(family, StructuredMeanField):
            made = self._call(
                pool, TreeFitter.build, working, family, generator(self.seed, 3), states
            )
            if made is None:
                return
            fitter, fit = made
        else:
            fitter = plain
            near = plain.fit(Region.whole(working.n), found.q, states[:: max(1, len(states) // 16)])
            fit = max(found, near, key=lambda one: one.log_gamma)
        self._improve(fit.log_gamma, math.inf)
        tree = self._plant(fitter, fit, ceiling, kept, states)
        yield
        executor = None if self.threads == 1 else pool
        while not tree.finished and time.perf_counter() < self._deadline:
            going = tree.advance(executor)
            self._improve(tree.root.lower, tree.root.upper)
            yield
            if not going:
                return

    def _call(
        self, pool: Executor, work: Callable[..., Result], *arguments: object
    ) -> Result | None:
        """work(*arguments) on the pool, or None when the deadline comes first."""
        future = pool.submit(work, *arguments)
        left = None if self._deadline == math.inf else self._deadline - time.perf_counter()
        if wait([future], timeout=None if left is None else max(0.0, left)).done:
            return future.result()
        return None

    def _improve(self, lower: float, upper: float) -> None:
        """Keep the better of each end; refuse ends that contradict each other."""
        self.lower, self.upper = max(self.lower, lower), min(self.upper, upper)
        if self.lower > self.upper:
            if self.lower - self.upper > 1e-9 * scale(self.encoding.polynomial):
                raise ArithmeticError(
                    f"lower bound {self.lower} above upper bound {self.upper}: this is a bug"
                )
            self.lower = self.upper  # rounding

    def _working(self, family: Family, exact: bool) -> SpinPolynomial:
        """The collapsed model, its constant lowered by the rounding it declares."""
        poly = self.encoding.polynomial
        k = self.collapse
        if k is None and isinstance(family, StructuredMeanField):
            k = min(6, self.bounder.width)
        if exact and self.collapse is None:
            k = self.bounder.width
        if k == 0 or poly.n == 0:
            return poly
        done = collapse_polynomial(poly, k)
        safe = replace(done.polynomial, constant=done.polynomial.constant - done.dropped)
        self.collapsed = replace(done, polynomial=safe)
        return safe

    def _pool_states(self, working: SpinPolynomial, kept: NDArray[np.int64]) -> NDArray[np.int8]:
        """Distinct states of the working model from tempering, samples and heavy ones.

        Samples at temperature 1 guide, so they come in full; the heaviest state comes first.
        """
        poly = self.encoding.polynomial
        limit = None
        if self.time_limit is not None:
            limit = max(0.01, min(0.15 * self.time_limit, self._deadline - time.perf_counter()))
        found = sample_pool(
            poly, sweeps=2 * search_effort(poly), time_limit=limit, seed=stream(self.seed, 4),
            samples=2000, threads=self.threads,
        )  # fmt: skip
        rows = found.samples if len(found.samples) else found.states
        rows = np.concatenate([found.states[:8], rows])[:MAX_POOL, kept].astype(np.int8)
        return rows[np.argsort(-working.log_weight(rows), kind="stable")]

    def _plant(
        self, fitter: Fitter, fit: Fit, ceiling: Ceiling, kept: NDArray[np.int64],
        states: NDArray[np.int8],
    ) -> Tree:  # fmt: skip
        room = max(16, LEAF_BYTES // (4 * max(1, fit.q.nbytes)))
        setting = Setting(
            bounder=self.bounder, kept=kept, states=states, seed=self.seed, upper=self.want_upper,
            max_leaves=min(room, 100_000) if self.max_leaves is None else self.max_leaves,
            max_splits=self.max_splits,
        )  # fmt: skip
        self.tree = Tree.plant(setting, fitter, fit, self.lower, ceiling)
        self.tree.deadline = self._deadline
        return self.tree

    def check(self) -> None:
        """Prove the lower end again from the leaves; raises ArithmeticError where that fails."""
        if self.tree is not None:
            check_tree(self.tree, known=self.lower)

    def result(self) -> SplittingResult:
        """What is known now."""
        leaves: list[Node] = [] if self.tree is None else list(self.tree.root.leaves())
        leaves.sort(key=lambda leaf: (-leaf.own_lower, leaf.number))
        kept = np.zeros(0, np.int64) if self.tree is None else self.tree.setting.kept
        return SplittingResult(
            lower=self.lower,
            upper=self.upper,
            log_lowers=np.array([leaf.own_lower for leaf in leaves]),
            log_uppers=np.array([leaf.own_upper for leaf in leaves]),
            depths=np.array([leaf.depth for leaf in leaves], dtype=np.int64),
            exact=np.array([leaf.exact for leaf in leaves], dtype=bool),
            splits=0 if self.tree is None else self.tree.splits,
            closed=self.upper == -math.inf or (self.tree is not None and self.tree.closed),
            history=tuple(self.history),
            seconds=time.perf_counter() - self._start,
            provenance=provenance(
                self.seed, model_digest(self.model), time_limit=self.time_limit,
                collapse=0 if self.collapsed is None else self.collapsed.k, family=self.family,
                exact_width=self.bounder.width, max_splits=self.max_splits,
            ),
            mixture=Mixture(self.encoding, self.collapsed, self.bounder, kept, tuple(leaves)),
        )  # fmt: skip


def choose_family(poly: SpinPolynomial, time_limit: float | None) -> Family:
    """Structured where the model is sparse and its shape is found in a sixth of the time.

    Measured on grids: a projection of width 8 takes about (n / 300)^2.5 seconds.
    """
    pairs = int((poly.arities * (poly.arities - 1) // 2).sum())
    seconds = (poly.n / 300.0) ** 2.5
    allowed = 20.0 if time_limit is None else time_limit / 6.0
    return STRUCTURED if pairs <= 8 * poly.n and seconds <= allowed else PRODUCT


def _product(family: Family) -> MeanField:
    return family if isinstance(family, MeanField) else PRODUCT


def _first_fit(fitter: ProductFitter, rng: np.random.Generator, quick: bool) -> Fit:
    """Mean field at the root from a few random starts."""
    family = replace(fitter.family, restarts=1 if quick else 4)
    best = family.project(fitter.coset, rng)
    return Fit(best.log_gamma, best.means)
