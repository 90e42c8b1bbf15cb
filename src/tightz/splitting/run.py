"""One splitting run: from the cheapest bound through the root's projection to the tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.order import Order
from tightz.errors import ParameterError, require_range
from tightz.families.mean_field import MeanField
from tightz.families.projection import IProjection, Refines
from tightz.families.structured import StructuredMeanField
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.reductions.encoding import model_digest
from tightz.runtime.backends import Backend, on_device
from tightz.runtime.clock import Clock, OverError, work_for
from tightz.runtime.cores import usable_cores
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence
from tightz.splitting.evidence import Standing, check_tree
from tightz.splitting.looks import Setting
from tightz.splitting.nodes import Node
from tightz.splitting.region import Region
from tightz.splitting.results import Mixture, SplittingResult
from tightz.splitting.tree import Tree
from tightz.splitting.upper import Ceiling, UpperBounder
from tightz.workspace.working import Handout, Underway
from tightz.workspace.workspace import Workspace

STRUCTURED = StructuredMeanField(width=8, restarts=3, tol=1e-4, max_sweeps=30)
PRODUCT = MeanField(restarts=8, tol=1e-6, max_sweeps=200)

MAX_UPPER_TERMS = 20_000
"""Models of more terms get no upper bound here: mini-buckets say little about them."""

LEAF_BYTES = 2**30
"""Memory for the leaves' q's when max_leaves is not given."""

ON_DEVICE = 2000
"""Spins up to which leaves go to a GPU unasked. On a 100x100 grid one round of them took 15 s of
it, for which tables and chains had to wait, and split nothing that mattered."""

LEAF_ITERATIONS = 12
"""Mini-bucket iterations for a leaf."""

MANY_SPINS = 1000
"""Larger models try one elimination order only."""

SEARCH_SHARE = 0.15
"""Share of a time limit that the search for states may take, and the root's upper bound."""

Result = TypeVar("Result")


LOOK = 0.2
"""Seconds between two looks at whether the run was asked to end."""


class _LateError(Exception):
    """The deadline came before a stage was done."""


@dataclass(frozen=True)
class Splitting:
    """Settings of a splitting tree.

    collapse      sum out spins with at most this many neighbours first; None picks (at most
                  exact_width), 0 is off
    family        MeanField or StructuredMeanField for the leaves, or another that can `refine`;
                  None: structured where the model is sparse and small enough for it, else mean
                  field. Pairs of spins are split on with MeanField only
    upper         whether to bound from above, too
    exact_width   regions that elimination with at most this many neighbours solves are closed;
                  also the mini-buckets' ibound. A larger `collapse` raises it
    max_leaves    None: as many as 1 GB of q's allows
    max_splits    with no time limit the same seed gives the same tree
    """

    collapse: int | None = None
    family: Refines | None = None
    upper: bool = True
    exact_width: int = 10
    max_leaves: int | None = None
    max_splits: int | None = None

    def __post_init__(self) -> None:
        if self.family is not None and not isinstance(self.family, Refines):
            raise ParameterError(
                f"family is {self.family!r}; expected tz.MeanField(...) or "
                "tz.StructuredMeanField(...)"
            )
        require_range("exact_width", self.exact_width, 0, 20)
        require_range("collapse", self.collapse or 0, 0, 20)
        require_range("max_leaves", 1 if self.max_leaves is None else self.max_leaves, 1)
        require_range("max_splits", 0 if self.max_splits is None else self.max_splits, 0)


