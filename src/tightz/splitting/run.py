"""One splitting run: from the cheapest bound through the root's projection to the tree."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.order import Order
from tightz.errors import ParameterError, require_range
from tightz.families.mean_field import MeanField
from tightz.families.structured import StructuredMeanField
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.collapse import Collapsed
from tightz.reductions.collapse import collapse as collapse_polynomial
from tightz.reductions.encoding import Model, SpinEncoding, encode, model_digest
from tightz.runtime.backends import Backend, on_device
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence, stream
from tightz.search.pool import sample_pool
from tightz.splitting.check import check_tree
from tightz.splitting.evidence import Standing, proof_of
from tightz.splitting.fits import Fit, Fitter, ProductFitter
from tightz.splitting.forest import TreeFitter
from tightz.splitting.nodes import Node
from tightz.splitting.region import Region
from tightz.splitting.results import Mixture, SplittingResult
from tightz.splitting.tree import Setting, Tree
from tightz.splitting.upper import Ceiling, UpperBounder
from tightz.workspace.guide import search_effort

Family = MeanField | StructuredMeanField

STRUCTURED = StructuredMeanField(width=8, restarts=3, tol=1e-4, max_sweeps=30)
PRODUCT = MeanField(restarts=8, tol=1e-6, max_sweeps=200)

MAX_UPPER_TERMS = 20_000
"""Models of more terms get no upper bound here: mini-buckets say little about them."""

MAX_POOL = 4000
"""Pool states kept for guidance."""

LEAF_BYTES = 2**30
"""Memory for the leaves' q's when max_leaves is not given."""

LEAF_ITERATIONS = 12
"""Mini-bucket iterations for a leaf."""

MANY_SPINS = 1000
"""Larger models try one elimination order only."""

Result = TypeVar("Result")


class _LateError(Exception):
    """The deadline came before a stage was done."""


class SplittingTree:
    """An anytime splitting run: `run` yields bounds, `result` reads off what is known.

    model         also an encoding: the tree is then over its polynomial, whose states samples are,
                  and the bounds are about the encoded model
    time_limit    seconds; None: until closed, max_leaves or max_splits
    collapse      sum out spins with at most this many neighbours first; None picks (at most
                  exact_width), 0 is off
    family        MeanField or StructuredMeanField for the leaves; None: structured where the
                  model is sparse and small enough for it, else mean field. Pairs of spins are
                  split on with MeanField only
    upper         whether to bound from above, too
    exact_width   regions that elimination with at most this many neighbours solves are closed;
                  also the mini-buckets' ibound. A larger `collapse` raises it
    max_splits    with no time limit the same seed gives the same tree
    backend       "cuda" bounds the leaves of a MeanField tree on the GPU, hundreds a round;
                  "auto" does so where there is one, "cpu" never

    Both ends are monotone: a region keeps its own bound where its parts add up to less. Every end
    that is reported is the judge's, from the tree's parities, q's and tables; what the search
    believes about its regions decides only where it looks next.
    """

    def __init__(
        self,
        model: Model | SpinEncoding,
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
        backend: Backend = "auto",
    ) -> None:
        if time_limit is not None and not time_limit > 0.0:
            raise ParameterError(
                f"time_limit is {time_limit}; expected a positive number of seconds, or None"
            )
        if family is not None and not isinstance(family, MeanField | StructuredMeanField):
            raise ParameterError(
                f"family is {family!r}; expected tz.MeanField(...) or tz.StructuredMeanField(...)"
            )
        require_range("exact_width", exact_width, 0, 20)
        require_range("collapse", collapse or 0, 0, 20)
        require_range("max_leaves", 1 if max_leaves is None else max_leaves, 1)
        require_range("max_splits", 0 if max_splits is None else max_splits, 0)
        begun = time.perf_counter()
        given = model if isinstance(model, SpinEncoding) else None
        if isinstance(model, SpinEncoding):
            model = model.model if model.direct else model.polynomial
        self.model: Model = model
        self.time_limit = time_limit
        self.seed = seed_sequence(seed)
        self.family = family
        self.collapse = collapse
        self.threads = threads or os.cpu_count() or 1
        self.max_leaves, self.max_splits = max_leaves, max_splits
        self.backend: Backend = backend
        self.encoding = encode(model)
        poly = self.encoding.polynomial
        self.standing = Standing(given or self.encoding)
        self.want_upper = upper and poly.n_terms <= MAX_UPPER_TERMS and self.standing.two_sided
        self.bounder = UpperBounder(poly, max(exact_width, collapse or 0), LEAF_ITERATIONS)
        self.collapsed: Collapsed | None = None
        self.tree: Tree | None = None
        self.history: list[Bound] = []
        self._prepared = time.perf_counter() - begun  # counts against the time limit
        self._start = begun
        self._deadline = math.inf
        self._seconds: float | None = None

    @property
    def lower(self) -> float:
        """The best lower bound so far, as the judge has it; `upper` likewise."""
        return self.standing.lower

    @property
    def upper(self) -> float:
        return self.standing.upper

    def run(self) -> Iterator[Bound]:
        """Yield each improvement; ends when closed, at a limit, or when the iterator is closed."""
        self._start = time.perf_counter() - self._prepared
        if self.time_limit is not None:
            self._deadline = self._start + self.time_limit
        pool = ThreadPoolExecutor(self.threads)
        try:
            for _ in self._stages(pool):
                yield from self._news()
        except _LateError:
            pass
        finally:
            self._seconds = time.perf_counter() - self._start
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
                1.0, why, self.standing.rounding, self.standing.evidence,
            )  # fmt: skip
            self.history.append(
                replace(bound, evidence=None)
            )  # a record; what it rests on is large
            yield bound

    def _stages(self, pool: Executor) -> Iterator[None]:
        """From the cheapest bound to the tree's last round; yields where news may have come."""
        poly = self.encoding.polynomial
        if poly.constant == -np.inf:
            self.standing.nothing()
            yield
            return
        whole = Region.whole(poly.n)
        family = self.family or choose_family(poly, self.time_limit)
        ceiling = self._call(pool, self.bounder.bound, whole, Order.MIN_FILL, 0)
        self.standing.weigh(self.tree, ceiling.proof)
        yield
        working = self._call(pool, self._working, family, ceiling.exact)
        kept = np.arange(poly.n) if self.collapsed is None else self.collapsed.kept
        plain = ProductFitter.build(working, PRODUCT if ceiling.exact else _product(family))
        fit = self._call(pool, _first_fit, plain, generator(self.seed, 2), ceiling.exact)
        tree = self._plant(plain, fit, ceiling, kept, np.zeros((0, working.n), np.int8))
        self.standing.weigh(self.tree, proof_of(plain, fit))
        yield
        if ceiling.exact or working.n == 0:
            return
        wide = None
        if self.want_upper:
            quick = min(4, self.bounder.width)
            ceiling = self._call(pool, self._ceiling, ceiling, Order.MIN_FILL, 2, quick)
            self.standing.weigh(self.tree, ceiling.proof)
            yield
            wide = pool.submit(self._ceiling, ceiling, self._orders(), 40, None)
        states = self._call(pool, self._pool_states, working, kept)
        fitter, fit = self._call(pool, self._root_fit, family, plain, fit, states)
        self.standing.weigh(self.tree, proof_of(fitter, fit))
        yield
        if wide is not None:
            ceiling = self._result(wide)
        tree = self._plant(fitter, fit, ceiling, kept, states)
        self.standing.weigh(self.tree, ceiling.proof)
        yield
        executor = None if self.threads == 1 else pool
        going = True
        while going and not tree.finished and time.perf_counter() < self._deadline:
            going = tree.advance(executor)
            self.standing.weigh(self.tree)
            yield

    def _call(self, pool: Executor, work: Callable[..., Result], *arguments: object) -> Result:
        """work(*arguments) on the pool; _LateError when the deadline comes first."""
        return self._result(pool.submit(work, *arguments))

    def _result(self, future: Future[Result]) -> Result:
        left = None if self._deadline == math.inf else self._deadline - time.perf_counter()
        if not wait([future], timeout=None if left is None else max(0.0, left)).done:
            raise _LateError
        return future.result()

    def _orders(self) -> Order:
        """Several elimination orders are worth a try unless the model is large."""
        return Order.AUTO if self.encoding.polynomial.n <= MANY_SPINS else Order.MIN_FILL

    def _ceiling(self, old: Ceiling, order: Order, iterations: int, ibound: int | None) -> Ceiling:
        """A mini-bucket bound on the whole space, no worse than `old`."""
        limit = None if self.time_limit is None else 0.15 * self.time_limit
        whole = Region.whole(self.encoding.polynomial.n)
        new = self.bounder.bound(whole, order, iterations, limit, ibound)
        return new if new.upper <= old.upper else new._replace(upper=old.upper, proof=old.proof)

    def _root_fit(
        self, family: Family, plain: ProductFitter, fit: Fit, states: NDArray[np.int8]
    ) -> tuple[Fitter, Fit]:
        """The root's q, with the search's states as starts."""
        working = plain.coset.polynomial
        if isinstance(family, StructuredMeanField):
            return TreeFitter.build(working, family, generator(self.seed, 3), states)
        count = int(np.clip(4_000_000 // max(1, working.spins.size), 2, 16))
        starts = states[:: max(1, len(states) // count)]
        near = plain.fit(Region.whole(working.n), fit.q, starts)
        return plain, max(fit, near, key=lambda one: one.log_gamma)

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
        if self.collapse is None and done.k > self.bounder.width:
            done = collapse_polynomial(poly, self.bounder.width)
        safe = replace(done.polynomial, constant=done.polynomial.constant - done.dropped)
        self.collapsed = replace(done, polynomial=safe)
        self.standing.collapsed(self.collapsed)
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
            device=on_device(self.backend, partial(_why_not_device, fitter)),
        )  # fmt: skip
        self.tree = Tree.plant(setting, fitter, fit, self.lower, ceiling)
        self.tree.deadline = self._deadline
        return self.tree

    def check(self) -> None:
        """Whether the search's own picture of its tree holds; ArithmeticError where it does not.

        The ends reported do not depend on it: they are the judge's.
        """
        if self.tree is not None:
            check_tree(self.tree, known=self.lower)

    def result(self) -> SplittingResult:
        """What is known now."""
        now = time.perf_counter() - self._start
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
            seconds=now if self._seconds is None else self._seconds,
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


def _why_not_device(fitter: Fitter, simulator: bool) -> str:
    from tightz.runtime.gpu import why_no_device

    if not isinstance(fitter, ProductFitter):
        return "leaves of structured families are bounded on the CPU; use family=tz.MeanField()"
    return why_no_device(simulator)


def _product(family: Family) -> MeanField:
    return family if isinstance(family, MeanField) else PRODUCT


def _first_fit(fitter: ProductFitter, rng: np.random.Generator, quick: bool) -> Fit:
    """Mean field at the root from a few random starts."""
    family = replace(fitter.family, restarts=1 if quick else 4)
    best = family.project(fitter.coset, rng)
    return Fit(best.log_gamma, best.means)