class SplittingTree:
    """An anytime splitting run: `run` yields bounds, `result` reads off what is known.

    work       the working model, whose encoding, collapse and pool of states the tree shares;
               another `collapse` in the settings, or an automatic one above exact_width, is its own
    clock      None: until closed, max_leaves or max_splits
    backend    "cuda" bounds the leaves of a MeanField tree on the GPU, hundreds a round; "auto"
               does so where there is one, "cpu" never
    hands      how many may look at leaves at a time
    travels    whether they are in other processes
    ahead      whether to choose the next round before the last one's results are taken: none of
               them waits then, and choices are made knowing a round less

    Both ends are monotone: a region keeps its own bound where its parts add up to less. Every end
    that is reported is the judge's, from the tree's parities, q's and tables; what the search
    believes about its regions decides only where it looks next.
    """

    def __init__(
        self,
        work: Workspace,
        settings: Splitting | None = None,
        *,
        clock: Clock | None = None,
        seed: Seed = None,
        threads: int | None = None,
        backend: Backend = "auto",
        hands: int = 1,
        travels: bool = False,
        ahead: bool = False,
    ) -> None:
        self.settings = settings = settings or Splitting()
        self.hands, self.travels, self.ahead = hands, travels, ahead
        self.work = work
        self.clock = Clock() if clock is None else clock
        self.seed = seed_sequence(seed)
        self.threads = threads or usable_cores()
        self.backend: Backend = backend
        poly = work.original
        self.standing = Standing(work.encoding, work.encoded_link)
        two_sided = self.standing.two_sided and poly.n_terms <= MAX_UPPER_TERMS
        self.want_upper = settings.upper and two_sided
        width = max(settings.exact_width, settings.collapse or 0)
        self.bounder = UpperBounder(poly, width, LEAF_ITERATIONS)
        self.tree: Tree | None = None
        self.history: list[Bound] = []
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
        pool = self._pool()
        steps = self.shared_run(pool)
        answer = Underway() if self.threads == 1 else Underway(partial(self._start, pool))
        results: list[Any] | None = None
        try:
            while True:
                item = next(steps) if results is None else steps.send(results)
                results = None
                if isinstance(item, Bound):
                    yield item
                else:
                    results = answer(item)
        except (StopIteration, _LateError):
            pass
        finally:
            steps.close()

    def shared_run(
        self, pool: ThreadPoolExecutor | None = None
    ) -> Generator[Bound | Handout, Any, None]:
        """As `run`, for a driver that has the rounds' looks done; `pool`: for all else."""
        pool = pool or self._pool()
        try:
            yield from self._stages(pool)
        except _LateError:
            pass
        finally:
            self._seconds = self.clock.elapsed
            pool.shutdown(wait=False, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads, initializer=work_for, initargs=(self.clock,))

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
                side, value, Proof.DETERMINISTIC, "splitting", self.clock.elapsed, 1.0, why,
                self.standing.rounding, self.standing.evidence,
            )  # fmt: skip
            # A record: what it rests on is large.
            self.history.append(replace(bound, evidence=None))
            yield bound

    def _stages(self, pool: Executor) -> Generator[Bound | Handout, Any, None]:
        """From the cheapest bound to the tree's last round; with what is news on the way."""
        poly = self.work.original
        if poly.constant == -np.inf:
            self.standing.nothing()
            yield from self._news()
            return
        whole = Region.whole(poly.n)
        ceiling = self._call(pool, self.bounder.bound, whole, Order.MIN_FILL, 0)
        self.standing.weigh(self.tree, ceiling.proof)
        yield from self._news()
        working = self._call(pool, self._collapse)
        family = self.settings.family or choose_family(poly, self.clock.left)
        plain = family if isinstance(family, MeanField) else PRODUCT
        coset = Coset.build(working)
        q = self._call(pool, _first_q, plain, coset, generator(self.seed, 2), ceiling.exact)
        tree = self._plant(plain, q, ceiling, np.zeros((0, working.n), np.int8))
        self.standing.weigh(self.tree, q.proof())
        yield from self._news()
        if ceiling.exact or working.n == 0:
            return
        wide = None
        if self.want_upper:
            quick = min(4, self.bounder.width)
            ceiling = self._call(pool, self._ceiling, ceiling, Order.MIN_FILL, 2, quick)
            self.standing.weigh(self.tree, ceiling.proof)
            yield from self._news()
            wide = pool.submit(self._ceiling, ceiling, self._orders(), 40, None)
        states = self._call(pool, self._samples, working.n)
        q = self._call(pool, self._root_q, family, q, states)
        self.standing.weigh(self.tree, q.proof())
        yield from self._news()
        if wide is not None:
            ceiling = self._result(wide)
        tree = self._plant(family, q, ceiling, states)
        self.standing.weigh(self.tree, ceiling.proof)
        yield from self._news()
        while not tree.finished and not self.clock.expired:
            tree.setting = tree.setting._replace(hands=self.hands)  # who drives it may change them
            yield from tree.hand_out()
            # the judge has what was taken last while others look at more
            self.standing.weigh(self.tree)
            yield from self._news()
            yield from tree.take()
        if not tree.closed and not self.clock.expired:
            yield from tree.take()
        self.standing.weigh(self.tree)
        yield from self._news()

    def _call(self, pool: Executor, work: Callable[..., Result], *arguments: object) -> Result:
        """work(*arguments) on the pool; _LateError when the run ends first."""
        return self._result(pool.submit(work, *arguments))

    def _start(self, pool: Executor, work: Callable[..., Any], task: Any) -> Callable[[], Any]:
        return partial(self._result, pool.submit(work, task))

    def _result(self, future: Future[Result]) -> Result:
        while not wait([future], timeout=min(self.clock.left, LOOK)).done:
            if self.clock.expired:
                raise _LateError
        try:
            return future.result()
        except OverError:
            raise _LateError from None

    def _orders(self) -> Order:
        """Several elimination orders are worth a try unless the model is large."""
        return Order.AUTO if self.work.original.n <= MANY_SPINS else Order.MIN_FILL

    def _ceiling(self, old: Ceiling, order: Order, iterations: int, ibound: int | None) -> Ceiling:
        """A mini-bucket bound on the whole space, no worse than `old`."""
        left = self.clock.left
        limit = None if left == math.inf else SEARCH_SHARE * left
        whole = Region.whole(self.work.original.n)
        new = self.bounder.bound(whole, order, iterations, limit, ibound)
        return new if new.upper <= old.upper else new._replace(upper=old.upper, proof=old.proof)

    def _collapse(self) -> SpinPolynomial:
        """The working polynomial, under the collapse that the settings ask for."""
        wanted = self.settings.collapse
        if wanted is None and self.work.k > self.bounder.width:
            wanted = self.bounder.width
        if wanted is not None and wanted != self.work.k:
            self.work = self.work.recollapsed(wanted)
        if self.work.collapsed is not None:
            self.standing.collapsed(self.work.link)
        return self.work.polynomial

    def _samples(self, n: int) -> NDArray[np.int8]:
        guide = self.work.guide
        return np.zeros((0, n), dtype=np.int8) if guide is None else guide.samples

    def _root_q(self, family: Refines, q: IProjection, states: NDArray[np.int8]) -> IProjection:
        """The root's q, with the search's states as starts."""
        if not isinstance(family, MeanField):
            return family.project(q.coset, generator(self.seed, 3), states)
        size = max(1, q.coset.polynomial.spins.size)
        count = int(np.clip(4_000_000 // size, 2, 16))
        return family.refine(q, states[:: max(1, len(states) // count)])

    def _plant(
        self, family: Refines, q: IProjection, ceiling: Ceiling, states: NDArray[np.int8]
    ) -> Tree:
        room = min(100_000, max(16, LEAF_BYTES // (4 * max(1, q.nbytes))))
        setting = Setting(
            family=family, clock=self.clock, bounder=self.bounder, kept=self.work.kept,
            states=states, seed=self.seed, upper=self.want_upper,
            max_leaves=self.settings.max_leaves or room, max_splits=self.settings.max_splits,
            device=on_device(
                self.backend, partial(_why_not_device, family), worthwhile=q.means.size <= ON_DEVICE
            ),
            hands=self.hands, travels=self.travels, ahead=self.ahead,
        )  # fmt: skip
        self.tree = Tree.plant(setting, q, self.lower, ceiling)
        return self.tree

    def check(self) -> None:
        """Whether the search's own picture of its tree holds; ArithmeticError where it does not.

        The ends reported do not depend on it: they are the judge's.
        """
        if self.tree is not None:
            check_tree(self.tree, known=self.lower)

    def result(self) -> SplittingResult:
        """What is known now."""
        leaves: list[Node] = [] if self.tree is None else list(self.tree.root.leaves())
        leaves.sort(key=lambda leaf: (-leaf.own_lower, leaf.number))
        work, planted = self.work, self.tree is not None
        collapsed = work.collapsed if planted else None
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
            seconds=self.clock.elapsed if self._seconds is None else self._seconds,
            provenance=provenance(
                self.seed, model_digest(work.encoding.model),
                time_limit=None if self.clock.limit == math.inf else self.clock.limit,
                collapse=work.k if planted else None, settings=self.settings,
            ),
            mixture=Mixture(work.encoding, collapsed, self.bounder, tuple(leaves)),
        )  # fmt: skip


def choose_family(poly: SpinPolynomial, seconds_left: float) -> MeanField | StructuredMeanField:
    """Structured where the model is sparse and its shape is found in a sixth of the time.

    Measured on grids: a projection of width 8 takes about (n / 300)^2.5 seconds.
    """
    pairs = int((poly.arities * (poly.arities - 1) // 2).sum())
    seconds = (poly.n / 300.0) ** 2.5
    allowed = 20.0 if seconds_left == math.inf else seconds_left / 6.0
    return STRUCTURED if pairs <= 8 * poly.n and seconds <= allowed else PRODUCT


def _why_not_device(family: Refines, simulator: bool) -> str:
    from tightz.runtime.gpu import why_no_device

    if not isinstance(family, MeanField):
        return "leaves of structured families are bounded on the CPU; use family=tz.MeanField()"
    return why_no_device(simulator)


def _first_q(family: MeanField, coset: Coset, rng: np.random.Generator, quick: bool) -> IProjection:
    """Mean field at the root from a few random starts."""
    return replace(family, restarts=1 if quick else 4).project(coset, rng)
